"""A small share of what ``make soak`` runs: a sweep stopped in five ways loses and doubles nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.warm_program import WarmProgram

SOAK = Path(__file__).parents[1] / "soak"
KILLS = 6


@pytest.fixture(scope="module")
def soak(warm: WarmProgram) -> Callable[..., str]:
    """What a program of ``make soak`` prints."""

    def said(program: str, *asked: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        done = warm.run([str(SOAK / program), *asked], environment)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        return done.stdout

    return said


def test_a_sweep_that_is_stopped_in_five_ways_ends_as_if_it_never_was(soak: Callable[..., str]):
    said = soak("soak.py", "--kills", str(KILLS), "--select", "random,bm25", "--attention", "full,block:2")
    whole = re.search(r"(\d+) sweeps whole and as if never stopped", said)
    assert whole, said
    assert int(whole[1]) >= 1, said
    stopped = re.findall(r"(kill|terminate|interrupt|full disk|two processes) (\d+)", said)
    assert len(stopped) == 5, said
    assert sum(int(count) for _, count in stopped) >= KILLS // 2, said


EVERY = {
    32: ("sweep", "export", "import", "conversion", "arrays", "leaderboard", "draft"),
    90: ("rationales", "choose", "batches"),
    200: ("adapt", "finetune"),
}
"""Every how many operations a kill is tried -> works: those that take longest less often."""


def test_work_that_is_killed_at_its_file_operations_can_be_repeated(soak: Callable[..., str]):
    works = {work: every for every, some in EVERY.items() for work in some}
    said = soak("faults.py", "--only", ",".join(f"{work}:{every}" for work, every in works.items()))
    kills = dict(re.findall(r"(\w+): (\d+) kills, nothing lost or double", said))
    assert set(kills) == set(works), said
    assert all(int(count) > 0 for count in kills.values()), said


def test_no_random_damage_of_stored_files_is_silently_wrong(soak: Callable[..., str]):
    said = soak("mutations.py", "--count", "100")
    assert "100 mutations, none silently wrong" in said
    assert said.count("refused or left out") >= 6, said
