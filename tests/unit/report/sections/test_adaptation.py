"""The charts of adaptation: their axes hold the points that are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from icl_bench.analysis.findings.adaptation import COURSE, LOSSES, POINTS
from icl_bench.registry import FINDINGS
from icl_bench.report.sections.adaptation import adaptation


def points(**changes: Any) -> pd.DataFrame:
    rows = [
        {
            "base": "m",
            "pattern": "grouped:4,512",
            "adapted": "n",
            "attention": "grouped:4,512",
            "trained": trained,
            "model": "m",
            "task": "t",
            "select": "random",
            "order": "drawn",
            "k": k,
            "draws": 3,
            "test_rows": 10,
            "metric": "accuracy",
            "score": 0.5,
            "ci_low": 0.4,
            "ci_high": 0.6,
            "query_flops": 1.0,
            "cache_bytes": 1.0,
            **changes,
        }
        for trained in ("before", "after")
        for k in (10, 50, 200)
    ]
    return pd.DataFrame(rows, columns=POINTS)


def drawn(frame: pd.DataFrame, course: pd.DataFrame | None = None) -> Any:
    findings = SimpleNamespace(
        adaptation_losses=pd.DataFrame(columns=LOSSES),
        adaptation_points=frame,
        adaptation_course=pd.DataFrame(columns=COURSE) if course is None else course,
    )
    return adaptation(FINDINGS["adaptation_losses"], findings, None)  # type: ignore[arg-type]


def test_the_axis_of_k_reaches_from_the_smallest_to_the_largest():
    found = drawn(points())
    assert found.look.shots == (10, 200)
    assert not found.look.zero_shot
    (panel,) = found.panels
    assert {row["k"] for row in panel.rows} == {10, 50, 200}


def test_losses_while_training_are_drawn_over_steps_and_over_operations():
    course = pd.DataFrame(
        [
            ("m", pattern, f"m-{pattern}", 1000.0, step, loss, flops)
            for pattern in ("full", "grouped:4,512")
            for step, loss, flops in ((0, 3.5, 0.0), (5, 3.3, 2e9), (10, 3.25, 4e9))
        ],
        columns=COURSE,
    )
    steps, operations = drawn(pd.DataFrame(columns=POINTS), course).panels
    assert [row["step"] for row in steps.rows] == [0, 5, 10] * 2
    assert [(row["operations"], row["value"]) for row in operations.rows] == [
        (2e9, pytest.approx(np.exp(3.3))),
        (4e9, pytest.approx(np.exp(3.25))),
    ] * 2
    without = drawn(pd.DataFrame(columns=POINTS), course.assign(training_flops=np.nan))
    assert len(without.panels) == 1


def test_a_point_without_demonstrations_has_its_place():
    frame = pd.concat([points(), points().head(1).assign(k=0)])
    assert drawn(frame).look.zero_shot
