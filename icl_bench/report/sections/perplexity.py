"""The section on perplexity: how well long texts are predicted under each attention pattern."""

from __future__ import annotations

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.findings.perplexity import positions_names
from icl_bench.report import charts
from icl_bench.report.charts import Look, tip
from icl_bench.report.naming import LOSSES_DIFFER, Naming, attention_name, told_apart
from icl_bench.report.sections.panels import Drawing, groups, panel
from icl_bench.report.tables import of_finding


def perplexity(finding: Finding, findings: Findings, _: Naming) -> Drawing | None:
    """Perplexity over length and over operations, and every pattern compared with full attention."""
    frame = findings.perplexity
    if frame.empty:
        return None
    names = [
        ", ".join(filter(None, (attention_name(attention), positions)))
        for attention, positions in zip(frame["attention"], positions_names(frame), strict=True)
    ]
    frame = told_apart(frame.assign(series=names), ["model"], LOSSES_DIFFER)
    look = Look([*dict.fromkeys(frame["series"])])
    panels = []
    for (model,), part in groups(frame, ["model"]):
        rows = part.assign(value=part["perplexity"]).rename(columns={"ci_low": "low", "ci_high": "high"})
        numbers = (("value", "perplexity"), ("low", "95% from"), ("high", "95% to"))
        tips = [tip("series", "attention"), tip("length", "up to token", ",d")]
        tips += [tip(name, text, ".2f") for name, text in numbers]
        chart = charts.lengths(rows, look, tips, f"Perplexity over length, {model}")
        panels.append(panel(["perplexity", model], model, chart, rows, "series after length value low high"))
        known = part.dropna(subset=["prefill_flops", "whole"]).rename(columns={"prefill_flops": "operations"})
        if known.empty:
            continue
        rows = known.assign(value=known["whole"])
        tips = [tip("series", "attention"), tip("length", "tokens", ",d"), tip("value", "perplexity", ".2f")]
        tips.append(tip("operations", "operations", ".3~e"))
        title = f"{model}, by operations"
        chart = charts.over_operations(
            rows, look, tips, "operations of reading a text", f"Perplexity over operations, {model}"
        )
        panels.append(panel(["perplexity-operations", model], title, chart, rows, "series length operations value"))
    return Drawing(panels, [of_finding(finding, frame)], look)
