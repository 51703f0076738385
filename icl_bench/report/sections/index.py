"""The report's sections in the page's order, and the commands that fill empty ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding, Section
from icl_bench.metrics.scores import ACCURACY, measure, title
from icl_bench.registry import FINDINGS
from icl_bench.report.charts import unchecked
from icl_bench.report.naming import Naming
from icl_bench.report.sections.adaptation import adaptation
from icl_bench.report.sections.attention import attention
from icl_bench.report.sections.curves import order, saturation
from icl_bench.report.sections.over_k import over_k
from icl_bench.report.sections.panels import Drawing, EmptySection, ReportSection
from icl_bench.report.sections.perplexity import perplexity
from icl_bench.report.sections.perturbations import perturbations
from icl_bench.report.sections.points import abstention, bias, calibration, confusions, distance
from icl_bench.report.sections.prompts import cascade, cost, even, frontier, frontier_across_models, spaces
from icl_bench.report.sections.provenance import provenance
from icl_bench.report.sections.race import race
from icl_bench.wording import capital, listed

if TYPE_CHECKING:
    import pandas as pd

Drawer = Callable[[Finding, "Findings", "Naming"], Drawing | None]


DRAWERS: Mapping[str, Drawer] = {
    "races": race,
    "saturation_chances": saturation,
    "order_sensitivity": order,
    "perturbations": perturbations,
    "attention_patterns": attention,
    "perplexity": perplexity,
    "adaptation_losses": adaptation,
    "confusions": confusions,
    "label_frequencies": bias,
    "reliability": calibration,
    "abstention": abstention,
    "by_distance": distance,
    "label_spaces": spaces,
    "cost": cost,
    "break_even": even,
    "cascades": cascade,
    "frontier": frontier,
    "frontier_across_models": frontier_across_models,
    "provenance": provenance,
}
"""Finding -> its drawing function, if it has more than its declared chart."""


def sections(findings: Findings, naming: Naming) -> tuple[list[ReportSection], list[EmptySection]]:
    """Return the sections with data, in the page's order, and those without."""
    all_sections: list[ReportSection | EmptySection] = []
    declarations = [(finding, finding.section) for finding in FINDINGS.values() if finding.section]
    for finding, declared in sorted(declarations, key=lambda both: both[1].place):
        with FINDINGS.skipping(finding.name), unchecked():
            all_sections.append(_section(finding, declared, findings, naming))
    present = [section for section in all_sections if isinstance(section, ReportSection)]
    return present, [section for section in all_sections if isinstance(section, EmptySection)]


def _section(finding: Finding, declared: Section, findings: Findings, naming: Naming) -> ReportSection | EmptySection:
    drawn = DRAWERS.get(finding.name, over_k)(finding, findings, naming)
    words = _words(finding, findings) | dict(drawn.words if drawn else {})
    if drawn is None:
        accuracy = {"score": title(ACCURACY), "Score": capital(title(ACCURACY))}
        return EmptySection(declared.short.format(**words | accuracy), declared.needs)
    reading = " ".join(part for part in (declared.reading.format(**words), drawn.more) if part)
    return ReportSection(
        declared.name,
        declared.title.format(**words),
        reading,
        declared.source,
        tuple(drawn.panels),
        tuple(drawn.tables),
        drawn.look,
        declared.short.format(**words),
        tuple(drawn.articles),
    )


def _words(finding: Finding, findings: Findings) -> dict[str, str]:
    """The values of ``{score}``, ``{Score}`` and the names of bases in texts."""
    frame: pd.DataFrame = findings.context.table(finding.name)
    scores = frame if "metric" in frame and len(frame) else findings.summary.curves
    score = measure(scores) if len(scores) else title(ACCURACY)
    based = [str(name) for name in frame.columns if str(name).startswith("base_")]
    names = [name for name in based if finding.column(name).kind == "text"]
    known = {name: set(frame[name].dropna()) for name in names}
    bases = {name: listed(sorted(values)) for name, values in known.items() if values}
    return {"score": score, "Score": capital(score), **bases}
