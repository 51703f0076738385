"""Sections whose charts show one point of a curve at a time, which the reader picks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import altair as alt

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.models.attention_patterns import FULL
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.naming import CURVE, Naming, unshuffled
from icl_bench.report.sections.panels import Choice, Drawing, Panel, groups, panel
from icl_bench.report.tables import Table, of_finding

if TYPE_CHECKING:
    import pandas as pd

POINT_ROWS = 6000
"""The maximum number of rows of a section's charts: of more, charts have the largest k of each curve only."""


LARGEST_ONLY = (
    "There are too many points to choose from: the charts have the largest k of each curve only, the tables have all."
)


MOST_NAMED = 4
"""The maximum number of named labels in a chart of label bias: the largest deviations."""


def _pointed(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of unshuffled curves with ``point``, a name for curve and k within task and model."""
    frame = unshuffled(frame)
    return frame.assign(point=frame["series"] + ", k = " + frame["k"].map("{:,}".format))


def _charted(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that charts have: those of each curve's largest k if there are very many."""
    if len(frame) <= POINT_ROWS:
        return frame
    return frame[frame["k"] == frame.groupby(CURVE)["k"].transform("max")]


def _more(*frames: pd.DataFrame) -> str:
    """A sentence if charts have fewer rows than these."""
    return LARGEST_ONLY if any(len(_charted(frame)) < len(frame) for frame in frames) else ""


def _choices(part: pd.DataFrame) -> tuple[Choice, ...]:
    """The points of a panel, the largest k of each curve first."""
    points = part.drop_duplicates("point")
    largest = points["k"] == points.groupby("series")["k"].transform("max")
    points = points.assign(rest=~largest).sort_values(
        ["rest", "series", "k"], ascending=[True, True, False], kind="stable"
    )
    return tuple(Choice(text, text) for text in points["point"])


def _usual(part: pd.DataFrame, choices: Sequence[Choice]) -> str:
    """The initially selected point: random selection as drawn and full attention are preferred."""
    drawn = part[(part["select"] == "random") & (part["order"] == "drawn")]
    full = drawn[drawn["attention"] == str(FULL)]
    first = set((full if len(full) else drawn)["point"])
    return next((choice.value for choice in choices if choice.value in first), choices[0].value)


def _panels(
    frame: pd.DataFrame,
    name: str,
    says: str,
    names: str,
    chart: Callable[[pd.DataFrame, str, str], alt.LayerChart],
    what: str = "",
) -> tuple[Panel, ...]:
    """A panel for each task and model; ``chart`` receives its rows, first point and description.

    ``says`` is the description with placeholders ``{model}`` and ``{task}``, ``what`` the end of the title where a
    section has other panels of the same task and model.
    """
    panels = []
    for (task, model), part in groups(_charted(frame), ["task", "model"]):
        choices = _choices(part)
        drawn = chart(part, _usual(part, choices), says.format(model=model, task=task))
        panels.append(panel([name, task, model], f"{task} · {model}{what}", drawn, part, names, choices=choices))
    return tuple(panels)


def confusions(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """The most frequent mistakes."""
    frame = _pointed(naming.named(findings.confusions))
    if frame.empty:
        return None
    frame["rank"] = frame.groupby([*CURVE, "k"]).cumcount() + 1
    answer = frame["prediction"].where(frame["prediction"] != "", "(nothing)")
    count = frame["count"].map("{:,}".format) + " × "
    frame["pair"] = count + frame["gold"] + " → " + answer
    panels = _panels(
        frame,
        "confusions",
        "The most frequent mistakes of {model} on {task}",
        "point rank pair gold prediction count share",
        charts.mistakes,
    )
    tables = [of_finding(finding, frame)]
    matrix = _pointed(naming.named(findings.confusion_matrix))
    if len(matrix):
        matrix["right"] = matrix["gold"] + " (" + matrix["of"].map("{:,}".format) + ")"
        matrix["said"] = matrix["prediction"].where(matrix["prediction"] != "", "(nothing)")
        matrix["pair"] = matrix["gold"] + " → " + matrix["said"]
        panels += _panels(
            matrix,
            "confusion-matrix",
            "How often {model} predicts each label of {task} for each right label",
            "point right said gold prediction pair count of share",
            charts.confusion_matrix,
            " · all labels",
        )
        tables.append(of_finding(FINDINGS["confusion_matrix"], matrix))
    return Drawing(panels, tables, more=_more(frame, matrix))


def bias(_: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """How often each label is predicted and right."""
    frame = _pointed(naming.named(findings.label_frequencies))
    if frame.empty:
        return None
    frame["most"] = frame[["gold", "predicted"]].max(axis=1)
    frame["most"] = frame.groupby(["task", "model", "point"])["most"].transform("max") * 1.03
    off = (frame["predicted"] - frame["gold"]).abs()
    place = off.groupby([frame[name] for name in ("task", "model", "point")]).rank(method="first", ascending=False)
    frame["named"] = (place <= MOST_NAMED) & (off > 0)
    panels = _panels(
        frame,
        "bias",
        "How often {model} predicts each label of {task}, and how often it is right",
        "point label gold predicted most named",
        lambda _, *more: charts.against_gold(*more),
    )
    bias = unshuffled(naming.named(findings.label_bias))
    return Drawing(panels, [of_finding(FINDINGS["label_bias"], bias)], more=_more(frame))


def calibration(_: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Accuracy by probability."""
    frame = _pointed(naming.named(findings.reliability))
    if frame.empty:
        return None
    panels = _panels(
        frame,
        "calibration",
        "Accuracy of {model} on {task} against the probability of its answers",
        "point probability accuracy predictions",
        lambda _, *more: charts.reliability(*more),
    )
    more = [_more(frame), "" if findings.context.table("temperature").empty else WITH_TEMPERATURE]
    tables = _tables(["calibration_error", "temperature"], findings, naming)
    return Drawing(panels, tables, more=" ".join(filter(None, more)))


WITH_TEMPERATURE = (
    "The second table has the error after each prompt's log-probabilities were divided by the temperature with the "
    "smallest log-loss on rows of the pool (Guo et al. 2017)."
)


def _tables(names: Sequence[str], findings: Findings, naming: Naming) -> list[Table]:
    """The non-empty tables of these findings, without random reorderings."""
    frames = {name: unshuffled(naming.named(findings.context.table(name))) for name in names}
    return [of_finding(FINDINGS[name], frame) for name, frame in frames.items() if len(frame)]


def abstention(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Accuracy by the share of answered predictions."""
    frame = naming.named(findings.risk_coverage)
    frame = _pointed(frame.rename(columns={"ci_low": "low", "ci_high": "high"}))
    if frame.empty:
        return None
    wanted = float(findings.abstention["wanted"].iloc[0])
    panels = _panels(
        frame,
        "abstention",
        "Accuracy of {model} on {task} against the share of rows that is answered",
        "point share_answered threshold accuracy low high answered predictions",
        lambda _, *more: charts.risk_coverage(wanted, *more),
    )
    tables = _tables([finding.name, "label_thresholds", "probability_scores"], findings, naming)
    return Drawing(panels, tables, more=_more(frame))


def distance(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Accuracy by the distance to the last demonstration of the right label."""
    frame = naming.named(findings.by_distance)
    frame = _pointed(frame.rename(columns={"ci_low": "low", "ci_high": "high"}))
    frame = frame[frame["k"] > 1]
    if frame.empty:
        return None
    near, far = frame["nearest"].map("{:,}".format), frame["farthest"].map("{:,}".format)
    several = frame["farthest"] > frame["nearest"]
    bins = near.where(~several, near + "–" + far)
    frame["bin"] = bins.where(frame["nearest"] > 0, "none")
    frame["at"] = frame["nearest"].where(frame["nearest"] > 0, 0) * 10_000 + frame["farthest"]
    panels = _panels(
        frame,
        "distance",
        "Accuracy of {model} on {task} by the last demonstration of the right label",
        "point bin at accuracy low high predictions",
        lambda part, point, says: charts.by_bins(part, point, "demonstrations back to the label", says),
    )
    shown = frame.rename(columns={"low": "ci_low", "high": "ci_high"})
    return Drawing(panels, [of_finding(finding, shown)], more=_more(frame))
