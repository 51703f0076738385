"""``icl-bench rationales``: a model writes the thoughts that demonstrations show."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.sweep.rationale_options import RationalesOptions


@o.command(RationalesOptions)
def rationales(options: o.OptionValues, quiet: o.Quiet = False) -> None:
    """Let a model write rationales and keep the right ones.

    Reinforced ICL: run reads the task file that this writes as any task, with the rationales as its pool. Test rows
    and near duplicates of them are left out. Run the same command again to continue after an interruption.
    """
    import typer

    from icl_bench.cli.jobs import give_budget, purse
    from icl_bench.cli.output.plan import print_planned_money
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.rationales import written_in_words
    from icl_bench.cli.output.terminal import console
    from icl_bench.studies.parts import PromptPart
    from icl_bench.sweep.rationales import RationaleRun

    display, spec = Display(quiet=quiet), RationalesOptions(**options)
    with display.preparing() as say:
        made = RationaleRun.prepare(spec, say)
    give_budget(made.sweep, purse)
    part = PromptPart.of(made.sweep)
    display.part(part)
    for note in made.notes():
        display.note(f"  {note}")
    if spec.price is not None and not quiet:
        print_planned_money(made.sweep, console(), str(spec.cells), spec.price)
    outcome = part.run_alone(str(spec.cells), display)
    display.outcome(outcome, str(spec.cells))
    if outcome.failed or outcome.stopped:
        raise typer.Exit(1)
    origin, paths = made.write()
    for line in written_in_words(origin, paths):
        display.note(line)
