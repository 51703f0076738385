"""The queue of units: the next unit of an engine, and the handling of failures."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from icl_bench.studies.parts import Unit

ATTEMPTS = 2
"""Number of failures, without a finished cell in between, after which a unit is given up."""

UNKNOWN_SECONDS = 3600.0
"""Assumed seconds of a unit of unknown duration, for example a training."""


@dataclass(eq=False)
class _Open:
    """An unfinished unit."""

    unit: Unit
    failures: list[str] = field(default_factory=list)
    """The machines that failed since its last finished cell."""
    cells_done: int = 0


@dataclass
class Queue:
    """The queue of waiting units.

    An engine first takes units of the model that it has loaded, the longest first, so that no long
    unit comes last. If there are none, it takes the model with the most waiting seconds for each
    engine that works on it.
    """

    _waiting: dict[Hashable, list[_Open]] = field(default_factory=dict)
    """By engine, shortest first; the next unit is the last."""
    _assigned: dict[int, _Open] = field(default_factory=dict)
    _tickets: count[int] = field(default_factory=count)

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Queue:
        """A queue in which all units wait."""
        queue = cls()
        for unit in units:
            queue._waiting.setdefault(_key(unit), []).append(_Open(unit))
        for waiting in queue._waiting.values():
            waiting.sort(key=lambda item: length(item.unit))
        return queue

    def __len__(self) -> int:
        """Number of unfinished units, including those at work."""
        return len(self._assigned) + sum(map(len, self._waiting.values()))

    @property
    def waiting(self) -> int:
        """Number of units that are not assigned."""
        return sum(map(len, self._waiting.values()))

    def take(self, loaded: object = None, machine: str = "", machines: Collection[str] = ()) -> tuple[int, Unit] | None:
        """The next unit for an engine that has ``loaded`` this, with a ticket; None if none waits.

        If engines are on several ``machines``, a failed unit goes to another machine than it failed on, because the
        engines of a machine that shuts down die one after another.
        """
        elsewhere = any(other != machine for other in machines)

        def fit(waiting: Sequence[_Open]) -> list[_Open]:
            return [item for item in waiting if not (elsewhere and item.failures[-1:] == [machine])]

        engines = [engine for engine, waiting in self._waiting.items() if fit(waiting)]
        if not engines:
            return None
        engine: Any = loaded if loaded in engines else max(engines, key=self._need)
        chosen = fit(self._waiting[engine])[-1]
        self._waiting[engine].remove(chosen)
        ticket = next(self._tickets)
        self._assigned[ticket] = chosen
        return ticket, chosen.unit

    def _need(self, engine: Hashable) -> float:
        """Waiting seconds per engine that would work on them."""
        waiting = self._waiting[engine]
        at_work = sum(_key(item.unit) == engine for item in self._assigned.values())
        return sum(length(item.unit) for item in waiting) / (1 + at_work)

    def done(self, ticket: int) -> None:
        """A unit was computed as far as possible."""
        del self._assigned[ticket]

    def failed(self, ticket: int, cells_done: int, machine: str, machines: Collection[str]) -> bool:
        """A unit failed or its engine died; ``cells_done`` of its cells are finished.

        Returns True if it is given up; else it is the next unit of its model. Failures on machines
        that are no longer among ``machines`` do not count.
        """
        unit = self._assigned.pop(ticket)
        if cells_done > unit.cells_done:
            unit.failures, unit.cells_done = [], cells_done
        unit.failures.append(machine)
        if sum(failure in machines for failure in unit.failures) >= ATTEMPTS:
            return True
        self._waiting[_key(unit.unit)].append(unit)
        return False


def _key(unit: Unit) -> Hashable:
    engine: Hashable = unit.engine
    return engine


def length(unit: Unit) -> float:
    """The estimated or assumed seconds of a unit."""
    return UNKNOWN_SECONDS if unit.seconds is None else unit.seconds
