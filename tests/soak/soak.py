"""Kills a sweep again and again, and compares what it has in the end with a sweep left alone.

``python tests/soak/soak.py --kills 200`` runs a tiny model over all selectors and attention
patterns. Each run is stopped at a random moment in one of five ways; when a sweep is whole, its
predictions must be those of the sweep that nobody stopped, each once, and the next begins.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.fakes import write_task
from support.models import llama_tokenizer, tiny_checkpoint

from icl_bench.errors import UserError
from icl_bench.quiet_libraries import hush_libraries
from icl_bench.results.reading import read_results
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Watcher
from icl_bench.sweep.sweep import Sweep

SELECTORS = "random,balanced,bm25,hybrid:1,centroids,bertscore,dense"
PATTERNS = "full,block:2,approx:24,4,grouped:2,8"
WAYS = ("kill", "terminate", "interrupt", "full disk", "two processes")
DONE, REFUSED, INTERRUPTED = 0, 2, 130
ENDS = {
    "kill": {-signal.SIGKILL},
    "terminate": {-signal.SIGTERM},
    "interrupt": {INTERRUPTED},
    "full disk": {REFUSED},
    "two processes": {-signal.SIGKILL},
}
"""How a process may end that was stopped so; it may have been done before."""


@dataclass
class Soak:
    """Sweeps that are stopped, and the one that was not."""

    sweeps: Sequence[Sweep]
    folder: Path
    random: np.random.Generator
    stopped: Counter[str] = field(default_factory=Counter)
    """Way -> runs that it stopped before they were done."""
    compared: int = 0
    """Sweeps that were whole in the end, and right."""
    seconds: float = 0.0
    """That the sweep took which nobody stopped."""

    def run(self, kills: int) -> None:
        """Stop so many runs, each way in turn. Raises ``AssertionError``."""
        whole = self.folder / "whole"
        start = time.monotonic()
        assert self._ended([self._start(whole)]) == [DONE]
        self.seconds = time.monotonic() - start
        expected, results = predictions(whole), self._next()
        for number in range(kills):
            way = WAYS[number % len(WAYS)]
            if early := self._stop(results, way):
                self.stopped[way] += 1
            if self._complete(results, expected):
                results = self._next()
            else:  # who is not stopped, or outlives another, leaves nothing undone
                assert early, f"{way}: a run that was done left cells"
                assert way != "two processes", "the process that was left left cells"
        if not self._complete(results, expected):
            assert self._ended([self._start(results)]) == [DONE]
            assert self._complete(results, expected), "a run that was done left cells"

    def _next(self) -> Path:
        return self.folder / f"stopped-{self.compared}"

    def _stop(self, results: Path, way: str) -> bool:
        """Run, and stop the run at a random moment; whether it had not ended before."""
        # few bytes a file, so that some cells fit and a later one does not
        limit = int(self.random.integers(200, 12_000)) if way == "full disk" else None
        running = [self._start(results, limit) for _ in range(1 + (way == "two processes"))]
        time.sleep(float(self.random.uniform(0, self.seconds / 4)))
        sent = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT}.get(way, signal.SIGKILL)
        if way != "full disk":
            os.kill(running[0], sent)
        first, *others = self._ended(running)
        assert first in {DONE, *ENDS[way]}, (way, first)
        assert others in ([], [DONE]), (way, others)
        return first != DONE

    def _start(self, results: Path, limit: int | None = None) -> int:
        """Begin a run in a process of its own, which has the plans already; returns its number."""
        # an interrupt that comes before the child can take it would go on as a second soak
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if child := os.fork():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            return child
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            if limit is not None:
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            failed = [sweep.run(results, Watcher()).failed for sweep in self.sweeps]
            for reason in {reason for cells in failed for reason in cells.values()}:
                print(f"a cell failed: {reason}", file=sys.stderr)
            code = int(any(failed))
        except UserError:
            code = REFUSED
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException as error:
            print(f"a run ended with {error!r}", file=sys.stderr)
        finally:
            os._exit(code)

    def _ended(self, running: Sequence[int]) -> list[int]:
        """Wait for processes; how each ended, a signal as a negative number."""
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in running]

    def _complete(self, results: Path, expected: pd.DataFrame) -> bool:
        """Whether all cells are there; what is there is compared, the whole folder at the end."""
        if not any(not p.name.startswith(".writing") for p in results.rglob("*.parquet")):
            return False  # a run that was killed in its first file leaves a part of it
        found = predictions(results)
        assert not found.index.has_duplicates, "a prediction appears twice"
        pd.testing.assert_frame_equal(found, expected.loc[found.index])
        if len(found) < len(expected):
            return False
        left = [p for p in results.rglob("*") if p.is_file() and ".locks" not in p.parts]
        odd = [p.name for p in left if p.suffix != ".parquet" and not p.name.startswith(".writing")]
        assert not odd, f"left behind: {odd}"
        self.compared += 1
        return True


def predictions(results: Path) -> pd.DataFrame:
    """What is predicted, by cell and test row. A damaged file is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = read_results(results)
    columns = ["gold", "prediction", "prompt_tokens", "prompt_hash", "variant"]
    keyed = frame.set_index([frame["cell"].astype(str), frame["test_id"]])[columns]
    return keyed.astype(str).sort_index()


def planned(folder: Path, selectors: str, patterns: str) -> list[Sweep]:
    """The sweeps of a tiny model with these selectors and patterns, and one of reuse."""
    tiny = tiny_checkpoint(folder / "tiny", tokenizer=llama_tokenizer())
    task = write_task(folder / "task")
    engine = {"backend": "transformers", "device": "cpu", "dtype": "float32", "pack": 1}
    common = {"task": str(task), "model": str(tiny), "k": "3,6", "draws": 1, **engine}
    specs = [
        RunSpec(**common, select=selectors, attention=patterns),
        RunSpec(**common, select="bm25", attention="block:1,reuse"),
    ]
    return [Sweep.prepare(spec) for spec in specs]


def main() -> None:
    """Run it and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--select", default=SELECTORS)
    parser.add_argument("--attention", default=PATTERNS)
    asked = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads do not survive a fork
    import torch

    hush_libraries()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweeps = planned(folder, asked.select, asked.attention)
        soak = Soak(sweeps, folder, np.random.default_rng(asked.seed))
        soak.run(asked.kills)
    cells = sum(len(sweep.plan.cells) for sweep in sweeps)
    said = ", ".join(f"{way} {soak.stopped[way]}" for way in WAYS)
    print(
        f"{cells} cells; runs stopped before they were done: {said}; "
        f"{soak.compared} sweeps whole and as if never stopped"
    )


if __name__ == "__main__":
    main()
