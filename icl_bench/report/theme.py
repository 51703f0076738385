"""Colours and fonts of the charts, for light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
"""One shape more than a divisor of the number of colours, so that combinations of both repeat late."""


DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (10, 4))


LIGHT: Mapping[str, Any] = {
    "ink": "#1d232b",
    "soft": "#59636e",
    "grid": "#e6e9ed",
    "line": "#b5bdc6",
    "series": ["#0067a5", "#681212", "#a38c1a", "#be5567", "#1b3846", "#259ad4", "#7a6600", "#3a00ad"],
    "ramp": ["#f1f5f9", "#9cc6e4", "#2f86bf", "#003f6b"],
}
"""Colours of series are distinguishable with red, green or blue colour blindness, and the first three also in
greyscale. Each has a contrast of at least 3:1 against the background. ``tests/unit/report/test_theme.py`` simulates it.
"""


DARK: Mapping[str, Any] = {
    "ink": "#e8ecf1",
    "soft": "#a3aebb",
    "grid": "#2b323b",
    "line": "#56616d",
    "series": ["#55aee8", "#ffe4ad", "#ad5700", "#faa700", "#d6ebf0", "#167e6c", "#a538dc", "#ff6196"],
    "ramp": ["#222a33", "#21557a", "#3d97d1", "#c2e5fb"],
}


PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


FIGURE_FONT = "'Liberation Sans', Arial, Helvetica, sans-serif"


def config(colours: Mapping[str, Any], font: str) -> dict[str, Any]:
    """Vega-Lite's settings for a background; the background itself stays transparent."""
    ink, soft, line = colours["ink"], colours["soft"], colours["line"]
    return {
        "background": None,
        "font": font,
        "range": {"category": colours["series"], "heatmap": colours["ramp"]},
        "view": {"stroke": None},
        "axis": {
            "labelColor": soft,
            "titleColor": ink,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titlePadding": 8,
            "gridColor": colours["grid"],
            "domainColor": line,
            "tickColor": line,
        },
        "legend": {
            "labelColor": ink,
            "titleColor": ink,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "labelLimit": 320,
            "orient": "bottom",
            "columns": 2,
            "symbolOpacity": 1,
            "symbolStrokeWidth": 0,  # outlines would be dashed like the lines
        },
        "title": {"color": ink, "fontSize": 13, "fontWeight": "bold", "anchor": "start"},
        "text": {"color": ink, "fontSize": 11},
        "style": {
            "reference": {"color": soft, "stroke": soft, "strokeDash": [4, 3], "strokeWidth": 1.2},
            "one": {"color": colours["series"][0]},
        },
    }
