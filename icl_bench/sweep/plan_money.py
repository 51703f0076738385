"""What a plan costs before it is run: tokens at a server's prices, or hours of this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from icl_bench.backends.servers.thinking import Thinking
from icl_bench.models.prices import Prices
from icl_bench.sweep.plan import CellPlan, shares_asked
from icl_bench.sweep.sweep import Sweep

LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Request arguments that limit an answer including its thoughts."""


class PlannedMoney(NamedTuple):
    """The price of a cell at a server, with everything shared cached and with nothing cached."""

    cached: float
    uncached: float


class MoneyRange(NamedTuple):
    """The price of a cell for answers of the planned length and of the maximum length."""

    least: PlannedMoney
    most: PlannedMoney


def planned_money(cell: CellPlan, prices: Prices, answer_tokens: int | None = None) -> PlannedMoney:
    """The price of a cell at a server if each answer has this number of tokens, including thoughts.

    By default an answer has the maximum number of tokens without thoughts. Cache writes are the part that the cell's
    prompts share beyond those of smaller k. The price is 0 for a cell that cannot run.
    """
    if cell.problem is not None:
        return PlannedMoney(0.0, 0.0)
    asked = cell.queries * cell.samples
    answers = asked * (cell.answer_tokens if answer_tokens is None else answer_tokens)
    own = cell.prompt_tokens - asked * cell.prefix_tokens
    written = max(0, cell.new_tokens - own)
    cached = prices.of_tokens(cell.new_tokens - written, cell.shared_tokens, answers, written)
    return PlannedMoney(float(cached), float(prices.of_tokens(cell.prompt_tokens, answers=answers)))


def money_range(cell: CellPlan, prices: Prices, answer_tokens: tuple[int, int]) -> MoneyRange:
    """The range of a cell's price at a server, given the least and the most tokens of each answer.

    The length of thoughts is known only up to a limit, so the cost is a range.
    """
    least, most = answer_tokens
    return MoneyRange(planned_money(cell, prices, least), planned_money(cell, prices, most))


def sweep_prices(sweep: Sweep, prices: Prices) -> Prices:
    """The prices of the sweep's model. Raises ``UserError`` if it has none, or none for prompts of this length."""
    found = prices.of_model(sweep.model.name, _server(sweep))
    for cell in sweep.plan.cells:
        if cell.problem is None:
            found.check_length(sweep.model.name, cell.longest_prompt)
    return found


def sweep_money(sweep: Sweep, prices: Prices, finished: Sequence[bool | None]) -> list[MoneyRange]:
    """What each cell of a plan costs at its model's prices (:func:`sweep_prices`), given which are ``finished``.

    A server is priced per token. Without token prices, and for a model on this machine with a price per hour, the
    estimated seconds are priced; NaN without an estimate.
    """
    if paid_by_hour(sweep, prices):
        each = [
            MoneyRange(*[PlannedMoney(*[_of_seconds(prices, cell, seconds)] * 2)] * 2)
            for cell, seconds in zip(sweep.plan.cells, sweep.estimates(), strict=True)
        ]
    else:
        limit, thinking = _limit(sweep), sweep.loader.spec.thinking
        thoughts = Thinking.parse(thinking).tokens if thinking else 0
        each = [money_range(cell, prices, answer_range(cell, limit, thoughts)) for cell in sweep.plan.cells]
    shares = shares_asked(sweep.plan.cells, finished)
    return [
        MoneyRange(*(PlannedMoney(*(share * amount for amount in money)) for money in one))
        for one, share in zip(each, shares, strict=True)
    ]


def answer_range(cell: CellPlan, limit: int = 0, thoughts: int = 0) -> tuple[int, int]:
    """Tokens of an answer: without thoughts, and with the maximum of thoughts.

    ``limit`` is the request's limit of answer and thoughts together. ``thoughts`` is the maximum of thoughts in
    addition to the answer; 0 for none.
    """
    return cell.answer_tokens, max(cell.answer_tokens + thoughts, limit)


def paid_by_hour(sweep: Sweep, prices: Prices) -> bool:
    """Whether machine time is priced instead of tokens."""
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
    """The maximum tokens of an answer including its thoughts that requests allow; 0 if they set no limit."""
    arguments = json.loads(sweep.loader.identity().get("server_arguments", "{}"))
    limits = [arguments[name] for name in LIMITS if isinstance(arguments.get(name), int)]
    return max(limits, default=0)
