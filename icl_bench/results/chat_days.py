"""The date in chat templates: one per results folder, so that it can be resumed on another day."""

from __future__ import annotations

from datetime import date

from icl_bench.results.first_run import keep, kept
from icl_bench.results.storage import Place

_FILE = "_chat/date.txt"


def day_of(place: Place | None) -> str:
    """The date of a results folder, such as ``2026-01-31``; today's if it has none. Raises ``UserError``."""
    return kept(place, _FILE, r"\d{4}-\d{2}-\d{2}") or date.today().isoformat()


def keep_day(place: Place, day: str) -> None:
    """Set the date of a results folder that has none. Raises ``UserError``."""
    keep(place, _FILE, day)
