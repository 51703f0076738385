"""The picture of the README: accuracy against seconds a query, of what docs/selection.md measured.

    python benchmarks/readme_picture.py     # docs/readme-light.svg and docs/readme-dark.svg

Numbers are read from the tables of that page, which is where they are kept; nothing is computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vl_convert

from icl_bench.report.charts import VEGA_LITE
from icl_bench.report.theme import DARK, FIGURE_FONT, LIGHT, config
from icl_bench.text_files import write_whole

DOCS = Path(__file__).resolve().parents[1] / "docs"
TASKS = {"Banking-77": "Banking-77 (77 intents)", "TREC": "TREC (6 kinds of questions)"}
METHODS = {
    "random": ("random, cached", 0, "circle"),
    "bm25": ("BM25 (shared words)", 1, "square"),
    "dense": ("nearest (embeddings)", 3, "diamond"),
    "hybrid:10,by=dense": ("random, cached,\nthen 10 nearest", 2, "triangle-up"),
}
"""What the page calls a selection -> its name in the picture, its colour's place, its shape."""
BESIDE: Mapping[str, tuple[int, str, Mapping[str, Any]]] = {
    "random": (-1, "\n", {"align": "left", "dx": 11, "dy": 6}),
    "bm25": (-1, "\n", {"align": "right", "dx": 30, "dy": 31}),
    "dense": (-1, "\n", {"align": "right", "dx": 14, "dy": -33}),
    "hybrid:10,by=dense": (0, "\n", {"align": "right", "dx": -11, "dy": -28}),
}
"""Where the name of a selection stands: beside which point of its curve, what parts name and k, and
how far off.
"""
GROUNDS = {"light": (LIGHT, "#ffffff"), "dark": (DARK, "#0d1117")}
"""GitHub's two grounds: a picture has its own, and is readable on any other."""
WIDTH, HEIGHT = 375, 240


def points(page: str, title: str) -> list[dict[str, Any]]:
    """The rows of one task's table that the picture shows, accuracies in percent."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    head, rows = [cell.strip() for cell in lines[0]], lines[2:]
    table = [dict(zip(head, map(str.strip, row), strict=True)) for row in rows]
    return [_point(row) for row in table if row["select"] in METHODS]


def _point(row: Mapping[str, str]) -> dict[str, Any]:
    low, high = map(float, re.findall(r"\d+\.\d+", row["95% interval"]))
    return {
        "method": METHODS[row["select"]][0],
        "k": int(row["k"]),
        "accuracy": float(row["accuracy %"]),
        "low": low,
        "high": high,
        "seconds": float(row["seconds a query"]),
    }


def picture(page: str, colours: Mapping[str, Any], ground: str) -> dict[str, Any]:
    """The specification: a panel a task."""
    named = config(colours, FIGURE_FONT)
    named["axis"] |= {"labelFontSize": 12, "titleFontSize": 13}
    names = [name for name, *_ in METHODS.values()]
    scales = {
        "color": [colours["series"][place] for _, place, _ in METHODS.values()],
        "shape": [shape for *_, shape in METHODS.values()],
    }
    by_method = {
        channel: {"field": "method", "type": "nominal", "legend": None, "scale": {"domain": names, "range": values}}
        for channel, values in scales.items()
    }
    return {
        "hconcat": [
            {
                "title": shown,
                "width": WIDTH,
                "height": HEIGHT,
                **_panel(points(page, title), by_method, "accuracy, %" if i == 0 else None),
            }
            for i, (title, shown) in enumerate(TASKS.items())
        ],
        "spacing": 24,
        "padding": 10,
        "config": {**named, "background": ground},
    }


def _panel(rows: list[dict[str, Any]], by_method: Mapping[str, Any], y_title: str | None) -> dict[str, Any]:
    x = {
        "field": "seconds",
        "type": "quantitative",
        "title": "seconds a query (log scale)",
        "scale": {"type": "log", "domain": [0.008, 5]},
        "axis": {"values": [0.01, 0.03, 0.1, 0.3, 1, 3], "grid": False, "format": "~g"},
    }
    y = {
        "field": "accuracy",
        "type": "quantitative",
        "title": y_title,
        "scale": {"domain": [0, 115], "nice": False},
        "axis": {"values": [0, 20, 40, 60, 80, 100]},
    }
    spans = {
        "mark": {"type": "rule", "opacity": 0.45, "strokeWidth": 1.5},
        "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    lines = {
        "mark": {"type": "line", "strokeWidth": 1.8, "opacity": 0.8},
        "encoding": {"y": y, "order": {"field": "k"}},
    }
    marks = {
        "mark": {"type": "point", "filled": True, "size": 85, "opacity": 1},
        "encoding": {"y": y, "shape": by_method["shape"]},
    }
    return {
        "encoding": {"x": x, "color": by_method["color"]},
        "data": {"values": rows},
        "layer": [spans, lines, marks, *(_name(rows, select, y) for select in METHODS)],
    }


def _name(rows: list[dict[str, Any]], select: str, y: Mapping[str, Any]) -> dict[str, Any]:
    """A selection's name and its k, beside its curve."""
    name = METHODS[select][0]
    which, link, place = BESIDE[select]
    curve = sorted((row for row in rows if row["method"] == name), key=lambda row: row["k"])
    said = f"{name}{link}k = {', '.join(str(row['k']) for row in curve)}"
    return {
        "data": {"values": [{**curve[which], "said": said}]},
        "mark": {"type": "text", "fontSize": 12.5, "baseline": "middle", "lineBreak": "\n", **place},
        "encoding": {"y": y, "text": {"field": "said"}},
    }


def main() -> None:
    """Write the picture for both grounds."""
    page = (DOCS / "selection.md").read_text(encoding="utf-8")
    for name, (colours, ground) in GROUNDS.items():
        svg = vl_convert.vegalite_to_svg(picture(page, colours, ground), vl_version=VEGA_LITE)
        write_whole(DOCS / f"readme-{name}.svg", svg.encode())


if __name__ == "__main__":
    main()
