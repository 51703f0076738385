"""A decoder that reads vectors in addition to its text (Vec-RA; Chen et al. 2024, sections 2.2 and 4.1).

A reader before every layer has a projector (encoder width to model width), cross-attention (query:
the layer's input; keys and values: the projected vectors) and an MLP. Attention and MLP are
initialised with the layer's weights. Details that the paper does not specify are chosen so that the
untrained model's answers hardly change:

- The reader is a copy of the whole layer, with its norms and residuals, whose self-attention reads
  vectors instead of tokens. Its change is multiplied by a trained number, initially :data:`GATE`
  (Alayrac et al. 2022 start at 0, where most weights have no gradient), and added.
- A projected vector passes through the norm that tokens pass through before the layer's attention.
- Vectors are a set: neither vectors nor queries are rotated to positions.
- A token without vectors is not changed.
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
"""The initial factor of a reader's change of its layer's input."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class VectorReading:
    """The vectors that a model reads in its next calls, projected once for all tokens that read them."""

    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values of each layer: ``(rows, key_heads, vectors, head_dim)`` each."""
    seen: Tensor | None = None
    """Which token sees which vectors: bool ``(rows, tokens or 1, vectors)``; None for all of its
    row."""

    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(x.nbytes for pair in self.layers for x in pair)


class CrossAttention(nn.Module):
    """A layer's attention with projected vectors as keys and values, without positions."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    q_norm: nn.Module | None
    k_norm: nn.Module | None

    def __init__(self, attention: Any) -> None:
        """``attention`` is a copy of a layer's self-attention. Raises ``UserError`` if unsupported."""
        super().__init__()
        if any(not isinstance(getattr(attention, name, None), nn.Module) for name in PROJECTIONS):
            raise UserError(
                f"{type(attention).__name__} cannot read vectors: its attention is not made of "
                + ", ".join(PROJECTIONS)
            )
        for name in PROJECTIONS:
            setattr(self, name, getattr(attention, name))
        self.head_dim = int(attention.head_dim)
        self.scaling = float(getattr(attention, "scaling", self.head_dim**-0.5))
        self.q_norm, self.k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.keys: tuple[Tensor, Tensor] | None = None
        self.seen: Tensor | None = None

    def _heads(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Split into heads, ``(rows, heads, tokens, head_dim)``, with a norm per head or before it."""
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
        """The signature of a layer's attention: ``(rows, tokens, hidden)``."""
        assert self.keys is not None
        query = self._heads(self.q_proj(hidden_states), self.q_norm)
        key, value = (x.expand(len(query), *x.shape[1:]).to(query.dtype) for x in self.keys)
        mask = None
        if self.seen is not None:  # tokens that see nothing are dropped later
            mask = (self.seen | ~self.seen.any(-1, keepdim=True))[:, None]
        out = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=self.scaling, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None


class LayerReader(nn.Module):
    """Reads vectors before one layer."""

    layer: Any
    """The copy, with cross-attention."""

    def __init__(self, layer: Any, width: int) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        attention = self.layer.self_attn
        self.layer.self_attn = CrossAttention(attention)
        weight = attention.k_proj.weight
        self.projector = nn.Linear(width, weight.shape[1], device=weight.device, dtype=weight.dtype)
        norm = getattr(layer, "input_layernorm", None)
        self.norm = nn.Identity() if norm is None else copy.deepcopy(norm)
        self.gate = nn.Parameter(torch.tensor(GATE, device=weight.device, dtype=torch.float32))

    def project(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of vectors ``(rows, vectors, width)``."""
        attention: CrossAttention = self.layer.self_attn
        return attention.project(self.norm(self.projector(vectors)))

    def of_vectors(self) -> Iterable[nn.Parameter]:
        """The weights that only vectors pass through."""
        attention = self.layer.self_attn
        for part in (self.projector, self.norm, attention.k_proj, attention.v_proj, attention.k_norm):
            if part is not None:
                yield from part.parameters()

    def forward(
        self,
        hidden: Tensor,
        keys: tuple[Tensor, Tensor],
        visible: Tensor | None,
        arguments: Sequence[Any],
        keyword_arguments: dict[str, Any],
    ) -> Tensor:
        """The layer's input ``(rows, tokens, hidden)`` with the change from the vectors.

        ``arguments`` and ``keyword_arguments`` are the layer's other arguments.
        """
        self.layer.self_attn.keys, self.layer.self_attn.seen = keys, visible
        layer_input = hidden.to(self.projector.weight.dtype)
        changed = self.layer(layer_input, *arguments, **keyword_arguments)
        changed = changed[0] if isinstance(changed, tuple) else changed
        change = self.gate * (changed - layer_input).float()
        if visible is not None:
            change = change * visible.any(-1, keepdim=True)
        out: Tensor = hidden + change.to(hidden.dtype)
        return out


class VectorReaders(nn.Module):
    """The readers of all layers of a decoder, called before each layer.

    They are not part of the decoder's weights, so its checkpoint stays an ordinary one.
    """

    def __init__(self, core: Any, width: int) -> None:
        """``core`` is the decoder without its head, ``width`` the width of a vector.

        Raises ``UserError`` if the model's layers are not supported.
        """
        super().__init__()
        self.width = width
        readers = [LayerReader(layer, width) for layer in core.layers]
        self.readers: Sequence[LayerReader] = nn.ModuleList(readers)  # type: ignore[assignment]
        self.reading: VectorReading | None = None
        """The vectors of the decoder's next calls; None for text only."""
        for place, layer in enumerate(core.layers):
            layer.register_forward_pre_hook(self._in_front(place), with_kwargs=True)

    def _in_front(self, place: int) -> Any:
        def read(_: Any, arguments: tuple[Any, ...], keyword_arguments: dict[str, Any]) -> Any:
            if self.reading is None or not self.reading.layers[0][0].shape[2]:
                return None
            hidden, *rest = arguments if arguments else (keyword_arguments["hidden_states"],)
            keyword_arguments = {name: value for name, value in keyword_arguments.items() if name != "hidden_states"}
            keys, reader = self.reading.layers[place], self.readers[place]
            return (reader(hidden, keys, self.reading.seen, rest, keyword_arguments), *rest), keyword_arguments

        return read

    def project(self, vectors: Tensor, seen: Tensor | None = None) -> VectorReading:
        """The reading of vectors ``(rows, vectors, width)`` in every layer."""
        return VectorReading([reader.project(vectors) for reader in self.readers], seen)

    @classmethod
    def load(cls, core: Any, source: str, settings: VectorSettings) -> VectorReaders:
        """Load a checkpoint's readers, on its decoder's device and in its dtype.

        Raises ``UserError`` for a file that is missing, damaged or from another checkpoint.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        readers, file = cls(core, settings.width), Path(source) / WEIGHTS
        try:
            if sha256_of(file) != settings.weights:
                raise UserError(f"{file}: differs from the file that training wrote; copy the whole folder")
            readers.load_state_dict(load_file(file))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(f"{file}: cannot be read ({first_line(error)}); copy the whole folder") from None
        return readers.eval()

    def save(self, folder: Path) -> str:
        """Write the weights into a checkpoint's folder. Returns the file's SHA-256 in hex."""
        from safetensors.torch import save_file

        file = folder / WEIGHTS
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: p.contiguous() for name, p in self.state_dict().items()}, file)
        return sha256_of(file)

    def counts(self) -> tuple[int, int]:
        """The numbers of parameters that every token and every vector pass through."""
        of_vectors = [p for reader in self.readers for p in reader.of_vectors()]
        vector_parameters = sum(p.numel() for p in of_vectors)
        return sum(p.numel() for p in self.parameters()) - vector_parameters, vector_parameters

    def gates(self) -> Iterable[nn.Parameter]:
        """The factor of each layer's change."""
        return [reader.gate for reader in self.readers]
