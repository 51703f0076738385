"""The numbers people look at first: curves over k, saturation, order sensitivity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.curves import curves, saturation
from icl_bench.analysis.order import order_sensitivity
from icl_bench.analysis.settings import name_settings
from icl_bench.results.reading import Stored, read_some

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Summary:
    """Tidy tables of one results folder."""

    curves: pd.DataFrame
    saturation: pd.DataFrame
    order_sensitivity: pd.DataFrame
    taught: pd.DataFrame
    """The curves of demonstrations that were not shown as they are, by ``teaching``."""
    settings: Mapping[str, str]
    """Variant -> what tells it from the other variants of its task and model, where there are."""
    failed: Sequence[Mapping[str, Any]] = ()
    """Cells that could not be computed: spec and reason of each."""

    def as_json(self) -> dict[str, Any]:
        """Plain lists of records; what is undefined is null."""
        return {
            "curves": records(self.curves),
            "saturation": records(self.saturation),
            "order_sensitivity": records(self.order_sensitivity),
            "taught": records(self.taught),
            "settings": dict(self.settings),
            "failed": [dict(failure) for failure in self.failed],
        }


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain values; what is undefined is null."""
    text: str = frame.to_json(orient="records", double_precision=15)
    found: list[dict[str, Any]] = json.loads(text)
    return found


def summarise(predictions: pd.DataFrame) -> Summary:
    """The first tables of a tidy frame of predictions (``icl_bench.read_results``).

    Queries that are copied from the demonstrations are no test examples: they are left out.
    """
    plain = asked(predictions)
    table = curves(plain)
    other = _taught_curves(predictions)
    return Summary(table, saturation(table), order_sensitivity(plain), other, {})


def asked(predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions of test examples whose prompts show demonstrations as they are.

    That is without queries made of demonstrations, and without demonstrations that were changed.
    """
    for name in ("queries", "teaching"):
        if name in predictions and predictions[name].notna().any():
            predictions = predictions[predictions[name].isna()]
    return predictions


def _taught_curves(predictions: pd.DataFrame) -> pd.DataFrame:
    """The columns of ``curves`` with ``teaching`` before them."""
    empty = predictions.iloc[:0].assign(teaching=None)
    changed = predictions[predictions["teaching"].notna()] if "teaching" in predictions else empty
    table = curves(changed)
    of_variant = changed.drop_duplicates("variant").set_index("variant")["teaching"].astype(object)
    table.insert(0, "teaching", table["variant"].astype(object).map(of_variant))
    return table


def summarise_folder(results: Path, only: Mapping[str, str] | None = None) -> Summary:
    """Summarise a results folder, or what of it has these values (task, model).

    Raises ``UserError`` where there is neither a finished nor a failed cell left.
    """
    return summarise_stored(read_some(results, only))


def summarise_stored(stored: Stored) -> Summary:
    """Summarise what was read of a results folder."""
    tables = summarise(stored.predictions)
    settings = name_settings(stored.variants, tables.curves)
    # each is beside others of its kind: that it is another is told by its name
    untold = {v: {n: f for n, f in facts.items() if n != "teaching"}
              for v, facts in stored.variants.items()}  # fmt: skip
    for _, table in tables.taught.groupby("teaching"):
        settings |= name_settings(untold, table)
    return replace(tables, settings=settings, failed=stored.failed)
