"""A decoder's layers for a CPU, with fewer passes over memory and fewer roundings.

The library's layers are written for all devices: a norm is ten operations that each write a tensor;
a product rearranges its weights for the processor's matrix units at every call; the activation
between two products is rounded and written three times. The replacements compute the same: norms in
four passes, weights arranged once (oneDNN's blocked formats), the activation and the gate within the
products.

In 16-bit formats, the residual stream is kept in float32 if only norms read it. Keys, values and
products are not changed. ``docs/speed.md`` has the time saved, and how many answers change.

A layer is recognised by its result: each replacement is compared with the layer on random input, and not used if the
difference exceeds the format's rounding. So a family's special norms or activations are never replaced by a different
function.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from icl_bench.models.memory import out_of_memory

mkldnn: Any = torch.ops.mkldnn
"""oneDNN's products, which PyTorch's compiler uses."""

ROWS_HINT = 512
"""The number of tokens that weights are arranged for. Other numbers use the same arrangement."""

TRIED_ROWS = 5
"""Tokens on which a replacement is compared with the layer."""


class Norm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019), in float32 with one rounding at the end."""

    factor: Tensor

    def __init__(self, factor: Tensor, eps: float, dtype: torch.dtype) -> None:
        """``factor`` is float32 ``(width,)`` and multiplies the result. ``dtype`` is the result's."""
        super().__init__()
        self.register_buffer("factor", factor, persistent=False)
        self.eps, self.dtype = eps, dtype

    def forward(self, x: Tensor) -> Tensor:
        """``(..., width)`` of any float format."""
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()
        # in place, unless it is the argument
        wide = wide * scale if wide is x else wide.mul_(scale)
        return wide.mul_(self.factor).to(self.dtype)


class Linear(nn.Module):
    """A product whose weights are arranged once, with an activation before rounding."""

    def __init__(self, linear: nn.Linear, activation: tuple[str, str] = ("none", "")) -> None:
        super().__init__()
        packed = mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)
        self.weight, self.bias = packed, None if linear.bias is None else linear.bias.detach()
        self.activation, self.algorithm = activation

    def forward(self, x: Tensor) -> Tensor:
        """``(..., in)`` in the weights' format to ``(..., out)``."""
        packed: Tensor = mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], self.algorithm)
        return packed

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """The product of ``x``, times ``factor`` ``(..., out)`` before rounding."""
        result: Tensor = mkldnn._linear_pointwise.binary(x, factor, self.weight, self.bias, "mul")
        return result


ACTIVATIONS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("gelu", "tanh"): lambda x: functional.gelu(x, approximate="tanh"),
    ("gelu", "none"): functional.gelu,
    ("swish", ""): functional.silu,
}
"""Name in oneDNN -> function."""


class GatedMlp(nn.Module):
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020) in three calls."""

    def __init__(self, mlp: Any, activation: tuple[str, str]) -> None:
        super().__init__()
        self.gate, self.up = Linear(mlp.gate_proj, activation), Linear(mlp.up_proj)
        self.down = Linear(mlp.down_proj)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., width)`` to the same shape."""
        down: Tensor = self.down(self.up.times(x, self.gate(x)))
        return down


# -- replacing layers ---------------------------------------------------------------------------


@torch.inference_mode()
def refit(core: Any, dtype: torch.dtype) -> None:
    """Replace layers of a decoder on a CPU, if the replacement computes the same.

    ``core`` is the library's decoder without its head, with weights in ``dtype``. A decoder whose
    blocks are not called ``layers`` (GPT-2) is not changed. Arranged weights replace the original
    ones, one layer at a time. Raises ``RuntimeError`` if memory does not suffice.
    """
    _keep_freed_memory()
    if not hasattr(core, "layers"):
        return
    wide = dtype in (torch.bfloat16, torch.float16)
    packs = dtype == torch.bfloat16 and mkldnn._is_mkldnn_bf16_supported()
    refused: set[object] = set()

    def stand_in(module: nn.Module, name: str, child: nn.Module) -> nn.Module | None:
        if type(child).__name__.endswith("RMSNorm"):
            return _norm(child, torch.float32 if wide and _is_added(module, name, core) else dtype)
        kind = (type(child), *(tuple(p.shape) for p in child.parameters()))
        if not packs or kind in refused:
            return None
        if (replacement := _product(child)) is None:
            refused.add(kind)
        return replacement

    def put_into(module: nn.Module) -> None:
        for name, child in list(module.named_children()):
            if (replacement := stand_in(module, name, child)) is not None:
                setattr(module, name, replacement)
            else:
                put_into(child)

    for layer in core.layers:
        put_into(layer)
    if isinstance(getattr(core, "norm", None), nn.Module):
        core.norm = stand_in(core, "norm", core.norm) or core.norm
    if wide:
        _widen(core, dtype)


def _is_added(module: nn.Module, name: str, core: Any) -> bool:
    """Whether a norm's result is added to the residual stream, or is the decoder's result."""
    after = ("post_attention_layernorm", "post_feedforward_layernorm")
    return module is core or (name in after and hasattr(module, "pre_feedforward_layernorm"))


def _widen(core: Any, dtype: torch.dtype) -> None:
    """Keep the residual stream in float32, if all its readers accept this.

    This is tested on two tokens. If products read the stream directly (as in OLMo 2, where norms come after them), they
    raise an error and nothing is changed.
    """
    hooks = [core.get_input_embeddings().register_forward_hook(lambda _m, _a, out: out.float())]
    if isinstance(rotary := getattr(core, "rotary_emb", None), nn.Module):
        hooks.append(rotary.register_forward_hook(lambda _m, _a, out: tuple(x.to(dtype) for x in out)))
    try:
        core(torch.zeros(1, 2, dtype=torch.long), use_cache=False)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        for hook in hooks:
            hook.remove()
        for module in core.modules():
            if isinstance(module, Norm):
                module.dtype = dtype


def _norm(module: nn.Module, dtype: torch.dtype) -> Norm | None:
    """A norm that computes the same as the module, or None."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or weight.ndim != 1 or not isinstance(eps, float):
        return None
    sample = _random(weight.shape[0], torch.float32)  # its rounding does not hide differences
    factors = (weight.detach().float(), 1.0 + weight.detach().float())
    for factor in factors:
        if _alike(Norm(factor, eps, torch.float32)(sample), module(sample)):
            return Norm(factor, eps, dtype)
    return None


def _product(module: Any) -> nn.Module | None:
    """A product, or a gated layer of three products, that computes the same, or None."""
    replacement: nn.Module
    if type(module) is nn.Linear:
        replacement, width = Linear(module), module.in_features
    elif (activation := _activation(module)) is not None:
        replacement, width = GatedMlp(module, activation), module.gate_proj.in_features
    else:
        return None
    sample = _random(width, torch.bfloat16)
    return replacement if _alike(replacement(sample), module(sample)) else None


def _activation(module: nn.Module) -> tuple[str, str] | None:
    """The oneDNN name of the activation of a gated layer of three products, or None."""
    linear = {name for name, child in module.named_children() if type(child) is nn.Linear}
    if linear != {"gate_proj", "up_proj", "down_proj"}:
        return None
    if not callable(act := getattr(module, "act_fn", None)):
        return None
    sample = _random(64, torch.float32)
    return next((n for n, f in ACTIVATIONS.items() if torch.allclose(f(sample), act(sample))), None)


def _random(width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, TRIED_ROWS, width, generator=generator).to(dtype)


def _alike(actual: Tensor, expected: Tensor) -> bool:
    """Whether two results differ only by rounding."""
    bound = 1e-5 if expected.dtype == torch.float32 else 0.02
    actual, expected = actual.float(), expected.float()
    return bool((actual - expected).abs().max() <= bound * expected.abs().max())


# -- memory -------------------------------------------------------------------------------------


def _keep_freed_memory() -> None:
    """Make the C library reuse memory that tensors have freed.

    By default, glibc returns large blocks to the kernel, which clears every page of the next one.
    That takes longer than most of the operations between two products. Settings of the user are not
    changed.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # another C library
        set_option = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3
        set_option(trim_threshold, 2**30)
        set_option(mmap_threshold, 2**25)  # the largest allowed value
