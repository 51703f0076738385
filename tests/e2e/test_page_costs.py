"""The frontier at the reader's own cost: the page's numbers against Python's, its controls and its address."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.billing import Bill, of_model, run_at_server
from support.browser import SOURCE, drawn, texts, visible, wait
from support.fakes import FakeBackend, plan, runner

from icl_bench.analysis.frontier import frontier_of_folder, undominated
from icl_bench.analysis.words import USUAL_ORDERS
from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture
from icl_bench.models.prices import Prices
from icl_bench.report import write_report
from icl_bench.report.sections import prompts
from icl_bench.report.sections.prompts import FRONTIER_AXES

pytestmark = pytest.mark.slow

ROWS = f"""
const [measure, price, queries, across] = arguments;
const made = new Function({json.dumps(SOURCE)} + "; return {{ data, rowsAtCost, ownCost }};")();
location.hash = `price=${{encodeURIComponent(price)}}`;
const {{ prices }} = made.ownCost();
return made.data.charts.filter(({{ costs, name }}) => costs && name.endsWith("all-models") === across)
  .map((chart) => [chart.task, chart.model, made.rowsAtCost(chart.costs, measure, prices, queries, "p")]);
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cascades and retrieval that ran here, and another task without known operations."""
    folder = tmp_path_factory.mktemp("runs")
    made = plan(folder / "task", "1,2,6", draws=3, selects=("random", "bm25"), scoring="exact", test_rows=30)
    shape = Architecture(parameters=100_000_000, heads_width=64, windows=(None,))
    replace(runner(made, folder / "results", FakeBackend()), architecture=lambda: shape).run()
    runner(plan(folder / "other", "1,2", name="other"), folder / "results", FakeBackend()).run()
    write_report(folder / "results", folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model behind a server beside one that ran here."""
    folder = tmp_path_factory.mktemp("mixed")
    made = plan(folder / "task", "1,4", draws=2)
    run_at_server(of_model(made, "api"), folder / "results", Bill(writes=True))
    runner(of_model(made, "local"), folder / "results", FakeBackend()).run()
    write_report(folder / "results", folder / "report.html")
    return folder


Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def opened(driver: Any, imports: Path) -> Opened:
    def open_page(at: str, folder: Path = imports) -> Any:
        driver.get("about:blank")
        driver.get_log("browser")
        driver.get((folder / "report.html").as_uri() + at)
        wait(driver, "document.querySelector('#frontier figure:not([hidden]) .chart[data-drawn]')")
        return driver

    return open_page


Points = dict[tuple[str, int, str], tuple[Any, ...]]


def shown(table: pd.DataFrame, measure: str, across: bool = False) -> Points:
    """Series, k and margin of each point -> its cost, verdict, p, and whether its mean is on the frontier."""
    found = {}
    kept = table[table[measure] > 0]
    on = set(kept.index[undominated(kept["score"].to_numpy(dtype=float), kept[measure].to_numpy(dtype=float))])
    for place, row in kept.iterrows():
        name = (
            f"{row['model']}, " * across + row["select"] + ("" if row["order"] in USUAL_ORDERS else f", {row['order']}")
        )
        name += "" if row["cascade"] is None else ", cascade"
        verdict, p = row[f"verdict_{measure}"], row[f"p_{measure}"]
        known = verdict is not None and verdict == verdict
        of = (
            row[measure] / FRONTIER_AXES[measure][2],
            verdict if known else "not compared",
            p if known else None,
            place in on,
        )
        found[name, int(row["k"]), row["cascade"] or ""] = of
    return found


def compare(rows: list[dict[str, Any]], expected: Points) -> None:
    """The rows of a chart of the page are Python's points."""
    found = {
        (row["series"], row["k"], row["cascade"] or ""): (row["cost"], row["verdict"], row["p"], row["on"])
        for row in rows
    }
    assert found.keys() == expected.keys()
    for key, (cost, verdict, p, on) in expected.items():
        assert found[key][0] == pytest.approx(cost, rel=1e-6)
        assert found[key][1:] == (verdict, None if p is None else pytest.approx(p, rel=1e-4), on), key


COSTS = (
    ("seconds", "", 1),
    ("operations", "", 300),
    ("tokens", "", 10),
    ("tokens", "", 123_456),
    ("money", "input=0.5,cached=0.05,output=1.5", 1000),
    ("money", "input=0.5,cached=0,output=30,write=0.7", 7),
    ("money", "hour=2.5", 1_000_000),
    ("money", "input=3,cached=0.3,output=15,hour=0.01", 40),
)


@pytest.fixture(scope="module")
def charted(opened: Opened, runs: Path, imports: Path) -> dict[tuple[Path, str, str, int], Any]:
    """The charts' rows at each cost, of both pages, which are opened once."""
    found = {}
    for folder in (runs, imports):
        driver = opened("#task=*&at=frontier", folder)
        for asked in COSTS:
            found[folder, *asked] = driver.execute_script(ROWS, *asked, False)
    return found


FURTHER = (COSTS[3], COSTS[4])
"""Another number of queries, and prices that those after them have among others."""


@pytest.mark.parametrize(
    ("measure", "price", "queries"),
    [pytest.param(*asked, marks=pytest.mark.thorough) if asked in FURTHER else asked for asked in COSTS],
)
def test_costs_and_verdicts_are_those_of_python(
    charted: dict[tuple[Path, str, str, int], Any], runs: Path, imports: Path, measure: str, price: str, queries: int
):
    prices = Prices.parse(price) if price else None
    charts = 0
    for folder in (runs, imports):
        every = frontier_of_folder(folder / "results", queries, prices)
        for task, model, rows in charted[folder, measure, price, queries]:
            expected = shown(every[(every["task"] == task) & (every["model"] == model)], measure)
            compare(rows, expected)
            charts += len(expected) > 5
    assert charts == (1 if measure in ("seconds", "operations") or price == "hour=2.5" else 5)


@pytest.mark.parametrize(
    ("measure", "price"), [("seconds", ""), ("money", "hour=2.5"), ("money", "input=3,cached=0.3,output=15,hour=0.01")]
)
def test_costs_of_all_models_are_those_of_python(opened: Opened, mixed: Path, measure: str, price: str):
    driver = opened("#task=*&at=frontier", mixed)
    ((_, _, rows),) = driver.execute_script(ROWS, measure, price, 40, True)
    prices = Prices.parse(price) if price else None
    table = frontier_of_folder(mixed / "results", 40, prices, across=True)
    compare(rows, shown(table, measure, across=True))
    assert {row["model"] for row in rows} == {"api", "local"}


def test_token_prices_alone_are_refused_for_a_server_beside_this_machine(opened: Opened, mixed: Path):
    price = "input=3,cached=0.3,output=15"
    with pytest.raises(UserError, match="local: models on your own machine have no price per token"):
        frontier_of_folder(mixed / "results", 40, Prices.parse(price), across=True)
    driver = opened(f"#task=*&cost=money&price={price}&at=frontier", mixed)
    assert texts(driver, "form.costs .found") == ["", "Give the price of an hour of your machine too."]
    ((_, _, rows),) = driver.execute_script(ROWS, "money", price, 40, True)
    assert rows == []


def axis(driver: Any, section: str = "frontier") -> str:
    return driver.execute_script(
        f"return document.querySelector('#{section} figure:not([hidden]) .chart svg').textContent"
    )


def test_a_chart_without_the_chosen_cost_keeps_its_own(opened: Opened, runs: Path):
    driver = opened("#task=*&at=frontier", runs)
    drawn(driver)
    select = "document.querySelector('#frontier form.costs').elements.cost"

    def titles() -> list[str]:
        charts = texts(driver, "#frontier figure:not([hidden]) .chart svg")
        return [next(name for name, (title, *_) in FRONTIER_AXES.items() if title in text) for text in charts]

    assert titles() == ["operations", "seconds"]
    assert driver.execute_script(f"return {select}.selectedOptions[0].text") == "the first known"
    for cost, expected in (("seconds", ["seconds"] * 2), ("operations", ["operations", "seconds"])):
        choose(driver, cost=cost)
        wait(driver, f"document.querySelector('#frontier .chart svg').textContent.includes('{cost}')")
        assert titles() == expected
        assert f"cost={cost}" in driver.current_url
    choose(driver, cost="")
    assert "cost=" not in driver.current_url
    assert driver.execute_script(f"return {select}.value") == ""


def test_tokens_of_different_models_are_not_compared(opened: Opened, mixed: Path):
    driver = opened("#task=*&cost=tokens&at=frontier", mixed)
    drawn(driver)
    assert "tokens computed a query" in axis(driver)
    assert "seconds a query" in axis(driver, "frontier-models")
    chosen = "return [...document.querySelectorAll('form.costs')].map((form) => form.elements.cost.value)"
    assert driver.execute_script(chosen) == ["tokens", "seconds"]


def test_more_points_than_have_verdicts_at_another_cost_are_reported(
    opened: Opened, imports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prompts, "MOST_TESTED", 3)
    write_report(imports / "results", tmp_path / "report.html")
    for at, said in (("", ""), ("&queries=50", "Charts of more than 3 points have no verdicts at a cost or number")):
        driver = opened(f"#task=cards&model=one{at}&at=frontier", tmp_path)
        (found,) = texts(driver, "#frontier form.costs .found")
        assert found.startswith(said)
        assert bool(found) == bool(said)


def choose(driver: Any, **values: str) -> None:
    driver.execute_script(
        "const form = document.querySelector('#frontier form.costs');"
        "for (const [name, value] of Object.entries(arguments[0])) {"
        "form.elements[name].value = value;"
        "form.elements[name].dispatchEvent(new Event('input', { bubbles: true })) }",
        values,
    )


def test_the_chart_moves_and_the_address_holds_what_was_chosen(opened: Opened):
    driver = opened("#task=cards&model=one&at=frontier")
    assert "tokens computed a query" in axis(driver)
    prices = "document.querySelector('#frontier form.costs fieldset')"
    assert driver.execute_script(f"return {prices}.hidden")
    choose(driver, cost="money")
    wait(driver, "document.querySelector('#frontier form.costs .found').textContent.startsWith('Give the prices')")
    choose(driver, input="0.5", cached="0.05", output="1.5", queries="5000")
    wait(driver, "document.querySelector('#frontier .chart svg').textContent.includes('money a query')")
    hash_ = "#" + driver.current_url.partition("#")[2]
    assert "cost=money" in hash_
    assert "price=input%3D0.5%2Ccached%3D0.05%2Coutput%3D1.5" in hash_
    assert "queries=5000" in hash_
    slider = "document.querySelector('#frontier figure:not([hidden]) [data-slide]')"
    assert driver.execute_script(f"return {slider}.disabled")
    assert visible(driver, "#frontier figure output") == ["5,000 queries"]
    before = axis(driver)
    opened(hash_)
    assert axis(driver) == before
    fields = "[...document.querySelector('#frontier form.costs').elements].map((e) => e.value)"
    assert driver.execute_script(f"return {fields}.filter(Boolean)") == ["money", "5000", "0.5", "0.05", "1.5"]
    choose(driver, queries="", cost="tokens")
    wait(driver, "document.querySelector('#frontier .chart svg').textContent.includes('tokens computed')")
    assert "cost=" not in driver.current_url
    assert "queries=" not in driver.current_url
    assert not driver.execute_script(f"return {slider}.disabled")
    driver.execute_script("location.hash = 'task=cards&model=one&cost=money&price=input=1,cached=1,output=1'")
    wait(driver, "document.querySelector('#frontier .chart svg').textContent.includes('money a query')")
    assert [entry["message"] for entry in driver.get_log("browser")] == []


def test_the_slider_moves_the_points_at_another_cost_too(opened: Opened):
    driver = opened("#task=cards&model=one&cost=money&price=input=1,cached=1,output=1&at=frontier")
    drawn(driver)
    before = axis(driver)
    driver.execute_script(
        "const s = document.querySelector('#frontier figure:not([hidden]) [data-slide]');"
        "s.value = 0; s.dispatchEvent(new Event('input'))"
    )
    wait(driver, f"document.querySelector('#frontier .chart svg').textContent !== {json.dumps(before)}")
    assert texts(driver, "#frontier figure:not([hidden]) output")[0] == "10 queries"
