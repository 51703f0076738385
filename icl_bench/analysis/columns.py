"""Title and kind of each table column, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from icl_bench.metrics.scores import corpus_numbers, score_columns, title
from icl_bench.results.cells import SETTING

POINT = [*SETTING, "k"]
"""The columns that identify a point of a curve."""


Kind = Literal["text", "count", "number", "share", "points", "p", "flag"]
"""``share`` is of 1 and shown in percent, ``points`` a difference of shares, ``p`` a probability,
``count`` a whole number, ``number`` any other, ``flag`` yes or no."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    title: str
    """May contain ``{score}``, the name of the table's score."""
    kind: Kind = "text"
    optional: bool = False
    """Whether the column is omitted if it is empty (a count of left-out predictions: or 0 everywhere)."""
    unit: float = 1.0
    """Displayed values are divided by this."""
    short: str = ""
    """The shorter title in the terminal; may have two lines."""
    upper: str = ""
    """For a lower limit, the column of the upper limit: the terminal prints both as one."""

    @property
    def brief(self) -> str:
        """The title in the terminal."""
        return self.short or self.title


TERA, MEGA = 1e12, 1e6


COLUMNS: Mapping[str, Column] = {
    column.name: column
    for column in (
        Column("task", "task"),
        Column("model", "model"),
        Column("series", "curve"),
        Column("select", "selector", short="select"),
        Column("order", "order"),
        Column("attention", "attention"),
        Column("perturbation", "perturbation"),
        Column("variant", "variant"),
        Column("other_variant", "other variant"),
        Column("draw", "draw", "count"),
        Column("k", "k", "count"),
        Column("draws", "draws", "count"),
        Column("base_draws", "draws of the base", "count", short="base\ndraws"),
        Column("rows", "test rows", "count"),
        Column("test_rows", "test rows", "count"),
        Column("predictions", "predictions", "count"),
        Column("left_out", "left out", "count", optional=True),
        Column("missing", "missing", "count", optional=True),
        Column("interval_over", "95% interval over"),
        Column("outlying_draws", "outlying draws", optional=True),
        Column("base_outlying_draws", "outlying draws of the base", optional=True),
        Column("differing_prompts", "prompts that differ between draws", "count", optional=True),
        Column("draws_sd", "SD of draws elsewhere (points)", "number", optional=True, unit=0.01),
        Column("draws_sd_of", "SD of draws of", optional=True),
        Column("reason", "reason"),
        Column("metric", "metric"),
        Column("score", "{score}", "share"),
        Column("accuracy", "accuracy", "share", optional=True),
        Column("ci_low", "95% from", "share", short="95% interval", upper="ci_high"),
        Column("ci_high", "95% to", "share"),
        Column("macro_f1", "macro-F1", "share", optional=True),
        Column("invalid", "invalid", "share", optional=True),
        Column("prompt_tokens", "prompt tokens", "number", optional=True, short="prompt\ntokens"),
        Column("cached_tokens", "cached tokens", "number", optional=True, short="cached"),
        Column("computed_tokens", "computed tokens", "number", optional=True),
        Column("answer_tokens", "answer tokens", "number", optional=True),
        Column("seconds", "seconds a query", "number", optional=True, short="seconds"),
        Column("training_seconds", "seconds of training", "number", optional=True, short="training\nseconds"),
        Column("training_tokens", "tokens of training", "count", optional=True),
        Column("prefix_flops", "prefill (TFLOP)", "number", optional=True, unit=TERA),
        Column("prefill_flops", "prefill (TFLOP)", "number", unit=TERA),
        Column("query_flops", "a query (TFLOP)", "number", optional=True, unit=TERA),
        Column("training_flops", "training (TFLOP)", "number", unit=TERA, short="training\nTFLOP"),
        Column("cache_bytes", "cache (MB)", "number", optional=True, unit=MEGA),
        Column("difference", "difference", "points", short="diff."),
        Column("mean", "{score}", "share"),
        Column("base_mean", "of the base", "share"),
        Column("base_select", "base"),
        Column("base_model", "base", short="base model"),
        Column("p", "p", "p", optional=True),
        Column("p_holm", "p (Holm)", "p", optional=True),
        Column("advice", "better", optional=True),
    )
}
"""Column -> its default display, unless a finding overrides it."""


SIGNED_LIMITS = (
    Column("ci_low", "95% from", "points", short="95% interval", upper="ci_high"),
    Column("ci_high", "95% to", "points"),
)
"""The limits of a difference."""


@cache
def columns_of_scores() -> Mapping[str, Column]:
    """The columns of scores of single answers and of corpora, including plugins' metrics."""
    titles = {**{name: title(name) for name in score_columns()}, **corpus_numbers()}
    return {name: Column(name, text, "share", optional=True) for name, text in titles.items()}
