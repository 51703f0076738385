"""The plan of a run: its cells, grouped by shared prefix, with exact token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from icl_bench.demonstrations.ordering import AsDrawn, Order
from icl_bench.demonstrations.perturbations import NONE
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import ChoiceError, UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.results.calibration import Calibration
from icl_bench.results.cells import CellSpec
from icl_bench.sweep.calibration_queries import asked_group
from icl_bench.sweep.combinations import Circumstances, Combination, CombinationCheck, Combinations
from icl_bench.sweep.compute_cost import PromptLayout
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.label_queries import labelling_group
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.wording import counted, few

VLLM_ROUNDING = 256
"""vLLM's ``max_model_len`` is a multiple of this many tokens."""


def room_for(plan: Plan, window: int) -> int:
    """Tokens of the largest runnable cell and an end token, rounded up, at most the window."""
    cells = [cell for group in plan.groups for cell in group.runnable]
    unknown = plan.task.perturbation.asks_model  # labels may be longer than the placeholders
    needed = max(c.needed_tokens + (c.spec.k * c.task.answer_tokens if unknown else 0) for c in cells) + 1
    needed = min(needed, max(window, *(c.needed_tokens + 1 for c in cells)))
    return min(-(-needed // VLLM_ROUNDING) * VLLM_ROUNDING, max(window, needed))


DEFAULT_DRAWS = 10


def draws_of(choice: SelectorSpec, draws: int | None) -> int:
    """The number of draws of a selection; ``draws`` is the requested number."""
    return draws or (DEFAULT_DRAWS if choice.drawn else 1)


@dataclass(frozen=True)
class CellPlan:
    """A cell and its cost, before anything is computed."""

    spec: CellSpec
    prefix_tokens: int
    """Tokens that all queries of the cell share."""
    longest_prompt: int
    answer_tokens: int
    """Maximum tokens after a prompt: of an answer and of the thought before it."""
    context_tokens: int
    prompt_tokens: int
    """Tokens of all prompts, shared or not, counted once per answer."""
    new_tokens: int
    """Tokens to compute once the group's smaller cells are cached."""
    queries: int
    """Number of predictions of the cell."""
    choice: SelectorSpec
    """The selector; ``spec`` has its name."""
    order: Order
    """The order; ``spec`` has its name."""
    prompt_layout: PromptLayout
    """How its prompts are read. Decides operations and cache bytes."""
    task: TokenizedTask = field(compare=False, repr=False)
    """The task with the cell's queries."""
    problem: str | None = None
    """Why the cell cannot run; None if it can."""
    samples: int = 1
    """Answers to each query; of several, the majority is the prediction."""
    same_prompts: int = 0
    """Prompts that an earlier draw also has. Retrieval is random only among unrelated demonstrations."""

    @property
    def curve_point(self) -> CellSpec:
        """The key that all draws of a point share: the cell's name for draw 0."""
        return self.spec.model_copy(update={"draw": 0})

    @property
    def needed_tokens(self) -> int:
        """Longest prompt and longest answer."""
        return self.longest_prompt + self.answer_tokens

    @property
    def pattern(self) -> Pattern:
        """The attention pattern."""
        return self.prompt_layout.pattern

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that are computed once or cached."""
        return self.prompt_tokens - self.new_tokens


@dataclass
class PlannedGroup:
    """A group of cells, smallest k first."""

    group: PromptGroup
    cells: list[CellPlan]
    labels: PlannedGroup | None = field(default=None, repr=False)
    """The cells that ask the model for the labels of these demonstrations; None if labels are known."""

    @property
    def runnable(self) -> list[CellPlan]:
        """The cells that fit."""
        return [cell for cell in self.cells if cell.problem is None]

    def continued(self, finished: Sequence[bool | None]) -> list[CellPlan]:
        """The cells, of which the unfinished ones cannot extend the prefixes of ``finished`` ones."""
        cells, planned, held = [], 0, 0
        grows = self.group.grows and not self.group.pattern.reuses
        for cell, done in zip(self.cells, finished, strict=True):
            again = planned - held if grows and not done and cell.problem is None else 0
            cells.append(replace(cell, new_tokens=cell.new_tokens + again))
            if cell.problem is None:
                planned, held = cell.prefix_tokens, held if done else cell.prefix_tokens
        return cells

    @property
    def reserve(self) -> int:
        """Tokens of the longest shared prefix that will be computed."""
        return max((cell.prefix_tokens for cell in self.runnable), default=0)


@dataclass
class Plan:
    """All cells of one task and model."""

    task: TokenizedTask
    groups: list[PlannedGroup]
    combinations: Combinations = field(default_factory=Combinations)
    """The requested combinations, and those left out with their reasons."""
    not_calibrated: list[str] = field(default_factory=list)
    """Why some cells cannot be calibrated as requested."""

    @property
    def cells(self) -> list[CellPlan]:
        """All cells, including those that cannot run."""
        return [cell for group in self.groups for cell in group.cells]

    def continued(self, finished: Sequence[bool | None]) -> Plan:
        """The plan of a run that finds some cells finished: it computes the demonstrations that these shared with
        larger k.
        """
        done = iter(finished)
        groups = [replace(group, cells=group.continued([next(done) for _ in group.cells])) for group in self.groups]
        return replace(self, groups=groups)

    @property
    def problems(self) -> list[str]:
        """Why cells cannot run: one reason for all draws, with the numbers of the longest."""
        curves: dict[tuple[str, str, str, int], list[CellPlan]] = {}
        for cell in self.cells:
            spec = cell.spec
            curves.setdefault((spec.select, spec.order, spec.attention, spec.k), []).append(cell)
        return list(dict.fromkeys(problem for cells in curves.values() if (problem := _problem(cells))))


def _problem(draws: Sequence[CellPlan]) -> str | None:
    """Why some draws of one k cannot run."""
    failing = [cell for cell in draws if cell.problem]
    if not failing:
        return None
    longest = max(failing, key=lambda cell: cell.needed_tokens)
    some = f" (in {len(failing)} of {len(draws)} draws)" if len(failing) < len(draws) else ""
    return f"{longest.problem}{some}"


def make_plan(
    task: TokenizedTask,
    k_values: KValues,
    select: Sequence[SelectorSpec] = (SelectorSpec(),),
    orders: Sequence[Order] | None = None,
    draws: int | None = None,
    attention: Sequence[Pattern] = (FULL,),
    able: CombinationCheck = lambda _: None,
    calibrations: Sequence[Calibration] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan all cells and count their tokens.

    ``draws`` defaults to 10, and to 1 for ``first``, and for retrieval, where only demonstrations without similarity
    are chosen at random. Without demonstrations (k=0) all selectors, orders, attention patterns and draws have the same
    prompts: one cell, named as a single draw of random selection. Impossible combinations are left out with their
    reasons; ``able`` refuses what model and backend do not support. Queries of ``calibrations`` are separate cells
    after those that they calibrate. ``say`` receives the number of planned draws. Raises ``UserError`` if no cell can
    run, or none can be calibrated as requested.
    """
    combinations = Combinations.of(
        select, orders, attention, k_values.numbers, Circumstances.of(task), unsaid=k_values.largest, able=able
    )
    combinations.require_some()
    groups = _zero_shot(task, [one.attention for one in combinations.possible if one.k == 0])
    curves = dict.fromkeys((one.select, one.order) for one in combinations.possible if one.k != 0)
    count = _DrawCount(say)
    laid_out = [_Curves(task, choice, order, draws, combinations, count) for choice, order in curves]
    count.draws = sum(curve.draw_count for curve in laid_out)
    for curve in laid_out:
        groups += curve.groups(k_values)
    plan = Plan(task, groups, combinations)
    if not groups:
        raise UserError(combinations.refusal)
    if not any(group.runnable for group in groups):
        raise UserError("nothing fits: " + "; ".join(plan.problems + combinations.reasons))
    for calibration in calibrations:
        if calibration.queries is not None:
            _ask_for(calibration, plan)
    if task.perturbation.asks_model:
        _ask_for_labels(plan)
    return plan


def _ask_for_labels(plan: Plan) -> None:
    """Add the cells that label demonstrations, one per draw, before all groups.

    Raises ``UserError`` if they cannot run.
    """
    shots, asked, seen = plan.task.perturbation.apart, list[PlannedGroup](), set[int]()
    by_draw: dict[int, list[PlannedGroup]] = {}
    for planned in plan.groups:
        if planned.runnable:
            by_draw.setdefault(planned.group.draw, []).append(planned)
    for draw, groups in by_draw.items():
        shown = [one.group.demonstrations(cell.spec.k).ravel() for one in groups for cell in one.runnable]
        rows = np.unique(np.concatenate(shown))
        asking = labelling_group(plan.task, rows, draw)
        (cell,) = _cells(asking, [shots])
        if cell.problem is not None:
            raise UserError(f"--perturbation {plan.task.perturbation}: {cell.problem}")
        if not shots:  # a row that an earlier draw labelled has the same prompt
            cell = replace(cell, same_prompts=len(seen.intersection(rows.tolist())))
            seen.update(rows.tolist())
        asked.append(PlannedGroup(asking, [cell]))
        for one in groups:
            one.labels = asked[-1]
    plan.groups[:0] = asked


def _ask_for(calibration: Calibration, plan: Plan) -> None:
    """Add the calibration queries after each group of test rows. Raises ``UserError`` if no group can be calibrated."""
    reasons, groups, added = [], list[PlannedGroup](), 0
    for planned in plan.groups:
        groups.append(planned)
        numbers = [cell.spec.k for cell in planned.runnable]
        if planned.group.task.asked is not None or not numbers:
            continue
        try:
            asking = asked_group(planned.group, calibration, numbers)
            groups.append(PlannedGroup(asking, _cells(asking, numbers)))
            added += 1
        except (ChoiceError, UserError) as error:
            reasons.append(str(error))
    if reasons and not added:
        raise UserError(reasons[0])
    plan.groups[:] = groups
    plan.not_calibrated += dict.fromkeys(reasons)


def _zero_shot(task: TokenizedTask, attention: Sequence[Pattern]) -> list[PlannedGroup]:
    """Groups of k=0 under the requested patterns.

    Without demonstrations, patterns differ only if they read a query's own passages.
    """
    attention = list(dict.fromkeys(attention))
    own = [p for p in attention if p.reads_vectors and task.data.spec.data.passages]
    groups = [
        PromptGroup(task, SelectorSpec(), AsDrawn(), draw=0, pattern=pattern)
        for pattern in [*([FULL] if len(own) < len(attention) else []), *own]
    ]
    return [PlannedGroup(group, _cells(group, [0])) for group in groups]


@dataclass
class _DrawCount:
    """Reports the progress of planning, in draws."""

    say: Callable[[str], None]
    draws: int = 0
    """The draws of all curves and patterns."""
    begun: int = 0

    def searched(self, groups: Sequence[PromptGroup]) -> Iterator[PromptGroup]:
        """The groups for which the largest k is searched, one per draw."""
        for number, group in enumerate(groups, 1):
            self.say(f"searching for the largest k of {group.choice}: {number:,} of {counted(len(groups), 'draw')}")
            yield group

    def laid_out(self, groups: Sequence[PromptGroup]) -> Iterator[PromptGroup]:
        """The groups to plan, one per draw. A group that is planned again does not count beyond the last."""
        for group in groups:
            self.begun = min(self.begun + 1, self.draws)
            self.say(f"choosing demonstrations and counting tokens: {self.begun:,} of {counted(self.draws, 'draw')}")
            yield group


@dataclass
class _Curves:
    """The cells of one selector and order for all patterns and draws."""

    task: TokenizedTask
    choice: SelectorSpec
    order: Order
    draws: int | None
    combinations: Combinations
    """Updated: combinations that prove impossible are left out."""
    count: _DrawCount

    @property
    def draw_count(self) -> int:
        """The draws of all its patterns."""
        return draws_of(self.choice, self.draws) * len({one.attention for one in self._mine})

    @property
    def _mine(self) -> list[Combination]:
        curve = self.choice, self.order
        return [one for one in self.combinations.possible if (one.select, one.order) == curve and one.k != 0]

    def groups(self, k_values: KValues) -> list[PlannedGroup]:
        """The groups with at least one possible k. Raises ``UserError``."""
        count = draws_of(self.choice, self.draws)
        mine = self._mine
        by_pattern = {
            pattern: [PromptGroup(self.task, self.choice, self.order, draw, pattern) for draw in range(count)]
            for pattern in dict.fromkeys(one.attention for one in mine)
        }
        largest, pool = 0, len(self.task.pool)
        if k_values.largest:  # one pattern of those with equal prompts is enough
            alike = {(p.as_vectors(pool), p.reuses and p.sink): groups for p, groups in by_pattern.items()}
            largest = min(map(self._largest, alike.values()))
        smallest = min(groups[0].smallest for groups in by_pattern.values())
        numbers = [k for k in k_values.resolved(largest, smallest) if k]
        planned = []
        for pattern, groups in by_pattern.items():
            checked = {combination.k for combination in mine if combination.attention == pattern}
            if self.choice.says_k:
                left = [k for k in checked if k]
            else:
                left = self._sensible(pattern, numbers, checked, k_values.numbers)
            planned += self._laid_out(groups, left)
        return planned

    def _largest(self, groups: Sequence[PromptGroup]) -> int:
        """The largest k that fits in each draw, because k is compared over draws; 0 if there is none."""
        largest = min(group.largest() for group in self.count.searched(groups))
        if len(groups) > 1 and not groups[0].all_smaller_fit:
            while largest and not all(group.fits(largest) for group in groups):
                largest = min(group.largest(largest - 1) for group in groups)
        return largest

    def _combination(self, pattern: Pattern, k: int | None) -> Combination:
        return Combination(self.choice, self.order, pattern, k)

    def _sensible(
        self, pattern: Pattern, numbers: Sequence[int], checked: set[int | None], explicit: Sequence[int]
    ) -> list[int]:
        """The possible numbers under a pattern.

        The ``explicit`` numbers have been ``checked`` already; the others are checked here.
        """
        if not numbers:
            nothing = f"nothing fits: no k fits the window{_longest_rows(self.task, self.task.query_lengths)}"
            self.combinations.leave_out(self._combination(pattern, None), nothing)
        circumstances = Circumstances.of(self.task)
        return [
            k
            for k in numbers
            if k in checked
            or (k not in explicit and self.combinations.sort(self._combination(pattern, k), circumstances))
        ]

    def _laid_out(self, groups: Sequence[PromptGroup], numbers: Sequence[int]) -> list[PlannedGroup]:
        """The groups of one pattern, without values of k that some draw cannot select."""
        if not numbers:
            return []
        try:
            return _with_same_prompts(
                [PlannedGroup(group, _cells(group, numbers)) for group in self.count.laid_out(groups)]
            )
        except ChoiceError:
            refused = {k: reason for k in numbers if (reason := _why_not(groups, k)) is not None}
            if not refused:
                raise
        for k, reason in refused.items():
            self.combinations.leave_out(self._combination(groups[0].pattern, k), reason)
        return self._laid_out(groups, [k for k in numbers if k not in refused])


def _with_same_prompts(draws: list[PlannedGroup]) -> list[PlannedGroup]:
    """Count the prompts that each draw of a point shares with earlier draws, for retrieval.

    Prompts are equal if demonstrations and their order are equal. Nothing is counted if perturbations or attention
    patterns depend on the draw, or for copied queries, which differ between draws.
    """
    first = draws[0].group
    comparable = first.pattern == FULL and first.task.perturbation == NONE and first.task.queries == "test"
    if len(draws) == 1 or not first.choice.retrieves or not comparable:
        return draws
    for number in range(len(draws[0].cells)):
        seen: list[set[bytes]] = [set() for _ in first.task.data.test]
        for planned in draws:
            cell = planned.cells[number]
            if cell.problem is None:
                rows = [row.tobytes() for row in planned.group.demonstrations(cell.spec.k)]
                same = sum(row in before for row, before in zip(rows, seen, strict=True))
                planned.cells[number] = replace(cell, same_prompts=same)
                for row, before in zip(rows, seen, strict=True):
                    before.add(row)
    return draws


def shares_asked(cells: Sequence[CellPlan], finished: Sequence[bool | None]) -> list[float]:
    """The share of each cell's prompts that is asked: a run copies answers that an earlier draw gets in this run."""
    shares, begun = [], set[tuple[str | None, CellSpec]]()
    for cell, done in zip(cells, finished, strict=True):
        point = cell.task.asked, cell.curve_point
        shares.append(1 - cell.same_prompts / cell.queries if cell.same_prompts and point in begun else 1.0)
        if not done and cell.problem is None:
            begun.add(point)
    return shares


def _why_not(groups: Sequence[PromptGroup], k: int) -> str | None:
    """Why some draw cannot select this number of demonstrations; None if all can."""
    try:
        for group in groups:
            if not _over_pool(group, k):
                group.demonstrations(k)
    except ChoiceError as error:
        return str(error)
    return None


def _over_pool(group: PromptGroup, k: int) -> bool:
    """Whether k exceeds the pool and the selector does not report this itself (too few rows for the centroids, or of a
    label).
    """
    choice, pool = group.choice, len(group.task.pool)
    if k <= pool or choice.says_k:
        return False
    names_it = choice.base is not None and choice.base.refuses
    return not (names_it and choice.shared_count(k, len(group.task.pool.labels)) > pool)


def _longest_rows(task: TokenizedTask, lengths: np.ndarray) -> str:
    """The test rows that do not fit, if most rows fit, and the setting that excludes them; else nothing.

    ``lengths`` are tokens of their prompts, ``(test,)``.
    """
    over = lengths > task.room
    if task.queries != "test" or task.asked is not None or not 0 < over.sum() <= len(over) / 2:
        return ""
    alone = task.query_lengths
    rows = [task.data.test[i].id for i in np.flatnonzero(over)[np.argsort(-alone[over], kind="stable")]]
    of = f"{len(rows):,} of the {counted(len(over), 'test row')}, {few(rows)}; the others fit"
    advice = ""
    if (alone[over] > task.room).all():
        advice = "; test.too_long: leave_out"
    elif alone[over].min() > alone[~over].max():
        advice = f"; test.too_long: {alone[~over].max()}"
    return f" ({of}{f'{advice} in the task file leaves such rows out' if advice else ''})"


def _cells(group: PromptGroup, numbers: Sequence[int]) -> list[CellPlan]:
    task = group.task
    window, answer = task.model.context_tokens, task.written_tokens
    samples = task.samples.count if task.samples else 1
    pool, cells, cached = len(task.pool), [], 0

    def spec(k: int) -> CellSpec:
        axes = {"select": str(group.choice), "order": str(group.order), "attention": str(group.pattern)}
        return CellSpec(task=task.data.spec.name, model=task.model.name, **axes, k=k, draw=group.draw)

    over = [k for k in numbers if _over_pool(group, k)]
    for k, prompts in group.prompts([k for k in numbers if k not in over]):
        needed = prompts.longest + answer
        problem = None
        if needed > window:
            problem = f"k={k} needs {needed:,} tokens; {task.model.name} reads {window:,}"
            problem += _longest_rows(task, len(prompts.prefix) + np.array(list(map(len, prompts.suffixes))))
        new = len(prompts.prefix) - (cached if group.grows else 0) + samples * prompts.own_tokens
        if problem is None:
            cached = len(prompts.prefix)
        prompt_layout = PromptLayout.of(prompts, group.pattern)
        if group.pattern.reuses:
            queries = sum(prompts.size(i) - prompts.ends_of(i)[-1] for i in range(len(prompts)))
            new = prompt_layout.encoded_tokens + samples * queries
        cells.append(
            CellPlan(
                spec(k),
                len(prompts.prefix),
                prompts.longest,
                answer,
                window,
                samples * prompts.prompt_tokens,
                new,
                len(prompts.suffixes),
                group.choice,
                group.order,
                prompt_layout,
                task,
                problem,
                samples,
            )
        )
    for k in over:
        problem = f"k={k} is more than the pool's {pool:,} demonstrations"
        prompt_layout = PromptLayout(group.pattern, 0, ())
        chosen = group.choice, group.order
        cells.append(CellPlan(spec(k), 0, 0, answer, window, 0, 0, 0, *chosen, prompt_layout, task, problem))
    return cells
