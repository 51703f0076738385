"""Tables as the page shows them: titles and kinds of their columns, plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.summary import records
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.metrics import measure, title

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 2000


COLUMNS: Mapping[str, tuple[str, str]] = {
    "task": ("task", "text"),
    "model": ("model", "text"),
    "way": ("curve", "text"),
    "series": ("curve", "text"),
    "k": ("k", "count"),
    "draws": ("draws", "count"),
    "base_draws": ("draws of the base", "count"),
    "rows": ("test rows", "count"),
    "test_rows": ("test rows", "count"),
    "predictions": ("predictions", "count"),
    "metric": ("metric", "text"),
    "score": ("{score}", "share"),
    "accuracy": ("accuracy", "share"),
    "ci_low": ("95% from", "share"),
    "ci_high": ("95% to", "share"),
    "macro_f1": ("macro-F1", "share"),
    "invalid": ("invalid", "share"),
    "rouge1": ("ROUGE-1", "share"),
    "rouge2": ("ROUGE-2", "share"),
    "rougeL": ("ROUGE-L", "share"),
    "bertscore": ("BERTScore", "share"),
    "left_out": ("left out", "count"),
    "best_k": ("best k", "count"),
    "max_k": ("largest k", "count"),
    "within_window": ("saturated", "flag"),
    "share_of_tested": ("share of largest k", "share"),
    "prompt_tokens": ("prompt tokens", "number"),
    "cached_tokens": ("cached tokens", "number"),
    "computed_tokens": ("computed tokens", "number"),
    "answer_tokens": ("answer tokens", "number"),
    "seconds": ("seconds a query", "number"),
    "size": ("block size", "count"),
    "sink": ("sink blocks", "count"),
    "local": ("local blocks", "count"),
    "difference_low": ("95% from", "points"),
    "difference_high": ("95% to", "points"),
    "recovered": ("of full attention's {score}", "share"),
    "prefix_tera": ("prefill (TFLOP)", "number"),
    "prefix_flops_of_full": ("of full attention's", "share"),
    "query_tera": ("a query (TFLOP)", "number"),
    "cache_mega": ("cache (MB)", "number"),
    "prefill_seconds": ("seconds of prefill", "number"),
    "after": ("tokens behind", "count"),
    "length": ("up to", "count"),
    "perplexity": ("perplexity", "number"),
    "perplexity_low": ("95% from", "number"),
    "perplexity_high": ("95% to", "number"),
    "whole": ("of all up to there", "number"),
    "ratio": ("over full attention's", "number"),
    "ratio_low": ("95% from", "number"),
    "ratio_high": ("95% to", "number"),
    "prefill_tera": ("prefill (TFLOP)", "number"),
    "windows": ("windows", "count"),
    "tokens": ("tokens", "count"),
    "queries": ("queries until it pays", "count"),
    "queries_by_seconds": ("by seconds", "count"),
    "training__tera": ("training (TFLOP)", "number"),
    "_tera": ("a query (TFLOP)", "number"),
    "base__tera": ("a prompted query (TFLOP)", "number"),
    "base_seconds": ("seconds a prompted query", "number"),
    "training_seconds": ("seconds of training", "number"),
    "training_tokens": ("tokens of training", "count"),
    "window": ("context window", "count"),
    "share_of_window": ("share of the window", "share"),
    "chance": ("chance", "share"),
    "reorderings": ("reorderings", "count"),
    "changed": ("changed", "share"),
    "floor": ("changed by chance", "share"),
    "difference": ("difference", "points"),
    "p": ("p", "p"),
    "p_holm": ("p (Holm)", "p"),
    "mean": ("{score}", "share"),
    "base_mean": ("of the base", "share"),
    "base_select": ("base", "text"),
    "base_model": ("base", "text"),
    "advice": ("better", "text"),
    "significant": ("significant", "flag"),
    "gold": ("right", "text"),
    "prediction": ("said", "text"),
    "label": ("label", "text"),
    "count": ("times", "count"),
    "share": ("of the right label's", "share"),
    "total_variation": ("answers off", "share"),
    "excess": ("said beyond its share", "points"),
    "error": ("calibration error", "share"),
    "present": ("its label is shown", "flag"),
    "nearest": ("from", "count"),
    "farthest": ("to", "count"),
    "full": ("all labels", "share"),
    "half": ("half of them", "share"),
    "subsets": ("halves", "count"),
    "reason": ("reason", "text"),
    "draw": ("draw", "count"),
    "select": ("selector", "text"),
    "order": ("order", "text"),
    "teaching": ("demonstrations", "text"),
    "attention": ("attention", "text"),
    "variant": ("variant", "text"),
    "other_variant": ("other variant", "text"),
}
"""Column -> its title and what its values are; columns that are not here are not shown.

``share`` is of 1 and shown in percent, ``points`` a difference of shares, ``p`` a probability.
``{score}`` is what the table's metric is called.
"""


DIFFERENCES = frozenset({"ci_low", "ci_high"})


OPTIONAL = frozenset({"left_out", "size", "sink", "local", "recovered", "prefix_tera",
                      "prefix_flops_of_full", "query_tera", "cache_mega", "prefill_seconds",
                       "rouge1", "rouge2", "rougeL", "bertscore", "invalid", "macro_f1",
                      "prompt_tokens", "cached_tokens", "computed_tokens", "answer_tokens",
                      "seconds", "base_seconds", "queries_by_seconds", "training_seconds",
                      "training_tokens", "window", "share_of_window", "floor", "accuracy", "p",
                      "p_holm", "advice"})  # fmt: skip
"""Columns that are left out where all their values are missing (``left_out``: or 0), as ``metric``
is where it is accuracy in all rows."""


@dataclass(frozen=True)
class Column:
    """One column's name in the analysis, its title, and the kind of its values."""

    name: str
    title: str
    kind: str


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    caption: str
    columns: tuple[Column, ...]
    rows: list[list[Any]]
    total: int
    """Rows there are; fewer may be shown."""
    notes: tuple[str, ...] = ()
    """What has to be said beside its rows."""

    def as_json(self) -> dict[str, Any]:
        """What the page's program reads."""
        columns = [{"name": c.name, "title": c.title, "kind": c.kind} for c in self.columns]
        return {"caption": self.caption, "columns": columns, "rows": self.rows, "total": self.total}


def table(frame: pd.DataFrame, caption: str, names: str) -> Table:
    """Make a table of some columns, ``names`` with spaces between them, in that order."""
    of = measure(frame) if "metric" in frame else "accuracy"
    if "metric" in frame:
        frame = frame.assign(metric=frame["metric"].map(title))
    shown = [name for name in names.split() if name in frame and not _empty(frame, name)]
    signed = "difference" in shown and "difference_low" not in shown
    columns = tuple(
        Column(name, *_titled(name, of, "points" if signed and name in DIFFERENCES else ""))
        for name in shown
    )
    rows = [list(record.values()) for record in records(frame[shown].head(MOST_ROWS))]
    return Table(caption, columns, rows, len(frame), tuple(said(frame)))


def said(frame: pd.DataFrame) -> list[str]:
    """What has to be said of a table's selections, and of those that a training stands beside."""
    beside = (text.split(", ")[0] for text in frame.get("beside", ()))
    return cautions([*frame.get("select", ()), *beside])


def _titled(name: str, score: str, kind: str) -> tuple[str, str]:
    text, usual = COLUMNS[name]
    return text.format(score=score), kind or usual


def _empty(frame: pd.DataFrame, name: str) -> bool:
    if name == "metric":
        return bool((frame[name] == "accuracy").all())
    if name not in OPTIONAL:
        return False
    values = frame[name].dropna()
    return values.empty or (name == "left_out" and not values.any())
