"""Tables in the form of the page: columns with titles and kinds, plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.columns import COLUMNS, Column
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.summary import records
from icl_bench.analysis.words import cautions_of, comparison_notes, curve_notes, with_reasons
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.wording import capital

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 2000
"""Rows of a longer table: the first of each task and model."""


SUBJECT = ("task", "model")


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    caption: str
    columns: tuple[Column, ...]
    rows: list[list[Any]]
    total: int
    """The total number of rows; fewer may be shown."""
    counts: tuple[tuple[str | None, str | None, int], ...] = ()
    """If fewer are shown, the total number of rows of each task and model."""
    notes: tuple[str, ...] = ()
    """Notes on its rows."""

    def as_json(self) -> dict[str, Any]:
        """The data of the page's program, which divides values by the unit of their column to show them."""
        columns = [
            {"name": c.name, "title": c.title, "kind": c.kind, **({"unit": c.unit} if c.unit != 1 else {})}
            for c in self.columns
        ]
        return {"caption": self.caption, "columns": columns, "rows": self.rows, "counts": self.counts}


def of_finding(finding: Finding, frame: pd.DataFrame) -> Table:
    """The table of a finding, with rows that may have been named and filtered."""
    return table(frame, finding.caption or finding.name, finding.in_report())


def of_names(frame: pd.DataFrame, caption: str, names: str) -> Table:
    """A table of common columns; ``names`` are separated by spaces."""
    return table(frame, caption, [COLUMNS[name] for name in names.split()])


def table(frame: pd.DataFrame, caption: str, columns: Sequence[Column]) -> Table:
    """Create a table of these columns, in order, if they exist.

    Caption and titles may contain ``{score}``, and the caption ``{Score}``.
    """
    score = measure(frame) if "metric" in frame else title(ACCURACY)
    compared = "advice" in frame and "difference" in frame
    frame = with_reasons(frame) if compared else frame
    kept = [column for column in columns if column.name in frame and not _empty(frame, column)]
    shown = frame[[column.name for column in kept]]
    counts: tuple[tuple[str | None, str | None, int], ...] = ()
    if len(frame) > MOST_ROWS:
        subjects = shown.reindex(columns=SUBJECT).astype(object)
        number = subjects.fillna("").groupby(list(SUBJECT), sort=False).cumcount().to_numpy()
        shown = shown.iloc[np.sort(np.argsort(number, kind="stable")[:MOST_ROWS])]
        pairs = subjects.where(subjects.notna(), None).itertuples(index=False, name=None)
        counts = tuple((*pair, count) for pair, count in Counter(pairs).items())
    if "metric" in shown:
        shown = shown.assign(metric=shown["metric"].map(title))
    named = tuple(replace(column, title=column.title.format(score=score)) for column in kept)
    rows = [list(record.values()) for record in records(shown)]
    notes = [*(comparison_notes if compared else curve_notes)(frame), *cautions_of(frame)]
    text = caption.format(score=score, Score=capital(score))
    return Table(text, named, rows, len(frame), counts, tuple(notes))


def _empty(frame: pd.DataFrame, column: Column) -> bool:
    if column.name == "metric":
        return bool((frame["metric"] == ACCURACY).all())
    if not column.optional:
        return False
    values = frame[column.name].dropna()
    return values.empty or (column.name in ("left_out", "missing") and not values.any())
