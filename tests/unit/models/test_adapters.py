"""Folders of adapters run as the model that peft merges them to; folders around models are named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import plain_logits, plain_model, qwen_tokenizer, random_ids, tiny_checkpoint

from icl_bench.errors import UserError
from icl_bench.models.registry import load_tokenizer, resolve

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def adapted(base: Path, seed: int = 0, tokens: int | None = None, **settings: Any) -> Any:
    """The base with an adapter of random weights."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    network = plain_model(base)
    if tokens:
        network.resize_token_embeddings(tokens, mean_resizing=False)
    options = {"r": 2, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": False}
    return get_peft_model(network, LoraConfig(**{**options, **settings}))


def adapter(base: Path, folder: Path, **options: Any) -> Path:
    adapted(base, **options).save_pretrained(folder)
    return folder


def test_an_adapter_is_merged_once_and_computes_as_peft_does(base: Path, tmp_path: Path):
    from peft import PeftModel

    place = adapter(base, tmp_path / "tuned")
    model = resolve(str(place))
    assert (model.name, model.requested_name) == ("tuned", str(place))
    assert model.context_tokens == resolve(str(base)).context_tokens
    wanted = plain_logits(PeftModel.from_pretrained(plain_model(base), place), random_ids(20, 1))
    torch.testing.assert_close(plain_logits(plain_model(Path(model.source)), random_ids(20, 1)), wanted)
    assert not torch.allclose(plain_logits(plain_model(base), random_ids(20, 1)), wanted, atol=1e-3)
    written = (Path(model.source) / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(place)) == model
    assert (Path(model.source) / "model.safetensors").stat().st_mtime_ns == written
    assert load_tokenizer(model).get_vocab() == load_tokenizer(resolve(str(base))).get_vocab()


def test_the_identity_holds_the_adapter_and_its_base(base: Path, tmp_path: Path):
    place = adapter(base, tmp_path / "tuned")
    other = tiny_checkpoint(tmp_path / "other", "qwen2")  # of the same sizes
    one = resolve(str(place))
    assert resolve(str(base)).fingerprint in one.fingerprint
    assert resolve(str(adapter(base, tmp_path / "again", seed=1))).fingerprint != one.fingerprint
    moved = resolve(str(place), base=str(other))
    assert moved.fingerprint != one.fingerprint
    assert moved.source != one.source
    assert resolve(moved.requested_name).fingerprint == moved.fingerprint


def test_a_base_is_found_by_its_place_beside_the_adapter_or_given(base: Path, tmp_path: Path):
    place = adapter(base, tmp_path / "tuned")
    config = json.loads((place / "adapter_config.json").read_text())
    for named, given in (("../the-base", None), ("/of/the/trainer", str(base)), ("", str(base))):
        (place / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": named}))
        shutil.copytree(base, tmp_path / "the-base", dirs_exist_ok=True)
        assert resolve(str(place), base=given).source
        if given:
            with pytest.raises(UserError, match="give --base") as refused:
                resolve(str(place))
            assert "\n" not in str(refused.value)


def test_an_adapter_brings_its_own_tokenizer_and_tokens(base: Path, tmp_path: Path):
    tokenizer = qwen_tokenizer()
    tokenizer.add_tokens(["<new>", "<other>"])
    place = adapter(base, tmp_path / "tuned", tokens=len(tokenizer), modules_to_save=["embed_tokens", "lm_head"])
    tokenizer.chat_template = "{{ messages[0].content }}"
    tokenizer.save_pretrained(place)
    model = resolve(str(place))
    assert "<other>" in load_tokenizer(model).get_vocab()
    assert len(plain_model(Path(model.source)).get_input_embeddings().weight) == len(tokenizer)
    assert (Path(model.source) / "chat_template.jinja").exists()


def test_a_plan_needs_no_merged_weights(base: Path, tmp_path: Path):
    place = adapter(base, tmp_path / "tuned")
    model = resolve(str(place), prepare=False)
    assert not list(Path(model.source).glob("*.safetensors"))
    assert load_tokenizer(model).get_vocab() == load_tokenizer(resolve(str(base))).get_vocab()
    assert resolve(str(place)).fingerprint == model.fingerprint


def test_an_adapter_of_another_model_is_refused(base: Path, tmp_path: Path):
    place = adapter(base, tmp_path / "tuned")
    other = tiny_checkpoint(tmp_path / "other", "gemma3_text")
    with pytest.raises(
        UserError, match=r"an adapter, and its base .*/other does not fit it .*; give --base"
    ) as refused:
        resolve(str(place), base=str(other))
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "cache" / "models" / "merged").rglob("config.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_type": "SEQ_CLS"}, "adapter for SEQ_CLS"),
        ({"base_model_name_or_path": None}, "names no base; give --base"),
    ],
)
def test_what_cannot_be_merged_is_told(base: Path, tmp_path: Path, changes: dict[str, Any], message: str):
    place = adapter(base, tmp_path / "tuned")
    config = json.loads((place / "adapter_config.json").read_text())
    (place / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=message):
        resolve(str(place))


def test_pickled_adapters_and_damaged_configs_are_refused(base: Path, tmp_path: Path):
    place = adapter(base, tmp_path / "tuned")
    (place / "adapter_model.safetensors").rename(place / "adapter_model.bin")
    with pytest.raises(UserError, match="pickled weights are never loaded"):
        resolve(str(place))
    for text in ("{", "[]"):
        (place / "adapter_config.json").write_text(text)
        with pytest.raises(UserError, match=r"adapter_config\.json cannot be read"):
            resolve(str(place))


def test_a_base_is_refused_for_what_is_no_adapter(base: Path):
    with pytest.raises(UserError, match="--base other: is for an adapter"):
        resolve(str(base), base="other")
    with pytest.raises(UserError, match="--base other: is for an adapter; gemma3-270m is no folder"):
        resolve("gemma3-270m", base="other")


def test_a_whole_model_that_lies_beside_an_adapter_is_the_model(base: Path, tmp_path: Path):
    place = adapter(base, tmp_path / "both")
    shutil.copytree(base, place, dirs_exist_ok=True)
    assert resolve(str(place)).source == str(place)


def test_folders_around_models_name_the_one_to_give(base: Path, tmp_path: Path):
    trained, cached = tmp_path / "trained", tmp_path / "models--org--name"
    shutil.copytree(base, trained / "checkpoint-10")
    adapter(base, trained / "checkpoint-9")
    shutil.copytree(base, cached / "snapshots" / "abc")
    with pytest.raises(
        UserError, match=r"no config.json in this folder; give --model .*/trained/checkpoint-\d+ \(the newest of 2\)"
    ):
        resolve(str(trained))
    with pytest.raises(UserError, match=r"; give --model .*/models--org--name/snapshots/abc$"):
        resolve(str(cached))
    with pytest.raises(UserError, match=r"; give --model .*/snapshots/abc$"):
        resolve(str(cached / "snapshots"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="give one that save_pretrained wrote"):
        resolve(str(tmp_path / "empty"))


def test_an_adapter_that_is_not_a_number_is_refused(base: Path, tmp_path: Path):
    from safetensors.torch import load_file, save_file

    place = adapter(base, tmp_path / "tuned")
    weights = load_file(place / "adapter_model.safetensors")
    name = next(name for name in weights if "lora_A" in name)
    weights[name][0, 0] = float("nan")
    save_file(weights, place / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"an adapter, and its base .* cannot be merged \(NaNs detected") as refused:
        resolve(str(place))
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "cache" / "models" / "merged").rglob("config.json"))


@pytest.mark.parametrize("where", ["from_pretrained", "merge_and_unload", "save_pretrained"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "the memory"),
        (MemoryError(), "the memory"),
        (OSError(28, "No space left on device"), "with room for the whole model"),
        ("safetensors", "with room for the whole model"),
        (TypeError("two\nlines"), r"\(two\)"),
    ],
    ids=["memory", "Python's memory", "disk", "safetensors", "other"],
)
def test_what_goes_wrong_while_merging_is_one_line(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, said: str, where: str
):
    from peft import PeftModel
    from peft.tuners.lora import LoraModel
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    place = adapter(base, tmp_path / "tuned")

    def fails(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device") if error == "safetensors" else error

    kind = {"from_pretrained": PeftModel, "merge_and_unload": LoraModel, "save_pretrained": PreTrainedModel}[where]
    monkeypatch.setattr(kind, where, fails)
    loads = where == "from_pretrained" and "room" in said
    with pytest.raises(UserError, match=r"does not fit it .*give --base" if loads else said) as refused:
        resolve(str(place))
    assert str(refused.value).startswith(f"model {place}: ")
    assert "\n" not in str(refused.value)
