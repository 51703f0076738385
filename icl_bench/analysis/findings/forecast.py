"""Forecast: what twice as many demonstrations would bring, and when a wanted score is likely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import interval_over, is_drawn
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.statistics.alike import all_or_common, filled, on_tests
from icl_bench.analysis.statistics.bootstrap import means, resample
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import grids, partition
from icl_bench.analysis.statistics.saturating import Curves, likely_curves
from icl_bench.errors import UserError
from icl_bench.metrics.scores import metrics, scored
from icl_bench.results.cells import SETTING
from icl_bench.results.trained_methods import UPPER
from icl_bench.wording import percent

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.9
"""Of the intervals, and from which chance on a wanted score is likely."""

LEAST_POINTS, LEAST_SPAN = 4, 8
"""Of how many k, and how many times the smallest the largest, a curve has to be to be continued."""

RESAMPLES = 500

WIDEST = 0.3
"""An interval that is wider says nothing."""

FACTORS = (2, 4)
"""Times the largest k that was asked. Nobody has seen how good forecasts further on are."""

FORECAST = [
    "k",
    "metric",
    "score",
    "points",
    "draws",
    "interval_over",
    "next_k",
    "forecast",
    "low",
    "high",
    "gain",
    "gain_low",
    "gain_high",
    "wanted",
    "k_even",
    "k_likely",
    "wanted_chance",
    "reason",
]


def check_wanted(percents: float) -> float:
    """A wanted score in percent as a share. Raises ``UserError``."""
    if not 0 < percents <= 100:
        raise UserError(f"--wanted {percents:g}: a score in percent, above 0 and up to 100")
    return percents / 100


def forecast(predictions: pd.DataFrame, rng: np.random.Generator, wanted: float | None = None) -> pd.DataFrame:
    """Continue each curve that rises with k to twice and four times its largest k.

    The curve is :func:`icl_bench.analysis.statistics.saturating.likely_curves`'; how means vary by
    chance, all k together, is seen by resampling draws and test examples. k = 0 is no point of it:
    without demonstrations a prompt is another.

    Two rows a curve: the setting; k (the largest that was asked), metric, its mean there as
    ``score``, ``points`` (how many k); draws and interval_over
    (:func:`icl_bench.analysis.draws.interval_over`); ``next_k`` with what is likely to be seen
    there, as ``forecast`` (median), low and high (90%), of as many draws on the same test examples;
    ``gain``, gain_low and gain_high over what was seen. With ``wanted``, a share: ``k_even`` and
    ``k_likely``, the smallest k at which the curve's own value has reached it with a chance of a
    half and of 90%, and ``wanted_chance``, the chance at ``next_k``; NaN where that is beyond
    ``next_k``. ``reason`` says why there is no forecast: too few k, too little between them, no
    curve that rises, or an interval so wide that it says nothing.

    Fitted up to some k of the predictions published by Bertsch et al. (2025), the intervals hold
    what was seen at twice and four times as many in 85 to 95% of the curves (docs/statistics.md).
    """
    import pandas as pd

    frame = scored(predictions)
    frame = frame.loc[frame["score"].notna() & (frame["k"] > 0)]
    frame = frame.loc[~frame["select"].astype(str).str.endswith(UPPER), [*POINT, "draw", "test_id", "score", "metric"]]
    scores = frame["score"].to_numpy(dtype=float).clip(0, 1)
    of_task = metrics(frame)
    keys, all_points = grids(frame, POINT)
    rows: list[dict[str, Any]] = []
    for at in partition(keys, SETTING)[1]:
        points = [all_points[place].joined() for place in at]
        tests = all_or_common(points)
        points = [on_tests(point, tests) for point in points]
        matrices = filled(points, scores, tests) if len(tests) else []
        ks = keys["k"].to_numpy()[at]
        setting = {name: keys[name].iloc[at[0]] for name in SETTING}
        drawn = is_drawn(str(setting["select"]))
        draws = min(len(point.draws) for point in points)
        row = {
            **setting,
            "k": int(ks[-1]),
            "points": len(ks),
            "draws": draws,
            "metric": of_task[setting["task"]],
            "wanted": wanted,
            "interval_over": interval_over(draws > 1 or not drawn),
        }
        rows += [{**row, **columns} for columns in _forecasts(ks, matrices, rng, wanted)]
    return pd.DataFrame(rows, columns=[*SETTING, *FORECAST])


class _Seen(NamedTuple):
    """A curve as it was seen."""

    means: np.ndarray
    """``(points,)``."""
    covariance: np.ndarray
    """Of the means, by chance: ``(points, points)``."""


def _forecasts(
    ks: np.ndarray, matrices: list[np.ndarray], rng: np.random.Generator, wanted: float | None
) -> list[dict[str, Any]]:
    """The columns of both steps, or the reason that there are none."""
    if len(ks) < LEAST_POINTS:
        return [{"reason": f"asked at {len(ks)} k; ask at {LEAST_POINTS} or more"}]
    if ks[-1] < LEAST_SPAN * ks[0]:
        return [{"reason": f"the largest k is less than {LEAST_SPAN} times the smallest"}]
    if not matrices:
        return [{"reason": "no test examples in common"}]
    seen = _seen(matrices, rng)
    last = float(seen.means[-1])
    curves = likely_curves(ks.astype(float), seen.means, seen.covariance, rng)
    if curves is None:
        return [{"score": last, "reason": "no curve that rises and levels off explains it"}]
    rows = []
    for factor in FACTORS:
        next_k = factor * int(ks[-1])
        values = curves.seen(next_k, float(seen.covariance[-1, -1]), rng)
        low, middle, high = np.quantile(values, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2]).tolist()
        row: dict[str, Any] = {"score": last, "next_k": next_k}
        if high - low > WIDEST:
            row["reason"] = f"anything from {percent(low)} to {percent(high)}% would be no surprise"
        else:
            row |= {
                "forecast": middle,
                "low": low,
                "high": high,
                "gain": middle - last,
                "gain_low": low - last,
                "gain_high": high - last,
            }
            if wanted is not None:
                row |= _reached(curves, wanted, int(ks[0]), next_k)
        rows.append(row)
    return rows


def _seen(matrices: list[np.ndarray], rng: np.random.Generator) -> _Seen:
    most = max(len(matrix) for matrix in matrices)
    of_chance = np.empty((len(matrices), RESAMPLES))
    counts = {
        draws: resample(rng, RESAMPLES, draws, matrices[0].shape[1])
        for draws in sorted({len(matrix) for matrix in matrices}, key=lambda n: n != most)
    }
    for place, matrix in enumerate(matrices):
        of_chance[place] = means(matrix, counts[len(matrix)], student=False)
    covariance = np.cov(of_chance) + 1e-6 * np.eye(len(matrices))
    return _Seen(np.array([TwoWayLayout(matrix).mean for matrix in matrices]), covariance)


def _reached(curves: Curves, wanted: float, first: int, last: int) -> dict[str, float]:
    """From which k on a wanted score is as likely as not, and likely, up to ``last``."""
    # curves rise: what is reached stays so
    ks = np.unique(np.geomspace(first, last, 60).round().astype(int))
    chances = np.array([(curves.at(k) >= wanted).mean() for k in ks])

    def smallest(chance: float) -> float:
        return float(ks[(chances >= chance).argmax()]) if chances[-1] >= chance else np.nan

    return {"k_even": smallest(0.5), "k_likely": smallest(LEVEL), "wanted_chance": float(chances[-1])}


def _printed(table: pd.DataFrame) -> pd.DataFrame:
    """Without random reorderings, and without single points where there are curves."""
    rows = table[~table["order"].astype(str).str.startswith("shuffled")]
    of_curves = rows[rows["points"] > 1]
    return of_curves if len(of_curves) else rows


FORECASTS = Finding(
    "forecast",
    lambda context: forecast(context.unperturbed, context.generator("forecast"), context.wanted),
    (
        Column("k", "largest k", "count"),
        Column("score", "{score} there", "share", short="{score}"),
        Column("points", "points", "count"),
        Column("next_k", "at k", "count"),
        Column("forecast", "forecast", "share"),
        Column("low", "90% from", "share", short="90% interval", upper="high"),
        Column("high", "90% to", "share"),
        Column("gain", "gain", "points"),
        Column("gain_low", "90% from", "points", short="90% interval", upper="gain_high"),
        Column("gain_high", "90% to", "points"),
        Column("wanted", "wanted", "share", optional=True),
        Column("k_even", "as likely as not from k", "count", optional=True, short="even\nfrom k"),
        Column("k_likely", "likely from k", "count", optional=True, short="likely\nfrom k"),
        Column("wanted_chance", "chance", "share", optional=True),
        Column("reason", "not told", optional=True),
    ),
    caption="What twice and four times as many demonstrations would bring",
    shown="task model series k score points next_k forecast low high gain gain_low gain_high "
    "wanted k_even k_likely wanted_chance draws interval_over reason",
    printed=Printed(
        "forecast: what more demonstrations would bring (90%)",
        "task model select order k score next_k forecast low gain k_even k_likely wanted_chance reason",
        _printed,
        option="forecast",
    ),
)
