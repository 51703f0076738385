"""The page's first picture, the colours of selectors, and axes that one value does not stretch."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import answers, frame, scored

from icl_bench.analysis.all_findings import find
from icl_bench.report import charts
from icl_bench.report.matrix import HEIGHT, PADDING, WIDTH, Matrix, matrix
from icl_bench.report.naming import Naming
from icl_bench.report.sections.panels import common_look, of_models, subject
from icl_bench.results.reading import Stored

SHOTS = (1, 5, 20, 100)


def made(*points: pd.DataFrame) -> Matrix:
    findings = find(Stored(frame(*points), {}, {}, ()))
    return matrix(findings, Naming.of(findings.summary))


def sweep(accuracies: tuple[float, ...], draws: int = 5, **changes: object) -> list[pd.DataFrame]:
    rng = np.random.default_rng(len(str(changes)))
    return [
        scored(answers(rng, (1, draws, 200), accuracy)[0], k=k, **changes)
        for k, accuracy in zip(SHOTS, accuracies, strict=True)
    ]


def test_an_entry_says_the_best_point_where_its_curve_is_saturated_and_the_gain_of_selection():
    entry = made(*sweep((0.2, 0.4, 0.6, 0.62)), *sweep((0.5, 0.7, 0.9, 0.9), draws=1, select="bm25")).get("t", "m")
    assert entry is not None
    assert 87 <= float(entry.score.rstrip("%")) <= 97
    low, high = entry.interval.split(" to ")
    assert float(low) < float(entry.score.rstrip("%")) < float(high)
    assert entry.where in ("bm25, k = 20", "bm25, k = 100")
    assert entry.saturated.startswith("saturated at k = 20")
    assert entry.selection.startswith(("bm25: +2", "bm25: +3", "bm25: +4"))
    assert "at k = 1, +" in entry.selection
    assert [line.series for line in entry.lines] == ["random", "bm25"]


def test_a_pair_that_was_not_run_has_no_entry():
    found = made(*sweep((0.2, 0.4, 0.6, 0.6)), *sweep((0.2, 0.4, 0.6, 0.6), task="u", model="n"))
    assert found.tasks == ["t", "u"]
    assert found.models == ["m", "n"]
    assert found.get("t", "n") is None
    assert found.get("u", "n") is not None


def test_a_best_point_of_two_draws_is_not_called_the_best():
    entry = made(*sweep((0.2, 0.4, 0.6, 0.62), draws=2)).get("t", "m")
    assert entry is not None
    assert entry.interval == ""
    assert "too little data" in entry.where
    assert "2 draws" in entry.where


def test_a_gain_that_is_not_told_from_chance_is_no_gain():
    same = (0.5, 0.5, 0.5, 0.5)
    entry = made(*sweep(same), *sweep(same, select="bm25")).get("t", "m")
    assert entry is not None
    assert entry.selection.count("not distinguishable") == 2
    assert "+" not in entry.selection


def test_small_curves_rise_to_the_right_inside_their_picture():
    entry = made(*sweep((0.1, 0.3, 0.6, 0.95))).get("t", "m")
    assert entry is not None
    (line,) = entry.lines
    x, y = zip(*line.points, strict=True)
    assert list(x) == sorted(x)
    assert (x[0], x[-1]) == pytest.approx((PADDING, WIDTH - PADDING))
    assert list(y) == sorted(y, reverse=True)  # an SVG counts from the top
    assert min(y) >= PADDING
    assert max(y) <= HEIGHT - PADDING


def test_a_selector_has_one_colour_in_every_table():
    names = ("random", "bm25", "hybrid:5")
    rows = frame(
        *(point for name in names for point in sweep((0.2, 0.3, 0.4, 0.5), select=name)),
        *sweep((0.2, 0.3, 0.4, 0.5), order="by-label"),
    )
    findings = find(Stored(rows, {}, {}, ()))
    naming = Naming.of(findings.summary)
    assert naming.hues == {"random": 0, "bm25": 1, "hybrid:5": 2}
    limits = {"ci_low": "low", "ci_high": "high", "score": "value", "difference": "value"}
    for table in (findings.curves, findings.retrieval_gain, findings.curves.iloc[::-1]):
        look = common_look(naming.named(table).rename(columns=limits))
        told = dict(zip(look.series, look.colours, strict=True))
        for series, slot in told.items():
            assert slot == naming.hues[series.split(", ")[0]]
        both = list(zip(look.colours, look.shapes, look.dashes, strict=True))
        assert len(set(both)) == len(both)


def test_models_that_share_a_chart_have_colours_of_their_own():
    points = [
        point
        for model in ("one", "two", "three")
        for select in ("random", "bm25")
        for point in sweep((0.2, 0.3, 0.4, 0.5), model=model, select=select)
    ]
    findings = find(Stored(frame(*points), {}, {}, ()))
    naming = Naming.of(findings.summary)
    limits = {"ci_low": "low", "ci_high": "high", "score": "value"}
    look = common_look(of_models(naming.named(findings.curves)).rename(columns=limits))
    assert "three, bm25" in look.series
    assert len(set(look.colours)) == len(look.series) == 6


def test_series_that_are_no_selectors_go_through_the_colours_by_turns():
    rows = pd.DataFrame({"series": ["a", "b"], "k": [1, 5], "value": 0.5, "low": 0.4, "high": 0.6})
    look = common_look(rows)
    assert look.colours == look.shapes == look.dashes == (0, 1)


def test_bands_are_off_beyond_three_curves_that_are_shown():
    names = [f"s{i}" for i in range(5)]
    assert charts.Look(names[:3]).bands
    assert not charts.Look(names[:4]).bands
    assert charts.Look(names, hidden=names[3:]).bands


def far_out() -> pd.DataFrame:
    value = np.array([0.01, -0.02, 0.03, 0.0, 0.02, -0.01, 0.92])
    return pd.DataFrame({"series": "a", "k": range(1, 8), "value": value, "low": value - 0.02, "high": value + 0.02})


def test_one_value_that_is_far_out_does_not_flatten_a_chart():
    low, high = common_look(far_out(), room=True).values
    assert -0.2 < low < -0.04
    assert 0.05 < high < 0.3
    near = far_out()
    near.loc[6, ["value", "low", "high"]] = [0.06, 0.04, 0.08]
    assert common_look(near, room=True).values[1] > 0.08


def test_what_lies_beyond_an_axis_is_said_at_its_end():
    rows = far_out()
    look = common_look(rows, room=True)
    drawn = charts.differences(rows, look, "points", (), "").to_dict(validate=False)
    (said,) = [layer for layer in drawn["layer"] if layer["mark"]["type"] == "text"]
    assert said["transform"][-1]["calculate"].startswith("'▲ '")
    low, high = look.values
    inside = rows[rows["value"].between(low, high)]
    drawn = charts.differences(inside, look, "points", (), "").to_dict(validate=False)
    assert not [layer for layer in drawn["layer"] if layer["mark"]["type"] == "text"]


def test_a_panel_is_about_a_task_or_a_model_where_it_is_one():
    rows = pd.DataFrame({"task": ["t", "t"], "model": ["m", "n"]})
    assert subject(rows) == ("t", None)
    assert subject(rows.head(1)) == ("t", "m")
    assert subject(rows[["model"]].head(1)) == (None, "m")
