"""What demonstrations teach: prompts that show them otherwise beside those that show them whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.paired import Facts, compare
from icl_bench.analysis.scores import scored
from icl_bench.teaching import PLAIN

if TYPE_CHECKING:
    import pandas as pd


def teaching_effect(frame: pd.DataFrame, variants: Facts, alpha: float = 0.05) -> pd.DataFrame:
    """Compare each way to show demonstrations otherwise with the plain one at each k.

    ``frame`` has predictions of test examples, plain and not; ``variants`` the facts of each. Both
    sides have one selection, order and attention, and agree in all other facts; what has no such
    plain side is left out. They are paired by test example and draw, as both have the same
    demonstrations. ``difference`` is below 0 where the change hurts; the columns are those of
    :func:`icl_bench.analysis.paired.compare`, after ``teaching``, which ``advice`` names.
    """
    frame = scored(frame)
    if "teaching" not in frame:
        frame = frame.assign(teaching=None)
    ways = frame["teaching"].astype(object)
    frame = frame.assign(teaching=ways.where(ways.notna(), str(PLAIN)))
    return compare(frame, {"teaching": str(PLAIN)}, alpha=alpha, facts=variants)
