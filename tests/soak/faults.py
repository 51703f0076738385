"""Kills a piece of work at its N-th file operation, for every N, and compares what a repetition leaves.

``python tests/soak/faults.py`` tries every operation of each work of :mod:`killed_work`; ``--every 3`` a third of
them, ``--only adapt,report:60`` some works, and of the last one every 60th operation. Python's audit events tell the operations: files opened for writing, renamed,
linked, removed and made, before they happen. Each is tried twice: as it is, and with the file before it half written.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

END = "faults.end"
OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", END}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NOTHING_TO_TEAR = signal.SIGUSR1
"""How a process ends that is to be killed in a half written file, and was in none."""

Work = tuple[Callable[[Path], object], Callable[[Path], Any]]
"""What is done in a folder, and what is to be seen of it in the end."""


class Written:
    """The file that was opened for writing last, and its size before."""

    def __init__(self) -> None:
        self.path, self.before = Path(), 0

    def opened(self, path: Any, flags: int) -> None:
        self.path = Path(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else Path()
        self.before = 0 if flags & os.O_TRUNC or not self.path.is_file() else self.path.stat().st_size

    def tear(self) -> bool:
        """Leave half of what was written since; whether there was anything."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size <= self.before:
            return False
        handle = os.open(self.path, os.O_WRONLY)
        os.ftruncate(handle, (self.before + size) // 2)
        os.close(handle)
        return True


def kill_at(operation: int, tear: bool) -> None:
    """From here on, kill this process before its N-th file operation, counted from 1."""
    left, last = [operation], Written()

    def look(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else None
        opens = isinstance(flags, int) and bool(flags & WRITES) and arguments[0] != os.devnull
        if not opens and event not in OPERATIONS:
            return
        left[0] -= 1
        if left[0] == 0:
            torn = not tear or last.tear()
            os.kill(os.getpid(), signal.SIGKILL if torn else NOTHING_TO_TEAR)
        if opens and left[0] > 0:
            last.opened(arguments[0], int(str(flags)))

    sys.addaudithook(look)
    _announce_writes()


def _announce_writes() -> None:
    """Let libraries that write without Python's files say so."""
    import safetensors.torch
    import torch

    write_tensors, save = safetensors.torch.serialize_file, torch.save

    def serialize_file(tensors: Any, file: Any, *more: Any, **other: Any) -> Any:
        sys.audit("open", file, "wb", WRITES | os.O_TRUNC)
        return write_tensors(tensors, file, *more, **other)

    def announced(value: Any, file: Any, *more: Any, **other: Any) -> Any:
        sys.audit("open", file, "wb", WRITES | os.O_TRUNC)
        return save(value, file, *more, **other)

    safetensors.torch.serialize_file, torch.save = serialize_file, announced


def ended(work: Callable[[], object], operation: int | None = None, *, tear: bool = False) -> int:
    """How a child process ends that does the work, and is killed at an operation: 0, or minus a signal."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        if operation is not None:
            kill_at(operation, tear)
        work()
        sys.audit(END)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def killed_at_each(work: Work, folder: Path, every: int = 1) -> int:
    """Kill the work at each operation in a folder of its own, repeat it, and compare. Returns the kills.

    Raises ``AssertionError``.
    """
    (do, seen), whole, kills = work, folder / "whole", 0
    assert ended(lambda: do(whole)) == 0
    expected, operation = seen(whole), 1
    while True:
        for tear in (False, True):
            at = f"a kill at operation {operation}{', in a half written file' if tear else ''}"
            stopped = folder / f"killed-{operation}-{tear:d}"
            code = ended(lambda: do(stopped), operation, tear=tear)  # noqa: B023
            if code == 0:
                return kills
            if code == -NOTHING_TO_TEAR:
                getattr(seen, "skipped", int)()
                continue
            assert code == -signal.SIGKILL, f"ended with {code} before {at}"
            assert ended(lambda: do(stopped)) == 0, f"cannot be repeated after {at}"  # noqa: B023
            found = seen(stopped)
            assert found == expected, f"another result after {at}: {found} instead of {expected}"
            kills += 1
        operation += every


def main() -> None:
    """Run it and print the kills of each work. Exit code 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    from killed_work import OPEN, works

    from icl_bench.quiet_libraries import hush_libraries

    hush_libraries()
    parts = [part.partition(":") for part in asked.only.split(",") if part]
    steps_of = {name: int(every or asked.every) for name, _, every in parts}
    failed, kills = [], Counter[str]()
    with OPEN, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted = works(folder, list(steps_of))
        gc.collect()
        gc.freeze()  # a child need not look at the libraries' objects again
        for work, steps in wanted.items():
            (folder / work).mkdir()
            try:
                kills[work] = killed_at_each(steps, folder / work, steps_of.get(work, asked.every))
            except AssertionError as error:
                failed.append(work)
                print(f"{work}: {error}", flush=True)
                continue
            print(f"{work}: {kills[work]} kills, nothing lost or double", flush=True)
    print(f"{kills.total()} kills in all")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
