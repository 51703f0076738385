"""icl-bench measures what many demonstrations in a language model's prompt are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icl_bench.api import Results, check, choose, finetune, plan, rationales, read, run
    from icl_bench.errors import UserError
    from icl_bench.tasks.in_memory import Task

__all__ = [
    "Results",
    "Task",
    "UserError",
    "__version__",
    "check",
    "choose",
    "finetune",
    "plan",
    "rationales",
    "read",
    "run",
]
__version__ = "0.2.0"

_PLACES = {"UserError": "icl_bench.errors", "Task": "icl_bench.tasks.in_memory"}


def __getattr__(name: str) -> object:
    """Import the public names on first use, because importing pandas is slow."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES.get(name, "icl_bench.api")), name)


def __dir__() -> list[str]:
    return __all__
