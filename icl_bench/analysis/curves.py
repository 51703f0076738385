"""Curves: the scores of every setting against the number of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.columns import POINT
from icl_bench.analysis.draws import interval_over, outlying_draws
from icl_bench.analysis.missing import missing_scores
from icl_bench.analysis.predictions import differing_prompts, have_common_labels
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, grids
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.metrics.interface import Metric
from icl_bench.metrics.scores import (
    ACCURACY,
    all_golds,
    corpus_numbers,
    has_several_right,
    metrics,
    numbers_of_many,
    right_labels,
    score_columns,
    scored,
    usable_metrics,
)
from icl_bench.registry import METRICS
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

SATURATED = 0.95


SATURATION_COLUMNS = ["k", "best_k", "min_k", "max_k", "within_window", "metric", "spoken", "reason"]


LEAST_POINTS = 4
"""The minimum number of k for which the saturation point is meaningful."""


def curves(predictions: pd.DataFrame) -> pd.DataFrame:
    """Mean scores by k, one row per point of each curve.

    Columns: the setting, k, draws, test_rows; ``metric``, the task's score (:func:`icl_bench.metrics.scores.scored`),
    its ``score`` with ci_low and ci_high (95%, draws and test examples both random); accuracy, macro_f1 (over the
    labels of the test rows' gold, mean of draws) and invalid (share of answers that are not a label, or of free answers
    from which nothing could be extracted; None if an import does not report it); or for free text the means of its
    scores. Values are shares of 1. For labels, ``majority`` is the share of test rows with the most frequent label, and
    ``uniform`` one over the number of labels among test rows: accuracies without skill.

    If scores are missing, means and limits use all existing scores
    (:class:`icl_bench.analysis.statistics.gaps.TwoWayLayout`), macro-F1 is the mean over draws, weighted by their
    predictions. ``missing`` counts the scores that a point lacks; ``gap_difference`` and ``gap_p`` test whether they
    are missing at random (:func:`icl_bench.analysis.missing.missing_scores`). ``left_out`` counts scores of draws that
    share no test example with the others, directly or through further draws. ``interval_over`` is the sampled unit of
    the limits, for one draw ``test examples only``; ``outlying_draws`` names the draws far from the others
    (:func:`icl_bench.analysis.draws.outlying_draws`). ``differing_prompts`` counts the test examples whose prompts
    differ between the draws of a retrieval; the column exists only with such draws.
    """
    import pandas as pd

    predictions = scored(predictions)
    of_task = metrics(predictions)
    keys, points = grids(predictions, POINT)
    scores = {
        name: predictions[name].to_numpy(dtype=float)
        for name in ("score", "correct", "valid", *score_columns())
        if name in predictions
    }
    if told := [name for name in ("text", "reason") if name in predictions]:  # extracted, or why there is no answer
        scores["read"] = np.where(predictions[told].notna().any(axis=1), 1.0, np.nan)
    present = {name: ~np.isnan(values) for name, values in scores.items()}
    rows = [
        {**key, **_point(grid, scores, present), "metric": of_task[key["task"]]}
        for key, grid in zip(keys.to_dict("records"), points, strict=True)
    ]
    table = pd.DataFrame(rows, columns=[*POINT, *scored_columns()])
    table[["majority", "uniform"]] = _without_skill(predictions, points)
    table = table.assign(**missing_scores(keys, points, scores["score"])._asdict())
    for name, means in _of_many(_in_curves(predictions, points, table["left_out"], present["score"])).items():
        table = table.drop(columns=name).merge(means, on=POINT, how="left")
    table = table.drop(columns="differing_prompts").merge(differing_prompts(predictions), on=POINT, how="left")
    optional = (*score_columns(), *corpus_numbers(), "differing_prompts")
    empty = {name for name in optional if table[name].isna().all()}
    return table[[*POINT, *(name for name in scored_columns() if name not in empty)]]


@cache
def scored_columns() -> tuple[str, ...]:
    """The columns of :func:`curves` in addition to those of a point."""
    return (
        "draws",
        "test_rows",
        "metric",
        "score",
        "ci_low",
        "ci_high",
        "accuracy",
        "macro_f1",
        "invalid",
        *score_columns(),
        "left_out",
        "missing",
        "gap_difference",
        "gap_p",
        "interval_over",
        "outlying_draws",
        "differing_prompts",
        "majority",
        "uniform",
        *(name for name in numbers_of_many() if name != "macro_f1"),
    )


def _in_curves(
    predictions: pd.DataFrame, points: Sequence[Grid], left_out: pd.Series, scored: np.ndarray
) -> pd.DataFrame:
    """The predictions without those that the points' means leave out."""
    kept = np.ones(len(predictions), dtype=bool)
    for point in compress(points, left_out > 0):
        for grid, is_kept in ((point, False), (point.joined(scored), True)):
            rows = grid.rows[grid.rows >= 0]
            kept[rows[scored[rows]]] = is_kept
    return predictions if kept.all() else predictions[kept]


def _of_many(predictions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Metrics of many answers at once, by column: the points and the mean of draws.

    Draws of unequal size are weighted by their predictions, so that a draw with few predictions has little weight.
    """
    tables: dict[str, pd.DataFrame] = {}
    for name, metric in usable_metrics().items():
        if metric.of_many:
            with METRICS.skipping(name):
                tables |= _of_metric(metric(), predictions)
    return tables


def _of_metric(metric: Metric, predictions: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Values of one metric of many answers by point; empty if no prediction has it."""
    import pandas as pd

    own = [m.column for m in metric.measures]  # the cells with its scores
    if own and predictions.columns.intersection(own).empty:
        return {}
    labelled = predictions["correct"].notna()
    rows = {"labels": predictions[labelled], "text": predictions[~labelled]}
    answers = rows.get(metric.answers, predictions)
    if own:
        answers = answers[answers.reindex(columns=own).notna().any(axis=1)]
    if metric.needs_common_labels:
        answers = answers[have_common_labels(answers)]
    if answers.empty:
        return {}
    cells = answers.groupby([*POINT, "draw"], observed=True)
    of = cells.ngroup().to_numpy()
    texts = _texts(answers["prediction"])
    if "valid" in answers and (void := answers["valid"].eq(False).to_numpy()).any():  # also if its text is a right one
        rights = {text for golds in all_golds(answers) for text in golds}
        texts = ["" if no and text in rights else text for no, text in zip(void, texts, strict=True)]
    if metric.answers == "labels":
        numbers = metric.score_many(of, _texts(right_labels(answers)), texts)
    else:
        numbers = metric.score_many_golds(of, all_golds(answers), texts)
    of_draws = cells.size().reset_index(name="size").drop(columns="draw").assign(**numbers)
    points = of_draws.groupby(POINT, observed=True)
    means = points[[*numbers]].mean()
    uneven = points["size"].nunique() > 1
    if uneven.any():
        weighted = of_draws.assign(**{n: of_draws[n] * of_draws["size"] for n in numbers})
        sums = weighted.groupby(POINT, observed=True)[[*numbers, "size"]].sum()
        means = means.where(~uneven, sums[[*numbers]].div(sums["size"], axis=0), axis=0)
    return {name: pd.DataFrame(means[[name]]).reset_index() for name in metric.of_many}


def _texts(column: pd.Series) -> list[str]:
    """A column's texts, equal ones as one object: millions of labels have few different texts."""
    import pandas as pd

    codes, different = pd.factorize(column, use_na_sentinel=False)
    texts: list[str] = np.asarray(different, dtype=object)[codes].tolist()
    return texts


def _without_skill(predictions: pd.DataFrame, parts: Sequence[Grid]) -> np.ndarray:
    """The columns majority and uniform of each point; NaN for free text, for rows with their own choices and for a
    single label. Each of a row's right labels counts.
    """
    import pandas as pd

    baselines = np.full((len(parts), 2), np.nan)
    if "gold" not in predictions:
        return baselines
    labelled = have_common_labels(predictions).to_numpy()
    golds, row = predictions["gold"], None
    if has_several_right(predictions):
        each = zip(golds, all_golds(predictions), strict=True)
        golds = pd.Series([list(dict.fromkeys((gold, *others))) for gold, others in each]).explode()
        row = golds.index.to_numpy()
    labels, _ = pd.factorize(golds)
    for number, part in enumerate(parts):
        rows = part.rows.max(axis=0, initial=-1)  # any prediction of the test example
        rows = rows[rows >= 0]
        if len(rows) and labelled[rows].all():
            counts = np.bincount(labels[rows if row is None else np.isin(row, rows)])
            several = np.count_nonzero(counts)
            if several > 1:
                baselines[number] = counts.max() / len(rows), counts.sum() / len(rows) / several
    return baselines


def _point(grid: Grid, scores: Mapping[str, np.ndarray], present: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The numbers of one point without macro-F1; ``present`` marks the ``scores`` that are not gaps."""
    row: dict[str, Any] = dict.fromkeys(scored_columns())
    row["draws"], row["test_rows"] = grid.rows.shape
    parts = {name: _known(grid, values, present[name]) for name, values in scores.items()}
    here = {name: part.values(scores[name]) for name, part in parts.items()}
    compared = here["score"]
    row["left_out"] = 0
    if compared.size:
        row["draws"], row["test_rows"] = compared.shape
        row["score"], row["ci_low"], row["ci_high"] = mean_interval(compared.clip(0, 1))
        row["interval_over"] = interval_over(len(compared) > 1)
        row["outlying_draws"] = outlying_draws(parts["score"].draws, compared)
        known = np.count_nonzero((grid.rows >= 0) & present["score"][grid.rows])
        row["left_out"] = known - np.count_nonzero(~np.isnan(compared))
    means = {name: TwoWayLayout(values.clip(0, 1)).mean for name, values in here.items() if values.size}
    if "correct" in means:
        row["accuracy"] = means["correct"]
    if "correct" in means or "read" in means:
        row["invalid"] = 1 - means["valid"] if "valid" in means else None
    return row | {name: means[name] for name in score_columns() if name in means}


def _known(grid: Grid, column: np.ndarray, present: np.ndarray) -> Grid:
    """The part whose draws are connected by common test examples (:meth:`Grid.joined`); may be empty."""
    return grid.joined(present) if np.isnan(grid.values(column)).any() else grid


def saturation(curve: pd.DataFrame) -> pd.DataFrame:
    """Where each curve is saturated (Bertsch et al. 2025, appendix A).

    ``curve`` has the setting, k, ``score`` and ``metric``. ``k`` of the result is the smallest tested number of
    demonstrations whose mean score reaches 95% of the curve's maximum, ``best_k`` is the k of the maximum, ``min_k``
    and ``max_k`` are the smallest and largest tested k. ``within_window`` is false if only the last tested k reaches
    95%: the curve may saturate later. ``metric`` names the score.

    0 is a valid k: a curve is saturated at 0 if the score without demonstrations reaches 95% of the maximum. (The study
    began at 1.) Such a k always exists, but is not always meaningful. ``spoken`` says whether it is reported, and
    ``reason`` why not: fewer than four values of k, no test examples in common (``alike`` is false), no right answer at
    any k, or a curve at chance: at each k its interval contains an accuracy without skill (``majority``, ``uniform``),
    or is below it. Without these columns, neither is checked.
    """
    import pandas as pd

    rows = []
    known = curve[curve["score"].notna()]
    for key, points in known.groupby(SETTING, observed=True, sort=True):
        points = points.sort_values("k")
        best = points["score"].max()
        reached = points.loc[points["score"] >= SATURATED * best, "k"]
        k, last = int(reached.iloc[0]), int(points["k"].iloc[-1])
        reason = _unspoken(points)
        rows.append(
            {
                **dict(zip(SETTING, key, strict=True)),
                "k": k,
                "best_k": int(points["k"].iloc[int(points["score"].argmax())]),
                "min_k": int(points["k"].iloc[0]),
                "max_k": last,
                "within_window": k < last,
                "metric": points["metric"].iloc[0],
                "spoken": reason is None,
                "reason": reason,
            }
        )
    return pd.DataFrame(rows, columns=[*SETTING, *SATURATION_COLUMNS])


def _unspoken(points: pd.DataFrame) -> str | None:
    """Why the saturation of a curve is not reported; None if it is."""
    if len(points) < LEAST_POINTS:
        return f"needs {LEAST_POINTS} values of k, has {len(points)}"
    if "alike" in points and not points["alike"].all():
        return "its k have no test rows in common"
    if not points["score"].max() > 0:
        return "no answer is correct"
    if (points["metric"] == ACCURACY).all() and at_chance(points):
        return "at chance level at every k"
    return None


def at_chance(points: pd.DataFrame) -> bool:
    """Whether each interval contains an accuracy without skill, or is below the lower one."""
    if not {"majority", "uniform", "ci_low", "ci_high"} <= set(points):
        return False
    low, high = points["ci_low"], points["ci_high"]
    held = [(low <= level) & (level <= high) for level in (points["majority"], points["uniform"])]
    return bool((held[0] | held[1] | (high < points["uniform"])).all())
