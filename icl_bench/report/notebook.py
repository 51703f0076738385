"""Functions for notebooks: the report's charts as pictures for every viewer, and the published predictions."""

from __future__ import annotations

import os
from pathlib import Path

from icl_bench.analysis.all_findings import Findings
from icl_bench.errors import UserError
from icl_bench.report import libraries
from icl_bench.wording import counted, nearest

SAMPLE = Path(__file__).parents[1] / "samples" / "bertsch2025.parquet"
"""Ten draws of each published setting, and three of each of its reorderings, included in the package."""


def published_predictions() -> Path:
    """The file of predictions that Bertsch et al. 2025 published, ready for import.

    All predictions if the data folder (``ICL_BENCH_DATA``) has them, else ``SAMPLE``.
    """
    folder = os.environ.get("ICL_BENCH_DATA")
    whole = Path(folder) / "published" / "predictions.parquet" if folder else SAMPLE
    return whole if whole.exists() else SAMPLE


class Charts(list[bytes]):
    """Charts as PNG pictures; a notebook shows them."""

    WIDTH = 520
    """The width of a chart in a notebook, in pixels."""

    def _ipython_display_(self) -> None:
        from IPython.display import Image, display

        for png in self:
            display(Image(png, width=self.WIDTH))

    def __repr__(self) -> str:
        return f"{counted(len(self), 'chart')}; .save(folder) writes PNG files"

    def save(self, folder: str | Path) -> list[Path]:
        """Write them into a folder as ``chart-1.png``, ...; returns the files. Raises ``OSError``."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        files = [place / f"chart-{number}.png" for number in range(1, len(self) + 1)]
        for file, png in zip(files, self, strict=True):
            file.write_bytes(png)
        return files


def charts(findings: Findings, section: str, *words: str) -> Charts:
    """The charts of one section of the report, restricted to names that contain all the words.

    ``section`` is accuracy, order, sorting, retrieval, models, cost, ...: the sections that the report of these
    findings has. Raises ``UserError`` for an unknown section, if no chart is left, or without the libraries of the
    extra ``report``.
    """
    with libraries("charts"):
        import vl_convert

        from icl_bench.report.charts import VEGA_LITE
        from icl_bench.report.figures import PNG_SCALE, figure
        from icl_bench.report.naming import Naming
        from icl_bench.report.sections.index import sections

    there = {found.name: found for found in sections(findings, Naming.of(findings.summary))[0]}
    if section not in there:
        raise UserError(f"no section {section}; {nearest(section, there)}")
    panels = [p for p in there[section].panels if all(word in p.name for word in words)]
    if not panels:
        names = ", ".join(panel.name for panel in there[section].panels)
        raise UserError(f"section {section}: no chart with {' and '.join(words)} (has: {names})")
    return Charts(vl_convert.vegalite_to_png(figure(panel), vl_version=VEGA_LITE, scale=PNG_SCALE) for panel in panels)
