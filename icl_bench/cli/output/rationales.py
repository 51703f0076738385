"""Runs ``rationales``, and prints the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from icl_bench.cli.jobs import give_budget, purse, run_part
from icl_bench.studies.parts import PromptPart
from icl_bench.sweep.rationales import RationaleRun
from icl_bench.wording import counted, percent, plain

if TYPE_CHECKING:
    from icl_bench.cli.output.progress import Display
    from icl_bench.sweep.rationale_options import RationalesOptions
    from icl_bench.sweep.runner import Outcome
    from icl_bench.sweep.sweep import Sweep
    from icl_bench.tasks.spec import RationaleOrigin


def carried_out(
    options: RationalesOptions, display: Display, planned: Callable[[Sweep], None] = lambda _: None
) -> tuple[Outcome, RationaleOrigin | None]:
    """Let the model write rationales, and write the task file. ``planned`` is called before anything is computed.

    Returns the run's outcome and the origin of the rationales; None if the run stopped or failed. Raises ``UserError``.
    """
    with display.preparing() as say:
        made = RationaleRun.prepare(options, say)
    give_budget(made.sweep, purse)

    def begin() -> None:
        for note in made.notes():
            display.note(f"  {note}")
        planned(made.sweep)

    outcome = run_part(PromptPart.of(made.sweep), str(options.cells), display, begin)
    if outcome.failed or outcome.stopped:
        return outcome, None
    origin, paths = made.write()
    for line in written_in_words(origin, paths):
        display.note(line)
    return outcome, origin


def written_in_words(origin: RationaleOrigin, paths: Sequence[Path]) -> list[str]:
    """The share that was kept, in total and by label, the cost, and the files."""
    kept = f"kept: {origin.kept:,} of {counted(origin.tried, 'row')} ({percent(origin.kept / origin.tried)}%)"
    lines = [f"{kept}, {origin.take} of the samples with --keep {origin.keep}"]
    if origin.cut:
        lines.append(f"  {origin.cut:,} of the kept texts were cut at the token limit: their rows have no complete one")
    if origin.kept_of_label:
        each = [f"{plain(label)} {kept} of {tried}" for label, (kept, tried) in origin.kept_of_label.items()]
        lines.append(f"  by label: {', '.join(each)}")
    lines.append(
        f"  {origin.prompt_tokens:,} prompt tokens, {origin.cached_tokens:,} of them cached, and "
        f"{origin.written_tokens:,} written tokens"
    )
    task, *rows = paths
    return [*lines, f"written: {task} (with {', '.join(path.name for path in rows)})"]
