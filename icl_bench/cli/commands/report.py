"""``icl-bench report``: one HTML page of all findings, and its charts as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icl_bench.cli import options as o

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The page to write.")]


Figures = Annotated[
    Path | None, typer.Option("--figures", metavar="DIR", help="Folder for the charts as SVG, PDF and PNG.")
]


def report(
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    out: Out = Path("report.html"),
    task: o.Only = None,
    model: o.Only = None,
    figures: Figures = None,
    data_dir: o.DataDir = None,
    anonymous: o.Anonymous = False,
) -> None:
    """Write one HTML page of all findings.

    It opens in any browser without a network: charts with intervals, sortable tables and a reader for
    single predictions. Prompts are rebuilt from the data folder, if it is available.
    """
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.report import write_report

    filters = {"task": task, "model": model}
    only = {name: value for name, value in filters.items() if value}
    with working() as say:
        place = watched(results, say, anonymous)
        written = write_report(place, out, only=only, figures=figures, data_dir=data_dir, say=say)
    console().print(written.in_words(), soft_wrap=True)
