"""``icl-bench leaderboard``: every point in one table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Files of predictions, as import reads them, instead of a folder."),
]


Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.csv",
        help="The file to write (default: leaderboard.csv in the results folder; in this folder if results are in "
        "object storage or files are given).",
    ),
]


def leaderboard(
    ctx: typer.Context,
    files: Files = None,
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    out: Out = None,
    quiet: o.Quiet = False,
    json: o.Json = False,
) -> None:
    """Write all results as one table, best first.

    It writes a CSV file, and a Markdown file beside it. Each point has a row: task, model, selection, k, accuracy with
    its 95% interval, macro-F1, saturation of its curve, versions, data, model file, dtype, backend and hardware. The
    same results give the same files. A terminal shows a table that fits its width; a pipe receives the Markdown.
    """
    from icl_bench.cli.output.lists import print_leaderboard
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.errors import UserError
    from icl_bench.report.leaderboard import as_markdown, leaderboard, leaderboard_of, records, write
    from icl_bench.results.storage import folder_of
    from icl_bench.wording import plain

    source = ctx.get_parameter_source("results")
    if files and source is not None and source.name == "COMMANDLINE":
        raise UserError("--results: cannot be combined with files of predictions; give one of the two")
    with working() as say:
        table = leaderboard_of(files) if files else leaderboard(watched(results, say))
    folder = None if files else folder_of(results)
    written = write(table, out or (folder or Path()) / "leaderboard.csv")
    if json:
        print_json(records(table))
    elif not quiet:
        if (terminal := console()).is_terminal:
            print_leaderboard(table, terminal)
        else:
            print(as_markdown(table), end="")
        print(f"written: {' and '.join(map(plain, written))}", file=sys.stderr)
