"""What a query takes at a point: tokens, operations, seconds and money, with its share of what is
computed once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.columns import POINT
from icl_bench.demonstrations.selector_spec import known
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import pattern_of
from icl_bench.results.trained_methods import BASELINES
from icl_bench.wording import plain, whole

if TYPE_CHECKING:
    import pandas as pd

QUERIES = 1000
"""The default number of queries that share what is computed once."""

MEASURES = ("tokens", "operations", "seconds", "money")


@dataclass(frozen=True)
class Prices:
    """What a server asks for a million tokens, in any currency."""

    input: float
    """Of the prompt, computed anew."""
    cached: float
    """Of the prompt, from its cache."""
    output: float
    write: float = math.nan
    """Of the prompt, written into its cache; ``input`` where nothing is said."""

    def __post_init__(self) -> None:
        if math.isnan(self.write):
            object.__setattr__(self, "write", self.input)

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Read ``input=0.5,cached=0.05,output=1.5``, with ``write=0.6`` where it costs more. Raises ``UserError``."""
        shown = f"--price {plain(text[:60])}"
        like = (
            "write input=0.5,cached=0.05,output=1.5 (per million tokens; write=0.6 where a cache's writing costs more)"
        )
        prices: dict[str, float] = {}
        for word in text.split(","):
            name, _, number = (part.strip() for part in word.partition("="))
            if name not in ("input", "cached", "output", "write") or name in prices:
                raise UserError(f"{shown}: {plain(word[:30])}: {like}")
            try:
                prices[name] = float(number)
            except ValueError:
                raise UserError(f"{shown}: {plain(word[:30])}: not a number; {like}") from None
            if not 0 <= prices[name] < math.inf:
                raise UserError(f"{shown}: {name} is {number}; a price is 0 or more")
        if missing := [name for name in ("input", "cached", "output") if name not in prices]:
            raise UserError(f"{shown}: {' and '.join(missing)} missing; {like}")
        return cls(**prices)

    def of_tokens(self, new: Any, cached: Any = 0.0, answers: Any = 0.0, written: Any = 0.0) -> Any:
        """Money for so many tokens, numbers or arrays: of prompts, new, from the cache and into it, and of answers."""
        paid = self.input * new + self.cached * cached + self.output * answers + self.write * written
        return paid / 1e6


def check_queries(queries: int) -> None:
    """Raise ``UserError`` for a number of queries that nobody can mean."""
    if not 1 <= queries <= 10**15:
        raise UserError(f"--queries {whole(queries)}: expected 1 or more")


class QueryCosts(NamedTuple):
    """What points take, by ``MEASURES``: ``(points, 4)`` each, NaN where it is not known."""

    each: np.ndarray
    """Of every query."""
    once: np.ndarray
    """Of all queries together."""

    def of(self, queries: int) -> np.ndarray:
        """What a query takes where as many share what is computed once: ``(points, 4)``."""
        total: np.ndarray = self.each + self.once / queries
        return total

    def with_one(self, more: QueryCosts) -> QueryCosts:
        """The same and, as the last point, one more, whose parts are ``(4,)``."""
        return QueryCosts(*(np.vstack(pair) for pair in zip(self, more, strict=True)))


def query_costs(costs: pd.DataFrame, prices: Prices | None) -> QueryCosts:
    """Tell apart what each query takes and what is computed once, in the rows of ``costs``.

    ``costs`` is :func:`icl_bench.analysis.findings.cost.cost`'s table. Columns are ``MEASURES``:

    - tokens that are computed, of prompts, answers and trainings;
    - operations, by formula (flops);
    - seconds, as measured: ``prefill_seconds`` tell apart what was computed once, which in a nested
      sweep is what a smaller k did not have yet;
    - money, at these prices; NaN without, and for trainings, which have no price of tokens.

    Once for all queries are a training, the queries that were asked to calibrate, and the
    demonstrations that all queries share; retrieved
    ones are each query's own, but for those that are reused, whose tokens are not counted (NaN).
    A training that nobody knows of is not free: what it trained has no cost (NaN).
    """
    number = {name: costs[name].to_numpy(dtype=float) for name in costs if name not in POINT}
    choices = [known(str(select)) for select in costs["select"]]
    patterns = [pattern_of(str(attention)) for attention in costs["attention"]]
    reuses = np.array([pattern is not None and pattern.reuses for pattern in patterns], dtype=bool)
    own = np.array([choice is not None and choice.retrieves for choice in choices], dtype=bool)
    own &= ~reuses
    trained = costs["select"].astype(str).isin(BASELINES).to_numpy()
    training = {n: np.nan_to_num(number[f"training_{n}"]) for n in ("tokens", "flops", "seconds")}
    vectors = np.array([p is not None and p.reads_vectors for p in patterns], dtype=bool)
    nothing = np.zeros(len(costs))
    asked = {n: np.nan_to_num(number.get(f"calibration_{n}", nothing)) for n in ("tokens", "flops", "seconds")}
    learnt = (trained | vectors) & (costs["k"].to_numpy() > 0)
    answer = np.nan_to_num(number["answer_tokens"])

    shared = np.where(reuses, np.nan, np.where(own | trained, 0.0, number["cached_tokens"]))
    anew = np.where(own, number["prompt_tokens"], number["computed_tokens"])
    prefix = np.where(own | trained, 0.0, number["prefix_flops"])
    prefill = np.where(own, 0.0, np.nan_to_num(number["prefill_seconds"]))
    alone = np.maximum(number["seconds"] - prefill / number["rows_a_cell"], 0.0)
    paid = paid_once = np.full(len(costs), np.nan)
    if prices is not None:
        sums = prices.of_tokens(anew, shared, answer), prices.of_tokens(asked["tokens"], written=shared)
        paid, paid_once = (np.where(trained, np.nan, money) for money in sums)
    each = [anew + answer, np.where(own, number["whole_flops"], number["query_flops"]), alone, paid]
    more = {name: training[name] + asked[name] for name in training}
    once = [shared + more["tokens"], prefix + more["flops"], prefill + more["seconds"], paid_once]
    result = QueryCosts(np.column_stack(each), np.column_stack(once))
    for place, name in enumerate(("tokens", "flops", "seconds")):
        result.each[learnt & np.isnan(number[f"training_{name}"]), place] = np.nan
    return result
