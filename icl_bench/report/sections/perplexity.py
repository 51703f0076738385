"""The section on perplexity: how well long texts are predicted, for each way to read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.report import charts
from icl_bench.report.charts import Look, tip
from icl_bench.report.naming import reading
from icl_bench.report.sections.panels import Panel, Section, file_name, groups, plain_rows
from icl_bench.report.tables import table

if TYPE_CHECKING:
    from icl_bench.analysis.findings import Findings
    from icl_bench.report.naming import Naming

SHOWN = ("model series after length perplexity perplexity_low perplexity_high whole ratio "
         "ratio_low ratio_high p_holm prefill_tera cache_mega windows tokens")  # fmt: skip


def perplexity(findings: Findings, _: Naming) -> Section | None:
    """Perplexity over length, and every pattern beside full attention."""
    frame = findings.perplexity
    if frame.empty:
        return None
    several = frame["dtype"].nunique() > 1
    names = frame["attention"].map(reading)
    frame = frame.assign(
        series=names + (", " + frame["dtype"] if several else ""),
        prefill_tera=frame["prefill_flops"] / 1e12,
        cache_mega=frame["cache_bytes"] / 1e6,
    ).rename(columns={"ci_low": "perplexity_low", "ci_high": "perplexity_high"})
    look = Look([*dict.fromkeys(frame["series"])])
    panels = []
    for (model,), part in groups(frame, ["model"]):
        rows = part.assign(value=part["perplexity"]).rename(
            columns={"perplexity_low": "low", "perplexity_high": "high"}
        )
        tips = [tip("series", "attention"), tip("length", "up to token", ",d"),
                tip("value", "perplexity", ".2f"), tip("low", "95% from", ".2f"),
                tip("high", "95% to", ".2f")]  # fmt: skip
        chart = charts.lengths(rows, look, tips, f"Perplexity over length, {model}")
        panels.append(Panel(file_name("perplexity", model), model, chart,
                            plain_rows(rows, "series after length value low high")))  # fmt: skip
    return Section(
        "perplexity", "How well are long texts predicted?",
        "Perplexity of the tokens between one length and the next, from one reading of windows of "
        "the longest; the lower the better. Bands are 95% intervals over windows: texts differ "
        "much. What a pattern does to the same windows is the ratio to full attention in the "
        "table, tested paired (Student's t; p corrected over lengths and patterns, Holm).",
        "Song et al. 2023 (Zebra), figures 2 and 4 and table 4", tuple(panels),
        (table(frame, "Perplexity by length", SHOWN),), look,
    )  # fmt: skip
