"""Charts: converts the table of one panel to an Altair chart.

A chart reads its rows from the data set ``rows``, and its colours from the page or figure that contains it
(:mod:`icl_bench.report.theme`). Series have the colours of the light background, which a dark page replaces. The
parameter ``hidden`` lists the series that are switched off, ``single`` is the highlighted series (empty for none), and
``bands`` is whether intervals are shown as bands. Charts of single points have the parameter ``point``, the point to
show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import altair as alt
from altair.utils.schemapi import debug_mode

from icl_bench.report.theme import DASHES, LIGHT, SHAPES

if TYPE_CHECKING:
    import pandas as pd

ROWS = alt.NamedData("rows")


VEGA_LITE = re.sub(r"^v?(\d+\.\d+).*", r"\1", alt.SCHEMA_VERSION)
"""The Vega-Lite version of the charts."""


PERCENT, POINTS, NUMBER = ".1%", "+.1%", ",.3~g"


HIGH = alt.Y2("high:Q")
"""The upper end of an interval. Altair needs milliseconds to interpret a channel that is not an object."""


HEIGHT = 250


VISIBLE, OF_POINT = "indexof(hidden, datum.series) < 0", "datum.point == point"
"""Filters of rows: series that are not switched off, or the selected point."""


MOST_BANDS = 3
"""The maximum number of curves whose bands are initially shown."""


STRIP, ROW = 48, 34
"""Pixels of a series in a strip chart, and of a row of bars or points."""


@dataclass(frozen=True)
class Look:
    """Shared properties of a section's charts, which make them comparable."""

    series: Sequence[str]
    """All names, in the order of their colours."""
    hidden: Sequence[str] = ()
    """Series that are initially switched off."""
    shots: tuple[int, int] = (1, 1)
    """The smallest and the largest k above 0."""
    zero_shot: bool = False
    """Whether there are also points of k=0."""
    values: tuple[float, float] = (0.0, 1.0)
    """Limits of the vertical axis."""
    slots: tuple[int, ...] = ()
    """The theme's colour of each series; if empty, colours are assigned in turn. Series of one colour differ in shape
    and dash.
    """

    @property
    def colours(self) -> tuple[int, ...]:
        """The slot of each series."""
        return self.slots or tuple(range(len(self.series)))

    @property
    def shapes(self) -> tuple[int, ...]:
        """The shape of each series: a new one for each further series of a colour."""
        return tuple(slot + again for slot, again in zip(self.colours, self._again, strict=True))

    @property
    def dashes(self) -> tuple[int, ...]:
        """The dash of each series. With colours of selectors, the first series of each is solid."""
        return self._again if self.slots else self.colours

    @property
    def _again(self) -> tuple[int, ...]:
        """The number of earlier series with the same colour."""
        colours = self.colours
        return tuple(colours[:place].count(slot) for place, slot in enumerate(colours))

    @property
    def bands(self) -> bool:
        """Whether intervals are initially shown as bands, because more than a few hide each other."""
        return len(set(self.series) - set(self.hidden)) <= MOST_BANDS


def unchecked() -> AbstractContextManager[None]:
    """Make charts without a check of each part against the schema of Vega-Lite, which takes as long as the charts."""
    return debug_mode(False)


def tip(name: str, title: str, form: str | None = None) -> alt.Tooltip:
    """One line of a tooltip: a name, or a number in this format."""
    if form is None:
        return alt.Tooltip(f"{name}:N", title=title)
    return alt.Tooltip(f"{name}:Q", title=title, format=form)


POINT_TIPS = [tip("series", "curve"), tip("k", "k", ",d")]


RANGE_TIPS = [tip("low", "from", PERCENT), tip("high", "to", PERCENT)]


def _by_shots(look: Look, frame: pd.DataFrame) -> alt.Chart:
    """The visible rows over k, on a logarithmic axis with the tested numbers as ticks.

    A logarithmic axis has no k=0. Such a point is placed to the left of the others, at a distance of a ninth of the
    axis.
    """
    low, high = look.shots
    zero = low / max(high / low, 4) ** (1 / 8)
    ticks = sorted({int(k) for k in frame["k"]})
    if not look.zero_shot:
        return _shown(_log_x("k", OVER_SHOTS, low, high, values=ticks, format=",d", **TICKS))
    label, values = f"datum.value < {low} ? '0' : format(datum.value, ',d')", [k or zero for k in ticks]
    x = _log_x("place", f"{OVER_SHOTS[:-1]} above 0)", zero, high, values=values, labelExpr=label, **TICKS)
    return _shown(x).transform_calculate(place=f"datum.k || {zero}")


def _shown(*encodings: Any, which: str = VISIBLE) -> alt.Chart:
    """The rows of visible series, or those that match another expression."""
    return alt.Chart(ROWS).transform_filter(which).encode(*encodings)


def _log_x(field: str, title: str, low: float, high: float, **axis: Any) -> alt.X:
    """A logarithmic axis for values from ``low`` to ``high``."""
    scale = alt.Scale(type="log", domain=[low / 1.18, high * 1.18], nice=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(**axis))


def _share_axis(title: str, look: Look) -> dict[str, Any]:
    return {
        "title": title,
        "scale": alt.Scale(domain=list(look.values), nice=False, clamp=True),
        "axis": alt.Axis(format="~%", tickCount=5),
    }


def _marks(look: Look) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    names = list(look.series)
    colours = [LIGHT["series"][slot % len(LIGHT["series"])] for slot in look.colours]
    shapes = [SHAPES[place % len(SHAPES)] for place in look.shapes]
    dashes = [list(DASHES[place % len(DASHES)]) for place in look.dashes]
    return (
        alt.Color("series:N", title=None, scale=alt.Scale(domain=names, range=colours)),
        alt.Shape("series:N", title=None, scale=alt.Scale(domain=names, range=shapes)),
        alt.StrokeDash("series:N", title=None, scale=alt.Scale(domain=names, range=dashes)),
    )


def _finished(
    layers: Sequence[alt.Chart],
    description: str,
    height: int = HEIGHT,
    parameters: Sequence[alt.Parameter] = (),
    look: Look | None = None,
) -> alt.LayerChart:
    """The layers as one chart with the width of its container. With a ``look``, its series can be switched."""
    if look is not None:
        layers = [_switched(layer) for layer in layers]
        # parameters of a legend: series off, one highlighted, bands
        switches = {"hidden": list(look.hidden), "single": "", "bands": look.bands}
        parameters = [*parameters, *(alt.param(name=name, value=value) for name, value in switches.items())]
    # all at once, because each further call copies all layers
    of_vega: list[Any] = [parameter.param for parameter in parameters]
    return alt.LayerChart(
        layer=list(layers),
        params=of_vega or alt.Undefined,
        width="container",
        height=height,
        description=description,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )


def _point(point: str) -> alt.Parameter:
    return alt.param(name="point", value=point)


def _switched(layer: alt.Chart) -> alt.Chart:
    """A layer whose series are faint if another one is highlighted."""
    if layer.encoding.color is alt.Undefined:
        return layer
    own: Any = layer.mark["opacity"] if isinstance(layer.mark, alt.MarkDef) else alt.Undefined
    opacity = 1.0 if own is alt.Undefined else float(own)
    faint = {"test": "single && datum.series != single", "value": opacity * FAINT}
    switched: alt.Chart = layer.encode(alt.OpacityValue(opacity, condition=[faint]))
    return switched


FAINT = 0.13
"""The factor of a mark's opacity if another series is highlighted."""


BANDS = "bands || datum.series == single"


OVER_SHOTS = "demonstrations k (log scale)"


TICKS: Mapping[str, Any] = {"labelOverlap": "greedy", "labelSeparation": 4, "grid": False}
"""Labels of the tested numbers on a logarithmic axis."""


def over_shots(
    frame: pd.DataFrame,
    look: Look,
    title: str,
    tips: Sequence[alt.Tooltip],
    description: str,
    percent: bool = True,
    levels: Mapping[str, float] = MappingProxyType({}),
) -> alt.LayerChart:
    """Lines over k with bands; columns: series, k, value, low, high, and ``floor`` if known.

    ``frame`` is the data of the chart. If a series has a single point, or no neighbours, its limits are a line. If
    ``one_draw`` is true, points are hollow and limits are a dashed line, because other draws may be outside them.
    Values are shares unless ``percent`` is false. ``levels`` are lines over the whole width.
    """
    color, shape, dash = _marks(look)
    base = _by_shots(look, frame).encode(color)
    axis = _share_axis(title, look)
    if not percent:
        axis["axis"] = alt.Axis(format="~g", tickCount=5)
    y = alt.Y("value:Q", **axis)
    form = PERCENT if percent else "~g"
    limits = alt.Y("low:Q", title=title), HIGH
    band = _limits(base.transform_filter(f"({BANDS}) && !datum.one_draw"), form, of_point=False)
    # below all others, so that names do not cover clickable points
    layers = [*_levels(levels, title), band.mark_area(opacity=0.16).encode(*limits)]
    if "alone" in frame and frame["alone"].any():
        alone = _limits(base.transform_filter("datum.alone && !datum.one_draw"), form)
        layers.append(alone.mark_rule(strokeWidth=1.6).encode(*limits))
    layers += _line(base, y, shape, dash, tips)
    if "one_draw" in frame and frame["one_draw"].any():
        single = base.transform_filter("datum.one_draw")
        dashed = _limits(single, form).mark_rule(strokeWidth=1.4, strokeDash=[3, 3])
        layers = [*layers[:-1], dashed.encode(*limits), *_hollow(layers[-1], single, y, shape, tips)]
    if "floor" in frame and frame["floor"].notna().any():
        floor = base.transform_filter("isValid(datum.floor)").encode(
            alt.Y("floor:Q", title=title), tooltip=[tip("floor", "changed by chance", PERCENT)]
        )
        layers.append(floor.mark_tick(orient="horizontal", thickness=2, size=16))
    return _finished([*layers, *_beyond(base, frame, look, y)], description, look=look)


def _limits(base: alt.Chart, form: str, of_point: bool = True) -> alt.Chart:
    """Marks of limits, with accessible names, because they are not further values."""
    values = f"': ' + format(datum.low, '{form}') + ' to ' + format(datum.high, '{form}')" if of_point else "''"
    at = "' at k = ' + datum.k" if of_point else "' over k'"
    named = f"'95% limits of ' + datum.series + {at} + {values}"
    found: alt.Chart = base.transform_calculate(limits=named).encode(alt.Description("limits:N"))
    return found


def _hollow(
    points: alt.Chart, single: alt.Chart, y: alt.Y, shape: alt.Shape, tips: Sequence[alt.Tooltip]
) -> list[alt.Chart]:
    """Points of several draws (filled), and points of a single one (rings)."""
    rings = single.mark_point(filled=False, size=52, strokeWidth=1.8, opacity=1)
    return [points.transform_filter("!datum.one_draw"), rings.encode(y, shape, tooltip=list(tips))]


def _levels(levels: Mapping[str, float], title: str) -> list[alt.Chart]:
    """Lines over the whole width, with names at the left end: the higher line's above it, the lower line's below it.

    A line near the axis has its name above, beside the higher line's if that is near too.
    """
    if not levels:
        return []
    ordered = sorted(levels.items(), key=lambda level: -level[1])
    highest = ordered[0][1]
    layers = []
    for place, (name, value) in enumerate(ordered):
        at, dy = value, -6
        if place and value >= NAME_ROOM:
            dy = 9
        elif place and highest - value < 2 * NAME_ROOM:
            at, dy = highest, -6 - 12 * place
        level = alt.Chart(alt.InlineData([{"level": value, "at": at, "name": name}]))
        named = level.mark_text(align="left", dx=4, dy=dy).encode(alt.Text("name:N"), alt.Y("at:Q"), x=alt.value(0))
        layers += [level.mark_rule(style="reference", description=name).encode(alt.Y("level:Q", title=title)), named]
    return layers


NAME_ROOM = 0.09
"""The share of the vertical axis that a name takes."""


def _beyond(base: alt.Chart, frame: pd.DataFrame, look: Look, y: alt.Y) -> list[alt.Chart]:
    """The values of points outside the axis, at its end."""
    layers = []
    low, high = look.values
    for where, arrow, offset, out in (
        (f"datum.value > {high}", "▲", 13, frame["value"] > high),
        (f"datum.value < {low}", "▼", -13, frame["value"] < low),
    ):
        if out.any():
            text = f"'{arrow} ' + format(100 * datum.value, '.0f')"
            named = base.transform_filter(where).transform_calculate(beyond=text)
            layers.append(named.mark_text(dy=offset).encode(y, alt.Text("beyond:N")))
    return layers


def block_sizes(
    frame: pd.DataFrame, look: Look, measure: str, tips: Sequence[alt.Tooltip], description: str
) -> alt.LayerChart:
    """A score, called ``measure``, against block size; columns: series, size, value, low, high.

    Rows without a size are the references of blocks: lines over the whole width.
    """
    color, shape, _ = _marks(look)
    sizes = sorted({int(size) for size in frame["size"].dropna()})
    title = "demonstrations in a block (log scale)"
    x = _log_x("size", title, sizes[0], sizes[-1], values=sizes, format=",d", **TICKS)
    blocks = _shown(x).transform_filter("isValid(datum.size)")
    whole = _shown(color).transform_filter("!isValid(datum.size)")
    y = alt.Y("value:Q", **_share_axis(measure, look))
    low = alt.Y("low:Q", title=measure)
    layers = [
        whole.mark_rect(opacity=0.12).encode(low, HIGH),
        whole.mark_rule(strokeWidth=1.8).encode(y, tooltip=list(tips)),
        blocks.mark_line(style="reference").encode(y),
        blocks.mark_rule(strokeWidth=1.6).encode(low, color, HIGH),
        blocks.mark_point(filled=True, size=60, opacity=1).encode(y, color, shape, tooltip=list(tips)),
    ]
    return _finished(layers, description, look=look)


def differences(
    frame: pd.DataFrame, look: Look, title: str, tips: Sequence[alt.Tooltip], description: str
) -> alt.LayerChart:
    """Differences over k with their limits around a line at 0; columns as in :func:`over_shots`."""
    color, shape, dash = _marks(look)
    base = _by_shots(look, frame).encode(color)
    axis = alt.Axis(labelExpr="datum.value ? format(100 * datum.value, '+~g') : '0'", tickCount=5)
    y = alt.Y("value:Q", **{**_share_axis(title, look), "axis": axis})
    zero = alt.Chart(alt.InlineData([{"zero": 0}])).mark_rule(style="reference")
    layers = [
        zero.encode(alt.Y("zero:Q", title=title)),
        _limits(base, POINTS).mark_rule(strokeWidth=1.6).encode(alt.Y("low:Q", title=title), HIGH),
        base.mark_line(strokeWidth=1.2, opacity=0.6).encode(y, dash),
        base.mark_point(filled=True, size=60, opacity=1).encode(y, shape, tooltip=list(tips)),
        *_beyond(base, frame, look, y),
    ]
    return _finished(layers, description, look=look)


def chances(frame: pd.DataFrame, measure: str, description: str) -> alt.LayerChart:
    """A strip per series: the probability of each k to be the saturation point; columns: chance, score.

    ``measure`` is the name of the score.
    """
    shots = sorted({int(k) for k in frame["k"]})
    label = "format(datum.value, ',d')"
    axis = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=4, labelExpr=label)
    legend = alt.Legend(
        format=".0%", gradientLength=150, gradientThickness=8, tickCount=3, direction="horizontal", orient="bottom"
    )
    x, y = alt.X("k:O", title="demonstrations k", sort=shots, axis=axis), alt.Y("series:N", title=None, axis=None)
    color = alt.Color("chance:Q", title="chance", scale=alt.Scale(domain=[0, 1]), legend=legend)
    tips = [*POINT_TIPS, tip("chance", "chance", PERCENT), tip("score", measure, PERCENT)]
    band = alt.RelativeBandSize
    heat = alt.Chart(ROWS).mark_rect(height=band(band=0.52), width=band(band=0.94)).encode(x, y, color, tooltip=tips)
    names = (
        alt.Chart(ROWS)
        .transform_aggregate(groupby=["series"])
        .mark_text(align="left", baseline="bottom", dy=-STRIP // 4 - 2, limit=alt.expr("width"))
        .encode(y, alt.Text("series:N"), x=alt.value(0))
    )
    return _finished([heat, names], description, STRIP * frame["series"].nunique())


def mistakes(frame: pd.DataFrame, point: str, description: str) -> alt.LayerChart:
    """The most frequent mistakes of one point; columns: point, rank, pair, note, count, share."""
    rows = int(frame["rank"].max())
    y = alt.Y("rank:O", axis=None, scale=alt.Scale(domain=list(range(1, rows + 1))))
    base = _shown(y, which=OF_POINT)
    tips = [
        tip("gold", "right"),
        tip("prediction", "said"),
        tip("count", "times", ",d"),
        tip("share", "of the right label's", PERCENT),
    ]
    x = alt.X("count:Q", title="predictions", axis=alt.Axis(tickMinStep=1, tickCount=5, format=",d"))
    bars = base.mark_bar(height=7, cornerRadiusEnd=2, style="one").encode(x, tooltip=tips)
    names = base.mark_text(align="left", baseline="bottom", dy=-6, limit=alt.expr("width"))
    names = names.encode(alt.Text("pair:N"), x=alt.value(0), tooltip=tips)
    return _finished([bars, names], description, ROW * rows, [_point(point)])


def confusion_matrix(frame: pd.DataFrame, point: str, description: str) -> alt.LayerChart:
    """How often each label was predicted for each right one; columns: point, right, said, pair, count, of, share.

    ``right`` is the label followed by its number of predictions. The colour is the share of these.
    """
    axis = alt.Axis(labelLimit=140, domain=False, ticks=False)
    x = alt.X("said:N", title="said", axis=alt.Axis(labelAngle=-45, labelLimit=110, domain=False, ticks=False))
    y = alt.Y("right:N", title="right (predictions)", axis=axis)
    tips = [
        tip("gold", "right"),
        tip("said", "said"),
        tip("count", "times", ",d"),
        tip("of", "of", ",d"),
        tip("share", "share", PERCENT),
    ]
    base = _shown(x, y, which=OF_POINT)
    share = alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.05, 0.55]), legend=None)
    cells = base.mark_rect(style="one").encode(share, tooltip=tips)
    counts = base.mark_text().encode(alt.Text("count:Q", format=",d"), tooltip=tips)
    rows = max(int(part["gold"].nunique()) for _, part in frame.groupby("point"))
    return _finished([cells, counts], description, max(ROW * rows, 2 * ROW), [_point(point)])


def against_gold(point: str, description: str) -> alt.LayerChart:
    """How often labels are predicted and right; columns: point, label, gold, predicted, most (the larger of both), and
    ``named``, whether the label is written next to its point.
    """
    scale, axis = alt.Scale(nice=False, zero=True), alt.Axis(format="~%", tickCount=5)
    base = _shown(which=OF_POINT)
    x = alt.X("gold:Q", title="share of the right answers", scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title="share of what was said", scale=scale, axis=axis)
    diagonal = (
        base.transform_aggregate(groupby=["most"])
        .transform_calculate(gold="0", predicted="0")
        .mark_rule(style="reference")
        .encode(x, y, alt.X2("most:Q"), alt.Y2("most:Q"))
    )
    points = base.mark_point(filled=True, size=55, opacity=0.7, style="one").encode(
        x, y, tooltip=[tip("label", "label"), tip("gold", "right", PERCENT), tip("predicted", "said", PERCENT)]
    )
    # no filter, because a layer without rows would have no extent
    named = base.transform_calculate(written="datum.named ? datum.label : ''")
    names = named.mark_text(align="left", dx=7, dy=-5, limit=140).encode(x, y, alt.Text("written:N"))
    return _finished([diagonal, points, names], description, parameters=[_point(point)])


def reliability(point: str, description: str) -> alt.LayerChart:
    """Accuracy against probability; columns: point, probability, accuracy, predictions."""
    scale = alt.Scale(domain=[0, 1], nice=False)
    axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("probability:Q", title="probability given to the answer", scale=scale, axis=axis)
    y = alt.Y("accuracy:Q", title="accuracy", scale=scale, axis=axis)
    base = _shown(x, y, which=OF_POINT)
    tips = [
        tip("probability", "probability", PERCENT),
        tip("accuracy", "accuracy", PERCENT),
        tip("predictions", "predictions", ",d"),
    ]
    ends = alt.InlineData([{"probability": 0, "accuracy": 0}, {"probability": 1, "accuracy": 1}])
    layers = [
        alt.Chart(ends).mark_line(style="reference").encode(x, y),
        base.mark_line(strokeWidth=1.2, opacity=0.6, style="one"),
        base.mark_point(filled=True, size=60, opacity=1, style="one").encode(tooltip=tips),
    ]
    return _finished(layers, description, parameters=[_point(point)])


def risk_coverage(wanted: float, point: str, description: str) -> alt.LayerChart:
    """Accuracy of one point by the share of answered predictions, and the wanted accuracy.

    Columns: point, share_answered, threshold, accuracy, low, high.
    """
    scale, axis = alt.Scale(domain=[0, 1], nice=False), alt.Axis(format=".0%", tickCount=5)
    title = "accuracy of the answers"
    x = alt.X("share_answered:Q", title="share answered, the most probable first", scale=scale, axis=axis)
    low, y = (alt.Y(f"{name}:Q", title=title, scale=scale, axis=axis) for name in ("low", "accuracy"))
    base = _shown(x, which=OF_POINT)
    tips = [
        tip("share_answered", "answered", PERCENT),
        tip("accuracy", title, PERCENT),
        *RANGE_TIPS,
        tip("threshold", "probability needed", ".2f"),
    ]
    ends = alt.InlineData([{"share_answered": 0, "accuracy": wanted}, {"share_answered": 1, "accuracy": wanted}])
    layers = [
        alt.Chart(ends).mark_line(style="reference").encode(x, y),
        base.mark_area(opacity=0.16, style="one").encode(low, HIGH),
        base.mark_line(strokeWidth=1.6, style="one").encode(y),
        base.mark_point(filled=True, size=40, opacity=1, style="one").encode(y, tooltip=tips),
    ]
    return _finished(layers, description, parameters=[_point(point)])


def by_bins(frame: pd.DataFrame, point: str, title: str, description: str) -> alt.LayerChart:
    """Accuracy in bins of one point; columns: point, bin, at (its position), accuracy, low, high."""
    order = frame.sort_values("at")["bin"].drop_duplicates().tolist()
    axis = alt.Axis(labelAngle=0, labelOverlap="greedy")
    base = _shown(alt.X("bin:N", title=title, sort=order, axis=axis), which=OF_POINT)
    whole: dict[str, Any] = {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format=".0%", tickCount=5)}
    low, y = (alt.Y(f"{name}:Q", title="accuracy", **whole) for name in ("low", "accuracy"))
    accuracy, count = tip("accuracy", "accuracy", PERCENT), tip("predictions", "predictions", ",d")
    tips = [tip("bin", title), accuracy, *RANGE_TIPS, count]
    layers = [
        base.mark_rule(strokeWidth=1.6, style="one").encode(low, HIGH),
        base.mark_point(filled=True, size=60, opacity=1, style="one").encode(y, tooltip=tips),
    ]
    return _finished(layers, description, parameters=[_point(point)])


def shares_of_context(frame: pd.DataFrame, look: Look, description: str) -> alt.LayerChart:
    """Two shares of each row, joined; columns: row, series, value, and ``low``, ``high`` of it."""
    color, shape, _ = _marks(look)
    base = _shown(alt.Y("row:N", title=None, axis=alt.Axis(labelLimit=160)))
    title, axis = "share of the context until saturation", alt.Axis(format=".0%", tickCount=5)
    low = alt.X("low:Q", title=title, axis=axis)
    x = alt.X("value:Q", title=title, axis=axis, scale=alt.Scale(domain=[0, 1]))
    tips = [tip("row", "curve"), tip("series", "labels"), tip("value", "share", PERCENT)]
    layers = [
        base.mark_rule(style="reference").encode(low, alt.X2("high:Q")),
        base.mark_point(filled=True, size=70, opacity=1).encode(x, color, shape, tooltip=tips),
    ]
    return _finished(layers, description, ROW * frame["row"].nunique(), look=look)


def lengths(frame: pd.DataFrame, look: Look, tips: Sequence[alt.Tooltip], description: str) -> alt.LayerChart:
    """Perplexity over length, both logarithmic; columns: series, length, value, low, high."""
    color, shape, dash = _marks(look)
    ticks = sorted({int(length) for length in frame["length"]})
    x = _log_x("length", "tokens up to (log scale)", ticks[0], ticks[-1], values=ticks, format=",d", **TICKS)
    base = _shown(x, color)
    low, high = float(frame["value"].min()), float(frame["value"].max())
    scale = alt.Scale(type="log", domain=[low / 1.5, high * 1.5], nice=False, clamp=True)
    title, axis = "perplexity (log scale)", alt.Axis(tickCount=5, labelOverlap="greedy", format="~g")
    y, band = alt.Y("value:Q", title=title, scale=scale, axis=axis), alt.Y("low:Q", title=title, scale=scale)
    area = base.transform_filter(BANDS).mark_area(opacity=0.1).encode(band, HIGH)
    return _finished([area, *_line(base, y, shape, dash, tips)], description, look=look)


def over_operations(
    frame: pd.DataFrame, look: Look, tips: Sequence[alt.Tooltip], x_title: str, description: str
) -> alt.LayerChart:
    """Perplexity over operations, both logarithmic; columns: series, operations, value."""
    color, shape, dash = _marks(look)
    low, high = float(frame["operations"].min()), float(frame["operations"].max())
    base = _shown(_log_x("operations", f"{x_title} (log scale)", low, high, format="~e", **TICKS), color)
    low, high = float(frame["value"].min()), float(frame["value"].max())
    scale = alt.Scale(type="log", domain=[low / 1.2, high * 1.2], nice=False, clamp=True)
    axis = alt.Axis(tickCount=5, labelOverlap="greedy", format="~g")
    y = alt.Y("value:Q", title="perplexity (log scale)", scale=scale, axis=axis)
    return _finished(_line(base, y, shape, dash, tips), description, look=look)


def over_steps(frame: pd.DataFrame, look: Look, tips: Sequence[alt.Tooltip], description: str) -> alt.LayerChart:
    """Losses over the steps of trainings; columns: series, step, value."""
    color, shape, dash = _marks(look)
    base = _shown(alt.X("step:Q", title="steps of training", axis=alt.Axis(format=",d", grid=False)), color)
    low, high = float(frame["value"].min()), float(frame["value"].max())
    room = 0.08 * (high - low) or 0.1
    scale = alt.Scale(domain=[low - room, high + room], nice=False)
    y = alt.Y("value:Q", title="loss on held-back texts (nats)", axis=alt.Axis(tickCount=5), scale=scale)
    return _finished(_line(base, y, shape, dash, tips), description, look=look)


def _line(
    base: alt.Chart, y: alt.Y, shape: alt.Shape, dash: alt.StrokeDash, tips: Sequence[alt.Tooltip]
) -> list[alt.Chart]:
    """A line with its points."""
    points = base.mark_point(filled=True, size=52, opacity=1)
    return [base.mark_line(strokeWidth=1.8).encode(y, dash), points.encode(y, shape, tooltip=list(tips))]


DROPPED = "M-.6,-.6L.6,.6M.6,-.6L-.6,.6"
"""A cross, as an SVG path in a square of 2."""


def race(
    frame: pd.DataFrame, look: Look, measure: str, tips: Sequence[alt.Tooltip], description: str
) -> alt.LayerChart:
    """A score, called ``measure``, over the answers of all settings together, with a cross where a setting was dropped.

    Columns: series, asked, value, low, high, out.
    """
    color, shape, dash = _marks(look)
    ticks = sorted({int(asked) for asked in frame["asked"]})
    x = _log_x("asked", "answers of all settings (log scale)", ticks[0], ticks[-1], values=ticks, format=",d", **TICKS)
    base = _shown(x, color)
    y = alt.Y("value:Q", **_share_axis(measure, look))
    area = base.transform_filter(BANDS).mark_area(opacity=0.14).encode(alt.Y("low:Q", title=measure), HIGH)
    running = base.transform_filter("!datum.out").mark_point(filled=True, size=52, opacity=1)
    dropped = base.transform_filter("datum.out").mark_point(shape=DROPPED, filled=False, size=150, strokeWidth=2.2)
    layers = [
        area,
        base.mark_line(strokeWidth=1.8).encode(y, dash),
        running.encode(y, shape, tooltip=list(tips)),
        dropped.encode(y, tooltip=list(tips)),
    ]
    return _finished(layers, description, look=look)


def cost(
    frame: pd.DataFrame, look: Look, measure: str, title: str, form: str, description: str, k: str = "k"
) -> alt.LayerChart:
    """A score, called ``measure``, by a cost of a query, with lines over k, which is called ``k``.

    Columns: series, k, cost, value, low, high.
    """
    color, shape, dash = _marks(look)
    low, high = float(frame["cost"].min()), float(frame["cost"].max())
    axis = {"tickCount": 5, "labelOverlap": "greedy", "format": form, "grid": False}
    base = _shown(_log_x("cost", f"{title} (log scale)", low, high, **axis), color)
    y = alt.Y("value:Q", **_share_axis(measure, look))
    tips = [tip("series", "curve"), tip("k", k, ",.2~f")]  # of a cascade, k is a mean
    tips += [tip("cost", title, NUMBER), tip("value", measure, PERCENT), *RANGE_TIPS]
    layers = [
        _limits(base, PERCENT).mark_rule(strokeWidth=1.2, opacity=0.5).encode(alt.Y("low:Q", title=measure), HIGH),
        base.mark_line(strokeWidth=1.6).encode(y, dash, alt.Order("k:Q")),
        base.mark_point(filled=True, size=52, opacity=1).encode(y, shape, tooltip=tips),
    ]
    return _finished(layers, description, look=look)


def _names(base: alt.Chart, side: str) -> alt.Chart:
    """The names of points on the frontier, and of all points of the highlighted series."""
    shown: alt.Chart = base.transform_filter(f"(datum.on || datum.series == single) && {side}").transform_calculate(
        name="datum.series + ', k=' + datum.k"
    )
    return shown.encode(alt.Text("name:N"))


def frontier(
    frame: pd.DataFrame, look: Look, measure: str, title: str, form: str, point: str, description: str
) -> alt.LayerChart:
    """A score, called ``measure``, by a cost, with a line through the undominated points.

    Columns: point (the selected number of queries), series, cascade (its margin), k, cost, value, low, high, verdict,
    p, ``on``, whether its mean is on the frontier, and ``left``, whether its name is on the left.
    """
    color, shape, _ = _marks(look)
    # costs vary widely with the number of queries, so the axis is that of the selected one
    ends = frame.groupby("point", sort=False)["cost"].agg(["min", "max"])
    domain = [
        alt.ExprRef(f"({json.dumps((ends[end] * room).to_dict())})[point]")
        for end, room in (("min", 1 / 1.25), ("max", 1.25))
    ]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    axis = alt.Axis(tickCount=6, labelOverlap="greedy", format=form, grid=False)
    x = alt.X("cost:Q", title=f"{title} (log scale)", scale=scale, axis=axis)
    every = _shown(which=OF_POINT)
    base = every.transform_filter(VISIBLE).encode(x, color)
    y = alt.Y("value:Q", **_share_axis(measure, look))
    limits = alt.Y("low:Q", title=measure)
    tips = [
        tip("series", "way"),
        tip("cascade", "margin needed"),
        tip("k", "k", ",d"),
        tip("cost", title, NUMBER),
        tip("value", measure, PERCENT),
        *RANGE_TIPS,
        tip("verdict", "verdict"),
        tip("p", "p of the verdict", ".2g"),
    ]
    faint = base.transform_filter("datum.verdict == 'dominated'")
    unsure = base.transform_filter("datum.verdict == 'undecided'")
    sure = base.transform_filter("datum.verdict == 'on the frontier'")
    untested = base.transform_filter("datum.verdict == 'not compared'")
    steps = every.transform_filter("datum.on").mark_line(interpolate="step-after", strokeWidth=1.4, style="reference")
    layers = [
        steps.encode(x, y),
        faint.mark_point(filled=True, size=26, opacity=0.35).encode(y, shape, tooltip=tips),
        untested.mark_point(filled=False, size=26, opacity=0.6).encode(y, shape, tooltip=tips),
        _limits(unsure, PERCENT).mark_rule(strokeWidth=1, opacity=0.35).encode(limits, HIGH),
        _limits(sure, PERCENT).mark_rule(strokeWidth=1.2, opacity=0.6).encode(limits, HIGH),
        unsure.mark_point(filled=False, size=60, opacity=1).encode(y, shape, tooltip=tips),
        sure.mark_point(filled=True, size=70, opacity=1).encode(y, shape, tooltip=tips),
        _names(base, "datum.left").mark_text(align="right", dx=-9, dy=-10).encode(y),
        _names(base, "!datum.left").mark_text(align="left", dx=9, dy=9).encode(y),
    ]
    return _finished(layers, description, 2 * HEIGHT, [_point(point)], look)


def break_even(frame: pd.DataFrame, look: Look, description: str) -> alt.LayerChart:
    """Queries until training is cheaper, over k; columns: series, k, value (1 or more)."""
    color, shape, dash = _marks(look)
    base = _by_shots(look, frame).encode(color)
    title = "queries until it pays"
    scale = alt.Scale(type="log", domain=[1, 1.5 * float(frame["value"].max())], nice=False)
    y = alt.Y("value:Q", title=f"{title} (log scale)", scale=scale, axis=alt.Axis(tickCount=5, format="~s"))
    tips = [*POINT_TIPS, tip("value", title, ",.0f")]
    return _finished(_line(base, y, shape, dash, tips), description, look=look)
