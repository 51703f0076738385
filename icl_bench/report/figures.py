"""The report's charts as files for papers and slides: SVG, PDF and PNG."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import vl_convert

from icl_bench import __version__
from icl_bench.errors import UserError
from icl_bench.escaping import all_visible
from icl_bench.report.build import Report
from icl_bench.report.charts import VEGA_LITE
from icl_bench.report.sections.panels import Choice, Panel, ReportSection, file_name
from icl_bench.report.theme import FIGURE_FONT, LIGHT, config
from icl_bench.text_files import write_whole

WIDTH = 420


PNG_SCALE = 2.0
"""Pixels of a PNG for each of the figure's."""


def prepare(folder: Path) -> None:
    """Make the folder. Raises ``UserError`` where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(f"--figures {folder}: is a file; give a folder") from None
    except OSError as error:
        raise UserError(f"--figures {folder}: cannot be written ({error.strerror})") from None


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Write every chart in three formats; a chart of single points shows its first, or each of
    those that it names for files.

    Raises ``UserError`` where the folder cannot be written to.
    """
    prepare(folder)
    written = []
    for name, section, panel, choice in _named(report):
        spec = figure(panel, section.short, choice)
        svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
        png = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=PNG_SCALE)
        origin = provenance(report, panel)
        parts = {
            "svg": svg_with(svg, origin).encode(),
            "pdf": vl_convert.vegalite_to_pdf(spec, vl_version=VEGA_LITE),
            "png": png_with(png, origin),
        }
        for kind, content in parts.items():
            path = folder / f"{name}.{kind}"
            try:
                write_whole(path, content)
            except OSError as error:
                raise UserError(f"{path}: cannot be written ({error.strerror})") from None
            written.append(path)
    return written


def provenance(report: Report, panel: Panel) -> str:
    """What made the predictions that a panel is of, as JSON: a row for each variant."""
    about = {name: value for name, value in panel.about._asdict().items() if value}
    rows = [row for row in report.provenance if about.items() <= row.items()]
    return json.dumps({"icl-bench": __version__, "provenance": rows})  # no XML holds all characters


def svg_with(svg: str, text: str) -> str:
    """An SVG with a text in its element for metadata."""
    head, end, rest = svg.partition(">")
    return f"{head}{end}<metadata>{escape(text)}</metadata>{rest}"


KEYWORD = b"icl-bench"
"""What the text of a PNG is called."""


def png_with(png: bytes, text: str) -> bytes:
    """A PNG with a text in a chunk ``iTXt``, behind its header (PNG specification, 11.3.4.5)."""
    data = KEYWORD + b"\0\0\0\0\0" + text.encode()
    checked = b"iTXt" + data
    chunk = struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
    behind = 8 + 8 + 13 + 4  # the signature, and IHDR with its length, kind and checksum
    return png[:behind] + chunk + png[behind:]


def figure(panel: Panel, about: str = "", choice: Choice | None = None) -> dict[str, Any]:
    """A panel's specification with a title, a fixed width and colours for white paper.

    ``about`` is what the title begins with, ``choice`` what is shown of several.
    """
    title = f"{about}: {panel.title}" if about else panel.title
    with_legend = _with_legend(panel)
    if panel.choices:
        chosen = with_legend["params"][0]
        if choice is not None:
            chosen["value"] = choice.value
        title = f"{title} · {chosen['value']}"
    spec = {
        **with_legend,
        "title": title,
        "width": WIDTH,
        "autosize": {"type": "pad"},
        "padding": 10,
        "config": {**config(LIGHT, FIGURE_FONT), "background": "white"},
    }
    shown: dict[str, Any] = all_visible(spec)
    return shown


def _with_legend(panel: Panel) -> dict[str, Any]:
    """The specification, its legend without series that are not in the figure."""
    spec = panel.spec()
    hidden = {name for p in spec.get("params", ()) if p["name"] == "hidden" for name in p["value"]}
    drawn_series = [row["series"] for row in panel.rows if row.get("series") not in (None, *hidden)]
    for layer in spec["layer"]:
        for channel in ("color", "shape", "strokeDash"):
            encoding = layer["encoding"].get(channel, {})
            if encoding.get("field") == "series":
                shown = {"values": list(dict.fromkeys(drawn_series))}
                # a legend of dashes would be drawn as the outlines of the shapes
                encoding["legend"] = None if channel == "strokeDash" else shown
    return spec


def _named(report: Report) -> Iterator[tuple[str, ReportSection, Panel, Choice | None]]:
    """Panels with names that no two share, in any writing of capitals, and what they show."""
    seen: dict[str, int] = {}
    for section in report.sections:
        for panel in section.panels:
            for choice in panel.in_files or (None,):
                chosen = "" if choice is None else f"-{file_name(choice.text)}"
                name = panel.name + chosen
                count = seen[name.lower()] = seen.get(name.lower(), 0) + 1
                yield name if count == 1 else f"{name}-{count}", section, panel, choice
