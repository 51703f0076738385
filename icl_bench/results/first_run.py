"""Texts that a results folder keeps from its first run, so that later runs have the same prompts and weights."""

from __future__ import annotations

import re

from icl_bench.errors import UserError
from icl_bench.results.storage import Place, storage_at
from icl_bench.wording import first_line


def kept(place: Place | None, name: str, pattern: str) -> str | None:
    """The text of a file that a results folder keeps; None if it has none of this pattern. Raises ``UserError``."""
    if place is None:
        return None
    storage = storage_at(place)
    try:
        text = storage.read(name).decode("ascii", "replace").strip() if storage.exists() and storage.has(name) else ""
    except OSError as error:
        raise UserError(f"{storage.where(name)}: cannot be read ({first_line(error)})") from None
    return text if re.fullmatch(pattern, text) else None


def keep(place: Place, name: str, text: str) -> None:
    """Keep a text, unless the results folder has this file. Raises ``UserError``."""
    storage = storage_at(place)
    try:
        if not storage.has(name):
            storage.put(name, f"{text}\n".encode())
    except OSError as error:
        raise UserError(f"{storage.where(name)}: cannot be written ({first_line(error)})") from None
