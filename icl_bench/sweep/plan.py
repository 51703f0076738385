"""What a run would do: its cells, grouped by shared prefix, with exact token counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icl_bench.demonstrations.ordering import Drawn, Order
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.results.cells import CellSpec
from icl_bench.sweep.compute_cost import PromptLayout
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.run_spec import check_prompts, orders_for
from icl_bench.sweep.tokenized_task import TokenizedTask

VLLM_ROUNDING = 256
"""vLLM's ``max_model_len`` is a multiple of this many tokens."""


def room_for(plan: Plan, window: int) -> int:
    """Tokens of the largest cell that will run and an end token, rounded up, within the window."""
    needed = max(c.needed_tokens for group in plan.groups for c in group.runnable) + 1
    return min(-(-needed // VLLM_ROUNDING) * VLLM_ROUNDING, max(window, needed))


DEFAULT_DRAWS = 10


@dataclass(frozen=True)
class CellPlan:
    """A cell and what it costs, known before anything is computed."""

    spec: CellSpec
    prefix_tokens: int
    """Tokens that all queries of the cell share."""
    longest_prompt: int
    answer_tokens: int
    context_tokens: int
    prompt_tokens: int
    """Tokens of all prompts, whether shared or not."""
    new_tokens: int
    """Tokens to compute once the group's smaller cells are cached."""
    queries: int
    """Predictions that the cell has."""
    prompt_layout: PromptLayout
    """How its prompts are read: decides operations and the bytes of its cache."""
    problem: str | None = None
    """Why the cell cannot run; None if it can."""

    @property
    def needed_tokens(self) -> int:
        """Longest prompt and longest answer."""
        return self.longest_prompt + self.answer_tokens

    @property
    def pattern(self) -> Pattern:
        """Its attention pattern."""
        return self.prompt_layout.pattern

    @property
    def shared_tokens(self) -> int:
        """Prompt tokens that need not be computed again."""
        return self.prompt_tokens - self.new_tokens


@dataclass
class PlannedGroup:
    """A group of cells, smallest k first."""

    group: PromptGroup
    cells: list[CellPlan]

    @property
    def runnable(self) -> list[CellPlan]:
        """The cells that fit."""
        return [cell for cell in self.cells if cell.problem is None]

    @property
    def reserve(self) -> int:
        """Tokens of the longest shared prefix that will be computed."""
        return max((cell.prefix_tokens for cell in self.runnable), default=0)


@dataclass
class Plan:
    """All cells of one task and model."""

    task: TokenizedTask
    groups: list[PlannedGroup]

    @property
    def cells(self) -> list[CellPlan]:
        """Every cell, also those that cannot run."""
        return [cell for group in self.groups for cell in group.cells]

    @property
    def problems(self) -> list[str]:
        """What cannot run and why, said once for all draws: the numbers are of the longest."""
        curves: dict[tuple[str, str, str, int], list[CellPlan]] = {}
        for cell in self.cells:
            key = (cell.spec.select, cell.spec.order, cell.spec.attention, cell.spec.k)
            curves.setdefault(key, []).append(cell)
        return list(dict.fromkeys(said for cells in curves.values() if (said := _problem(cells))))


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
) -> Plan:
    """Lay out all cells and count their tokens.

    ``draws`` defaults to 10, and to 1 for retrieval, which draws only what it fills up with.
    Without demonstrations (k=0) all selectors, orders, attention patterns and draws have the same
    prompts: that is one cell, which is called as a single draw of random selection.
    Raises ``UserError`` where not one cell can run.
    """
    select, attention = list(dict.fromkeys(select)), list(dict.fromkeys(attention))
    labelled = task.data.spec.has_common_labels
    asked = (orders, draws, attention, task.perturbation, k_values.numbers)
    check_prompts(select, *asked, spec=task.data.spec)
    groups = []
    if 0 in k_values.numbers:
        # without demonstrations patterns differ where they are for a query's own passages
        own = [p for p in attention if p.reads_vectors and task.data.spec.data.passages]
        for pattern in [*([FULL] if len(own) < len(attention) else []), *own]:
            zero_shot = PromptGroup(task, SelectorSpec(), Drawn(), draw=0, pattern=pattern)
            groups.append(PlannedGroup(zero_shot, _cells(zero_shot, [0])))
    for choice in select:
        count = draws or (1 if choice.retrieves else DEFAULT_DRAWS)
        for order in dict.fromkeys(orders_for(choice, orders, labelled=labelled)):
            made = [
                PromptGroup(task, choice, order, draw, pattern)
                for pattern in attention
                for draw in range(count)
            ]
            # a k is compared over draws: the largest is one that fits in each of them
            largest = min(g.largest() for g in made[:count]) if k_values.largest else 0
            numbers = [k for k in k_values.resolved(largest, made[0].smallest) if k]
            if choice.says_k:
                numbers = [made[0].smallest]
            for pattern in attention:
                for k in numbers:
                    pattern.check_shots(k)
            if numbers:
                groups += [PlannedGroup(group, _cells(group, numbers)) for group in made]
    plan = Plan(task, groups)
    if not any(group.runnable for group in groups):
        raise UserError("nothing fits: " + "; ".join(plan.problems or ["no k fits the window"]))
    return plan


def _cells(group: PromptGroup, numbers: Sequence[int]) -> list[CellPlan]:
    task = group.task
    window, answer = task.model.context_tokens, task.answer_tokens
    pool, cells, cached = len(task.pool), [], 0

    def spec(k: int) -> CellSpec:
        data, model = task.data.spec.name, task.model.name
        return CellSpec(task=data, model=model, select=str(group.choice), order=str(group.order),
                        attention=str(group.pattern), k=k, draw=group.draw)  # fmt: skip

    choice, labels = group.choice, len(task.pool.labels)
    # too few for so many centroids, or of a label, is the user's mistake: selection names it
    named = choice.says_k or (choice.base is not None and choice.base.refuses)
    over = [
        k for k in numbers
        if k > pool and not (named and (choice.says_k or choice.shared_count(k, labels) > pool))
    ]  # fmt: skip
    for k, prompts in group.prompts([k for k in numbers if k not in over]):
        needed = prompts.longest + answer
        problem = None
        if needed > window:
            problem = f"k={k} needs {needed:,} tokens; {task.model.name} reads {window:,}"
        new = len(prompts.prefix) - (cached if group.grows else 0) + prompts.own_tokens
        if problem is None:
            cached = len(prompts.prefix)
        prompt_layout = PromptLayout.of(prompts, group.pattern)
        if group.pattern.reuses:
            queries = sum(len(prompts.ids(i)) - prompts.ends_of(i)[-1] for i in range(len(prompts)))
            new = prompt_layout.encoded_tokens + queries
        cells.append(CellPlan(
            spec(k), len(prompts.prefix), prompts.longest, answer, window, prompts.prompt_tokens,
            new, len(prompts.suffixes), prompt_layout, problem,
        ))  # fmt: skip
    for k in over:
        problem = f"k={k} is more than the pool's {pool:,} demonstrations"
        prompt_layout = PromptLayout(group.pattern, 0, ())
        cells.append(CellPlan(spec(k), 0, 0, answer, window, 0, 0, 0, prompt_layout, problem))
    return cells
