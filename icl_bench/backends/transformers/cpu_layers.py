"""A decoder's layers, computed on a CPU in fewer passes over memory and with fewer roundings.

The library's layers are written for all devices: a norm is ten operations, each of which writes a
tensor; a product lays its weights out anew for the processor's matrix units at every call; the
activation between two products is rounded and written three times. What stands in their place here
computes the same: norms in four passes, weights laid out once (oneDNN's blocked formats), the
activation and the gate within the products.

In 16-bit formats the residual stream is kept in float32 where norms alone read it; keys, values and
products stay as they are. ``docs/speed.md`` has what that saves, and how many answers it changes.

A layer is recognised by what it computes: each stand-in is compared with the layer on random input,
and what is not the same within the format's rounding stays as it was. So a family's own kind of
norm or activation is not taken for another.
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

from icl_bench.backends.transformers.device_memory import out_of_memory

mkldnn: Any = torch.ops.mkldnn
"""oneDNN's products, as the compiler of PyTorch uses them."""

ROWS_HINT = 512
"""Tokens of a call that weights are laid out for; others take the same layout."""

TRIED_ROWS = 5
"""Tokens on which a stand-in is compared with the layer."""


class Norm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019), in float32 with one rounding at the end."""

    factor: Tensor

    def __init__(self, factor: Tensor, eps: float, dtype: torch.dtype) -> None:
        """``factor`` is float32 ``(width,)``, what is normed is multiplied by it; ``dtype`` is the
        result's.
        """
        super().__init__()
        self.register_buffer("factor", factor, persistent=False)
        self.eps, self.dtype = eps, dtype

    def forward(self, x: Tensor) -> Tensor:
        """``(..., width)`` of any float format."""
        wide = x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(self.eps).rsqrt_()
        # in place but where it is what was given
        wide = wide * scale if wide is x else wide.mul_(scale)
        return wide.mul_(self.factor).to(self.dtype)


class Linear(nn.Module):
    """A product whose weights are laid out once, with an activation before it is rounded."""

    def __init__(self, linear: nn.Linear, activation: tuple[str, str] = ("none", "")) -> None:
        super().__init__()
        packed = mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)
        self.weight, self.bias = packed, None if linear.bias is None else linear.bias.detach()
        self.activation, self.algorithm = activation

    def forward(self, x: Tensor) -> Tensor:
        """``(..., in)`` in the weights' format to ``(..., out)``."""
        packed: Tensor = mkldnn._linear_pointwise(x, self.weight, self.bias, self.activation, [], self.algorithm)
        return packed

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """The product of ``x``, times another tensor ``(..., out)`` before it is rounded."""
        result: Tensor = mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "mul")
        return result


ACTIVATIONS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("gelu", "tanh"): lambda x: functional.gelu(x, approximate="tanh"),
    ("gelu", "none"): functional.gelu,
    ("swish", ""): functional.silu,
}
"""By their names in oneDNN."""


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


# -- putting them in ----------------------------------------------------------------------------


@torch.inference_mode()
def refit(core: Any, dtype: torch.dtype) -> None:
    """Put these layers into a decoder on a CPU, wherever they compute what is there.

    ``core`` is the library's decoder without its head, its weights in ``dtype``; one that does not
    call its blocks ``layers`` (GPT-2) stays as it is. Weights that are laid out anew replace those
    that were there, one layer at a time. Raises ``RuntimeError`` where memory does not suffice.
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
        if (made := _product(child)) is None:
            refused.add(kind)
        return made

    def put_into(module: nn.Module) -> None:
        for name, child in list(module.named_children()):
            if (made := stand_in(module, name, child)) is not None:
                setattr(module, name, made)
            else:
                put_into(child)

    for layer in core.layers:
        put_into(layer)
    if isinstance(getattr(core, "norm", None), nn.Module):
        core.norm = stand_in(core, "norm", core.norm) or core.norm
    if wide:
        _widen(core, dtype)


def _is_added(module: nn.Module, name: str, core: Any) -> bool:
    """Whether what a norm returns is added to the residual stream, or is the decoder's result."""
    after = ("post_attention_layernorm", "post_feedforward_layernorm")
    return module is core or (name in after and hasattr(module, "pre_feedforward_layernorm"))


def _widen(core: Any, dtype: torch.dtype) -> None:
    """Keep the residual stream in float32, if all that reads it takes it so.

    That is tried on two tokens. Products that read the stream themselves (OLMo 2's do: its norms
    stand behind them) refuse it; then it stays as it was.
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
    """A norm that computes what the module does, or None."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if weight is None or weight.ndim != 1 or not isinstance(eps, float):
        return None
    tried = _random(weight.shape[0], torch.float32)  # whose rounding hides nothing
    factors = (weight.detach().float(), 1.0 + weight.detach().float())
    for factor in factors:
        if _alike(Norm(factor, eps, torch.float32)(tried), module(tried)):
            return Norm(factor, eps, dtype)
    return None


def _product(module: Any) -> nn.Module | None:
    """A product, or a layer of three with their activation, that computes the same, or None."""
    made: nn.Module
    if type(module) is nn.Linear:
        made, width = Linear(module), module.in_features
    elif (activation := _activation(module)) is not None:
        made, width = GatedMlp(module, activation), module.gate_proj.in_features
    else:
        return None
    tried = _random(width, torch.bfloat16)
    return made if _alike(made(tried), module(tried)) else None


def _activation(module: nn.Module) -> tuple[str, str] | None:
    """The name in oneDNN of the activation of a gated layer of three products; None for another."""
    linear = {name for name, child in module.named_children() if type(child) is nn.Linear}
    if linear != {"gate_proj", "up_proj", "down_proj"}:
        return None
    if not callable(act := getattr(module, "act_fn", None)):
        return None
    tried = _random(64, torch.float32)
    return next((n for n, f in ACTIVATIONS.items() if torch.allclose(f(tried), act(tried))), None)


def _random(width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, TRIED_ROWS, width, generator=generator).to(dtype)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two results differ by the rounding of a format alone."""
    bound = 1e-5 if other.dtype == torch.float32 else 0.02
    one, other = one.float(), other.float()
    return bool((one - other).abs().max() <= bound * other.abs().max())


# -- memory -------------------------------------------------------------------------------------


def _keep_freed_memory() -> None:
    """Let the C library keep what tensors have freed, for the next ones.

    By itself glibc hands large blocks back, and the kernel clears every page of the next: that
    takes longer than most of the operations between two products. What a user has set stays.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(OSError, AttributeError):  # another C library
        set_option = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_threshold = -1, -3
        set_option(trim_threshold, 2**30)
        set_option(mmap_threshold, 2**25)  # the most that it takes
