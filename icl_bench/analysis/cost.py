"""Cost: what a query takes in tokens and seconds, beside the accuracy it buys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.curves import SETTING

if TYPE_CHECKING:
    import pandas as pd

POINT = [*SETTING, "k"]
TOKENS = ["prompt_tokens", "cached_tokens", "answer_tokens"]


def cost(
    frame: pd.DataFrame,
    seconds: Mapping[str, float],
    training: Mapping[str, Mapping[str, float]] | None = None,
) -> pd.DataFrame:
    """Mean tokens and seconds of a query at each point, and of a training where there was one.

    ``seconds`` is the engine's time for each cell, ``training`` the ``seconds`` and ``tokens`` of
    its training. Columns: the setting, k, predictions, prompt_tokens, cached_tokens (those that
    came from a cache, or were shared with other queries), answer_tokens, computed_tokens (of the
    prompt, not cached), and seconds, over the cells whose time is known: means per query; then
    training_seconds and training_tokens, means per cell. What is not known is NaN.

    A nested sweep extends the prompt of the next smaller k, so that seconds are those of the run
    as it was, not of this k alone.
    """
    known = frame.reindex(columns=[*POINT, *TOKENS, "cell"])
    known = known.astype(dict.fromkeys(TOKENS, float))
    points = known.groupby(POINT, observed=True, sort=True)
    table: pd.DataFrame = points[TOKENS].mean()
    table.insert(0, "predictions", points.size())
    table["computed_tokens"] = table["prompt_tokens"] - table["cached_tokens"]
    cells = known.groupby([*POINT, "cell"], observed=True).size().rename("rows").reset_index()
    cells["seconds"] = cells["cell"].astype(object).map(dict(seconds)).astype(float)
    cells["rows"] = cells["rows"].where(cells["seconds"].notna())
    sums = cells.groupby(POINT, observed=True)[["seconds", "rows"]].sum(min_count=1)
    with np.errstate(invalid="ignore"):
        table["seconds"] = sums["seconds"] / sums["rows"]
    for name in ("seconds", "tokens"):
        of_cell = {cell: about.get(name) for cell, about in (training or {}).items()}
        cells[name] = cells["cell"].astype(object).map(of_cell).astype(float)
        table[f"training_{name}"] = cells.groupby(POINT, observed=True)[name].mean()
    return table.reset_index()
