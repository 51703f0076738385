"""Tables of a large folder, computed task by task: only one task's predictions are a data frame at a time.

The tasks are shared among forked processes, where the system can fork: they inherit the predictions, which no process
copies, and return tables.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icl_bench.machine import free_bytes
from icl_bench.results.facts import FactsOf

if TYPE_CHECKING:
    import pandas as pd

Order = Callable[["pd.DataFrame", FactsOf], "pd.Series[Any]"]
"""A value by which rows of all tasks are sorted, from a table and the facts of variants."""


@dataclass(frozen=True)
class ByTask:
    """How the tables of single tasks become the table of all: its rows are those of the tasks, one after the other."""

    order: tuple[str | Order, ...] = ()
    """What rows are sorted by before their place in the table of their task: names of columns, as text. By default the
    tasks are in the order of the predictions.
    """
    columns: Callable[[], Sequence[str]] = tuple
    """The order of columns, if some tasks lack some of them."""
    lacking: Mapping[str, float] = field(default_factory=dict)
    """Column -> its value for tasks without it, if it is not missing."""


IN_ORDER = ByTask()
"""Tasks in the order of the predictions, as groups of a data frame."""

BY_NAME = ByTask(("task",))
"""Tasks by name, as in a table whose names are plain text."""


def place_of_variant(table: pd.DataFrame, facts: FactsOf) -> pd.Series[Any]:
    """The place of each row's variant among all variants."""
    places = {variant: place for place, variant in enumerate(facts)}
    return table["variant"].astype(object).map(places)


def joined_tables(tables: Sequence[pd.DataFrame], way: ByTask, facts: FactsOf) -> pd.DataFrame:
    """The table of all tasks from those of the single ones. Columns have the types that one table would have."""
    import pandas as pd

    parts = [table for table in tables if len(table)]
    if not parts:
        return tables[0]
    names = _in_order([part.columns.tolist() for part in parts], way.columns())
    whole = [part.assign(**{n: v for n, v in way.lacking.items() if n in names and n not in part}) for part in parts]
    columns = {name: _column([part.get(name) for part in whole], whole) for name in names}
    table = pd.DataFrame(columns)
    for by in reversed(way.order):
        key = table[by].astype(object) if isinstance(by, str) else by(table, facts)
        table = table.iloc[key.reset_index(drop=True).sort_values(kind="stable").index]
    return table.reset_index(drop=True)


def _in_order(lists: Sequence[list[str]], known: Sequence[str]) -> list[str]:
    """All names of the lists: in the known order, else each behind the one that precedes it in its list."""
    longest: list[str] = max(lists, key=len)
    names = list(longest)
    for each in lists:
        for at, name in enumerate(each):
            if name not in names:
                names.insert(names.index(each[at - 1]) + 1 if at else 0, name)
    place = {name: at for at, name in enumerate(known)}
    return sorted(names, key=lambda name: place.get(name, len(place))) if known else names


def _column(parts: Sequence[pd.Series[Any] | None], tables: Sequence[pd.DataFrame]) -> pd.Series[Any]:
    """One column of all tables. Those without a value do not decide its type."""
    import pandas as pd

    types = {part.dtype for part in parts if part is not None and part.notna().any()}
    if len(types) == 1:
        (kind,) = types
        empty = object if kind == bool else float if pd.api.types.is_integer_dtype(kind) else kind  # noqa: E721
        parts = [
            part
            if part is not None and part.dtype == kind
            else pd.Series([None] * len(table), dtype=object).astype(empty)
            for part, table in zip(parts, tables, strict=True)
        ]
    else:
        first = next(part for part in parts if part is not None)
        parts = [
            pd.Series([None] * len(table), dtype=object if types else first.dtype) if part is None else part
            for part, table in zip(parts, tables, strict=True)
        ]
    return pd.concat(parts, ignore_index=True)


def can_fork() -> bool:
    """Whether processes can be forked safely: on Linux only (macOS's own libraries may fail in them)."""
    return sys.platform == "linux" and hasattr(os, "fork")


BYTES_A_ROW = 800
"""Memory of a process for each prediction of its task: of its data frame, and of what tables need at a time."""


def processes_in_memory(processes: int, rows: int) -> int:
    """This number of processes, or fewer, so that their tasks of ``rows`` predictions need at most half of the free
    memory.
    """
    free = free_bytes()
    return processes if free is None else max(1, min(processes, free // 2 // (rows * BYTES_A_ROW)))


_WORK: list[Callable[[str], Any]] = []
"""What forked processes do; they inherit it."""


def each_task(work: Callable[[str], Any], tasks: Sequence[str], processes: int) -> Iterator[tuple[str, Any]]:
    """The result of ``work`` for each task, in any order, from this number of forked processes, or from this one.

    If a process ends, for example for lack of memory, this one does what is left.
    """
    left = dict.fromkeys(tasks)
    processes = min(processes, len(tasks))
    if processes > 1 and can_fork():
        _WORK.append(work)
        try:
            context = multiprocessing.get_context("fork")
            pool = ProcessPoolExecutor(
                processes, mp_context=context, initializer=_end_with_its_parent, initargs=(os.getpid(),)
            )
            with warnings.catch_warnings():
                # this program's other threads only draw, and the forked processes do not
                warnings.filterwarnings("ignore", category=DeprecationWarning)
                futures = {pool.submit(_worked, task): task for task in tasks}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
                    del left[futures[future]]
            except BrokenProcessPool:
                pass
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        finally:
            _WORK.pop()
    for task in left:
        yield task, work(task)


def _worked(task: str) -> Any:
    return _WORK[-1](task)


_PR_SET_PDEATHSIG = 1
"""Of Linux's ``prctl``: the signal that a process gets when its parent ends."""


def _end_with_its_parent(parent: int) -> None:
    """End this process at an interrupt, because its parent is interrupted, too, and would wait for its task; and when
    the parent is killed, because it would wait for further tasks.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
