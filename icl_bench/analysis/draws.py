"""Draws of demonstrations: which choices are drawn, how far draws differ, which lie apart."""

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

if TYPE_CHECKING:
    import pandas as pd

ENOUGH_DRAWS = 3
"""Of a choice that is drawn, for a difference to be a key finding."""


DRAWS_AND_TESTS = "draws and test examples"
ONE_SIDE = "test examples and one side's draws"
TESTS_ONLY = "test examples only"


OUTLYING, FEWEST = 3.5, 5
"""The modified z-score of an outlying draw, and the fewest draws that it is computed for."""


ELSEWHERE = {
    "other k of the curve": SETTING,
    "other curves of the task and model": ["task", "model"],
    "other models of the task": ["task"],
}
"""Where draws were repeated -> what a point has in common with the points there."""


def is_drawn(select: object) -> bool:
    """Whether another draw may show other demonstrations.

    Retrieval of all demonstrations follows from pool and query, and ``first`` from the pool: they have a single
    draw by nature, and so has the prompt without any. So does nothing else: hybrids begin with what is
    drawn, centroids with where k-means begins, and training learns from drawn examples. Of a name that
    is no known choice, as an import may have, it is not known, and one draw of it is taken as one of many.
    """
    choice = known(str(select))
    return select != ZERO_SHOT and (choice is None or choice.drawn)


def by_name(names: pd.Series[Any], ask: Callable[[str], Any]) -> pd.Series[Any]:
    """What ``ask`` says of each row's name, asked once a name: there may be millions of rows."""
    return names.astype(object).map({name: ask(name) for name in names.unique()})


def source(select: str) -> str:
    """What a selector's draws are of: where it is the same, equal draws have much in common."""
    choice = known(select)
    return str(choice.base) if choice and choice.base else select


def candidate(grid: Grid, select: object, k: int, model: str = "") -> Candidate:
    """A point among others, as its selector and k say what its draws are of.

    With ``model``, draws are common with those of the same model alone: another tokenizer may leave
    other rows out of the pool.
    """
    drawn = k > 0 and is_drawn(select)  # without demonstrations nothing is drawn
    of = source(str(select)) if k else ""
    return Candidate(grid, f"{of} {model}" if model else of, k, len(grid.draws) > 1 or not drawn)


def interval_over(several: bool, unknown: bool = False) -> str:
    """What an interval takes samples of: test examples and, of ``several`` draws, draws.

    With ``unknown`` it is that of a difference whose other side has one draw of what is drawn.
    """
    if not several:
        return TESTS_ONLY
    return ONE_SIDE if unknown else DRAWS_AND_TESTS


def outlying_draws(draws: np.ndarray, scores: np.ndarray) -> str | None:
    """Name the draws whose mean score lies far from the others': ``"3, 7"``; None where none does.

    ``draws`` are their numbers, ``(draws,)``, and ``scores`` are ``(draws, test)``, NaN for
    none. A draw is
    outlying where its modified z-score, ``0.6745 (mean - median) / MAD``, is beyond 3.5 (Iglewicz &
    Hoaglin 1993, How to Detect and Handle Outliers, section 3.3); of fewer than five draws none is.
    The deviation that they are measured by is at least that which test examples alone give the mean
    of a draw, and at least one example's: where most draws are equal, MAD is 0.
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
    """How far draws differ where they were repeated, for each point, a single draw's too.

    ``points`` has the columns of a setting, ``draw_variance`` (of the draws' mean scores; NaN of a
    single draw) and ``draw_freedom`` (draws - 1). Columns, with the index of ``points``:
    ``draws_sd``, the pooled standard deviation of one draw's mean score (a share of 1; NaN where
    nothing was repeated), and ``draws_sd_of``, where: in the point's own curve, else in other
    curves of its task and model, else in those of its task.
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
