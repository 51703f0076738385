"""Sentence embeddings of a training's texts, each computed once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from icl_bench.models.text_encoders import SentenceEncoder


@dataclass
class Embeddings:
    """Embeddings by one encoder, for all methods, draws and k of a run."""

    encoder: SentenceEncoder
    _known: dict[str, tuple[np.ndarray, float]] = field(default_factory=dict, repr=False)
    """Text -> its embedding, and its share of the seconds of its batch."""

    def of(self, texts: Sequence[str]) -> tuple[np.ndarray, float]:
        """Unit embeddings, float32 ``(texts, width)``, and the seconds of the distinct texts.

        The seconds are those of the first computation. Raises ``UserError`` if the encoder cannot be loaded.
        """
        self.encoder.load()  # not timed
        if new := [text for text in dict.fromkeys(texts) if text not in self._known]:
            start = time.perf_counter()
            vectors = self.encoder.embed(new)
            each = (time.perf_counter() - start) / len(new)
            self._known.update((text, (vector, each)) for text, vector in zip(new, vectors, strict=True))
        return np.stack([self._known[text][0] for text in texts]), sum(self._known[text][1] for text in {*texts})
