"""The frontier: the most accurate way to use the examples at every cost, and its certainty.

Every point of a task and model (prompts, retrieval, attention patterns, trained classifiers) has a score and a cost per
query. One-time costs (a shared prefix or a training) are divided among a number of queries. A point is dominated if
another costs no more and scores at least as much.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.across_models import candidate_columns, compared_measures, compared_within, on_same_rows
from icl_bench.analysis.cascade import FIXED, Ladder, crossed, halving, ladders, outcome
from icl_bench.analysis.cell_cost import MAKING, TRAINING, CellCost
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.curves import curves
from icl_bench.analysis.draws import candidate, interval_over, is_shuffled, is_upper_bound
from icl_bench.analysis.finding import Finding, Section
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.predictions import comparable_predictions, with_rows_left_out
from icl_bench.analysis.query_cost import (
    MEASURES,
    PARTS,
    PricesOf,
    QueryCosts,
    as_records,
    cost_parts,
    prices_of,
    served_share,
    with_money,
)
from icl_bench.analysis.statistics.alike import asked_alike, on_tests
from icl_bench.analysis.statistics.best import leads
from icl_bench.analysis.statistics.dominance import dominance
from icl_bench.analysis.statistics.grid import Grid, grids, partition
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.demonstrations.selector_spec import known
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import pattern_of
from icl_bench.models.prices import Prices
from icl_bench.registry import ORDERS
from icl_bench.results.cells import SETTING
from icl_bench.results.facts import NO_FACTS, FactsOf
from icl_bench.results.reading import read_some
from icl_bench.results.storage import Place
from icl_bench.wording import plain

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

STEPS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
"""Numbers of queries that the report shows."""

FRONTIER = [
    *POINT,
    "cascade",
    "queries",
    "metric",
    "score",
    "ci_low",
    "ci_high",
    "draws",
    "test_rows",
    "interval_over",
    *MEASURES,
    *(f"p_{m}" for m in MEASURES),
    *(f"verdict_{m}" for m in MEASURES),
    "other_tests",
]


def undominated(scores: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Which points are not dominated, if scores and costs are exact: ``(points,)`` bool.

    Points of unknown cost (NaN) neither dominate nor are on the frontier.
    """
    found = np.zeros(len(scores), dtype=bool)
    best = -math.inf  # of all points with lower cost
    for amount in np.unique(costs[~np.isnan(costs)]):
        alike = costs == amount
        top = scores[alike].max()
        found |= alike & (scores == top) & (top > best)
        best = max(best, top)
    return found


def compare(
    predictions: pd.DataFrame,
    costs: pd.DataFrame,
    queries: Sequence[int],
    prices: PricesOf | None,
    across: bool = False,
    facts: FactsOf = NO_FACTS,
) -> Compared:
    """Compare every point of each task and model by score and costs.

    ``costs`` is :func:`icl_bench.analysis.findings.cost.cost`'s table. One row for each point and number of
    ``queries``. Shuffled orders and checkpoints selected on test rows are not points. Cascades of curves with
    probabilities are points (:func:`icl_bench.analysis.cascade.cascades`): ``cascade`` is their margin, or ``chosen``,
    and None for other points; k is their largest.

    Costs are treated as exact. The columns ``verdict_...`` are ``on the frontier``, ``dominated`` or ``undecided`` for
    each cost, and ``p_...`` is the p value of the verdict or of the nearest one
    (:func:`icl_bench.analysis.statistics.dominance.dominance`). For a task and model, any verdict of one kind is wrong
    in at most 5% of samples of draws and test examples. Points are compared on the test examples that both have. Both
    columns are None if the cost is unknown, for points that were asked other test examples than most (``other_tests``),
    and for points with a single random draw (``interval_over``). A ``dominated`` point never has the highest score
    among points that cost no more, and a point ``on the frontier`` always has.

    With ``across``, points of all models of a task are compared, and verdicts hold over all of them
    (:mod:`icl_bench.analysis.across_models`; ``facts`` of variants identify their data). Tokens are not compared,
    because models have different tokens.
    """
    import pandas as pd

    kept = _points(predictions)
    kept = on_same_rows(kept, facts, across)
    keys, all_points = grids(kept, POINT)
    scores = keys.merge(curves(kept), on=POINT, how="left").assign(cascade=None)
    of_points = keys.merge(_as_text(costs), on=POINT, how="left")
    taken, served = cost_parts(of_points), served_share(of_points)
    column = kept["score"].to_numpy(dtype=float)
    added = list(_cascades(ladders(kept, keys, all_points, taken), column, taken, _apart(of_points)))
    all_points = [point.joined() for point in all_points]
    for point in added:
        metric = scores.loc[point.last, "metric"]
        scores.loc[len(scores)] = pd.Series({**point.row, "metric": metric})
        all_points.append(point.grid)
        taken, served = taken.with_one(point.taken), np.append(served, served[point.last])
    paid = with_money(taken, scores["model"].astype(str).to_numpy(), served, prices)
    parts = [
        scores.assign(queries=number, other_tests=False).join(pd.DataFrame(paid.of(number), columns=list(MEASURES)))
        for number in queries
    ]
    for part in parts:
        part[[f"p_{measure}" for measure in MEASURES]] = np.nan
        part[[f"verdict_{measure}" for measure in MEASURES]] = None
    means = scores["score"].to_numpy(dtype=float)
    tested = []
    for rows in partition(scores, compared_within(across))[1]:
        points = [all_points[row] for row in rows]
        alike = asked_alike(points)
        candidates = [
            candidate(on_tests(points[at], alike.tests), *scores.loc[rows[at], candidate_columns(across)])
            for at in np.flatnonzero(~alike.lack)
        ]
        judged = [one.judged for one in candidates]
        within = rows[~alike.lack][judged]
        p_leads = leads(list(compress(candidates, judged)), column)
        p_leads[means[within][:, None] <= means[within]] = 1.0
        tested.append(Tested(within, p_leads))
        for part in parts:
            part.loc[rows[alike.lack], "other_tests"] = True
            for measure in compared_measures(across):
                found = dominance(p_leads, part[measure].to_numpy(dtype=float)[within])
                part.loc[within, f"p_{measure}"] = found.p
                part.loc[within, f"verdict_{measure}"] = found.verdicts
    table = pd.concat(parts, ignore_index=True)[FRONTIER]
    return Compared(table, taken, served, tuple(tested))


class Tested(NamedTuple):
    """A set of compared points."""

    points: np.ndarray
    """Their indices."""
    p_leads: np.ndarray
    """``(points, points)``, as for :func:`icl_bench.analysis.statistics.dominance.dominance`."""


class Compared(NamedTuple):
    """A frontier, with the data for costs and verdicts at other prices and numbers of queries."""

    table: pd.DataFrame
    """The points for the first number of queries, then the same points for the next number."""
    taken: QueryCosts
    """Costs of each point by ``PARTS``."""
    served: np.ndarray
    """The share of each point's cells that a server answered: ``(points,)``, NaN if unknown."""
    tested: tuple[Tested, ...]


class _Cascade(NamedTuple):
    """A cascade as a point."""

    row: Mapping[str, Any]
    """Its columns of ``FRONTIER``."""
    grid: Grid
    """The grid of its predictions."""
    taken: QueryCosts
    """The cost of one cascade, by ``PARTS``."""
    last: int
    """Position of the point that asks all queries at the largest k."""


class _Apart(NamedTuple):
    """One-time costs that are not those of a prefix or training, by ``PARTS``: ``(points, parts)`` each."""

    calibration: np.ndarray
    """Of calibration queries; each k has its own."""
    rationales: np.ndarray
    """Of writing the demonstrations' rationales; those of a smaller k are among those of a larger one."""


def _apart(costs: pd.DataFrame) -> _Apart:
    """These costs of the points in the rows of ``costs``."""
    calibration = [f"calibration_{name}" for name in TRAINING]

    def without(names: Sequence[str]) -> np.ndarray:
        return cost_parts(costs.assign(**dict.fromkeys(names, 0.0))).once

    neither = without([*calibration, *MAKING])
    return _Apart(without(MAKING) - neither, without(calibration) - neither)


def _cascades(
    all_ladders: Iterable[Ladder], column: np.ndarray, taken: QueryCosts, apart: _Apart
) -> Iterator[_Cascade]:
    """The cascades of each curve with probabilities, as points."""
    for ladder in all_ladders:
        rungs = ladder.rungs
        ways = [("chosen", crossed(rungs, halving())[2])]
        ways += [(f"{threshold:g}", outcome(rungs, threshold)) for threshold in FIXED]
        for name, way in ways:
            grid = ladder.grid(way.calls).joined()
            score, low, high = mean_interval(grid.values(column))
            draws, tests = grid.rows.shape
            row = {
                **ladder.setting,
                "k": int(rungs.ks[-1]),
                "cascade": name,
                "score": score,
                "ci_low": low,
                "ci_high": high,
                "draws": draws,
                "test_rows": tests,
                "interval_over": interval_over(draws > 1),
            }
            yield _Cascade(row, grid, _taken(ladder, way.calls, taken, apart), int(ladder.places[-1]))


def _taken(ladder: Ladder, times: np.ndarray, taken: QueryCosts, apart: _Apart) -> QueryCosts:
    """What a cascade takes: of each rung, the share of queries that get there; ``times`` is how
    often each was asked.

    If the demonstrations of each k begin those of the next, the one-time cost is that of the largest k, with the
    calibration queries of all. The seconds of a nested sweep, and the hours, add up to it, except those of rationales,
    which the largest k has whole.
    """
    count = np.sum(~np.isnan(times))
    reach = np.array([np.sum(times > rung) / count for rung in range(len(ladder.places))])
    each, once = (part[ladder.places] for part in taken)
    shared = once.sum(axis=0)
    if _nested(ladder.setting):
        measured = np.isin(PARTS, ("seconds", "hour"))
        calibration, rationales = (part[ladder.places[:-1]].sum(axis=0) for part in apart)
        shared = np.where(measured, shared - rationales, once[-1] + calibration)
    return QueryCosts((reach[:, None] * each).sum(axis=0), shared)


def _nested(setting: Mapping[str, Any]) -> bool:
    """Whether the prompt of a smaller k is the beginning of that of a larger one."""
    choice, pattern = known(str(setting["select"])), pattern_of(str(setting["attention"]))
    if choice is None or not choice.nested or pattern is None or pattern.reads_vectors:
        return False
    order = ORDERS.get(str(setting["order"]))
    return order is not None and order.nested


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(SETTING, object))


def _points(predictions: pd.DataFrame) -> pd.DataFrame:
    """The scored predictions of points, with names as plain text."""
    kept = predictions[predictions["score"].notna()]
    if "label_space" in kept:  # halves are easier tasks
        kept = kept[kept["label_space"].isna()]
    kept = kept[~is_upper_bound(kept["select"]) & ~is_shuffled(kept["order"])]
    return _as_text(kept).reset_index(drop=True)


def frontier_of_folder(
    results: Place, queries: int, prices: Prices | None, only: Mapping[str, str] | None = None, across: bool = False
) -> pd.DataFrame:
    """The table of :func:`compare` for a results folder, or of its part with these values (task, model).

    Halves of a label space and perturbed demonstrations are left out, as in advice. ``attrs["prices"]`` of the table
    has the prices of each model. Raises ``UserError`` if nothing is left, or a model has no price
    (:func:`icl_bench.analysis.query_cost.prices_of`).
    """
    stored = read_some(results, only)
    frame = comparable_predictions(stored)
    if not len(_points(frame)):
        raise UserError(f"results folder {plain(results)}: no finished cell to compare")
    costs = cost(frame, {cell: CellCost.of(meta) for cell, meta in stored.cells.items()})
    priced = None if prices is None else prices_of(stored, prices, across)
    table = compare(frame, costs, [queries], priced, across, stored.variants).table
    table = with_rows_left_out(table, stored.cells)
    table.attrs |= {"prices": as_records(priced)}
    return table


def _found(context: Context) -> pd.DataFrame:
    """The frontier for each of ``STEPS``; empty if no cost is known."""
    import pandas as pd

    known_costs = context.table("cost")[["computed_tokens", "query_flops", "seconds"]].notna().to_numpy()
    found = _compared(context) if known_costs.any() else None
    if found is None:
        return pd.DataFrame(columns=FRONTIER)
    context.beside["frontier"] = found
    return found.table


def _compared(context: Context, of_tasks: Collection[str] | None = None, across: bool = False) -> Compared | None:
    """The points of these tasks, by default of all, compared for each of ``STEPS``; None without points."""
    if context.stored.rows.by_task:
        parts = context.for_each_task(partial(_compared, of_tasks=of_tasks, across=across), of_tasks)
        return _joined([part for part in parts if part is not None])
    frame = context.unperturbed
    kept = frame if of_tasks is None else frame[frame["task"].isin(of_tasks)]
    if not len(_points(kept)):
        return None
    return compare(kept, context.table("cost"), STEPS, None, across=across, facts=context.facts)


def _joined(parts: Sequence[Compared]) -> Compared | None:
    """The comparison of all tasks from those of single ones: cascades are behind all other points, as in one table."""
    import pandas as pd

    if not parts:
        return None
    parts = sorted(parts, key=lambda part: str(part.table["task"].iloc[0]))
    sizes = [len(part.served) for part in parts]
    starts = np.cumsum([0, *sizes[:-1]])
    cascades = np.concatenate([part.table["cascade"].notna().to_numpy()[: len(part.served)] for part in parts])
    order = np.argsort(cascades, kind="stable")
    place = np.argsort(order)
    steps = [
        pd.concat([part.table.iloc[step * size : (step + 1) * size] for part, size in zip(parts, sizes, strict=True)])
        for step in range(len(STEPS))
    ]
    tested = (
        Tested(place[one.points + start], one.p_leads)
        for part, start in zip(parts, starts, strict=True)
        for one in part.tested
    )
    taken = QueryCosts(*(np.concatenate(columns)[order] for columns in zip(*(p.taken for p in parts), strict=True)))
    return Compared(
        pd.concat([step.iloc[order] for step in steps], ignore_index=True),
        taken,
        np.concatenate([part.served for part in parts])[order],
        tuple(tested),
    )


def _found_across(context: Context) -> pd.DataFrame:
    """The frontier across models, for tasks with several models that have points with known seconds."""
    import pandas as pd

    costs = context.table("cost")
    timed = costs[costs["seconds"].notna()].astype({"task": object, "model": object})
    models = timed.groupby("task")["model"].nunique()
    several = [str(task) for task in models.index[models > 1]]
    found = _compared(context, several, across=True) if several else None
    if found is None:
        return pd.DataFrame(columns=FRONTIER)
    context.beside["frontier_across_models"] = found
    return found.table


def leading(table: pd.DataFrame, prices: Prices | None, across: bool = False) -> str:
    """The measure that is shown first: money if there is a price, else the first known one.

    ``across`` models, seconds precede operations, which are unknown for a model on a server.
    """
    order = ("money",) * (prices is not None) + ("operations", "seconds", "tokens")
    if across:
        order = ("money",) * (prices is not None) + ("seconds", "operations")
    return next((name for name in order if table[name].notna().any()), order[-1])


_COLUMNS = (
    Column("queries", "queries", "count"),
    Column("cascade", "margin needed", optional=True),
    Column("tokens", "tokens a query", "number", optional=True),
    Column("operations", "operations a query (GFLOP)", "number", optional=True, unit=1e9),
    Column("seconds", "seconds a query", "number", optional=True),
    Column("p_operations", "p by operations", "p", optional=True),
    Column("verdict_operations", "by operations", optional=True),
    Column("p_seconds", "p by seconds", "p", optional=True),
    Column("verdict_seconds", "by seconds", optional=True),
    Column("p_tokens", "p by tokens", "p", optional=True),
    Column("verdict_tokens", "by tokens", optional=True),
)

_SHOWN = (
    "task model series cascade k queries score ci_low ci_high draws operations "
    "verdict_operations p_operations seconds verdict_seconds p_seconds tokens "
    "verdict_tokens p_tokens interval_over"
)


FRONTIERS = Finding(
    "frontier",
    _found,
    _COLUMNS,
    caption="Every point, for each number of queries",
    shown=_SHOWN,
    section=Section(
        "frontier",
        "What to do with your examples, by number of queries",
        "Frontier",
        "run it here: imports rarely record costs",
        "Up and to the left is better. The cost of a query includes its share of one-time costs "
        "(a cached prefix or a training), divided by the number of queries on the slider. A point is "
        "dominated if another costs no more and scores at least as much. Filled points are on the "
        "frontier and faint ones are dominated, each with a p value of 0.05 or less, corrected for the "
        "number of points; rings are undecided. The line joins the points that are on the frontier by "
        "their means. Points with a single draw of demonstrations have no verdict. "
        "Points with other test rows than most points are only in the table.",
        place=5,
    ),
)


FRONTIERS_ACROSS = Finding(
    "frontier_across_models",
    _found_across,
    _COLUMNS,
    caption="Every point of all models, for each number of queries",
    shown=_SHOWN,
    section=Section(
        "frontier-models",
        "What to do with your examples, across models",
        "All models",
        "run another model on the same test rows",
        "As above, with the points of all models in one chart and one set of verdicts, by seconds: prompts of a model "
        "behind a server beside trainings of a local one. Verdicts are corrected for the points of all models. "
        "For money, enter prices below, or use icl-bench summary --frontier --across models --price.",
        place=6,
    ),
)
