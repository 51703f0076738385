"""What a refusal says of vLLM: by its registry where it is installed, else by the list of one version."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from icl_bench.backends.vllm import architectures
from icl_bench.backends.vllm.architectures import LISTED, LISTED_VERSION, architectures_of, instead

REGISTRY = """
_TEXT_GENERATION_MODELS = {
    # [Decoder-only]
    "OneForCausalLM": ("one", "OneForCausalLM"),
    **{name: ("two", name) for name in ("Two", "Three")},
}
_EMBEDDING_MODELS = {"OneModel": ("one", "OneModel")}
_MULTIMODAL_MODELS = {"SeesForConditionalGeneration": ("sees", "Sees")}
"""


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    architectures._vllm.cache_clear()
    yield
    architectures._vllm.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of vLLM's name with a registry."""
    registry = tmp_path / "vllm" / "model_executor" / "models" / "registry.py"
    registry.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    registry.write_text(REGISTRY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(architectures, "version", lambda _: "9.9")
    return registry


def test_the_architectures_that_generate_text_are_read_from_the_source_of_a_registry():
    assert architectures_of(REGISTRY) == {"OneForCausalLM", "SeesForConditionalGeneration"}


def test_an_installed_vllm_is_asked(installed: Path):
    assert instead(["OneForCausalLM"]) == "vLLM 9.9 computes it: --backend vllm"
    assert instead(["Other", "OneForCausalLM"]).startswith("vLLM 9.9 computes it")
    assert instead(["LlamaForCausalLM"]).startswith("vLLM 9.9 does not list it either: take another model")


def test_without_vllm_or_a_registry_that_can_be_read_the_list_of_one_version_is(
    installed: Path, monkeypatch: pytest.MonkeyPatch
):
    installed.write_text("this is no Python")
    assert instead(["FalconH1ForCausalLM"]) == f"vLLM {LISTED_VERSION} computes it: --backend vllm"
    architectures._vllm.cache_clear()
    installed.write_text(REGISTRY)

    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(architectures, "version", missing)
    assert instead(["FalconH1ForCausalLM"]).startswith(f"vLLM {LISTED_VERSION} computes it")


def test_the_list_has_the_common_families_and_no_encoders():
    assert {"LlamaForCausalLM", "Gemma3ForCausalLM", "Gemma2ForCausalLM", "MambaForCausalLM"} <= LISTED
    assert not {"BertLMHeadModel", "BertModel", "MarianForCausalLM"} & LISTED
