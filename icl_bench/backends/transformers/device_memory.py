"""A device's work and memory: waiting for it, what lack of memory looks like, giving it back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from icl_bench.errors import CellError, UserError
from icl_bench.wording import first_line


def out_of_memory(error: BaseException) -> bool:
    """Whether it is the lack of memory of a GPU or, in Linux' or another system's words, a CPU."""
    # a library of CUDA that finds no room for itself says so in words of its own
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


def no_room(source: object, error: BaseException) -> UserError:
    """What to raise for a model that leaves no memory to compute in, or has none itself."""
    return UserError(f"model {source}: does not fit the memory ({first_line(error)[:200]})")


def memory_reason(error: BaseException, tokens: int) -> str:
    """Why a cell with prompts of so many tokens fails."""
    return f"out of memory at {tokens:,} prompt tokens ({first_line(error)[:200]})"


@contextmanager
def memory_told(where: str) -> Iterator[None]:
    """Raise ``CellError`` in one line for lack of memory in what is done here."""
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        reason = first_line(error)[:200]
    # no longer holding the error, whose frames hold what is to be freed
    raise CellError(f"out of memory {where}: {reason}")


def finish(device: torch.device) -> None:
    """Wait until the device has done all that it was asked for; a GPU is asked ahead of its work.

    Raises what went wrong in it, lack of memory for one.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back what is not needed any more, also what an error's frames still hold in a circle.

    Looking for circles takes a third of a second where the large libraries are loaded.
    """
    gc.collect()
    give_back(device)


def give_back(device: torch.device) -> None:
    """Give back to the device what was freed; nothing is looked for."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
