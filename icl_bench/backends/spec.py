"""What a user asks of a backend, as it was written."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.wording import nearest

DTYPES = ("auto", "float32", "bfloat16", "float16")


class BackendSpec(Frozen):
    """What a user asks of the backend. Fields of others must be left at their defaults."""

    backend: str = "auto"
    """A name of the registry (``transformers``, ``vllm``, ``openai``), or ``auto``, which
    :func:`icl_bench.backends.choice.choose` explains."""
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
    kv_cache_dtype: str | None = None
    """vllm: how its cache is stored (``fp8``, ...); by default as the model computes."""
    base_url: str | None = None
    """openai: where the server is, ``https://host/v1``."""
    endpoint: Literal["completions", "chat"] = "completions"
    """openai: what is asked; ``chat`` sends the prompt as one user message."""
    concurrency: int | None = Field(default=None, ge=1)
    """openai: requests in flight, at most."""

    @property
    def given(self) -> list[str]:
        """Fields that say something and that not every backend has."""
        fields = type(self).model_fields
        own = [name for name in fields if name not in ("backend", "dtype")]
        return [name for name in own if getattr(self, name) != fields[name].default]


def option_of(field: str) -> str:
    """The command line's option for a field."""
    spelled = {"pack_rows": "--pack", "endpoint": "--chat"}
    return spelled.get(field, "--" + field.replace("_", "-"))


def check_dtype(name: str) -> None:
    """Raise ``UserError`` for a dtype that is none."""
    if name not in DTYPES:
        raise UserError(f"--dtype {name}: not a dtype; {nearest(name, DTYPES)}")
