"""Reads rows of JSON, CSV, Excel and Parquet files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.table_files import (
    DELIMITERS,
    check_names,
    csv_rows,
    excel_sheet,
    find_delimiter,
    gunzip,
    parquet_table,
    refusing_damaged_parquet,
)
from icl_bench.tasks.spec import Holdout
from icl_bench.tasks.splits import Split, StoredRow, name_classes, no_column, number_as_text, rows_digest
from icl_bench.text_files import decode, parse_json, read_file
from icl_bench.wording import counted, few, listed_or, one_line, short

if TYPE_CHECKING:
    import numpy as np

TEXT_FILES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
"""Files of text; they may be compressed (``.gz``)."""

TABLE_FILES = (*TEXT_FILES, ".xlsx", ".parquet")
"""The files that hold rows."""


def kind_of(path: Path) -> str | None:
    """The extension of a file of rows in lower case, without ``.gz``, which only text files may have. Else None."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = (suffixes[:-1] if zipped else suffixes)[-1:]
    return kind[0] if kind and kind[0] in (TEXT_FILES if zipped else TABLE_FILES) else None


def read_split(path: Path, split: str, columns: Mapping[str, str], encoding: str | None = None) -> Split:
    """Read a file of rows by its extension.

    ``encoding`` is the encoding of a text file; by default, that of its byte order mark or UTF-8. Raises ``UserError``.
    """
    raw = content = read_file(path)
    kind, name = kind_of(path), str(path)
    if kind is None:
        raise UserError(f"{path}: expected {listed_or(TABLE_FILES)} ({', '.join(TEXT_FILES)} also with .gz)")
    if encoding is not None and kind not in TEXT_FILES:
        raise UserError(f"{path}: data.encoding is for files of text, not {kind}")
    if path.suffix.lower() == ".gz":
        content = gunzip(raw, name)
    notes: list[str] = []
    match kind:
        case ".jsonl" | ".ndjson":
            rows = list(_jsonl_rows(_text(content, name, encoding), name))
        case ".json":
            rows = list(_json_rows(_text(content, name, encoding), name))
        case ".csv" | ".tsv":
            text = _text(content, name, encoding)
            if said := re.match(r"sep=([,;\t|])\r?(?=\n)", text):  # Excel's own line
                text = text[said.end() :]
            delimiter = said[1] if said else "\t" if kind == ".tsv" else find_delimiter(text)
            if (kind, delimiter) not in ((".csv", ","), (".tsv", "\t")):
                notes.append(f"{path.name}: {DELIMITERS[delimiter]} separates its cells")
            rows = list(_csv_rows(text, name, delimiter))
            if delimiter == "\t" and (torn := [row.where for row in rows if _has_cells_within(row)]):
                notes.append(f"{torn[0]}: a quoted cell holds a tab and a line break; is a quotation mark unpaired?")
        case ".xlsx":
            rows, notes = _excel_rows(content, name)
        case _:
            rows = list(_parquet_rows(content, name, columns))
    if not rows:
        raise UserError(f"{path}: has no rows")
    # the bytes alone do not determine the text
    digest = hashlib.sha256(raw).hexdigest() if encoding is None else rows_digest([row.cells for row in rows])
    return Split(split, path.name, digest, rows, tuple(notes))


def read_cut(path: Path, holdout: Holdout, columns: Mapping[str, str], encoding: str | None = None) -> dict[str, Split]:
    """Read one file and split off the test rows. Raises ``UserError``."""
    all_rows = read_split(path, "all", columns, encoding)
    splits = {}
    for split, part in hold_out(all_rows.rows, holdout).items():
        rows = [all_rows.rows[i] for i in part]
        if not rows:
            raise UserError(f"{path}: its holdout leaves no {split} row of {len(all_rows.rows):,}")
        digest = rows_digest([row.cells for row in rows])
        splits[split] = Split(split, f"{path.name}:{split}", digest, rows, all_rows.notes)
    return splits


def hold_out(rows: Sequence[StoredRow], holdout: Holdout) -> dict[str, np.ndarray]:
    """The indices of each split's rows. Raises ``UserError`` for rows without the column that it stratifies by."""
    import numpy as np

    order = np.random.default_rng(holdout.seed).permutation(len(rows))
    if holdout.stratify is None:
        cut = math.ceil(holdout.share * len(rows))
        return {"train": order[cut:], "test": order[:cut]}
    strata: dict[str, list[int]] = {}
    for i in order:
        strata.setdefault(str(rows[i].cell(holdout.stratify)), []).append(i)
    test, before = set[int](), 0
    for value in sorted(strata):
        # each stratum has its share, up to one row, and all together have the size of an unstratified holdout
        count = math.ceil(holdout.share * (before + len(strata[value]))) - math.ceil(holdout.share * before)
        test.update(strata[value][: min(count, len(strata[value]) - 1)])
        before += len(strata[value])
    is_test = np.array([i in test for i in order], dtype=bool)
    return {"train": order[~is_test], "test": order[is_test]}


def _text(content: bytes, name: str, encoding: str | None) -> str:
    """The text of a file. Raises ``UserError`` with advice on setting another encoding."""
    start = content[:4096]
    try:
        text = decode(content, name, encoding)
    except UserError as error:
        raise UserError(f"{error}; data.encoding names another one, like cp1252") from None
    if encoding is None and text.count("\0", 0, len(start)) > len(start) / 4:
        raise UserError(f"{name}: looks like UTF-16 without a byte order mark; set data.encoding: utf-16-le")
    return text


def _jsonl_rows(text: str, name: str) -> Iterator[StoredRow]:
    if text.lstrip().startswith("["):
        yield from _json_rows(text, name)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.isspace():
            continue
        where = f"{name}:{number}"
        try:
            cells = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(one_line(f"{where}: not JSON: {error}")) from None
        if not isinstance(cells, dict):
            raise UserError(f"{where}: expected a JSON object, not {short(cells)}")
        yield StoredRow(where, cells)


def _json_rows(text: str, name: str) -> Iterator[StoredRow]:
    """The objects of an array, of the only array in an object, or of JSON lines."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith("["):
            yield from _jsonl_rows(text, name)
            return
        raise UserError(one_line(f"{name}: not JSON: {error}")) from None
    if isinstance(value, dict):
        arrays = [v for v in value.values() if isinstance(v, list) and v and all(isinstance(i, dict) for i in v)]
        if len(arrays) != 1 and len(text.strip().splitlines()) == 1:
            arrays = [[value]]  # JSON lines with a single line
        if len(arrays) != 1:
            keys = few([*value], 10)
            wanted = "expected an array of objects, or one object a line"
            raise UserError(one_line(f"{name}: {wanted}, and it is one object with: {keys or 'nothing'}"))
        value = arrays[0]
    if not isinstance(value, list):
        raise UserError(f"{name}: expected an array of objects, or one object a line, not {short(value)}")
    for number, cells in enumerate(value, 1):
        if not isinstance(cells, dict):
            raise UserError(f"{name} row {number}: expected a JSON object, not {short(cells)}")
        yield StoredRow(f"{name} row {number}", cells)


def _csv_rows(text: str, file_name: str, delimiter: str) -> Iterator[StoredRow]:
    rows = csv_rows(text, file_name, delimiter)
    where, header = next(rows, (file_name, []))
    check_names(header, where)
    for where, cells in rows:
        yield StoredRow(where, dict(zip(header, cells, strict=True)))


def _has_cells_within(row: StoredRow) -> bool:
    """Whether a cell spans several of these rows or columns."""
    return any("\t" in cell and "\n" in cell for cell in row.cells.values())


def _excel_rows(content: bytes, name: str) -> tuple[list[StoredRow], list[str]]:
    """The rows of the first sheet, with cells as text as in CSV, and notes on ignored content."""
    sheets, cells = excel_sheet(content, name)
    header, *further = cells or [[]]
    headings = [f"Unnamed: {place}" if value in (None, "") else str(value) for place, value in enumerate(header)]
    check_names(headings, f"{name} row 1")
    rows, errors = [], 0
    for number, values in enumerate(further, 2):
        errors += sum(value is None for value in values)
        texts = ["" if value is None else str(number_as_text(value)) for value in values]
        if any(texts):
            rows.append(StoredRow(f"{name} row {number}", dict(zip(headings, texts, strict=True))))
    notes = []
    if len(sheets) > 1:
        notes.append(f"{Path(name).name}: {sheets[0]!r} is read, the first of its {len(sheets)} sheets")
    if errors:
        verb = "is" if errors == 1 else "are"
        notes.append(f"{Path(name).name}: {counted(errors, 'cell')} with an error, like #N/A, {verb} read as empty")
    return rows, notes


def _parquet_rows(content: bytes, name: str, columns: Mapping[str, str]) -> Iterator[StoredRow]:
    import pyarrow as pa

    with refusing_damaged_parquet(name):
        table = parquet_table(content)
        check_names(table.column_names, name)
        stored = wanted_columns(columns, table.column_names, name)
        records = table.select(stored).to_pylist()
    if columns:  # a Jinja template expects numbers
        of_numbers = {field.name for field in table.schema if pa.types.is_integer(field.type)}
        classes = _class_names(table.schema.metadata or {})
        name_classes(records, {c: known for c, known in classes.items() if c in of_numbers.intersection(stored)}, name)
    for number, record in enumerate(records, 1):
        yield StoredRow(f"{name} row {number}", record)


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes of columns that hold class numbers, which ``datasets`` stores with the table."""
    try:
        features: Any = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {
            column: list(feature["names"])
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def wanted_columns(columns: Mapping[str, str], stored: Sequence[str], table_name: str) -> list[str]:
    """The columns of a table to read, in its order: those of the template's fields, and ``id`` if there is one.

    All columns if there are no fields: a Jinja template names columns itself.
    """
    if not columns:
        return list(stored)
    for column in columns.values():
        if _stored_in(column, stored) not in stored:
            raise UserError(no_column(table_name, column, stored))
    base_columns = {_stored_in(column, stored) for column in columns.values()}
    # a path may contain a column whose value selects an item
    selectors = {part for c in columns.values() for part in re.findall(r"=([^.=]+)", c)}
    wanted = {*base_columns, *selectors, "id"}
    return [name for name in stored if name in wanted]


def _stored_in(column: str, stored: Sequence[str]) -> str:
    """The column itself, or the first one of a path."""
    return column if column in stored else column.partition(".")[0]
