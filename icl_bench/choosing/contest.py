"""Races the settings of a sweep: their answers are rows of the results folder's ordinary cells.

A setting is a curve's point: a selector, an order and a k, with a cell for each draw. The race asks rows in
one order for all cells, stratified by label, so that any beginning of it has the labels' shares. Answers are
kept in the cells' journals, which a later run of the whole cells resumes.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from icl_bench.choosing.evidence import FIRST_LOOK
from icl_bench.choosing.options import ChooseSpec
from icl_bench.choosing.race import Answer, Ask, Candidate, Race, Rules
from icl_bench.errors import CellError, UserError
from icl_bench.results.storage import Place
from icl_bench.seeds import generator
from icl_bench.sweep.plan import CellPlan, PlannedGroup
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Outcome, Runner, Watcher
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.time_estimate import EFFICIENCY
from icl_bench.tasks.examples import Example
from icl_bench.wording import counted

INTERRUPTED, TIME_IS_SPENT = "interrupted", "the time is spent"
"""Why a race ended before it was decided. It is decided at the latest when everything is asked."""
GROWTH = 1.0
"""Rounds double: in each, every draw's demonstrations are read anew."""


@dataclass(frozen=True)
class Setting:
    """What may be chosen, with its cells by draw."""

    name: str
    select: str
    k: int
    cells: tuple[tuple[PlannedGroup, CellPlan], ...]
    query_flops: float | None = None
    """Operations of a query by formula, without the demonstrations that queries share; the mean over draws."""
    shared_flops: float | None = None
    """Operations of these, once."""

    @property
    def drawn(self) -> bool:
        """Whether its answers depend on the draw. A single draw of retrieval counts as no: only ties are random."""
        return len(self.cells) > 1 or (self.k > 0 and self.cells[0][1].choice.drawn)

    def cell(self, draw: int) -> tuple[PlannedGroup, CellPlan]:
        """The cell of a draw."""
        return self.cells[draw if len(self.cells) > 1 else 0]

    def flops(self, queries: int) -> float | None:
        """Operations of a query, with its part of what is computed once for so many."""
        if self.query_flops is None or self.shared_flops is None:
            return None
        return self.query_flops + self.shared_flops / queries


@dataclass
class Contest:
    """A race with what computes its answers."""

    spec: ChooseSpec
    sweep: Sweep
    settings: Sequence[Setting]
    left_out: Sequence[str]
    """Settings that cannot run, with the reasons."""
    race: Race
    rows: Sequence[str]
    """Test ids in the order of asking."""
    outcome: Outcome = field(default_factory=Outcome)
    ended: str = ""
    """Why the race ended before it was decided; empty while it runs or if it is decided."""
    seconds: float = 0.0
    """Time that this command spent."""

    @classmethod
    def prepare(cls, spec: ChooseSpec, say: Callable[[str], None], results: Place) -> Contest:
        """Lay out the settings; nothing is computed yet. Raises ``UserError``."""
        sweep = Sweep.prepare(RunSpec(**spec.of_run()), say, results=results)
        settings = settings_of(sweep)
        if not settings:
            raise UserError("nothing fits: " + "; ".join(sweep.plan.problems))
        rows = stratified(sweep.task.data.test, generator(spec.seed, "order of asking"))
        draws = max(len(one.cells) for one in settings)
        first = min(first_round(settings), len(rows))
        rules = Rules(len(rows), draws, spec.margin / 100, first=first, growth=GROWTH)
        candidates = [Candidate(one.name, one.drawn, one.flops(spec.queries) or 0.0) for one in settings]
        left_out = [*sweep.plan.problems, *sweep.plan.combinations.reasons]
        return cls(spec, sweep, settings, left_out, Race(candidates, rules), rows)

    def run(self, results: Place, watcher: Watcher | None = None, on_round: Callable[[], None] = lambda: None) -> None:
        """Race until it is decided or the time is spent; Ctrl-C ends it, too.

        ``on_round`` is called after each round. Stored answers are read again, which takes little time. Raises
        ``UserError`` where a cell fails, or the time is too short for a first look at every setting.
        """
        runner, began = self.sweep.runner(results, watcher), time.monotonic()
        runner.store.prepare()
        try:
            while asks := self.race.next():
                if not self._asked(asks, runner, began):
                    self.ended = TIME_IS_SPENT
                    break
                self.seconds = time.monotonic() - began
                on_round()
        except KeyboardInterrupt:
            self.ended = INTERRUPTED
        self.seconds = time.monotonic() - began
        if self.ended == TIME_IS_SPENT and not self.race.asked.all():
            raise UserError(
                f"--spend {self.spec.spend:g}s: too short for a first look at "
                f"{counted(len(self.settings), 'setting')}; {counted(self.outcome.answers, 'answer')} "
                "more are stored now: run the same command again to go on, or with fewer values of --k or --select"
            )

    def _asked(self, asks: Sequence[Ask], runner: Runner, began: float) -> bool:
        """Ask one round and tell the race. Returns whether there was time for all of it.

        The race hears of whole rounds alone: one that came further than others would lead for that. Answers of a
        round that is not whole are in the journals.
        """
        wanted: dict[tuple[int, int], list[int]] = defaultdict(list)
        for ask in asks:
            for draw, row in self._questions(ask):
                wanted[ask.candidate, draw].append(row)
        scores: dict[tuple[int, int, str], float] = {}
        # draw after draw, the smallest k first: so demonstrations of nested prompts are read once a round
        for candidate, draw in sorted(wanted, key=self._place):
            if time.monotonic() - began > self.spec.spend:
                return False
            group, cell = self.settings[candidate].cell(draw)
            names = [self.rows[row] for row in wanted[candidate, draw]]
            try:
                found = runner.ask(group, cell, names, self.outcome)
            except CellError as error:
                raise UserError(f"{self.settings[candidate].name}, draw {draw}: {error}") from None
            scores |= {(candidate, draw, name): min(max(score, 0.0), 1.0) for name, score in found.items()}
        for ask in asks:
            self.race.tell(ask, [scores[ask.candidate, draw, self.rows[row]] for draw, row in self._questions(ask)])
        return True

    def _questions(self, ask: Ask) -> Iterator[tuple[int, int]]:
        """The draw and the row of each position; without draws the first draw's."""
        drawn = self.settings[ask.candidate].drawn
        for draw, row in zip(*self.race.schedule(ask.start, ask.stop), strict=True):
            yield int(draw) if drawn else 0, int(row)

    def _place(self, which: tuple[int, int]) -> tuple[str, int, int]:
        setting, draw = self.settings[which[0]], which[1]
        return setting.select, draw, setting.k

    @cached_property
    def rate(self) -> float | None:
        """Operations a second of this machine with this model, by a short measurement; None if unknown."""
        rate = self.sweep.loader.rate()
        return None if rate is None else rate * EFFICIENCY

    def answer(self) -> Answer:
        """How the settings stand."""
        return self.race.answer()

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON has it: scores are shares of 1, times seconds."""
        answer, queries = self.answer(), self.spec.queries
        settings = [
            {
                "setting": setting.name,
                "select": setting.select,
                "k": setting.k,
                "score": None if not standing.predictions else standing.score,
                "ci_low": standing.low,
                "ci_high": standing.high,
                "predictions": standing.predictions,
                "draws": standing.draws,
                "out": standing.out,
                "out_for_new": standing.out_for_new,
                "cheaper_within_margin": standing.cheaper,
                "flops_per_query": setting.flops(queries),
            }
            for setting, standing in zip(self.settings, answer.standings, strict=True)
        ]
        return {
            "task": self.sweep.task.data.spec.name,
            "model": self.sweep.model.name,
            "choice": self.settings[answer.choice].name if self.race.asked.any() else None,
            "decided": answer.decided,
            "ended": self.ended or None,
            "margin": self.race.rules.margin,
            "error": self.race.rules.error,
            "rows": self.race.rules.rows,
            "draws": self.race.rules.draws,
            "queries": queries,
            "seconds": round(self.seconds, 1),
            "predictions": int(self.race.spent.sum()),
            "predictions_of_full_sweep": self.full_sweep,
            "settings": settings,
            "left_out": list(self.left_out),
        }

    @property
    def full_sweep(self) -> int:
        """Predictions of a full sweep of all settings."""
        return sum(cell.queries for setting in self.settings for _, cell in setting.cells)


def settings_of(sweep: Sweep) -> list[Setting]:
    """Return the settings of which all draws fit."""
    costs = dict(zip(map(id, sweep.plan.cells), sweep.costs(), strict=True))
    points: dict[Any, list[tuple[PlannedGroup, CellPlan]]] = defaultdict(list)
    for group in sweep.plan.groups:
        for cell in group.cells:
            points[cell.curve_point].append((group, cell))
    settings = []
    for point, cells in points.items():
        if any(cell.problem for _, cell in cells):
            continue
        known = [cost for _, cell in cells if (cost := costs[id(cell)]) is not None]
        name = f"{point.select}, k={point.k}" if point.k else "no demonstrations"
        query = float(np.mean([cost.query_flops for cost in known])) if known else None
        shared = float(np.mean([cost.prefix_flops for cost in known])) if known else None
        settings.append(Setting(name, point.select, point.k, tuple(cells), query, shared))
    return settings


def first_round(settings: Sequence[Setting]) -> int:
    """Return the rows of the first round: as many as cost what it takes to read the demonstrations of all draws.

    Fewer rows would save little of the round's time.
    """
    shared = sum(len(one.cells) * (one.shared_flops or 0.0) for one in settings)
    query = sum(one.query_flops or 0.0 for one in settings)
    return max(FIRST_LOOK, math.ceil(shared / query) if query else 0)


def stratified(rows: Sequence[Example], rng: np.random.Generator) -> list[str]:
    """Return the rows' ids in a random order of which every beginning has about the labels' shares."""
    by_label: dict[str, list[str]] = defaultdict(list)
    for place in rng.permutation(len(rows)):
        by_label[rows[place].answer].append(rows[place].id)
    keyed = []
    for label in sorted(by_label):
        names = by_label[label]
        keyed += [((place + rng.random()) / len(names), name) for place, name in enumerate(names)]
    return [name for _, name in sorted(keyed)]
