"""The numbers people look at first: curves over k, saturation, order sensitivity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.curves import curves, saturation
from icl_bench.analysis.order import order_sensitivity
from icl_bench.errors import UserError
from icl_bench.methods import kind
from icl_bench.store import IMPORTED, Stored, read_stored, short_hash

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
    settings = _settings(stored.variants, tables.curves)
    # each is beside others of its kind: that it is another is told by its name
    untold = {v: {n: f for n, f in facts.items() if n != "teaching"}
              for v, facts in stored.variants.items()}  # fmt: skip
    for _, table in tables.taught.groupby("teaching"):
        settings |= _settings(untold, table)
    return replace(tables, settings=settings, failed=stored.failed)


def read_some(results: Path, only: Mapping[str, str] | None = None) -> Stored:
    """Read a results folder, or what of it has these values (task, model).

    Raises ``UserError`` where there is neither a finished nor a failed cell left.
    """
    wanted, stored = dict(only or {}), read_stored(results)
    failed = [f for f in stored.failed if wanted.items() <= f["spec"].items()]
    try:
        frame = _those(stored.predictions, wanted, results)
    except UserError:
        if not failed:
            raise
        frame = stored.predictions.iloc[:0]
    return replace(stored, predictions=frame, failed=failed)


def _those(frame: pd.DataFrame, wanted: Mapping[str, str], results: Path) -> pd.DataFrame:
    for name, value in wanted.items():
        kept = frame[frame[name] == value]
        if kept.empty:
            there = ", ".join(sorted(frame[name].astype(str).unique()))
            raise UserError(f"results folder {results}: nothing of {name} {value!r} (has: {there})")
        frame = kept
    for name in frame.select_dtypes("category").columns:
        frame = frame.assign(**{name: frame[name].cat.remove_unused_categories()})
    return frame


PLAINER = {"test": "test_rows", "pool": "pool_rows"}
"""Facts that are hashes -> facts that say the same to a reader, where their values differ too."""
ENCODERS = ("encoder", "embeddings")
"""Facts of selectors that compare texts; that others have none is no difference of settings."""
ABSENT = {"label_space": "all", "queries": "test", **dict.fromkeys(ENCODERS, "none")}
"""What a fact that is not there says."""
OF_LABELS = ("labels", "pool", "pool_rows", "test", "test_rows")
"""Facts that follow from which part of the labels there is, and need no mention beside it."""


def _settings(facts: Mapping[str, Mapping[str, Any]], table: pd.DataFrame) -> dict[str, str]:
    """Name the variants of a task and model by the facts in which they differ, or their origin."""
    named: dict[str, str] = {}
    kinds = table["select"].astype(object).map(kind)
    for _, group in table.groupby(["task", "model", kinds], observed=True):
        named |= _named({v: facts.get(v, {}) for v in group["variant"].unique()})
    return named


def _named(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Name the variants of one task and model; none where all are alike and run here."""
    run_here = {v: f for v, f in facts.items() if IMPORTED not in f}
    named = {
        v: ", ".join(f"{key}={_brief(value)}" for key, value in differing.items())
        for v, differing in _differing(run_here).items()
    }
    if len(run_here) == len(facts):
        return named
    named = dict.fromkeys(run_here, "run here") | named
    named |= {v: f"imported from {f[IMPORTED]}" for v, f in facts.items() if IMPORTED in f}
    several = {text for text, count in Counter(named.values()).items() if count > 1}
    return {v: f"{text}, variant {v}" if text in several else text for v, text in named.items()}


def _differing(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each variant the facts that are not the same in all; nothing where all are the same."""

    def kinds(*keys: str) -> int:
        values = ([f.get(key) for key in keys] for f in facts.values())
        known = (value for value in values if value != [None] or keys[0] not in ENCODERS)
        return len({json.dumps(value, sort_keys=True) for value in known})

    keys = sorted({key for f in facts.values() for key in f})
    keys = [key for key in keys if kinds(key) > 1 and kinds(PLAINER.get(key, "")) < kinds(key)]
    if "label_space" in keys:
        whole = kinds("label_space")
        keys = [k for k in keys if k not in OF_LABELS or kinds(k, "label_space") > whole]
    if not keys:
        return {}
    return {v: {key: _told(f, key) for key in keys} for v, f in facts.items()}


def _told(facts: Mapping[str, Any], key: str) -> Any:
    value = facts.get(key)
    return ABSENT.get(key) if value is None else value


def _brief(value: Any) -> str:
    text = short_hash(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) < 16 else f"…{text[-8:]}"
