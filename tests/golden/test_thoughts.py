"""docs/rationales.md shows what the stored predictions say of thoughts and their demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from support.benchmarks import benchmark

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def thoughts() -> Iterator[ModuleType]:
    """The program that makes the page's table."""
    with benchmark("thoughts") as module:
        yield module


@pytest.fixture(scope="module")
def found(thoughts: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    points: pd.DataFrame = thoughts.points(tmp_path_factory.mktemp("stored"))
    return points


def test_the_table_of_the_page_is_that_of_the_stored_predictions(thoughts: ModuleType, found: pd.DataFrame):
    page = (ROOT / "docs" / "rationales.md").read_text(encoding="utf-8")
    section = page.split("\n## Rationales measured on two small models\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| data ")]
    assert rows[1:] == thoughts.table(found)


def test_no_point_is_shown_to_be_better_than_the_most_frequent_label(found: pd.DataFrame):
    """What the page says in words: the models are too small for these tasks."""
    labelled = found[found["majority"].notna()]
    assert len(labelled) > 20
    assert (labelled["ci_low"] <= labelled["majority"]).all()
    assert (found.loc[found["base"] == "gsm8k", "score"] < 0.1).all()
