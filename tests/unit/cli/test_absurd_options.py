"""Options that nobody can mean are refused at once, in one line of bearable length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import FakeBackend, plan, runner, write_task
from support.in_process import run_command

from icl_bench.results.cells import CellSpec, Identity
from icl_bench.results.facts import Facts
from icl_bench.results.reading import read_results

DIGITS = "9" * 5000
LONG = "x" * 5000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--order", f"shuffled:{DIGITS}"), "order 'shuffled:9"),
        (("--order", LONG), "unknown order 'xxx"),
        (("--draws", 10**9), "--draws 1000000000: expected at most 10,000"),
        (("--draws", 10**4000), "…: expected at most 10,000"),
        (("--draws", DIGITS), "--draws '9999"),
        (("--k", DIGITS), "--k 99999999999999999999: not a number of demonstrations"),
        (("--test-size", DIGITS), "--test-size '9999"),
        (("--test-size", 10**4000), "a huge number test rows are asked for; the test file has 6"),
        (("--seed", DIGITS), ": expected a whole number of 64 bits"),
        (("--seed", 10**30), ": expected a whole number of 64 bits"),
        (("--context", DIGITS), "--context '9999"),
        (("--labels", f"half:{DIGITS}"), "--labels 'half:9"),
        (("--select", LONG), "xxx"),
        (("--attention", LONG), "xxx"),
        (("--perturbation", LONG), "xxx"),
        (("--model", LONG), "the name is too long for a file"),
        (("--task", f"{LONG}.yaml"), "the name is too long for a file"),
        (("--data-dir", LONG), "the name is too long for a file"),
    ],
)
def test_an_absurd_option_is_one_clear_line(tmp_path: Path, words: tuple[object, ...], said: str):
    given = {"--task": write_task(tmp_path / "task"), "--model": "gemma3-270m", "--k": "1"}
    given |= dict([words])
    done = run_command("plan", *(word for pair in given.items() for word in pair))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert len(done.err) < 700


def test_a_results_folder_with_an_impossible_name_is_refused_by_every_command(tmp_path: Path):
    for words in (["summary"], ["leaderboard"], ["report"], ["export", "--out", "x.csv"]):
        done = run_command(*words, "--results", tmp_path / LONG)
        assert done.code == 2
        assert done.err.count("\n") == 1


def test_names_that_are_too_long_for_a_folder_are_stored_all_the_same(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1, name="a" * 300)
    runner(made, tmp_path / "results", FakeBackend()).run()
    assert set(read_results(tmp_path / "results")["task"]) == {"a" * 300}
    axes = {"select": "random", "order": "drawn", "attention": "full", "k": 1, "draw": 0}
    names = [Identity(CellSpec(task=f"{LONG}{end}", model="m", **axes), Facts()).name.partition("/")[0] for end in "ab"]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 255


def test_a_reader_who_has_enough_ends_the_output_without_a_traceback(tmp_path: Path):
    code = "import sys; from icl_bench.cli import main; main(['tasks', '--json'])"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert program.stderr.read() == b""
    assert program.wait() == 141
