"""A cache of arrays on disk, whose entries are named by a hash of their inputs.

An entry is a folder of ``.npy`` files and ``sha256.json``, their hashes. It is written to a
temporary folder and renamed. It is read only if every hash is right, so a damaged entry is computed
again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from icl_bench.models.cache_folder import remove_leftovers
from icl_bench.models.fingerprints import sha256_of
from icl_bench.text_files import json_file

HASHES = "sha256.json"


def load_arrays(entry: Path, names: Sequence[str]) -> list[np.ndarray] | None:
    """Read the arrays of an entry, memory-mapped; None if it is missing or damaged."""
    try:
        hashes = json_file(entry / HASHES)
        files = [f"{name}.npy" for name in names]
        if any(sha256_of(entry / file) != hashes[file] for file in files):
            return None
        return [np.load(entry / file, mmap_mode="r") for file in files]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def draft(entry: Path) -> Iterator[Path]:
    """A folder for ``.npy`` files that become the entry atomically at the end.

    Without a file there is no entry. If another process has stored the entry, its files are kept. Leftovers of killed
    processes are removed after a day.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(entry.parent)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=entry.parent) as name:
        folder = Path(name)
        yield folder
        if hashes := {file.name: sha256_of(file) for file in sorted(folder.glob("*.npy"))}:
            (folder / HASHES).write_text(json.dumps(hashes), encoding="utf-8")
            shutil.rmtree(entry, ignore_errors=True)
            with suppress(OSError):  # another process has stored the same entry
                folder.replace(entry)


def cached_array(entry: Path, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """The entry's only array. If missing, it is computed, and stored if the folder is writable."""
    if (arrays := load_arrays(entry, ["array"])) is not None:
        return arrays[0]
    array = compute()
    # if it cannot be stored, the next run computes it again
    with suppress(OSError), draft(entry) as folder:
        np.save(folder / "array.npy", array)
    return array
