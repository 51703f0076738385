"""``icl-bench choose``: which setting to use, by a race of them."""

from __future__ import annotations

from icl_bench.choosing.options import ChooseSpec
from icl_bench.cli import options as o


@o.command(ChooseSpec)
def choose(
    options: o.OptionValues, results: o.ResultsDir = o.DEFAULT_RESULTS, quiet: o.Quiet = False, json: o.Json = False
) -> None:
    """Choose a model and how to prompt it, by a race of settings.

    Settings (models, selectors and numbers of demonstrations) start on few rows of every draw, the cheapest settings
    first. A setting is dropped when it is significantly worse than another one or, unless it is cheaper, when it is
    shown not to be better than the leader by more than the margin; the others get more rows. The choice is the cheapest
    setting that is shown to be within the margin of the best (error 5%). Answers are rows of ordinary cells: run and a
    later race use them. The race ends when it is decided, at the end of the budget, or with Ctrl-C; the same command
    resumes it.
    """
    import typer

    from icl_bench.choosing.contest import INTERRUPTED
    from icl_bench.cli.output.choose import answer_lines, print_answer, raced
    from icl_bench.cli.output.progress import Display
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console

    contest = raced(options, results, Display(quiet=quiet or json))
    if json:
        print_json(contest.as_json())
    elif not quiet:
        print_answer(answer_lines(contest, results), console())
    if contest.ended == INTERRUPTED:
        raise typer.Exit(130)
