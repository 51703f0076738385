"""What a run shows while it works: bars on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from icl_bench.plan import CellPlan, Plan
    from icl_bench.runner import Outcome, Watcher
    from icl_bench.sweep import Sweep


def console(stderr: bool = False) -> Console:
    """The terminal; wide enough for tables where the output goes into a file."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 120, soft_wrap=False)


class Display:
    """Says what is going on, on standard error."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = console(stderr=True)
        self._live = self._console.is_terminal and not quiet

    def note(self, text: str) -> None:
        """One line, unless quiet."""
        if not self._quiet:
            self._console.print(text, highlight=False, markup=False)

    @contextmanager
    def preparing(self) -> Iterator[Callable[[str], None]]:
        """A spinner with a word on what is being prepared."""
        _hush_libraries()
        if not self._live:
            yield lambda text: None
            return
        with self._console.status("starting") as status:
            yield lambda text: status.update(text)

    def plan(self, sweep: Sweep) -> None:
        """What will run, and what a user must know about the data."""
        data, plan = sweep.experiment.data, sweep.plan
        self.note(
            f"{data.spec.name}: {len(data.test)} test examples, pool of "
            f"{len(sweep.experiment.pool):,} ({data.origin})"
        )
        for text in (*data.notes, *pool_notes(sweep)):
            self.note(f"  note: {text}")
        for problem in plan.problems:
            self.note(f"  skipped: {problem}")

    @contextmanager
    def running(self, plan: Plan) -> Iterator[Watcher]:
        """Bars while cells are computed."""
        from icl_bench.runner import Silent

        if not self._live:
            yield Silent()
            return
        from rich import progress as p

        bar = p.Progress(
            p.TextColumn("{task.description}"),
            p.BarColumn(bar_width=None),
            p.TextColumn("{task.fields[said]}"),
            p.TextColumn("{task.fields[rate]}"),
            p.TimeElapsedColumn(),
            p.TextColumn("left"),
            p.TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            transient=True,
        )
        with bar:
            yield _Bar(bar, plan)

    def outcome(self, outcome: Outcome, results: Path) -> None:
        """How it ended."""
        for spec, reason in outcome.failed.items():
            print(f"failed: {spec}: {reason}", file=sys.stderr)
        computed, kept = len(outcome.computed), len(outcome.kept)
        already = f", {kept} already there" if kept else ""
        self.note(f"{computed} cells computed{already}. Results: {results}/")


def pool_notes(sweep: Sweep) -> list[str]:
    """What was left out of the pool."""
    experiment = sweep.experiment
    if not experiment.dropped:
        return []
    share = experiment.data.spec.pool.drop_longest
    longest = int(experiment.lengths[experiment.pool].max())
    return [
        f"{experiment.dropped:,} train rows longer than {longest} tokens are not in the pool "
        f"(the longest {share:.0%}, pool.drop_longest)"
    ]


class _Bar:
    """One bar over the whole run, weighted by the tokens that each cell has to compute."""

    def __init__(self, bar: Any, plan: Plan) -> None:
        self._bar = bar
        self._rows = len(plan.experiment.data.test)
        cells = [cell for cell in plan.cells if cell.problem is None]
        self._all = len(cells) * self._rows
        self._done, self._tokens, self._seconds = 0, 0, 0.0
        total = sum(cell.new_tokens for cell in cells)
        self._task = bar.add_task("loading the model", total=total, said="", rate="")
        self._cell: CellPlan | None = None
        self._since = time.monotonic()

    def cell_started(self, cell: CellPlan, already: int) -> None:
        self._cell, self._since = cell, time.monotonic()
        self._advance(cell, already)
        spec = cell.spec
        self._bar.update(
            self._task,
            description=f"{spec.task} {spec.select} {spec.order} k={spec.k} draw {spec.draw}",
        )

    def predicted(self, predictions: int, computed_tokens: int, cached_tokens: int) -> None:
        assert self._cell is not None
        now = time.monotonic()
        self._seconds += now - self._since
        self._since = now
        self._tokens += computed_tokens
        self._advance(self._cell, predictions)
        rate = self._tokens / self._seconds if self._seconds else 0.0
        self._bar.update(self._task, rate=f"{rate:,.0f} tokens/s")

    def cell_ended(self, cell: CellPlan, outcome: str) -> None:
        if outcome == "kept":
            self._advance(cell, self._rows)

    def waiting(self, cells: int) -> None:
        self._bar.update(
            self._task, description=f"waiting for {cells} cells of another process", rate=""
        )

    def _advance(self, cell: CellPlan, predictions: int) -> None:
        self._done += predictions
        self._bar.update(
            self._task,
            advance=cell.new_tokens * predictions / self._rows,
            said=f"{self._done:,} of {self._all:,} predictions",
        )


def _hush_libraries() -> None:
    """Keep other libraries' bars and hints out of our output."""
    import os
    import warnings

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TQDM_DISABLE", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers|torch|datasets|bert_score")
