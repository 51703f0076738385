"""Chooses a backend, and checks that it supports a run.

Only :func:`choose` determines what ``auto`` means. On one GPU, the two backends differ in how much a step of decoding
reads. With Q queries over a shared prefix of P tokens, whose keys and values take b bytes per token, vLLM reads Q·P·b
bytes, because each query reads its whole prompt (its cascade attention shared this, but it is off by default and
removed in 0.32). Packed queries read P·b bytes (Juravsky et al. 2024, Hydragen, section 3). They need about 20 ms more
host time per step, because vLLM replays graphs. So if the GPU reads B bytes per second, packed queries are faster from
``0.02·B / ((Q - 1)·b)`` tokens: 513 for Llama-2-7B (b = 512 KiB) and 250 queries on an H100 (3.35 TB/s). Labels take
few steps, so below this both take a fraction of a second. If every label is scored, packed queries compute all tokens
of the labels in one step, but vLLM needs a request for each inner token. The rule does not depend on k: the backend is
part of a cell's identity, and a curve has one backend.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from icl_bench.backends.device import device_name
from icl_bench.backends.interface import BackendLoader
from icl_bench.backends.loaders import VllmLoader, vllm_problem
from icl_bench.backends.spec import BackendSpec, check_dtype
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.options import flag
from icl_bench.registry import BACKENDS
from icl_bench.wording import listed_or


@dataclass(frozen=True)
class Needs:
    """What a run needs from a backend, in addition to its options."""

    patterns: Sequence[Pattern] = ()
    exact: bool = False
    """Whether every label is scored."""
    free: bool = False
    """Whether answers are generated freely, not constrained to labels."""
    shares: bool = True
    """Whether queries share demonstrations."""


@dataclass(frozen=True)
class ChosenBackend:
    """The backend of a run, not loaded and not checked."""

    loader: BackendLoader
    reason: str | None = None
    """Why ``auto`` chose it; None if it was requested by name."""

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return self.loader.name


def choose(spec: BackendSpec, needs: Needs = Needs()) -> ChosenBackend:
    """The requested backend, or the one that ``auto`` chooses for this run on this machine.

    Raises ``UserError`` for an unknown name.
    """
    if spec.backend != "auto":
        if spec.backend not in BACKENDS:
            raise UserError(f"--backend {spec.backend}: {BACKENDS.unknown(spec.backend)}")
        return ChosenBackend(BACKENDS[spec.backend](spec))
    name, reason = _auto(spec, needs)
    return ChosenBackend(BACKENDS[name](spec), reason)


def _auto(spec: BackendSpec, needs: Needs) -> tuple[str, str]:
    """The name of the backend that ``auto`` chooses, and why."""
    if any(pattern != FULL for pattern in needs.patterns):
        return "transformers", "--attention runs only there"
    if spec.base_url:
        return "openai", "a server is named"
    for field in ("device", "pack"):
        if getattr(spec, field):
            return "transformers", f"{flag(field)} is for it"
    if options := [field for field in spec.given if field in VllmLoader.options]:
        return "vllm", f"{flag(options[0])} is for it"
    # looking for a device takes a while, and is not needed without vLLM
    if importlib.util.find_spec("vllm") is None:
        return "transformers", "vLLM is not installed"
    if device_name(None) == "cpu":
        return "transformers", "there is no GPU"
    return _on_cuda(needs)


def _on_cuda(needs: Needs) -> tuple[str, str]:
    """:func:`_auto` on a GPU where both backends could answer."""
    if (problem := vllm_problem()) is not None:
        return "transformers", problem.partition(";")[0]
    if needs.exact:
        return "transformers", "packed queries score all labels in one call, vLLM in a request for each of their tokens"
    if needs.free:
        return "vllm", "answers are free text and end at different times"
    if not needs.shares:
        return "vllm", "queries share no demonstrations, so there is nothing to pack"
    return "transformers", "packed queries read their shared keys once a step, vLLM once for each query"


def check_backend(loader: BackendLoader, *, to_run: bool = True) -> None:
    """Raise ``UserError`` for wrong options, without loading anything.

    Without ``to_run``, engine, server and key are not checked.
    """
    check_dtype(loader.spec.dtype)
    if to_run:
        loader.check_installed()
    for field in loader.spec.given:
        if field not in loader.options:
            owners = listed_or(name for name, loader_class in BACKENDS.items() if field in loader_class.options)
            raise UserError(f"{flag(field)}: applies to --backend {owners} only, this is {loader.name}")
    loader.check_options()
    if to_run:
        loader.check()


def check_patterns(loader: BackendLoader, patterns: Sequence[Pattern]) -> None:
    """Raise ``UserError`` if the backend does not compute one of these attention patterns."""
    sparse = [pattern for pattern in patterns if pattern != FULL]
    if sparse and not loader.patterns:
        names = listed_or(name for name, loader_class in BACKENDS.items() if loader_class.patterns)
        raise UserError(f"--attention {sparse[0]}: runs on --backend {names}, not {loader.name}")


def check_able(loader: BackendLoader, tokenizer: str | None, *, exact: bool) -> None:
    """Raise ``UserError`` if the backend does not support ``exact`` scoring, needs ``--tokenizer``, or
    does not allow it.
    """
    if exact and not loader.exact:
        names = listed_or(name for name, loader_class in BACKENDS.items() if loader_class.exact)
        raise UserError(f"--score exact: runs on --backend {names}")
    if exact:
        loader.check_exact()
    if loader.needs_tokenizer_name and tokenizer is None:
        raise UserError(
            f"--backend {loader.name} needs --tokenizer: a model name, folder or hub id whose "
            "tokenizer counts the prompt's tokens"
        )
    if tokenizer is not None and not loader.needs_tokenizer_name:
        names = listed_or(name for name, loader_class in BACKENDS.items() if loader_class.needs_tokenizer_name)
        raise UserError(f"--tokenizer: applies to --backend {names} only")
