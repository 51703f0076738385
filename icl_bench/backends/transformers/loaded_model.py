"""A decoder of the transformers library in memory: its forward pass.

Its attention is replaced through ``AttentionInterface``: every layer calls the step that is passed
through the model (:mod:`icl_bench.backends.transformers.attention_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from icl_bench.backends.device import choose_device, dtype_name
from icl_bench.backends.transformers.attention_steps import Pack, Step
from icl_bench.backends.transformers.checkpoint import load_network
from icl_bench.backends.transformers.cpu_layers import refit
from icl_bench.backends.transformers.last_layer import shorten
from icl_bench.backends.transformers.output_head import OutputHead
from icl_bench.backends.transformers.vector_layers import VectorReaders
from icl_bench.errors import CellError, UserError
from icl_bench.models.config import layer_widths, layer_windows
from icl_bench.models.memory import memory_errors_as_user_errors
from icl_bench.models.rotary_positions import OWN_POSITIONS, RotaryPositions
from icl_bench.models.vector_encoder import VectorEncoder, vector_settings_of
from icl_bench.prompts.encoding import Ids
from icl_bench.quiet_libraries import spare_imports

ATTENTION_NAME = "icl_bench"
"""The name of this backend's attention in the transformers library."""

OWN_ATTENTION = "sdpa"
"""The library's attention that models are loaded with."""


_IDLE_OPTIONS = frozenset({"dropout", "position_ids", "use_cache", "cache_position", "past_key_values"})
"""Arguments of attention functions that have no effect without training and without the library's cache."""

_IDLE_VALUES: Mapping[str, Any] = {"is_causal": True, "output_attentions": False, "output_router_logits": False}
"""Arguments that have no effect at this value."""


class OtherAttentionError(Exception):
    """A model's attention is of a kind that this backend does not compute; the message says why."""


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    step: Step | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of every layer. The step determines which keys are visible.

    Raises ``OtherAttentionError`` for an argument that would change the result.
    """
    if step is None:
        raise OtherAttentionError("it does not pass options to its attention layers")
    if attention_mask is not None:
        raise OtherAttentionError("its attention uses its own mask")
    for name, value_given in options.items():
        if value_given is not None and name not in _IDLE_OPTIONS and value_given is not _IDLE_VALUES.get(name):
            raise OtherAttentionError(f"its attention has the argument {name!r}, which is not supported")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    out = step.layer(module.layer_idx, query, key, value, scale, sliding_window or None)
    return out.transpose(1, 2).contiguous(), None


def _check_vocabulary(source: str, network: Any, tokenizer: Any) -> None:
    """Raise ``UserError`` if the tokenizer has tokens that the model does not have."""
    rows = len(network.get_input_embeddings().weight)
    added = tokenizer.added_tokens_decoder
    largest = max((i for i in tokenizer.get_vocab().values() if i not in added), default=0)
    if largest >= rows:
        raise UserError(
            f"model {source}: its tokenizer counts up to token {largest:,}, and its weights have "
            f"{rows:,} tokens: they belong to different models; use the tokenizer's files that were "
            "saved with the weights"
        )


class LoadedModel:
    """A decoder with its tokenizer, on one device."""

    def __init__(self, network: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> None:
        """``network`` is the library's model with a head, on this device and in this dtype."""
        self.network, self.tokenizer = network, tokenizer
        self.device, self.dtype = device, dtype
        self.core = network.get_decoder()
        self.readers: VectorReaders | None = None
        """The readers of vectors, for a model that was trained to read them."""
        self._vectors: VectorEncoder | None = None
        self._encoded: dict[str, Tensor] = {}
        self.peak_vector_bytes = 0
        """Peak bytes of keys and values of vectors since this was set to 0."""
        self._owners: Tensor | None = None
        """The row of a pack that each vector belongs to, if rows have their own vectors."""
        self.head = OutputHead(network, device, dtype)

    @classmethod
    def load(
        cls,
        source: str | Path,
        tokenizer: Any,
        revision: str | None,
        dtype: str,
        device: str | None,
        positions: RotaryPositions = OWN_POSITIONS,
    ) -> LoadedModel:
        """Read a model from a folder or the hub. Raises ``UserError``."""
        spare_imports()
        from transformers import AutoModelForCausalLM

        where = choose_device(device)
        kind = getattr(torch, dtype_name(dtype, where.type))
        other = {}
        if positions.facts():
            other["config"] = positions.config(str(source), revision)
        network = load_network(
            AutoModelForCausalLM,
            str(source),
            revision=revision or "main",
            dtype=kind,
            attn_implementation=OWN_ATTENTION,
            **other,
        )
        _check_vocabulary(str(source), network, tokenizer)
        with memory_errors_as_user_errors(source):
            loaded = cls(network.to(where).eval(), tokenizer, where, kind)
            if (settings := vector_settings_of(str(source))) is not None:
                loaded.readers = VectorReaders.load(loaded.core, str(source), settings)
                loaded._vectors = VectorEncoder.of_checkpoint(str(source), settings)
        return loaded

    @property
    def config(self) -> Any:
        """The configuration of its text part."""
        return self.network.config.get_text_config()

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's attention window in tokens; None for all."""
        return layer_windows(self.config)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        layers, widths = self.config.num_hidden_layers, layer_widths(self.config)
        return int(2 * sum(key for _, key in widths) / len(widths) * layers * self.dtype.itemsize)

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end generation."""
        ids = getattr(self.network.generation_config, "eos_token_id", None)
        ids = ids if isinstance(ids, list) else [ids]
        return frozenset(int(i) for i in [*ids, self.tokenizer.eos_token_id] if i is not None)

    def tokens(self, ids: Sequence[int]) -> Tensor:
        """Token ids on the model's device, ``(tokens,)``.

        Raises ``CellError`` if the model has no embedding for one of them, for example a special
        token that was only added to the tokenizer. On a GPU, this would end the program.
        """
        largest, rows = max(ids, default=0), self.network.get_input_embeddings().weight.shape[0]
        if largest >= rows:
            raise CellError(
                f"the prompt has token {largest:,}, and the model has weights of {rows:,} tokens: "
                "take the tokenizer's files that were saved with the weights"
            )
        return torch.tensor(ids, device=self.device)

    @torch.inference_mode()
    def plain_logits(self, ids: Ids, places: list[int]) -> Tensor:
        """Logits at some positions by the library's own forward pass: ``(places, vocabulary)``.

        Only with the library's attention.
        """
        tokens = self.tokens(ids)
        logits: Tensor = self.network(tokens[None], use_cache=False).logits[0, places].float()
        return logits

    def encode_texts(self, texts: Iterable[str]) -> None:
        """Encode all texts that a cell's prompts read as vectors.

        Raises ``UserError`` if the encoder cannot be loaded, ``CellError`` if the model does not
        read vectors.
        """
        if self._vectors is None:
            raise CellError("this model was not trained to read vectors (train-vectors)")
        self._encoded = self._vectors.tensors(texts)

    @torch.inference_mode()
    def read_vectors(self, texts: Sequence[str]) -> None:
        """From now on, all tokens read these texts as vectors. Without texts, they read only text.

        The texts must be encoded (:meth:`encode_texts`).
        """
        self._owners = None
        if self.readers is None:
            return
        self.readers.reading = None
        if texts:
            vectors = torch.stack([self._encoded[text] for text in texts])
            self.readers.reading = self.readers.project(vectors[None].to(self.device, self.dtype))
            self.peak_vector_bytes = max(self.peak_vector_bytes, self.readers.reading.nbytes())

    def read_own_vectors(self, texts: Sequence[Sequence[str]]) -> None:
        """From now on, tokens of a pack read the vectors of their row's ``texts``."""
        self.read_vectors([text for row in texts for text in row])
        owners = [number for number, row in enumerate(texts) for _ in row]
        self._owners = torch.tensor(owners, device=self.device) if owners else None

    def _restrict_to_own_vectors(self, step: Step) -> None:
        """Make each token of a step see only the vectors of its row."""
        if self._owners is None or self.readers is None or self.readers.reading is None:
            return
        assert isinstance(step, Pack), "only packs have rows"
        visible = step.rows[:, None] == self._owners
        self.readers.reading = replace(self.readers.reading, seen=visible[None])

    def replace_attention(self) -> None:
        """From now on, layers use a step's attention."""
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION_NAME, _attention)
        self.network.set_attn_implementation(ATTENTION_NAME)

    def restore_attention(self) -> None:
        """From now on, layers use the library's attention again."""
        self.network.set_attn_implementation(OWN_ATTENTION)

    def take_over(self) -> None:
        """From now on, layers use a step's attention.

        On a CPU, layers are also replaced by faster ones
        (:mod:`icl_bench.backends.transformers.cpu_layers`).
        """
        if self.device.type == "cpu":
            self.restore_attention()  # layers are compared without a step
            refit(self.core, self.dtype)
        self.replace_attention()

    def shorten_last_layer(self) -> Callable[[], None]:
        """From now on, the last layer is computed only for tokens whose hidden states are read.

        Returns a function that undoes this. A decoder whose blocks are not called ``layers`` (GPT-2)
        is not changed.
        """
        layers = getattr(self.core, "layers", None)
        return shorten(layers[-1]) if layers else lambda: None

    @torch.inference_mode()
    def forward(self, tokens: Tensor, positions: Tensor, step: Step) -> Tensor:
        """Last hidden states of concatenated tokens: ``(tokens, hidden)``.

        With a shortened last layer, only those of the tokens that the step reads.
        """
        self._restrict_to_own_vectors(step)
        output = self.core(input_ids=tokens[None], position_ids=positions[None], use_cache=False, step=step)
        hidden: Tensor = output.last_hidden_state[0]
        return hidden
