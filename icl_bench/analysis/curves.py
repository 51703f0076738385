"""Curves: the scores of every setting against the number of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.columns import POINT
from icl_bench.analysis.missing import missing_scores
from icl_bench.analysis.statistics.gaps import Layout
from icl_bench.analysis.statistics.grid import Grid, grids
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.metrics.scores import SCORES, metrics, numbers_of_many, scored
from icl_bench.registry import METRICS
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

SATURATED = 0.95


SATURATION = ["k", "best_k", "max_k", "within_window", "metric"]


def curves(predictions: pd.DataFrame) -> pd.DataFrame:
    """Mean scores against k, one row per point of each curve.

    Columns: the setting, k, draws, test_rows; ``metric``, by which the task's points are compared
    (:func:`icl_bench.metrics.scores.scored`), its ``score`` with ci_low and ci_high (95%, draws
    and test examples both random); accuracy, macro_f1 (over the labels of the test rows' gold, mean
    of draws) and invalid (share of answers that are no label), or for free text the means of its
    scores. Shares of 1.

    Where scores are missing, means and limits are of all that are there
    (:class:`icl_bench.analysis.statistics.gaps.Layout`), macro-F1 is the mean of draws by their
    predictions. ``missing`` counts the scores that a point lacks; ``gap_difference`` and ``gap_p``
    say whether they are missing at random (:func:`icl_bench.analysis.missing.missing_scores`).
    ``left_out`` are scores of draws that have no test example in common with the others, directly
    or by way of further draws.
    """
    import pandas as pd

    predictions = scored(predictions)
    of_task = metrics(predictions)
    keys, found = grids(predictions, POINT)
    scores = {
        name: predictions[name].to_numpy(dtype=float)
        for name in ("score", "correct", "valid", *SCORES)
        if name in predictions
    }
    there = {name: ~np.isnan(values) for name, values in scores.items()}
    rows = [
        {**key, **_point(grid, scores, there), "metric": of_task[key["task"]]}
        for key, grid in zip(keys.to_dict("records"), found, strict=True)
    ]
    table = pd.DataFrame(rows, columns=[*POINT, *SCORED])
    table = table.assign(**missing_scores(keys, found, scores["score"])._asdict())
    for name, means in _of_many(predictions).items():
        table = table.drop(columns=name).merge(means, on=POINT, how="left")
    return table[[*POINT, *SCORED]]


SCORED = ["draws", "test_rows", "metric", "score", "ci_low", "ci_high", "accuracy", "macro_f1",
          "invalid", *SCORES, "left_out", "missing", "gap_difference", "gap_p",
          *(name for name in numbers_of_many() if name != "macro_f1")]  # fmt: skip


def _of_many(predictions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What metrics say of many answers at once, by column: the points and the mean of draws.

    Draws of unequal size count by their predictions, so that one that has hardly begun decides
    nothing.
    """
    import pandas as pd

    found: dict[str, pd.DataFrame] = {}
    for metric in (kind() for kind in METRICS.values() if kind.of_many):
        labelled = predictions["correct"].notna()
        rows = {"labels": predictions[labelled], "text": predictions[~labelled]}
        asked = rows.get(metric.answers, predictions)
        if asked.empty:
            continue
        cells = asked.groupby([*POINT, "draw"], observed=True)
        numbers = metric.score_many(cells.ngroup().to_numpy(), asked["gold"], asked["prediction"])
        of_draws = cells.size().reset_index(name="size").drop(columns="draw").assign(**numbers)
        points = of_draws.groupby(POINT, observed=True)
        means = points[[*numbers]].mean()
        uneven = points["size"].nunique() > 1
        if uneven.any():
            weighted = of_draws.assign(**{n: of_draws[n] * of_draws["size"] for n in numbers})
            sums = weighted.groupby(POINT, observed=True)[[*numbers, "size"]].sum()
            means = means.where(~uneven, sums[[*numbers]].div(sums["size"], axis=0), axis=0)
        found |= {name: pd.DataFrame(means[[name]]).reset_index() for name in metric.of_many}
    return found


def _point(
    grid: Grid, scores: Mapping[str, np.ndarray], there: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """One point's numbers but macro-F1; ``there`` says which of the ``scores`` are no gaps."""
    found: dict[str, Any] = dict.fromkeys(SCORED)
    found["draws"], found["test_rows"] = grid.rows.shape
    here = {name: _known(grid, values, there[name]) for name, values in scores.items()}
    compared = here["score"]
    found["left_out"] = 0
    if compared.size:
        found["draws"], found["test_rows"] = compared.shape
        found["score"], found["ci_low"], found["ci_high"] = mean_interval(compared.clip(0, 1))
        known = np.count_nonzero((grid.rows >= 0) & there["score"][grid.rows])
        found["left_out"] = known - np.count_nonzero(~np.isnan(compared))
    means = {name: Layout(values.clip(0, 1)).mean for name, values in here.items() if values.size}
    if "correct" in means:
        found["accuracy"] = means["correct"]
        found["invalid"] = 1 - means["valid"] if "valid" in means else None
    return found | {name: means[name] for name in SCORES if name in means}


def _known(grid: Grid, column: np.ndarray, there: np.ndarray) -> np.ndarray:
    """The scores that hang together (:meth:`Grid.joined`), ``(draws, test)``; may be empty."""
    values = grid.values(column)
    if not np.isnan(values).any():
        return values
    return grid.joined(there).values(column)


def saturation(curve: pd.DataFrame) -> pd.DataFrame:
    """Where each curve is saturated (Bertsch et al. 2025, appendix A).

    ``curve`` has the setting, k, ``score`` and ``metric``. ``k`` of the result is the smallest
    tested number of demonstrations whose mean score reaches 95% of the curve's maximum,
    ``best_k`` the one that has the maximum, ``max_k`` the largest tested. Where only the last
    tested k reaches it, ``within_window`` is false: it may lie beyond. ``metric`` says of what.
    """
    import pandas as pd

    rows = []
    known = curve[curve["score"].notna()]
    for key, points in known.groupby(SETTING, observed=True, sort=True):
        points = points.sort_values("k")
        best = points["score"].max()
        reached = points.loc[points["score"] >= SATURATED * best, "k"]
        k, last = int(reached.iloc[0]), int(points["k"].iloc[-1])
        rows.append(
            {
                **dict(zip(SETTING, key, strict=True)),
                "k": k,
                "best_k": int(points["k"].iloc[int(points["score"].argmax())]),
                "max_k": last,
                "within_window": k < last,
                "metric": points["metric"].iloc[0],
            }
        )
    return pd.DataFrame(rows, columns=[*SETTING, *SATURATION])
