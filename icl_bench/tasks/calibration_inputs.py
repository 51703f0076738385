"""Content-free inputs for calibrating a model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example
from icl_bench.tasks.spec import TaskSpec
from icl_bench.unicode_words import UNSPACED, has_many, segmented

CONTEXTUAL, DOMAIN = "contextual", "domain"
"""Kinds of inputs."""

CONTENT_FREE = ("N/A", "[MASK]", "")
"""Inputs without content (Zhao et al. 2021, section 5)."""

RANDOM_INPUTS = 20
"""Number of inputs of random words (Fei et al. 2023, section 4)."""


def inputs_of(kind: str, spec: TaskSpec, train: Sequence[Example], seed: int) -> tuple[Example, ...]:
    """The inputs of a kind as examples without an answer; ``domain`` uses words of ``train``."""
    names = spec.template.input_fields
    if kind == CONTEXTUAL:
        texts = [dict.fromkeys(names, text) for text in CONTENT_FREE]
    else:
        rng = generator(seed, DOMAIN)
        fields = {name: _Words.of([row.fields[name] for row in train]) for name in names}
        texts = [{name: words.drawn(rng) for name, words in fields.items()} for _ in range(RANDOM_INPUTS)]
    return tuple(Example(f"{kind}-{number}", fields, "") for number, fields in enumerate(texts))


class _Words(NamedTuple):
    """The words of a field in all rows."""

    words: Sequence[str]
    mean: int
    """Words of a row on average."""
    between: str
    """The text between two words."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Words:
        """The words between blanks; in scripts without spaces between words, the characters."""
        unspaced = has_many(UNSPACED, texts)
        words = [word for text in texts for word in text.split()]
        if unspaced:
            words = [part for word in words for part in segmented(word)]
        return cls(words, max(1, round(len(words) / len(texts))), "" if unspaced else " ")

    def drawn(self, rng: np.random.Generator) -> str:
        """Random words of all rows, as many as a row has on average."""
        return self.between.join(self.words[i] for i in rng.integers(len(self.words), size=self.mean))
