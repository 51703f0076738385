"""``icl-bench view``: the report's page from a server on the loopback, with all predictions."""

from __future__ import annotations

from typing import Annotated

import typer

from icl_bench.cli import options as o

Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="A port of 127.0.0.1; 0: a free one.")
]


Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")]


Only = Annotated[str | None, typer.Option(metavar="NAME", help="Only this one.", show_default=False)]


def view(
    results: o.Results = o.DEFAULT_RESULTS,
    port: Port = 0,
    browser: Browser = True,
    task: Only = None,
    model: Only = None,
    data_dir: o.DataDir = None,
) -> None:
    """Look at the findings and all predictions in a browser.

    The page is the report's, from a server that only this machine reaches; Ctrl-C ends it. A folder
    that a run is still filling is followed.
    """
    from icl_bench.cli.output.terminal import console
    from icl_bench.report import open_viewer

    asked = {"task": task, "model": model}
    only = {name: value for name, value in asked.items() if value}
    with open_viewer(results, port, only=only, data_dir=data_dir) as viewer:
        console().print(f"{viewer.address} (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        if browser:
            typer.launch(viewer.address)
        viewer.serve()
