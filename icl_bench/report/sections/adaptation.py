"""The section on adaptation: perplexity and scores before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.charts import PERCENT, Look, tip
from icl_bench.report.naming import attention_name
from icl_bench.report.sections.panels import (
    LIMITS,
    Drawn,
    Panel,
    chart_rows,
    file_name,
    groups,
    with_limits,
)
from icl_bench.report.tables import of_finding
from icl_bench.wording import capital

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.finding import Finding
    from icl_bench.analysis.findings import Findings
    from icl_bench.report.naming import Naming


def adaptation(finding: Finding, findings: Findings, _: Naming) -> Drawn | None:
    """Four lines in each chart: in full and under the pattern, before and after."""
    losses, points = findings.adaptation_losses, findings.adaptation_points
    tables = [of_finding(finding, losses)] if len(losses) else []
    if len(points):
        tables.append(of_finding(FINDINGS["adaptation_points"], points))
    if not tables:
        return None
    losses, points = _named(losses), _named(points)
    names = [*dict.fromkeys([*losses["series"], *points["series"]])]
    look, panels = Look(names), []
    for (base, pattern), part in groups(losses, ["base", "pattern"]):
        rows = part.assign(value=part["perplexity"], low=float("nan"), high=float("nan"))
        tips = [tip("series", "attention"), tip("length", "up to token", ",d"),
                tip("value", "perplexity", ".2f")]  # fmt: skip
        title = f"{base}, {attention_name(pattern)}"
        chart = charts.lengths(rows, look, tips, f"Perplexity over length, {title}")
        panels.append(Panel(file_name("adaptation-perplexity", base, pattern), title, chart,
                            chart_rows(rows, "series after length value low high")))  # fmt: skip
    by = ["base", "pattern", "task", "select", "order"]
    for key, part in groups(points, by):
        rows = with_limits(part, "score")
        rows = rows.assign(alone=rows.groupby("series")["k"].transform("size") == 1)
        of, title = measure(part), f"{key[2]}, {key[0]}, {attention_name(key[1])}, {key[3]}"
        tips = [tip("series", "attention"), tip("k", "k", ",d"), tip("value", of, PERCENT), *LIMITS]
        chart = charts.over_shots(rows, look, of, tips, f"{capital(of)} over k, {title}")
        panels.append(Panel(file_name("adaptation", *key), title, chart,
                            chart_rows(rows, "series k value low high alone")))  # fmt: skip
    return Drawn(panels, tables, look)


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """With what a line is called."""
    names = [
        f"{'full' if attention == str(FULL) else attention_name(attention)}, {trained}"
        for attention, trained in zip(frame["attention"], frame["trained"], strict=True)
    ]
    return frame.assign(series=names)
