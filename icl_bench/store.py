"""Predictions on disk: one Parquet file a finished cell, a journal while it is being computed.

A file's name ends in a hash of everything that decides the cell's predictions, so that a changed
template, label set, data file or model is another cell and never mixes with the old. A journal has
one JSON line per prediction; it is flushed to the disk after every pack. A last line that was torn
by a kill is dropped on resume, and so are predictions whose prompts have changed since. Finished
files are written under a temporary name and renamed. A cell that could not be computed is marked
with its reason, in a file of its own. Predictions that were made elsewhere lie in ``imported/``,
one file an import, with all its cells. Processes that share a folder take turns by a lock per cell
(flock, released by the system when a process dies). The store knows nothing of engines.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from icl_bench.errors import UserError, one_line, plain

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from filelock import FileLock

    from icl_bench.plan import CellSpec

PROTOCOL = 1
"""Raised when the program changes in a way that changes predictions."""

JOURNAL, FAILED = ".journal.jsonl", ".failed.json"
"""How the names of an unfinished cell's journal and of a failed one's mark end."""

ASIDE = "_perplexity"
"""Folder of results that are no predictions; no task is called so."""
IMPORTED = "imported"
"""The folder of imports, and the fact that tells an import's variants: the file it is from."""

_CELL_META, _IMPORT_META = b"icl_bench", b"icl_bench_import"
"""Keys of what a file of one cell, or an import, says of itself."""

EXPORT_META = b"icl_bench_export"
"""The same of an export, which may lie in a results folder (as a baseline) but is no result."""

AXES = ("task", "model", "select", "order", "attention", "k", "draw")
"""What tells cells of one setting apart."""


@dataclass(frozen=True)
class Identity:
    """A cell and all that decides its predictions."""

    spec: CellSpec
    facts: Mapping[str, Any]
    """Template, labels, hashes of data and model, dtype, seed, ...: whatever is not an axis."""

    @property
    def variant(self) -> str:
        """Hash (8 hex digits) of the facts: cells of one variant differ by their axes only."""
        return _digest(self.facts)[:8]

    @property
    def cell(self) -> str:
        """Hash (12 hex digits) that names the cell's file."""
        return _digest({"spec": self.spec.model_dump(), "facts": self.facts})[:12]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(f"{PROTOCOL}\n{text}".encode()).hexdigest()


def short_hash(value: Any) -> str:
    """SHA-256 (16 hex digits) of a JSON value, for long facts like lists of ids."""
    return _digest(value)[:16]


@dataclass(frozen=True)
class Prediction:
    """One test example's outcome in one cell."""

    test_id: str
    gold: str
    prediction: str
    correct: bool | None
    """None for free text, which is scored by the columns of ``scores``."""
    valid: bool
    """Whether the answer is one of the labels (always, under a constraint)."""
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    prompt_hash: str
    probability: float | None = None
    margin: float | None = None
    label_mass: float | None = None
    demonstration_ids: tuple[str, ...] | None = None
    """Only where each test example has demonstrations of its own."""


SCORES = ("rouge1", "rouge2", "rougeL", "bertscore")
"""Columns of free text, empty for labels."""


def cell_hash(axes: Mapping[str, Any], variant: str) -> str:
    """Hash (12 hex digits) of a cell that was computed elsewhere, by its axes and its variant."""
    return _digest({"spec": dict(axes), "variant": variant})[:12]


def prediction_schema() -> pa.Schema:
    """The columns that every results file has."""
    import pyarrow as pa

    words = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            *((name, pa.int32() if name in ("k", "draw") else words) for name in AXES),
            ("test_id", pa.string()),
            ("gold", pa.string()),
            ("prediction", pa.string()),
            ("correct", pa.bool_()),
            ("valid", pa.bool_()),
            ("prompt_tokens", pa.int32()),
            ("cached_tokens", pa.int32()),
            ("answer_tokens", pa.int32()),
            ("backend", words),
            ("probability", pa.float64()),
            ("margin", pa.float64()),
            ("label_mass", pa.float64()),
            *((name, pa.float64()) for name in SCORES),
            ("prompt_hash", pa.string()),
            ("demonstration_ids", pa.list_(pa.string())),
            ("label_space", words),
            ("queries", words),
            ("teaching", words),
            ("cell", words),
            ("variant", words),
        ]
    )


class Store:
    """A results folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder and try to write to it. Raises ``UserError``."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UserError(
                f"results folder {self.root}: cannot be written ({error.strerror}); "
                "give another with --results"
            ) from None

    def path(self, identity: Identity) -> Path:
        """The file of a finished cell."""
        spec = identity.spec
        kind = "-".join(map(_slug, (spec.select, spec.order, spec.attention)))
        name = f"{kind}-k{spec.k:05d}-d{spec.draw:02d}-{identity.cell}.parquet"
        return self.root / _slug(spec.task) / _slug(spec.model) / name

    def journal(self, identity: Identity) -> Path:
        """The journal of an unfinished cell."""
        return self.path(identity).with_suffix(JOURNAL)

    def mark(self, identity: Identity) -> Path:
        """The file that says why a cell could not be computed."""
        return self.path(identity).with_suffix(FAILED)

    def is_done(self, identity: Identity, rows: int) -> bool:
        """Whether the cell's file is there and whole; one that is cut short is set aside.

        ``rows`` is the number of predictions that a whole file has.
        """
        path = self.path(identity)
        if not path.exists():
            return False
        try:
            _read_file(path, rows)
        except _DamagedError as problem:
            aside = path.with_suffix(".parquet.damaged")
            path.replace(aside)
            _warn(f"{path}: {problem}; set aside as {aside.name}, the cell is run again")
            return False
        return True

    @contextmanager
    def claim(self, identity: Identity, rows: int) -> Iterator[OpenCell | None]:
        """Take a cell for this process: None if it is done, or another process has it."""
        from filelock import Timeout

        try:
            lock = self._lock(identity.cell)
            lock.acquire(timeout=0)
        except Timeout:
            yield None
            return
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if self.is_done(identity, rows):
                yield None
                return
            try:
                opened = OpenCell.resume(self, identity)
            except OSError as error:
                raise self._unwritable(error) from None
            with opened:
                yield opened
        finally:
            lock.release()

    def find_import(self, sha256: str) -> tuple[Path, int] | None:
        """The whole import of a file with this hash, and its number of predictions."""
        for path in sorted((self.root / IMPORTED).glob(f"*-{sha256[:12]}.parquet")):
            with suppress(_DamagedError):
                file = _read_file(path)
                if file.imported and file.imported["sha256"] == sha256:
                    return path, len(file.table)
        return None

    def add_import(self, table: pa.Table, name: str, source: str, sha256: str) -> Path:
        """Store predictions that were made elsewhere, all in one file.

        ``table`` has the columns of ``prediction_schema`` and maybe further ones; ``name`` is what
        the file is called after, ``source`` the file that they are from and ``sha256`` its hash.
        Raises ``UserError`` where they cannot be written.
        """
        import pyarrow as pa

        self.prepare()
        path = self.root / IMPORTED / f"{_slug(name)[:80]}-{sha256[:12]}.parquet"
        about = {"source": source, "sha256": sha256, "rows": len(table), "protocol": PROTOCOL}
        table = table.replace_schema_metadata({_IMPORT_META: json.dumps(about)})
        try:
            write_whole(path, lambda stream: _write_parquet(table, stream))
        except OSError as error:
            raise UserError(
                f"results folder {self.root}: {error.strerror or error}; nothing was imported"
            ) from None
        except pa.ArrowException as error:
            raise UserError(one_line(f"{source}: cannot be stored: {error}")) from None
        return path

    def others_at_work(self) -> bool:
        """Whether another process is computing a cell of this folder."""
        journals = self.root.rglob(f"*{JOURNAL}")
        return any(self._held(j.name.removesuffix(JOURNAL).rpartition("-")[2]) for j in journals)

    def _held(self, cell: str) -> bool:
        from filelock import Timeout

        try:
            with self._lock(cell).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def _lock(self, cell: str) -> FileLock:
        from filelock import FileLock

        locks = self.root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        return FileLock(locks / f"{cell}.lock")

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(
            f"results folder {self.root}: {error.strerror or error}; what was journalled is kept, "
            "run the same command again once there is space"
        )


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "-"


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, stacklevel=3)


class _DamagedError(Exception):
    """What is wrong with a finished file."""


class _ExportError(_DamagedError):
    """The file is an export: other files hold its cells, or it is what they are checked against."""


@dataclass(frozen=True)
class _ResultFile:
    """A whole file: of one cell, or an import of many."""

    path: Path
    meta: Mapping[str, Any]
    """What it says of itself."""
    table: pa.Table

    @property
    def imported(self) -> Mapping[str, Any] | None:
        """Where an import is from: source and sha256."""
        found: Mapping[str, Any] | None = self.meta.get(IMPORTED)
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Axes, cell and variant of each cell, as they follow each other."""
        import numpy as np

        first: Any = [0]
        if self.imported:
            first = np.sort(np.unique(self._cell_numbers(), return_index=True)[1])
        cells: list[dict[str, Any]]
        cells = self.table.select([*AXES, "cell", "variant"]).take(first).to_pylist()
        return cells

    def without(self, cells: Collection[str]) -> _ResultFile:
        """The file without some cells, which are named by their hashes."""
        import numpy as np

        named = self.table["cell"].combine_chunks().dictionary.to_pylist()
        dropped = [number for number, cell in enumerate(named) if cell in cells]
        keep = ~np.isin(self._cell_numbers(), dropped)
        return replace(self, table=self.table.filter(keep))

    def _cell_numbers(self) -> Any:
        return self.table["cell"].combine_chunks().indices.to_numpy()


def _read_file(path: Path, rows: int | None = None) -> _ResultFile:
    """Read a whole file. Raises ``_DamagedError``.

    ``rows`` is the number of predictions that it should have, where that is known.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
        stored = table.schema.metadata or {}
        if _IMPORT_META in stored:
            about = json.loads(stored[_IMPORT_META])
            meta = {IMPORTED: {name: about[name] for name in ("source", "sha256")}}
            rows = int(about["rows"])
        elif EXPORT_META in stored:
            raise _ExportError("is an export, not a result")
        else:
            meta = dict(json.loads(stored[_CELL_META]))
            meta |= {name: table[name][0].as_py() for name in ("cell", "variant")}
        table = _conformed(table, further=_IMPORT_META in stored)
        if table["cell"].null_count:
            raise ValueError("rows that are of no cell")
    except KeyError:
        raise _DamagedError("is not a results file of this program") from None
    except (pa.ArrowException, OSError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _DamagedError(f"cannot be read ({reason[:120]})") from None
    if rows is not None and len(table) != rows:
        raise _DamagedError(f"has {len(table)} predictions instead of {rows}")
    return _ResultFile(path, meta, table)


@dataclass
class OpenCell:
    """A cell that this process is computing."""

    store: Store
    identity: Identity
    done: dict[str, Prediction] = field(default_factory=dict)
    """Predictions so far, by test id."""
    _seconds: dict[str, float] = field(default_factory=dict)
    """Each one's part of the engine time."""
    _stream: IO[bytes] | None = None

    @property
    def seconds(self) -> float:
        """Engine time of the predictions so far, those of interrupted runs included."""
        return sum(self._seconds.values())

    @classmethod
    def resume(cls, store: Store, identity: Identity) -> OpenCell:
        """Read what a journal holds, drop a torn last line, and open it for more."""
        cell = cls(store, identity)
        path = store.journal(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = cell._read(path) if path.exists() else 0
        stream = path.open("r+b" if path.exists() else "w+b")
        stream.truncate(whole)
        stream.seek(whole)
        cell._stream = stream
        return cell

    def _read(self, path: Path) -> int:
        """Take in whole lines; returns the number of bytes they fill."""
        data, whole = path.read_bytes(), 0
        for line in data.splitlines(keepends=True):
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
                if not isinstance(record, dict):
                    break
                seconds = float(record.pop("seconds", 0.0))
                ids = record.pop("demonstration_ids", None)
                prediction = Prediction(**record, demonstration_ids=ids and tuple(ids))
            except (ValueError, TypeError, UnicodeDecodeError):
                break
            self.done[prediction.test_id] = prediction
            self._seconds[prediction.test_id] = seconds
            whole += len(line)
        return whole

    def keep(self, hashes: Mapping[str, str]) -> None:
        """Drop predictions whose prompt is another than the present one, with a warning.

        ``hashes`` are those of the present prompts, by test id. The journal keeps its lines: of
        two with one id the later counts.
        """
        others = [name for name, row in self.done.items() if hashes.get(name) != row.prompt_hash]
        for name in others:
            del self.done[name], self._seconds[name]
        if others:
            count, had = f"{len(others):,} predictions", "other prompts"
            if len(others) == 1:
                count, had = "1 prediction", "another prompt"
            _warn(
                f"{self.store.path(self.identity)}: {count} of an interrupted run had {had} "
                "(another library or machine chose other demonstrations?); computed again"
            )

    def __enter__(self) -> OpenCell:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            with suppress(OSError):  # a full disk was reported when it was met
                self._stream.close()

    def append(self, predictions: Sequence[Prediction], seconds: float = 0.0) -> None:
        """Add a pack of predictions to the journal, safely on the disk when this returns.

        ``seconds`` is the engine time the pack took. Raises ``UserError`` when the disk is full.
        """
        assert self._stream is not None
        lines = []
        for prediction in predictions:
            record = {k: v for k, v in prediction.__dict__.items() if v is not None}
            record["correct"] = prediction.correct
            record["seconds"] = round(seconds / len(predictions), 6)
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
        try:
            self._stream.write("".join(lines).encode())
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise self.store._unwritable(error) from None
        self.done.update((p.test_id, p) for p in predictions)
        self._seconds.update((p.test_id, seconds / len(predictions)) for p in predictions)

    def finish(
        self,
        order: Sequence[str],
        meta: Mapping[str, Any],
        scores: Mapping[str, Sequence[float]] | None = None,
    ) -> Path:
        """Write the cell's file, rows in the order of the given test ids, and drop the journal.

        ``scores`` are further columns of free text, in the same order. Raises ``UserError`` when
        the disk is full; the journal then stays.
        """
        path = self.store.path(self.identity)
        table = self._table([self.done[test_id] for test_id in order], meta, scores or {})
        try:
            write_whole(path, lambda stream: _write_parquet(table, stream))
        except OSError as error:
            raise self.store._unwritable(error) from None
        if self._stream is not None:
            self._stream.close()
        self.store.journal(self.identity).unlink(missing_ok=True)
        self.store.mark(self.identity).unlink(missing_ok=True)
        return path

    def fail(self, reason: str) -> None:
        """Mark the cell with why it cannot be computed; its journal stays.

        The mark is taken away when the cell is finished after all. Raises ``UserError`` when the
        disk is full.
        """
        failure = {
            "spec": self.identity.spec.model_dump(),
            "reason": reason,
            "cell": self.identity.cell,
            "variant": self.identity.variant,
        }
        text = json.dumps(failure, ensure_ascii=False, indent=1) + "\n"
        try:
            write_whole(self.store.mark(self.identity), lambda stream: stream.write(text.encode()))
        except OSError as error:
            raise self.store._unwritable(error) from None

    def _table(
        self,
        rows: Sequence[Prediction],
        meta: Mapping[str, Any],
        scores: Mapping[str, Sequence[float]],
    ) -> pa.Table:
        import pyarrow as pa

        spec, count = self.identity.spec, len(rows)
        constant = {
            **spec.model_dump(),
            "backend": self.identity.facts["backend"],
            "label_space": self.identity.facts.get("label_space"),
            "queries": self.identity.facts.get("queries"),
            "teaching": self.identity.facts.get("teaching"),
            "cell": self.identity.cell,
            "variant": self.identity.variant,
        }
        columns: dict[str, Any] = {name: [value] * count for name, value in constant.items()}
        for name in Prediction.__dataclass_fields__:
            columns[name] = [getattr(row, name) for row in rows]
        for name in SCORES:
            columns[name] = scores.get(name, [None] * count)
        stored = {
            "spec": spec.model_dump(),
            "facts": dict(self.identity.facts),
            "protocol": PROTOCOL,
            "seconds": round(self.seconds, 3),
            **meta,
        }
        about = json.dumps(stored, ensure_ascii=False)
        schema = prediction_schema().with_metadata({_CELL_META: about})
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _write_parquet(table: pa.Table, stream: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, stream, compression="zstd")


def write_whole(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Write under a temporary name in the same folder, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-", suffix=path.suffix)
    written = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        written.chmod(0o644)
        written.replace(path)
    except BaseException:
        with suppress(OSError):
            written.unlink()
        raise


# -- reading ------------------------------------------------------------------------------------


def _result_files(root: Path, say: Callable[[str], None]) -> Iterator[_ResultFile]:
    """Whole files, those of one cell first, then imports without the cells that went before.

    ``say`` is told what is left out. Raises ``UserError`` where there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"results folder {root}: not there; run something first (icl-bench run)")
    paths = [
        path
        for path in root.rglob("*.parquet")
        if not path.name.startswith(".") and ASIDE not in path.relative_to(root).parts
    ]
    seen: dict[tuple[Any, ...], Path] = {}
    for path in sorted(paths, key=lambda path: (path.parent.name == IMPORTED, path)):
        try:
            file = _read_file(path)
        except _ExportError:
            continue
        except _DamagedError as problem:
            say(f"{path}: {problem}; left out")
            continue
        cells = {cell["cell"]: _same(cell) for cell in file.cells()}
        copies = [cell for cell, key in cells.items() if key in seen]
        if copies:
            first = seen[cells[copies[0]]]
            if len(copies) == len(cells) == 1:
                say(f"{path}: holds the same cell as {first}; left out")
            else:
                count = f"{len(copies):,} of its {len(cells):,} cells"
                say(f"{path}: {count} are in other files too ({first}); left out")
            if len(copies) == len(cells):
                continue
            file = file.without(set(copies))
        seen.update((key, path) for key in cells.values() if key not in seen)
        yield file


def _same(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What cells have in common that must not be counted twice."""
    return tuple(cell[name] for name in (*AXES, "variant"))


def finished_cells(
    root: Path, say: Callable[[str], None] = _warn
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files of finished cells, by name, with what they say of themselves.

    That is spec, facts, cell, variant, seconds, demonstration_ids where they are shared, task, ...
    Imports say nothing of the kind and are passed over. Damaged files, and further copies of a
    cell, are left out; ``say`` is told which. Raises ``UserError`` where there is no such folder.
    """
    for file in _result_files(root, say):
        if file.imported is None:
            yield file.path, dict(file.meta)


def find_imported(root: Path, axes: Mapping[str, Any], cell: str = "") -> Path | None:
    """The import that holds a cell with these axes and a hash that begins so, if there is one."""
    for file in _result_files(root, say=lambda _: None):
        if file.imported and any(
            axes.items() <= known.items() and known["cell"].startswith(cell)
            for known in file.cells()
        ):
            return file.path
    return None


def read_rows(path: Path) -> pa.Table:
    """The predictions in one file, and nothing that the names of its folders might add."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read()


def failed_cells(root: Path) -> list[dict[str, Any]]:
    """Cells that could not be computed: spec, reason, cell and variant of each."""
    found = []
    for path in sorted(root.rglob(f"*{FAILED}")):
        if path.with_name(path.name.removesuffix(FAILED) + ".parquet").exists():
            continue  # finished after all, by a process that was killed before it cleared the mark
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            _warn(f"{path}: cannot be read ({error}); left out")
    return found


def read_results(root: str | Path = "results") -> pd.DataFrame:
    """Read a results folder into one tidy frame, one row a prediction.

    Columns are the axes (task, model, select, order, attention, k, draw), test_id, gold,
    prediction, correct, valid, token counts, backend, scores, ``cell`` and ``variant``: cells of
    different variants (another test set, template, dtype, ...) must not be averaged together.
    Further columns of imported files follow, null in rows that lack them. Damaged files and further
    copies of a cell are left out with a warning that names them.

    Raises ``UserError`` where there is no such folder or no result in it.
    """
    frame: pd.DataFrame = read_table(Path(root)).to_pandas()
    return frame


def read_table(root: Path) -> pa.Table:
    """The same as ``read_results``, as a table in Arrow's types."""
    files = list(_result_files(root, _warn))
    if not files:
        raise UserError(f"results folder {root}: no results yet; run something first")
    return _joined(files)


def _joined(files: Sequence[_ResultFile]) -> pa.Table:
    import pyarrow as pa

    tables = [file.table.replace_schema_metadata() for file in files]
    return pa.concat_tables(_agreed(tables), promote_options="default").unify_dictionaries()


@dataclass(frozen=True)
class Stored:
    """A results folder, read once."""

    predictions: pd.DataFrame
    """The frame of ``read_results``; without a row where no cell is finished."""
    cells: Mapping[str, Mapping[str, Any]]
    """Cell -> what its file says of itself (``finished_cells``). Imports say nothing of the kind.
    """
    variants: Mapping[str, Mapping[str, Any]]
    """Variant -> its facts; of an import's only ``imported``, the name of the file it is from."""
    failed: Sequence[Mapping[str, Any]]
    """The marks of ``failed_cells``."""


def read_stored(root: Path) -> Stored:
    """Read all that a results folder holds.

    Damaged files and further copies of a cell are left out with a warning that names them. Raises
    ``UserError`` where there is no such folder, or neither a finished nor a failed cell in it.
    """
    files, failed = list(_result_files(root, _warn)), failed_cells(root)
    if not files and not failed:
        raise UserError(f"results folder {root}: no results yet; run something first")
    cells = {file.meta["cell"]: file.meta for file in files if file.imported is None}
    frame: pd.DataFrame = _joined(files).to_pandas() if files else no_results()
    return Stored(frame, cells, _variants(files), failed)


def no_results() -> pd.DataFrame:
    """The frame of ``read_results`` without a row."""
    frame: pd.DataFrame = prediction_schema().empty_table().to_pandas()
    return frame


def _conformed(table: pa.Table, *, further: bool) -> pa.Table:
    """Columns of an older or newer file in today's order, absent ones empty.

    Behind them, if asked for, the ``further`` columns that are none of this program's.
    """
    import pyarrow as pa

    schema, there = prediction_schema(), table.schema.names
    if table.schema.equals(schema):
        return table
    columns = {
        f.name: table[f.name].cast(f.type) if f.name in there else pa.nulls(len(table), f.type)
        for f in schema
    }
    if further:
        columns |= {name: table[name] for name in there if name not in columns}
    return pa.table(columns)


def _agreed(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Tables whose further columns are of one type in all: the wider one, else text."""
    agreed = list(tables)
    names = {name for table in tables for name in table.schema.names}
    for name in names - set(prediction_schema().names):
        having = [i for i, table in enumerate(agreed) if name in table.schema.names]
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


def read_variants(root: Path) -> dict[str, dict[str, Any]]:
    """The facts of each variant in a results folder.

    Of an import's variant only one is known, ``imported``: the name of the file it is from.
    """
    return _variants(_result_files(root, say=lambda _: None))


def _variants(files: Iterable[_ResultFile]) -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.imported is None:
            facts[file.meta["variant"]] = file.meta["facts"]
            continue
        for variant in file.table["variant"].unique().to_pylist():
            facts.setdefault(variant, {IMPORTED: plain(file.imported["source"])})
    return facts
