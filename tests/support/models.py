"""Small tokenizers and models of the real kinds, and plain references to compare with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import Ids, PromptSet

CORPUS = (
    "query: where is my new card?\nintent: card arrival\n==\nquery: I still wait for a transfer",
    "Question: What is a thyroid ?\nType: description\n==\nQuestion: Who was the first ?\nType: human",
    "docstring: Return the number of bytes written.\nmodule: io\n\n\nutterance: play the music",
    "Conversation: Amanda: I baked cookies. Do you want some?\r\nJerry: Sure!\nSummary: A gives J one",
    "order status, order, Einkommen, état, naïve, 中文 字, {brace} (paren) a.b*c+d? <tag> [x]",
)


@dataclass(frozen=True)
class Row:
    """An example as a prompt needs it."""

    answer: str
    fields: Mapping[str, str] = field(default_factory=dict)
    worked: str = ""


def _merges(pre_tokenizer: Any, alphabet: Sequence[str], size: int) -> tuple[list[str], list[Any]]:
    """Train byte-pair merges on a few lines of prompts: pieces in order, and merges."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(alphabet), show_progress=False)
    learner.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(learner.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    return pieces, [tuple(merge) for merge in model["merges"]]


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def gpt2_tokenizer(**settings: Any) -> Any:
    """Byte-level, GPT-2's splits: a run of line breaks is split by what follows it."""
    from transformers import GPT2Tokenizer

    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces, merges = _merges(split, pre_tokenizers.ByteLevel.alphabet(), 420)
    return GPT2Tokenizer(vocab=_numbered([*pieces, "<|endoftext|>"]), merges=merges, **settings)


def qwen_tokenizer(**settings: Any) -> Any:
    """Byte-level, Qwen's splits and NFC, without BOS."""
    from transformers import Qwen2Tokenizer

    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces, merges = _merges(split, pre_tokenizers.ByteLevel.alphabet(), 420)
    return Qwen2Tokenizer(vocab=_numbered([*pieces, "<|endoftext|>"]), merges=merges, **settings)


def llama_tokenizer(**settings: Any) -> Any:
    """SentencePiece-like, as Llama 2's: a space before the text, single bytes for the rest."""
    from transformers import LlamaTokenizer

    lines = pre_tokenizers.Split("\n", "removed")  # as in Llama 2, a line break is a byte token
    split = pre_tokenizers.Sequence([lines, pre_tokenizers.Metaspace()])
    pieces, merges = _merges(split, (), 300)
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = _numbered(["<unk>", "<s>", "</s>", *single, *pieces])
    return LlamaTokenizer(vocab=vocabulary, merges=merges, **settings)


def tokenized(tokenizer: Any, text: str) -> Ids:
    """The tokenizer's own ids of a text, with none of its special tokens."""
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=True)
    return tuple(encoded["input_ids"])


# -- tiny models --------------------------------------------------------------------------------

WINDOW = 8
FAMILIES = ("llama", "mistral", "qwen2", "gemma3_text")


def random_ids(count: int, seed: int) -> Ids:
    return tuple(np.random.default_rng(seed).integers(0, 400, count).tolist())


def tiny_config(kind: str, vocabulary: int) -> Any:
    """A model of two to four layers with random weights that tell positions and keys apart."""
    from transformers import AutoConfig

    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    own: dict[str, dict[str, Any]] = {
        "llama": {},
        "mistral": {"sliding_window": WINDOW, "num_key_value_heads": 1},
        "qwen2": {"num_key_value_heads": 4},
        "gemma3_text": {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 16,
            "tie_word_embeddings": True,
        },
    }
    return AutoConfig.for_model(kind, **{**shape, **own[kind]})


def tiny_checkpoint(folder: Path, family: str = "llama", tokenizer: Any = None) -> Path:
    """A folder with a tiny model of random weights and a tokenizer, Qwen's where no other is given."""
    tokenizer = tokenizer or qwen_tokenizer()
    save_tiny_model(tiny_config(family, len(tokenizer)), folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny_model(config: Any, folder: Path) -> Path:
    """Make a model of random weights from a config and save it."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name or name.endswith("bias"):
                    weight.normal_(0.2, 0.3)  # else these are all 0 or 1 and cannot be wrong
    model.save_pretrained(folder)
    return folder


def plain_model(folder: Path) -> Any:
    """The library's own model, attention written out."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def plain_logits(model: Any, ids: Ids, last: int = 0) -> Any:
    """Logits behind every token of one sequence, by one forward pass: ``(tokens, vocabulary)``.

    ``last`` asks for those behind so many last tokens only.
    """
    import torch

    with torch.inference_mode():
        output = model(torch.tensor([ids]), use_cache=False, logits_to_keep=last)
        return output.logits[0].float()


class PlainDecoding:
    """A sequence that grows token by token, by the library's own model and its own cache."""

    def __init__(self, model: Any, ids: Ids) -> None:
        self._model, self._cache = model, None
        self.append(*ids)

    def copy(self) -> PlainDecoding:
        """The same sequence, to go on in another way."""
        other = object.__new__(PlainDecoding)
        other._model, other._cache, other.logits = self._model, deepcopy(self._cache), self.logits
        return other

    def append(self, *ids: int) -> None:
        """Compute these tokens; ``logits`` are then those behind the last one, ``(vocabulary,)``."""
        import torch

        with torch.inference_mode():
            output = self._model(torch.tensor([ids]), past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._cache, self.logits = output.past_key_values, output.logits[0, -1].float()


def packed_logits(backend: Any, prompts: PromptSet, pattern: Pattern = FULL, reserve: int = 0) -> Any:
    """Logits of every query's end, all packed over the shared prefix: ``(queries, vocabulary)``."""
    from icl_bench.backends.transformers.packed_decoding import OpenPack

    backend.load_prefix(prompts, reserve, pattern)
    return backend.model.head.logits(OpenPack(backend.cache, prompts.suffixes, 0).ends)
