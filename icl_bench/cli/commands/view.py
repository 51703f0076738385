"""``icl-bench view``: the report's page from a server on the loopback, with all predictions."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o

Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port of 127.0.0.1; 0 for any free port.")
]


Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")]


def view(
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    port: Port = 0,
    browser: Browser = True,
    task: o.Only = None,
    model: o.Only = None,
    data_dir: o.DataDir = None,
) -> None:
    """Show findings and all predictions in a browser.

    Serves the report's page to this machine only; Ctrl-C ends it. While a run adds cells to the folder, the page is
    updated.
    """
    from icl_bench.cli.output.terminal import console
    from icl_bench.report import open_viewer

    filters = {"task": task, "model": model}
    only = {name: value for name, value in filters.items() if value}
    with open_viewer(results, port, only=only, data_dir=data_dir) as viewer:
        console().print(f"{viewer.address} (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        if browser:
            typer.launch(viewer.address)
        viewer.serve()
