"""Runs and trainings of several tasks and models: here one after the other, or on a cluster all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from icl_bench.errors import UserError
from icl_bench.models.in_memory import model_name
from icl_bench.options import Options
from icl_bench.wording import comma_list

if TYPE_CHECKING:
    from icl_bench.cli.output.progress import Display
    from icl_bench.results.storage import Place
    from icl_bench.studies.options import MachineOptions
    from icl_bench.studies.parts import Part
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.runner import Outcome
    from icl_bench.training.spec import FinetuneSpec

SEVERAL = ("task", "model")
"""Options that take a list here: each task with each model."""

Spec = TypeVar("Spec", bound=Options)
Done = TypeVar("Done")


class Finished(NamedTuple):
    """One task with one model whose cells were computed, or were there."""

    task: str
    model: str
    """As results call them."""
    outcome: Outcome


def each_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is given, with one task and one model each; a file or folder with a comma is one name."""
    tasks, models = (_names(given.get(name)) for name in SEVERAL)
    return [{**given, "task": task, "model": model} for task in tasks for model in models]


def _names(given: Any) -> list[Any]:
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        return [given]
    with suppress(OSError, ValueError):  # a name that is too long is for others to refuse
        if Path(given).exists():
            return [given]
    return list(dict.fromkeys(comma_list(given))) or [given]


def do_each(
    spec: type[Spec], given: Mapping[str, Any], do: Callable[[Spec], Done], say: Callable[[str], None]
) -> tuple[list[Done], UserError | None]:
    """What is done for each task with each model, in their order, and what to raise at the end.

    A task and model that cannot be done stops no other: ``say`` gets the reason at once, and the error
    names all that are left. A single one raises its own.
    """
    several = each_of(given)
    if len(several) == 1:
        return [do(spec(**several[0]))], None
    done, left = [], []
    for one in several:
        try:
            done.append(do(spec(**one)))
        except UserError as error:
            left.append(f"{getattr(one['task'], 'name', one['task'])} with {model_name(one['model'])}")
            say(f"{left[-1]}: {error}")
    problem = f"{len(left)} of {len(several)} not done, see above: {'; '.join(left)}"
    return done, UserError(problem) if left else None


def carry_out(
    spec: type[RunSpec] | type[FinetuneSpec],
    given: Mapping[str, Any],
    machines: MachineOptions,
    results: Place,
    display: Display,
    tell: Callable[[Finished], None],
) -> tuple[list[Finished], UserError | None]:
    """Run or train each task with each model; returns what was done, and what to raise at the end.

    ``tell`` gets each one once it is over. Raises ``UserError`` as :func:`do_each` does.
    """
    from icl_bench.studies.cluster import ClusterSpec

    cluster = ClusterSpec.of(machines)
    if cluster is not None:
        return _on_cluster(cluster, spec, given, results, display, tell)

    def here(one: RunSpec | FinetuneSpec) -> Finished:
        part = _prepared(one, display)
        display.part(part)
        outcome = part.run_alone(results, display)
        display.outcome(outcome, results)
        done = Finished(part.task, part.model, outcome)
        tell(done)
        return done

    return do_each(spec, given, here, display.problem)


def _on_cluster(
    cluster: Any,
    spec: type[RunSpec] | type[FinetuneSpec],
    given: Mapping[str, Any],
    results: Place,
    display: Display,
    tell: Callable[[Finished], None],
) -> tuple[list[Finished], UserError | None]:
    """The same on a cluster: all is laid out first, then the work is distributed."""
    from icl_bench.cli.output.study import StudyDisplay
    from icl_bench.studies.on_ray import connected

    with connected(cluster) as connection:
        assert connection is not None, "a cluster is asked for"
        parts, problem = do_each(spec, given, lambda one: _prepared(one, display), display.problem)
        for part in parts:
            for text in part.problems():
                display.note(f"  {text}")
        with StudyDisplay(display) as listener:
            outcome = connection.run(parts, results, listener)
    display.outcome(outcome, results)
    done = [Finished(part.task, part.model, outcome.of(part.task, part.model)) for part in parts]
    for one in done:
        tell(one)
    return done, problem


def _prepared(spec: RunSpec | FinetuneSpec, display: Display) -> Part:
    """A request laid out as a part of a study that has no file."""
    from icl_bench.studies.parts import PromptPart, TrainingPart
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep
    from icl_bench.training.finetune import Finetuning

    with display.preparing() as say:
        if isinstance(spec, RunSpec):
            return PromptPart.of(Sweep.prepare(spec, say))
        return TrainingPart.of(Finetuning.prepare(spec, say))


def run_and_print(
    spec: type[RunSpec] | type[FinetuneSpec],
    given: Mapping[str, Any],
    machines: MachineOptions,
    results: Place,
    *,
    quiet: bool,
    json: bool,
) -> None:
    """What ``icl-bench run`` and ``icl-bench finetune`` do: tables once a task and model are over, or JSON.

    Raises ``UserError``, and ``typer.Exit`` with 1 where a cell failed.
    """
    import typer

    from icl_bench.analysis.summary import summarise_folder
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.summary import print_summary
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.results.storage import CellsOf

    def tell(one: Finished) -> None:
        if not (json or quiet):
            print_summary(summarise_folder(CellsOf(results, one.outcome.names)), console())

    done, problem = carry_out(spec, given, machines, results, Display(quiet=quiet or json), tell)
    if json and done:
        each = [summarise_folder(CellsOf(results, one.outcome.names)).as_json() for one in done]
        print_json(each[0] if len(each) == 1 else each)
    if problem is not None:
        raise problem
    if any(one.outcome.failed for one in done):
        raise typer.Exit(1)
