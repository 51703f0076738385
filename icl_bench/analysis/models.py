"""Models beside a base model, at equal k."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.paired import NO_FACTS, Facts, compare
from icl_bench.analysis.training import ENGINE

if TYPE_CHECKING:
    import pandas as pd

OF_MODEL = (*ENGINE, "fingerprint", "max_answer_tokens")
"""Facts that differ between models."""


def compare_models(
    frame: pd.DataFrame, base: str, alpha: float = 0.05, facts: Facts = NO_FACTS
) -> pd.DataFrame:
    """Compare each other model with ``base`` on equal demonstrations (Bertsch et al., figure 10).

    The columns of :func:`icl_bench.analysis.paired.compare`, with ``direction`` (better, worse or
    equal, as the figures stand) and ``significant`` (p_holm <= ``alpha``). ``base_variant`` is the
    base's: models never share a variant. ``facts`` are those of each variant.
    """
    table = compare(frame, {"model": base}, alpha=alpha, facts=facts, apart=OF_MODEL)
    sign = np.sign(table["difference"]).map({1.0: "better", -1.0: "worse", 0.0: "equal"})
    return table.assign(direction=sign, significant=table["p_holm"] <= alpha)
