"""The parts of the report: sections, panels with one chart each, and the division of tables into panels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import numpy as np

from icl_bench.analysis.summary import records
from icl_bench.report.charts import NUMBER, PERCENT, POINTS, Look, tip
from icl_bench.report.headlines import Headlines
from icl_bench.report.tables import Table
from icl_bench.wording import percent, rounded, three_digits

if TYPE_CHECKING:
    import pandas as pd

BY_CURVE = ["task", "model", "curve"]
"""Columns that distinguish panels, if each panel shows the variants of one curve."""


LIMITS = [tip("low", "95% from", PERCENT), tip("high", "95% to", PERCENT)]


def point_tips(series: str, value: str) -> list[alt.Tooltip]:
    """Tooltips of points whose series and value have these names."""
    return [tip("series", series), tip("k", "k", ",d"), tip("value", value, PERCENT), *LIMITS]


class Choice(NamedTuple):
    """A point that a chart can show, and its name."""

    value: str
    text: str


class Subject(NamedTuple):
    """The task and the model of a panel, each if there is only one."""

    task: str | None = None
    model: str | None = None


NO_SUBJECT = Subject()


@dataclass(frozen=True)
class Panel:
    """One chart with its rows."""

    name: str
    """The name in files: letters, digits, dots and dashes."""
    title: str
    chart: alt.LayerChart
    rows: list[dict[str, Any]]
    about: Subject = NO_SUBJECT
    choices: tuple[Choice, ...] = ()
    slides: bool = False
    """Whether the choices are steps of a slider, in their order."""
    in_files: tuple[Choice, ...] = ()
    """Choices with a file of their own each; if empty, only the first choice has one."""
    costs: Mapping[str, Any] | None = None
    """The data from which the page draws the chart if its reader sets a cost, prices or a number of queries."""

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification including its rows."""
        spec: dict[str, Any] = self.chart.to_dict(validate=False)  # takes as long as everything else
        spec.pop("config", None)
        spec["datasets"] = {**spec.get("datasets", {}), "rows": _with_texts(spec, self.rows)}
        return spec


NUMBER_TEXTS: Mapping[str, Callable[[float], str]] = {
    PERCENT: lambda value: f"{percent(value)}%",
    POINTS: lambda value: f"{percent(value, '+')}%".replace("-", "\N{MINUS SIGN}"),
    ".2f": lambda value: rounded(value, 2),
    NUMBER: three_digits,
}
"""Formats of numbers -> formatting in this program, because Vega rounds halves away from zero and
writes 1,234 as 1.23e+3."""


def _with_texts(spec: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the texts of tooltips, which replace numbers."""
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
    """How to read the charts, in one or two sentences."""
    source: str
    """The figure or table of the paper that it follows."""
    panels: tuple[Panel, ...] = ()
    tables: tuple[Table, ...] = ()
    look: Look = field(default_factory=lambda: Look(()))
    short: str = ""
    """The title for narrow places."""
    articles: tuple[Headlines, ...] = ()
    """Text above the charts."""


class Drawing(NamedTuple):
    """The drawn part of a finding's section. The rest comes from the finding's declaration."""

    panels: Sequence[Panel]
    tables: Sequence[Table]
    look: Look = Look(())
    words: Mapping[str, str] = {}
    """Field of the declaration's texts -> its value."""
    more: str = ""
    """A further sentence on reading the chart."""
    articles: Sequence[Headlines] = ()
    """Text above the charts."""


class EmptySection(NamedTuple):
    """A section without data, and the command that fills it."""

    title: str
    needs: str


def file_name(*words: str) -> str:
    """Words as a part of a file name; different words may give the same name."""
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.")[:40] or "x" for word in words)


def distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, with a number behind those that an earlier one equals regardless of case."""
    taken: set[str] = set()
    for name in names:
        found, count = name, 1
        while found.lower() in taken:
            count += 1
            found = f"{name}-{count}"
        taken.add(found.lower())
        yield found


def groups(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each combination of the columns ``by``, as text, with its rows."""
    for key, part in frame.groupby(list(by), sort=True):
        yield tuple(map(str, key if isinstance(key, tuple) else (key,))), part


def subject(rows: pd.DataFrame) -> Subject:
    """The subject of a panel with these rows."""
    distinct = {name: set(rows[name].astype(str)) for name in ("task", "model") if name in rows}
    return Subject(**{name: values.pop() for name, values in distinct.items() if len(values) == 1})


def of_models(frame: pd.DataFrame) -> pd.DataFrame:
    """A named table for charts that several models share: series are named by their model.

    Colours are then assigned in turn, because one selector's would be equal for all models.
    """
    if frame["model"].nunique() > 1:
        frame = frame.drop(columns="hue", errors="ignore")
    return frame.assign(series=frame["model"] + ", " + frame["series"])


def common_look(frame: pd.DataFrame, *, hidden: Sequence[str] = (), room: bool = False) -> Look:
    """The common look of charts; ``room`` fits the vertical axis to differences, including 0.

    A series of one selector has its colour, if the table has it (``hue``).
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
"""The distance from the quartiles, in interquartile ranges, beyond which a value is an outlier (Tukey 1977)."""


FEW_VALUES = 12
"""The minimum number of values for outliers."""


def _room(shown: np.ndarray) -> tuple[float, float]:
    """Limits of an axis for these values, including 0 but not outliers, which would flatten the chart.

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
    """A table with value, low and high for charts; ``alone`` if a series has one point."""
    frame = frame.rename(columns={value: "value", "ci_low": "low", "ci_high": "high"})
    size = frame.groupby([n for n in ("task", "model", "series") if n in frame])["k"]
    return frame.assign(alone=size.transform("size") == 1)


def chart_rows(frame: pd.DataFrame, names: str) -> list[dict[str, Any]]:
    """A chart's rows with the existing columns of ``names``, separated by spaces, and the number of the filters that
    list their predictions.
    """
    return records(frame[[name for name in [*names.split(), "listed"] if name in frame]])


def panel(
    words: Sequence[str], title: str, chart: alt.LayerChart, frame: pd.DataFrame, names: str, **more: Any
) -> Panel:
    """A panel of some columns of a table, about the task and the model of all its rows.

    ``words`` are its file's name; ``names`` are as for :func:`chart_rows`; ``more`` are further fields. Rows of several
    models have the names of their model and of its base, so that a page can show one model.
    """
    if "model" in frame and ("base_model" in frame or frame["model"].nunique() > 1):
        names += " model base_model"
    return Panel(file_name(*words), title, chart, chart_rows(frame, names), subject(frame), **more)
