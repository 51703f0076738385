"""The options of a run by the names that users know, on the command line and in study files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from icl_bench.backends.spec import BackendSpec
from icl_bench.errors import UserError
from icl_bench.prompts.chat import read_settings
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.tokenized_task import Queries


def run_spec(
    *,
    task: str,
    model: str,
    k: str | None = None,
    per_label: str | None = None,
    select: str = "random",
    encoder: str | None = None,
    perturbation: str = "none",
    order: str | None = None,
    attention: str | Sequence[str] | None = None,
    draws: int | None = None,
    seed: int = 0,
    test_size: int | None = None,
    labels: str = "all",
    queries: Queries = "test",
    unconstrained: bool = False,
    score: Literal["greedy", "exact"] = "greedy",
    data_dir: Path | None = None,
    context: int | None = None,
    chat: str | None = None,
    system: str | None = None,
    chat_arg: Sequence[str] | None = None,
    backend: str = "auto",
    dtype: str = "auto",
    device: str | None = None,
    pack: int | None = None,
    tensor_parallel: int | None = None,
    max_model_len: int | None = None,
    gpu_memory: float | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    base_url: str | None = None,
    tokenizer: str | None = None,
    concurrency: int | None = None,
) -> RunSpec:
    """Read what a user asks of a run: each option as ``icl-bench run --help`` says.

    Raises ``UserError`` for what cannot be read.
    """
    if unconstrained and score == "exact":
        raise UserError("--unconstrained and --score exact exclude each other")
    asks_a_server = backend == "openai" or bool(backend == "auto" and base_url)
    return RunSpec(
        task=task,
        model=model,
        k=k,
        per_label=per_label,
        select=select.strip(", ") or "random",
        encoder=encoder,
        perturbation=perturbation,
        order=order,
        attention=attention,
        draws=draws,
        seed=seed,
        scoring="unconstrained" if unconstrained else score,
        test_size=test_size,
        labels=labels,
        queries=queries,
        data_dir=data_dir,
        context_tokens=context,
        tokenizer=tokenizer,
        chat=read_settings(chat, system, chat_arg or ()),
        backend=BackendSpec(
            backend=backend,
            dtype=dtype,
            device=device,
            pack_rows=pack,
            tensor_parallel=tensor_parallel,
            max_model_len=max_model_len,
            gpu_memory=gpu_memory,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            base_url=base_url,
            endpoint="chat" if chat and asks_a_server else "completions",
            concurrency=concurrency,
        ),
    )
