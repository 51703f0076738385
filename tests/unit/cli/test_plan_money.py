"""What a server would ask for a plan: every token at its price."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support import fakes

from icl_bench.errors import UserError
from icl_bench.models.prices import Prices
from icl_bench.sweep.plan_money import planned_money

PRICES = Prices(input=3.0, cached=0.5, output=10.0, write=4.0)


def test_every_token_of_a_plan_has_its_price(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="1,2,4", draws=1)
    seen = 0
    for cell in plan.cells:
        own = cell.prompt_tokens - cell.queries * cell.prefix_tokens
        written = seen_new = cell.new_tokens - own
        seen += seen_new
        answers = cell.queries * cell.answer_tokens
        cached, uncached = planned_money(cell, PRICES)
        assert uncached == pytest.approx((3.0 * cell.prompt_tokens + 10.0 * answers) / 1e6)
        parts = 3.0 * own + 4.0 * written + 0.5 * (cell.prompt_tokens - own - written) + 10.0 * answers
        assert cached == pytest.approx(parts / 1e6)
    assert seen == max(cell.prefix_tokens for cell in plan.cells)  # a nested prefix is written once


def test_a_written_token_costs_as_much_as_a_new_one_where_nothing_is_said() -> None:
    assert Prices.parse("input=2,cached=1,output=4") == Prices(2, 1, 4, 2)
    assert Prices.parse("input=2,cached=1,output=4,write=2.5").write == 2.5
    assert Prices(2, 1, 4).of_tokens(new=10**6, cached=10**6, answers=10**6, written=10**6) == 9
    assert not math.isnan(Prices(2, 1, 4).write)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("input=2,cached=1", "output missing"),
        ("input=2,cached=1,output=4,wirte=1", "wirte=1: write input="),
        ("input=2,cached=1,output=4,write=-1", "write is -1"),
    ],
)
def test_wrong_prices_are_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Prices.parse(text)
