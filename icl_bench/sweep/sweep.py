"""A sweep from what a user asks for to finished cells: the program's main entry as a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from icl_bench.backends.choice import check_able, check_backend, make_loader
from icl_bench.backends.interface import Backend, BackendLoader
from icl_bench.backends.spec import BackendSpec
from icl_bench.demonstrations.balanced import shots_per_label
from icl_bench.demonstrations.perturbations import PLAIN, Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.models.architecture import Architecture, check_family, shape_of
from icl_bench.models.attention_patterns import parse
from icl_bench.models.registry import Model, load_tokenizer, resolve, served
from icl_bench.results.store import Store
from icl_bench.sweep.compute_cost import ComputeCost, work_of
from icl_bench.sweep.experiment import Queries, Scoring, TokenizedTask
from icl_bench.sweep.facts import versions
from icl_bench.sweep.k_values import KValues, per_label
from icl_bench.sweep.plan import Plan, check_request, make_plan, room_for
from icl_bench.sweep.runner import Outcome, Runner, Watcher
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.task_files import load_task
from icl_bench.wording import plain

EMBEDDING = ("sentence-transformers", "scikit-learn")
"""What embeddings and clusters are computed by: its versions are stored where there are any."""


class RunSpec(Frozen):
    """Everything that a user asks of a run."""

    task: str
    """A shipped task's name, or the path of a task file."""
    model: str
    """A registry name, a folder or a hub id; with an API, the name that the server knows."""
    k: str | None = None
    """Numbers of demonstrations, ``max`` or ``auto``; or else ``per_label``."""
    per_label: str | None = None
    """Numbers of demonstrations of each label, for ``balanced`` ones."""
    select: tuple[str, ...] = ("random",)
    """Ways to choose demonstrations: :class:`icl_bench.demonstrations.selector_spec.SelectorSpec`."""
    encoder: str | None = None
    """The sentence encoder of choices that need one: name, folder, hub id; None: the packaged."""
    demonstrations: str = "plain"
    """What prompts show of them: :class:`icl_bench.demonstrations.perturbations.Perturbation`."""
    order: tuple[str, ...] | None = None
    """Orders of the demonstrations; by default ``drawn``, and ``relevance`` for retrieval."""
    attention: tuple[str, ...] = ("full",)
    """How the model reads the demonstrations: patterns of :mod:`icl_bench.models.attention_patterns`."""
    draws: int | None = None
    seed: int = 0
    scoring: Scoring = "greedy"
    test_size: int | None = None
    labels: str = "all"
    """``all`` labels of the task, or ``half:SEED``."""
    queries: Queries = "test"
    """``copied``: demonstrations of the prompt are asked, instead of test rows."""
    data_dir: Path | None = None
    context_tokens: int | None = None
    tokenizer: str | None = None
    """With an API: the model whose tokenizer counts the tokens (a name, a folder or a hub id)."""
    engine: BackendSpec = BackendSpec()


@dataclass
class Sweep:
    """A planned run of one task and model."""

    spec: RunSpec
    model: Model
    experiment: TokenizedTask
    plan: Plan

    @classmethod
    def prepare(cls, spec: RunSpec, say: Callable[[str], None] = lambda _: None) -> Sweep:
        """Load data and tokenizer and lay out the plan; nothing is computed yet.

        ``say`` is told, in a few words, what is being done. Raises ``UserError``.
        """
        task = load_task(spec.task)
        check(spec, task)
        say(f"reading {task.name}")
        data = load_data(task, data_dir=spec.data_dir, test_size=spec.test_size)
        if half := HalfLabels.parse(spec.labels):
            data = half.of(data)
        say(f"preparing {spec.model}")
        model = _model(spec)
        for text in spec.attention:
            check_family(parse(text), model)
        experiment = TokenizedTask(
            data, model, load_tokenizer(model), spec.seed, _scoring(spec), spec.queries,
            str(half) if half else None, Perturbation.parse(spec.demonstrations), spec.encoder,
        )  # fmt: skip
        say("choosing demonstrations and counting tokens")
        shots = _shots(spec, experiment)
        plan = make_plan(experiment, shots, spec.select, spec.order, spec.draws, spec.attention)
        return cls(spec, model, experiment, plan)

    @cached_property
    def engine(self) -> BackendLoader:
        """The backend, not loaded yet."""
        loader = _loader(self.spec)
        if loader.spec.dtype != "auto":
            return loader
        return replace(loader, spec=loader.spec.model_copy(update={"dtype": self.model.dtype}))

    @property
    def choices(self) -> list[SelectorSpec]:
        """The ways in which its demonstrations are chosen."""
        return list(dict.fromkeys(group.group.choice for group in self.plan.groups))

    @property
    def embeds(self) -> bool:
        """Whether its demonstrations depend on a sentence encoder."""
        return self.experiment.teaching.embeds or any(choice.embeds for choice in self.choices)

    def load_backend(self) -> Backend:
        """Load the model, or make the connection to it."""
        room = room_for(self.plan, self.model.context_tokens)
        return self.engine.load(self.model, self.experiment.tokenizer, room)

    def works(self) -> Sequence[ComputeCost | None]:
        """What each cell of the plan takes by formula; None where it is not known."""
        identity = self.engine.identity()
        if self.spec.tokenizer or "dtype" not in identity:
            return [None] * len(self.plan.cells)
        dtype = identity["dtype"]
        return [
            None
            if cell.problem
            else work_of(cell.reading, self._shape, cell.answer_tokens / 2, dtype)
            for cell in self.plan.cells
        ]

    @cached_property
    def _shape(self) -> Architecture:
        """What of the model decides its cost; the model is laid out once, without weights."""
        return shape_of(self.model.source)

    def estimates(self) -> Sequence[float | None]:
        """Estimated seconds of each cell of the plan; None where a server computes them."""
        from icl_bench.sweep.time_estimate import seconds

        rate = self.engine.rate()
        if rate is None:
            return [None] * len(self.plan.cells)
        return seconds(self._shape, rate, self.plan.cells)

    def run(self, results: Path, watcher: Watcher | None = None) -> Outcome:
        """Compute what is not in the results folder yet. Raises ``UserError``."""
        runner = Runner(
            self.plan,
            Store(results),
            self.engine.identity(),
            self.load_backend,
            watcher or Watcher(),
            about=versions(*(EMBEDDING if self.embeds else ())),
            shape=None if self.spec.tokenizer else lambda: self._shape,
        )
        return runner.run()


def check(spec: RunSpec, task: TaskSpec) -> None:
    """Raise ``UserError`` for what can be told without data and model."""
    patterns = [parse(text) for text in spec.attention]
    loader = _loader(spec)
    check_able(loader, patterns, spec.tokenizer, exact=spec.scoring == "exact")
    check_backend(loader)
    if spec.scoring != "greedy" and not task.is_classification:
        option = "--unconstrained" if spec.scoring == "unconstrained" else "--score exact"
        raise UserError(f"{option}: task {task.name} is free text, it has no labels")
    if HalfLabels.parse(spec.labels) and not task.is_classification:
        raise UserError(f"--labels {spec.labels}: task {task.name} is free text, without labels")
    _check_demonstrations(spec, task)


def _check_demonstrations(spec: RunSpec, task: TaskSpec) -> None:
    """The same for what is asked of the demonstrations."""
    choices = [SelectorSpec.parse(text) for text in spec.select]
    teaching = Perturbation.parse(spec.demonstrations)
    asked = (spec.order, spec.draws, spec.attention, teaching, _numbers(spec, choices))
    check_request(choices, *asked, labelled=task.is_classification)
    if spec.queries == "copied":
        if own := [choice for choice in choices if not choice.shared]:
            raise UserError(f"--queries copied: {own[0]} would only find the query itself; "
                            "it is for demonstrations that all queries share")  # fmt: skip
        if teaching != PLAIN:
            raise UserError("--queries copied: asks for answers that the prompt shows; "
                            "it is for --demonstrations plain")  # fmt: skip
    embeds = teaching.embeds or any(choice.embeds for choice in choices)
    if spec.encoder is not None and not embeds:
        raise UserError(f"--encoder {plain(spec.encoder)}: nothing that is asked for embeds texts; "
                        "it is for dense, centroids and nearest-removed")  # fmt: skip


def _numbers(spec: RunSpec, choices: Sequence[SelectorSpec]) -> tuple[int, ...]:
    """The k that are asked for by number. Raises ``UserError`` where it is not said how many."""
    if (spec.k is None) == (spec.per_label is None):
        raise UserError("give --k, or else --per-label: numbers of demonstrations, like 1,10,100")
    if spec.k is not None:
        return KValues.parse(spec.k).numbers
    per_label(spec.per_label or "")
    if others := [choice for choice in choices if str(choice) != "balanced"]:
        raise UserError(f"--per-label: is for --select balanced, not {others[0]}; give --k")
    return ()


def _shots(spec: RunSpec, experiment: TokenizedTask) -> KValues:
    """What ``--k`` or ``--per-label`` asks for. Raises ``UserError``."""
    if spec.per_label is None:
        assert spec.k is not None, "one of the two is there"
        return KValues.parse(spec.k)
    drawn, labels = experiment.drawn(0), experiment.answers_of_train
    each = per_label(spec.per_label)
    return KValues(tuple(shots_per_label(number, drawn, labels) for number in each))


def _loader(spec: RunSpec) -> BackendLoader:
    """The backend that is meant: where patterns of attention are asked for, one that has them."""
    return make_loader(spec.engine, [parse(text) for text in spec.attention])


def _model(spec: RunSpec) -> Model:
    if spec.tokenizer is not None:
        return served(spec.model, spec.tokenizer, spec.context_tokens)
    return resolve(spec.model, spec.context_tokens)


def _scoring(spec: RunSpec) -> Scoring:
    """Answers that cannot be held to the labels are free text."""
    return spec.scoring if _loader(spec).constrained else "unconstrained"
