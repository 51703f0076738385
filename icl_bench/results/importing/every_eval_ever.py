"""Every Eval Ever: a JSON file of aggregates, and next to it ``UUID_samples.jsonl`` with one line per sample.

The format is that of version 0.3.0 (evaleval/every_eval_ever @ 9bce4136,
``every_eval_ever/schemas/eval.schema.json`` and ``instance_level_eval.schema.json``; arXiv
2606.14516). Exported columns without a field in the format are in ``metadata``, with names that begin with
``icl_bench.``, and are read back unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from icl_bench.errors import UserError
from icl_bench.metrics.scores import usable_metrics
from icl_bench.results.facts import Facts
from icl_bench.results.importing.samples import Log, Sample, has_share, own_scores, reading, unusable_scores, verdict
from icl_bench.results.importing.tables import json_lines, json_value
from icl_bench.results.stored_meta import Origin, as_json
from icl_bench.text_files import decode, read_file
from icl_bench.wording import counted, few, plain

JUDGE = "Every Eval Ever"

PREFIX = "icl_bench."
"""Prefix of this program's columns in ``metadata``."""

TOKENS = {
    "prompt_tokens": "input_tokens",
    "cached_tokens": "input_tokens_cache_read",
    "cache_write_tokens": "input_tokens_cache_write",
    "answer_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens",
}
"""Column -> field of ``token_usage``."""


def is_sample(item: Mapping[str, Any]) -> bool:
    """Whether an object is a line of the samples file."""
    return {"evaluation_id", "sample_id", "input", "evaluation"} <= item.keys()


def is_aggregate(content: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a file's content is an aggregate."""
    return isinstance(content, dict) and {"evaluation_id", "evaluation_results", "eval_library"} <= content.keys()


def samples_of(file: Path, aggregate: Mapping[str, Any], shown: str) -> tuple[Path, list[dict[str, Any]]]:
    """The samples file of an aggregate, in the same folder, with its lines. Raises ``UserError``."""
    about = aggregate.get("detailed_evaluation_results")
    named = about.get("file_path") if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(named, str):
        raise UserError(f"{shown}: has only aggregates, and names no file of samples")
    with reading(shown, "aggregates that name a file of samples"):
        path = file.with_name(named.rpartition("/")[2])
    items, total = json_lines(decode(read_file(path), plain(path)), plain(path)), about.get("total_rows")
    if isinstance(total, int) and total != len(items):
        raise UserError(f"{plain(path)}: has {len(items):,} samples, and {shown} says {total:,}; it is incomplete")
    return path, items


def own_rows(items: Sequence[Mapping[str, Any]], shown: str) -> list[dict[str, Any]] | None:
    """The rows of an export of this program; None for other files. Raises ``UserError``."""
    if not items or not all(is_sample(item) and _has_own(item) for item in items):
        return None
    with reading(shown, "a whole export of icl-bench"):
        return [_own_row(item) for item in items]


def own_origins(aggregate: Mapping[str, Any]) -> bytes | None:
    """The origins of the variants in an export's aggregates, like those in the metadata of a table; None if there are
    none.
    """
    origins: dict[str, Any] = {}
    metrics = {metric.measures[0].name: name for name, metric in usable_metrics().items() if metric.measures}
    with suppress(KeyError, TypeError, ValueError):
        for result in aggregate["evaluation_results"]:
            about, score = result["generation_config"]["additional_details"], result["metric_config"]["metric_id"]
            first = [metrics[score]] if score in metrics else None
            origin = Origin(facts=Facts.model_validate_json(about["facts"]), metrics=first)
            origins[about["variant"]] = origin.model_dump(exclude_none=True)
    return as_json(origins, sort_keys=True) if origins else None


def _has_own(item: Mapping[str, Any]) -> bool:
    metadata = item.get("metadata")
    return isinstance(metadata, dict) and f"{PREFIX}cell" in metadata


def _own_row(item: Mapping[str, Any]) -> dict[str, Any]:
    written = item["output"]["raw"][0]
    answer = item["answer_attribution"][-1]["extracted_value"]
    stored = {name.removeprefix(PREFIX): text for name, text in item["metadata"].items() if name.startswith(PREFIX)}
    usage = item.get("token_usage") or {}
    tokens = {column: usage.get(name) for column, name in TOKENS.items()}
    return {
        **{column: count for column, count in tokens.items() if count is not None},
        "test_id": item["sample_id"],
        "gold": item["input"]["reference"][0],
        "prediction": answer,
        **({"text": written} if written != answer else {}),
        **stored,
    }


def of_samples(file: Path, items: Sequence[Mapping[str, Any]], shown: str) -> Log:
    """The log of a samples file of any program. Raises ``UserError``."""
    with reading(shown, "samples of Every Eval Ever 0.3"):
        return _of_samples(file, items, shown)


def _of_samples(file: Path, items: Sequence[Mapping[str, Any]], shown: str) -> Log:
    aggregate = aggregate_beside(file)
    metrics = {
        result.get("evaluation_result_id"): str(result["metric_config"].get("metric_id") or "")
        for result in aggregate.get("evaluation_results", ())
    }
    about = {name: {item[name] for item in items} for name in ("model_id", "evaluation_name")}
    for name, values in about.items():
        if len(values) > 1:
            raise UserError(f"{shown}: has several values of {name}: {few(sorted(values), 5)}")
    samples = [_sample(item, metrics.get(item.get("evaluation_result_id"), ""), shown) for item in items]
    notes = ["the samples do not state the number of demonstrations: k = 0 is assumed; use --k for another"]
    curves = {sample.curve for sample in samples}
    if len(curves) > 1:
        notes.append(f"{counted(len(curves), 'result')} for the same samples, each a variant of its own")
    (model,), (task,) = about["model_id"], about["evaluation_name"]
    library = str(aggregate.get("eval_library", {}).get("name") or JUDGE)
    files = (file, _aggregate_file(file)) if aggregate else ()
    return Log(library, samples, task, model, tuple(notes), files)


def _aggregate_file(file: Path) -> Path:
    return file.with_name(file.name.replace("_samples.jsonl", ".json"))


def aggregate_beside(file: Path) -> Mapping[str, Any]:
    """The aggregate of a samples file; empty if it is missing."""
    path = _aggregate_file(file)
    if path == file or not path.is_file():
        return {}
    found = json_value(decode(read_file(path), plain(path)), plain(path))
    return found if is_aggregate(found) else {}


def _sample(item: Mapping[str, Any], metric: str, shown: str) -> Sample:
    score, right = item["evaluation"]["score"], item["evaluation"]["is_correct"]
    own = own_scores({metric.replace("-", "_"): score})
    if verdict(score) != right:  # a graded score: "correct" does not apply to it
        right = None
    if right is None and not has_share(own):
        raise unusable_scores(shown, f"sample {item['sample_id']}", {metric or "score": score})
    references = [str(text) for text in item["input"]["reference"]]
    said, whole = _answers(item)
    usage = item.get("token_usage") or {}
    return Sample(
        test_id=item["sample_id"],
        gold=references[0] if references else None,
        golds=references,
        prediction=said,
        correct=right,
        k=0,
        question=item["input"]["raw"],
        text=whole if whole != said else None,
        own_choices=True if item["input"].get("choices") and said in item["input"]["choices"] else None,
        curve=str(item.get("evaluation_result_id") or ""),
        scores=own,
        tokens={column: usage.get(name) for column, name in TOKENS.items()},
    )


def _answers(item: Mapping[str, Any]) -> tuple[str, str]:
    """The judged answer, and the model's whole text."""
    messages = item.get("messages") or []
    texts = [message.get("content") or "" for message in messages if message["role"] == "assistant"]
    whole = (item.get("output") or {}).get("raw") or texts[-1:] or [""]
    final = [one["extracted_value"] for one in item["answer_attribution"] if one["is_terminal"]]
    return (final[-1] if final else whole[0]), whole[0]
