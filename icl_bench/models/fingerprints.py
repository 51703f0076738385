"""Hashes that identify the files of a result or a cache entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

SAMPLES, SAMPLE_BYTES, SMALL_FILE = 64, 65536, 64 * 2**20
"""Files larger than ``SMALL_FILE`` bytes are sampled: ``SAMPLES`` times ``SAMPLE_BYTES``."""

PARTS_AT_ONCE = 10_000

_OF_CHECKPOINT = frozenset({".json", ".safetensors", ".model", ".txt"})


def sha256_of(file: Path) -> str:
    """Hash of a file's bytes, in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def key_of(parts: Iterable[str | int]) -> str:
    """A hash of these parts as a name: 32 hex digits. Different lists have different names."""
    left, between, written = iter(parts), b"", hashlib.sha256(b"[")
    while some := list(islice(left, PARTS_AT_ONCE)):  # a million texts need no copy in JSON
        written.update(between + json.dumps(some).encode()[1:-1])
        between = b", "
    written.update(b"]")
    return written.hexdigest()[:32]


def key_of_files(parts: Sequence[str], folder: Path, files: Iterable[Path]) -> str:
    """:func:`key_of` of parts and of files below a folder, by name and content.

    Raises ``OSError`` if a file cannot be read.
    """
    named_files = [(file.relative_to(folder).as_posix(), file) for file in sorted(files)]
    return key_of([*parts, *(part for name, file in named_files for part in (name, sha256_of(file)))])


def folder_fingerprint(folder: Path) -> str:
    """Hash of a checkpoint's files: the content of small files, size and 64 samples of large ones.

    A retrained checkpoint differs in nearly every tensor, so samples distinguish it, in a second
    instead of minutes.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if not file.is_file() or file.suffix not in _OF_CHECKPOINT:
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        for part in parts_of(file, SMALL_FILE):
            digest.update(part)
    return f"files-sha256:{digest.hexdigest()}"


def parts_of(file: Path, whole: int) -> Iterator[bytes]:
    """The content of a file of at most ``whole`` bytes, or evenly spaced samples of a larger one."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= whole:
            yield stream.read()
            return
        for i in range(SAMPLES):
            stream.seek(i * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            yield stream.read(SAMPLE_BYTES)
