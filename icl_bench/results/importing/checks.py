"""Refuses predictions that the analysis could not count correctly, with column, value and row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from icl_bench.errors import UserError
from icl_bench.results.cells import AXES, cell_hash
from icl_bench.wording import one_line, short


def refuse_type(column: pa.ChunkedArray, where: str, expected: str) -> NoReturn:
    """Raise ``UserError`` for a column of another type than ``expected``."""
    raise UserError(one_line(f"{where}: holds values of type {column.type}; expected {expected}"))


def check(good: np.ndarray, column: pa.ChunkedArray, where: str, expected: str) -> None:
    """Raise ``UserError`` with the first value that is not ``good``."""
    if not good.all():
        row = int(good.argmin())
        value = short(column[row].as_py())
        raise UserError(f"{where}: {value} in row {row + 1:,}; expected {expected}")


def check_golds(columns: Mapping[str, pa.ChunkedArray], shown: str) -> None:
    """Raise ``UserError`` if a test row has different correct answers."""
    keys = ["task", "variant", "label_space", "queries", "test_id"]
    codes = pd.DataFrame({name: codes_of(columns[name].fill_null("")) for name in keys})
    codes["gold"] = codes_of(columns["gold"])
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


def check_correct(columns: Mapping[str, pa.ChunkedArray], right: pa.ChunkedArray, shown: str) -> None:
    """Raise ``UserError`` if ``correct`` contradicts gold and prediction.

    ``right`` is whether a prediction is a correct answer; missing for free text.
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


def check_missing(column: pa.ChunkedArray, where: str) -> None:
    """Raise ``UserError`` with the first row that has no value."""
    if column.null_count:
        row = int(np.asarray(column.is_valid()).argmin())
        values = f"{column.null_count:,} value{'' if column.null_count == 1 else 's'} missing"
        raise UserError(f"{where}: {values}, the first in row {row + 1:,}")


def cells(columns: Mapping[str, pa.ChunkedArray], shown: str) -> pa.ChunkedArray:
    """The cell of each row: the column ``cell``, else a hash of axes and variant.

    Raises ``UserError`` if rows repeat, points without demonstrations have several draws, or the
    column does not name each cell by one hash.
    """
    keys = (*AXES, "variant")
    codes = pd.DataFrame({name: codes_of(columns[name]) for name in (*keys, "test_id")})
    codes["cell"] = cell = codes.groupby(list(keys), sort=False).ngroup()
    _check_repeats(codes, shown)
    _check_zero_shot(columns, codes, shown)
    stated = columns["cell"]
    if stated.null_count < len(stated):
        check_missing(stated, f"{shown}: column cell")
        names = pd.DataFrame({"cell": cell, "name": codes_of(stated)}).drop_duplicates()
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


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each value, ``(rows,)``: equal numbers for equal values."""
    return np.asarray(column.dictionary_encode().combine_chunks().indices)


def texts_of(column: pa.ChunkedArray) -> list[Any]:
    """A column's texts, equal ones as one object: millions of rows have few different labels."""
    coded = column.dictionary_encode().combine_chunks()
    different = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    texts: list[Any] = different[coded.indices.fill_null(len(different) - 1).to_numpy()].tolist()
    return texts


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
