"""Long trainings as commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icl_bench.cli.output.progress import Display
from icl_bench.training.resumable import LongTraining, Say


def carry_out(prepare: Callable[[Any, Say], LongTraining], spec: Any, *, quiet: bool) -> None:
    """Plan a training, print its notes, and run it, unless its folder already has the result."""
    display = Display(quiet=quiet)
    with display.preparing() as say:
        training = prepare(spec, say)
        done = training.folder.is_done()
    out = training.folder.out
    if done:
        training.folder.remove_unfinished()
        display.note(f"{out} holds this training already")
        return
    for text in training.notes():
        display.note(f"  note: {text}")
    training.run(display.note)
    display.note(f"written: {out}")
