"""The distribution of a study's units over processes: what a process returns, and what becomes of it.

It does not depend on how the processes are started: by Ray (:mod:`icl_bench.studies.on_ray`), or as workers of this
machine (:mod:`icl_bench.studies.workers`).
"""

from __future__ import annotations

import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from icl_bench.errors import UserError
from icl_bench.results.storage import Place
from icl_bench.results.store import Store
from icl_bench.studies.parts import Listener, Part, StudyProgress, Unit
from icl_bench.studies.scheduling import ATTEMPTS, Queue, length
from icl_bench.sweep.plan import CellPlan
from icl_bench.sweep.runner import Outcome, Watcher
from icl_bench.wording import first_line

STATUS_SECONDS = 0.5
"""Interval at which a process reports its status."""

LOOK_SECONDS = 0.5
"""Interval at which the study's own process wakes up if no unit ends."""


class Stopped(BaseException):
    """The user stopped the study; a process stops its work."""


# -- in the processes that compute --------------------------------------------------------------


@dataclass
class Status:
    """A process's progress with its unit."""

    predictions: int = 0
    title: str = ""


class StatusWatcher(Watcher, ABC):
    """Reports the status of a process."""

    def __init__(self) -> None:
        self._status, self._last = Status(), 0.0

    @abstractmethod
    def _send(self, status: Status) -> None:
        """Send the status. Raises ``Stopped`` if the process must stop."""

    def cell_started(self, cell: CellPlan, already: int) -> None:
        """See ``Watcher``."""
        self._status.title = str(cell.spec)
        self._status.predictions += already
        self._report()

    def backend_loading(self) -> None:
        """See ``Watcher``."""
        self._status.title = "loading the model"
        self._report()

    def predicted(self, predictions: int, computed_tokens: int) -> None:  # noqa: ARG002
        """See ``Watcher``."""
        self._status.predictions += predictions
        self._report()

    def cell_ended(self, cell: CellPlan, outcome: str) -> None:
        """See ``Watcher``."""
        if outcome == "kept":
            self._status.predictions += cell.queries
        self._report()

    def _report(self) -> None:
        if time.monotonic() - self._last >= STATUS_SECONDS:
            self._last = time.monotonic()
            self._send(self._status)


@dataclass
class Result:
    """The result of a unit."""

    outcome: Outcome = field(default_factory=Outcome)
    loaded: object = None
    """The loaded model of the process."""
    problem: str | None = None
    """Why the unit failed."""
    ends_all: bool = False
    """Whether all other units would fail, too."""
    trace: str | None = None
    """Traceback of an unexpected error."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, compute: Callable[[Callable[[str], None]], Result]) -> Result:
        """What ``compute`` returns, with its errors, its warnings and the notes that it passes to its argument."""
        notes: list[str] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                result = compute(notes.append)
            except Stopped:
                result = cls()
            except UserError as error:
                result = cls(problem=str(error))
            except Exception as error:
                problem = f"{type(error).__name__}: {first_line(error)}"
                result = cls(problem=problem, trace=traceback.format_exc())
        texts = (str(warning.message) for warning in caught if warning.category is UserWarning)
        result.warnings, result.notes = tuple(dict.fromkeys(texts)), tuple(notes)
        return result


# -- in the study's own process -----------------------------------------------------------------


@dataclass
class Distribution:
    """The units of parts, and what became of those that processes have taken."""

    parts: Sequence[Part]
    results: Place
    listener: Listener
    called: str
    """What a process is called."""
    units: Sequence[Unit]
    outcome: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self.queue = Queue.of(self.units)
        self.units_done = 0
        self._left = Counter(unit.part for unit in self.units)
        self._by_part = [Outcome() for _ in self.parts]
        self._predictions = 0
        self._computed = self._kept = 0.0
        self._since = time.monotonic()

    def returned(self, ticket: int, unit: Unit, result: Result, machine: str, machines: Collection[str]) -> None:
        """A process on a machine returned a unit; ``machines`` are those that are still there.

        Raises ``UserError`` if the result ends everything.
        """
        for text in result.warnings:
            warnings.warn(text, stacklevel=1)
        for text in result.notes:
            self.listener.note(text)
        if result.problem is None:
            self.queue.done(ticket)
            self._finished(unit, result.outcome)
            return
        if result.ends_all:
            raise UserError(result.problem)
        if result.trace:
            self.listener.note(result.trace)
        self.failed(ticket, unit, result.problem, machine, machines)

    def failed(self, ticket: int, unit: Unit, why: str, machine: str, machines: Collection[str]) -> None:
        """A unit failed. It is tried again, or given up with its cells marked."""
        if not self.queue.failed(ticket, self._cells_done(unit), machine, machines):
            self.listener.note(f"{unit.title}: {why}; retried")
            return
        reason = f"failed {ATTEMPTS} times: {why}"
        self.listener.note(f"{unit.title}: gave up: {reason}")
        self._finished(unit, self.parts[unit.part].give_up(unit.number, self.results, reason))

    def _cells_done(self, unit: Unit) -> int:
        return sum(map(Store(self.results).has, self.parts[unit.part].identities_of(unit.number)))

    def _finished(self, unit: Unit, outcome: Outcome) -> None:
        self.units_done += 1
        self._predictions += unit.predictions
        if outcome.computed:
            self._computed += length(unit)
        else:
            self._kept += length(unit)
        self.outcome.add(outcome)
        self._by_part[unit.part].add(outcome)
        self._left[unit.part] -= 1
        if not self._left[unit.part]:
            self.listener.part_ended(self.parts[unit.part], self._by_part[unit.part])

    def show(self, at_work: Sequence[tuple[Unit, Status]], starting: int) -> None:
        """Report the progress of all units."""
        predictions = sum(unit.predictions for unit in self.units)
        now = self._predictions + sum(status.predictions for _, status in at_work)
        computed = self._computed
        computed += sum(length(unit) * status.predictions / unit.predictions for unit, status in at_work)
        whole = sum(map(length, self.units)) - self._kept
        share = min(1.0, computed / whole) if whole else 1.0
        elapsed = time.monotonic() - self._since
        self.listener.cluster_progress(
            StudyProgress(
                self.called,
                len(at_work),
                starting,
                len(self.units),
                self.units_done,
                predictions,
                min(now, predictions),
                share,
                elapsed * (1 - share) / share if share > 0.01 else None,
                tuple(status.title or unit.title for unit, status in at_work),
            )
        )
