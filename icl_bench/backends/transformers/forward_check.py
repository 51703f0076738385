"""Checks on loading that a model is computed correctly, by a few tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.interface import Counters
from icl_bench.backends.transformers.device_memory import out_of_memory
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.backends.transformers.packed_decoding import OpenPack
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.errors import UserError
from icl_bench.models.config import layer_windows
from icl_bench.prompts.encoding import Ids
from icl_bench.wording import first_line

ENDS = [-1, 13]
"""The positions of a prompt where the check's two queries end."""

UNSUPPORTED = (TypeError, AttributeError, ValueError, IndexError, RuntimeError)
"""The errors of models that cannot be called by this backend."""


@torch.inference_mode()
def check_forward(model: LoadedModel) -> None:
    """Compare with the model's own forward pass on a few tokens, and refuse a model that differs.

    This covers differences between model families: scaling, masks and positions of attention, and
    how logits are computed from hidden states. Differences that appear only in longer prompts are
    read from the model's config. Raises ``UserError``. Afterwards, the model uses this backend's
    attention, and its last layer is shortened if the result is the same.
    """
    name, vocabulary = type(model.network).__name__, int(model.config.vocab_size)
    ids = tuple(np.random.default_rng(0).integers(0, vocabulary, 24).tolist())
    expected = model.plain_logits(ids, ENDS)
    model.take_over()
    try:
        logits, layers = _packed_logits(model, ids)
    except UNSUPPORTED as error:
        if out_of_memory(error):
            raise
        raise UserError(f"{name}: not supported ({first_line(error)[:200]})") from None
    reason = _beyond_a_few_tokens(model.config, layers)
    allowed = (0.02 if model.dtype == torch.float32 else 0.5) * float(expected.std())
    if not float((logits - expected).abs().max()) <= allowed:
        reason = "its logits differ from the model's own"
    if reason:
        raise UserError(
            f"{name}: its attention is of a kind that this backend does not compute ({reason}); use --backend vllm"
        )
    restore = model.shorten_last_layer()
    try:
        again, _ = _packed_logits(model, ids)
    except UNSUPPORTED as error:
        if out_of_memory(error):
            raise
        restore()
        return
    if not float((again - logits).abs().max()) <= allowed:
        restore()


def _packed_logits(model: LoadedModel, ids: Ids) -> tuple[Tensor, tuple[int, int]]:
    """Logits at ``ENDS`` over a prefix read in two steps, and the numbers of full and of sliding
    layers that called the backend's attention.
    """
    cache = PrefixCache(model, Counters(), len(ids))
    cache.read(ids[:4])
    cache.read(ids[4:9])
    pack = OpenPack(cache, [ids[9:], ids[9:14]], 0)
    return model.head.logits(pack.ends), cache.prefix.layers


def _beyond_a_few_tokens(config: Any, layers: tuple[int, int]) -> str | None:
    """What a model does with long prompts that this backend does not support, or None.

    ``layers`` are the numbers of full and of sliding layers that called the backend's attention.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [ropes, *(rope for rope in ropes.values() if isinstance(rope, dict))]
    if {"dynamic", "longrope"} & {rope.get("rope_type") for rope in ropes}:
        return "its position encoding depends on the prompt's length"
    windows = layer_windows(config)
    expected = windows.count(None), len(windows) - windows.count(None)
    if layers != expected or sum(layers) != config.num_hidden_layers:
        return (
            f"of {config.num_hidden_layers} layers, {expected[0]} are full and {expected[1]} "
            f"sliding, but {layers[0]} and {layers[1]} work so"
        )
    return None
