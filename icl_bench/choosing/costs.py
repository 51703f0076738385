"""What a query costs at each setting of a race, before the whole of it is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.query_cost import MEASURES, QueryCosts
from icl_bench.errors import UserError
from icl_bench.models.prices import Prices, no_hour
from icl_bench.sweep.compute_cost import ComputeCost
from icl_bench.sweep.plan import CellPlan
from icl_bench.sweep.plan_money import paid_by_hour
from icl_bench.sweep.runner import Tally
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.time_estimate import EFFICIENCY
from icl_bench.training.interface import LearningCost
from icl_bench.wording import plain

PREFERRED = ("money", "operations", "tokens")
"""Settings are compared by the first of these measures that is known for all of them, and not 0 for all."""


class Served(Tally):
    """What a server billed so far, which tells more than the plan."""

    def of(self, planned: QueryTokens) -> QueryTokens:
        """Planned tokens of a query as the server counts them. Answers are as long as they are, with thoughts."""
        if not self.answers:
            return planned
        ratio = self.prompt_tokens / self.local_prompt_tokens
        return QueryTokens(ratio * planned.own, ratio * planned.shared, self.answer_tokens / self.answers)


def check_prices(models: Sequence[tuple[Sweep, Prices | None]], *, spends_money: bool) -> None:
    """Raise ``UserError`` unless money can compare these models, and is known before it is spent.

    This machine's time is not paid by a server's prices of tokens.
    """
    served = any(sweep.loader.spends and prices is not None for sweep, prices in models)
    for sweep, prices in models:
        if sweep.loader.spends:
            if spends_money and (prices is None or not prices.of_tokens_known):
                raise UserError(
                    f"--spend: needs what tokens of {plain(sweep.model.name)} cost; add --price input=..,cached=..,"
                    "output=.. or auto"
                )
        elif (spends_money or served) and (prices is None or math.isnan(prices.hour)):
            raise no_hour([sweep.model.name])


class QueryTokens(NamedTuple):
    """Tokens of a query, the mean over a cell or over draws."""

    own: float
    shared: float
    answer: float


def planned_tokens(cells: Sequence[CellPlan]) -> QueryTokens:
    """Tokens of a query of these cells, as they are planned."""
    whole = sum(cell.prompt_tokens for cell in cells) / sum(cell.queries for cell in cells)
    shared = float(np.mean([cell.prefix_tokens for cell in cells]))
    return QueryTokens(whole - shared, shared, float(np.mean([cell.answer_tokens for cell in cells])))


def query_cost(
    sweep: Sweep,
    prices: Prices | None,
    tokens: QueryTokens,
    compute: Sequence[ComputeCost],
    rate: Callable[[], float | None],
    caches: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each query takes, and all of them once, by ``MEASURES``: ``(4,)`` each, NaN where it is not known.

    ``compute`` are costs of its cells by formula, ``rate`` returns operations a second of this machine. Where a
    server bills, ``caches`` says whether it keeps what prompts share.
    """
    own, shared, answer = tokens
    if not caches:
        own, shared = own + shared, 0.0
    each, once = unknown_cost(), unknown_cost()
    each[0], once[0] = own + answer, shared
    if compute:
        each[1] = np.mean([cost.query_flops for cost in compute])
        once[1] = np.mean([cost.prefix_flops for cost in compute])
    if prices is not None:
        if paid_by_hour(sweep, prices):
            _add_time(each, once, prices, rate())
        else:
            each[3] = prices.of_tokens(own, shared, answer)
            once[3] = prices.of_tokens(0.0, -shared, 0.0, shared)  # the query that writes does not read
    return each, once


def learning_cost(
    cost: LearningCost, prices: Prices | None, rate: Callable[[], float | None]
) -> tuple[np.ndarray, np.ndarray]:
    """The same of a method that learns: once is its training. Prices are those of an hour."""
    each, once = unknown_cost(), unknown_cost()
    each[:2], once[:2] = (cost.query_tokens, cost.query_flops), (cost.tokens, cost.flops)
    if prices is not None:
        _add_time(each, once, prices, rate())
    return each, once


def unknown_cost() -> np.ndarray:
    """What a query takes if nothing is known, by ``MEASURES``: ``(4,)`` of NaN."""
    return np.full(len(MEASURES), np.nan)


def _add_time(each: np.ndarray, once: np.ndarray, prices: Prices, speed: float | None) -> None:
    """Add seconds, and the money that they cost, of the operations."""
    if speed is not None:
        for values in (each, once):
            seconds = values[1] / speed
            values[2:] = seconds, prices.of_seconds(seconds)


def rate_of(sweep: Sweep) -> float | None:
    """Operations a second of this machine with a model, by a short measurement; None if unknown."""
    rate = sweep.loader.rate()
    return None if rate is None else rate * EFFICIENCY


def measure_of(costs: QueryCosts, models: int) -> str | None:
    """The measure that compares these settings; None if none is known for all, or is 0 for all.

    A token of one model is no token of another, so tokens compare the settings of a single one.
    """
    for name in PREFERRED:
        place = MEASURES.index(name)
        values = np.stack([costs.each[:, place], costs.once[:, place]])
        if np.isfinite(values).all() and values.any() and (name != "tokens" or models == 1):
            return name
    return None


def crossing(costs: QueryCosts, one: int, other: int, measure: str) -> float | None:
    """Return the number of queries, 1 or more, at which two settings cost the same in all; None without one.

    With more queries the one with the smaller cost of each query is cheaper.
    """
    place = MEASURES.index(measure)
    each = float(costs.each[one, place] - costs.each[other, place])
    once = float(costs.once[other, place] - costs.once[one, place])
    number = once / each if each else math.nan
    return number if 1 <= number < math.inf else None
