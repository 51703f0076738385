"""Workers: processes of one machine that share a model's weights, each with some of its cores.

A process loads the model and forks the workers, so the weights are in memory once, whatever the loader made of them.
This process plans everything and gives the workers units, as on a cluster. Workers store their results themselves.
"""

from __future__ import annotations

import heapq
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from icl_bench.errors import UserError
from icl_bench.machine import threads_here
from icl_bench.results.cells import Identity
from icl_bench.results.storage import Place
from icl_bench.results.store import Store
from icl_bench.studies.distribution import LOOK_SECONDS, STATUS_SECONDS, Distribution, Status
from icl_bench.studies.options import MachineOptions
from icl_bench.studies.parts import Listener, Part, PromptPart, Unit, run_here, share_room
from icl_bench.studies.scheduling import length
from icl_bench.studies.worker_process import Crew, Ended, Started
from icl_bench.sweep.runner import Outcome, lacks_scores
from icl_bench.wording import counted, first_line, plain

SERIAL = 0.05
"""The share of one thread's time that further threads do not shorten (``docs/speed.md``)."""

GAIN = 0.9
"""``auto`` takes several workers if they need at most this share of one process's estimated time."""

STOP_SECONDS = 20.0
"""Time for the workers to end."""


Refuse = Callable[[Sequence[Part], UserError], None]
"""Receives parts that cannot resume their stored cells, and why."""


@dataclass(frozen=True)
class WorkerSpec:
    """The option ``--workers``."""

    number: int | None
    """None for ``auto``."""

    @classmethod
    def of(cls, options: MachineOptions) -> WorkerSpec | None:
        """The requested workers; None for one process. Raises ``UserError``."""
        text = options.workers
        if text is None:
            return None
        if text != "auto" and not (text.isascii() and text.isdigit() and int(text)):
            raise UserError(f"--workers {plain(text)}: expected a number from 1, or auto")
        if options.on is not None:
            raise UserError(f"--workers {text}: works on one machine only; remove --workers or --on")
        return None if text == "1" else cls(None if text == "auto" else int(text))

    def __str__(self) -> str:
        return f"--workers {self.number or 'auto'}"

    def check(self, part: Part) -> None:
        """Raise ``UserError`` if a part cannot have this number of workers."""
        if self.number is not None and isinstance(part, PromptPart) and (reason := _obstacle(part)):
            raise UserError(
                f"{self}: is for --backend transformers on a CPU with Linux, and {reason}; leave --workers out"
            )

    def teams(self, parts: Sequence[Part], results: Place, say: Callable[[str], None], refuse: Refuse) -> list[Team]:
        """The parts by model, each with its number of workers.

        ``say`` receives notes, ``refuse`` parts that cannot resume their stored cells, which are left out. Raises
        ``UserError``.
        """
        by_engine: dict[object, list[Part]] = {}
        for part in parts:
            self.check(part)
            by_engine.setdefault(part.engine if isinstance(part, PromptPart) else None, []).append(part)
        teams = [self._team(those, results, say, refuse) for those in by_engine.values()]
        return [team for team in teams if team.parts]

    def _team(self, parts: list[Part], results: Place, say: Callable[[str], None], refuse: Refuse) -> Team:
        first, threads = parts[0], threads_here()
        if not isinstance(first, PromptPart):
            say(f"note: {self}: no effect on trainings, which run in one process")
            return Team(parts, [], 1, threads)
        if (reason := _obstacle(first)) is not None:
            say(f"note: {self}: one process, because {reason}")
            return Team(parts, [], 1, threads)
        wanted, parts, units = parts, [], list[Unit]()
        for part in wanted:
            try:
                units += [unit for unit in part.units(len(parts)) if _is_open(part, unit, results)]
            except UserError as error:
                refuse([part], error)
            else:
                parts.append(part)
        if not parts:
            return Team([], [], 1, threads)
        if self.number is None:
            number = best_number([length(unit) for unit in units], threads)
            each = f" with {counted(threads // number, 'thread')} each" if number > 1 else ""
            say(f"{self}: {counted(number, 'worker')}{each}")
            return Team(parts, units, number, threads)
        number = max(1, min(self.number, len(units)))
        if units and number < self.number:
            groups = counted(len(units), "group")
            say(f"note: {self}: there are only {groups} of cells that share a prefix, so {number} at work")
        if number > threads:
            say(f"note: {self}: more than {counted(threads, 'core')} (or OMP_NUM_THREADS), so they wait for each other")
        return Team(parts, units, number, threads)


def _obstacle(part: PromptPart) -> str | None:
    """Why a part has no workers; None if it can have them."""
    loader = part.sweep.loader
    if not loader.on_cpu():
        return "this is a GPU" if loader.name == "transformers" else f"this is --backend {loader.name}"
    return None if sys.platform == "linux" else "this is another system"


def _is_open(part: Part, unit: Unit, results: Place) -> bool:
    """Whether a cell of a unit has no file, or one without the scores of its task's metrics or requested ones.

    Raises ``UserError`` if the task of a finished cell had other settings.
    """
    store, requested = Store(results), part.sweep.requested_scores if isinstance(part, PromptPart) else None

    def done(identity: Identity) -> bool:
        return store.is_current(identity) and lacks_scores(store, identity, requested) is None

    if not store.storage.exists():
        return True
    finished = [done(identity) for identity in part.identities_of(unit.number)]  # all, for their settings
    return not all(finished)


def best_number(seconds: Sequence[float], threads: int) -> int:
    """The number of workers that finish units of these estimated seconds first; 1 if the others gain too little."""

    def needed(workers: int) -> float:
        loads = [0.0] * workers
        for one in sorted(seconds, reverse=True):  # as the queue assigns them
            heapq.heapreplace(loads, loads[0] + one)
        return max(loads) * (SERIAL + (1 - SERIAL) / (threads // workers))

    best = min(range(1, max(1, min(threads, len(seconds))) + 1), key=needed)
    return best if needed(best) <= GAIN * needed(1) else 1


@dataclass
class Team:
    """Parts with one model, and the workers that compute them."""

    parts: list[Part]
    units: list[Unit]
    """Their units with missing cells."""
    workers: int
    threads: int
    """Of all workers together."""

    def run(self, results: Place, listener: Listener) -> Outcome:
        """Compute missing cells by the workers. Raises ``UserError``."""
        share_room(self.parts)
        outcome = self._kept()
        outcome.add(_Run(self, results, listener).run())
        return outcome

    def _kept(self) -> Outcome:
        """The cells of finished units."""
        outcome = Outcome()
        missing = {(unit.part, unit.number) for unit in self.units}
        for i, part in enumerate(self.parts):
            for unit in part.units(i):
                if (i, unit.number) not in missing:
                    for identity in part.identities_of(unit.number):
                        outcome.kept.append(identity.spec)
                        outcome.names[identity.name] = identity.spec
        return outcome


@dataclass(frozen=True)
class LocalWorkers:
    """A study's cluster: workers of this machine."""

    spec: WorkerSpec

    def run(self, parts: Sequence[Part], results: Place, listener: Listener) -> Outcome:
        """See ``Cluster``: one model after another, also after one that cannot be computed."""
        total = Outcome()

        def refuse(refused: Sequence[Part], error: UserError) -> None:
            if len(parts) == 1:
                raise error
            total.stopped.append(f"{'; '.join(str(part.job) for part in refused)}: {error}")

        for team in self.spec.teams(parts, results, listener.note, refuse):
            try:
                total.add(self._computed(team, results, listener))
            except UserError as error:
                refuse(team.parts, error)
        return total

    def _computed(self, team: Team, results: Place, listener: Listener) -> Outcome:
        if team.workers == 1:
            return run_here(team.parts, results, listener)
        listener.parts_shared(team.parts)
        return team.run(results, listener)


@dataclass
class _Worker:
    """A worker, seen from this process."""

    number: int
    connection: Connection
    assigned: tuple[int, Unit] | None = None
    """The queue's ticket of its unit, and the unit."""
    status: Status = field(default_factory=Status)


class _Run:
    """The workers of one team at work."""

    def __init__(self, team: Team, results: Place, listener: Listener) -> None:
        self.team, self.results, self.listener = team, results, listener
        self._work = Distribution(team.parts, results, listener, "worker", team.units)
        self._workers: list[_Worker] = []
        self._exits: dict[int, int] = {}
        """Exit codes of workers that ended, by number."""
        self._ends: list[str] = []
        """How workers ended early."""

    def run(self) -> Outcome:
        """Compute all units. The workers are stopped at the end, also after an error."""
        Store(self.results).prepare()
        ours, theirs = zip(*(Pipe() for _ in range(1 + self.team.workers)), strict=True)
        alive, held = os.pipe()
        descriptors = [one.fileno() for one in theirs]
        code = f"from icl_bench.studies.worker_process import main; main({alive}, {descriptors})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[alive, *descriptors],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OMP_NUM_THREADS": "1",  # threads that have computed would not survive a fork
                "TOKENIZERS_PARALLELISM": "false",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            for connection in theirs:
                connection.close()
            os.close(alive)
            self._control = ours[0]
            self._workers = [_Worker(number, connection) for number, connection in enumerate(ours[1:], 1)]
            self._start(process)
            self._loop()
        finally:
            os.close(held)  # ends the workers
            if not self._workers:
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=STOP_SECONDS)
            for connection in ours:
                connection.close()
        if left := len(self._work.queue):
            groups = counted(left, "group")
            self._work.outcome.stopped.append(
                f"all workers ended ({'; '.join(self._ends)}); {groups} of cells left, run it again to continue"
            )
        return self._work.outcome

    def _start(self, process: subprocess.Popen[bytes]) -> None:
        """Send the parts, and wait until the model is loaded. Raises ``UserError``."""
        needed = max(_cache_bytes(part) for part in self.team.parts)
        crew = Crew(tuple(self.team.parts), self.results, self.team.workers, self.team.threads, needed)
        try:
            message = pickle.dumps(crew)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(f"--workers: the task cannot be sent to other processes ({first_line(error)})") from None
        waiting, self._workers = self._workers, []
        try:
            self._control.send_bytes(message)
            while not self._control.poll(STATUS_SECONDS):
                self._work.show([], starting=len(waiting))
            started: Started | str = self._control.recv()
        except (EOFError, OSError):
            code = process.wait()
            raise UserError(f"--workers: the process that loads the model ended ({_ending(code)})") from None
        if isinstance(started, str):
            raise UserError(started)
        if started.note:
            self.listener.note(f"note: {started.note}")
        self._workers = waiting[: started.workers]

    def _loop(self) -> None:
        reported = 0.0
        while len(self._work.queue) and self._workers:
            for worker in self._workers:
                if worker.assigned is None and (taken := self._work.queue.take()) is not None:
                    worker.assigned, worker.status = taken, Status()
                    with suppress(OSError):  # it has ended, which is found below
                        worker.connection.send(taken)
            by_connection = {worker.connection: worker for worker in self._workers}
            for ready in wait(list(by_connection), LOOK_SECONDS):
                assert isinstance(ready, Connection)
                self._receive(by_connection[ready])
            if time.monotonic() - reported > STATUS_SECONDS:
                at_work = [(one.assigned[1], one.status) for one in self._workers if one.assigned]
                self._work.show(at_work, starting=0)
                reported = time.monotonic()

    def _receive(self, worker: _Worker) -> None:
        """Read a worker's status, its result or its end."""
        try:
            received: Any = worker.connection.recv()
        except (EOFError, OSError):
            self._ended(worker)
            return
        if isinstance(received, Status):
            worker.status = received
            return
        assert worker.assigned is not None, "only an assigned unit returns"
        (ticket, unit), worker.assigned = worker.assigned, None
        self._work.returned(ticket, unit, received, HERE, {HERE})

    def _ended(self, worker: _Worker) -> None:
        """A worker died: its unit returns to the others."""
        self._workers.remove(worker)
        deadline = time.monotonic() + STOP_SECONDS  # the process that forked it says so soon, or ends too
        with suppress(EOFError, OSError):
            while worker.number not in self._exits and self._control.poll(max(0.0, deadline - time.monotonic())):
                ended: Ended = self._control.recv()
                self._exits[ended.worker] = ended.code
        code = self._exits.get(worker.number)
        said = f"worker {worker.number}: {_ending(code)}"
        self._ends.append(said)
        if worker.assigned is None:
            self.listener.note(said)
            return
        ticket, unit = worker.assigned
        self._work.failed(ticket, unit, f"its process died ({said})", HERE, {HERE})


HERE = "this machine"


def _cache_bytes(part: Part) -> float:
    """Bytes of the largest prefix cache."""
    costs = part.sweep.costs() if isinstance(part, PromptPart) else ()
    return max((cost.cache_bytes for cost in costs if cost is not None), default=0.0)


def _ending(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "ended"
    if code == -9:
        return "killed, perhaps for lack of memory"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
