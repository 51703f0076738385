"""Exports results in the format of Every Eval Ever: aggregates with intervals, and one line per sample.

Each task and model is a file of aggregates, one for each point, with a file of samples next to it, in the folders of
the project's datastore: ``data/COLLECTION/DEVELOPER/MODEL/UUID.json`` and ``UUID_samples.jsonl`` (version 0.3.0 of
evaleval/every_eval_ever @ 9bce4136, ``every_eval_ever/schemas/eval.schema.json`` and
``instance_level_eval.schema.json``; arXiv 2606.14516). Columns without a field in the format are in ``metadata``, so
that an import gives equal results (:mod:`icl_bench.results.importing.every_eval_ever`).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench import __version__
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.curves import curves
from icl_bench.analysis.predictions import with_copies_as_one_draw
from icl_bench.errors import UserError
from icl_bench.metrics.scores import golds_of, scored, title
from icl_bench.report.prompt_ends import Prompts
from icl_bench.results.cells import digest, slug
from icl_bench.results.facts import UNKNOWN, Facts
from icl_bench.results.importing.every_eval_ever import PREFIX, TOKENS
from icl_bench.results.reading import Stored, read_stored
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import CellMeta
from icl_bench.text_files import write_whole

if TYPE_CHECKING:
    import pandas as pd

VERSION = "0.3.0"

UNKNOWN_NAME = "unknown"

LEVEL = 0.95

ELSEWHERE = ("test_id", "gold", "prediction")
"""Columns that have separate fields in all samples."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Exported:
    """The written files."""

    files: Sequence[Path]
    """The files of aggregates, each with its samples next to it."""
    samples: int
    unscored: int
    """Number of predictions without a score, which the format does not support."""
    without_question: int
    """Number of samples whose ``input.raw`` is empty, because the task's data are not available."""


def export_evaluations(results: Place, out: Path, data_dir: Path | None = None) -> Exported:
    """Write all results into a folder.

    Questions come from the tasks' data, in ``data_dir``. Predictions of calibration queries are left out. Raises
    ``UserError`` if there are no results, or the folder cannot be written.
    """
    stored = read_stored(results, apart=False)
    frame = scored(stored.own_predictions, stored.first_scores)
    if not len(frame):
        raise UserError(f"results folder {results}: no results yet; run something first")
    unscored = frame["score"].isna()
    prompts = Prompts(stored.cells, stored.variants, data_dir)
    files, samples, without = [], 0, 0
    for (task, model), rows in frame[~unscored].groupby(["task", "model"], observed=True, sort=True):
        one = _Evaluation(str(task), str(model), rows, stored, prompts)
        path = out / one.folder / f"{one.uuid}.json"
        try:
            write_whole(path.with_name(one.samples_name), one.samples)
            write_whole(path, json.dumps(one.aggregate(), indent=1).encode())
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror or error})") from None
        files.append(path)
        samples, without = samples + len(rows), without + one.without_question
    return Exported(files, samples, int(unscored.sum()), without)


@dataclass(frozen=True)
class _Evaluation:
    """The evaluation of a model on a task."""

    task: str
    model: str
    rows: pd.DataFrame
    """Its predictions, each with a score."""
    stored: Stored
    prompts: Prompts

    @property
    def model_id(self) -> str:
        """The model as ``DEVELOPER/MODEL``."""
        return self.model if "/" in self.model else f"{UNKNOWN_NAME}/{self.model}"

    @property
    def folder(self) -> str:
        developer, _, model = self.model_id.partition("/")
        return "/".join(("data", f"icl-bench-{slug(self.task)}", _component(developer), _component(model)))

    @cached_property
    def _digest(self) -> str:
        """A hash that names the evaluation: the same predictions have the same name."""
        cells = sorted(map(str, self.rows["cell"].unique()))
        return digest({"task": self.task, "model": self.model, "cells": cells, "rows": len(self.rows)})

    @cached_property
    def uuid(self) -> str:
        """A UUID of version 4, by the evaluation's digest."""
        return str(uuid.UUID(self._digest[:32], version=4))

    @property
    def samples_name(self) -> str:
        return f"{self.uuid}_samples.jsonl"

    @property
    def evaluation_id(self) -> str:
        return f"icl-bench-{slug(self.task)}/{self.model_id.replace('/', '_')}/{self._digest[:16]}"

    @cached_property
    def metas(self) -> list[CellMeta]:
        """Metadata of the files of its cells; empty for imports."""
        cells = self.rows["cell"].astype(object).unique()
        return [self.stored.cells[cell] for cell in cells if cell in self.stored.cells]

    def facts(self, variant: str) -> Facts:
        return self.stored.variants.get(variant, UNKNOWN)

    # -- aggregates -----------------------------------------------------------------------------

    def aggregate(self) -> dict[str, Any]:
        """The content of the file of aggregates."""
        finished = [stamp for meta in self.metas if (stamp := _epoch(meta.run.finished)) is not None]
        return {
            "schema_version": VERSION,
            "evaluation_id": self.evaluation_id,
            **({"evaluation_timestamp": str(max(finished))} if finished else {}),
            "retrieved_timestamp": str(int(time.time())),
            "source_metadata": {
                "source_name": "icl-bench",
                "source_type": "evaluation_run",
                "source_organization_name": UNKNOWN_NAME,
                "evaluator_relationship": "other",
            },
            "eval_library": {"name": "icl-bench", "version": __version__, "additional_details": self._versions()},
            "model_info": self._model_info(),
            "evaluation_results": [self._result(point) for point in _records(curves(self._counted))],
            "detailed_evaluation_results": {
                "format": "jsonl",
                "file_path": f"{self.folder}/{self.samples_name}",
                "hash_algorithm": "sha256",
                "checksum": hashlib.sha256(self.samples).hexdigest(),
                "total_rows": len(self.rows),
            },
        }

    def _versions(self) -> dict[str, str]:
        known = {name: text for meta in self.metas for name, text in meta.versions.items()}
        sources = {source for v in self.rows["variant"].unique() if (source := self.facts(str(v)).imported)}
        return known | ({"imported_from": ", ".join(sorted(sources))} if sources else {})

    def _model_info(self) -> dict[str, Any]:
        servers = {meta.facts.server for meta in self.metas}
        here = bool(self.metas) and servers == {None}
        deployment = "self_deployed" if here else UNKNOWN_NAME
        if servers - {None}:
            deployment = "externally_managed"
        engines = sorted({str(name) for name in self.rows["backend"].unique() if name != "imported"})
        return {
            "name": self.model,
            "id": self.model_id,
            "developer": self.model_id.partition("/")[0],
            **({"inference_engine": {"name": ", ".join(engines)}} if engines else {}),
            "additional_details": {
                "deployment_type": deployment,
                "model_availability": "open_weights" if here else UNKNOWN_NAME,
            },
        }

    def _result(self, point: Record) -> dict[str, Any]:
        metric, facts = str(point["metric"]), self.facts(str(point["variant"]))
        details = {
            name: point[name]
            for name in ("draws", "test_rows", "missing", "interval_over", "macro_f1", "invalid", "majority", "uniform")
            if not _missing(point.get(name))
        }
        low, high = float(point["ci_low"]), float(point["ci_high"])
        interval = {
            "lower": low,
            "upper": high,
            "confidence_level": LEVEL,
            "method": f"over {point['interval_over']} (icl-bench, docs/statistics.md)",
        }
        score = float(point["score"])
        return {
            "evaluation_result_id": _result_id(point),
            "evaluation_name": _name(point),
            "source_data": self._source_data(facts),
            "metric_config": {
                "metric_id": metric,
                "metric_name": title(metric),
                "metric_kind": metric,
                "metric_unit": "proportion",
                "lower_is_better": False,
                "score_type": "continuous",
                "min_score": min(0.0, math.floor(score)),
                "max_score": max(1.0, score),
            },
            "score_details": {
                "score": score,
                "details": {name: _text(value) for name, value in details.items()},
                "uncertainty": {
                    **({"confidence_interval": interval} if math.isfinite(low) and math.isfinite(high) else {}),
                    "num_samples": self._counts[tuple(point[name] for name in POINT)],
                },
            },
            "generation_config": {
                "generation_args": {"max_tokens": facts.max_answer_tokens} if facts.max_answer_tokens else {},
                "additional_details": {
                    **{name: _text(point[name]) for name in POINT if name not in ("task", "model")},
                    "facts": json.dumps(facts.known(), sort_keys=True),
                },
            },
        }

    @cached_property
    def _counted(self) -> pd.DataFrame:
        """The predictions that scores and intervals use: draws with the same prompts count as one."""
        return with_copies_as_one_draw(self.rows)

    @cached_property
    def _counts(self) -> dict[tuple[Any, ...], int]:
        """Point -> its counted predictions."""
        sizes = self._counted.groupby(POINT, observed=True).size()
        return {tuple(point): int(size) for point, size in zip(sizes.index, sizes, strict=True)}

    def _source_data(self, facts: Facts) -> dict[str, Any]:
        given = next((meta.task_as_given for meta in self.metas), {})
        hub = (given.get("data") or {}).get("hub")
        files = {"additional_details": {"files": json.dumps(facts.data, sort_keys=True)}} if facts.data else {}
        if hub:
            return {"dataset_name": self.task, "source_type": "hf_dataset", "hf_repo": str(hub["path"]), **files}
        return {"dataset_name": self.task, "source_type": "other", **files}

    # -- samples --------------------------------------------------------------------------------

    @cached_property
    def questions(self) -> list[str | None]:
        """The question of each prediction, without demonstrations; None if unknown."""
        return [self.prompts.end(record).query for record in _records(self.rows)]

    @property
    def without_question(self) -> int:
        return sum(question is None for question in self.questions)

    @cached_property
    def samples(self) -> bytes:
        """The content of the file of samples."""
        records = zip(_records(self.rows), self.questions, strict=True)
        return b"".join(json.dumps(self._sample(row, asked)).encode() + b"\n" for row, asked in records)

    def _sample(self, row: Record, question: str | None) -> dict[str, Any]:
        facts = self.facts(str(row["variant"]))
        gold, prediction, text = str(row["gold"]), str(row["prediction"]), row.get("text")
        asked = {"raw": question or "", "reference": [*dict.fromkeys((gold, *golds_of(row.get("golds"), gold)))]}
        usage = _usage(row)
        return {
            "schema_version": VERSION,
            "evaluation_id": self.evaluation_id,
            "model_id": self.model_id,
            "evaluation_name": _name(row),
            "evaluation_result_id": _result_id(row),
            "sample_id": str(row["test_id"]),
            **({"sample_hash": _sample_hash(asked)} if question is not None else {}),
            "interaction_type": "single_turn",
            "input": asked,
            "output": {"raw": [text if isinstance(text, str) else prediction]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": prediction,
                    "extraction_method": facts.label_reading or facts.scoring or UNKNOWN_NAME,
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": float(row["score"]), "is_correct": _is_correct(row)},
            **({"token_usage": usage} if usage else {}),
            **({"error": str(row["reason"])} if not _missing(row.get("reason")) else {}),
            "metadata": _metadata(row, has_usage=bool(usage)),
        }


def _records(table: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """The rows of a table, without a copy of all of them."""
    columns = {str(name): table[name].astype(object).tolist() for name in table}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _is_correct(row: Record) -> bool:
    """Whether an answer is right; for free text, whether it has the full score."""
    return bool(row["score"] >= 1) if _missing(row["correct"]) else bool(row["correct"])


def _usage(row: Record) -> dict[str, int]:
    """Token counts; empty unless those of prompt and answer are known."""
    if _missing(row["prompt_tokens"]) or _missing(row["answer_tokens"]):
        return {}
    usage = {name: int(row[column]) for column, name in TOKENS.items() if not _missing(row.get(column))}
    return usage | {"total_tokens": usage["input_tokens"] + usage["output_tokens"]}


def _metadata(row: Record, *, has_usage: bool) -> dict[str, str]:
    """The columns without a field, as text."""
    in_usage = tuple(TOKENS) if has_usage else ()
    skipped = {*ELSEWHERE, *in_usage, "score", "metric"}
    if row.get("text") != row["prediction"]:
        skipped.add("text")  # the output
    if not row.get("own_choices"):
        skipped.add("own_choices")
    columns = {name: value for name, value in row.items() if name not in skipped and not _missing(value)}
    return {f"{PREFIX}{name}": _text(value) for name, value in columns.items()}


def _text(value: Any) -> str:
    """A value as text that an import can parse."""
    if isinstance(value, str):
        return value
    plain = value.tolist() if hasattr(value, "tolist") else value
    return json.dumps(plain, default=str)


def _missing(value: Any) -> bool:
    import pandas as pd

    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def _name(point: Record) -> str:
    """The name of a point's evaluation: ``trec.10-shot.random.drawn``."""
    return f"{point['task']}.{point['k']}-shot.{point['select']}.{point['order']}"


def _result_id(point: Record) -> str:
    return "/".join(str(point[name]) for name in POINT)


def _sample_hash(asked: Mapping[str, Any]) -> str:
    """SHA-256 of question and right answers, as in the project's adapters."""
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _component(name: str) -> str:
    """A name as a folder; ``data`` is reserved."""
    folder = slug(name)
    return f"{folder}_" if folder == "data" else folder


def _epoch(stamp: str | None) -> int | None:
    """Seconds since 1970 of a UTC time in the files' format."""
    try:
        time_stamp = datetime.fromisoformat(stamp) if stamp else None
    except ValueError:
        return None
    return None if time_stamp is None else int(time_stamp.replace(tzinfo=time_stamp.tzinfo or UTC).timestamp())
