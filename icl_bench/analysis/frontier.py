"""The frontier: for every cost the most accurate way to use the examples, and how sure that is.

Every point of a task and model (prompts, retrieval, attention patterns, trained classifiers) has a
score and a cost of a query; what is computed once, a shared prefix or a training, is shared among a
number of queries. A point is dominated where another scores at least as much and costs no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.cost import cost
from icl_bench.analysis.curves import curves
from icl_bench.analysis.finding import Finding, Section
from icl_bench.analysis.predictions import asked
from icl_bench.analysis.statistics.alike import asked_alike, filled, on_tests
from icl_bench.analysis.statistics.grid import grids, partition
from icl_bench.demonstrations.selector_spec import known
from icl_bench.errors import UserError
from icl_bench.metrics.scores import scored
from icl_bench.models.attention_patterns import pattern_of
from icl_bench.results.cells import SETTING
from icl_bench.results.reading import read_some
from icl_bench.results.storage import Place
from icl_bench.results.trained_methods import BASELINES, UPPER
from icl_bench.seeds import generator
from icl_bench.wording import plain, whole

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

QUERIES = 1000
"""How many queries share what is computed once, where nothing else is said."""

MEASURES = ("tokens", "operations", "seconds", "money")

SURE = 0.95
"""The share of resamples from which on, or below one less which, a verdict is given."""

ON, DOMINATED, UNDECIDED = "on the frontier", "dominated", "undecided"

STEPS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
"""Numbers of queries that the report shows."""

FRONTIER = [*POINT, "queries", "metric", "score", "ci_low", "ci_high", "draws", "test_rows",
            "interval_over", *MEASURES, *(f"chance_{m}" for m in MEASURES),
            *(f"verdict_{m}" for m in MEASURES), "other_tests"]  # fmt: skip


@dataclass(frozen=True)
class Prices:
    """What a server asks for a million tokens, in any currency."""

    input: float
    """Of the prompt, computed anew."""
    cached: float
    """Of the prompt, from its cache."""
    output: float

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Read ``input=0.5,cached=0.05,output=1.5``. Raises ``UserError``."""
        shown = f"--price {plain(text[:60])}"
        like = "write input=0.5,cached=0.05,output=1.5 (per million tokens)"
        found: dict[str, float] = {}
        for word in text.split(","):
            name, _, number = (part.strip() for part in word.partition("="))
            if name not in ("input", "cached", "output") or name in found:
                raise UserError(f"{shown}: {plain(word[:30])}: {like}")
            try:
                found[name] = float(number)
            except ValueError:
                raise UserError(f"{shown}: {plain(word[:30])}: not a number; {like}") from None
            if not 0 <= found[name] < math.inf:
                raise UserError(f"{shown}: {name} is {number}; a price is 0 or more")
        if missing := [name for name in ("input", "cached", "output") if name not in found]:
            raise UserError(f"{shown}: {' and '.join(missing)} missing; {like}")
        return cls(**found)


def check_queries(queries: int) -> None:
    """Raise ``UserError`` for a number of queries that nobody can mean."""
    if not 1 <= queries <= 10**15:
        raise UserError(f"--queries {whole(queries)}: expected 1 or more")


def costs_of_a_query(costs: pd.DataFrame, queries: int, prices: Prices | None) -> pd.DataFrame:
    """What a query takes at each point, with its share of what is computed once for ``queries``.

    ``costs`` is :func:`icl_bench.analysis.cost.cost`'s table. Columns: POINT and ``MEASURES``:

    - tokens that are computed, of prompts, answers and trainings;
    - operations, by formula (flops);
    - seconds, as measured: ``prefill_seconds`` tell apart what was computed once, which in a nested
      sweep is what a smaller k did not have yet;
    - money, at these prices; NaN without, and for trainings, which have no price of tokens.

    Once for all queries are a training and the demonstrations that all queries share; retrieved
    ones are each query's own, but for those that are reused, whose tokens are not counted (NaN).
    """
    import pandas as pd

    table = costs.reset_index(drop=True)
    number = {name: table[name].to_numpy(dtype=float) for name in table if name not in POINT}
    choices = [known(str(select)) for select in table["select"]]
    patterns = [pattern_of(str(attention)) for attention in table["attention"]]
    reuses = np.array([pattern is not None and pattern.reuses for pattern in patterns])
    own = np.array([choice is not None and choice.retrieves for choice in choices]) & ~reuses
    trained = table["select"].astype(str).isin(BASELINES).to_numpy()
    training = {n: np.nan_to_num(number[f"training_{n}"]) for n in ("tokens", "flops", "seconds")}
    untold = trained & np.isnan(number["training_flops"])
    answer = np.nan_to_num(number["answer_tokens"])

    shared = np.where(reuses, np.nan, np.where(own | trained, 0.0, number["cached_tokens"]))
    anew = np.where(own, number["prompt_tokens"], number["computed_tokens"])
    tokens = anew + answer + (shared + training["tokens"]) / queries
    once = np.where(own | trained, 0.0, number["prefix_flops"]) + training["flops"]
    each = np.where(own, number["whole_flops"], number["query_flops"])
    prefill = np.where(own, 0.0, np.nan_to_num(number["prefill_seconds"]))
    alone = np.maximum(number["seconds"] - prefill / number["rows_a_cell"], 0.0)
    seconds = alone + (prefill + training["seconds"]) / queries
    money = np.full(len(table), np.nan)
    if prices is not None:
        paid = prices.input * (anew + shared / queries) + prices.cached * shared
        money = np.where(trained, np.nan, (paid + prices.output * answer) / 1e6)
    found = {"tokens": tokens, "operations": each + once / queries, "seconds": seconds,
             "money": money}  # fmt: skip
    for name in ("tokens", "operations", "seconds"):
        found[name] = np.where(untold, np.nan, found[name])
    return table[POINT].join(pd.DataFrame(found))


def on_frontier(scores: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Which points no other dominates: ``(samples, points)`` bool for scores of the same shape.

    ``costs`` is ``(points,)``; points of unknown cost (NaN) neither dominate nor are on it.
    """
    found = np.zeros(scores.shape, dtype=bool)
    order = np.argsort(costs, kind="stable")
    order = order[~np.isnan(costs[order])]
    best = np.full(len(scores), -np.inf)  # of all that costs less
    for first, last in _groups(costs[order]):
        alike = order[first:last]
        top = scores[:, alike].max(axis=1)
        found[:, alike] = (scores[:, alike] == top[:, None]) & (top > best)[:, None]
        best = np.maximum(best, top)
    return found


def _groups(rising: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where equal values begin and end."""
    starts = np.unique(rising, return_index=True)[1].tolist()
    yield from pairwise([*starts, len(rising)])


def resampled(points: Sequence[np.ndarray], rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Means of points ``(draws, test)`` on the same test examples, resampled: ``(resamples,
    points)``.

    Test examples are drawn once for all points, and draws once for all that have as many: the same
    draw of different points has the same examples in it. A single draw stays as it is.
    """
    count = points[0].shape[1]
    tests = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    of_draws: dict[int, np.ndarray] = {}
    found = np.empty((resamples, len(points)))
    for place, scores in enumerate(points):
        draws = len(scores)
        if draws not in of_draws:
            of_draws[draws] = rng.multinomial(draws, np.full(draws, 1 / draws), size=resamples)
        there = ~np.isnan(scores)
        sums = ((of_draws[draws] @ np.where(there, scores, 0.0)) * tests).sum(1)
        weight = ((of_draws[draws] @ there.astype(float)) * tests).sum(1)
        found[:, place] = np.divide(sums, weight, out=np.full(resamples, np.nan), where=weight > 0)
    return found


def frontier(
    predictions: pd.DataFrame,
    costs: pd.DataFrame,
    queries: Sequence[int],
    prices: Prices | None,
    rng: np.random.Generator,
    resamples: int = 1000,
) -> pd.DataFrame:
    """Every point of each task and model with its score, its costs and whether it is dominated.

    ``costs`` is :func:`icl_bench.analysis.cost.cost`'s table. One row for each point and number of
    ``queries``. Shuffled orders and checkpoints that test rows chose are no points. Costs are taken
    as known; of each, ``chance_`` is the share of resamples of draws and test examples (paired
    bootstrap) in which no point dominates this one, and ``verdict_`` says ``on the frontier`` from
    95% on, ``dominated`` up to 5%, else ``undecided``; None where the cost is not known, and for
    points that were asked other test examples than most (``other_tests``). With three draws these
    chances are too sure, as any bootstrap of three is; with one they say nothing of other draws
    (``interval_over``).
    """
    import pandas as pd

    kept = _points(predictions)
    scores = curves(kept)
    keys, found = grids(kept, POINT)
    places = {tuple(row): at for at, row in enumerate(keys[POINT].itertuples(index=False))}
    at = np.array([places[tuple(row)] for row in scores[POINT].itertuples(index=False)], dtype=int)
    column = kept["score"].to_numpy(dtype=float)
    parts = [
        scores.merge(costs_of_a_query(_as_text(costs), number, prices), on=POINT, how="left")
        .assign(queries=number, other_tests=False)
        for number in queries
    ]  # fmt: skip
    for part in parts:
        for measure in MEASURES:
            part[f"chance_{measure}"], part[f"verdict_{measure}"] = np.nan, None
    for rows in partition(scores, ["task", "model"])[1]:
        points = [found[at[row]].joined() for row in rows]
        alike = asked_alike(points)
        within = rows[~alike.lack]
        some = [on_tests(point, alike.tests) for point in compress(points, ~alike.lack)]
        again = resampled(filled(some, column, alike.tests), rng, resamples)
        for part in parts:
            part.loc[part.index[rows[alike.lack]], "other_tests"] = True
            index = part.index[within]
            for measure in MEASURES:
                of_points = part[measure].to_numpy(dtype=float)[within]
                share = on_frontier(again, of_points).mean(axis=0)
                share[np.isnan(of_points)] = np.nan
                part.loc[index, f"chance_{measure}"] = share
                part.loc[index, f"verdict_{measure}"] = [_verdict(s) for s in share]
    return pd.concat(parts, ignore_index=True)[FRONTIER]


def _verdict(share: float) -> str | None:
    if math.isnan(share):
        return None
    if share >= SURE:
        return ON
    return DOMINATED if share <= 1 - SURE else UNDECIDED


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(SETTING, object))


def _points(predictions: pd.DataFrame) -> pd.DataFrame:
    """The scored predictions of points, names as plain text."""
    kept = predictions[predictions["score"].notna()]
    if "label_space" in kept:  # halves are easier tasks
        kept = kept[kept["label_space"].isna()]
    select, order = (kept[name].astype(str) for name in ("select", "order"))
    kept = kept[~select.str.endswith(UPPER) & ~order.str.startswith("shuffled")]
    return _as_text(kept).reset_index(drop=True)


def frontier_of_folder(
    results: Place, queries: int, prices: Prices | None, only: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """:func:`frontier` of a results folder, or of what of it has these values (task, model).

    Halves of a label space and perturbed demonstrations are left out, as for advice. Raises
    ``UserError`` where nothing is left.
    """
    stored = read_some(results, only)
    frame = asked(scored(stored.predictions, first=stored.first_scores))
    if not len(_points(frame)):
        raise UserError(f"results folder {plain(results)}: no finished cell to compare")
    costs = cost(frame, {cell: CellCost.of(meta) for cell, meta in stored.cells.items()})
    return frontier(frame, costs, [queries], prices, generator(0, "frontier"))


def _found(context: Context) -> pd.DataFrame:
    """The frontier for each of ``STEPS``; without a row where no cost is known."""
    import pandas as pd

    frame = context.unperturbed
    costs = cost(frame, context.cells.costs)
    known_costs = costs[["computed_tokens", "query_flops", "seconds"]].notna().to_numpy()
    if not known_costs.any() or not len(_points(frame)):
        return pd.DataFrame(columns=FRONTIER)
    return frontier(frame, costs, STEPS, None, context.generator("frontier"))


def leading(table: pd.DataFrame, prices: Prices | None) -> str:
    """The measure that people are shown first: money at a price, else the first that is known."""
    order = ("money", "operations", "seconds", "tokens") if prices else MEASURES[1:3] + MEASURES[:1]
    return next((name for name in order if table[name].notna().any()), "tokens")


FRONTIERS = Finding(
    "frontier",
    _found,
    (
        Column("queries", "queries", "count"),
        Column("tokens", "tokens a query", "number", optional=True),
        Column("operations", "operations a query (GFLOP)", "number", optional=True, unit=1e9),
        Column("seconds", "seconds a query", "number", optional=True),
        Column("chance_operations", "chance by operations", "share", optional=True),
        Column("verdict_operations", "by operations", optional=True),
        Column("chance_seconds", "chance by seconds", "share", optional=True),
        Column("verdict_seconds", "by seconds", optional=True),
        Column("chance_tokens", "chance by tokens", "share", optional=True),
        Column("verdict_tokens", "by tokens", optional=True),
    ),
    caption="Every point, for each number of queries",
    shown="task model series k queries score ci_low ci_high draws operations verdict_operations "
    "chance_operations seconds verdict_seconds chance_seconds tokens verdict_tokens chance_tokens "
    "interval_over",
    section=Section(
        "frontier", "What to do with your examples, for so many queries", "Frontier",
        "run it here: imports seldom hold what they took",
        "Up and to the left is better. What a query takes includes its share of what is computed "
        "once, a cached prefix or a training, among as many queries as the slider says. A point is "
        "dominated where another takes no more and scores at least as much. Filled points are on "
        "the frontier in at least 95% of resamples of draws and test examples, faint ones are "
        "dominated in as many, rings are undecided; the line joins what is on it by the means. One "
        "draw says nothing of other demonstrations. Points that were asked other test examples "
        "than most are in the table alone.",
        place=5,
    ),
)  # fmt: skip
