"""The parts of a study: each is a block of settings with a task and a model."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from icl_bench.backends.device import device_name
from icl_bench.backends.interface import Backend
from icl_bench.errors import UserError
from icl_bench.models.registry import Model, as_in, resolve
from icl_bench.results.cells import CellSpec, Identity
from icl_bench.results.storage import Place
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import StudyCell
from icl_bench.studies.file import Job
from icl_bench.sweep.notes import headline, notes
from icl_bench.sweep.plan import Plan, PlannedGroup, shares_asked
from icl_bench.sweep.runner import Outcome, Watcher
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.training.finetune import Finetuning


class Listener:
    """Progress callbacks of a study; the default does nothing."""

    def part_started(self, part: Part, number: int, parts: int) -> None:
        """A part starts; ``number`` counts from 1."""

    def parts_shared(self, parts: Sequence[Part]) -> None:
        """Several processes start to compute these parts together."""

    def running(self, plan: Plan) -> AbstractContextManager[Watcher]:
        """The watcher of a plan's cells while they are computed."""
        del plan
        return nullcontext(Watcher())

    def note(self, text: str) -> None:
        """A message about a training or an engine."""

    def cluster_progress(self, state: StudyProgress) -> None:
        """Progress of the whole study on a cluster; called repeatedly."""

    def part_ended(self, part: Part, outcome: Outcome) -> None:
        """All cells of a part are done, kept or failed."""


@dataclass(frozen=True)
class StudyProgress:
    """Progress of a study that several processes compute."""

    called: str
    """What a process is called: ``engine`` or ``worker``."""
    engines: int
    """Processes at work."""
    starting: int
    """Processes that are starting or waiting for resources."""
    units: int
    units_done: int
    predictions: int
    predictions_done: int
    share: float
    """Finished share (0 to 1) of the estimated time, without cells finished before."""
    seconds_left: float | None
    """None if not known yet."""
    at_work: tuple[str, ...]
    """Titles of the units being computed."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a study."""

    identity: Identity
    tokens: int | None = None
    """Prompt tokens to compute, without prompts that an earlier draw answers; None for a training."""
    seconds: float | None = None
    """Estimated; None if unknown."""


@dataclass(frozen=True)
class Unit:
    """The work of one process at a time: cells of a part that share a prefix, or trainings on the same
    examples.
    """

    part: int
    """The part's index in the study, from 0."""
    number: int
    """Its index in the part, from 0."""
    title: str
    engine: object
    """Identifies the loaded model; units with equal engines can use the same one."""
    cells: int
    predictions: int
    seconds: float | None
    """Estimated; None if unknown."""


class Engines:
    """The backend loaded last, which consecutive parts with the same engine share."""

    def __init__(self) -> None:
        self._loaded: tuple[object, Backend] | None = None
        self._used = False

    @property
    def engine(self) -> object:
        """The loaded engine; None if there is none."""
        return self._loaded[0] if self._loaded else None

    def load(self, part: PromptPart) -> Backend:
        """The backend of a part, with the part's room."""
        if self._loaded is None or self._loaded[0] != part.engine:
            self.free()
            sweep = part.sweep
            model = on_this_machine(sweep.model)
            self._loaded = part.engine, sweep.loader.load(model, sweep.task.tokenizer, part.room)
        return self._loaded[1]

    def free(self) -> None:
        """Release its memory before something else is loaded.

        The first time there is nothing to release: then nothing searches for garbage, which takes time beside large
        libraries.
        """
        self._loaded = None
        if self._used:
            gc.collect()
        self._used = True


def share_room(parts: Sequence[Part]) -> None:
    """Set the room of each part to the largest room of all parts with the same engine."""
    rooms: dict[object, int] = {}
    prompts = [part for part in parts if isinstance(part, PromptPart)]
    for part in prompts:
        rooms[part.engine] = max(part.sweep.room, rooms.get(part.engine, 0))
    for part in prompts:
        part.room = rooms[part.engine]


def run_here(parts: Sequence[Part], results: Place, listener: Listener) -> Outcome:
    """Compute the missing cells of parts, one after another, in this process.

    A part that cannot be computed does not stop the others. A single part raises its ``UserError``.
    """
    share_room(parts)
    engines, total = Engines(), Outcome()
    for number, part in enumerate(parts, 1):
        listener.part_started(part, number, len(parts))
        try:
            outcome = part.run(results, engines, listener)
        except UserError as error:
            if len(parts) == 1:
                raise
            total.stopped.append(f"{part.job}: {error}")
            continue
        listener.part_ended(part, outcome)
        total.add(outcome)
    return total


def on_this_machine(model: Model) -> Model:
    """The model with its source on this machine, because another machine may have planned the study.

    Raises ``UserError`` if it is not available.
    """
    if model.tokenizer is not None or Path(model.source).exists():
        return model
    found = resolve(model.requested_name, model.context_tokens, commit_of=as_in(model.fingerprint))
    return replace(model, source=found.source)


@dataclass
class Part(ABC):
    """One planned block of a study with one task and one model."""

    job: Job
    task: str
    model: str
    """Task and model as named in results."""
    backend: str
    """Name of the backend; ``training`` for trainings."""
    tokenized: TokenizedTask

    @property
    def headline(self) -> str:
        """Test rows, pool and data, in one line."""
        return headline(self.tokenized)

    @property
    def gpus(self) -> int:
        """Number of GPUs that its model is split across."""
        return 1

    @abstractmethod
    def identities(self) -> list[Identity]:
        """The identities of the runnable cells."""

    def cells(self) -> list[PlannedCell]:
        """The runnable cells with their cost, as far as known."""
        return [PlannedCell(identity) for identity in self.identities()]

    @abstractmethod
    def problems(self) -> list[str]:
        """Cells that cannot run, with reasons, and notes for the user."""

    @abstractmethod
    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """Compute missing cells. Raises ``UserError``."""

    def run_alone(self, results: Place, listener: Listener) -> Outcome:
        """Compute missing cells if there is no other part. Raises ``UserError``."""
        share_room([self])
        return self.run(results, Engines(), listener)

    @abstractmethod
    def units(self, number: int) -> list[Unit]:
        """Units for several processes; ``number`` is the part's index in the study."""

    @abstractmethod
    def run_unit(
        self, number: int, results: Place, engines: Engines, watcher: Watcher, say: Callable[[str], None]
    ) -> Outcome:
        """Compute missing cells of a unit. Raises ``UserError``."""

    @abstractmethod
    def identities_of(self, number: int) -> list[Identity]:
        """The cells of a unit."""

    @abstractmethod
    def settle(self) -> None:
        """Store settings of this machine that decide cells."""

    @abstractmethod
    def differs(self) -> str | None:
        """The differences between this machine's settings and the stored ones; None if they are equal."""

    def give_up(self, number: int, results: Place, reason: str) -> Outcome:
        """Mark the unfinished cells of a unit as failed, with the reason. Raises ``UserError``."""
        store, outcome = Store(results), Outcome()
        for identity in self.identities_of(number):
            outcome.names[identity.name] = identity.spec
            if not store.has(identity):
                store.mark_failed(identity, reason)
                outcome.failed[identity.name] = reason
                continue
            try:
                store.is_current(identity)
                outcome.kept.append(identity.spec)
            except UserError as error:  # its task had other settings
                outcome.failed[identity.name] = str(error)
        return outcome

    def records(self) -> Iterator[StudyCell]:
        """Its cells as stored with the study."""
        for identity in self.identities():
            yield StudyCell(
                **identity.spec.model_dump(), setting=self.job.setting, cell=identity.cell, variant=identity.variant
            )


@dataclass
class PromptPart(Part):
    """A part that prompts."""

    sweep: Sweep
    room: int = 0
    """Tokens that the backend needs room for: see :func:`share_room`."""
    _settled: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, sweep: Sweep, job: Job | None = None) -> PromptPart:
        """A sweep as a part; without a job, it belongs to no study."""
        task, model = sweep.task.data.spec.name, sweep.model.name
        return cls(job or Job("run", task, model, {}), task, model, sweep.loader.name, sweep.task, sweep)

    @cached_property
    def engine(self) -> object:
        """Identifies the loaded model; parts with equal engines share it."""
        loader = self.sweep.loader
        return loader.name, loader.spec, self.sweep.model.source

    @property
    def gpus(self) -> int:
        """See ``Part``."""
        return self.sweep.loader.spec.tensor_parallel or 1

    def identities(self) -> list[Identity]:
        """See ``Part``."""
        return self.sweep.identities()

    def cells(self) -> list[PlannedCell]:
        """See ``Part``."""
        cells = self.sweep.plan.cells
        planned = zip(cells, self.sweep.estimates(), shares_asked(cells, [None] * len(cells)), strict=True)
        fitting = [(cell, seconds, share) for cell, seconds, share in planned if cell.problem is None]
        return [
            PlannedCell(identity, round(share * cell.new_tokens), None if seconds is None else share * seconds)
            for identity, (cell, seconds, share) in zip(self.identities(), fitting, strict=True)
        ]

    def problems(self) -> list[str]:
        """See ``Part``."""
        plan = self.sweep.plan
        skipped = [f"skipped: {problem}" for problem in plan.problems]
        left_out = [f"left out: {reason}" for reason in plan.combinations.reasons]
        return [*(f"note: {text}" for text in notes(self.sweep)), *skipped, *left_out]

    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """See ``Part``."""
        with listener.running(self.sweep.plan) as watcher:
            return self.sweep.run(results, watcher, partial(engines.load, self))

    @cached_property
    def _bundles(self) -> list[list[PlannedGroup]]:
        """The groups with runnable cells, each with the later draws that repeat most of its prompts, because one
        process answers equal prompts once.
        """
        bundles: dict[object, list[PlannedGroup]] = {}
        for i, group in enumerate(self.sweep.plan.groups):
            if cells := group.runnable:
                same, queries = (sum(getattr(cell, name) for cell in cells) for name in ("same_prompts", "queries"))
                point = cells[0].curve_point
                bundles.setdefault(point if point not in bundles or 2 * same > queries else i, []).append(group)
        return list(bundles.values())

    def units(self, number: int) -> list[Unit]:
        """See ``Part``: one unit for each group with runnable cells, together with the groups that repeat its
        prompts.
        """
        estimate = {
            id(cell): seconds for cell, seconds in zip(self.sweep.plan.cells, self.sweep.estimates(), strict=True)
        }
        units = []
        for i, groups in enumerate(self._bundles):
            cells = [cell for group in groups for cell in group.runnable]
            first, last = cells[0].spec, cells[-1].spec
            draws = (
                f"draw {first.draw + 1}" if first.draw == last.draw else f"draws {first.draw + 1} to {last.draw + 1}"
            )
            title = f"{self.task} with {self.model}: {first.select}, {draws}"
            known = [estimate[id(cell)] for cell in cells]
            sure = [seconds for seconds in known if seconds is not None]
            units.append(
                Unit(
                    number,
                    i,
                    title,
                    self.engine,
                    len(cells),
                    sum(cell.queries for cell in cells),
                    sum(sure) if len(sure) == len(known) else None,
                )
            )
        return units

    def _unit(self, number: int) -> Sweep:
        return self.sweep.of_groups(self._bundles[number])

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
        current = self.sweep.loader.identity()
        if current == self._settled:
            return None
        name = next(n for n in {**self._settled, **current} if current.get(n) != self._settled.get(n))
        return f"{name} is {current.get(name)} there and {self._settled.get(name)} here"


@dataclass
class TrainingPart(Part):
    """A part that trains on the examples."""

    training: Finetuning
    wanted: Callable[[CellSpec], bool] = lambda _: True

    @classmethod
    def of(
        cls, training: Finetuning, job: Job | None = None, wanted: Callable[[CellSpec], bool] = lambda _: True
    ) -> TrainingPart:
        """Trainings as a part; without a job, they belong to no study."""
        task, model = training.task.data.spec.name, training.task.model.name
        return cls(job or Job("finetune", task, model, {}), task, model, "training", training.task, training, wanted)

    def identities(self) -> list[Identity]:
        """See ``Part``."""
        return [identity for identity in self.training.identities() if self.wanted(identity.spec)]

    def problems(self) -> list[str]:
        """See ``Part``."""
        return [f"note: {text}" for text in self.training.notes()]

    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """See ``Part``."""
        engines.free()  # training loads a model itself
        return self.training.run(results, listener.note, self.wanted)

    def _examples(self) -> list[tuple[int, int]]:
        """The k and draw of each unit."""
        return list(dict.fromkeys((identity.spec.k, identity.spec.draw) for identity in self.identities()))

    def units(self, number: int) -> list[Unit]:
        """See ``Part``: one unit for each k and draw, with all methods."""
        every, test = self.identities(), len(self.training.task.data.test)
        units = []
        for i, (k, draw) in enumerate(self._examples()):
            cells = sum((identity.spec.k, identity.spec.draw) == (k, draw) for identity in every)
            title = f"{self.task} with {self.model}: training, k={k:,}, draw {draw + 1}"
            units.append(Unit(number, i, title, ("training", self.model), cells, cells * test, None))
        return units

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
        return [identity for identity in self.identities() if wanted(identity.spec)]

    def settle(self) -> None:
        """See ``Part``: the training has its device and dtype already."""

    def differs(self) -> str | None:
        """See ``Part``."""
        current = device_name(self.training.spec.device)
        if current == self.training.device:
            return None
        return f"device is {current} there and {self.training.device} here"
