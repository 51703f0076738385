"""``icl-bench rationales``: a model writes the thoughts that demonstrations show."""

from __future__ import annotations

from icl_bench.cli import options as o
from icl_bench.sweep.rationale_options import RationalesOptions


@o.command(RationalesOptions)
def rationales(options: o.OptionValues, quiet: o.Quiet = False) -> None:
    """Let a model write rationales and keep the right ones.

    Reinforced ICL: it writes a task file for run, with the rationales as the pool. Test rows and near duplicates of
    them are left out. Run the same command again to continue after an interruption.
    """
    import typer

    from icl_bench.cli.output.plan import finished_cells, print_planned_money
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.rationales import carried_out
    from icl_bench.cli.output.terminal import console
    from icl_bench.sweep.sweep import Sweep

    spec = RationalesOptions(**options)

    def prices(sweep: Sweep) -> None:
        if spec.price is not None and not quiet:
            print_planned_money(sweep, console(), finished_cells(sweep, str(spec.cells)), spec.price)

    _, origin = carried_out(spec, Display(quiet=quiet), prices)
    if origin is None:
        raise typer.Exit(1)
