"""``icl-bench leaderboard``: every point in one table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE.csv",
        help="The file to write (leaderboard.csv in the results folder, or here if they are in object storage).",
    ),
]


def leaderboard(
    results: o.ResultsDir = o.DEFAULT_RESULTS, out: Out = None, quiet: o.Quiet = False, json: o.Json = False
) -> None:
    """Write all results as one table, best first.

    As CSV, and as Markdown beside it. One row a point: task, model, selection, k, accuracy with its 95%
    interval, macro-F1, saturation of its curve, versions and data. The same results make the same
    files. A terminal shows a table that fits, a pipe gets the Markdown.
    """
    from icl_bench.cli.output.lists import print_leaderboard
    from icl_bench.cli.output.tables import print_json
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.report.leaderboard import as_markdown, leaderboard, records, write
    from icl_bench.results.storage import folder_of
    from icl_bench.wording import plain

    with working() as say:
        table = leaderboard(watched(results, say))
    written = write(table, out or (folder_of(results) or Path()) / "leaderboard.csv")
    if json:
        print_json(records(table))
    elif not quiet:
        if (terminal := console()).is_terminal:
            print_leaderboard(table, terminal)
        else:
            print(as_markdown(table), end="")
        print(f"written: {' and '.join(map(plain, written))}", file=sys.stderr)
