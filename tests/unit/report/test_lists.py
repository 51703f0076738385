"""Points of charts refer to the filters that list their predictions: nothing more, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.billing import of_model
from support.fakes import FakeBackend, plan, runner

from icl_bench.models.architecture import Architecture
from icl_bench.report.build import Report, make_report
from icl_bench.report.charts import NUMBER
from icl_bench.report.sections.panels import NUMBER_TEXTS
from icl_bench.report.viewer.folder import Folder
from icl_bench.report.viewer.predictions import Predictions
from icl_bench.wording import three_digits

SHAPE = Architecture(parameters=100_000_000, heads_width=64, windows=(None,))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, retrieval and orders, calibrated answers, perturbed demonstrations, models with commas."""
    folder = tmp_path_factory.mktemp("lists")
    two = ("random", "bm25")
    for made in (
        plan(folder / "exact", "0,1,4", 2, selects=two, scoring="exact", test_rows=8),
        plan(folder / "greedy", "0,1,4", 2, selects=two, orders=("drawn", "by-label", "shuffled:1"), test_rows=8),
        plan(folder / "permuted", "1,4", 2, perturbation="labels:permuted", test_rows=8),
        of_model(plan(folder / "other", "1,4", 2, test_rows=8), "small, too"),
    ):
        there = runner(made, folder / "results", FakeBackend(scored=True))
        replace(there, architecture=lambda: SHAPE).run()
    return folder / "results"


@pytest.fixture(scope="module")
def predictions(results: Path) -> Predictions:
    """What the server and a folder of files list."""
    return Folder(results, {}).read().predictions


@pytest.fixture(scope="module")
def report(results: Path) -> Report:
    """The report whose page has that list."""
    return make_report(results, served=True)


def listed(report: Report, predictions: Predictions, row: dict[str, Any]) -> pd.DataFrame:
    """The predictions that a click on a row of a chart lists."""
    task, model, series, perturbation = report.lists[int(row["listed"])]
    filters = {"task": task, "model": model, "series": series, "perturbation": perturbation, "k": str(row["k"])}
    return pd.DataFrame(predictions.rows(predictions.find(filters)))


def rows_of(report: Report, *sections: str) -> list[tuple[str, dict[str, Any]]]:
    there = (section for section in report.sections if section.name in sections)
    return [(panel.name, row) for section in there for panel in section.panels for row in panel.rows]


def test_the_mean_of_what_a_point_lists_is_its_value(report: Report, predictions: Predictions):
    sections = ("accuracy", "frontier", "frontier-models", "cost")
    linked = [(name, row) for name, row in rows_of(report, *sections) if row["listed"] is not None]
    assert len({name.partition("-")[0] for name, _ in linked}) == 3
    assert {row["k"] for _, row in linked} == {0, 1, 4}
    for name, row in linked:
        assert listed(report, predictions, row)["correct"].mean() == pytest.approx(row["value"]), (name, row)
        assert not row.get("cascade")


def test_points_without_predictions_of_their_own_list_none(report: Report):
    alone = {row["series"] for _, row in rows_of(report, "accuracy") if row["listed"] is None}
    assert alone == {f"{select}, calibration=batch, scoring=exact" for select in ("random", "bm25")}
    cascades = [row for _, row in rows_of(report, "frontier") if row["cascade"]]
    assert cascades
    assert all(row["listed"] is None for row in cascades)


def test_differences_list_their_own_side(report: Report, predictions: Predictions):
    found = set()
    for _, row in rows_of(report, "retrieval", "sorting", "models", "perturbations", "demonstrations-gain"):
        if row["listed"] is not None and "mean" in row:
            found.add(row["series"])
            assert listed(report, predictions, row)["correct"].mean() == pytest.approx(row["mean"]), row
    assert {"labels:permuted", "small, random, by-label, calibration=none, scoring=greedy"} <= found


def test_perturbed_points_list_perturbed_predictions(report: Report, predictions: Predictions):
    rows = [row for name, row in rows_of(report, "perturbations") if name.startswith("perturbed-curves")]
    assert {row["series"] for row in rows} == {"unperturbed", "labels:permuted"}
    for row in rows:
        found = listed(report, predictions, row)
        assert set(found["perturbation"]) == {"" if row["series"] == "unperturbed" else row["series"]}
        assert found["correct"].mean() == pytest.approx(row["value"])


def test_a_page_with_a_sample_lists_by_the_names_of_its_charts(tmp_path: Path, report: Report):
    for scoring in ("exact", "greedy"):
        made = plan(tmp_path / scoring, "1", 1, scoring=scoring, test_rows=8)
        runner(made, tmp_path / "results", FakeBackend(scored=True)).run()
    own = make_report(tmp_path / "results")
    place = own.sample.as_json()["fields"].index("series")
    names = {own.sample.texts[row[place]] for row in own.sample.rows}
    assert {series for _, _, series, _ in own.lists} == names
    assert "random, calibration=none, scoring=exact" in names
    assert "random, scoring=exact" in {series for _, _, series, _ in report.lists}


def test_tooltips_have_the_mean_k_of_a_cascade_and_costs_as_tables_have_them(report: Report):
    (panel, *_) = (panel for section in report.sections if section.name == "cascade" for panel in section.panels)
    spec = panel.spec()
    tips = {tip["title"]: tip for tip in spec["layer"][-1]["encoding"]["tooltip"]}
    rows = spec["datasets"]["rows"]
    assert tips["k on average"]["format"] == ",.2~f"
    assert any(row["k"] % 1 for row in rows)
    assert all(row["k"] == round(row["k"], 2) for row in rows)
    assert tips["operations a query (GFLOP)"]["field"] == "cost_text"
    assert all(row["cost_text"] == three_digits(row["cost"]) for row in rows)
    assert NUMBER_TEXTS[NUMBER](1234.4) == "1,234", "Vega would write 1.23e+3"
