"""Runs and trainings on a cluster: all tasks and models are laid out, then shared out at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from icl_bench.cli.several import Named, Spec, do_each, finish

if TYPE_CHECKING:
    from icl_bench.cli.output.progress import Display
    from icl_bench.results.storage import Place
    from icl_bench.studies.cluster import ClusterSpec
    from icl_bench.studies.parts import Part


def run_on(
    cluster: ClusterSpec,
    spec: type[Spec],
    given: Mapping[str, Any],
    lay_out: Callable[[Spec], Part],
    results: Place,
    display: Display,
    *,
    quiet: bool,
    json: bool,
) -> None:
    """What ``run`` and ``finetune`` do with ``--on``. Raises ``UserError``, and ``typer.Exit`` with
    1 where a cell failed.
    """
    from icl_bench.cli.output.progress import show_results
    from icl_bench.cli.output.study import StudyDisplay
    from icl_bench.studies.on_ray import connected

    with connected(cluster) as machines:
        assert machines is not None, "a cluster is asked for"
        parts, problem = do_each(spec, given, lay_out, display.problem)
        for part in parts:
            for text in part.problems():
                display.note(f"  {text}")
        with StudyDisplay(display) as listener:
            outcome = machines.run(parts, results, listener)
    display.outcome(outcome, results)
    failed = {(spec.task, spec.model) for spec in outcome.failed}
    done = [Named(part.task, part.model, (part.task, part.model) in failed) for part in parts]
    if not json:
        show_results(results, [(one.task, one.model) for one in done], quiet=quiet, json=False)
    finish(done, problem, results, quiet=quiet, json=json)
