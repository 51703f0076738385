"""Advice: the best prompt within a budget per query, and the test behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.across_models import candidate_columns, compared_within, on_same_rows
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.draws import (
    DRAWS_AND_TESTS,
    candidate,
    interval_over,
    is_drawn,
    is_shuffled,
    is_upper_bound,
    said,
)
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.frontier import leading
from icl_bench.analysis.missing import in_words, missing_scores
from icl_bench.analysis.predictions import comparable_predictions, with_rows_left_out
from icl_bench.analysis.query_cost import MEASURES, PricesOf, as_records, check_queries, prices_of, query_costs
from icl_bench.analysis.statistics.alike import asked_alike, filled, on_tests
from icl_bench.analysis.statistics.best import losses
from icl_bench.analysis.statistics.contrast import detectable, half_widths, p_values
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, grids, partition
from icl_bench.analysis.statistics.paired import ALPHA, ONE_DRAW, holm, holm_steps
from icl_bench.analysis.words import advice_over, points, power, try_more, variant_names
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.errors import UserError
from icl_bench.metrics.scores import ACCURACY, metrics, scored, title
from icl_bench.models.prices import Prices
from icl_bench.results.facts import NO_FACTS, FactsOf
from icl_bench.results.reading import read_some
from icl_bench.results.storage import Place
from icl_bench.results.trained_methods import BASELINES
from icl_bench.wording import counted, counted_queries, percent, plain, rounded, three_digits

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.05
"""The maximum loss of a cheaper point, as a share of 1."""


NEARLY_EQUAL = 0.02
"""Computed tokens of a query that differ by less than this share, or by one token, count as equal."""


QUERY_TOKENS = ["computed_tokens", "prompt_tokens"]
"""The column by which points are ranked without a budget."""


QUERY_COSTS = [*QUERY_TOKENS, "seconds", "operations", "money"]


UNITS = {"tokens": "computed_tokens", "seconds": "seconds", "operations": "operations", "money": "money"}
"""Unit of a budget as written -> the column that it limits."""


COLUMN_MEASURES = {column: unit for unit, column in UNITS.items()}


OF_QUERIES = ("operations", "money")
"""Columns that depend on the number of queries that share a prefix or a training."""


GIGA = 1e9
"""Operations are shown in GFLOP."""


TEST = ["difference", "ci_low", "ci_high", "p", "p_holm", "detectable", "rows", "draws", "base_draws", "left_out"]


LOSS_P = ["p_margin", "p_worse"]


GAPS = ["missing", "gap_difference", "gap_p"]


ADVICE = [
    *POINT,
    "metric",
    "mean",
    *QUERY_COSTS,
    "verdict",
    "advised",
    *TEST,
    *LOSS_P,
    "interval_over",
    "possible",
    *GAPS,
]


OTHERS = "other test examples"


UNSURE = "not distinguishable"


UNKNOWN_COST = "cost unknown"
NO_CANDIDATE = (OTHERS, ONE_DRAW)


GOOD = ("best", "as good")
"""Verdicts of points that may be advised."""


def _steps(amounts: np.ndarray) -> np.ndarray:
    """Group numbers of nearly equal amounts, ascending: ``(amounts,)``."""
    steps, first, step = np.zeros(len(amounts), dtype=int), math.inf, -1
    for place in np.argsort(amounts, kind="stable"):
        if step < 0 or amounts[place] > max(first * (1 + NEARLY_EQUAL), first + 1):
            first, step = amounts[place], step + 1
        steps[place] = step
    return steps


@dataclass(frozen=True)
class Budget:
    """The maximum cost of a query, in one of ``UNITS``; unlimited without a unit.

    Without ``queries``, tokens are the computed tokens of a prompt, shared parts are not counted, and only prompts are
    advised. With it, costs are those of the frontier (:mod:`icl_bench.analysis.query_cost`), including a query's share
    of what is computed once, and trained classifiers may be advised.
    """

    tokens: float | None = None
    seconds: float | None = None
    operations: float | None = None
    """GFLOP."""
    money: float | None = None
    queries: int | None = None
    """The number of queries that share what is computed once."""
    prices: Prices | None = None
    across: bool = False
    """Whether points of all models of a task are compared."""
    ranked_by: str | None = None
    """The column that points are ranked by if there is no limit: see ``with_known_cost``."""

    def __post_init__(self) -> None:
        if len(self._units) > 1:
            raise UserError(f"--advice: give a budget in {' or in '.join(self._units)} per query, not both")
        if self.queries is not None:
            check_queries(self.queries)
        elif self.prices is not None or self.cost in OF_QUERIES:
            what = "--price" if self.prices is not None else f"--advice {self.cost}"
            raise UserError(f"{what}: needs --queries N, the number of queries that share one-time costs")
        if self.cost == "money" and self.prices is None:
            raise UserError("--advice money: needs --price input=..,cached=..,output=.., auto or hour=..")
        if self.across and (self.queries is None or self.tokens is not None):
            raise UserError(
                "--across models: tokens of different models are not comparable: give --queries N, and a budget as "
                "seconds=.., operations=.., money=.. or any"
            )
        if self.limit is not None and not 0 < self.limit < math.inf:
            raise UserError(f"--advice: a budget of {self.limit:g}: must be above 0")

    @classmethod
    def parse(cls, text: str, queries: int | None = None, prices: Prices | None = None, across: bool = False) -> Budget:
        """Parse ``tokens=2000``, ``seconds=0.5``, ``operations=10``, ``money=0.001`` or ``any``.

        Raises ``UserError``.
        """
        text = str(text)
        if text == "any":
            return cls(queries=queries, prices=prices, across=across)
        unit, _, number = text.partition("=")
        if unit in UNITS:
            with suppress(ValueError):
                limit: dict[str, Any] = {unit: float(number)}
                return cls(**limit, queries=queries, prices=prices, across=across)
        raise UserError(
            f"--advice {plain(text[:40])}: a budget per query is written tokens=2000, seconds=0.5 "
            "or any, and with --queries operations=10 (GFLOP) or money=0.001"
        )

    @property
    def _units(self) -> list[str]:
        return [unit for unit in UNITS if getattr(self, unit) is not None]

    @property
    def limit(self) -> float | None:
        """The limit in the unit of its column."""
        if not self._units:
            return None
        (unit,) = self._units
        number: float = getattr(self, unit)
        return number * GIGA if unit == "operations" else number

    @property
    def cost(self) -> str:
        """The column that is limited, or by which points are ranked."""
        if self._units:
            return UNITS[self._units[0]]
        if self.ranked_by is not None:
            return self.ranked_by
        if self.queries is None:
            return "computed_tokens"
        if self.prices is not None:
            return "money"
        return "seconds" if self.across else "operations"

    def with_known_cost(self, table: pd.DataFrame) -> Budget:
        """Return the budget; without a limit, it ranks points by a cost that some of them have.

        Imported predictions rarely have all costs. With ``queries`` it is the frontier's measure
        (:func:`icl_bench.analysis.frontier.leading`), without them the tokens of the whole prompt.
        """
        if self._units or table[self.cost].notna().any():
            return self
        if self.queries is not None:
            first = leading(table.rename(columns=COLUMN_MEASURES), self.prices, self.across)
            return replace(self, ranked_by=UNITS[first])
        return replace(self, ranked_by="prompt_tokens") if table["prompt_tokens"].notna().any() else self

    def of(self, costs: pd.DataFrame, prices: PricesOf | None = None) -> pd.DataFrame:
        """The table of costs (:func:`icl_bench.analysis.findings.cost.cost`) as this budget counts them.

        ``prices`` are the prices of each model, by default the budget's for all.
        """
        if self.queries is None:
            return costs.assign(**dict.fromkeys(OF_QUERIES, np.nan))
        paid = query_costs(costs, self.prices if prices is None else prices).of(self.queries)
        return costs.assign(**dict(zip([UNITS[name] for name in MEASURES], paid.T, strict=True)))

    def ranks(self, table: pd.DataFrame) -> np.ndarray:
        """Ranks by cost, ``(points,)``, 0 for the cheapest; equal costs share a rank.

        Computed tokens within ``NEARLY_EQUAL`` of each other are equal, because the unshared part of queries varies by
        chance between prompts. Ties are resolved by tokens of the whole prompt.
        """
        if self.cost == "computed_tokens" and self.queries is None:
            computed = _steps(table["computed_tokens"].to_numpy(dtype=float))
            keys = [computed, table["prompt_tokens"].to_numpy(dtype=float)]
        else:
            keys = [table[self.cost].to_numpy(dtype=float)]
        _, places = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
        return places.ravel()

    def __str__(self) -> str:
        if self.limit is None:
            return "whatever it costs"
        shared = "" if self.queries is None else f", {counted_queries(self.queries)}"
        return f"up to {_amount(self.limit, self.cost)}{shared}"


def advise(
    frame: pd.DataFrame, costs: pd.DataFrame, budget: Budget, prices: PricesOf | None = None, facts: FactsOf = NO_FACTS
) -> pd.DataFrame:
    """Test which points that are cheaper than the best one within a budget lose less than a margin.

    ``frame`` has predictions, ``costs`` is their table from :func:`icl_bench.analysis.findings.cost.cost`. Points are
    prompts, and with the budget's ``queries`` also trained classifiers. Upper bounds of training and shuffled orders
    are not candidates. The best found is the point within the budget with the highest mean of ``value``, by default of
    the task's own score (:func:`icl_bench.metrics.scores.scored`); the cheapest on ties. All means and tests are on the
    test examples that most points of the task and model were asked
    (:func:`icl_bench.analysis.statistics.alike.asked_alike`; the larger set on ties), and use all existing scores.

    One row per point: the setting, k, ``metric`` (the compared score), ``mean`` (over draws and test examples; missing
    scores of candidates are filled in, :func:`icl_bench.analysis.statistics.alike.filled`), computed_tokens,
    prompt_tokens, seconds, operations and money of a query (the last two with ``queries``), and ``verdict``:

    - ``other test examples``: more than a quarter of those that most were asked are missing; no
      candidate;
    - ``one draw``: a single random draw, while other points have more; no candidate, because a single draw does not
      generalise to others;
    - ``over budget``, ``cost unknown``, ``best``, ``not cheaper`` (than the best): not tested;
    - ``as good``: p_margin is at most ``ALPHA``: less than ``MARGIN`` is lost to the best, even if
      some loss is significant;
    - ``worse``: not as good, and p_worse is at most ``ALPHA``: it is not the best;
    - ``not distinguishable``: neither.

    Then ``advised``, whether it is the cheapest point with the verdict ``best`` or ``as good`` (one for each task and
    model with a point within the budget). Then its comparison with the best found: ``difference`` from its mean, ci_low
    and ci_high, p (one-sided, of no loss) and p_holm (corrected over the cheaper points), ``detectable``, the smallest
    loss that is found in 80% of such samples, the common rows (test examples), draws and base_draws, and left_out, the
    predictions of either point that the other lacks. The limits match the verdict: for a point that is ``as good`` they
    exclude a loss of ``MARGIN``; for others they contain 0 unless the point is ``worse``. Differences assume that the
    best found is the best. ``p_margin`` and ``p_worse`` (:func:`icl_bench.analysis.statistics.best.losses`) do not:
    they are against the truly best point within the budget, whichever it is, corrected over the cheaper points (Holm).
    Draws are common if both points draw their demonstrations in the same way. With a single draw everywhere both p
    values are 1. The best found has a p_margin too, corrected over the candidates for the best (Bonferroni): if it is
    above ``ALPHA``, another point may be better by ``MARGIN`` or more. ``interval_over`` is the sampled unit of the
    comparison with the best found, or without one, of the point's mean
    (:func:`icl_bench.analysis.draws.interval_over`).

    Finally ``possible``, the number of scores of a candidate without gaps, and ``missing``, the number of its gaps,
    with gap_difference and gap_p over all candidates of the task and model: whether scores are missing at random
    (:func:`icl_bench.analysis.missing.missing_scores`).

    In simulations (docs/statistics.md), a point that loses ``MARGIN`` or more was advised in 0 to 5% of samples. With
    250 test examples and draws that differ by 1.5 points, a cheap point that loses a tenth of a margin of 5 points was
    found with ten draws, and hardly ever with three: three draws cannot exclude a loss of 5 points.

    With a budget ``across`` models, "of the task and model" reads "of the task": points of all models are candidates
    (:mod:`icl_bench.analysis.across_models`; ``facts`` of variants identify their data). ``prices`` are the prices of
    each model, by default the budget's for all.

    Raises ValueError if a test example was predicted twice in one draw of a point.
    """
    by = compared_within(budget.across)
    kept = _candidates(scored(frame), trained=budget.queries is not None)
    kept = on_same_rows(kept, facts, budget.across)
    costs = budget.of(costs, prices)
    aligned = _aligned(kept, by)
    table = _points(kept, aligned, costs, by)
    budget = budget.with_known_cost(table)
    table.loc[aligned.others, "verdict"] = OTHERS
    table.loc[_single(aligned, table, by), "verdict"] = ONE_DRAW
    alike = ~table["verdict"].isin(NO_CANDIDATE)
    if budget.limit is not None:
        table.loc[alike & (table[budget.cost] > budget.limit), "verdict"] = "over budget"
    table.loc[alike & table[budget.cost].isna(), "verdict"] = UNKNOWN_COST
    within = table[table["verdict"] == "not cheaper"]
    ranks = budget.ranks(within)
    bests: dict[Any, Any] = {}
    for _, part in within.assign(rank=ranks).groupby(by):
        best = part.sort_values(["mean", "rank"], ascending=[False, True]).index[0]
        bests |= dict.fromkeys(part.index[part["rank"] < part["rank"][best]], best)
        table.loc[best, "verdict"] = "best"
    for _, part in table.loc[within.index].groupby(by):
        _test(table, part, bests, aligned, candidate_columns(budget.across))
    good = table.loc[within.index].assign(rank=ranks)
    good = good[good["verdict"].isin(GOOD)].sort_values("rank", kind="stable")
    table.loc[good.groupby(by).head(1).index, "advised"] = True
    return table[ADVICE].reset_index(drop=True)


def advise_folder(results: Place, budget: Budget, only: Mapping[str, str] | None = None) -> pd.DataFrame:
    """:func:`advise` on a results folder, or on its part with these values (task, model).

    Halves of a label space (easier tasks) and perturbed demonstrations are left out. ``attrs["prices"]`` of the table
    has the prices of each model. Raises ``UserError`` if nothing is left, or a model has no price.
    """
    stored = read_some(results, only)
    frame = comparable_predictions(stored)
    if frame.empty:
        raise UserError(f"results folder {plain(results)}: no finished cell to advise on")
    costs = cost(frame, {cell: CellCost.of(meta) for cell, meta in stored.cells.items()})
    priced = None if budget.prices is None else prices_of(stored, budget.prices, budget.across)
    table = with_rows_left_out(advise(frame, costs, budget, priced, stored.variants), stored.cells)
    table.attrs |= {"prices": as_records(priced)}
    return table


def _candidates(frame: pd.DataFrame, trained: bool) -> pd.DataFrame:
    """The scored predictions of points that may be advised, with names as plain text."""
    names = [name for name in POINT if name != "k"]
    kept = frame.loc[frame["score"].notna(), [*POINT, "draw", "test_id", "gold", "score", "metric"]]
    kept = kept.astype(dict.fromkeys(names, object))
    no_prompt = is_upper_bound(kept["select"]) if trained else kept["select"].isin(BASELINES)
    return kept[~no_prompt & ~is_shuffled(kept["order"])].reset_index(drop=True)


@dataclass(frozen=True)
class _Aligned:
    """Points on the test examples that most points of their task and model were asked."""

    keys: pd.DataFrame
    """The columns that distinguish the points, one row each; the index is the point's position."""
    grids: list[Grid]
    """The grid of each point. Points that lack too many scores keep all their examples."""
    others: np.ndarray
    """Which points lack too many scores: ``(points,)`` bool."""
    tests: list[np.ndarray]
    """The codes of the examples that each point should have: ``(test,)``."""
    scores: np.ndarray
    """The score of each prediction."""


def _aligned(kept: pd.DataFrame, by: Sequence[str]) -> _Aligned:
    keys, points = grids(kept, POINT)
    points = [grid.joined() for grid in points]
    others, tests = np.zeros(len(points), dtype=bool), [grid.tests for grid in points]
    for places in partition(keys, by)[1]:
        alike = asked_alike([points[place] for place in places])
        others[places] = alike.lack
        for place in places[~alike.lack]:
            points[place], tests[place] = on_tests(points[place], alike.tests), alike.tests
    return _Aligned(keys, points, others, tests, kept["score"].to_numpy(dtype=float))


def _points(kept: pd.DataFrame, aligned: _Aligned, costs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """The points with means, gaps and costs, without verdicts; the index is their position."""
    keys, scores = aligned.keys, aligned.scores
    mean = np.array([TwoWayLayout(grid.values(scores)).mean for grid in aligned.grids], dtype=float)
    gaps = keys.assign(missing=0.0, gap_difference=np.nan, gap_p=np.nan)[GAPS]
    alike = keys[~aligned.others]
    for at in partition(alike, by)[1]:
        places = alike.index.to_numpy()[at]
        points = [aligned.grids[place] for place in places]
        whole = filled(points, scores, aligned.tests[places[0]])
        mean[places] = [TwoWayLayout(matrix).mean for matrix in whole]
    if len(alike):
        alike_points = [aligned.grids[place] for place in alike.index]
        missing = missing_scores(alike, alike_points, scores, by=by)
        gaps.loc[alike.index, GAPS] = np.column_stack(missing)
    table = keys.assign(metric=keys["task"].map(metrics(kept)), mean=mean)
    prices = costs[[*POINT, *QUERY_COSTS]].astype({name: keys[name].dtype for name in POINT})
    table = table.merge(prices, on=POINT, how="left")
    table[[*TEST, *LOSS_P]] = np.nan
    over = [interval_over(len(grid.draws) > 1) for grid in aligned.grids]
    sizes = [len(g.draws) * len(t) for g, t in zip(aligned.grids, aligned.tests, strict=True)]
    return table.assign(
        verdict="not cheaper",
        advised=False,
        interval_over=np.array(over, dtype=object),
        possible=np.array(sizes, dtype=np.int64),
        **gaps.astype({"missing": np.int64}),
    )


def _single(aligned: _Aligned, table: pd.DataFrame, by: Sequence[str]) -> np.ndarray:
    """Which candidates have a single draw although others have more: ``(points,)`` bool."""
    drawn = table["select"].map(is_drawn).to_numpy(dtype=bool) & (table["k"] > 0).to_numpy()
    draws = np.array([len(grid.draws) for grid in aligned.grids], dtype=int)
    drawn &= ~aligned.others
    most = table.assign(draws=np.where(drawn, draws, 0)).groupby([table[name] for name in by])["draws"]
    return np.asarray(drawn & (draws == 1) & (most.transform("max") > 1).to_numpy())


def _test(
    table: pd.DataFrame, part: pd.DataFrame, bests: Mapping[Any, Any], aligned: _Aligned, columns: Sequence[str]
) -> None:
    """Fill in the comparisons of the cheaper points of a task and model with the best, and their verdicts.

    ``part`` has the candidates' rows of the table, with the source of their draws in ``columns``. ``bests`` names the
    best point for each cheaper one.
    """
    best = int((part["verdict"] == "best").argmax())
    of = np.flatnonzero(part.index.isin(list(bests))).tolist()
    named = zip(part.index, part[columns].itertuples(index=False), strict=True)
    candidates = [candidate(aligned.grids[place], *names) for place, names in named]
    large, none, contrasts = losses(candidates, aligned.scores, [best, *of], MARGIN)
    others = len(candidates) - 1
    table.loc[part.index[best], "p_margin"] = min(large[0] * others, 1.0)
    if not of:
        return
    p_margin, p_worse = holm(large[1:]), holm(none[1:])
    good = p_margin <= ALPHA
    beside = [contrasts[at, best] for at in of]
    # one-sided errors, at the level of the verdict's test
    error = np.where(good, holm_steps(large[1:]), holm_steps(none[1:]) / others)
    half = half_widths(beside, 1 - 2 * error)
    centre = np.array([c.centre for c in beside])
    p = p_values(beside, "less")
    met = [candidates[at].meet(candidates[best]) for at in of]
    rows = part.index[of]
    table.loc[rows, ["p_margin", "p_worse"]] = np.column_stack([p_margin, p_worse])
    table.loc[rows, TEST] = np.column_stack(
        [
            [c.difference for c in beside],
            (centre - half).clip(-1, 1),
            (centre + half).clip(-1, 1),
            p,
            holm(p),
            detectable(beside, half),
            [len(m.point.tests) for m in met],
            [len(m.point.draws) for m in met],
            [len(m.base.draws) for m in met],
            [m.left_out for m in met],
        ]
    )
    table.loc[rows, "interval_over"] = [
        interval_over(
            max(len(m.point.draws), len(m.base.draws)) > 1, not (candidates[at].judged and candidates[best].judged)
        )
        for at, m in zip(of, met, strict=True)
    ]
    table.loc[rows, "verdict"] = np.select([good, p_worse <= ALPHA], ["as good", "worse"], UNSURE)


# -- in words -----------------------------------------------------------------------------------


def lines(table: pd.DataFrame, budget: Budget) -> list[str]:
    """The table of :func:`advise` as lines of text: the advice for each task and model, and the reason."""
    texts, budget = [], budget.with_known_cost(table)
    for key, part in table.groupby(compared_within(budget.across), sort=True):
        texts.append(f"{' · '.join(map(str, key))}{', all models' if budget.across else ''}, {budget}:")
        named = part.assign(named=_names(part, models=budget.across))
        texts += [f"  {line}" for line in _reasons(named, budget)]
    return texts


def _names(part: pd.DataFrame, models: bool) -> pd.Series[str]:
    """Names of points, with their ``models``. The variant is named only if nothing else distinguishes two points."""
    attention = ", " + part["attention"] + " attention"
    names = part["select"] + ", " + part["order"] + attention.where(part["attention"] != "full", "")
    names = names.where(part["k"] > 0, "no demonstrations")
    names = names + ", k=" + part["k"].map("{:,}".format)
    names = part["model"].astype(str) + " · " + names if models else names
    variants = part["variant"].map(variant_names(part["variant"]))
    named: pd.Series[str] = names.mask(names.duplicated(keep=False), names + ", " + variants)
    return named


def _reasons(part: pd.DataFrame, budget: Budget) -> Iterator[str]:
    unknown = int((part["verdict"] == UNKNOWN_COST).sum())
    rows = part.to_dict("records")
    if not part["advised"].any():
        priced = _priced(part, budget)
        if len(priced):
            cheapest = priced.iloc[int(budget.ranks(priced).argmin())].to_dict()
            yield f"no point is within the budget; the cheapest point is {_point(cheapest, budget)}"
    else:
        best = next(row for row in rows if row["verdict"] == "best")
        advised = next(row for row in rows if row["advised"])
        yield from _advice(part, best, advised, budget)
        yield from advice_over([advised, best])
    yield from _gaps(part)
    for verdict, why in (
        (OTHERS, "missing more than a quarter of the test rows that most points have"),
        (ONE_DRAW, "a single draw does not show how much draws differ; try --draws 3"),
    ):
        number = int((part["verdict"] == verdict).sum())
        if number:
            yield f"{counted(number, 'point')} left out: {why}"
    if unknown:
        what = budget.cost.replace("_", " ")
        yield f"{counted(unknown, 'point')} left out: their {what} are unknown"


def _advice(part: pd.DataFrame, best: dict[Any, Any], advised: dict[Any, Any], budget: Budget) -> Iterator[str]:
    tests = int(part["p_worse"].notna().sum())
    loss = f"{100 * MARGIN:g} points"
    if advised["verdict"] == "best":
        yield f"use {_point(best, budget)}: the best found"
        if best["p_margin"] > ALPHA:
            yield (
                f"the best point cannot be determined: another may be better by {loss} "
                f"or more (p={best['p_margin']:.2g}, one-sided, Bonferroni over the other points)"
            )
    else:
        yield (
            f"use {_point(advised, budget)}: it loses less than {loss} to the best point, "
            f"whichever that is ({_p(advised, 'p_margin', tests)}); {_beside(advised)}"
        )
        yield f"the best found is {_point(best, budget)}"
    priced = _priced(part, budget)
    priced = priced.assign(rank=budget.ranks(priced)).sort_values("rank", kind="stable")
    cheaper = priced[priced["rank"] < priced.loc[priced["advised"], "rank"].iloc[0]]
    unsure = cheaper[cheaper["verdict"] == UNSURE]
    worse = cheaper[cheaper["verdict"] == "worse"]
    if len(unsure):
        row = unsure.sort_values("mean").iloc[-1].to_dict()
        more = f" (as may {_others(len(unsure) - 1)})" if len(unsure) > 1 else ""
        yield (
            f"whether a cheaper point is enough cannot be determined: {_point(row, budget)} may be the best, "
            f"and may lose {loss} or more{more}: {_beside(row)}{power(row)}{try_more(row)}"
        )
    elif len(worse):
        row = worse.sort_values("mean").iloc[-1].to_dict()
        yield (
            f"every cheaper point is worse than the best, and may lose {loss} or more; the best of "
            f"them is {_point(row, budget)} ({_p(row, 'p_worse', tests)} for no loss); "
            f"{_beside(row)}"
        )
    elif not tests:
        yield "no cheaper point could be tested"
    yield from cautions(row["select"] for row in (advised, best))


def _gaps(part: pd.DataFrame) -> Iterator[str]:
    """Notes on the missing scores of candidates, and whether they are missing at random."""
    alike = part[part["verdict"] != OTHERS]
    missing = int(alike["missing"].sum())
    if missing:
        yield f"{missing:,} of {counted(int(alike['possible'].sum()), 'score')} missing"
    for row in alike[alike["gap_p"] <= ALPHA].head(1).to_dict("records"):
        yield in_words(row["gap_difference"], row["gap_p"])


def _priced(part: pd.DataFrame, budget: Budget) -> pd.DataFrame:
    """The candidates with a known cost."""
    return part[part[budget.cost].notna() & ~part["verdict"].isin(NO_CANDIDATE)]


def _others(number: int) -> str:
    return "1 other" if number == 1 else f"{number:,} others"


def _point(row: dict[Any, Any], budget: Budget) -> str:
    amount = _amount(row[budget.cost], budget.cost)
    if budget.cost == "computed_tokens" and budget.queries is None:
        computed, whole = (rounded(row[name], 0) for name in ("computed_tokens", "prompt_tokens"))
        amount = f"computes {computed} of {whole} tokens"
    of = "" if row["metric"] == ACCURACY else f" {title(row['metric'])}"
    return f"{row['named']} ({percent(row['mean'])}%{of}, {amount})"


def _p(row: dict[Any, Any], name: str, tests: int) -> str:
    corrected = f", Holm over {tests} cheaper points" if tests > 1 else ""
    return f"p={row[name]:.2g}, one-sided{corrected}"


def _beside(row: dict[Any, Any]) -> str:
    return (
        f"against the best found {points(row)} "
        f"(paired by test row; {counted(int(row['rows']), 'test row')}, "
        f"{counted(int(row['draws']), 'draw')} beside {int(row['base_draws'])}"
        f"{'' if row['interval_over'] == DRAWS_AND_TESTS else ', over ' + said(row['interval_over'])})"
    )


def _amount(number: float, cost: str) -> str:
    if cost == "seconds":
        return f"{three_digits(number)} s a query"
    if cost == "operations":
        return f"{three_digits(number / GIGA)} GFLOP a query"
    if cost == "money":
        return f"{three_digits(1000 * number)} for 1,000 queries"
    return f"{rounded(number, 0)} {cost.replace('_', ' ')} a query"
