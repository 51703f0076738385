"""The last layer computes what is read of it, and a model that cannot be asked so is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import FAMILIES, packed_logits, plain_logits, plain_model
from support.models import random_ids as ids
from torch import Tensor, nn

from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.prompts.encoding import PromptSet

PROMPTS = PromptSet(ids(50, 0), (ids(7, 1), ids(3, 2), ids(12, 3)))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[str(request.param)]


def loaded(folder: Path, tokenizer: Any) -> LoadedModel:
    return LoadedModel.load(folder, tokenizer, None, "float32", "cpu")


def tokens_seen(module: nn.Module) -> list[int]:
    """How many tokens each call of a module is given, from here on."""
    seen: list[int] = []
    module.register_forward_hook(lambda _module, given, _result: seen.append(given[0].shape[1]))
    return seen


def test_the_last_layer_is_computed_for_the_ends_of_queries_alone(folder, tokenizer):
    model = loaded(folder, tokenizer)
    check_forward(model)
    first, last = (tokens_seen(model.core.layers[place].mlp) for place in (0, -1))
    found = packed_logits(TransformersBackend(model), PROMPTS)
    assert sum(first) == 50 + 7 + 3 + 12
    assert sum(last) == 3
    reference = plain_model(folder)
    for i, got in enumerate(found):
        expected = plain_logits(reference, PROMPTS.ids(i), 1)[-1]
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_losses_read_the_last_layer_of_all_tokens(folder, tokenizer):
    model, text = loaded(folder, tokenizer), ids(60, 4)
    check_forward(model)
    last = tokens_seen(model.core.layers[-1].mlp)
    losses = TransformersBackend(model).losses(text)
    assert sum(last) == 59
    logits = plain_logits(plain_model(folder), text)[:-1]
    expected = nn.functional.cross_entropy(logits, torch.tensor(text[1:]), reduction="none")
    np.testing.assert_allclose(losses, expected.numpy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", ["refuses few tokens", "changes few tokens"])
def test_a_layer_that_cannot_be_asked_for_few_tokens_is_called_whole(folder, tokenizer, way):
    model = loaded(folder, tokenizer)
    layer = model.core.layers[-1]
    real = layer.forward

    def forward(hidden_states: Tensor, **named: Any) -> Tensor:
        few = hidden_states.shape[1] < 4
        if few and way == "refuses few tokens":
            raise ValueError("too few tokens")
        out: Tensor = real(hidden_states, **named)
        return out * 3 - 1 if few else out

    layer.forward = forward
    check_forward(model)
    assert layer.forward is forward
    last = tokens_seen(layer.mlp)
    packed_logits(TransformersBackend(model), PROMPTS)
    assert sum(last) == 50 + 7 + 3 + 12
