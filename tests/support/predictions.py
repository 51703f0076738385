"""Made-up predictions: tidy frames, from letters or at random."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

from icl_bench.metrics.macro_f1 import MacroF1
from icl_bench.results.importing import import_predictions

AXES: dict[str, Any] = {
    "task": "t",
    "model": "m",
    "select": "random",
    "order": "drawn",
    "attention": "full",
    "variant": "v",
    "k": 5,
    "draw": 0,
}


def cell(said: str, gold: str = "aabb", **changes: Any) -> pd.DataFrame:
    """One cell: a letter for each test row, what was said and what is right."""
    rows = {
        "test_id": [str(i) for i in range(len(gold))],
        "gold": list(gold),
        "prediction": list(said),
        "correct": [s == g for s, g in zip(said, gold, strict=True)],
        "valid": [s != "?" for s in said],
    }
    return pd.DataFrame(rows).assign(**{**AXES, **changes})


def frame(*cells: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(cells, ignore_index=True)


def imported(folder: Path, *cells: pd.DataFrame, name: str = "made") -> Path:
    """A results folder, ``folder/results``, into which these predictions are imported."""
    frame(*cells).drop(columns="variant").to_parquet(folder / f"{name}.parquet")
    import_predictions(folder / f"{name}.parquet", folder / "results")
    return folder / "results"


def scored(correct: np.ndarray, **changes: Any) -> pd.DataFrame:
    """The predictions of a point, from whether each is right: ``(draws, test)``."""
    draws, test = correct.shape
    rows = {
        "draw": np.repeat(np.arange(draws), test),
        "test_id": np.tile([f"row {i:03}" for i in range(test)], draws),
        "correct": correct.ravel().astype(bool),
    }
    found = pd.DataFrame({**AXES, "valid": True, "gold": "a", **rows, **changes})
    return found.assign(prediction=np.where(found["correct"], found["gold"], "b"))


def texts(rouge: np.ndarray, **changes: Any) -> pd.DataFrame:
    """The predictions of a point of free text, from the ROUGE-1 of each: ``(draws, test)``.

    ROUGE-L goes the other way, so that it cannot be taken for it.
    """
    scores = {"rouge1": rouge.ravel(), "rouge2": 0.1, "rougeL": 1 - rouge.ravel()}
    return scored(np.zeros_like(rouge), **changes).assign(correct=None, **scores)


def answers(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    accuracy: float,
    of_draw: np.ndarray | float = 0.0,
    of_test: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Right answers ``(trials, draws, test)``; log-odds vary by these amounts.

    ``accuracy`` is that of the median example in the median draw.
    """
    odds = np.log(accuracy / (1 - accuracy))
    return (rng.random(shape) < expit(odds + of_draw + of_test)).astype(float)


def macro_f1(gold: Sequence[str], prediction: Sequence[str | None]) -> float:
    """Macro-F1 of one cell."""
    cell = np.zeros(len(gold), dtype=np.int64)
    return float(MacroF1().score_many(cell, gold, prediction)["macro_f1"][0])
