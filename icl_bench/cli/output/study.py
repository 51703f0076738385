"""Prints a study's plan, its progress and its state."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.plan import total_in_words
from icl_bench.cli.output.progress import Display, SharedBars, SharedLines
from icl_bench.cli.output.tables import print_lines
from icl_bench.studies.parts import Listener, Part, PlannedCell, StudyProgress
from icl_bench.studies.study import Study
from icl_bench.sweep.plan import Plan
from icl_bench.sweep.runner import Outcome, Watcher
from icl_bench.wording import counted, duration

if TYPE_CHECKING:
    import pandas as pd


class StudyDisplay(Listener):
    """Prints the current part of a study; on a cluster, the progress of the whole study."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._bars: SharedBars | SharedLines | None = None
        self._part: Part | None = None
        """The part that started last."""

    def __enter__(self) -> StudyDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.close()
            self._bars = None

    def part_started(self, part: Part, number: int, parts: int) -> None:
        """Print its name, problems and notes."""
        self._part = part
        self._display.headed(f"{number} of {parts}: {_named(part)}", part)

    def parts_shared(self, parts: Sequence[Part]) -> None:
        """Print their names, problems and notes."""
        for part in parts:
            self._display.headed(_named(part), part)

    def running(self, plan: Plan) -> AbstractContextManager[Watcher]:
        """The progress bars of ``run``."""
        return self._display.running(plan)

    def note(self, text: str) -> None:
        """Print the text."""
        self._display.note(f"  {text}")

    def cluster_progress(self, state: StudyProgress) -> None:
        """Update the bars; without a terminal, print a line occasionally."""
        if self._bars is None:
            self._bars = self._display.shared_progress()
        if self._bars is not None:
            self._bars.show(state)

    def part_ended(self, part: Part, outcome: Outcome) -> None:
        """Print its numbers of cells."""
        kept = f", {len(outcome.kept):,} already computed" if outcome.kept else ""
        failed = f", {len(outcome.failed):,} failed" if outcome.failed else ""
        which = "" if part is self._part else f"{_named(part)}: "
        computed = counted(len(outcome.computed), "cell")
        self._display.note(f"  {which}{computed} computed{kept}{failed}")


def _named(part: Part) -> str:
    return f"{part.job.setting}, {part.task} with {part.model}"


def plan_records(study: Study) -> list[dict[str, Any]]:
    """The cells of a study as records."""
    return [
        {
            "study": study.file.name,
            "setting": part.job.setting,
            **cell.identity.spec.model_dump(),
            "backend": part.backend,
            "cell": cell.identity.cell,
            "new_tokens": cell.tokens,
            "seconds": None if cell.seconds is None else round(cell.seconds, 1),
        }
        for part in study.parts
        for cell in part.cells()
    ]


def print_plan(study: Study, console: Console) -> None:
    """Print a row for each part, a line for each model and engine, and the total."""
    heads = [
        *(ColumnHead(name, "name") for name in ("model", "backend", "setting", "task")),
        *map(ColumnHead, ("cells", "tokens to compute", "time")),
    ]
    rows: list[list[str]] = []
    engines: dict[tuple[str, str], list[PlannedCell]] = {}
    for part in study.parts:
        cells = part.cells()
        engines.setdefault((part.model, part.backend), []).extend(cells)
        rows.append(
            [part.model, part.backend, part.job.setting, part.task, f"{len(cells):,}", _tokens(cells), _time(cells)]
        )
    for one in study.unplanned:
        count = "?" if one.cells is None else f"at most {one.cells:,}"
        rows.append([one.job.model, "?", one.job.setting, one.job.task, count, "?", "?"])
    print_table(console, heads, rows, heading=study.file.name)
    every = [cell for cells in engines.values() for cell in cells]
    notes = [
        f"{part.job}: {text}"
        for part in study.parts
        for text in part.problems()
        if text.startswith(("skipped", "left out"))
    ]
    print_lines(
        console,
        *(f"{model} on {backend}: {_whole(cells)}" for (model, backend), cells in engines.items()),
        *notes,
        *unplanned_lines(study),
        f"{study.file.name}: {_whole(every)}{' plus the parts above that are not known' if study.unplanned else ''}",
    )


def unplanned_lines(study: Study) -> list[str]:
    """Parts that a plan cannot estimate, one line for each model or task that is not on this machine."""
    jobs: dict[str, int] = {}
    for one in study.unplanned:
        jobs[one.reason] = jobs.get(one.reason, 0) + 1
    unknown = "the number of cells where k is auto or max, with their tokens and time"
    return [f"not known for {counted(number, 'part')}: {unknown}: {reason}" for reason, number in jobs.items()]


def _whole(cells: Sequence[PlannedCell]) -> str:
    tokens = sum(cell.tokens or 0 for cell in cells)
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    rest = len(cells) - len(known)
    without = f" without {counted(rest, 'cell')} of unknown time" if known and rest else ""
    return total_in_words(len(cells), tokens, sum(known) if known else None) + without


def _tokens(cells: Sequence[PlannedCell]) -> str:
    known = [cell.tokens for cell in cells if cell.tokens is not None]
    return f"{sum(known):,}" if known else ""


def _time(cells: Sequence[PlannedCell]) -> str:
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    return duration(sum(known)) if known else ""


def print_studies(records: list[dict[str, str]], console: Console) -> None:
    """Print the shipped studies with their descriptions."""
    heads = (ColumnHead("study", "name"), ColumnHead("what it is", "text"))
    print_table(console, heads, [[record["name"], record["description"]] for record in records])
    print_lines(console, "Cells and time of one: icl-bench study NAME --plan. A study of your own is a YAML file.")


def print_state(points: pd.DataFrame, console: Console) -> None:
    """Print the state of a study, a row for each setting with a task and model."""
    counts = ["cells", "done", "failed", "missing"]
    by = ["setting", "task", "model"]
    rows = [
        [*map(str, key), *(f"{int(n):,}" for n in part.sum())] for key, part in points.groupby(by, sort=False)[counts]
    ]
    print_table(console, [*(ColumnHead(name, "name") for name in by), *map(ColumnHead, counts)], rows)
    print_lines(console, "scores: icl-bench summary; charts and single points: icl-bench report")
