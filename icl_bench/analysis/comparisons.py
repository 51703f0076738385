"""Paired comparisons: selections, orders, trainings, models beside their base."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.statistics.paired import NO_FACTS, Facts, compare
from icl_bench.demonstrations.perturbations import PLAIN
from icl_bench.demonstrations.selector_spec import known
from icl_bench.metrics import scored
from icl_bench.results.cells import SETTING
from icl_bench.results.trained_methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd


def retrieval_gain(
    frame: pd.DataFrame,
    base: str = "random",
    order: str = "drawn",
    alpha: float = 0.05,
    facts: Facts = NO_FACTS,
) -> pd.DataFrame:
    """Compare every other selector with ``base`` in its plain ``order`` (Bertsch et al., figure 2).

    Hybrids that begin with the base's demonstrations are paired with it by draw. Other selectors'
    draws are no draws of the base, and retrieval has a single one, which it hardly needs: there the
    limits count how far random draws differ, and pair by test example alone.
    ``facts`` are those of each variant: a selector with an encoder has none in common with random
    selection, and is compared with the one that agrees in all else. ``difference`` is the gain; the
    columns are those of :func:`icl_bench.analysis.statistics.paired.compare`, ``advice`` a selector.
    """
    import pandas as pd

    select = frame["select"].astype(object)
    bases = (select == base) & (frame["order"] == order)
    alike = select.map(source) == source(base)
    parts = [
        compare(frame[bases | ((select != base) & (alike == matched))],
                {"select": base, "order": order}, matched=matched, alpha=alpha, facts=facts)
        for matched in (True, False)
    ]  # fmt: skip
    found = pd.concat([part for part in parts if len(part)] or parts[:1])
    return found.sort_values([*SETTING, "k"], kind="stable").reset_index(drop=True)


def source(select: str) -> str:
    """What a selector's draws are of: where it is the same, equal draws have much in common."""
    choice = known(select)
    return str(choice.base) if choice and choice.base else select


def sorting_penalty(
    frame: pd.DataFrame, alpha: float = 0.05, facts: Facts = NO_FACTS
) -> pd.DataFrame:
    """Compare ``by-label`` with ``drawn``, the same demonstrations (Bertsch et al. 2025, figure 5).

    ``difference`` is below 0 where sorting hurts; the columns are those of
    :func:`icl_bench.analysis.statistics.paired.compare`, ``advice`` an order. ``facts`` are those of
    each variant.
    """
    kept = frame[frame["order"].isin(["drawn", "by-label"])]
    return compare(kept, {"order": "drawn"}, alpha=alpha, facts=facts)


def teaching_effect(frame: pd.DataFrame, variants: Facts, alpha: float = 0.05) -> pd.DataFrame:
    """Compare each way to show demonstrations otherwise with the plain one at each k.

    ``frame`` has predictions of test examples, plain and not; ``variants`` the facts of each. Both
    sides have one selection, order and attention, and agree in all other facts; what has no such
    plain side is left out. They are paired by test example and draw, as both have the same
    demonstrations. ``difference`` is below 0 where the change hurts; the columns are those of
    :func:`icl_bench.analysis.statistics.paired.compare`, after ``teaching``, which ``advice`` names.
    """
    frame = scored(frame)
    if "teaching" not in frame:
        frame = frame.assign(teaching=None)
    ways = frame["teaching"].astype(object)
    frame = frame.assign(teaching=ways.where(ways.notna(), str(PLAIN)))
    return compare(frame, {"teaching": str(PLAIN)}, alpha=alpha, facts=variants)


ENGINE = ("backend", "dtype", "scoring")
"""Facts that differ where another program computes the answers."""


def training_gain(
    frame: pd.DataFrame, alpha: float = 0.05, facts: Facts = NO_FACTS
) -> pd.DataFrame:
    """Compare learning from the k examples with a prompt of them (Bertsch et al. 2025, figure 3).

    Fine-tuning, probe and neighbours against random selection as drawn; draws are matched, as both
    sides have the same examples. ``difference`` is above 0 where training is better; the columns
    are those of :func:`icl_bench.analysis.statistics.paired.compare`, ``advice`` a method.
    ``facts`` are those of each variant; prompts are run by another engine than training.
    """
    select, order = frame["select"].astype(object), frame["order"].astype(object)
    kept = frame[(select.isin(BASELINES) | (select == "random")) & (order == "drawn")]
    return compare(kept, {"select": "random"}, alpha=alpha, facts=facts, apart=ENGINE)


def prompted(frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions of prompts with demonstrations, without those of trained classifiers."""
    return frame[~frame["select"].astype(object).isin(BASELINES)]


OF_MODEL = (*ENGINE, "fingerprint", "max_answer_tokens")
"""Facts that differ between models."""


def compare_models(
    frame: pd.DataFrame, base: str, alpha: float = 0.05, facts: Facts = NO_FACTS
) -> pd.DataFrame:
    """Compare each other model with ``base`` on equal demonstrations (Bertsch et al., figure 10).

    The columns of :func:`icl_bench.analysis.statistics.paired.compare`, with ``direction`` (better, worse or
    equal, as the figures stand) and ``significant`` (p_holm <= ``alpha``). ``base_variant`` is the
    base's: models never share a variant. ``facts`` are those of each variant.
    """
    table = compare(frame, {"model": base}, alpha=alpha, facts=facts, apart=OF_MODEL)
    sign = np.sign(table["difference"]).map({1.0: "better", -1.0: "worse", 0.0: "equal"})
    return table.assign(direction=sign, significant=table["p_holm"] <= alpha)
