"""Which backend is meant, and whether it can do what is asked of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence

from icl_bench.backends.interface import BackendLoader
from icl_bench.backends.spec import BackendSpec, check_dtype, option_of
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.registry import BACKENDS


def chosen(spec: BackendSpec, patterns: Sequence[Pattern] = ()) -> str:
    """The backend's name: the one asked for, or what ``auto`` means for this request and machine.

    Raises ``UserError`` for a name that is none.
    """
    if spec.backend != "auto":
        if spec.backend not in BACKENDS:
            raise UserError(f"--backend {spec.backend}: {BACKENDS.unknown(spec.backend)}")
        return spec.backend
    if any(pattern != FULL for pattern in patterns):
        return "transformers"
    if spec.base_url:
        return "openai"
    if spec.device or spec.pack_rows or importlib.util.find_spec("vllm") is None:
        return "transformers"
    from icl_bench.backends.device import device_name

    return "transformers" if device_name(None) == "cpu" else "vllm"


def make_loader(spec: BackendSpec, patterns: Sequence[Pattern] = ()) -> BackendLoader:
    """The backend that is meant, not loaded and not checked. Raises as :func:`chosen` does."""
    loader: BackendLoader = BACKENDS[chosen(spec, patterns)](spec)
    return loader


def check_backend(loader: BackendLoader) -> None:
    """Raise ``UserError`` for what can be told of the options without loading anything."""
    check_dtype(loader.spec.dtype)
    loader.check_installed()
    for field in loader.spec.given:
        if field not in loader.options:
            owners = _listed(n for n, other in BACKENDS.items() if field in other.options)
            raise UserError(
                f"{option_of(field)}: applies to --backend {owners} only, this is {loader.name}"
            )
    loader.check()


def check_patterns(loader: BackendLoader, patterns: Sequence[Pattern]) -> None:
    """Raise ``UserError`` where the backend does not compute one of these attention patterns."""
    sparse = [pattern for pattern in patterns if pattern != FULL]
    if sparse and not loader.patterns:
        able = _listed(name for name, other in BACKENDS.items() if other.patterns)
        raise UserError(f"--attention {sparse[0]}: runs on --backend {able}, not {loader.name}")


def check_able(loader: BackendLoader, tokenizer: str | None, *, exact: bool) -> None:
    """Raise ``UserError`` where the backend cannot do what is asked of it.

    That is counting tokens by a tokenizer that is named, or without one, and with ``exact`` a score
    of every label.
    """
    if exact and not loader.exact:
        able = _listed(name for name, other in BACKENDS.items() if other.exact)
        raise UserError(f"--score exact: runs on --backend {able}")
    if loader.needs_tokenizer_name and tokenizer is None:
        raise UserError(
            f"--backend {loader.name} needs --tokenizer: a model name, folder or hub id whose "
            "tokenizer counts the prompt's tokens"
        )
    if tokenizer is not None and not loader.needs_tokenizer_name:
        able = _listed(name for name, other in BACKENDS.items() if other.needs_tokenizer_name)
        raise UserError(f"--tokenizer: applies to --backend {able} only")


def _listed(names: Iterable[str]) -> str:
    """Backends that can do something, for a message."""
    return " or ".join(names)
