r"""Figures as drawing commands of PGF, with texts that LaTeX sets in the paper's font: ``\input{figure.pgf}``.

Reads the SVG that Vega writes: groups, lines, rectangles, paths, texts and gradients along an axis. A unit of the
figure is a big point (1/72 inch).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree

Point = tuple[float, float]

MATRIX = tuple[float, float, float, float, float, float]
"""As in SVG: x' = a x + c y + e, y' = b x + d y + f."""

SVG = "{http://www.w3.org/2000/svg}"

INHERITED = ("fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "stroke-linecap")


class _Brush(NamedTuple):
    """How an element is drawn: SVG attributes, including those of its groups."""

    attributes: Mapping[str, str]
    opacity: float = 1.0


def pgf(svg: str, about: str) -> str:
    """Return the commands that draw an SVG of Vega; ``about`` is a comment."""
    root = ElementTree.fromstring(svg)
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    gradients = {one.attrib["id"]: one for one in root.iter(f"{SVG}linearGradient")}
    page = (1.0, 0.0, 0.0, -1.0, 0.0, height)  # PGF's y goes up
    return "\n".join(
        [
            *(f"% {line}" for line in about.splitlines()),
            r"% In the preamble: \usepackage{pgf}",
            r"\begingroup",
            r"\begin{pgfpicture}",
            rf"\pgfpathrectangle{{\pgfpointorigin}}{{{_point((width, height))}}}",
            r"\pgfusepath{use as bounding box}",
            *_drawn(root, page, _Brush({}), gradients),
            r"\end{pgfpicture}",
            r"\endgroup",
            "",
        ]
    )


def _drawn(
    node: ElementTree.Element, matrix: MATRIX, brush: _Brush, gradients: Mapping[str, ElementTree.Element]
) -> Iterator[str]:
    """The commands of an element and its children."""
    if node.get("display") == "none":
        return
    matrix = _times(matrix, _transform(node.get("transform", "")))
    own = {name: node.attrib[name] for name in INHERITED if name in node.attrib}
    brush = _Brush({**brush.attributes, **own}, brush.opacity * float(node.get("opacity", 1)))
    match node.tag.removeprefix(SVG):
        case "svg" | "g":
            for child in node:
                yield from _drawn(child, matrix, brush, gradients)
        case "text":
            yield from _text(node, matrix, brush)
        case "line" | "rect" | "path":
            yield from _shape([*_segments(_path_of(node))], matrix, brush, gradients)


def _path_of(node: ElementTree.Element) -> str:
    """The path of a shape."""
    x, y, width, height, x2, y2 = (node.get(name, "0") for name in ("x", "y", "width", "height", "x2", "y2"))
    match node.tag.removeprefix(SVG):
        case "line":
            return f"M{node.get('x1', '0')},{node.get('y1', '0')}L{x2},{y2}"
        case "rect":
            return f"M{x},{y}h{width}v{height}h-{width}Z"
    return node.get("d", "")


NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
COUNTS = {"M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "Q": 4, "A": 7, "Z": 0}


def _segments(path: str) -> Iterator[tuple[str, list[Point]]]:
    """The moves (M), lines (L), curves (C) and ends (Z) of a path, in absolute points."""
    at: Point = (0.0, 0.0)
    start = at
    for letter, rest in re.findall(r"([MLHVCQAZmlhvcqaz])([^MLHVCQAZmlhvcqaz]*)", path):
        kind, numbers = letter.upper(), [float(one) for one in NUMBER.findall(rest)]
        count = COUNTS[kind]
        for first in range(0, max(len(numbers), 1), max(count, 1)):
            values = numbers[first : first + count]
            base = at if letter.islower() else (0.0, 0.0)
            if kind == "Z":
                at = start
                yield "Z", []
                continue
            if kind in "HV":
                to = (base[0] + values[0], at[1]) if kind == "H" else (at[0], base[1] + values[0])
                yield "L", [to]
            elif kind == "A":
                to = (base[0] + values[5], base[1] + values[6])
                yield from (("C", curve) for curve in _arc(at, to, values))
            else:
                points = [(base[0] + x, base[1] + y) for x, y in zip(values[::2], values[1::2], strict=True)]
                to = points[-1]
                if kind == "Q":  # as a cubic curve
                    points = [_between(at, points[0], 2 / 3), _between(to, points[0], 2 / 3), to]
                yield ("M" if kind == "M" and not first else "C" if kind in "CQ" else "L"), points
            at = to
            if kind == "M" and not first:
                start = at


def _between(one: Point, other: Point, share: float) -> Point:
    return one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])


def _arc(begin: Point, end: Point, values: Sequence[float]) -> Iterator[list[Point]]:
    """An arc of an ellipse as cubic curves (SVG 1.1, F.6.5; axes that are not rotated)."""
    rx, ry, _, large, sweep, *_ = values
    dx, dy = (begin[0] - end[0]) / 2, (begin[1] - end[1]) / 2
    if not rx or not ry or not (dx or dy):
        yield [begin, end, end]
        return
    grow = max(1.0, math.hypot(dx / rx, dy / ry))
    rx, ry = rx * grow, ry * grow
    spread = (dx / rx) ** 2 + (dy / ry) ** 2
    factor = math.sqrt(max(0.0, 1 / spread - 1)) * (-1 if large == sweep else 1)
    center = (factor * rx * dy / ry + (begin[0] + end[0]) / 2, -factor * ry * dx / rx + (begin[1] + end[1]) / 2)
    first = math.atan2((begin[1] - center[1]) / ry, (begin[0] - center[0]) / rx)
    angle = math.atan2((end[1] - center[1]) / ry, (end[0] - center[0]) / rx) - first
    if sweep and angle <= 0:
        angle += 2 * math.pi
    elif not sweep and angle >= 0:
        angle -= 2 * math.pi
    pieces = math.ceil(abs(angle) / (math.pi / 2) - 1e-9)
    step = angle / pieces
    pull = 4 / 3 * math.tan(step / 4)
    for piece in range(pieces):
        a, b = first + piece * step, first + (piece + 1) * step
        yield [
            (center[0] + rx * (math.cos(a) - pull * math.sin(a)), center[1] + ry * (math.sin(a) + pull * math.cos(a))),
            (center[0] + rx * (math.cos(b) + pull * math.sin(b)), center[1] + ry * (math.sin(b) - pull * math.cos(b))),
            (center[0] + rx * math.cos(b), center[1] + ry * math.sin(b)),
        ]


COMMANDS = {"M": r"\pgfpathmoveto", "L": r"\pgfpathlineto", "C": r"\pgfpathcurveto"}


def _shape(
    segments: Sequence[tuple[str, list[Point]]],
    matrix: MATRIX,
    brush: _Brush,
    gradients: Mapping[str, ElementTree.Element],
) -> Iterator[str]:
    fill, stroke = (brush.attributes.get(name, "none") for name in ("fill", "stroke"))
    if gradient := re.fullmatch(r"url\(#(.+)\)", fill):
        yield from _gradient(segments, matrix, gradients[gradient[1]])
        fill = "none"
    thickness = float(brush.attributes.get("stroke-width", 1))
    if not thickness:  # PGF draws it as the thinnest line there is
        stroke = "none"
    uses = [use for use, colour in (("fill", fill), ("stroke", stroke)) if colour not in ("none", "transparent")]
    if len(segments) < 2 or not uses:
        return
    yield r"\begin{pgfscope}"
    for use, colour in (("fill", fill), ("stroke", stroke)):
        if use in uses:
            opacity = brush.opacity * float(brush.attributes.get(f"{use}-opacity", 1))
            yield rf"\definecolor{{iclbench}}{{HTML}}{{{_html(colour)}}}\pgfset{use}color{{iclbench}}"
            yield rf"\pgfset{use}opacity{{{opacity:g}}}"
    if "stroke" in uses:
        yield rf"\pgfsetlinewidth{{{thickness:g}bp}}"
        dashes = NUMBER.findall(brush.attributes.get("stroke-dasharray", ""))
        if any(float(dash) for dash in dashes[1::2]):
            yield rf"\pgfsetdash{{{''.join(f'{{{dash}bp}}' for dash in dashes)}}}{{0bp}}"
    for kind, points in segments:
        close = kind == "Z"
        yield (
            r"\pgfpathclose" if close else COMMANDS[kind] + "".join(f"{{{_point(_moved(matrix, p))}}}" for p in points)
        )
    yield rf"\pgfusepath{{{','.join(uses)}}}"
    yield r"\end{pgfscope}"


STRIPS = 32
"""The number of rectangles of a gradient."""


def _gradient(
    segments: Sequence[tuple[str, list[Point]]], matrix: MATRIX, gradient: ElementTree.Element
) -> Iterator[str]:
    """A rectangle whose colour changes along its longer side."""
    stops = [(float(one.attrib["offset"]), _html(one.attrib["stop-color"])) for one in gradient]
    corners = [_moved(matrix, point) for _, points in segments for point in points]
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*corners, strict=True))
    across = right - left >= high - low
    for strip in range(STRIPS):
        begin, end = (strip / STRIPS, (strip + 1) / STRIPS)
        colour = _colour_at(stops, (begin + end) / 2)
        at, to = ((left, low), (right, high))
        if across:
            at, to = (left + begin * (right - left), low), (left + end * (right - left), high)
        else:  # offset 0 is at the bottom, as in Vega's legends
            at, to = (left, low + begin * (high - low)), (right, low + end * (high - low))
        yield rf"\definecolor{{iclbench}}{{HTML}}{{{colour}}}\pgfsetfillcolor{{iclbench}}"
        size = (to[0] - at[0], to[1] - at[1])
        yield rf"\pgfpathrectangle{{{_point(at)}}}{{{_point(size)}}}\pgfusepath{{fill}}"


def _colour_at(stops: Sequence[tuple[float, str]], place: float) -> str:
    """The colour between stops."""
    for (low, one), (high, other) in pairwise(stops):
        if low <= place <= high:
            share = (place - low) / (high - low)
            pairs = ((int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (0, 2, 4))
            return "".join(f"{round(a + share * (b - a)):02X}" for a, b in pairs)
    return stops[-1][1]


ANCHORS = {"start": "left,", "middle": "", "end": "right,"}

SPECIAL = str.maketrans(
    {
        **{one: f"\\{one}" for one in "#$%&_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "\N{MINUS SIGN}": "$-$",
        "\N{MIDDLE DOT}": r"$\cdot$",
        "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
        "\N{BLACK UP-POINTING TRIANGLE}": r"$\bigtriangleup$",
        "\N{BLACK DOWN-POINTING TRIANGLE}": r"$\bigtriangledown$",
    }
)
"""Characters that LaTeX interprets, or does not have without a package."""


def _text(node: ElementTree.Element, matrix: MATRIX, brush: _Brush) -> Iterator[str]:
    """The lines of a text in the paper's font."""
    size = float(NUMBER.findall(node.get("font-size", "10"))[0])
    bold = r"\bfseries " if node.get("font-weight") == "bold" else ""
    anchor = ANCHORS[node.get("text-anchor", "start")]
    angle = math.degrees(math.atan2(matrix[1], matrix[0]))
    colour, down = _html(brush.attributes.get("fill", "#000000")), 0.0
    for line in [*node.iter(f"{SVG}tspan")] or [node]:
        down += float(line.get("dy", 0)) if line is not node else 0.0
        if not (line.text or "").strip():
            continue
        x, y = _moved(matrix, (float(line.get("x", 0)), float(node.get("y", 0)) + down))
        place = f"x={x:g}bp,y={y:g}bp,rotate={angle:g},{anchor}base"
        type_ = rf"\fontsize{{{size:g}bp}}{{{1.2 * size:g}bp}}\selectfont {bold}"
        yield rf"\definecolor{{iclbench}}{{HTML}}{{{colour}}}"
        yield rf"\pgftext[{place}]{{\color{{iclbench}}{type_}{(line.text or '').translate(SPECIAL)}}}"


def _html(colour: str) -> str:
    """The six hexadecimal digits of a colour in Vega's output."""
    if found := re.fullmatch(r"rgba?\((\d+), *(\d+), *(\d+).*\)", colour):
        return "".join(f"{int(part):02X}" for part in found.groups())
    digits = {"white": "FFFFFF", "black": "000000"}.get(colour, colour.lstrip("#")).upper()
    return "".join(2 * digit for digit in digits) if len(digits) == 3 else digits


def _transform(text: str) -> MATRIX:
    """The matrix of translations, rotations about the origin and scales."""
    matrix: MATRIX = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
    for name, values in re.findall(r"(\w+)\(([^)]*)\)", text):
        one, *more = (float(value) for value in NUMBER.findall(values))
        other = more[0] if more else None
        if name == "translate":
            step: MATRIX = (1.0, 0.0, 0.0, 1.0, one, other or 0.0)
        elif name == "rotate":
            cos, sin = math.cos(math.radians(one)), math.sin(math.radians(one))
            step = (cos, sin, -sin, cos, 0.0, 0.0)
        else:
            step = (one, 0.0, 0.0, one if other is None else other, 0.0, 0.0)
        matrix = _times(matrix, step)
    return matrix


def _times(outer: MATRIX, inner: MATRIX) -> MATRIX:
    a, b, c, d, e, f = outer
    g, h, i, j, k, m = inner
    return a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j, a * k + c * m + e, b * k + d * m + f


def _moved(matrix: MATRIX, point: Point) -> Point:
    a, b, c, d, e, f = matrix
    return a * point[0] + c * point[1] + e, b * point[0] + d * point[1] + f


def _point(point: Point) -> str:
    return rf"\pgfqpoint{{{point[0]:.3f}bp}}{{{point[1]:.3f}bp}}"
