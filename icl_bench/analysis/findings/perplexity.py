"""Perplexity by length, and the effect of attention patterns on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding, Section
from icl_bench.analysis.statistics.paired import holm, holm_steps
from icl_bench.analysis.statistics.texts import differs, interval_over, ratio_limits, sampled
from icl_bench.models.attention_patterns import pattern_of
from icl_bench.results.model_names import names_apart
from icl_bench.results.perplexity_losses import read_losses
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import LossesMeta

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

PERPLEXITY_COLUMNS = [
    "model",
    "attention",
    "dtype",
    "window_tokens",
    "after",
    "length",
    "windows",
    "tokens",
    "perplexity",
    "ci_low",
    "ci_high",
    "whole",
    "ratio",
    "ratio_low",
    "ratio_high",
    "p",
    "p_holm",
    "interval_over",
    "prefill_flops",
    "cache_bytes",
    "rope_scale",
    "rope_theta",
    "operations_of_full",
]


def perplexities(results: Place, model: str | None = None) -> pd.DataFrame:
    """Perplexity of the tokens of each range of lengths, for each model (or one) and attention.

    One row per model, attention, dtype, window length (``window_tokens``), positions and length. A range contains the
    tokens after the ``after``-th up to the ``length``-th of a window (Zebra, figures 2 and 4); ``whole`` is the
    perplexity of all tokens up to the ``length``-th (its table 4). Only windows that every attention of the model has
    read are used, of a text's files those of the one with most windows; an attention that has read only other texts is
    separate. Limits (95%) are Student's for the mean loss, over ``interval_over``: texts, or the windows of a single
    text (:mod:`icl_bench.analysis.statistics.texts`); ``ratio`` is the perplexity over that of ``full`` on the same
    windows, with its limits and the p of a paired t-test, corrected (Holm) over the lengths and attentions of a model
    with one dtype, window length and positions. With one window limits and p are NaN; p also for lengths up to which a
    pattern is full attention. Further: windows, tokens (scored), prefill_flops and cache_bytes (by formula, of a window
    of this length), rope_scale and rope_theta (the divisor of positions, and the base of their rotation; NaN for the
    model's own), operations_of_full (the prefill's operations as a share of those of ``full`` at this length; NaN
    without ``full``). For perplexity by operations, use prefill_flops and whole (its figure 3). Empty if nothing was
    computed.
    """
    import pandas as pd

    by_model: dict[tuple[str, ...], list[tuple[LossesMeta, np.ndarray]]] = {}
    for meta, losses in read_losses(results):
        positions = (str(meta.rope_scale), str(meta.rope_theta))
        key = (meta.model, meta.fingerprint, meta.dtype, str(meta.length), *positions)
        by_model.setdefault(key, []).append((meta, losses))
    named = names_apart((name, fingerprint) for name, fingerprint, *_ in by_model)
    rows: list[dict[str, Any]] = []
    for (stored_name, fingerprint, *_), group in by_model.items():
        name = named.get((stored_name, fingerprint), stored_name)
        if model in (None, name, stored_name):
            rows += [{**row, "model": name} for row in _of_model(group)]
    kinds = {"rope_scale": float, "rope_theta": float}
    return pd.DataFrame(rows, columns=PERPLEXITY_COLUMNS).astype(kinds)


def positions_names(frame: pd.DataFrame) -> list[str]:
    """Names of each row's positions; empty for the model's own."""
    names = []
    for scale, theta in zip(frame["rope_scale"], frame["rope_theta"], strict=True):
        parts = [] if np.isnan(scale) else [f"positions divided by {scale:g}"]
        parts += [] if np.isnan(theta) else [f"theta {theta:,.0f}"]
        names.append(", ".join(parts))
    return names


def no_perplexities() -> pd.DataFrame:
    """The table of :func:`perplexities` without a row."""
    import pandas as pd

    return pd.DataFrame(columns=PERPLEXITY_COLUMNS)


def _of_model(group: Sequence[tuple[LossesMeta, np.ndarray]]) -> list[dict[str, Any]]:
    held: dict[tuple[str, str], np.ndarray] = {}
    metas: dict[str, LossesMeta] = {}
    for meta, losses in group:
        of_text = held.get((meta.attention, meta.sha256), losses)
        held[meta.attention, meta.sha256] = max(of_text, losses, key=len)  # a text may have several files
        costs = metas.get(meta.attention, meta).by_length
        metas[meta.attention] = meta.model_copy(update={"by_length": {**costs, **meta.by_length}})
    lengths = sorted({int(n) for meta, _ in group for n in meta.by_length})
    rows: list[dict[str, Any]] = []
    for attentions, common in _on_common_texts(held):
        counts = {t: min(len(held[a, t]) for a in attentions) for t in common}
        text_of = np.repeat(common, [counts[t] for t in common])
        whole = {a: np.concatenate([held[a, t][: counts[t]] for t in common]) for a in attentions}
        shown = {row["attention"] for row in rows}
        for attention in (a for a in attentions if a not in shown):
            rows += _of_attention(attention, whole, text_of, metas, lengths)
    tested = [row for row in rows if "p" in row]
    p = [row["p"] for row in tested]
    for row, p_holm, error in zip(tested, holm(p), holm_steps(p), strict=True):
        row["p_holm"] = p_holm
        more, text_of = row.pop("beside")
        _, row["ratio_low"], row["ratio_high"], _ = _exponential(more, text_of, 1 - error)
    return rows


def _on_common_texts(held: Mapping[tuple[str, str], np.ndarray]) -> list[tuple[list[str], list[str]]]:
    """Group attentions that have read common texts, with these texts.

    An attention that shares no text with the others is a group of its own, with full attention if that has read one of
    its texts. So it does not reduce the rows of the others.
    """
    attentions = sorted({attention for attention, _ in held}, key=lambda a: (a != "full", a))
    texts = {a: {text for attention, text in held if attention == a} for a in attentions}
    groups: list[tuple[list[str], set[str]]] = []
    for attention in attentions:
        for members, common in groups:
            if common & texts[attention]:
                members.append(attention)
                common &= texts[attention]
                break
        else:
            with_full = texts[attention] & texts.get("full", set())
            members = ["full", attention] if with_full and attention != "full" else [attention]
            groups.append((members, with_full or set(texts[attention])))
    return [(members, sorted(common)) for members, common in groups]


def _of_attention(
    attention: str,
    whole: Mapping[str, np.ndarray],
    text_of: np.ndarray,
    metas: Mapping[str, LossesMeta],
    lengths: Sequence[int],
) -> list[dict[str, Any]]:
    """The rows of an attention, on the windows ``whole`` that all compared attentions have read.

    ``text_of`` are the windows' texts.
    """
    rows, meta = [], metas[attention]
    of_full = metas["full"].by_length if "full" in whole else {}
    pattern = pattern_of(attention)
    for after, length in zip([1, *lengths], lengths, strict=False):
        # the loss at position p is that of the token after p others
        part = slice(after - 1, length - 1)
        mine = whole[attention][:, part].mean(1)
        base = whole["full"][:, part].mean(1) if "full" in whole else mine * np.nan
        row: dict[str, Any] = {
            "model": meta.model,
            "attention": attention,
            "dtype": meta.dtype,
            "window_tokens": meta.length,
            "after": after,
            "length": length,
            "windows": len(mine),
            "tokens": len(mine) * (length - after),
            "interval_over": interval_over(text_of),
            "whole": float(np.exp(whole[attention][:, : length - 1].mean())),
            "rope_scale": meta.rope_scale,
            "rope_theta": meta.rope_theta,
            **meta.by_length.get(str(length), {}),
        }
        row["perplexity"], row["ci_low"], row["ci_high"], _ = _exponential(mine, text_of)
        costs, costs_of_full = (of.get(str(length), {}) for of in (meta.by_length, of_full))
        if "prefill_flops" in costs and costs_of_full.get("prefill_flops"):
            row["operations_of_full"] = costs["prefill_flops"] / costs_of_full["prefill_flops"]
        if attention != "full":
            beside = (mine - base, text_of)
            row["ratio"], row["ratio_low"], row["ratio_high"], p = _exponential(*beside)
            if pattern is None or not pattern.is_full_within(length - 1):
                row |= {"p": p, "beside": beside}
        rows.append(row)
    return rows


def _exponential(losses: np.ndarray, text_of: np.ndarray, level: float = 0.95) -> tuple[float, float, float, float]:
    """``exp`` of the mean, its limits, and the p of a mean of 0; ``text_of`` are the windows' texts."""
    sums = sampled(losses, text_of)
    low, high = ratio_limits(sums, sampled(np.ones(len(losses)), text_of), level)
    return float(np.exp(losses.mean())), float(np.exp(low)), float(np.exp(high)), differs(sums)


def _of_context(context: Context) -> pd.DataFrame:
    if context.results is None:
        return no_perplexities()
    return perplexities(context.results, context.model)


PERPLEXITY = Finding(
    "perplexity",
    _of_context,
    (
        Column("rope_scale", "positions divided by", "number", optional=True),
        Column("rope_theta", "rope theta", "number", optional=True),
        Column("after", "tokens behind", "count"),
        Column("length", "up to", "count"),
        Column("perplexity", "perplexity", "number"),
        Column("ci_low", "95% from", "number", upper="ci_high"),
        Column("ci_high", "95% to", "number"),
        Column("whole", "of all up to there", "number"),
        Column("operations_of_full", "operations of full attention's", "share", optional=True),
        Column("ratio", "over full attention's", "number"),
        Column("ratio_low", "95% from", "number"),
        Column("ratio_high", "95% to", "number"),
        Column("windows", "windows", "count"),
        Column("window_tokens", "tokens of a window", "count"),
        Column("tokens", "tokens", "count"),
    ),
    caption="Perplexity by length",
    shown="model series after length perplexity ci_low ci_high whole ratio ratio_low ratio_high "
    "p_holm interval_over prefill_flops cache_bytes windows window_tokens tokens rope_scale rope_theta "
    "operations_of_full",
    section=Section(
        "perplexity",
        "How well are long texts predicted?",
        "Perplexity",
        "icl-bench perplexity --texts DIR",
        "Perplexity of the tokens between one length and the next, in windows of the longest "
        "length; the lower the better. Bands are 95% intervals over texts, or over the windows of a "
        "single text. What a pattern does to the same windows is the ratio to full attention in the "
        "table, tested paired (Student's t; p corrected over lengths and patterns, Holm). The second "
        "chart has the operations of reading a text of each length (by formula) against the perplexity "
        "of all its tokens.",
        "Song et al. 2023 (Zebra), figures 2 to 4 and table 4",
        place=90,
    ),
)
