"""Selectors beside random selection: what other demonstrations gain at each k."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.curves import SETTING
from icl_bench.analysis.paired import NO_FACTS, Facts, compare
from icl_bench.selection.choice import known

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
    columns are those of :func:`icl_bench.analysis.paired.compare`, ``advice`` a selector.
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
    return f"{choice.base} of {choice.of}" if choice and choice.base else select
