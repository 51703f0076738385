"""A CUDA card that is not there: tensors that say ``cuda:0``, hold real values and keep its rules.

What a card refuses is refused here with the same kind of error: tensors of two devices in one
operation, ``numpy()`` of what lies on the card, kernels of the CPU, half-precision kernels in single
precision. What a card counts can be read: waits of the host for the card, uploads, launches, bytes
held. Fused attention returns what PyTorch's kernels return, in their shapes and layouts
(``aten/src/ATen/native/transformers/cuda/attention.cu``; shapes by ``torch/_meta_registrations.py``).

Speed, streams and rounding are not a card's: values are computed by the CPU, operation by operation.
Inside PyTorch such a tensor is one of the device ``meta``, because a build without CUDA knows no
other device that computes nothing by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from support.program import as_words

aten = torch.ops.aten
DEVICE = torch.device("cuda:0")
TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


class _Allocation:
    """Bytes of a card that several tensors may look at; they are free when the last one goes."""

    def __init__(self, card: Card, size: int) -> None:
        self._card, self._size = card, size
        card.held_bytes += size
        card.peak_bytes = max(card.peak_bytes, card.held_bytes)

    def __del__(self) -> None:
        self._card.held_bytes -= self._size


class CardTensor(Tensor):
    """A tensor on the card; its values are those of ``on_host``, a tensor of the CPU."""

    on_host: Tensor
    card: Card
    allocation: _Allocation

    @staticmethod
    def __new__(cls, on_host: Tensor, card: Card, allocation: _Allocation) -> CardTensor:
        with torch.inference_mode(False):  # else it could not be a view of a tensor of before
            made: CardTensor = Tensor._make_wrapper_subclass(
                cls,
                on_host.size(),
                strides=on_host.stride(),
                storage_offset=on_host.storage_offset(),
                dtype=on_host.dtype,
                device="meta",
            )
        made.on_host, made.card, made.allocation = on_host, card, allocation
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        (card, *_) = [x.card for x in _leaves((args, kwargs)) if isinstance(x, CardTensor)]
        return card.run(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:
        return DEVICE

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_meta(self) -> bool:
        return False

    def get_device(self) -> int:
        return 0

    def numpy(self, **_: Any) -> Any:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:
        return f"{self.on_host!r} on {DEVICE}"


class Card:
    """One card: what it can do, what it holds, and what has been asked of it.

    ``capability`` as of ``torch.cuda.get_device_capability``; ``capacity`` in bytes. With
    ``refuse`` an operation fails for lack of memory: it is asked with the operation's name and the
    new bytes it takes.
    """

    def __init__(self, capability: tuple[int, int] = (9, 0), capacity: int = 2**34) -> None:
        self.capability, self.capacity = capability, capacity
        self.refuse: Callable[[str, int], bool] | None = None
        self.held_bytes = self.peak_bytes = 0
        self.operations: Counter[str] = Counter()
        """How often each operation ran on the card, by its name in ``aten``."""
        self.downloads = 0
        """How often the host waited for the card's results."""
        self.uploads = 0
        """Copies of the host's memory to the card; the host waits for these, too."""
        self.launches = 0
        """Operations that start at least one kernel."""
        self.synchronisations = 0
        """Calls of ``torch.cuda.synchronize``."""
        self.emptied = 0
        """Calls of ``torch.cuda.empty_cache``."""
        self.asked = False
        """Whether a call that names the card, or has a tensor of it, is under way."""
        self._here = False

    def forget(self) -> None:
        """Begin to count anew."""
        self.operations.clear()
        self.downloads = self.uploads = self.launches = self.synchronisations = self.emptied = 0
        self.peak_bytes = self.held_bytes

    def upload(self, on_host: Tensor) -> Tensor:
        """A tensor of the CPU, on the card."""
        with self.present():
            return on_host.to(DEVICE)

    # -- presence -------------------------------------------------------------------------------

    @contextmanager
    def present(self) -> Iterator[Card]:
        """For a while this machine has the card; its tensors live on afterwards."""
        if self._here:
            yield self
            return
        with pytest.MonkeyPatch.context() as patch, _Names(self), _Operations(self):
            for name, value in self._module().items():
                patch.setattr(f"torch.cuda.{name}", value)
            patch.setattr("icl_bench.backends.device.may_have_cuda", lambda: True)
            # else a module keeps its parameters and takes values over, which these have not
            patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
            patch.setattr(self, "_here", True)
            yield self

    def _module(self) -> dict[str, Any]:
        """What of ``torch.cuda`` is answered otherwise."""

        def synchronize(*_: Any) -> None:
            self.synchronisations += 1

        def empty_cache() -> None:
            self.emptied += 1

        def reset_peak_memory_stats(*_: Any) -> None:
            self.peak_bytes = self.held_bytes

        major, minor = self.capability
        properties = SimpleNamespace(
            name="emulated", major=major, minor=minor, total_memory=self.capacity, multi_processor_count=1
        )
        return {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "is_bf16_supported": lambda *_, **__: major >= 8,
            "get_device_capability": lambda *_: self.capability,
            "get_device_name": lambda *_: "emulated",
            "get_device_properties": lambda *_: properties,
            "mem_get_info": lambda *_: (self.capacity - self.held_bytes, self.capacity),
            "memory_allocated": lambda *_: self.held_bytes,
            "memory_reserved": lambda *_: self.held_bytes,
            "max_memory_allocated": lambda *_: self.peak_bytes,
            "max_memory_reserved": lambda *_: self.peak_bytes,
            "reset_peak_memory_stats": reset_peak_memory_stats,
            "get_rng_state": lambda *_: torch.get_rng_state(),
            "set_rng_state": lambda *_: None,
            "synchronize": synchronize,
            "empty_cache": empty_cache,
        }

    # -- one operation --------------------------------------------------------------------------

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run an operation where its tensors are, or its ``device`` says."""
        leaves = list(_leaves((args, kwargs)))
        here = [x for x in leaves if isinstance(x, CardTensor)]
        name = func._schema.name.removeprefix("aten::")
        if (here or self.asked) and name not in KERNELS and _is_made_of_others(func):
            with _Operations(self):
                return func.decompose(*args, **kwargs)
        device = kwargs.get("device")
        wanted = device is not None and (
            device.type == "cuda" or (device.type == "meta" and (self.asked or bool(here)))
        )
        if not here and not wanted:
            return func(*args, **kwargs)
        if wanted:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        strangers = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, CardTensor)]
        if any(x.is_meta for x in strangers):
            raise NotImplementedError(f"{name}: values were lost on the device meta")
        leaves_card = bool(here) and device is not None and device.type == "cpu"
        if func is aten._to_copy.default or func is aten.copy_.default:
            leaves_card |= func is aten.copy_.default and not isinstance(args[0], CardTensor)
            self.downloads += bool(here) and leaves_card
            self.uploads += bool(strangers)
        else:
            _check_devices(name, args, kwargs, strangers)
            _check_kinds(name, here)
            self.downloads += _waits(name, args, kwargs)
        kernel = KERNELS.get(name)
        values = _mapped(_on_host, args), _mapped(_on_host, kwargs)
        out = kernel(self, *values[0], **values[1]) if kernel else func(*values[0], **values[1])
        self.operations[name] += 1
        self.launches += not (_is_view(func) or name.startswith("empty") or name == "new_empty")
        if leaves_card:
            return out
        for x in here:
            if x.shape != x.on_host.shape:
                raise NotImplementedError(f"{name} changes a tensor's shape in place")
        return self._wrapped(name, out, here)

    def _wrapped(self, name: str, out: Any, here: Sequence[CardTensor]) -> Any:
        """The results on the card: a tensor that was given, a view of one, or something new."""
        given = {id(x.on_host): x for x in here}
        held = {x.on_host.untyped_storage().data_ptr(): x.allocation for x in here}
        new = [x for x in _leaves(out) if isinstance(x, Tensor) and id(x) not in given]
        fresh = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in new}
        fresh = {place: size for place, size in fresh.items() if place not in held or not place}
        self._make_room(name, sum(fresh.values()))
        made = held | {place: _Allocation(self, size) for place, size in fresh.items()}

        def wrap(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            place = x.untyped_storage().data_ptr()
            return given[id(x)] if id(x) in given else CardTensor(x, self, made[place])

        return _mapped(wrap, out)

    def _make_room(self, name: str, size: int) -> None:
        """Raise ``torch.OutOfMemoryError`` where so many more bytes do not fit."""
        full = self.held_bytes + size > self.capacity
        if size and (full or (self.refuse is not None and self.refuse(name, size))):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total "
                f"capacity of {self.capacity / 2**30:.2f} GiB"
            )


# -- how Python's calls come here ---------------------------------------------------------------


ABOUT_DEVICES = ("__enter__", "__exit__", "_parse_to")
"""Functions that read a device and make nothing on it: ``with torch.device("cuda")``, ``Module.to``."""


class _Names(TorchFunctionMode):
    """Makes of the device ``cuda`` what PyTorch is told in its place."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device or getattr(func, "__name__", "") in ABOUT_DEVICES:
            return func(*args, **kwargs)
        if func is Tensor.cuda:
            func, args, kwargs = Tensor.to, (args[0], DEVICE), {}
        leaves = list(_leaves((args, kwargs)))
        asked = any(_names_card(x) for x in (*args, *kwargs.values()))
        if not asked and not any(isinstance(x, CardTensor) for x in leaves):
            return func(*args, **kwargs)
        before, self._card.asked = self._card.asked, True
        try:
            if asked and func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
                # of a list: PyTorch makes no values for the device meta
                return func(*args, **{**kwargs, "device": "cpu"}).to("meta")
            if func in (Tensor.__getitem__, Tensor.__setitem__):
                args = (args[0], _places(args[1]), *args[2:])
            args = [torch.device("meta") if _names_card(x) else x for x in args]
            kwargs = {k: torch.device("meta") if _names_card(x) else x for k, x in kwargs.items()}
            return func(*args, **kwargs)
        finally:
            self._card.asked = before


class _Operations(TorchDispatchMode):
    """Brings the operations to the card that have no tensor of it yet."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return self._card.run(func, args, kwargs or {})


def _leaves(x: Any) -> Iterator[Any]:
    """What stands in lists, tuples and dictionaries (PyTorch's own way takes most of a test)."""
    if isinstance(x, dict):
        x = x.values()
    elif not isinstance(x, tuple | list):
        yield x
        return
    for item in x:
        yield from _leaves(item)


def _mapped(change: Callable[[Any], Any], x: Any) -> Any:
    """The same lists, tuples and dictionaries of other things."""
    if isinstance(x, dict):
        return {name: _mapped(change, item) for name, item in x.items()}
    if isinstance(x, tuple | list):
        return type(x)([_mapped(change, item) for item in x])
    return change(x)


def _names_card(x: object) -> bool:
    if isinstance(x, str) and x.partition(":")[0] == "cuda":
        x = torch.device(x)
    if not isinstance(x, torch.device) or x.type != "cuda":
        return False
    if x.index:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return True


def _places(index: Any) -> Any:
    """An index without lists, of which PyTorch makes no values for the device meta."""
    if isinstance(index, tuple):
        return tuple(_places(x) for x in index)
    return torch.tensor(index) if isinstance(index, list) else index


def _on_host(x: Any) -> Any:
    return x.on_host if isinstance(x, CardTensor) else x


# -- the rules ----------------------------------------------------------------------------------

INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that take the CPU's tensors of indices for a card's values."""

NO_SCALARS = {
    *as_words(
        "cat stack mm bmm addmm baddbmm linear matmul gather index_select embedding scatter scatter_ "
        "scatter_reduce index_add index_copy index_copy_"
    )
}
"""Operations that do not take the CPU's single numbers either."""

PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "addmv", "mv", "dot"}

WAITS = {
    *as_words(
        "_local_scalar_dense item equal nonzero masked_select _unique _unique2 unique_dim unique_consecutive "
        "bincount is_nonzero"
    )
}
"""Operations whose result, or its size, the host must know before it goes on."""


def _check_devices(name: str, args: Sequence[Any], kwargs: dict[str, Any], strangers: Sequence[Tensor]) -> None:
    """Raise where tensors of two devices meet that a card does not let meet."""
    if not strangers:
        return
    if name in INDEXED:
        if not isinstance(args[0], CardTensor):
            raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        values = [x for x in args[2:] if isinstance(x, Tensor)]
        strangers = [x for x in values if not isinstance(x, CardTensor)]
    written = kwargs.get("out", args[0] if name.endswith("_") else None)
    if isinstance(written, Tensor) and not isinstance(written, CardTensor):
        raise RuntimeError(TWO_DEVICES)
    if any(x.ndim for x in strangers) or (strangers and name in NO_SCALARS):
        raise RuntimeError(TWO_DEVICES)


def _check_kinds(name: str, here: Sequence[CardTensor]) -> None:
    """Raise for products of whole numbers, which a card does not have."""
    for x in here if name in PRODUCTS else ():
        if not x.dtype.is_floating_point:
            raise RuntimeError(f'"{name}_cuda" not implemented for {str(x.dtype)!r}')


def _waits(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the host waits for the card in this operation."""
    if name in INDEXED:  # places of a mask must be counted, except where one number is written
        masks = any(isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1])
        return masks and (len(args) < 3 or args[2].numel() > 1)
    if name == "repeat_interleave":
        known = kwargs.get("output_size", args[1] if len(args) > 1 else None)
        return "repeats" not in kwargs and known is None
    return name in WAITS


@cache
def _is_view(func: Any) -> bool:
    aliases = [r.alias_info for r in func._schema.returns]
    return bool(aliases) and all(a is not None and not a.is_write for a in aliases)


@cache
def _is_made_of_others(func: Any) -> bool:
    """Whether an operation has no kernels but calls others (seen here in inference mode only)."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


# -- fused attention ----------------------------------------------------------------------------


def attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, seen: Tensor | None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention in float32 and its log-sum-exp; all as ``(batch, heads, tokens, width)``.

    ``seen`` is ``(tokens, keys)`` bool. Rows that see no key are nan in both, so that what relies
    on them is found out.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(groups, 1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.float() @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias.float()
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    lse = lse.masked_fill(lse == -math.inf, math.nan)
    # kernels round the weights before they weigh the values
    weights = torch.exp(scores - lse[..., None]).to(query.dtype).float()
    return (weights @ value).to(query.dtype), lse


def _refuse(reason: bool, text: str) -> None:
    if reason:
        raise RuntimeError(text)


def _check_flash(card: Card, query: Tensor, key: Tensor, value: Tensor, head: int) -> None:
    """What ``mha_fwd`` of PyTorch's flash-attention checks; ``head`` is the heads' dimension."""
    _refuse(card.capability < (8, 0), "FlashAttention only supports Ampere GPUs or newer.")
    half = query.dtype in (torch.float16, torch.bfloat16)
    _refuse(not half, "FlashAttention only support fp16 and bf16 data type")
    _refuse(key.dtype != query.dtype, "query and key must have the same dtype")
    _refuse(value.dtype != query.dtype, "query and value must have the same dtype")
    _refuse(any(x.stride(-1) != 1 for x in (query, key, value)), "Input tensor must have contiguous last dimension")
    width = query.shape[-1]
    _refuse(width % 8 != 0, "head_size must be a multiple of 8")
    _refuse(width > 256, "FlashAttention forward only supports head dimension at most 256")
    _refuse(key.shape[-1] != width or value.shape[-1] != width, "head_size must be equal")
    _refuse(query.shape[0] == 0, "batch size must be positive")
    _refuse(
        query.shape[head] % key.shape[head] != 0, "Number of heads in key/value must divide number of heads in query"
    )


def _near(tokens: int, keys: int, left: int | None, right: int | None) -> Tensor:
    """Which keys lie in a window around each token's place: ``(tokens, keys)``.

    The last token stands where the last key stands; None and -1 are without end.
    """
    place = torch.arange(tokens)[:, None] + keys - tokens
    key = torch.arange(keys)[None]
    seen = torch.ones(tokens, keys, dtype=torch.bool)
    if left is not None and left >= 0:
        seen &= key >= place - left
    if right is not None and right >= 0:
        seen &= key <= place + right
    return seen


def _like(query: Tensor, out: Tensor) -> Tensor:
    """The result in the layout that ``empty_like(query)`` has."""
    return torch.empty_like(query).copy_(out)


def _flash(
    card: Card, query: Tensor, key: Tensor, value: Tensor, left: int | None, right: int | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    tokens, keys = query.shape[2], key.shape[2]
    if not keys:  # as the kernel has it: no weight, and an infinite log-sum-exp of the wrong sign
        return torch.zeros_like(query), torch.full(query.shape[:3], math.inf)
    out, lse = attention(query, key, value, scale, _near(tokens, keys, left, right))
    # flash gives rows that see nothing a 0 and +inf
    return out.nan_to_num(0.0), lse.masked_fill(lse.isnan(), math.inf)


def _sdpa_flash(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _check_flash(card, query, key, value, 1)
    out, lse = _flash(card, query, key, value, None, 0 if is_causal else None, scale)
    seed = torch.zeros(2, dtype=torch.uint64)
    nothing = query.new_empty(0)
    sizes = query.shape[2], key.shape[2]
    return _like(query, out), lse, None, None, *sizes, seed, seed[0].clone(), nothing


def _flash_forward(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    **_: Any,
) -> tuple[Any, ...]:
    """``(batch, tokens, heads, width)``, or ``(all tokens, heads, width)`` with where texts begin."""
    _refuse(seqused_k is not None or alibi_slopes is not None, "not emulated")
    _check_flash(card, query, key, value, -2)
    right = 0 if is_causal else window_size_right
    seed, nothing = torch.zeros(2, dtype=torch.uint64), query.new_empty(0)
    rest = seed, seed[0].clone(), nothing

    def one(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        turned = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = _flash(card, *turned, window_size_left, right, scale)
        return out.transpose(1, 2), lse

    if cum_seq_q is None or cum_seq_k is None:
        out, lse = one(query, key, value)
        return _like(query, out), lse, *rest
    _refuse(cum_seq_q.dtype != torch.int32 or cum_seq_k.dtype != torch.int32, "cu_seqlens_q must have dtype int32")
    outs, sums = [], []
    own, theirs = cum_seq_q.tolist(), cum_seq_k.tolist()
    for i in range(len(own) - 1):
        part, seen = slice(own[i], own[i + 1]), slice(theirs[i], theirs[i + 1])
        _refuse(own[i + 1] - own[i] > max_q or theirs[i + 1] - theirs[i] > max_k, "max_q, max_k")
        if part.stop > part.start:
            out, lse = one(query[None, part], key[None, seen], value[None, seen])
            outs.append(out[0])
            sums.append(lse[0])
    return _like(query, torch.cat(outs)), torch.cat(sums, 1), *rest


def _sdpa_efficient(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The kernel of xFormers; its log-sum-exp is padded to a multiple of 32 tokens."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    _refuse(card.capability < (5, 0), "no kernel image is available for execution on the device")
    _refuse(query.dtype == torch.bfloat16 and card.capability < (8, 0), "cutlassF: no kernel found to launch!")
    _refuse(not half and query.dtype != torch.float32, "cutlassF: no kernel found to launch!")
    batch, heads, tokens, width = query.shape
    _refuse(key.shape[1] != heads or value.shape[1] != heads, "query.size(2) == key.size(2)")
    _refuse(any(x.stride(-1) != 1 for x in (query, key, value)), "must be contiguous in last")
    least = 4 if half or card.capability >= (8, 0) else 1
    _refuse(width % least != 0, "query is not correctly aligned")
    if attn_bias is not None:
        _refuse(attn_bias.dtype != query.dtype, "invalid dtype for bias")
        _refuse(
            tuple(attn_bias.shape) != (batch, heads, tokens, key.shape[2]), "bias must be (batch, heads, tokens, keys)"
        )
        _refuse(attn_bias.stride(-1) != 1, "bias must be contiguous in its last dimension")
        aligned = 16 // attn_bias.element_size()
        for place, size in enumerate(attn_bias.shape[:3]):
            wrong = size > 1 and attn_bias.stride(place) % aligned != 0
            _refuse(wrong, f"attn_bias is not correctly aligned (stride {place})")
    seen = None
    if is_causal:  # from the upper left, as the public function has it
        seen = torch.ones(tokens, key.shape[2], dtype=torch.bool).tril()
    out, lse = attention(query, key, value, scale, seen, attn_bias)
    padded = torch.full((batch, heads, math.ceil(tokens / 32) * 32), math.inf)
    padded[:, :, :tokens] = lse
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    number = torch.zeros((), dtype=torch.long)
    return out, padded if compute_log_sumexp else padded[..., :0], number, number.clone()


def _sdpa_cudnn(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """cuDNN's kernel; its log-sum-exp has one dimension more."""
    _refuse(card.capability < (8, 0), "cuDNN SDPA needs Ampere or newer")
    half = query.dtype in (torch.float16, torch.bfloat16)
    _refuse(not half, "Expected query to have dtype Half or BFloat16")
    _refuse(query.shape[-1] % 8 != 0 or query.shape[-1] > 128, "No valid execution plans built.")
    seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril() if is_causal else None
    out, lse = attention(query, key, value, scale, seen, attn_bias)
    number = torch.zeros((), dtype=torch.long)
    sizes = query.shape[2], key.shape[2]
    return _like(query, out), lse[..., None], None, None, *sizes, number, number.clone(), None


def _cpu_alone(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend.")

    return refuse


def _sdpa(
    card: Card,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The public function, which takes what suits it of all kernels."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


KERNELS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": _sdpa,
    "_scaled_dot_product_flash_attention": _sdpa_flash,
    "_flash_attention_forward": _flash_forward,
    "_scaled_dot_product_efficient_attention": _sdpa_efficient,
    "_scaled_dot_product_cudnn_attention": _sdpa_cudnn,
    **{
        name: _cpu_alone(name)
        for name in ("_scaled_dot_product_flash_attention_for_cpu", "mkldnn_linear_pointwise", "mkldnn_rnn_layer")
    },
}
