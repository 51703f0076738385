"""The parts of a study, each a block of settings with a task and model, and their computing."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from icl_bench.models.registry import resolve
from icl_bench.results.cells import CellSpec, Identity
from icl_bench.results.storage import Place
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import StudyCell
from icl_bench.studies.file import Job
from icl_bench.sweep.notes import headline
from icl_bench.sweep.runner import Outcome, Watcher
from icl_bench.sweep.sweep import Sweep
from icl_bench.training.finetune import Finetuning

if TYPE_CHECKING:
    from icl_bench.backends.interface import Backend
    from icl_bench.models.registry import Model
    from icl_bench.sweep.plan import Plan


class Listener:
    """Is told how a study goes on. This one says nothing."""

    def part_started(self, part: Part, number: int, parts: int) -> None:
        """One of the parts begins; numbers are from 1."""

    def running(self, plan: Plan) -> AbstractContextManager[Watcher]:
        """What watches the cells of a plan while they are computed."""
        del plan
        return nullcontext(Watcher())

    def note(self, text: str) -> None:
        """A line on a training."""

    def shared_out(self, state: Progress) -> None:
        """How far the whole is, where several processes compute it; told again and again."""

    def part_ended(self, part: Part, outcome: Outcome) -> None:
        """All its cells are done, kept or failed."""


@dataclass(frozen=True)
class Progress:
    """How far a study is that several processes compute."""

    engines: int
    """At work."""
    starting: int
    """Engines that wait for a place, or start."""
    units: int
    units_done: int
    predictions: int
    predictions_done: int
    share: float
    """Of the estimated time of what was not there before, 0 to 1."""
    seconds_left: float | None
    """None where it cannot be told yet."""
    at_work: tuple[str, ...]
    """What is being computed."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a study."""

    identity: Identity
    tokens: int | None = None
    """Prompt tokens to compute; None for what is trained."""
    seconds: float | None = None
    """Estimated; None where that is not known."""


@dataclass(frozen=True)
class Unit:
    """What one process computes at a time: the cells of a part that share a prefix, or trainings on
    the same examples.
    """

    part: int
    """The part's place in the study, from 0."""
    number: int
    """Its place in the part, from 0."""
    title: str
    engine: object
    """What computes it; units with equal ones may follow each other on a loaded model."""
    cells: int
    predictions: int
    seconds: float | None
    """Estimated; None where that is not known."""


class Engines:
    """The backend that was loaded last: parts of one model and engine use it one after another."""

    def __init__(self) -> None:
        self._loaded: tuple[object, Backend] | None = None

    @property
    def engine(self) -> object:
        """What is loaded; None where nothing is."""
        return self._loaded[0] if self._loaded else None

    def load(self, part: PromptPart) -> Backend:
        """The backend of a part, with the room that it says."""
        if self._loaded is None or self._loaded[0] != part.engine:
            self.free()
            sweep = part.sweep
            model = found_here(sweep.model)
            self._loaded = part.engine, sweep.loader.load(model, sweep.task.tokenizer, part.room)
        return self._loaded[1]

    def free(self) -> None:
        """Give its memory back, before something else is loaded."""
        self._loaded = None
        gc.collect()


def share_room(parts: Sequence[Part]) -> None:
    """Let each part ask for the room that the largest of those needs which use the same engine."""
    rooms: dict[object, int] = {}
    prompts = [part for part in parts if isinstance(part, PromptPart)]
    for part in prompts:
        rooms[part.engine] = max(part.sweep.room, rooms.get(part.engine, 0))
    for part in prompts:
        part.room = rooms[part.engine]


def found_here(model: Model) -> Model:
    """The same model where its files are on this machine: another one may have laid out the study.

    Raises ``UserError`` where it is not to be had.
    """
    if model.tokenizer is not None or Path(model.source).exists():
        return model
    return replace(model, source=resolve(model.asked, model.context_tokens).source)


@dataclass
class Part(ABC):
    """One block of a study with one task and model, laid out."""

    job: Job
    task: str
    model: str
    """As results call them."""

    @property
    @abstractmethod
    def backend(self) -> str:
        """What computes it, by name."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """Test rows, pool and data, in one line."""

    @property
    def gpus(self) -> int:
        """That its model is spread over, where it is computed on GPUs."""
        return 1

    @abstractmethod
    def identities(self) -> list[Identity]:
        """The cells that fit."""

    def cells(self) -> list[PlannedCell]:
        """The same with what they take, as far as that is known."""
        return [PlannedCell(identity) for identity in self.identities()]

    @abstractmethod
    def problems(self) -> list[str]:
        """What does not fit, and what a user should know."""

    @abstractmethod
    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """Compute what is not there yet. Raises ``UserError``."""

    def run_alone(self, results: Place, listener: Listener) -> Outcome:
        """The same where there is no other part. Raises ``UserError``."""
        share_room([self])
        return self.run(results, Engines(), listener)

    @abstractmethod
    def units(self, number: int) -> list[Unit]:
        """What it is divided into, for several processes; ``number`` is its place in the study."""

    @abstractmethod
    def run_unit(
        self, number: int, results: Place, engines: Engines, watcher: Watcher, say: Callable[[str], None]
    ) -> Outcome:
        """Compute what is not there yet of a unit. Raises ``UserError``."""

    @abstractmethod
    def identities_of(self, number: int) -> list[Identity]:
        """The cells of a unit."""

    @abstractmethod
    def settle(self) -> None:
        """Remember what decides the cells on this machine."""

    @abstractmethod
    def differs(self) -> str | None:
        """What would be other cells on this machine than where it was settled; None if nothing."""

    def give_up(self, number: int, results: Place, reason: str) -> Outcome:
        """Mark the cells of a unit that are not done with why they cannot be. Raises
        ``UserError``.
        """
        store, outcome = Store(results), Outcome()
        for identity in self.identities_of(number):
            outcome.names[identity.name] = identity.spec
            if store.has(identity):
                outcome.kept.append(identity.spec)
                continue
            store.mark_failed(identity, reason)
            outcome.failed[identity.spec] = reason
        return outcome

    def records(self) -> Iterator[StudyCell]:
        """What is stored of its cells."""
        for identity in self.identities():
            yield StudyCell(
                **identity.spec.model_dump(), setting=self.job.setting, cell=identity.cell, variant=identity.variant
            )


@dataclass
class PromptPart(Part):
    """Of prompts."""

    sweep: Sweep
    room: int = 0
    """Tokens that the backend makes room for: :func:`share_room`."""
    _settled: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sweep: Sweep, job: Job | None = None) -> PromptPart:
        """A sweep as a part; of no study where there is no job."""
        task, model = sweep.task.data.spec.name, sweep.model.name
        return cls(job or Job("run", task, model, {}), task, model, sweep)

    @cached_property
    def engine(self) -> object:
        """The model as a backend loads it: parts with equal ones share it."""
        loader = self.sweep.loader
        return loader.name, loader.spec, self.sweep.model.source

    @property
    def backend(self) -> str:
        """See ``Part``."""
        return self.sweep.loader.name

    @property
    def headline(self) -> str:
        """See ``Part``."""
        return headline(self.sweep.task)

    @property
    def gpus(self) -> int:
        """See ``Part``."""
        return self.sweep.loader.spec.tensor_parallel or 1

    def identities(self) -> list[Identity]:
        """See ``Part``."""
        return self.sweep.identities()

    def cells(self) -> list[PlannedCell]:
        """See ``Part``."""
        fitting = [
            (cell, seconds)
            for cell, seconds in zip(self.sweep.plan.cells, self.sweep.estimates(), strict=True)
            if cell.problem is None
        ]
        return [
            PlannedCell(identity, cell.new_tokens, seconds)
            for identity, (cell, seconds) in zip(self.identities(), fitting, strict=True)
        ]

    def problems(self) -> list[str]:
        """See ``Part``."""
        from icl_bench.sweep.notes import notes

        plan = self.sweep.plan
        skipped = [f"skipped: {problem}" for problem in plan.problems]
        left_out = [f"left out: {reason}" for reason in plan.combinations.reasons]
        return [*(f"note: {text}" for text in notes(self.sweep)), *skipped, *left_out]

    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """See ``Part``."""
        with listener.running(self.sweep.plan) as watcher:
            return self.sweep.run(results, watcher, partial(engines.load, self))

    def units(self, number: int) -> list[Unit]:
        """See ``Part``: one for each group with cells that fit."""
        estimates, found = iter(self.sweep.estimates()), []
        for i, group in enumerate(self.sweep.plan.groups):
            known = [seconds for cell, seconds in zip(group.cells, estimates, strict=False) if cell.problem is None]
            if not group.runnable:
                continue
            first = group.runnable[0].spec
            title = f"{self.task} with {self.model}: {first.select}, draw {first.draw + 1}"
            sure = [seconds for seconds in known if seconds is not None]
            found.append(
                Unit(
                    number,
                    i,
                    title,
                    self.engine,
                    len(group.runnable),
                    sum(cell.queries for cell in group.runnable),
                    sum(sure) if len(sure) == len(known) else None,
                )
            )
        return found

    def _unit(self, number: int) -> Sweep:
        return self.sweep.of_groups([self.sweep.plan.groups[number]])

    def run_unit(
        self, number: int, results: Place, engines: Engines, watcher: Watcher, say: Callable[[str], None]
    ) -> Outcome:
        """See ``Part``."""
        del say
        return self._unit(number).run(results, watcher, partial(engines.load, self))

    def identities_of(self, number: int) -> list[Identity]:
        """See ``Part``."""
        return self._unit(number).identities()

    def settle(self) -> None:
        """See ``Part``."""
        self._settled = self.sweep.loader.identity()

    def differs(self) -> str | None:
        """See ``Part``."""
        here = self.sweep.loader.identity()
        if here == self._settled:
            return None
        name = next(n for n in {**self._settled, **here} if here.get(n) != self._settled.get(n))
        return f"{name} is {here.get(name)} there and {self._settled.get(name)} here"


@dataclass
class TrainingPart(Part):
    """Of methods that learn from the examples."""

    training: Finetuning
    wanted: Callable[[CellSpec], bool] = lambda _: True

    @classmethod
    def of(
        cls, training: Finetuning, job: Job | None = None, wanted: Callable[[CellSpec], bool] = lambda _: True
    ) -> TrainingPart:
        """Trainings as a part; of no study where there is no job."""
        task, model = training.task.data.spec.name, training.task.model.name
        return cls(job or Job("finetune", task, model, {}), task, model, training, wanted)

    @property
    def backend(self) -> str:
        """See ``Part``."""
        return "training"

    @property
    def headline(self) -> str:
        """See ``Part``."""
        return headline(self.training.task)

    def identities(self) -> list[Identity]:
        """See ``Part``."""
        return [one for one in self.training.identities() if self.wanted(one.spec)]

    def problems(self) -> list[str]:
        """See ``Part``."""
        return [f"note: {text}" for text in self.training.notes()]

    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """See ``Part``."""
        engines.free()  # training loads a model of its own
        return self.training.run(results, listener.note, self.wanted)

    def _examples(self) -> list[tuple[int, int]]:
        """The k and draw of each unit."""
        return list(dict.fromkeys((one.spec.k, one.spec.draw) for one in self.identities()))

    def units(self, number: int) -> list[Unit]:
        """See ``Part``: one for each k and draw, with all methods."""
        every, test = self.identities(), len(self.training.task.data.test)
        found = []
        for i, (k, draw) in enumerate(self._examples()):
            cells = sum((one.spec.k, one.spec.draw) == (k, draw) for one in every)
            title = f"{self.task} with {self.model}: training, k={k:,}, draw {draw + 1}"
            found.append(Unit(number, i, title, ("training", self.model), cells, cells * test, None))
        return found

    def _of_unit(self, number: int) -> Callable[[CellSpec], bool]:
        examples = self._examples()[number]
        return lambda cell: (cell.k, cell.draw) == examples and self.wanted(cell)

    def run_unit(
        self, number: int, results: Place, engines: Engines, watcher: Watcher, say: Callable[[str], None]
    ) -> Outcome:
        """See ``Part``."""
        del watcher
        engines.free()
        return self.training.run(results, say, self._of_unit(number))

    def identities_of(self, number: int) -> list[Identity]:
        """See ``Part``."""
        wanted = self._of_unit(number)
        return [one for one in self.identities() if wanted(one.spec)]

    def settle(self) -> None:
        """See ``Part``: the training says its device and dtype."""

    def differs(self) -> str | None:
        """See ``Part``."""
        from icl_bench.backends.device import device_name

        here = device_name(self.training.spec.device)
        if here == self.training.device:
            return None
        return f"device is {here} there and {self.training.device} here"
