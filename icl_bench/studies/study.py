"""A planned study: its parts, all its problems at once, and its execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import NotHereError, UserError
from icl_bench.models.registry import resolve
from icl_bench.models.trained import own_pattern
from icl_bench.results.cells import AXES, CellSpec
from icl_bench.results.hub_commits import commits_of
from icl_bench.results.storage import Place
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import StudyCell
from icl_bench.results.studies import write_study
from icl_bench.studies.cluster import Cluster
from icl_bench.studies.file import Job, Problems, StudyFile
from icl_bench.studies.parts import Listener, Part, PromptPart, TrainingPart, run_here
from icl_bench.studies.rules import KEYS, Names, PointFilter
from icl_bench.sweep.combinations import Combination, default_order
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.plan import draws_of
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Outcome
from icl_bench.sweep.sweep import Sweep
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.training.finetune import Finetuning, Say
from icl_bench.training.spec import FinetuneSpec
from icl_bench.wording import nearest, one_line, plain

T = TypeVar("T")


@dataclass(frozen=True)
class Unplanned:
    """A job that cannot be planned, because its model or its data are not on this machine."""

    job: Job
    reason: str
    cells: int | None
    """The maximum number of cells; some k may not fit. None if k depends on the missing model or data (``max``,
    ``auto``).
    """


@dataclass
class Study:
    """A planned study, or some of its points; nothing is computed yet."""

    file: StudyFile
    wanted: PointFilter
    parts: list[Part]
    left: dict[str, str] = field(default_factory=dict)
    """Parts without runnable cells, with the reasons."""
    results: Place | None = None
    """The results folder of the plan."""
    unplanned: list[Unplanned] = field(default_factory=list)
    """Jobs whose model or data are not on this machine; always empty for a study that will be run."""

    @classmethod
    def prepare(
        cls,
        file: StudyFile,
        wanted: PointFilter,
        say: Say = lambda _: None,
        results: Place | None = None,
        *,
        to_run: bool = True,
    ) -> Study:
        """Check the whole study, then load data and tokenizers and plan every part.

        With ``to_run``, missing models and data are downloaded from the hub; without, parts that need them stay
        unplanned. Raises ``UserError`` with all problems and their lines before anything is planned.
        """
        missing: dict[tuple[str, str], str] = {}
        jobs = check(file, wanted, say, None if to_run else missing)
        study = cls(file, wanted, [], results=results)
        for number, job in enumerate(jobs, 1):
            absent = [missing[key] for key in (("task", job.task), ("model", job.model)) if key in missing]
            if absent:
                study.unplanned.append(Unplanned(job, "; ".join(absent), study._most_cells(job)))
                continue

            def say_of_job(text: str, at: str = f"{number} of {len(jobs)}, {job}") -> None:
                say(f"{at}: {text}")

            try:
                study.parts += study._parts(job, say_of_job)
            except UserError as error:
                study.left[str(job)] = str(error)
        if not study.parts and not study.unplanned:
            why = "; ".join(f"{job}: {reason}" for job, reason in study.left.items())
            raise UserError(f"{file.shown}: nothing to run{f' ({why})' if why else ''}")
        return study

    def _most_cells(self, job: Job) -> int | None:
        """The number of selected cells of a job, if every k fits; None if k depends on model and data."""
        names, spec = names_of(job), job.spec()
        if spec.k is None or spec.k.ladder or spec.k.largest:
            return None
        return sum(
            self.wanted({**names, **_names(**axes, k=str(k), draw=str(draw))})
            for axes, draws in _settings(spec)
            for k in spec.k.numbers
            for draw in range(draws)
        )

    def _parts(self, job: Job, say: Say) -> Iterator[Part]:
        """The parts of a job with selected points."""
        names, spec = names_of(job), job.spec()
        if isinstance(spec, FinetuneSpec):
            chosen = tuple(m for m in spec.method if self.wanted({**names, **_names(select=m)}))
            if chosen:
                training = Finetuning.prepare(spec.model_copy(update={"method": chosen}), say, commits_of(self.results))
                part = TrainingPart.of(training, job, lambda cell: self.wanted({**names, **_axes(cell)}))
                if part.identities():
                    yield part
            return
        for narrowed in self._narrowed(spec, names):
            sweep = Sweep.prepare(narrowed, say, results=self.results)
            sweep = sweep.only(
                lambda cell: self.wanted({**names, **_axes(cell.spec)}),
                lambda combination: self.wanted({**names, **_axes_of(combination)}),
            )
            if any(group.runnable for group in sweep.plan.groups):
                yield PromptPart.of(sweep, job)

    def _narrowed(self, spec: RunSpec, names: Names) -> list[RunSpec]:
        """The spec without selectors, orders, patterns and numbers that have no selected point.

        Selectors with different selected numbers get separate specs.
        """
        change: dict[str, Any] = {}
        for axis, values in (("order", spec.order), ("attention", spec.attention)):
            if values:
                kept = tuple(v for v in values if self.wanted({**names, **_names(**{axis: str(v)})}))
                if not kept:
                    return []
                change[axis] = kept
        by_numbers: dict[KValues | None, list[SelectorSpec]] = {}
        for select in spec.select:
            known = {**names, **_names(select=str(select))}
            if not self.wanted(known):
                continue
            k = spec.k
            if k is not None:
                numbers = (n for n in k.numbers if self.wanted({**known, **_names(k=str(n))}))
                k = replace(k, numbers=tuple(numbers))
            if k is None or k.numbers or k.largest:
                by_numbers.setdefault(k, []).append(select)
        return [
            spec.model_copy(update={**change, "k": k, "select": tuple(selects)}) for k, selects in by_numbers.items()
        ]

    def require_all(self) -> None:
        """Raise ``UserError`` if some part could not be planned."""
        if self.left:
            names = "; ".join(self.left)
            raise UserError(f"{len(self.left)} parts of {self.file.shown} not finished, see above: {names}")

    def record(self, results: Place) -> None:
        """Store the study's cells, so that a report can list missing ones. Raises ``UserError``."""
        jobs = Counter(map(_block, self.file.jobs))
        cells: list[StudyCell] = []
        renewed: set[tuple[str | int, ...]] = set()
        for part in self.parts:
            records = list(part.records())
            cells += records
            if jobs[_block(part.job)] == 1:  # blocks with one name may have the same points in different cells
                renewed.update(map(_point, records))
        # cells of an earlier version of the data or the task are no longer the study's
        write_study(
            results,
            self.file.name,
            cells,
            whole=self.wanted.only is None,
            replaces=lambda cell: _point(cell) in renewed,
        )

    def run(self, results: Place, listener: Listener, cluster: Cluster | None = None) -> Outcome:
        """Compute what is missing in the results folder, here or on a cluster. Raises ``UserError``."""
        Store(results).prepare()
        self.record(results)
        if cluster is not None:
            return cluster.run(self.parts, results, listener)
        return run_here(self.parts, results, listener)


def _block(job: Job) -> tuple[str, ...]:
    return job.setting, job.task, job.model


def _point(cell: StudyCell) -> tuple[str | int, ...]:
    return cell.setting, *(getattr(cell, axis) for axis in AXES)


def check(
    file: StudyFile, wanted: PointFilter, say: Say = lambda _: None, missing: dict[tuple[str, str], str] | None = None
) -> list[Job]:
    """The jobs with selected points.

    Raises ``UserError`` with all problems that are known before planning, one a line: missing tasks, data or models,
    and options that exclude each other. With ``missing``, models and data of the hub that are not on this machine are
    not problems: ``missing`` receives them as ``task`` or ``model`` with the name, and the reasons.
    """

    def unless_missing(kind: str, name: str, do: Callable[[], T]) -> Callable[[], T | None]:
        def done() -> T | None:
            try:
                return do()
            except NotHereError as error:
                if missing is None:
                    raise
                missing[kind, name] = str(error)
                return None

        return done

    problems, jobs = Problems(file.shown, file.tree), file.jobs
    say("reading the study")
    check_rules(file, wanted)
    jobs = [job for job in jobs if wanted(names_of(job))]
    tasks, models = {}, {}
    for job in jobs:
        if job.task not in tasks:
            place = file.place_of("tasks", job.task)
            columns = (job.options.get(name) for name in ("text", "label"))
            tasks[job.task] = problems.attempt(place, partial(load_task, job.task, *columns))
        context = job.options.get("context")
        source = job.model, context if isinstance(context, int) else None, True, job.options.get("base")
        if source not in models and job.options.get("tokenizer") is None:
            say(f"looking for {job.model}")
            models[source] = problems.attempt(
                file.place_of("models", job.model), unless_missing("model", job.model, partial(resolve, *source))
            )
    sources: set[tuple[object, ...]] = set()
    for job in jobs:
        task = tasks[job.task]
        if task is None:
            continue
        spec = problems.attempt(job.place, job.spec)
        if spec is None:
            continue
        rows = (job.task, spec.data_dir, spec.test_size, spec.test_ids)
        if rows not in sources:
            sources.add(rows)
            say(f"reading {job.task}")
            load = partial(load_data, task, data_dir=spec.data_dir, test_size=spec.test_size, test_ids=spec.test_ids)
            problems.attempt(file.place_of("tasks", job.task), unless_missing("task", job.task, load))
        able = partial(spec.check, task) if isinstance(spec, RunSpec) else spec.check
        problems.attempt(job.place, able)
    problems.refuse()
    return jobs


def check_rules(file: StudyFile, wanted: PointFilter) -> None:
    """Raise ``UserError`` for values of rules that no point of the whole study has."""
    rules = [*file.exclude, *([wanted.only] if wanted.only else [])]
    if not rules:
        return
    known: dict[str, set[str]] = {key: set() for key in KEYS}
    unsaid: set[str] = set()
    for job in file.jobs:
        _add(known, names_of(job))
        try:
            spec = job.spec()
        except UserError:  # reported if the job is selected
            unsaid.update(AXES)
            continue
        numbers = [] if spec.k is None else map(str, spec.k.numbers)
        known["k"].update(numbers)
        if spec.k is None or spec.k.largest or (isinstance(spec, RunSpec) and any(s.says_k for s in spec.select)):
            unsaid.add("k")
        for axes, draws in _settings(spec):
            _add(known, _names(**axes))
            known["draw"].update(map(str, range(draws)))
    problems = Problems(file.shown, file.tree)
    for number, rule in enumerate(rules):
        for key, text in rule.unknown({key: frozenset(values) for key, values in known.items()}):
            if key in unsaid and (key != "k" or text.isdecimal()):
                continue
            hint = nearest(text, known[key])
            if rule is wanted.only:
                raise UserError(one_line(f"--only {key}={plain(text)}: no point of {file.shown} has it; {hint}"))
            problems.add(("exclude", number, key), f"exclude: {key}: no point has {plain(text)}; {hint}")
    problems.refuse()


def _settings(spec: RunSpec | FinetuneSpec) -> list[tuple[dict[str, str], int]]:
    """Selectors or methods of a spec with orders and attention, as results name them, and numbers of draws."""
    if isinstance(spec, FinetuneSpec):
        attention = str(own_pattern(spec.model))
        return [({"select": method, "order": "drawn", "attention": attention}, spec.draws) for method in spec.method]
    return [
        ({"select": str(select), "order": str(order), "attention": str(attention)}, draws_of(select, spec.draws))
        for select in spec.select
        for order in spec.order or [default_order(select)]
        for attention in spec.attention
    ]


def _add(known: Mapping[str, set[str]], names: Names) -> None:
    for key, values in names.items():
        known[key] |= values


def names_of(job: Job) -> Names:
    """Names of a job for rules, as in the file and as in results."""
    task, options = {job.task, Path(job.task).stem}, job.options
    with suppress(UserError):
        task.add(load_task(job.task, options.get("text"), options.get("label")).name)
    return {
        "task": frozenset(task),
        "model": frozenset({job.model, Path(job.model).name}),
        **_names(
            setting=job.setting,
            perturbation=str(options.get("perturbation", "none")),
            labels=str(options.get("labels", "all")),
            queries=str(options.get("queries", "test")),
        ),
    }


def _names(**names: str) -> Mapping[str, frozenset[str]]:
    return {key: frozenset({name}) for key, name in names.items()}


def _axes(cell: CellSpec) -> Mapping[str, frozenset[str]]:
    """Names of a cell for rules, in addition to those of its job."""
    return _names(select=cell.select, order=cell.order, attention=cell.attention, k=str(cell.k), draw=str(cell.draw))


def _axes_of(combination: Combination) -> Mapping[str, frozenset[str]]:
    """Names of a combination for rules, which has no draw and possibly no k."""
    select, order, attention, k = combination.axes
    known = {} if k is None else {"k": str(k)}
    return _names(select=select, order=order, attention=attention, **known)
