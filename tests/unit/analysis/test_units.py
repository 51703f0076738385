"""Tables show numbers in the unit that their titles name."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from support.fakes import ENGINE, FakeBackend, plan
from support.predictions import cell, frame

from icl_bench.analysis.all_findings import Findings, find
from icl_bench.analysis.columns import COLUMNS, Column
from icl_bench.cli.output.findings import print_findings, shown
from icl_bench.cli.output.lists import print_perplexity
from icl_bench.models.architecture import Architecture
from icl_bench.registry import FINDINGS
from icl_bench.report.tables import Table, of_finding
from icl_bench.results.reading import finished_cells, read_some
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Runner

UNITS = {"TFLOP": 1e12, "GFLOP": 1e9, "MB": 1e6, "GB": 1e9}
SHAPE = Architecture(3_000_000_000, 512, (None,) * 4, 512)
"""Of a model whose queries take some hundred GFLOP."""


def columns() -> list[Column]:
    """All columns that a table shows, on the page or in the terminal."""
    found = [*COLUMNS.values()]
    for finding in FINDINGS.values():
        found += [*finding.columns, *finding.in_report(), *finding.in_terminal()]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("column", columns(), ids=lambda column: f"{column.name}-{column.brief!r}")
def test_a_columns_unit_is_the_one_that_its_titles_name(column: Column):
    for title in filter(None, (column.title, column.short)):
        named = {unit for name, unit in UNITS.items() if name in title}
        assert named <= {column.unit}, title
    if column.name.endswith("flops"):
        assert "FLOP" in column.title
        assert column.unit in (1e9, 1e12)
    if column.name.endswith("bytes"):
        assert column.unit in (1e6, 1e9)


def test_a_value_is_shown_divided_by_its_columns_unit():
    assert shown(COLUMNS["training_flops"], {"training_flops": 2.5e12}) == "2.5"
    assert shown(COLUMNS["training_flops"], {"training_flops": 1234e12}) == "1,234"
    assert shown(COLUMNS["cache_bytes"], {"cache_bytes": 47.25e6}) == "47.2"
    assert shown(Column("n", "n", "count", unit=1e6), {"n": 3e6}) == "3"
    assert shown(Column("n", "n", "share", unit=2), {"n": 0.5}) == "25.0"
    assert shown(Column("n", "n", "points", unit=2), {"n": 0.5}) == "+25.0"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costed")
    made = plan(folder / "task", "2", draws=1)
    Runner(made, Store(folder / "results"), ENGINE, FakeBackend, architecture=lambda: SHAPE).run()
    return folder / "results"


@pytest.fixture(scope="module")
def found(results: Path) -> Findings:
    return find(read_some(results))


def test_the_terminal_says_a_querys_operations_in_gflop(results: Path, found: Findings):
    ((_, meta),) = finished_cells(results)
    text = io.StringIO()
    print_findings(found, Console(file=text, width=300), options=["cost"])
    _, _, part = text.getvalue().partition("cost of a query")
    assert "cards · " in part
    (row,) = [line.split() for line in part.splitlines() if line.split()[-1:] == ["\N{EN DASH}"]]
    assert "GFLOP," in part
    cached, whole = (meta.compute[f"{name}_flops"] / 1e9 for name in ("query", "whole"))
    assert 6 * 5 < cached < 6 * 20 < whole < 6 * 60  # 6 for each token
    assert row[-2:] == ["\N{EN DASH}"] * 2  # no training
    assert [float(word) for word in row[-4:-2]] == pytest.approx([cached, whole], rel=0.005)


def on_page(table: Table | None) -> dict[str, Any]:
    """The first row by column, as the page shows it: divided by the units that are among its data."""
    assert table is not None
    data = table.as_json()
    (row, *_) = data["rows"]
    values = zip(data["columns"], row, strict=True)
    return {column["name"]: value / column["unit"] if "unit" in column else value for column, value in values}


def test_the_page_and_the_terminal_say_break_even_in_tflop():
    finding = FINDINGS["break_even"]
    rows = pd.DataFrame(
        [
            {
                "task": "t",
                "model": "m",
                "series": "lora",
                "select": "lora",
                "k": 5,
                "beside": "random",
                "training_flops": 7e15,
                "flops": 0.5e12,
                "base_flops": 2.5e12,
                "queries": 3501.0,
                "training_seconds": 60.0,
                "seconds": 1.0,
                "base_seconds": 2.0,
                "queries_by_seconds": 61.0,
            }
        ]
    )
    of = on_page(of_finding(finding, rows))
    assert (of["training_flops"], of["flops"], of["base_flops"]) == (7000, 0.5, 2.5)
    assert (of["queries"], of["base_seconds"]) == (3501, 2)


def test_the_page_says_the_cost_of_patterns_in_tflop_and_megabytes():
    finding = FINDINGS["attention_patterns"]
    rows = frame(cell("aabb").iloc[:1]).assign(
        series="random", prefix_flops=1.5e12, query_flops=0.25e12, cache_bytes=64e6
    )
    of = on_page(of_finding(finding, rows))
    assert (of["prefix_flops"], of["query_flops"], of["cache_bytes"]) == (1.5, 0.25, 64)


def test_the_terminal_says_the_cost_of_perplexity_in_tflop_and_gigabytes():
    row: dict[str, Any] = {
        "model": "m",
        "dtype": "float32",
        "attention": "full",
        "after": 0,
        "length": 512,
        "perplexity": 3.25,
        "ci_low": 3.0,
        "ci_high": 3.5,
        "ratio": 1.0,
        "ratio_low": 1.0,
        "ratio_high": 1.0,
        "p_holm": float("nan"),
        "prefill_flops": 2.5e12,
        "cache_bytes": 1.5e9,
        "windows": 4,
        "window_tokens": 512,
        "interval_over": "texts",
        "rope_scale": float("nan"),
        "rope_theta": float("nan"),
    }
    text = io.StringIO()
    print_perplexity(pd.DataFrame([row]), Console(file=text, width=200))
    assert "attention full" in text.getvalue()
    (line,) = [words for words in map(str.split, text.getvalue().splitlines()) if "3.25" in words]
    assert line[-3:] == ["2.5", "1.5", "GB"]
