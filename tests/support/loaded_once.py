"""Runs in one process share each model that they load, and its check: both take as long as a small run's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.loaded_model import LoadedModel


@contextmanager
def loaded_once() -> Iterator[None]:
    """Share models in this block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersBackend, "load", _sharing(TransformersBackend.load))
        yield


@cache
def share_models() -> None:
    """Share models until this process ends."""
    TransformersBackend.load = _sharing(TransformersBackend.load)  # type: ignore[method-assign]


def _sharing(load: Callable[..., TransformersBackend]) -> Any:
    """Each run still has a backend of its own, with no prefix and no counts of an earlier one."""
    models = dict[str, LoadedModel]()

    def shared(source: Any, tokenizer: Any, *, pack_rows: int | None = None, **asked: Any) -> TransformersBackend:
        key = repr((str(source), sorted(asked.items())))
        if key not in models:
            models[key] = load(source, tokenizer, **asked).model
        return TransformersBackend(models[key], pack_rows=pack_rows)

    return shared
