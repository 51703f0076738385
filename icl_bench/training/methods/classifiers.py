"""Classifiers of scikit-learn on vectors: fitting, probabilities and storage."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

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


class Fitted(NamedTuple):
    """What a fitted classifier says of the test rows."""

    probabilities: np.ndarray
    """Of each label, ``(test, labels)``; 0 without an example."""
    fit_seconds: float
    """Seconds to fit it, once."""
    answer_seconds: float
    """Seconds to classify all test rows."""


def fitted(
    model: Any, train: np.ndarray, labels: np.ndarray, test: np.ndarray, count: int, keep: Path | None = None
) -> Fitted:
    """Fit a classifier of scikit-learn on vectors ``(rows, width)``, and classify the test rows; of ``count`` labels.

    ``keep`` is a folder for the fitted classifier. Raises ``CellError`` if it cannot be written.
    """
    start = time.perf_counter()
    with warnings.catch_warnings():
        # few examples of many labels are intended here, not a regression
        warnings.filterwarnings("ignore", message="The number of unique classes")
        model.fit(train, labels)
    fit_seconds = time.perf_counter() - start
    if keep is not None:
        import joblib

        try:
            keep.mkdir(parents=True, exist_ok=True)
            joblib.dump(model, keep / CLASSIFIER_FILE)
        except OSError as error:
            raise CellError(f"checkpoint: {error.strerror or error}") from None
    every = np.zeros((len(test), count))
    start = time.perf_counter()
    every[:, model.classes_] = model.predict_proba(test)
    return Fitted(every, fit_seconds, time.perf_counter() - start)
