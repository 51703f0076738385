"""Local files and groups of its tasks: cells are typed, and prompts written, as lm-evaluation-harness does it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from on_lm_eval.asked import reference

from icl_bench.prompts.rendering import PlainForm
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task, tasks_of

SHOTS = (0, 2)
COLUMNS = ("code", "flag", "share", "blank", "at", "word", "choice")
ROWS = [
    ("001", "False", "1.50", "", "2020-01-01", "None", "0"),
    ("02", "True", "2", "x", "2020-01-02 10:00:00", "NA", "1"),
    ("3", "False", "1e3", "", "2021-05-05", "naïve", "1"),
    ("4", "True", "", "y", "2022-01-01", "a,b", "0"),
]
"""Texts that may be read as something else."""
TEXT = "".join(f"{name} {{{{{name}}}}} " for name in COLUMNS) + "{% if flag %}yes{% endif %}"


def _csv(path: Path, rows: list[tuple[str, ...]], separator: str = ",") -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([COLUMNS, *rows])


def _typed(row: tuple[str, ...], number: int) -> dict[str, Any]:
    """A row of a JSON file: numbers, truth values and nested cells as such."""
    cells: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    deep = {"n": number} if number % 2 else {"n": number, "only": "here"}
    return {**cells, "flag": row[1] == "True", "choice": int(row[-1]), "blank": [deep, None][number == 2]}


def _files(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kinds of files: their name for ``datasets``, and the arguments."""
    typed = [_typed(row, number) for number, row in enumerate(ROWS)]
    _csv(folder / "one.csv", ROWS[:2])
    _csv(folder / "two.csv", ROWS[2:])
    _csv(folder / "all.csv", ROWS)
    _csv(folder / "one.tsv", ROWS[:2], "\t")
    (folder / "all.json").write_text(json.dumps(typed), encoding="utf-8")
    (folder / "nested.json").write_text(json.dumps({"rows": typed}), encoding="utf-8")
    for name, part in (("one", typed[:2]), ("two", typed[2:])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part), encoding="utf-8")
    return {
        "csv": ("csv", {"data_files": {"train": "all.csv", "test": "all.csv"}}),
        "lists": ("csv", {"data_files": {"train": ["one.csv", "two.csv"], "test": ["all.csv"]}}),
        "tsv": ("csv", {"data_files": {"train": "one.tsv", "test": "one.tsv"}, "sep": "\t"}),
        "json": ("json", {"data_files": {"train": "all.json", "test": ["all.json"]}}),
        "jsonl": ("json", {"data_files": {"train": ["one.jsonl", "two.jsonl"], "test": "*.jsonl"}}),
        "field": ("json", {"data_files": {"train": "nested.json", "test": "nested.json"}, "field": "rows"}),
    }


def _task(kind: str, arguments: dict[str, Any], target: str) -> dict[str, Any]:
    return {
        "task": "typed",
        "dataset_path": kind,
        "dataset_kwargs": arguments,
        "training_split": "train",
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": TEXT,
        "doc_to_target": target,
        "doc_to_choice": ["no", "yes"],
    }


def test_prompts_and_answers_of_local_files_are_those_of_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tasks = {}
    for name, (kind, arguments) in _files(tmp_path).items():
        for target in ("choice", "flag", "{{choice}}"):
            path = tmp_path / f"{name}-{target.strip('{}')}{len(target)}.yaml"
            path.write_text(yaml.safe_dump(_task(kind, arguments, target)))
            tasks[str(path)] = path
    made = reference(tmp_path, SHOTS, tasks)["made"]
    for name, path in tasks.items():
        data = load_data(load_task(path))
        form, theirs = PlainForm(data.spec.template), made[name]
        for k in SHOTS:
            ours = [form.whole(data.train[:k], row) for row in data.test_pool]
            assert ours == theirs["prompts"][str(k)], (name, k)
        targets = zip(theirs["choices"], theirs["targets"], strict=True)
        assert [row.answer for row in data.test_pool] == [choices[target] for choices, target in targets], name


def test_the_tasks_of_groups_are_those_of_lm_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    arguments = _files(tmp_path)["csv"][1]
    own = _task("csv", arguments, "choice")
    inner = {"group": "inner", "description": "I.\n", "task": ["c", {**own, "task": "new"}]}
    changed = [{"task": "a", "doc_to_text": "o {{code}}"}, {"task": "b", "description": "M.\n"}]
    files: dict[str, dict[str, Any]] = {
        "own/a.yaml": {**own, "task": "a"},
        "own/_base.yml": {**own, "tag": ["tagged"]},
        "own/deep/b.yaml": {"task": "b", "include": "../_base.yml", "doc_to_text": "b {{code}}"},
        "own/deep/c.yaml": {"task": "c", "include": "../_base.yml", "doc_to_text": "c {{code}}"},
        "own/few.yaml": {"group": "few", "task": ["a"], "description": "F.\n"},
        "own/named.yaml": {"group": "named", "description": "D.\n", "task": ["a", "tagged"]},
        "own/changed.yaml": {"group": "changed", "description": "D.\n", "task": changed},
        "own/nested.yaml": {"group": "nested", "description": "D.\n", "task": [inner, "few"]},
        "own/passed.yaml": {"group": "passed", "task": [{"group": "few", "doc_to_text": "few {{code}}"}, "b"]},
    }
    for name, values in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(values))
    groups = [str(tmp_path / "own" / f"{name}.yaml") for name in ("named", "changed", "nested", "passed")]
    made = reference(tmp_path, SHOTS, groups)["made"]
    for group in groups:
        found = {}
        for task in tasks_of(group):
            data = load_data(load_task(task))
            found[data.spec.name] = PlainForm(data.spec.template).whole([], data.test_pool[0])
        assert list(found.items()) == [(n.replace("::", "--"), text) for n, text in made[group]["tasks"].items()]
