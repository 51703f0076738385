"""The page: one HTML file that needs no network, with its charts, tables and program in it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import vl_convert
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from icl_bench import __version__
from icl_bench.escaping import in_script
from icl_bench.report.build import Report, tables
from icl_bench.report.charts import VEGA_LITE
from icl_bench.report.theme import DARK, DASHES, LIGHT, PAGE_FONT, SHAPES, config


def page(report: Report) -> str:
    """The whole page as HTML. The same report gives the same text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True, keep_trailing_newline=True)  # fmt: skip
    template = environment.from_string(_own("page.html.j2"))
    return template.render(
        report=report,
        version=__version__,
        css=Markup(_own("page.css")),
        library=Markup(_harmless(_library())),
        program=Markup(_own("page.js")),
        data=Markup(in_script(_data(report))),
        tables={id(table): number for number, (_, table) in enumerate(tables(report))},
        charts={id(panel): number for number, panel in enumerate(_panels(report))},
        id=id,
    )


def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed."""
    snippet = "window.vegaEmbed = vegaEmbed;"
    return vl_convert.javascript_bundle(snippet, vl_version=VEGA_LITE)


def _own(name: str) -> str:
    """One of the page's own files."""
    return files("icl_bench.report").joinpath(name).read_text(encoding="utf-8")


def _harmless(program: str) -> str:
    """A program that cannot end the element that it stands in."""
    return program.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _panels(report: Report) -> list[Any]:
    return [panel for section in report.sections for panel in section.panels]


def _data(report: Report) -> Mapping[str, Any]:
    """What the page's program reads."""
    return {
        "themes": {
            "light": config(LIGHT, PAGE_FONT),
            "dark": config(DARK, PAGE_FONT),
        },
        "shapes": SHAPES,
        "dashes": DASHES,
        "charts": [
            {"spec": panel.spec(), "choices": [choice._asdict() for choice in panel.choices]}
            for panel in _panels(report)
        ],
        "legends": {
            section.name: {"series": section.look.series, "hidden": section.look.hidden}
            for section in report.sections
            if section.look.series
        },
        "tables": [table.as_json() for _, table in tables(report)],
        "reader": report.sample.as_json(),
    }
