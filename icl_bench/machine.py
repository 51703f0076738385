"""The cores and the memory of this machine that a process may use, by Linux's files; other systems have no limits."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
"""The limits of the container, if there is one."""

_MEMORY = Path("/proc/meminfo")
_CPUS = Path("/sys/devices/system/cpu")


def threads_here() -> int:
    """Threads that compute on this machine: ``OMP_NUM_THREADS``, else as many as there are cores for this process."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {_siblings(cpu) for cpu in allowed}
    with suppress(OSError, ValueError):  # no container, or no limit
        share, period = (_CGROUP / "cpu.max").read_text().split()
        return max(1, min(len(cores), math.ceil(int(share) / int(period))))
    return len(cores)


def _siblings(cpu: int) -> str:
    """The logical processors of one core, of which the second adds little to products."""
    with suppress(OSError):
        return (_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
    return str(cpu)


def free_bytes() -> int | None:
    """Bytes of memory that this process may still take without swapping; None if unknown."""
    known: list[int] = []
    with suppress(OSError, KeyError, ValueError):
        known.append(1024 * _numbers(_MEMORY)["MemAvailable:"])
    with suppress(OSError, KeyError, ValueError):
        limit, held = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        known.append(limit - held + _numbers(_CGROUP / "memory.stat")["inactive_file"])
    return max(0, min(known)) if known else None


def _numbers(file: Path) -> dict[str, int]:
    """The first number of each line by its first word."""
    return {words[0]: int(words[1]) for words in map(str.split, file.read_text().splitlines()) if len(words) > 1}
