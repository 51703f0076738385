"""``icl-bench choose``: which setting to use, by a race of them."""

from __future__ import annotations

from icl_bench.choosing.options import ChooseSpec
from icl_bench.cli import options as o


@o.command(ChooseSpec)
def choose(
    options: o.OptionValues, results: o.ResultsDir = o.DEFAULT_RESULTS, quiet: o.Quiet = False, json: o.Json = False
) -> None:
    """Choose a model and how to prompt it, by a race of settings.

    A setting is a model with a selector and a number of demonstrations, or a trained classifier. All settings first
    answer a few test rows, the cheapest settings first. A setting that is significantly worse than another one is
    dropped, and so is one that costs more than the leader and is not better by more than the margin. The others answer
    more rows. The choice is the cheapest setting within the margin of the best (error at most 5%).

    The race ends when the choice is certain, at the end of the budget, or with Ctrl-C. The same command resumes it, and
    run reuses its answers.
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
