"""The combinations that a request asks for: which of them make sense, and why the others do not.

A request names several selectors, orders, attention patterns and numbers of demonstrations. Each
combination of one of each is checked by itself, so that one that makes no sense takes nothing with
it.
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
    """None where the number is not said: ``max``, ``auto``, what follows from the labels."""

    @property
    def axes(self) -> Axes:
        """The same as results name it."""
        return str(self.select), str(self.order), str(self.attention), self.k


Axes = tuple[str, str, str, int | None]
"""Selector, order, attention and k, as results name them."""

SELECT, ORDER, ATTENTION, K = range(4)


@dataclass(frozen=True)
class Circumstances:
    """What is the same for all combinations of a request."""

    task: TaskSpec
    perturbation: Perturbation = NONE
    queries: Queries = "test"
    turns: bool = False
    """Whether each demonstration is a turn of a chat's user and one of its assistant."""
    labels: int | None = None
    """How many labels the pool has; None where the data are not read yet."""

    @classmethod
    def of(cls, task: TokenizedTask) -> Circumstances:
        """Those of a task whose data are read."""
        turns = task.chat is not None and task.chat.style == "turns"
        labels = len(task.pool.labels)
        return cls(task.data.spec, task.perturbation, task.queries, turns, labels)


Check = Callable[[Combination], None]
"""Raises ``UserError`` for a combination that makes no sense."""


@dataclass
class Combinations:
    """What is asked for, each with each: what makes sense, and why the rest does not."""

    possible: list[Combination] = field(default_factory=list)
    left_out: dict[Combination, str] = field(default_factory=dict)
    """With the reasons."""

    @classmethod
    def of(
        cls,
        select: Iterable[SelectorSpec],
        orders: Sequence[Order] | None,
        attention: Sequence[Pattern],
        numbers: Sequence[int],
        given: Circumstances,
        *,
        unsaid: bool = False,
        able: Check = lambda _: None,
    ) -> Combinations:
        """Each with each, checked one by one.

        ``orders`` are those asked for; None for each selector's own. ``numbers`` are the k that are
        said, ``unsaid`` tells that there are others which it takes the data to know. ``able`` says
        what else can be wrong with a combination. Raises ``UserError`` for a similarity that is
        none.
        """
        for pattern in attention:
            _check_similarity(pattern)
        made = cls()
        for choice in dict.fromkeys(select):
            asked = [*numbers, *([None] if unsaid else [])]
            if choice.says_k:
                says = None if given.labels is None else choice.fewest(given.labels)
                asked = [*(k for k in numbers if not k), says]
            for order in dict.fromkeys(orders or [default_order(choice)]):
                for pattern in dict.fromkeys(attention):
                    for k in asked:
                        made.sort(Combination(choice, order, pattern, k), given, able)
        return made

    def sort(self, one: Combination, given: Circumstances, able: Check = lambda _: None) -> bool:
        """Put a combination where it belongs; whether it makes sense."""
        try:
            able(one)
            check(one, given)
        except UserError as error:
            self.left_out[one] = str(error)
            return False
        self.possible.append(one)
        return True

    def refuse(self, able: Check) -> None:
        """Leave out those of the possible ones for which this raises."""
        for one in list(self.possible):
            try:
                able(one)
            except UserError as error:
                self.leave_out(one, str(error))

    def leave_out(self, one: Combination, reason: str) -> None:
        """Put one of those that are possible, as far as was seen, to the others."""
        self.possible.remove(one)
        self.left_out[one] = reason

    def only(self, wanted: Callable[[Combination], bool]) -> Combinations:
        """Those that are wanted."""
        left = {one: reason for one, reason in self.left_out.items() if wanted(one)}
        return Combinations([one for one in self.possible if wanted(one)], left)

    def require_some(self) -> None:
        """Raise ``UserError`` with the reasons where nothing is left."""
        if not self.possible:
            raise UserError(self.refusal)

    @property
    def refusal(self) -> str:
        """What is said where nothing is left: the reason, or all of them."""
        if len(lines := self.reasons) == 1:
            return next(iter(self.left_out.values()))
        return f"none of these go together: {'; '.join(lines)}"

    @property
    def reasons(self) -> list[str]:
        """A line for each reason, which begins with the combinations that it keeps out.

        Reasons that differ in k alone are one, said of the first. Of the combinations only that is
        named which tells them from what is possible.
        """
        found: dict[str, list[Combination]] = {}
        for one, reason in self.left_out.items():
            found.setdefault(reason.replace(f"k={one.k} ", "k=… "), []).append(one)
        possible = [one.axes for one in self.possible or self.left_out]
        return [_line([one.axes for one in several], self.left_out[several[0]], possible) for several in found.values()]


def default_order(choice: SelectorSpec) -> Order:
    """The order of a selector where none is asked for."""
    return Order.parse("relevance" if choice.retrieves else "drawn")


# -- whether a combination makes sense ------------------------------------------------------------


def check(one: Combination, given: Circumstances) -> None:
    """Raise ``UserError`` for a combination that makes no sense; needs no data."""
    choice, pattern, k, perturbation = one.select, one.attention, one.k, given.perturbation
    labelled = given.task.has_common_labels
    if k == 0 and perturbation != NONE:
        raise UserError(
            f"--perturbation {perturbation}: a prompt of k=0 has no demonstration to change; "
            "leave 0 out, and run --k 0 without --perturbation"
        )
    choice.check_allowed(labelled=labelled)
    perturbation.check_allowed(shared=choice.shared, labelled=given.task.is_classification)
    if k:  # without demonstrations nothing is chosen
        if choice.each is None or given.labels is not None:
            choice.own_count(k, given.labels or 0)
        perturbation.check_k(k)
    one.order.check_allowed(choice, labelled=labelled)
    if pattern.reads_vectors and given.task.data.passages is None:
        _check_vectors(pattern, perturbation, k)
    _check_reuse(pattern, choice, one.order)
    _check_compared(pattern, choice, perturbation)
    if k:
        pattern.check_shots(k)
    if given.queries == "copied":
        _check_copied(one, perturbation)
    if given.turns and perturbation.changes_piece:
        raise UserError(
            f"--perturbation {perturbation}: with --chat turns each demonstration is "
            "a question and an answer; take --chat single"
        )


def _check_similarity(pattern: Pattern) -> None:
    if pattern.compares is not None:
        by = pattern.compares
        if by not in (known := selector_spec.retrievers()):
            said = f"not a similarity; {nearest(by, known)}"
            raise UserError(f"--attention {pattern}: by={by}: {said}")


def _check_vectors(pattern: Pattern, perturbation: Perturbation, k: int | None) -> None:
    """Raise ``UserError`` where demonstrations cannot be read as so many vectors."""
    if perturbation.changes_piece or not perturbation.shared:
        raise UserError(
            f"--attention {pattern}: a vector is of a whole demonstration, which "
            f"--perturbation {perturbation} does not show"
        )
    if k and pattern.fewest_texts > k:
        raise UserError(
            f"--attention {pattern}: k={k} has {k} demonstrations; take at most vectors:{k}, or a larger --k"
        )


def _check_compared(pattern: Pattern, spec: SelectorSpec, perturbation: Perturbation) -> None:
    """Raise ``UserError`` where a query cannot read a part of what all queries share."""
    if pattern.compares is None or (spec.shared and perturbation.shared):
        return
    why = spec if not spec.shared else f"--perturbation {perturbation}"
    raise UserError(
        f"--attention {pattern}: top chooses of demonstrations that all queries share, which "
        f"{why} does not show; take random, balanced or centroids"
    )


def _check_reuse(pattern: Pattern, spec: SelectorSpec, order: Order) -> None:
    if not pattern.reuses:
        return
    if not spec.retrieves:
        raise UserError(
            f"--attention {pattern}: reuse is for demonstrations that are all the query's own, "
            f"like those of bm25; what queries share under {spec} is computed once anyway"
        )
    if spec.each is not None and pattern.sink:
        raise UserError(
            f"--attention {pattern}: the demonstration that all prompts begin with would stand in "
            f"for one of a label's under {spec}; write {pattern.name}:1,reuse,sink=0"
        )
    if order.for_neighbours:
        raise UserError(
            f"--attention {pattern}: order {order} is for neighbours that see each other, which "
            "demonstrations that are computed once do not; write relevance or shuffled:SEED"
        )


def _check_copied(one: Combination, perturbation: Perturbation) -> None:
    if one.k == 0:
        raise UserError("--queries copied: a prompt of k=0 has no demonstration to ask for; leave 0 out")
    if not one.select.shared:
        raise UserError(
            f"--queries copied: {one.select} would only find the query itself; "
            "it is for demonstrations that all queries share"
        )
    if one.attention.compares:
        raise UserError(f"--queries copied: {one.attention} chooses by similarity to test rows; leave top out")
    if perturbation != NONE:
        raise UserError("--queries copied: asks for answers that the prompt shows; it is for --perturbation none")


# -- how they are said ----------------------------------------------------------------------------


def _line(combinations: Sequence[Axes], reason: str, possible: Sequence[Axes]) -> str:
    """One reason with the combinations that it keeps out."""
    every = [*possible, *combinations]
    which = [text for box in _boxes(combinations) if (text := _named(box, every))]
    return f"{'; '.join(which)}: {reason}" if which else reason


Box = tuple[frozenset[str | int | None], ...]
"""Values of each axis: all combinations of one of each."""


def _boxes(combinations: Iterable[Axes]) -> list[Box]:
    """Few boxes that hold these combinations and no others: what differs in one axis alone is put
    together, axis by axis.
    """
    boxes: list[Box] = [tuple(frozenset([value]) for value in one) for one in combinations]
    for axis in (K, ATTENTION, ORDER, SELECT):
        along: dict[Box, frozenset[str | int | None]] = {}
        for box in boxes:
            rest = (*box[:axis], *box[axis + 1 :])
            along[rest] = along.get(rest, frozenset()) | box[axis]
        boxes = [(*rest[:axis], values, *rest[axis:]) for rest, values in along.items()]
    return boxes


def _named(box: Box, every: Sequence[Axes]) -> str:
    """A box in words, without what it has in common with all else of its selectors."""
    mine = [one for one in every if one[SELECT] in box[SELECT]]
    words = []
    for axis, values in enumerate(box):
        among = every if axis == SELECT else mine
        there = list(dict.fromkeys(one[axis] for one in among if one[axis] in values))
        if len(there) < len({one[axis] for one in among}):
            said = ", ".join(f"{v:,}" if isinstance(v, int) else v or "max" for v in there)
            words.append(f"k={said}" if axis == K else said)
    return ", ".join(words)
