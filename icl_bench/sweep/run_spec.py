"""Everything that a user asks of a run, read once, and what of it can be refused at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, InstanceOf, model_validator

from icl_bench.backends.choice import Asked, Choice, check_able, check_backend, check_patterns, choose, make_loader
from icl_bench.backends.interface import BackendLoader
from icl_bench.backends.spec import BackendSpec
from icl_bench.demonstrations import selector_spec
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import NONE, Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models import attention_patterns
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.models.trained import own_pattern
from icl_bench.prompts.chat import ChatSettings
from icl_bench.registry import SELECTORS
from icl_bench.sweep.combinations import Check, Circumstances, Combinations
from icl_bench.sweep.k_values import KValues, check_draws, parse_per_label
from icl_bench.sweep.tokenized_task import Queries, Scoring
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.spec import TaskSpec
from icl_bench.wording import comma_list, plain

T = TypeVar("T")


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
    select: Annotated[tuple[InstanceOf[SelectorSpec], ...], _read_each(SelectorSpec.parse, selector_spec.split)] = (
        SelectorSpec(),
    )
    """Ways to choose demonstrations."""
    encoder: str | None = None
    """The sentence encoder of choices that need one: name, folder, hub id; None: the packaged."""
    perturbation: Annotated[InstanceOf[Perturbation], read_text(Perturbation.parse)] = NONE
    """What prompts show of them."""
    order: Annotated[tuple[InstanceOf[Order], ...] | None, _read_each(Order.parse, comma_list)] = None
    """Orders of the demonstrations; by default ``drawn``, and ``relevance`` for retrieval."""
    attention: Annotated[
        tuple[InstanceOf[Pattern], ...], _read_each(attention_patterns.parse, attention_patterns.split)
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
        return embeds or self.perturbation.embeds or any(spec.embeds for spec in self.select)

    def check(self, task: TaskSpec) -> None:
        """Raise ``UserError`` for what can be told without data and model.

        A combination that makes no sense is left out (:meth:`combinations`), as long as another one
        is left.
        """
        self._check_backend(task)
        if self.labels and not task.is_classification:
            raise UserError(f"--labels {self.labels}: task {task.name} is free text, without labels")
        if self.labels and task.labels and task.labels.own:
            raise UserError(
                f"--labels {self.labels}: each row of task {task.name} has choices of its own; "
                "there is no set of labels to leave some out of"
            )
        self._check_numbers()
        check_draws(self.draws)
        self.combinations(task).require_some()
        if self.encoder is not None and not self.embeds:
            raise UserError(
                f"--encoder {plain(self.encoder)}: nothing that is asked for embeds texts; "
                "it is for dense, centroids and nearest-removed"
            )

    def combinations(self, task: TaskSpec, able: Check | None = None) -> Combinations:
        """What is asked for, each with each, as far as that can be told without data.

        ``able`` refuses what model and backend cannot do, by default what the backend cannot.
        Raises ``UserError`` for a similarity that is none.
        """
        turns = self.chat is not None and self.chat.style == "turns"
        return Combinations.of(
            self.select,
            self.order,
            self.attention,
            self.k.numbers if self.k else (),
            Circumstances(task, self.perturbation, self.queries, turns),
            unsaid=self.per_label is not None or bool(self.k and self.k.largest),
            able=able or self.able(task),
        )

    def able(self, task: TaskSpec) -> Check:
        """Refuses what the backend does not compute."""
        loader = self.loader(task)
        return lambda one: check_patterns(loader, [one.attention])

    def narrowed(self, combinations: Combinations) -> RunSpec:
        """Without selectors, orders and patterns of which nothing is left."""
        left = combinations.possible
        orders = {one.order for one in left}
        return self.model_copy(
            update={
                "select": tuple(dict.fromkeys(one.select for one in left)),
                "attention": tuple(dict.fromkeys(one.attention for one in left)),
                "order": self.order and tuple(order for order in self.order if order in orders),
            }
        )

    def _check_backend(self, task: TaskSpec) -> None:
        loader = self.loader(task)
        if FULL not in self.attention:  # else there is a pattern left, and others are left out
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

    def _check_numbers(self) -> None:
        """Raise ``UserError`` where no number of demonstrations is said, or two ways are mixed."""
        if self.k is None and self.per_label is None and all(s.says_k for s in self.select):
            return
        if (self.k is None) == (self.per_label is None):
            raise UserError("give --k, or else --per-label: numbers of demonstrations, like 1,10,100")
        others = [spec for spec in self.select if str(spec) != "balanced"]
        if self.per_label is not None and others:
            raise UserError(f"--per-label: is for --select balanced, not {others[0]}; give --k")
