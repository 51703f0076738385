"""Budgets of a race: what is read, and how they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.choosing.spending import EXPECTED, Spend, read_spend
from icl_bench.errors import UserError


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("30m", 1800, "time"),
        ("2Mtokens", 2e6, "tokens"),
        ("2m tokens", 2e6, "tokens"),
        ("500ktokens", 5e5, "tokens"),
        ("1,500,000 tokens", 1.5e6, "tokens"),
        ("1token", 1, "tokens"),
        ("$5", 5, "money"),
        (" €0.50 ", 0.5, "money"),
        ("$.5", 0.5, "money"),
    ],
)
def test_a_budget_is_time_tokens_or_money(text: str, amount: float, unit: str) -> None:
    spend = Spend.parse(text)
    assert (spend.amount, spend.unit) == (amount, unit)


@given(st.text(max_size=12))
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    said = ""
    try:
        spend = Spend.parse(text)
    except UserError as error:
        said = str(error)
    assert (EXPECTED in said and "\n" not in said) if said else spend.amount > 0


@pytest.mark.parametrize(
    "text", ["", "5", "$", "$0", "0tokens", "2M", "5$", "-3m", "nan tokens", "$1e400", "$" + "9" * 400]
)
def test_what_has_no_unit_or_is_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="in quotes"):
        Spend.parse(text)


def test_a_number_is_seconds() -> None:
    assert read_spend(90) == read_spend(90.0) == Spend(90.0, "time")
    with pytest.raises(UserError):
        read_spend(-1)


@given(st.sampled_from(["time", "tokens", "money"]), st.floats(0.01, 1e9))
def test_the_least_that_is_named_is_enough_and_can_be_given(unit: str, amount: float) -> None:
    spend = Spend(1.0, unit)  # type: ignore[arg-type]
    least = Spend.parse(spend.at_least(amount))
    assert least.unit == unit
    assert amount * (1 - 1e-6) <= least.amount <= max(amount * 1.11, amount + 1)
