"""A run of HELM: the folder with ``scenario_state.json`` and ``per_instance_stats.json``.

The first has the adapter and, for each instance and train trial, the request, its completions and the references, with
tags on correct ones; the second has the scores of each instance (stanford-crfm/helm @ 63754d05,
``benchmark/adaptation/scenario_state.py``, ``request_state.py``, ``benchmark/metrics/metric.py``, ``PerInstanceStats``;
``benchmark/presentation/run_display.py``). If the state was not kept, ``instances.json`` and
``display_predictions.json``, which HELM's pages read, have the same content. Task and metrics are in ``run_spec.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.results.importing.samples import Log, Sample, has_share, own_scores, reading, unusable_scores, verdict
from icl_bench.results.importing.tables import json_value
from icl_bench.text_files import decode, read_file
from icl_bench.wording import counted, plain

JUDGE = "HELM"

STATE, STATS, SPEC = "scenario_state.json", "per_instance_stats.json", "run_spec.json"
SHOWN, INSTANCES = "display_predictions.json", "instances.json"

VERDICTS = ("exact_match", "quasi_exact_match", "math_equiv", "math_equiv_chain_of_thought", "ifeval_strict_accuracy")
"""Scores that are verdicts on an answer, the preferred first."""

SAME_NAMES = {"f1_score": "f1", "rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
"""HELM's scores -> their names in this program."""

TOKENS = {"prompt_tokens": "num_prompt_tokens", "answer_tokens": "num_output_tokens"}

NOT_OF_THE_TASK = ("model", "model_deployment", "method", "max_train_instances", "num_train_trials", "eval_split")
"""Arguments in a run's name that are not part of the task."""

CALIBRATION = "calibration"
"""The mode of a request without an instance's input, whose answer is not a sample."""

Key = tuple[str, str | None, int]
"""Instance, perturbation, train trial."""


@dataclass(frozen=True)
class Answered:
    """One instance of one trial, with its answer."""

    key: Key
    instance: Mapping[str, Any]
    completion: str
    mapping: Mapping[str, str] | None
    """Letter -> choice, if choices were shown with letters."""
    mapped: str | None
    """The choice that the completion names."""
    scores: Mapping[str, float]


def is_part(item: Mapping[str, Any]) -> bool:
    """Whether an object is (the first of) one of the files of a run."""
    return (
        {"adapter_spec", "request_states"} <= item.keys()
        or {"instance_id", "stats"} <= item.keys()
        or {"adapter_spec", "scenario_spec"} <= item.keys()
    )


def file_in(folder: Path) -> Path:
    """The file of a run's folder with the answers. Raises ``UserError``."""
    for name in (STATE, SHOWN):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{plain(folder)}: a folder, but not a run of HELM: it has neither {STATE} nor {SHOWN}")


def of_folder(folder: Path, shown: str) -> Log:
    """The log of a run. Raises ``UserError``."""
    answers = file_in(folder)
    with reading(shown, "a run of HELM as version 0.5 writes it"):
        return _of_state(folder) if answers.name == STATE else _of_display(folder)


def _of_state(folder: Path) -> Log:
    state, scores = _json(folder / STATE), _all_scores(folder)
    asked = [one for one in state["request_states"] if one.get("request_mode") != CALIBRATION]
    answers = list(_of_requests(asked, scores))
    lost = len({_key(one) for one in asked} - {answer.key for answer in answers})
    return _log(folder, state["adapter_spec"], answers, lost)


def _of_display(folder: Path) -> Log:
    spec = _json(folder / SPEC)
    instances = {(one["id"], _perturbation(one)): one for one in _json(folder / INSTANCES)}
    scores = _all_scores(folder)
    answered = []
    for one in _json(folder / SHOWN):
        key = (one["instance_id"], _perturbation(one), one["train_trial_index"])
        text = one.get("truncated_predicted_text") or one["predicted_text"]
        known = {**one.get("stats", {}), **scores.get(key, {})}
        answered.append(Answered(key, instances[key[:2]], text, None, one.get("mapped_output"), known))
    return _log(folder, spec["adapter_spec"], answered)


def _key(state: Mapping[str, Any]) -> Key:
    """The instance and trial of a request."""
    instance = state["instance"]
    return instance["id"], _perturbation(instance), state["train_trial_index"]


def _json(path: Path) -> Any:
    return json_value(decode(read_file(path), plain(path)), plain(path))


def _perturbation(item: Mapping[str, Any]) -> str | None:
    return (item.get("perturbation") or {}).get("name")


def _all_scores(folder: Path) -> dict[Key, dict[str, float]]:
    """The scores of each instance and trial; empty if the file is missing."""
    found: dict[Key, dict[str, float]] = {}
    if not (folder / STATS).is_file():
        return found
    for item in _json(folder / STATS):
        key = (item["instance_id"], _perturbation(item), item["train_trial_index"])
        means = {stat["name"]["name"]: stat["mean"] for stat in item["stats"] if stat.get("mean") is not None}
        found.setdefault(key, {}).update(means)
    return found


def _of_requests(states: Iterable[Mapping[str, Any]], scores: Mapping[Key, Mapping[str, float]]) -> Iterator[Answered]:
    """The requests with the answers; of separate requests per choice, that of the chosen one."""
    for state in states:
        instance, result = state["instance"], state.get("result")
        key = _key(state)
        known = {"num_train_instances": state["num_train_instances"], **scores.get(key, {})}
        chosen = state.get("reference_index")
        if result is None:
            continue
        if chosen is not None:
            if "predicted_index" not in known:
                raise UserError(f"instance {key[0]}: each choice is a request, and {STATS} lacks predicted_index")
            if chosen != known["predicted_index"]:
                continue
        text = (result.get("completions") or [{"text": ""}])[0]["text"]
        mapping = state.get("output_mapping")
        mapped = instance["references"][chosen]["output"]["text"] if chosen is not None else None
        if mapping is not None:
            mapped = mapping.get(text.strip())
        yield Answered(key, instance, text, mapping, mapped, known)


def _log(folder: Path, adapter: Mapping[str, Any], answers: Sequence[Answered], lost: int = 0) -> Log:
    """The log of these answers; ``lost`` is the number of instances without one."""
    k, samples = adapter["max_train_instances"], []
    of_all = [_scores(one) for one in answers]
    usable = (name for name in VERDICTS if all(verdict(scores.get(name)) is not None for scores in of_all))
    deciding = next(usable, None)
    for one, scores in zip(answers, of_all, strict=True):
        samples.append(_sample(one, scores, deciding, k, folder))
    notes = [f"{counted(lost, 'instance')} without an answer left out"] * bool(lost)
    fewer = sum(1 for one in answers if one.scores.get("num_train_instances", k) < k)
    if fewer:
        notes.append(f"{counted(fewer, 'prompt')} had fewer than {k} demonstrations: HELM had cut them to the window")
    if perturbed := sum(1 for one in answers if one.key[1] is not None):
        notes.append(f"{counted(perturbed, 'sample')} perturbed, each perturbation a variant of its own")
    return Log(JUDGE, samples, _task(folder), adapter.get("model"), tuple(notes), _files(folder))


def _files(folder: Path) -> tuple[Path, ...]:
    """The files of a run that are read."""
    answers = file_in(folder)
    names = [answers.name, STATS, SPEC, *([INSTANCES] if answers.name == SHOWN else [])]
    return tuple(folder / name for name in names if (folder / name).is_file())


def _scores(one: Answered) -> dict[str, float]:
    return {SAME_NAMES.get(name, name): value for name, value in one.scores.items()}


def _sample(one: Answered, scores: Mapping[str, float], deciding: str | None, k: int, folder: Path) -> Sample:
    right = verdict(scores.get(deciding)) if deciding is not None else None
    own = own_scores(scores) if one.mapped is None and one.mapping is None else {}
    golds = [reference["output"]["text"] for reference in one.instance["references"] if "correct" in reference["tags"]]
    prediction = one.completion if one.mapped is None else one.mapped
    if one.mapping is not None:  # letters are labels that instances have in common
        letters = {text: letter for letter, text in reversed(list(one.mapping.items()))}
        golds = [letters.get(gold, gold) for gold in golds]
        prediction = letters[one.mapped] if one.mapped is not None else one.completion
    if right is None and not has_share(own) and not golds:
        raise unusable_scores(str(folder), f"instance {one.key[0]}", scores)
    return Sample(
        test_id=one.key[0],
        gold=golds[0] if golds else "",
        golds=golds,
        prediction=prediction.strip(),
        correct=right,
        k=k,
        draw=one.key[2],
        perturbation=one.key[1],
        question=one.instance["input"].get("text"),
        own_choices=True if one.mapped is not None and one.mapping is None else None,
        tokens={name: _count(one.scores, stat) for name, stat in TOKENS.items()},
        curve=one.key[1] or "",
        scores=own,
    )


def _count(scores: Mapping[str, float], name: str) -> int | None:
    value = scores.get(name)
    return None if value is None else int(value)


def _task(folder: Path) -> str | None:
    """The scenario with its arguments, without those of the model: ``mmlu:subject=philosophy``."""
    path = folder / SPEC
    name = str(_json(path)["name"]) if path.is_file() else folder.resolve().name
    scenario, _, rest = name.partition(":")
    arguments: Sequence[str] = [part for part in rest.split(",") if part.partition("=")[0] not in NOT_OF_THE_TASK]
    return re.sub(r":$", "", f"{scenario}:{','.join(arguments)}") or None
