"""A study laid out: its parts, all that is wrong with them at once, and how it is carried out."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.models.registry import resolve
from icl_bench.results.cells import CellSpec, Identity
from icl_bench.results.storage import Place
from icl_bench.results.studies import write_study
from icl_bench.studies.file import Job, Problems, StudyFile
from icl_bench.studies.rules import Names, Wanted
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Outcome, Watcher
from icl_bench.sweep.sweep import Sweep
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.training.finetune import Finetuning
from icl_bench.training.spec import FinetuneSpec

if TYPE_CHECKING:
    from icl_bench.backends.interface import Backend
    from icl_bench.sweep.plan import Plan

Say = Callable[[str], None]


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

    def part_ended(self, part: Part, outcome: Outcome) -> None:
        """All its cells are done, kept or failed."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a study."""

    identity: Identity
    tokens: int | None = None
    """Prompt tokens to compute; None for what is trained."""
    seconds: float | None = None
    """Estimated; None where that is not known."""


class Engines:
    """The backend that was loaded last: parts of one model and engine use it one after another."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._rooms: dict[object, int] = {}
        for part in parts:
            if isinstance(part, PromptPart):
                key, room = part.engine, part.sweep.room
                self._rooms[key] = max(room, self._rooms.get(key, 0))
        self._loaded: tuple[object, Backend] | None = None

    def load(self, part: PromptPart) -> Backend:
        """The backend of a part, with room for all parts that use it."""
        if self._loaded is None or self._loaded[0] != part.engine:
            self.free()
            sweep, room = part.sweep, self._rooms[part.engine]
            self._loaded = part.engine, sweep.loader.load(sweep.model, sweep.task.tokenizer, room)
        return self._loaded[1]

    def free(self) -> None:
        """Give its memory back, before something else is loaded."""
        self._loaded = None
        gc.collect()


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

    def records(self) -> Iterator[dict[str, Any]]:
        """What is stored of its cells."""
        for identity in self.identities():
            yield {
                **identity.spec.model_dump(), "setting": self.job.setting, "cell": identity.cell,
                "variant": identity.variant,
            }  # fmt: skip


@dataclass
class PromptPart(Part):
    """Of prompts."""

    sweep: Sweep

    @cached_property
    def engine(self) -> object:
        """The model as a backend loads it: parts with equal ones share it."""
        loader = self.sweep.loader
        return loader.name, loader.spec, self.sweep.model.source

    @property
    def backend(self) -> str:
        """See ``Part``."""
        return self.sweep.loader.name

    def identities(self) -> list[Identity]:
        """See ``Part``."""
        return self.sweep.identities()

    def cells(self) -> list[PlannedCell]:
        """See ``Part``."""
        fitting = [(cell, seconds) for cell, seconds
                   in zip(self.sweep.plan.cells, self.sweep.estimates(), strict=True)
                   if cell.problem is None]  # fmt: skip
        return [
            PlannedCell(identity, cell.new_tokens, seconds)
            for identity, (cell, seconds) in zip(self.identities(), fitting, strict=True)
        ]

    def problems(self) -> list[str]:
        """See ``Part``."""
        from icl_bench.sweep.notes import notes

        skipped = [f"skipped: {problem}" for problem in self.sweep.plan.problems]
        return [*(f"note: {text}" for text in notes(self.sweep)), *skipped]

    def run(self, results: Place, engines: Engines, listener: Listener) -> Outcome:
        """See ``Part``."""
        with listener.running(self.sweep.plan) as watcher:
            return self.sweep.run(results, watcher, partial(engines.load, self))


@dataclass
class TrainingPart(Part):
    """Of methods that learn from the examples."""

    training: Finetuning
    wanted: Callable[[CellSpec], bool]

    @property
    def backend(self) -> str:
        """See ``Part``."""
        return "training"

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


@dataclass
class Study:
    """A study, or a part of one, laid out: nothing is computed yet."""

    file: StudyFile
    wanted: Wanted
    parts: list[Part]
    left: dict[str, str] = field(default_factory=dict)
    """Parts of which nothing can run, and why."""

    @classmethod
    def prepare(cls, file: StudyFile, wanted: Wanted, say: Say = lambda _: None) -> Study:
        """Check all of it, then load data and tokenizers and lay out every part.

        Raises ``UserError`` with all that is wrong, by its lines, before anything is laid out.
        """
        jobs = check(file, wanted, say)
        study = cls(file, wanted, [])
        for number, job in enumerate(jobs, 1):

            def told(text: str, at: str = f"{number} of {len(jobs)}, {job}") -> None:
                say(f"{at}: {text}")

            try:
                study.parts += study._parts(job, told)
            except UserError as error:
                study.left[str(job)] = str(error)
        if not study.parts:
            why = "; ".join(f"{job}: {said}" for job, said in study.left.items())
            raise UserError(f"{file.shown}: nothing to run{f' ({why})' if why else ''}")
        return study

    def _parts(self, job: Job, say: Say) -> Iterator[Part]:
        """A job laid out, as far as its points are wanted."""
        names, spec = names_of(job), job.spec()
        if isinstance(spec, FinetuneSpec):
            chosen = tuple(m for m in spec.method if self.wanted({**names, **_one(select=m)}))
            if chosen:
                training = Finetuning.prepare(spec.model_copy(update={"method": chosen}), say)
                part = TrainingPart(
                    job, training.task.data.spec.name, training.task.model.name, training,
                    lambda cell: self.wanted({**names, **_axes(cell)}),
                )  # fmt: skip
                if part.identities():
                    yield part
            return
        for narrowed in self._narrowed(spec, names):
            sweep = Sweep.prepare(narrowed, say)
            sweep = sweep.only(lambda cell: self.wanted({**names, **_axes(cell.spec)}))
            if any(group.runnable for group in sweep.plan.groups):
                yield PromptPart(job, sweep.task.data.spec.name, sweep.model.name, sweep)

    def _narrowed(self, spec: RunSpec, names: Names) -> list[RunSpec]:
        """Without selectors, orders, patterns and numbers of which nothing is wanted: selectors of
        which other numbers are wanted stand apart, for not every selector can have every number.
        """
        change: dict[str, Any] = {}
        for axis, values in (("order", spec.order), ("attention", spec.attention)):
            if values:
                kept = tuple(v for v in values if self.wanted({**names, **_one(**{axis: str(v)})}))
                if not kept:
                    return []
                change[axis] = kept
        by_numbers: dict[KValues | None, list[SelectorSpec]] = {}
        for select in spec.select:
            known = {**names, **_one(select=str(select))}
            if not self.wanted(known):
                continue
            k = spec.k
            if k is not None:
                numbers = (n for n in k.numbers if self.wanted({**known, **_one(k=str(n))}))
                k = replace(k, numbers=tuple(numbers))
            if k is None or k.numbers or k.largest:
                by_numbers.setdefault(k, []).append(select)
        return [spec.model_copy(update={**change, "k": k, "select": tuple(selects)})
                for k, selects in by_numbers.items()]  # fmt: skip

    def require_all(self) -> None:
        """Raise ``UserError`` where some part could not be laid out."""
        if self.left:
            names = "; ".join(self.left)
            raise UserError(f"{len(self.left)} parts of {self.file.shown} not done, see above: "
                            f"{names}")  # fmt: skip

    def record(self, results: Place) -> None:
        """Write down what is asked for, so that a report can say what is missing. Raises
        ``UserError``.
        """
        cells = [record for part in self.parts for record in part.records()]
        write_study(results, self.file.name, cells, whole=self.wanted.only is None)

    def run(self, results: Place, listener: Listener) -> Outcome:
        """Carry out what is not in the results folder yet. Raises ``UserError``."""
        from icl_bench.results.store import Store

        Store(results).prepare()
        self.record(results)
        engines, total = Engines(self.parts), Outcome()
        for number, part in enumerate(self.parts, 1):
            listener.part_started(part, number, len(self.parts))
            outcome = part.run(results, engines, listener)
            listener.part_ended(part, outcome)
            total.add(outcome)
        return total


def check(file: StudyFile, wanted: Wanted, say: Say = lambda _: None) -> list[Job]:
    """The jobs of which something is wanted.

    Raises ``UserError`` with all that can be told to be wrong with them before they are laid out: a
    task or its data that is not there, a model, options that exclude each other; a line each.
    """
    problems, jobs = Problems(file.shown, file.tree), file.jobs
    say("reading the study")
    jobs = [job for job in jobs if wanted(names_of(job))]
    tasks, models = {}, {}
    for job in jobs:
        if job.task not in tasks:
            place = file.place_of("tasks", job.task)
            tasks[job.task] = problems.attempt(place, partial(load_task, job.task))
        context = job.options.get("context")
        source = job.model, context if isinstance(context, int) else None
        if source not in models and job.options.get("tokenizer") is None:
            say(f"looking for {job.model}")
            models[source] = problems.attempt(
                file.place_of("models", job.model), partial(resolve, *source)
            )
    sources: set[tuple[object, ...]] = set()
    for job in jobs:
        task = tasks[job.task]
        if task is None:
            continue
        spec = problems.attempt(job.place, job.spec)
        if spec is None:
            continue
        if (job.task, spec.data_dir, spec.test_size) not in sources:
            sources.add((job.task, spec.data_dir, spec.test_size))
            say(f"reading {job.task}")
            load = partial(load_data, task, data_dir=spec.data_dir, test_size=spec.test_size)
            problems.attempt(file.place_of("tasks", job.task), load)
        able = partial(spec.check, task) if isinstance(spec, RunSpec) else spec.check
        problems.attempt(job.place, able)
    problems.refuse()
    return jobs


def names_of(job: Job) -> Names:
    """What rules know a job by: names as the file has them, and as results have them."""
    task = {job.task, Path(job.task).stem}
    with suppress(UserError):
        task.add(load_task(job.task).name)
    options = job.options
    return {
        "task": frozenset(task),
        "model": frozenset({job.model, Path(job.model).name}),
        **_one(setting=job.setting, demonstrations=str(options.get("demonstrations", "plain")),
               labels=str(options.get("labels", "all")),
               queries=str(options.get("queries", "test"))),
    }  # fmt: skip


def _one(**names: str) -> Mapping[str, frozenset[str]]:
    return {key: frozenset({name}) for key, name in names.items()}


def _axes(cell: CellSpec) -> Mapping[str, frozenset[str]]:
    """What rules know a cell by, beside what its job is called."""
    return _one(select=cell.select, order=cell.order, attention=cell.attention, k=str(cell.k),
                draw=str(cell.draw))  # fmt: skip
