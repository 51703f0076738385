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


@pytest.mark.parametrize(("draws", "least", "most"), [(10, 0.85, 0.95), (3, 0.85, 0.95)])
def test_intervals_hold_what_was_seen(data_dir: Path, draws: int, least: float, most: float):
    predictions = pd.read_parquet(data_dir / "published" / "predictions.parquet")
    correct = predictions["gold"] == predictions["prediction"]
    predictions = predictions.assign(
        score=correct.astype(float), correct=correct, metric="accuracy", attention="full", variant="published"
    )[predictions["draw"] < draws]
    held: dict[int, list[bool]] = {step: [] for step in FACTORS}
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
    every = held[2] + held[4]
    print({step: (np.mean(seen), len(seen)) for step, seen in held.items()}, np.mean(every))
    assert len(every) > 80
    assert least <= np.mean(every) <= most
    assert np.mean(held[4]) > 0.7
