"""Columns of texts as codes, because millions of rows have few different texts: each is changed and compared once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from icl_bench.results.cells import prediction_schema
from icl_bench.table_files import is_text, repeated, smallest_codes

CODED = tuple(field.name for field in prediction_schema() if is_text(field.type) and field.name != "prompt_hash")
"""Columns of which many rows have the same text."""

CODE = pa.dictionary(pa.int8(), pa.string())
"""The type of a coded column with few texts."""

LARGEST_KEY = 2**62
"""Maximum number of combinations that one whole number distinguishes."""

SMALL_KEY = 2**32
"""The same for a number of half the memory."""


def coded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column's texts as codes, with one dictionary: the texts that occur, in the order of their first rows."""
    if not types.is_dictionary(column.type):
        chunks = [chunk.cast(pa.string()).dictionary_encode() for chunk in column.chunks]
        column = pa.chunked_array(chunks, pa.dictionary(pa.int32(), pa.string()))
    column = column.unify_dictionaries()
    values = column.chunk(0).dictionary
    order = pd.unique(np.concatenate([pd.unique(chunk.indices.drop_null().to_numpy()) for chunk in column.chunks]))
    places = np.zeros(len(values), dtype=np.int32)
    places[order] = np.arange(len(order))
    return _recoded(column, pa.array(places), values.take(pa.array(order)).cast(pa.string()))


def constant(text: str, rows: int) -> pa.ChunkedArray:
    """A coded column with this text in each row."""
    return repeated(lambda length: pa.DictionaryArray.from_arrays(np.zeros(length, dtype=np.int8), [text]), rows)


def changed(column: pa.ChunkedArray, change: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    """A coded column after ``change`` of its different texts, which may become equal or missing."""
    new = change(column.chunk(0).dictionary).dictionary_encode()
    return _recoded(column, new.indices, new.dictionary)


def filled(column: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """A coded column with this text in rows without one."""
    if not column.null_count:
        return column
    if column.null_count == len(column):
        return constant(text, len(column))
    values = pa.concat_arrays([column.chunk(0).dictionary, pa.array([text])]).dictionary_encode()
    place, kind = values.indices[-1].as_py(), smallest_codes(len(values.dictionary))
    codes = [chunk.indices.cast(kind).fill_null(place) for chunk in column.chunks]
    return coded(pa.chunked_array([pa.DictionaryArray.from_arrays(chunk, values.dictionary) for chunk in codes]))


def replaced(column: pa.ChunkedArray, number: np.ndarray, texts: Sequence[str | None]) -> pa.ChunkedArray:
    """A coded column without missing values, with another text for each group that has one in ``texts``.

    ``number`` is the group of each row.
    """
    groups = np.array([text is not None for text in texts])
    old, new = column.chunk(0).dictionary, pa.array([text for text in texts if text is not None], pa.string())
    values = pa.concat_arrays([old, new]).dictionary_encode()
    places = values.indices.to_numpy()
    places, of_group = places[: len(old)], np.full(len(texts), -1, dtype=np.int32)
    of_group[groups] = values.indices.to_numpy()[len(old) :]
    codes = of_group[number]
    codes = np.where(codes < 0, places[codes_of(column)], codes)
    return coded(pa.chunked_array([pa.DictionaryArray.from_arrays(codes, values.dictionary)]))


def rows_of(column: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    """A coded column with the texts of these rows only; ``rows`` is whether a row is one, ``(rows,)``."""
    codes = pa.array(codes_of(column), mask=~rows)
    return coded(pa.chunked_array([pa.DictionaryArray.from_arrays(codes, column.chunk(0).dictionary)]))


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """A number from 0 for each value of a coded column, ``(rows,)``; a missing value has the number of texts."""
    missing = len(column.chunk(0).dictionary)
    return np.concatenate([chunk.indices.fill_null(missing).to_numpy() for chunk in column.chunks])


def among(column: pa.ChunkedArray, values: Sequence[str | None]) -> np.ndarray:
    """Whether each value of a coded column is one of ``values``, which may include None, ``(rows,)``."""
    of_text = np.asarray(pc.is_in(column.chunk(0).dictionary, value_set=pa.array(values, pa.string())), dtype=bool)
    found: np.ndarray = np.append(of_text, None in values)[codes_of(column)]
    return found


def numbered(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's combination of numbers from 0, in the order of their first rows, ``(rows,)``; and these
    first rows, ``(combinations,)``.
    """
    number = pd.factorize(keys_of(columns))[0].astype(np.int32)
    most = np.maximum.accumulate(number)
    return number, np.flatnonzero(np.append(True, most[1:] > most[:-1]))


def keys_of(columns: Sequence[np.ndarray]) -> np.ndarray:
    """A whole number for each row, ``(rows,)``, equal for equal combinations of the columns' numbers from 0."""
    key: np.ndarray = np.zeros(len(columns[0]), dtype=np.uint32)
    size = 1
    for numbers in columns:
        further = int(numbers.max()) + 1
        if size * further > LARGEST_KEY:
            key, different = pd.factorize(key)
            size = len(different)
        if size * further > SMALL_KEY:
            key = key.astype(np.int64, copy=False)
        if further > 1:
            key *= key.dtype.type(further)
            np.add(key, numbers, out=key, casting="unsafe")
            size *= further
    return key


def _recoded(column: pa.ChunkedArray, places: pa.Array, values: pa.Array) -> pa.ChunkedArray:
    """A coded column with other ``values``; ``places`` has the new code of each old one."""
    kind = smallest_codes(len(values))
    places = places.cast(kind)
    if places.equals(pa.array(np.arange(len(places)), kind)):
        codes = [chunk.indices.cast(kind) for chunk in column.chunks]
    else:
        codes = [places.take(chunk.indices) for chunk in column.chunks]
    chunks = [pa.DictionaryArray.from_arrays(chunk, values) for chunk in codes]
    return pa.chunked_array(chunks, pa.dictionary(kind, pa.string()))
