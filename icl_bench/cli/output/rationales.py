"""What ``rationales`` prints of what was kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from icl_bench.wording import counted, percent, plain

if TYPE_CHECKING:
    from icl_bench.tasks.spec import RationaleOrigin


def written_in_words(origin: RationaleOrigin, paths: Sequence[Path]) -> list[str]:
    """The share that was kept, in all and by label, what it took, and the files."""
    kept = f"kept: {origin.kept:,} of {counted(origin.tried, 'row')} ({percent(origin.kept / origin.tried)}%)"
    lines = [f"{kept}, {origin.take} of the samples with --keep {origin.keep}"]
    if origin.cut:
        lines.append(f"  {origin.cut:,} of them were cut at the limit of tokens: their rows have no whole one")
    if origin.kept_of_label:
        each = [f"{plain(label)} {kept} of {tried}" for label, (kept, tried) in origin.kept_of_label.items()]
        lines.append(f"  by label: {', '.join(each)}")
    lines.append(
        f"  {origin.prompt_tokens:,} prompt tokens, {origin.cached_tokens:,} of them cached, and "
        f"{origin.written_tokens:,} written tokens"
    )
    task, *rows = paths
    return [*lines, f"written: {task} (with {', '.join(path.name for path in rows)})"]
