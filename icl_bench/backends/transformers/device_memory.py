"""A device's work and memory: synchronising, recognising out-of-memory errors, releasing memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from icl_bench.errors import CellError, UserError
from icl_bench.wording import first_line


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is a lack of memory, of a GPU or a CPU."""
    # CUDA's libraries have their own messages if they cannot allocate memory
    messages = (
        "out of memory",
        "can't allocate memory",
        "not enough memory",
        "Cannot allocate memory",
        "_STATUS_ALLOC_FAILED",
    )
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in messages)
    )


@contextmanager
def memory_errors_as_user_errors(source: object) -> Iterator[None]:
    """Turn out-of-memory errors of a model that does not fit, or leaves no room to compute, into ``UserError``."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise UserError(f"model {source}: does not fit the memory ({first_line(error)[:200]})") from None


@contextmanager
def memory_errors_as_cell_errors(where: str) -> Iterator[None]:
    """Turn out-of-memory errors in this context into ``CellError``, with a message of one line."""
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        reason = first_line(error)[:200]
    # raised outside the except block: the error's frames would keep the memory
    raise CellError(f"out of memory {where}: {reason}")


def finish(device: torch.device) -> None:
    """Wait until the device has finished; a GPU works asynchronously.

    Raises the device's errors, such as lack of memory.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Release unused memory, including reference cycles of an error's frames.

    The search for cycles takes a third of a second if large libraries are loaded.
    """
    gc.collect()
    give_back(device)


def give_back(device: torch.device) -> None:
    """Return freed memory to the device, without a search for cycles."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
