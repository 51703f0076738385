"""The page: one HTML file that needs no network, including charts, tables and its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from icl_bench import __version__
from icl_bench.analysis.query_cost import PARTS
from icl_bench.analysis.statistics.paired import ALPHA
from icl_bench.escaping import in_script
from icl_bench.report.answers import LOSS
from icl_bench.report.build import Report, tables
from icl_bench.report.charts import MOST_BANDS, VEGA_LITE
from icl_bench.report.matrix import HEIGHT, WIDTH
from icl_bench.report.sections.panels import Panel, ReportSection, distinct
from icl_bench.report.sections.prompts import FRONTIER_AXES
from icl_bench.report.theme import DARK, DASHES, LIGHT, PAGE_FONT, SHAPES, config

SCRIPTS = (
    "base",
    "address",
    "tables",
    "charts",
    "costs",
    "legends",
    "view",
    "published",
    "reader",
    "following",
    "start",
)
"""The parts of the page's program, in order."""


GENERATOR = '<meta name="generator" content="icl-bench '
"""The tag that identifies the generator of a page."""


def page(report: Report, with_library: bool = True, revision: int = -1) -> str:
    """The whole page as HTML. The same report gives the same text.

    A served page without charts yet can omit the ``library`` that draws them. A served page with findings has the
    ``revision`` of the folder that they are of.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string(own_file("page.html.j2"))
    return template.render(
        report=report,
        revision=revision,
        version=__version__,
        loss=LOSS,
        css=Markup(own_file("page.css")),
        library=Markup(_harmless(library()) if with_library else ""),
        program=Markup(_program()),
        data=Markup(in_script(_data(report))),
        tables={id(table): number for number, (_, table) in enumerate(tables(report))},
        charts={id(panel): number for number, panel in enumerate(_panels(report))},
        names=_names(report),
        id=id,
        link=_link,
        size=(WIDTH, HEIGHT),
    )


def _link(task: str, model: str = "*") -> str:
    """The page's address for a task, or for one of its models: ``address.js``."""
    return "#" + urlencode({"task": task, "model": model})


@cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed. Building them takes most of a second."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    return vl_convert.javascript_bundle(snippet, vl_version=VEGA_LITE)


def _program() -> str:
    """The page's own program."""
    parts = "\n".join(own_file(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();'


def own_file(name: str) -> str:
    """One of the page's own files."""
    return files("icl_bench.report").joinpath("assets", name).read_text(encoding="utf-8")


def _harmless(program: str) -> str:
    """A script that cannot end the element that contains it."""
    return program.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _panels(report: Report) -> list[Panel]:
    return [panel for section in report.sections for panel in section.panels]


def _names(report: Report) -> dict[int, str]:
    """The distinct name of each panel, by its ``id``."""
    panels = _panels(report)
    return dict(zip(map(id, panels), distinct(panel.name for panel in panels), strict=True))


def _data(report: Report) -> Mapping[str, Any]:
    """The data of the page's program."""
    names = _names(report)
    specs = {id(panel): panel.spec() for panel in _panels(report)}
    return {
        "tasks": report.tasks,
        "models": report.models,
        "themes": {"light": config(LIGHT, PAGE_FONT), "dark": config(DARK, PAGE_FONT)},
        "shapes": SHAPES,
        "dashes": DASHES,
        "most_bands": MOST_BANDS,
        "cost_axes": FRONTIER_AXES,
        "cost_parts": PARTS,
        "alpha": ALPHA,
        "lists": report.lists,
        "place": report.place,
        "charts": [
            {
                "spec": specs[id(panel)],
                "name": names[id(panel)],
                "choices": [choice._asdict() for choice in panel.choices],
                "costs": panel.costs,
                **panel.about._asdict(),
            }
            for panel in _panels(report)
        ],
        "legends": {
            section.name: _legend(section, [specs[id(panel)] for panel in section.panels])
            for section in report.sections
            if section.look.series
        },
        "tables": [table.as_json() for _, table in tables(report)],
        "reader": report.sample.as_json(),
    }


def _legend(section: ReportSection, specs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The series of a section, and whether some chart has bands."""
    look = section.look
    layers = [layer["mark"]["type"] for spec in specs for layer in spec["layer"]]
    return {
        "series": look.series,
        "hidden": look.hidden,
        "colours": look.colours,
        "shapes": look.shapes,
        "dashes": look.dashes,
        "bands": "area" in layers,
    }
