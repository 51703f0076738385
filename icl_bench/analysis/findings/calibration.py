"""Calibration: whether answers with probability p are right in a share p of cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.statistics.bootstrap import Counts, Streams, means, resample, stream_of
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import grids

if TYPE_CHECKING:
    import pandas as pd

BINS = 10


def reliability(frame: pd.DataFrame, bins: int = BINS, normalise: bool = True) -> pd.DataFrame:
    """Mean probability and accuracy in bins of equal numbers of predictions.

    The probability of an answer is divided by that of all labels together (``label_mass``), unless ``normalise=False``.
    Equal probabilities stay in one bin, so bins may differ in size or be fewer than ``bins``.

    Columns: the setting, k, bin (from 0, least probable first), probability, accuracy and
    predictions. Points without stored probabilities are left out.
    """
    import pandas as pd

    labelled = _answered(frame, normalise)
    chance, right = labelled["chance"].to_numpy(), labelled["correct"].to_numpy(dtype=float)
    keys, points = grids(labelled, POINT)
    rows = []
    for at, point in enumerate(points):
        places = point.rows[point.rows >= 0]
        number = equal_bins(chance[places], bins)
        count = np.bincount(number, minlength=bins)
        for b in np.flatnonzero(count):
            inside = places[number == b]
            rows.append((at, b, chance[inside].mean(), right[inside].mean(), count[b]))
    table = pd.DataFrame(rows, columns=["at", "bin", "probability", "accuracy", "predictions"])
    return keys.iloc[table.pop("at").astype(int)].reset_index(drop=True).join(table)


def calibration_error(
    frame: pd.DataFrame, rng: np.random.Generator | Streams, normalise: bool = True, resamples: int = 500
) -> pd.DataFrame:
    """Expected calibration error: the mean absolute difference of probability and accuracy in a bin.

    The bins are :func:`reliability`'s, weighted by their predictions (Nguyen & O'Connor 2015, EMNLP). Chance increases
    the error, because differences of either sign add up. The lower limit corrects this, so that it is 0 for a
    calibrated model. If scores are missing, test examples have equal weights
    (:class:`icl_bench.analysis.statistics.gaps.TwoWayLayout`), regardless of their number of draws.

    Columns: the setting, k, error, ci_low, ci_high (95%, see :func:`_limits`), predictions and left_out (predictions
    without a probability, or in draws that share no test example with the others).
    """
    import pandas as pd

    labelled = _answered(frame, normalise)
    chance = labelled["chance"].to_numpy()
    gap = chance - labelled["correct"].to_numpy(dtype=float)
    keys, points = grids(labelled, POINT)
    rows = []
    counts: dict[Any, Counts] = {}  # by generator and shape, because resampling is slow
    for task, point in zip(keys["task"], points, strict=True):
        part = point.joined()
        shape, known = part.rows.shape, part.rows >= 0
        own = stream_of(rng, task)
        if (own, shape) not in counts:
            counts[own, shape] = resample(own, resamples, *shape)
        number = np.full(shape, -1)
        number[known] = equal_bins(chance[part.rows[known]], BINS)
        parts = part.values(gap) * (number == np.arange(BINS)[:, None, None])
        again = means(parts, counts[own, shape], student=False)
        rows.append((*_limits(_of_bins(parts), again), part.predictions))
    table = keys.join(pd.DataFrame(rows, columns=["error", "ci_low", "ci_high", "predictions"]))
    answered = frame.loc[frame["correct"].notna(), POINT].groupby(POINT, observed=True).size().rename("left_out")
    table = table.join(answered, on=POINT)
    return table.assign(left_out=table["left_out"] - table["predictions"])


def _of_bins(parts: np.ndarray) -> np.ndarray:
    """Means of ``(bins, draws, test)`` with the same gaps in all bins: ``(bins,)``."""
    if np.isnan(parts).any():
        return np.array([TwoWayLayout(part).mean for part in parts])
    return np.asarray(parts.mean(axis=(1, 2)))


def _limits(gaps: np.ndarray, again: np.ndarray) -> tuple[float, float, float]:
    """The error of the bins' weighted differences ``(bins,)``, and its limits.

    ``again`` has the differences in resamples, ``(bins, resamples)``. The lower limit subtracts the 97.5% quantile of
    the sum of absolute deviations over all bins. The upper limit uses the 2.5% quantile of the sum of deviations, each
    with the sign of its bin's difference. (An absolute value is not smooth at 0: percentiles of the resamples' errors
    never contain the error 0 of a calibrated model, and limits from their distances contained it in half of the
    samples.) In simulations with 250 test examples the limits contained the true error in 96 to 100% of samples with
    one or ten draws, and in 92 to 100% with three, but in 85% if three draws of a calibrated model varied widely.
    """
    error, off = abs(gaps).sum(), again - gaps[:, None]
    low = error - np.quantile(abs(off).sum(axis=0), 0.975)
    high = error - np.quantile(np.sign(gaps) @ off, 0.025)
    return float(error), max(float(low), 0.0), float(high)


def _answered(frame: pd.DataFrame, normalise: bool) -> pd.DataFrame:
    """The labelled predictions that have a probability, as ``chance``."""
    chance = np.full(len(frame), np.nan)
    if "probability" in frame:
        chance = frame["probability"].to_numpy(dtype=float)
        if normalise:
            chance = chance / frame["label_mass"].to_numpy(dtype=float)
    labelled = frame[[*POINT, "draw", "test_id", "correct"]].assign(chance=chance)
    return labelled[labelled["chance"].notna() & labelled["correct"].notna()]


def equal_bins(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of each value, ``(values,)``, 0 for the smallest: bins of equal numbers."""
    edges = np.quantile(values, np.linspace(0, 1, bins + 1))
    return np.asarray(np.searchsorted(edges[1:-1], values))


RELIABILITY = Finding(
    "reliability",
    lambda context: context.from_zero_shot(reliability(context.unperturbed)),
    section=Section(
        "calibration",
        "Are the probabilities calibrated?",
        "Calibration",
        "run --score exact",
        "Answers in ten bins of equal size by their probability among the labels. On the diagonal "
        "a probability is the share of right answers; below it the model is overconfident. The "
        "calibration error is the mean distance from it.",
        "Nguyen & O'Connor 2015",
        also=("calibration_error", "temperature"),
        place=130,
    ),
    by_task=IN_ORDER,
)


CALIBRATION_ERROR = Finding(
    "calibration_error",
    lambda context: context.from_zero_shot(calibration_error(context.unperturbed, context.generators("calibration"))),
    (Column("error", "calibration error", "share", short="error"),),
    caption="Expected calibration error",
    shown="task model series k error ci_low ci_high predictions left_out",
    printed=Printed("calibration: expected calibration error, %", "task model select order k error ci_low"),
    by_task=IN_ORDER,
)
