"""bert-score's tokenizer and encoder: token vectors of texts, whole or in windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from icl_bench.models.text_encoders import Encoder, Reading

if TYPE_CHECKING:
    import torch


class BertScoreModel:
    """The model of an :class:`Encoder`. Its tokenizer and its network are loaded on first use.

    A text that is longer than the window is truncated, as in bert-score, or encoded in consecutive windows if the
    encoder says so.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @cached_property
    def _tokenizer(self) -> Any:
        from bert_score.utils import get_tokenizer

        return get_tokenizer(self.encoder.model)

    @cached_property
    def _untruncated(self) -> Any:
        tokenizer = copy(self._tokenizer)
        tokenizer.model_max_length = 10**9
        return tokenizer

    @cached_property
    def _network(self) -> Any:
        import torch
        from bert_score.utils import get_model

        # a GPU or half precision rounds differently and would change the selection
        return get_model(self.encoder.model, self.encoder.layers).to("cpu", torch.float32)

    @property
    def window(self) -> int:
        """The maximum tokens of one call, including special ones."""
        return int(self._tokenizer.model_max_length)

    @property
    def width(self) -> int:
        """The width of a token's vector."""
        return int(self._network.config.hidden_size)

    @property
    def special(self) -> tuple[int, int]:
        """The ids of the special tokens around a text or window."""
        return self._tokenizer.cls_token_id, self._tokenizer.sep_token_id

    def tokenize(self, text: str) -> list[int]:
        """Return a text's token ids with special tokens around each window; empty for an empty text."""
        ids = self._whole(text)
        if len(ids) <= self.window:
            return ids
        begin, end = ids[:1], ids[-1:]
        step = self.window - 2
        windows = [begin + ids[start : start + step] + end for start in range(1, len(ids) - 1, step)]
        return [token for window in windows for token in window] if self.encoder.windows else windows[0]

    def is_long(self, text: str) -> bool:
        """Whether a text has more tokens than the window."""
        return len(self._whole(text)) > self.window

    def _whole(self, text: str) -> list[int]:
        from bert_score.utils import sent_encode

        ids: list[int] = sent_encode(self._untruncated, text) if text.strip() else []
        return ids if len(ids) > 2 else []  # two of them are special tokens

    def encode(self, batch: Sequence[list[int]]) -> torch.Tensor:
        """Return the concatenated unit vectors of tokenized texts: ``(tokens, width)``."""
        import torch
        from bert_score.utils import bert_encode, padding

        size = self.window
        windows = [ids[start : start + size] for ids in batch for start in range(0, len(ids), size)]
        ids, _, mask = padding(windows, self._tokenizer.pad_token_id)
        hidden = bert_encode(self._network, ids, mask)[mask.bool()]
        return torch.nn.functional.normalize(hidden.float(), dim=-1)

    def f1(self, reference: str, candidate: str) -> float:
        """BERTScore F1 of two non-empty texts, as in bert-score, without its truncation."""
        import numpy as np
        import torch

        tokenized = [self.tokenize(text) for text in (reference, candidate)]
        if not all(tokenized):
            return 0.0
        vectors = [self.encode([ids]) for ids in tokenized]
        weighs = [torch.from_numpy(~np.isin(ids, self.special)) for ids in tokenized]
        similar = vectors[1] @ vectors[0].T
        precision = similar.amax(1)[weighs[1]].mean()
        recall = similar.amax(0)[weighs[0]].mean()
        return float(2 * precision * recall / (precision + recall))

    def reading(self, texts: Iterable[str]) -> Reading:
        """How much of the distinct texts the model reads."""
        return Reading.of(map(self._whole, dict.fromkeys(texts)), self._tokenizer, self.window, self.encoder.windows)
