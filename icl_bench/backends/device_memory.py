"""Lack of memory on a device: how it shows, what is said of it, and giving memory back."""

from __future__ import annotations

import gc

import torch

from icl_bench.wording import first_line


def out_of_memory(error: BaseException) -> bool:
    """Whether it is the lack of memory of a GPU or, in Linux' or another system's words, a CPU."""
    messages = ("out of memory", "can't allocate memory", "not enough memory",
                "Cannot allocate memory")  # fmt: skip
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in messages)
    )


def memory_reason(error: BaseException, tokens: int) -> str:
    """Why a cell with prompts of so many tokens fails."""
    return f"out of memory at {tokens:,} prompt tokens ({first_line(error)[:200]})"


def release(device: torch.device) -> None:
    """Give back what is not needed any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
