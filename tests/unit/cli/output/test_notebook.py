"""What a run shows below a notebook's cell, run by a kernel as a notebook runs it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
from pathlib import Path
from support.fakes import FakeBackend, plan, runner
from icl_bench.cli.output.progress import Display

folder = Path({folder!r})
made = plan(folder / "task", "1,2,4", draws=2)
shown = Display(quiet={quiet})
with shown.preparing() as say:
    say("reading the data")
shown.note("cards: 6 test rows, [b]pool of 40[/b]")
with shown.running(made) as watcher:
    outcome = runner(made, folder / "results", FakeBackend(pause=0.05), watcher).run()
shown.outcome(outcome, "results")
"""


Shown = tuple[list[Any], list[tuple[float, str]]]
"""A cell's outputs, and the text of each update with the time at which it came."""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shown, Shown]:
    """What two cells of a notebook show, of which the second runs quietly."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    updates: tuple[list[tuple[float, str]], ...] = ([], [])

    class Listening(client.NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] == "update_display_data":
                updates[cell_index].append((time.monotonic(), msg["content"]["data"]["text/plain"]))
            return super().process_message(msg, cell, cell_index)

    book = nbformat.v4.new_notebook()
    for quiet in (False, True):
        source = PROGRAM.format(folder=str(tmp_path_factory.mktemp("cell")), quiet=quiet)
        book.cells.append(nbformat.v4.new_code_cell(source))
    tests = str(Path(__file__).parents[4] / "tests")  # the kernel is a process of its own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])))
        Listening(book, timeout=300, kernel_name="python3").execute()
    usual, quietly = zip((cell.outputs for cell in book.cells), updates, strict=True)
    return usual, quietly


def test_a_notebook_has_one_text_that_is_updated_and_keeps_the_notes(executed: tuple[Shown, Shown]):
    outputs, updates = executed[0]
    (output,) = outputs
    assert output["output_type"] == "display_data"
    lines = output["data"]["text/plain"].splitlines()
    assert list(output["data"]) == ["text/plain"]
    assert lines[0] == "cards: 6 test rows, [b]pool of 40[/b]"
    assert lines[-1] == "6 cells computed. Results: results/"
    assert len(lines) == 3
    running = [text for _, text in updates if "predictions" in text]
    assert len(running) > 2
    assert all(text.startswith(lines[0]) for text in running)
    assert "random, drawn, k=1: " in running[-1]
    done = [int(text.rpartition(" of 36 predictions")[0].rpartition(" ")[2]) for text in running]
    assert done == sorted(done)
    assert done[-1] > done[0]


def test_updates_come_at_most_four_times_a_second(executed: tuple[Shown, Shown]):
    _, updates = executed[0]
    running = [at for at, text in updates if "predictions" in text]
    # what is sent at once may arrive a little late
    assert len(running) <= 2 + (running[-1] - running[0]) / 0.2


def test_a_quiet_run_shows_nothing_in_a_notebook(executed: tuple[Shown, Shown]):
    assert executed[1] == ([], [])
