"""A calibrated point costs what its own prompts cost, and once what was asked to calibrate it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.fakes import FakeBackend, plan, runner

from icl_bench.analysis.frontier import frontier_of_folder
from icl_bench.models.prices import Prices
from icl_bench.results.reading import result_files

PRICES = Prices(input=1.0, cached=0.5, output=2.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costs")
    ready = plan(folder / "task", "4", scoring="exact", calibrations=["batch,of=pool:5"])
    runner(ready, folder / "results", FakeBackend(scored=True)).run()
    return folder / "results"


def _points(folder: Path, queries: int) -> pd.DataFrame:
    table = frontier_of_folder(folder, queries, PRICES)
    table = table[table["cascade"].isna()]
    names = table["variant"].astype(str).str.partition("+")[2].replace("", "none")
    return table.set_index(names)


@pytest.mark.parametrize("queries", [1, 1000])
def test_batch_calibration_costs_nothing_more(folder: Path, queries: int) -> None:
    points = _points(folder, queries)
    for measure in ("tokens", "seconds", "money"):
        assert points.loc["batch", measure] == points.loc["none", measure]


@pytest.mark.parametrize("queries", [1, 1000])
def test_rows_of_the_pool_are_asked_once_for_all_queries(folder: Path, queries: int) -> None:
    points = _points(folder, queries)
    files = (file for file in result_files(folder, pytest.fail) if not file.asks_test_rows)
    asked = pd.concat([file.table.to_pandas() for file in files])
    assert set(asked["queries"]) == {"pool:5"}
    tokens = (asked["prompt_tokens"] - asked["cached_tokens"]).groupby(asked["draw"]).sum().mean()
    more = points.loc["batch,of=pool:5", ["tokens", "seconds", "money"]] - points.loc["none"]
    assert more["tokens"] * queries == pytest.approx(tokens)
    assert more["money"] * queries == pytest.approx(PRICES.input * tokens / 1e6)
    assert more["seconds"] * queries == pytest.approx(1.5)  # three packs of half a second
