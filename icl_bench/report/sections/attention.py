"""The section on attention patterns: whether demonstrations need to see each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.report import charts
from icl_bench.report.charts import Look, tip
from icl_bench.report.naming import Naming, attention_name, unshuffled
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
from icl_bench.wording import capital

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    "block": "In blocks, a demonstration sees its own block, the first ones (sink) and the last "
    "ones before it (local); the query sees all. The nearer to full attention that comes, the less "
    "demonstrations need each other.",
    "grouped": "In groups of layers, only the first layer sees beyond its window.",
    "approx": "Approximated, what is beyond a window is seen as means of chunks.",
}
"""Kind of a pattern -> what remains visible under it."""


REUSED = (
    "Reused, each demonstration is computed once for all prompts; a sink is then the same "
    "one in all, which changes retrieved prompts by it."
)


def attention(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Every attention pattern compared with full attention."""
    frame = unshuffled(findings.attention_patterns)
    if frame.empty:
        return None
    frame = replace(naming, attentions=False, hues={}).named(frame)
    shown = frame.assign(curve=frame["series"], series=frame["attention"].map(attention_name))
    lined = with_limits(shown, "score")
    # full attention first, then in the order of the table
    other = lined["attention"] != str(FULL)
    lined = lined.assign(other=other).sort_values(
        ["other", "kind", "size", "sink", "local", "every", "window", "chunk", "series", "k"]
    )
    alone = lined.groupby([*BY_CURVE, "series"])["k"].transform("size") == 1
    lined = lined.assign(alone=alone)
    look = common_look(lined)
    panels = [*_sizes(lined, look), *_shots(lined, look), *_costs(lined, look)]
    kinds = [text for kind, text in KINDS.items() if (frame["kind"] == kind).any()]
    reused = [REUSED] if frame["reuse"].eq(True).any() else []
    words = {"kinds": " ".join([*kinds, *reused])}
    return Drawing(panels, [of_finding(finding, frame)], look, words)


def _sizes(lined: pd.DataFrame, look: Look) -> Iterator[Panel]:
    """The score over block sizes at each k, if several have the same sink and local blocks."""
    blocks = lined[(lined["kind"] == "block") & ~lined["reuse"].eq(True)]
    mask = [*BY_CURVE, "k", "sink", "local"]
    several = blocks.groupby(mask)["size"].transform("nunique") > 1
    for (*curve, _, sink, local), part in groups(blocks[several], mask):
        k = int(part["k"].iloc[0])
        beside = _beside(lined, curve)
        rows = lined[lined.index.isin([*part.index, *beside.index[beside["k"] == k]])]
        title, of = f"k = {k:,}, sink {sink}, local {local}", measure(rows)
        says = f"{capital(of)} over block size, {' '.join(curve)}, {title}"
        tips = [*point_tips("attention", of), tip("size", "block size", ",d")]
        name = ["context-sizes", *curve, f"k{k}", f"sink{sink}", f"local{local}"]
        chart = charts.block_sizes(rows, look, of, tips, says)
        yield panel(name, " · ".join([*curve, title]), chart, rows, "series k size value low high")


def _shots(lined: pd.DataFrame, look: Look) -> Iterator[Panel]:
    """The score over k with blocks of one size, or with other patterns of one kind."""
    lined = lined.assign(size=lined["size"].fillna(0))
    for (*curve, kind, size), part in groups(lined[lined["other"]], [*BY_CURVE, "kind", "size"]):
        if part["alone"].all():
            continue
        name = f"{kind} size {size}" if int(size) else kind
        rows = lined[lined.index.isin([*part.index, *_beside(lined, curve).index])]
        of = measure(rows)
        says = f"{capital(of)} over k with {name}, {' '.join(curve)}"
        chart = charts.over_shots(rows, look, of, point_tips("attention", of), says)
        title = " · ".join([*curve, name])
        yield panel(["context-shots", *curve, name], title, chart, rows, "series k value low high alone")


def _costs(lined: pd.DataFrame, look: Look) -> Iterator[Panel]:
    """The score by operations of the prefill, or with query-specific demonstrations, of a query."""
    for curve, part in groups(lined, BY_CURVE):
        shared = part["shared"].all()
        name, title = ("prefix", "prefill") if shared else ("query", "a query")
        rows = part.assign(cost=part[f"{name}_flops"] / 1e12)
        rows = rows[rows["cost"] > 0]
        if len(rows):
            title, of = f"TFLOP of {title}", measure(rows)
            says = f"{capital(of)} against {title}, {' '.join(curve)}"
            chart = charts.cost(rows, look, of, title, "~g", says)
            name = " · ".join([*curve, title])
            yield panel(["context-work", *curve], name, chart, rows, "series k cost value low high")


def _beside(lined: pd.DataFrame, curve: Sequence[str]) -> pd.DataFrame:
    """The points of full attention for the same task, model and curve."""
    same = (lined[BY_CURVE] == list(curve)).all(axis=1)
    return lined[same & ~lined["other"]]
