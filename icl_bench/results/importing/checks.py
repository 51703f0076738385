"""Refuses predictions that the analysis could not count correctly, with column, value and row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import types

from icl_bench.errors import UserError
from icl_bench.results.cells import AXES, cell_hash
from icl_bench.results.importing.coded import codes_of, keys_of, numbered
from icl_bench.wording import one_line, short


def refuse_type(column: pa.ChunkedArray, where: str, expected: str) -> NoReturn:
    """Raise ``UserError`` for a column of another type than ``expected``."""
    raise UserError(one_line(f"{where}: holds values of type {column.type}; expected {expected}"))


def check(good: np.ndarray, column: pa.ChunkedArray, where: str, expected: str, before: int = 0) -> None:
    """Raise ``UserError`` with the first value that is not ``good``. ``before`` is the number of rows before these."""
    if not good.all():
        row = int(good.argmin())
        value = short(column[row].as_py())
        raise UserError(f"{where}: {value} in row {before + row + 1:,}; expected {expected}")


def check_golds(columns: Mapping[str, pa.ChunkedArray], shown: str) -> None:
    """Raise ``UserError`` if a test row has different correct answers."""
    keys = ["task", "variant", "label_space", "queries", "test_id"]
    number, first = numbered([codes_of(columns[name]) for name in keys])
    gold = codes_of(columns["gold"])
    differs = gold != gold[first][number]
    if differs.any():
        row = int(differs.argmax())
        before = int(first[number[row]])
        name, stated, other = (
            short(columns[column][at].as_py()) for column, at in (("test_id", row), ("gold", row), ("gold", before))
        )
        raise UserError(
            f"{shown}: column gold: {stated} in row {row + 1:,}, but {other} in row {before + 1:,} "
            f"for the same test row ({name}); a test row has one correct answer"
        )


def check_correct(
    columns: Mapping[str, pa.ChunkedArray],
    stated: Sequence[bool | None],
    right: Sequence[bool | None],
    rows: np.ndarray,
    shown: str,
) -> None:
    """Raise ``UserError`` if ``correct`` contradicts gold and prediction.

    ``rows`` are the first rows of groups of equal ones, in order. For each, ``stated`` is the value of ``correct``, and
    ``right`` is whether the prediction is a correct answer; missing for free text.
    """
    for row, verdict, is_right in zip(rows.tolist(), stated, right, strict=True):
        if verdict is None or is_right is None or verdict == is_right:
            continue
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
    codes = {name: _numbers_of(columns[name]) for name in keys}
    cell, first = numbered([*codes.values()])
    _check_repeats(cell, codes_of(columns["test_id"]), shown)
    _check_zero_shot(columns, codes, shown)
    stated = columns["cell"]
    if stated.null_count < len(stated):
        check_missing(stated, f"{shown}: column cell")
        names = codes_of(stated)
        pairs = len(numbered([cell, names])[1])
        if pairs != len(first) or pairs != int(names.max()) + 1:
            raise UserError(
                f"{shown}: column cell: must name each cell by its own hash (rows with the same "
                f"{', '.join(keys)} are a cell); omit the column to have it computed"
            )
        return stated
    cells = pa.table({name: columns[name] for name in keys}).take(first).to_pylist()
    hashes = [cell_hash(axes, axes.pop("variant")) for axes in cells]
    return pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array(cell), hashes)])


def _numbers_of(column: pa.ChunkedArray) -> np.ndarray:
    """The whole numbers of a column, or a number for each text, ``(rows,)``."""
    return codes_of(column) if types.is_dictionary(column.type) else column.to_numpy()


def _check_repeats(cell: np.ndarray, test_id: np.ndarray, shown: str) -> None:
    key = keys_of([cell, test_id])
    ordered = np.sort(key)
    if (ordered[1:] == ordered[:-1]).any():
        again = pd.Series(key).duplicated().to_numpy()
        count = f"{again.sum():,} row{' repeats' if again.sum() == 1 else 's repeat'} an earlier one"
        raise UserError(
            f"{shown}: {count} in {', '.join((*AXES, 'test_id'))}; the first is row {int(again.argmax()) + 1:,}"
        )


def _check_zero_shot(columns: Mapping[str, pa.ChunkedArray], codes: Mapping[str, np.ndarray], shown: str) -> None:
    """Raise ``UserError`` for several draws of k=0, which tables would count as independent draws."""
    bare = np.flatnonzero(codes["k"] == 0)
    if not len(bare):
        return
    number, first = numbered([numbers[bare] for name, numbers in codes.items() if name != "draw"])
    draw = codes["draw"][bare]
    other = draw != draw[first][number]
    if other.any():
        row = int(bare[other.argmax()])
        raise UserError(
            f"{shown}: column draw: {columns['draw'][row]} in row {row + 1:,}, another draw of a "
            "point of k=0; all draws without demonstrations are the same: keep one"
        )
