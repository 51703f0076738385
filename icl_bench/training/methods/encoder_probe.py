"""Logistic regression on sentence embeddings, without a language model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.training.methods.classifiers import Fitted, fitted, linear_classifier
from icl_bench.training.methods.on_embeddings import OnEmbeddings


class EncoderProbe(OnEmbeddings):
    """A linear classifier of sentence embeddings."""

    name = "encoder-probe"
    backend = "encoder-probe"

    def classify(
        self, train: np.ndarray, labels: np.ndarray, test: np.ndarray, keep: Path | None
    ) -> tuple[Fitted, Mapping[str, Any]]:
        """See ``OnEmbeddings``."""
        count = len(self.run.task.data.labels)
        return fitted(linear_classifier(), train, labels, test, count, keep), {}
