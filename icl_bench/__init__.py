"""icl-bench measures what many demonstrations in a language model's prompt are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icl_bench.analysis.all_findings import read_findings
    from icl_bench.results.reading import read_results

__all__ = ["__version__", "read_findings", "read_results"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the library's entry points when they are first used: pandas takes a while."""
    if name == "read_results":
        from icl_bench.results.reading import read_results

        return read_results
    if name == "read_findings":
        from icl_bench.analysis.all_findings import read_findings

        return read_findings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
