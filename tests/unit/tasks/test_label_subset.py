"""Half of the labels, and queries that are copied from the demonstrations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner, tokenized_task, write_task

from icl_bench.analysis.all_findings import find
from icl_bench.errors import UserError
from icl_bench.results.reading import read_results, read_some
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.task_files import load_task


@pytest.fixture
def data(tmp_path: Path) -> TaskData:
    return load_data(load_task(write_task(tmp_path / "task")))


# -- half of the labels -------------------------------------------------------------------------


def test_all_labels_are_no_part():
    assert HalfLabels.parse("all") is None
    assert str(HalfLabels.parse("half:7")) == "half:7"


@pytest.mark.parametrize("text", ["", "half", "half:", "half:-1", "half:x", "half:٣", "third:1", "half:1.5"])
def test_another_part_is_refused(text: str):
    with pytest.raises(UserError, match="expected all or half:SEED"):
        HalfLabels.parse(text)


def test_rows_of_the_labels_that_are_left_out_are_left_out(data: TaskData):
    half = HalfLabels(1).of(data)
    assert len(half.labels) == 2
    assert set(half.labels) < set(data.labels)
    for rows, whole in ((half.train, data.train), (half.test, data.test)):
        assert list(rows) == [row for row in whole if row.answer in half.labels]
        assert 0 < len(rows) < len(whole)
    assert "half:1: 2 of 3 labels, with 4 of 6 test rows" in half.notes


def test_the_seed_chooses_the_half(data: TaskData):
    halves = [HalfLabels(seed).of(data).labels for seed in range(12)]
    assert halves == [HalfLabels(seed).of(data).labels for seed in range(12)]
    assert len(set(halves)) == 3


def test_two_labels_cannot_be_halved(data: TaskData):
    small = HalfLabels(1).of(data)
    with pytest.raises(UserError, match="of 2 labels only 1 is left"):
        HalfLabels(1).of(small)


def test_a_half_without_test_rows_says_so(data: TaskData):
    left_out = set(data.labels) - set(HalfLabels(1).of(data).labels)
    others = replace(data, test=tuple(row for row in data.test if row.answer in left_out))
    with pytest.raises(UserError, match="none of the 2 test rows"):
        HalfLabels(1).of(others)


def test_free_text_has_no_labels_to_leave_out(tmp_path: Path):
    task = load_task(write_task(tmp_path / "task", **FREE_TEXT))
    spec = RunSpec(task="t", model="m", k="1", labels="half:1")
    with pytest.raises(UserError, match="free text"):
        spec.check(task)


def test_halves_are_cells_of_their_own_and_stand_beside_all_labels(tmp_path: Path):
    results = tmp_path / "results"
    for half in (None, HalfLabels(1), HalfLabels(2)):
        made = plan(tmp_path / "task", "2,4", half=half)
        runner(made, results, FakeBackend()).run()
    frame = read_results(results)
    assert frame["label_space"].isna().sum() == 2 * 2 * 6
    assert sorted(frame["label_space"].dropna().unique()) == ["half:1", "half:2"]
    assert frame["variant"].nunique() == 3
    parts = {v: set(rows["prediction"]) for v, rows in frame.groupby("label_space")}
    assert all(len(labels) <= 2 for labels in parts.values())
    found = find(read_some(results))
    (row,) = found.label_spaces.itertuples()
    assert row.subsets == 2
    assert set(found.context_shares["label_space"]) == {"all", "half:1", "half:2"}
    said = sorted(found.summary.settings.values())
    assert said == ["label_space=all", "label_space=half:1", "label_space=half:2"]
    runner(plan(tmp_path / "task", "2", half=HalfLabels(1), test_size=3), results, FakeBackend()).run()
    said = sorted(find(read_some(results)).summary.settings.values())
    told = [text for text in said if "half:1" in text]
    assert [text.endswith(("test_rows=2", "test_rows=4")) for text in told] == [True, True]
    assert len(set(told)) == 2


# -- copied queries -----------------------------------------------------------------------------


def test_copied_queries_are_demonstrations_of_their_prompt(tmp_path: Path):
    made = plan(tmp_path / "task", "2,4,30", queries="copied", test_size=5)
    for planned in made.groups:
        for cell in planned.cells:
            k = cell.spec.k
            shown = [made.task.data.train[i].id for i in planned.group.demonstrations(k)]
            asked = [row.id for row in planned.group.queries(k)]
            assert len(asked) == cell.queries == min(k, 5)
            assert sorted(asked, key=shown.index) == asked
            ((_, prompts),) = planned.group.prompts([k])
            assert len(prompts.suffixes) == cell.queries


def test_a_sample_of_the_demonstrations_is_from_all_places(tmp_path: Path):
    made = plan(tmp_path / "task", "40", draws=20, queries="copied", test_size=5)
    places = []
    for planned in made.groups:
        shown = [made.task.data.train[i].id for i in planned.group.demonstrations(40)]
        places += [shown.index(row.id) for row in planned.group.queries(40)]
    assert min(places) < 5
    assert max(places) >= 35


def test_copied_queries_have_a_table_of_their_own(tmp_path: Path):
    results = tmp_path / "results"
    runner(plan(tmp_path / "task", "2,4"), results, FakeBackend()).run()
    before = find(read_some(results)).summary.curves
    runner(plan(tmp_path / "task", "2,4", queries="copied"), results, FakeBackend()).run()
    found = find(read_some(results))
    assert found.summary.curves.equals(before)
    assert found.copying["predictions"].tolist() == [2 * 2, 2 * 4]
    frame = read_results(results)
    copied = frame[frame["queries"] == "copied"]
    means = copied.groupby("k")["correct"].mean()
    assert found.copying["accuracy"].tolist() == pytest.approx(means.tolist())


def test_a_test_row_with_the_id_of_a_demonstration_is_no_copy(tmp_path: Path):
    """A user's files may number their rows alike."""
    runner(plan(tmp_path / "task", "4", draws=1), tmp_path / "results", FakeBackend()).run()
    stored = read_some(tmp_path / "results")
    (meta,) = stored.cells.values()
    frame = stored.predictions.assign(test_id=[*meta.demonstration_ids, "x", "y"])
    assert find(replace(stored, given=frame)).copying.empty


def test_the_largest_k_has_room_for_each_of_its_demonstrations(tmp_path: Path):
    made = plan(tmp_path / "task", "max", draws=1, queries="copied", context_tokens=300)
    (cell,) = made.cells
    assert cell.problem is None
    assert cell.needed_tokens <= 300
    more = plan(tmp_path / "task", str(cell.spec.k + 2), queries="copied", context_tokens=4096)
    assert more.cells[0].needed_tokens > 300


def test_retrieval_would_find_the_query_itself(tmp_path: Path):
    task = load_task(write_task(tmp_path / "task"))
    spec = RunSpec(task="t", model="m", k="1", select="bm25", queries="copied")
    with pytest.raises(UserError, match="bm25 would only find the query itself"):
        spec.check(task)


def test_free_text_can_be_copied(tmp_path: Path):
    made = plan(tmp_path / "task", "2", queries="copied", **FREE_TEXT)
    runner(made, tmp_path / "results", FakeBackend()).run()
    assert read_results(tmp_path / "results")["rougeL"].notna().all()
    assert tokenized_task(tmp_path / "task", **FREE_TEXT).queries == "test"
