"""What demonstrations teach: prompts that show them otherwise beside those that show them whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.paired import compare
from icl_bench.analysis.scores import scored
from icl_bench.selection.choice import known
from icl_bench.teaching import PLAIN

if TYPE_CHECKING:
    import pandas as pd


def teaching_effect(
    frame: pd.DataFrame, variants: Mapping[str, Mapping[str, Any]], alpha: float = 0.05
) -> pd.DataFrame:
    """Compare each way to show demonstrations otherwise with the plain one at each k.

    ``frame`` has predictions of test examples, plain and not; ``variants`` the facts of each. Both
    sides have one selection, order and attention, and agree in all other facts; what has no such
    plain side is left out. They are paired by test example and draw, as both have the same
    demonstrations. ``difference`` is below 0 where the change hurts; the columns are those of
    :func:`icl_bench.analysis.paired.compare`, after ``teaching``, which ``advice`` names.
    """
    import pandas as pd

    base = {"teaching": str(PLAIN)}
    names = ["select", "variant", "teaching"]
    frame = scored(frame)
    frame = frame.reindex(columns=frame.columns.union(["teaching"], sort=False))
    frame = frame.astype(dict.fromkeys(names, object))
    plain = frame[frame["teaching"].isna()].assign(**base)
    changed = frame[frame["teaching"].notna()]
    parts: list[pd.DataFrame] = []
    for select, variant in changed[names[:2]].drop_duplicates().itertuples(index=False, name=None):
        beside = _beside(variants, variant, select)
        part = changed[(changed["select"] == select) & (changed["variant"] == variant)]
        same = plain[(plain["select"] == select) & (plain["variant"] == beside)]
        both: pd.DataFrame = pd.concat([part, same.assign(variant=variant)])
        parts.append(compare(both, base, alpha=alpha).assign(base_variant=beside))
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else compare(plain, base, alpha=alpha)


def _beside(variants: Mapping[str, Mapping[str, Any]], variant: str, select: str) -> str | None:
    """The plain variant of a selector that agrees in all that does not make this one another."""
    choice = known(select)
    embeds = choice is not None and choice.embeds
    # where the selector has none, the encoder is that which tells the nearest
    own = ("teaching",) if embeds else ("teaching", "embeddings")
    wanted = {name: fact for name, fact in variants.get(variant, {}).items() if name not in own}
    return next((v for v, facts in variants.items() if dict(facts) == wanted), None)
