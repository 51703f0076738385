"""Classifiers of scikit-learn on vectors: fitting, probabilities and storage."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.errors import CellError

CLASSIFIER_FILE = "classifier.joblib"
"""The fitted classifier in a kept folder. Its classes are indices into the task's labels."""


def linear_classifier() -> Any:
    """Logistic regression on standardised vectors, with scikit-learn's defaults (L2, C=1)."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def fitted_probabilities(
    model: Any, train: np.ndarray, labels: np.ndarray, test: np.ndarray, count: int, keep: Path | None = None
) -> np.ndarray:
    """Fit a classifier of scikit-learn. Probabilities of each label, ``(test, count)``, 0 without an example.

    ``keep`` is a folder for the fitted classifier. Raises ``CellError`` if it cannot be written.
    """
    with warnings.catch_warnings():
        # few examples of many labels are intended here, not a regression
        warnings.filterwarnings("ignore", message="The number of unique classes")
        model.fit(train, labels)
    if keep is not None:
        import joblib

        try:
            keep.mkdir(parents=True, exist_ok=True)
            joblib.dump(model, keep / CLASSIFIER_FILE)
        except OSError as error:
            raise CellError(f"checkpoint: {error.strerror or error}") from None
    every = np.zeros((len(test), count))
    every[:, model.classes_] = model.predict_proba(test)
    return every
