"""The date in chat templates: one per results folder, so that it can be resumed on another day."""

from __future__ import annotations

import re
from datetime import date

from icl_bench.results.storage import Place, storage_at

_FILE = "_chat/date.txt"


def day_of(place: Place | None) -> str:
    """The date of a results folder, such as ``2026-01-31``; today's if it has none. Raises ``OSError``."""
    if place is not None:
        storage = storage_at(place)
        if storage.exists() and storage.has(_FILE):
            text = storage.read(_FILE).decode("ascii", "replace").strip()
            if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
                return text
    return date.today().isoformat()


def keep_day(place: Place, day: str) -> None:
    """Set the date of a results folder that has none. Raises ``OSError``."""
    storage = storage_at(place)
    if not storage.has(_FILE):
        storage.put(_FILE, f"{day}\n".encode())
