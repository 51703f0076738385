"""The process that loads a model and forks the workers, and a worker.

The process has a single thread until it has forked, because a fork keeps no other threads. It ends with its last
worker, and a worker ends with the process that started the run.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from icl_bench.errors import CellError, UserError
from icl_bench.machine import free_bytes
from icl_bench.results.storage import Place
from icl_bench.studies.distribution import Result, Status, StatusWatcher, Stopped
from icl_bench.studies.parts import Engines, Part, PromptPart, Unit
from icl_bench.wording import counted

OWN_BYTES = 2**29
"""Estimated bytes that a worker needs for itself, in addition to its prefix cache."""


@dataclass(frozen=True)
class Crew:
    """What the workers compute."""

    parts: tuple[Part, ...]
    """Parts with the same engine."""
    results: Place
    workers: int
    threads: int
    """Of all workers together."""
    cache_bytes: float
    """Bytes of the largest prefix cache."""


@dataclass(frozen=True)
class Started:
    """The model is loaded, and the first ``workers`` workers are there."""

    workers: int
    note: str | None = None


@dataclass(frozen=True)
class Ended:
    """A worker ended."""

    worker: int
    """Its number, from 1."""
    code: int
    """Its exit code; minus the number of a signal."""


class _PipeWatcher(StatusWatcher):
    """Sends a worker's status to the process that started the run."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def _send(self, status: Status) -> None:
        try:
            self._connection.send(status)
        except OSError:  # the process that started the run is gone
            raise Stopped from None


def fitting(crew: Crew, free: int | None) -> Started:
    """As many of a crew's workers as the free memory suffices for; ``free`` is None if unknown."""
    each = OWN_BYTES + crew.cache_bytes
    number = crew.workers if free is None else max(1, min(crew.workers, int(free / each)))
    if number == crew.workers:
        return Started(number)
    assert free is not None
    space = f"{free / 2**30:.1f} GiB are free, and each needs {each / 2**30:.1f} beside the weights"
    return Started(number, f"{counted(number, 'worker')} instead of {crew.workers}: {space}")


def main(alive: int, descriptors: list[int]) -> None:
    """Load the model, fork the workers and report their ends. The first descriptor is for this process, each further
    one for a worker; ``alive`` is the end of a pipe that closes with the process that started the run.
    """
    from icl_bench.quiet_libraries import hush_libraries

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started the run ends the workers
    hush_libraries()
    connections: list[Connection] = [Connection(descriptor) for descriptor in descriptors]
    control = connections.pop(0)
    crew: Crew = control.recv()
    engines, first = Engines(), crew.parts[0]
    assert isinstance(first, PromptPart)
    try:
        engines.load(first)
    except (CellError, UserError) as error:
        control.send(str(error))
        return
    gc.collect()
    gc.freeze()  # a collection would write to shared pages
    started = fitting(crew, free_bytes())
    workers: dict[int, int] = {}
    for number in range(1, started.workers + 1):
        if not (pid := os.fork()):
            mine = connections.pop(number - 1)
            for other in (control, *connections):
                other.close()
            threads, rest = divmod(crew.threads, started.workers)
            _work(crew, engines, mine, alive, threads + (number <= rest))
        workers[pid] = number
    for connection in connections:
        connection.close()
    os.close(alive)
    with suppress(OSError):  # the process that started the run is gone
        control.send(started)
        while workers:
            pid, status = os.wait()
            control.send(Ended(workers.pop(pid), os.waitstatus_to_exitcode(status)))
    while workers:
        workers.pop(os.wait()[0])


def _work(crew: Crew, engines: Engines, connection: Connection, alive: int, threads: int) -> NoReturn:
    """Compute units until there are no more."""
    code = 1
    try:
        threading.Thread(target=_end_with, args=[alive], daemon=True).start()
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(max(1, threads))
        while True:
            _, unit = connection.recv()
            connection.send(Result.of(partial(_computed, crew, engines, connection, unit)))
    except (EOFError, OSError):  # the process that started the run is gone
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _computed(crew: Crew, engines: Engines, connection: Connection, unit: Unit, say: Callable[[str], None]) -> Result:
    part = crew.parts[unit.part]
    return Result(part.run_unit(unit.number, crew.results, engines, _PipeWatcher(connection), say))


def _end_with(alive: int) -> None:
    """Wait until the process that started the run ends, however it ends; answers so far are stored."""
    os.read(alive, 1)
    os._exit(0)
