"""Studies on Ray: engines are actors that hold a loaded model and compute units of the study.

The study's own process plans everything, assigns units to engines and counts results. Engines store
their results in the folder or bucket as usual, so nothing is lost if one dies: another engine resumes
its unit.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import icl_bench
from icl_bench.errors import UserError
from icl_bench.results.storage import ADDRESS, Place, storage_at
from icl_bench.results.store import Store
from icl_bench.studies.cluster import LOCAL_RAY, ClusterSpec
from icl_bench.studies.distribution import (
    LOOK_SECONDS,
    STATUS_SECONDS,
    Distribution,
    Result,
    Status,
    StatusWatcher,
    Stopped,
)
from icl_bench.studies.parts import Engines, Listener, Part, Unit, share_room
from icl_bench.studies.scheduling import ATTEMPTS
from icl_bench.sweep.runner import Outcome
from icl_bench.wording import first_line, plain

GROW_SECONDS = 5.0
"""Interval at which it looks for new machines."""

PLACE_SECONDS = 60.0
"""Time after which it reports that no engine is running."""

STOP_SECONDS = 20.0
"""Time for engines to stop their work cleanly when the study is stopped."""


TOKEN = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
"""File of the token that a Ray cluster requires of its clients."""


# -- in the engines' processes ------------------------------------------------------------------


class Board:
    """An actor that collects the engines' statuses and tells them to stop."""

    def __init__(self) -> None:
        self._statuses: dict[int, Status] = {}
        self._stopping = False

    def report(self, ticket: int, status: Status) -> bool:
        """Store the status of a unit. Returns whether its engine must stop."""
        self._statuses[ticket] = status
        return self._stopping

    def read(self, over: Sequence[int] = ()) -> dict[int, Status]:
        """Statuses by ticket, after removing those in ``over``."""
        for ticket in over:
            self._statuses.pop(ticket, None)
        return self._statuses

    def stop(self) -> None:
        """Tell all engines to stop."""
        self._stopping = True


class _BoardWatcher(StatusWatcher):
    """Reports an engine's status to the board."""

    def __init__(self, board: Any, ticket: int) -> None:
        super().__init__()
        self._board, self._ticket = board, ticket

    def _send(self, status: Status) -> None:
        import ray

        stop = False
        with suppress(ray.exceptions.RayError):  # the board's machine is gone, or restarting
            stop = ray.get(self._board.report.remote(self._ticket, status), timeout=10)
        if stop:
            raise Stopped


@dataclass(frozen=True)
class Ready:
    """An engine has started."""

    version: str
    node: str
    host: str


class Engine:
    """An actor that holds a loaded model and computes units."""

    def __init__(self, results: Place, board: Any, threads: int) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # before PyTorch is imported
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._results, self._board, self._engines = results, board, Engines()
        self._part: tuple[int, Part] | None = None

    def ready(self) -> Ready:
        """Version, node and host of this engine."""
        import ray

        from icl_bench.quiet_libraries import hush_libraries

        hush_libraries()
        context = ray.get_runtime_context()
        return Ready(icl_bench.__version__, context.get_node_id(), os.uname().nodename)

    def sees(self, token: str) -> bool:
        """Whether the results contain a file that the study's own process wrote."""
        return storage_at(self._results).has(token)

    def run(self, ticket: int, unit: Unit, shipped: Sequence[Any]) -> Result:
        """Compute a unit of a part.

        ``shipped`` is a list with a reference to the part, so that an engine fetches each part once.
        """
        result = Result.of(lambda say: self._run(ticket, unit, shipped, say))
        if result.trace is not None:
            self._engines.free()
        result.loaded = self._engines.engine
        return result

    def _run(self, ticket: int, unit: Unit, shipped: Sequence[Any], say: Callable[[str], None]) -> Result:
        part = self._fetched(unit, shipped)
        if problem := part.differs():
            problem = f"--on ray: on {os.uname().nodename}, {problem}; {SAME_DTYPE}"
            return Result(problem=problem, ends_all=True)
        watcher = _BoardWatcher(self._board, ticket)
        return Result(part.run_unit(unit.number, self._results, self._engines, watcher, say))

    def _fetched(self, unit: Unit, shipped: Sequence[Any]) -> Part:
        import ray

        if self._part is None or self._part[0] != unit.part:
            self._part = None
            self._part = unit.part, ray.get(shipped[0])
        return self._part[1]


SAME_DTYPE = (
    "give --dtype and --device (of a study: dtype and device under engines: in its file), so that all machines compute "
    "the same"
)


# -- in the study's own process -----------------------------------------------------------------


def connected(spec: ClusterSpec | None) -> AbstractContextManager[RayCluster | None]:
    """The requested cluster, disconnected at the end; None without a request.

    Raises ``UserError`` if it cannot be reached.
    """
    return nullcontext() if spec is None else RayCluster.connected(spec)


@dataclass
class _Worker:
    """An engine, seen from the study's own process."""

    handle: Any
    future: Any
    """The pending result."""
    node: str = ""
    host: str = ""
    loaded: object = None
    assigned: tuple[int, Unit] | None = None
    """The queue's ticket of its unit, and the unit."""
    started: bool = False


@dataclass
class RayCluster:
    """A Ray cluster that this process is connected to."""

    spec: ClusterSpec

    @classmethod
    @contextmanager
    def connected(cls, spec: ClusterSpec) -> Iterator[RayCluster]:
        """Connect, or start a cluster on this machine, and disconnect at the end. Raises ``UserError``."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if spec.address != LOCAL_RAY and TOKEN.exists():
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        was_connected = ray.is_initialized()
        if not was_connected:
            _connect(spec)
        try:
            cluster = cls(spec)
            cluster._check()
            yield cluster
        finally:
            if not was_connected:
                ray.shutdown()

    # -- resources ----------------------------------------------------------------------------

    def _check(self, gpus: float | None = None) -> None:
        """Raise ``UserError`` if no machine has the GPUs of one engine."""
        wanted = self.spec.gpus_per_engine if gpus is None else gpus
        most = max((node.get("GPU", 0.0) for node in _nodes()), default=0.0)
        if wanted and wanted > most:
            has = f"more than {most:g} GPUs" if most else "a GPU"
            raise UserError(
                f"--gpus-per-engine {wanted:g}: no machine of this Ray cluster has {has}; start workers "
                "with GPUs (ray start --num-gpus), or use fewer"
            )

    def gpus_for(self, parts: Sequence[Part]) -> float:
        """GPUs of each engine. Raises ``UserError`` if they do not suffice for a part."""
        needed = max((part.gpus for part in parts), default=1)
        most = max((node.get("GPU", 0.0) for node in _nodes()), default=0.0)
        per_engine = self.spec.gpus_per_engine
        if per_engine is None:
            per_engine = float(needed) if most else 0.0
            self._check(per_engine)
        elif per_engine < needed > 1:
            raise UserError(f"--gpus-per-engine {per_engine:g}: --tensor-parallel {needed} needs {needed} of them")
        return per_engine

    def room_for_engines(self, gpus: float) -> int:
        """Number of engines that fit: by GPUs, or one a machine."""
        nodes = _nodes()
        if gpus:
            return sum(int(node.get("GPU", 0.0) / gpus + 1e-6) for node in nodes)
        return sum(node.get("CPU", 0.0) > 0 for node in nodes)

    # -- the study ------------------------------------------------------------------------------

    def run(self, parts: Sequence[Part], results: Place, listener: Listener) -> Outcome:
        """See ``Cluster``."""
        Store(results).prepare()
        share_room(parts)
        for part in parts:
            part.settle()
        listener.parts_shared(parts)
        return _Run(self, list(parts), _anywhere(results), listener).run()


def _connect(spec: ClusterSpec) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if spec.address != LOCAL_RAY:
        try:
            _reach(spec.address, 10001)
            with warnings.catch_warnings(action="ignore"):
                ray.init(spec.address, **quiet)
        except Exception as error:  # Ray's client raises many types, including gRPC's
            raise UserError(
                f"--on {plain(spec.address)}: cannot be reached ({first_line(error)}); is it "
                "ray://HOST:10001 of a cluster that was started with ray start --head, and its "
                f"token in {TOKEN}?"
            ) from None
        return
    named = os.environ.get("RAY_ADDRESS", "")
    try:
        if ":" in named:
            _reach(named if "://" in named else f"ray://{named}", 6379)
        ray.init("auto", **quiet)
    except (OSError, ValueError) as error:
        if named:
            raise UserError(f"--on ray: RAY_ADDRESS {plain(named)} cannot be reached ({first_line(error)})") from None
        # not reachable from other machines
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)


def _reach(address: str, port: int) -> None:
    """Raise ``OSError`` at once if nothing listens, because Ray itself waits for minutes."""
    server = urlsplit(address)
    with socket.create_connection((server.hostname or "", server.port or port), 5):
        pass


def _alive() -> list[dict[str, Any]]:
    """The machines that are alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _nodes() -> list[Mapping[str, float]]:
    """Resources of each machine that is alive."""
    return [node["Resources"] for node in _alive()]


def _machines() -> set[str]:
    """The ids of the machines that are alive."""
    return {node["NodeID"] for node in _alive()}


def _anywhere(results: Place) -> Place:
    """The results folder as an absolute path, for other processes; addresses are unchanged."""
    if isinstance(results, Path) or (isinstance(results, str) and not ADDRESS.match(results)):
        return Path(results).resolve()
    return results


@dataclass
class _Run:
    """One study on the cluster."""

    cluster: RayCluster
    parts: list[Part]
    results: Place
    listener: Listener
    workers: list[_Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        units = [unit for i, part in enumerate(self.parts) for unit in part.units(i)]
        self._work = Distribution(self.parts, self.results, self.listener, "engine", units)
        self._queue = self._work.queue
        self._starts_failed = 0
        self._last_note = time.monotonic()
        self._over: list[int] = []
        """Tickets to remove from the board."""
        self._gpus = self.cluster.gpus_for(self.parts)
        self._board: Any = None

    def run(self) -> Outcome:
        """Compute all units. Engines are stopped at the end, also after an error."""
        import ray

        self._shipped = [ray.put(part) for part in self.parts]
        self._board = ray.remote(Board).options(num_cpus=0, max_restarts=-1).remote()
        storage = storage_at(self.results)
        self._token = f"_studies/{uuid.uuid4().hex}.seen"
        storage.put(self._token, b"icl-bench checks that all machines can read this\n")
        try:
            self._loop()
        except BaseException:
            self._stop()
            raise
        finally:
            for actor in [*(worker.handle for worker in self.workers), self._board]:
                with suppress(ray.exceptions.RayError):
                    ray.kill(actor)
            with suppress(OSError):
                storage.delete(self._token)
        return self._work.outcome

    def _loop(self) -> None:
        import ray

        looked = reported = 0.0
        while len(self._queue):
            if time.monotonic() - looked > GROW_SECONDS or not self.workers:
                self._grow()
                looked = time.monotonic()
            futures = {worker.future: worker for worker in self.workers if worker.future}
            ready, _ = ray.wait(list(futures), num_returns=len(futures), timeout=0)
            if not ready:
                ready, _ = ray.wait(list(futures), timeout=LOOK_SECONDS)
            for future in ready:
                self._ended(futures[future], future)
            for worker in self.workers:
                if worker.started and worker.future is None:
                    self._give(worker)
            if time.monotonic() - reported > STATUS_SECONDS:
                self._say()
                reported = time.monotonic()

    # -- engines --------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Start engines, as far as there are resources and units."""
        import ray

        wanted = self.cluster.spec.engines or self.cluster.room_for_engines(self._gpus)
        wanted = min(max(1, wanted), len(self._queue))
        nodes = _nodes()
        share = min((node.get("CPU", 1.0) for node in nodes), default=1.0)
        each_node = -(-wanted // max(1, len(nodes)))
        cpus = max(0.01, min(share, share / each_node))
        while len(self.workers) < wanted:
            options = {"num_cpus": cpus, "num_gpus": self._gpus, "scheduling_strategy": "SPREAD"}
            handle: Any = ray.remote(Engine).options(**options).remote(self.results, self._board, max(1, int(cpus)))
            self.workers.append(_Worker(handle, handle.ready.remote()))

    def _give(self, worker: _Worker) -> None:
        """Assign the next unit, if one is waiting."""
        machines = {other.node for other in self.workers if other.started}
        taken = self._queue.take(worker.loaded, worker.node, machines)
        if taken is None:
            return
        worker.assigned = ticket, unit = taken
        worker.future = worker.handle.run.remote(ticket, unit, [self._shipped[unit.part]])

    def _ended(self, worker: _Worker, future: Any) -> None:
        """Handle an engine that has started, finished its unit, or died."""
        import ray

        worker.future = None
        try:
            result = ray.get(future)
        except ray.exceptions.RayActorError as error:
            self._died(worker, error)
            return
        if isinstance(result, Ready):
            self._welcome(worker, result)
            return
        assert worker.assigned is not None, "only an assigned unit returns"
        ticket, unit = worker.assigned
        worker.assigned = None
        self._over.append(ticket)
        worker.loaded = result.loaded
        machines = _machines() if result.problem else set()
        self._work.returned(ticket, unit, result, worker.node, machines)

    def _welcome(self, worker: _Worker, ready: Ready) -> None:
        import ray

        if ready.version != icl_bench.__version__:
            raise UserError(
                f"--on ray: {ready.host} has icl-bench {ready.version}, this machine "
                f"{icl_bench.__version__}; install the same version everywhere"
            )
        try:
            seen = ray.get(worker.handle.sees.remote(self._token))
        except ray.exceptions.RayActorError as error:
            self._died(worker, error)
            return
        if not seen:
            raise UserError(
                f"--results {storage_at(self.results).where()}: {ready.host} has no such folder, "
                "or a different one of this name; give a folder that all machines share, or a bucket"
            )
        worker.node, worker.host, worker.started = ready.node, ready.host, True

    def _died(self, worker: _Worker, error: Exception) -> None:
        """Handle an engine that died, possibly with its machine."""
        import ray

        self.workers.remove(worker)
        with suppress(Exception):
            ray.kill(worker.handle)
        why = _why(error)
        if worker.assigned is None:
            if not self._has_started:
                self._starts_failed += 1
                if self._starts_failed >= ATTEMPTS:
                    raise UserError(f"--on ray: no engine could be started ({why})")
            return
        ticket, unit = worker.assigned
        self._over.append(ticket)
        machines = _machines()
        why = f"its process died ({why})" if worker.node in machines else f"{worker.host} is gone"
        self._work.failed(ticket, unit, why, worker.node, machines)

    @property
    def _has_started(self) -> bool:
        return any(worker.started for worker in self.workers) or self._work.units_done > 0

    def _say(self) -> None:
        """Report the progress of the whole study."""
        import ray

        by_ticket: dict[int, Status] = {}
        with suppress(ray.exceptions.RayError):
            by_ticket = ray.get(self._board.read.remote(self._over), timeout=10)
            self._over.clear()
        assigned = [worker.assigned for worker in self.workers if worker.assigned is not None]
        at_work = [(unit, by_ticket.get(ticket, Status())) for ticket, unit in assigned]
        self._work.show(at_work, starting=sum(not worker.started for worker in self.workers))
        if at_work:
            self._last_note = time.monotonic()
        elif time.monotonic() - self._last_note > PLACE_SECONDS:
            self._last_note = time.monotonic()
            self.listener.note("no engine is running yet: Ray's resources are in use, or its workers have stopped")

    def _stop(self) -> None:
        """Let engines stop cleanly, so that their cells are free at once."""
        import ray

        futures = [worker.future for worker in self.workers if worker.assigned is not None]
        with suppress(Exception, KeyboardInterrupt):
            ray.get(self._board.stop.remote(), timeout=5)
            ray.wait([f for f in futures if f], num_returns=len(futures), timeout=STOP_SECONDS)


def _why(error: Exception) -> str:
    """Ray's reason for an engine's end, in a few words."""
    text = str(error)
    if detail := re.search(r"Worker exit detail: ([^.\n]+)", text):
        return detail[1]
    if "temporarily unavailable" in text:
        return "the connection to it broke"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:200]
