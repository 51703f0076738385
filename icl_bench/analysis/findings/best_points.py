"""Best points: the highest tested mean, with limits corrected for selecting the maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.across_models import on_same_rows
from icl_bench.analysis.advice import QUERY_TOKENS, Budget
from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import is_shuffled, is_upper_bound
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.findings.cost import costs_of
from icl_bench.analysis.statistics.alike import asked_alike, asked_nearly_the_same, filled, on_tests
from icl_bench.analysis.statistics.best import best_interval
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, grids, partition
from icl_bench.metrics.scores import metrics, scored
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import NO_FACTS, FactsOf

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

BEST_COLUMNS = [*POINT, "points", "tied", "other_rows", "draws", "test_rows", "metric", "score", "ci_low", "ci_high"]

EQUAL = 1e-9
"""Means that differ by less count as equal."""


def best_points(frame: pd.DataFrame, costs: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """The point with the highest mean score, one row per task and model; the cheapest on ties.

    Points on nearly the same test examples are compared on those that most of them have: missing scores are filled in
    as in :func:`icl_bench.analysis.advice.advise`. A point that lacks too many is compared by its own examples.

    ``costs`` is :func:`icl_bench.analysis.findings.cost.cost`'s table; the cheapest is determined by
    :class:`icl_bench.analysis.advice.Budget` without a limit, then by the smallest k. Points are those of
    :func:`icl_bench.analysis.curves.curves` without random reorderings (repetitions of others), upper bounds of
    training, and halves of a label space (easier tasks). ``facts`` of variants identify their data
    (:func:`icl_bench.analysis.across_models.on_same_rows`).

    Columns: the setting and k; ``points``, the number of points compared, and ``tied``, the number of others with the
    same mean; ``other_rows``, the number of others that were asked other test examples than this point, so that means
    are not comparable; its draws, test_rows, metric and score as in the curves; ci_low and ci_high (95%), corrected for
    selecting the maximum (:func:`icl_bench.analysis.statistics.best.best_interval`) and so wider than the curve's.
    """
    import pandas as pd

    frame = scored(frame)
    shuffled, upper = is_shuffled(frame["order"]), is_upper_bound(frame["select"])
    half = frame["label_space"].notna() if "label_space" in frame else False
    kept = on_same_rows(frame.loc[frame["score"].notna() & ~shuffled & ~upper & ~half], facts, across=False)
    kept = kept[[*POINT, "draw", "test_id", "score", "metric"]].reset_index(drop=True)
    of_task, values = metrics(kept), kept["score"].to_numpy(dtype=float).clip(0, 1)
    keys, all_points = grids(kept, POINT)
    names = dict.fromkeys(SETTING, object)
    priced = keys.astype(names).merge(costs[[*POINT, *QUERY_TOKENS]].astype(names), on=POINT, how="left")
    priced[QUERY_TOKENS] = priced[QUERY_TOKENS].astype(float).fillna(np.inf)
    rows = []
    for places in partition(keys, ["task", "model"])[1]:
        own = [all_points[place].joined() for place in places]
        points = [point.values(values) for point in own]
        means = _means(own, points, values)
        ranks = Budget().ranks(priced.loc[places])
        equal = np.flatnonzero(means >= means.max() - EQUAL)
        best = min(equal.tolist(), key=lambda at: (ranks[at], keys["k"][places[at]]))
        key = keys.iloc[places[best]].to_dict()
        draws, test_rows = points[best].shape
        mean, low, high = best_interval(points, best)
        rows.append(
            {
                **key,
                "points": len(points),
                "tied": len(equal) - 1,
                "other_rows": int((~asked_nearly_the_same(own)[best]).sum()),
                "draws": draws,
                "test_rows": test_rows,
                "metric": of_task[key["task"]],
                "score": mean,
                "ci_low": low,
                "ci_high": high,
            }
        )
    return pd.DataFrame(rows, columns=BEST_COLUMNS)


def _means(points: Sequence[Grid], scores: Sequence[np.ndarray], column: np.ndarray) -> np.ndarray:
    """The mean of each point, of those on nearly the same test examples over the same ones."""
    alike, compared = asked_alike(points), list(scores)
    near = np.flatnonzero(~alike.lack).tolist()
    whole = filled([on_tests(points[at], alike.tests) for at in near], column, alike.tests)
    for at, matrix in zip(near, whole, strict=True):
        compared[at] = matrix
    return np.array([TwoWayLayout(of_point).mean for of_point in compared])


INCOMPARABLE = "the highest could not be compared with others"


def _notes(context: Context) -> list[str]:
    """Where the highest point could not be compared, in the words of the recommendation."""
    rows = context.table("answers")[["task", "model", "why"]].itertuples(index=False)
    return [f"{task} · {model}: {why}" for task, model, why in rows if why.startswith(INCOMPARABLE)]


BEST_POINTS = Finding(
    "best_points",
    lambda context: best_points(context.unperturbed, costs_of(context), context.facts),
    (
        Column("points", "tested points", "count", short="of\npoints"),
        Column("tied", "tied with", "count", optional=True),
        Column("other_rows", "points with other test rows", "count", optional=True, short="other\nrows"),
    ),
    printed=Printed(
        "the highest {score}, %, the cheapest of ties; interval corrected for selecting the maximum",
        "task model select order k points tied other_rows draws score ci_low",
        rows=lambda table: table[table["points"] > 1],
        notes=_notes,
    ),
    by_task=IN_ORDER,
)
