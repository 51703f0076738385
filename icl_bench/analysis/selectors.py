"""Selectors beside random selection: what retrieval gains at each k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.paired import compare

if TYPE_CHECKING:
    import pandas as pd


def retrieval_gain(
    frame: pd.DataFrame, base: str = "random", order: str = "drawn", alpha: float = 0.05
) -> pd.DataFrame:
    """Compare every other selector with ``base`` in its plain ``order`` (Bertsch et al., figure 2).

    Draws are not matched: random selection has many, retrieval one, which it hardly needs. So the
    limits count how far random draws differ, and pair by test example. ``difference`` is the gain;
    the columns are those of :func:`icl_bench.analysis.paired.compare`, ``advice`` a selector.
    """
    kept = frame[(frame["select"] != base) | (frame["order"] == order)]
    return compare(kept, {"select": base, "order": order}, matched=False, alpha=alpha)
