"""The charts of adaptation: their axes hold the points that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from icl_bench.analysis.findings.adaptation import COURSE, LOSSES, POINTS
from icl_bench.registry import FINDINGS
from icl_bench.report.naming import Naming
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
            "variant": "v",
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


def drawn(
    frame: pd.DataFrame,
    course: pd.DataFrame | None = None,
    losses: pd.DataFrame | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    findings = SimpleNamespace(
        adaptation_losses=pd.DataFrame(columns=LOSSES) if losses is None else losses,
        adaptation_points=frame,
        adaptation_course=pd.DataFrame(columns=COURSE) if course is None else course,
    )
    return adaptation(FINDINGS["adaptation_losses"], findings, Naming(settings, attentions=True))  # type: ignore[arg-type]


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


def test_trainings_to_the_same_pattern_are_two_lines():
    course = pd.DataFrame(
        [("m", "grouped:2,64", name, 1000.0, step, 3.0, 1e9) for name in ("out-lora", "out-full") for step in (1, 2)],
        columns=COURSE,
    )
    for panel in drawn(pd.DataFrame(columns=POINTS), course).panels:
        lines = {(row["series"], row["model"]) for row in panel.rows}
        assert len({series for series, _ in lines}) == len(lines) == 2
        assert all(model in series for series, model in lines)


def test_variants_of_a_model_are_two_lines_and_two_named_rows():
    frame = pd.concat([points(), points(variant="w", score=0.8).query("trained == 'before'")])
    found = drawn(frame, settings={"v": "scoring=greedy", "w": "scoring=exact"})
    (panel,) = found.panels
    assert {row["series"] for row in panel.rows} == {
        "grouped:4,512, before, scoring=greedy",
        "grouped:4,512, before, scoring=exact",
        "grouped:4,512, after, scoring=greedy",
    }
    (table,) = found.tables
    names = [column.name for column in table.columns]
    assert {row[names.index("setting")] for row in table.rows} == {"scoring=greedy", "scoring=exact"}


def test_losses_of_another_dtype_or_other_windows_are_lines_of_their_own():
    losses = pd.DataFrame(
        [
            {"base": "m", "pattern": "grouped:4,512", "adapted": "n", "attention": "grouped:4,512", "trained": "after"}
            | {"model": "n", "dtype": dtype, "window_tokens": window, "after": 1, "length": 64, "perplexity": 9.0}
            for dtype, window in (("float32", 64), ("float32", 1024), ("bfloat16", 1024))
        ],
        columns=LOSSES,
    )
    (panel,) = drawn(pd.DataFrame(columns=POINTS), losses=losses).panels
    assert [row["series"] for row in panel.rows] == [
        "grouped:4,512, after, float32, windows of 64 tokens",
        "grouped:4,512, after, float32, windows of 1,024 tokens",
        "grouped:4,512, after, bfloat16, windows of 1,024 tokens",
    ]
    (panel,) = drawn(pd.DataFrame(columns=POINTS), losses=losses.tail(1)).panels
    assert [row["series"] for row in panel.rows] == ["grouped:4,512, after"]
