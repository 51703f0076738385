"""Which predictions a finding is of, and tables of parts as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from icl_bench.results.trained_methods import BASELINES

if TYPE_CHECKING:
    import pandas as pd


def unperturbed_predictions(predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions of test examples with unperturbed demonstrations.

    Queries that are copies of demonstrations are no test examples.
    """
    for name in ("queries", "perturbation"):
        if name in predictions and predictions[name].notna().any():
            predictions = predictions[predictions[name].isna()]
    return predictions


def prompted(frame: pd.DataFrame) -> pd.DataFrame:
    """The predictions of prompts with demonstrations, without those of trained classifiers."""
    return frame[~frame["select"].astype(object).isin(BASELINES)]


def have_common_labels(frame: pd.DataFrame) -> pd.Series:
    """Which predictions are of labels that rows have in common, not of a row's own choices."""
    labelled = frame["correct"].notna()
    return labelled & ~frame["own_choices"] if "own_choices" in frame else labelled


def joined(parts: Sequence[pd.DataFrame], empty: pd.DataFrame) -> pd.DataFrame:
    """The tables as one; ``empty``, which has the columns, where no part has a row."""
    import pandas as pd

    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else empty
