"""Label sorting: what it costs to group demonstrations by their label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.paired import NO_FACTS, Facts, compare

if TYPE_CHECKING:
    import pandas as pd


def sorting_penalty(
    frame: pd.DataFrame, alpha: float = 0.05, facts: Facts = NO_FACTS
) -> pd.DataFrame:
    """Compare ``by-label`` with ``drawn``, the same demonstrations (Bertsch et al. 2025, figure 5).

    ``difference`` is below 0 where sorting hurts; the columns are those of
    :func:`icl_bench.analysis.paired.compare`, ``advice`` an order. ``facts`` are those of
    each variant.
    """
    kept = frame[frame["order"].isin(["drawn", "by-label"])]
    return compare(kept, {"order": "drawn"}, alpha=alpha, facts=facts)
