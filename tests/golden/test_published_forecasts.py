"""Forecasts, fitted up to some k, hold what Bertsch et al. (2025) saw at twice and four times it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from icl_bench.analysis.findings.forecast import FACTORS, LEAST_POINTS, LEAST_SPAN, forecast
from icl_bench.results.cells import SETTING

NEAR = 0.12
"""How far, in log k, a k that was asked may be from twice or four times another."""


@pytest.mark.parametrize("draws", [pytest.param(10, marks=pytest.mark.thorough), 3])
def test_intervals_hold_what_was_seen(data_dir: Path, draws: int):
    predictions = pd.read_parquet(data_dir / "published" / "predictions.parquet")
    correct = predictions["gold"] == predictions["prediction"]
    predictions = predictions.assign(
        score=correct.astype(float), correct=correct, metric="accuracy", attention="full", variant="published"
    )[predictions["draw"] < draws]
    held: dict[int, list[bool]] = {step: [] for step in FACTORS}
    widths: dict[int, list[float]] = {step: [] for step in FACTORS}
    for _, rows in predictions.groupby(SETTING, observed=True):
        means = rows.groupby("k")["score"].mean()
        ks = means.index.to_numpy()
        for number in range(LEAST_POINTS, len(ks)):
            last = ks[number - 1]
            if last < LEAST_SPAN * ks[0]:
                continue
            table = None
            for step in FACTORS:
                distance = np.abs(np.log(ks / (step * last)))
                if distance.min() > NEAR or ks[distance.argmin()] <= last:
                    continue
                if table is None:
                    until = rows[rows["k"] <= last]
                    table = forecast(until, np.random.default_rng(0)).set_index("next_k")
                told = table.loc[step * last]
                if not pd.isna(told["forecast"]):
                    seen = means.iloc[distance.argmin()]
                    held[step].append(told["low"] <= seen <= told["high"])
                    widths[step].append(told["high"] - told["low"])
    print({step: (np.mean(held[step]), len(held[step]), np.median(widths[step])) for step in FACTORS})
    assert len(held[2]) > 70
    assert len(held[4]) > 30
    for step in FACTORS:
        assert 0.85 <= np.mean(held[step]) <= 0.97  # the standard error is 3 to 5 points
