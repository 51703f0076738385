"""``icl-bench report``: one HTML page of all findings, and its charts as figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from icl_bench.cli import options as o

PAGE = Path("report.html")


Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help=f"The page to write (default: {PAGE}).", show_default=False)
]


All = Annotated[
    Path | None,
    typer.Option(
        "--all",
        metavar="DIR",
        help="Write a folder instead, with the page and all predictions, for a web server or to open locally.",
    ),
]


FIGURES = "Figures"
"""The group of the options of figures."""


def _of_figures(flag: str, help_text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(flag, metavar=metavar, help=help_text, rich_help_panel=FIGURES, **more)


Figures = Annotated[Path | None, _of_figures("--figures", "Folder for the charts as files.", "DIR")]


Format = Annotated[
    str | None,
    _of_figures("--format", "File formats, separated by commas: svg, pdf, png, pgf (default: svg,pdf,png).", "FORMATS"),
]


Width = Annotated[
    float | None,
    _of_figures(
        "--width", "Width of a figure in inches, such as 3.3 for a column; text is in 8 and 9 points.", "INCHES"
    ),
]


Font = Annotated[str | None, _of_figures("--font", "Font family of the figures; must be installed.", "NAME")]


Rename = Annotated[
    Path | None,
    _of_figures(
        "--rename",
        "Names of tasks, models and selectors in figures: gemma3-270m: Gemma 3 (YAML or JSON), or two columns (CSV).",
        "FILE",
    ),
]


NoTitle = Annotated[bool, _of_figures("--no-title", "Figures without a title, for those with a caption.")]


Dpi = Annotated[int | None, _of_figures("--dpi", "Pixels per inch of PNG files (default: 300).", "N", min=72, max=1200)]


Panels = Annotated[
    int | None,
    _of_figures(
        "--panels", "Put the panels of a finding into one figure with one legend, N side by side.", "N", min=1, max=8
    ),
]


def report(
    results: o.ResultsDir = o.DEFAULT_RESULTS,
    out: Out = None,
    everything: All = None,
    task: o.Only = None,
    model: o.Only = None,
    figures: Figures = None,
    formats: Format = None,
    width: Width = None,
    font: Font = None,
    rename: Rename = None,
    no_title: NoTitle = False,
    dpi: Dpi = None,
    panels: Panels = None,
    data_dir: o.DataDir = None,
    anonymous: o.Anonymous = False,
) -> None:
    """Write one HTML page of all findings.

    It opens in any browser without a network: charts with intervals, sortable tables and a reader for
    single predictions, with a sample of them or, with --all, all. Prompts are rebuilt from the data
    folder, if it is available.
    """
    from icl_bench.cli.output.terminal import console
    from icl_bench.cli.output.working import watched, working
    from icl_bench.errors import UserError
    from icl_bench.machine import threads_here
    from icl_bench.report import write_report
    from icl_bench.report.figure_style import DPI, USUAL_FORMATS, FigureStyle, parse_formats, read_names

    asked = {
        "--format": formats,
        "--width": width,
        "--font": font,
        "--rename": rename,
        "--no-title": no_title or None,
        "--dpi": dpi,
        "--panels": panels,
    }
    if everything is not None and out is not None:
        raise UserError("--out: the page of --all is DIR/index.html; leave out one of the two")
    if figures is None and (given := [name for name, value in asked.items() if value is not None]):
        raise UserError(f"{given[0]}: applies to figures; add --figures DIR")
    style = FigureStyle(
        width=width,
        font=font,
        names={} if rename is None else read_names(rename),
        title=not no_title,
        formats=USUAL_FORMATS if formats is None else parse_formats(formats),
        dpi=dpi or DPI,
        panels=panels,
    )
    filters = {"task": task, "model": model}
    only = {name: value for name, value in filters.items() if value}
    with working() as say:
        place = watched(results, say, anonymous)
        written = write_report(
            place,
            everything or out or PAGE,
            only=only,
            figures=figures,
            style=style,
            data_dir=data_dir,
            with_all=everything is not None,
            processes=threads_here(),
            say=say,
        )
    console().print(written.in_words(), soft_wrap=True)
