"""What a plan costs before it is run: tokens at a server's prices, or hours of this machine."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from icl_bench.backends.servers.thinking import Thinking
from icl_bench.models.prices import Prices
from icl_bench.sweep.plan import CellPlan
from icl_bench.sweep.sweep import Sweep

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Arguments of requests that limit an answer with its thoughts."""


class PlannedMoney(NamedTuple):
    """What a server would ask for a cell, if its cache has all that prompts share, and if it has nothing."""

    cached: float
    uncached: float


class MoneyRange(NamedTuple):
    """What a cell costs if answers are as short as they are planned, and if they are as long as they may be."""

    least: PlannedMoney
    most: PlannedMoney


def planned_money(cell: CellPlan, prices: Prices, answer_tokens: int | None = None) -> PlannedMoney:
    """What a server would ask for a cell whose answers have so many tokens each, thoughts included.

    By default an answer has the most tokens that it can have without thoughts. What is written into the cache
    is what the cell's prompts share beyond those of smaller k. 0 for a cell that cannot run. Raises ``UserError``
    if the prices are not those of prompts that long.
    """
    if cell.problem is not None:
        return PlannedMoney(0.0, 0.0)
    prices.check_length(cell.spec.model, cell.longest_prompt)
    asked = cell.queries * cell.samples
    answers = asked * (cell.answer_tokens if answer_tokens is None else answer_tokens)
    own = cell.prompt_tokens - asked * cell.prefix_tokens
    written = max(0, cell.new_tokens - own)
    cached = prices.of_tokens(cell.new_tokens - written, cell.shared_tokens, answers, written)
    return PlannedMoney(float(cached), float(prices.of_tokens(cell.prompt_tokens, answers=answers)))


def money_range(cell: CellPlan, prices: Prices, answer_tokens: tuple[int, int]) -> MoneyRange:
    """What a server would ask for a cell whose answers have between so many and so many tokens each.

    A model that thinks writes as many tokens as it likes up to a limit, so its cost is a range.
    """
    least, most = answer_tokens
    return MoneyRange(planned_money(cell, prices, least), planned_money(cell, prices, most))


def sweep_prices(sweep: Sweep, prices: Prices) -> Prices:
    """The prices of the sweep's model. Raises ``UserError`` if it has none."""
    return prices.of_model(sweep.model.name, _server(sweep))


def sweep_money(sweep: Sweep, prices: Prices) -> list[MoneyRange]:
    """What each cell of a plan costs at its model's prices (:func:`sweep_prices`).

    Tokens of a server are paid by token. Without a price of tokens, and for a model on this machine with a
    price of its hour, estimated seconds are paid; NaN where there is no estimate.
    """
    if paid_by_hour(sweep, prices):
        return [
            MoneyRange(*[PlannedMoney(*[_of_seconds(prices, cell, seconds)] * 2)] * 2)
            for cell, seconds in zip(sweep.plan.cells, sweep.estimates(), strict=True)
        ]
    limit, thinking = _limit(sweep), sweep.loader.spec.thinking
    thoughts = Thinking.parse(thinking).tokens if thinking else 0
    return [money_range(cell, prices, answer_range(cell, limit, thoughts)) for cell in sweep.plan.cells]


def answer_range(cell: CellPlan, limit: int = 0, thoughts: int = 0) -> tuple[int, int]:
    """Tokens of an answer: without thoughts, and with as many as it may have.

    ``limit`` is that of requests, of answer and thoughts together, and ``thoughts`` what thoughts may have beside
    the answer; 0 for none.
    """
    return cell.answer_tokens, max(cell.answer_tokens + thoughts, limit)


def paid_by_hour(sweep: Sweep, prices: Prices) -> bool:
    """Whether the time of a machine is paid, not tokens."""
    return not prices.of_tokens_known or (_server(sweep) is None and not math.isnan(prices.hour))


def _of_seconds(prices: Prices, cell: CellPlan, seconds: float | None) -> float:
    if cell.problem is not None:
        return 0.0
    return math.nan if seconds is None else float(prices.of_seconds(seconds))


def _server(sweep: Sweep) -> str | None:
    """The address of the server that answers; None if this machine does."""
    server = sweep.loader.identity().get("server")
    return None if server is None else str(server)


def _limit(sweep: Sweep) -> int:
    """The most tokens of an answer with its thoughts that requests allow; 0 if they do not say."""
    arguments = json.loads(sweep.loader.identity().get("server_arguments", "{}"))
    limits = [arguments[name] for name in LIMITS if isinstance(arguments.get(name), int)]
    return max(limits, default=0)
