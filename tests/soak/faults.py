"""Kills a piece of work at its N-th file operation, for every N, and compares what a repetition leaves.

``python tests/soak/faults.py`` tries every operation of each work; ``--every 3`` a third of them. Works are a
sweep, an export, an import, a converted model and cached arrays. Python's audit events tell the operations: files
opened for writing, renamed, removed and made, before they happen.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from support.fakes import FakeBackend, plan, runner

from icl_bench.models.array_cache import cached_array
from icl_bench.models.made_once import made_once
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_results

OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_at(operation: int) -> None:
    """From here on, kill this process before its N-th file operation, counted from 1."""
    left = [operation]

    def look(event: str, arguments: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if opened or event in OPERATIONS:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def ended(work: Callable[[], object], operation: int | None = None) -> int:
    """How a child process ends that does the work, and is killed at an operation: 0, or minus a signal."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        if operation is not None:
            kill_at(operation)
        work()
        code = 0
    finally:
        os._exit(code)


def killed_at_each(work: Callable[[Path], object], seen: Callable[[Path], object], folder: Path, every: int) -> int:
    """Kill the work at each operation in a folder of its own, repeat it, and compare. Returns the kills.

    Raises ``AssertionError``.
    """
    whole = folder / "whole"
    assert ended(lambda: work(whole)) == 0
    expected, operation, kills = seen(whole), 1, 0
    while True:
        stopped = folder / f"killed-{operation}"
        if (code := ended(lambda: work(stopped), operation)) == 0:  # noqa: B023
            return kills
        assert code == -signal.SIGKILL, code
        assert ended(lambda: work(stopped)) == 0, f"cannot be repeated after a kill at operation {operation}"  # noqa: B023
        assert seen(stopped) == expected, f"another result after a kill at operation {operation}"
        operation, kills = operation + every, kills + 1


def works(world: Path) -> Mapping[str, tuple[Callable[[Path], object], Callable[[Path], object]]]:
    """Work by name, with what it leaves; ``world`` is a folder for what they begin with."""
    planned = plan(world / "task", "1,2", draws=1)
    runner(planned, world / "results", FakeBackend()).run()
    export_results(world / "results", world / "all.csv")
    (world / "import.csv").write_text("task,model,k,draw,test_id,gold,prediction\nt,m,1,0,a,x,x\nt,m,1,0,b,x,y\n")

    def rows(results: Path) -> list[tuple[object, ...]]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            frame = read_results(results)
        return sorted(frame[["cell", "test_id", "prediction"]].astype(str).itertuples(index=False, name=None))

    def converted(folder: Path) -> None:
        made_once(folder / "models" / "m", lambda new: [(new / f"{i}").write_text(f"{i}") for i in range(3)])

    def arrays(folder: Path) -> list[float]:
        found: list[float] = cached_array(folder / "arrays-x", lambda: np.arange(5.0)).tolist()
        return found

    def contents(folder: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted((folder / "models" / "m").glob("[0-9]"))}

    return {
        "sweep": (lambda folder: runner(planned, folder, FakeBackend()).run(), rows),
        "export": (
            lambda folder: (folder.mkdir(exist_ok=True), export_results(world / "results", folder / "all.csv")),
            lambda folder: (folder / "all.csv").read_bytes() == (world / "all.csv").read_bytes(),
        ),
        "import": (lambda folder: import_predictions(world / "import.csv", folder), rows),
        "conversion": (converted, contents),
        "arrays": (arrays, arrays),
    }


def main() -> None:
    """Run it and print the kills of each work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for work, (do, seen) in works(folder).items():
            (folder / work).mkdir()
            print(f"{work}: {killed_at_each(do, seen, folder / work, asked.every)} kills, nothing lost or double")


if __name__ == "__main__":
    main()
