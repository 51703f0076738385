"""A decoder with vector readers in training: its loss, batches and trained weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from icl_bench.backends.transformers.vector_layers import VectorReaders
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.config import layer_windows
from icl_bench.models.vector_encoder import VectorEncoder
from icl_bench.training.head_loss import IGNORED, summed_loss
from icl_bench.training.operations import keys_of_layers
from icl_bench.training.vectors.examples import VectorRow

COUNTS = (
    "tokens",
    "vectors_read",
    "padded_tokens",
    "padded_vectors",
    "reading_tokens",
    "keys_seen",
    "vectors_seen",
    "predicted_tokens",
)
"""Tokens and vectors without padding; then computed amounts including padding: tokens, vectors, tokens of batches with
vectors, pairs of a token and a key, and of a token and a vector, in all layers, and tokens whose logits are computed.
"""


class VectorModel(nn.Module):
    """A decoder, vector readers in front of its layers, and the encoder if it is trained."""

    def __init__(
        self,
        network: Any,
        readers: VectorReaders | None,
        encoder: VectorEncoder,
        trained: Any | None,
        known: Mapping[str, Tensor],
        *,
        of_all: bool = False,
    ) -> None:
        """``readers`` is None without vectors; ``trained`` is a copy of the encoder's network; ``known`` has the
        encoder's vector of each text. With ``of_all``, the loss includes the prompts' tokens, and few logits are in
        memory at once.
        """
        super().__init__()
        self.network, self.readers, self.trained = network, readers, trained
        self._encoder, self._known, self._of_all = encoder, known, of_all
        self._spans = FULL.spans(layer_windows(network.config.get_text_config()))
        self.counts = dict.fromkeys(COUNTS, 0)
        """Training data so far, by ``COUNTS``."""

    @property
    def gates(self) -> list[nn.Parameter]:
        """The readers' gates."""
        return [] if self.readers is None else list(self.readers.gates())

    @property
    def added(self) -> tuple[int, int]:
        """Numbers of weights in added matrices that each token, and each vector, passes through."""
        return (0, 0) if self.readers is None else self.readers.counts()

    @property
    def projectors(self) -> int:
        """Weights of the added matrices that multiply the encoder's vectors."""
        return 0 if self.readers is None else sum(r.projector.weight.numel() for r in self.readers.readers)

    def _vectors(self, texts: Sequence[Sequence[str]], readers: VectorReaders) -> tuple[Tensor, Tensor]:
        """Vectors of each row, ``(rows, vectors, width)``, and a mask of existing ones."""
        device, width = readers.readers[0].gate.device, readers.width
        most = max(map(len, texts))
        seen = torch.tensor([[i < len(row) for i in range(most)] for row in texts], device=device)
        flat = [text for row in texts for text in row]
        if self.trained is not None and next(self.trained.parameters()).requires_grad:
            encoded = self._encoder.encode(flat, self.trained)
        else:
            encoded = torch.stack([self._known[text] for text in flat])
        vectors = torch.zeros(len(texts), most, width, device=device)
        vectors[seen] = encoded.to(device).float()
        return vectors, seen

    def _count(self, attention_mask: Tensor, labels: Tensor, texts: Sequence[Sequence[str]]) -> None:
        """Add a batch to the counts."""
        (rows, width), vectors = attention_mask.shape, list(map(len, texts))
        added = (
            int(attention_mask.sum()),
            sum(vectors),
            rows * width,
            rows * max(vectors),
            rows * width if any(vectors) else 0,
            sum(keys_of_layers(self._spans, None, tokens) for tokens in attention_mask.sum(-1).tolist()),
            len(self._spans) * width * sum(vectors),
            int((labels != IGNORED).sum()) if self._of_all else rows * (labels.shape[1] + 1),
        )
        for name, count in zip(COUNTS, added, strict=True):
            self.counts[name] += count

    def learnt(self) -> dict[str, Tensor]:
        """All weights that training changes, now or later."""
        weights: dict[str, Tensor] = {n: p for n, p in self.named_parameters() if p.requires_grad}
        if self.trained is not None:
            weights |= {f"trained.{name}": p for name, p in self.trained.named_parameters()}
        return weights

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, texts: Sequence[Sequence[str]]
    ) -> dict[str, Tensor]:
        """Mean loss of the labelled tokens.

        Ids are ``(rows, tokens)``, padded on the left, answers last; ``labels`` are the last tokens of each row,
        ``(rows, most labelled tokens)``, with :data:`IGNORED` before them.
        """
        if self.training:
            self._count(attention_mask, labels, texts)
        if self.readers is not None:
            self.readers.reading = None
            if any(texts):
                vectors, seen = self._vectors(texts, self.readers)
                self.readers.reading = self.readers.project(vectors, seen[:, None])
        positions = (attention_mask.cumsum(-1) - 1).clamp_min(0)
        read = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": positions, "use_cache": False}
        if self._of_all:
            taken = labels != IGNORED
            hidden = self.network.get_decoder()(**read).last_hidden_state[:, :-1]
            total = summed_loss(self.network, hidden[:, -labels.shape[1] :][taken], labels[taken])
            return {"loss": total / taken.sum()}
        logits = self.network(**read, logits_to_keep=labels.shape[1] + 1).logits[:, :-1]
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return {"loss": loss}


def collated(rows: Sequence[VectorRow], pad: int, loss: str = "answer") -> dict[str, Any]:
    """A batch for :class:`VectorModel`.

    Labels are the answers, or with the loss of a ``sequence`` all tokens after the first, which cannot be predicted
    (Chen et al. 2024, equation 2).
    """
    whole = [(*row.prompt, *row.answer) for row in rows]
    learnt = [both[1:] if loss == "sequence" else row.answer for row, both in zip(rows, whole, strict=True)]
    width, length = max(map(len, whole)), max(map(len, learnt))
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    labels = torch.full((len(rows), length), IGNORED)
    for place, (both, last) in enumerate(zip(whole, learnt, strict=True)):
        ids[place, width - len(both) :] = torch.tensor(both)
        mask[place, width - len(both) :] = 1
        labels[place, length - len(last) :] = torch.tensor(last)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "texts": [list(row.texts) for row in rows]}
