"""A task file that changed between two runs: finished cells are not taken as answers of the changed task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FREE_TEXT, FakeBackend, model, planned, runner, small_tokenizer, write_rows, write_task
from support.samples import THREE, Sampler

from icl_bench.analysis.summary import summarise_folder
from icl_bench.backends.interface import Answer, Decoding
from icl_bench.errors import UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.cells import FINISHED, JOURNAL
from icl_bench.results.reading import finished_cells, read_results, read_stored
from icl_bench.results.store import Store
from icl_bench.sweep.facts import Identities
from icl_bench.sweep.runner import Outcome
from icl_bench.sweep.samples import Samples
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

FIELDS = {"text": "text", "label": "label"}


def row(number: int) -> dict[str, Any]:
    golds = {"label": number % 2, "other": (number + 1) % 2, "long": f"because {number} is {number % 2}"}
    lists = {"list": ["one", f"x{number}"], "others": ["two", f"y{number}"]}
    return {"text": f"my card {number}", "title": f"lost {number}", **golds, **lists, "gold": ["A", "B"][number % 2]}


def task_of(folder: Path, fields: Mapping[str, str] = FIELDS, **changes: Any) -> TokenizedTask:
    data = {"train": "train.jsonl", "test": "test.jsonl", "fields": {**FIELDS, **fields}, **changes.pop("data", {})}
    path = write_task(folder, data=data, **changes)
    for split, start, count in (("train", 0, 20), ("test", 100, 6)):
        write_rows(folder / f"{split}.jsonl", [row(start + number) for number in range(count)])
    tokenizer: Any = small_tokenizer()
    return TokenizedTask(load_data(load_task(path)), model(), tokenizer)


NAMES = {"labels": {"names": {"0": "negative", "1": "positive"}}}
SWAPPED = {"labels": {"names": {"0": "positive", "1": "negative"}}}
LETTERS: dict[str, Any] = {
    "template": {"input": "query: {text}\n{choices}", "output": "intent: {label}"},
    "labels": {"choices": "choices", "style": "letters", "gold": "key"},
}
ENDS: dict[str, Any] = {**FREE_TEXT, "fields": {"label": "long"}}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "input column": ({}, {"fields": {"text": "title"}}, "data.fields.text: 'text', and task cards now has 'title'"),
    "label names": (NAMES, SWAPPED, "labels.names.0: 'negative', and task cards now has 'positive'"),
    "gold of free text": (
        {**FREE_TEXT, "fields": {"label": "text"}},
        {**FREE_TEXT, "fields": {"label": "title"}},
        "data.fields.label: 'text', and task cards now has 'title'",
    ),
    "end of thoughts": (ENDS, ENDS | {"answer": {"ends": " is "}}, "answer.ends: none, and task cards now has ' is '"),
    "choices of letters": (
        LETTERS | {"fields": {"choices": "list", "label": "gold"}},
        LETTERS | {"fields": {"choices": "others", "label": "gold"}},
        "data.fields.choices: 'list', and task cards now has 'others'",
    ),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_finished_cell_of_a_changed_task_is_refused_in_one_line(tmp_path: Path, changed: str):
    before, after, said = CHANGES[changed]
    results = tmp_path / "results"
    outcome = runner(planned(task_of(tmp_path / "task", **before), "1", draws=1), results, FakeBackend()).run()
    assert len(outcome.computed) == 1
    (file,) = results.rglob(f"*{FINISHED}")
    content = file.read_bytes()
    plan = planned(task_of(tmp_path / "task", **after), "1", draws=1)
    with pytest.raises(UserError) as refused:
        runner(plan, results).run()
    advice = "give another folder with --results, another name to the task, or the former value"
    assert str(refused.value) == f"{file}: was computed with {said}; {advice}"
    assert file.read_bytes() == content
    store = Store(results)
    with pytest.raises(UserError, match="was computed with"):
        store.is_current(Identities({"backend": "fake", "dtype": "float32"})(plan.cells[0]))
    again = runner(planned(task_of(tmp_path / "task", **before), "1", draws=1), results).run()
    assert len(again.kept) == 1


def test_an_unused_field_and_a_comment_change_nothing(tmp_path: Path):
    results = tmp_path / "results"
    runner(planned(task_of(tmp_path / "task"), "1", draws=1), results, FakeBackend()).run()
    changed = task_of(tmp_path / "task", {"further": "title"}, description="other", answer={"ends": "So "})
    assert len(runner(planned(changed, "1", draws=1), results).run().kept) == 1


def test_answers_of_an_interrupted_run_with_other_right_answers_are_computed_again(tmp_path: Path):
    results = tmp_path / "results"
    plan = planned(task_of(tmp_path / "task", **ENDS), "0", draws=1)
    partly = runner(plan, results, FakeBackend())
    partly.ask(plan.groups[0], plan.cells[0], [plan.task.data.test[0].id], Outcome())
    assert len(list(results.rglob(f"*{JOURNAL}"))) == 1
    changed = task_of(tmp_path / "task", **ENDS, answer={"ends": " is "})
    with pytest.warns(UserWarning, match=r"1 prediction of an interrupted run had another right answer \(the task"):
        runner(planned(changed, "0", draws=1), results, FakeBackend()).run()
    assert set(read_results(results)["gold"]) == {"0", "1"}


# -- metrics ------------------------------------------------------------------------------------


def sampled(folder: Path, metrics: Sequence[str]) -> TokenizedTask:
    changes = {**FREE_TEXT, "metrics": list(metrics), "fields": {"label": "long"}}
    return replace(task_of(folder, **changes), samples=THREE)


def test_samples_are_not_taken_as_those_of_another_first_metric(tmp_path: Path):
    results = tmp_path / "results"
    plan = planned(sampled(tmp_path / "task", ["exact_match", "f1"]), "1", draws=1)
    partly = runner(plan, results, Sampler())
    partly.ask(plan.groups[0], plan.cells[0], [plan.task.data.test[0].id], Outcome())
    changed = planned(sampled(tmp_path / "task", ["f1", "exact_match"]), "1", draws=1)
    said = r"was computed with metrics.0: 'exact_match', and task cards now has 'f1'; give another"
    with pytest.raises(UserError, match=rf"{JOURNAL}: {said}"):
        runner(changed, results, Sampler()).run()
    assert len(runner(plan, results, Sampler()).run().computed) == 1
    with pytest.raises(UserError, match=rf"{FINISHED}: {said}"):
        runner(changed, results).run()


def test_finished_cells_are_scored_by_the_metrics_that_their_task_has_now(tmp_path: Path):
    results = tmp_path / "results"

    def run(metrics: Sequence[str], k: str) -> tuple[int, int]:
        task = task_of(tmp_path / "task", **FREE_TEXT | {"metrics": list(metrics), "fields": {"label": "text"}})
        outcome = runner(planned(task, k, draws=1), results, Wordy()).run()
        return len(outcome.computed), len(outcome.kept)

    assert run(["exact_match"], "1,2") == (2, 0)
    assert run(["f1"], "1,2,4") == (1, 2)
    frame = read_results(results)
    assert frame["f1"].notna().all()
    assert frame.loc[frame["k"] < 4, "exact_match"].notna().all()
    assert {tuple(meta.task.metrics) for _, meta in finished_cells(results) if meta.task} == {("f1",)}
    assert read_stored(results).first_scores == {"cards": "f1"}
    points = summarise_folder(results).curves
    assert set(points["metric"]) == {"f1"}
    assert points["score"].gt(0).all()
    files = {file: file.read_bytes() for file in results.rglob(f"*{FINISHED}")}
    assert run(["f1"], "1,2,4") == (0, 3)
    assert {file: file.read_bytes() for file in files} == files


def test_cells_whose_first_metrics_differ_are_compared_by_what_most_answers_have(tmp_path: Path):
    results = tmp_path / "results"
    for metrics, k in ((["exact_match", "f1"], "1,2"), (["f1"], "4")):
        task = task_of(tmp_path / "task", **FREE_TEXT | {"metrics": metrics, "fields": {"label": "text"}})
        runner(planned(task, k, draws=1), results, Wordy()).run()
    assert read_stored(results).first_scores == {}
    assert set(summarise_folder(results).curves["metric"]) == {"f1"}


class Wordy(FakeBackend):
    """Answers with a word that each right answer has."""

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        return replace(super()._answered(prompts, index, decoding), text="card")


class Refusing(FakeBackend):
    """Has no answer to any query."""

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        return Answer(index, 0, 0, text="", reason="content_filter")


@pytest.mark.parametrize("samples", [None, THREE])
def test_no_answer_is_not_the_right_one_where_the_right_answer_is_empty(tmp_path: Path, samples: Samples | None):
    answer = {"unanswerable": "nobody knows", "extract": "(.+)"}
    path = write_task(tmp_path / "task", **FREE_TEXT | {"metrics": ["exact_match", "f1"], "answer": answer})
    for split, count in (("train", 20), ("test", 6)):
        rows = [{"text": f"{split} {n}", "label": "" if n % 2 else "Rome"} for n in range(count)]
        write_rows(tmp_path / "task" / f"{split}.jsonl", rows)
    tokenizer: Any = small_tokenizer()
    task = TokenizedTask(load_data(load_task(path)), model(), tokenizer, samples=samples)
    runner(planned(task, "1", draws=1), tmp_path / "results", Refusing()).run()
    frame = read_results(tmp_path / "results")
    assert not frame["valid"].any()
    assert (frame["gold"] == "").sum() == 3
    assert not frame[["exact_match", "f1"]].to_numpy().any()
    if samples is not None:
        assert set(map(tuple, frame["sample_scores"])) == {(0.0, 0.0, 0.0)}
