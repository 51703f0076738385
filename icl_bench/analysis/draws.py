"""Draws of demonstrations: which selections are random, how much draws differ, and which are outliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.statistics.best import Candidate
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid
from icl_bench.analysis.zero_shot import ZERO_SHOT
from icl_bench.demonstrations.selector_spec import known
from icl_bench.results.cells import SETTING
from icl_bench.results.trained_methods import UPPER

if TYPE_CHECKING:
    import pandas as pd

ENOUGH_DRAWS = 3
"""The minimum number of draws of a random selection for a difference to be a key finding."""


DRAWS_AND_TESTS = "draws and test examples"
ONE_SIDE = "test examples and one side's draws"
TESTS_ONLY = "test examples only"


def said(value: str) -> str:
    """A value as sentences name it: tables and files keep "test examples", which scripts read."""
    return value.replace("test examples", "test rows")


OUTLYING, FEWEST = 3.5, 5
"""The modified z-score of an outlying draw, and the fewest draws that it is computed for."""


ELSEWHERE = {
    "other k of the curve": SETTING,
    "other curves of the task and model": ["task", "model"],
    "other models of the task": ["task"],
}
"""Where draws were repeated -> the columns that a point shares with the points there."""


def is_drawn(select: object) -> bool:
    """Whether another draw may have other demonstrations.

    Retrieval of all demonstrations is determined by pool and query, and ``first`` by the pool, so they have a single
    draw. So has the prompt without demonstrations. Everything else is random: hybrids begin with random demonstrations,
    centroids depend on the start of k-means, and training uses random examples. An unknown name, as in an import,
    counts as random.
    """
    choice = known(str(select))
    return select != ZERO_SHOT and (choice is None or choice.drawn)


def by_name(names: pd.Series[Any], ask: Callable[[str], Any]) -> pd.Series[Any]:
    """The result of ``ask`` for each row's name. It is called once per name, because there may be millions of rows."""
    import pandas as pd

    codes, different = pd.factorize(names, use_na_sentinel=False)
    return pd.Series([ask(name) for name in different]).take(codes).set_axis(names.index)


def is_shuffled(orders: pd.Series[Any]) -> pd.Series[bool]:
    """Whether each row's order is a random reordering, ``shuffled:N``."""
    return by_name(orders, lambda name: str(name).startswith("shuffled")).astype(bool)


def is_upper_bound(selects: pd.Series[Any]) -> pd.Series[bool]:
    """Whether each row's training was evaluated at its best epoch on the test rows."""
    return by_name(selects, lambda name: str(name).endswith(UPPER)).astype(bool)


def source(select: str) -> str:
    """The source of a selector's draws: with the same source, equal draws share demonstrations."""
    choice = known(select)
    return str(choice.base) if choice and choice.base else select


def candidate(grid: Grid, select: object, k: int, model: str = "") -> Candidate:
    """The candidate of a point, with the source of its draws from its selector and k.

    With ``model``, draws are common only within the same model: another tokenizer may leave other rows out of the pool.
    """
    drawn = k > 0 and is_drawn(select)  # without demonstrations nothing is random
    of = source(str(select)) if k else ""
    return Candidate(grid, f"{of} {model}" if model else of, k, len(grid.draws) > 1 or not drawn)


def interval_over(several: bool, unknown: bool = False) -> str:
    """The sampled unit of an interval: test examples and, with ``several`` draws, draws.

    With ``unknown``, the other side of the difference has a single random draw.
    """
    if not several:
        return TESTS_ONLY
    return ONE_SIDE if unknown else DRAWS_AND_TESTS


def outlying_draws(draws: np.ndarray, scores: np.ndarray) -> str | None:
    """Name the draws whose mean score is far from the others' (``"3, 7"``); None if there are none.

    ``draws`` are their numbers, ``(draws,)``, and ``scores`` are ``(draws, test)``, NaN for gaps. A draw is outlying if
    its modified z-score, ``0.6745 (mean - median) / MAD``, is beyond 3.5 (Iglewicz & Hoaglin 1993, How to Detect and
    Handle Outliers, section 3.3). With fewer than five draws none is. The MAD is at least the deviation of a draw's
    mean by test examples alone, and at least that of one example, because it is 0 if most draws are equal.
    """
    if scores.shape[0] < FEWEST or scores.shape[1] == 0:
        return None
    layout = TwoWayLayout(scores)
    means = layout.by_draw
    apart = np.abs(means - np.median(means))
    by_test = np.sqrt(layout.squares.residual / scores.shape[1])
    deviation = max(float(np.median(apart)) / 0.6745, float(by_test), 1 / scores.shape[1])
    outlying = draws[apart > OUTLYING * deviation]
    return ", ".join(str(int(draw)) for draw in outlying) or None


def deviations_elsewhere(points: pd.DataFrame) -> pd.DataFrame:
    """How much repeated draws differ, for each point including points with a single draw.

    ``points`` has the columns of a setting, ``draw_variance`` (of the draws' mean scores; NaN for a single draw) and
    ``draw_freedom`` (draws - 1). Columns, with the index of ``points``: ``draws_sd``, the pooled standard deviation of
    one draw's mean score (a share of 1; NaN without repetitions), and ``draws_sd_of``, its source: the point's own
    curve, else other curves of its task and model, else those of its task.
    """
    import pandas as pd

    squares = points["draw_variance"].fillna(0) * points["draw_freedom"]
    deviations = pd.DataFrame({"draws_sd": np.nan, "draws_sd_of": None}, index=points.index)
    deviations["draws_sd_of"] = deviations["draws_sd_of"].astype(object)
    for where, names in ELSEWHERE.items():
        keys = [points[name] for name in names]
        freedom = points["draw_freedom"].groupby(keys, observed=True).transform("sum")
        pooled = squares.groupby(keys, observed=True).transform("sum") / freedom.where(freedom > 0)
        new = deviations["draws_sd"].isna() & pooled.notna()
        deviations.loc[new, "draws_sd"] = np.sqrt(pooled[new])
        deviations.loc[new, "draws_sd_of"] = where
    return deviations
