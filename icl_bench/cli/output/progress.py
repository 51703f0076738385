"""Progress of a run: bars on a terminal or below a notebook's cell, elsewhere one line per cell."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from icl_bench.cli.output.notebook import CellOutput, plain_lines
from icl_bench.cli.output.terminal import console
from icl_bench.cli.output.working import Elapsed, Spinner
from icl_bench.escaping import visible
from icl_bench.metrics.scores import title
from icl_bench.models.attention_patterns import FULL
from icl_bench.quiet_libraries import hush_libraries
from icl_bench.results.storage import Place
from icl_bench.studies.parts import Listener, Part
from icl_bench.studies.parts import StudyProgress as Shared
from icl_bench.sweep.plan import CellPlan, Plan
from icl_bench.sweep.runner import Outcome, Watcher
from icl_bench.wording import counted, percent

INVALID_SHARE = 0.1
"""Share of invalid answers above which some of them are shown."""

SELDOM_SECONDS = 30.0
"""Without a terminal, minimum seconds between two lines about a slow step."""

SAMPLE = 80
"""Displayed characters of an invalid answer."""


class Display(Listener):
    """Reports progress on standard error; in a notebook, below the cell."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._began = time.monotonic()
        self._console = console(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._cell = CellOutput() if self._console.is_jupyter and not quiet else None

    def note(self, text: str, *, whole: bool = False) -> None:
        """One line, unless quiet. A terminal wraps it; elsewhere it is wrapped after 120 characters, unless
        ``whole``.
        """
        if self._cell is not None:
            self._cell.note(text)
        elif not self._quiet:
            self._console.print(text, soft_wrap=whole and not self._console.is_terminal)

    def problem(self, text: str) -> None:
        """The failure of one of several jobs, printed even if quiet."""
        print(visible(f"error: {text}"), file=sys.stderr)

    def remark(self, text: str) -> None:
        """A note that is printed even if quiet."""
        print(visible(f"note: {text}"), file=sys.stderr)

    @contextmanager
    def preparing(self) -> Iterator[Callable[[str], None]]:
        """The current preparation step; on a terminal with a spinner and the time, elsewhere printed occasionally."""
        hush_libraries()
        if self._cell is not None:
            self._cell.show("starting")
            try:
                yield self._cell.show
            finally:
                self._cell.clear()
            return
        if not self._live:
            yield _Seldom(self.note).say
            return
        spinner = Spinner(self._console, self._began)
        spinner.say("starting")
        try:
            yield spinner.say
        finally:
            spinner.stop()

    def part(self, part: Part) -> None:
        """The next run, and notes on its data, unless quiet."""
        if not self._quiet:
            self.headed(part.headline, part)

    def headed(self, heading: str, part: Part) -> None:
        """A heading, cells of a part that cannot run, and notes on its data, unless quiet."""
        if self._quiet:
            return  # some notes need an encoder
        self.note(heading)
        for text in part.problems():
            self.note(f"  {text}")

    @contextmanager
    def running(self, plan: Plan) -> Iterator[Watcher]:
        """Bars while cells are computed; without a terminal, a line for each cell."""
        if self._quiet:
            yield Watcher()
            return
        if not self._live and self._cell is None:
            yield _Lines(plan, self.note)
            return
        with _Bar(plan, self._area, self._began) as bar:
            yield bar

    @contextmanager
    def changing(self, content: RenderableType) -> Iterator[Callable[[], None] | None]:
        """Show a changing display. Yields a function to call after a change; None if it would not be visible."""
        if not self._live and self._cell is None:
            yield None
            return
        with self._area(content) as area:
            yield area.changed

    def keep(self, content: RenderableType) -> None:
        """Show a permanent text on a terminal, or below a notebook's cell."""
        if self._cell is not None:
            for line in plain_lines(content):
                self._cell.note(line)
        elif self._live:
            self._console.print(content)

    def shared_progress(self) -> SharedBars | SharedLines | None:
        """Bars of a study that several processes compute, without a terminal lines; None if quiet."""
        if self._live or self._cell is not None:
            return SharedBars(self._area, self._began)
        return None if self._quiet else SharedLines(self.note)

    def _area(self, content: RenderableType) -> _OnTerminal | _BelowCell:
        """The place of a changing display."""
        return _OnTerminal(content, self._console) if self._cell is None else _BelowCell(content, self._cell)

    def outcome(self, outcome: Outcome, results: Place) -> None:
        """The outcome of a run."""
        reasons: dict[str, list[str]] = {}
        for name, reason in outcome.failed.items():
            reasons.setdefault(reason, []).append(str(outcome.names[name]))
        for reason, specs in reasons.items():
            if len(specs) == 1:
                print(visible(f"failed: {specs[0]}: {reason}"), file=sys.stderr)
                continue
            lines = [f"failed: {len(specs)} cells: {reason}", *specs]
            print(*map(visible, lines), sep="\n  ", file=sys.stderr)
        if outcome.prompt_tokens:
            self.note(
                f"{outcome.prompt_tokens:,} prompt tokens, "
                f"{percent(outcome.cached_tokens / outcome.prompt_tokens)}% of them cached; "
                f"{outcome.answer_tokens:,} answer tokens"
            )
        if outcome.spent is not None:
            self.note(f"{outcome.spent:,.4f} spent at the server, by --price")
        for reason in outcome.stopped:
            print(visible(f"stopped: {reason}"), file=sys.stderr)
        self.cautions(outcome)
        computed, kept, failed = map(len, (outcome.computed, outcome.kept, outcome.failed))
        already = f", {kept:,} already computed" if kept else ""
        without = f", {failed:,} failed" if failed else ""
        self.note(f"{counted(computed, 'cell')} computed{already}{without}. Results: {results}/")

    def cautions(self, outcome: Outcome) -> None:
        """Notes for the user about the answers."""
        for note in outcome.notes:
            self.note(f"note: {note}")
        if outcome.invalid > INVALID_SHARE * outcome.answers:
            samples = ", ".join(repr(text[:SAMPLE]) for text in outcome.samples)
            self.note(f"note: {outcome.invalid:,} of {outcome.answers:,} answers are invalid, for example: {samples}")


class _OnTerminal(Live):
    """A changing display on a terminal: redrawn four times a second, removed at the end."""

    def __init__(self, content: RenderableType, terminal: Console) -> None:
        super().__init__(content, console=terminal, transient=True)

    def changed(self) -> None:
        """Does nothing, because the display is redrawn regularly."""


class _BelowCell:
    """A changing display below a notebook's cell, redrawn after changes."""

    def __init__(self, content: RenderableType, output: CellOutput) -> None:
        self._content, self._output = content, output
        self.changed = output.changed

    def __enter__(self) -> _BelowCell:
        self._output.show(self._content)
        return self

    def __exit__(self, *error: object) -> None:
        self._output.clear()


Area = Callable[["RenderableType"], _OnTerminal | _BelowCell]
"""Creates the place of a changing display."""


class _Seldom:
    """Lines about slow steps: at most one every half minute, and the first after that time."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._last, self._said = note, time.monotonic(), ""

    def say(self, text: str) -> None:
        """Print the text if it is new and the last line is old enough."""
        if time.monotonic() - self._last >= SELDOM_SECONDS and text != self._said:
            self._last, self._said = time.monotonic(), text
            self._note(text)


class _Pace(Watcher):
    """The finished part of a run and the time left, weighted by the tokens that each cell has to compute."""

    def __init__(self, cells: Sequence[CellPlan]) -> None:
        self._left = float(sum(cell.new_tokens for cell in cells))
        self._predictions = sum(cell.queries for cell in cells)
        self._done, self._computed, self._weight = 0, 0, 0.0
        self._follows = False
        """Whether a server answers batches, whose time does not predict the time left."""
        self._cell: CellPlan | None = None
        self._working_seconds, self._since = 0.0, time.monotonic()

    @property
    def _knows_pace(self) -> bool:
        return bool(self._weight and self._working_seconds and not self._follows)

    @property
    def _time_left(self) -> str:
        """The time left as text, empty if unknown."""
        if not self._knows_pace:
            return ""
        left = max(0.0, self._left) * self._working_seconds / self._weight
        return f"{timedelta(seconds=round(left))} left"

    def cell_started(self, cell: CellPlan, already: int) -> None:
        self._cell, self._since = cell, time.monotonic()
        self._advance(cell, already)

    def backend_ready(self) -> None:
        self._since = time.monotonic()

    def predicted(self, predictions: int, computed_tokens: int) -> None:
        assert self._cell is not None
        now = time.monotonic()
        self._working_seconds += now - self._since
        self._since = now
        self._computed += computed_tokens
        self._weight += self._cell.new_tokens * predictions / self._cell.queries
        self._advance(self._cell, predictions)

    def cell_ended(self, cell: CellPlan, outcome: str) -> None:
        if outcome == "kept":
            self._advance(cell, cell.queries)

    def following(self, batches: int, done: int, requests: int) -> None:
        self._follows = True
        self._say(f"{done:,} of {requests:,} requests done, in {batches:,} {'batch' if batches == 1 else 'batches'}")

    def waiting(self, cells: int) -> None:
        self._say(f"waiting for another process, which computes {cells} of the cells")

    def _say(self, text: str) -> None:
        """Show the current state."""

    def _advance(self, cell: CellPlan, predictions: int) -> None:
        self._done += predictions
        self._left -= cell.new_tokens * predictions / cell.queries


def _runnable(plan: Plan) -> list[CellPlan]:
    return [cell for cell in plan.cells if cell.problem is None]


class _Lines(_Pace):
    """Progress without a terminal: a line for each finished cell, with its point's score so far and the time left."""

    def __init__(self, plan: Plan, note: Callable[[str], None]) -> None:
        cells = _runnable(plan)
        super().__init__(cells)
        self._note, self._seldom = note, _Seldom(note)
        self._scores, self._cells, self._ended = _Scores(cells), len(cells), 0

    def cell_ended(self, cell: CellPlan, outcome: str) -> None:
        super().cell_ended(cell, outcome)
        self._ended += 1
        if outcome == "kept":
            self._scores.kept(cell)
            return
        result = (
            self._scores.so_far(cell) if outcome == "done" else f"{_point(cell)}, draw {cell.spec.draw + 1}: failed"
        )
        left = f"; {self._time_left}" if self._time_left and self._ended < self._cells else ""
        self._note(f"  {self._ended:,} of {counted(self._cells, 'cell')} · {result}{left}")

    def scored(self, cell: CellPlan, measure: str, scores: Sequence[float]) -> None:
        self._scores.add(cell, measure, scores)

    def _say(self, text: str) -> None:
        self._seldom.say(f"  {text}")


class _Bar(_Pace):
    """The scores so far, the current cell, a bar over the whole run, predictions, speed, time left.

    The time is measured since the command started.
    """

    def __init__(self, plan: Plan, area: Area, began: float) -> None:
        cells = _runnable(plan)
        super().__init__(cells)
        self._draws = max(cell.spec.draw for cell in cells) + 1
        self._title = Text("looking for finished cells")
        self._scores = _Scores(cells)
        self._bar = _bar(began)
        self._task = self._bar.add_task("", total=self._left, said="")
        self._live = area(Group(self._scores.text, self._title, self._bar))

    def __enter__(self) -> _Bar:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def cell_started(self, cell: CellPlan, already: int) -> None:
        super().cell_started(cell, already)
        self._name_cell()

    def backend_loading(self) -> None:
        self._say("loading the model")

    def backend_ready(self) -> None:
        super().backend_ready()
        self._name_cell()

    def scored(self, cell: CellPlan, measure: str, scores: Sequence[float]) -> None:
        self._scores.add(cell, measure, scores)
        self._live.changed()

    def _say(self, text: str) -> None:
        self._title.plain = text
        self._live.changed()

    def _name_cell(self) -> None:
        assert self._cell is not None
        spec = self._cell.spec
        draw = f", draw {spec.draw + 1} of {self._draws}" if self._draws > 1 else ""
        self._say(f"{spec.task} · {_point(self._cell)}{draw}")

    def _advance(self, cell: CellPlan, predictions: int) -> None:
        super()._advance(cell, predictions)
        said = [f"{self._done:,} of {self._predictions:,} predictions"]
        if self._knows_pace:
            said += [f"{self._computed / self._working_seconds:,.0f} tokens/s", self._time_left]
        share = cell.new_tokens * predictions / cell.queries
        self._bar.update(self._task, advance=share, said=", ".join(said))
        self._live.changed()


def _bar(began: float) -> Progress:
    """One bar with elapsed time and a text; its owner displays it."""
    return Progress(Elapsed(began), BarColumn(bar_width=None), TextColumn("{task.fields[said]}", markup=False))


class _Scores:
    """The mean score of each point's finished cells, the latest points last."""

    LINES = 6
    """The maximum number of displayed points."""

    def __init__(self, cells: Sequence[CellPlan]) -> None:
        self.text = Text()
        self._measure = ""
        self._planned = Counter(_point(cell) for cell in cells if cell.task.asked is None)  # others have no score
        self._done: dict[str, list[Sequence[float]]] = {}
        self._kept = Counter[str]()

    def kept(self, cell: CellPlan) -> None:
        """Count a cell of an earlier run, whose scores are not known here."""
        self._kept[_point(cell)] += 1

    def add(self, cell: CellPlan, measure: str, scores: Sequence[float]) -> None:
        """Add a finished cell."""
        point = _point(cell)
        self._done[point] = [*self._done.pop(point, []), scores]
        self._measure = title(measure)
        shown = [f"  {self._line(one)}" for one in list(self._done)[-self.LINES :]]
        more = len(self._done) - len(shown)
        above = f"{self._measure} so far, of the cells that this run finished"
        if more:
            above += f" ({counted(more, 'earlier point')} not shown)"
        self.text.plain = "\n".join([f"{above}:", *shown])

    def so_far(self, cell: CellPlan) -> str:
        """The cell's point with the mean score of the cells that this run finished."""
        point = _point(cell)
        if point not in self._done:
            return f"{point}: done"
        without = f", without {kept:,} of an earlier run" if (kept := self._kept[point]) else ""
        return self._line(point, f"{self._measure} ") + without

    def _line(self, point: str, measure: str = "") -> str:
        each = self._done[point]
        mean = percent(sum(map(sum, each)) / sum(map(len, each)))
        planned = self._planned[point]
        cells = f"{len(each)} of {counted(planned, 'draw')}" if planned > 1 else "done"
        return visible(f"{point}: {measure}{mean}%, {cells}")


def _point(cell: CellPlan) -> str:
    """The key that distinguishes a point of a run."""
    spec = cell.spec
    read = "" if spec.attention == str(FULL) else f", {spec.attention}"
    return f"{spec.select}, {spec.order}{read}, k={spec.k:,}"


class SharedBars:
    """The work of engines, one line each; a bar over the whole study, predictions, time left."""

    LINES = 8
    """The maximum number of named engines."""

    def __init__(self, area: Area, began: float) -> None:
        self._title, self._engines = Text(), Text()
        self._bar = _bar(began)
        self._task = self._bar.add_task("", total=1.0, said="")
        self._live = area(Group(self._title, self._engines, self._bar))
        self._live.__enter__()

    def show(self, state: Shared) -> None:
        """Show the current progress."""
        starting = f", {state.starting} starting" if state.starting else ""
        self._title.plain = (
            f"{counted(state.engines, state.called)} at work{starting} · {state.units_done:,} of {state.units:,} groups"
        )
        more = len(state.at_work) - self.LINES
        lines = [f"  {visible(one)}" for one in state.at_work[: self.LINES]]
        self._engines.plain = "\n".join([*lines, *([f"  and {more} more"] if more > 0 else [])])
        self._bar.update(self._task, completed=state.share, said=_predictions(state))
        self._live.changed()

    def close(self) -> None:
        """Remove the display."""
        self._live.__exit__(None, None, None)


class SharedLines:
    """Progress of a study without a terminal: a line whenever engines have finished groups."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._done = note, 0

    def show(self, state: Shared) -> None:
        """Print the progress if it has changed."""
        if state.units_done > self._done:
            self._done = state.units_done
            self._note(f"  {state.units_done:,} of {counted(state.units, 'group')} · {_predictions(state)}")

    def close(self) -> None:
        """Does nothing, because lines stay."""


def _predictions(state: Shared) -> str:
    said = f"{state.predictions_done:,} of {state.predictions:,} predictions"
    if state.seconds_left is not None:
        said += f", {timedelta(seconds=round(state.seconds_left))} left"
    return said
