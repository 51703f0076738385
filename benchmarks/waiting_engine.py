"""An engine that only waits, for :mod:`cluster`: what a backend computes does not matter there.

Its answers are decided by the prompt alone, so that two runs can be compared. ``installed`` puts it
into the registry of this process and of all that it starts.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from icl_bench.backends.interface import Answer, Backend, BackendLoader, Counters
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet

SECONDS = "ICL_BENCH_WAIT"
"""The environment's name for the seconds that a cell takes."""


class Waiting(BackendLoader):
    """What makes the engine."""

    name = "waiting"

    def identity(self) -> dict[str, str]:
        return {"backend": self.name, "dtype": "float32"}

    def load(self, model: Any, tokenizer: Any, room: int) -> Backend:
        return Engine()


class Engine:
    """Waits, and answers."""

    name, peak_prefix_bytes = "waiting", None

    def __init__(self) -> None:
        self.counters = Counters()
        self._seconds = float(os.environ.get(SECONDS, "0.02"))

    def identity(self) -> dict[str, str]:
        return {"backend": self.name, "dtype": "float32"}

    def answer(
        self, prompts: PromptSet, todo: Sequence[int], decodings: Sequence[Any], reserve: int, pattern: Pattern = FULL
    ) -> Iterator[list[Answer]]:
        """Half of the rows after half of the time, so that a journal holds parts of cells."""
        half = -(-len(todo) // 2)
        for pack in filter(None, (todo[:half], todo[half:])):
            time.sleep(self._seconds * len(pack) / len(todo))
            yield [Answer(i, 0, 1, label=_label(prompts, i)) for i in pack]


def _label(prompts: PromptSet, index: int) -> int:
    said = hashlib.sha256(repr(prompts.ids(index)).encode()).digest()
    return said[0] % 6


def installed(folder: Path) -> None:
    """Enter it as another package's backend, for this process and those that it starts."""
    about = folder / "waiting_engine-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: waiting-engine\nVersion: 1.0\n")
    entry = f"waiting = {__name__ if __name__ != '__main__' else 'waiting_engine'}:Waiting"
    (about / "entry_points.txt").write_text(f"[icl_bench.backends]\n{entry}\n")
    here = str(Path(__file__).parent)
    before = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), here, *before])
    sys.path[:0] = [str(folder), here]
