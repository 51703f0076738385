"""All that the page shows of single predictions, as data files: read, described and written a few thousand at a time.

What follows from a prompt's demonstrations is stored once for all rows of a file that have the same; a question is the
example's, and texts of demonstrations have files of their own, in which each stands once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icl_bench.metrics.scores import score_columns
from icl_bench.report.naming import Naming
from icl_bench.report.prediction_sample import described
from icl_bench.report.prompt_ends import Prompts
from icl_bench.report.published.data_files import DataFiles
from icl_bench.report.published.lists import LETTERS, Texts
from icl_bench.table_files import data_frame

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 5_000
"""Predictions in a file, at most."""


def number_fields() -> tuple[str, ...]:
    """Columns of numbers and verdicts."""
    return ("valid", "prompt_tokens", "cached_tokens", "probability", "margin", "label_mass", *score_columns())


@dataclass
class SharedTexts:
    """Long texts, each written once, in files of about ``LETTERS`` letters; only their hashes stay in memory."""

    files: DataFiles
    written: list[tuple[str, int]] = field(default_factory=list)
    """The name of each file, and the number of its first text."""
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)
    _letters: int = 0

    def number(self, text: str) -> int:
        """The text's number, a new one if it is new."""
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._waiting.append(text)
            self._letters += len(text)
            if self._letters > LETTERS:
                self.flush()
        return self._numbers[key]

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._waiting:
            first = len(self._numbers) - len(self._waiting)
            self.written.append((self.files.put("texts", len(self.written), self._waiting), first))
            self._waiting, self._letters = [], 0


@dataclass
class Details:
    """Describes rows of results files, and writes them."""

    files: DataFiles
    naming: Naming
    prompts: Prompts

    def write(
        self, tables: Iterable[pa.Table], questions: Iterator[str], say: Callable[[str], None] = lambda _: None
    ) -> dict[str, list[tuple[str, int]]]:
        """Write the rows of these tables: kind -> the name of each file, and the first row or text in it.

        ``questions`` has the question of each row, as far as it is known; ``say`` gets progress messages.
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
        named = self.naming.named(data_frame(table))
        records: list[Any] = named.to_dict("records")
        columns: dict[str, list[Any]] = {name: [] for name in number_fields()}
        written, golds, ends, names = list[int](), Texts(), Texts(), Texts()
        of_golds, of_ends = list[int](), list[int]()
        for record in records:
            shown = described(record, self.prompts)
            for name, column in columns.items():
                column.append(shown[name])
            written.append(int(shown["text"] is not None))
            of_golds.append(golds.code(json.dumps(shown["golds"])))
            of_ends.append(ends.code(json.dumps(_end(shown, next(questions), texts, names))))
        return {
            "numbers": {name: _short(column) for name, column in columns.items()},
            "written": _short(written),
            "golds": _short(of_golds),
            "golds_lists": [json.loads(text) for text in golds.texts],
            "end": _short(of_ends),
            "ends": [json.loads(text) for text in ends.texts],
            "names": names.texts,
        }


def _end(shown: Mapping[str, Any], question: str, texts: SharedTexts, names: Texts) -> dict[str, Any]:
    """What the reader shows of a prompt; ``tail`` is what follows the question in the query, if the query begins with
    it, else ``query`` is the number of its text.
    """
    query = shown["query"]
    begins = query is not None and query.startswith(question)
    return {
        "tail": query[len(question) :] if begins else None,
        "query": None if query is None or begins else texts.number(query),
        "shown": [texts.number(text) for text in shown["shown"]],
        "listed": [names.code(text) for pair in shown["listed"] for text in pair],
        "count": shown["count"],
        "separator": shown["separator"],
        "why": shown["why"],
    }


def _short(column: list[Any]) -> Any:
    """A column, or its one value in a list if all are the same."""
    first = column[0]
    return column[:1] if all(value == first and type(value) is type(first) for value in column) else column


def in_parts(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The rows of tables, one after the other, in tables of so many rows; the last has fewer."""
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
