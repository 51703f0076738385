"""Sentences on findings that the terminal and the report say alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.wording import counted, percent

if TYPE_CHECKING:
    import pandas as pd

UNPERTURBED = "unperturbed"
"""What demonstrations are called that are shown as they are."""


MORE_DRAWS = {1: 3, 2: 5}
"""Draws of a comparison -> how many to try where it tells nothing apart."""


def points(row: Any) -> str:
    """A difference with its limits: ``+50.0 points, 95% interval -18.0 to +100.0``."""
    difference, low, high = (
        percent(row[name], "+") for name in ("difference", "ci_low", "ci_high")
    )
    return f"{difference} points, 95% interval {low} to {high}"


def try_more(row: Any) -> str:
    """What would tell more, where the draws of a comparison are few; else nothing."""
    draws = int(max(row["draws"], row.get("base_draws", 0)))
    if draws not in MORE_DRAWS:
        return ""
    return f"; {counted(draws, 'draw')}, try --draws {MORE_DRAWS[draws]}"


def undecided(table: pd.DataFrame) -> list[str]:
    """What a dash under "better" means, where a table of comparisons has one."""
    if not (table["difference"].notna() & table["advice"].isna()).any():
        return []
    return ["better –: not distinguishable, the corrected p is above 0.05"]


def cautions_of(table: pd.DataFrame) -> list[str]:
    """What has to be said of a table's selections, and of those that a training stands beside."""
    beside = (text.split(", ")[0] for text in table.get("beside", ()))
    return cautions([*table.get("select", ()), *beside])
