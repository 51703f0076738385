"""Folders of the cache that are created once and atomically. Damaged folders are created again.

A folder contains a seal, :data:`SEAL`: each file's size, time, SHA-256 and a hash of samples. Size, time and samples
are checked at each use, in milliseconds; all bytes are checked if the time differs, and on request.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from icl_bench.models.cache_folder import cache_dir, remove_leftovers
from icl_bench.models.fingerprints import SAMPLE_BYTES, SAMPLES, parts_of, sha256_of
from icl_bench.text_files import json_file

SEAL = ".sealed"


def made_once(place: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder ``place``. If it is missing or damaged, ``write`` fills an empty folder.

    Processes wait for each other. Leftovers of killed processes are removed, in adjacent folders after a day. Raises
    ``OSError``.
    """
    if is_whole(place):
        return place
    from filelock import FileLock

    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if is_whole(place):
            return place
        unfinished = place.parent / f".new-{place.name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        beside = place.parent.parent  # adapters and loaded models each have a parent folder
        # files next to the cache's own folders may belong to the user
        for folder in {place.parent, *(beside.iterdir() if beside != cache_dir() else ())}:
            remove_leftovers(folder)
        try:
            unfinished.mkdir()
            write(unfinished)
            _seal(unfinished)
            shutil.rmtree(place, ignore_errors=True)
            unfinished.replace(place)
            _write_through(place.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return place


def is_whole(folder: Path, *, every_byte: bool = False) -> bool:
    """Whether the folder has the files that were written into it, unchanged."""
    try:
        sealed = json_file(folder / SEAL)
        names = {file.relative_to(folder).as_posix() for file in _files(folder)}
        return names == set(sealed) and all(_is_same(folder / name, sealed[name], every_byte) for name in names)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def remove_damaged(folder: Path) -> bool | None:
    """Read every byte of a folder of :func:`made_once`, and remove it if it is damaged. Returns whether it was.

    Returns None for any other folder.
    """
    if not (folder / SEAL).exists():
        return None
    if is_whole(folder, every_byte=True):
        return False
    shutil.rmtree(folder)
    return True


def _files(folder: Path) -> list[Path]:
    """The files in a folder and those below it, without the seal."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / SEAL]


def _is_same(file: Path, sealed: dict[str, Any], every_byte: bool) -> bool:
    stat = file.stat()
    if stat.st_size != sealed["size"] or _samples(file) != sealed["samples"]:
        return False
    if stat.st_mtime_ns == sealed["time"] and not every_byte:
        return True
    same: bool = sha256_of(file) == sealed["sha256"]
    if same:
        with suppress(OSError):  # for a copied folder, so that the next check need not read all of it again
            os.utime(file, ns=(stat.st_atime_ns, sealed["time"]))
    return same


def _seal(folder: Path) -> None:
    sealed = {}
    for file in _files(folder):
        _write_through(file)
        stat = file.stat()
        hashes = {"sha256": sha256_of(file), "samples": _samples(file)}
        sealed[file.relative_to(folder).as_posix()] = {"size": stat.st_size, "time": stat.st_mtime_ns, **hashes}
    (folder / SEAL).write_text(json.dumps(sealed), encoding="utf-8")
    _write_through(folder / SEAL)
    _write_through(folder)


def _samples(file: Path) -> str:
    """Hash of samples of a file, or of the whole file if it is small."""
    digest = hashlib.sha256()
    for part in parts_of(file, SAMPLES * SAMPLE_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _write_through(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
