"""A run computes what is missing, once, whatever happened before and whoever else is at work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import fakes
from support.fakes import FREE_TEXT, FakeBackend, plan, runner

from icl_bench.backends.interface import Answer
from icl_bench.errors import CellError, StopRunError, UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import failed_cells, finished_cells, read_results
from icl_bench.sweep import runner as module
from icl_bench.sweep.plan import CellPlan, Plan
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.runner import Outcome, Watcher


class StoppedError(Exception):
    """Stands for a kill in the middle of a run."""


def stops_after(packs: int) -> Callable[[PromptSet], None]:
    left = [packs]

    def check(_: PromptSet) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError

    return check


def asked(log: Path) -> Counter[str]:
    """How often each prompt was answered, by its hash."""
    return Counter(line.split()[1] for line in log.read_text().splitlines())


def sorted_results(results: Path) -> pd.DataFrame:
    return read_results(results).sort_values(["cell", "test_id"]).reset_index(drop=True)


@pytest.fixture
def whole(tmp_path: Path) -> pd.DataFrame:
    """What an uninterrupted run of the small sweep gives."""
    runner(plan(tmp_path / "task"), tmp_path / "whole", FakeBackend()).run()
    return sorted_results(tmp_path / "whole")


# -- one process --------------------------------------------------------------------------------


def test_every_cell_is_computed_and_every_row_has_one_prediction(tmp_path: Path):
    made = plan(tmp_path / "task")
    outcome = runner(made, tmp_path / "results", FakeBackend()).run()
    assert outcome.computed == [cell.spec for cell in made.cells]
    assert (outcome.kept, outcome.failed) == ([], {})
    frame = read_results(tmp_path / "results")
    rows = [row.id for row in made.task.data.test]
    for _, cell in frame.groupby("cell", observed=True):
        assert cell["test_id"].tolist() == rows


def test_a_prediction_says_how_many_tokens_its_prompt_had_and_how_many_were_shared(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1)
    runner(made, tmp_path / "results", FakeBackend()).run()
    ((_, prompts),) = made.groups[0].group.prompts([2])
    frame = read_results(tmp_path / "results")
    assert frame["prompt_tokens"].tolist() == [len(prompts.ids(i)) for i in range(6)]
    assert set(frame["cached_tokens"]) == {len(prompts.prefix)}
    assert frame["prompt_hash"].tolist() == prompts.hashes()


RETRIEVAL: dict[str, Any] = {"selects": ["bm25"], "draws": 3, "train_rows": 12}
"""Few train rows have a word of each query, so that a large k adds rows at random."""


def test_prompts_that_draws_of_retrieval_have_in_common_are_answered_once(tmp_path: Path):
    made = plan(tmp_path / "task", "2,8", **RETRIEVAL)
    log = tmp_path / "log"
    outcome = runner(made, tmp_path / "results", FakeBackend(log, pack=1)).run()
    assert outcome.computed == [cell.spec for cell in made.cells]
    once = asked(log)
    assert set(once.values()) == {1}
    same = sum(cell.same_prompts for cell in made.cells)
    assert [cell.same_prompts for cell in made.cells] == [0, 0, 4, 1, 4, 1]  # the others have too few related rows
    assert len(once) == 6 * 6 - same
    # each draw run by itself: nothing is copied
    for cells in made.groups:
        alone = Plan(made.task, [cells], made.combinations)
        runner(alone, tmp_path / "apart", FakeBackend(pack=1)).run()
    pd.testing.assert_frame_equal(sorted_results(tmp_path / "results"), sorted_results(tmp_path / "apart"))
    files = finished_cells(tmp_path / "results")
    assert {meta.seconds for _, meta in files} == {3.0}  # copied answers take as long as computed ones
    tokens = read_results(tmp_path / "results")["prompt_tokens"].sum()
    assert outcome.prompt_tokens == tokens
    assert outcome.answer_tokens == 2 * len(once)


def test_what_may_depend_on_the_draw_besides_its_demonstrations_is_not_copied(tmp_path: Path):
    for number, changes in enumerate(
        ({"perturbation": "labels:permuted"}, {"attention": ["block:1,reuse"]}, {"selects": ["random"]})
    ):
        made = plan(tmp_path / f"task{number}", "2", **{**RETRIEVAL, **changes})
        assert [cell.same_prompts for cell in made.cells] == [0, 0, 0]


def test_finished_cells_are_kept_and_the_engine_is_not_loaded(tmp_path: Path):
    made = plan(tmp_path / "task")
    runner(made, tmp_path / "results", FakeBackend()).run()
    outcome = runner(made, tmp_path / "results", engine=None).run()
    assert outcome.kept == [cell.spec for cell in made.cells]
    assert outcome.computed == []


def test_a_larger_k_adds_to_what_is_there(tmp_path: Path):
    runner(plan(tmp_path / "task", "1,2"), tmp_path / "results", FakeBackend()).run()
    more = plan(tmp_path / "task", "1,2,7")
    outcome = runner(more, tmp_path / "results", FakeBackend()).run()
    assert [spec.k for spec in outcome.computed] == [7, 7]
    assert [spec.k for spec in outcome.kept] == [1, 2, 1, 2]


@pytest.mark.parametrize("packs", [1, 4, 7, 17])
def test_a_stopped_run_goes_on_with_what_is_missing_and_ends_as_if_never_stopped(
    tmp_path: Path, whole: pd.DataFrame, packs: int
):
    log = tmp_path / "log"
    made = plan(tmp_path / "task")
    with pytest.raises(StoppedError):
        runner(made, tmp_path / "results", FakeBackend(log, fails=stops_after(packs))).run()
    assert sum(asked(log).values()) == packs * 2
    runner(made, tmp_path / "results", FakeBackend(log)).run()
    assert set(asked(log).values()) == {1}
    pd.testing.assert_frame_equal(sorted_results(tmp_path / "results"), whole)


@pytest.mark.parametrize(("select", "dropped"), [("random", 4), ("bm25", 1)])
def test_a_stopped_cell_whose_demonstrations_changed_has_one_prompt_a_row_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, select: str, dropped: int
):
    made = plan(tmp_path / "task", "4", draws=1, selects=[select])
    with pytest.raises(StoppedError):
        runner(made, tmp_path / "results", FakeBackend(fails=stops_after(2))).run()
    before = PromptGroup.demonstrations

    def other(group: PromptGroup, k: int) -> np.ndarray:
        found = before(group, k).copy()
        rows = found if found.ndim == 1 else found[1]
        rows[:2] = rows[1::-1]
        return found

    monkeypatch.setattr(PromptGroup, "demonstrations", other)
    again, notes = plan(tmp_path / "task", "4", draws=1, selects=[select]), Notes()
    with pytest.warns(UserWarning, match=f"{dropped} prediction"):
        runner(again, tmp_path / "results", FakeBackend(), notes).run()
    ((_, prompts),) = again.groups[0].group.prompts([4])
    frame = read_results(tmp_path / "results")
    assert frame["prompt_hash"].tolist() == prompts.hashes()
    assert notes.said[0] == f"start k=4 already={4 - dropped}"
    assert notes.predictions == 2 + dropped


def test_the_engine_time_of_all_parts_of_a_cell_is_added_up(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1)
    with pytest.raises(StoppedError):
        runner(made, tmp_path / "results", FakeBackend(fails=stops_after(1))).run()
    runner(made, tmp_path / "results", FakeBackend()).run()
    ((_, meta),) = finished_cells(tmp_path / "results")
    assert meta.seconds == 3 * 0.5


class Prefills(FakeBackend):
    """Takes ten seconds for the prefix of each call, before its first pack."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.peak_prefix_bytes: Any = 1

    def answer(self, *arguments: Any, **more: Any) -> Iterator[list[Answer]]:
        self.counters.seconds += 10
        self.counters.prefix_seconds += 10
        return super().answer(*arguments, **more)


@pytest.mark.parametrize("how", ["at once", "stopped", "apart", "stopped before the file"])
def test_a_querys_seconds_without_the_prefix_do_not_depend_on_the_parts_of_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    made, results, parts = plan(tmp_path / "task", "2", draws=1), tmp_path / "results", 1
    if how == "stopped":
        parts = 2
        with pytest.raises(StoppedError):
            runner(made, results, Prefills(fails=stops_after(1))).run()
    if how == "apart":
        one, parts = runner(made, results, Prefills()), 3
        rows = [row.id for row in made.task.data.test]
        for start in (0, 2, 4):
            one.ask(made.groups[0], made.cells[0], rows[start : start + 2], Outcome())
    if how == "stopped before the file":
        with monkeypatch.context() as patched:
            patched.setattr(module.OpenCell, "finish", lambda *_: stops_after(0)(made))
            with pytest.raises(StoppedError):
                runner(made, results, Prefills()).run()
    runner(made, results, Prefills()).run()
    ((_, meta),) = finished_cells(results)
    assert meta.prefill_seconds == 10 * parts
    assert meta.seconds == 10 * parts + 3 * 0.5


def test_a_file_says_how_many_queries_a_call_had_and_the_cell_is_the_same(tmp_path: Path):
    cells = set()
    for rows in (2, 3):
        engine = FakeBackend()
        engine.peak_prefix_bytes, engine.counters.packs = 1, {"rows": rows}
        runner(plan(tmp_path / "task", "2", draws=1), tmp_path / f"{rows}", engine).run()
        ((name, meta),) = finished_cells(tmp_path / f"{rows}")
        assert meta.packs == {"rows": rows}
        cells.add(name)
    assert len(cells) == 1


def test_the_engine_is_told_the_longest_prefix_that_will_follow(tmp_path: Path):
    made, engine = plan(tmp_path / "task", "1,2,4", draws=1), FakeBackend()
    runner(made, tmp_path / "results", engine).run()
    assert set(engine.reserved) == {made.cells[-1].prefix_tokens}


def test_a_cell_that_cannot_be_computed_is_marked_and_the_others_run(tmp_path: Path):
    made = plan(tmp_path / "task")
    broken = made.groups[0].cells[1]

    def fails(prompts: PromptSet) -> None:
        if len(prompts.prefix) == broken.prefix_tokens and prompts.longest == broken.longest_prompt:
            raise CellError("out of memory at 42 prompt tokens")

    outcome = runner(made, tmp_path / "results", FakeBackend(fails=fails)).run()
    failed = [outcome.names[name] for name in outcome.failed]
    assert broken.spec in failed
    assert len(outcome.computed) == 6 - len(outcome.failed)
    reasons = {f.reason for f in failed_cells(tmp_path / "results")}
    assert reasons == set(outcome.failed.values()) == {"out of memory at 42 prompt tokens"}
    again = runner(made, tmp_path / "results", FakeBackend()).run()
    assert again.computed == failed
    assert failed_cells(tmp_path / "results") == []


class LosesOne(FakeBackend):
    """Leaves out the answer to the first prompt."""

    def answer(self, prompts: PromptSet, todo: Sequence[int], *rest: Any, **more: Any) -> Iterator[list[Answer]]:
        for pack in super().answer(prompts, todo, *rest, **more):
            yield [answer for answer in pack if answer.index]


def test_a_cell_of_which_the_backend_leaves_answers_out_fails_and_says_so(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1)
    outcome = runner(made, tmp_path / "results", LosesOne()).run()
    assert list(outcome.failed.values()) == ["the backend left out 1 answer"]
    again = runner(made, tmp_path / "results", FakeBackend()).run()
    assert (again.answers, again.failed) == (1, {})


def test_answers_that_were_asked_apart_and_are_left_out_are_an_error(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1)
    one, rows = runner(made, tmp_path / "results", LosesOne()), [row.id for row in made.task.data.test]
    with pytest.raises(CellError, match="the backend left out 1 answer"):
        one.ask(made.groups[0], made.cells[0], rows[:3], Outcome())


def test_a_plan_that_grew_beyond_the_window_fails_instead_of_being_cut(tmp_path: Path):
    made = plan(tmp_path / "task", "4", draws=1)
    made.task.model = fakes.model(context_tokens=made.cells[0].needed_tokens - 1)
    outcome = runner(made, tmp_path / "results", engine=None).run()
    assert list(outcome.failed.values()) == [f"needs {made.cells[0].needed_tokens:,} tokens"]


@pytest.mark.parametrize("removed", ["results", "results/cards", "one file"])
def test_a_run_whose_finished_cells_are_removed_meanwhile_does_not_end_well(tmp_path: Path, removed: str):
    results = tmp_path / "results"

    def remove(_: PromptSet) -> None:
        if finished := [*results.rglob("*.parquet")]:
            finished[0].unlink() if removed == "one file" else shutil.rmtree(tmp_path / removed)

    outcome = runner(plan(tmp_path / "task", "1,2", draws=1), results, FakeBackend(fails=remove, pack=6)).run()
    assert (len(outcome.computed), outcome.failed) == (2, {})
    (said,) = outcome.stopped
    assert said.startswith(f"results folder {results}: 1 finished cell removed during the run (the first is cards/")
    assert said.endswith("; run it again to compute what is missing")
    again = runner(plan(tmp_path / "task", "1,2", draws=1), results, FakeBackend()).run()
    assert (len(again.computed), len(again.kept), again.stopped) == (1, 1, [])


def test_a_failed_calibration_does_not_report_its_test_cell_as_removed(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1, scoring="exact", calibrations=["contextual"])
    queries = {cell.queries for group in made.groups if group.group.task.asked for cell in group.cells}

    def fails(prompts: PromptSet) -> None:
        if len(prompts) in queries:
            raise CellError("boom")

    outcome = runner(made, tmp_path / "results", FakeBackend(fails=fails)).run()
    assert (len(outcome.computed), list(outcome.failed.values()), outcome.stopped) == (1, ["boom"], [])


def test_a_stopped_run_counts_failed_calibrations_among_the_cells_that_are_not_left(tmp_path: Path):
    made = plan(tmp_path / "task", "2,4", draws=1, scoring="exact", calibrations=["contextual"])
    packs = []

    def fails(prompts: PromptSet) -> None:
        packs.append(prompts)
        if len(packs) <= 3:
            raise CellError("boom")
        raise StopRunError("the budget is spent")

    outcome = runner(made, tmp_path / "results", FakeBackend(fails=fails)).run()
    assert outcome.stopped == ["the budget is spent; 1 cell left, run it again to continue"]


def test_an_engine_that_is_another_than_said_is_refused(tmp_path: Path):
    made = plan(tmp_path / "task")
    changed = runner(made, tmp_path / "results", FakeBackend())
    changed.identity_of_backend = {"backend": "fake", "dtype": "bfloat16"}
    with pytest.raises(AssertionError, match="differs from the planned one"):
        changed.run()


def test_an_unconstrained_answer_that_is_no_label_is_wrong_and_invalid(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1, scoring="unconstrained")
    runner(made, tmp_path / "results", FakeBackend()).run()
    frame = read_results(tmp_path / "results")
    assert not frame["valid"].any()
    assert not frame["correct"].any()


def test_an_unconstrained_answer_is_wrong_and_invalid_even_if_it_is_a_gold_that_no_train_row_has(tmp_path: Path):
    task = fakes.tokenized_task(tmp_path / "task", scoring="unconstrained")
    task.data = replace(task.data, test=tuple(replace(row, answer=fakes.WORDS[0]) for row in task.data.test))

    class Says(FakeBackend):
        def _answered(self, prompts: PromptSet, index: int, decoding: Any) -> Answer:
            return replace(super()._answered(prompts, index, decoding), text=fakes.WORDS[0])

    runner(fakes.planned(task, "1", draws=1), tmp_path / "results", Says()).run()
    frame = read_results(tmp_path / "results")
    assert (frame["prediction"] == frame["gold"]).all()
    assert not frame["valid"].any()
    assert not frame["correct"].any()


@pytest.mark.parametrize(("cut", "valid"), [(True, False), (False, True)])
def test_an_unconstrained_answer_that_the_limit_cut_is_not_read_as_the_beginning_of_a_longer_label(
    tmp_path: Path, cut: bool, valid: bool
):
    task = fakes.tokenized_task(tmp_path / "task", scoring="unconstrained")
    task.data = replace(task.data, labels=("card", "card lost"))

    class Says(FakeBackend):
        def _answered(self, prompts: PromptSet, index: int, decoding: Any) -> Answer:
            return replace(super()._answered(prompts, index, decoding), text="Intent: card", truncated=cut)

    runner(fakes.planned(task, "1", draws=1), tmp_path / "results", Says()).run()
    frame = read_results(tmp_path / "results")
    assert set(frame["valid"]) == {valid}
    assert set(frame["prediction"]) == {"card" if valid else "Intent: card"}


def test_exact_scores_are_stored(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1, scoring="exact")
    runner(made, tmp_path / "results", FakeBackend()).run()
    frame = read_results(tmp_path / "results")
    assert set(zip(frame["probability"], frame["margin"], frame["label_mass"], strict=True)) == {(0.5, 0.25, 0.75)}


def test_free_text_is_scored_against_its_gold(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1, **FREE_TEXT)
    runner(made, tmp_path / "results", FakeBackend()).run()
    frame = read_results(tmp_path / "results")
    right = frame["prediction"] == frame["gold"]
    assert np.array_equal(frame["rouge1"] == 1, right)


class Notes(Watcher):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.predictions, self.tokens = 0, 0

    def cell_started(self, cell: CellPlan, already: int) -> None:
        self.said.append(f"start k={cell.spec.k} already={already}")

    def backend_loading(self) -> None:
        self.said.append("loading")

    def backend_ready(self) -> None:
        self.said.append("ready")

    def predicted(self, predictions: int, computed_tokens: int) -> None:
        self.predictions += predictions
        self.tokens += computed_tokens

    def cell_ended(self, cell: CellPlan, outcome: str) -> None:
        self.said.append(f"end k={cell.spec.k} {outcome}")


def test_a_watcher_is_told_what_happens(tmp_path: Path):
    first, second = plan(tmp_path / "task", "1,2", draws=1), Notes()
    with pytest.raises(StoppedError):
        runner(first, tmp_path / "results", FakeBackend(fails=stops_after(4))).run()
    made = plan(tmp_path / "task", "1,2,4", draws=1)
    runner(made, tmp_path / "results", FakeBackend(), second).run()
    assert second.said == [
        "end k=1 kept",
        "start k=2 already=2",
        "loading",
        "ready",
        "end k=2 done",
        "start k=4 already=0",
        "end k=4 done",
    ]
    assert second.predictions == 4 + 6
    queries = [prompts for _, prompts in made.groups[0].group.prompts([2, 4])]
    assert second.tokens >= sum(len(p.prefix) for p in queries) + queries[1].own_tokens


@pytest.mark.parametrize("more", [{}, FREE_TEXT], ids=["labels", "text"])
def test_a_watcher_is_told_the_scores_of_every_computed_cell(tmp_path: Path, more: dict[str, Any]):
    class Scores(Watcher):
        def __init__(self) -> None:
            self.told: dict[int, tuple[str, list[float]]] = {}

        def scored(self, cell: CellPlan, measure: str, scores: Sequence[float]) -> None:
            self.told[cell.spec.k] = measure, list(scores)

    heard = Scores()
    made = plan(tmp_path / "task", "1,2", draws=1, **more)
    runner(made, tmp_path / "results", FakeBackend(), heard).run()
    frame = read_results(tmp_path / "results")
    measure, column = ("rouge1", "rouge1") if more else ("accuracy", "correct")
    stored = {k: (measure, list(map(float, cell[column]))) for k, cell in frame.groupby("k")}
    assert heard.told == stored
    again = Scores()
    runner(made, tmp_path / "results", FakeBackend(), again).run()
    assert again.told == {}  # these were there already


def test_a_results_folder_that_is_a_file_is_refused_before_the_engine_is_loaded(tmp_path: Path):
    (tmp_path / "results").touch()
    with pytest.raises(UserError, match=r"results: is a file; give a folder with --results"):
        runner(plan(tmp_path / "task"), tmp_path / "results", engine=None).run()


# -- several processes --------------------------------------------------------------------------


def start(folder: Path, results: Path, log: Path, pause: float, processes: int = 1) -> subprocess.Popen[str]:
    """Begin a process of a sweep; it does not finish before so many of them have begun."""
    command = [sys.executable, fakes.__file__, *map(str, (folder, results, log, pause, processes))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def test_two_processes_share_the_work_and_do_no_cell_twice(tmp_path: Path, whole: pd.DataFrame):
    task, log = tmp_path / "task", tmp_path / "log"
    running = [start(task, tmp_path / "results", log, 0.1, 2) for _ in range(2)]
    until(lambda: len(list(task.glob("ready-*"))) == 2)
    (task / "go").touch()
    counts = []
    for process in running:
        out, _ = process.communicate(timeout=300)  # a busy machine takes a minute
        assert process.returncode == 0
        counts.append([int(number) for number in out.split()])
    assert set(asked(log).values()) == {1}
    assert len({line.split()[0] for line in log.read_text().splitlines()}) == 2
    assert sum(computed for computed, _, _ in counts) == 6
    assert all(computed + kept == 6 and failed == 0 for computed, kept, failed in counts)
    pd.testing.assert_frame_equal(sorted_results(tmp_path / "results"), whole)


def test_the_cell_of_a_process_that_was_killed_is_taken_over(tmp_path: Path, whole: pd.DataFrame):
    task, results, log = tmp_path / "task", tmp_path / "results", tmp_path / "log"
    killed = start(task, results, log, 0.2)
    until(lambda: any(task.glob("ready-*")))
    (task / "go").touch()
    until(lambda: any(p.stat().st_size for p in results.rglob("*.journal.jsonl")))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=300)
    journalled = sum(len(p.read_text().splitlines()) for p in results.rglob("*.journal.jsonl"))
    done_before = len(list(results.rglob("*.parquet")))
    assert 0 < journalled + 6 * done_before < 36
    outcome = runner(plan(task), results, FakeBackend(log)).run()
    assert len(outcome.computed) + len(outcome.kept) == 6
    by_us = sum(line.startswith(f"{os.getpid()} ") for line in log.read_text().splitlines())
    assert by_us == 36 - journalled - 6 * done_before
    pd.testing.assert_frame_equal(sorted_results(results), whole)


def test_a_process_prefers_the_groups_in_which_no_other_is_at_work(tmp_path: Path):
    made = plan(tmp_path / "task")
    mine = runner(made, tmp_path / "results", FakeBackend())
    mine.store.prepare()
    with mine.store.claim(mine.identity(made.cells[0]), 6):
        order: list[tuple[int, int]] = []

        class Order(Watcher):
            def cell_started(self, cell: CellPlan, already: int) -> None:
                order.append((cell.spec.draw, cell.spec.k))

            def waiting(self, cells: int) -> None:
                raise StoppedError

        mine.watcher = Order()
        with pytest.raises(StoppedError):
            mine.run()
    assert order == [(1, 1), (1, 2), (1, 4), (0, 2), (0, 4)]


def test_a_process_waits_for_anothers_cells_and_takes_over_those_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: Plan = plan(tmp_path / "task")
    mine = runner(made, tmp_path / "results", FakeBackend())
    mine.store.prepare()
    theirs = mine.store.claim(mine.identity(made.cells[0]), 6)
    assert theirs.__enter__() is not None
    waited: list[int] = []

    class Waits(Watcher):
        def waiting(self, cells: int) -> None:
            waited.append(cells)
            theirs.__exit__(None, None, None)  # the other process dies

    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    mine.watcher = Waits()
    outcome: Outcome = mine.run()
    assert waited == [1]
    assert outcome.computed[-1] == made.cells[0].spec
    assert len(outcome.computed) == 6


def test_journals_hold_plain_json_that_anyone_can_read(tmp_path: Path):
    with pytest.raises(StoppedError):
        runner(plan(tmp_path / "task"), tmp_path / "results", FakeBackend(fails=stops_after(1))).run()
    (journal,) = (tmp_path / "results").rglob("*.journal.jsonl")
    first = json.loads(journal.read_text().splitlines()[0])
    assert {"test_id", "gold", "prediction", "correct", "prompt_tokens", "seconds"} <= first.keys()


# -- parts of a cell ----------------------------------------------------------------------------


def test_rows_that_were_asked_apart_are_kept_and_a_run_of_the_whole_cell_asks_the_others(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1)
    (cell,), rows, log = made.cells, [row.id for row in made.task.data.test], tmp_path / "log"
    one, outcome = runner(made, tmp_path / "results", FakeBackend(log=log)), Outcome()
    first = one.ask(made.groups[0], cell, rows[1:3], outcome)
    again = one.ask(made.groups[0], cell, rows[2:4], outcome)
    assert (list(first), list(again)) == (rows[1:3], rows[2:4])
    assert first[rows[2]] == again[rows[2]]
    assert outcome.answers == 3
    assert list(finished_cells(tmp_path / "results")) == []
    runner(made, tmp_path / "results", FakeBackend(log=log)).run()
    frame = read_results(tmp_path / "results").set_index("test_id")
    assert frame.index.tolist() == rows
    assert set(asked(log).values()) == {1}
    assert {name: float(frame.loc[name, "correct"]) for name in first} == first
    runner(made, tmp_path / "whole", FakeBackend()).run()
    apart, whole = sorted_results(tmp_path / "results"), sorted_results(tmp_path / "whole")
    pd.testing.assert_frame_equal(apart, whole)


def test_only_the_rows_that_are_asked_apart_are_computed_not_the_packs_that_they_are_in(tmp_path: Path):
    class Packing(FakeBackend):
        """Computes all prompts of a set, as packs may."""

        def answer(self, prompts: PromptSet, todo: Sequence[int], *rest: Any, **more: Any) -> Iterator[list[Answer]]:
            del todo
            computed.append([prompts.ids(i) for i in range(len(prompts))])
            return super().answer(prompts, range(len(prompts)), *rest, **more)

    computed: list[list[Any]] = []
    made = plan(tmp_path / "task", "2", draws=1)
    (cell,), rows = made.cells, [row.id for row in made.task.data.test]
    ((_, prompts),) = made.groups[0].group.prompts([2])
    part = runner(made, tmp_path / "part", Packing()).ask(made.groups[0], cell, [rows[3], rows[1]], Outcome())
    assert computed == [[prompts.ids(1), prompts.ids(3)]]
    runner(made, tmp_path / "whole", Packing()).run()
    frame = read_results(tmp_path / "whole").set_index("test_id")
    assert part == {name: float(frame.loc[name, "correct"]) for name in (rows[3], rows[1])}
    assert computed[1] == [prompts.ids(i) for i in range(len(prompts))]


def test_the_last_rows_that_are_asked_finish_the_cell_which_is_read_from_then_on(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1)
    (cell,), rows, log = made.cells, [row.id for row in made.task.data.test], tmp_path / "log"
    outcome = Outcome()
    one = runner(made, tmp_path / "results", FakeBackend(log=log))
    scores = one.ask(made.groups[0], cell, rows, outcome)
    assert [name for name, _ in finished_cells(tmp_path / "results")]
    assert one.ask(made.groups[0], cell, rows[::-1], outcome) == scores
    assert (outcome.computed, outcome.kept) == ([cell.spec], [cell.spec])
    assert sum(asked(log).values()) == len(rows)


def test_the_scores_of_free_text_are_those_of_its_first_measure(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1, **FREE_TEXT)
    (cell,), rows = made.cells, [row.id for row in made.task.data.test]
    one = runner(made, tmp_path / "results", FakeBackend())
    part = one.ask(made.groups[0], cell, rows[:2], Outcome())
    whole = one.ask(made.groups[0], cell, rows, Outcome())
    assert part == {name: whole[name] for name in rows[:2]}
    frame = read_results(tmp_path / "results").set_index("test_id")
    assert whole == frame[made.task.first_column].to_dict()


def test_a_cell_that_another_process_computes_is_not_asked(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1)
    (cell,), rows = made.cells, [row.id for row in made.task.data.test]
    one, other = (runner(made, tmp_path / "results", FakeBackend()) for _ in range(2))
    with other.store.claim(other.identity(cell), cell.queries), pytest.raises(CellError, match="another process"):
        one.ask(made.groups[0], cell, rows[:1], Outcome())


def test_a_cell_whose_demonstrations_have_the_models_labels_is_not_asked_in_part(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1, perturbation="labels:model")
    (group,) = (one for one in made.groups if one.labels is not None)
    one = runner(made, tmp_path / "results", FakeBackend())
    with pytest.raises(CellError, match="labels for its demonstrations are unknown"):
        one.ask(group, group.cells[0], [made.task.data.test[0].id], Outcome())
    assert not (tmp_path / "results").exists()
