"""A results folder while it is looked at: what was read of it, what is new, its findings."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.report.build import make_report, pending
from icl_bench.report.page import page
from icl_bench.report.prediction_sample import described
from icl_bench.report.prompt_ends import Prompts
from icl_bench.report.viewer.predictions import HELD_COLUMNS, Predictions, Questions
from icl_bench.results.anonymous import shown_beside
from icl_bench.results.cells import FAILED, FINISHED
from icl_bench.results.kept_texts import kept_text
from icl_bench.results.reading import (
    DamagedError,
    Seen,
    cells_of,
    models_apart,
    names_of,
    nothing_in,
    nothing_of,
    read_row,
    read_whole,
    result_files,
    variants_of,
)
from icl_bench.results.result_file import ResultFile
from icl_bench.results.storage import Place, folder_of, storage_at
from icl_bench.results.stored_meta import CellMeta
from icl_bench.table_files import data_frame
from icl_bench.wording import first_line

if TYPE_CHECKING:
    import pyarrow as pa

PAUSE_SECONDS = {True: 2.0, False: 20.0}
"""How long to wait before a folder of this machine, or a place elsewhere, is looked at again."""


@dataclass(frozen=True)
class Now:
    """What was read of the folder, and how often it has changed."""

    revision: int
    predictions: Predictions
    files: Mapping[str, str]
    """Cell -> its file."""
    cells: Mapping[str, CellMeta]
    """Cell -> what its file says of it, as in ``Stored``."""
    prompts: Prompts
    """Of these cells; it has the data of their tasks, once some was asked for."""


@dataclass
class ReadingProgress:
    """Files that were read, of how many, while they are read."""

    files: int = 0
    read: int = 0
    reading: bool = True


@dataclass(eq=False)
class Folder:
    """Reads a results folder in the background, again and again, and starts the computation of its findings.

    Predictions are there as soon as they are read; findings follow from a process of their own, so
    that the page answers meanwhile.
    """

    results: Place
    only: Mapping[str, str]
    data_dir: Path | None = None
    now: Now | None = None
    report: tuple[int, str] | None = None
    """The page with all findings, and the revision that they are of."""
    problem: str = ""
    """Why there are no findings, in a line."""
    progress: ReadingProgress = field(default_factory=ReadingProgress)

    def __post_init__(self) -> None:
        self._storage = storage_at(self.results)
        self._files: list[ResultFile] = []  # all that were read
        self._shown: list[ResultFile] = []  # the predictions among them, with names that distinguish models
        self._names: frozenset[str] = frozenset()
        self._seen: Seen = {}
        self._stop = threading.Event()
        self._first = threading.Event()
        self._work: tuple[int, Any, Connection] | None = None
        self._tried = -1  # the last revision whose findings were computed, or could not be
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Begin to read. Raises ``UserError`` where there is no such folder, or nothing in it."""
        self._there()
        self._thread.start()

    def read(self) -> Now:
        """Read the folder once, without its findings. Raises ``UserError`` where there is nothing."""
        self._read(self._there())
        return self.wait()

    def tables(self, columns: Collection[str]) -> Iterator[pa.Table]:
        """These columns of what was read, a file after the other: the rows of the predictions, in their order.

        Raises ``UserError`` for a file that is gone or damaged.
        """
        for file in self._shown:
            try:
                table = read_whole(self._storage, file.name, columns=columns).table
            except DamagedError as problem:
                raise UserError(f"{self._storage.where(file.name)}: {problem}") from None
            if len(table) > len(file.table):  # other tasks, or cells that another file has, too
                table = _having(table, "cell", file.table["cell"].unique().to_pylist())
            yield table

    def _there(self) -> frozenset[str]:
        names = self._relevant() if self._storage.exists() else frozenset()
        if not any(name.endswith(FINISHED) for name in names):
            raise nothing_in(self._storage)
        return names

    def stop(self) -> None:
        """End what was begun."""
        self._stop.set()
        if self._work:
            self._work[1].terminate()

    def wait(self) -> Now:
        """What was read, once it is there."""
        self._first.wait()
        if self.now is None:
            raise UserError(self.problem)
        return self.now

    def state(self) -> dict[str, Any]:
        """What a page asks again and again."""
        return {
            "revision": self.now.revision if self.now else -1,
            "predictions": len(self.now.predictions) if self.now else 0,
            "report": self.report[0] if self.report else None,
            "problem": self.problem,
            "reading": self.progress.reading,
            "files": self.progress.files,
            "files_read": self.progress.read,
        }

    def page(self) -> str:
        """The page as far as it is known."""
        if self.report:
            return self.report[1]
        waiting = pending((), (), 0)
        if self.now is not None:
            options = self.now.predictions.options()
            waiting = pending(options["task"], options["model"], len(self.now.predictions))
        return page(waiting, with_library=False)

    def prediction(self, cell: str, test_id: str) -> dict[str, Any] | None:
        """All that the reader shows of a prediction; None where there is no such one."""
        now = self.wait()
        if (name := now.files.get(cell)) is None:
            return None
        try:
            table = read_row(self._storage, name, cell, test_id)
        except (OSError, ValueError, KeyError) as error:  # Arrow's errors of damaged files are ValueErrors or OSErrors
            where = self._storage.where(name)
            raise UserError(f"{where}: is damaged or not there any more ({first_line(error)[:120]})") from None
        if not len(table):
            return None
        row = now.predictions.naming.named(data_frame(table))
        record: dict[str, Any] = dict(zip(row.columns, row.iloc[0], strict=True))
        return described(record, now.prompts)

    # -- reading --------------------------------------------------------------------------------

    def _relevant(self) -> frozenset[str]:
        names = self._storage.names()
        return frozenset(name for name in names if name.endswith((FINISHED, FAILED)))

    def _follow(self) -> None:
        here = folder_of(self.results) is not None
        while True:
            try:
                self._look()
            except Exception as error:  # the page says it, and it is retried
                self.problem = first_line(error)
            self._first.set()
            if self._stop.wait(PAUSE_SECONDS[here]):
                return

    def _look(self) -> None:
        """Read what is new, and see to the findings."""
        names = self._relevant()
        if names != self._names:
            gone = self._names - names
            if gone:  # a folder that was cleared, or put in order: as if it were another
                self._files, self._shown, self._seen, self._names = [], [], {}, frozenset()
            self._read(names - self._names)
            self._names = names
        self._findings()

    def _read(self, names: frozenset[str]) -> None:
        finished = [name for name in names if name.endswith(FINISHED)]
        self.progress = ReadingProgress(len(finished))
        # the findings report what is left out, among the page's notes
        for file in result_files(self._storage, lambda _: None, HELD_COLUMNS, finished, self._seen):
            self._files.append(file)
            self.progress.read += 1
        self.progress.reading = False
        self._shown = whole = self._those()
        before = self.now
        cells, variants = cells_of(whole), variants_of(whole)
        questions: Questions = before.predictions.questions if before else {}
        predictions = Predictions.of(_joined(whole), variants, questions)
        files = {cell["cell"]: file.name for file in whole for cell in file.cells()}
        revision = before.revision + 1 if before else 0
        self.problem = ""
        earlier = before.prompts if before else Prompts({}, {}, self.data_dir, shown_beside(self.results))
        prompts = earlier.of(cells, variants)
        self.now = Now(revision, predictions, files, cells, prompts)
        self._first.set()
        new_questions = self._questions(self.now)
        if new_questions != questions:
            self.now = replace(self.now, predictions=replace(predictions, questions=new_questions))

    def _those(self) -> list[ResultFile]:
        """The requested predictions, with names that distinguish models. Raises ``UserError`` if there are none."""
        apart, stored_names = models_apart(self._files)
        those = [file for file in apart if file.asks_test_rows and len(file.table)]
        for name, value in self.only.items():
            present = {of_row for file in those for of_row in file.table[name].unique().to_pylist()}
            wanted = names_of(name, value, stored_names)
            of_value = (replace(file, table=_having(file.table, name, wanted)) for file in those)
            those = [file for file in of_value if len(file.table)]
            if present and not those:
                raise nothing_of(self._storage.where(), name, value, present)
        if not those:
            raise nothing_in(self._storage)
        return those

    def _questions(self, now: Now) -> Questions:
        """The questions of each task and variant whose data is at hand."""
        metas = {(meta.spec.task, meta.variant): meta for meta in now.cells.values()}
        questions: dict[tuple[str, str], Mapping[str, str]] = {}
        for source in now.predictions.sources:
            if meta := metas.get(source):
                found = now.prompts.questions(meta)
            else:
                found = now.prompts.imported_questions(source[0], now.predictions.golds_of(*source))
            if found:
                questions[source] = found
        return questions

    # -- findings -------------------------------------------------------------------------------

    def _findings(self) -> None:
        """Take over finished findings, and start again where the folder has changed since."""
        if self._work and (self._work[2].poll() or not self._work[1].is_alive()):
            revision, process, connection = self._work
            try:
                kind, text = connection.recv()
            except EOFError:
                kind, text = "problem", f"their process ended ({process.exitcode})"
            process.join()
            self._work = None
            self.problem = text if kind == "problem" else ""
            self._tried = revision
            if kind == "page":
                self.report = revision, text
        revision = self.now.revision if self.now else -1
        if self._work is None and revision > self._tried:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, revision, self.results, dict(self.only))
            process = context.Process(target=_work_out, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._work = revision, process, ours


def _having(table: pa.Table, name: str, values: list[str]) -> pa.Table:
    """The rows with one of these texts in a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return table.filter(pc.is_in(table[name].cast(pa.string()), pa.array(values, pa.string())))


def _joined(files: list[ResultFile]) -> pa.Table:
    import pyarrow as pa

    tables = [file.table.select([name for name in HELD_COLUMNS if name in file.table.column_names]) for file in files]
    return pa.concat_tables(tables, promote_options="permissive")


def _work_out(connection: Connection, revision: int, results: Place, only: Mapping[str, str]) -> None:
    """Make the page with all findings, in a process of its own."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    warnings.simplefilter("ignore")  # they stand among the page's notes
    try:
        told = "page", _page_of_findings(revision, results, only)
    except Exception as error:
        told = "problem", first_line(error)
    with suppress(BrokenPipeError):  # the server has ended meanwhile
        connection.send(told)


def _page_of_findings(revision: int, results: Place, only: Mapping[str, str]) -> str:
    """The page with all findings. A served page depends on the results folder alone: it has no prompts."""

    def make(place: Place) -> str:
        return page(make_report(place, only, served=True), revision=revision)

    return kept_text(results, {"page": revision, "only": dict(only)}, make)[0]
