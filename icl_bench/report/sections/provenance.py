"""The section on provenance: one row per fact of a variant."""

from __future__ import annotations

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.columns import COLUMNS
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.findings.provenance import FACT_COLUMNS, as_pairs
from icl_bench.report.naming import Naming
from icl_bench.report.sections.panels import Drawing
from icl_bench.report.tables import table


def provenance(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Every fact on its own line, with complete hashes."""
    frame = findings.provenance
    if frame.empty:
        return None
    known = {name: f"{name}, {text}" for name, text in naming.settings.items()}
    frame = frame.assign(variant=[known.get(name, name) for name in frame["variant"]])
    columns = [*(COLUMNS[name] for name in ("task", "model", "variant")), *FACT_COLUMNS]
    return Drawing((), [table(as_pairs(frame), finding.caption, columns)])
