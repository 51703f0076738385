"""Arrays that are computed once and kept on disk, under a name made of what they are of.

An entry is a folder of ``.npy`` files and ``sha256.json``, their hashes. It is written elsewhere
and renamed, and read only where every hash is right: a torn or changed one is computed again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from icl_bench.models.fingerprints import sha256_of

SUMS = "sha256.json"


def load(entry: Path, names: Sequence[str]) -> list[np.ndarray] | None:
    """Read the arrays of an entry, mapped into memory; None where it is missing or damaged."""
    try:
        sums = json.loads((entry / SUMS).read_text(encoding="utf-8"))
        files = [f"{name}.npy" for name in names]
        if any(sha256_of(entry / file) != sums[file] for file in files):
            return None
        return [np.load(entry / file, mmap_mode="r") for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def draft(entry: Path) -> Iterator[Path]:
    """Give a folder to write ``.npy`` files into, which become the entry, all or none of them.

    Without a file there is no entry. Where another process has stored the same, its files stay.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    kind = entry.name.partition("-")[0]
    with tempfile.TemporaryDirectory(prefix=f".{kind}-", dir=entry.parent) as name:
        folder = Path(name)
        yield folder
        if sums := {file.name: sha256_of(file) for file in sorted(folder.glob("*.npy"))}:
            (folder / SUMS).write_text(json.dumps(sums), encoding="utf-8")
            shutil.rmtree(entry, ignore_errors=True)
            with suppress(OSError):  # another process has stored the same
                folder.replace(entry)


def kept(entry: Path, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """The entry's one array; computed, and stored where the folder can be written to."""
    if (found := load(entry, ["array"])) is not None:
        return found[0]
    array = compute()
    # without a cache the next run computes it again: no reason to stop this one
    with suppress(OSError), draft(entry) as folder:
        np.save(folder / "array.npy", array)
    return array
