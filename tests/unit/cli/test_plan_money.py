"""What a server would ask for a plan: every token at its price."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import fakes, in_process
from support.models import llama_tokenizer, tiny_checkpoint
from support.program import as_words

import icl_bench
from icl_bench.cli.output.plan import plan_total
from icl_bench.errors import UserError
from icl_bench.models.prices import Prices
from icl_bench.sweep.plan import shares_asked
from icl_bench.sweep.plan_money import answer_range, money_range, planned_money
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.wording import three_digits

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


def test_answers_with_thoughts_are_a_range_up_to_the_limit_of_tokens(tmp_path: Path) -> None:
    (cell,) = fakes.plan(tmp_path / "task", k="4", draws=1).cells
    least, most = money_range(cell, PRICES, answer_range(cell, 4000))
    assert money_range(cell, PRICES, answer_range(cell, thoughts=4000 - cell.answer_tokens)) == (least, most)
    assert least == planned_money(cell, PRICES)
    thought = 10.0 * cell.queries * (4000 - cell.answer_tokens) / 1e6
    assert most == pytest.approx((least.cached + thought, least.uncached + thought))


SERVED = ["--backend", "openai", "--base-url", "https://api.example.com/v1", "--tokenizer", "smollm2-135m-instruct"]


def plan_words(model: str, *words: str) -> list[str]:
    return ["plan", "--task", "stdlib_six", "--model", model, "--k", "1,5", "--draws", "2", "--test-size", "5", *words]


def table_has(monkeypatch: pytest.MonkeyPatch, prices: Prices) -> None:
    monkeypatch.setattr("icl_bench.models.prices.table_prices", lambda *_: prices)


def test_each_cell_and_the_whole_sweep_have_a_price_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table_has(monkeypatch, replace(PRICES, origin="chat-1 of Maker in a table of 2026-03-01"))
    words = plan_words("chat-1", *SERVED, "--unconstrained", "--price", "auto")
    told = " ".join(in_process.said(*words).split())
    assert "prices: US dollars per million tokens, chat-1 of Maker in a table of 2026-03-01" in told
    records = json.loads(in_process.said(*words, "--json"))
    assert all(0 < row["money_cached"] <= row["money_uncached"] for row in records)
    assert "money_cached_most" not in records[0]
    in_all = three_digits(sum(row["money_uncached"] for row in records))
    assert f"{in_all} if it has nothing; answers without thoughts" in told
    cached = three_digits(sum(row["money_cached"] for row in records))
    assert told.endswith(f"tokens to compute, price {cached} ({in_all} if nothing is cached)")
    thinking = json.loads(in_process.said(*words, "--json", "--server-arg", "max_completion_tokens=4000"))
    for row, longer in zip(records, thinking, strict=True):
        assert longer["money_cached"] == row["money_cached"]
        more = 10.0 * 5 * (4000 - row["answer_tokens"]) / 1e6
        assert longer["money_cached_most"] == pytest.approx(row["money_cached"] + more)
    told = in_process.said(*words, "--server-arg", "max_completion_tokens=4000")
    assert "from answers without thoughts to answers at the limit of tokens" in " ".join(told.split())


def test_prompts_that_later_draws_copy_are_paid_once(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="2", draws=3, selects=["bm25"])
    later = plan.cells[1:]
    assert all(0 < cell.same_prompts <= cell.queries for cell in later)
    none, kept = [None] * 3, [True, False, False]
    assert shares_asked(plan.cells, none) == [1, *(1 - cell.same_prompts / cell.queries for cell in later)]
    # what an earlier command stored is not copied
    assert shares_asked(plan.cells, kept)[1:] == [1, 1 - later[1].same_prompts / later[1].queries]


def test_a_retrievals_draws_cost_what_one_costs_in_a_plan() -> None:
    words = plan_words(
        "chat-1", *SERVED, "--unconstrained", "--price", "input=3,cached=1,output=10", "--select", "bm25"
    )
    records = json.loads(in_process.said(*words, "--json"))
    told = " ".join(in_process.said(*words).split())
    draws = [[row for row in records if row["draw"] == draw] for draw in (0, 1)]
    for one, two in zip(*draws, strict=True):
        assert two["money_cached"] == pytest.approx(one["money_cached"] * (1 - two["same_prompts"] / 5), rel=0.1)
    assert any(row["same_prompts"] for row in records)
    in_all = three_digits(sum(row["money_uncached"] for row in records))
    assert f"{in_all} if it has nothing" in told


def test_the_total_of_a_plan_counts_prompts_that_later_draws_copy_once(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "tiny", tokenizer=llama_tokenizer())
    task = fakes.write_task(tmp_path / "task")
    words = [*as_words("plan --select dense --k 2 --price hour=7200 --task"), str(task), "--model", str(model)]

    def total(draws: int) -> str:
        told = " ".join(in_process.said(*words, "--draws", str(draws)).split())
        return told.partition(" in all: ")[2].partition(",")[2].partition(" to compute")[0]

    records = json.loads(in_process.said(*words, "--draws", "3", "--json"))
    assert [row["same_prompts"] for row in records] == [0, 6, 6]
    assert total(3) == total(1) == f" {records[0]['new_tokens']:,} tokens"
    assert [row["money_cached"] > 0 for row in records] == [True, False, False]
    settings = [{"name": "dense", "select": "dense", "k": 2, "draws": 3, "dtype": "float32"}]
    study = {"tasks": [str(task)], "models": [str(model)], "settings": settings}
    (tmp_path / "study.yaml").write_text(json.dumps(study))  # JSON is YAML
    told = in_process.said("study", tmp_path / "study.yaml", "--plan", "--json")
    assert [row["new_tokens"] for row in json.loads(told)] == [records[0]["new_tokens"], 0, 0]


def test_this_machine_is_paid_by_the_hour() -> None:
    records = json.loads(in_process.said(*plan_words("smollm2-135m-instruct", "--price", "hour=7200", "--json")))
    assert all(row["money_cached"] == row["money_uncached"] for row in records)
    assert sum(row["money_cached"] for row in records) == pytest.approx(
        2 * sum(row["seconds"] for row in records), abs=0.1 * len(records)
    )
    told = in_process.said(*plan_words("smollm2-135m-instruct", "--price", "hour=7200"))
    assert "by the hour" in told
    served = json.loads(
        in_process.said(*plan_words("chat-1", *SERVED, "--unconstrained", "--price", "hour=1", "--json"))
    )
    assert {row["money_cached"] for row in served} == {None}, "nobody knows how long a server takes"


def test_a_plan_without_a_price_of_its_model_is_refused_before_it_is_printed() -> None:
    ended = in_process.run_command(*plan_words("smollm2-135m-instruct", "--price", "auto"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(
        "error: --price: smollm2-135m-instruct: models on your own machine have no price per token"
    )
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("command", [["plan"], ["run", "--budget", "1"], ["run"]], ids=" ".join)
def test_longer_prompts_than_a_price_is_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    table_has(monkeypatch, replace(PRICES, most=10))
    words = ["--unconstrained", "--price", "auto", "--results", str(tmp_path / "results")]
    ended = in_process.run_command(*command, *plan_words("chat-1", *SERVED, *words)[1:])
    assert ended.code == 2
    assert "error: --price auto: chat-1 costs more for prompts of more than 10 tokens" in ended.err
    assert not (tmp_path / "results").exists()


def test_python_takes_a_price_too() -> None:
    asked = {"task": "stdlib_six", "model": "smollm2-135m-instruct", "k": [1], "draws": 1, "test_size": 5}
    table = icl_bench.plan(**asked, price={"input": 1, "cached": 0.5, "output": 2})
    assert (table["money_cached"] <= table["money_uncached"]).all()


SMALL: dict[str, Any] = {"task": "stdlib_six", "model": "smollm2-135m-instruct", "test_size": 5}
TOTAL = re.compile(r"([\d,]+) tokens to compute")


def total_tokens(*words: str) -> int:
    """The tokens of the last line of a plan."""
    (*_, told) = TOTAL.findall(" ".join(in_process.said(*words).split()))
    return int(told.replace(",", ""))


def test_a_plan_counts_copied_prompts_once_and_prices_their_hours_once() -> None:
    words = plan_words("smollm2-135m-instruct", "--select", "bm25", "--price", "hour=7200")
    records = json.loads(in_process.said(*words, "--json"))
    shares = [1 - row["same_prompts"] / 5 if row["draw"] else 1 for row in records]
    assert min(shares) < 1
    tokens = sum(share * row["new_tokens"] for share, row in zip(shares, records, strict=True))
    assert total_tokens(*words) == pytest.approx(tokens, abs=1)
    for share, row in zip(shares, records, strict=True):
        assert row["money_cached"] == pytest.approx(2 * share * row["seconds"], abs=0.1)


def test_what_an_earlier_run_read_is_read_again_for_a_larger_k() -> None:
    (alone,) = Sweep.prepare(RunSpec(**SMALL, k="5", draws=1), to_run=False).plan.cells
    sweep = Sweep.prepare(RunSpec(**SMALL, k="1,5", draws=1), to_run=False)
    first, second = sweep.plan.cells
    assert second.new_tokens == alone.new_tokens - first.prefix_tokens
    assert sweep.continued([False, False]).plan.cells == [first, second]
    assert sweep.continued([None, True]).plan.cells == [first, second]
    kept, again = sweep.continued([True, False]).plan.cells
    assert (kept, again.new_tokens) == (first, alone.new_tokens)
    total = plan_total(sweep.continued([True, False]), [True, False])
    assert total.tokens == alone.new_tokens


def test_a_plan_of_stored_results_counts_the_demonstrations_of_a_larger_k(tmp_path: Path) -> None:
    words = ["--task", "stdlib_six", "--model", "smollm2-135m-instruct", "--draws", "1", "--test-size", "2"]
    results = ["--results", str(tmp_path / "results")]
    in_process.run_command("run", *words, "--k", "1", *results, "--quiet")
    assert total_tokens("plan", *words, "--k", "1,3", *results) == total_tokens("plan", *words, "--k", "3")
    records = json.loads(in_process.said("plan", *words, "--k", "1,3", *results, "--json"))
    left = [record["new_tokens"] for record in records if not record["finished"]]
    assert sum(left) == total_tokens("plan", *words, "--k", "3")
