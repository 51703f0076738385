"""The report's charts in a notebook, as pictures that every viewer shows."""

from __future__ import annotations

from icl_bench.analysis.findings import Findings
from icl_bench.errors import UserError
from icl_bench.report.figures import PNG_SCALE, figure
from icl_bench.report.naming import Naming
from icl_bench.report.sections.index import sections
from icl_bench.wording import nearest


def show(findings: Findings, section: str, *words: str) -> None:
    """Show the charts of one section of the report, those whose names have all the words.

    ``section`` is accuracy, order, sorting, retrieval, models, cost, ...: the sections that the
    report of these findings has. Raises ``UserError`` for another one, or where no chart is left.
    """
    import vl_convert
    from IPython.display import Image, display

    from icl_bench.report.charts import VEGA_LITE

    there = {found.name: found for found in sections(findings, Naming.of(findings.summary))[0]}
    if section not in there:
        raise UserError(f"no section {section}; {nearest(section, there)}")
    panels = [p for p in there[section].panels if all(word in p.name for word in words)]
    if not panels:
        names = ", ".join(panel.name for panel in there[section].panels)
        raise UserError(f"section {section}: no chart with {' and '.join(words)} (has: {names})")
    for panel in panels:
        png = vl_convert.vegalite_to_png(figure(panel), vl_version=VEGA_LITE, scale=PNG_SCALE)
        display(Image(png, width=520))
