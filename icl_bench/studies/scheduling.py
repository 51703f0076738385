"""Which unit an engine computes next, and what becomes of units whose engine failed."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from icl_bench.studies.parts import Unit

ATTEMPTS = 2
"""Failures without a cell finished in between, after which a unit is given up."""

UNKNOWN = 3600.0
"""Seconds that a unit counts for whose time is not known, as that of a training."""


@dataclass(eq=False)
class _Open:
    """A unit that is not done."""

    unit: Unit
    failures: list[str] = field(default_factory=list)
    """The machines of those since a cell of it was finished last."""
    cells_done: int = 0


@dataclass
class Queue:
    """Units that wait.

    An engine goes on with the units of the model that it has loaded, the longest first, so that no
    long one comes last; where none is left, it takes up the model of which there is most to do for
    each engine that is at it.
    """

    _waiting: dict[Hashable, list[_Open]] = field(default_factory=dict)
    """By engine, shortest first: the next is taken from the end."""
    _given: dict[int, _Open] = field(default_factory=dict)
    _tickets: count[int] = field(default_factory=count)

    @classmethod
    def of(cls, units: Sequence[Unit]) -> Queue:
        """All of them wait."""
        queue = cls()
        for unit in units:
            queue._waiting.setdefault(_key(unit), []).append(_Open(unit))
        for waiting in queue._waiting.values():
            waiting.sort(key=lambda one: length(one.unit))
        return queue

    def __len__(self) -> int:
        """Units that are not done, those at work included."""
        return len(self._given) + sum(map(len, self._waiting.values()))

    @property
    def waiting(self) -> int:
        """Units that nobody has."""
        return sum(map(len, self._waiting.values()))

    def take(self, loaded: object = None, machine: str = "", machines: Collection[str] = ()) -> tuple[int, Unit] | None:
        """The next unit for an engine that has ``loaded`` this, and a ticket to end it with; None
        where none waits.

        Where engines are on several ``machines``, a unit that failed is for another than it failed
        on: of a machine that goes away, the engines die one after another.
        """
        elsewhere = any(one != machine for one in machines)

        def fit(waiting: Sequence[_Open]) -> list[_Open]:
            return [one for one in waiting if not (elsewhere and one.failures[-1:] == [machine])]

        engines = [engine for engine, waiting in self._waiting.items() if fit(waiting)]
        if not engines:
            return None
        engine: Any = loaded if loaded in engines else max(engines, key=self._need)
        chosen = fit(self._waiting[engine])[-1]
        self._waiting[engine].remove(chosen)
        ticket = next(self._tickets)
        self._given[ticket] = chosen
        return ticket, chosen.unit

    def _need(self, engine: Hashable) -> float:
        """Seconds that wait, for each engine that would be at work on them."""
        waiting = self._waiting[engine]
        at_work = sum(_key(one.unit) == engine for one in self._given.values())
        return sum(length(one.unit) for one in waiting) / (1 + at_work)

    def done(self, ticket: int) -> None:
        """A unit was computed, as far as it could be."""
        del self._given[ticket]

    def failed(self, ticket: int, cells_done: int, machine: str, machines: Collection[str]) -> bool:
        """A unit's engine died, or could not compute it; ``cells_done`` of its cells are finished.

        True where it is given up, else it is its model's next. What fails on a machine that is none
        of the present ``machines`` any more is not the unit's fault.
        """
        unit = self._given.pop(ticket)
        if cells_done > unit.cells_done:
            unit.failures, unit.cells_done = [], cells_done
        unit.failures.append(machine)
        if sum(one in machines for one in unit.failures) >= ATTEMPTS:
            return True
        self._waiting[_key(unit.unit)].append(unit)
        return False


def _key(unit: Unit) -> Hashable:
    found: Hashable = unit.engine
    return found


def length(unit: Unit) -> float:
    """Seconds that a unit counts for."""
    return UNKNOWN if unit.seconds is None else unit.seconds
