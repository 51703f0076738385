"""Points of several models in one frontier and one advice."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import fakes, in_process
from support.billing import SERVED, Bill, of_model, run_at_server
from support.predictions import AXES, frame, imported, scored
from support.stored import facts_of

import icl_bench
from icl_bench.analysis.across_models import on_same_rows
from icl_bench.analysis.advice import Budget, advise, lines
from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.columns import POINT
from icl_bench.analysis.frontier import STEPS, compare, frontier_of_folder, leading
from icl_bench.analysis.query_cost import MEASURES
from icl_bench.analysis.statistics.dominance import DOMINATED, ON
from icl_bench.errors import UserError
from icl_bench.models.prices import Prices, UnknownModelError
from icl_bench.report.naming import Naming
from icl_bench.report.sections.index import sections
from icl_bench.results.store import Store

COMPUTED = ["cell", "score", "metric"]
"""Columns that an import does not have."""


def point(accuracy: float, draws: int = 3, seed: int = 0, **changes: Any) -> pd.DataFrame:
    """Predictions of a point on 200 test rows; of one seed, a higher accuracy is right wherever a lower one is."""
    chance = np.random.default_rng(seed).random((draws, 200))
    rows = scored(chance < accuracy, cell=str(changes), **changes)
    return rows.assign(score=rows["correct"].astype(float), metric="accuracy")


def costs(seconds: float, **changes: Any) -> dict[str, Any]:
    unknown = ("prefill_seconds", *(f"training_{name}" for name in ("tokens", "flops", "seconds")))
    flops = {"prefix_flops": 0.0, "query_flops": np.nan, "whole_flops": np.nan}
    tokens = {"prompt_tokens": 10.0, "cached_tokens": 0.0, "computed_tokens": 10.0, "answer_tokens": 1.0}
    axes = {name: AXES[name] for name in POINT}
    return {
        **axes,
        **tokens,
        **flops,
        **dict.fromkeys(unknown, np.nan),
        "rows_a_cell": 200,
        "seconds": seconds,
        **changes,
    }


def two_models() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A dear server's prompts at k=1, 2 and 3, and two ways with a cheap model here."""
    served = [point(rate, k=k, model="api", variant="a") for k, rate in enumerate((0.3, 0.45, 0.95), 1)]
    here = [point(0.7, k=2, model="local", select="lora", variant="l"), point(0.1, k=1, model="local", variant="p")]
    paid = pd.DataFrame(
        [
            *(costs(10.0 + k, k=k, model="api", variant="a") for k in (1, 2, 3)),
            costs(2.0, k=2, model="local", select="lora", variant="l", training_seconds=1.0),
            costs(1.0, k=1, model="local", variant="p"),
        ]
    )
    return frame(*served, *here), paid


def test_a_training_here_dominates_a_servers_prompts_in_one_set_of_verdicts() -> None:
    rows, paid = two_models()
    apart = compare(rows, paid, [1000], None).table.set_index(["model", "select", "k"])
    table = compare(rows, paid, [1000], None, across=True).table.set_index(["model", "select", "k"])
    verdicts = table["verdict_seconds"].to_dict()
    assert apart.loc[("api", "random", 1), "verdict_seconds"] == ON, "alone it is the cheapest"
    assert verdicts == {
        ("api", "random", 1): DOMINATED,
        ("api", "random", 2): DOMINATED,
        ("api", "random", 3): ON,
        ("local", "lora", 2): ON,
        ("local", "random", 1): ON,
    }
    assert table["score"].equals(apart["score"].reindex(table.index))


def test_tokens_of_different_models_are_not_compared() -> None:
    rows, paid = two_models()
    table = compare(rows, paid, [1000], None, across=True).table
    assert table["verdict_tokens"].isna().all()
    assert table["tokens"].notna().any()
    assert leading(table, None, across=True) == "seconds"
    assert leading(table.assign(money=1.0), Prices(1, 1, 1), across=True) == "money"
    assert leading(table.assign(seconds=np.nan, operations=1.0), None, across=True) == "operations"


def test_verdicts_are_corrected_for_the_points_of_all_models() -> None:
    """As if all points were one model's, where no draws are in common anyway."""
    rates = {"a": (0.5, 0.62), "b": (0.55, 0.69), "c": (0.6, 0.66)}
    parts, paid = [], []
    for at, (model, pair) in enumerate(rates.items()):
        for k, rate in enumerate(pair, 1):
            axes = {"k": k, "model": model, "select": "bm25", "variant": model}
            parts.append(point(rate, draws=1, seed=10 * at + k, **axes))
            paid.append(costs(float(at + k), **axes))
    rows, table = frame(*parts), pd.DataFrame(paid)
    across = compare(rows, table, [10], None, across=True).table
    merged = compare(rows.assign(model="m"), table.assign(model="m"), [10], None).table
    assert across["p_seconds"].tolist() == pytest.approx(merged["p_seconds"].tolist())
    assert across["verdict_seconds"].tolist() == merged["verdict_seconds"].tolist()
    apart = compare(rows, table, [10], None).table
    assert (across["p_seconds"].to_numpy() >= apart["p_seconds"].to_numpy() - 1e-12).sum() >= 3


def test_rows_of_other_data_are_not_compared() -> None:
    rows, paid = two_models()
    data = {"a": {"test.jsonl": "1"}, "l": {"test.jsonl": "1"}, "p": {"test.jsonl": "2"}}
    facts = facts_of({variant: {"data": files} for variant, files in data.items()})
    table = compare(rows, paid, [10], None, across=True, facts=facts).table.set_index("variant")
    assert table["other_tests"].to_dict() == {"a": False, "l": False, "p": True}
    assert table.loc["p", "verdict_seconds"] is None
    advised = advise(rows, paid, Budget(queries=10, across=True), facts=facts).set_index("variant")
    assert advised.loc["p", "verdict"] == "other test examples"
    known = on_same_rows(rows, facts_of({"a": {"data": {"test.jsonl": "1"}}}))
    assert known["test_id"].equals(rows["test_id"]), "imports, whose data are unknown, keep their ids"


@pytest.mark.parametrize("replaced", [True, False])
def test_rows_of_other_data_are_not_compared_within_a_model_if_their_right_answers_differ(*, replaced: bool) -> None:
    """A file that was replaced has rows of the same ids; one with more rows to learn from has the same test rows."""
    old = frame(point(0.9, variant="old", k=1), point(0.8, variant="old", k=5))
    new = frame(*(point(0.5 + k / 1000, variant="new", k=k) for k in (10, 25, 50)))
    if replaced:
        new = new.assign(gold=np.where(new["gold"] == "a", "b", "a"))
    rows = frame(old, new)
    ks = {variant: sorted(set(part["k"])) for variant, part in (("old", old), ("new", new))}
    paid = pd.DataFrame([costs(float(k), variant=variant, k=k) for variant, own in ks.items() for k in own])
    facts = facts_of({variant: {"data": {"test.jsonl": variant}} for variant in ks})
    table = compare(rows, paid, [10], None, facts=facts).table
    assert table["other_tests"].tolist() == [replaced and variant == "old" for variant in table["variant"]]
    advised = advise(rows, paid, Budget(), facts=facts)
    assert (advised["verdict"] == "other test examples").sum() == (2 if replaced else 0)


def test_advice_takes_the_cheapest_way_of_all_models() -> None:
    rows, paid = two_models()
    rows = frame(rows[rows["k"] != 3], point(0.5, k=3, model="api", variant="a"))
    budget = Budget(queries=1000, across=True)
    table = advise(rows, paid, budget)
    assert table.loc[table["advised"], ["model", "select"]].to_numpy().tolist() == [["local", "lora"]]
    assert (table["verdict"] == "best").sum() == 1
    told = "\n".join(lines(table, budget))
    assert told.startswith("t, all models, whatever it costs:\n  use local · lora, drawn, k=2 (67.0%, 2 s a query)")
    assert advise(rows, paid, Budget(queries=1000))["advised"].sum() == 2, "one of each model"


@pytest.mark.parametrize(
    ("text", "queries"), [("any", None), ("tokens=100", 10), ("seconds=1", None), ("tokens=100", None)]
)
def test_advice_across_models_refuses_to_count_in_tokens(text: str, queries: int | None) -> None:
    with pytest.raises(UserError, match="--across models: tokens of different models are not comparable"):
        Budget.parse(text, queries, across=True)


def folder(tmp_path: Path) -> Path:
    """A results folder with prompts of a model behind a server and of one on this machine."""
    plan = fakes.plan(tmp_path / "task", "1,4", draws=2)
    results = tmp_path / "results"
    run_at_server(of_model(plan, "api"), results, Bill(writes=True))
    fakes.runner(of_model(plan, "local"), results, fakes.FakeBackend()).run()
    return results


def test_a_server_is_paid_by_token_and_this_machine_by_the_hour(tmp_path: Path) -> None:
    results = folder(tmp_path)
    prices = Prices(1.0, 0.1, 2.0, hour=3600.0)
    table = frontier_of_folder(results, 10, prices, across=True).set_index(["model", "k"])
    assert table.loc["local", "money"].tolist() == pytest.approx(table.loc["local", "seconds"].tolist())
    alone = frontier_of_folder(results, 10, Prices(1.0, 0.1, 2.0), {"model": "api"}).set_index(["model", "k"])
    assert table.loc["api", "money"].tolist() == alone.loc["api", "money"].tolist()
    assert table["verdict_money"].notna().any()
    by_hour = frontier_of_folder(results, 10, Prices(hour=3600.0), across=True)
    assert by_hour["money"].tolist() == pytest.approx(by_hour["seconds"].tolist()), "as a server of one's own"


def test_the_hour_of_a_machine_must_have_a_price_beside_a_server(tmp_path: Path) -> None:
    results = folder(tmp_path)
    for prices in (Prices(1, 1, 1), Prices.parse("auto")):
        with pytest.raises(UserError, match="--price: local: models on your own machine have no price per token"):
            frontier_of_folder(results, 10, prices, across=True)
    assert len(frontier_of_folder(results, 10, Prices(1, 1, 1))) == 4, "each model by itself, as before"


def test_the_command_shows_all_models_in_one_table(tmp_path: Path) -> None:
    results = folder(tmp_path)
    said = partial(in_process.said, "summary", "--results", results)
    price = "input=1,cached=0.1,output=2,hour=2"
    told = said("--frontier", "--across", "models", "--price", price)
    assert "cards, all models, for 1,000 queries" in told
    assert told.count("api · random") == told.count("local · random") == 2
    table = json.loads(said("--frontier", "--across", "models", "--price", price, "--json"))
    assert table["across"] == "models"
    assert table["prices"] == {"input": 1, "cached": 0.1, "output": 2, "write": 1, "hour": 2}
    assert {row["model"] for row in table["frontier"]} == {"api", "local"}
    advice = said("--advice", "any", "--queries", "100", "--across", "models", "--price", price)
    assert advice.startswith("cards, all models, whatever it costs:")
    record = json.loads(said("--advice", "any", "--queries", "100", "--across", "models", "--json"))
    assert record["across"] == "models"
    assert sum(row["advised"] for row in record["advice"]) == 1
    assert "--across: goes with --frontier or --advice" in said("--across", "models", code=2)
    assert "--across tasks: expected models" in said("--frontier", "--across", "tasks", code=2)


def test_a_model_that_the_table_lacks_is_refused_before_anything_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(model: str, server: str | None) -> Prices:
        assert (model, server) == ("api", SERVED["server"])
        raise UserError(f"--price auto: {model}: not in the table")

    monkeypatch.setattr("icl_bench.models.prices.table_prices", unknown)
    told = in_process.said("summary", "--results", folder(tmp_path), "--frontier", "--price", "auto,hour=1", code=2)
    assert told == "error: --price auto: api: not in the table\n"


def test_servers_of_one_model_with_different_prices_in_the_table_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, other = fakes.plan(tmp_path / "task", "1", draws=1), "https://other.example/v1"
    run_at_server(plan, tmp_path / "results", Bill(writes=False))
    monkeypatch.setitem(SERVED, "server", other)
    run_at_server(plan, tmp_path / "results", Bill(writes=False))
    priced = lambda _, server: Prices(9.0 if server == other else 1.0, 0.1, 2.0)  # noqa: E731
    monkeypatch.setattr("icl_bench.models.prices.table_prices", priced)
    with pytest.raises(
        UserError, match=r"--price auto: .*https://api.example.com/v1 and https://other.example/v1 have"
    ):
        frontier_of_folder(tmp_path / "results", 10, Prices.parse("auto"))
    assert len(frontier_of_folder(tmp_path / "results", 10, Prices(1.0, 0.1, 2.0))) == 2
    monkeypatch.setattr("icl_bench.models.prices.table_prices", lambda *_: Prices(1.0, 0.1, 2.0))
    assert len(frontier_of_folder(tmp_path / "results", 10, Prices.parse("auto"))) == 2


def test_prices_of_the_table_are_shown_with_their_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Prices(1.0, 0.1, 2.0, origin="api of Maker in the table of 2026-03-01")
    monkeypatch.setattr("icl_bench.models.prices.table_prices", lambda *_: known)
    said = partial(in_process.said, "summary", "--results", folder(tmp_path), "--price", "auto,hour=1")
    line = "input=1,cached=0.1,output=2,write=1 (api of Maker in the table of 2026-03-01)"
    for command in (["--frontier"], ["--advice", "any", "--queries", "9"]):
        assert line in " ".join(said(*command).split())
    record = json.loads(said("--frontier", "--json"))["prices"]
    assert record["models"]["api"] == {**known.given, "hour": 1.0, "origin": known.origin}
    assert record["models"]["local"] == {"hour": 1.0}


def test_the_facts_of_a_run_decide_who_is_paid(tmp_path: Path) -> None:
    """The same name behind a server and on this machine: each cell as it was run."""
    plan = fakes.plan(tmp_path / "task", "4", draws=1)
    run_at_server(plan, tmp_path / "results", Bill(writes=False))
    replace(fakes.runner(plan, tmp_path / "results", fakes.FakeBackend()), store=Store(tmp_path / "results")).run()
    table = frontier_of_folder(tmp_path / "results", 10, Prices(1.0, 0.1, 2.0, hour=3600.0), across=True)
    assert len(table) == 2
    assert (table["money"] == table["seconds"]).sum() == 1
    assert set(MEASURES) <= set(table)


def test_the_report_draws_all_models_of_a_task_by_seconds(tmp_path: Path) -> None:
    results = folder(tmp_path)
    found = read_findings(results)
    table = found.frontier_across_models
    assert set(table["model"]) == {"api", "local"}
    assert sorted(set(table["queries"])) == list(STEPS)
    by_name = {section.name: section for section in sections(found, Naming.of(found.summary))[0]}
    (drawn,) = by_name["frontier-models"].panels
    assert drawn.title == "cards · all models"
    assert {row["series"] for row in drawn.rows} == {"api, random", "local, random"}
    assert {row["cost"] for row in drawn.rows} <= set(table["seconds"])
    alone = tmp_path / "alone"
    fakes.runner(fakes.plan(tmp_path / "task", "1", draws=1), alone, fakes.FakeBackend()).run()
    found = read_findings(alone)
    assert found.frontier_across_models.empty
    assert "frontier-models" not in {section.name for section in sections(found, Naming.of(found.summary))[0]}


def test_imports_without_tokens_are_shown_without_money(tmp_path: Path) -> None:
    points = [point(rate, k=k, model="elsewhere").drop(columns=COMPUTED) for k, rate in enumerate((0.5, 0.7), 1)]
    results = imported(tmp_path, *points)
    for prices in (Prices(1, 1, 1), Prices(hour=2)):
        table = frontier_of_folder(results, 10, prices, across=True)
        assert table["money"].isna().all()
        assert len(table) == 2


def test_a_name_that_the_table_lacks_is_no_error_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(model: str, server: str | None = None) -> Prices:
        raise UnknownModelError(f"{model}: not in the table")

    monkeypatch.setattr("icl_bench.analysis.query_cost.table_prices", unknown)
    rows = (
        point(0.5, k=1, model="elsewhere")
        .drop(columns=COMPUTED)
        .assign(prompt_tokens=10, cached_tokens=0, answer_tokens=1)
    )
    table = frontier_of_folder(imported(tmp_path, rows), 10, Prices.parse("auto"))
    assert table["money"].isna().all()


def test_python_compares_models_too(tmp_path: Path) -> None:
    found = icl_bench.read(folder(tmp_path))
    price = {"input": 1, "cached": 0.1, "output": 2, "hour": 2}
    table = found.frontier(queries=10, price=price, across="models")
    assert table["verdict_money"].notna().any()
    assert table.attrs["prices"]["api"] == {"input": 1, "cached": 0.1, "output": 2, "write": 1, "hour": 2}
    assert found.advice(queries=10, price=price, across="models")["advised"].sum() == 1
    with pytest.raises(UserError, match="--across tasks: expected models"):
        found.frontier(across="tasks")
