"""A race of candidates: what to ask next, who is out, when to stop, and the answer at any moment.

All candidates follow one schedule of (draw, row) pairs, so the state of a candidate is one number: its position
in the schedule. Position t asks row ``t % rows`` with draw ``(row + pass) % draws``: each row once before any
row twice, and each draw as often as the others. Rows and draws must be in random order. Differences are
paired by row and draw.

The leader is the best so far. A candidate is out while the evidence says that the leader is not worse
than it by more than the margin, and the race is decided when all others are out (a race in the sense of
Maron & Moore 1997, Artif. Intell. Rev. 11; the rule to ask the leader and those that might still beat it is
LUCB's, Kalyanakrishnan et al. 2012, ICML). If the leader changes, all are compared with the new one and
those that are not out continue: no candidate is out by a chain of comparisons, whose margins would add up.

With costs, the choice is the cheapest candidate that is not worse than any other by more than the margin. A
candidate that is cheaper than the leader is not out before it is within the margin (error 5%) of all others, or
significantly worse than one of them. So an expensive candidate is out when it is shown not to be better by more than
the margin, a cheap one when it is significantly worse. A cheap one that is not better by more than the margin is asked
only while as many answers again cost at most what it would save.

Error: a wrong exclusion of the truly best candidate, and a choice that is worse than it by more than the
margin, need wrong evidence in one of its comparisons with the others. There are ``candidates - 1`` of them, so
each has ``error / (candidates - 1)`` at all times together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from icl_bench.choosing.evidence import FIRST_LOOK, PSEUDO, Means, Target, log_evidence, mean_differences, radius

INTERVAL_GAP = 0.1
"""Intervals of accuracies are the narrowest where they are about this wide."""

CHEAPER = 0.95
"""Share of another's cost up to which a candidate is cheaper: what saves less is not worth its predictions."""

Why = Literal["worse", "dearer", "not better", "left out"]


@dataclass(frozen=True)
class Candidate:
    """One setting in the race."""

    name: str
    drawn: bool = True
    """Whether its answers depend on the draw. If not, each row is asked once."""
    cost: float = math.nan
    """Of a query, in any unit. NaN if it is not known: then it is not cheaper than others, nor they than it."""
    settles: int = 0
    """Rows of a draw before its answers are compared, where they depend on the draw's other rows."""
    at_once: bool = False
    """Whether it is asked everything at once, however far others are."""


@dataclass(frozen=True)
class Rules:
    """What the race decides, and its error probability."""

    rows: int
    draws: int
    margin: float = 0.02
    """Difference that does not matter, as a share of 1."""
    error: float = 0.05
    """Probability that a candidate better than all others by more than the margin is ever out."""
    target: Target = "sweep"
    first: int = FIRST_LOOK
    """Positions of the first round, if the rows are so many."""
    queries: float = math.inf
    """Queries that the choice will answer, in which a cheaper one saves."""
    growth: float = 0.15
    """The ratio of one round's rows to those of the round before. Where a draw's demonstrations are read again in
    each round, fewer and larger rounds cost less; evidence holds at any time."""


@dataclass(frozen=True)
class Ask:
    """Positions of the schedule to ask a candidate: from ``start`` up to ``stop``, which is not asked."""

    candidate: int
    start: int
    stop: int


@dataclass(frozen=True)
class Standing:
    """One candidate at a moment; scores are shares of 1."""

    candidate: Candidate
    predictions: int
    draws: int
    """Draws that answered."""
    score: float
    low: float
    """Of the confidence sequence of the score at ``1 - error``, each candidate by itself, for new rows and draws."""
    high: float
    out: bool
    """Whether it is asked no more: another is the choice, or it cannot become it."""
    out_for_new: bool
    """Whether the choice is not worse by more than the margin on new rows and draws, as the rows and draws of the
    sweep show as samples."""
    cheaper: bool
    """Whether it costs less than the choice and is not worse than it by more than the margin."""
    why: Why | None = None
    """Why it is out: significantly worse than the choice; not better by more than the margin, and dearer than the
    choice; significantly worse than the leader; not better by more than the margin; or withdrawn."""

    @property
    def raced(self) -> bool:
        """Whether it was not withdrawn."""
        return self.why != "left out"


@dataclass(frozen=True)
class Answer:
    """What the race says at a moment."""

    choice: int
    decided: bool
    """Whether the choice is within the margin of the best, up to the error probability."""
    standings: tuple[Standing, ...]
    """In the order of the candidates."""
    cheaper_open: int = 0
    """Candidates that cost less than the choice and may be within the margin, too."""
    not_worth: int = 0
    """Those of them that are not asked, because as many answers again cost more than they would save."""

    @property
    def waiting(self) -> int:
        """Candidates without an answer that were not withdrawn."""
        return sum(one.raced and not one.out and not one.predictions for one in self.standings)


class _State(NamedTuple):
    """What the evidence says at a moment."""

    choice: int
    sure: bool
    """Whether the choice is within the margin of the best."""
    running: np.ndarray
    """Who is to be asked, ``(candidates,)`` booleans; the choice and the leader are among them."""
    cheaper: int
    """Candidates that are cheaper than the choice, open, and asked."""
    resting: np.ndarray
    """Those of them that are not worth asking: ``(candidates,)`` booleans."""


class Race:
    """The state of a race. It takes scores and does no input or output; it draws nothing at random."""

    def __init__(self, candidates: Sequence[Candidate], rules: Rules) -> None:
        """Begin with nothing asked. Raises ValueError where there is nothing to race."""
        if not candidates or rules.rows < 1 or rules.draws < 1:
            raise ValueError("a race needs a candidate, a row and a draw")
        if not 0 < rules.margin < 1 or not 0 < rules.error < 1:
            raise ValueError(f"margin {rules.margin} and error {rules.error} must be between 0 and 1")
        self.candidates, self.rules = tuple(candidates), rules
        size = len(self.candidates)
        self.asked = np.zeros(size, dtype=int)
        """How far each candidate came: ``(candidates,)``."""
        self._drawn = np.array([candidate.drawn for candidate in self.candidates])
        self._costs = np.array([candidate.cost for candidate in self.candidates], dtype=float)
        self._asking, self._reading = self._costs, np.zeros(size)
        self._complete_alone = np.array([one.at_once or not one.drawn for one in self.candidates])
        """Whose later rows cost nothing more, or do not depend on draws."""
        self._scores = np.full((size, rules.draws, rules.rows), np.nan)
        self._sums = np.zeros((size, rules.rows))
        settled = np.array([one.settles for one in self.candidates]) * np.where(self._drawn, rules.draws, 1)
        self._first = np.maximum(min(FIRST_LOOK, rules.rows), np.minimum(settled, self.length))
        """Positions of each candidate before its answers are compared: ``(candidates,)``."""
        self._withdrawn = np.zeros(size, dtype=bool)
        self._leader = -1
        """The leader, or -1 where scores came since it was found."""
        self._threshold = math.log(max(size - 1, 1) / rules.error)
        """Of the logarithm of evidence."""
        self._evidence = np.full((size, size), -np.inf)
        """Most so far that the first is not worse than the second by more than the margin."""
        self._better = np.full((size, size), -np.inf)
        """Most so far that the first is better than the second."""
        self._compared = np.zeros((size, size), dtype=int)
        self._judged: _State | None = None
        self._answered: Answer | None = None

    @property
    def length(self) -> int:
        """Positions of the whole schedule."""
        return self.rules.rows * self.rules.draws

    @property
    def looked(self) -> bool:
        """Whether each candidate was asked, except withdrawn ones."""
        return bool((self.asked > 0)[~self._withdrawn].all())

    @property
    def spent(self) -> np.ndarray:
        """Predictions of each candidate: ``(candidates,)``."""
        return np.where(self._drawn, self.asked, np.minimum(self.asked, self.rules.rows))

    def schedule(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the draws and the rows of positions, ``(stop - start,)`` each."""
        passes, rows = np.divmod(np.arange(start, stop), self.rules.rows)
        return (rows + passes) % self.rules.draws, rows

    def tell(self, ask: Ask, scores: Sequence[float] | np.ndarray) -> None:
        """Take the scores, from 0 to 1, of what was asked, which is within a pass: all of it or its beginning.

        Raises ValueError where they do not continue what the candidate has, or are no scores.
        """
        taken, candidate = np.asarray(scores, dtype=float), ask.candidate
        room = min(ask.stop - ask.start, self.rules.rows - ask.start % self.rules.rows)
        if ask.start != self.asked[candidate] or len(taken) > room:
            name = self.candidates[candidate].name
            raise ValueError(f"{name}: {len(taken)} scores from {ask.start} on, asked from {self.asked[candidate]} on")
        if not ((taken >= 0) & (taken <= 1)).all():
            raise ValueError(f"{self.candidates[candidate].name}: scores outside 0 to 1")
        stop = ask.start + len(taken)
        self._scores[candidate].reshape(-1)[ask.start : stop] = taken
        begin = ask.start % self.rules.rows
        self._sums[candidate, begin : begin + len(taken)] += taken
        self._forget()
        if not self._drawn[candidate] and stop == self.rules.rows:
            self._scores[candidate] = self._scores[candidate, 0]
            self._sums[candidate] *= self.rules.draws
            stop = self.length
        self.asked[candidate] = stop

    def retell(self, candidate: int, scores: Sequence[float] | np.ndarray) -> None:
        """Take new scores for all that a candidate was asked, and more of them: what was asked later changed those of
        before. Evidence of the replaced scores is dropped. Raises ValueError where they are no scores.
        """
        for evidence in (self._evidence, self._better):
            evidence[candidate], evidence[:, candidate] = -np.inf, -np.inf
        self._compared[candidate], self._compared[:, candidate] = 0, 0
        self.asked[candidate], self._sums[candidate], self._scores[candidate] = 0, 0.0, np.nan
        for start in range(0, len(scores), self.rules.rows):
            stop = min(start + self.rules.rows, len(scores))
            self.tell(Ask(candidate, start, stop), scores[start:stop])

    def withdraw(self, candidate: int) -> None:
        """Take out a candidate that cannot be asked (further): the race is about the others. Raises ValueError for the
        last one.
        """
        self._withdrawn[candidate] = True
        if self._withdrawn.all():
            raise ValueError("a race needs a candidate")
        self._forget()

    def means(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the mean score of each candidate, rows of equal weight: ``(candidates,)``, NaN without a score.

        ``rows`` are booleans, ``(rows,)``: those that count; by default all.
        """
        passes, begun = np.divmod(self.asked, self.rules.rows)
        counts = passes[:, None] + (np.arange(self.rules.rows) < begun[:, None])
        counted = counts > 0 if rows is None else (counts > 0) & rows
        sums = np.where(counted, self._sums / np.maximum(counts, 1), 0.0).sum(axis=1)
        number = counted.sum(axis=1)
        return np.where(number > 0, sums / np.maximum(number, 1), np.nan)

    def on_common(self, one: int, other: int) -> tuple[int, float, float]:
        """Return the number of positions that two candidates both answered, and the mean score of each on these."""
        common = int(min(self.asked[one], self.asked[other]))
        scores = self._scores[[one, other]].reshape(2, -1)[:, :common]
        first, second = scores.mean(axis=1) if common else (math.nan, math.nan)
        return common, float(first), float(second)

    def leader(self) -> int:
        """Return the best so far of those that came furthest; of equals the cheapest.

        Those that answered everything at once have scores on other rows than the others. So the best of either kind
        is compared with the other's on the positions that both answered.
        """
        if self._leader < 0:
            self._leader = self.best(np.flatnonzero(~self._withdrawn))
        return self._leader

    def best(self, places: np.ndarray) -> int:
        """Return the best so far of some candidates, ``(n,)``, as :meth:`leader` does of all."""
        reach, asked = self._reach()[places], self.asked[places]
        furthest = (reach == reach.max()) & (asked > 0)
        complete = furthest & self._complete_alone[places] & (asked == self.length)
        kinds = [places[kind] for kind in (complete, furthest & ~complete) if kind.any()]
        means = self.means()
        best = [self._highest(kind, means[kind]) for kind in kinds or [places]]
        if len(best) == 1:
            return best[0]
        _, *scores = self.on_common(*best)
        return self._highest(np.array(best), np.array(scores))

    def _highest(self, places: np.ndarray, scores: np.ndarray) -> int:
        """Return the candidate of the highest score, of equals the cheapest: ``(n,)`` candidates and their scores."""
        return int(places[np.lexsort((self._costs[places], -scores))[0]])

    def price(
        self, costs: Sequence[float] | np.ndarray, asking: np.ndarray | None = None, reading: np.ndarray | None = None
    ) -> None:
        """Take what a query of each candidate costs, in place of what was known before: ``(candidates,)``, NaN where it
        is not known.

        ``asking`` is the cost of a position, by default of a query; ``reading`` is that of a round beside its
        positions.
        """
        self._costs = np.array(costs, dtype=float)
        self._asking = self._costs if asking is None else asking
        self._reading = np.zeros(len(self._costs)) if reading is None else reading
        self._forget()

    def _forget(self) -> None:
        """Drop what was found from earlier scores and costs."""
        self._leader, self._judged, self._answered = -1, None, None

    def running(self) -> np.ndarray:
        """Return who is not out: the choice, the leader, and those that might take the choice's place."""
        return np.flatnonzero(self._state().running)

    def choice(self) -> int:
        """Return the cheapest that is shown to be within the margin of the best, or else the leader."""
        return self._state().choice

    def decided(self) -> bool:
        """Return whether the choice is within the margin of the best, up to the error probability."""
        return self._state().sure

    def _state(self) -> _State:
        if self._judged is None:
            self._judged = self._judge()
        return self._judged

    def _judge(self) -> _State:
        """Find the choice, and who may still take its place."""
        leader, costs = self.leader(), self._costs
        self._compare(leader)
        beaten = self._evidence[leader] >= self._threshold
        beaten[leader] = True
        beaten |= self._withdrawn
        sure, choice = bool(beaten.all() and self.asked[leader]), leader
        opened: list[tuple[int, np.ndarray]] = []
        running = np.zeros(len(costs), dtype=bool)
        saves = (costs < costs[leader]) & (costs <= CHEAPER * costs[leader]) & ~self._withdrawn
        cheap = [int(i) for i in np.lexsort((-self.means(), costs)) if saves[i]]  # of equal costs the best first
        self._compare(leader, np.array(cheap, dtype=int))
        for i in cheap:
            self._compare(i, np.array([leader]))
            if self._evidence[i, leader] < self._threshold:
                if not self._worse(i, [leader]):
                    opened.append((i, np.zeros(len(costs), dtype=bool)))
                continue
            self._compare(i)
            rivals = self._evidence[i] < self._threshold
            rivals[i] = False
            rivals &= ~self._withdrawn
            if not rivals.any() and self.asked[i]:
                sure, choice = True, i
                break
            for rival in np.flatnonzero(rivals):
                self._compare(int(rival), np.array([i]))
            if not self._worse(i, np.flatnonzero(rivals)):
                opened.append((i, rivals))
        if not sure:
            running |= ~beaten
        worth = self._worth_asking(choice, opened, running)
        resting = np.zeros(len(costs), dtype=bool)
        resting[[i for i, _ in opened]] = True
        resting &= ~worth
        running = worth
        running[[leader, choice]] = True
        return _State(choice, sure, running, len(opened) - int(resting.sum()), resting)

    def _worth_asking(self, choice: int, opened: Sequence[tuple[int, np.ndarray]], running: np.ndarray) -> np.ndarray:
        """Who is asked, ``(candidates,)`` booleans: who runs for its accuracy, and cheaper ones with their rivals.

        Cheaper ones are added in the order of cost, while as many answers again cost no more than the cheapest saves.
        """
        worth = running
        saved = (self._costs[choice] - self._costs[opened[0][0]]) * self.rules.queries if opened else 0.0
        for i, rivals in opened:
            wanted = worth | rivals
            wanted[[i, choice]] = True
            extra = wanted & ~running
            extra &= self.asked < self.length  # of the others nothing more can be asked
            needed = np.nansum((self.asked * self._asking + self._reading)[extra])
            if needed <= saved:
                worth = wanted
        return worth

    def _worse(self, i: int, others: Sequence[int] | np.ndarray) -> bool:
        """Whether one of others is significantly better than a candidate.

        An error here loses money, not accuracy, so each comparison has the whole error for itself; it counts only with
        the evidence that the other is not worse by more than the margin, whose errors are those of the race.
        """
        better = self._better[others, i] >= math.log(1 / self.rules.error)
        return bool((better & (self._evidence[others, i] >= self._threshold)).any())

    def next(self) -> list[Ask]:
        """Return what to ask now: nothing once the choice is sure and none that is cheaper may take its place, or all
        is asked.
        """
        state, running = self._state(), self.running()
        unfinished = running[self.asked[running] < self.length]
        if not len(unfinished) or (state.sure and not state.cheaper):
            return []
        lowest = int(self.asked[unfinished].min())
        ahead = self.asked[unfinished][self.asked[unfinished] > lowest]
        stop = min(self._grown(lowest), *ahead.tolist()) if len(ahead) else self._grown(lowest)
        return [Ask(int(i), lowest, stop) for i in unfinished if self.asked[i] == lowest]

    def answer(self) -> Answer:
        """Return the choice so far and how each candidate stands."""
        if self._answered is None:
            self._answered = self._answer()
        return self._answered

    def needed(self) -> np.ndarray:
        """Return how far each candidate would have to be asked for a sure choice, ``(candidates,)``: a forecast.

        It assumes that each open candidate continues to differ from the leader as it has so far. Candidates that are
        not open, and all of them once the choice is sure, stay where they are.
        """
        leader, far = self.leader(), self.asked.copy()
        if self.decided():
            return far
        open_ = self._evidence[leader] < self._threshold
        open_[leader] = False
        for i in np.flatnonzero(open_ & ~self._withdrawn):
            far[i] = max(far[i], self._needed_against(leader, int(i)))
        far[leader] = max(far[leader], *far[open_]) if open_.any() else far[leader]
        return far

    def _needed_against(self, one: int, other: int) -> int:
        """Positions at which ``one`` would be shown not to be worse than ``other`` by more than the margin."""
        asked = int(min(self.asked[one], self.asked[other]))
        least = int(max(self._first[one], self._first[other]))
        if asked < least:
            return least
        seen = (self._scores[one] - self._scores[other]).reshape(-1)[:asked]
        mean = seen.sum() / (asked + PSEUDO)
        spread = (np.square(seen).sum() + PSEUDO) / (asked + PSEUDO) - mean**2
        length = self.length if self._drawn[one] or self._drawn[other] else self.rules.rows
        far = np.unique(np.geomspace(asked, max(length, asked), 200).astype(int))
        found = Means(np.full(len(far), mean), spread / far * np.clip(1 - far / length, 0, 1), far.astype(float))
        reached = far[log_evidence(found, self.rules.margin) >= self._threshold]
        return int(reached[0]) if len(reached) else length

    def _answer(self) -> Answer:
        choice, sure, running, cheaper, resting = self._state()
        for i in np.flatnonzero(self._costs < self._costs[choice]):
            self._compare(int(i), np.array([choice]))
        shown, ended = self._shown_for_new(choice), sure and not cheaper
        standings = tuple(
            self._standing(i, choice, i != choice and not resting[i] and (ended or not running[i]), bool(shown[i]))
            for i in range(len(self.candidates))
        )
        idle = int(resting.sum())
        return Answer(choice, sure, standings, cheaper + idle, idle)

    def _why(self, i: int, choice: int) -> Why:
        """Why a candidate is out."""
        if self._withdrawn[i]:
            return "left out"
        if self._worse(i, [choice]):
            return "worse"
        if self._costs[i] > self._costs[choice]:
            return "dearer"
        return "worse" if self._worse(i, [self.leader()]) else "not better"

    def _shown_for_new(self, choice: int) -> np.ndarray:
        """Return of which candidates rows and draws, as samples, show that the choice is not worse than they.

        One look: an e-value holds at the moment at which one stops, too.
        """
        shown = np.zeros(len(self.candidates), dtype=bool)
        common = np.minimum(self.asked, self.asked[choice])
        may = common >= np.maximum(self._first, self._first[choice])
        for asked in np.unique(common[may]):
            which = np.flatnonzero(may & (common == asked))
            found = self._differences(choice, which, int(asked), "new")
            shown[which] = log_evidence(found, self.rules.margin) >= self._threshold
        shown[choice] = False
        shown[self._withdrawn] = False
        return shown

    def _standing(self, i: int, choice: int, out: bool, out_for_new: bool) -> Standing:
        asked, draws = int(self.asked[i]), self.rules.draws
        cheaper = bool(self._costs[i] < self._costs[choice] and self._evidence[i, choice] >= self._threshold)
        why = self._why(i, choice) if out else None
        if not asked:
            return Standing(self.candidates[i], 0, 0, math.nan, 0.0, 1.0, out, out_for_new, cheaper, why)
        # as differences from -1 to 1, whose pseudo-differences are then a right and a wrong answer
        found = mean_differences(2 * self._scores[[i]] - 1, asked, draws, self._drawn[[i]], "new")
        half = float(radius(Means(found.mean, found.variance / 4, found.freedom), self.rules.error, INTERVAL_GAP)[0])
        middle = (float(found.mean[0]) + 1) / 2
        low, high = max(middle - half, 0.0), min(middle + half, 1.0)
        seen = len(np.unique(self.schedule(0, asked)[0])) if self._drawn[i] else 1
        score, spent = float(self.means()[i]), int(self.spent[i])
        return Standing(self.candidates[i], spent, seen, score, low, high, out, out_for_new, cheaper, why)

    def _compare(self, one: int, others: np.ndarray | None = None) -> None:
        """Bring the evidence of one candidate against all others up to date: that it is not worse by more than the
        margin. Against ``others`` by name also that it is better.
        """
        common = np.minimum(self.asked, self.asked[one])
        wanted = self._evidence[one] < self._threshold
        if others is not None:
            wanted |= self._better[one] < math.log(1 / self.rules.error)
        stale = wanted & (common > self._compared[one])
        stale &= common >= np.maximum(self._first, self._first[one])
        stale[one] = False
        for asked in np.unique(common[stale]):
            which = np.flatnonzero(stale & (common == asked))
            which = which if others is None else np.intersect1d(which, others)
            if not len(which):
                continue
            found = self._differences(one, which, int(asked), self.rules.target)
            evidence = log_evidence(found, self.rules.margin)
            self._evidence[one, which] = np.maximum(self._evidence[one, which], evidence)
            better = log_evidence(found, self.rules.margin, 0.0)
            self._better[one, which] = np.maximum(self._better[one, which], better)
            self._compared[one, which] = asked
        if self.rules.target == "sweep":  # whatever the others will answer
            low, high = self._bounds()
            self._evidence[one, low[one] + self.rules.margin >= high] = np.inf
            self._better[one, low[one] > high] = np.inf

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest score of each candidate over the whole schedule, if all that it was not
        asked were wrong or right: ``(candidates,)`` each.
        """
        complete = self.asked == self.length
        length = np.where(self._drawn | complete, self.length, self.rules.rows)
        known = complete | np.array([not one.settles for one in self.candidates])  # other answers may still change
        sums, asked = np.where(known, self._sums.sum(axis=1), 0.0), np.where(known, self.asked, 0)
        return sums / length, (sums + length - asked) / length

    def _differences(self, one: int, others: np.ndarray, asked: int, target: Target) -> Means:
        passes = -(-asked // self.rules.rows)
        differences = self._scores[one, :passes] - self._scores[others, :passes]
        drawn = self._drawn[one] | self._drawn[others]
        return mean_differences(differences, asked, self.rules.draws, drawn, target)

    def _reach(self) -> np.ndarray:
        """Return how far each came; one that was asked everything because that cost nothing more is as far as any."""
        complete = self._complete_alone & (self.asked == self.length)
        others = self.asked[~complete & ~self._withdrawn]
        reach = np.where(complete, max(int(others.max(initial=0)), 1), self.asked)
        return np.where(self._withdrawn, 0, reach)

    def _grown(self, asked: int) -> int:
        """Return where the next round ends: after whole turns of draws, within the pass."""
        rows, draws = self.rules.rows, self.rules.draws
        wanted = max(self.rules.first, math.ceil(asked * (1 + self.rules.growth)), asked + 1)
        return min(-(-wanted // draws) * draws, (asked // rows + 1) * rows)
