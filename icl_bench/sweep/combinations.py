"""The combinations of a request: which are possible, and the reasons why others are not.

A request lists selectors, orders, attention patterns and values of k. Each combination of these is
checked separately, so an impossible one does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from icl_bench.demonstrations import selector_spec
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import NONE, Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import Pattern
from icl_bench.sweep.options import Queries
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.spec import TaskSpec
from icl_bench.wording import nearest


@dataclass(frozen=True)
class Combination:
    """One selector, order, attention pattern and number of demonstrations."""

    select: SelectorSpec
    order: Order
    attention: Pattern
    k: int | None
    """None if it depends on the data: ``max``, ``auto``, or a number that follows from the labels."""

    @property
    def axes(self) -> Axes:
        """The combination as results name it."""
        return str(self.select), str(self.order), str(self.attention), self.k


Axes = tuple[str, str, str, int | None]
"""Selector, order, attention and k, as results name them."""

SELECT, ORDER, ATTENTION, K = range(4)


@dataclass(frozen=True)
class Circumstances:
    """Settings that all combinations of a request share."""

    task: TaskSpec
    perturbation: Perturbation = NONE
    queries: Queries = "test"
    turns: bool = False
    """Whether each demonstration is a user turn and an assistant turn of a chat."""
    labels: int | None = None
    """Number of labels in the pool; None before the data are read."""

    @classmethod
    def of(cls, task: TokenizedTask) -> Circumstances:
        """The circumstances of a task after its data are read."""
        turns = task.chat is not None and task.chat.style == "turns"
        labels = len(task.pool.labels)
        return cls(task.data.spec, task.perturbation, task.queries, turns, labels)


CombinationCheck = Callable[[Combination], None]
"""Raises ``UserError`` for an impossible combination."""


@dataclass
class Combinations:
    """The possible combinations of a request, and the others with their reasons."""

    possible: list[Combination] = field(default_factory=list)
    left_out: dict[Combination, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        select: Iterable[SelectorSpec],
        orders: Sequence[Order] | None,
        attention: Sequence[Pattern],
        numbers: Sequence[int],
        circumstances: Circumstances,
        *,
        unsaid: bool = False,
        able: CombinationCheck = lambda _: None,
    ) -> Combinations:
        """Combine every value with every other, and check each combination.

        ``orders`` is None for each selector's default order. ``numbers`` are the explicit values of
        k; ``unsaid`` means that further values depend on the data. ``able`` is a further check of
        each combination. Raises ``UserError`` for an unknown similarity.
        """
        for pattern in attention:
            _check_similarity(pattern)
        combinations = cls()
        for choice in dict.fromkeys(select):
            k_values = [*numbers, *([None] if unsaid else [])]
            if choice.says_k:
                says = None if circumstances.labels is None else choice.fewest(circumstances.labels)
                k_values = [*(k for k in numbers if not k), says]
            for order in dict.fromkeys(orders or [default_order(choice)]):
                for pattern in dict.fromkeys(attention):
                    for k in k_values:
                        combinations.sort(Combination(choice, order, pattern, k), circumstances, able)
        return combinations

    def sort(
        self, combination: Combination, circumstances: Circumstances, able: CombinationCheck = lambda _: None
    ) -> bool:
        """Add a combination to the possible ones or to those left out. Returns whether it is possible."""
        try:
            able(combination)
            check(combination, circumstances)
        except UserError as error:
            self.left_out[combination] = str(error)
            return False
        self.possible.append(combination)
        return True

    def refuse(self, able: CombinationCheck) -> None:
        """Leave out the combinations that fail this check."""
        for combination in list(self.possible):
            try:
                able(combination)
            except UserError as error:
                self.leave_out(combination, str(error))

    def leave_out(self, combination: Combination, reason: str) -> None:
        """Leave out one combination."""
        self.possible.remove(combination)
        self.left_out[combination] = reason

    def only(self, wanted: Callable[[Combination], bool]) -> Combinations:
        """Keep only the wanted combinations."""
        left_out = {combination: reason for combination, reason in self.left_out.items() if wanted(combination)}
        return Combinations([combination for combination in self.possible if wanted(combination)], left_out)

    def require_some(self) -> None:
        """Raise ``UserError`` with the reasons if no combination is possible."""
        if not self.possible:
            raise UserError(self.refusal)

    @property
    def refusal(self) -> str:
        """The error message if no combination is possible, with all reasons."""
        if len(lines := self.reasons) == 1:
            return next(iter(self.left_out.values()))
        return f"no combination is possible: {'; '.join(lines)}"

    @property
    def reasons(self) -> list[str]:
        """One line for each reason, beginning with the combinations that it applies to.

        Reasons that differ only in k become one line, with the text of the first. Combinations are
        named only by the values that distinguish them from the possible ones.
        """
        by_reason: dict[str, list[Combination]] = {}
        for combination, reason in self.left_out.items():
            by_reason.setdefault(reason.replace(f"k={combination.k} ", "k=… "), []).append(combination)
        possible = [combination.axes for combination in self.possible or self.left_out]
        return [
            _line([combination.axes for combination in combinations], self.left_out[combinations[0]], possible)
            for combinations in by_reason.values()
        ]


def default_order(choice: SelectorSpec) -> Order:
    """The order of a selector if none is requested."""
    return Order.parse("relevance" if choice.retrieves else "drawn")


# -- whether a combination is possible -------------------------------------------------------------


def check(combination: Combination, circumstances: Circumstances) -> None:
    """Raise ``UserError`` for an impossible combination; needs no data."""
    choice, pattern, k = combination.select, combination.attention, combination.k
    perturbation = circumstances.perturbation
    labelled = circumstances.task.has_common_labels
    if k == 0 and perturbation != NONE:
        raise UserError(
            f"--perturbation {perturbation}: a prompt of k=0 has no demonstrations to change; "
            "leave 0 out, and run --k 0 without --perturbation"
        )
    choice.check_allowed(labelled=labelled)
    perturbation.check_allowed(shared=choice.shared, labelled=circumstances.task.is_classification)
    if k:  # without demonstrations nothing is selected
        if choice.each is None or circumstances.labels is not None:
            choice.own_count(k, circumstances.labels or 0)
        perturbation.check_k(k)
    combination.order.check_allowed(choice, labelled=labelled)
    if pattern.reads_vectors and circumstances.task.data.passages is None:
        _check_vectors(pattern, perturbation, k)
    _check_reuse(pattern, choice, combination.order)
    _check_compared(pattern, choice, perturbation)
    if k:
        pattern.check_shots(k)
    if circumstances.task.thought is not None and (pattern.reuses or pattern.reads_vectors):
        raise UserError(
            f"--attention {pattern}: reads a prompt's demonstrations once for its answer, and task "
            f"{circumstances.task.name} thinks first; take another pattern, or --think off"
        )
    if circumstances.queries == "copied":
        _check_copied(combination, perturbation)
    if perturbation.changes_answers and (thought := circumstances.task.thought) and thought.rationale is not None:
        raise UserError(
            f"--perturbation {perturbation}: demonstrations of task {circumstances.task.name} show thoughts that lead "
            "to the true answers; take --think off, or a task file without answer.rationale"
        )
    if circumstances.turns and perturbation.changes_piece:
        raise UserError(
            f"--perturbation {perturbation}: with --chat turns each demonstration is "
            "a question and an answer; take --chat single"
        )


def _check_similarity(pattern: Pattern) -> None:
    by, known = pattern.compares, selector_spec.retrievers()
    if by is not None and by not in known:
        raise UserError(f"--attention {pattern}: by={by}: not a similarity; {nearest(by, known)}")


def _check_vectors(pattern: Pattern, perturbation: Perturbation, k: int | None) -> None:
    """Raise ``UserError`` if this number of demonstrations cannot be read as vectors."""
    if perturbation.changes_piece or not perturbation.shared:
        raise UserError(
            f"--attention {pattern}: a vector is of a whole demonstration; "
            f"--perturbation {perturbation} does not show whole demonstrations"
        )
    if k and pattern.fewest_texts > k:
        raise UserError(
            f"--attention {pattern}: k={k} has {k} demonstrations; take at most vectors:{k}, or a larger --k"
        )


def _check_compared(pattern: Pattern, spec: SelectorSpec, perturbation: Perturbation) -> None:
    """Raise ``UserError`` if the pattern selects parts per query, but queries share no demonstrations."""
    if pattern.compares is None or (spec.shared and perturbation.shared):
        return
    why = spec if not spec.shared else f"--perturbation {perturbation}"
    raise UserError(
        f"--attention {pattern}: top chooses among demonstrations that all queries share; "
        f"{why} has none; take random, balanced or centroids"
    )


def _check_reuse(pattern: Pattern, spec: SelectorSpec, order: Order) -> None:
    if not pattern.reuses:
        return
    if not spec.retrieves:
        raise UserError(
            f"--attention {pattern}: reuse is for demonstrations that are all the query's own, "
            f"like those of bm25; demonstrations that queries share under {spec} are computed once anyway"
        )
    if spec.each is not None and pattern.sink:
        raise UserError(
            f"--attention {pattern}: the first demonstration of all prompts would replace one of a "
            f"label's demonstrations under {spec}; write {pattern.name}:1,reuse,sink=0"
        )
    if order.for_neighbours:
        raise UserError(
            f"--attention {pattern}: order {order} needs demonstrations that attend to each other; "
            "demonstrations that are computed once do not; write relevance or shuffled:SEED"
        )


def _check_copied(combination: Combination, perturbation: Perturbation) -> None:
    if combination.k == 0:
        raise UserError("--queries copied: a prompt of k=0 has no demonstrations to ask for; leave 0 out")
    if not combination.select.shared:
        raise UserError(
            f"--queries copied: {combination.select} would only find the query itself; "
            "use a selector whose demonstrations all queries share"
        )
    if combination.attention.compares:
        raise UserError(f"--queries copied: {combination.attention} chooses by similarity to test rows; leave top out")
    if perturbation != NONE:
        raise UserError("--queries copied: asks for answers that the prompt shows; use --perturbation none")


# -- combinations in words ----------------------------------------------------------------------------


def _line(combinations: Sequence[Axes], reason: str, possible: Sequence[Axes]) -> str:
    """One reason with the combinations that it applies to."""
    every = [*possible, *combinations]
    which = [text for box in _boxes(combinations) if (text := _named(box, every))]
    return f"{'; '.join(which)}: {reason}" if which else reason


Box = tuple[frozenset[str | int | None], ...]
"""Values of each axis: all combinations of one of each."""


def _boxes(combinations: Iterable[Axes]) -> list[Box]:
    """Boxes that together hold exactly these combinations. Boxes that differ in one axis are merged, axis by axis."""
    boxes: list[Box] = [tuple(frozenset([value]) for value in axes) for axes in combinations]
    for axis in (K, ATTENTION, ORDER, SELECT):
        along: dict[Box, frozenset[str | int | None]] = {}
        for box in boxes:
            rest = (*box[:axis], *box[axis + 1 :])
            along[rest] = along.get(rest, frozenset()) | box[axis]
        boxes = [(*rest[:axis], values, *rest[axis:]) for rest, values in along.items()]
    return boxes


def _named(box: Box, every: Sequence[Axes]) -> str:
    """A box in words, without values that all combinations of its selectors share."""
    mine = [axes for axes in every if axes[SELECT] in box[SELECT]]
    words = []
    for axis, values in enumerate(box):
        among = every if axis == SELECT else mine
        named = list(dict.fromkeys(axes[axis] for axes in among if axes[axis] in values))
        if len(named) < len({axes[axis] for axes in among}):
            text = ", ".join(f"{v:,}" if isinstance(v, int) else v or "max" for v in named)
            words.append(f"k={text}" if axis == K else text)
    return ", ".join(words)
