"""What killed processes leave in the cache goes after a day; damaged arrays are computed again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from icl_bench.models.array_cache import cached_array
from icl_bench.models.cache_folder import LEFT_SECONDS
from icl_bench.models.made_once import made_once

LEFT = (".new-abc", ".new-tiny", ".writing-12ab.json")

OTHERS = (".hidden", ".pre-commit-config.yaml", ".writing-plan.md")
"""Names of other programs' files."""


def leave(folder: Path, seconds: float) -> None:
    """Unfinished folders and a file, and what is finished, all as old as this."""
    (folder / LEFT[0]).mkdir(parents=True)
    (folder / LEFT[0] / "tokens.npy").write_bytes(b"half")
    (folder / LEFT[1]).mkdir()
    (folder / LEFT[2]).write_text("{")
    (folder / "tiny").mkdir()
    for name in OTHERS:
        (folder / name).write_text("of somebody else")
    (folder / "tiny.lock").touch()
    before = time.time() - seconds
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (before, before))


def present(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("where", ["arrays", "models", "a folder beside"])
def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path, where: str):
    cache = tmp_path / "cache"
    for age, kept in ((LEFT_SECONDS - 60, {*LEFT}), (LEFT_SECONDS + 60, set())):
        folder = cache / f"{age}"
        leave(folder, age)
        if where == "arrays":
            cached_array(folder / "new-one", lambda: np.zeros(3))
        else:
            place = folder if where == "models" else cache / "other"
            made_once(place / f"new {age}", lambda new: (new / "x").write_text("x"))
        assert present(folder) >= {"tiny", *OTHERS, "tiny.lock"} | kept
        assert present(folder) & {*LEFT} == kept


def test_what_is_written_just_now_in_an_old_folder_is_kept(tmp_path: Path):
    leave(tmp_path, LEFT_SECONDS + 60)
    (tmp_path / LEFT[0] / "tokens.npy").touch()
    cached_array(tmp_path / "new-one", lambda: np.zeros(3))
    assert present(tmp_path) & {*LEFT} == {LEFT[0]}


def test_no_flipped_bit_of_an_array_is_believed(tmp_path: Path):
    entry, computed = tmp_path / "sentences-x", list[int]()

    def compute() -> np.ndarray:
        computed.append(1)
        return np.arange(6.0)

    cached_array(entry, compute)
    files = {file: file.read_bytes() for file in entry.iterdir()}
    assert len(files) == 2
    tried = 1
    for file, whole in files.items():
        for place in range(0, len(whole), 7):
            broken = bytearray(whole)
            broken[place] ^= 1 << place % 8
            file.write_bytes(broken)
            assert cached_array(entry, compute).tolist() == [0, 1, 2, 3, 4, 5]
            tried += 1
    assert len(computed) > tried // 2
    for file, whole in files.items():
        assert file.read_bytes() == whole
