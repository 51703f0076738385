"""A sample of single predictions for the report's reader, with the end of each prompt.

The sample is deterministic. It alternates between tasks, models, curves, k, and right and wrong answers, so that each
of them is included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.statistics.grid import numbered, sorted_codes
from icl_bench.metrics.scores import golds_of, score_columns, title
from icl_bench.report.naming import Naming
from icl_bench.report.prompt_ends import Prompts, missing
from icl_bench.results.reading import Stored
from icl_bench.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

SEED = 0


MOST = 3000


MOST_BYTES = 2_500_000
"""The maximum bytes of the sample's texts. Each distinct text counts once."""


STRATA = ("task", "model", "select", "order", "attention", "variant", "k", "correct")


@cache
def sample_fields() -> tuple[str, ...]:
    """The displayed fields of a prediction, in order."""
    return (
        "task",
        "model",
        "series",
        "select",
        "order",
        "perturbation",
        "k",
        "draw",
        "test_id",
        "gold",
        "prediction",
        "correct",
        "valid",
        "prompt_tokens",
        "cached_tokens",
        "probability",
        "margin",
        "label_mass",
        *score_columns(),
        "cell",
        "query",
        "shown",
        "listed",
        "count",
        "separator",
        "why",
        "text",
        "golds",
    )


NAME_FIELDS = ("task", "model", "series", "select", "order", "perturbation", "test_id", "gold", "prediction", "cell")


TEXT_FIELDS = {*NAME_FIELDS, "query", "separator", "shown", "listed", "why", "text", "golds"}
"""Fields that are texts or lists of them, ``listed`` pairs of an id and an answer."""


@dataclass
class TextTable:
    """Texts by number, each stored once."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    bytes: int = 0

    def number(self, text: str) -> int:
        """The text's number, a new one for a new text."""
        if text not in self.numbers:
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
            self.bytes += len(json.dumps(text)) + 1
        return self.numbers[text]


@dataclass(frozen=True)
class Sample:
    """Predictions for the reader: columns of numbers, and of numbers of texts."""

    texts: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """One list for each prediction, in the order of :func:`sample_fields`."""
    total: int
    """The total number of predictions."""
    served: bool = False
    """Whether the page requests them from its server."""
    index: str = ""
    """The index of data files, if the page loads predictions from files next to it."""

    @classmethod
    def of_server(cls, total: int) -> Sample:
        """The sample of a page that contains no predictions."""
        return cls((), (), total, served=True)

    @classmethod
    def of_folder(cls, total: int, index: str) -> Sample:
        """The sample of a page that loads predictions from files next to it."""
        return cls((), (), total, index=index)

    def as_json(self) -> dict[str, Any]:
        """The data of the page's program."""
        scores = [[name, title(name)] for name in score_columns()]
        return {
            "fields": sample_fields(),
            "scores": scores,
            "texts": self.texts,
            "rows": self.rows,
            "total": self.total,
            "served": self.served,
            "index": self.index,
        }


def sample(
    stored: Stored,
    naming: Naming,
    data_dir: Path | None = None,
    most: int = MOST,
    most_bytes: int = MOST_BYTES,
    as_shown: Callable[[str], str] = str,
) -> Sample:
    """Choose predictions and rebuild the ends of their prompts, if their data are available.

    ``as_shown`` is as for :class:`icl_bench.report.prompt_ends.Prompts`.
    """
    predictions = stored.own_rows
    order = in_turns(predictions.of([name for name in STRATA if name in predictions.columns]), most)
    chosen = naming.named(predictions.take(order))
    prompts = Prompts(stored.cells, stored.variants, data_dir, as_shown)
    texts, rows = TextTable(), []
    records: list[Any] = chosen.to_dict("records")
    for position, record in zip(order, records, strict=True):
        row = _coded(described(record, prompts), texts)
        if texts.bytes > most_bytes:
            break
        rows.append((int(position), row))
    return Sample(texts.texts, [row for _, row in sorted(rows, key=lambda r: r[0])], len(predictions))


def in_turns(frame: pd.DataFrame, most: int | None = None) -> np.ndarray:
    """Positions of all predictions, or of the first ``most``, ordered so that any beginning contains some of each
    stratum.
    """
    mixed = generator(SEED, "report").permutation(len(frame))
    number = _strata(frame)[mixed]
    first = np.argsort(number, kind="stable")
    sizes = np.bincount(number) if len(number) else np.empty(0, dtype=int)
    turn = np.empty(len(frame), dtype=np.int32)
    turn[first] = np.arange(len(frame), dtype=np.int32) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    earliest = np.arange(len(frame))
    if most is not None and most < len(frame):
        enough = int(np.searchsorted(np.bincount(turn).cumsum(), most))
        earliest = np.flatnonzero(turn <= enough)
    ordered = earliest[np.lexsort((number[earliest], turn[earliest]))]
    return np.asarray(mixed[ordered[:most]])


def _strata(frame: pd.DataFrame) -> np.ndarray:
    """The number of each prediction's stratum, in the order of their values, missing ones first: ``(rows,)``.

    As pandas' ``ngroup``, which needs several times the memory.
    """
    number, strata = np.zeros(len(frame), dtype=np.int64), 1
    for name in [name for name in STRATA if name in frame]:
        codes, values = sorted_codes(frame[name])
        number *= values + 1
        number += codes.astype(np.int64) + 1
        present, number = numbered(number, strata * (values + 1))
        strata = len(present)
    return number


def described(record: Mapping[str, Any], prompts: Prompts) -> dict[str, Any]:
    """The displayed values of a prediction: its :func:`sample_fields`, with plain texts.

    ``record`` is a row of :meth:`icl_bench.report.naming.Naming.named`.
    """
    end = prompts.end(record)
    written = record.get("text") if prompts.computed(record) else None
    golds = golds_of(record.get("golds"), record["gold"])
    values: dict[str, Any] = {
        **{name: plain_number(record.get(name)) for name in sample_fields() if name not in TEXT_FIELDS},
        **{name: "" if missing(record.get(name)) else str(record[name]) for name in NAME_FIELDS},
        "query": end.query,
        "separator": end.separator,
        "shown": list(end.shown),
        "listed": [list(pair) for pair in end.listed],
        "count": end.count,
        "why": end.why or None,
        "text": None if missing(written) else str(written),
        "golds": list(golds) if len(golds) > 1 else None,
    }
    return {name: values[name] for name in sample_fields()}


def _coded(values: Mapping[str, Any], texts: TextTable) -> list[Any]:
    """The same values with numbers instead of texts."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(item) for item in value]
        return None if value is None else texts.number(value)

    return [number(values[name]) if name in TEXT_FIELDS else values[name] for name in sample_fields()]


def plain_number(value: Any) -> Any:
    """A number with at most six digits, an unchanged boolean, or null for a missing value."""
    if isinstance(value, list):
        return value
    if missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    number = float(value)
    return int(number) if number.is_integer() else float(f"{number:.6g}")
