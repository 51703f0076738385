"""Parameters and operations by formula equal what transformers and PyTorch count themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import WINDOW, save_tiny_model, tiny_config
from torch.utils.flop_counter import FlopCounterMode

from icl_bench.models.architecture import architecture_of, laid_out_parameters, stored_parameters
from icl_bench.models.attention_patterns import FULL
from icl_bench.sweep.compute_cost import cache_bytes, flops

KINDS = ("llama", "mistral", "qwen2", "gemma3_text")
VOCABULARY = 300
TOKENS = WINDOW
"""As many as a sliding layer sees, so that the library's own attention computes no more."""


def saved(kind: str, folder: Path, **changes: Any) -> Any:
    """A tiny model that is saved in a folder, as the library loads it."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(kind, VOCABULARY)
    for name, value in changes.items():
        setattr(config, name, value)
    save_tiny_model(config, folder)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_transformers_own_count_without_embedding_and_head(kind: str, tied: bool, tmp_path: Path):
    model = saved(kind, tmp_path, tie_word_embeddings=tied)
    outside = VOCABULARY * model.config.hidden_size * (1 if tied else 2)
    wanted = model.num_parameters() - outside
    assert architecture_of(str(tmp_path)).parameters == wanted
    assert laid_out_parameters(str(tmp_path)).parameters == wanted
    assert stored_parameters(tmp_path) == laid_out_parameters(str(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_widths_are_those_of_the_projections(kind: str, tmp_path: Path):
    model = saved(kind, tmp_path)
    found, layers = architecture_of(str(tmp_path)), model.model.layers
    assert found.heads_width == layers[0].self_attn.q_proj.out_features
    assert found.key_width == layers[0].self_attn.k_proj.out_features
    assert len(found.windows) == len(layers)


@pytest.mark.parametrize("kind", KINDS)
def test_operations_of_a_prompt_are_those_that_pytorch_counts(kind: str, tmp_path: Path):
    """PyTorch counts matrix products, and eager attention's hidden upper half with them."""
    model = saved(kind, tmp_path)
    shape = architecture_of(str(tmp_path))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.model(torch.arange(TOKENS)[None])
    vectors = sum(p.numel() for p in model.model.parameters() if p.ndim == 1)  # norms, biases
    hidden = len(shape.windows) * TOKENS * (TOKENS - 1) / 2  # pairs that the mask hides
    wanted = counter.get_total_flops() + 2 * TOKENS * vectors - 4 * shape.heads_width * hidden
    assert flops(shape, FULL, None, 0, TOKENS) == wanted


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_cache_bytes_are_those_of_the_librarys_own_cache(kind: str, dtype: str, item: int, tmp_path: Path):
    model = saved(kind, tmp_path).to(getattr(torch, dtype))
    count = TOKENS - 1  # a sliding layer keeps one key less than it sees
    with torch.no_grad():
        cache = model(torch.arange(count)[None], use_cache=True).past_key_values
    tensors = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    wanted = sum(t.numel() * t.element_size() for t in tensors)
    assert cache_bytes(architecture_of(str(tmp_path)), FULL, count, dtype) == wanted
    assert {t.element_size() for t in tensors} == {item}
