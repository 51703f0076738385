"""The cores and the memory that a process may use, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from icl_bench import machine

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Linux's files: four logical processors of two cores, and no container."""
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings)
    (tmp_path / "meminfo").write_text(MEMINFO)
    for name, place in (("_CGROUP", tmp_path), ("_CPUS", tmp_path), ("_MEMORY", tmp_path / "meminfo")):
        monkeypatch.setattr(machine, name, place)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def test_threads_are_cores_and_not_their_logical_processors(files: Path, monkeypatch: pytest.MonkeyPatch):
    assert machine.threads_here() == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 3}, raising=False)
    assert machine.threads_here() == 1


@pytest.mark.parametrize(("limit", "threads"), [("max 100000", 2), ("100000 100000", 1), ("150000 100000", 2)])
def test_a_container_limits_the_threads(files: Path, limit: str, threads: int):
    (files / "cpu.max").write_text(limit)
    assert machine.threads_here() == threads


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("5,1", 5), ("", 2), ("0", 2), ("many", 2), ("²", 2)])
def test_the_users_number_of_threads_is_taken(files: Path, given: str, threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert machine.threads_here() == threads


def test_free_memory_is_the_machines_or_what_a_container_leaves(files: Path):
    assert machine.free_bytes() == 8_000_000 * 1024
    (files / "memory.max").write_text("2000000000")
    (files / "memory.current").write_text("1500000000")
    (files / "memory.stat").write_text("anon 900000000\ninactive_file 400000000\n")
    assert machine.free_bytes() == 900_000_000
    (files / "memory.max").write_text("max")
    assert machine.free_bytes() == 8_000_000 * 1024
    (files / "meminfo").unlink()
    assert machine.free_bytes() is None
