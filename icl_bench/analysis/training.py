"""Training beside prompting, on the same examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.paired import NO_FACTS, Facts, compare
from icl_bench.methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd

ENGINE = ("backend", "dtype", "scoring")
"""Facts that differ where another program computes the answers."""


def training_gain(
    frame: pd.DataFrame, alpha: float = 0.05, facts: Facts = NO_FACTS
) -> pd.DataFrame:
    """Compare learning from the k examples with a prompt of them (Bertsch et al. 2025, figure 3).

    Fine-tuning, probe and neighbours against random selection as drawn; draws are matched, as both
    sides have the same examples. ``difference`` is above 0 where training is better; the columns
    are those of :func:`icl_bench.analysis.paired.compare`, ``advice`` a method.
    ``facts`` are those of each variant; prompts are run by another engine than training.
    """
    select, order = frame["select"].astype(object), frame["order"].astype(object)
    kept = frame[(select.isin(BASELINES) | (select == "random")) & (order == "drawn")]
    return compare(kept, {"select": "random"}, alpha=alpha, facts=facts, apart=ENGINE)


def prompted(frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions of prompts with demonstrations, without those of trained classifiers."""
    return frame[~frame["select"].astype(object).isin(BASELINES)]
