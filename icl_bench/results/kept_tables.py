"""Tables computed from a large results folder, kept in the cache folder for the next command.

They are named after all that they depend on: the contents of the folder's files as they were read, this program's own
files, and the options. So nothing has to be compared when they are used again. They are pickled, because no other
format keeps the types of a data frame's objects. Pickled files can run code, so only the user's own are read.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from icl_bench.results.kept_texts import kept_content, kept_file, write_kept

if TYPE_CHECKING:
    import pandas as pd

MOST_KEPT = 8
"""Number of folders' states whose tables are kept; older ones are removed."""

FOLDER = "tables"
"""Their folder in the cache folder."""


class KeptTables:
    """The tables of one state of a folder, by name."""

    def __init__(self, state: str, options: Mapping[str, Any]) -> None:
        """``state`` is a hash of all that was read; empty if nothing is kept of it."""
        self._file = kept_file(FOLDER, ".pickle", [state, dict(options)]) if state else None

    def read(self) -> dict[str, pd.DataFrame]:
        """The kept tables. A file that is missing, damaged or another user's has none."""
        if self._file is None:
            return {}
        try:
            with self._file.open("rb") as file:
                if hasattr(os, "getuid") and os.fstat(file.fileno()).st_uid != os.getuid():
                    return {}
                content = kept_content(file.read())
        except (OSError, ValueError):
            return {}
        tables: dict[str, pd.DataFrame] = pickle.loads(content)
        return tables

    def write(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Keep these tables, and remove old files. Nothing happens if the cache folder cannot be written."""
        if self._file is None:
            return
        with suppress(OSError):
            write_kept(self._file, pickle.dumps(dict(tables), protocol=pickle.HIGHEST_PROTOCOL), MOST_KEPT)
