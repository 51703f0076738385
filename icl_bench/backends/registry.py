"""Engines before they are loaded: what a user may ask of each, and what it will be called.

An engine's identity (its name, the arithmetic) goes into a cell's hash, so it must be known before
anything is loaded. Nothing here imports an engine's library before it is needed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import Field

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.sweep.plan import room_for
from icl_bench.wording import nearest

if TYPE_CHECKING:
    from icl_bench.backends.interface import Backend
    from icl_bench.models.registry import Model
    from icl_bench.sweep.experiment import TokenizedTask
    from icl_bench.sweep.plan import Plan

DTYPES = ("auto", "float32", "bfloat16", "float16")


class BackendSpec(Frozen):
    """What a user asks of the engine. Fields of other engines must be left at their defaults."""

    backend: str = "auto"
    """``transformers``, ``vllm``, ``openai``, or ``auto``: vLLM where it and a GPU are present."""
    dtype: str = "auto"
    device: str | None = None
    """transformers: ``cpu``, ``cuda``, ..."""
    pack_rows: int | None = Field(default=None, ge=1)
    """transformers: queries per call of the model, at most."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    """vllm: GPUs that share one model."""
    max_model_len: int | None = Field(default=None, ge=1)
    """vllm: tokens to make room for; by default what the largest cell needs."""
    gpu_memory: float | None = Field(default=None, gt=0, le=1)
    """vllm: share of the card's memory to use."""
    quantization: str | None = None
    """vllm: how the weights are quantized (``awq``, ``fp8``, ...)."""
    base_url: str | None = None
    """openai: where the server is, ``https://host/v1``."""
    endpoint: Literal["completions", "chat"] = "completions"
    """openai: what is asked; ``chat`` sends the prompt as one user message."""
    concurrency: int | None = Field(default=None, ge=1)
    """openai: requests in flight, at most."""


class BackendLoader(Protocol):
    """An engine that is not loaded yet."""

    def identity(self) -> dict[str, str]:
        """What of it decides the answers; equals the loaded backend's."""
        ...

    def load(self, model: Model, experiment: TokenizedTask, plan: Plan) -> Backend:
        """Load the model, or make the connection. Raises ``UserError`` or ``CellError``."""
        ...

    def rate(self) -> float | None:
        """Operations a second that this machine computes; None where another one computes."""
        ...


@dataclass(frozen=True)
class TransformersLoader:
    """PyTorch on the CPU or CUDA; packs queries over one prefix cache."""

    spec: BackendSpec

    def identity(self) -> dict[str, str]:
        """See ``BackendLoader``."""
        return {"backend": "transformers", "dtype": self._dtype()}

    def _dtype(self) -> str:
        from icl_bench.backends.device import device_name, dtype_name

        return dtype_name(self.spec.dtype, device_name(self.spec.device))

    def load(self, model: Model, experiment: TokenizedTask, plan: Plan) -> Backend:  # noqa: ARG002
        """See ``BackendLoader``."""
        from icl_bench.backends.transformers import TransformersBackend

        backend = TransformersBackend(
            model.source,
            experiment.tokenizer,
            revision=model.revision,
            dtype=self.spec.dtype,
            device=self.spec.device,
            pack_rows=self.spec.pack_rows,
        )
        self.rate()  # measured once PyTorch is loaded, and kept for plans
        return backend

    def rate(self) -> float:
        """See ``BackendLoader``."""
        from icl_bench.backends.device import device_name, device_rate

        return device_rate(device_name(self.spec.device), self._dtype())


@dataclass(frozen=True)
class VllmLoader:
    """vLLM on CUDA or the CPU; demonstrations stay in its prefix cache."""

    spec: BackendSpec

    def identity(self) -> dict[str, str]:
        """See ``BackendLoader``."""
        from icl_bench.backends.device import device_name, dtype_name

        named = {"backend": "vllm", "dtype": dtype_name(self.spec.dtype, device_name(None))}
        if self.spec.quantization:
            named["quantization"] = self.spec.quantization
        return named

    def load(self, model: Model, experiment: TokenizedTask, plan: Plan) -> Backend:
        """See ``BackendLoader``."""
        from icl_bench.backends.vllm import VllmBackend

        return VllmBackend(
            model.source,
            experiment.tokenizer,
            identity=self.identity(),
            max_model_len=self.spec.max_model_len or room_for(plan, model.context_tokens),
            tensor_parallel=self.spec.tensor_parallel or 1,
            gpu_memory=self.spec.gpu_memory,
            quantization=self.spec.quantization,
        )

    def rate(self) -> float:
        """See ``BackendLoader``."""
        return TransformersLoader(BackendSpec(dtype=self.spec.dtype)).rate()


@dataclass(frozen=True)
class OpenAILoader:
    """A server with OpenAILoader's API, asked over the network without constraint."""

    spec: BackendSpec
    model: str

    def identity(self) -> dict[str, str]:
        """See ``BackendLoader``. The server's address tells models of one name apart."""
        from icl_bench.backends.openai import address

        return {
            "backend": "openai",
            "server": address(self.spec.base_url),
            "endpoint": self.spec.endpoint,
        }

    def load(self, model: Model, experiment: TokenizedTask, plan: Plan) -> Backend:  # noqa: ARG002
        """See ``BackendLoader``."""
        from icl_bench.backends.openai import OpenAIBackend, address

        return OpenAIBackend(
            model.asked,
            base_url=address(self.spec.base_url),
            endpoint=self.spec.endpoint,
            concurrency=self.spec.concurrency or 8,
            identity=self.identity(),
        )

    def rate(self) -> None:
        """See ``BackendLoader``."""


BACKENDS: Mapping[str, Callable[[BackendSpec, str], BackendLoader]] = {
    "transformers": lambda spec, _: TransformersLoader(spec),
    "vllm": lambda spec, _: VllmLoader(spec),
    "openai": OpenAILoader,
}
"""By name, given the spec and the model as the user named it."""


_OPTIONS: Mapping[str, tuple[str, str]] = {
    "device": ("--device", "transformers"),
    "pack_rows": ("--pack", "transformers"),
    "tensor_parallel": ("--tensor-parallel", "vllm"),
    "max_model_len": ("--max-model-len", "vllm"),
    "gpu_memory": ("--gpu-memory", "vllm"),
    "quantization": ("--quantization", "vllm"),
    "base_url": ("--base-url", "openai"),
    "endpoint": ("--chat", "openai"),
    "concurrency": ("--concurrency", "openai"),
}
"""Fields that belong to one engine, with their option."""


def chosen(spec: BackendSpec) -> str:
    """The engine's name: the one asked for, or what ``auto`` means here."""
    if spec.backend != "auto":
        return spec.backend
    if spec.base_url:
        return "openai"
    if spec.device or spec.pack_rows or importlib.util.find_spec("vllm") is None:
        return "transformers"
    from icl_bench.backends.device import device_name

    return "transformers" if device_name(None) == "cpu" else "vllm"


def make_loader(spec: BackendSpec, model: str) -> BackendLoader:
    """The engine that was asked for. Raises ``UserError`` for options that do not apply."""
    check_backend(spec)
    return BACKENDS[chosen(spec)](spec, model)


def check_backend(spec: BackendSpec) -> None:
    """Raise ``UserError`` for what can be told without loading anything."""
    if spec.backend != "auto" and spec.backend not in BACKENDS:
        raise UserError(
            f"--backend {spec.backend}: not an engine; {nearest(spec.backend, BACKENDS)}"
        )
    check_dtype(spec.dtype)
    name = chosen(spec)
    if name == "vllm" and importlib.util.find_spec("vllm") is None:
        raise UserError("--backend vllm: vLLM is not installed; pip install 'icl-bench[vllm]'")
    for field, (option, owner) in _OPTIONS.items():
        given: Any = getattr(spec, field)
        if given != BackendSpec.model_fields[field].default and owner != name:
            raise UserError(f"{option}: applies to --backend {owner} only, this is {name}")
    if name == "openai":
        _check_server(spec)
    elif spec.device is not None:
        from icl_bench.backends.device import device_name

        device_name(spec.device)


def check_dtype(name: str) -> None:
    """Raise ``UserError`` for a dtype that is none."""
    if name not in DTYPES:
        raise UserError(f"--dtype {name}: not a dtype; {nearest(name, DTYPES)}")


def _check_server(spec: BackendSpec) -> None:
    from icl_bench.backends.openai import address, api_key

    if importlib.util.find_spec("openai") is None:
        raise UserError(
            "--backend openai: the openai package is missing; pip install 'icl-bench[openai]'"
        )
    if spec.dtype != "auto":
        raise UserError("--dtype: the server's own, with --backend openai it cannot be chosen")
    address(spec.base_url)
    api_key()
