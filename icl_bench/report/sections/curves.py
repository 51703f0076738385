"""Charts of curves besides their lines: saturation, and the effect of order."""

from __future__ import annotations

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.metrics.scores import measure
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.charts import tip
from icl_bench.report.naming import CURVE, Naming, unshuffled
from icl_bench.report.sections.panels import Drawing, common_look, groups, of_models, panel, point_tips, with_limits
from icl_bench.report.tables import of_finding


def saturation(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """The saturation point of each curve, and its certainty."""
    frame = unshuffled(naming.named(findings.saturation_chances))
    frame = frame[frame["chance"].notna()]
    frame = frame[frame.groupby(CURVE)["k"].transform("size") > 1]
    if frame.empty:
        return None
    panels = []
    for (task, model), part in groups(frame, ["task", "model"]):
        chart = charts.chances(part, measure(part), f"Where curves of {model} on {task} saturate")
        panels.append(panel(["saturation", task, model], f"{task} · {model}", chart, part, "series k chance score"))
    points = unshuffled(naming.named(findings.context_shares))
    points_table = of_finding(FINDINGS["context_shares"], points)
    return Drawing(panels, [points_table, of_finding(finding, frame)])


def order(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """The number of answers that another order changes."""
    frame = naming.named(findings.order_sensitivity)
    if frame.empty:
        return None
    floor = findings.noise_floor
    same = ["task", "model", "attention", "variant", "k"]
    within = floor[floor["variant"] == floor["other_variant"]]
    within = within[[*same, "changed"]].astype(dict.fromkeys(same[:4], object))
    frame = frame.merge(within.rename(columns={"changed": "floor"}), on=same, how="left")
    frame["floor"] = frame["floor"].astype(float)
    shown = of_models(frame)
    lined = with_limits(shown.sort_values(["series", "k"]), "changed")
    look = common_look(lined, room=True)
    counts = [tip(name, name, ",d") for name in ("reorderings", "draws")]
    tips, names = [*point_tips("curve", "changed"), *counts], "series k value low high reorderings draws alone floor"
    panels = []
    for (task,), part in groups(lined, ["task"]):
        says = f"Answers that another order changes on {task}, over k"
        chart = charts.over_shots(part, look, "answers changed", tips, says)
        panels.append(panel(["order", task], task, chart, part, names))
    tables = [of_finding(finding, frame)]
    if floor.empty:
        return Drawing(panels, tables, look)
    rows = naming.named(floor)
    tables.append(of_finding(FINDINGS["noise_floor"], rows if naming.attentions else rows.drop(columns="attention")))
    more = (
        "A short bar is the share that changes when the very same prompt is run again; the "
        "table also has what another backend or precision changes."
    )
    return Drawing(panels, tables, look, more=more)
