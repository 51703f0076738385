"""Tests of the vLLM backend: they need vLLM, in an environment of its own (make test-vllm)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

VLLM = importlib.util.find_spec("vllm") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if not VLLM and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs vLLM: make test-vllm"))
