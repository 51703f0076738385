"""The programs in ``benchmarks``, as modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@contextmanager
def benchmark(name: str) -> Iterator[ModuleType]:
    """The module of ``benchmarks/NAME.py``, which may import others of the folder meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module(name)
