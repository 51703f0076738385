"""A backend of another package that dies or fails where it is told to, and a storage that every
process has for itself: what tests of clusters need in processes that they do not start themselves.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from icl_bench.backends.interface import Answer, Backend, BackendLoader, Counters
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.registry import BACKENDS, STORAGES
from icl_bench.results.storage import LocalStorage
from support.outside import described

FAULTS = "ICL_BENCH_TEST_FAULTS"
"""The environment's name for a folder. A file in it is a fault, for prompts whose prefix is longer
than the number in it: ``die`` ends the process, ``once`` too and goes with it, ``raise`` fails,
``slow`` takes half a second for each answer.
"""


class FaultyLoader(BackendLoader):
    name = "faulty"

    def identity(self) -> dict[str, str]:
        return {"backend": self.name, "dtype": "float32"}

    def load(self, model: Any, tokenizer: Any, room: int) -> Backend:
        return Faulty()

    def on_cpu(self) -> bool:
        return True


class Faulty:
    name, peak_prefix_bytes = "faulty", None

    def __init__(self) -> None:
        self.counters = Counters()

    def identity(self) -> dict[str, str]:
        return {"backend": self.name, "dtype": "float32"}

    def answer(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Any], reserve: int, pattern: Pattern = FULL
    ) -> Iterator[list[Answer]]:
        for i in todo:
            yield [Answer(i, 0, 1, label=sum(prompts.ids(i)) % 6)]
            if _due("slow", prompts):
                time.sleep(0.5)
            if _due("raise", prompts):
                raise RuntimeError("a fault of the program")
            if _due("once", prompts):
                (Path(os.environ[FAULTS]) / "once").unlink()
                os._exit(1)
            if _due("die", prompts):
                os._exit(1)


def _due(fault: str, prompts: PromptSet) -> bool:
    file = Path(os.environ[FAULTS]) / fault
    return file.exists() and len(prompts.prefix) > int(file.read_text())


def apart(url: str) -> LocalStorage:
    """A folder of this process alone."""
    return LocalStorage(Path(tempfile.gettempdir()) / f"apart-{os.getpid()}")


def install(folder: Path) -> dict[str, str]:
    """Make a package of it; the environment of processes that are to see it."""
    described(
        folder,
        "faulty-engine",
        {BACKENDS.group: f"faulty = {__name__}:FaultyLoader", STORAGES.group: f"apart = {__name__}:apart"},
    )
    (folder / "faults").mkdir()
    tests = str(Path(__file__).parents[1])
    before = filter(None, [os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join([str(folder), tests, *before]), FAULTS: str(folder / "faults")}
