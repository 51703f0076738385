"""After a run, the line on what is next names what the results lack most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeBackend, plan, runner

from icl_bench.analysis import next_step as module
from icl_bench.analysis.next_step import LOOK, next_step
from icl_bench.analysis.summary import Summary, summarise_folder
from icl_bench.errors import CellError


def ran(folder: Path, k: str, *, fails: Any = lambda _: None, **changes: Any) -> Summary:
    made = plan(folder / "task", k, **changes)
    runner(made, folder / "results", FakeBackend(fails=fails)).run()
    return summarise_folder(folder / "results")


@pytest.fixture
def skilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of the fake backend count as better than chance."""
    monkeypatch.setattr(module, "at_chance", lambda _: False)


def test_points_of_one_draw_come_before_a_larger_k(tmp_path: Path, skilled: None):
    said = next_step([ran(tmp_path, "0,1,2,4,8", draws=1, selects=["random", "bm25"])])
    assert said.startswith("4 of 4 drawn points with a single draw: --draws 10 ")


def test_a_curve_that_still_rises_asks_for_a_larger_k(tmp_path: Path, skilled: None):
    summary = ran(tmp_path, "1,2,4,8", draws=2)
    summary.saturation["within_window"] = False
    summary.saturation["spoken"] = True
    assert next_step([summary]).startswith("not saturated at k = 8: --k 16 ")
    summary.saturation["spoken"] = False
    assert (
        next_step([summary]) == "4 of 4 drawn points with two or three draws: --draws 10 makes their intervals reliable"
    )


def test_few_values_of_k_are_said(tmp_path: Path, skilled: None):
    assert next_step([ran(tmp_path, "0,1,2", draws=4)]).startswith("2 values of k above 0: with 4 or more, ")


def test_without_demonstrations_the_next_step_is_to_show_some(tmp_path: Path, skilled: None):
    assert next_step([ran(tmp_path, "0")]).startswith("no demonstrations shown yet: --k 1,10,100 ")


def test_answers_at_chance_ask_for_a_look_at_a_prompt(tmp_path: Path):
    summary = ran(tmp_path, "1,2", draws=2)
    summary.curves["majority"] = summary.curves["score"]
    assert next_step([summary]).startswith("no point is shown to be better than guessing: --k 20 shows more")


def test_failed_cells_come_first(tmp_path: Path):
    def fails(_: Any) -> None:
        raise CellError("out of memory")

    assert next_step([ran(tmp_path, "1", draws=2, fails=fails)]) == (
        "2 cells failed, see above; the same command computes them again"
    )


def test_where_nothing_is_missing_the_findings_are_next(tmp_path: Path, skilled: None):
    summary = ran(tmp_path, "1,2,4,8", draws=4)
    summary.saturation["within_window"] = True
    assert next_step([summary, summary]) == LOOK
    summary.curves.drop(summary.curves.index, inplace=True)
    assert next_step([summary]) == LOOK
