"""Whatever is wrong with a model's folder, a command says so in one line and exits with 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.fakes import write_task
from support.in_process import said
from support.models import llama_tokenizer, save_tiny_model, tiny_checkpoint, tiny_config
from support.program import as_words

WEIGHTS, UP = "model.safetensors", "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", tokenizer=llama_tokenizer(add_bos_token=True))


def configured(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def halved(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def without_a_weight(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[UP]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def of_fewer_tokens(folder: Path) -> None:
    """The weights of a model with another tokenizer."""
    save_tiny_model(tiny_config("llama", 100), folder)


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "half of the weights": (halved, f"{WEIGHTS} is damaged or incomplete"),
    "no weights": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "damaged or incomplete"),
    "a header that is none": (
        lambda folder: (folder / WEIGHTS).write_bytes((2).to_bytes(8, "little") + b"[]"),
        "damaged or incomplete",
    ),
    "a weight less": (without_a_weight, f"missing: {UP}"),
    "weights of another size": (
        lambda folder: configured(folder, intermediate_size=64),
        "(48, 32) instead of (64, 32)",
    ),
    "fewer layers in the config": (
        lambda folder: configured(folder, num_hidden_layers=1),
        "not in the model: model.layers.1",
    ),
    "weights of another tokenizer": (of_fewer_tokens, "weights have 100 tokens"),
    "no tokenizer": (without_tokenizer, "its tokenizer cannot be loaded"),
    "a tokenizer that is no JSON": (
        lambda folder: (folder / "tokenizer.json").write_text("{"),
        "its tokenizer cannot be loaded",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "a config that is no JSON": (lambda folder: (folder / "config.json").write_text("{"), "its config cannot be read"),
    "a config that is a list": (lambda folder: (folder / "config.json").write_text("[]"), "its config cannot be read"),
    "layers that are no number": (
        lambda folder: configured(folder, num_hidden_layers="two"),
        "its config cannot be read",
    ),
    "a window that is no number": (
        lambda folder: configured(folder, sliding_window="wide"),
        "its config cannot be read",
    ),
}


def refused(words: str, task: Path, model: Path, *more: object) -> str:
    """The one line of a command that ends with 2."""
    common = ("--task", task, "--model", model, "--draws", 1, "--device", "cpu", "--quiet")
    error = said(*as_words(words), *common, *more, code=2)
    (line,) = [line for line in error.splitlines() if line.startswith("error:")]
    assert "Traceback" not in error
    return line


@pytest.mark.parametrize("options", [(), ("--context", 512)])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_refused_in_one_line(
    damage: str, options: tuple[object, ...], whole: Path, tmp_path: Path
) -> None:
    folder, (change, expected) = tmp_path / "model", DAMAGES[damage]
    shutil.copytree(whole, folder)
    change(folder)
    words = f"run --k 2 --dtype float32 --results {tmp_path}/results"
    line = refused(words, write_task(tmp_path / "task"), folder, *options)
    assert expected in line
    assert not list((tmp_path / "results").rglob("*.parquet"))


@pytest.mark.parametrize("method", ["probe", "lora"])
@pytest.mark.parametrize("damage", ["half of the weights", "a weight less"])
def test_training_on_a_damaged_model_is_refused_in_one_line(
    damage: str, method: str, whole: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    folder, (change, _) = tmp_path / "model", DAMAGES[damage]
    shutil.copytree(whole, folder)
    change(folder)
    words = f"finetune --k 12 --method {method} --validation examples --results {tmp_path}/results"
    assert str(folder) in refused(words, write_task(tmp_path / "task"), folder)
