"""Chats on vLLM, by the packaged instruct model's own template, beside the transformers backend.

`make test-vllm` has chats on vLLM's server (test_openai_server.py); these have an engine of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from on_vllm.test_vllm_backend import compared, engine_of, on_transformers, prepared

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def backends() -> Iterator[tuple[Any, Any]]:
    with engine_of("float32", MODEL, max_model_len=4096) as one:
        yield one, on_transformers("float32", MODEL)


@pytest.mark.parametrize("style", ["turns", "single"])
def test_both_backends_answer_chats_alike_but_for_near_ties(
    backends: tuple[Any, Any], style: Literal["turns", "single"], data_dir: Path
):
    said = "Name the intent."
    sweep = prepared("banking77", "0,8", data_dir, rows=25, model=MODEL, chat=style, system=said)
    assert compared(sweep, *backends, "float32").differing <= 1
