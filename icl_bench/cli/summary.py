"""``icl-bench summary``: the table of results."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o

Only = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this one.", show_default=False)
]


def summary(
    results: o.Results = o.DEFAULT_RESULTS,
    task: Only = None,
    model: Only = None,
    json: o.Json = False,
) -> None:
    """Show the results: accuracy against k.

    A table per task and model with the means over draws, 95% intervals (draws and test examples
    both count as samples) and macro-F1, and below it what could not be computed.
    """
    from icl_bench.analysis.summary import summarise_folder
    from icl_bench.cli.progress import console
    from icl_bench.cli.tables import print_json, print_summary

    asked = {"task": task, "model": model}
    found = summarise_folder(results, {name: value for name, value in asked.items() if value})
    if json:
        print_json(found.as_json())
    else:
        print_summary(found, console())
