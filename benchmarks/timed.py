"""What benchmarks of whole sweeps share: a timed sweep, and sides in processes of their own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep


@dataclass(frozen=True)
class Timed:
    """A finished sweep."""

    sweep: Sweep
    backend: Any
    load_seconds: float
    seconds: float
    """From the first prefix token to the last answer, the loaded model given."""
    predictions: pd.DataFrame
    cell_seconds: dict[int, float]
    """By k."""

    @property
    def longest_prefix(self) -> int:
        """Tokens of the longest prefix of all cells."""
        return int(max(cell.prefix_tokens for cell in self._cells))

    @property
    def own_tokens(self) -> int:
        """Tokens of all prompts behind their cells' prefixes."""
        rows = len(self.sweep.task.data.test)
        return sum(cell.prompt_tokens - cell.prefix_tokens * rows for cell in self._cells)

    @property
    def _cells(self) -> list[Any]:
        return [cell for cell in self.sweep.plan.cells if cell.problem is None]


def timed(spec: RunSpec, results: Path | None = None) -> Timed:
    """Carry out a sweep, into a new folder that is kept or into none."""
    from icl_bench.results.reading import finished_cells, read_results
    from icl_bench.sweep.sweep import Sweep

    sweep = Sweep.prepare(spec)
    start = time.perf_counter()
    backend = sweep.load_backend()
    loaded = time.perf_counter() - start
    sweep.load_backend = lambda: backend  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as temporary:
        folder = results or Path(temporary)
        start = time.perf_counter()
        outcome = sweep.run(folder)
        seconds = time.perf_counter() - start
        assert not outcome.kept, f"{folder} holds earlier results: nothing to time"
        cells = {meta.spec.k: meta.seconds or 0.0 for _, meta in finished_cells(folder)}
        return Timed(sweep, backend, loaded, seconds, read_results(folder), cells)


def spec_of(arguments: argparse.Namespace, **backend: Any) -> RunSpec:
    """One draw of what a benchmark was asked for, on a backend."""
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.sweep.run_spec import RunSpec

    return RunSpec(
        task=arguments.task,
        model=arguments.model,
        k=arguments.k,
        draws=1,
        test_size=arguments.rows,
        data_dir=arguments.data,
        backend=BackendSpec(**backend),
    )


def answers(predictions: pd.DataFrame) -> dict[str, dict[Any, str]]:
    """What was said, by k and test row."""
    return {str(k): rows.set_index("test_id")["prediction"].to_dict() for k, rows in predictions.groupby("k")}


def in_own_process(script: str, *words: str) -> Any:
    """The JSON that a script prints as its last line; its memory and threads are its own."""
    command = [sys.executable, script, *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])
