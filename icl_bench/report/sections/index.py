"""The report's sections in the page's order, and what to run to get those without data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from icl_bench.report.sections.attention import context
from icl_bench.report.sections.comparisons import models, selection, sorting, teaching, training
from icl_bench.report.sections.curves import accuracy, order, saturation
from icl_bench.report.sections.panels import Missing, Section
from icl_bench.report.sections.perplexity import perplexity
from icl_bench.report.sections.points import bias, calibration, confusions, distance
from icl_bench.report.sections.prompts import copying, cost, even, presence, spaces

if TYPE_CHECKING:
    from icl_bench.analysis.findings import Findings
    from icl_bench.report.naming import Naming

Maker = Callable[["Findings", "Naming"], Section | None]


def sections(findings: Findings, naming: Naming) -> tuple[list[Section], list[Missing]]:
    """Return the sections that have data, in the page's order, and those that have none."""
    there, missing = [], []
    for title, needs, make in MAKERS:
        section = make(findings, naming)
        if section is None:
            missing.append(Missing(title, needs))
        else:
            there.append(replace(section, short=section.short or title))
    return there, missing


MAKERS: tuple[tuple[str, str, Maker], ...] = (
    ("Accuracy over k", "run something first", accuracy),
    ("Saturation", "run --k with two or more numbers", saturation),
    ("Order sensitivity", "run --order drawn,shuffled:1 with k above 1", order),
    ("Sorting penalty", "run --order drawn,by-label", sorting),
    ("Selection gain", "run --select random,bm25", selection),
    ("Demonstrations changed", "run again with --demonstrations labels:permuted", teaching),
    ("Training", "icl-bench finetune, and run --select random with the same k", training),
    ("Attention patterns", "run --attention full,block:50", context),
    ("Perplexity", "icl-bench perplexity --texts DIR", perplexity),
    ("Models compared", "run the same with another --model; the first by name is the base", models),
    ("Confusion", "predictions of labels, some of them wrong", confusions),
    ("Label bias", "predictions of labels", bias),
    ("Calibration", "run --score exact", calibration),
    ("Presence of the right label", "run it here: imports say nothing of the demonstrations",
     presence),
    ("Distance of the right label", "run it here, with k above 1", distance),
    ("Copying", "run --queries copied", copying),
    ("Label spaces", "run again with --labels half:1", spaces),
    ("Cost", "run it here: imports seldom hold token counts", cost),
    ("Break-even", "icl-bench finetune, and run with the same k", even),
)  # fmt: skip
