"""Progress of a race of ``choose``: a changing table on a terminal, elsewhere one line per round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from icl_bench.choosing.contest import Contest
from icl_bench.choosing.race import Answer, Standing
from icl_bench.cli.output.progress import Display
from icl_bench.escaping import visible
from icl_bench.sweep.notes import notes
from icl_bench.sweep.plan import CellPlan
from icl_bench.sweep.runner import Watcher
from icl_bench.wording import counted, duration, few, percent

LINES = 14
"""The maximum number of settings in the table, so that a terminal of 24 lines also has room for notes."""

ONCE_SHOWN = 3
"""The maximum number of dropped settings that a round's line names."""


def score(standing: Standing) -> str:
    """A score with its interval: ``81.2% (74.0 to 87.1)``."""
    if not standing.predictions:
        return "no answer yet"
    return f"{percent(standing.score)}% ({percent(standing.low)} to {percent(standing.high)})"


def score_of(standing: Standing) -> str:
    """The same with the number of answers: ``81.2% (74.0 to 87.1) of 60 answers``."""
    answers = f" of {counted(standing.predictions, 'answer')}" if standing.predictions else ""
    return f"{score(standing)}{answers}"


class RaceProgress(Watcher):
    """Shows a race while it runs."""

    def __init__(self, contest: Contest, display: Display, *, checked: bool = False) -> None:
        """``checked`` is whether a check of the data was printed before."""
        self._contest, self._display, self._checked = contest, display, checked
        self._began = time.monotonic()
        self._answer = contest.answer()
        self._rounds = 0
        self._told: tuple[int, int] | None = None
        """The number of answers and the choice of the last round."""
        self._dropped: dict[int, int] = {}
        """Setting -> the round in which it was dropped."""
        self._left_out = 0
        """The number of printed notes on omitted settings."""
        self._trained = ""
        """The setting that was trained last."""
        self._doing = Text()
        self._changed: Callable[[], None] | None = None

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Print the settings; then show the table on a terminal until the block ends, and once more below."""
        contest, rules = self._contest, self._contest.race.rules
        said = [text for one in contest.entrants for text in notes(one.sweep, checked=self._checked)]
        for text in dict.fromkeys([*said, *contest.notes_on_learning]):
            self._display.note(f"note: {text}")
        self._note_left_out()
        self._display.note(
            f"{counted(len(contest.settings), 'setting')} race on {counted(rules.rows, 'test row')} and "
            f"{counted(rules.draws, 'draw')} of demonstrations; a full sweep has {contest.full_sweep:,} answers"
        )
        try:
            with self._display.changing(self) as self._changed:
                yield
        finally:
            if self._changed is not None and self._rounds:
                self._display.keep(self._table())

    def _note_left_out(self) -> None:
        """Print new notes on omitted settings."""
        for text in self._contest.left_out[self._left_out :]:
            self._display.note(f"left out: {text}")
        self._left_out = len(self._contest.left_out)

    def round(self) -> None:
        """Receive the state after a round; without a terminal, print it in a line."""
        self._rounds += 1
        self._note_left_out()
        self._answer = self._contest.answer()
        out = {place for place, one in enumerate(self._answer.standings) if one.out}
        new = sorted(out - self._dropped.keys())
        now = [place for place in new if self._answer.standings[place].raced]  # the others were noted as left out
        self._dropped = {place: self._dropped.get(place, self._rounds) for place in sorted(out)}
        before, self._told = self._told, (self._contest.predictions, self._answer.choice)
        if self._changed is None:
            if now or self._told != before:
                self._display.note(self._line(now), whole=True)
        else:
            self._changed()

    def _line(self, now: list[int]) -> str:
        choice = self._answer.standings[self._answer.choice]
        running = len(self._answer.standings) - len(self._dropped)
        names = [self._answer.standings[place].candidate.name for place in now]
        dropped = f"; dropped: {few(names, ONCE_SHOWN)}" if names else ""
        settings = counted(len(self._answer.standings), "setting")
        left = f"{running} of {settings} left"
        if waiting := self._answer.waiting:
            left += f", {waiting} of them without answers yet"
        leads = f"{choice.candidate.name} leads with {score_of(choice)}"
        return f"round {self._rounds}, {self._spent()}: {leads}; {left}{dropped}"

    def _spent(self) -> str:
        """Answers and time so far, and the rest of the budget."""
        contest, seconds = self._contest, time.monotonic() - self._began
        spend = contest.spec.spend
        rest = max(contest.left(), 0)
        left = duration(rest) if spend.unit == "time" else spend.of(rest)
        answers = f"{contest.predictions:,} of {contest.full_sweep:,} answers"
        return f"{answers} in {timedelta(seconds=int(seconds))}, {left} left"

    # -- callbacks of the runner ---------------------------------------------------------------------

    def backend_loading(self) -> None:
        """The model is being loaded."""
        self._say(f"loading {self._contest.asking.sweep.model.name}")

    def backend_ready(self) -> None:
        """The model is loaded."""
        self._say("asking")

    def cell_started(self, cell: CellPlan, already: int) -> None:
        """A cell of a setting starts."""
        del already
        shown = f"{cell.spec.select}, k={cell.spec.k:,}" if cell.spec.k else "no demonstrations"
        self._say(f"round {self._rounds + 1}: asking {shown}, draw {cell.spec.draw + 1}")

    def training(self, setting: str, draw: int) -> None:
        """A setting is trained; without a terminal, its first training is printed."""
        self._say(f"round {self._rounds + 1}: training {setting}, draw {draw + 1}")
        if self._changed is None and setting != self._trained:
            self._display.note(f"training {setting}")
        self._trained = setting

    def _say(self, text: str) -> None:
        self._doing.plain = visible(text)
        if self._changed is not None:
            self._changed()

    # -- the table --------------------------------------------------------------------------------

    def __rich__(self) -> Group:
        """The table, the budget and the current cell."""
        parts = [self._table()] if self._rounds else []
        return Group(*parts, Text(self._spent()), self._doing)

    def _table(self) -> Group:
        """The leader, the running settings, the best first, then dropped settings, the latest first."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("setting", no_wrap=True, overflow="ellipsis", max_width=25)
        for title in ("answers", "draws", "accuracy %"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        answer = self._answer
        order = sorted(range(len(answer.standings)), key=lambda place: _rank(answer, place, self._dropped))
        for place in order[:LINES]:
            one = answer.standings[place]
            style = "bold" if place == answer.choice else "dim" if one.out else ""
            numbers = f"{percent(one.score)} ({percent(one.low)} to {percent(one.high)})" if one.predictions else "–"
            cells = (visible(one.candidate.name), f"{one.predictions:,}", f"{one.draws:,}", numbers, self._state(place))
            table.add_row(*(Text(cell, style) for cell in cells))
        more = order[LINES:]
        margin = f"{self._contest.spec.margin:g} points"
        below = (
            f"worse, dearer (and not better), not better (by more than {margin}): each is sure; the number is the "
            "round in which it was dropped"
        )
        hidden = [Text(f"and {counted(len(more), 'setting')} more", "dim")] if more else []
        why = [Text(below, "dim")] if self._dropped else []
        racing = len(answer.standings) - len(self._dropped) > 1
        cheaper = [Text("may be as good: cheaper than the choice", "dim")] if answer.decided and racing else []
        return Group(table, *hidden, *why, *cheaper)

    def _state(self, place: int) -> str:
        if place == self._answer.choice:
            return "leads"
        if not self._answer.standings[place].predictions and place not in self._dropped:
            return "not asked yet"
        if place not in self._dropped:
            return "may be as good" if self._answer.decided else "may be better"
        return f"out {self._dropped[place]}: {self._answer.standings[place].why or 'not better'}"


def _rank(answer: Answer, place: int, dropped: dict[int, int]) -> tuple[bool, int, float]:
    one = answer.standings[place]
    best = -one.score if one.predictions else 0.0
    return place != answer.choice, -dropped.get(place, len(answer.standings) * 10**6), best
