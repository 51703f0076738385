"""Out-of-memory errors of a GPU or a CPU: detection, and conversion to one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from icl_bench.errors import UserError
from icl_bench.wording import first_line


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error of a GPU or a CPU."""
    import torch

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
    """Convert out-of-memory errors of a model that does not fit, or leaves no memory to compute, to ``UserError``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(f"model {source}: does not fit the memory ({first_line(error)[:200]})") from None
