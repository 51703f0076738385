"""A small share of what ``make fuzz`` runs: whatever a user gives ends in a clear line."""

from __future__ import annotations

import pytest
from support import fuzz as fuzzer
from support.fuzz_cases import Command
from support.in_process import Ended

CASES = 15


def test_absurd_options_and_damaged_files_end_in_a_clear_line(monkeypatch: pytest.MonkeyPatch):
    for name in ("ICL_BENCH_CACHE", "ICL_BENCH_DATA", "OPENAI_API_KEY", "COLUMNS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert fuzzer.fuzz(1, range(CASES), print) == []


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("raises", "KeyError"),
        ("hangs", "computed for more than"),
        ("exits", "exit code 3"),
        ("prints", "a traceback"),
        ("babbles", "no clear line"),
        ("pastes", "an endless line"),
        ("works", ""),
    ],
)
def test_the_fuzzer_sees_every_way_to_end_badly(monkeypatch: pytest.MonkeyPatch, word: str, why: str):
    def command(*words: str, output: str) -> Ended:
        assert output == "utf-8"
        if words[0] == "raises":
            raise KeyError("x")
        while words[0] == "hangs":
            pass
        told = {
            "prints": "error: x\nTraceback (most recent call last)",
            "babbles": "what?",
            "pastes": f"error: {'x' * 9999}",
        }
        return Ended({"exits": 3, "works": 0}.get(words[0], 2), "", told.get(words[0], "error: x"))

    monkeypatch.setattr(fuzzer, "run_command", command)
    monkeypatch.setattr(fuzzer, "SECONDS", 0.2)
    found = fuzzer._ended(Command((word,)))
    assert why in found
    assert bool(found) == bool(why)
