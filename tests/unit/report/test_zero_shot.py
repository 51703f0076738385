"""The report and the leaderboard have a place for points without demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner

from icl_bench.analysis.baseline_check import check_results
from icl_bench.report import charts
from icl_bench.report.build import Report, make_report
from icl_bench.report.leaderboard import as_markdown, leaderboard
from icl_bench.report.sections.panels import common_look
from icl_bench.results.exporting import export_results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("zero_shot")
    made = plan(root / "task", "0,1,10", draws=1, selects=["random", "bm25"], test_rows=12)
    runner(made, root / "results", FakeBackend()).run()
    return root / "results"


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    return make_report(results)


def drawn_over(*shots: int) -> dict[str, Any]:
    """The horizontal axis of a chart of one series with these k."""
    frame = pd.DataFrame({"series": "random", "k": shots, "value": 0.5, "low": 0.4, "high": 0.6})
    chart = charts.over_shots(frame.assign(alone=False), common_look(frame), "accuracy", (), "")
    found: dict[str, Any] = chart.to_dict(validate=False)["layer"][0]["encoding"]["x"]
    return found


def test_a_logarithmic_axis_has_a_place_for_0_left_of_the_others():
    axis = drawn_over(0, 5, 500)
    assert axis["title"] == "demonstrations k (log scale above 0)"
    zero, first, last = axis["axis"]["values"]
    assert (first, last) == (5, 500)
    assert axis["scale"]["domain"][0] < zero < first
    assert axis["axis"]["labelExpr"] == "datum.value < 5 ? '0' : format(datum.value, ',d')"


def test_without_it_the_axis_is_as_it_was():
    axis = drawn_over(5, 500)
    assert axis["field"] == "k"
    assert axis["title"] == "demonstrations k (log scale)"
    assert axis["axis"]["values"] == [5, 500]


def test_it_can_be_drawn_alone():
    axis = drawn_over(0)
    (zero,) = axis["axis"]["values"]
    low, high = axis["scale"]["domain"]
    assert 0 < low < zero < high


def test_every_curve_of_the_chart_begins_with_it(report: Report):
    (section,) = (section for section in report.sections if section.name == "accuracy")
    rows = {(row["series"], row["k"]) for row in section.panels[0].rows}
    assert rows == {(series, k) for series in ("random", "bm25") for k in (0, 1, 10)}


def test_a_picture_of_it_has_its_number_below(report: Report):
    vl_convert = pytest.importorskip("vl_convert")
    from icl_bench.report.figures import figure

    (section,) = (section for section in report.sections if section.name == "accuracy")
    svg = vl_convert.vegalite_to_svg(figure(section.panels[0]), vl_version=charts.VEGA_LITE)
    assert all(f">{k}</text>" in svg for k in (0, 1, 10))


def test_it_is_no_point_whose_demonstrations_are_drawn(report: Report):
    assert any(note.startswith("2 of 2 points with randomly drawn demonstrations") for note in report.notes)


def test_it_is_one_tested_point_of_all_curves(report: Report):
    (of_pair,) = report.headlines
    best = next(sentence.text for sentence in of_pair.sentences if sentence.topic == "Best")
    assert "the highest of 5 tested points" in best or best.startswith("undetermined")


def test_it_has_one_line_in_the_leaderboard_and_counts_for_saturation(results: Path):
    table = leaderboard(results)
    assert sorted(table["k"]) == [0, 1, 1, 10, 10]
    table["saturation_k"] = pd.array([0] * len(table), dtype="Int64")
    lines = as_markdown(table).splitlines()
    at = [name.strip() for name in lines[0].split("|")].index("saturated at k")
    assert {line.split("|")[at].strip() for line in lines[2:7]} == {"0"}


def test_a_baseline_with_it_is_checked(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "base.parquet")
    found = check_results(tmp_path / "base.parquet", results)
    assert found.passed
    assert sorted(found.points["k"]) == [0, 1, 1, 10, 10]
