"""The section on adaptation: perplexity and scores before and after it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.charts import tip
from icl_bench.report.naming import LOSSES_DIFFER, Naming, attention_name, told_apart
from icl_bench.report.sections.panels import (
    Drawing,
    Panel,
    Subject,
    chart_rows,
    common_look,
    file_name,
    groups,
    point_tips,
    with_limits,
)
from icl_bench.report.tables import of_finding
from icl_bench.wording import capital

if TYPE_CHECKING:
    import pandas as pd


def adaptation(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Four lines in each chart: full attention and the pattern, before and after."""
    losses, points = findings.adaptation_losses, naming.named(findings.adaptation_points)
    course = findings.adaptation_course
    tables = [of_finding(finding, losses)] if len(losses) else []
    for frame, name in ((points, "adaptation_points"), (course, "adaptation_course")):
        if len(frame):
            tables.append(of_finding(FINDINGS[name], frame))
    if not tables:
        return None
    points = _named(points)
    losses = told_apart(_named(losses), ["base", "adapted", "pattern"], LOSSES_DIFFER)
    course = told_apart(
        _named(course.assign(attention=course["pattern"], trained="after")), ["base", "pattern"], {"model": "{}"}
    )
    names = [*dict.fromkeys([*losses["series"], *points["series"], *course["series"]])]
    look = replace(common_look(points), series=names)
    panels = []
    for (base, adapted, pattern), part in groups(losses, ["base", "adapted", "pattern"]):
        rows = part.assign(value=part["perplexity"], low=float("nan"), high=float("nan"))
        tips = [tip("series", "attention"), tip("length", "up to token", ",d"), tip("value", "perplexity", ".2f")]
        title = _title(base, pattern, adapted, losses)
        chart = charts.lengths(rows, look, tips, f"Perplexity over length, {title}")
        shown = chart_rows(rows, "series after length value low high")
        panels.append(Panel(file_name("adaptation-perplexity", base, pattern, adapted), title, chart, shown))
    by = ["base", "adapted", "pattern", "task", "select", "order"]
    for key, part in groups(points, by):
        rows = with_limits(part, "score")
        rows = rows.assign(alone=rows.groupby("series")["k"].transform("size") == 1)
        base, adapted, pattern, task, select, _ = key
        of = measure(part)
        title = f"{task}, {_title(base, pattern, adapted, points)}, {select}"
        chart = charts.over_shots(rows, look, of, point_tips("attention", of), f"{capital(of)} over k, {title}")
        shown = chart_rows(rows, "series k value low high alone")
        panels.append(Panel(file_name("adaptation", *key), title, chart, shown, Subject(task)))
    for (base,), part in groups(course, ["base"]):
        rows = part.assign(value=part["validation"])
        tips = [tip("series", "attention"), tip("model", "model")]
        tips += [tip("step", "step", ",d"), tip("value", "loss", ".3f")]
        title = f"{base}, while training"
        chart = charts.over_steps(rows, look, tips, f"Losses over steps, {title}")
        shown = chart_rows(rows, "series model step value")
        panels.append(Panel(file_name("adaptation-course", base), title, chart, shown))
        counted = part[part["training_flops"] > 0]  # a logarithm has no zero
        if counted.empty:
            continue
        rows = counted.assign(value=np.exp(counted["validation"].astype(float)), operations=counted["training_flops"])
        tips = [tip("series", "attention"), tip("model", "model"), tip("step", "step", ",d")]
        tips += [tip("value", "perplexity", ".2f"), tip("operations", "operations", ".3~e")]
        title = f"{base}, while training, by operations"
        chart = charts.over_operations(
            rows, look, tips, "operations of the training", f"Perplexity on held-back texts over operations, {base}"
        )
        shown = chart_rows(rows, "series model step operations value")
        panels.append(Panel(file_name("adaptation-operations", base), title, chart, shown))
    return Drawing(panels, tables, look)


def _title(base: str, pattern: str, adapted: str, frame: pd.DataFrame) -> str:
    """The title of a chart, with the adapted model's name if there are several."""
    alike = frame[(frame["base"] == base) & (frame["pattern"] == pattern)]["adapted"].nunique()
    return f"{base}, {attention_name(pattern)}{f', {adapted}' if alike > 1 else ''}"


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the names of lines."""
    names = [
        ", ".join(filter(None, ("full" if attention == str(FULL) else attention_name(attention), trained, setting)))
        for attention, trained, setting in zip(
            frame["attention"], frame["trained"], frame.get("setting", [""] * len(frame)), strict=True
        )
    ]
    return frame.assign(series=names)
