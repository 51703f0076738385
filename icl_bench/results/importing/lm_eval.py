"""lm-evaluation-harness's ``samples_TASK_DATE.jsonl``, which ``lm_eval --log_samples`` writes.

A line has a document, its ``target``, the requests (``arguments``), their ``filtered_resps`` (texts, or for each choice
its log-likelihood and whether it is greedy), the name of the ``filter`` and the scores of the ``metrics``
(EleutherAI/lm-evaluation-harness @ 4e7e0d47, ``lm_eval/result_schema.py``, ``SampleResult``; ``lm_eval/evaluator.py``,
``evaluate``; ``lm_eval/loggers/evaluation_tracker.py``, ``save_results_samples``). Model and number of demonstrations
are in ``results_DATE.json`` next to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from icl_bench.results.importing.samples import Log, Sample, has_share, own_scores, reading, unusable_scores, verdict
from icl_bench.results.importing.tables import json_value
from icl_bench.text_files import decode, parse_literal, read_file
from icl_bench.wording import counted, plain

JUDGE = "lm-eval"

NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl(?:\.gz)?")

VERDICTS = ("acc", "exact_match")
"""Metrics that are verdicts on an answer; else the first one that is 0 or 1 in all samples."""

Choice = tuple[str, str]
"""A context and its continuation."""


def is_sample(item: Mapping[str, Any]) -> bool:
    """Whether an object is a line of such a file."""
    return {"doc_id", "target", "filtered_resps", "arguments"} <= item.keys()


def is_results(item: Mapping[str, Any]) -> bool:
    """Whether an object is the file of results next to it."""
    return {"results", "configs", "n-shot"} <= item.keys()


def of_samples(file: Path, items: Sequence[Mapping[str, Any]], shown: str) -> Log:
    """The log of a file of samples. Raises ``UserError``."""
    with reading(shown, "samples of lm-eval as version 0.4 writes them"):
        return _of_samples(file, items, shown)


def _of_samples(file: Path, items: Sequence[Mapping[str, Any]], shown: str) -> Log:
    name = NAME.fullmatch(file.name)
    results = _results_beside(file, name["date"]) if name else {}
    task = name["task"] if name else None
    model, k = results.get("model_name"), _shots(results, task)
    if not model and name:  # the folder has the name, with "__" for "/"
        model = file.resolve().parent.name.replace("__", "/")
    notes = []
    if not results and name:
        notes.append(f"no results_{name['date']}.json beside it; the model is taken from the folder's name: {model}")
    by_choice = [_is_choice(item) for item in items]
    gold_of = _gold_reader([item for item, chosen in zip(items, by_choice, strict=True) if chosen])
    ids, deciding = _ids(items), _deciding(items)
    in_common = len({tuple(_choices(item)) for item, chosen in zip(items, by_choice, strict=True) if chosen}) == 1
    samples = []
    for item, chosen in zip(items, by_choice, strict=True):
        scores = {name: item[name] for name in item.get("metrics", ()) if name in item}
        right = verdict(scores.get(deciding)) if deciding is not None else None
        own = {} if chosen else own_scores(scores)
        graded = any(name in scores and verdict(scores[name]) is None for name in VERDICTS)
        if (chosen and graded) or (not chosen and right is None and not has_share(own)):
            raise unusable_scores(shown, f"document {item['doc_id']}", scores)
        answer = _chosen(item, gold_of) if chosen else _generated(item, right)
        sample = Sample(
            test_id=ids[item["doc_id"]],
            correct=right,
            k=k,
            question=_question(item, k, results, task),
            own_choices=(not in_common or None) if chosen else None,
            curve=str(item.get("filter", "none")),
            scores=own,
            **answer,
        )
        samples.append(sample)
    filters = dict.fromkeys(sample.curve for sample in samples)
    if len(filters) > 1:
        notes.append(f"{counted(len(filters), 'filter')}, each a variant of its own: {', '.join(map(plain, filters))}")
    files = (file, _results_file(file, name["date"])) if results and name else ()
    return Log(JUDGE, samples, task, model or None, tuple(notes), files)


def _results_beside(file: Path, date: str) -> Mapping[str, Any]:
    """The results of the same evaluation; empty if they are missing."""
    beside = _results_file(file, date)
    if not beside.is_file():
        return {}
    found = json_value(decode(read_file(beside), plain(beside)), plain(beside))
    return found if isinstance(found, dict) else {}


def _results_file(file: Path, date: str) -> Path:
    return file.with_name(f"results_{date}.json")


def _shots(results: Mapping[str, Any], task: str | None) -> int | None:
    shots = results.get("n-shot", {}).get(task)
    return shots if isinstance(shots, int) else None


def _ids(items: Sequence[Mapping[str, Any]]) -> dict[Any, str]:
    """Document -> its id: the column ``id`` if each document has one, else its number."""
    docs = {item["doc_id"]: item.get("doc") for item in items}
    own = {number: doc.get("id") if isinstance(doc, dict) else None for number, doc in docs.items()}
    usable = all(isinstance(name, str | int) for name in own.values()) and len({*map(str, own.values())}) == len(own)
    return {number: str(own[number] if usable else number) for number in docs}


def _deciding(items: Sequence[Mapping[str, Any]]) -> str | None:
    """The metric that decides whether answers are right."""
    names = list(dict.fromkeys(name for item in items for name in item.get("metrics", ())))
    for name in sorted(names, key=lambda name: VERDICTS.index(name) if name in VERDICTS else len(VERDICTS)):
        if all(verdict(item.get(name)) is not None for item in items):
            return str(name)
    return None


# -- choices ------------------------------------------------------------------------------------


def _requests(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    arguments = item["arguments"]
    if isinstance(arguments, list):  # before 0.4.3
        return [{f"arg_{place}": value for place, value in enumerate(request)} for request in arguments]
    return [arguments[f"gen_args_{number}"] for number in range(len(arguments))]


def _is_choice(item: Mapping[str, Any]) -> bool:
    """Whether each request is a choice whose likelihood was computed."""
    requests = _requests(item)
    return len(requests) > 1 and all(isinstance(request.get("arg_1"), str) for request in requests)


def _choices(item: Mapping[str, Any]) -> list[str]:
    """The texts of the choices: the continuations, or the contexts where those differ instead."""
    requests = _requests(item)
    if "acc_mutual_info" in item.get("metrics", ()):  # the second half repeats them without a context
        requests = requests[: len(requests) // 2]
    texts = [str(request["arg_1"]).strip() for request in requests]
    return texts if len(set(texts)) == len(texts) else [str(request["arg_0"]).strip() for request in requests]


def _best(item: Mapping[str, Any], count: int) -> int:
    likelihoods = [float(answer[0]) for answer in item["filtered_resps"]][:count]
    return likelihoods.index(max(likelihoods))


GoldReader = Callable[[str, Sequence[str]], list[str]]


def _gold_reader(items: Sequence[Mapping[str, Any]]) -> GoldReader:
    """How targets name choices: by index, or by text if only that agrees with all of ``acc``."""
    for reader in (_by_index, _by_text):
        if all(_agrees(item, reader) for item in items):
            return reader
    return _by_index


def _agrees(item: Mapping[str, Any], reader: GoldReader) -> bool:
    choices = _choices(item)
    golds = reader(str(item["target"]), choices)
    right = verdict(item.get("acc"))
    return bool(golds) and (right is None or (choices[_best(item, len(choices))] in golds) == right)


def _by_index(target: str, choices: Sequence[str]) -> list[str]:
    try:
        value = parse_literal(target)
    except ValueError:
        return []
    numbers = value if isinstance(value, list | tuple) else [value]
    usable = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < len(choices)]
    return [choices[n] for n in usable] if len(usable) == len(numbers) else []


def _by_text(target: str, choices: Sequence[str]) -> list[str]:
    return [choice for choice in choices if choice == target.strip()]


def _chosen(item: Mapping[str, Any], gold_of: GoldReader) -> dict[str, Any]:
    choices = _choices(item)
    golds = gold_of(str(item["target"]), choices) or _by_text(str(item["target"]), choices)
    return {
        "gold": golds[0] if golds else str(item["target"]),
        "golds": golds,
        "prediction": choices[_best(item, len(choices))],
    }


# -- texts --------------------------------------------------------------------------------------


def _generated(item: Mapping[str, Any], right: bool | None) -> dict[str, Any]:
    """Gold and prediction of a generated answer, or of the likelihood of only the target."""
    gold, answer = str(item["target"]), item["filtered_resps"][0]
    if isinstance(_requests(item)[0].get("arg_1"), str):  # its likelihood, and whether it is greedy
        return {"gold": gold, "prediction": gold if right else ""}
    while isinstance(answer, list):
        answer = answer[0] if answer else ""
    golds = _listed(gold)
    return {"gold": golds[0], "golds": golds, "prediction": str(answer)}


def _listed(target: str) -> list[str]:
    """Several targets, written as a Python list of texts."""
    if target.startswith("["):
        try:
            value = parse_literal(target)
        except ValueError:
            value = None
        if isinstance(value, list) and value and all(isinstance(text, str) for text in value):
            return value
    return [target]


def _question(item: Mapping[str, Any], k: int | None, results: Mapping[str, Any], task: str | None) -> str | None:
    """The prompt after its demonstrations; the whole prompt if their end is ambiguous."""
    prompt = _requests(item)[0].get("arg_0")
    if not isinstance(prompt, str):
        return None
    delimiter = results.get("configs", {}).get(task, {}).get("fewshot_delimiter")
    if k and isinstance(delimiter, str) and delimiter and prompt.count(delimiter) == k:
        return prompt.rsplit(delimiter, 1)[1]
    return prompt
