"""The section on perturbed demonstrations: curves compared with the unperturbed one, and differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.words import UNPERTURBED
from icl_bench.metrics.scores import measure
from icl_bench.registry import FINDINGS
from icl_bench.report import charts
from icl_bench.report.charts import Look, tip
from icl_bench.report.naming import Naming
from icl_bench.report.sections.over_k import TESTED, differences_over_k
from icl_bench.report.sections.panels import (
    BY_CURVE,
    Drawing,
    Panel,
    common_look,
    groups,
    panel,
    point_tips,
    with_limits,
)
from icl_bench.report.tables import of_finding

if TYPE_CHECKING:
    import pandas as pd


def perturbations(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """The effect of changing or removing parts of the demonstrations."""
    naming = replace(naming, hues={})  # lines are perturbations, not selectors
    shown = naming.named(findings.perturbations)
    shown = shown[shown["difference"].notna()]
    if shown.empty:
        return None
    frame = naming.against(shown.assign(curve=shown["series"], series=shown["perturbation"]), BY_CURVE)
    both = _both_sides(findings, naming, frame)
    names = tuple(dict.fromkeys(both["series"]))
    compared, look = differences_over_k(finding, frame, tuple(BY_CURVE), names)
    whole = common_look(both)  # unperturbed curves may extend beyond the compared points
    curves = _curves(both, replace(look, values=(0.0, 1.0), shots=whole.shots, zero_shot=whole.zero_shot))
    panels = [panel for pair in zip(curves, compared, strict=True) for panel in pair]
    tables = [of_finding(finding, shown)]
    for name in finding.section.also if finding.section else ():
        if len(further := naming.named(getattr(findings, name))):
            tables.append(of_finding(FINDINGS[name], further))
    return Drawing(panels, tables, look, more=TESTED)


def _both_sides(findings: Findings, naming: Naming, compared: pd.DataFrame) -> pd.DataFrame:
    """The curves of both sides: ``curve`` is the comparison's, ``series`` the perturbation."""
    import pandas as pd

    setting = ["task", "model", "select", "order", "attention", "variant"]
    unperturbed, perturbed = naming.named(findings.curves), naming.named(findings.perturbed_curves)
    bases = compared.assign(variant=compared["base_variant"])[[*setting, "curve"]]
    bases = bases.drop_duplicates()
    several = bases.duplicated([*setting[:-1], "curve"], keep=False)
    text = bases["variant"].map(dict(naming.settings)).fillna(bases["variant"])
    bases = bases.assign(shown=(UNPERTURBED + ", " + text).where(several, UNPERTURBED))
    unperturbed = unperturbed.merge(bases, on=setting)
    perturbed = perturbed.merge(compared[[*setting, "curve"]].drop_duplicates(), on=setting)
    return pd.concat(
        [unperturbed.assign(series=unperturbed["shown"]), perturbed.assign(series=perturbed["perturbation"])]
    )


def _curves(frame: pd.DataFrame, look: Look) -> Sequence[Panel]:
    """Panels of curves over k, one for each comparison."""
    panels = []
    for key, part in groups(frame, BY_CURVE):
        lined, of = with_limits(part.sort_values("k"), "score"), measure(part)
        says = f"{of} over k, demonstrations perturbed and unperturbed, {' and '.join(key)}"
        tips = [*point_tips("perturbation", of), tip("draws", "draws", ",d"), tip("test_rows", "test rows", ",d")]
        chart = charts.over_shots(lined, look, of, tips, says)
        names = "series k value low high draws test_rows alone"
        panels.append(panel(["perturbed-curves", *key], " · ".join(key), chart, lined, names))
    return panels
