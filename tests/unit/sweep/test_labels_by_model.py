"""Demonstrations with the model's own labels: what is asked for them, what prompts show, what is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fakes, in_process
from support.fakes import FREE_TEXT, FakeBackend, plan, runner, small_tokenizer, tokenized_task

from icl_bench.analysis.all_findings import read_findings
from icl_bench.errors import CellError
from icl_bench.models import registry as models
from icl_bench.prompts.encoding import PromptSet
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.reading import finished_cells, read_results, read_rows
from icl_bench.results.storage import storage_at
from icl_bench.results.stored_meta import CellMeta
from icl_bench.sweep.plan import Plan, PlannedGroup

pytestmark = pytest.mark.usefixtures("word_encoder")


@pytest.fixture(autouse=True)
def known_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "resolve", lambda *_, **__: fakes.model())
    monkeypatch.setattr(models, "load_tokenizer", lambda _: small_tokenizer())


def planned(folder: Path, perturbation: str = "labels:model", k: str = "2,6", **changes: Any) -> Plan:
    return plan(folder / "task", k, perturbation=perturbation, **changes)


def swept(folder: Path, perturbation: str = "labels:model", k: str = "2,6", **changes: Any) -> Path:
    outcome = runner(planned(folder, perturbation, k, **changes), folder / "results", FakeBackend()).run()
    assert outcome.failed == {}
    return folder / "results"


def cells(results: Path, kind: str | None) -> list[tuple[str, CellMeta]]:
    return [(name, meta) for name, meta in finished_cells(results) if meta.facts.queries == kind]


def given_labels(results: Path) -> dict[int, dict[str, str]]:
    """Draw -> id -> what the model answered, from the stored cells."""
    storage = storage_at(results)
    return {
        meta.spec.draw: {row["test_id"]: row["prediction"] for row in read_rows(storage, name).to_pylist()}
        for name, meta in cells(results, "labels")
    }


def asked_groups(made: Plan) -> list[PlannedGroup]:
    return [group for group in made.groups if group.group.task.asked is not None]


# -- what is asked ------------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["random", "bm25", "balanced"])
@pytest.mark.parametrize("perturbation", ["labels:model", "labels:model,k=3"])
def test_each_draw_asks_the_rows_that_its_prompts_show_and_no_others(tmp_path: Path, select: str, perturbation: str):
    made = planned(tmp_path, perturbation, k="2", selects=[select], draws=1 if select == "bm25" else 2)
    shots = 3 if "k=3" in perturbation else 0
    asked, others = asked_groups(made), [group for group in made.groups if group.labels is not None]
    assert [group.group.draw for group in asked] == sorted({group.group.draw for group in others})
    for one in others:
        assert one.labels is not None
        task, asking = one.group.task, one.labels.group
        rows = {task.data.train[i].id for i in np.unique(one.group.demonstrations(2))}
        shown = [task.data.train[i] for i in asking.demonstrations(shots)]
        known = task.pool.drawn(one.group.draw)[len(task.pool) - shots :]
        assert {row.id for row in shown} == {task.data.train[i].id for i in known}
        assert len(shown) == shots
        rows -= {row.id for row in shown}  # whose labels are known
        assert {row.id for row in asking.queries(shots)} == rows
        (cell,) = one.labels.cells
        assert (cell.spec.k, cell.queries, cell.task.perturbation.name) == (shots, len(rows), "none")
        ((_, prompts),) = asking.prompts([shots])
        for index, row in enumerate(asking.queries(shots)):
            form = tokenized_task(tmp_path / "task").encoder.form
            assert prompts.text(index) == form.whole(shown, row)  # with the true labels


def test_orders_and_values_of_k_share_the_labels_of_their_draw(tmp_path: Path):
    made = planned(tmp_path, orders=["drawn", "by-label"])
    assert len(made.groups) == 2 + 2 * 2
    assert [cell.queries for group in asked_groups(made) for cell in group.cells] == [6, 6]


# -- what prompts show --------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["random", "hybrid:1", "bm25"])
@pytest.mark.parametrize("order", ["by-label", "default"])
def test_prompts_show_the_stored_answers_of_the_model(tmp_path: Path, select: str, order: str):
    orders = None if order == "default" else [order]
    results = swept(tmp_path, selects=[select], orders=orders)
    given = given_labels(results)
    task = tokenized_task(tmp_path / "task")
    true = {row.id: row.answer for row in task.data.train}
    assert any(label != true[name] for labels in given.values() for name, label in labels.items())
    for _, meta in cells(results, None):
        assert meta.shown_answers == {name: given[meta.spec.draw][name] for name in meta.shown_answers}
        wanted = {"task": "cards", "k": meta.spec.k, "draw": meta.spec.draw, "cell": meta.cell}
        shown = find_prediction(results, wanted, task.data.test[0].id)
        assert "hash checked" in shown.checked
        labels = [part.rpartition("intent: ")[2] for part in shown.prompt.split("\n==\n")[:-1]]
        assert labels == [given[meta.spec.draw][row.id] for row in shown.demonstrations]
        grouped = labels[: len(labels) - (select == "hybrid:1")]
        assert order == "default" or grouped == sorted(grouped, key=grouped.index)


def test_the_models_free_text_is_shown_as_it_was_written(tmp_path: Path):
    results = swept(tmp_path, k="2", **FREE_TEXT)
    storage = storage_at(results)
    for name, meta in cells(results, "labels"):
        written = {row["test_id"]: row.get("text") or row["prediction"] for row in read_rows(storage, name).to_pylist()}
        ((_, shown),) = [one for one in cells(results, None) if one[1].spec.draw == meta.spec.draw]
        assert shown.shown_answers == {name: written[name].strip() for name in shown.shown_answers or ()}


# -- resuming -----------------------------------------------------------------------------------


def test_an_interrupted_run_asks_nothing_twice_and_ends_as_an_uninterrupted_one(tmp_path: Path):
    first, log, calls = tmp_path / "first", tmp_path / "log", []
    runner(planned(tmp_path / "whole"), tmp_path / "whole" / "results", FakeBackend(first)).run()
    whole = read_results(tmp_path / "whole" / "results")

    def interrupt(_: PromptSet) -> None:
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt

    results = tmp_path / "parts" / "results"
    with pytest.raises(KeyboardInterrupt):
        runner(planned(tmp_path / "parts"), results, FakeBackend(log, fails=interrupt)).run()
    runner(planned(tmp_path / "parts"), results, FakeBackend(log)).run()
    asked, again = (sorted(line.split()[1] for line in one.read_text().splitlines()) for one in (first, log))
    assert again == asked
    frame = read_results(results)
    keys = ["cell", "test_id"]
    assert frame.sort_values(keys)["prediction"].tolist() == whole.sort_values(keys)["prediction"].tolist()
    assert runner(planned(tmp_path / "parts"), results).run().computed == []  # no backend is loaded


def test_rows_that_two_draws_show_are_asked_once(tmp_path: Path):
    log = tmp_path / "log"
    made = planned(tmp_path, k="36")  # of a pool of 40
    first, second = (cell for group in asked_groups(made) for cell in group.cells)
    assert (first.same_prompts, first.queries, second.queries) == (0, 36, 36)
    runner(made, tmp_path / "results", FakeBackend(log)).run()
    asked = [line.split()[1] for line in log.read_text().splitlines()]
    tests = len(tokenized_task(tmp_path / "task").data.test)
    assert len(asked) == 72 - second.same_prompts + 2 * tests


def test_a_part_without_the_cells_that_ask_asks_itself(tmp_path: Path):
    whole = read_results(swept(tmp_path / "whole"))
    made = planned(tmp_path / "part")
    made.groups[:] = [group for group in made.groups if group.labels is not None and group.group.draw == 1]
    outcome = runner(made, tmp_path / "part" / "results", FakeBackend()).run()
    assert len(outcome.computed) == 1 + 2
    frame = read_results(tmp_path / "part" / "results")
    assert frame["prediction"].tolist() == whole[whole["draw"] == 1]["prediction"].tolist()


def test_without_labels_the_cells_of_the_draw_fail_and_say_why(tmp_path: Path):
    def fail(prompts: PromptSet) -> None:
        if not prompts.shared_text:  # of prompts without demonstrations
            raise CellError("the model is gone")

    made = planned(tmp_path)
    outcome = runner(made, tmp_path / "results", FakeBackend(fails=fail)).run()
    assert outcome.computed == []
    reasons = set(outcome.failed.values())
    assert reasons == {"the model is gone", "the model's labels of its demonstrations are missing: the model is gone"}
    assert runner(made, tmp_path / "results", FakeBackend()).run().failed == {}


def test_a_damaged_cell_is_computed_again_with_the_models_labels(tmp_path: Path):
    results = swept(tmp_path)
    before = read_results(results)
    ((name, _),) = [one for one in cells(results, None) if (one[1].spec.k, one[1].spec.draw) == (6, 0)]
    file = results / name
    file.write_bytes(file.read_bytes()[:100])
    with pytest.warns(UserWarning, match="the cell is run again"):
        assert swept(tmp_path) == results
    given = given_labels(results)
    for _, meta in cells(results, None):
        assert meta.shown_answers == {name: given[meta.spec.draw][name] for name in meta.shown_answers}
    assert read_results(results).equals(before)


# -- what is read -------------------------------------------------------------------------------


def test_findings_pair_the_models_labels_with_the_true_ones_and_leave_the_asked_rows_out(tmp_path: Path):
    swept(tmp_path, "none")
    results = swept(tmp_path)
    frame = read_results(results)
    assert set(frame["test_id"]) == {row.id for row in tokenized_task(tmp_path / "task").data.test}
    found = read_findings(results).perturbations
    assert found["perturbation"].tolist() == ["labels:model"] * 2
    means = frame.assign(p=frame["perturbation"].astype(object).fillna("none")).groupby(["p", "k"])["correct"].mean()
    for row in found.itertuples():
        assert row.difference == pytest.approx(means["labels:model", row.k] - means["none", row.k])


def test_a_table_says_how_many_of_the_shown_labels_are_right(tmp_path: Path):
    results = swept(tmp_path)
    swept(tmp_path, "labels:noise=1", k="6")
    swept(tmp_path, "inputs-only", k="6")
    true = {row.id: row.answer for row in tokenized_task(tmp_path / "task").data.train}
    found = read_findings(results).shown_labels
    assert sorted(zip(found["perturbation"], found["k"], strict=True)) == [
        ("labels:model", 2),
        ("labels:model", 6),
        ("labels:noise=1", 6),
    ]
    for row in found.itertuples():
        metas = [
            meta
            for _, meta in cells(results, None)
            if (meta.facts.perturbation, meta.spec.k) == (row.perturbation, row.k)
        ]
        shares = [np.mean([label == true[name] for name, label in meta.shown_answers.items()]) for meta in metas]
        assert (row.right, row.right_least, row.right_most) == pytest.approx(
            (np.mean(shares), min(shares), max(shares))
        )
        assert (row.draws, row.labels) == (2, row.k)


# -- bad input ----------------------------------------------------------------------------------


def test_labelled_demonstrations_need_room_in_the_pool(tmp_path: Path):
    made = planned(tmp_path, "labels:model,k=4", k="2,37")
    assert [cell.spec.k for group in made.groups if group.labels for cell in group.cells] == [2, 2]
    assert "k=37 and 4 further rows of the pool are 41, more than the pool's 40" in made.combinations.reasons[0]


def test_the_rows_with_known_labels_are_not_asked_and_keep_them(tmp_path: Path):
    results = swept(tmp_path, "labels:model,k=4", k="30", selects=["bm25"], draws=1)
    ((_, asking),) = cells(results, "labels")
    (asked,) = given_labels(results).values()
    assert len(asked) == 36  # of a pool of 40, which the queries show together
    task = tokenized_task(tmp_path / "task")
    known = {task.data.train[i].id for i in task.pool.drawn(0)[36:]}
    assert {one for names in (asking.demonstration_labels or {}).values() for one in names} == known
    for _, meta in cells(results, None):
        shown = meta.shown_answers or {}
        truth = {row.id: row.answer for row in task.data.train}
        assert {name: shown.get(name, truth[name]) for name in known} == {name: truth[name] for name in known}


@pytest.mark.parametrize("select", ["random", "bm25"])
def test_a_row_gets_its_label_by_the_same_prompt_whatever_else_is_asked_for(tmp_path: Path, select: str):
    prompts: dict[str, set[str]] = {}
    for k in ("2", "2,20"):
        made = planned(tmp_path, "labels:model,k=4", k=k, selects=[select], draws=1)
        (asking,) = asked_groups(made)
        ((_, texts),) = asking.group.prompts([4])
        for index, row in enumerate(asking.group.queries(4)):
            prompts.setdefault(row.id, set()).add(texts.text(index))
    assert {len(texts) for texts in prompts.values()} == {1}


def test_a_batch_is_refused_before_anything_is_read():
    options = "run --task stdlib --model m --k 2 --backend openai --base-url http://localhost:1 --batch"
    words = [*options.split(), "--tokenizer", "gemma3-270m", "--perturbation", "labels:model"]
    text = in_process.said(*words, code=2)
    assert "--batch: --perturbation labels:model needs the answers to the pool" in text


@pytest.mark.parametrize("perturbation", ["labels:model", "labels:permuted", "labels:noise=0.5"])
def test_other_answers_behind_true_thoughts_are_refused(perturbation: str):
    options = f"plan --task bbh_web_of_lies_worked --model gemma3-270m --k 3 --think on --perturbation {perturbation}"
    text = in_process.said(*options.split(), code=2)
    assert f"--perturbation {perturbation}: demonstrations of task bbh_web_of_lies_worked show thoughts" in text
