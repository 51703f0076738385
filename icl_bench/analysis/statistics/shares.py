"""Shares of predictions with intervals, if not every pair of draw and test example counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.statistics.grid import partition
from icl_bench.analysis.statistics.intervals import Interval, spread, wilson

if TYPE_CHECKING:
    import pandas as pd


def share_interval(hits: np.ndarray, tries: np.ndarray) -> Interval:
    """Return ``hits.sum() / tries.sum()`` and its 95% limits; NaN without tries.

    ``hits`` and ``tries`` are counts by draw and test example, ``(draws, test)``, 0 if a pair does not count. The share
    is a ratio of two means, so its variance is that of the mean of ``(hits - share * tries) / mean tries`` (Cochran
    1977, Sampling Techniques, section 6.3). The rest is
    :func:`icl_bench.analysis.statistics.intervals.mean_interval`'s, which gives the same result if every pair was tried
    once.
    """
    from icl_bench.analysis.statistics.special import ndtri

    if not tries.sum():
        return Interval(math.nan, math.nan, math.nan)
    share, upper = float(hits.sum() / tries.sum()), 0.975
    error = (hits - share * tries) / tries.mean()
    normal = float(ndtri(upper))
    if share in (0.0, 1.0) or np.ptp(error) == 0:
        return wilson(share, int(np.count_nonzero(tries.any(axis=0))), normal)
    if min(hits.shape) == 1:
        return wilson(share, share * (1 - share) / (error.var() / error.size), normal)
    variance, quantile = spread(error, upper)
    return wilson(share, share * (1 - share) / variance, quantile)


def shares(frame: pd.DataFrame, by: Sequence[str], hit: str, name: str) -> pd.DataFrame:
    """Return the share of rows with a true ``hit`` for each combination of the columns ``by``.

    ``frame`` has ``draw`` and ``test_id``, a pair of them any number of times. Columns: ``by``,
    predictions (rows), the share as ``name``, ci_low and ci_high (95%).
    """
    import pandas as pd

    keys, parts = partition(frame, by)
    draws, tests = frame["draw"].to_numpy(), pd.factorize(frame["test_id"])[0]
    hits = frame[hit].to_numpy(dtype=float)
    intervals = [_share(draws[part], tests[part], hits[part]) for part in parts]
    table = pd.DataFrame(intervals, columns=[name, "ci_low", "ci_high"], dtype=float)
    counts = np.array([len(part) for part in parts], dtype=np.int64)
    return pd.concat([keys.assign(predictions=counts), table], axis=1)


def _share(draw: np.ndarray, test: np.ndarray, hit: np.ndarray) -> Interval:
    draws, row = np.unique(draw, return_inverse=True)
    tests, column = np.unique(test, return_inverse=True)
    shape = len(draws), len(tests)
    place, size = row * shape[1] + column, shape[0] * shape[1]
    hits = np.bincount(place, weights=hit, minlength=size).reshape(shape)
    return share_interval(hits, np.bincount(place, minlength=size).reshape(shape))
