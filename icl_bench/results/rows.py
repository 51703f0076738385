"""The predictions of a folder: one data frame or, of a large folder, an Arrow table, whose parts become data frames."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.results.cells import prediction_schema
from icl_bench.table_files import data_frame

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

LARGE = 200_000
"""The number of predictions from which a folder is large: a data frame needs about six times the table's memory."""

MOST_PIECES = 1_000
"""The maximum number of adjacent parts of a task that are put together without copying rows one by one."""


class Rows:
    """Predictions as a data frame, as an Arrow table, or both."""

    def __init__(self, predictions: pd.DataFrame | pa.Table) -> None:
        import pandas as pd

        self._table: pa.Table | None = None
        if isinstance(predictions, pd.DataFrame):
            self.__dict__["frame"] = predictions
        elif len(predictions) < LARGE:
            self.__dict__["frame"] = as_frame(predictions)
        else:
            self._table = predictions

    @cached_property
    def frame(self) -> pd.DataFrame:
        """All predictions."""
        assert self._table is not None
        return as_frame(self._table)

    def __len__(self) -> int:
        """The number of predictions."""
        return len(self.frame) if self._table is None else len(self._table)

    @property
    def by_task(self) -> bool:
        """Whether a single task's predictions are much smaller than all of them."""
        return self._table is not None and len(self.tasks) > 1

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks, in the order in which groups of a data frame are."""
        if self._table is None:
            tasks = self.frame["task"]
            names = tasks.cat.categories if hasattr(tasks, "cat") else sorted(tasks.unique())
            present = set(tasks.unique())
            return [str(name) for name in names if name in present]
        names, places = self._places
        return [name for number, name in enumerate(names) if number in places]

    @property
    def most_of_a_task(self) -> int:
        """The number of predictions of the largest task of a large folder."""
        return max(sum(stop - start for start, stop in pieces) for pieces in self._places[1].values())

    def names(self, column: str) -> set[str]:
        """The values of a column of names."""
        if self._table is None:
            return set(map(str, self.frame[column].unique()))
        return set(self._table[column].unique().to_pylist())

    def of(self, columns: Sequence[str]) -> pd.DataFrame:
        """Some columns of all predictions."""
        if self._table is None or "frame" in self.__dict__:
            return self.frame[list(columns)]
        return as_frame(self._table.select(list(columns)))

    def distinct(self, columns: Sequence[str]) -> pd.DataFrame:
        """The combinations of values in those of these columns that exist, in the order in which they first occur."""
        columns = [name for name in columns if name in self.columns]
        if self._table is None or "frame" in self.__dict__:
            return self.frame[columns].drop_duplicates()
        table = self._table.select(columns).unify_dictionaries()
        return as_frame(table.group_by(columns, use_threads=False).aggregate([]))

    def of_task(self, task: str) -> pd.DataFrame:
        """The predictions of one task. Columns of names have the categories of all tasks."""
        import pyarrow as pa

        if self._table is None:
            return self.frame[self.frame["task"].astype(object) == task]
        names, places = self._places
        pieces = places[names.index(task)]
        if len(pieces) <= MOST_PIECES:
            part = pa.concat_tables([self._table.slice(start, stop - start) for start, stop in pieces])
        else:
            part = self._table.take(np.concatenate([np.arange(start, stop) for start, stop in pieces]))
        return as_frame(part)

    def where(self, values: Mapping[str, Sequence[str]]) -> Rows:
        """The predictions with one of these values in each column of names; categories are those that are left."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not values:
            return self
        if self._table is None:
            frame = self.frame
            for name, kept in values.items():
                frame = frame[frame[name].isin(kept)]
            for name in frame.select_dtypes("category").columns:
                frame = frame.assign(**{name: frame[name].cat.remove_unused_categories()})
            return Rows(frame)
        table = self._table
        for name, kept in values.items():
            table = table.filter(pc.is_in(table[name].cast(pa.string()), pa.array(kept, pa.string())))
        for at, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                table = table.set_column(at, field.name, _used(table[field.name]))
        return Rows(table)

    def without_cells(self, cells: Collection[str]) -> Rows:
        """The predictions of other cells."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._table is None:
            return Rows(self.frame[~self.frame["cell"].isin(cells)])
        named = pc.is_in(self._table["cell"].cast(pa.string()), pa.array([*cells], pa.string()))
        return Rows(self._table.filter(pc.invert(named)))

    def take(self, places: np.ndarray) -> pd.DataFrame:
        """The predictions at these places, in their order."""
        return self.frame.iloc[places] if self._table is None else as_frame(self._table.take(places))

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        names: list[str] = self.frame.columns.tolist() if self._table is None else self._table.column_names
        return names

    @cached_property
    def _places(self) -> tuple[list[str], dict[int, list[tuple[int, int]]]]:
        """The names of tasks, and where the adjacent rows of each one start and stop, by its number."""
        assert self._table is not None
        column = self._table["task"].unify_dictionaries()
        codes = np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])
        starts = np.flatnonzero(np.diff(codes, prepend=codes[:1] - 1))
        stops = np.append(starts[1:], len(codes))
        places: dict[int, list[tuple[int, int]]] = {}
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            places.setdefault(int(codes[start]), []).append((start, stop))
        return column.chunk(0).dictionary.to_pylist(), places


def _used(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A dictionary-encoded column with the values that occur, in the order of the dictionary."""
    import pyarrow as pa

    column = column.unify_dictionaries()
    if not column.num_chunks:
        return column
    dictionary = column.chunk(0).dictionary
    used = np.unique(np.concatenate([chunk.indices.drop_null().to_numpy() for chunk in column.chunks]))
    place = np.full(len(dictionary), -1, dtype=np.int32)
    place[used] = np.arange(len(used))
    left, places = dictionary.take(pa.array(used)), pa.array(place)
    chunks = [pa.DictionaryArray.from_arrays(places.take(chunk.indices), left) for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.dictionary(pa.int32(), left.type))


def plain_columns() -> list[str]:
    """The columns of plain text: ids and answers. In a large table their texts are encoded."""
    import pyarrow as pa

    return [field.name for field in prediction_schema() if pa.types.is_string(field.type)]


def with_plain_text(table: pa.Table) -> pa.Table:
    """The table with ids and answers as plain text."""
    import pyarrow as pa

    plain = {*plain_columns()}
    for at, field in enumerate(table.schema):
        if field.name in plain and pa.types.is_dictionary(field.type):
            table = table.set_column(at, field.name, table[field.name].cast(pa.string()))
    return table


def as_frame(table: pa.Table) -> pd.DataFrame:
    """A table of predictions as a data frame: categories for names, plain text for ids and answers."""
    return data_frame(with_plain_text(table))
