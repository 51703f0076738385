"""Predictions in an Arrow table are those of the data frame, whatever the order of their tasks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.results import rows as module
from icl_bench.results.rows import Rows, as_frame

NAMES = ["task", "model", "cell"]


def _table(values: list[tuple[str, str, str, int, bool | None]], cuts: list[int]) -> pa.Table:
    """A table in parts, with codes for names and ids; each part has a dictionary of its own."""
    columns: list[list[Any]] = [list(column) for column in zip(*values, strict=True)]
    plain = pa.table(dict(zip(["task", "model", "test_id", "k", "correct"], columns, strict=True)))
    plain = plain.append_column("cell", pa.array([f"{task}{model}" for task, model, *_ in values]))
    plain = plain.set_column(4, "correct", pa.array(columns[4], pa.bool_()))
    for name in (*NAMES, "test_id"):
        plain = plain.set_column(plain.schema.get_field_index(name), name, plain[name].dictionary_encode())
    bounds = [0, *sorted(cuts), len(plain)]
    parts = [plain.slice(start, max(0, stop - start)) for start, stop in pairwise(bounds)]
    for name in (*NAMES, "test_id"):
        parts = [
            part.set_column(part.schema.get_field_index(name), name, part[name].cast(pa.string()).dictionary_encode())
            for part in parts
        ]
    return pa.concat_tables(parts).unify_dictionaries()


def _same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(
        found.astype(object).reset_index(drop=True), expected.astype(object).reset_index(drop=True)
    )


VALUES = st.tuples(
    st.sampled_from(["b", "a", "ü"]),
    st.sampled_from(["m", "n"]),
    st.sampled_from(["t1", "t2", "t3"]),
    st.integers(0, 2),
    st.sampled_from([True, False, None]),
)


@given(st.lists(VALUES, min_size=1, max_size=30), st.lists(st.integers(0, 30), max_size=3), st.integers(0, 3))
def test_parts_of_a_table_are_those_of_its_frame(
    values: list[tuple[str, str, str, int, bool | None]], cuts: list[int], most_pieces: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGE", 1)
        patch.setattr(module, "MOST_PIECES", most_pieces)
        table = _table(values, [min(cut, len(values)) for cut in cuts])
        frame, rows = as_frame(table), Rows(table)
        small = Rows(frame)
        assert len(rows) == len(small) == len(values)
        assert rows.by_task == (frame["task"].nunique() > 1)
        assert [*rows.tasks] == [*small.tasks]
        assert rows.columns == small.columns
        assert rows.most_of_a_task == frame["task"].value_counts().max()
        for task in rows.tasks:
            expected = frame[frame["task"].astype(object) == task]
            _same(rows.of_task(task), expected)
            _same(small.of_task(task), expected)
        for name in NAMES:
            assert rows.names(name) == small.names(name) == set(frame[name].astype(object))
        _same(rows.of(["k", "model"]), frame[["k", "model"]])
        _same(rows.distinct(["task", "k", "draw"]), frame[["task", "k"]].drop_duplicates())
        _same(small.distinct(["task", "k", "draw"]), frame[["task", "k"]].drop_duplicates())
        places = np.arange(len(values))[::-2]
        _same(rows.take(places), frame.iloc[places])
        cell = str(frame["cell"].iloc[0])
        _same(rows.without_cells([cell]).frame, frame[frame["cell"].astype(object) != cell])
        wanted = {"task": ["a", "c"], "model": ["m"]}
        kept = frame[frame["task"].isin(["a"]) & frame["model"].isin(["m"])]
        for found in (rows.where(wanted), small.where(wanted)):
            _same(found.frame, kept)
            assert set(found.frame["task"].cat.categories) == set(kept["task"].astype(object))
        assert "frame" not in rows.__dict__, "all predictions became a data frame"
