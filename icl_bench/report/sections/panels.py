"""What the report is made of: sections, panels with a chart each, and how panels are cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import numpy as np

from icl_bench.analysis.summary import records
from icl_bench.report.charts import PERCENT, POINTS, Look, tip
from icl_bench.report.headlines import Headlines
from icl_bench.report.tables import Table
from icl_bench.wording import percent, rounded

if TYPE_CHECKING:
    import pandas as pd

BY_CURVE = ["task", "model", "curve"]
"""Columns that tell panels apart, where each shows variants of one curve."""


LIMITS = [tip("low", "95% from", PERCENT), tip("high", "95% to", PERCENT)]


def point_tips(series: str, value: str) -> list[alt.Tooltip]:
    """What hovering over a point shows, where its series and its value are called so."""
    return [tip("series", series), tip("k", "k", ",d"), tip("value", value, PERCENT), *LIMITS]


class Choice(NamedTuple):
    """A point that a chart can show, and what it is called."""

    value: str
    text: str


class Subject(NamedTuple):
    """The task and the model that a panel is about, each where it is one."""

    task: str | None = None
    model: str | None = None


NO_SUBJECT = Subject()


@dataclass(frozen=True)
class Panel:
    """One chart with its rows."""

    name: str
    """For files: letters, digits, dots and dashes."""
    title: str
    chart: alt.LayerChart
    rows: list[dict[str, Any]]
    about: Subject = NO_SUBJECT
    choices: tuple[Choice, ...] = ()
    slides: bool = False
    """Whether the choices are steps of a slider, in their order."""
    in_files: tuple[Choice, ...] = ()
    """Choices of which each has a file of its own; without, that which is shown first has."""
    costs: Mapping[str, Any] | None = None
    """What the page draws the chart from where its reader names a cost, prices or a number of queries."""

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, rows and all."""
        spec: dict[str, Any] = self.chart.to_dict(validate=False)  # it takes as long as the rest
        spec.pop("config", None)
        spec["datasets"] = {**spec.get("datasets", {}), "rows": _with_texts(spec, self.rows)}
        return spec


NUMBER_TEXTS: Mapping[str, Callable[[float], str]] = {
    PERCENT: lambda value: f"{percent(value)}%",
    POINTS: lambda value: f"{percent(value, '+')}%".replace("-", "\N{MINUS SIGN}"),
    ".2f": lambda value: rounded(value, 2),
}
"""Formats of numbers -> how they are written here: Vega rounds halves away from zero."""


def _with_texts(spec: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the texts of what hovering shows, which it then reads instead of numbers."""
    written: dict[str, Callable[[float], str]] = {}
    names: dict[str, str] = {}
    for layer in spec["layer"]:
        for shown in layer.get("encoding", {}).get("tooltip", ()):
            if text := NUMBER_TEXTS.get(shown.get("format", "")):
                name = f"{shown['field']}_text"
                names[name], written[name] = shown["field"], text
                shown |= {"field": name, "type": "nominal"}
                del shown["format"]
    return [
        {**row, **{name: written[name](row[field]) for name, field in names.items() if row.get(field) is not None}}
        for row in rows
    ]


@dataclass(frozen=True)
class ReportSection:
    """One finding."""

    name: str
    title: str
    reading: str
    """How to read the charts, in a sentence or two."""
    source: str
    """The figure or table of the paper that it is modelled on."""
    panels: tuple[Panel, ...] = ()
    tables: tuple[Table, ...] = ()
    look: Look = field(default_factory=lambda: Look(()))
    short: str = ""
    """The title where there is little room."""
    articles: tuple[Headlines, ...] = ()
    """What stands above the charts in words."""


class Drawing(NamedTuple):
    """The drawn part of a finding's section; the rest comes from the finding's declaration."""

    panels: Sequence[Panel]
    tables: Sequence[Table]
    look: Look = Look(())
    words: Mapping[str, str] = {}
    """Field of the declaration's texts -> its value."""
    more: str = ""
    """A further sentence on how to read it."""
    articles: Sequence[Headlines] = ()
    """What stands above the charts in words."""


class EmptySection(NamedTuple):
    """A section without data, and what gives it."""

    title: str
    needs: str


def file_name(*words: str) -> str:
    """The words as a part of a file's name; different words may give the same."""
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.")[:40] or "x" for word in words)


def groups(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each combination of the columns ``by``, as text, with its rows."""
    for key, part in frame.groupby(list(by), sort=True):
        yield tuple(map(str, key if isinstance(key, tuple) else (key,))), part


def subject(rows: pd.DataFrame) -> Subject:
    """What a panel of these rows is about."""
    distinct = {name: set(rows[name].astype(str)) for name in ("task", "model") if name in rows}
    return Subject(**{name: values.pop() for name, values in distinct.items() if len(values) == 1})


def common_look(frame: pd.DataFrame, *, hidden: Sequence[str] = (), room: bool = False) -> Look:
    """Common limits; ``room`` fits the vertical axis to differences, 0 among them.

    A series of one selector has that one's colour, where the table says it (``hue``).
    """
    names = [*dict.fromkeys(frame["series"])]
    values = _room(frame[["low", "value", "high"]].to_numpy(dtype=float)) if room else (0.0, 1.0)
    above = frame.loc[frame["k"] > 0, "k"]
    shots = (int(above.min()), int(above.max())) if len(above) else (1, 1)
    slots: tuple[int, ...] = ()
    if "hue" in frame and (frame.groupby("series")["hue"].nunique() == 1).all():
        of = frame.drop_duplicates("series").set_index("series")["hue"]
        slots = tuple(int(of[name]) for name in names)
    return Look(names, tuple(hidden), shots, len(above) < len(frame), values, slots)


FENCE = 3
"""Interquartile ranges beyond the quartiles from where on a value is far out (Tukey 1977)."""


FEW_VALUES = 12
"""With fewer values, none counts as far out."""


def _room(shown: np.ndarray) -> tuple[float, float]:
    """Limits of an axis for these values, 0 among them: one that is far out flattens no chart.

    ``shown`` is ``(rows, 3)``: low, value, high; limits may be missing.
    """
    known = shown[np.isfinite(shown)]
    if len(known) >= FEW_VALUES:
        quartiles = np.quantile(known, [0.25, 0.75])
        reach = FENCE * max(quartiles[1] - quartiles[0], 0.02)
        known = known[(known >= quartiles[0] - reach) & (known <= quartiles[1] + reach)]
    low, high = float(np.min(known, initial=0)), float(np.max(known, initial=0))
    spare = 0.05 * (high - low or 0.2)
    return (low - spare if low else low, high + spare)


def with_limits(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """A table with value, low and high for charts; ``alone`` where a series has one point."""
    frame = frame.rename(columns={value: "value", "ci_low": "low", "ci_high": "high"})
    size = frame.groupby([n for n in ("task", "model", "series") if n in frame])["k"]
    return frame.assign(alone=size.transform("size") == 1)


def chart_rows(frame: pd.DataFrame, names: str) -> list[dict[str, Any]]:
    """A chart's rows: those of the named columns, spaces between, that are there."""
    return records(frame[[name for name in names.split() if name in frame]])


def panel(
    words: Sequence[str], title: str, chart: alt.LayerChart, frame: pd.DataFrame, names: str, **more: Any
) -> Panel:
    """A panel of some columns of a table, about the task and the model that all its rows are of.

    ``words`` are its file's name; ``names`` as for :func:`chart_rows`; ``more`` further fields. Rows of
    several models name theirs, and the one that it is compared with, so that a page shows those of one.
    """
    if "model" in frame and ("base_model" in frame or frame["model"].nunique() > 1):
        names += " model base_model"
    return Panel(file_name(*words), title, chart, chart_rows(frame, names), subject(frame), **more)
