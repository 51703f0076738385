"""Forecast: scores at twice and four times the largest k, and the k from which a wanted score is likely."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import interval_over, is_drawn, is_shuffled, is_upper_bound
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.statistics.alike import all_or_common, filled, on_tests
from icl_bench.analysis.statistics.bootstrap import Counts, Streams, means, resample, stream_of
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import grids, partition
from icl_bench.analysis.statistics.local_trend import continuation
from icl_bench.errors import UserError
from icl_bench.metrics.scores import metrics, scored
from icl_bench.results.cells import SETTING
from icl_bench.wording import percent

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.9
"""The level of intervals, and the chance from which a wanted score counts as likely."""

LEAST_POINTS, LEAST_SPAN = 4, 8
"""The minimum number of k of a curve, and the minimum ratio of its largest to its smallest k."""

RESAMPLES = 500

WIDEST = 0.35
"""Wider intervals are not reported."""

FACTORS = (2, 4)
"""Multiples of the largest tested k. Forecasts further out were not validated."""

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
        raise UserError(f"--wanted {percents:g}: a score in percent, above 0 and at most 100")
    return percents / 100


def forecast(
    predictions: pd.DataFrame, rng: np.random.Generator | Streams, wanted: float | None = None
) -> pd.DataFrame:
    """Continue each curve to twice and four times its largest k.

    The curve is that of :func:`icl_bench.analysis.statistics.local_trend.continuation`. The sampling variance of means
    is estimated by resampling draws and test examples, all k together. k = 0 is left out, because a prompt without
    demonstrations is a different kind of prompt.

    Two rows per curve: the setting; k (the largest tested), metric, the mean there as ``score``, ``points`` (the number
    of k); draws and interval_over (:func:`icl_bench.analysis.draws.interval_over`); ``next_k`` with the predicted
    observation there, as ``forecast`` (median), low and high (90%), for the same number of draws on the same test
    examples; ``gain``, gain_low and gain_high, relative to ``score``. With ``wanted``, a share: ``wanted_chance``, the
    chance that the curve itself is at or above the wanted score at ``next_k``; ``k_even`` and ``k_likely``, the
    smallest k from which, up to ``next_k``, this chance stays at least a half and at least 90%; NaN if there is none.
    ``reason`` is why there is no forecast: too few k, too narrow a range of k, a single draw of random demonstrations
    (the variance of draws is then unknown), or a wide interval.

    docs/statistics.md has the coverage of the intervals for published and simulated curves of several kinds.
    """
    import pandas as pd

    frame = scored(predictions)
    frame = frame.loc[frame["score"].notna() & (frame["k"] > 0)]
    frame = frame.loc[~is_upper_bound(frame["select"]), [*POINT, "draw", "test_id", "score", "metric"]]
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
        unknown = drawn and draws == 1
        own = stream_of(rng, setting["task"])
        rows += [{**row, **columns} for columns in forecasts(ks, matrices, own, wanted, unknown)]
    return pd.DataFrame(rows, columns=[*SETTING, *FORECAST])


def forecasts(
    ks: np.ndarray,
    matrices: list[np.ndarray],
    rng: np.random.Generator,
    wanted: float | None = None,
    unknown: bool = False,
) -> list[dict[str, Any]]:
    """The columns of both steps of one curve, or the reason why they are missing.

    ``matrices`` are its scores, ``(draws, test)`` for each of ``ks``; ``unknown`` means that the variance of draws is
    unknown.
    """
    if len(ks) < LEAST_POINTS:
        return [{"reason": f"needs {LEAST_POINTS} values of k, has {len(ks)}"}]
    if ks[-1] < LEAST_SPAN * ks[0]:
        return [{"reason": f"the largest k is less than {LEAST_SPAN} times the smallest"}]
    if not matrices:
        return [{"reason": "no test rows in common"}]
    score = np.array([TwoWayLayout(matrix).mean for matrix in matrices])
    last = float(score[-1])
    if unknown:
        return [{"score": last, "reason": "one draw does not show how much draws differ; run 3 or more"}]
    path = np.unique(np.geomspace(ks[0], ks[-1] * FACTORS[-1], 60).round().astype(int))
    next_ks = ks[-1] * np.array(FACTORS)
    curve = continuation(
        ks.astype(float), score, _covariance(matrices, rng), matrices[0].shape[1], np.append(next_ks, path)
    )
    quantiles = np.stack([curve.quantile(share) for share in ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2)], axis=1)
    chances = None if wanted is None else curve.reached(wanted)
    rows = []
    for place, next_k in enumerate(next_ks.tolist()):
        low, middle, high = quantiles[place].tolist()
        row: dict[str, Any] = {"score": last, "next_k": next_k}
        if high - low > WIDEST:
            wide = f"wider than {100 * WIDEST:.0f} points"
            row["reason"] = f"the 90% interval, {percent(low)} to {percent(high)}%, is {wide}"
        else:
            row |= {
                "forecast": middle,
                "low": low,
                "high": high,
                "gain": middle - last,
                "gain_low": low - last,
                "gain_high": high - last,
            }
            if chances is not None:
                until = np.append(path[path < next_k], next_k)
                row |= _reached(until, np.append(chances[len(next_ks) :][path < next_k], chances[place]))
        rows.append(row)
    return rows


def _covariance(matrices: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Sampling covariance of the mean scores of all k over draws and test examples: ``(points, points)``."""
    tests = resample(rng, RESAMPLES, 1, matrices[0].shape[1]).tests
    draws = {
        number: resample(rng, RESAMPLES, number, 1).draws for number in sorted({len(matrix) for matrix in matrices})
    }
    again = [means(matrix, Counts(draws[len(matrix)], tests), student=False) for matrix in matrices]
    return np.cov(again)


def _reached(ks: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """The k from which a wanted score is as likely as not, and likely, up to the last of ``ks``."""
    from_here = np.minimum.accumulate(chances[::-1])[::-1]

    def smallest(chance: float) -> float:
        return float(ks[(from_here >= chance).argmax()]) if chances[-1] >= chance else np.nan

    return {"k_even": smallest(0.5), "k_likely": smallest(LEVEL), "wanted_chance": float(chances[-1])}


def _printed(table: pd.DataFrame) -> pd.DataFrame:
    """The table without random reorderings, and without single points if there are curves."""
    rows = table[~is_shuffled(table["order"])]
    of_curves = rows[rows["points"] > 1]
    return of_curves if len(of_curves) else rows


FORECASTS = Finding(
    "forecast",
    lambda context: forecast(context.unperturbed, context.generators("forecast"), context.wanted),
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
        Column("reason", "not estimated", optional=True),
    ),
    caption="Forecasts for twice and four times as many demonstrations",
    shown="task model series k score points next_k forecast low high gain gain_low gain_high "
    "wanted k_even k_likely wanted_chance draws interval_over reason",
    printed=Printed(
        "forecast: twice and four times as many demonstrations (90%)",
        "task model select order k score next_k forecast low gain k_even k_likely wanted_chance reason",
        _printed,
        option="forecast",
    ),
    by_task=IN_ORDER,
)
