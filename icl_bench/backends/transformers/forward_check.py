"""Checks on a few tokens at load time that a model is computed correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.interface import Counters
from icl_bench.backends.transformers.checkpoint import not_computed
from icl_bench.backends.transformers.loaded_model import LoadedModel, OtherAttentionError
from icl_bench.backends.transformers.packed_decoding import OpenPack
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.backends.transformers.single_precision import in_float32
from icl_bench.errors import UserError
from icl_bench.models.config import FULL_LAYERS, SLIDING
from icl_bench.models.memory import out_of_memory
from icl_bench.prompts.encoding import Ids
from icl_bench.wording import first_line, listed

ENDS = [-1, 13]
"""The positions of a prompt where the check's two queries end."""

UNSUPPORTED = (TypeError, AttributeError, ValueError, IndexError, KeyError, RuntimeError)
"""The errors of models that cannot be called by this backend."""

BOUND = 1e-3
"""The largest allowed difference of logits in float32, in standard deviations of the model's own."""

ROUNDING = 0.5
"""The same bound in a 16-bit format, after the model passed ``BOUND`` in float32."""


@torch.inference_mode()
def check_forward(model: LoadedModel) -> None:
    """Compare with the model's own forward pass on a few tokens, and refuse a model that differs.

    This covers differences between model families: scaling, masks and positions of attention, and how logits are
    computed from hidden states. The comparison is in float32, regardless of the model's format. Differences that appear
    only in longer prompts are read from the model's config. Raises ``UserError``. Afterwards, the model uses this
    backend's attention, and its last layer is shortened if the result is the same.
    """
    vocabulary = int(model.config.vocab_size)
    ids = tuple(np.random.default_rng(0).integers(0, vocabulary, 24).tolist())
    if reason := _beyond_a_few_tokens(model.config):
        raise _refused(model, reason)
    expected, allowed = _compared_in_float32(model, ids), ROUNDING
    if expected is None:
        expected = _own_logits(model, ids)
        allowed = BOUND if model.dtype == torch.float32 else ROUNDING
    model.take_over()
    logits, layers = _packed_logits(model, ids)
    _compare(model, logits[:, : expected.shape[1]], expected, allowed)
    _check_layers(model, layers)
    restore = model.shorten_last_layer()
    try:
        again, _ = _computed(model, ids)
    except (*UNSUPPORTED, OtherAttentionError) as error:
        if out_of_memory(error):
            raise
        restore()
        return
    if not _apart(again, logits) <= allowed:
        restore()


def _compared_in_float32(model: LoadedModel, ids: Ids) -> Tensor | None:
    """The logits of a model of a 16-bit format, computed in float32, if they are the model's own.

    None if the model already is in float32, or cannot be computed in it because its code fixes another format or memory
    does not suffice for a layer in float32. Raises ``UserError`` for a model that differs.
    """
    if model.dtype == torch.float32:
        return None
    with in_float32(model.network):
        try:
            expected = model.plain_logits(ids, ENDS)
        except UNSUPPORTED:
            return None
        model.replace_attention()
        try:
            logits, _ = _packed_logits(model, ids, rounded=False)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            model.restore_attention()
            return None
    _compare(model, logits, expected, BOUND)
    return logits


def _refused(model: LoadedModel, reason: str) -> UserError:
    name = type(model.network).__name__
    names = [name, *(getattr(model.network.config, "architectures", None) or ())]
    return UserError(f"{name}: {not_computed(names, reason)}")


def _own_logits(model: LoadedModel, ids: Ids) -> Tensor:
    """Logits at ``ENDS`` by the library's own forward pass. Raises ``UserError`` if it fails."""
    try:
        return model.plain_logits(ids, ENDS)
    except UNSUPPORTED as error:
        if out_of_memory(error):
            raise
        raise _refused(model, f"its own forward pass fails: {first_line(error)[:200]}") from None


def _packed_logits(model: LoadedModel, ids: Ids, *, rounded: bool = True) -> tuple[Tensor, tuple[int, int]]:
    """Logits of :func:`_computed`. Raises ``UserError`` if the model cannot be called by this backend."""
    try:
        return _computed(model, ids, rounded=rounded)
    except OtherAttentionError as error:
        raise _refused(model, str(error)) from None
    except UNSUPPORTED as error:
        if out_of_memory(error):
            raise
        raise _refused(model, first_line(error)[:200]) from None


def _compare(model: LoadedModel, logits: Tensor, expected: Tensor, allowed: float) -> None:
    if not _apart(logits, expected) <= allowed:
        raise _refused(model, "its logits differ from the model's own")


def _apart(logits: Tensor, expected: Tensor) -> float:
    """The largest difference of logits, in standard deviations."""
    return float((logits - expected).abs().max() / expected.std())


def _computed(model: LoadedModel, ids: Ids, *, rounded: bool = True) -> tuple[Tensor, tuple[int, int]]:
    """Logits at ``ENDS`` over a prefix read in two steps, and the numbers of full and of sliding
    layers that called the backend's attention.
    """
    cache = PrefixCache(model, Counters(), len(ids))
    cache.read(ids[:4])
    cache.read(ids[4:9])
    pack = OpenPack(cache, [ids[9:], ids[9:14]], 0)
    return model.head.logits(pack.ends, rounded=rounded), cache.prefix.layers


def _beyond_a_few_tokens(config: Any) -> str | None:
    """A feature of the model, active at least with long prompts, that this backend does not compute; or None."""
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [ropes, *(rope for rope in ropes.values() if isinstance(rope, dict))]
    if {"dynamic", "longrope"} & {rope.get("rope_type") for rope in ropes}:
        return "its position encoding depends on the prompt's length"
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if others := [kind for kind in kinds if kind not in FULL_LAYERS | {SLIDING}]:
        return f"it has layers of the kind {listed([repr(kind) for kind in others])}"
    return None


def _check_layers(model: LoadedModel, layers: tuple[int, int]) -> None:
    """Raise ``UserError`` if layers see other tokens than the config specifies.

    ``layers`` are the numbers of full and of sliding layers that called the backend's attention.
    """
    windows = model.windows
    expected = windows.count(None), len(windows) - windows.count(None)
    if layers != expected or sum(layers) != model.config.num_hidden_layers:
        raise _refused(
            model,
            f"of {model.config.num_hidden_layers} layers, {expected[0]} are full and {expected[1]} "
            f"sliding, but {layers[0]} and {layers[1]} work so",
        )
