"""The frontier's chart: every verdict has a mark, and names are as short as they may be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner

pytest.importorskip("altair")
from icl_bench.analysis.all_findings import find
from icl_bench.models.architecture import Architecture
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.naming import Naming
from icl_bench.report.sections.panels import common_look
from icl_bench.report.sections.prompts import _shortest_names, frontier
from icl_bench.results.reading import read_some

VERDICTS = ["on the frontier", "undecided", "dominated", "not compared"]


def points() -> pd.DataFrame:
    count = len(VERDICTS)
    return pd.DataFrame(
        {
            "point": ["100 queries"] * count,
            "series": [f"way {i}" for i in range(count)],
            "cascade": [np.nan] * count,
            "k": range(1, count + 1),
            "cost": [1.0, 2.0, 3.0, 4.0],
            "value": [0.5, 0.6, 0.4, 0.7],
            "low": [0.4] * count,
            "high": [0.8] * count,
            "verdict": VERDICTS,
            "p": [0.01, 0.3, 0.02, np.nan],
            "on": [True, True, False, True],
            "left": [False] * count,
        }
    )


def drawn(layer: dict[str, Any]) -> list[str]:
    """The verdicts whose points a layer draws."""
    mark = layer["mark"]
    if (mark if isinstance(mark, str) else mark["type"]) != "point":
        return []
    filters = json.dumps(layer.get("transform", []))
    return [verdict for verdict in VERDICTS if f"datum.verdict == '{verdict}'" in filters]


def test_the_points_of_every_verdict_are_drawn_once() -> None:
    frame = points()
    chart = charts.frontier(frame, common_look(frame), "accuracy", "GFLOP", "~g", "100 queries", "said")
    layers = chart.to_dict()["layer"]
    assert sorted(verdict for layer in layers for verdict in drawn(layer)) == sorted(VERDICTS)


def test_a_task_without_the_operations_of_another_has_a_chart_by_seconds(tmp_path: Path) -> None:
    shape = Architecture(parameters=100_000, heads_width=64, windows=(None,))
    for name, known in (("cards", lambda: shape), ("other", None)):
        made = plan(tmp_path / name, "1,4", name=name)
        replace(runner(made, tmp_path / "results", FakeBackend()), architecture=known).run()
    found = find(read_some(tmp_path / "results"))
    drawing = frontier(FINDINGS["frontier"], found, Naming.of(found.summary))
    assert drawing is not None
    assert [(panel.about.task, panel.costs and panel.costs["first"]) for panel in drawing.panels] == [
        ("cards", "operations"),
        ("other", "seconds"),
    ]
    for panel, title in zip(drawing.panels, ("operations a query (GFLOP)", "seconds a query"), strict=True):
        assert f"{title} (log scale)" in json.dumps(panel.spec())
        assert {row["k"] for row in panel.rows} == {1, 4}
        assert all(row["cost"] > 0 for row in panel.rows)
        assert {row["point"] for row in panel.rows if row["on"]} == {choice.text for choice in panel.choices}


def named(*rows: tuple[str, str, str]) -> list[str]:
    """Short names of points, each of a selector, an attention and a variant."""
    settings = {
        "a": "calibration=none, scoring=greedy",
        "b": "calibration=none, scoring=exact",
        "c": "calibration=batch, scoring=exact",
        "d": "calibration=none, scoring=greedy",
    }
    frame = pd.DataFrame(rows, columns=["select", "attention", "variant"])
    frame = frame.assign(task="t", model="m", order="drawn")
    frame["series"] = (
        frame["select"] + ", " + frame["attention"] + ", " + frame["variant"].map(settings) + frame["variant"]
    )
    return _shortest_names(frame, settings).tolist()


def test_names_leave_out_what_goes_without_saying() -> None:
    assert named(("random", "full", "a"), ("bm25", "full", "a")) == ["random", "bm25"]
    assert named(("random", "full", "a"), ("random", "block:3", "a")) == ["random", "random, block:3"]
    assert named(("random", "full", "a"), ("random", "full", "b"), ("random", "full", "c")) == [
        "random",
        "random, scoring=exact",
        "random, calibration=batch, scoring=exact",
    ]


def test_names_that_would_be_alike_stay_whole() -> None:
    whole = named(("random", "full", "a"), ("random", "full", "d"))
    assert len(set(whole)) == 2
    assert all("calibration=none, scoring=greedy" in name for name in whole)
