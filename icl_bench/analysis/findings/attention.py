"""Attention patterns on the same demonstrations, compared with full attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icl_bench.analysis.by_task import BY_NAME
from icl_bench.analysis.columns import POINT, SIGNED_LIMITS, Column
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.statistics.paired import compare
from icl_bench.analysis.zero_shot import where_attention_matters
from icl_bench.models.attention_patterns import FULL, pattern_of
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

IN_ANY_ATTENTION = [name for name in SETTING if name != "attention"]
"""The columns that stay equal if only the attention differs."""


PATTERN_NUMBERS = ["size", "sink", "local", "every", "window", "chunk"]


PARTS = [*PATTERN_NUMBERS, "reuse"]


OF_CURVE = ["draws", "test_rows", "metric", "score", "ci_low", "ci_high", "accuracy", "interval_over", "outlying_draws"]


DIFFERENCE = [
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_holm",
    "recovered",
    "rows",
    "left_out",
    "advice",
    "all_rows",
    "compared_draws",
    "base_draws",
    "difference_over",
    "withheld",
    "draws_sd",
    "draws_sd_of",
]


OF_DIFFERENCE = {
    "ci_low": "difference_low",
    "ci_high": "difference_high",
    "draws": "compared_draws",
    "interval_over": "difference_over",
}
"""Column of a comparison -> its name in this table, next to the curve's column."""


PROMPT_COSTS = ["prefix_flops", "query_flops", "cache_bytes", "prefill_seconds"]


OF_FULL = [f"{name}_of_full" for name in PROMPT_COSTS]


OF_PREFIX = ["prefix_flops_of_full", "prefill_seconds_of_full"]


def attention_patterns(frame: pd.DataFrame, curve: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Compare attention patterns on the same demonstrations (Bertsch et al. 2025, section 5).

    ``frame`` holds predictions, ``curve`` and ``costs`` are the tables that :func:`icl_bench.analysis.curves.curves`
    and :func:`icl_bench.analysis.findings.cost.cost` make of them. There is a row for each point with a score,
    including full attention, of each curve (task, model, select, order, variant) with more than one attention pattern
    (table 6). The point without demonstrations (k=0) is the same for all patterns and is left out, unless some patterns
    read a query's passages as vectors.

    Columns: the setting; k; the pattern's ``kind`` (full, block, grouped, approx, vectors; an unknown imported pattern
    keeps its name) and its size, sink, local, reuse, every, window and chunk, if it has them
    (:mod:`icl_bench.models.attention_patterns`); draws, test_rows, metric, score, ci_low, ci_high, accuracy,
    interval_over and outlying_draws of the curve; then the comparison with full attention on common draws and test
    examples, as in :func:`icl_bench.analysis.statistics.paired.compare`: difference with difference_low and
    difference_high (95%), p, p_holm (corrected over all patterns and ks of the curve), the common test ``rows``,
    left_out and advice (the better attention if p_holm <= ``ALPHA``), all_rows, the ``compared_draws`` and those of
    full attention (base_draws), ``difference_over``, the sampled unit of the difference's limits, withheld, draws_sd
    and draws_sd_of, and ``recovered``, the mean divided by full attention's, with the uncertainty of the difference;
    then operations, bytes and seconds of the prompt (prefix_flops, query_flops, cache_bytes, prefill_seconds), and each
    as a share of full attention's, ``..._of_full``; and ``shared``, whether all queries have the same demonstrations.
    If they do not, full attention shares no computation, and the shares of its prefix and prefill are missing.

    Unknown values are missing. The comparison is missing for full attention itself, and if there is no full attention
    at this k. With reuse and retrieval, prompts differ in their first demonstration (the shared sink), but test
    examples are the same.
    """
    import pandas as pd

    names = dict.fromkeys(SETTING, object)
    curve = where_attention_matters(curve, frame)
    frame = where_attention_matters(frame, frame)
    table = curve.loc[curve["score"].notna(), [*POINT, *OF_CURVE]].astype(names)
    table = table[table.groupby(IN_ANY_ATTENTION)["attention"].transform("nunique") > 1]
    columns = [*POINT, "kind", *PARTS, *OF_CURVE, *DIFFERENCE, "shared", *PROMPT_COSTS, *OF_FULL]
    if table.empty:
        return table.reindex(columns=columns)
    differences = _differences(frame)
    table = table.merge(differences, on=POINT, how="left")
    table = table.merge(costs[[*POINT, *PROMPT_COSTS]].astype(names), on=POINT, how="left")
    table = table.assign(other=table["attention"] != str(FULL))
    named = dict(zip(PROMPT_COSTS, OF_FULL, strict=True))
    full = table.loc[~table["other"], [*IN_ANY_ATTENTION, "k", *PROMPT_COSTS]].rename(columns=named)
    table = table.merge(full, on=[*IN_ANY_ATTENTION, "k"], how="left")
    for name, share in named.items():
        table[share] = _ratio(table[name], table[share])
    own = frame.reindex(columns=[*POINT, "demonstration_ids"]).dropna()[POINT].drop_duplicates()
    table = table.merge(own.astype(names), on=POINT, how="left", indicator="shared")
    table = table.assign(shared=table["shared"] == "left_only")
    table[OF_PREFIX] = table[OF_PREFIX].where(table["shared"])
    parts = pd.DataFrame([_parts(attention) for attention in table["attention"]], columns=["kind", *PARTS])
    table = pd.concat([table, parts.astype(dict.fromkeys(PATTERN_NUMBERS, "Int64"))], axis=1)
    table = table.sort_values([*IN_ANY_ATTENTION, "k", "other", "kind", *PATTERN_NUMBERS, "attention"])
    return table[columns].reset_index(drop=True)


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of :func:`attention_patterns` that were compared with full attention.

    ``ci_low``, ``ci_high``, ``interval_over`` and ``draws`` are those of the difference, as in every table of
    comparisons.
    """
    compared = table[table["difference"].notna()]
    own = {name: named for named, name in OF_DIFFERENCE.items()}
    return compared.drop(columns=list(OF_DIFFERENCE)).rename(columns=own)


def _differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Every attention compared with full attention: the setting, k and the columns of ``DIFFERENCE``."""
    table = compare(frame, {"attention": str(FULL)}, about="demonstrations", jointly=True)
    table = table.assign(recovered=_ratio(table["mean"], table["base_mean"])).rename(columns=OF_DIFFERENCE)
    return table[[*POINT, *DIFFERENCE]]


def _ratio(value: pd.Series[float], base: pd.Series[float]) -> pd.Series[float]:
    """The quotient, NaN if the denominator is missing or 0."""
    return value / base.where(base != 0)


def _parts(attention: str) -> dict[str, Any]:
    """Kind and existing parameters of a pattern."""
    pattern = pattern_of(attention)
    if pattern is None:
        return {"kind": attention}
    return {"kind": pattern.name, **vars(pattern)}


def _printed(table: pd.DataFrame) -> pd.DataFrame:
    """The comparisons, with only the kind of the better attention, because pattern names are long."""
    compared = differences(table)
    other = compared["advice"] == compared["attention"]
    return compared.assign(advice=compared["advice"].mask(other, compared["kind"]))


ATTENTION_PATTERNS = Finding(
    "attention_patterns",
    lambda context: attention_patterns(context.prompts, context.table("curves"), context.table("cost")),
    (
        Column("size", "block size", "count", optional=True),
        Column("sink", "sink blocks", "count", optional=True),
        Column("local", "local blocks", "count", optional=True),
        Column("difference_low", "95% from", "points"),
        Column("difference_high", "95% to", "points"),
        Column("compared_draws", "draws compared", "count"),
        Column("base_draws", "draws of full attention", "count", short="base\ndraws"),
        Column("difference_over", "95% of the difference over"),
        Column("recovered", "of full attention's {score}", "share", optional=True),
        Column("prefix_flops_of_full", "of full attention's", "share", optional=True, short="prefill\n%"),
        Column("prefill_seconds", "seconds of prefill", "number", optional=True),
    ),
    caption="Attention patterns",
    shown="task model series k attention size sink local metric score ci_low ci_high difference "
    "difference_low difference_high p_holm recovered prefix_flops prefix_flops_of_full "
    "query_flops cache_bytes prefill_seconds draws compared_draws base_draws test_rows left_out "
    "interval_over difference_over draws_sd draws_sd_of outlying_draws",
    printed=Printed(
        "attention: {score} minus that of full attention, points; cost of the prefill, % of full's",
        "task model select order k draws base_draws difference ci_low p_holm advice prefix_flops_of_full",
        _printed,
        columns_here=SIGNED_LIMITS,
    ),
    section=Section(
        "context",
        "Does context need context?",
        "Attention patterns",
        "run --attention full,block:50",
        "The same demonstrations under several attention patterns. {kinds} Lines and bands are "
        "95% intervals. Whether a pattern differs from full attention is tested in the table, "
        "paired by test row; p is corrected over patterns and k (Holm). Operations are counted "
        "by formula, seconds are those of the run as it was.",
        "Bertsch et al. 2025, figures 8 and 9 and table 6",
        place=80,
    ),
    by_task=BY_NAME,
)
