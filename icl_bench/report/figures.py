"""The report's charts as files for papers and slides: SVG, PDF, PNG and PGF."""

from __future__ import annotations

import json
import math
import re
import struct
import textwrap
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import vl_convert

from icl_bench import __version__
from icl_bench.errors import UserError
from icl_bench.escaping import all_visible
from icl_bench.report.build import Report
from icl_bench.report.charts import HEIGHT, VEGA_LITE
from icl_bench.report.figure_style import PLAIN, UNITS, FigureStyle, check_names, parts, renamed
from icl_bench.report.pgf import pgf
from icl_bench.report.sections.panels import Choice, Panel, ReportSection, distinct, file_name
from icl_bench.report.theme import FIGURE_FONT, LIGHT, config
from icl_bench.text_files import write_whole
from icl_bench.wording import plain

WIDTH = 420
"""Units of a chart in a figure without a given width."""


PNG_SCALE = 2.0
"""Pixels per unit of the figure for a chart in a notebook."""


LABEL_SIZE, TITLE_SIZE = 8, 9
"""Points of type in figures of a given width."""


LETTER = 0.58
"""Approximate width of a letter as a multiple of the font size."""


def prepare(folder: Path, style: FigureStyle = PLAIN) -> None:
    """Create the folder. Raises ``UserError`` if it is not writable or the font is missing."""
    if style.font is not None:
        _check_font(style.font)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UserError(f"--figures {folder}: is a file; give a folder") from None
    except OSError as error:
        raise UserError(f"--figures {folder}: cannot be written ({error.strerror})") from None


def write_figures(report: Report, folder: Path, style: FigureStyle = PLAIN) -> list[Path]:
    """Write every chart in the formats of the style; a chart of single points shows its first point, or each of those
    that it names for files.

    Raises ``UserError`` if the folder is not writable, and for displayed names that no figure has.
    """
    prepare(folder, style)
    drawn = [*_drawn(report, style)]
    if style.names:
        known = {part for one in drawn for name in _series(one.spec.get("concat", [one.spec])) for part in parts(name)}
        texts = (text for one in drawn for text in _texts(one.spec))
        check_names(style.names, texts, known | {*report.tasks, *report.models})
    written = []
    for one in drawn:
        for kind, content in _files(one, style):
            path = folder / f"{one.name}.{kind}"
            try:
                write_whole(path, content)
            except OSError as error:
                raise UserError(f"{path}: cannot be written ({error.strerror})") from None
            written.append(path)
    return written


class Drawn(NamedTuple):
    """A figure with its file's name and provenance."""

    name: str
    spec: dict[str, Any]
    origin: str


def _drawn(report: Report, style: FigureStyle) -> Iterator[Drawn]:
    """The figures of a report, before names are replaced."""
    for name, section, shown in _named(report, style):
        panels = [panel for panel, _ in shown]
        if len(shown) == 1:
            spec = figure(panels[0], section.short, shown[0][1], style)
        else:
            spec = together(panels, section.short, style)
        yield Drawn(name, spec, provenance(report, *panels))


def _files(one: Drawn, style: FigureStyle) -> Iterator[tuple[str, bytes]]:
    """The figure in each format."""
    spec = _with_names(one.spec, style.names) if style.names else one.spec
    if style.units:
        _wrap_titles(spec, style.units)
        for chart in spec.get("concat", [spec]):
            _wrap_axes(chart)
            _shrink_points(chart)
            _shorten_levels(chart, spec["datasets"])
    svg = _fitted_svg(spec, style)
    if style.units and (inches := size_of(svg)[0] / UNITS) > 1.01 * style.units / UNITS:
        needs = f"{one.name} is {inches:.1f} inches wide, because its names need the space; --rename sets shorter ones"
        warnings.warn(f"--width {style.width:g}: {needs}", stacklevel=3)
    for kind in style.formats:
        match kind:
            case "svg":
                yield kind, svg_with(_in_inches(svg) if style.width else svg, one.origin).encode()
            case "pdf":
                yield kind, vl_convert.svg_to_pdf(svg)
            case "pgf":
                yield kind, pgf(svg, one.origin).encode()
            case _:
                yield kind, png_with(vl_convert.svg_to_png(svg, ppi=style.dpi), one.origin)


def _svg(spec: dict[str, Any]) -> str:
    return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE))


SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')


def size_of(svg: str) -> tuple[float, float]:
    """Width and height of a drawn figure in its units."""
    found = SIZE.search(svg)
    assert found is not None, "an SVG of Vega states its size"
    return float(found[1]), float(found[2])


def _fitted_svg(spec: dict[str, Any], style: FigureStyle) -> str:
    """The figure as SVG with the requested width: charts are narrowed by the space of legends and axes.

    A label that appears at the end of an axis may make a slightly wider chart too wide; then the widest one that fits
    is taken.
    """
    tried = [_svg(spec)]
    if style.units is None:
        return tried[0]
    charts = spec.get("concat")
    for _ in range(FITS):
        over = size_of(tried[-1])[0] - style.units
        if abs(over) < 1:
            break
        columns = min(spec["columns"], len(charts)) if charts else 1
        for chart in charts or [spec]:
            chart["width"] = max(NARROWEST, chart["width"] - math.copysign(max(1, abs(over) / columns), over))
        tried.append(_svg(spec))
    fitting = [svg for svg in tried if size_of(svg)[0] < style.units + 1]
    return max(fitting, key=lambda svg: size_of(svg)[0], default=tried[-1])


FITS, NARROWEST = 5, 40
"""The maximum number of attempts to fit a figure, and the minimum units of a chart's width."""


def _in_inches(svg: str) -> str:
    """The SVG with its size on paper."""
    width, height = size_of(svg)
    return SIZE.sub(f'width="{width / UNITS:g}in" height="{height / UNITS:g}in"', svg, count=1)


def _check_font(font: str) -> None:
    """Raise ``UserError`` for a font that this machine lacks, because it would be replaced by another one."""

    def drawn(family: str) -> bytes:
        text = f"<text y='30' font-size='24' font-family={quoteattr(family)}>Rag 0123 fi</text>"
        svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='200' height='40'>{text}</svg>"
        return bytes(vl_convert.svg_to_png(svg))

    if font.lower() not in KNOWN_FONTS and drawn(f"'{font}'") == drawn("'no such font'"):
        raise UserError(f"--font {plain(font)}: is not installed here, and another font would take its place (fc-list)")


KNOWN_FONTS = {"liberation sans", "sans-serif"}
"""Families that replace missing ones, so that they need no check."""


def provenance(report: Report, *panels: Panel) -> str:
    """Provenance of the predictions in panels, as JSON: one row per variant."""
    subjects = [{name: value for name, value in panel.about._asdict().items() if value} for panel in panels]
    rows = [row for row in report.provenance if any(about.items() <= row.items() for about in subjects)]
    return json.dumps({"icl-bench": __version__, "provenance": rows})  # XML does not support all characters


def svg_with(svg: str, text: str) -> str:
    """An SVG with a text in its element for metadata."""
    head, end, rest = svg.partition(">")
    return f"{head}{end}<metadata>{escape(text)}</metadata>{rest}"


KEYWORD = b"icl-bench"
"""The keyword of the text in a PNG."""


def png_with(png: bytes, text: str) -> bytes:
    """A PNG with a text in a chunk ``iTXt``, after its header (PNG specification, 11.3.4.5)."""
    data = KEYWORD + b"\0\0\0\0\0" + text.encode()
    checked = b"iTXt" + data
    chunk = struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))
    behind = 8 + 8 + 13 + 4  # the signature, and IHDR with its length, kind and checksum
    return png[:behind] + chunk + png[behind:]


def figure(panel: Panel, about: str = "", choice: Choice | None = None, style: FigureStyle = PLAIN) -> dict[str, Any]:
    """Return a panel's specification with a title, a fixed width and colours for white paper.

    ``about`` is the beginning of the title, ``choice`` the selected one of several points.
    """
    title = f"{about}: {panel.title}" if about else panel.title
    spec = _with_legend(panel)
    if panel.choices:
        chosen = spec["params"][0]
        if choice is not None:
            chosen["value"] = choice.value
        title = f"{title} · {chosen['value']}"
    spec |= _size(spec, style.units) | _paper(style, title, [spec])
    shown: dict[str, Any] = all_visible(spec)
    return shown


def together(panels: Sequence[Panel], about: str, style: FigureStyle) -> dict[str, Any]:
    """Panels as one figure, with the style's number of panels per row and one legend below."""
    specs = [_with_legend(panel) for panel in panels]
    columns = min(style.panels or 1, len(panels))
    units = None if style.units is None else style.units / columns
    datasets: dict[str, Any] = {}
    series = _series(specs)
    for number, (panel, spec) in enumerate(zip(panels, specs, strict=True)):
        for legend in _legends(spec):
            legend["values"] = series
        for name, rows in spec.pop("datasets").items():
            datasets[f"{name}-{number}"] = rows
        for of_data in (spec, *spec["layer"]):
            if "data" in of_data:
                of_data["data"] = {"name": f"{of_data['data']['name']}-{number}"}
        spec |= _size(spec, units) | {"title": panel.title}
    spec = {
        "$schema": specs[0]["$schema"],
        "concat": [{key: spec[key] for key in CHART if key in spec} for spec in specs],
        "columns": columns,
        "spacing": 10,
        "datasets": datasets,
        "params": specs[0].get("params", []),
        "resolve": {"scale": dict.fromkeys(CHANNELS, "shared")},
        **_paper(style, about, specs),
    }
    shown: dict[str, Any] = all_visible(spec)
    return shown


CHART = ("title", "data", "layer", "width", "height")
"""The parts of a chart's specification that are kept in a figure of several."""

CHANNELS = ("color", "shape", "strokeDash")
"""The channels that distinguish series."""


def _legends(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The legends of a chart's series."""
    for layer in spec["layer"]:
        for channel in CHANNELS:
            encoding = layer["encoding"].get(channel, {})
            if encoding.get("field") == "series" and encoding.get("legend"):
                yield encoding["legend"]


def _series(specs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The distinct names in the legends of charts."""
    return list(dict.fromkeys(name for spec in specs for legend in _legends(spec) for name in legend["values"]))


def _size(spec: Mapping[str, Any], units: float | None) -> dict[str, Any]:
    """Width and height of a chart: in a figure with a given width, charts of the default height keep their
    proportions.
    """
    if units is None:
        return {"width": WIDTH}
    height = spec["height"]
    if height % HEIGHT == 0:
        height = max(LOWEST, round(height * min(1.0, units / (WIDTH + MARGIN))))
    return {"width": max(NARROWEST, units - MARGIN), "height": height}


LOWEST = 90
"""The minimum units of a chart's height."""


MARGIN = 50
"""Approximate units next to a chart for its axis."""


def _paper(style: FigureStyle, title: str, specs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Title, margins, colours and type of a figure of these charts."""
    font = FIGURE_FONT if style.font is None else f"'{style.font}', {FIGURE_FONT}"
    settings = {**config(LIGHT, font), "background": "white"}
    paper: dict[str, Any] = {"title": title, "autosize": {"type": "pad"}, "padding": 10}
    if style.units:
        names = [renamed(name, style.names) for name in _series(specs)]
        settings |= _small(settings, names, style.units)
        paper["padding"] = 2
    if not style.title:
        paper["title"] = None
    return {**paper, "config": settings}


def _small(settings: Mapping[str, Any], names: Sequence[str], units: float) -> dict[str, Any]:
    """Font sizes and legend for a figure of this number of units."""
    room = units - MARGIN
    widest = max((LETTER * LABEL_SIZE * len(name) + SYMBOL for name in names), default=room)
    small = {"labelFontSize": LABEL_SIZE, "titleFontSize": TITLE_SIZE}
    return {
        "axis": {**settings["axis"], **small, "titlePadding": 4},
        "legend": {
            **settings["legend"],
            **small,
            "labelLimit": 0,
            "columns": max(1, min(4, int(room // widest))),
            "columnPadding": 6,
            "rowPadding": 1,
            "offset": 6,
        },
        "title": {**settings["title"], "fontSize": TITLE_SIZE, "offset": 4},
        "text": {**settings["text"], "fontSize": LABEL_SIZE},
    }


SYMBOL = 22
"""Units of a legend's symbol, with the space around it."""


def _wrap_titles(spec: dict[str, Any], units: float) -> None:
    """Break the titles of a figure and of its charts into lines that fit."""
    charts = spec.get("concat", [])
    each = units / min(spec.get("columns", 1), max(len(charts), 1))
    for titled, room in [(spec, units), *((chart, each) for chart in charts)]:
        if titled["title"]:
            letters = max(10, int(room / (LETTER * TITLE_SIZE)))
            titled["title"] = textwrap.wrap(titled["title"], letters, break_on_hyphens=False)


def _wrap_axes(chart: dict[str, Any]) -> None:
    """Break the titles of a chart's axes into lines that fit."""
    for layer in chart["layer"]:
        for channel, room in (("x", chart["width"] + MARGIN / 4), ("y", chart["height"] + MARGIN / 2)):
            encoded = layer["encoding"].get(channel, {})
            letters = max(8, int(room / (LETTER * TITLE_SIZE)))
            if len(title := encoded.get("title") or "") > letters:
                encoded["title"] = textwrap.wrap(title, letters, break_on_hyphens=False, break_long_words=False)


def _shrink_points(chart: dict[str, Any]) -> None:
    """Make points smaller where many would cover each other."""
    for layer in chart["layer"]:
        if layer["mark"]["type"] == "point" and "size" in layer["mark"]:
            layer["mark"]["size"] *= min(1.0, 2 * chart["width"] / WIDTH)


SHORTER = (
    (re.compile(r"^most frequent label, "), "majority, "),
    (re.compile(r"^guessing one of .* labels.*, "), "chance, "),
)
"""Names of lines over the whole width, for narrow charts."""


def _shorten_levels(chart: Mapping[str, Any], datasets: Mapping[str, list[dict[str, Any]]]) -> None:
    """Replace names of lines that are wider than their chart."""
    for layer in chart["layer"]:
        for row in datasets.get(layer.get("data", {}).get("name", ""), ()):
            if "level" in row and LETTER * LABEL_SIZE * len(row["name"]) > chart["width"]:
                for long, short in SHORTER:
                    row["name"] = long.sub(short, row["name"])


SHOWN = {"title", "domain", "values", "value", "datasets", "sort"}
"""Keys of a specification that contain names."""


def _with_names(node: Any, names: Mapping[str, str], shown: bool = False) -> Any:
    """A specification with replaced names."""
    if isinstance(node, dict):
        return {key: _with_names(value, names, shown or key in SHOWN) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_names(value, names, shown) for value in node]
    return renamed(node, names) if shown and isinstance(node, str) else node


def _texts(node: Any, shown: bool = False) -> Iterator[str]:
    """The texts of a specification that may contain names."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _texts(value, shown or key in SHOWN)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value, shown)
    elif shown and isinstance(node, str):
        yield node


def _with_legend(panel: Panel) -> dict[str, Any]:
    """The specification, its legend without series that are not in the figure."""
    spec = panel.spec()
    hidden = {name for p in spec.get("params", ()) if p["name"] == "hidden" for name in p["value"]}
    drawn_series = [row["series"] for row in panel.rows if row.get("series") not in (None, *hidden)]
    for layer in spec["layer"]:
        for channel in CHANNELS:
            encoding = layer["encoding"].get(channel, {})
            if encoding.get("field") == "series":
                shown = {"values": list(dict.fromkeys(drawn_series))}
                # a legend of dashes would be drawn as outlines of the shapes
                encoding["legend"] = None if channel == "strokeDash" else shown
    return spec


Shown = Sequence[tuple[Panel, Choice | None]]
"""Panels of a figure, each with its selected point."""


def _named(report: Report, style: FigureStyle) -> Iterator[tuple[str, ReportSection, Shown]]:
    """The content of each figure, with names that are unique regardless of case."""
    found = [(section, *one) for section in report.sections for one in _of_section(section, style)]
    for name, (section, _, shown) in zip(distinct(name for _, name, _ in found), found, strict=True):
        yield name, section, shown


def _of_section(section: ReportSection, style: FigureStyle) -> Iterator[tuple[str, Shown]]:
    """The figures of a section: one per panel or choice, or panels with equal legends together."""
    alike: dict[str, list[Panel]] = {}
    for number, panel in enumerate(section.panels):  # panels may have one name
        key = _legend_key(panel) if style.panels else ""
        alike.setdefault(key or str(number), []).append(panel)
    for panels in alike.values():
        if len(panels) > 1:
            yield f"{section.name}-panels", [(panel, None) for panel in panels]
            continue
        for choice in panels[0].in_files or (None,):
            chosen = "" if choice is None else f"-{file_name(choice.text)}"
            yield panels[0].name + chosen, [(panels[0], choice)]


def _legend_key(panel: Panel) -> str:
    """The key that panels with one legend share; empty for a panel that is a figure of its own."""
    spec = _with_legend(panel)
    if panel.choices or not any(_legends(spec)):
        return ""
    channels = ((layer["encoding"], channel) for layer in spec["layer"] for channel in CHANNELS)
    return json.dumps([encoding[channel].get("scale") for encoding, channel in channels if channel in encoding])
