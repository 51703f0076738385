"""Counts what a program really multiplies: by PyTorch's own formulas, and the pairs that attention sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from icl_bench.backends.transformers import attention_kernels, attention_steps
from icl_bench.models.vector_encoder import VectorEncoder
from icl_bench.training import sparse_attention


@dataclass
class Counted:
    """Operations of a block of code."""

    products: float = 0.0
    """Of all products outside attention, by PyTorch's formulas, which do not know the CPU's attention."""
    attention: float = 0.0
    """Of attention, by its formula: four for each pair of a token and a visible key, and unit of width."""

    @property
    def total(self) -> float:
        """All together."""
        return self.products + self.attention


class Products(TorchDispatchMode):
    """Counts as PyTorch's ``FlopCounterMode`` does, without the time that this one takes for each operation to find its
    module, and to ask anew whether it consists of others.
    """

    def __init__(self, more: Mapping[Any, Any]) -> None:
        """``more`` has formulas beside PyTorch's own."""
        super().__init__()
        self._formulas = {**flop_registry, **more}
        self._divided: dict[Any, bool] = {}
        self.counts = Counter[str]()
        """Operations by the name of the product."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in self._divided:
            self._divided[func] = func._can_decompose()
        if self._divided[func]:
            with self:
                return func.decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        if (formula := self._formulas.get(func.overloadpacket)) is not None:
            self.counts[str(func.overloadpacket)] += formula(*args, **kwargs, out_val=out)
        return out


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """Count the operations of a block of code, on the CPU and in float32.

    The arguments of every attention tell which pairs are visible: all, those up to the token itself, or
    those of a mask.
    """
    counted = Counted()
    encode = VectorEncoder.tensors
    ours, torchs = attention_steps.attend, torch.nn.functional.scaled_dot_product_attention

    def add(query: Any, pairs: float) -> None:
        # backward takes twice as much; what is computed a second time during it has been counted
        learns = torch.is_grad_enabled() and query.requires_grad and torch._C._current_graph_task_id() == -1
        counted.attention += (3 if learns else 1) * 4.0 * query.shape[-1] * query.shape[0] * pairs

    def attend(query: Any, key: Any, value: Any, scale: float, **how: Any) -> Any:
        heads, tokens, keys, mask = query.shape[1], query.shape[2], key.shape[2], how.get("mask")
        if mask is not None:
            add(query[:1], float((mask.bias == 0).sum()) * key.shape[1] * len(query) / len(mask.bias))
        else:
            add(query, heads * (tokens * (tokens + 1) / 2 if how.get("causal") else tokens * keys))
        return ours(query, key, value, scale, **how)

    def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **how: Any) -> Any:
        heads, tokens, keys = query.shape[1], query.shape[2], key.shape[2]
        if attn_mask is not None:
            seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask > torch.finfo(attn_mask.dtype).min
            add(query, float(seen.expand(len(query), heads, tokens, keys).sum()) / len(query))
        else:
            add(query, heads * (tokens * (tokens + 1) / 2 if how.get("is_causal") else tokens * keys))
        return torchs(query, key, value, attn_mask, **how)

    def tensors(*arguments: Any) -> Any:
        before = counted.attention
        with _disable_current_modes():  # the encoder's operations are no part of a cell's
            encoded = encode(*arguments)
        counted.attention = before
        return encoded

    def product(x: Any, weight: Any, *more: Any, out_val: Any, **how: Any) -> int:
        """Operations of oneDNN's product. PyTorch has no formula of it."""
        return int(2 * x.shape[-1] * np.prod(out_val.shape))

    of_onednn = {torch.ops.mkldnn._linear_pointwise: product}
    with monkeypatch.context() as patched, Products(of_onednn) as counter:
        for module in (attention_steps, attention_kernels):
            patched.setattr(module, "attend", attend)
        patched.setattr(VectorEncoder, "tensors", tensors)
        for module in (torch.nn.functional, sparse_attention):
            patched.setattr(module, "scaled_dot_product_attention", scaled_dot_product_attention)
        yield counted
    assert not [name for name in counter.counts if "attention" in name]
    counted.products = float(counter.counts.total())
