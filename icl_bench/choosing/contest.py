"""Races the settings of sweeps: their answers are rows of the results folder's ordinary cells.

A setting is a curve's point of a model: a selector, an order and a k, with a cell for each draw. The race asks
rows in one order for all cells, stratified by label, so that any beginning of it has the labels' shares. Answers
are kept in the cells' journals, which a later run of the whole cells resumes.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from icl_bench.analysis.query_cost import MEASURES, QueryCosts
from icl_bench.backends.background import Together
from icl_bench.backends.servers.budget import Budget
from icl_bench.choosing.costs import (
    Served,
    check_prices,
    crossing,
    learning_cost,
    measure_of,
    planned_tokens,
    query_cost,
    rate_of,
    unknown_cost,
)
from icl_bench.choosing.evidence import FIRST_LOOK
from icl_bench.choosing.learners import DRAWS, LARGEST_SHARE, Learner, learners_of
from icl_bench.choosing.options import ChooseSpec
from icl_bench.choosing.race import Answer, Ask, Candidate, Race, Rules
from icl_bench.choosing.spending import Account, count_tokens
from icl_bench.errors import CellError, OutOfBudgetError, StopRunError, UserError
from icl_bench.models.prices import Prices
from icl_bench.results.calibration import Calibration
from icl_bench.results.label_bias import calibrated, mean_bias
from icl_bench.results.storage import Place
from icl_bench.seeds import generator
from icl_bench.sweep.compute_cost import ComputeCost
from icl_bench.sweep.facts import Identities
from icl_bench.sweep.plan import CellPlan, PlannedGroup
from icl_bench.sweep.plan_money import sweep_prices
from icl_bench.sweep.runner import Outcome, Runner, Watcher
from icl_bench.sweep.sweep import Sweep
from icl_bench.tasks.examples import Example
from icl_bench.wording import counted, few, listed, plain

INTERRUPTED = "interrupted"
"""Why a race ended while settings were open. None is open at the latest when everything is asked."""
GROWTH = 1.0
"""Rounds double: in each, every draw's demonstrations are read again."""
NOT_TRIED = "other selections, orders, attention patterns and calibrations"
"""What a race does not have."""
ENTRY = 0.1
"""The first settings of a race together cost about this share of all prompts' first answers."""
LARGEST_ROUND = 0.5
"""Share of the remaining time that a round may take by its estimate."""
FEWEST = 2
"""Settings that make a race."""
LEAST_LOOKED = 0.05
"""The time of a first look is extrapolated from at least this share of it: the first seconds load the model."""
SETTLES = 10
"""Rows of a draw on which its bias is estimated before calibrated answers are compared."""


@dataclass(frozen=True)
class Setting:
    """What may be chosen, with its cells by draw."""

    name: str
    select: str
    k: int
    cells: tuple[tuple[PlannedGroup, CellPlan], ...]
    entrant: int = 0
    """The place of its model among the race's."""
    calibration: Calibration | None = None
    """What is derived from the scores of its cells; None for the answers as they are."""
    compute: tuple[ComputeCost, ...] = field(default=(), repr=False)
    """The cost of each cell by formula, where it is known."""
    learner: Learner | None = None
    """What learns from the examples instead of a prompt, which has no planned cells."""

    @property
    def drawn(self) -> bool:
        """Whether its answers depend on the draw. A single draw of retrieval counts as no: only ties are random."""
        return self.learner is not None or len(self.cells) > 1 or (self.k > 0 and self.cells[0][1].choice.drawn)

    @property
    def shares_examples(self) -> bool:
        """Whether all queries have the same demonstrations, so that one prompt serves all of them."""
        return self.learner is None and (not self.k or self.cells[0][1].choice.shared)

    def cell(self, draw: int) -> tuple[PlannedGroup, CellPlan]:
        """The cell of a draw."""
        return self.cells[draw if len(self.cells) > 1 else 0]

    @property
    def draws(self) -> int:
        """Its draws of demonstrations, or its trainings."""
        return len(self.cells) if self.learner is None else self.learner.draws

    @property
    def read_with(self) -> tuple[int, str, int | None]:
        """A key: equal for settings whose nested demonstrations are read once for all of them."""
        cell = self.cells[0][1] if self.cells else None
        shares = cell is not None and 2 * cell.prefix_tokens * cell.queries > cell.prompt_tokens
        return self.entrant, self.select, None if shares else self.k

    @cached_property
    def query_flops(self) -> float | None:
        """Operations of a query by formula, without the demonstrations that queries share; the mean over draws."""
        if self.learner is not None:
            return self.learner.cost.query_flops
        return float(np.mean([cost.query_flops for cost in self.compute])) if self.compute else None

    @cached_property
    def shared_flops(self) -> float | None:
        """Operations of these, or of a training, once."""
        if self.learner is not None:
            return self.learner.cost.flops
        return float(np.mean([cost.prefix_flops for cost in self.compute])) if self.compute else None

    def flops(self, queries: int) -> float | None:
        """Operations of a query, with its part of what is computed once for so many."""
        if self.query_flops is None or self.shared_flops is None:
            return None
        return self.query_flops + self.shared_flops / queries


class _Question(NamedTuple):
    """Rows of a cell that a round asks."""

    candidate: int
    draw: int
    group: PlannedGroup
    cell: CellPlan
    rows: Sequence[str]
    """Test ids."""


_Scores = dict[tuple[int, int, str], float]
"""Scores from 0 to 1, by candidate, draw and test id."""


@dataclass
class _Part:
    """One model's part of a round."""

    estimated: float = 0.0
    """What it was estimated to take, in the unit of ``--spend``."""
    loading: float = 0.0
    """What loading the model took of it, which tells no pace."""
    cut: bool = False
    """Whether the budget was not enough, or the run was stopped."""


@dataclass
class Entrant:
    """A model in the race."""

    asked_for: str
    """Its name in ``--model``."""
    sweep: Sweep
    prices: Prices | None
    """What it costs, if that is known."""
    served: Served = field(default_factory=Served)
    estimated: float = 0.0
    """Tokens or money that its requests to a server were estimated to take. Where time is spent, computed tokens, or
    answers of a server."""
    took: float = 0.0
    """What they took: tokens, money or seconds."""

    @cached_property
    def rate(self) -> float | None:
        """Operations a second of this machine with it; None if unknown."""
        return rate_of(self.sweep)

    def speed(self) -> float | None:
        """The same, for those who may not need it."""
        return self.rate

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each test row among its queries."""
        return {row.id: place for place, row in enumerate(self.sweep.task.data.test)}

    @property
    def here(self) -> bool:
        """Whether it runs on this machine."""
        return not self.sweep.loader.spends


@dataclass
class Contest:
    """A race with what computes its answers."""

    spec: ChooseSpec
    entrants: Sequence[Entrant]
    settings: Sequence[Setting]
    left_out: list[str]
    """Settings that cannot run, with the reasons."""
    race: Race
    rows: Sequence[str]
    """Test ids in the order of asking."""
    outcome: Outcome = field(default_factory=Outcome)
    ended: str = ""
    """Why the race ended while settings were open; empty while it runs, and where none was open."""
    seconds: float = 0.0
    """Time that this command spent."""
    account: Account = field(init=False)
    asking: Entrant = field(init=False)
    """The model that is asked."""
    measure: str | None = field(init=False)
    """By which settings' costs are compared: money, operations or tokens; None if they are not known."""
    _known: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Rows that are answered, by the cell's ``id``."""
    _learned: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    """Scores of all test rows by id, by the place of a setting that learns and the draw."""
    _paces: dict[tuple[int, str], float] = field(default_factory=dict)
    """Seconds per operation of the first training, by the place of the model and the method."""
    _on_training: Callable[[str, int], None] = field(default=lambda _setting, _draw: None)
    _had: float = 0.0
    """The share of the first round's tokens that was answered before this command."""
    _began: float | None = None
    """The moment of the first new answer or training; None before. Reading stored answers again spends nothing."""
    _paid_until: float = 0.0
    """The moment up to which this machine's time is paid."""

    def __post_init__(self) -> None:
        self.account, self.asking = Account(self.spec.spend), self.entrants[0]
        self._price()

    @classmethod
    def prepare(cls, spec: ChooseSpec, say: Callable[[str], None], results: Place) -> Contest:
        """Lay out the settings; nothing is computed yet. Raises ``UserError``."""
        entrants = []
        for model in spec.model:
            try:
                sweep = Sweep.prepare(spec.run_of(model), say, results=results)
                price = spec.price_of(model)
                entrants.append(Entrant(model, sweep, None if price is None else sweep_prices(sweep, price)))
            except UserError as error:
                if len(spec.model) == 1:
                    raise
                raise UserError(f"{plain(model)}: {error}") from None
        check_prices([(one.sweep, one.prices) for one in entrants], spends_money=spec.spend.unit == "money")
        if spec.spend.unit != "time":
            for one in entrants:
                one.sweep.loader.check_budget()
        names = [one.sweep.model.name for one in entrants]
        if same := {name for name in names if names.count(name) > 1}:
            raise UserError(f"--model: two models are called {min(same)} in results; race one of them")
        settings = [one for place, entrant in enumerate(entrants) for one in settings_of(entrant.sweep, place)]
        settings, repeated = without_repeated(settings)
        problems = [problem for entrant in entrants for problem in entrant.sweep.plan.problems]
        if not settings:
            raise UserError("nothing fits: " + "; ".join(dict.fromkeys(problems)))
        left_out = [*problems, *(text for one in entrants for text in _impossible(spec, one.sweep))]
        left_out += [] if spec.has_default_selections else repeated
        absent, reason = spec.without_encoder
        left_out += [f"{listed(absent)}: {reason}"] if absent else []
        twins, refused = _calibrated(spec, entrants, settings)
        left_out = list(dict.fromkeys([*left_out, *refused]))
        settings = [*settings, *twins]
        if len(entrants) > 1:
            settings = [replace(one, name=f"{names[one.entrant]}: {one.name}") for one in settings]
        common = set.intersection(*(set(one.places) for one in entrants))
        rows = [row for row in entrants[0].sweep.task.data.test if row.id in common]
        if not rows:
            raise UserError("--model: no test row fits the windows of all models; race fewer of them")
        for one in entrants:
            if missing := [name for name in one.places if name not in common]:
                which = f"{counted(len(missing), 'test row')} of {one.sweep.model.name} ({few(missing)})"
                left_out.append(f"{which}: too long for another model")
        order = stratified(rows, generator(spec.seed, "order of asking"))
        draws, first = max(one.draws for one in settings), min(first_round(settings), len(rows))
        learning, refused = _learning(spec, entrants, order, draws)
        settings, left_out = [*settings, *learning], [*left_out, *refused]
        draws = max(1, *(one.draws for one in settings))
        rules = Rules(len(rows), draws, spec.margin / 100, first=first, queries=spec.queries, growth=GROWTH)
        racing = [
            Candidate(one.name, one.drawn, settles=SETTLES if one.calibration else 0, at_once=one.learner is not None)
            for one in settings
        ]
        return cls(spec, entrants, settings, left_out, Race(racing, rules), order)

    @property
    def sweep(self) -> Sweep:
        """The sweep of the first model."""
        return self.entrants[0].sweep

    def sweep_of(self, setting: Setting) -> Sweep:
        """The sweep of a setting's model."""
        return self.entrants[setting.entrant].sweep

    def cell_of(self, setting: Setting) -> str:
        """The hash of a setting's first cell."""
        if setting.learner is not None:
            return setting.learner.identity(0).cell
        return Identities(self.sweep_of(setting).loader.identity())(setting.cell(0)[1]).cell

    @property
    def notes_on_learning(self) -> list[str]:
        """What a user should know of the trainings."""
        learners = [one.learner for one in self.settings if one.learner is not None]
        known = {id(one.finetuning): one.finetuning for one in learners}
        return list(dict.fromkeys(note for one in known.values() for note in one.notes()))

    # -- costs ----------------------------------------------------------------------------------------

    @property
    def costs(self) -> QueryCosts:
        """What a query of each setting takes, and all once, by ``MEASURES``: ``(settings, 4)`` each."""
        each, once = zip(*map(self._cost, self.settings), strict=True)
        return QueryCosts(np.array(each), np.array(once))

    def _cost(self, setting: Setting) -> tuple[np.ndarray, np.ndarray]:
        """What a query of a setting takes, and all once, by ``MEASURES``: ``(4,)`` each."""
        entrant = self.entrants[setting.entrant]
        if setting.learner is not None:
            return learning_cost(setting.learner.cost, entrant.prices, entrant.speed)
        if not entrant.here and entrant.sweep.spec.scoring == "exact":  # may need the whole prompt for each label
            return unknown_cost(), unknown_cost()
        served = entrant.served
        tokens = served.of(planned_tokens([cell for _, cell in setting.cells]))
        caches = not served.answers or bool(served.cached_tokens)  # not every server does
        return query_cost(entrant.sweep, entrant.prices, tokens, setting.compute, entrant.speed, caches)

    def _price(self) -> None:
        """Tell the race what its candidates cost."""
        costs = self.costs
        self.measure = measure_of(costs, len(self.entrants))
        if self.measure is not None:
            place = MEASURES.index(self.measure)
            trained = np.array([one.learner is not None for one in self.settings])
            asking = np.where(trained, 0.0, costs.each[:, place])
            reading = np.where(trained, 0.0, costs.once[:, place] * [one.draws for one in self.settings])
            self.race.price(costs.of(self.spec.queries)[:, place], asking, reading)

    def crossing(self, one: int, other: int) -> float | None:
        """The number of queries at which two settings cost the same in all; None if one is always the cheaper."""
        return None if self.measure is None else crossing(self.costs, one, other, self.measure)

    def score_of_training(self, place: int, draw: int) -> float:
        """The mean score of a training on all test rows, from 0 to 1. Raises ``KeyError`` before it is trained."""
        return float(np.mean(list(self._learned[place, draw].values())))

    # -- racing ---------------------------------------------------------------------------------------

    def run(
        self,
        results: Place,
        watcher: Watcher | None = None,
        on_round: Callable[[], None] = lambda: None,
        on_training: Callable[[str, int], None] = lambda _setting, _draw: None,
    ) -> None:
        """Race until it is decided or the budget is spent; Ctrl-C ends it, too.

        ``on_round`` is called after each round, ``on_training`` before a training with the setting's name and the draw.
        Stored answers are read again, which takes little time. Raises ``UserError`` where a cell fails, or the budget
        is too small for a first look at every prompt.
        """
        self._on_training = on_training
        self._give_budgets()
        runners, began = [one.sweep.runner(results, watcher) for one in self.entrants], time.monotonic()
        stored = runners[0].store.storage.exists()
        runners[0].store.prepare()
        if stored:
            self._read_known(runners)
            self._had = self._looked()
        try:
            self._check_first_look()
            while asks := self._next():
                told = self.outcome.answers
                if (fitting := self._fit(asks)) is None or not self._asked(fitting, runners):
                    self.ended = self.ended or self.spec.spend.spent
                    if (more := self.outcome.answers - told) and self.ended == self.spec.spend.spent:
                        self.outcome.notes.append(
                            f"the budget ended within a round: its {counted(more, 'answer')} "
                            f"{'is stored, but counts' if more == 1 else 'are stored, but count'} only once the round "
                            "is complete"
                        )
                    break
                self.seconds = time.monotonic() - began
                if any(not one.here for one in self.entrants):
                    self._price()
                on_round()
        except KeyboardInterrupt:
            self.ended = INTERRUPTED
        self.seconds = time.monotonic() - began
        if self.ended != INTERRUPTED:
            self._check_stored(runners)
        if self.ended not in ("", INTERRUPTED) and not self.race.looked and (self.race.asked > 0).sum() < FEWEST:
            raise self._too_small() if self.ended == self.spec.spend.spent else UserError(self.ended)

    def _next(self) -> Sequence[Ask]:
        """The next round; none where nothing is open.

        Prompts whose first answers take too much of the remaining time are withdrawn: a race without them can still
        separate the others, if there are some.
        """
        while asks := self._entering(self.race.next()):
            if asks[0].start or (self.race.asked > 0).sum() < FEWEST or self.spec.spend.unit != "time":
                return asks
            if affordable := self._affordable(asks):
                return affordable
        return []

    def _affordable(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """Of a round of first answers, the part that the remaining time has room for; what never has is withdrawn.

        Of settings that read the same demonstrations, those with the most are withdrawn first.
        """
        most, total = LARGEST_SHARE * max(self.account.left, 0.0), 0.0
        units: dict[Any, list[Ask]] = defaultdict(list)
        for ask in sorted(asks, key=lambda ask: self.settings[ask.candidate].k):
            units[self.settings[ask.candidate].read_with].append(ask)
        taken: set[int] = set()
        for unit in sorted(units.values(), key=self._seconds_of):
            kept, seconds = unit, (whole := self._seconds_of(unit))
            while seconds > most:
                kept = kept[:-1]
                seconds = self._seconds_of(kept)
            if kept != unit:
                with_smaller = ", with those of smaller k," if kept else ""
                self._leave_out(unit[len(kept) :], f"the first answers{with_smaller}", whole)
            if total + seconds <= most:
                total += seconds
                taken |= {ask.candidate for ask in kept}
        return [ask for ask in asks if ask.candidate in taken]

    def _seconds_of(self, asks: Sequence[Ask]) -> float:
        """Seconds that these first answers take, by an estimate; 0 where they are stored, for trainings (which are
        checked when they start), and where it is unknown.
        """
        prompts = [ask for ask in asks if self.settings[ask.candidate].learner is None]
        if not any(map(self._is_new, self._questions_of(prompts))):
            return 0.0
        if self.entrants[self.settings[prompts[0].candidate].entrant].estimated:
            return self._estimate(prompts)
        return self._by_formula(prompts) or 0.0

    def _leave_out(self, asks: Sequence[Ask], what: str, amount: float) -> None:
        """Withdraw settings that would take this amount of the budget."""
        for ask in asks:
            self.race.withdraw(ask.candidate)
        names = names_of([self.settings[ask.candidate] for ask in asks])
        self.left_out.append(f"{names}: {self._too_much(what, amount)}")

    def _too_much(self, what: str, amount: float) -> str:
        """What takes more than its part of the remaining budget, in words."""
        spend = self.spec.spend
        return (
            f"{what} would take about {spend.about(amount)}, more than half of what is left of --spend "
            f"({spend.about(self.account.left)})"
        )

    def _entering(self, asks: Sequence[Ask]) -> Sequence[Ask]:
        """A round, or where it has the first answers of settings, a part of it: the cheapest settings.

        They cost at most as much as those before them, so that an answer is there early and the number of rounds
        stays small. Settings that read the same demonstrations stay together. Several models on this machine, of which
        each round loads each, start in one round.
        """
        if not asks or asks[0].start or self.measure is None or sum(one.here for one in self.entrants) > 1:
            return asks
        costs = self.costs
        units: dict[Any, list[Ask]] = defaultdict(list)
        for candidate, setting in enumerate(self.settings):
            units[setting.read_with].append(Ask(candidate, 0, asks[0].stop))
        cost = {key: self._cost_of(unit, costs, self.measure) for key, unit in units.items()}
        of_prompts = sum(cost[key] for key, unit in units.items() if self.settings[unit[0].candidate].learner is None)
        new = {self.settings[ask.candidate].read_with for ask in asks}
        waiting = [key for key in units if key in new]
        limit = max(ENTRY * of_prompts, sum(cost.values()) - sum(cost[key] for key in waiting))
        taken: set[Any] = set()
        total = 0.0
        for key in sorted(waiting, key=cost.__getitem__):
            total += cost[key]
            if taken and total > limit:
                break
            taken.add(key)
        return [ask for ask in asks if self.settings[ask.candidate].read_with in taken]

    def _cost_of(self, asks: Sequence[Ask], costs: QueryCosts, measure: str) -> float:
        """An estimate of what a round costs by a measure, NaN if unknown; ``costs`` are those of all settings."""
        place = MEASURES.index(measure)
        settings = [self.settings[ask.candidate] for ask in asks]
        rows = [0 if one.learner else ask.stop - ask.start for one, ask in zip(settings, asks, strict=True)]
        candidates = [ask.candidate for ask in asks]
        shared = [one.draws * amount for one, amount in zip(settings, costs.once[candidates, place], strict=True)]
        return float(np.dot(rows, costs.each[candidates, place])) + read_once(settings, shared)

    def _give_budgets(self) -> None:
        """Let requests to servers spend from the race's budget, if it is of tokens or money."""
        unit = self.spec.spend.unit
        for one in self.entrants:
            if not one.here and unit != "time":
                assert unit == "tokens" or one.prices is not None, "refused before"
                charge = count_tokens if unit == "tokens" or one.prices is None else one.prices.of_tokens
                one.sweep.budget = Budget(self.account.purse, charge)

    def _read_known(self, runners: Sequence[Runner]) -> None:
        """Read which rows are answered, and what servers billed for them."""
        for setting in self.settings:
            entrant, runner = self.entrants[setting.entrant], runners[setting.entrant]
            for _, cell in setting.cells:
                with suppress(CellError):  # another process computes it; the first question says so
                    found = runner.answered(cell)
                    self._known[id(cell)] |= found.names
                    if not entrant.here and setting.calibration is None and not cell.same_prompts:
                        entrant.served.add(found.tally)
        if any(one.served.answers for one in self.entrants):
            self._price()

    def _check_stored(self, runners: Sequence[Runner]) -> None:
        """Raise ``UserError`` if answers of the race are not stored any more."""
        gone = []
        for setting in self.settings:
            runner = runners[setting.entrant]
            for _, cell in setting.cells:
                known = self._known.get(id(cell), set())
                with suppress(CellError):  # another process computes it
                    if known and not known <= runner.answered(cell).names:
                        gone.append(runner.identity(cell).name)
        for place, draw in self._learned:
            setting = self.settings[place]
            assert setting.learner is not None, "it learned"
            identity, test = setting.learner.identity(draw), setting.learner.finetuning.task.data.test
            if not runners[setting.entrant].store.is_done(identity, len(test)):
                gone.append(identity.name)
        if names := list(dict.fromkeys(gone)):
            where, count = runners[0].store.storage.where(), counted(len(names), "cell")
            raise UserError(
                f"results folder {where}: answers of {count} were removed during the race (the first is {names[0]}); "
                "run the same command again to compute what is missing"
            )

    def _asked(self, asks: Sequence[Ask], runners: Sequence[Runner]) -> bool:
        """Ask one round and tell the race. Returns whether the budget was enough for all of it.

        The race hears of whole rounds alone: one that came further than others would lead for that. Answers of a
        round that is not whole are in the journals.
        """
        scores: _Scores = {}
        before = None
        for place, questions in groupby(self._questions_of(asks), key=lambda one: self.settings[one.candidate].entrant):
            runner = runners[place]
            if before is not None and before is not runner and sum(one.here for one in self.entrants) > 1:
                before.release()
            before, self.asking = runner, self.entrants[place]
            if not self._asked_of(place, list(questions), runner, scores):
                return False
        for ask in asks:
            if self.settings[ask.candidate].learner is None:
                self._tell(ask, scores, runners)
        self._learn(asks, runners)
        return True

    def _asked_of(self, place: int, questions: Sequence[_Question], runner: Runner, scores: _Scores) -> bool:
        """Ask one model's part of a round. Returns whether the budget was enough for it.

        A round asks few rows of each cell, fewer than a server answers at a time. So a server is asked several cells at
        a time, except cells that read the same demonstrations, of which its cache may hold the shorter ones.
        """
        entrant, timed, part = self.entrants[place], self.spec.spend.unit == "time", _Part()
        if timed:
            self._is_spent()
        spent = self.account.spent
        try:
            if entrant.here or not any(map(self._is_new, questions)):
                self._ask_in_turn(questions, runner, scores, part)
            else:
                self._ask_together(questions, runner, scores, part)
        finally:
            if timed:
                self._is_spent()
            if timed or not entrant.here:
                entrant.estimated += part.estimated
                entrant.took += self.account.spent - spent - part.loading
        return not part.cut

    def _ask_together(self, questions: Sequence[_Question], runner: Runner, scores: _Scores, part: _Part) -> None:
        """Ask cells at a server, several at a time."""
        if not runner.is_loaded:  # one cell shows whether the server answers, and which arguments it accepts
            self._ask_in_turn([next(filter(self._is_new, questions))], runner, scores, part)
        lanes: dict[Any, deque[_Question]] = defaultdict(deque)
        for one in questions:
            lanes[self.settings[one.candidate].read_with, one.draw].append(one)
        waiting = deque(lanes.values())
        requests = runner.at_a_time()

        def work() -> None:
            mine = runner.beside(together)
            try:
                while waiting and not part.cut:
                    self._ask_in_turn(waiting.popleft(), mine, scores, part)
            except BaseException:
                part.cut = True
                raise

        with Together.of(requests) as together:
            together.run([work] * min(requests, len(waiting)))

    def _is_new(self, question: _Question) -> bool:
        """Whether a row of it is not answered yet."""
        return not self._known[id(question.cell)].issuperset(question.rows)

    def _ask_in_turn(self, questions: Iterable[_Question], runner: Runner, scores: _Scores, part: _Part) -> None:
        """Ask cells of one model one after the other, until the part is cut."""
        last, read = None, 0
        for candidate, draw, group, cell, names in questions:
            if part.cut:
                return
            setting = self.settings[candidate]
            entrant = self.entrants[setting.entrant]
            if not self._known[id(cell)].issuperset(names):
                self._begin()
                if self._is_spent():
                    part.cut = True
                    return
            one, common = Outcome(), read if last is group else 0
            spent, estimated = self.account.spent, self._of_cell(entrant, cell, names, common)
            loads = entrant.here and sum(one.here for one in self.entrants) == 1 and not runner.is_loaded
            try:
                found = runner.ask(group, cell, names, one)
            except OutOfBudgetError:
                part.cut = True
                return
            except StopRunError as error:
                self.ended, part.cut = str(error), True
                return
            except CellError as error:
                raise UserError(f"{setting.name}, draw {draw}: {error}") from None
            finally:
                self._count(entrant, cell, one)
                self._spend(entrant, one, max(cell.prefix_tokens - common, 0))
            self._known[id(cell)] |= set(names)
            if one.answers:
                last, read = group, cell.prefix_tokens
            if self.spec.spend.unit == "time":
                self._is_spent()
            if loads:
                part.loading += self.account.spent - spent
            else:
                part.estimated += estimated
            scores |= {(candidate, draw, name): min(max(score, 0.0), 1.0) for name, score in found.items()}

    # -- learning -------------------------------------------------------------------------------------

    def _learn(self, asks: Sequence[Ask], runners: Sequence[Runner]) -> None:
        """Train what a round asks of settings that learn, the cheapest first, and tell the race.

        The race has heard of the round's prompts before: they are what there is if this is interrupted. A setting that
        cannot be trained is withdrawn.
        """
        learning = [(learner, ask) for ask in asks if (learner := self.settings[ask.candidate].learner) is not None]
        for learner, ask in sorted(learning, key=lambda pair: pair[0].cost.all_flops):
            name, rows = self.settings[ask.candidate].name, len(self.rows)
            try:
                self._train(learner, ask.candidate, range(learner.draws), runners)
            except CellError as error:
                self.race.withdraw(ask.candidate)
                self.left_out.append(f"{name}: {error}")
                continue
            for start in range(0, self.race.length, rows):  # a training answers all test rows
                part = Ask(ask.candidate, start, start + rows)
                told = [self._learned[ask.candidate, draw][self.rows[row]] for draw, row in self._questions(part)]
                self.race.tell(part, told)
        for learner, _ in learning:
            learner.finetuning.release()

    def _train(self, learner: Learner, place: int, draws: Sequence[int], runners: Sequence[Runner]) -> None:
        """Train these draws of a setting unless they are trained.

        Raises ``CellError`` if one cannot be, also for the budget that is left.
        """
        setting = self.settings[place]
        entrant, runner = self.entrants[setting.entrant], runners[setting.entrant]
        missing = []
        for draw in draws:
            if (place, draw) not in self._learned:
                answers = learner.answers(runner.store, draw)
                if answers is None:
                    missing.append(draw)
                else:
                    self._learned[place, draw] = answers
                    self.outcome.add(learner.train(runner.store, draw))  # trains nothing, names its cells
        for done, draw in enumerate(missing):
            self._check_affordable(learner, entrant, setting.entrant, len(missing) - done)
            self._begin()
            if learner.needs_model:
                self._release_others(learner, runners)
            self._on_training(setting.name, draw)
            start = time.monotonic()
            one = learner.train(runner.store, draw)
            seconds = time.monotonic() - start
            self._pay_training(learner, entrant)
            self.outcome.add(one)
            if one.failed:
                raise CellError(f"draw {draw}: {next(iter(one.failed.values()))}")
            if one.computed:
                self._paces.setdefault((setting.entrant, learner.method), seconds / learner.cost.all_flops)
            answers = learner.answers(runner.store, draw)
            if answers is None:
                raise CellError(f"draw {draw}: another process trains it; run the same command again")
            self._learned[place, draw] = answers

    def _release_others(self, learner: Learner, runners: Sequence[Runner]) -> None:
        """Release the models on this machine, except what earlier trainings of the learner's model hold."""
        for entrant, runner in zip(self.entrants, runners, strict=True):
            if entrant.here:  # a server's connection remembers what the server refused
                runner.release()
        for one in self.settings:
            if one.learner is not None and one.learner.finetuning is not learner.finetuning:
                one.learner.finetuning.release()

    def _check_affordable(self, learner: Learner, entrant: Entrant, model: int, trainings: int) -> None:
        """Raise ``CellError`` if so many trainings take more than their part of the budget that is left."""
        spend = self.spec.spend
        if self._is_spent():
            raise CellError(spend.spent)
        if spend.unit == "tokens":
            each = learner.cost.all_tokens
        else:
            pace = self._paces.get((model, learner.method), 1 / entrant.rate if entrant.rate else 0.0)
            each = learner.cost.all_flops * pace
            if spend.unit == "money":
                assert entrant.prices is not None, "refused before"
                each = float(entrant.prices.of_seconds(each))
        if trainings * each > LARGEST_SHARE * self.account.left:
            raise CellError(self._too_much(counted(trainings, "training"), trainings * each))

    def _pay_training(self, learner: Learner, entrant: Entrant) -> None:
        """Pay for a training; time is taken from the clock."""
        if self.spec.spend.unit == "tokens":
            self.account.purse.spent += learner.cost.all_tokens
        elif self.spec.spend.unit == "money":
            self._pay_time(entrant)
        else:
            self._is_spent()

    def _questions_of(self, asks: Sequence[Ask]) -> Iterator[_Question]:
        """What a round asks of prompts.

        Model after model, draw after draw, the smallest k first: so demonstrations of nested prompts are read once
        a round.
        """
        wanted: dict[tuple[int, int], list[int]] = defaultdict(list)
        for ask in asks:
            if self.settings[ask.candidate].learner is None:
                for draw, row in self._questions(ask):
                    wanted[ask.candidate, draw].append(row)
        for candidate, draw in sorted(wanted, key=self._place):
            group, cell = self.settings[candidate].cell(draw)
            yield _Question(candidate, draw, group, cell, [self.rows[row] for row in wanted[candidate, draw]])

    def _tell(self, ask: Ask, scores: dict[tuple[int, int, str], float], runners: Sequence[Runner]) -> None:
        setting = self.settings[ask.candidate]
        if setting.calibration is None:
            told = [scores[ask.candidate, draw, self.rows[row]] for draw, row in self._questions(ask)]
            self.race.tell(ask, told)
            return
        # the bias is estimated on all rows that are asked, so that earlier answers may change
        by_draw: dict[int, dict[str, float]] = {}
        told = []
        for draw, row in self._questions(Ask(ask.candidate, 0, ask.stop)):
            if draw not in by_draw:
                by_draw[draw] = self._calibrated_scores(runners[setting.entrant], ask, draw)
            told.append(by_draw[draw][self.rows[row]])
        self.race.retell(ask.candidate, told)

    def _calibrated_scores(self, runner: Runner, ask: Ask, draw: int) -> dict[str, float]:
        """Whether each calibrated answer of a draw is right, of the rows that are asked so far: by test id."""
        setting = self.settings[ask.candidate]
        names = [self.rows[row] for at, row in self._questions(Ask(ask.candidate, 0, ask.stop)) if at == draw]
        _, cell = setting.cell(draw)
        try:
            stored = runner.stored(cell)
        except CellError as error:
            raise UserError(f"{setting.name}, draw {draw}: {error}") from None
        scores = [found for name in names if (found := stored.get(name)) is not None]
        if len(scores) < len(names):
            raise UserError(f"{setting.name}: not all scores of its answers are stored; leave --calibrate out")
        data, raw = cell.task.data, np.array(scores, dtype=float)
        golds = {row.id: row.answer for row in data.test}
        best = calibrated(raw, mean_bias(raw)).argmax(axis=1)
        return {name: float(data.labels[place] == golds[name]) for name, place in zip(names, best, strict=True)}

    def _questions(self, ask: Ask) -> Iterator[tuple[int, int]]:
        """The draw and the row of each position; without draws the first draw's."""
        drawn = self.settings[ask.candidate].drawn
        for draw, row in zip(*self.race.schedule(ask.start, ask.stop), strict=True):
            yield int(draw) if drawn else 0, int(row)

    def _place(self, which: tuple[int, int]) -> tuple[int, str, int, int]:
        setting, draw = self.settings[which[0]], which[1]
        return setting.entrant, setting.select, draw, setting.k

    # -- the budget -----------------------------------------------------------------------------------

    def _count(self, entrant: Entrant, cell: CellPlan, one: Outcome) -> None:
        """Count what one request to a runner did. Copies of an earlier draw's answers do not count."""
        if not entrant.here and not cell.same_prompts:
            entrant.served.add(one.asked)
        self.outcome.add(one)

    def _spend(self, entrant: Entrant, one: Outcome, shared: int) -> None:
        """Pay for what this machine computed, or for its time so far; a server's requests have paid themselves.

        ``shared`` are the tokens that all prompts of the cell share, as far as they were not read before.
        """
        if not entrant.here:
            return
        if self.spec.spend.unit == "tokens":
            own = one.prompt_tokens - one.cached_tokens
            self.account.purse.spent += own + one.answer_tokens + (shared if own else 0)
        elif self.spec.spend.unit == "money":
            self._pay_time(entrant)

    def _pay_time(self, entrant: Entrant) -> None:
        """Pay for this machine's time so far."""
        if self._began is None:
            return
        assert entrant.prices is not None, "refused before"
        now = time.monotonic()
        self.account.purse.spent += float(entrant.prices.of_seconds(now - self._paid_until))
        self._paid_until = now

    def _begin(self) -> None:
        """Count time from now on, if nothing was computed before."""
        if self._began is None:
            self._began = self._paid_until = time.monotonic()

    def _is_spent(self) -> bool:
        """Whether the budget is spent; its time is taken from the clock."""
        if self.spec.spend.unit == "time":
            self.account.purse.spent = self.spec.spend.amount - self.left()
        return self.account.left <= 0

    def left(self) -> float:
        """What is left of the budget now; 0 or less if all is spent."""
        if self.spec.spend.unit != "time":
            return self.account.left
        return self.spec.spend.amount - (0.0 if self._began is None else time.monotonic() - self._began)

    def _of_cell(self, entrant: Entrant, cell: CellPlan, names: Iterable[str], before: int = 0) -> float:
        """An estimate of what these rows of a cell take, in tokens or money; 0 where it is not known before. Where time
        is spent, computed tokens, or answers of a server.

        ``before`` are tokens that its shared prefix has in common with what was read last. A server is estimated
        to have nothing in its cache, until it has billed something.
        """
        unit, new = self.spec.spend.unit, [name for name in names if name not in self._known[id(cell)]]
        if (unit == "money" and entrant.here) or not new:
            return 0.0
        if unit == "time" and not entrant.here:
            return float(len(new))
        own = sum(cell.prompt_layout.own_tokens[entrant.places[name]] for name in new)
        answers = len(new) * cell.answer_tokens
        if entrant.here:
            return float(max(cell.prefix_tokens - before, 0) + own + answers)
        prompts = own + len(new) * cell.prefix_tokens
        if unit == "tokens":
            return float(count_tokens(prompts, 0, answers, 0))
        assert entrant.prices is not None, "refused before"
        return float(entrant.prices.of_tokens(prompts, 0, answers))

    def _estimate(self, asks: Sequence[Ask]) -> float:
        """What a round takes, in tokens, money or seconds; 0 where it is not known before."""
        total, last, read = 0.0, None, 0
        known: dict[int, set[str]] = defaultdict(set)
        for candidate, _, group, cell, names in self._questions_of(asks):
            entrant = self.entrants[self.settings[candidate].entrant]
            names = [name for name in names if name not in known[id(cell)]]
            known[id(cell)] |= set(names)
            estimate = self._of_cell(entrant, cell, names, read if last is group else 0)
            if estimate:
                last, read = group, cell.prefix_tokens
            if self.spec.spend.unit == "time":
                estimate *= entrant.took / entrant.estimated if entrant.estimated else 0.0
            elif not entrant.here and entrant.estimated:
                estimate *= entrant.took / entrant.estimated
            total += estimate
        return total

    def _fit(self, asks: Sequence[Ask]) -> Sequence[Ask] | None:
        """A round of which the budget has enough left: all of it or its beginning; None if not one position fits.

        Times are rough estimates and an unfinished round counts for nothing, so a round gets a part of the time. An
        earlier command may have cut the round, too: what it answered is looked at first, as it was then.
        """
        if asks[0].start and (stored := self._stored(asks)):
            return _first(asks, stored)
        left, size = max(self.account.left, 0.0), min(ask.stop - ask.start for ask in asks)
        timed = self.spec.spend.unit == "time"
        begins = timed and not asks[0].start  # the first seconds load the model
        part = left * (LARGEST_ROUND if timed else 1.0)
        if begins or self._estimate(asks) <= part:
            return asks
        low, high = 0, size
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._estimate(_first(asks, middle)) <= part else (low, middle)
        if not low and self._estimate(_first(asks, 1)) <= left:
            low = 1
        return _first(asks, low) if low else None

    def _stored(self, asks: Sequence[Ask]) -> int:
        """How many positions of a round, from its beginning, have all their answers already; of a training, none."""
        size = min(ask.stop - ask.start for ask in asks)
        for ask in asks:
            setting = self.settings[ask.candidate]
            if setting.learner is not None:
                return 0
            for place, (draw, row) in enumerate(islice(self._questions(ask), size)):
                if self.rows[row] not in self._known[id(setting.cell(draw)[1])]:
                    size = place
                    break
        return size

    def _check_first_look(self) -> None:
        """Raise ``UserError`` if the budget cannot cover a first look at every setting."""
        spend = self.spec.spend
        if spend.unit == "time":
            return
        prompts = [i for i, one in enumerate(self.settings) if one.learner is None]
        look = [Ask(i, 0, min(FIRST_LOOK, self.race.rules.rows)) for i in prompts]
        needed = self._estimate(look)
        if needed > spend.amount:
            raise UserError(
                f"--spend {spend}: too small for the first answers of {counted(len(prompts), 'prompt')}; it takes "
                f"about {spend.at_least(needed)} (of a single one at least "
                f"{spend.at_least(min(self._estimate([one]) for one in look))}); raise it, or give fewer values of "
                "--k or --select"
            )

    def _too_small(self) -> UserError:
        """The error of a budget that is spent before every setting had a first look."""
        spend, looked = self.spec.spend, self._looked() - self._had
        prompts = sum(one.learner is None for one in self.settings)
        small = "short" if spend.unit == "time" else "small"
        takes = self.account.spent / looked if looked >= LEAST_LOOKED else self._by_formula(self._first_prompts())
        if takes is not None and takes <= self.account.spent:  # the formula does not know what else takes time
            takes = None
        needed = "" if takes is None else f", which takes about {spend.about(takes)}"
        return UserError(
            f"--spend {spend}: too {small} for the first answers of {counted(prompts, 'prompt')}{needed}; "
            f"{counted(self.outcome.answers, 'answer')} more are stored now: run the same command again to continue, "
            "or with fewer values of --k or --select"
        )

    def _by_formula(self, asks: Sequence[Ask]) -> float | None:
        """Seconds of these answers, from their operations and this machine's speed; None if unknown."""
        first, *more = self.entrants
        if more or self.spec.spend.unit != "time" or first.rate is None:
            return None
        operations = self._cost_of(asks, self.costs, "operations")
        return operations / first.rate if math.isfinite(operations) else None

    def _first_prompts(self) -> list[Ask]:
        """What the first round asks of prompts if all settings start in it."""
        return [ask for ask in self._first_round() if self.settings[ask.candidate].learner is None]

    def _first_round(self) -> list[Ask]:
        """What the first round asks if all settings start in it."""
        return Race(self.race.candidates, self.race.rules).next()

    def _looked(self) -> float:
        """The share of the first round's tokens that is answered."""
        done = whole = 0.0
        for _, _, _, cell, names in self._questions_of(self._first_round()):
            each = cell.prompt_tokens / cell.queries
            whole += len(names) * each
            done += sum(name in self._known[id(cell)] for name in names) * each
        return done / whole

    def still_needed(self) -> tuple[int, float]:
        """A forecast of what a sure choice takes beyond this: answers, and their cost in the unit of ``--spend``.

        The cost is 0 where it is not known, also of a part of the answers. Trainings that are missing are not counted.
        """
        race, asks = self.race, []
        for i, stop in enumerate(race.needed().tolist()):
            setting = self.settings[i]
            stop = stop if setting.drawn else min(stop, race.rules.rows)
            if setting.learner is None and stop > race.spent[i]:
                asks.append(Ask(i, int(race.spent[i]), stop))
        new = list(filter(self._is_new, self._questions_of(asks)))
        missing = {(id(one.cell), name) for one in new for name in one.rows if name not in self._known[id(one.cell)]}
        known = all(self._has_pace(self.entrants[self.settings[one.candidate].entrant]) for one in new)
        return len(missing), self._estimate(asks) if known else 0.0

    def _has_pace(self, entrant: Entrant) -> bool:
        """Whether it is known what answers of a model take: tokens and a server's money always, time once some took
        it, and this machine's money never.
        """
        unit = self.spec.spend.unit
        return unit == "tokens" or (entrant.estimated > 0 if unit == "time" else not entrant.here)

    # -- the answer -----------------------------------------------------------------------------------

    def answer(self) -> Answer:
        """How the settings stand."""
        return self.race.answer()

    @cached_property
    def near_duplicates(self) -> np.ndarray:
        """Which rows have a near duplicate among the examples: ``(rows,)`` booleans, in the order of asking."""
        near = set(self.sweep.task.near_duplicates)
        return np.array([name in near for name in self.rows])

    def scores_without_near_duplicates(self) -> np.ndarray:
        """The score of each setting on the other rows: ``(settings,)``, NaN without an answer to one of them."""
        return self.race.means(~self.near_duplicates)

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON has it: scores are shares of 1, times seconds."""
        answer, queries, costs = self.answer(), self.spec.queries, self.costs.of(self.spec.queries)
        more, spend = self.still_needed()
        without = self.scores_without_near_duplicates()
        settings = [
            {
                "setting": setting.name,
                "model": self.sweep_of(setting).model.name,
                "select": setting.select,
                "k": setting.k,
                "calibration": None if setting.calibration is None else str(setting.calibration),
                "score": None if not standing.predictions else standing.score,
                "ci_low": standing.low,
                "ci_high": standing.high,
                "predictions": standing.predictions,
                "draws": standing.draws,
                "score_without_near_duplicates": _known(new),
                "out": standing.out,
                "why": standing.why,
                "out_for_new": standing.out_for_new,
                "cheaper_within_margin": standing.cheaper,
                "flops_per_query": setting.flops(queries),
                "tokens_per_query": _known(cost[MEASURES.index("tokens")]),
                "money_per_query": _known(cost[MEASURES.index("money")]),
            }
            for setting, standing, cost, new in zip(self.settings, answer.standings, costs, without, strict=True)
        ]
        return {
            "task": self.sweep.task.data.spec.name,
            "model": ", ".join(one.sweep.model.name for one in self.entrants),
            "choice": self.settings[answer.choice].name if self.race.asked.any() else None,
            "decided": answer.decided,
            "cheaper_open": answer.cheaper_open,
            "ended": self.ended or None,
            "margin": self.race.rules.margin,
            "error": self.race.rules.error,
            "rows": self.race.rules.rows,
            "rows_with_near_duplicates": int(self.near_duplicates.sum()),
            "draws": self.race.rules.draws,
            "queries": queries,
            "compared_by": self.measure,
            "budget": {"unit": self.spec.spend.unit, "amount": self.spec.spend.amount, "spent": self.spent},
            "seconds": round(self.seconds, 1),
            "predictions": self.predictions,
            "predictions_of_full_sweep": self.full_sweep,
            "predictions_to_decide": more,
            "spend_to_decide": spend or None,
            "settings": settings,
            "left_out": list(self.left_out),
        }

    @property
    def spent(self) -> float:
        """What this command spent of its budget: seconds, tokens or money."""
        return round(self.account.spent, 1) if self.spec.spend.unit == "time" else self.account.spent

    @property
    def predictions(self) -> int:
        """Predictions that the race asked; a calibrated setting has those of another."""
        asked: dict[int, int] = {}
        for setting, count in zip(self.settings, self.race.spent.tolist(), strict=True):
            cells = id(setting.cells[0][1] if setting.cells else setting)
            asked[cells] = max(asked.get(cells, 0), count)
        return sum(asked.values())

    @property
    def full_sweep(self) -> int:
        """Predictions of a full sweep of all settings."""
        prompts = sum(cell.queries for one in self.settings if one.calibration is None for _, cell in one.cells)
        return prompts + sum(one.learner.draws * len(self.rows) for one in self.settings if one.learner is not None)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _first(asks: Sequence[Ask], size: int) -> list[Ask]:
    """The first positions of a round."""
    return [Ask(ask.candidate, ask.start, ask.start + size) for ask in asks]


def names_of(settings: Iterable[Setting]) -> str:
    """Names of settings, one for those that differ in k alone: ``bm25, k=50 and 100; dense, k=200``."""
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in settings:
        before, k, after = one.name.rpartition(f"k={one.k}")
        kinds[before, after].append(str(one.k) if k else "")
    return "; ".join(f"{before}{'k=' * any(ks)}{listed(ks)}{after}" for (before, after), ks in kinds.items())


def settings_of(sweep: Sweep, entrant: int = 0) -> list[Setting]:
    """Return the settings of which all draws fit."""
    costs = dict(zip(map(id, sweep.plan.cells), sweep.costs(), strict=True))
    points: dict[Any, list[tuple[PlannedGroup, CellPlan]]] = defaultdict(list)
    for group in sweep.plan.groups:
        for cell in group.cells:
            if cell.task.asked is None:
                points[cell.curve_point].append((group, cell))
    settings = []
    for point, cells in points.items():
        if any(cell.problem for _, cell in cells):
            continue
        if all(cell.same_prompts == cell.queries for _, cell in cells[1:]):
            cells = cells[:1]  # draws that are copies count as one
        known = tuple(cost for _, cell in cells if (cost := costs[id(cell)]) is not None)
        name = f"{point.select}, k={point.k}" if point.k else "no demonstrations"
        settings.append(Setting(name, point.select, point.k, tuple(cells), entrant, compute=known))
    return settings


def _impossible(spec: ChooseSpec, sweep: Sweep) -> list[str]:
    """The reasons for impossible combinations. That the default's hybrids begin at a larger k is no news."""
    return sweep.plan.combinations.only(
        lambda one: not (spec.has_default_selections and one.k is not None and 0 < one.k < (one.select.own or 0))
    ).reasons


def without_repeated(settings: Sequence[Setting]) -> tuple[list[Setting], list[str]]:
    """Return the settings without hybrids whose demonstrations are all retrieved as in another setting, and why."""
    plain_ones = {(one.entrant, one.select, one.k): one for one in settings}
    kept, repeated = [], []
    for one in settings:
        choice = one.cells[0][1].choice
        other = plain_ones.get((one.entrant, str(choice.by), one.k)) if one.k and choice.own == one.k else None
        if other is None:
            kept.append(one)
        else:
            repeated.append(f"{one.name}: shows no shared demonstrations; {other.name} races")
    return kept, repeated


def _calibrated(
    spec: ChooseSpec, entrants: Sequence[Entrant], settings: Sequence[Setting]
) -> tuple[list[Setting], list[str]]:
    """The calibrated twins of settings, and why some have none."""
    twins, refused = [], []
    for calibration in spec.calibrate or ():
        for place, entrant in enumerate(entrants):
            task, name = entrant.sweep.task, entrant.sweep.model.name
            if task.first_column != "correct" or task.normalize != "none":
                refused.append(f"calibrated settings of {name}: answers are not compared by accuracy alone")
            else:
                twins += [
                    replace(one, name=f"{one.name}, calibrated ({calibration})", calibration=calibration)
                    for one in settings
                    if one.entrant == place
                ]
    return twins, refused


def _learning(
    spec: ChooseSpec, entrants: Sequence[Entrant], rows: Sequence[str], draws: int
) -> tuple[list[Setting], list[str]]:
    """The settings that learn instead of prompting, and why others cannot.

    They have the prompts' draws; where no prompt is drawn, those of ``--draws``.
    """
    several, draws = len(entrants) > 1, draws if draws > 1 else spec.draws or DRAWS
    settings, refused = [], []
    for place, entrant in enumerate(entrants):
        model = f"{entrant.sweep.model.name}: " if several else ""
        found, reasons = learners_of(spec, entrant.asked_for, entrant.sweep, entrant.prices, rows, draws)
        refused += [f"{model}{reason}" for reason in reasons]
        settings += [
            Setting(f"{model}{one.method}, k={one.k}", one.method, one.k, cells=(), entrant=place, learner=one)
            for one in found
        ]
    return settings, refused


def first_round(settings: Sequence[Setting]) -> int:
    """Return the rows of the first round: as many as cost what it takes to read the demonstrations of all draws.

    Fewer rows would save little of the round's time.
    """
    shared = read_once(settings, [one.draws * (one.shared_flops or 0.0) for one in settings])
    query = sum(one.query_flops or 0.0 for one in settings)
    return max(FIRST_LOOK, math.ceil(shared / query) if query else 0)


def read_once(settings: Sequence[Setting], amounts: Iterable[float]) -> float:
    """Return the sum of what these settings read: of nested demonstrations, the largest amount alone."""
    largest: dict[Any, float] = {}
    for setting, amount in zip(settings, amounts, strict=True):
        largest[setting.read_with] = max(float(amount), largest.get(setting.read_with, 0.0))
    return sum(largest.values())


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
