"""The data of the page's list of predictions, as files: cells, examples, and columns of rows.

Rows are grouped by cell, in the order of the results. Values of a whole cell are in the index. A question is stored
once, with its example. Texts of rows are codes into a list for each file, with their rank among all texts, so that the
page sorts like :meth:`icl_bench.report.viewer.predictions.Predictions.order` without comparing texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.errors import UserError
from icl_bench.report.published.data_files import DataFiles
from icl_bench.report.viewer.predictions import ASKED, MOST_OPTIONS, Predictions
from icl_bench.results.cells import QUESTION

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 50_000
"""Maximum number of predictions in a file."""


LETTERS = 2_000_000
"""Approximate characters of a file's texts."""


CELL_TEXTS = ("task", "model", "series", "perturbation", "cell")


@dataclass(frozen=True)
class Lists:
    """All predictions of a folder, cell by cell."""

    predictions: Predictions

    @cached_property
    def order(self) -> np.ndarray:
        """Positions in the results, grouped by cell: ``(predictions,)``."""
        _, first, which = np.unique(self.predictions.texts["cell"].codes, return_index=True, return_inverse=True)
        return np.argsort(first[which], kind="stable")

    @cached_property
    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """The examples (question and right answer): positions ``(examples,)`` of the first row of each, in order of
        appearance, and the number of each row's example ``(predictions,)``, both for rows in ``order``.
        """
        named = ["task", "test", "gold", ASKED, *([QUESTION] if QUESTION in self.predictions.texts else [])]
        _, first, which = np.unique(self._different(self.order, named), return_index=True, return_inverse=True)
        come = np.argsort(first)
        number = np.empty(len(first), dtype=np.int64)
        number[come] = np.arange(len(first))
        return self.order[first[come]], number[which]

    @cached_property
    def _asked(self) -> list[str]:
        """The question of each example."""
        return [self.predictions.question(int(place)) for place in self.examples[0]]

    def write(self, files: DataFiles) -> dict[str, list[tuple[str, int]]]:
        """Write rows and examples: kind -> the name of each file, and the first row or example in it."""
        written: dict[str, list[tuple[str, int]]] = {"rows": [], "examples": []}
        for kind, parts in (("rows", self._rows()), ("examples", self._examples())):
            for number, (first, value) in enumerate(parts):
                written[kind].append((files.put(kind, number, value), first))
        return written

    def index(self) -> dict[str, Any]:
        """The data that the page needs first: the cells, and the values of filters."""
        codes = self.predictions.texts["cell"].codes[self.order]
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])) if len(codes) else np.array([], dtype=int)
        places = self.order[starts]
        table = Texts()
        columns = {name: [table.code(self._text(name, place)) for place in places] for name in CELL_TEXTS}
        numbers = {name: self.predictions.numbers[name][places] for name in ("k", "draw")}
        # more values than these cannot be chosen from a list
        options = {name: values[: MOST_OPTIONS + 1] for name, values in self.predictions.options().items()}
        return {
            "total": len(codes),
            "texts": table.texts,
            "cells": {**columns, **numbers, "first": starts, "drawn": self.predictions.drawn()[places].astype(int)},
            "options": options,
        }

    def in_order(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Tables with the rows of the results, file by file, each with its rows in ``order``. Raises ``UserError`` if
        the rows differ because the folder has changed.
        """
        first = 0
        for table in tables:
            places = self.order[first : first + len(table)] - first
            first += len(table)
            if first > len(self.order) or (len(places) and int(places.max()) >= len(table)):
                break
            yield table.take(places)
        if first != len(self.order):
            raise UserError("the results have changed while they were read: try again")

    def questions(self) -> Iterator[str]:
        """The question of each row in ``order``, if it is known."""
        _, number = self.examples
        return (self._asked[example] for example in number)

    def _different(self, places: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """A number for each combination of these columns' values, from 0: ``(places,)``."""
        numbers = np.zeros(len(places), dtype=np.int64)
        for name in names:
            codes = self.predictions.codes(name)
            combined = numbers * (int(codes.max(initial=0)) + 2) + codes[places] + 1
            numbers = np.unique(combined, return_inverse=True)[1]
        return numbers

    def _text(self, name: str, place: int) -> str:
        return self.predictions.texts[name].at(int(place)) or ""

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, numbers = self.predictions.texts, self.predictions.numbers
        _, example = self.examples
        written = "text" if "text" in texts else "prediction"
        lengths = np.array([*map(len, texts[written].values), 0])[texts[written].codes[self.order]]
        for first, last in parts(lengths, ROWS, LETTERS):
            places = self.order[first:last]
            value = {
                "example": example[first:last],
                "correct": numbers["correct"][places],
                **self._coded("prediction", places),
            }
            yield first, value | (self._coded("text", places) if "text" in texts else {})

    def _coded(self, name: str, places: np.ndarray) -> dict[str, Any]:
        """A column's texts at these places: codes into a list of the distinct texts, and the rank of each among all
        texts.
        """
        column = self.predictions.texts[name]
        present, codes = np.unique(column.codes[places], return_inverse=True)
        return {
            name: codes,
            f"{name}_texts": [column.values[code] if code >= 0 else "" for code in present],
            f"{name}_ranks": column.ranks[present],
        }

    def _examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        places, _ = self.examples
        texts = self.predictions.texts
        tests = self._different(places, ["task", "test"])
        ranks = self.predictions.question_ranks(places)
        questions = self._asked
        for first, last in parts(np.array([*map(len, questions)]), ROWS, LETTERS):
            here = places[first:last]
            yield (
                first,
                {
                    "test": tests[first:last],
                    "test_id": [self._text("test_id", place) for place in here],
                    "gold": [self._text("gold", place) for place in here],
                    "gold_ranks": texts["gold"].ranks[texts["gold"].codes[here]],
                    "question": questions[first:last],
                    "question_ranks": ranks[first:last],
                },
            )


class Texts:
    """Distinct texts by code, in order of appearance."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The text's code, a new one for a new text."""
        if text not in self._codes:
            self._codes[text] = len(self.texts)
            self.texts.append(text)
        return self._codes[text]


def parts(lengths: np.ndarray, most: int, letters: int) -> Iterator[tuple[int, int]]:
    """Bounds of parts of rows, with at most this number of rows and about this number of characters each."""
    ends = np.cumsum(lengths)
    first, before = 0, 0
    while first < len(lengths):
        last = min(first + most, max(first + 1, int(np.searchsorted(ends, before + letters, side="right"))))
        last = min(last, len(lengths))
        yield first, last
        first, before = last, int(ends[last - 1])
