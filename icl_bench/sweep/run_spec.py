"""Everything that a user asks of a run, read once, and what of it can be refused at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, InstanceOf, model_validator

from icl_bench.backends.choice import (
    Asked,
    Choice,
    check_able,
    check_backend,
    check_patterns,
    choose,
    make_loader,
)
from icl_bench.backends.interface import BackendLoader
from icl_bench.backends.spec import BackendSpec
from icl_bench.demonstrations import selector_spec
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import PLAIN, Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models import attention_patterns
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.models.trained import own_pattern
from icl_bench.prompts.chat import ChatSettings
from icl_bench.registry import SELECTORS
from icl_bench.sweep.k_values import KValues, parse_per_label
from icl_bench.sweep.tokenized_task import Queries, Scoring
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.spec import TaskSpec
from icl_bench.wording import comma_list, nearest, plain, whole

T = TypeVar("T")


MOST_DRAWS = 10_000


def read_text(parse: Callable[[str], T]) -> BeforeValidator:
    """Text is read; what has been read is taken as it is."""
    return BeforeValidator(lambda given: parse(given) if isinstance(given, str) else given)


def _read_each(parse: Callable[[str], T], split: Callable[[str], Iterable[str]]) -> BeforeValidator:
    """The same for several: one text, or an iterable of texts and of what has been read.

    Each is there once, in the order of its first mention.
    """

    def each(given: Any) -> Any:
        if given is None:
            return None
        parts = split(given) if isinstance(given, str) else given
        return tuple(dict.fromkeys(parse(p) if isinstance(p, str) else p for p in parts))

    return BeforeValidator(each)


class RunSpec(Frozen):
    """Everything that a user asks of a run.

    What the command line writes as text may be given as text here too: it is read when the
    specification is made. Raises ``UserError`` for what cannot be read.
    """

    task: str
    """A shipped task's name, or the path of a task file."""
    model: str
    """A registry name, a folder or a hub id; with an API, the name that the server knows."""
    k: Annotated[InstanceOf[KValues] | None, read_text(KValues.parse)] = None
    """Numbers of demonstrations, 0 for none, ``max`` or ``auto``; or else ``per_label``. Not needed
    where all of ``select`` say it themselves."""
    per_label: Annotated[tuple[int, ...] | None, read_text(parse_per_label)] = None
    """Numbers of demonstrations of each label, for ``balanced`` ones."""
    select: Annotated[
        tuple[InstanceOf[SelectorSpec], ...], _read_each(SelectorSpec.parse, selector_spec.split)
    ] = (SelectorSpec(),)
    """Ways to choose demonstrations."""
    encoder: str | None = None
    """The sentence encoder of choices that need one: name, folder, hub id; None: the packaged."""
    demonstrations: Annotated[InstanceOf[Perturbation], read_text(Perturbation.parse)] = PLAIN
    """What prompts show of them."""
    order: Annotated[tuple[InstanceOf[Order], ...] | None, _read_each(Order.parse, comma_list)] = (
        None
    )
    """Orders of the demonstrations; by default ``drawn``, and ``relevance`` for retrieval."""
    attention: Annotated[
        tuple[InstanceOf[Pattern], ...],
        _read_each(attention_patterns.parse, attention_patterns.split),
    ] = (FULL,)
    """How the model reads the demonstrations; unless given, as it was adapted to, else in full."""
    draws: int | None = None
    seed: int = 0
    scoring: Scoring = "greedy"
    test_size: int | None = None
    labels: Annotated[InstanceOf[HalfLabels] | None, read_text(HalfLabels.parse)] = None
    """Which labels of the task are left (``half:SEED``); None, or ``all``, for all of them."""
    queries: Queries = "test"
    """``copied``: demonstrations of the prompt are asked, instead of test rows."""
    data_dir: Path | None = None
    context_tokens: int | None = None
    tokenizer: str | None = None
    """With an API: the model whose tokenizer counts the tokens (a name, a folder or a hub id)."""
    chat: ChatSettings | None = None
    """How prompts are put to a chat model; None for plain text."""
    backend: BackendSpec = BackendSpec()

    @model_validator(mode="before")
    @classmethod
    def _as_adapted(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("attention") is None:
            return {**given, "attention": (own_pattern(str(given.get("model", ""))),)}
        return given

    def loader(self, task: TaskSpec) -> BackendLoader:
        """The backend that is meant, not loaded. Raises ``UserError`` for a name that is none."""
        return make_loader(self.backend, self._asked(task))

    def choice(self, task: TaskSpec) -> Choice:
        """Its name, and why it is meant. Raises as :meth:`loader` does."""
        return choose(self.backend, self._asked(task))

    def _asked(self, task: TaskSpec) -> Asked:
        return Asked(
            patterns=self.attention,
            exact=self.scoring == "exact",
            free=self.scoring == "unconstrained" or not task.is_classification,
            shares=not all(spec.retrieves for spec in self.select),
        )

    @property
    def embeds(self) -> bool:
        """Whether what is asked for depends on a sentence encoder."""
        compared = (SELECTORS.get(by) for p in self.attention if (by := p.compares) is not None)
        embeds = any(getattr(retriever, "embeds", False) for retriever in compared)
        return embeds or self.demonstrations.embeds or any(spec.embeds for spec in self.select)

    def check(self, task: TaskSpec) -> None:
        """Raise ``UserError`` for what can be told without data and model."""
        self._check_backend(task)
        if self.labels and not task.is_classification:
            raise UserError(
                f"--labels {self.labels}: task {task.name} is free text, without labels"
            )
        if self.labels and task.labels and task.labels.own:
            raise UserError(
                f"--labels {self.labels}: each row of task {task.name} has choices of its own; "
                "there is no set of labels to leave some out of"
            )
        numbers = self._numbers()
        check_prompts(
            self.select, self.order, self.draws, self.attention, self.demonstrations, numbers,
            spec=task,
        )  # fmt: skip
        if self.queries == "copied":
            self._check_copied(numbers)
        if self.chat and self.chat.style == "turns" and self.demonstrations.changes_piece:
            raise UserError(
                f"--demonstrations {self.demonstrations}: with --chat turns each demonstration is "
                "a question and an answer; take --chat single"
            )
        if self.encoder is not None and not self.embeds:
            raise UserError(
                f"--encoder {plain(self.encoder)}: nothing that is asked for embeds texts; "
                "it is for dense, centroids and nearest-removed"
            )

    def _check_backend(self, task: TaskSpec) -> None:
        loader = self.loader(task)
        check_patterns(loader, self.attention)
        check_backend(loader)
        if self.scoring != "greedy" and not task.is_classification:
            option = "--unconstrained" if self.scoring == "unconstrained" else "--score exact"
            raise UserError(f"{option}: task {task.name} is free text, it has no labels")
        check_able(loader, self.tokenizer, exact=self.scoring == "exact")
        always = "end of turn" if self.chat else task.template.separator
        if loader.most_stops and len(stops := task.stops_beside(always)) > loader.most_stops:
            raise UserError(
                f"--backend {loader.name}: takes at most {loader.most_stops} texts that end an "
                f"answer; task {task.name} has {len(stops)} (stop, and what ends its prompts' "
                "answers); leave some of stop out"
            )

    def _numbers(self) -> tuple[int, ...]:
        """The k that are asked for by number. Raises ``UserError`` where none is said, or both."""
        if self.k is None and self.per_label is None and all(s.says_k for s in self.select):
            return ()
        if (self.k is None) == (self.per_label is None):
            raise UserError(
                "give --k, or else --per-label: numbers of demonstrations, like 1,10,100"
            )
        if self.k is not None:
            return self.k.numbers
        if others := [spec for spec in self.select if str(spec) != "balanced"]:
            raise UserError(f"--per-label: is for --select balanced, not {others[0]}; give --k")
        return ()

    def _check_copied(self, numbers: Sequence[int]) -> None:
        if 0 in numbers:
            raise UserError(
                "--queries copied: a prompt of k=0 has no demonstration to ask for; leave 0 out"
            )
        if own := [spec for spec in self.select if not spec.shared]:
            raise UserError(
                f"--queries copied: {own[0]} would only find the query itself; "
                "it is for demonstrations that all queries share"
            )
        if chosen := [pattern for pattern in self.attention if pattern.compares]:
            raise UserError(
                f"--queries copied: {chosen[0]} chooses by similarity to test rows; leave top out"
            )
        if self.demonstrations != PLAIN:
            raise UserError(
                "--queries copied: asks for answers that the prompt shows; "
                "it is for --demonstrations plain"
            )


def check_draws(draws: int | None) -> None:
    """Raise ``UserError`` for a number of draws that nobody can mean; None is the usual one."""
    if draws is not None and not 1 <= draws <= MOST_DRAWS:
        raise UserError(f"--draws {whole(draws)}: expected 1 to {MOST_DRAWS:,}")


def orders_for(
    spec: SelectorSpec, asked: Sequence[Order] | None, *, labelled: bool
) -> Sequence[Order]:
    """The orders of a selector: those asked for, or its default. Raises ``UserError``."""
    if not asked:
        return [Order.parse("relevance" if spec.retrieves else "drawn")]
    for order in asked:
        order.check_allowed(spec, labelled=labelled)
    return asked


def check_prompts(
    select: Sequence[SelectorSpec],
    orders: Sequence[Order] | None,
    draws: int | None,
    attention: Sequence[Pattern],
    perturbation: Perturbation,
    k_values: Sequence[int],
    *,
    spec: TaskSpec,
) -> None:
    """Raise ``UserError`` for an order, attention or k that does not apply; needs no data."""
    check_draws(draws)
    labelled = spec.has_common_labels
    if 0 in k_values and perturbation != PLAIN:
        raise UserError(
            f"--demonstrations {perturbation}: a prompt of k=0 has no demonstration to change; "
            "leave 0 out, and run --k 0 without --demonstrations"
        )
    for choice in select:
        choice.check_allowed(labelled=labelled)
        perturbation.check_allowed(shared=choice.shared, labelled=spec.is_classification)
        for k in filter(None, k_values):  # without demonstrations nothing is chosen
            if choice.each is None:  # else it takes data to know the labels
                choice.own_count(k, 0)
            perturbation.check_k(k)
        chosen_orders = orders_for(choice, orders, labelled=labelled)
        for pattern in attention:
            if pattern.reads_vectors and spec.data.passages is None:
                _check_vectors(pattern, perturbation, k_values)
            for order in chosen_orders:
                _check_reuse(pattern, choice, order)
            if pattern.compares is not None:
                _check_compared(pattern, pattern.compares, choice, perturbation)
            for k in filter(None, k_values):
                pattern.check_shots(k)


def _check_vectors(pattern: Pattern, perturbation: Perturbation, k_values: Sequence[int]) -> None:
    """Raise ``UserError`` where demonstrations cannot be read as so many vectors."""
    if perturbation.changes_piece or not perturbation.shared:
        raise UserError(
            f"--attention {pattern}: a vector is of a whole demonstration, which "
            f"--demonstrations {perturbation} does not show"
        )
    for k in filter(None, k_values):
        if pattern.fewest_texts > k:
            raise UserError(
                f"--attention {pattern}: k={k} has {k} demonstrations; take at most vectors:{k}, "
                "or a larger --k"
            )


def _check_compared(
    pattern: Pattern, by: str, spec: SelectorSpec, perturbation: Perturbation
) -> None:
    """Raise ``UserError`` where a query cannot read a part of what all queries share."""
    if by not in (known := selector_spec.retrievers()):
        raise UserError(f"--attention {pattern}: by={by}: not a similarity; {nearest(by, known)}")
    if not spec.shared or not perturbation.shared:
        why = spec if not spec.shared else f"--demonstrations {perturbation}"
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
