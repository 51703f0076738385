"""Files that users name are read, or refused: none is waited for, and none is without an end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from icl_bench.errors import UserError
from icl_bench.text_files import read_file, write_new


def test_a_named_pipe_that_nobody_writes_to_is_refused_instead_of_waited_for(tmp_path: Path):
    memory = Path("/dev/shm")  # folders in memory are below /dev, as what a shell gives is
    for folder in (tmp_path, *([memory] if os.access(memory, os.W_OK) else [])):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            os.mkfifo(Path(place, "rows.jsonl"))
            with pytest.raises(UserError, match=r"rows\.jsonl: is a named pipe"):
                read_file(Path(place, "rows.jsonl"))


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str):
    with pytest.raises(UserError, match=f"{device}: is a named pipe or a device"):
        read_file(Path(device))


def test_what_a_shell_gives_as_a_file_is_read():
    reader, writer = os.pipe()
    os.write(writer, b"rows")
    os.close(writer)
    assert read_file(Path(f"/dev/fd/{reader}")) == b"rows"
    os.close(reader)


@pytest.mark.parametrize("links", [True, False], ids=["with links", "without links"])
def test_a_new_file_is_there_whole_and_never_takes_anothers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
):
    if not links:

        def refused(_: Path, __: Path) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(Path, "hardlink_to", refused)
    write_new(tmp_path / "new.yaml", b"one")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "new.yaml", b"other")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"new.yaml": b"one"}
