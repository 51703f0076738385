"""The page's details of single predictions, as data files: read, described and written a few thousand at a time.

Data that follow from a prompt's demonstrations are stored once for all rows of a file with the same demonstrations. A
question is stored with its example. Texts of demonstrations have separate files, which contain each text once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icl_bench.metrics.scores import golds_of, score_columns
from icl_bench.report.prediction_sample import plain_number
from icl_bench.report.prompt_ends import Prompts
from icl_bench.report.published.data_files import DataFiles
from icl_bench.report.published.lists import LETTERS, Texts
from icl_bench.results.cells import QUESTION

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 5_000
"""Maximum number of predictions in a file."""


def number_fields() -> tuple[str, ...]:
    """Columns of numbers and verdicts."""
    return ("valid", "prompt_tokens", "cached_tokens", "probability", "margin", "label_mass", *score_columns())


@dataclass
class SharedTexts:
    """Long texts, each written once, in files of about ``LETTERS`` characters. Only their hashes stay in memory."""

    files: DataFiles
    written: list[tuple[str, int]] = field(default_factory=list)
    """The name of each file, and the number of its first text."""
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)
    _letters: int = 0

    def number(self, text: str) -> int:
        """The text's number, a new one for a new text."""
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._waiting.append(text)
            self._letters += len(text)
            if self._letters > LETTERS:
                self.flush()
        return self._numbers[key]

    def flush(self) -> None:
        """Write the remaining texts."""
        if self._waiting:
            first = len(self._numbers) - len(self._waiting)
            self.written.append((self.files.put("texts", len(self.written), self._waiting), first))
            self._waiting, self._letters = [], 0


READ = ("cell", "variant", "task", "select", "attention", "test_id", "gold", "golds", "queries", QUESTION)
"""Columns from which a prompt's end is rebuilt, in addition to the ids of demonstrations."""


@dataclass
class Details:
    """Describes rows of results files with :func:`icl_bench.report.prediction_sample.described`, and writes them."""

    files: DataFiles
    prompts: Prompts

    def write(
        self, tables: Iterable[pa.Table], questions: Iterator[str], say: Callable[[str], None] = lambda _: None
    ) -> dict[str, list[tuple[str, int]]]:
        """Write the rows of these tables: kind -> the name of each file, and the first row or text in it.

        ``questions`` has the known questions of rows; ``say`` receives progress messages.
        """
        texts, written, first = SharedTexts(self.files), list[tuple[str, int]](), 0
        for table in in_parts(tables, ROWS):
            value = self._columns(table, questions, texts)
            written.append((self.files.put("details", len(written), value), first))
            first += len(table)
            say(f"writing predictions: {first:,}")
        texts.flush()
        return {"details": written, "texts": texts.written}

    def _columns(self, table: pa.Table, questions: Iterator[str], texts: SharedTexts) -> dict[str, Any]:
        present = [name for name in (*READ, "demonstration_ids") if name in table.column_names]
        records: list[dict[str, Any]] = table.select(present).to_pylist()
        golds = Texts()
        return {
            "numbers": {name: _short(_numbers(table, name)) for name in number_fields()},
            "written": _short(self._written(table, records)),
            "golds": _short([golds.code(json.dumps(_golds(record))) for record in records]),
            "golds_lists": [json.loads(text) for text in golds.texts],
            **self._ends(records, questions, texts),
        }

    def _written(self, table: pa.Table, records: Sequence[Mapping[str, Any]]) -> list[int]:
        """Whether the whole answer is shown, which is in the list's files."""
        if "text" not in table.column_names:
            return [0] * len(records)
        there = table["text"].is_valid().to_pylist()
        return [int(has and self.prompts.computed(record)) for has, record in zip(there, records, strict=True)]

    def _ends(
        self, records: Sequence[Mapping[str, Any]], questions: Iterator[str], texts: SharedTexts
    ) -> dict[str, Any]:
        """The distinct ends of prompts, and the code of each row's end.

        ``tail`` is the text after the question in the query, if the query begins with it; else ``query`` is the number
        of its text.
        """
        codes: dict[tuple[Any, ...], int] = {}
        names, ends, of_rows = Texts(), list[dict[str, Any]](), list[int]()
        for record in records:
            end, question = self.prompts.end(record), next(questions)
            begins = end.query is not None and end.query.startswith(question)
            tail = end.query[len(question) :] if end.query is not None and begins else None
            query = None if end.query is None or begins else texts.number(end.query)
            own = record.get("demonstration_ids")
            key = record["cell"], None if own is None else tuple(own), tail, query, end.why
            if key not in codes:
                codes[key] = len(ends)
                ends.append(
                    {
                        "tail": tail,
                        "query": query,
                        "shown": [texts.number(text) for text in end.shown],
                        "listed": [names.code(text) for pair in end.listed for text in pair],
                        "count": end.count,
                        "separator": end.separator,
                        "why": end.why or None,
                    }
                )
            of_rows.append(codes[key])
        return {"end": _short(of_rows), "ends": ends, "names": names.texts}


def _numbers(table: pa.Table, name: str) -> list[Any]:
    """A column's numbers for display, with None for missing values."""
    if name not in table.column_names or table[name].null_count == len(table):
        return [None] * len(table)
    return [plain_number(value) for value in table[name].to_pylist()]


def _golds(record: Mapping[str, Any]) -> list[str] | None:
    """All right answers, if there are several."""
    golds = golds_of(record.get("golds"), record["gold"])
    return list(golds) if len(golds) > 1 else None


def _short(column: list[Any]) -> list[Any]:
    """A column, or a list of its one value if all are equal."""
    return column[:1] if len(set(column)) == 1 else column


def in_parts(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The rows of tables in sequence, in tables of this number of rows; the last has fewer."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += len(table)
        if count >= rows:
            whole = pa.concat_tables(waiting, promote_options="permissive")
            for first in range(0, count - rows + 1, rows):
                yield whole.slice(first, rows)
            rest = whole.slice(count - count % rows)
            waiting, count = [rest] * (len(rest) > 0), len(rest)
    if count:
        yield pa.concat_tables(waiting, promote_options="permissive")
