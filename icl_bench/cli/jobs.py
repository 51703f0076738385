"""Runs and trainings of several tasks and models: sequentially on this machine, or together on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from icl_bench.errors import UserError
from icl_bench.models.in_memory import model_name
from icl_bench.options import Options, names_in

if TYPE_CHECKING:
    from icl_bench.backends.servers.budget import Purse
    from icl_bench.cli.output.progress import Display
    from icl_bench.results.storage import Place
    from icl_bench.studies.options import MachineOptions
    from icl_bench.studies.parts import Part
    from icl_bench.studies.workers import Team, WorkerSpec
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.runner import Outcome
    from icl_bench.sweep.sweep import Sweep
    from icl_bench.training.spec import FinetuneSpec

SEVERAL = ("task", "model")
"""Options that accept lists on the command line: each task runs with each model."""

Spec = TypeVar("Spec", bound=Options)
Done = TypeVar("Done")


class Finished(NamedTuple):
    """One task with one model whose cells are computed."""

    task: str
    model: str
    """Task and model as named in results."""
    outcome: Outcome


def each_of(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options for each task with each model; a file or folder with a comma is one name, and a group's
    file is all its tasks.
    """
    tasks, models = (names_in(options.get(name)) for name in SEVERAL)
    tasks = [task for named in tasks for task in _tasks(named)]
    return [{**options, "task": task, "model": model} for task in tasks for model in models]


def _tasks(named: Any) -> list[Any]:
    """The tasks of a group's file; any other task unchanged."""
    from icl_bench.tasks.task_files import tasks_of

    if not isinstance(named, str | Path):
        return [named]
    tasks = tasks_of(str(named))
    return [named] if tasks == [str(named)] else list(tasks)


def do_each(
    spec: type[Spec], options: Mapping[str, Any], do: Callable[[Spec], Done], say: Callable[[str], None]
) -> tuple[list[Done], UserError | None]:
    """Call ``do`` for each task with each model. Returns the results, and an error to raise at the end.

    A failing task and model does not stop the others: ``say`` receives the reason at once, and the error
    names all failures. A single task and model raises its own error.
    """
    combinations = each_of(options)
    works = [
        (
            f"{getattr(values['task'], 'name', values['task'])} with {model_name(values['model'])}",
            lambda values=values: do(spec(**values)),
        )
        for values in combinations
    ]
    return _each(works, say)


def _each(
    works: Sequence[tuple[str, Callable[[], Done]]], say: Callable[[str], None]
) -> tuple[list[Done], UserError | None]:
    """Call each of these named jobs, with the errors of :func:`do_each`."""
    if len(works) == 1:
        return [works[0][1]()], None
    done, left = [], []
    for name, work in works:
        try:
            done.append(work())
        except UserError as error:
            left.append(name)
            say(f"{name}: {error}")
    return done, _not_finished(left, len(works)) if left else None


def _not_finished(left: Sequence[str], number: int) -> UserError:
    """The error of a command that could not do all of its ``number`` jobs; ``left`` are the names of those."""
    return UserError(f"{len(left)} of {number} not finished, see above: {'; '.join(left)}")


def carry_out(
    spec: type[RunSpec] | type[FinetuneSpec],
    options: Mapping[str, Any],
    machines: MachineOptions,
    results: Place,
    display: Display,
    on_finished: Callable[[Finished], None],
) -> tuple[list[Finished], UserError | None]:
    """Run or train each task with each model. Returns the results, and an error to raise at the end.

    ``on_finished`` is called after each task and model. Raises ``UserError`` like :func:`do_each`.
    """
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.studies.parts import PromptPart
    from icl_bench.studies.workers import WorkerSpec
    from icl_bench.sweep.run_spec import RunSpec

    cluster, workers = ClusterSpec.of(machines), WorkerSpec.of(machines)
    if cluster is not None and options.get("budget") is not None:
        raise UserError("--budget: works on one machine only; remove --budget or --on")
    in_batches = issubclass(spec, RunSpec) and bool(options.get("batch"))  # a size in finetune
    if cluster is not None and in_batches:
        raise UserError("--batch: works on one machine only; remove --batch or --on")
    if cluster is not None:
        return _on_cluster(cluster, spec, options, results, display, on_finished)
    if workers is not None and not (in_batches and workers.number is None):
        return _by_workers(workers, spec, options, results, display, on_finished)

    # all requests of the command share one budget
    prepared = partial(_prepared, display=display, results=results, purse_of=cache(purse))

    finish = partial(_finish, results=results, display=display, on_finished=on_finished)
    if not in_batches:
        return do_each(spec, options, lambda request: finish(prepared(request)), display.problem)
    # the batches of all tasks and models are submitted before the first is waited for
    parts, problem = do_each(spec, options, prepared, display.problem)
    for part in parts:
        if isinstance(part, PromptPart) and part.sweep.spec.batch and len(parts) > 1:
            with suppress(UserError):  # its run raises the error again
                part.sweep.submit(results)
    finished, failed = _each([(_titled(part), partial(finish, part)) for part in parts], display.problem)
    return finished, _joined(problem, failed)


def _titled(*parts: Part) -> str:
    return "; ".join(f"{part.task} with {part.model}" for part in parts)


def _joined(*problems: UserError | None) -> UserError | None:
    """One error with the texts of all."""
    texts = [str(one) for one in problems if one is not None]
    return UserError("; ".join(texts)) if texts else None


def _finish(part: Part, results: Place, display: Display, on_finished: Callable[[Finished], None]) -> Finished:
    """Compute a part in this process."""
    done = Finished(part.task, part.model, run_part(part, results, display))
    on_finished(done)
    return done


def _divided(parts: Sequence[Part], outcome: Outcome, on_finished: Callable[[Finished], None]) -> list[Finished]:
    """The outcome of parts that were computed together, each with its own cells: parts may share task and model."""
    done = [
        Finished(part.task, part.model, outcome.of({identity.name for identity in part.identities()})) for part in parts
    ]
    for finished in done:
        on_finished(finished)
    return done


def run_part(part: Part, results: Place, display: Display, begin: Callable[[], None] = lambda: None) -> Outcome:
    """Compute a part on this machine, and print its outcome. ``begin`` is called after its headline. Raises
    ``UserError``.
    """
    display.part(part)
    begin()
    outcome = part.run_alone(results, display)
    display.outcome(outcome, results)
    return outcome


def _on_cluster(
    cluster: Any,
    spec: type[RunSpec] | type[FinetuneSpec],
    options: Mapping[str, Any],
    results: Place,
    display: Display,
    on_finished: Callable[[Finished], None],
) -> tuple[list[Finished], UserError | None]:
    """Like :func:`carry_out`, on a cluster: everything is planned first, then distributed."""
    from icl_bench.cli.output.study import StudyDisplay
    from icl_bench.studies.on_ray import connected

    with connected(cluster) as connection:
        assert connection is not None, "a cluster was requested"
        prepared = partial(_prepared, display=display, results=results, purse_of=purse)
        parts, problem = do_each(spec, options, prepared, display.problem)
        with StudyDisplay(display) as listener:
            outcome = connection.run(parts, results, listener)
    display.outcome(outcome, results)
    return _divided(parts, outcome, on_finished), problem


def _by_workers(
    workers: WorkerSpec,
    spec: type[RunSpec] | type[FinetuneSpec],
    options: Mapping[str, Any],
    results: Place,
    display: Display,
    on_finished: Callable[[Finished], None],
) -> tuple[list[Finished], UserError | None]:
    """Like :func:`carry_out`, by workers of this machine: everything is planned first, then computed by model."""
    from icl_bench.cli.output.study import StudyDisplay

    prepared = partial(_prepared, display=display, results=results, purse_of=cache(purse))
    parts, problem = do_each(spec, options, prepared, display.problem)

    def alone(part: Part) -> list[Finished]:
        return [_finish(part, results, display, on_finished)]

    def shared(team: Team) -> list[Finished]:
        for part in team.parts:
            display.part(part)
        with StudyDisplay(display) as listener:
            outcome = team.run(results, listener)
        display.outcome(outcome, results)
        return _divided(team.parts, outcome, on_finished)

    refused: list[str] = []

    def refuse(those: Sequence[Part], error: UserError) -> None:
        if len(parts) == 1:
            raise error
        refused.extend(map(_titled, those))
        display.problem(f"{'; '.join(map(_titled, those))}: {error}")

    works: list[tuple[str, Callable[[], list[Finished]]]] = []
    for team in workers.teams(parts, results, display.note, refuse):
        if team.workers == 1:
            works += [(_titled(part), partial(alone, part)) for part in team.parts]
        else:
            works.append((_titled(*team.parts), partial(shared, team)))
    finished, failed = _each(works, display.problem) if works else ([], None)
    changed = _not_finished(refused, len(parts)) if refused else None
    return [one for each in finished for one in each], _joined(problem, changed, failed)


def purse(limit: float) -> Purse:
    """A budget with a limit."""
    from icl_bench.backends.servers.budget import Purse

    return Purse(limit)


def _prepared(
    spec: RunSpec | FinetuneSpec, display: Display, results: Place, purse_of: Callable[[float], Purse]
) -> Part:
    """A planned request, as a part of a study without a file.

    ``purse_of`` returns the budget with a limit.
    """
    from icl_bench.results.hub_commits import commits_of
    from icl_bench.studies.parts import PromptPart, TrainingPart
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep
    from icl_bench.training.finetune import Finetuning

    with display.preparing() as say:
        if isinstance(spec, RunSpec):
            sweep = Sweep.prepare(spec, say, results=results)
            give_budget(sweep, purse_of)
            return PromptPart.of(sweep)
        return TrainingPart.of(Finetuning.prepare(spec, say, commits_of(results)))


def give_budget(sweep: Sweep, purse_of: Callable[[float], Purse]) -> None:
    """Track the money that a sweep spends at a server, if tokens have a price. ``purse_of`` returns the budget of a
    limit.
    """
    spec = sweep.spec
    if spec.price is not None and spec.price.pays_tokens and sweep.loader.spends:
        from icl_bench.backends.servers.budget import Budget
        from icl_bench.sweep.plan_money import sweep_prices

        purse = purse_of(math.inf if spec.budget is None else spec.budget)
        sweep.budget = Budget(purse, sweep_prices(sweep, spec.price).of_tokens)


def run_and_print(
    spec: type[RunSpec] | type[FinetuneSpec],
    options: Mapping[str, Any],
    machines: MachineOptions,
    results: Place,
    *,
    quiet: bool,
    json: bool,
) -> None:
    """Run ``icl-bench run`` or ``icl-bench finetune``.

    Prints tables after each task and model and finally the next step, or JSON. Raises ``UserError``, and ``typer.Exit``
    with 1 if a cell failed.
    """
    import typer

    from icl_bench.analysis.next_step import next_step, with_stored
    from icl_bench.analysis.summary import Summary, summarise_folder
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.summary import print_summary
    from icl_bench.cli.output.tables import print_json, print_lines
    from icl_bench.cli.output.terminal import console
    from icl_bench.results.storage import CellsOf

    summaries: list[Summary] = []
    names: list[Collection[str]] = []

    def print_tables(finished: Finished) -> None:
        if not (json or quiet) and finished.outcome.has_results:
            names.append(finished.outcome.names)
            summaries.append(summarise_folder(CellsOf(results, names[-1])))
            print_summary(summaries[-1], console())

    done, problem = carry_out(spec, options, machines, results, Display(quiet=quiet or json), print_tables)
    shown = [finished for finished in done if finished.outcome.has_results]
    if not (json or quiet):
        _print_group_means(shown, results)
        complete = not any(finished.outcome.stopped for finished in done)  # else it prints the next step
        if summaries and complete and not options.get("keep_checkpoints"):  # a kept classifier is not measured further
            stored = [with_stored(summary, results, cells) for summary, cells in zip(summaries, names, strict=True)]
            print_lines(console(), f"next: {next_step(summaries, stored)}")
    if json and shown:
        each = [summarise_folder(CellsOf(results, finished.outcome.names)).as_json() for finished in shown]
        print_json(each[0] if len(done) == 1 and problem is None else each)
    if problem is not None:
        raise problem
    if any(finished.outcome.failed or finished.outcome.stopped for finished in done):
        raise typer.Exit(1)


def _print_group_means(done: Sequence[Finished], results: Place) -> None:
    """Print the means over tasks of shipped groups, for the finished tasks."""
    from icl_bench.analysis.all_findings import read_findings
    from icl_bench.cli.output.findings import print_finding
    from icl_bench.cli.output.terminal import console
    from icl_bench.registry import FINDINGS
    from icl_bench.results.storage import CellsOf
    from icl_bench.tasks.task_files import known_groups

    tasks = {finished.task for finished in done}
    groups = {group: of_group for group, of_group in known_groups().items() if len(tasks & {*of_group}) > 1}
    if groups:
        cells = CellsOf(results, [name for finished in done for name in finished.outcome.names])
        print_finding(FINDINGS["group_means"], read_findings(cells, groups=groups), console(), {})
