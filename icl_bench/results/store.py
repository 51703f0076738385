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

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.metrics import SCORES
from icl_bench.results.cells import (
    FAILED,
    JOURNAL,
    PROTOCOL,
    Identity,
    Prediction,
    prediction_schema,
)
from icl_bench.results.reading import (
    CELL_META,
    IMPORT_META,
    IMPORTED,
    DamagedError,
    read_whole,
    warn,
)
from icl_bench.wording import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from filelock import FileLock


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
            read_whole(path, rows)
        except DamagedError as problem:
            aside = path.with_suffix(".parquet.damaged")
            path.replace(aside)
            warn(f"{path}: {problem}; set aside as {aside.name}, the cell is run again")
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
            with suppress(DamagedError):
                file = read_whole(path)
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
        table = table.replace_schema_metadata({IMPORT_META: json.dumps(about)})
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
            warn(
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
        schema = prediction_schema().with_metadata({CELL_META: about})
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
