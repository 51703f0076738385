"""A decoder that reads vectors beside its text (Vec-RA; Chen et al. 2024, sections 2.2 and 4.1).

Every layer gets a part in front of it: a projector of its own (encoder width to model width),
cross-attention (query: the layer's input; keys and values: the projected vectors) and an MLP. Both
begin with the layer's own weights. What the paper leaves open is chosen so that the model answers
nearly as before until it is trained:

- The part is a copy of the whole layer whose self-attention reads vectors instead of tokens, with
  the layer's own norms and residuals. What it changes is added, times a number that is trained and
  begins at :data:`GATE` (Alayrac et al. 2022 begin at 0, where most weights have no gradient).
- A projected vector passes the norm that tokens pass before the layer's attention.
- Vectors are a set: neither they nor the queries are rotated to positions.
- A token that no vector is there for passes unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from icl_bench.errors import UserError
from icl_bench.models.fingerprints import sha256_of
from icl_bench.models.vector_encoder import WEIGHTS, VectorSettings
from icl_bench.wording import first_line

GATE = 0.01
"""What a part's change of its layer's input is multiplied by before it is trained."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class ProjectedVectors:
    """What every layer's part makes of some vectors, once for however many tokens read them."""

    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values of each layer: ``(rows, key_heads, vectors, head_dim)`` each."""

    @property
    def count(self) -> int:
        """Vectors of a row."""
        return int(self.layers[0][0].shape[2])

    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(x.nbytes for pair in self.layers for x in pair)


@dataclass(frozen=True)
class Reading:
    """What a model reads beside the tokens of its next calls."""

    vectors: ProjectedVectors
    seen: Tensor | None = None
    """Which token sees which vectors: bool ``(rows, tokens or 1, vectors)``; None: each sees all of
    its row."""


class CrossAttention(nn.Module):
    """A layer's attention whose keys and values are projected vectors; positions do not count."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    q_norm: nn.Module | None
    k_norm: nn.Module | None

    def __init__(self, own: Any) -> None:
        """``own`` is a copy of a layer's self-attention. Raises ``UserError`` for other kinds."""
        super().__init__()
        if any(not isinstance(getattr(own, name, None), nn.Module) for name in PROJECTIONS):
            raise UserError(
                f"vectors cannot be read by {type(own).__name__}: its attention is not made of "
                + ", ".join(PROJECTIONS)
            )
        for name in PROJECTIONS:
            setattr(self, name, getattr(own, name))
        self.head_dim = int(own.head_dim)
        self.scaling = float(getattr(own, "scaling", self.head_dim**-0.5))
        self.q_norm, self.k_norm = getattr(own, "q_norm", None), getattr(own, "k_norm", None)
        self.keys: tuple[Tensor, Tensor] | None = None
        self.seen: Tensor | None = None

    def _heads(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Split into heads, ``(rows, heads, tokens, head_dim)``, with the norm of either form."""
        per_head = norm is not None and next(norm.parameters()).numel() == self.head_dim
        if norm is not None and not per_head:
            x = norm(x)
        x = x.unflatten(-1, (-1, self.head_dim))
        if norm is not None and per_head:
            x = norm(x)
        return x.transpose(1, 2)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of vectors ``(rows, vectors, hidden)``."""
        key = self._heads(self.k_proj(hidden), self.k_norm)
        return key, self._heads(self.v_proj(hidden), None)

    def forward(self, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
        """As the layer calls its attention: ``(rows, tokens, hidden)``."""
        assert self.keys is not None
        query = self._heads(self.q_proj(hidden_states), self.q_norm)
        key, value = (x.expand(len(query), *x.shape[1:]).to(query.dtype) for x in self.keys)
        mask = None
        if self.seen is not None:  # who sees nothing sees all here, and is left out behind
            mask = (self.seen | ~self.seen.any(-1, keepdim=True))[:, None]
        out = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=self.scaling, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None


class LayerReader(nn.Module):
    """What reads vectors in front of one layer."""

    layer: Any
    """The copy, with cross-attention."""

    def __init__(self, layer: Any, width: int) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        own = self.layer.self_attn
        self.layer.self_attn = CrossAttention(own)
        weight = own.k_proj.weight
        self.projector = nn.Linear(width, weight.shape[1], device=weight.device, dtype=weight.dtype)
        norm = getattr(layer, "input_layernorm", None)
        self.norm = nn.Identity() if norm is None else copy.deepcopy(norm)
        self.gate = nn.Parameter(torch.tensor(GATE, device=weight.device, dtype=torch.float32))

    def project(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of vectors ``(rows, vectors, width)``."""
        attention: CrossAttention = self.layer.self_attn
        return attention.project(self.norm(self.projector(vectors)))

    def of_vectors(self) -> Iterable[nn.Parameter]:
        """The weights that vectors pass, and tokens do not."""
        attention = self.layer.self_attn
        for part in (self.projector, self.norm, attention.k_proj, attention.v_proj, attention.k_norm):
            if part is not None:
                yield from part.parameters()

    def forward(
        self,
        hidden: Tensor,
        keys: tuple[Tensor, Tensor],
        seen: Tensor | None,
        more: Sequence[Any],
        named: dict[str, Any],
    ) -> Tensor:
        """The layer's input ``(rows, tokens, hidden)`` with what is read of the vectors.

        ``more`` and ``named`` are what else the layer is called with.
        """
        self.layer.self_attn.keys, self.layer.self_attn.seen = keys, seen
        own = hidden.to(self.projector.weight.dtype)
        changed = self.layer(own, *more, **named)
        changed = changed[0] if isinstance(changed, tuple) else changed
        change = self.gate * (changed - own).float()
        if seen is not None:
            change = change * seen.any(-1, keepdim=True)
        out: Tensor = hidden + change.to(hidden.dtype)
        return out


class VectorReaders(nn.Module):
    """The readers of all layers of a decoder, which they are put in front of.

    They are no part of the decoder's own weights, so that its checkpoint stays an ordinary one.
    """

    def __init__(self, core: Any, width: int) -> None:
        """``core`` is the decoder without its head, ``width`` that of a vector.

        Raises ``UserError`` for a model whose layers cannot be copied so.
        """
        super().__init__()
        self.width = width
        made = [LayerReader(layer, width) for layer in core.layers]
        self.readers: Sequence[LayerReader] = nn.ModuleList(made)  # type: ignore[assignment]
        self.reading: Reading | None = None
        """What the decoder's next calls read; None for text alone."""
        for place, layer in enumerate(core.layers):
            layer.register_forward_pre_hook(self._in_front(place), with_kwargs=True)

    def _in_front(self, place: int) -> Any:
        def read(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if self.reading is None or not self.reading.vectors.count:
                return None
            hidden, *more = given if given else (named["hidden_states"],)
            named = {name: value for name, value in named.items() if name != "hidden_states"}
            keys, reader = self.reading.vectors.layers[place], self.readers[place]
            return (reader(hidden, keys, self.reading.seen, more, named), *more), named

        return read

    def project(self, vectors: Tensor) -> ProjectedVectors:
        """Keys and values of vectors ``(rows, vectors, width)`` in every layer."""
        return ProjectedVectors([reader.project(vectors) for reader in self.readers])

    @classmethod
    def load(cls, core: Any, source: str, settings: VectorSettings) -> VectorReaders:
        """Those of a checkpoint, on its decoder's device and in its number format.

        Raises ``UserError`` for a file that is missing, damaged or another's.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        made, file = cls(core, settings.width), Path(source) / WEIGHTS
        try:
            if sha256_of(file) != settings.weights:
                raise UserError(f"{file}: is not the file that training wrote; copy the whole folder")
            made.load_state_dict(load_file(file))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(f"{file}: cannot be read ({first_line(error)}); copy the whole folder") from None
        return made.eval()

    def save(self, folder: Path) -> str:
        """Write the weights into a checkpoint's folder. Returns the file's SHA-256 in hex."""
        from safetensors.torch import save_file

        file = folder / WEIGHTS
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: p.contiguous() for name, p in self.state_dict().items()}, file)
        return sha256_of(file)

    def counts(self) -> tuple[int, int]:
        """Parameters that every token passes, and those that every vector does."""
        of_vectors = [p for reader in self.readers for p in reader.of_vectors()]
        own = sum(p.numel() for p in of_vectors)
        return sum(p.numel() for p in self.parameters()) - own, own

    def gates(self) -> Iterable[nn.Parameter]:
        """The numbers by which changes are multiplied, a layer each."""
        return [reader.gate for reader in self.readers]
