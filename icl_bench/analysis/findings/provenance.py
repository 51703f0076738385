"""Provenance: the command, data, time and machine that produced each variant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.results.facts import Facts
from icl_bench.results.stored_meta import CellMeta
from icl_bench.results.trained_methods import BASELINES
from icl_bench.wording import three_digits

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

NOT_STORED = "unknown"
"""Text for values that a cell does not report."""


FACTS: Mapping[str, str] = {
    "command": "command",
    "finished": "finished",
    "versions": "versions",
    "weights": "model",
    "data": "data",
    "seed": "seed",
    "test_rows": "test rows",
    "pool_rows": "pool rows",
    "dtype": "data type",
    "packs": "queries a call",
    "engine": "engine",
    "hardware": "hardware",
}
"""Column -> its name. Values are texts; several values of a variant are joined by semicolons."""


ENCODERS: Mapping[str, str] = {
    "bertscore_encoder": "BERTScore selection",
    "sentence_encoder": "sentence embeddings",
    "bertscore": "the BERTScore metric",
}
"""Fact that names a text encoder -> the purpose of the encoder."""


KEPT = ["task", "model", "variant", "cells", "predictions", "seconds", *FACTS, "encoders"]


def provenance(context: Context) -> pd.DataFrame:
    """The provenance of each task, model and variant, one row each.

    Columns: task, model, variant; cells; predictions; seconds of all its cells and their trainings (the training of a
    model once); command; finished, the first and the last day and time (UTC); versions of packages; weights, the
    model's fingerprint; data, its files with their SHA-256; seed; test_rows; pool_rows; dtype; packs, the maximum
    queries and tokens of a model call, on which a few answers in 16 bits depend; engine; hardware. These are texts:
    ``unknown`` if cells do not report them, or for an import, its source. ``encoders`` names the text encoders and
    their purposes, and is empty without one.
    """
    import pandas as pd

    frame = context.stored.own_predictions
    keys = ["task", "model", "variant"]
    counts = frame.groupby(keys, observed=True)["cell"].agg(["size", "nunique"]).reset_index()
    metas: dict[tuple[str, ...], list[CellMeta]] = {}
    for cell in context.stored.own_cells.values():
        key = (cell.spec.task, cell.spec.model, cell.variant)
        metas.setdefault(key, []).append(cell)
    rows = []
    for count in counts.sort_values(keys).to_dict("records"):
        names = {name: str(count[name]) for name in keys}
        cells = metas.get(tuple(names.values()), [])
        facts = context.facts.get(names["variant"], Facts())
        rows.append(
            {
                **names,
                "cells": int(count["nunique"]),
                "predictions": int(count["size"]),
                "seconds": _seconds(cells),
                **(_of_cells(cells) if cells else _of_import(facts)),
                "encoders": "; ".join(encoders([facts, *(cell.facts for cell in cells)])),
            }
        )
    return pd.DataFrame(rows, columns=KEPT)


def _seconds(metas: Iterable[CellMeta]) -> float:
    known = [meta for meta in metas if meta.seconds is not None]
    if not known:
        return math.nan
    trainings = [(meta.spec.select in BASELINES, (meta.training and meta.training.seconds) or 0.0) for meta in known]
    of_classifiers = sum(seconds for classifies, seconds in trainings if classifies)
    of_model = max((seconds for classifies, seconds in trainings if not classifies), default=0.0)
    return sum(meta.seconds or 0.0 for meta in known) + of_classifiers + of_model


def _of_import(facts: Facts) -> dict[str, str]:
    source = f"imported from {facts.imported}" if facts.imported is not None else NOT_STORED
    texts = {name: _distinct([fact]) for name, fact in _of_facts(facts)}
    return {**dict.fromkeys(FACTS, NOT_STORED), **texts, "command": source}


def _of_cells(metas: Iterable[CellMeta]) -> dict[str, str]:
    cells = [dict(_of_cell(meta)) for meta in metas]
    texts = {name: _distinct(cell.get(name) for cell in cells) for name in FACTS}
    days = sorted(cell["finished"] for cell in cells if cell.get("finished"))
    if days:
        ends = list(dict.fromkeys([days[0], days[-1]]))
        unknown = [NOT_STORED] if len(days) < len(cells) else []
        texts["finished"] = "; ".join([" to ".join(ends), *unknown])
    return texts


def _of_cell(meta: CellMeta) -> Iterator[tuple[str, Any]]:
    yield "command", meta.run.command
    yield "finished", meta.run.finished
    yield "hardware", meta.run.hardware or meta.versions.get("machine")
    packages = (f"{name} {version}" for name, version in meta.versions.items() if name != "machine")
    yield "versions", ", ".join(packages)
    if meta.packs is not None:
        yield "packs", ", ".join(f"{count:,} {name}" for name, count in meta.packs.items())
    yield from _of_facts(meta.facts)


def _of_facts(facts: Facts) -> Iterator[tuple[str, Any]]:
    yield "weights", facts.fingerprint
    yield "data", ", ".join(f"{name} sha256:{digest}" for name, digest in (facts.data or {}).items())
    yield "engine", facts.backend
    for name in ("seed", "test_rows", "pool_rows", "dtype"):
        yield name, getattr(facts, name)


def encoders(facts: Iterable[Facts]) -> list[str]:
    """The text encoders named in facts, each once: ``BERTScore selection by roberta-large``."""
    named = [f"{use} by {encoder}" for of in facts for name, use in ENCODERS.items() if (encoder := getattr(of, name))]
    return list(dict.fromkeys(named))


def _distinct(values: Iterable[Any]) -> str:
    """Distinct values in their order; missing values are unknown."""
    texts = [NOT_STORED if value in (None, "") else str(value) for value in values]
    return "; ".join(dict.fromkeys(texts))


def as_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """One row per fact, because a variant has too many for a line.

    Columns: those of the table that are not facts, ``fact``, its name, and ``value``, as text.
    """
    import pandas as pd

    counts = {"cells": "cells", "predictions": "predictions", "seconds": "seconds"}
    names = [name for name in table if name not in counts and name not in FACTS and name != "encoders"]
    rows = []
    for row in table.to_dict("records"):
        numbers = {name: three_digits(row[name]) for name in counts if not math.isnan(row[name])}
        for name, title in {**FACTS, "encoders": "text encoders", **counts}.items():
            if value := numbers.get(name, "" if name in counts else row.get(name)):
                rows.append({**{key: row[key] for key in names}, "fact": title, "value": value})
    return pd.DataFrame(rows, columns=[*names, "fact", "value"])


def _in_brief(table: pd.DataFrame) -> pd.DataFrame:
    """The table in short form, for a terminal."""
    pairs = as_pairs(table)
    return pairs.assign(value=pairs["value"].map(_briefly))


def _briefly(text: str) -> str:
    """Shorten digests to their beginning; --json has them in full."""
    words = text.split(" ")
    return " ".join(
        f"{word[: word.index(':') + 13]}…{'' if word[-1].isalnum() else word[-1]}"
        if ":" in word and len(word.partition(":")[2]) >= DIGEST
        else word
        for word in words
    )


DIGEST = 40
"""The minimum number of letters of a digest."""


FACT_COLUMNS = (Column("fact", "what"), Column("value", "is"))


PROVENANCE = Finding(
    "provenance",
    provenance,
    (
        Column("cells", "cells", "count"),
        Column("predictions", "predictions", "count"),
        Column("seconds", "seconds", "number", optional=True),
        *(Column(name, title) for name, title in FACTS.items()),
        Column("encoders", "text encoders", optional=True),
    ),
    caption="Provenance",
    shown=f"task model variant cells predictions seconds {' '.join(FACTS)} encoders",
    printed=Printed(
        "where the numbers come from",
        "task model variant fact value",
        rows=_in_brief,
        columns_here=FACT_COLUMNS,
        option="provenance",
    ),
    section=Section(
        "provenance",
        "Where do the numbers come from?",
        "Provenance",
        "run it here: an import only records its file",
        "Of each variant the command, days, versions, model, data, engine and machine. Several "
        "values are of different cells of it; what a cell does not record is unknown. "
        "Seconds are of all its cells, with trainings, on the machine that computed them.",
        place=290,
    ),
    by_task=IN_ORDER,
)
