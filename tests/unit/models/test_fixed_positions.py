"""A model of the hub whose positions depend on a prompt's length is read as its authors read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.models import plain_logits, plain_model, qwen_tokenizer, random_ids, save_tiny_model, tiny_config

from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.models import registry
from icl_bench.models.registry import resolve

TRAINED, READ, FACTOR, THETA, WIDTH = 64, 1280, 10, 1e4, 8
"""The window and the width of a head of the tiny model, and what its authors set."""


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the hub has of llama2-80k: a tiny model, with dynamic scaling in its config."""
    import huggingface_hub

    tokenizer = qwen_tokenizer()
    config = tiny_config("llama", len(tokenizer))
    config.max_position_embeddings = TRAINED
    config.rope_parameters = {"rope_type": "dynamic", "factor": FACTOR, "rope_theta": THETA}
    folder = save_tiny_model(config, tmp_path / "0123abc")
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    spec = replace(registry.REGISTRY["llama2-80k"], context_tokens=READ, fixed_at=READ)
    monkeypatch.setitem(registry.REGISTRY, "llama2-80k", spec)  # type: ignore[arg-type]
    return folder


def as_its_authors_read_it(folder: Path) -> Any:
    """The model with cosines and sines of ``reset_rope``: those of transformers 4.35's class with dynamic scaling."""
    import torch

    model = plain_model(folder)
    base = THETA * ((FACTOR * READ / TRAINED) - (FACTOR - 1)) ** (WIDTH / (WIDTH - 2))
    frequencies = 1.0 / (base ** (torch.arange(0, WIDTH, 2).float() / WIDTH))
    angles = torch.outer(torch.arange(READ).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    model.model.rotary_emb.forward = lambda _, position_ids: (angles[position_ids].cos(), angles[position_ids].sin())
    return model


@pytest.mark.parametrize("tokens", [20, 300])
def test_its_logits_are_those_of_its_authors_code_at_every_length(snapshot: Path, tokens: int) -> None:
    ids = random_ids(tokens, 5)
    expected = plain_logits(as_its_authors_read_it(snapshot), ids)
    found = plain_logits(plain_model(Path(resolve("llama2-80k").source)), ids)
    assert float((found - expected).abs().max()) < 1e-4
    as_stated = plain_logits(plain_model(snapshot), ids)
    assert float((as_stated - expected).abs().max()) > 0.01


def test_it_is_computed_here_in_its_whole_window(snapshot: Path) -> None:
    found = resolve("llama2-80k")
    backend = TransformersBackend.load(
        found.source, registry.load_tokenizer(found), dtype="float32", device="cpu", positions=found.positions
    )
    assert backend.model.config.max_position_embeddings == READ


def test_it_is_another_model_than_the_one_of_the_hub(snapshot: Path) -> None:
    found = resolve("llama2-80k")
    assert found.fingerprint == f"positions-{READ}:hub:yaofu/llama-2-7b-80k@0123abc"
    assert found.hub_commit is None
    assert resolve("yaofu/llama-2-7b-80k").source == str(snapshot)
    assert resolve("llama2-80k").source == found.source
