"""Models of random weights, a tokenizer of single bytes, and prompts for them: no download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from icl_bench.backends.interface import Answer, Decoding
from icl_bench.backends.label_constraint import LabelTrie, label_trie
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.models.architecture import Architecture, architecture_of
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import Ids, PromptSet

LLAMA_2_7B: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 131072,
}
TINY: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 32, "num_key_value_heads": 1},
    "qwen2": {"num_key_value_heads": 4},
    "gemma3_text": {
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 16,
    },
}
LABELS = [f"{color} {thing}" for color in ("red", "blue", "green") for thing in ("card", "order")]


def byte_tokenizer() -> Any:
    """A tokenizer with a token for each byte, and an end of text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>")


def config_of(family: str, **shape: Any) -> Any:
    """A configuration with no special tokens; ``shape`` are its fields."""
    from transformers import AutoConfig

    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return AutoConfig.for_model(family, **special, tie_word_embeddings=False, **shape)


def random_network(config: Any, device: str, dtype: str, seed: int = 3) -> Any:
    """A network of random weights, made where it will be; the same ones on the same device."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def backend_of(network: Any, device: str, dtype: str, **limits: int | None) -> TransformersBackend:
    """The transformers backend around a network, checked as on loading one."""
    where, kind = torch.device(device), getattr(torch, dtype)
    model = LoadedModel(network.to(where, kind), byte_tokenizer(), where, kind)
    check_forward(model)
    return TransformersBackend(model, **limits)


def loaded(folder: Path, device: str, dtype: str) -> TransformersBackend:
    """The transformers backend with a model from a folder."""
    from icl_bench.models.registry import load_tokenizer, resolve

    model = resolve(str(folder))
    return TransformersBackend.load(model.source, load_tokenizer(model), dtype=dtype, device=device)


@contextmanager
def saved(network: Any) -> Iterator[Path]:
    """A folder that holds a network and the tokenizer of bytes, for as long as it is needed."""
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        network.save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        yield Path(folder)


def shape_of(config: Any) -> Architecture:
    """What formulas count with."""
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        config.save_pretrained(folder)
        return architecture_of(folder)


# -- prompts ------------------------------------------------------------------------------------


def ids(count: int, seed: int, vocabulary: int = 256) -> Ids:
    """So many random tokens."""
    return tuple(np.random.default_rng(seed).integers(0, vocabulary, count).tolist())


def prompts_of(demonstrations: int, size: int, queries: int, own: int) -> PromptSet:
    """Queries of ``own`` tokens and fewer, behind the same demonstrations of ``size`` tokens."""
    ends = tuple(1 + size * (i + 1) for i in range(demonstrations))
    prefix = ids(ends[-1], 0)
    suffixes = tuple(ids(own - i % min(4, own), 100 + i) for i in range(queries))
    return PromptSet(prefix, suffixes, ends=(ends,), lead=1)


def own_prompts(queries: int, demonstrations: int, size: int) -> PromptSet:
    """Queries each of which has demonstrations of its own, of which the first is one for all."""
    rng, pool = np.random.default_rng(1), [ids(size, 50 + i) for i in range(2 * demonstrations)]
    own = []
    for i in range(queries):
        places = 1 + rng.permutation(len(pool) - 1)[: demonstrations - 1]
        own.append(sum((pool[0], *(pool[j] for j in places), ids(5 + i % 3, 300 + i)), ()))
    ends = tuple(1 + size * (i + 1) for i in range(demonstrations))
    return PromptSet((7,), tuple(own), ends=(ends,) * queries, lead=1)


def trie_of(tokenizer: Any) -> LabelTrie:
    """The labels' tokens as a tree."""
    return label_trie([tuple(tokenizer(f" {label}\n")["input_ids"]) for label in LABELS])


def answered(backend: Any, prompts: PromptSet, decodings: Sequence[Decoding], pattern: Pattern = FULL) -> list[Answer]:
    """All answers, in the order of the prompts."""
    packs = backend.answer(prompts, range(len(prompts)), decodings, 0, pattern)
    return sorted((answer for pack in packs for answer in pack), key=lambda a: a.index)
