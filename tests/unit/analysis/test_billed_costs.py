"""The frontier and advice count what a server billed: sums equal the server's log to the last token and cent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fakes
from support.billing import Bill, of_model, run_at_server
from support.predictions import cell, frame
from support.stored import meta

from icl_bench.analysis.advice import Budget, advise_folder
from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.frontier import frontier_of_folder
from icl_bench.analysis.query_cost import MEASURES, query_costs
from icl_bench.models.prices import Prices

PRICES = Prices(input=3.0, cached=0.3, output=15.0, write=3.75)
ROWS = 6
"""Test rows of the fakes' task: the queries of a cell."""


@pytest.mark.parametrize("writes", [True, False])
def test_a_folder_costs_what_the_server_billed_to_the_last_token_and_cent(tmp_path: Path, writes: bool) -> None:
    bill = Bill(writes)
    run_at_server(fakes.plan(tmp_path / "task", "4", draws=1), tmp_path / "results", bill)
    assert len(bill.requests) == ROWS
    assert bill.requests[0].cached == 0
    assert bill.requests[1].cached > 0
    (row,) = frontier_of_folder(tmp_path / "results", ROWS, PRICES).to_dict("records")
    assert round(row["tokens"] * ROWS, 9) == bill.tokens
    assert row["money"] * ROWS == pytest.approx(bill.money(PRICES), rel=1e-12)
    advised = advise_folder(tmp_path / "results", Budget(queries=ROWS, prices=PRICES))
    assert advised["money"].tolist() == [row["money"]]


@pytest.mark.parametrize("writes", [True, False])
def test_the_cache_is_filled_once_however_many_queries_there_are(tmp_path: Path, writes: bool) -> None:
    bill = Bill(writes)
    run_at_server(fakes.plan(tmp_path / "task", "4", draws=1), tmp_path / "results", bill)
    prefix = bill.requests[1].cached
    others = sum(one.prompt - prefix for one in bill.requests) / ROWS
    answers = sum(one.answer for one in bill.requests) / ROWS
    each = (PRICES.input * others + PRICES.cached * prefix + PRICES.output * answers) / 1e6
    filled = prefix * ((PRICES.write if writes else PRICES.input) - PRICES.cached) / 1e6
    for queries in (1, 100, 10**6):
        (row,) = frontier_of_folder(tmp_path / "results", queries, PRICES).to_dict("records")
        assert row["money"] * queries == pytest.approx(queries * each + filled, rel=1e-12)
        assert row["tokens"] * queries == pytest.approx(queries * (others + answers) + prefix, rel=1e-12)


@pytest.mark.parametrize("writes", [True, False])
def test_a_larger_k_that_found_a_part_in_the_cache_pays_for_it_when_it_is_used_alone(
    tmp_path: Path, writes: bool
) -> None:
    bill = Bill(writes)
    run_at_server(fakes.plan(tmp_path / "task", "1,4", draws=1), tmp_path / "results", bill)
    small, large = bill.requests[:ROWS], bill.requests[ROWS:]
    table = frontier_of_folder(tmp_path / "results", ROWS, PRICES).set_index("k")
    found = large[0].cached
    assert found == small[1].cached > 0
    not_found = (PRICES.write if writes else PRICES.input) - PRICES.cached
    in_all = bill.money(PRICES) + found * not_found / 1e6
    assert (table["money"] * ROWS).sum() == pytest.approx(in_all, rel=1e-12)
    assert round((table["tokens"] * ROWS).sum(), 9) == bill.tokens + found


def test_draws_and_their_caches_add_up(tmp_path: Path) -> None:
    bill = Bill(writes=True)
    plan = fakes.plan(tmp_path / "task", "4", draws=1)
    for model in ("one", "two"):
        bill.held = 0
        run_at_server(of_model(plan, model), tmp_path / "results", bill)
    table = frontier_of_folder(tmp_path / "results", ROWS, PRICES)
    assert table["model"].tolist() == ["one", "two"]
    assert (table["money"] * ROWS).sum() == pytest.approx(bill.money(PRICES), rel=1e-12)


def test_the_table_of_costs_has_written_and_thought_tokens(tmp_path: Path) -> None:
    bill = Bill(writes=True)
    run_at_server(fakes.plan(tmp_path / "task", "4", draws=1), tmp_path / "results", bill)
    (row,) = read_findings(tmp_path / "results").cost.to_dict("records")
    assert row["cache_write_tokens"] * ROWS == pytest.approx(sum(one.written for one in bill.requests))
    assert row["reasoning_tokens"] * ROWS == pytest.approx(sum(5 + i for i in range(ROWS)))
    assert row["served"] == 1.0


tokens = st.integers(0, 3000)


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.tuples(tokens, tokens, tokens, tokens), min_size=2, max_size=2), min_size=1, max_size=5),
    st.booleans(),
)
def test_whatever_the_cache_did_queries_and_filling_cost_at_least_the_bill(
    cells: list[list[tuple[int, int, int, int]]], writes: bool
) -> None:
    """Misses, evictions, caches that were full before: the bill and no more than a cell's whole prefix on top."""
    parts, billed = [], 0.0
    for draw, requests in enumerate(cells):
        new, cached, written, answer = map(list, zip(*requests, strict=True))
        written = written if writes else [0] * len(written)
        prompt = [sum(counts) for counts in zip(new, cached, written, strict=True)]
        columns: dict[str, Any] = {
            "prompt_tokens": prompt,
            "local_prompt_tokens": prompt,
            "cached_tokens": cached,
            "cache_write_tokens": written if writes else None,
            "answer_tokens": answer,
        }
        parts.append(cell("ab", "ab", draw=draw, cell=f"c{draw}").assign(**columns))
        counts = zip(new, cached, written, answer, strict=True)
        billed += sum(float(PRICES.of_tokens(n, c, a, w)) for n, c, w, a in counts)
    rows = frame(*parts)
    table = cost(rows, {f"c{draw}": CellCost.of(meta()) for draw in range(len(cells))})
    paid = query_costs(table, PRICES)
    money = MEASURES.index("money")
    in_all = (paid.each[0, money] * 2 + paid.once[0, money]) * len(cells)
    prefix = sum(sum(cached for _, cached, _, _ in requests) / 2 for requests in cells)
    assert billed - 1e-12 <= in_all <= billed + prefix * PRICES.write / 1e6 + 1e-12
    assert (paid.each[0, [0, money]] >= -1e-12).all()


def test_a_machine_is_paid_by_the_hour_trainings_included() -> None:
    rows = frame(cell("aabb", select="lora", cell="c")).assign(prompt_tokens=9, cached_tokens=0, answer_tokens=2)
    took = CellCost(seconds=8.0, served=False)
    costs: pd.DataFrame = cost(rows, {"c": took}).assign(training_seconds=3600.0, training_tokens=1.0)
    money = MEASURES.index("money")
    paid = query_costs(costs, Prices(hour=1.8))
    assert paid.each[0, money] == pytest.approx(2 * 1.8 / 3600)
    assert paid.once[0, money] == pytest.approx(1.8)
    both = query_costs(costs, Prices(1, 1, 1, hour=1.8))
    assert both.of(100)[0, money] == paid.of(100)[0, money], "no server bills what this machine does"
    served = query_costs(costs.assign(select="random", served=1.0), Prices(1, 1, 1, hour=1.8))
    assert served.each[0, money] == pytest.approx((9 + 2) / 1e6)
    unknown = query_costs(costs.assign(training_seconds=float("nan")), Prices(hour=1.8))
    assert pd.isna(unknown.of(100)[0, money]), "a training of which nothing is known is not free"
