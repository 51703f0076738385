"""Several tasks and models in one command: the product of both, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import typer

from icl_bench.errors import UserError
from icl_bench.options import Options
from icl_bench.results.storage import Place
from icl_bench.wording import comma_list


class Named(NamedTuple):
    """A task and model whose cells were computed, as results call them."""

    task: str
    model: str
    failed: bool
    """Whether some cell failed."""


SEVERAL = ("task", "model")
"""Options that take a list here: each task with each model."""

Spec = TypeVar("Spec", bound=Options)
Done = TypeVar("Done")


def each_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is given, with one task and one model each; a file or folder with a comma is one name."""
    tasks, models = (_names(given[name]) for name in SEVERAL)
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
            left.append(f"{one['task']} with {one['model']}")
            say(f"{left[-1]}: {error}")
    problem = f"{len(left)} of {len(several)} not done, see above: {'; '.join(left)}"
    return done, UserError(problem) if left else None


def finish(done: Sequence[Named], problem: UserError | None, results: Place, *, quiet: bool, json: bool) -> None:
    """How ``run`` and ``finetune`` end: all JSON in one, what could not be done, failed cells.

    Raises the problem, or ``typer.Exit`` with 1 where a cell failed.
    """
    from icl_bench.cli.output.progress import show_results

    if json and done:
        show_results(results, [(one.task, one.model) for one in done], quiet=quiet, json=True)
    if problem is not None:
        raise problem
    if any(one.failed for one in done):
        raise typer.Exit(1)
