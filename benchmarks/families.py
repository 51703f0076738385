"""Which decoder families of transformers the transformers backend computes: a table, by tiny checkpoints.

    python benchmarks/families.py [--only llama,qwen2] [--docs docs/models.md]

For every family that the installed transformers library has a causal language model of, a checkpoint
of a few layers with random weights is built, loaded as ``--model`` is, and held to the library's own
forward pass on prompts longer than its windows, in float32. With ``--docs``, their lines in the table of
that page are replaced. Exits with 1 if a family is computed wrongly or ends in an error that names
nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests"))

WINDOW, VOCABULARY, LAYERS = 8, 300, 4
PROMPT, SUFFIXES = 50, (5, 9, 1)
"""Tokens of the shared prefix, and of each query: several windows."""

SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id")

BOUND = 1e-3
"""The largest difference of logits, in standard deviations of the model's own."""

SECONDS, LARGEST = 90, 20_000_000
"""A family that takes longer, or a checkpoint of more parameters, is given up."""

SIZES: Sequence[tuple[int, str]] = (
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers"),
    (4, "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads num_heads"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts linear_num_value_heads index_n_heads"),
    (2, "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts n_group topk_group encoder_layers"),
    (2, "num_key_value_heads num_kv_heads multi_query_group_num linear_num_key_heads num_global_key_value_heads"),
    (8, "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim linear_key_head_dim linear_value_head_dim d_kv"),
    (8, "kv_channels index_head_dim global_head_dim swa_head_dim index_topk attention_head_size"),
    (16, "q_lora_rank kv_lora_rank moe_intermediate_size hidden_size_per_layer_input"),
    (32, "hidden_size n_embd d_model embedding_size embedding_dim"),
    (48, "intermediate_size ffn_hidden_size n_inner decoder_ffn_dim encoder_ffn_dim dim_ff ffn_dim"),
    (48, "shared_expert_intermediate_size dense_intermediate_size"),
    (VOCABULARY, "vocab_size vocab_size_per_layer_input"),
    (512, "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length"),
    (WINDOW, "sliding_window attention_window local_window_size window_size"),
)
"""Values of a tiny checkpoint, and the names of the fields that have them if a family has the field."""

KINDS = ["sliding_attention", "full_attention"] * (LAYERS // 2)

BY_LAYER = {"layer_types": KINDS, "head_dim": 8, "global_head_dim": 16, "num_key_value_heads": 2}

MAMBA: Mapping[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 8}

OWN: Mapping[str, Mapping[str, Any]] = {
    "bamba": MAMBA,
    "dots1": {"moe_intermediate_size": 16, "n_shared_experts": 1},
    "gemma3n_text": {
        "layer_types": KINDS,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0] * LAYERS,
        "intermediate_size": [48] * LAYERS,
    },
    "gemma4_text": {**BY_LAYER, "num_kv_shared_layers": 2},
    "gemma4_unified_text": BY_LAYER,
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]]},
    "granitemoehybrid": MAMBA,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "moe_topk": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_block_size": 8},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 32]},
}
"""What a family needs beside these: sizes that depend on each other, or a feature that is off by default."""


@dataclass(frozen=True)
class Outcome:
    """What became of a family."""

    family: str
    architecture: str
    state: str
    """``computed``, ``refused``, ``wrong``, ``failed`` (an error that is no refusal) or ``not built``."""
    detail: str
    """The largest difference, the refusal, or the error, in one line."""


def tiny_config(family: str) -> Any:
    """A configuration of a few layers, with a layer of every kind that the default has."""
    from transformers import CONFIG_MAPPING

    default = CONFIG_MAPPING[family]().get_text_config(decoder=True)
    values = default.to_dict()
    fields: dict[str, Any] = {
        name: size for size, names in SIZES for name in names.split() if isinstance(values.get(name), int)
    }
    fields |= {name: i for i, name in enumerate(SPECIAL) if isinstance(values.get(name), int)}
    for name, value in values.items():
        if name.endswith(("layer_types", "layers_block_type")) and isinstance(value, list):
            fields[name] = (list(dict.fromkeys(value)) * LAYERS)[:LAYERS]
    if "kv_lora_rank" in fields:  # all heads have keys of their own
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    switches = {"initializer_range": 0.3, "is_decoder": True}
    fields |= {name: value for name, value in switches.items() if name in values}
    return type(default)(**{**fields, **OWN.get(family, {})})


def save_checkpoint(family: str, folder: Path) -> str:
    """Write a checkpoint of random weights. Returns the name of its class."""
    import torch
    from support.models import save_tiny_model
    from transformers import AutoModelForCausalLM

    config = tiny_config(family)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters: its sizes have other names")
    save_tiny_model(config, folder)
    (architecture,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    return str(architecture)


def tokenizer() -> Any:
    """A tokenizer that the backend only counts the vocabulary of."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {str(i): i for i in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="0")))


def difference(folder: Path) -> float:
    """The largest difference of the backend's logits from the library's, in their standard deviations.

    Raises ``UserError`` if the backend refuses the model.
    """
    import numpy as np
    import torch
    from support.models import packed_logits, plain_model

    from icl_bench.backends.transformers.backend import TransformersBackend
    from icl_bench.prompts.encoding import PromptSet

    backend = TransformersBackend.load(folder, tokenizer(), dtype="float32", device="cpu", chunk_tokens=9)
    random = np.random.default_rng(1)
    prefix, *suffixes = (tuple(random.integers(1, VOCABULARY, size).tolist()) for size in (PROMPT, *SUFFIXES))
    prompts = PromptSet(prefix, tuple(suffixes))
    found, own = packed_logits(backend, prompts), plain_model(folder)
    with torch.inference_mode():
        expected = torch.stack(
            [own(torch.tensor([prompts.ids(i)]), use_cache=False).logits[0, -1] for i in range(len(prompts))]
        )
    return float((found - expected).abs().max() / expected.std())


def outcome(family: str) -> Outcome:
    """Build, load and compare one family."""
    from icl_bench.errors import UserError

    with tempfile.TemporaryDirectory() as folder:
        try:
            name = save_checkpoint(family, Path(folder))
        except Exception as error:
            return Outcome(family, "", "not built", _line(error))
        try:
            apart = difference(Path(folder))
        except UserError as error:
            return Outcome(family, name, "refused", str(error).replace(folder, "folder"))
        except Exception as error:
            return Outcome(family, name, "failed", _line(error))
    return Outcome(family, name, "computed" if apart <= BOUND else "wrong", f"{apart:.1e}")


def _line(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:200]


def _send(family: str, pipe: Any) -> None:
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    pipe.send(outcome(family))


def outcomes(families: list[str]) -> Iterator[Outcome]:
    """Each in a process of its own, so that none can stop the others."""
    import torch  # noqa: F401 - imported once for all
    import transformers  # noqa: F401

    processes = multiprocessing.get_context("fork")
    for family in families:
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(target=_send, args=(family, sender))
        process.start()
        sender.close()
        try:
            yield receiver.recv() if receiver.poll(SECONDS) else Outcome(family, "", "failed", f"took over {SECONDS} s")
        except EOFError:
            yield Outcome(family, "", "failed", "its process ended")
        finally:
            process.kill()
            process.join()


START, END = "<!-- families -->", "<!-- end of families -->"


def row(one: Outcome) -> str:
    """A family's line of the table, in Markdown."""
    from icl_bench.backends.vllm.architectures import LISTED

    reason = re.search(r"does not compute it \((.*)\); vLLM", one.detail)
    said = {"computed": "yes", "refused": f"no: {reason[1] if reason else one.detail}"}.get(one.state, one.state)
    vllm = "" if not one.architecture else "yes" if one.architecture in LISTED else "not listed"
    return f"| `{one.family}` | {said.replace('|', ' ')} | {vllm} |"


def with_rows(page: str, found: Sequence[Outcome]) -> str:
    """The page with these families' lines replaced or added, and the others as they are."""
    from importlib.metadata import version

    from icl_bench.backends.vllm.architectures import LISTED_VERSION

    before, _, rest = page.partition(START)
    old, _, after = rest.partition(END)
    rows = {line.split("`")[1]: line for line in old.splitlines() if line.startswith("| `")}
    rows |= {one.family: row(one) for one in found}
    says = [line.split(" | ")[1] for line in rows.values()]
    built = [said for said in says if said != "not built"]
    lines = [
        f"transformers {version('transformers')}: of {len(built)} families, {built.count('yes')} are computed. "
        f"{len(says) - len(built)} have no tiny checkpoint.",
        "",
        f"| family | `--backend transformers` | vLLM {LISTED_VERSION} |",
        "| --- | --- | --- |",
        *(rows[name] for name in sorted(rows)),
    ]
    table = "\n".join(lines)
    return f"{before}{START}\n\n{table}\n\n{END}{after}"


def main() -> int:
    """Compare all families and print a line for each. Returns 1 if one is wrong or fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="families, with commas (default: all)")
    parser.add_argument("--docs", type=Path, help="the page whose table gets these families' lines")
    arguments = parser.parse_args()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = []
    names = arguments.only.split(",") if arguments.only else sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for one in outcomes(names):
        print(one.family, one.architecture, one.state, one.detail, sep=" | ", flush=True)
        found.append(one)
    if arguments.docs:
        page = arguments.docs.read_text(encoding="utf-8")
        arguments.docs.write_text(with_rows(page, found), encoding="utf-8")
    return int(any(one.state in ("wrong", "failed") for one in found))


if __name__ == "__main__":
    sys.exit(main())
