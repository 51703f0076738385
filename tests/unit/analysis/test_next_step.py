"""After a run, the line on what is next names what the results lack most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeBackend, plan, runner

from icl_bench.analysis import next_step as module
from icl_bench.analysis.next_step import LOOK, next_step, with_stored
from icl_bench.analysis.summary import Summary, summarise_folder
from icl_bench.errors import CellError
from icl_bench.results.storage import CellsOf


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


def test_a_curve_that_surely_still_rises_asks_for_a_larger_k_and_invents_none(tmp_path: Path, skilled: None):
    summary = ran(tmp_path, "1,2,4,8", draws=2)
    summary.saturation["within_window"] = False
    summary.saturation["spoken"] = True
    summary.saturation["likely_low"] = 8.0
    said = next_step([summary])
    assert said.startswith("not saturated at k = 8: a larger --k (max is the largest that fits ")
    assert "16" not in said
    summary.saturation["spoken"] = False
    assert (
        next_step([summary]) == "4 of 4 drawn points with two or three draws: --draws 10 makes their intervals reliable"
    )


@pytest.mark.parametrize("likely_low", [4.0, float("nan")])
def test_a_curve_that_may_still_rise_asks_for_more_draws_or_test_rows(tmp_path: Path, skilled: None, likely_low: float):
    summary = ran(tmp_path, "1,2,4,8", draws=4)
    summary.saturation["within_window"] = False
    summary.saturation["spoken"] = True
    summary.saturation["likely_low"] = likely_low
    assert next_step([summary]) == "may not be saturated at k = 8: more draws or test rows would show it"


def test_few_values_of_k_are_counted_as_saturation_does(tmp_path: Path, skilled: None):
    assert next_step([ran(tmp_path / "few", "0,1,2", draws=4)]).startswith("3 values of k: with 4 or more, ")
    assert "of k: with" not in next_step([ran(tmp_path / "enough", "0,1,2,4", draws=4)])


def test_without_demonstrations_the_next_step_is_to_show_some(tmp_path: Path, skilled: None):
    assert next_step([ran(tmp_path, "0")]).startswith("no demonstrations shown yet: --k 1,10,100, as far as ")


CHANCE = "no point is shown to be better than always giving the most frequent label: "


def test_answers_at_chance_ask_for_a_look_at_a_prompt(tmp_path: Path):
    summary = ran(tmp_path, "1,2", draws=2)
    narrow = {"majority": 0.5, "uniform": 0.5, "ci_low": 0.42, "ci_high": 0.58}
    summary.curves[list(narrow)] = list(narrow.values())
    assert next_step([summary]).startswith(f"{CHANCE}a larger --k (max is ")


def test_answers_at_chance_with_wide_intervals_ask_for_more_data_first(tmp_path: Path):
    summary = ran(tmp_path, "1,2", draws=2)
    wide = {"majority": 0.5, "uniform": 0.5, "ci_low": 0.3, "ci_high": 0.605}
    summary.curves[list(wide)] = list(wide.values())
    assert next_step([summary]).startswith(
        f"{CHANCE}intervals are up to 30.5 points wide, more test rows (--test-size)"
    )
    assert "larger --k" not in next_step([summary])


def test_only_accuracy_is_compared_with_the_most_frequent_label(tmp_path: Path):
    summary = ran(tmp_path, "1,2", draws=2)
    level = {"majority": 0.5, "uniform": 0.5, "ci_low": 0.42, "ci_high": 0.58}
    summary.curves[list(level)] = list(level.values())
    summary.curves["metric"] = "exact_match"
    assert not next_step([summary]).startswith("no point is shown")


def test_failed_cells_come_first(tmp_path: Path):
    def fails(_: Any) -> None:
        raise CellError("out of memory")

    assert next_step([ran(tmp_path, "1", draws=2, fails=fails)]) == (
        "2 cells failed, see above; run the same command again to retry them"
    )


def test_where_nothing_is_missing_the_findings_are_next(tmp_path: Path, skilled: None):
    summary = ran(tmp_path, "1,2,4,8", draws=4)
    summary.saturation["within_window"] = True
    assert next_step([summary, summary]) == LOOK
    summary.curves.drop(summary.curves.index, inplace=True)
    assert next_step([summary]) == LOOK


def test_the_draws_and_k_of_earlier_commands_count(tmp_path: Path, skilled: None):
    ran(tmp_path, "1,2,4,8", draws=4)
    results = tmp_path / "results"
    again = runner(plan(tmp_path / "task", "4", draws=1), results).run()
    alone = summarise_folder(CellsOf(results, again.names))
    assert next_step([alone]).startswith("1 of 1 drawn point with a single draw: ")
    stored = with_stored(alone, results, again.names)
    assert stored.curves["k"].tolist() == [1, 2, 4, 8]
    assert set(stored.curves["draws"]) == {4}
    assert next_step([alone], [replace(stored, saturation=stored.saturation.assign(within_window=True))]) == LOOK


def test_other_points_and_variants_of_the_folder_do_not_count(tmp_path: Path, skilled: None):
    ran(tmp_path, "4", draws=4, seed=5)  # other demonstrations
    ran(tmp_path, "1,2", draws=1)
    results = tmp_path / "results"
    few = runner(plan(tmp_path / "task", "4,8", draws=1), results, FakeBackend()).run()
    alone = summarise_folder(CellsOf(results, few.names))
    stored = with_stored(alone, results, few.names)
    assert stored.curves["k"].tolist() == [1, 2, 4, 8]
    assert set(stored.curves["draws"]) == {1}
    assert next_step([alone], [stored]).startswith("2 of 2 drawn points with a single draw: ")


def test_a_folder_with_nothing_more_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = runner(plan(tmp_path / "task", "1", draws=1), tmp_path / "results", FakeBackend()).run()
    alone = summarise_folder(tmp_path / "results")
    monkeypatch.setattr(module, "summarise_folder", None)
    assert with_stored(alone, tmp_path / "results", done.names) is alone
