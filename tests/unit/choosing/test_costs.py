"""What settings cost, and where one becomes the cheaper one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.analysis.query_cost import MEASURES, QueryCosts
from icl_bench.choosing.costs import crossing, measure_of

COSTS = st.floats(0.0, 1e6)


def costs(*rows: tuple[float, float], measure: str = "operations") -> QueryCosts:
    """Costs of which one measure is known: what each query takes, and all of them once."""
    each, once = np.full((len(rows), 4), np.nan), np.full((len(rows), 4), np.nan)
    each[:, MEASURES.index(measure)], once[:, MEASURES.index(measure)] = zip(*rows, strict=True)
    return QueryCosts(each, once)


def test_a_long_shared_prompt_is_cheaper_above_the_crossing() -> None:
    assert crossing(costs((10.0, 0.0), (4.0, 600.0)), 0, 1, "operations") == 100
    assert crossing(costs((4.0, 0.0), (10.0, 600.0)), 0, 1, "operations") is None
    assert crossing(costs((4.0, 0.0), (4.0, 600.0)), 0, 1, "operations") is None
    assert crossing(costs((10.0, 0.0), (4.0, 3.0)), 0, 1, "operations") is None  # at half a query
    assert crossing(costs((1.0, 0.0), (0.0, 1.0)), 0, 1, "operations") == 1


@given(st.tuples(COSTS, COSTS), st.tuples(COSTS, COSTS))
def test_at_the_crossing_both_cost_the_same_and_beyond_it_the_one_with_the_cheaper_query(
    one: tuple[float, float], other: tuple[float, float]
) -> None:
    both = costs(one, other)
    number = crossing(both, 0, 1, "operations")
    assert number == crossing(both, 1, 0, "operations")
    if number is None:
        cheaper = [one[0] * n + one[1] <= other[0] * n + other[1] for n in (1, 1e12)]
        assert one[0] == other[0] or cheaper[0] == cheaper[1] or one[1] == other[1] or one == other
        return
    assert number * one[0] + one[1] == pytest.approx(number * other[0] + other[1], rel=1e-6)
    beyond = [2 * number * each + once for each, once in (one, other)]
    assert (beyond[0] < beyond[1]) == (one[0] < other[0]) or beyond[0] == pytest.approx(beyond[1])


def test_settings_are_compared_by_money_then_operations_then_tokens() -> None:
    known = costs((1.0, 0.0), (2.0, 0.0), measure="tokens")
    assert (measure_of(known, 1), measure_of(known, 2)) == ("tokens", None)
    known.each[:, 1], known.once[:, 1] = 1.0, 0.0
    assert measure_of(known, 1) == "operations"
    known.each[:, 3], known.once[:, 3] = (1.0, np.nan), 0.0
    assert measure_of(known, 1) == "operations"
    known.each[1, 3] = 1.0
    assert measure_of(known, 1) == "money"
    known.each[:, 3] = 0.0  # nothing costs money: this tells no two settings apart
    assert measure_of(known, 1) == "operations"
    known.once[0, 3] = 0.5
    assert measure_of(known, 1) == "money"
