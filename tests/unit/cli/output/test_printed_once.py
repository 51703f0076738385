"""``summary`` prints a kept text only where it would print the same, from the same predictions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.in_process import run_command, said
from support.predictions import cell, imported

from icl_bench.analysis import all_findings
from icl_bench.cli.output import printed_once
from icl_bench.results import kept_texts, reading

OPTIONS = ["", "--json", "--frontier"]
MORE = [
    pytest.param(options, marks=pytest.mark.thorough)
    for options in ("--cost", "--provenance --top 1", "--frontier --json", "--detect 5")
]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_texts, "WORTH_SECONDS", 0.0)
    folder = imported(
        tmp_path, *(cell(said, k=k, draw=draw) for k, said in ((1, "abab"), (5, "aabb")) for draw in (0, 1))
    )
    return imported(tmp_path, cell("aaaa", model="other"), name="more").parent / folder.name


@pytest.mark.parametrize("options", [*OPTIONS, *MORE])
def test_the_second_summary_prints_the_same_and_computes_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch, options: str
):
    words = ["summary", "--results", results, *options.split()]
    first = said(*words)
    monkeypatch.setattr(reading, "read_whole", None)
    monkeypatch.setattr(all_findings, "read_findings", None)
    assert said(*words) == first
    assert run_command(*words, output="closed").code == 141


def test_another_width_or_encoding_is_another_text(results: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["summary", "--results", results]
    first = said(*words)
    in_ascii = run_command(*words, output="ascii").out
    monkeypatch.setenv("COLUMNS", "60")
    narrow = said(*words)
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, first.splitlines()))
    assert in_ascii.isascii()
    assert not first.isascii()


def test_a_file_damaged_at_the_same_size_and_time_is_left_out_of_the_next_summary(results: Path):
    words = ["summary", "--results", results, "--json"]
    first = said(*words)
    (file,) = results.rglob("more*.parquet")
    before, raw = file.stat(), bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):  # computed, then kept
        ended = run_command(*words)
        assert '"other"' in first
        assert '"other"' not in ended.out
        assert "bytes of it have changed since it was written" in ended.err


def test_prices_of_the_day_are_not_kept(results: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(printed_once, "print_once", None)
    assert run_command("summary", "--results", results, "--frontier", "--price", "auto").code in (0, 2)
