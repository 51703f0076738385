"""Reads a results folder: finished cells, imports, and marks of failed cells.

A folder may be any place that :func:`icl_bench.results.storage.storage_at` supports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

from icl_bench.errors import UserError
from icl_bench.metrics.scores import first_measures
from icl_bench.results.cells import (
    ALWAYS,
    AXES,
    FAILED,
    FINISHED,
    JOURNAL,
    PRIORS,
    SCORES,
    digest,
    prediction_schema,
    slug,
)
from icl_bench.results.derived import CellScores, Derived, Priors, is_derived, with_calibrations
from icl_bench.results.facts import UNKNOWN, Facts, FactsOf
from icl_bench.results.model_names import Named, changed_models, names_apart, told_apart, with_base_apart
from icl_bench.results.result_file import ResultFile
from icl_bench.results.rows import Rows, as_frame, plain_columns, with_plain_text
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import (
    CellMeta,
    FailureMeta,
    ImportMeta,
    Meta,
    Origin,
    PriorMeta,
    RaceMeta,
    as_stored,
    checked,
    json_content,
    read_origins,
)
from icl_bench.table_files import parquet_rows, parquet_table, repeated
from icl_bench.wording import first_line, plain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ASIDE = "_perplexity"
"""Folder of results other than predictions; no task has this name."""


RACES = "_races"
"""Folder of the histories of races; no task has this name."""


IMPORTED = "imported"
"""The folder of imports, and the name of imported predictions in comparisons."""


CELL_META, IMPORT_META = b"icl_bench", b"icl_bench_import"
"""Keys of the metadata of a cell's file, and of an import."""


EXPORT_META = b"icl_bench_export"
"""Key of the metadata of an export, which may be in a results folder (as a baseline) but is not read."""


def warn(message: str) -> None:
    """Warn about a file that is skipped or set aside."""
    import warnings

    warnings.warn(message, stacklevel=3)


_IN_EVERY_ROW = (*AXES, "test_id", "cell", "variant")


class DamagedError(Exception):
    """A finished file is damaged; the message says how."""


class ForeignError(DamagedError):
    """The file was not written by this program."""


class ExportError(DamagedError):
    """The file is an export: its cells have their own files, or are compared with it."""


def read_whole(
    storage: Storage, name: str, rows: int | None = None, columns: Collection[str] | None = None, scores: bool = False
) -> ResultFile:
    """Read a file completely, or only some columns. Raises ``DamagedError``.

    Stored label scores are left out, except with ``scores``. ``rows`` is the expected number of
    predictions, if known. ``columns`` must include those with a value in every row.
    """
    return _parsed(name, partial(storage.read, name), rows, columns, scores)


def _parsed(
    name: str,
    read: Callable[[], bytes],
    rows: int | None = None,
    columns: Collection[str] | None = None,
    scores: bool = False,
) -> ResultFile:
    """Parse the content that ``read`` returns, like :func:`read_whole`."""
    import pyarrow as pa

    try:
        raw = read()
        table = parquet_table(raw, columns, () if scores else (SCORES,), plain_columns())
        stored = table.schema.metadata or {}
        meta = imported = None
        stated: dict[str, Origin] = {}
        if IMPORT_META in stored:
            imported = checked(stored[IMPORT_META], ImportMeta)
            rows = imported.rows
            with suppress(ValueError):  # of another version
                stated = read_origins(stored.get(EXPORT_META, b"{}"))
        elif EXPORT_META in stored:
            raise ExportError("is an export, not a result")
        else:
            meta = checked(stored[CELL_META], CellMeta)
            meta = meta.model_copy(update={name: table[name][0].as_py() for name in ("cell", "variant")})
        table = _conformed(table, columns)
        if any(table[name].null_count for name in _IN_EVERY_ROW):
            raise ValueError("rows without a cell")
        if meta is not None and len(table["test_id"].unique()) < len(table):
            raise ValueError("duplicate test rows")
    except KeyError:
        raise ForeignError("is not a results file of this program") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError) as error:
        raise DamagedError(f"cannot be read ({first_line(error)[:120]})") from None
    if rows is not None and len(table) != rows:
        raise DamagedError(f"has {len(table)} predictions instead of {rows}")
    return ResultFile(name, table, meta, imported, stated, sha256(raw).hexdigest())


def _each(
    storage: Storage, names: Iterable[str], columns: Collection[str] | None, scores: bool
) -> Iterator[tuple[str, Callable[[], ResultFile]]]:
    """Each file's name with a function that reads it; remote files are fetched in parallel."""
    readers = getattr(storage, "readers", 1)
    if readers == 1:
        yield from ((n, partial(read_whole, storage, n, columns=columns, scores=scores)) for n in names)
        return
    waiting: deque[tuple[str, Future[bytes]]] = deque()
    with ThreadPoolExecutor(readers) as pool:
        # threads only fetch; parsing in them would contend for the interpreter lock
        for name in names:
            waiting.append((name, pool.submit(storage.read, name)))
            if len(waiting) > 4 * readers:
                first, fetched = waiting.popleft()
                yield first, partial(_parsed, first, fetched.result, columns=columns, scores=scores)
        for name, fetched in waiting:
            yield name, partial(_parsed, name, fetched.result, columns=columns, scores=scores)


Seen: TypeAlias = dict[tuple[Any, ...], str]
"""Axes and variant of each cell -> the first file that holds it."""


def result_files(
    place: Place,
    say: Callable[[str], None],
    columns: Collection[str] | None = None,
    names: Collection[str] | None = None,
    seen: Seen | None = None,
    scores: bool = False,
) -> Iterator[ResultFile]:
    """Complete files: single cells first, then imports without the earlier cells.

    ``say`` receives a message for each skipped file; ``columns`` restricts the columns and ``scores``
    adds label scores, as in :func:`read_whole`. To read a growing folder, pass the ``names`` of its new
    files and the same ``seen`` each time, which is updated. Raises ``UserError`` if the folder does not
    exist.
    """
    storage = storage_at(place)
    if not storage.exists():
        where = storage.where()
        raise UserError(f"results folder {where}: does not exist; run something first (icl-bench run)")
    seen = {} if seen is None else seen
    names = storage.names() if names is None else names
    for name, read in _each(storage, _in_order(names), columns, scores):
        try:
            file = read()
        except ExportError:
            continue
        except ForeignError as problem:
            say(f"{storage.where(name)}: {problem}; left out")
            continue
        except DamagedError as problem:
            say(f"{storage.where(name)}: {problem}; left out; repeat the run or import to replace it")
            continue
        cells = {cell["cell"]: tuple(cell[name] for name in (*AXES, "variant")) for cell in file.cells()}
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
    predictions = [n for n in names if n.endswith(FINISHED) and ASIDE not in _parts(n)]
    return sorted(predictions, key=lambda name: (_is_import(name), _parts(name)))


def _is_import(name: str) -> bool:
    return _parts(name)[-2:-1] == [IMPORTED]


def _parts(name: str) -> list[str]:
    return name.split("/")


def _copied(storage: Storage, name: str, first: str, copies: int, cells: int) -> str:
    """Message about a file with cells that an earlier file holds."""
    where, first = storage.where(name), storage.where(first)
    if copies == cells == 1:
        return f"{where}: holds the same cell as {first}; left out"
    count = f"{copies:,} of its {cells:,} cells"
    return f"{where}: {count} are also in other files ({first}); left out"


def finished_cells(place: Place, say: Callable[[str], None] = warn) -> Iterator[tuple[str, CellMeta]]:
    """Names and metadata of finished cells' files, in order.

    Imports are skipped. Damaged files and further copies of a cell are skipped with a message to
    ``say``. Raises ``UserError`` if the folder does not exist.
    """
    for file in result_files(place, say):
        if file.meta is not None:
            yield file.name, file.meta


def find_imported(place: Place, axes: Mapping[str, Any], cell: str = "") -> str | None:
    """The import that holds a cell with these axes and this beginning of its hash; None if there is none."""
    for file in result_files(place, say=lambda _: None):
        if file.imported is not None and any(
            axes.items() <= known.items() and known["cell"].startswith(cell) for known in file.cells()
        ):
            return file.name
    return None


def imports(place: Place) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the imports' files, in order. Files that cannot be read are skipped."""
    storage = storage_at(place)
    for name in _in_order(storage.names()):
        if not _is_import(name):
            continue
        try:
            content = storage.read(name)
        except OSError:
            continue
        yield name, content


def imported_hashes(place: Place) -> dict[str, set[str]]:
    """Variant -> hashes (at the end of file names) of the imports with its predictions."""
    import pyarrow as pa

    by_variant: dict[str, set[str]] = {}
    for name, content in imports(place):
        try:
            variants = parquet_table(content)["variant"].unique().to_pylist()
        except (pa.ArrowException, OSError, KeyError, ValueError):
            continue  # damaged: its predictions are not read either
        for variant in variants:
            by_variant.setdefault(variant, set()).add(name.removesuffix(FINISHED).rpartition("-")[2])
    return by_variant


def read_row(place: Place, name: str, cell: str, test_id: str) -> pa.Table:
    """The prediction of a cell on a test example in one file, without reading all rows. The table is
    empty if there is none.
    """
    raw = storage_at(place).read(name)
    return _conformed(parquet_rows(raw, {"cell": cell, "test_id": test_id}))


def read_rows(place: Place, name: str) -> pa.Table:
    """The predictions in one file."""
    return parquet_table(storage_at(place).read(name))


def failed_cells(place: Place) -> list[FailureMeta]:
    """The marks of cells that could not be computed."""
    storage = storage_at(place)
    present = set(storage.names())
    marks = [
        name
        for name in sorted(present, key=_parts)
        # a finished cell's mark belongs to a process that was killed before removing it
        if name.endswith(FAILED) and name.removesuffix(FAILED) + FINISHED not in present
    ]
    return list(readable(storage, marks, FailureMeta, lambda mark: f"-{mark.cell}{FAILED}"))


def read_races(place: Place) -> list[RaceMeta]:
    """All races of a results folder, by name. A file that cannot be read is skipped with a warning."""
    storage = storage_at(place)
    return list(readable_races(storage, sorted(storage.names(RACES))))


def readable_races(storage: Storage, names: Iterable[str]) -> Iterator[RaceMeta]:
    """The races in these files. Their names contain a hash of what decides a race, which is not in the files."""
    return readable(storage, (name for name in names if name.endswith(".json")), RaceMeta, lambda _: ".json")


def readable(
    storage: Storage, names: Iterable[str], kind: type[Meta], ending: Callable[[Meta], str | tuple[str, ...]]
) -> Iterator[Meta]:
    """The JSON files that can be parsed as this type, and whose names have the ending, or one of those, that their
    contents imply.

    The others are skipped with a warning. A missing file is skipped.
    """
    for name in names:
        try:
            found = checked(storage.read(name), kind)
            if not name.endswith(ending(found)):
                raise ValueError("has the contents of another file")
            yield found
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            warn(f"{storage.where(name)}: cannot be read ({first_line(error)[:120]}); left out")


def read_results(root: Place = "results") -> pd.DataFrame:
    """Read a results folder into one tidy frame, one row per prediction.

    Columns are the axes (task, model, select, order, attention, k, draw), test_id, gold,
    prediction, correct, valid, token counts, backend, ``cell`` and ``variant``: cells of different
    variants (another test set, template, dtype, ...) must not be averaged together. Further columns
    (scores, probabilities, a perturbation, an import's own) exist if a prediction has a value, and are
    null in rows without one. Damaged files and further copies of a cell are skipped with a warning
    that names them. Calibration queries and rows that the model labels are left out.

    Raises ``UserError`` if the folder does not exist or has no results.
    """
    return as_frame(read_table(root))


def read_table(place: Place, scores: bool = False) -> pa.Table:
    """Like ``read_results``, as an Arrow table; with ``scores``, stored label scores are a column."""
    files = [file for file in result_files(place, warn, scores=scores) if file.asks_test_rows]
    if not files:
        raise nothing_in(place)
    table, variants = _joined(files), variants_of(files)
    if any(facts.written_out for facts in variants.values()):
        table = _with_own_choices(table, variants)
    empty = {n for n in prediction_schema().names if n not in ALWAYS and table[n].null_count == len(table)}
    return with_plain_text(table.drop_columns(sorted(empty)))


def _with_own_choices(table: pa.Table, variants: FactsOf) -> pa.Table:
    """The table with a complete column ``own_choices`` if some predictions are their row's own choices, written out.

    An import may state it for its rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    own = [variant for variant, facts in variants.items() if facts.written_out]
    if not own and "own_choices" not in table.column_names:
        return table
    marked = pc.is_in(table["variant"].cast(pa.string()), pa.array(own, pa.string()))
    if "own_choices" in table.column_names:
        stated = pc.is_in(table["own_choices"].cast(pa.string()), pa.array(["true"]))
        table, marked = table.drop_columns(["own_choices"]), pc.or_(marked, stated)
    return table.append_column("own_choices", marked)


def nothing_in(place: Place) -> UserError:
    """Error for a place without results."""
    storage = storage_at(place)
    where = f"results folder {storage.where()}"
    if any(JOURNAL in name for name in storage.names()):
        return UserError(f"{where}: all cells are unfinished; run the same command again to complete them")
    return UserError(f"{where}: no results yet; run something first")


def _joined(files: Sequence[ResultFile]) -> pa.Table:
    import pyarrow as pa

    tables = _coded_alike([file.table.replace_schema_metadata() for file in files])
    if len(tables) > 1:  # codes of different sizes are different types
        tables = [_with_usual_codes(table) for table in tables]
    return pa.concat_tables(_agreed(tables), promote_options="default").unify_dictionaries()


def _with_usual_codes(table: pa.Table) -> pa.Table:
    """The table with codes of the size in ``prediction_schema``."""
    import pyarrow as pa

    for at, of in enumerate(table.schema):
        if pa.types.is_dictionary(of.type) and of.type.index_type != pa.int32():
            usual = pa.dictionary(pa.int32(), of.type.value_type)
            table = table.set_column(at, of.name, table[of.name].cast(usual))
    return table


def _coded_alike(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The tables with ids and answers encoded in all, if a large one has them so."""
    import pyarrow as pa

    for name in plain_columns():
        coded = [pa.types.is_dictionary(table.schema.field(name).type) for table in tables]
        if any(coded) and not all(coded):
            tables = [
                table
                if is_coded
                else table.set_column(table.schema.get_field_index(name), name, table[name].dictionary_encode())
                for table, is_coded in zip(tables, coded, strict=True)
            ]
    return list(tables)


@dataclass(frozen=True)
class Stored:
    """A results folder, read once."""

    given: pd.DataFrame | Rows
    """The predictions, as a data frame or as rows (:attr:`rows`)."""
    cells: Mapping[str, CellMeta]
    """Cell -> metadata of its file; without imported cells."""
    variants: FactsOf
    """Variant -> its facts; an import has ``imported``, and the others only if it is of an export."""
    failed: Sequence[FailureMeta]
    """The marks of ``failed_cells``."""
    stored_names: Mapping[str, str] = field(default_factory=dict)
    """Model -> the name in its files, for renamed models (``models_apart``)."""
    label_scores: Mapping[str, CellScores] = field(default_factory=dict)
    """Cell -> its label scores, if all are stored; includes derived cells."""
    pool_scores: Mapping[str, CellScores] = field(default_factory=dict)
    """Cell -> label scores of the pool rows that calibrate it (the largest number, if there are several)."""
    asked_cells: frozenset[str] = frozenset()
    """Finished cells of calibration queries, or of rows that the model labels, which are in no other field."""
    without_scores: Sequence[str] = ()
    """Cells that scored every label, but do not store all scores."""
    stated_metrics: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Task -> the first metrics of its imports of exports."""
    state: str = ""
    """A hash of the files that were read, in their order, and of the stated priors; empty if it is not known."""

    @cached_property
    def rows(self) -> Rows:
        """The predictions, of which parts become data frames."""
        return self.given if isinstance(self.given, Rows) else Rows(self.given)

    @property
    def predictions(self) -> pd.DataFrame:
        """The frame of ``read_results``, with all columns of ``prediction_schema``; empty if no cell is finished.
        ``own_choices`` exists if some predictions are their row's own choices, written out.
        """
        return self.rows.frame

    @cached_property
    def own_predictions(self) -> pd.DataFrame:
        """The predictions as stored, without derived ones."""
        return self.own_rows.frame

    @cached_property
    def own_rows(self) -> Rows:
        """The rows of :attr:`own_predictions`."""
        derived = [cell for cell in {**self.cells, **self.label_scores} if is_derived(cell)]
        return self.rows.without_cells(derived) if derived else self.rows

    @cached_property
    def own_cells(self) -> dict[str, CellMeta]:
        """``cells`` without derived ones."""
        return {cell: meta for cell, meta in self.cells.items() if not is_derived(cell)}

    @property
    def first_scores(self) -> dict[str, str]:
        """Task -> the score of its first metric, for tasks with cells of this program that agree on it."""
        named = {task: set(names) for task, names in self.stated_metrics.items()}
        for meta in self.cells.values():
            if meta.task is not None:
                named.setdefault(meta.spec.task, set()).update(meta.task.metrics[:1])
        return first_measures({task: list(names) for task, names in named.items() if len(names) == 1})


def read_stored(place: Place, apart: bool = True, derive: bool = False) -> Stored:
    """Read a whole results folder.

    Calibration queries and rows that the model labels are left out. With ``derive``, calibrated predictions are added
    as cells of their own (:mod:`icl_bench.results.derived`), and label scores are read. Damaged files and further
    copies of a cell are skipped with a warning that names them. With ``apart``, models that share a name are renamed
    (:func:`models_apart`), with a warning. Raises ``UserError`` if the folder does not exist, or has no finished cell,
    no failed cell, no losses and no race.
    """
    files, failed = list(result_files(place, warn, scores=derive)), failed_cells(place)
    if not files and not failed and not any(storage_at(place).names(folder) for folder in (ASIDE, RACES)):
        raise nothing_in(place)
    files, names = models_apart(files, warn) if apart else (files, {})
    asked = [file.meta.cell for file in files if file.meta is not None and not file.asks_test_rows]
    files = [file for file in files if file.asks_test_rows or file.asked_for is not None]
    derived, state = Derived(), [[file.name, file.sha256] for file in files]
    if derive:
        priors = stated_priors(place)
        derived = with_calibrations(files, priors)
        files = derived.files
        for note in derived.notes:
            warn(note)
    else:
        files = [file for file in files if file.asks_test_rows]
    cells = cells_of(files)
    variants = variants_of(files)
    rows = Rows(_with_own_choices(_joined(files), variants) if files else prediction_schema().empty_table())
    return Stored(
        rows,
        cells,
        variants,
        failed,
        names,
        label_scores=derived.scores,
        pool_scores=derived.pool_scores,
        asked_cells=frozenset(asked),
        without_scores=derived.lacking,
        stated_metrics=_stated_metrics(files),
        state=digest([state, priors]) if derive else "",
    )


def _stated_metrics(files: Iterable[ResultFile]) -> dict[str, set[str]]:
    """The first metrics of each task in imports of exports."""
    named: dict[str, set[str]] = {}
    for file in files:
        for cell in file.cells() if file.stated else ():
            if (origin := file.stated.get(cell["variant"])) is not None and origin.metrics:
                named.setdefault(cell["task"], set()).update(origin.metrics[:1])
    return named


def stated_priors(place: Place) -> Priors:
    """The priors that runs stated with ``--calibrate prior=FILE``. Damaged files are skipped with a warning."""
    storage, priors = storage_at(place), dict[str, dict[str, dict[str, float]]]()
    for stated in readable(storage, sorted(storage.names(PRIORS)), PriorMeta, _prior_files):
        priors.setdefault(stated.task, {})[stated.name] = stated.shares
    return priors


def state_prior(place: Place, task: str, name: str, shares: Mapping[str, float]) -> None:
    """Store a prior next to the results that it calibrates. Raises ``OSError``."""
    stated, storage = PriorMeta(task=task, name=name, shares=dict(shares)), storage_at(place)
    file, *earlier = _prior_files(stated)
    storage.put(file, json_content(as_stored(stated)))
    for old in earlier:
        if any((one.task, one.name) == (task, name) for one in readable(storage, [old], PriorMeta, _prior_files)):
            storage.delete(old)


def _prior_files(stated: PriorMeta) -> tuple[str, ...]:
    """The name of a prior's file; then that of earlier versions, if it differs, which another prior may have."""
    task, name = slug(stated.task), slug(stated.name)
    earlier = f"{PRIORS}/{task}-{name}.json"
    if (task, name) == (stated.task, stated.name) and "-" not in name:
        return (earlier,)
    return f"{PRIORS}/{task}-{name}-{digest([stated.task, stated.name])[:8]}.json", earlier


def models_apart(
    files: Sequence[ResultFile], say: Callable[[str], None] = lambda _: None
) -> tuple[list[ResultFile], dict[str, str]]:
    """Give each model in the files a distinct name, by the hash of its files among its facts.

    Also returns the stored names of renamed models. See :func:`icl_bench.results.model_names.names_apart`; ``say``
    receives a message for each shared name, and for each model of a server that changed.
    """
    metas = [file.meta for file in files if file.meta is not None]
    named = names_apart((meta.spec.model, meta.facts.fingerprint) for meta in metas)
    for message in [*told_apart(named), *changed_models(metas)]:
        say(message)
    if not named:
        return list(files), {}
    return [_renamed(file, named) for file in files], {name: model for (model, _), name in named.items()}


def _renamed(file: ResultFile, named: Named) -> ResultFile:
    """A cell's file with the distinguishing name of its model, and of the base of an adapted model."""
    import pyarrow as pa

    if file.meta is None:
        return file
    spec, training = file.meta.spec, file.meta.training
    name = named.get((spec.model, file.meta.facts.fingerprint or ""), spec.model)
    training = training and with_base_apart(training, named)
    table = file.table
    if "model" in table.schema.names and name != spec.model:
        place = table.schema.get_field_index("model")
        column = pa.array([name] * len(table), pa.string()).dictionary_encode()
        table = table.set_column(place, "model", column)
    meta = file.meta.model_copy(update={"spec": spec.model_copy(update={"model": name}), "training": training})
    return replace(file, table=table, meta=meta)


def no_results() -> pd.DataFrame:
    """The frame of ``Stored`` without rows."""
    return as_frame(prediction_schema().empty_table())


def _conformed(table: pa.Table, only: Collection[str] | None = None) -> pa.Table:
    """The columns of ``prediction_schema``, empty if missing, then all others."""
    import pyarrow as pa

    schema, present = prediction_schema(), table.schema.names
    columns = {
        f.name: _as(f, table[f.name]) if f.name in present else repeated(partial(pa.nulls, type=f.type), len(table))
        for f in schema
        if only is None or f.name in only
    }
    columns |= {name: table[name] for name in present if name not in columns}
    return pa.table(columns)


def _as(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in the field's type; dictionary-encoded text stays encoded, with codes of any size."""
    import pyarrow as pa

    if column.type == field.type:
        return column
    coded = pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)
    of_text = pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)
    return column if coded and of_text else column.cast(field.type)


def _agreed(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The tables with further columns of the same type in all: the wider type, else text."""
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
    """Cell -> metadata of its file, as in ``Stored``."""
    return {file.meta.cell: file.meta for file in files if file.meta is not None}


def variants_of(files: Iterable[ResultFile]) -> dict[str, Facts]:
    """Variant -> its facts, as in ``Stored``."""
    facts: dict[str, Facts] = {}
    for file in files:
        if file.meta is not None:
            facts[file.meta.variant] = file.meta.facts
        if file.imported is not None:
            source = plain(file.imported.source)
            for variant in file.table["variant"].unique().to_pylist():
                known = file.stated[variant].facts if variant in file.stated else UNKNOWN
                facts.setdefault(variant, known.with_more(imported=source))
    return facts


def read_some(results: Place, only: Mapping[str, str] | None = None) -> Stored:
    """Read a results folder, or only its results with these values (task, model).

    Raises ``UserError`` if no finished or failed cell and no race has them.
    """
    wanted, stored = dict(only or {}), read_stored(results, derive=True)
    failed = [f for f in stored.failed if wanted.items() <= f.spec.model_dump().items()]
    rows = stored.rows.where({name: names_of(name, value, stored.stored_names) for name, value in wanted.items()})
    if wanted and not len(rows) and not failed:
        _check_races_have(wanted, results, stored)
    return replace(stored, given=rows, failed=failed)


def nothing_of(where: str, name: str, value: str, present: Iterable[str]) -> UserError:
    """Error for results without a requested value; names the values that are present."""
    has = ", ".join(sorted(present))
    return UserError(f"results folder {where}: has no {name} {value!r} (it has: {has})")


def _check_races_have(wanted: Mapping[str, str], results: Place, stored: Stored) -> None:
    """Raise ``UserError`` if no race has this task and model, and nothing else does."""
    races = read_races(results)
    if any(race.is_of(wanted.get("task"), wanted.get("model")) for race in races):
        return
    present = {(mark.spec.task, mark.spec.model) for mark in stored.failed}
    present |= {(race.task, model) for race in races for model in race.models}
    pairs = stored.rows.distinct(["task", "model"])
    present |= set(pairs.astype(str).itertuples(index=False, name=None))
    for name, value in wanted.items():
        of = ("task", "model").index(name)
        kept = {one for one in present if one[of] in names_of(name, value, stored.stored_names)}
        if not kept:
            raise nothing_of(storage_at(results).where(), name, value, {one[of] for one in present})
        present = kept


def names_of(name: str, value: str, stored_names: Mapping[str, str]) -> list[str]:
    """The matching values of a column: the name in a model's files matches all models renamed from it."""
    apart = [model for model, stored_name in stored_names.items() if stored_name == value] if name == "model" else []
    return [value, *apart]
