"""Costs of a query at a point: tokens, operations, seconds and money, including its share of one-time costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from icl_bench.analysis.cell_cost import MAKING
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.predictions import prompt_lengths
from icl_bench.demonstrations.selector_spec import known
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import pattern_of
from icl_bench.models.prices import TOKENS, Prices, UnknownModelError, no_hour, table_prices
from icl_bench.results.trained_methods import BASELINES
from icl_bench.wording import listed, plain, short, whole

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored

QUERIES = 1000
"""The default number of queries that share what is computed once."""

MOST_QUERIES = 10**15
"""The maximum number of queries; larger numbers are unrealistic and not exact as floats."""

MEASURES = ("tokens", "operations", "seconds", "money")


UNITS = (*TOKENS, "write", "hour")
"""The prices that money is the sum of."""

PARTS = (*MEASURES[:-1], *UNITS)
"""The data for money at any prices: the other measures, and money with one price at 1 and the others at 0."""


PricesOf: TypeAlias = Prices | Mapping[str, Prices]
"""Prices of all models, or of each by name."""


def check_queries(queries: int) -> None:
    """Raise ``UserError`` for an unrealistic number of queries, or none."""
    if isinstance(queries, bool) or not isinstance(queries, int | np.integer):
        raise UserError(f"--queries {short(queries)}: expected a whole number")
    if not 1 <= queries <= MOST_QUERIES:
        most = "" if queries < 1 else f", at most {MOST_QUERIES:,}"
        raise UserError(f"--queries {whole(queries)}: expected 1 or more{most}")


class QueryCosts(NamedTuple):
    """Costs of points by ``MEASURES`` or ``PARTS``: ``(points, measures)`` each, NaN if unknown."""

    each: np.ndarray
    """Costs per query."""
    once: np.ndarray
    """One-time costs for all queries together."""

    def of(self, queries: int) -> np.ndarray:
        """Costs per query if this number of queries shares one-time costs: ``(points, measures)``."""
        total: np.ndarray = self.each + self.once / queries
        return total

    def with_one(self, more: QueryCosts) -> QueryCosts:
        """Append a point with costs ``(measures,)`` each."""
        return QueryCosts(*(np.vstack(pair) for pair in zip(self, more, strict=True)))


def prices_of(stored: Stored, prices: Prices, across: bool = False) -> dict[str, Prices]:
    """The prices of each model of a results folder, those of ``auto`` from the table.

    Raises ``UserError`` if the table lacks a model of a server or has several prices of it, or the price of an hour is
    missing: for models that ran here and are priced by the table, or ``across`` models if a server has a token price.
    """
    present = set(stored.predictions["cell"].astype(str))
    ran = [meta for cell, meta in stored.cells.items() if cell in present and meta.facts.are_of_a_run]
    servers: dict[str, set[str]] = {}
    for meta in ran:
        if meta.facts.server is not None:
            servers.setdefault(meta.spec.model, set()).add(meta.facts.server)
    here = sorted({meta.spec.model for meta in ran if meta.facts.server is None})
    mixed = across and prices.of_tokens_known and bool(servers)
    if here and math.isnan(prices.hour) and (prices.auto or mixed):
        raise no_hour(here)
    lengths = prompt_lengths(stored.predictions)
    longest = lengths.groupby(stored.predictions["model"], observed=True).max()
    found = {}
    for model, tokens in zip(map(str, longest.index), longest, strict=True):
        if model in servers or model in here:
            addresses = sorted(servers.get(model, ()))
            found[model], *others = (prices.of_model(model, address) for address in addresses or (None,))
            if any(one != found[model] for one in others):
                raise UserError(
                    f"--price auto: {plain(model)}: {listed(addresses)} have different prices in the "
                    "table; give --price input=..,cached=..,output=.."
                )
        else:
            found[model] = _of_import(model, prices)
        found[model].check_length(model, float(tokens))
    return found


def _of_import(model: str, prices: Prices) -> Prices:
    """The prices of an imported model. It may have any name, so missing prices are not an error."""
    try:
        return replace(table_prices(model), hour=prices.hour) if prices.auto else prices
    except UnknownModelError:
        return Prices(hour=prices.hour)


def as_records(prices: Mapping[str, Prices] | None) -> dict[str, dict[str, Any]]:
    """Model -> its prices by name, and their source if they are from the table."""
    return {
        model: price.given | ({} if price.origin is None else {"origin": price.origin})
        for model, price in (prices or {}).items()
    }


def split_seconds(seconds: np.ndarray, prefill: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split a point's seconds per query into those of a query alone, and those of its cell's prefill, once.

    ``rows`` is the number of queries of a cell, among which ``seconds`` divides the prefill. A prefill of NaN is none.
    """
    prefill = np.nan_to_num(prefill)
    return np.maximum(seconds - np.where(prefill > 0, prefill / rows, 0.0), 0.0), prefill


def cost_parts(costs: pd.DataFrame) -> QueryCosts:
    """Split the costs in the rows of ``costs`` into costs per query and one-time costs.

    ``costs`` is :func:`icl_bench.analysis.findings.cost.cost`'s table. Columns are ``PARTS``:

    - computed tokens of prompts, answers and trainings;
    - operations, by formula (flops);
    - measured seconds: ``prefill_seconds`` are the one-time part, in a nested sweep without the prefix of a smaller k;
    - money at each price alone: of a million new, cached, answer and written tokens, and of an hour.
      Trainings have no token price (NaN). :func:`_by_hour` decides which of them a point pays.

    One-time costs are a training (with that of its model), calibration queries, shared demonstrations, and writing
    their rationales with a model. Retrieved demonstrations are a query's own, except reused ones, whose tokens are not
    counted (NaN). The cost of an unknown training is NaN, not 0.

    If a server counted tokens, they are the billed ones, including written ones. If a cell found nothing in the cache,
    the costs of its queries and the one-time costs sum to the server's bill.
    """
    number = {str(name): costs[name].to_numpy(dtype=float) for name in costs if name not in POINT}
    choices = [known(str(select)) for select in costs["select"]]
    patterns = [pattern_of(str(attention)) for attention in costs["attention"]]
    reuses = np.array([pattern is not None and pattern.reuses for pattern in patterns], dtype=bool)
    own = np.array([choice is not None and choice.retrieves for choice in choices], dtype=bool)
    own &= ~reuses
    trained = costs["select"].astype(str).isin(BASELINES).to_numpy()
    nothing, unknown = np.zeros(len(costs)), np.full(len(costs), np.nan)
    training = {
        name: np.nan_to_num(number[f"training_{name}"]) + number.get(f"model_training_{name}", nothing)
        for name in ("tokens", "flops", "seconds")
    }
    vectors = np.array([p is not None and p.reads_vectors for p in patterns], dtype=bool)
    asked = {n: np.nan_to_num(number.get(f"calibration_{n}", nothing)) for n in ("tokens", "flops", "seconds")}
    made = {name: number.get(name, nothing) for name in MAKING}
    new, cached, written, making_seconds, making_flops, elsewhere = made.values()
    learnt = (trained | vectors) & (costs["k"].to_numpy() > 0)
    answer = np.nan_to_num(number["answer_tokens"])

    shared = np.where(reuses, np.nan, np.where(own | trained, 0.0, number["cached_tokens"]))
    anew = np.where(own, number["prompt_tokens"], number["computed_tokens"])
    query = np.array([anew, shared, answer, nothing])  # new, cached, of the answer, written
    first = shared / number.get("samples_a_query", 1.0)  # each sample reads it
    # the query that writes into the cache does not also read it
    once = np.array([asked["tokens"] + new, cached - first, written, first])
    billed = ~np.isnan(number.get("once_new_tokens", unknown))
    if billed.any():
        each_billed, once_billed = _billed(number)
        once_billed[:3] += np.array([asked["tokens"] + new, cached, written])
        query, once = np.where(billed, each_billed, query), np.where(billed, once_billed, once)
    computed, computed_once = (part[0] + part[2] + part[3] for part in (query, once))

    prefix = np.where(own | trained, 0.0, number["prefix_flops"])
    alone, prefill = split_seconds(
        number["seconds"], np.where(own, 0.0, number["prefill_seconds"]), number["rows_a_cell"]
    )
    more = {name: training[name] + asked[name] for name in training}
    more["seconds"], more["flops"] = more["seconds"] + making_seconds, more["flops"] + making_flops
    seconds_once = prefill + more["seconds"]
    tokens = np.where(trained, np.nan, query) / 1e6
    tokens_once, hours_once = once / 1e6, seconds_once / 3600
    tokens_once[:, elsewhere > 0] = hours_once[elsewhere > 0] = np.nan  # at the other model's prices
    each = [computed, np.where(own, number["whole_flops"], number["query_flops"]), alone]
    of_all = [computed_once + training["tokens"], prefix + more["flops"], seconds_once]
    # as in UNITS: an answer has the third price of tokens
    result = QueryCosts(
        np.column_stack([*each, *tokens, alone / 3600]), np.column_stack([*of_all, *tokens_once, hours_once])
    )
    for place, name in enumerate(("tokens", "flops", "seconds")):
        result.each[learnt & np.isnan(number[f"training_{name}"]), place] = np.nan
    result.each[np.isnan(result.each[:, PARTS.index("seconds")]), PARTS.index("hour")] = np.nan
    return result


def query_costs(costs: pd.DataFrame, prices: PricesOf | None) -> QueryCosts:
    """Costs of queries at these prices, in the rows of ``costs``: :func:`cost_parts` with money."""
    return with_money(cost_parts(costs), costs["model"].astype(str).to_numpy(), served_share(costs), prices)


def served_share(costs: pd.DataFrame) -> np.ndarray:
    """The share of cells that a server answered, ``(points,)``; NaN if unknown."""
    return costs["served"].to_numpy(dtype=float) if "served" in costs else np.full(len(costs), np.nan)


def with_money(parts: QueryCosts, models: np.ndarray, served: np.ndarray, prices: PricesOf | None) -> QueryCosts:
    """Convert costs by ``PARTS`` to costs by ``MEASURES``, for the points' models and the share that a server
    answered.
    """
    first = len(MEASURES) - 1
    money = [np.full(len(models), np.nan) for _ in parts]
    for model in dict.fromkeys(models.tolist()):
        price = prices.get(model, Prices()) if isinstance(prices, Mapping) else prices or Prices()
        by_hour = _by_hour(price, served)
        for paid, part in zip(money, parts, strict=True):
            units = dict(zip(UNITS, part[:, first:].T, strict=True))
            of_tokens = sum(getattr(price, name) * units[name] for name in UNITS[:-1])
            paid[models == model] = np.where(by_hour, price.hour * units["hour"], of_tokens)[models == model]
    return QueryCosts(*(np.column_stack([part[:, :first], paid]) for part, paid in zip(parts, money, strict=True)))


def _by_hour(prices: Prices, served: np.ndarray) -> np.ndarray:
    """Which points are priced by the hour: ``(points,)`` bool, given whether a server answered (NaN: unknown).

    Without a token price all are (a private server); with one, only those that this machine answered.
    """
    if np.isnan(prices.hour):
        return np.zeros(len(served), dtype=bool)
    return np.asarray(served == 0) | (not prices.of_tokens_known)


def _billed(number: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Billed tokens per query and one-time: new, cached, of the answer and written, ``(4, points)`` each."""
    tokens = {name: np.nan_to_num(column) for name, column in number.items() if name.endswith("_tokens")}
    written, cached = tokens["cache_write_tokens"], tokens["cached_tokens"]
    warm_new, warm_written = (tokens[f"warm_{how}_tokens"] / number["rows_a_cell"] for how in ("new", "written"))
    query = [
        tokens["prompt_tokens"] - cached - written - warm_new,
        cached + warm_new + warm_written,
        tokens["answer_tokens"],
        written - warm_written,
    ]
    once_new, once_written = tokens["once_new_tokens"], tokens["once_written_tokens"]
    once = [once_new, -once_new - once_written, np.zeros_like(once_new), once_written]
    return np.array(query), np.array(once)
