"""Reads a results folder: whole files of cells and of imports, marks of failed cells.

A folder may also be any other place that :func:`icl_bench.results.storage.storage_at` knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from icl_bench.errors import UserError
from icl_bench.metrics.scores import first_measures
from icl_bench.results.cells import ALWAYS, AXES, FAILED, FINISHED, prediction_schema
from icl_bench.results.facts import Facts, FactsOf
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import CellMeta, FailureMeta, ImportMeta, checked
from icl_bench.table_files import data_frame, parquet_rows, parquet_table
from icl_bench.wording import first_line, plain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ASIDE = "_perplexity"
"""Folder of results that are no predictions; no task is called so."""


IMPORTED = "imported"
"""The folder of imports, and what their predictions are called beside those that were run here."""


CELL_META, IMPORT_META = b"icl_bench", b"icl_bench_import"
"""Keys of what a file of one cell, or an import, says of itself."""


EXPORT_META = b"icl_bench_export"
"""The same of an export, which may lie in a results folder (as a baseline) but is no result."""


def warn(message: str) -> None:
    """Warn of something in the folder that is left out or put aside."""
    import warnings

    warnings.warn(message, stacklevel=3)


_IN_EVERY_ROW = (*AXES, "test_id", "cell", "variant")


class DamagedError(Exception):
    """What is wrong with a finished file."""


class ForeignError(DamagedError):
    """The file is none of this program's."""


class ExportError(DamagedError):
    """The file is an export: its cells have files of their own, or are compared with it."""


@dataclass(frozen=True)
class ResultFile:
    """A whole file: of one cell, or an import of many."""

    name: str
    table: pa.Table
    meta: CellMeta | None = None
    """What the file of a cell says of it."""
    imported: ImportMeta | None = None
    """What an import says of itself."""

    def cells(self) -> list[dict[str, Any]]:
        """Axes, cell and variant of each cell, as they follow each other."""
        names = [*AXES, "cell", "variant"]
        if self.imported is None:
            return [{name: self.table[name][0].as_py() for name in names}]
        import numpy as np

        first = np.sort(np.unique(self._cell_numbers(), return_index=True)[1])
        cells: list[dict[str, Any]] = self.table.select(names).take(first).to_pylist()
        return cells

    def without(self, cells: Collection[str]) -> ResultFile:
        """The file without some cells, which are named by their hashes."""
        import numpy as np

        named = self.table["cell"].combine_chunks().dictionary.to_pylist()
        dropped = [number for number, cell in enumerate(named) if cell in cells]
        keep = ~np.isin(self._cell_numbers(), dropped)
        return replace(self, table=self.table.filter(keep))

    def _cell_numbers(self) -> Any:
        return self.table["cell"].combine_chunks().indices.to_numpy()


def read_whole(
    storage: Storage, name: str, rows: int | None = None, columns: Collection[str] | None = None
) -> ResultFile:
    """Read a whole file, or only these columns of its table. Raises ``DamagedError``.

    ``rows`` is the number of predictions that it should have, where that is known. ``columns`` has
    those that are in every row.
    """
    return _parsed(name, partial(storage.read, name), rows, columns)


def _parsed(
    name: str, read: Callable[[], bytes], rows: int | None = None, columns: Collection[str] | None = None
) -> ResultFile:
    """The same of what ``read`` gives."""
    import pyarrow as pa

    try:
        table = parquet_table(read(), columns)
        stored = table.schema.metadata or {}
        meta = imported = None
        if IMPORT_META in stored:
            imported = checked(stored[IMPORT_META], ImportMeta)
            rows = imported.rows
        elif EXPORT_META in stored:
            raise ExportError("is an export, not a result")
        else:
            meta = checked(stored[CELL_META], CellMeta)
            meta = meta.model_copy(update={name: table[name][0].as_py() for name in ("cell", "variant")})
        table = _conformed(table, columns)
        if any(table[name].null_count for name in _IN_EVERY_ROW):
            raise ValueError("rows that are of no cell")
        if meta is not None and len(table["test_id"].unique()) < len(table):
            raise ValueError("test rows that stand there twice")
    except KeyError:
        raise ForeignError("is not a results file of this program") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError) as error:
        raise DamagedError(f"cannot be read ({first_line(error)[:120]})") from None
    if rows is not None and len(table) != rows:
        raise DamagedError(f"has {len(table)} predictions instead of {rows}")
    return ResultFile(name, table, meta, imported)


def _each(
    storage: Storage, names: Iterable[str], columns: Collection[str] | None
) -> Iterator[tuple[str, Callable[[], ResultFile]]]:
    """Each file with what reads it; side by side where files are far away."""
    readers = getattr(storage, "readers", 1)
    if readers == 1:
        yield from ((n, partial(read_whole, storage, n, columns=columns)) for n in names)
        return
    waiting: deque[tuple[str, Future[bytes]]] = deque()
    with ThreadPoolExecutor(readers) as pool:
        # they only fetch: many that parse, too, would wait for each other
        for name in names:
            waiting.append((name, pool.submit(storage.read, name)))
            if len(waiting) > 4 * readers:
                first, fetched = waiting.popleft()
                yield first, partial(_parsed, first, fetched.result, columns=columns)
        for name, fetched in waiting:
            yield name, partial(_parsed, name, fetched.result, columns=columns)


Seen: TypeAlias = dict[tuple[Any, ...], str]
"""What cells have in common that must not be counted twice -> the file that has it."""


def result_files(
    place: Place,
    say: Callable[[str], None],
    columns: Collection[str] | None = None,
    names: Collection[str] | None = None,
    seen: Seen | None = None,
) -> Iterator[ResultFile]:
    """Whole files, those of one cell first, then imports without the cells that went before.

    ``say`` is told what is left out; ``columns`` are those that are read of each, as for
    :func:`read_whole`. Who reads a folder that grows gives the ``names`` of its new files and, each
    time, what was ``seen``, to which is added. Raises ``UserError`` where there is no such folder.
    """
    storage = storage_at(place)
    if not storage.exists():
        where = storage.where()
        raise UserError(f"results folder {where}: not there; run something first (icl-bench run)")
    seen = {} if seen is None else seen
    names = storage.names() if names is None else names
    for name, read in _each(storage, _in_order(names), columns):
        try:
            file = read()
        except ExportError:
            continue
        except ForeignError as problem:
            say(f"{storage.where(name)}: {problem}; left out")
            continue
        except DamagedError as problem:
            say(f"{storage.where(name)}: {problem}; left out, the same run or import mends it")
            continue
        cells = {cell["cell"]: _same(cell) for cell in file.cells()}
        copies = [cell for cell, key in cells.items() if key in seen]
        if copies:
            say(_copied(storage, name, seen[cells[copies[0]]], len(copies), len(cells)))
            if len(copies) == len(cells):
                continue
            file = file.without(set(copies))
        seen.update((key, name) for key in cells.values() if key not in seen)
        yield file


def _in_order(names: Iterable[str]) -> list[str]:
    """The Parquet files of predictions, imports last, else by folder and name."""
    found = [n for n in names if n.endswith(FINISHED) and ASIDE not in _parts(n)]
    return sorted(found, key=lambda name: (_parts(name)[-2:-1] == [IMPORTED], _parts(name)))


def _parts(name: str) -> list[str]:
    return name.split("/")


def _copied(storage: Storage, name: str, first: str, copies: int, cells: int) -> str:
    """What to say of a file some of whose cells are in an earlier one."""
    where, first = storage.where(name), storage.where(first)
    if copies == cells == 1:
        return f"{where}: holds the same cell as {first}; left out"
    count = f"{copies:,} of its {cells:,} cells"
    return f"{where}: {count} are in other files too ({first}); left out"


def _same(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What cells have in common that must not be counted twice."""
    return tuple(cell[name] for name in (*AXES, "variant"))


def finished_cells(place: Place, say: Callable[[str], None] = warn) -> Iterator[tuple[str, CellMeta]]:
    """The names of finished cells' files, in order, with what they say of their cells.

    Imports are passed over. Damaged files, and further copies of a cell, are left out; ``say`` is
    told which. Raises ``UserError`` where there is no such folder.
    """
    for file in result_files(place, say):
        if file.meta is not None:
            yield file.name, file.meta


def find_imported(place: Place, axes: Mapping[str, Any], cell: str = "") -> str | None:
    """The import that holds a cell with these axes and a hash that begins so, if there is one."""
    for file in result_files(place, say=lambda _: None):
        if file.imported is not None and any(
            axes.items() <= known.items() and known["cell"].startswith(cell) for known in file.cells()
        ):
            return file.name
    return None


def imported_hashes(place: Place) -> dict[str, set[str]]:
    """Variant -> hashes that end the names of the imports with predictions of it."""
    import pyarrow as pa

    storage, found = storage_at(place), dict[str, set[str]]()
    for name in _in_order(storage.names()):
        folder, _, file = name.rpartition("/")
        if folder.rpartition("/")[2] != IMPORTED:
            continue
        try:
            variants = parquet_table(storage.read(name))["variant"].unique().to_pylist()
        except (pa.ArrowException, OSError, KeyError, ValueError):
            continue  # damaged: no prediction is read from it either
        for variant in variants:
            found.setdefault(variant, set()).add(file.removesuffix(FINISHED).rpartition("-")[2])
    return found


def read_row(place: Place, name: str, cell: str, test_id: str) -> pa.Table:
    """The prediction of a cell on a test example in one file; of many rows only some are read. The
    table is empty where there is none.
    """
    raw = storage_at(place).read(name)
    return _conformed(parquet_rows(raw, {"cell": cell, "test_id": test_id}))


def read_rows(place: Place, name: str) -> pa.Table:
    """The predictions in one file."""
    return parquet_table(storage_at(place).read(name))


def failed_cells(place: Place) -> list[FailureMeta]:
    """The marks of cells that could not be computed."""
    storage, found = storage_at(place), []
    there = set(storage.names())
    for name in sorted(there, key=_parts):
        if not name.endswith(FAILED):
            continue
        if name.removesuffix(FAILED) + FINISHED in there:
            continue  # finished after all, by a process that was killed before it cleared the mark
        try:
            found.append(checked(storage.read(name), FailureMeta))
        except (OSError, ValueError) as error:
            warn(f"{storage.where(name)}: cannot be read ({first_line(error)[:120]}); left out")
    return found


def read_results(root: Place = "results") -> pd.DataFrame:
    """Read a results folder into one tidy frame, one row a prediction.

    Columns are the axes (task, model, select, order, attention, k, draw), test_id, gold,
    prediction, correct, valid, token counts, backend, ``cell`` and ``variant``: cells of different
    variants (another test set, template, dtype, ...) must not be averaged together. Further columns
    (scores, probabilities, a perturbation, an import's own) are there where a prediction has a
    value, null in rows that lack one. Damaged files and further copies of a cell are left out with
    a warning that names them.

    Raises ``UserError`` where there is no such folder or no result in it.
    """
    return data_frame(read_table(root))


def read_table(place: Place) -> pa.Table:
    """The same as ``read_results``, as a table in Arrow's types."""
    files = list(result_files(place, warn))
    if not files:
        raise nothing_in(place)
    table = _joined(files)
    empty = {n for n in prediction_schema().names if n not in ALWAYS and table[n].null_count == len(table)}
    return table.drop_columns(sorted(empty))


def nothing_in(place: Place) -> UserError:
    """What is said of a place without results."""
    where = storage_at(place).where()
    return UserError(f"results folder {where}: no results yet; run something first")


def _joined(files: Sequence[ResultFile]) -> pa.Table:
    import pyarrow as pa

    tables = [file.table.replace_schema_metadata() for file in files]
    return pa.concat_tables(_agreed(tables), promote_options="default").unify_dictionaries()


@dataclass(frozen=True)
class Stored:
    """A results folder, read once."""

    predictions: pd.DataFrame
    """The frame of ``read_results``, with all columns of ``prediction_schema``; without a row where
    no cell is finished."""
    cells: Mapping[str, CellMeta]
    """Cell -> what its file says of it; imports have no such files."""
    variants: FactsOf
    """Variant -> its facts; of an import's only ``imported``."""
    failed: Sequence[FailureMeta]
    """The marks of ``failed_cells``."""

    @property
    def first_scores(self) -> dict[str, str]:
        """Task -> the score of the first metric that it names, for tasks that were run here."""
        named = {meta.spec.task: meta.task.metrics for meta in self.cells.values() if meta.task is not None}
        return first_measures(named)


def read_stored(place: Place) -> Stored:
    """Read all that a results folder holds.

    Damaged files and further copies of a cell are left out with a warning that names them. Raises
    ``UserError`` where there is no such folder, or neither a finished nor a failed cell in it, nor
    losses of texts.
    """
    files, failed = list(result_files(place, warn)), failed_cells(place)
    if not files and not failed and not storage_at(place).names(ASIDE):
        raise nothing_in(place)
    cells = cells_of(files)
    frame = data_frame(_joined(files)) if files else no_results()
    variants = variants_of(files)
    return Stored(_marked(frame, variants), cells, variants, failed)


def _marked(frame: pd.DataFrame, variants: FactsOf) -> pd.DataFrame:
    """Say of predictions whether they are choices of their row's own, written out, where some are:
    as a column ``own_choices``.
    """
    own = [variant for variant, facts in variants.items() if facts.written_out]
    return frame.assign(own_choices=frame["variant"].astype(object).isin(own)) if own else frame


def no_results() -> pd.DataFrame:
    """The frame of ``Stored`` without a row."""
    return data_frame(prediction_schema().empty_table())


def _conformed(table: pa.Table, only: Collection[str] | None = None) -> pa.Table:
    """The columns of ``prediction_schema``, absent ones empty; others behind them."""
    import pyarrow as pa

    schema, there = prediction_schema(), table.schema.names
    columns = {
        f.name: _as(f, table[f.name]) if f.name in there else pa.nulls(len(table), f.type)
        for f in schema
        if only is None or f.name in only
    }
    columns |= {name: table[name] for name in there if name not in columns}
    return pa.table(columns)


def _as(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of the field's type; texts that are numbers of a dictionary stay so."""
    import pyarrow as pa

    if column.type == field.type:
        return column
    coded = pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)
    return column if coded and pa.types.is_string(field.type) else column.cast(field.type)


def _agreed(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Tables whose further columns have the same type in all: the wider one, else text."""
    agreed = list(tables)
    names = {name for table in tables for name in table.schema.names}
    for name in names - set(prediction_schema().names):
        having = [i for i, table in enumerate(agreed) if name in table.schema.names]
        if len({agreed[i].schema.field(name).type for i in having}) == 1:
            continue
        columns = _of_one_type([agreed[i][name] for i in having])
        for i, column in zip(having, columns, strict=True):
            place = agreed[i].schema.get_field_index(name)
            agreed[i] = agreed[i].set_column(place, name, column)
    return agreed


def _of_one_type(columns: Sequence[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    import pyarrow as pa

    schemas = [pa.schema([("", column.type)]) for column in columns]
    try:
        wide = pa.unify_schemas(schemas, promote_options="permissive").types[0]
        return [column.cast(wide) for column in columns]
    except pa.ArrowException:
        return [_as_text(column) for column in columns]


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    try:
        return column.cast(pa.string())
    except pa.ArrowException:  # lists and other nested values
        values = (None if value is None else str(value) for value in column.to_pylist())
        return pa.chunked_array([pa.array(values, pa.string())])


def cells_of(files: Iterable[ResultFile]) -> dict[str, CellMeta]:
    """Cell -> what its file says of it, as in ``Stored``."""
    return {file.meta.cell: file.meta for file in files if file.meta is not None}


def variants_of(files: Iterable[ResultFile]) -> dict[str, Facts]:
    """Variant -> its facts, as in ``Stored``."""
    facts: dict[str, Facts] = {}
    for file in files:
        if file.meta is not None:
            facts[file.meta.variant] = file.meta.facts
        if file.imported is not None:
            origin = Facts(imported=plain(file.imported.source))
            facts |= {v: origin for v in file.table["variant"].unique().to_pylist() if v not in facts}
    return facts


def read_some(results: Place, only: Mapping[str, str] | None = None) -> Stored:
    """Read a results folder, or what of it has these values (task, model).

    Raises ``UserError`` where there is neither a finished nor a failed cell left.
    """
    wanted, stored = dict(only or {}), read_stored(results)
    failed = [f for f in stored.failed if wanted.items() <= f.spec.model_dump().items()]
    try:
        frame = _those(stored.predictions, wanted, storage_at(results).where())
    except UserError:
        if not failed:
            raise
        frame = stored.predictions.iloc[:0]
    return replace(stored, predictions=frame, failed=failed)


def nothing_of(where: str, name: str, value: str, there: Iterable[str]) -> UserError:
    """What is said of results that lack what is asked for, and of what there is."""
    has = ", ".join(sorted(there))
    return UserError(f"results folder {where}: nothing of {name} {value!r} (has: {has})")


def _those(frame: pd.DataFrame, wanted: Mapping[str, str], where: str) -> pd.DataFrame:
    for name, value in wanted.items():
        kept = frame[frame[name] == value]
        if kept.empty:
            raise nothing_of(where, name, value, frame[name].astype(str).unique())
        frame = kept
    for name in frame.select_dtypes("category").columns:
        frame = frame.assign(**{name: frame[name].cat.remove_unused_categories()})
    return frame
