"""Engines before they are loaded: which one is meant, and what of its options applies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fakes

from icl_bench.backends import registry as engines
from icl_bench.backends.registry import BackendSpec, check_backend, chosen, make_loader
from icl_bench.backends.vllm import last_error
from icl_bench.errors import UserError
from icl_bench.sweep.plan import room_for


def present(monkeypatch: pytest.MonkeyPatch, *, vllm: bool, cuda: bool) -> None:
    find = importlib.util.find_spec
    spec = object() if vllm else None
    monkeypatch.setattr(
        engines.importlib.util, "find_spec", lambda name: spec if name == "vllm" else find(name)
    )
    monkeypatch.setattr("icl_bench.backends.device.may_have_cuda", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)


@pytest.mark.parametrize(
    ("vllm", "cuda", "asked", "expected"),
    [
        (True, True, {}, "vllm"),
        (True, False, {}, "transformers"),
        (False, True, {}, "transformers"),
        (True, True, {"device": "cuda:1"}, "transformers"),
        (True, True, {"pack_rows": 3}, "transformers"),
        (True, True, {"base_url": "http://host/v1"}, "openai"),
        (True, True, {"backend": "transformers"}, "transformers"),
        (True, False, {"backend": "vllm"}, "vllm"),
    ],
)
def test_vllm_is_taken_where_it_and_a_gpu_are_present_and_no_option_says_otherwise(
    vllm: bool, cuda: bool, asked: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
):
    present(monkeypatch, vllm=vllm, cuda=cuda)
    assert chosen(BackendSpec(**asked)) == expected


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        ({"backend": "transformers", "max_model_len": 10}, "--max-model-len"),
        ({"backend": "transformers", "quantization": "awq"}, "--quantization"),
        ({"backend": "transformers", "concurrency": 2}, "--concurrency"),
        ({"backend": "vllm", "pack_rows": 2}, "--pack"),
        ({"backend": "vllm", "base_url": "http://host/v1"}, "--base-url"),
    ],
)
def test_an_option_of_another_engine_is_refused(
    asked: dict[str, Any], option: str, monkeypatch: pytest.MonkeyPatch
):
    present(monkeypatch, vllm=True, cuda=False)
    with pytest.raises(UserError, match=f"^{option}: applies to --backend"):
        check_backend(BackendSpec(**asked))


def test_a_missing_vllm_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=False, cuda=True)
    with pytest.raises(UserError, match=r"not installed; pip install 'icl-bench\[vllm\]'"):
        check_backend(BackendSpec(backend="vllm"))


def test_what_decides_answers_is_in_an_engines_identity(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, vllm=True, cuda=False)
    plain = make_loader(BackendSpec(backend="vllm", dtype="float32"), "m").identity()
    fp8 = make_loader(
        BackendSpec(backend="vllm", dtype="float32", quantization="fp8", gpu_memory=0.5), "m"
    ).identity()
    assert plain == {"backend": "vllm", "dtype": "float32"}
    assert fp8 == {**plain, "quantization": "fp8"}


def test_vllm_makes_room_for_the_largest_cell_and_no_more_than_the_window(tmp_path: Path):
    plan = fakes.plan(tmp_path, k="1,4")
    largest = max(cell.needed_tokens for cell in plan.cells)
    assert largest < room_for(plan, 4096) <= largest + 257
    assert room_for(plan, 4096) % 256 == 0
    assert room_for(plan, largest + 3) == largest + 3


def test_the_last_error_of_a_log_is_the_cause_and_not_what_wraps_it():
    log = """INFO starting
(EngineCore pid=7) ERROR 10:00:00 [core.py:9] Traceback (most recent call last):
(EngineCore pid=7) ERROR 10:00:00 [core.py:9]     raise ValueError("too large")
(EngineCore pid=7) ERROR 10:00:00 [core.py:9] ValueError: No available memory for the cache blocks.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
    assert last_error(log) == "No available memory for the cache blocks."
    assert last_error("nothing of the kind") is None
