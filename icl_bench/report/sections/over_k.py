"""The declared chart of a finding: values or differences over k."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import altair as alt

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.draws import is_drawn, is_shuffled
from icl_bench.analysis.finding import Chart, Finding
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.report import charts
from icl_bench.report.charts import NUMBER, PERCENT, POINTS, Look, tip
from icl_bench.report.naming import CURVE, Naming, unshuffled
from icl_bench.report.sections.panels import Drawing, Panel, common_look, groups, of_models, panel, with_limits
from icl_bench.report.tables import of_finding
from icl_bench.wording import percent

if TYPE_CHECKING:
    import pandas as pd

TESTED = "The line is the 95% interval, paired by test row and, as the p values are, corrected over k (Holm)."


FORMS = {"share": PERCENT, "points": POINTS, "count": ",d", "number": NUMBER, "p": ".2g"}
"""Kind of a column -> its format in tooltips."""


def over_k(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Draw the chart of a finding, or only its table; nothing without values."""
    frame = findings.context.table(finding.name)
    chart = finding.section.chart if finding.section else None
    if frame.empty or (chart and not frame[chart.value].notna().any()):
        return None
    frame = naming.named(frame)
    if chart is None:
        return Drawing((), [of_finding(finding, frame)])
    if chart.shuffled == "left out":
        frame = unshuffled(frame) if "order" in frame else frame
        if not frame[chart.value].notna().any():
            return None
    frame = frame.assign(curve=frame["series"])
    lined = _lines(frame, chart, naming)
    hidden = _shuffled(lined) if chart.shuffled == "hidden" else ()
    look = common_look(lined, hidden=hidden, room=_room(finding, chart))
    levels = _levels(findings, naming) if finding.name == "curves" else {}
    panels = [_panel(finding, chart, part, key, look, levels.get(key, {})) for key, part in groups(lined, chart.by)]
    shown = naming.against(frame, [*chart.by, *filter(None, [chart.line])]) if chart.difference else frame
    more = TESTED if chart.difference else ""
    if look.hidden:
        more = "Reshuffled prompts are switched off at first."
    return Drawing(panels, [of_finding(finding, shown)], look, more=more)


def _levels(findings: Findings, naming: Naming) -> Mapping[tuple[str, ...], Mapping[str, float]]:
    """Task and model -> accuracies of the most frequent label and of guessing, by name.

    Based on the right labels of the test rows; none if points have test rows with different label shares. Guessing is
    among all labels of the task if their number is stored, else among those of the test rows.
    """
    context = findings.context
    all_labels = {
        meta.facts.labels: len(meta.label_order)
        for meta in context.stored.cells.values()
        if meta.label_order is not None and meta.facts.labels is not None
    }
    shares = naming.named(findings.label_frequencies)
    levels = {}
    for key, part in groups(shares[shares["gold"] > 0], ["task", "model"]):
        most = part.groupby([*CURVE, "k"])["gold"].agg(["max", "size"])
        if (
            most["max"].max() - most["max"].min() < SAME_SHARE
            and most["size"].nunique() == 1
            and most["size"].iloc[0] > 1
        ):
            share = float(most["max"].mean())
            hashes = {facts.labels for variant in set(part["variant"]) if (facts := context.facts.get(variant))}
            known = all_labels.get(hashes.pop() or "") if len(hashes) == 1 else None
            number, among = known or int(most["size"].iloc[0]), "" if known else " among the test rows"
            levels[key] = {
                f"most frequent label, {percent(share)}%": share,
                f"guessing one of {number} labels{among}, {percent(1 / number)}%": 1 / number,
            }
    return levels


SAME_SHARE = 0.01
"""Shares that differ by less count as equal, because single predictions may be missing."""


def _lines(frame: pd.DataFrame, chart: Chart, naming: Naming) -> pd.DataFrame:
    """The drawn rows: ``series`` is a line's name; value, low, high and alone."""
    kept = frame[frame[chart.value].notna()]
    if chart.line:
        names = dict(chart.line_names)
        order = {value: place for place, value in enumerate(names)}
        line = kept[chart.line]
        kept = kept.assign(series=line.map(names) if names else line, at=line.map(order))
        kept = kept.drop(columns="hue", errors="ignore")
    elif "model" not in chart.by and "model" in kept:
        kept = of_models(kept)
    if chart.difference:
        kept = naming.against(kept, chart.by)
    again = kept["series"].isin(_shuffled(kept)) if chart.shuffled == "hidden" else False
    first = ["again", "at"] if "at" in kept else ["again"]
    kept = kept.assign(again=again).sort_values([*first, "series", "k"])
    lined = with_limits(kept, chart.value)
    for name in ("low", "high"):
        if name not in lined:
            lined[name] = float("nan")
    count = lined.groupby([*dict.fromkeys([*chart.by, "series"])])["k"].transform("size")
    if {"draws", "select"} <= set(lined):
        drawn = lined["select"].map(is_drawn).astype(bool) & (lined["k"] > 0)
        lined = lined.assign(one_draw=drawn & (lined["draws"] == 1))
    return lined.assign(alone=count == 1)


def _shuffled(frame: pd.DataFrame) -> list[str]:
    again = is_shuffled(frame["order"])
    return sorted(set(frame.loc[again, "series"]))


def _room(finding: Finding, chart: Chart) -> bool:
    """Whether the vertical axis is fitted to the values; shares have an axis from 0 to 1."""
    return chart.difference or finding.column(chart.value).kind != "share"


def _panel(
    finding: Finding,
    chart: Chart,
    part: pd.DataFrame,
    key: tuple[str, ...],
    look: Look,
    levels: Mapping[str, float] = MappingProxyType({}),
) -> Panel:
    words = panel_words(finding, part, key, chart)
    axis = (chart.axis or finding.column(chart.value).title).format(**words)
    form = FORMS.get(finding.column(chart.value).kind, "~g")
    about = chart.about.format(**words)
    if chart.difference:
        axis = f"difference in {words['score']} (points)"
        drawn = charts.differences(part, look, axis, _difference_tips(words["score"]), about)
        names = "series k value low high mean base_mean p_holm rows draws base_draws interval_over"
    else:
        tips = [_tip(finding, name) for name in chart.tips]
        limits = [tip("low", "95% from", form), tip("high", "95% to", form)]
        tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", axis, form), *limits, *tips]
        shares = finding.column(chart.value).kind == "share"
        drawn = charts.over_shots(part, look, axis, tips, about, percent=shares, levels=levels)
        names = " ".join(["series k value low high", *chart.tips, "alone one_draw"])
    name = finding.section.name if finding.section else finding.name
    return panel([name, *key], " · ".join(key), drawn, part, names)


def panel_words(finding: Finding, frame: pd.DataFrame, key: tuple[str, ...], chart: Chart) -> Mapping[str, str]:
    """The values of the fields in a panel's texts."""
    score = measure(frame) if "metric" in frame else title(ACCURACY)
    name = finding.section.short if finding.section else finding.name
    return {
        "score": score,
        "title": name.format(score=score, Score=score),
        "panel": " and ".join(key),
        **dict(zip(chart.by, key, strict=True)),
    }


def _tip(finding: Finding, name: str) -> alt.Tooltip:
    column = finding.column(name)
    return tip(name, column.title, FORMS.get(column.kind))


def _difference_tips(score: str) -> list[Any]:
    """The tooltips of differences."""
    return [
        tip("series", "curve"),
        tip("k", "k", ",d"),
        tip("value", "difference", POINTS),
        tip("low", "95% from", POINTS),
        tip("high", "95% to", POINTS),
        tip("mean", score, PERCENT),
        tip("base_mean", "base", PERCENT),
        tip("p_holm", "p (Holm)", ".2g"),
        tip("rows", "test rows", ",d"),
        tip("draws", "draws", ",d"),
        tip("base_draws", "draws of the base", ",d"),
        tip("interval_over", "95% interval over"),
    ]


def differences_over_k(
    finding: Finding, frame: pd.DataFrame, by: tuple[str, ...], base: tuple[str, ...]
) -> tuple[list[Panel], Look]:
    """Panels of the differences in a named table, one line per ``series``.

    ``base`` are series of the section's other panels, before these.
    """
    chart = Chart("difference", by=by, difference=True)
    lined = with_limits(frame.sort_values(["series", "k"]), "difference")
    look = common_look(lined, room=True)
    look = replace(look, series=[*dict.fromkeys([*base, *look.series])])
    return [_panel(finding, chart, part, key, look) for key, part in groups(lined, by)], look
