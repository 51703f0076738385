"""A checkpoint is read whole, or refused in one line that names what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.errors import UserError
from icl_bench.training.classification_head import load_classifier
from icl_bench.training.methods.probe import LastStates

UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
WEIGHTS = "model.safetensors"

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="session", params=["llama", "gemma3_text"])
def whole(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    """A tiny model with a head of its own, and one whose head is its embeddings."""
    return folders[str(request.param)]


@pytest.fixture
def changed(whole: Path, tmp_path: Path) -> Callable[[Callable[[Tensors], Any]], Path]:
    """Save the model with other weights."""

    def save(change: Callable[[Tensors], Any]) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        tensors = load_file(whole / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        return folder

    return save


@pytest.fixture(params=["answering", "a new head", "states"])
def read(request: pytest.FixtureRequest, tokenizer: Any) -> Callable[[Path], Any]:
    """Each way in which a checkpoint is read: to answer, to train and for its states."""

    def answering(folder: Path) -> Any:
        return TransformersBackend.load(folder, tokenizer, dtype="float32", device="cpu")

    def new_head(folder: Path) -> Any:
        return load_classifier(str(folder), 3, None, 0, "float32")

    def states(folder: Path) -> Any:
        return LastStates(str(folder), 0, "cpu", "float32")

    ways = {"answering": answering, "a new head": new_head, "states": states}
    return ways[str(request.param)]


def refusal(read: Callable[[Path], Any], folder: Path) -> str:
    """What is said of a folder; one line that names it."""
    with pytest.raises(UserError) as caught:
        read(folder)
    said = str(caught.value)
    assert said.startswith(f"model {folder}: ")
    assert "\n" not in said
    assert len(said.replace(str(folder), "")) < 400
    return said


# -- weights ------------------------------------------------------------------------------------


def test_a_whole_checkpoint_is_read(read, whole):
    read(whole)


def test_missing_weights_are_named(read, changed):
    said = refusal(read, changed(lambda tensors: [tensors.pop(UP), tensors.pop(DOWN)]))
    assert "missing: " in said
    assert DOWN.removeprefix("model.") in said
    assert UP.removeprefix("model.") in said


def test_of_many_missing_weights_some_are_named_and_the_others_counted(read, changed):
    def drop(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".mlp." in name]:
            del tensors[name]

    assert "more; give the whole folder" in refusal(read, changed(drop))


def test_weights_that_are_not_the_models_are_named(read, changed):
    other = UP.replace("1", "7")
    said = refusal(read, changed(lambda tensors: tensors.update({other: tensors[UP].clone()})))
    assert f"not in the model: {other}" in said


def test_weights_of_another_shape_are_named_with_both(read, changed):
    said = refusal(read, changed(lambda tensors: tensors.update({UP: tensors[UP][:5].clone()})))
    assert f"{UP.removeprefix('model.')} is (5, 32) instead of (48, 32)" in said


def test_the_weights_of_another_size_are_refused_without_memory_for_the_configs(read, whole, changed):
    folder = changed(lambda _: None)
    config = json.loads((whole / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 10**12}))
    assert f"instead of ({10**12}, 32)" in refusal(read, folder)


def test_a_head_that_is_tied_to_the_embeddings_need_not_be_stored_and_may_be(tokenizer, whole, changed):
    tied = json.loads((whole / "config.json").read_text())["tie_word_embeddings"]
    head, embeddings = "lm_head.weight", "model.embed_tokens.weight"

    def turn(tensors: Tensors) -> None:
        tensors[head] = tensors[embeddings].clone()
        if not tied:
            del tensors[head]

    folder = changed(turn)
    if tied:
        TransformersBackend.load(folder, tokenizer, dtype="float32", device="cpu")
        return
    with pytest.raises(UserError, match=r"missing: lm_head\.weight; give"):
        TransformersBackend.load(folder, tokenizer, dtype="float32", device="cpu")


def test_what_older_checkpoints_store_of_positions_is_no_weight(read, changed):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    read(changed(lambda tensors: tensors.update({name: torch.ones(4)})))


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["half", "nothing", "a pointer"])
def test_a_damaged_file_of_weights_is_named(read, changed, left):
    folder = changed(lambda _: None)
    file = folder / WEIGHTS
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
    whole = file.read_bytes()
    file.write_bytes({"half": whole[: len(whole) // 2], "nothing": b"", "a pointer": pointer}[left])
    said = refusal(read, folder)
    assert f"{WEIGHTS} is damaged or incomplete" in said
    assert said.endswith("copy or download it again")


def test_a_missing_part_of_the_weights_is_named(read, changed):
    folder = changed(lambda _: None)
    part = "model-00002-of-00002.safetensors"
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": {UP: part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert part in refusal(read, folder)


@pytest.mark.parametrize("content", ["{no JSON", "[1]", "{}", None])
def test_a_config_that_is_none_is_refused(tokenizer, changed, content):
    folder = changed(lambda _: None)
    if content is None:
        (folder / "config.json").unlink()
    else:
        (folder / "config.json").write_text(content)
    answering = lambda f: TransformersBackend.load(f, tokenizer, dtype="float32", device="cpu")  # noqa: E731
    assert "cannot be loaded" in refusal(answering, folder)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Cannot allocate memory (os error 12)"),
        RuntimeError("unable to mmap 536223056 bytes from file <x>: Cannot allocate memory (12)"),
    ],
)
def test_too_little_memory_to_map_the_weights_is_said(read, whole, monkeypatch, error):
    from transformers import PreTrainedModel

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", fails)
    assert "does not fit the memory" in refusal(read, whole)
