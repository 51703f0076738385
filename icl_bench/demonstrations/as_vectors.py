"""Which demonstrations of a prompt stay text and which are read as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.models.attention_patterns import Pattern

T = TypeVar("T")


def text_and_vectors(shown: np.ndarray, choice: SelectorSpec, pattern: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Split demonstrations ``(..., k)`` as they are stored into both: ``(..., n)`` each.

    The first ones are text; where some were retrieved, the last ones, which are the most similar.
    """
    k = shown.shape[-1]
    count = pattern.as_vectors(k)
    if choice.by is not None:
        return shown[..., count:], shown[..., :count]
    return shown[..., : k - count], shown[..., k - count :]


def stored_as_text(shown: Sequence[T], select: str, attention: str) -> tuple[list[T], list[T]]:
    """The same of one prompt's demonstrations, by a cell's axes."""
    places, pattern = np.arange(len(shown)), Pattern.parse(attention)
    parts = text_and_vectors(places, SelectorSpec.parse(select), pattern)
    text, vectors = ([shown[i] for i in part] for part in parts)
    return text, vectors
