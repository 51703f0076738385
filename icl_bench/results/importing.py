"""Imports predictions that were made elsewhere into a results folder.

A file is read and checked completely before anything is stored. Cells are stored unchanged.
Predictions that the analysis could not count correctly are refused: repeated rows, percentages
instead of shares, rows that contradict each other or themselves. Draws without some test rows are
accepted: tables compare draws on their common rows and report the omitted ones. An import is one
file in ``imported/`` with all its cells.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from icl_bench.errors import UserError
from icl_bench.metrics.scores import LARGEST_SCORE, score_columns
from icl_bench.registry import METRICS
from icl_bench.results.cells import ALWAYS, AXES, FINISHED, PROTOCOL, cell_hash, prediction_schema, slug
from icl_bench.results.reading import IMPORT_META, IMPORTED, DamagedError, read_whole
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import ImportMeta, as_stored
from icl_bench.table_files import csv_rows, gunzip, parquet_bytes, parquet_table, refusing_damaged_parquet
from icl_bench.text_files import decode, read_file
from icl_bench.wording import one_line, plain, short

NEEDED = ("task", "model", "select", "order", "k", "draw", "test_id", "gold", "prediction")
"""Columns that a file must have."""

EMPTY_IS_VALUE = ("gold", "prediction")
"""Columns in which an empty text is a value; in other columns it is a missing value."""


DEFAULTS = {"perturbation": "none", "queries": "test", "label_space": "all"}
"""Default values of columns, which are stored as missing values."""


QUERY_KINDS = ("test", "copied")
"""Possible values of ``queries``."""


PROBABILITIES = ("probability", "margin", "label_mass")


LARGEST = 2**31 - 1


NO_IDS = [""]
"""Marks text that is not a list of ids. The empty list is valid: a prompt without demonstrations."""


ENDINGS = (".parquet", ".csv", ".csv.gz")


BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Import:
    """A file that has been imported into a results folder."""

    where: str
    """Its stored location, for messages."""
    rows: int
    further: tuple[str, ...] = ()
    """Columns unknown to this program, which are kept."""
    before: bool = False
    """Whether it had been imported before, so that nothing was written."""


def import_predictions(file: Path, results: Place) -> Import:
    """Store a file of predictions in a results folder, once.

    Raises ``UserError`` if the file cannot be read, lacks columns or values, or has rows that repeat
    or contradict each other, or if the folder cannot be written.
    """
    ending = next((e for e in reversed(ENDINGS) if file.name.lower().endswith(e)), None)
    shown = plain(file)
    if ending is None:
        raise UserError(f"{shown}: must end in .parquet, .csv or .csv.gz")
    raw = read_file(file)
    sha256 = hashlib.sha256(raw).hexdigest()
    storage = storage_at(results)
    if before := find_import(storage, sha256):
        name, rows = before
        return Import(storage.where(name), rows, before=True)
    table = _read(raw, shown, ending)
    known = _known_columns(table, shown, variant=sha256[:8])
    further = {}
    for name in (name for name in table.column_names if name not in known):
        column, where = table[name], f"{shown}: column {plain(name)}"
        further[name] = _fractions(column, where, name) if name in score_columns() else _kept(column, where)
    name = f"{IMPORTED}/{slug(file.name[: -len(ending)])[:80]}-{sha256[:12]}{FINISHED}"
    about = ImportMeta(source=file.name, sha256=sha256, rows=len(table), protocol=PROTOCOL)
    known = {column: values for column, values in known.items() if column in ALWAYS or values.null_count < len(table)}
    whole = pa.table({**known, **further}).replace_schema_metadata({IMPORT_META: json.dumps(as_stored(about))})
    _put(storage, name, whole, file.name)
    return Import(storage.where(name), len(table), tuple(further))


def find_import(storage: Storage, sha256: str) -> tuple[str, int] | None:
    """Name and number of predictions of the import of a file with this hash, unless damaged."""
    for name in sorted(storage.names(IMPORTED)):
        if not name.endswith(f"-{sha256[:12]}{FINISHED}"):
            continue
        with suppress(DamagedError):
            file = read_whole(storage, name)
            if file.imported and file.imported.sha256 == sha256:
                return name, len(file.table)
    return None


def _put(storage: Storage, name: str, table: pa.Table, source: str) -> None:
    storage.prepare()
    try:
        storage.put(name, parquet_bytes(table))
    except OSError as error:
        raise UserError(f"results folder {storage.where()}: {error.strerror or error}; nothing was imported") from None
    except pa.ArrowException as error:
        raise UserError(one_line(f"{source}: cannot be stored: {error}")) from None


# -- reading ------------------------------------------------------------------------------------


def _read(raw: bytes, shown: str, ending: str) -> pa.Table:
    """The columns of the file, each name once."""
    if ending == ".csv.gz":
        raw = gunzip(raw, shown)
    table = _parquet(raw, shown) if ending == ".parquet" else _csv(decode(raw, shown), shown)
    if not len(table):
        raise UserError(f"{shown}: has no rows")
    return table


def _parquet(raw: bytes, shown: str) -> pa.Table:
    with refusing_damaged_parquet(shown):
        table = parquet_table(raw)
        _check_names(table.column_names, shown)
        return pa.table({name: _decoded(table[name]) for name in table.column_names})


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without categories or an extension type."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _decoded(column.cast(kind.storage_type))
    return column.cast(kind.value_type) if types.is_dictionary(kind) else column


def _csv(text: str, shown: str) -> pa.Table:
    """All cells as text; an empty cell is a missing value, except in ``prediction``."""
    rows = (cells for _, cells in csv_rows(text, shown))
    header = next(rows, [])
    _check_names(header, shown)
    chunks: list[list[pa.Array]] = [[] for _ in header]
    while batch := list(islice(rows, BATCH_ROWS)):
        for chunk, cells in zip(chunks, zip(*batch, strict=True), strict=True):
            chunk.append(pa.array(cells, pa.string()))
    columns = {}
    for name, chunk in zip(header, chunks, strict=True):
        column = pa.chunked_array(chunk, pa.string())
        empty = pc.equal(column, "")
        columns[name] = column if name == "prediction" else pc.if_else(empty, None, column)
    return pa.table(columns)


def _check_names(names: Sequence[str], shown: str) -> None:
    present = one_line(", ".join(map(plain, names))) or "none"
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(one_line(f"{shown}: column {plain(twice[0])} appears twice"))
    if lacking := [name for name in NEEDED if name not in names]:
        columns = f"column{'' if len(lacking) == 1 else 's'} {', '.join(lacking)}"
        raise UserError(f"{shown}: lacks the {columns}; it has: {present}")


# -- columns ------------------------------------------------------------------------------------


def _known_columns(table: pa.Table, shown: str, variant: str) -> dict[str, pa.ChunkedArray]:
    """The columns of a results file: typed, completed and checked."""
    schema = prediction_schema()
    columns = {
        field.name: _typed(table[field.name], field, f"{shown}: column {field.name}")
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(len(table), _plain_type(field))])
        for field in schema
    }
    columns["gold"] = _with_empty_golds(columns["gold"], table)
    for name in NEEDED:
        _check_missing(columns[name], f"{shown}: column {name}")
    for name, default in DEFAULTS.items():
        columns[name] = pc.if_else(pc.equal(columns[name], default), None, columns[name])
    columns["attention"] = columns["attention"].fill_null("full")
    columns["backend"] = columns["backend"].fill_null("imported")
    columns["variant"] = columns["variant"].fill_null(variant)
    _check_golds(columns, shown)
    right = pc.equal(columns["gold"], columns["prediction"])
    by_name = {name: table[name] for name in table.column_names} | columns
    scored = np.any([by_name[name].is_valid() for name in score_columns() if name in by_name], axis=0)
    labelled = pc.if_else(scored, None, right)  # free text has scores instead of correct
    if columns["correct"].null_count == len(table):
        columns["correct"] = labelled
    _check_correct(columns, labelled, shown)
    columns["cell"] = _cells(columns, shown)
    return {field.name: columns[field.name].cast(field.type) for field in schema}


def _with_empty_golds(gold: pa.ChunkedArray, table: pa.Table) -> pa.ChunkedArray:
    """Correct answers; a missing one becomes empty if a metric scored it.

    A CSV file does not distinguish empty from missing.
    """
    having = [
        m.column
        for metric in METRICS.values()
        if metric.compares_empty
        for m in metric.measures
        if m.column in table.column_names
    ]
    scored = np.any([table[name].is_valid() for name in having], axis=0)
    return pc.if_else(scored, gold.fill_null(""), gold) if having else gold


def _plain_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if types.is_dictionary(field.type) else field.type


def _typed(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    """Convert a column to its stored type. Raises ``UserError``."""
    kind = _plain_type(field)
    if types.is_integer(kind):
        return _whole(column, where)
    if types.is_floating(kind):
        return _fractions(column, where, field.name)
    if types.is_boolean(kind):
        return _booleans(column, where)
    if types.is_list(kind):
        return _id_lists(column, where)
    text = _text(column, where, empty=field.name in EMPTY_IS_VALUE)
    if field.name == "queries":
        _check(_among(text, (*QUERY_KINDS, None)), column, where, " or ".join(QUERY_KINDS))
    return text


def _text(column: pa.ChunkedArray, where: str, *, empty: bool) -> pa.ChunkedArray:
    """Text, or whole numbers as their digits."""
    kind = column.type
    if not (_is_text(kind) or types.is_integer(kind) or types.is_null(kind)):
        _refuse_type(column, where, "text")
    text = column.cast(pa.string())
    return text if empty else pc.if_else(pc.equal(text, ""), None, text)


def _whole(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    expected = f"a whole number from 0 to {LARGEST:,}"
    values = _numbers(column, where, expected)
    good = (values >= 0) & (values <= LARGEST) & (values == np.floor(values))
    _check(good | np.isnan(values), column, where, expected)
    return pa.chunked_array([pa.array(values, from_pandas=True).cast(pa.int32())])


def _fractions(column: pa.ChunkedArray, where: str, name: str) -> pa.ChunkedArray:
    probability = name in PROBABILITIES
    expected = "a probability from 0 to 1" if probability else "a share of 1, not a percentage"
    values = _numbers(column, where, expected)
    least = 0 if probability else -LARGEST_SCORE
    _check(((values >= least) & (values <= LARGEST_SCORE)) | np.isnan(values), column, where, expected)
    return pa.chunked_array([pa.array(values, from_pandas=True)])


def _numbers(column: pa.ChunkedArray, where: str, expected: str) -> np.ndarray:
    """Numbers ``(rows,)``: NaN for a missing value, infinity for anything else."""
    kind = column.type
    if _is_text(kind):
        column = column.cast(pa.string())
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:
            known = {text: _number(text) for text in column.unique().to_pylist()}
            return np.array([known[text] for text in column.to_pylist()])
    elif not any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        _refuse_type(column, where, expected)
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=float)


def _number(text: str | None) -> float:
    if text is None:
        return math.nan
    try:
        return float(pa.scalar(text).cast(pa.float64()).as_py())
    except pa.ArrowInvalid:
        return math.inf


def _booleans(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Booleans, in any spelling: 1, 0, TRUE, False."""
    kind, expected = column.type, "true or false"
    if types.is_boolean(kind):
        return column
    if not any(is_kind(kind) for is_kind in (_is_text, types.is_integer, types.is_floating, types.is_null)):
        _refuse_type(column, where, expected)
    text = pc.utf8_lower(column.cast(pa.string()))
    yes, no, nothing = (
        _among(text, words) for words in (["true", "1", "1.0"], ["false", "0", "0.0"], ["", "nan", None])
    )
    _check(np.any([yes, no, nothing], axis=0), column, where, expected)
    return pa.chunked_array([pc.if_else(pa.array(nothing), None, pa.array(yes))])


def _among(column: pa.ChunkedArray, values: Sequence[str | None]) -> np.ndarray:
    """Whether each value is one of ``values``, which may include None, ``(rows,)``."""
    return np.asarray(pc.is_in(column, value_set=pa.array(values, pa.string())))


def _id_lists(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Lists of ids; JSON in a text column."""
    kind = pa.list_(pa.string())
    if not _is_text(column.type):
        try:
            return column.cast(kind)
        except pa.ArrowException:
            _refuse_type(column, where, "lists of ids")
    lists = [_ids(text) for text in column.to_pylist()]
    good = np.array([ids != NO_IDS for ids in lists])
    _check(good, column, where, 'a JSON list like ["12", "7"]')
    return pa.chunked_array([pa.array(lists, kind)])


def _ids(text: str | None) -> list[str] | None:
    """The ids in one cell; ``NO_IDS`` if it is not a list of ids."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return NO_IDS
    return value if isinstance(value, list) and all(isinstance(i, str) for i in value) else NO_IDS


def _kept(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """A column to keep unchanged. Raises ``UserError`` if it could not be read again."""
    try:
        column.to_pandas(use_threads=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        _refuse_type(column, where, "plainer values, or no such column")
    return column


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


# -- checks -------------------------------------------------------------------------------------


def _refuse_type(column: pa.ChunkedArray, where: str, expected: str) -> NoReturn:
    raise UserError(one_line(f"{where}: holds values of type {column.type}; expected {expected}"))


def _check(good: np.ndarray, column: pa.ChunkedArray, where: str, expected: str) -> None:
    """Raise ``UserError`` with the first value that is not ``good``."""
    if not good.all():
        row = int(good.argmin())
        value = short(column[row].as_py())
        raise UserError(f"{where}: {value} in row {row + 1:,}; expected {expected}")


def _check_golds(columns: Mapping[str, pa.ChunkedArray], shown: str) -> None:
    """Raise ``UserError`` if a test row has different correct answers."""
    keys = ["task", "variant", "label_space", "queries", "test_id"]
    codes = pd.DataFrame({name: _codes(columns[name].fill_null("")) for name in keys})
    codes["gold"] = _codes(columns["gold"])
    first = codes.reset_index().groupby(keys, sort=False)[["index", "gold"]].transform("first")
    differs = (codes["gold"] != first["gold"]).to_numpy()
    if differs.any():
        row = int(differs.argmax())
        before = int(first["index"][row])
        name, gold, other = (
            short(columns[column][at].as_py()) for column, at in (("test_id", row), ("gold", row), ("gold", before))
        )
        raise UserError(
            f"{shown}: column gold: {gold} in row {row + 1:,}, but {other} in row {before + 1:,} "
            f"for the same test row ({name}); a test row has one correct answer"
        )


def _check_correct(columns: Mapping[str, pa.ChunkedArray], right: pa.ChunkedArray, shown: str) -> None:
    """Raise ``UserError`` if ``correct`` contradicts gold and prediction.

    ``right`` is the comparison of gold and prediction, missing for free text.
    """
    agrees = np.asarray(pc.equal(columns["correct"], right).fill_null(True))
    if not agrees.all():
        row = int(agrees.argmin())
        correct, gold, prediction = (short(columns[name][row].as_py()) for name in ("correct", "gold", "prediction"))
        raise UserError(
            f"{shown}: column correct: {correct} in row {row + 1:,}, where gold is {gold} and "
            f"prediction {prediction}; give predictions as full labels, or omit the column to have "
            "it computed"
        )


def _check_missing(column: pa.ChunkedArray, where: str) -> None:
    if column.null_count:
        row = int(np.asarray(column.is_valid()).argmin())
        values = f"{column.null_count:,} value{'' if column.null_count == 1 else 's'} missing"
        raise UserError(f"{where}: {values}, the first in row {row + 1:,}")


def _cells(columns: Mapping[str, pa.ChunkedArray], shown: str) -> pa.ChunkedArray:
    """The cell of each row: the column ``cell``, else a hash of axes and variant.

    Raises ``UserError`` if rows repeat, points without demonstrations have several draws, or the
    column does not name each cell by one hash.
    """
    keys = (*AXES, "variant")
    codes = pd.DataFrame({name: _codes(columns[name]) for name in (*keys, "test_id")})
    codes["cell"] = cell = codes.groupby(list(keys), sort=False).ngroup()
    _check_repeats(codes, shown)
    _check_zero_shot(columns, codes, shown)
    stated = columns["cell"]
    if stated.null_count < len(stated):
        _check_missing(stated, f"{shown}: column cell")
        names = pd.DataFrame({"cell": cell, "name": _codes(stated)}).drop_duplicates()
        if not names["cell"].is_unique or not names["name"].is_unique:
            raise UserError(
                f"{shown}: column cell: must name each cell by its own hash (rows with the same "
                f"{', '.join(keys)} are a cell); omit the column to have it computed"
            )
        return stated
    first = np.flatnonzero(~cell.duplicated())
    cells = pa.table({name: columns[name] for name in keys}).take(first).to_pylist()
    hashes = [cell_hash(axes, axes.pop("variant")) for axes in cells]
    indices = pa.array(cell.to_numpy(), pa.int32())
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, hashes)])


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each value, ``(rows,)``: equal numbers for equal values."""
    return np.asarray(column.dictionary_encode().combine_chunks().indices)


def _check_repeats(codes: pd.DataFrame, shown: str) -> None:
    again = codes.duplicated(["cell", "test_id"]).to_numpy()
    if again.any():
        count = f"{again.sum():,} row{' repeats' if again.sum() == 1 else 's repeat'} an earlier one"
        raise UserError(
            f"{shown}: {count} in {', '.join((*AXES, 'test_id'))}; the first is row {int(again.argmax()) + 1:,}"
        )


def _check_zero_shot(columns: Mapping[str, pa.ChunkedArray], codes: pd.DataFrame, shown: str) -> None:
    """Raise ``UserError`` for several draws of k=0, which tables would count as independent draws."""
    bare = codes[columns["k"].to_numpy() == 0]
    point = [name for name in (*AXES, "variant") if name != "draw"]
    other = bare.groupby(point)["draw"].transform("first") != bare["draw"]
    if other.any():
        row = int(other.idxmax())
        raise UserError(
            f"{shown}: column draw: {columns['draw'][row]} in row {row + 1:,}, another draw of a "
            "point of k=0; all draws without demonstrations are the same: keep one"
        )
