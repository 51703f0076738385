"""A sweep of rows with choices of their own: answers among them, stored as they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.fakes import WORDS, FakeBackend, model, planned, runner, small_tokenizer, write_rows

from icl_bench.analysis.all_findings import read_findings
from icl_bench.backends.interface import Exact, Free, Greedy
from icl_bench.cli.output.lists import print_shown
from icl_bench.demonstrations.perturbations import Perturbation
from icl_bench.errors import UserError
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.facts import Facts
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.sweep.plan import Plan
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

SHOWN = {"input": "query: {text}\n{choices}", "output": "intent: {label}"}


def row(number: int) -> dict[str, Any]:
    """Row ``number``: three or four choices, which every twelfth row shares."""
    choices = [f"{WORDS[(number + i) % 12]} {WORDS[i]}" for i in range(3 + number % 2)]
    return {"text": f"where is {number}", "choices": choices, "label": choices[number % 3]}


def write(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.jsonl", [row(i) for i in range(30)])
    write_rows(folder / "test.jsonl", [row(100 + i) for i in range(14)])
    fields = {name: name for name in ("text", "choices", "label")}
    task = {
        "name": "own",
        "data": {"train": "train.jsonl", "test": "test.jsonl", "fields": fields},
        "template": {"input": "query: {text}", "output": "intent: {label}"},
        "labels": {"choices": "choices"},
        "metrics": ["accuracy"],
        **changes,
    }
    path = folder / "own.yaml"
    path.write_text(json.dumps(task), encoding="utf-8")
    return path


LETTERS = {"labels": {"choices": "choices", "style": "letters"}, "template": SHOWN}


def task(
    folder: Path, scoring: Any = "greedy", perturbation: str = "none", queries: Any = "test", **changes: Any
) -> TokenizedTask:
    tokenizer: Any = small_tokenizer()
    data = load_data(load_task(write(folder, **changes)))
    shown = Perturbation.parse(perturbation)
    return TokenizedTask(data, model(), tokenizer, 0, scoring, queries, None, shown)


def ran(made: Plan, results: Path) -> Any:
    outcome = runner(made, results, FakeBackend()).run()
    assert not outcome.failed
    return read_results(results)


# -- how answers are found ----------------------------------------------------------------------


def test_rows_with_equal_choices_share_an_automaton_and_others_do_not(tmp_path: Path):
    there = task(tmp_path)
    found = there.decodings(there.data.test)
    for one, this in zip(there.data.test, found, strict=True):
        assert isinstance(this, Greedy)
        assert this.automaton.answers == tuple(f" {choice}\n" for choice in one.choices)
        for other, that in zip(there.data.test, found, strict=True):
            assert (one.choices == other.choices) == (this is that)
    assert there.decodings(there.data.test) == found


def test_letters_share_one_for_all_rows_with_as_many(tmp_path: Path):
    there = task(tmp_path, **LETTERS)
    assert len({id(d) for d in there.decodings(there.data.test)}) == 2


@pytest.mark.parametrize("normalize", ["none", "tokens", "characters", "bytes"])
def test_exact_scores_are_divided_as_the_task_says(tmp_path: Path, normalize: str):
    there = task(tmp_path, "exact", labels={"choices": "choices", "normalize": normalize})
    for one, found in zip(there.data.test, there.decodings(there.data.test), strict=True):
        assert isinstance(found, Exact)
        ids = there.encoder.answers(one.choices)
        sizes = {
            "none": None,
            "tokens": tuple(map(len, ids)),
            "characters": tuple(map(len, one.choices)),
            "bytes": tuple(len(choice.encode()) for choice in one.choices),
        }
        assert found.sizes == sizes[normalize]
        assert found.trie.depths[found.trie.ends].tolist() == list(map(len, ids))


def test_a_fixed_set_of_labels_is_normalised_too(tmp_path: Path):
    fixed = {"labels": {"normalize": "bytes"}}
    there = task(tmp_path, "exact", **fixed)
    (found,) = {id(d): d for d in there.decodings(there.data.test)}.values()
    assert isinstance(found, Exact)
    assert found.sizes == tuple(len(label.encode()) for label in there.data.labels)


def test_an_answer_has_room_for_the_longest_choice_of_any_row(tmp_path: Path):
    there = task(tmp_path)
    choices = [choice for one in there.data.test for choice in one.choices]
    assert there.answer_tokens == max(map(len, there.encoder.answers(choices)))
    free = task(tmp_path, "unconstrained").decodings(there.data.test)
    assert {(one.max_tokens, one.of_labels) for one in free if isinstance(one, Free)} == {(there.answer_tokens, True)}
    held = [tuple(f" {choice}" for choice in one.choices) for one in there.data.test]
    assert [one.labels for one in free if isinstance(one, Free)] == held


# -- what is stored -----------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, LETTERS], ids=["written out", "letters"])
@pytest.mark.parametrize("scoring", ["greedy", "exact"])
def test_predictions_are_choices_of_their_row(tmp_path: Path, changes: Any, scoring: str):
    there = task(tmp_path / "task", scoring, **changes)
    frame = ran(planned(there, "0,2", draws=1), tmp_path / "results")
    rows = {one.id: one for one in there.data.test}
    for said in frame.itertuples():
        one = rows[said.test_id]
        assert said.prediction in one.choices
        assert said.gold == one.answer
        assert said.correct == (said.prediction == one.answer)
    assert frame["valid"].all()
    assert frame["truncated"].isna().all() if "truncated" in frame else True


def test_free_answers_are_compared_with_the_rows_own_choices(tmp_path: Path):
    there = task(tmp_path / "task", "unconstrained")
    frame = ran(planned(there, "2", draws=1), tmp_path / "results")
    assert not frame["valid"].any()
    assert frame["correct"].eq(False).all()


def test_copied_queries_have_the_choices_of_their_demonstration(tmp_path: Path):
    there = task(tmp_path / "task", queries="copied")
    frame = ran(planned(there, "6", draws=1), tmp_path / "results")
    rows = {one.id: one for one in there.data.train}
    assert all(p in rows[name].choices for name, p in zip(frame["test_id"], frame["prediction"], strict=True))


def facts_of(results: Path) -> list[Facts]:
    return [meta.facts for _, meta in finished_cells(results)]


def test_a_cells_facts_say_how_choices_are_written_and_what_they_are_divided_by(tmp_path: Path):
    labels = {"choices": "choices", "normalize": "bytes"}
    for scoring in ("greedy", "exact"):
        there = task(tmp_path / "task", scoring, labels=labels)
        ran(planned(there, "2", draws=1), tmp_path / scoring)
    (greedy,), (exact,) = facts_of(tmp_path / "greedy"), facts_of(tmp_path / "exact")
    assert (greedy.choice_style, greedy.normalize) == ("as-is", None)
    assert (exact.choice_style, exact.normalize) == ("as-is", "bytes")
    fixed = task(tmp_path / "task", "exact", labels={})
    ran(planned(fixed, "2", draws=1), tmp_path / "fixed")
    (plain,) = facts_of(tmp_path / "fixed")
    assert (plain.choice_style, plain.normalize) == (None, None)


def test_other_choices_are_another_variant(tmp_path: Path):
    names = set()
    for style in ("as-is", "words"):
        there = task(tmp_path / "task", labels={"choices": "choices", "style": style})
        ran(planned(there, "2", draws=1), tmp_path / style)
        names |= {(f.labels, f.choice_style) for f in facts_of(tmp_path / style)}
    assert len(names) == 2


JINJA = {
    "data": {"train": "train.jsonl", "test": "test.jsonl"},
    "template": {
        "engine": "jinja",
        "input": "query: {{text}}\nintent:",
        "start": "Say which.\n\n",
        "output": "{{ choices.index(label) }}",
    },
}


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"choices": ["one", "two", "three"], "gold": "index"}},
        {"labels": {"choices": "{{ choices | reverse | list }}", "gold": "index"}},
    ],
)
def test_the_same_choices_in_another_order_are_another_cell(tmp_path: Path, changes: Any):
    """An index then names another answer, though rows, labels and template are the same."""
    turned = {"labels": {**changes["labels"], "choices": ["three", "two", "one"]}}
    if isinstance(changes["labels"]["choices"], str):
        turned = {"labels": {**changes["labels"], "choices": "{{ choices }}"}}
    cells: set[str] = set()
    answers = []
    for number, labels in enumerate((changes, turned)):
        there = task(tmp_path / "task", **JINJA, **labels)
        ran(planned(there, "2", draws=1), tmp_path / str(number))
        cells |= {name for name, _ in finished_cells(tmp_path / str(number))}
        answers.append([one.answer for one in there.data.test])
    assert len({Path(name).name for name in cells}) == 2
    assert answers[0] != answers[1]


def test_labels_of_the_task_file_are_run_and_shown_as_any(tmp_path: Path):
    there = task(tmp_path / "task", **JINJA, labels={"choices": ["one", "two", "three"], "gold": "index"})
    frame = ran(planned(there, "2", draws=2), tmp_path / "r")
    assert set(frame["gold"]) <= {"one", "two", "three"}
    assert read_findings(tmp_path / "r").curves["macro_f1"].notna().all()
    shown = find_prediction(tmp_path / "r", {"task": "own", "k": 2, "draw": 0})
    assert shown.prompt.startswith("Say which.\n\nquery: where is")
    assert shown.prompt.endswith("intent:")


# -- what is made of it -------------------------------------------------------------------------


def test_tables_of_labels_leave_written_choices_out_and_take_letters(tmp_path: Path):
    ran(planned(task(tmp_path / "task"), "2", draws=2), tmp_path / "words")
    ran(planned(task(tmp_path / "task", **LETTERS), "2", draws=2), tmp_path / "letters")
    words, letters = read_findings(tmp_path / "words"), read_findings(tmp_path / "letters")
    for name in ("label_bias", "label_frequencies", "confusions"):
        assert getattr(words, name).empty
    assert set(letters.label_frequencies["label"]) <= set("ABCD")
    assert words.curves["accuracy"].notna().all()
    assert words.curves[["macro_f1", "majority", "uniform"]].isna().all().all()
    assert letters.curves["macro_f1"].notna().all()


@pytest.mark.parametrize(("changes", "first"), [({}, ""), (LETTERS, "A. ")])
def test_a_prediction_is_shown_with_its_rows_choices(
    tmp_path: Path, changes: Any, first: str, capsys: pytest.CaptureFixture[str]
):
    there = task(tmp_path / "task", **changes)
    ran(planned(there, "2", draws=1), tmp_path / "results")
    found = find_prediction(tmp_path / "results", {"task": "own", "k": 2, "draw": 0})
    (one,) = [e for e in there.data.test if e.id == found.row["test_id"]]
    number = int(one.fields["text"].split()[-1])
    assert found.choices[0] == first + row(number)["choices"][0]
    assert found.as_json()["choices"] == list(found.choices)
    print_shown(found, Console(width=200))
    assert f"choices  {' | '.join(found.choices)}" in capsys.readouterr().out


# -- perturbations and refusals -----------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, LETTERS], ids=["written out", "letters"])
def test_a_wrong_label_is_another_of_the_rows_own_choices(tmp_path: Path, changes: Any):
    there = task(tmp_path, perturbation="labels:noise=1", **changes)
    for one, shown in zip(there.data.train, there.perturbed(0), strict=True):
        assert shown.answer in one.choices
        assert shown.answer != one.answer


@pytest.mark.parametrize("changes", [{}, LETTERS], ids=["written out", "letters of three or four"])
def test_answers_of_other_rows_are_not_shown_where_they_are_none_of_the_rows_own(tmp_path: Path, changes: Any):
    there = task(tmp_path, perturbation="labels:permuted", **changes)
    if changes:  # here every right one is among the first three
        assert there.perturbed(0)
        return
    with pytest.raises(UserError, match=r"labels:permuted: .* not among them; labels:noise=1"):
        there.perturbed(0)


def asked(folder: Path, **more: Any) -> RunSpec:
    told = {"task": str(write(folder, **more.pop("task", {}))), "model": "none", "k": "2"}
    return RunSpec(**{**told, **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"labels": "half:1"}, "--labels half:1: each row of task own has choices of its own"),
        ({"labels": "half:1", "task": LETTERS}, "--labels half:1: each row of task own"),
        ({"select": "balanced"}, "--select balanced: this task's answers are free text, or choices"),
        (
            {"task": LETTERS, "calibrate": "batch", "score": "exact"},
            "--calibrate batch: needs scores of the same letters for all test rows; task own has 4 letters, row",
        ),
        ({"order": "by-label"}, "order by-label: this task's answers are free text, or choices"),
        ({"k": None, "per_label": "1", "select": "balanced"}, "--select balanced"),
    ],
)
def test_what_needs_labels_of_all_rows_is_refused_in_one_line(tmp_path: Path, more: dict[str, Any], said: str):
    with pytest.raises(UserError) as error:
        Sweep.prepare(asked(tmp_path, **more))
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_letters_can_be_balanced_and_sorted(tmp_path: Path):
    there = task(tmp_path, **LETTERS)
    made = planned(there, "3", selects=["balanced"], orders=["by-label"], draws=1)
    shown = [there.data.train[i].answer for i in made.groups[-1].group.demonstrations(3)]
    assert shown == ["A", "B", "C"]


@pytest.mark.parametrize("calibration", ["contextual", "batch,of=pool:3"])
def test_queries_that_calibrate_answer_with_letters_of_the_train_rows_too(tmp_path: Path, calibration: str):
    there = task(tmp_path, "exact", **LETTERS)
    test = tuple(replace(one, choices=one.choices[:3], answer="A") for one in there.data.test)
    there = replace(there, data=replace(there.data, test=test))
    _ = there.decodings(test)
    made = planned(there, "2", draws=1, calibrations=[calibration])
    results = tmp_path / "results"
    assert runner(made, results, FakeBackend(scored=True)).run().failed == {}


def test_a_classifier_is_not_trained_on_choices(tmp_path: Path):
    from icl_bench.training.finetune import Finetuning
    from icl_bench.training.spec import FinetuneSpec

    spec = FinetuneSpec(task=str(write(tmp_path)), model="none", k="2")
    with pytest.raises(UserError, match="choices of each row's own; fine-tuning needs labels"):
        Finetuning.prepare(spec)
