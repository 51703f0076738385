"""Content-free inputs for calibrating a model's answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example
from icl_bench.tasks.spec import TaskSpec

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
        rows = {name: [row.fields[name].split() for row in train] for name in names}
        texts = [{name: " ".join(_random_words(rng, rows[name])) for name in names} for _ in range(RANDOM_INPUTS)]
    return tuple(Example(f"{kind}-{number}", fields, "") for number, fields in enumerate(texts))


def _random_words(rng: np.random.Generator, rows: Sequence[Sequence[str]]) -> list[str]:
    """Random words of all rows, as many as a row has on average."""
    words = [word for row in rows for word in row]
    count = max(1, round(len(words) / len(rows)))
    return [words[i] for i in rng.integers(len(words), size=count)]
