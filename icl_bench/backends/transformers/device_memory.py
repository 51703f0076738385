"""A device's work and memory: synchronising, releasing memory, and conversion of out-of-memory errors to cell
errors.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from icl_bench.errors import CellError
from icl_bench.models.memory import out_of_memory
from icl_bench.wording import first_line


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
