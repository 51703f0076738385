"""What commands say while they work, where standard error is a terminal, and what is in colour."""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text
from support.fakes import FakeBackend, plan, runner
from support.in_process import run_command

from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.columns import COLUMNS
from icl_bench.cli.output import working as module
from icl_bench.cli.output.baseline_check import STYLES
from icl_bench.cli.output.findings import styled
from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.progress import Display, _Scores
from icl_bench.cli.output.terminal import Terminal
from icl_bench.cli.output.working import watched, working
from icl_bench.errors import CellError
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.reading import read_results
from icl_bench.studies.parts import StudyProgress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("progress")
    made = plan(folder / "task", "1,2,4", draws=2, selects=["random", "bm25"])
    runner(made, folder / "results", FakeBackend()).run()
    return folder / "results"


Screen = Callable[[], str]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Standard error is a terminal; gives what was written there, without control sequences."""
    text = io.StringIO()
    shown = Terminal(file=text, force_terminal=True, width=80)
    for place in ("working", "progress"):
        monkeypatch.setattr(f"icl_bench.cli.output.{place}.console", lambda **_: shown)
    return lambda: CONTROL.sub("", text.getvalue())


def test_a_command_says_how_many_files_it_has_read_and_which_finding_it_is_at(
    results: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    said = []
    with working() as say:
        found = read_findings(watched(results, lambda text: (said.append(text), say(text))))
        found.work_out(["curves", "retrieval_gain"], say)
        say("the last")
        time.sleep(0.3)
    files = len(list(results.rglob("*.parquet")))
    assert said[:2] == [f"reading results: {n} of {files} files" for n in (1, 2)]
    assert said[-1] == f"working on {files} files of results"
    assert re.search(r"0:00:0\d the last", screen())


def test_nothing_is_said_before_a_second_is_over(results: Path, screen: Screen):
    with working() as say:
        say("reading")
    assert screen() == ""


def test_long_work_is_said_though_nothing_is_told_in_the_meantime(screen: Screen, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.05)
    with working() as say:
        say("something long")
        time.sleep(0.5)
    assert "something long" in screen()


@pytest.mark.parametrize(
    "words",
    [["summary"], ["summary", "--json"], ["summary", "--frontier"], ["leaderboard"], ["export", "--out", "all.csv"]],
    ids=" ".join,
)
def test_progress_is_no_part_of_the_output(
    results: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("icl_bench.results.kept_texts.WORTH_SECONDS", math.inf)  # computed twice
    plain = run_command(*words, "--results", results)
    assert "\x1b" not in plain.out + plain.err
    assert "reading" not in plain.err
    text = io.StringIO()
    shown = Terminal(file=text, force_terminal=True, width=80)
    monkeypatch.setattr(module, "console", lambda **_: shown)
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.0)
    assert run_command(*words, "--results", results) == plain
    assert text.getvalue()


def test_a_place_that_is_watched_is_named_as_it_was_given(tmp_path: Path):
    assert str(watched("s3ish", lambda _: None)) == "s3ish"
    done = run_command("check", "--baseline", tmp_path, "--results", tmp_path / "no")
    assert f"results folder {tmp_path}: no results yet" in done.err


# -- run ----------------------------------------------------------------------------------------


def test_the_clock_of_a_run_goes_while_it_prepares(screen: Screen):
    display = Display(quiet=False)
    display._began -= 61  # as if it had begun a minute ago
    with display.preparing() as say:
        say("reading the data")
        time.sleep(0.3)
    assert "0:01:01 reading the data" in screen()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Standard error is a file; gives what was written there."""
    text = io.StringIO()
    monkeypatch.setattr("icl_bench.cli.output.progress.console", lambda **_: Terminal(file=text, width=200))
    return text.getvalue


def test_without_a_terminal_each_cell_that_ends_is_a_line_with_its_score_so_far(tmp_path: Path, log: Screen):
    made = plan(tmp_path / "task", "1,2", draws=2)
    with Display(quiet=False).running(made) as watcher:
        runner(made, tmp_path / "results", FakeBackend(), watcher=watcher).run()
    lines = log().splitlines()
    points = ["k=1", "k=2", "k=1", "k=2"]
    for number, (line, point) in enumerate(zip(lines, points, strict=True), 1):
        said = rf"  {number} of 4 cells · random, drawn, {point}: accuracy \d+\.\d%, {1 + (number > 2)} of 2 draws"
        assert re.fullmatch(said + (r"; \d:\d\d:\d\d left" if number < 4 else ""), line)
    scores = {k: 100 * read_results(tmp_path / "results").query("k == @k")["correct"].mean() for k in (1, 2)}
    assert f"k=1: accuracy {scores[1]:.1f}%" in lines[2]
    assert f"k=2: accuracy {scores[2]:.1f}%" in lines[3]


def test_without_a_terminal_a_score_so_far_names_the_cells_of_an_earlier_run(tmp_path: Path, log: Screen):
    first, more = (plan(tmp_path / "task", "1", draws=draws) for draws in (2, 3))
    runner(first, tmp_path / "results", FakeBackend()).run()
    with Display(quiet=False).running(more) as watcher:
        runner(more, tmp_path / "results", FakeBackend(), watcher=watcher).run()
    said = r"  3 of 3 cells · random, drawn, k=1: accuracy \d+\.\d%, 1 of 3 draws, without 2 of an earlier run\n"
    assert re.fullmatch(said, log())


def test_without_a_terminal_cells_that_were_there_count_and_failed_ones_say_so(tmp_path: Path, log: Screen):
    made = plan(tmp_path / "task", "1", draws=1)
    runner(made, tmp_path / "results", FakeBackend()).run()
    more = plan(tmp_path / "task", "1,2", draws=1)

    def fails(_: Any) -> None:
        raise CellError("out of memory")

    with Display(quiet=False).running(more) as watcher:
        runner(more, tmp_path / "results", FakeBackend(fails=fails), watcher=watcher).run()
    assert log() == "  2 of 2 cells · random, drawn, k=2, draw 1: failed\n"


def test_quiet_says_nothing_of_cells(tmp_path: Path, log: Screen):
    made = plan(tmp_path / "task", "1", draws=1)
    display = Display(quiet=True)
    with display.running(made) as watcher:
        runner(made, tmp_path / "results", FakeBackend(), watcher=watcher).run()
    assert display.shared_progress() is None
    assert log() == ""


def test_without_a_terminal_long_preparations_are_a_line_now_and_then(log: Screen, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr("icl_bench.cli.output.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    with Display(quiet=False).preparing() as say:
        for second in range(0, 100, 10):
            now[0] = second
            say(f"draw {second}")
    assert log() == "draw 30\ndraw 60\ndraw 90\n"


def test_without_a_terminal_a_study_on_a_cluster_says_which_groups_are_done(log: Screen):
    progress = Display(quiet=False).shared_progress()
    assert progress is not None
    state = StudyProgress("engine", 2, 0, 3, 1, 40, 10, 0.25, 65.0, ())
    progress.show(state)
    progress.show(state)
    progress.show(replace(state, units_done=2, predictions_done=20, seconds_left=None))
    progress.close()
    assert log() == ("  1 of 3 groups · 10 of 40 predictions, 0:01:05 left\n  2 of 3 groups · 20 of 40 predictions\n")


def test_scores_so_far_are_means_of_finished_cells_and_say_so():
    def cell(draw: int, k: int = 10, attention: str = str(FULL), asked: str | None = None) -> Any:
        spec = SimpleNamespace(select="random", order="by-label", attention=attention, k=k, draw=draw)
        return SimpleNamespace(spec=spec, task=SimpleNamespace(asked=asked))

    planned = [cell(draw, k) for draw in (0, 1) for k in (10, 1000)] + [cell(0, 5, "block:50")]
    planned += [cell(draw, 10, asked="calibration") for draw in (0, 1)]  # queries without a score
    shown = _Scores(planned)
    assert shown.text.plain == ""
    shown.add(cell(0), "accuracy", [1.0, 0.0, 0.0, 0.0])
    shown.add(cell(0, 5, "block:50"), "accuracy", [1.0])
    shown.add(cell(1), "accuracy", [1.0, 1.0])
    assert shown.text.plain.splitlines() == [
        "accuracy so far, of the cells that this run finished:",
        "  random, by-label, block:50, k=5: 100.0%, done",
        "  random, by-label, k=10: 50.0%, 2 of 2 draws",
    ]
    for k in range(10):
        shown.add(cell(0, k), "accuracy", [0.5])
    lines = shown.text.plain.splitlines()
    assert lines[0].endswith("(6 earlier points not shown):")
    assert len(lines) == 1 + _Scores.LINES


def test_a_run_shows_the_scores_of_its_finished_cells(tmp_path: Path, screen: Screen):
    made = plan(tmp_path / "task", "1,2", draws=1)
    with Display(quiet=False).running(made) as watcher:
        runner(made, tmp_path / "results", FakeBackend(), watcher).run()
        time.sleep(0.3)
    assert re.search(r"random, drawn, k=1: \d+\.\d%, done", screen())
    assert "accuracy so far, of the cells that this run finished:" in screen()


def test_a_run_in_batches_shows_their_requests_and_no_time_left(tmp_path: Path, screen: Screen):
    made = plan(tmp_path / "task", "1,2", draws=1)
    with Display(quiet=False).running(made) as watcher:
        watcher.cell_started(made.cells[0], 0)
        watcher.following(2, 5, 12)
        watcher.predicted(3, 100)
        time.sleep(0.3)
    assert "5 of 12 requests done, in 2 batches" in screen()
    assert "tokens/s" not in screen()


# -- colour -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("difference", "better", "p", "style"),
    [
        (0.1, "bm25", 0.01, "green"),
        (-0.1, "random", 0.01, "red"),
        (0.1, None, 0.5, "dim"),
        (0.1, "1 draw", float("nan"), ""),
    ],
)
def test_a_comparisons_verdict_has_a_colour_beside_its_words(
    difference: float, better: str | None, p: float, style: str
):
    cell = styled(COLUMNS["advice"], {"advice": better, "difference": difference, "p_holm": p})
    assert isinstance(cell, Text)
    assert (cell.plain, cell.style) == (better or "–", style)


@pytest.mark.parametrize("no_color", [False, True])
def test_colour_is_for_terminals_alone(no_color: bool, monkeypatch: pytest.MonkeyPatch):
    heads, rows = [ColumnHead("verdict", "text")], [[Text("loss", STYLES["loss"])], ["ok"]]
    for terminal in (True, False):
        text = io.StringIO()
        console = Terminal(
            file=text,
            force_terminal=terminal,
            width=80,
            no_color=no_color,
            color_system="standard" if terminal else None,
        )
        print_table(console, heads, rows)
        assert ("\x1b[1;31mloss" in text.getvalue()) == (terminal and not no_color)
        assert ("\x1b" in text.getvalue()) == terminal
        assert CONTROL.sub("", text.getvalue()).split()[-2:] == ["loss", "ok"]
