"""Folders of the cache: whole or not there, and made again where a byte is another one."""

import os
import signal
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icl_bench.models.fingerprints import sha256_of
from icl_bench.models.made_once import SEAL, is_whole, made_once, remove_damaged

CONTENT = {"config.json": b"{}", "deep/model.safetensors": bytes(range(256)) * 40_000, "empty": b""}


def write(folder: Path) -> None:
    for name, content in CONTENT.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def written(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != SEAL
    }


def test_a_folder_is_made_once(tmp_path: Path):
    made = []
    for _ in range(3):
        assert made_once(tmp_path / "a" / "b", lambda folder: (made.append(1), write(folder))) == tmp_path / "a" / "b"
    assert len(made) == 1
    assert written(tmp_path / "a" / "b") == CONTENT


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory.mktemp("made") / "place", write)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*CONTENT, SEAL]), st.sampled_from(["flip", "cut", "longer", "gone", "more"]), st.data())
def test_a_damaged_folder_is_never_taken(made: Path, name: str, how: str, data: st.DataObject):
    file = made / name
    before = file.read_bytes()
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    if how == "flip" and before:
        at = data.draw(st.integers(0, len(before) * 8 - 1))
        content = bytearray(before)
        content[at // 8] ^= 1 << at % 8
        file.write_bytes(content)
    elif how == "cut" and before:
        file.write_bytes(before[: data.draw(st.integers(0, len(before) - 1))])
    elif how == "longer":
        file.write_bytes(before + b"\0")
    elif how == "gone":
        file.unlink()
    else:
        (made / "further").write_bytes(b"")
    try:
        # a seal with another case of a hexadecimal digit or another time says nothing false
        assert not is_whole(made) or name == SEAL
        if is_whole(made):
            assert written(made) == CONTENT
    finally:
        (made / "further").unlink(missing_ok=True)
        file.write_bytes(before)
        os.utime(file, ns=times)
    assert is_whole(made)


def test_a_byte_that_changed_under_the_same_time_is_found_by_the_full_check(tmp_path: Path):
    place = made_once(tmp_path / "place", write)
    file = place / "deep" / "model.safetensors"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    with file.open("r+b") as stream:
        stream.seek(100_000)  # between two samples
        stream.write(b"?")
    os.utime(file, ns=times)
    assert is_whole(place)
    assert not is_whole(place, every_byte=True)
    assert remove_damaged(place)
    assert written(made_once(place, write)) == CONTENT
    assert not remove_damaged(place)
    assert not remove_damaged(tmp_path / "nothing")


def test_a_copy_with_other_times_is_the_same(tmp_path: Path):
    place = made_once(tmp_path / "place", write)
    for file in place.rglob("*"):
        os.utime(file, (1, 1))
    assert is_whole(place)


def _slowly(place: Path, begun: Path) -> None:
    def slow(folder: Path) -> None:
        write(folder)
        begun.touch()
        time.sleep(60)

    made_once(place, slow)


def test_what_a_killed_process_left_is_removed(tmp_path: Path):
    place, begun = tmp_path / "place", tmp_path / "begun"
    process = get_context("spawn").Process(target=_slowly, args=(place, begun))
    process.start()
    while not begun.exists():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not place.exists()
    assert written(made_once(place, write)) == CONTENT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "place", "place.lock"]


def test_a_failure_leaves_nothing(tmp_path: Path):
    def fails(folder: Path) -> None:
        write(folder)
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        made_once(tmp_path / "place", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["place.lock"]


def test_a_damaged_folder_is_made_again(tmp_path: Path):
    made = []

    def again(folder: Path) -> None:
        made.append(folder)
        write(folder)

    place = made_once(tmp_path / "place", again)
    (place / "config.json").write_bytes(b"[]")
    (place / "further").write_bytes(b"")
    assert written(made_once(place, again)) == CONTENT
    assert len(made) == 2


def test_a_copy_is_read_whole_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = made_once(tmp_path / "place", write)
    for file in place.rglob("*"):
        os.utime(file, (1, 1))
    read = []
    monkeypatch.setattr("icl_bench.models.made_once.sha256_of", lambda file: read.append(file) or sha256_of(file))
    assert is_whole(place)
    assert len(read) == len(CONTENT)
    assert is_whole(place)
    assert len(read) == len(CONTENT)
