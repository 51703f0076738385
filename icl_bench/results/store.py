"""Writes predictions: a journal while a cell is computed, then one Parquet file.

A file's name ends in a hash of everything that decides the cell's predictions, so a changed template, label set, data
file or model gives another cell and never mixes with the old one. If a cell's file contains another cell, it is
renamed. A journal has one JSON line per prediction, with a checksum of the line and its cell, and is synced to disk
after every pack. Resuming drops a last line that was torn by a kill, lines that have changed since they were written,
and predictions whose prompts have changed. Finished files are written atomically. A failed cell is marked with the
reason in a separate file. Processes that share a folder lock each cell; locks of a process that died are free. The
store does not depend on backends; ``Storage`` and ``Journals`` decide where files are.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icl_bench.errors import CellError, UserError
from icl_bench.results.batches import CellBatches
from icl_bench.results.cells import (
    ALWAYS,
    AXES,
    BATCHES,
    FAILED,
    FINISHED,
    JOURNAL,
    PROTOCOL,
    SCORES,
    Identity,
    Prediction,
    further_fields,
    prediction_schema,
    short_hash,
)
from icl_bench.results.journals import Journal, Journals, journals_at
from icl_bench.results.label_scores import of_line
from icl_bench.results.reading import CELL_META, DamagedError, read_whole, warn
from icl_bench.results.result_file import ResultFile
from icl_bench.results.storage import Place, storage_at
from icl_bench.results.stored_meta import (
    CHECK,
    CellMeta,
    FailureMeta,
    SpecMeta,
    as_json,
    as_stored,
    checked,
    checked_prediction,
    json_content,
)
from icl_bench.table_files import parquet_bytes, parquet_table
from icl_bench.wording import counted, short

if TYPE_CHECKING:
    import pyarrow as pa


FIRST_METRIC = "metrics.0"
"""Setting of :attr:`Identity.settings`: the metric that decides which samples are equal answers."""


class Store:
    """A results folder for writing: a storage of finished cells, and journals of unfinished ones.

    ``place`` is a folder or a storage; ``journals`` defaults to those of the place.
    """

    def __init__(self, place: Place, journals: Journals | None = None) -> None:
        self.storage = storage_at(place)
        self.journals = journals_at(self.storage) if journals is None else journals
        self.scored_otherwise: set[str] = set()
        """Names of the finished cells, of those that were read, whose task had other metrics than now."""

    def prepare(self) -> None:
        """Create the folder and test write access. Raises ``UserError``."""
        self.storage.prepare()

    def has(self, identity: Identity) -> bool:
        """Whether a cell has a file, which may be damaged. Raises ``UserError`` if the storage fails."""
        try:
            return self.storage.has(f"{identity.name}{FINISHED}")
        except OSError as error:
            raise self.unwritable(error) from None

    def is_done(self, identity: Identity, rows: int) -> bool:
        """Whether the cell's file exists, is complete and holds this cell; another file is renamed.

        ``rows`` is the number of predictions of a complete file. Raises ``UserError`` if its task had other settings
        (:attr:`Identity.settings`).
        """
        name = f"{identity.name}{FINISHED}"
        if not self.storage.has(name):
            return False
        try:
            file = read_whole(self.storage, name, rows)
            _check_holds(file, identity)
        except DamagedError as problem:
            aside = f"{name}.damaged"
            self.storage.rename(name, aside)
            warn(
                f"{self.storage.where(name)}: {problem}; set aside as {aside.rpartition('/')[2]}, the cell is run again"
            )
            return False
        self._check_settings(file.meta, identity)
        return True

    def is_current(self, identity: Identity) -> bool:
        """Whether a cell has a file, which has the scores of its task's metrics. Predictions are not read.

        Raises ``UserError`` if its task had other settings.
        """
        if not self.has(identity):
            return False
        try:
            file = read_whole(self.storage, f"{identity.name}{FINISHED}", columns=("test_id", "cell", "variant", *AXES))
        except DamagedError:
            return False
        self._check_settings(file.meta, identity)
        return identity.name not in self.scored_otherwise

    def _check_settings(self, meta: CellMeta | None, identity: Identity) -> None:
        """Raise ``UserError`` if a finished cell's task had other settings; note whether it had other metrics.

        Files that do not have a setting are accepted.
        """
        self.scored_otherwise.discard(identity.name)
        stored = meta.task_as_given if meta is not None else {}
        for path, now in identity.settings.items():
            then = _at(stored, path, now)
            if then == now:
                continue
            if path == "metrics":
                self.scored_otherwise.add(identity.name)
                continue
            raise self.other_setting(f"{identity.name}{FINISHED}", identity, path, then, now)

    def other_setting(self, name: str, identity: Identity, path: str, then: Any, now: Any) -> UserError:
        """Error for a cell's file or journal whose task had another setting."""
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            key = next(key for key in sorted({*then, *now}) if then.get(key) != now.get(key))
            path, then, now = f"{path}.{key}", then.get(key), now.get(key)
        was, has = ("none" if value is None else short(value) for value in (then, now))
        return UserError(
            f"{self.storage.where(name)}: was computed with {path}: {was}, and task {identity.spec.task} now has "
            f"{has}; give another folder with --results, another name to the task, or the former value"
        )

    def add_scores(self, identity: Identity, scores: Mapping[str, Sequence[float]]) -> None:
        """Add columns of scores to a finished cell's file, in the order of its rows, and state its task's metrics.

        Other columns stay. Raises ``UserError`` on a full disk.
        """
        import pyarrow as pa

        name = f"{identity.name}{FINISHED}"
        try:
            table = parquet_table(self.storage.read(name))
            for column, values in scores.items():
                if column not in table.column_names:
                    table = table.append_column(column, pa.array(values, pa.float64()))
            metadata = dict(table.schema.metadata)
            meta = json.loads(metadata[CELL_META])
            meta["task"]["metrics"] = identity.settings["metrics"]
            self.storage.put(name, parquet_bytes(table.replace_schema_metadata({**metadata, CELL_META: as_json(meta)})))
        except OSError as error:
            raise self.unwritable(error) from None
        self.scored_otherwise.discard(identity.name)

    def gone(self, names: Collection[str]) -> list[str]:
        """Which of these finished cells, given by their file names without suffix, no longer have a file.

        Raises ``UserError`` if the storage fails.
        """
        try:
            present = {name for folder in {_folder(name) for name in names} for name in self.storage.names(folder)}
        except OSError as error:
            raise self.unwritable(error) from None
        return [name for name in names if f"{name}{FINISHED}" not in present]

    @contextmanager
    def claim(self, identity: Identity, rows: int) -> Iterator[OpenCell | None]:
        """Lock a cell for this process while the block runs.

        Yields None if it is done or another process holds it. ``rows`` is the number of predictions
        of a complete cell. Raises ``UserError`` if the folder cannot be written.
        """
        try:
            give_back = self.journals.take(identity.name)
        except OSError as error:
            raise self.unwritable(error) from None
        if give_back is None:
            try:
                if self.is_current(identity):
                    # object storage keeps the lock of a process that died after writing the cell
                    self.journals.delete(identity.name)
            except OSError as error:
                raise self.unwritable(error) from None
            yield None
            return
        try:
            try:
                opened = None
                if self.is_done(identity, rows):
                    # left by a process that died after writing the cell
                    self.journals.delete(identity.name)
                    self.delete_batches(identity)
                else:
                    opened = OpenCell.resume(self, identity)
            except OSError as error:
                raise self.unwritable(error) from None
            if opened is None:
                yield None
                return
            with closing(opened.journal):
                yield opened
        finally:
            give_back()

    def delete_batches(self, identity: Identity) -> None:
        """Remove the batches of a cell. Only cells of servers have any."""
        if identity.facts.server is not None:
            self.storage.delete(f"{identity.name}{BATCHES}")

    def batches(self, identity: Identity) -> CellBatches | None:
        """The batches of an unfinished cell; None if it never had any. Raises ``CellError`` for a damaged file."""
        if identity.facts.server is None:
            return None  # avoids a request to the storage
        name = f"{identity.name}{BATCHES}"
        try:
            content = self.storage.read(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unwritable(error) from None
        try:
            return checked(content, CellBatches)
        except ValueError:
            raise CellError(
                f"{self.storage.where(name)}: is damaged, so its batches at the server are not known; "
                "delete it to ask the cell's requests again"
            ) from None

    def mark_failed(self, identity: Identity, reason: str) -> None:
        """Mark a cell as failed, with the reason. Raises ``UserError`` on a full disk."""
        spec = SpecMeta(**identity.spec.model_dump())
        failure = FailureMeta(spec=spec, reason=reason, cell=identity.cell, variant=identity.variant)
        try:
            self.storage.put(f"{identity.name}{FAILED}", json_content(as_stored(failure)))
        except OSError as error:
            raise self.unwritable(error) from None

    def unwritable(self, error: OSError) -> UserError:
        """Error for a full disk or a folder that cannot be written."""
        if error.errno == errno.ENAMETOOLONG:
            return UserError(
                f"results folder {self.storage.where()}: the name of task, model or selection is too "
                "long for its file system; use a shorter name of the task or of the model's folder"
            )
        return UserError(
            f"results folder {self.storage.where()}: {error.strerror or error}; finished "
            "predictions are kept; run the same command again once there is space"
        )


@dataclass(frozen=True)
class Making:
    """How a prediction was made, as its line of a journal has it."""

    seconds: float = 0.0
    """Its share of the backend's time."""
    prefix_seconds: float | None = None
    """The part of it for shared tokens; None if unknown."""
    model: str | None = None
    """The models that a server reported."""
    metric: str | None = None
    """The metric by which its samples were compared."""


MADE = Making.__dataclass_fields__.keys()

WITHDRAWN = ""
"""The hash of the prompt in a line that withdraws the earlier lines of its row."""


@dataclass
class OpenCell:
    """A cell that this process is computing."""

    store: Store
    identity: Identity
    journal: Journal
    done: dict[str, Prediction] = field(default_factory=dict)
    """Predictions so far, by test id."""
    _makings: dict[str, Making] = field(default_factory=dict)
    """How each of them was made, by test id."""

    @property
    def model(self) -> str | None:
        """The models that a server reported for the predictions so far, separated by commas; None for none."""
        named = [making.model for making in self._makings.values() if making.model is not None]
        return ", ".join(dict.fromkeys(one for names in named for one in names.split(", "))) or None

    @property
    def seconds(self) -> float:
        """The backend's time for the predictions so far, including interrupted runs."""
        return sum(making.seconds for making in self._makings.values())

    @property
    def prefill_seconds(self) -> float | None:
        """The part of ``seconds`` for shared tokens, including interrupted runs; None if unknown."""
        known = [making.prefix_seconds for making in self._makings.values() if making.prefix_seconds is not None]
        return sum(known) if known and len(known) == len(self.done) else None

    @classmethod
    def resume(cls, store: Store, identity: Identity) -> OpenCell:
        """Read a journal, drop a torn last line and damaged ones, and open it for appending.

        Warns about damaged lines, except a last line torn by a kill.
        """
        cell = cls(store, identity, store.journals.open(identity.name))
        whole = place = damaged = 0
        *lines, torn = cell.journal.read().split(b"\n")
        for line in lines:
            place += len(line) + 1
            try:
                prediction, making = _parsed(line, identity)
            except (ValueError, TypeError, RecursionError):
                damaged += 1
                continue
            if making.metric not in (None, now := identity.settings.get(FIRST_METRIC)):
                cell.journal.close()
                raise store.other_setting(f"{identity.name}{JOURNAL}", identity, FIRST_METRIC, making.metric, now)
            if prediction.prompt_hash == WITHDRAWN:
                cell._forget([prediction.test_id])
            else:
                cell.done[prediction.test_id], cell._makings[prediction.test_id] = prediction, making
            whole = place
        if whole < place + len(torn):
            cell.journal.cut(whole)
        if damaged:
            count, rows = ("1 line", "its row is") if damaged == 1 else (f"{damaged:,} lines", "their rows are")
            where = store.storage.where(f"{identity.name}{JOURNAL}")
            warn(f"{where}: {count} changed since they were written, or of another cell; {rows} asked again")
        return cell

    def keep(self, hashes: Mapping[str, str], golds: Mapping[str, Sequence[str]] | None = None) -> None:
        """Drop predictions whose prompt or right answers have changed, with a warning.

        ``hashes`` are those of the current prompts, by test id, and ``golds`` the right answers. The journal keeps
        its lines: if two lines have the same id, the later one counts.
        """
        changed = [name for name, row in self.done.items() if hashes.get(name) != row.prompt_hash]
        self._drop(changed, "other prompts", "another library or machine chose other demonstrations?")
        if golds is not None:
            changed = [name for name, row in self.done.items() if (*golds[name],) != (row.golds or (row.gold,))]
            self._drop(changed, "other right answers", "the task file was changed?")

    def _drop(self, others: Sequence[str], had: str, why: str) -> None:
        self._forget(others)
        if others:
            count = counted(len(others), "prediction")
            if len(others) == 1:
                had = had.replace("other", "another").removesuffix("s")
            where = self.store.storage.where(f"{self.identity.name}{FINISHED}")
            warn(f"{where}: {count} of an interrupted run had {had} ({why}); computed again")

    def discard(self, test_ids: Collection[str]) -> None:
        """Drop predictions, with a warning; further lines of the journal withdraw them. Raises ``UserError`` if it
        cannot be written.
        """
        if not test_ids:
            return
        withdrawn = [replace(self.done[name], prompt_hash=WITHDRAWN) for name in test_ids]
        try:
            self.journal.append(b"".join(_line(one, Making(), self.identity) for one in withdrawn))
        except OSError as error:
            raise self.store.unwritable(error) from None
        self._forget(test_ids)
        where = self.store.storage.where(f"{self.identity.name}{FINISHED}")
        warn(f"{where}: {counted(len(test_ids), 'answer')} to truncated prompts dropped")

    @property
    def batches_file(self) -> str:
        """The location of the cell's batches."""
        return self.store.storage.where(f"{self.identity.name}{BATCHES}")

    def batches(self) -> CellBatches | None:
        """The cell's batches; None if it never had any. Raises ``CellError``."""
        return self.store.batches(self.identity)

    def keep_batches(self, batches: CellBatches) -> None:
        """Write the cell's batches. Raises ``UserError`` if the disk is full."""
        try:
            self.store.storage.put(
                f"{self.identity.name}{BATCHES}", json_content(batches.model_dump(exclude_defaults=True))
            )
        except OSError as error:
            raise self.store.unwritable(error) from None

    def append(
        self,
        predictions: Sequence[Prediction],
        seconds: float = 0.0,
        prefix_seconds: float | None = None,
        model: str | None = None,
    ) -> None:
        """Append a pack of predictions to the journal; they are on disk when this returns.

        ``seconds`` is the time that the pack took, ``prefix_seconds`` its part for shared tokens, None if unknown.
        ``model`` is what a server reports about the model that answered.
        Raises ``UserError`` if the disk is full.
        """
        count = max(1, len(predictions))
        making = Making(seconds / count, None if prefix_seconds is None else prefix_seconds / count, model)
        try:
            self.journal.append(b"".join(_line(one, making, self.identity) for one in predictions))
        except OSError as error:
            raise self.store.unwritable(error) from None
        self.done.update((one.test_id, one) for one in predictions)
        self._makings.update((one.test_id, making) for one in predictions)

    def _forget(self, test_ids: Collection[str]) -> None:
        for name in test_ids:
            self.done.pop(name, None)
            self._makings.pop(name, None)

    def finish(
        self, order: Sequence[str], meta: CellMeta, scores: Mapping[str, Sequence[float | None]] | None = None
    ) -> str:
        """Write the cell's file, and remove its journal, its batches and its mark of failure. Returns the name.

        Rows are in the ``order`` of test ids. ``meta`` is the file's metadata, to which the seconds and those of the
        prefill are added, unless answers came in batches. ``scores`` are columns of floats in the same order. Raises
        ``UserError`` if the disk is full (the journal then stays), and ``ValueError`` for a score with the name of
        another column.
        """
        name = f"{self.identity.name}{FINISHED}"
        rows = [self.done[test_id] for test_id in order]
        content = parquet_bytes(self._table(rows, meta, scores or {}))
        try:
            self.store.storage.put(name, content)
            self.journal.close()
            self.store.journals.delete(self.identity.name)
            self.store.delete_batches(self.identity)
            self.store.storage.delete(f"{self.identity.name}{FAILED}")
        except OSError as error:
            raise self.store.unwritable(error) from None
        return name

    def fail(self, reason: str) -> None:
        """Mark the cell as failed, with the reason; its journal is kept.

        Finishing the cell later removes the mark. Raises ``UserError`` if the disk is full.
        """
        self.store.mark_failed(self.identity, reason)

    def _table(
        self, rows: Sequence[Prediction], meta: CellMeta, scores: Mapping[str, Sequence[float | None]]
    ) -> pa.Table:
        import pyarrow as pa

        spec, facts, count = self.identity.spec, self.identity.facts, len(rows)
        constant = {
            **spec.model_dump(),
            "backend": facts.backend,
            "label_space": facts.label_space,
            "queries": facts.queries,
            "perturbation": facts.perturbation,
            "cell": self.identity.cell,
            "variant": self.identity.variant,
        }
        columns: dict[str, Any] = {name: [value] * count for name, value in constant.items()}
        for name in Prediction.__dataclass_fields__:
            columns[name] = [getattr(row, name) for row in rows]
        columns[SCORES] = [None if row.label_scores is None else of_line(row.label_scores) for row in rows]
        if taken := set(scores) & set(columns):
            raise ValueError(f"a score cannot be called {min(taken)}: that is another column")
        columns |= scores
        fields = [*prediction_schema(), *further_fields(), *(pa.field(name, pa.float64()) for name in scores)]
        valued = {name for name, values in columns.items() if any(value is not None for value in values)}
        seconds = None if meta.batched else round(self.seconds, 3)
        times = {"seconds": seconds, "prefill_seconds": self.prefill_seconds}
        meta = meta.model_copy(update={"protocol": PROTOCOL, **times})
        stored = as_json(as_stored(meta))
        schema = pa.schema([f for f in fields if f.name in valued.union(ALWAYS)], {CELL_META: stored})
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _at(stored: Any, path: str, default: Any) -> Any:
    """The value at a path in stored settings; None below a setting that is None, and ``default`` if it is absent."""
    for part in path.split("."):
        if stored is None:
            return None
        if isinstance(stored, list):
            stored = dict(zip(map(str, range(len(stored))), stored, strict=True))
        if not isinstance(stored, Mapping) or part not in stored:
            return default
        stored = stored[part]
    return stored


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _check_holds(file: ResultFile, identity: Identity) -> None:
    """Raise ``DamagedError`` if a file belongs to another cell, by its rows or its metadata."""
    if file.meta is not None:
        rows = [file.table[name].unique().to_pylist() for name in ("cell", "variant")]
        stated = Identity(file.meta.spec, file.meta.facts)
        if rows == [[identity.cell], [identity.variant]] and stated.cell == identity.cell:
            return
    raise DamagedError("holds another cell than its name says")


def _line(prediction: Prediction, making: Making, identity: Identity) -> bytes:
    """A prediction as a line of a journal, without None values except ``correct``.

    The checksum is first, so that lost bytes around it belong to required fields.
    """
    record = {k: v for k, v in prediction.__dict__.items() if v is not None}
    record["correct"] = prediction.correct
    record["seconds"] = round(making.seconds, 6)
    if making.prefix_seconds is not None:
        record["prefix_seconds"] = round(making.prefix_seconds, 6)
    if making.model is not None:
        record["model"] = making.model
    if prediction.samples is not None and FIRST_METRIC in identity.settings:
        record["metric"] = identity.settings[FIRST_METRIC]
    line = {CHECK: short_hash([identity.cell, record]), **record}
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


def _parsed(line: bytes, identity: Identity) -> tuple[Prediction, Making]:
    """Parse one journal line: a prediction and how it was made.

    Lines of earlier versions have no checksum and less of their making. Raises ``ValueError`` or ``TypeError`` if it
    is malformed or has changed.
    """
    prediction, record = checked_prediction(line), json.loads(line)
    if prediction.label_scores is not None:
        of_line(prediction.label_scores)
    written, making = record.pop(CHECK, None), {name: record[name] for name in MADE if name in record}
    if not isinstance(making.get("model", ""), str):
        raise ValueError("the model is not a name")
    if unknown := record.keys() - Prediction.__dataclass_fields__.keys() - MADE:
        raise ValueError(f"unknown field {min(unknown)}")  # a changed field name, perhaps the checksum's
    if written is not None and written != short_hash([identity.cell, record]):
        raise ValueError("not as it was written")
    prefix = making.get("prefix_seconds")
    return prediction, Making(
        float(making.get("seconds", 0.0)),
        None if prefix is None else float(prefix),
        making.get("model"),
        making.get("metric"),
    )
