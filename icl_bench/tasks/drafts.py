"""A draft task from one file of rows: text and label columns are guessed, and a part of each label is the test split.

A draft reports every guess, and is the content of a task file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.file_readers import kind_of, read_split
from icl_bench.tasks.label_spellings import named_groups, same_labels
from icl_bench.tasks.spec import Holdout, TaskSpec, TestRows
from icl_bench.tasks.splits import StoredRow, number_as_text
from icl_bench.wording import counted, one_line, plain, short

HELD_OUT = Holdout(share=0.2, seed=TestRows().seed)
"""The test split of a draft, before it is stratified."""

OF_WINDOWS = "cp1252"
"""The encoding of a file of text that is not UTF-8, as a guess: Excel's in Western Europe and America."""

TEXTS = {"text", "body", "message", "sentence", "question", "query", "utterance", "content", "review", "comment"}
LABELS = {"label", "labels", "class", "category", "intent", "topic", "target", "sentiment", "queue", "tag", "emotion"}
"""Words in column names that identify their content."""

MOST_OF_LABEL = 2
"""The minimum rows per label of a guessed label column."""

LONGEST_LABEL = 100
"""The maximum characters of a guessed label."""


@dataclass(frozen=True)
class Column:
    """A column of plain values, with the properties that guesses use."""

    name: str
    place: int
    values: Sequence[str]
    """Its values as text, without empty ones."""
    is_number: bool
    """Whether all values are numbers."""

    @classmethod
    def of(cls, name: str, place: int, cells: Sequence[Any]) -> Column | None:
        """The column, or None if some value is a list or an object, or none is left."""
        cells = [number_as_text(cell) for cell in cells if cell is not None]
        if not all(isinstance(cell, str) for cell in cells):
            return None
        values = [cell for cell in cells if cell.strip()]
        numbers = all(re.fullmatch(r"[-+]?[0-9]+([.,][0-9]+)?", value.strip()) for value in values)
        return cls(name, place, values, numbers) if values else None

    def has_word(self, words: set[str]) -> bool:
        """Whether a word of its name is one of these."""
        parts = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", self.name).lower())
        return "id" not in parts and not words.isdisjoint(parts)

    @cached_property
    def counts(self) -> Counter[str]:
        """Each value with its number of rows."""
        return Counter(self.values)

    @property
    def may_be_label(self) -> bool:
        """Whether several short values repeat."""
        few = 2 <= len(self.counts) <= len(self.values) / MOST_OF_LABEL
        return few and max(map(len, self.counts)) <= LONGEST_LABEL and not any("\n" in value for value in self.counts)

    @property
    def words(self) -> float:
        """Mean words of a value. A value without blanks in ASCII counts as one word (a hash, a link)."""
        long = sum(len(value) / 5 if not value.isascii() else len(value.split()) for value in self.values)
        return long / len(self.values)


@dataclass(frozen=True)
class Draft:
    """A task created from a file of rows."""

    values: dict[str, Any]
    """The fields of the task file; the path of the rows is as given."""
    said: tuple[str, ...]
    """Guesses and decisions, one sentence each."""
    data: TaskData

    @property
    def spec(self) -> TaskSpec:
        """The task, with the guesses as its notes."""
        return self.data.spec.model_copy(update={"notes": self.said})


def task_name(path: Path) -> str:
    """The task name derived from the name of a file of rows."""
    stem = path.name.removesuffix(path.suffix) if path.suffix.lower() == ".gz" else path.name
    stem = stem.rpartition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", stem).lstrip("._-") or "table"


def draft_task(path: Path, text: str | None = None, label: str | None = None) -> Draft:
    """Create a task from a file of rows, each a text with its label.

    ``text`` and ``label`` are columns, or paths into one; missing ones are guessed. The test split is a fifth of each
    label's rows. Raises ``UserError`` if no columns can be guessed or the rows are not a valid task.
    """
    if kind_of(path) is None:
        raise UserError(f"{path}: not a file of rows; expected one like tickets.csv")
    rows, encoding = _read(path)
    text, label, said = _columns(path, rows, text, label)
    labels = Column.of(label, 0, [row.cell(label) for row in rows])
    if labels is None or len(labels.counts) == len(labels.values):
        wrong = "is a list or an object, or empty" if labels is None else f"differs in all {len(labels.values):,} rows"
        raise UserError(
            f"{path}: {plain(label)} {wrong}: no label. Free text needs a task file with metrics (docs/task-files.md)"
        )
    data: dict[str, Any] = {"file": str(path), "fields": {"text": text, "label": label}}
    data["holdout"] = HELD_OUT.model_copy(update={"stratify": label}).model_dump()
    if encoding is not None:
        data["encoding"] = encoding
        said.append(f"encoding: {encoding}, as the file is not UTF-8; data.encoding names another one")
    if not _name_rows(rows):
        data["id"] = False
        said.append(
            "id: does not identify rows (empty, repeated, or not text or a whole number), so rows are identified by "
            "their number"
        )
    reading: dict[str, Any] = {}
    if len(labels.values) < len(rows):
        reading["empty"] = "leave_out"
        said.append(f"labels.empty: {counted(len(rows) - len(labels.values), 'row')} without a label are left out")
    if groups := same_labels(labels.counts):
        reading["merge"] = True
        said.append(f"labels.merge: labels that differ only in spelling are merged ({named_groups(groups)})")
    elif any(value != " ".join(value.split()) for value in labels.counts):
        reading["merge"] = True
        said.append("labels.merge: spaces around labels and repeated spaces are ignored")
    values = {
        "name": task_name(path),
        "data": data,
        "template": {"input": f"{_lead(text, 'text')}: {{text}}", "output": f"{_lead(label, 'label')}: {{label}}"},
        "labels": reading,
        "metrics": ["accuracy", "macro_f1"],
    }
    loaded = load_data(TaskSpec.model_validate(values))
    size = min(TestRows().size, len(loaded.test_pool))
    if size < TestRows().size:
        values["test"] = {"size": size}
        loaded = load_data(TaskSpec.model_validate(values))
    share = f"{HELD_OUT.share:.0%} of the rows of each {plain(label)} by seed {HELD_OUT.seed}"
    said.append(f"test: {share}, {counted(len(loaded.test_pool), 'row')}, of which {size:,} are used by default")
    template = loaded.spec.template
    said.append(f"prompt: a demonstration is {short(template.input)}, a line break and {short(template.output)}")
    return Draft(values, tuple(map(one_line, said)), loaded)


def _read(path: Path) -> tuple[Sequence[StoredRow], str | None]:
    """All rows, and the encoding if it was guessed."""
    try:
        rows = read_split(path, "all", {}).rows
        if kind_of(path) == ".parquet":  # class names exist only for columns that are requested by name
            rows = read_split(path, "all", {name: name for name in rows[0].cells}).rows
        return rows, None
    except UserError as error:
        if "not UTF-8" not in str(error):
            raise
        try:
            return read_split(path, "all", {}, OF_WINDOWS).rows, OF_WINDOWS
        except UserError:
            raise error from None


def _columns(path: Path, rows: Sequence[StoredRow], text: str | None, label: str | None) -> tuple[str, str, list[str]]:
    """The columns of texts and labels, and how they were found. Raises ``UserError``."""
    for given in (text, label):
        if given is not None:
            rows[0].cell(given)  # lists the columns if it does not exist
    names = dict.fromkeys(name for row in rows for name in row.cells)
    found = [Column.of(name, place, [row.cells.get(name) for row in rows]) for place, name in enumerate(names)]
    columns = [column for column in found if column is not None and column.name not in (text, label)]
    how = {}
    if label is None:
        known = [column for column in columns if column.may_be_label and not (text is None and _is_text(column))]
        label, how["label"] = _best(
            path, "label", known, names, lambda column: (column.has_word(LABELS), not column.is_number, column.place)
        )
    columns = [column for column in columns if column.name != label]
    if text is None:
        known = [column for column in columns if not column.is_number]
        text, how["text"] = _best(path, "text", known, names, lambda column: (_is_text(column), column.words))
    if text == label:
        raise UserError(f"{path}: {plain(text)} cannot be both text and label")
    columns_said = {"text": text, "label": label}
    return text, label, [f"{kind}: column {plain(name)}{how.get(kind, '')}" for kind, name in columns_said.items()]


def _is_text(column: Column) -> bool:
    """Whether the name indicates texts, and the values may be texts."""
    return column.has_word(TEXTS) and not column.has_word(LABELS) and column.words >= 2


def _best(
    path: Path, kind: str, known: Sequence[Column], names: Iterable[str], key: Callable[[Column], Any]
) -> tuple[str, str]:
    """The column that fits best, and a text about the alternatives. Raises ``UserError`` if there is none."""
    if not known:
        has = ", ".join(map(plain, names))
        raise UserError(one_line(f"{path}: no column looks like a {kind}; name one (--{kind}). Columns: {has}"))
    best, *others = sorted(known, key=key, reverse=True)
    also = f"; also possible: {', '.join(plain(column.name) for column in others)} (--{kind})" if others else ""
    return best.name, f", by guess{also}"


def _name_rows(rows: Sequence[StoredRow]) -> bool:
    """Whether a column ``id``, if there is one, has a distinct text or integer in each row."""
    if not any("id" in row.cells for row in rows):
        return True
    values = [row.cells.get("id") for row in rows]
    plain_values = all(isinstance(v, str | int) and not isinstance(v, bool) and v != "" for v in values)
    return plain_values and len(set(map(str, values))) == len(values)


def _lead(column: str, otherwise: str) -> str:
    """The name of a column in a template."""
    return " ".join(re.sub(r"[{}:]", " ", column).split()) or otherwise
