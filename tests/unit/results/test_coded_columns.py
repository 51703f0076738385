"""Coded columns of an import: whatever is done to codes has the result of doing it to each row's text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.results.importing import coded as module
from icl_bench.results.importing.coded import (
    among,
    changed,
    coded,
    codes_of,
    constant,
    filled,
    keys_of,
    numbered,
    replaced,
    rows_of,
)

words = st.sampled_from(["", "a", "b", "c"])
parts = st.lists(st.lists(st.none() | words, min_size=1, max_size=5), min_size=1, max_size=3)


def column_of(rows: list[list[str | None]], kind: pa.DataType) -> pa.ChunkedArray:
    """A column with these parts; a dictionary of each part has a text that no row has."""
    if not pa.types.is_dictionary(kind):
        return pa.chunked_array([pa.array(part, kind) for part in rows], kind)
    of_parts = [["unused", *dict.fromkeys(text for text in reversed(part) if text is not None)] for part in rows]
    codes = [
        pa.array([None if text is None else texts.index(text) for text in part], pa.int32())
        for part, texts in zip(rows, of_parts, strict=True)
    ]
    chunks = [
        pa.DictionaryArray.from_arrays(code, pa.array(texts, kind.value_type))
        for code, texts in zip(codes, of_parts, strict=True)
    ]
    return pa.chunked_array(chunks)


kinds = [
    pa.string(),
    pa.large_string(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
]
columns = st.tuples(parts, st.sampled_from(kinds)).map(lambda drawn: coded(column_of(*drawn)))


def check(column: pa.ChunkedArray, texts: list[str | None]) -> None:
    """Its texts, in one dictionary, in the order of their first rows."""
    assert column.to_pylist() == texts
    for chunk in column.chunks:
        assert chunk.dictionary.to_pylist() == list(dict.fromkeys(text for text in texts if text is not None))


@given(parts, st.sampled_from(kinds))
def test_a_dictionary_has_the_texts_that_occur_in_the_order_of_their_first_rows(
    rows: list[list[str | None]], kind: pa.DataType
) -> None:
    check(coded(column_of(rows, kind)), [text for part in rows for text in part])


@given(columns)
def test_each_text_is_changed_in_every_row(column: pa.ChunkedArray) -> None:
    def change(texts: pa.Array) -> pa.Array:
        return pc.if_else(pc.equal(texts, "a"), None, pc.if_else(pc.equal(texts, "b"), "c", texts))

    new = {"a": None, "b": "c"}
    check(changed(column, change), [text if text is None else new.get(text, text) for text in column.to_pylist()])


@given(columns, words | st.just("new"))
def test_rows_without_a_text_are_filled(column: pa.ChunkedArray, text: str) -> None:
    check(filled(column, text), [text if old is None else old for old in column.to_pylist()])


@given(columns, st.lists(st.none() | words | st.just("new"), min_size=1, max_size=3), st.data())
def test_groups_have_other_texts(column: pa.ChunkedArray, texts: list[str | None], data: st.DataObject) -> None:
    column = filled(column, "a")
    groups = st.integers(0, len(texts) - 1)
    number = data.draw(st.lists(groups, min_size=len(column), max_size=len(column)))
    new = [old if texts[group] is None else texts[group] for old, group in zip(column.to_pylist(), number, strict=True)]
    check(replaced(column, np.array(number), texts), new)


@given(columns, st.data())
def test_other_rows_have_no_text(column: pa.ChunkedArray, data: st.DataObject) -> None:
    column = filled(column, "a")
    kept = data.draw(st.lists(st.booleans(), min_size=len(column), max_size=len(column)))
    texts = [text if keep else None for text, keep in zip(column.to_pylist(), kept, strict=True)]
    check(rows_of(column, np.array(kept)), texts)


@given(columns, st.lists(st.none() | words, max_size=3))
def test_membership_is_that_of_each_row(column: pa.ChunkedArray, values: list[str | None]) -> None:
    assert among(column, values).tolist() == [text in values for text in column.to_pylist()]


@given(columns)
def test_equal_texts_have_equal_codes(column: pa.ChunkedArray) -> None:
    texts, codes = column.to_pylist(), codes_of(column).tolist()
    assert len(set(zip(texts, codes, strict=True))) == len(set(texts)) == len(set(codes))


def test_codes_of_as_many_texts_as_a_small_type_distinguishes() -> None:
    for count in (126, 127, 128, 129, 2**15 - 1, 2**15, 2**15 + 1):
        texts = [*map(str, range(count)), None]
        column = coded(pa.chunked_array([pa.array(texts, pa.string())]))
        assert codes_of(column).tolist() == list(range(count + 1))
        check(filled(column, "x"), [*texts[:-1], "x"])


@pytest.mark.parametrize("rows", [1, 2**16, 2**17 + 5])
def test_a_constant_column_has_its_text_in_each_row(rows: int) -> None:
    column = constant("x", rows)
    assert (len(column), column.null_count, column.unique().to_pylist()) == (rows, 0, ["x"])


@pytest.mark.parametrize(("small", "largest"), [(2**32, 2**62), (10, 100), (1, 5), (2**32, 7)])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**31 - 1), st.integers(0, 2)), min_size=1, max_size=20))
def test_combinations_are_numbered_in_the_order_of_their_first_rows(
    small: int, largest: int, rows: list[tuple[int, int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SMALL_KEY", small)
        patch.setattr(module, "LARGEST_KEY", largest)
        kinds = (np.int8, np.int32, np.int64)
        having = [np.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        number, first = numbered(having)
        different = list(dict.fromkeys(rows))
        assert number.tolist() == [different.index(row) for row in rows]
        assert first.tolist() == [rows.index(row) for row in different]
        assert len(set(keys_of(having).tolist())) == len(different)
