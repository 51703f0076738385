"""A small share of what ``make soak`` runs: a sweep stopped in five ways loses and doubles nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[1] / "soak" / "soak.py"
KILLS = 6


def test_a_sweep_that_is_stopped_in_five_ways_ends_as_if_it_never_was():
    asked = ("--kills", str(KILLS), "--select", "random,bm25", "--attention", "full,block:2")
    done = subprocess.run(
        [sys.executable, SOAK, *asked],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = re.search(r"(\d+) sweeps whole and as if never stopped", done.stdout)
    assert said, done.stdout
    assert int(said[1]) >= 1, done.stdout
    stopped = re.findall(r"(kill|terminate|interrupt|full disk|two processes) (\d+)", done.stdout)
    assert len(stopped) == 5, done.stdout
    assert sum(int(count) for _, count in stopped) >= KILLS // 2, done.stdout


EVERY = {
    16: ("sweep", "export", "import", "conversion", "arrays", "leaderboard", "draft"),
    60: ("rationales", "choose", "batches"),
    150: ("adapt", "finetune"),
}
"""Every how many operations a kill is tried -> works: those that take longest less often."""


def soak(program: str, *asked: str) -> str:
    """What a program beside ``soak.py`` prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = [sys.executable, SOAK.with_name(program), *asked]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_work_that_is_killed_at_its_file_operations_can_be_repeated():
    """All works in one process: to import the libraries takes as long as most of them."""
    works = {work: every for every, some in EVERY.items() for work in some}
    said = soak("faults.py", "--only", ",".join(f"{work}:{every}" for work, every in works.items()))
    kills = dict(re.findall(r"(\w+): (\d+) kills, nothing lost or double", said))
    assert set(kills) == set(works), said
    assert all(int(count) > 0 for count in kills.values()), said


def test_no_random_damage_of_stored_files_is_silently_wrong():
    said = soak("mutations.py", "--count", "200")
    assert "200 mutations, none silently wrong" in said
    assert said.count("refused or left out") >= 6, said
