"""What tests of the transformers backend share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import FAMILIES, qwen_tokenizer, save_tiny_model, tiny_config


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return qwen_tokenizer()


@pytest.fixture(scope="session")
def folders(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each family, for tests that only read it."""
    root = tmp_path_factory.mktemp("models")
    return {kind: save_tiny_model(tiny_config(kind, len(tokenizer)), root / kind) for kind in FAMILIES}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small products are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
