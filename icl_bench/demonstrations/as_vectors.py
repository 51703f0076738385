"""Which demonstrations of a prompt stay text and which are read as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.models.attention_patterns import Pattern

T = TypeVar("T")


def text_and_vectors(demonstrations: np.ndarray, spec: SelectorSpec, pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Split demonstrations ``(..., k)``, in stored order, into text and vectors: ``(..., n)`` each.

    The first demonstrations are text. If the prompt has retrieved ones, the last are text: they are
    the most similar.
    """
    k = demonstrations.shape[-1]
    count = pattern.as_vectors(k)
    if spec.by is not None:
        return demonstrations[..., count:], demonstrations[..., :count]
    return demonstrations[..., : k - count], demonstrations[..., k - count :]


def stored_as_text(demonstrations: Sequence[T], select: str, attention: str) -> tuple[list[T], list[T]]:
    """Split one prompt's demonstrations by the selection and attention pattern of its cell."""
    positions, pattern = np.arange(len(demonstrations)), Pattern.parse(attention)
    if not pattern.as_vectors(len(demonstrations)):
        return list(demonstrations), []  # parsing a selection is slow, and there are many predictions
    parts = text_and_vectors(positions, SelectorSpec.parse(select), pattern)
    text, vectors = ([demonstrations[i] for i in part] for part in parts)
    return text, vectors
