"""Stored label scores as arrays with their predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.results.reading import Stored


@dataclass(frozen=True, repr=False)
class LabelScores:
    """The label scores of one task and model."""

    labels: tuple[str, ...]
    values: np.ndarray
    """Log-probabilities from the model: ``(predictions, labels)`` float32."""
    rows: pd.DataFrame
    """The predictions in the same order, with the columns of ``Results.predictions``."""

    def __repr__(self) -> str:
        return f"LabelScores({self.values.shape[0]:,} predictions, {len(self.labels):,} labels)"


def arrays_of(stored: Stored) -> dict[tuple[str, str], LabelScores]:
    """The stored label scores of each task and model; for halves of a label space, only those of the most frequent
    labels.

    Predictions without all scores are left out, and so are derived ones, which have no scores of their own.
    """
    frame = stored.predictions
    known = {cell: scores for cell, scores in stored.label_scores.items() if scores.calibration is None}
    frame = frame[frame["cell"].astype(object).isin(list(known))]
    found: dict[tuple[str, str], LabelScores] = {}
    for (task, model), rows in frame.groupby(["task", "model"], observed=True):
        cells = rows["cell"].astype(object)
        sets = {cell: known[cell].labels for cell in cells.unique()}
        labels = max(dict.fromkeys(sets.values()), key=list(sets.values()).count)
        rows = rows[cells.map(sets.get) == labels].reset_index(drop=True)
        places = {cell: {test: place for place, test in enumerate(known[cell].tests)} for cell in rows["cell"].unique()}
        pairs = zip(rows["cell"], rows["test_id"], strict=True)
        values = np.stack([known[cell].raw[places[cell][test]] for cell, test in pairs])
        found[str(task), str(model)] = LabelScores(labels, values, rows)
    return found
