"""The history of each race of ``choose``, stored next to the predictions: one JSON file per race.

The cells of a race may be finished or partial. Their answers are stored like those of any cell.
"""

from __future__ import annotations

from icl_bench.results.cells import slug
from icl_bench.results.reading import RACES, readable_races
from icl_bench.results.storage import Place, put_or_refuse, storage_at
from icl_bench.results.stored_meta import RaceMeta, as_stored, json_content

LONGEST = 60
"""Letters of a task's or a model's name in a file's name; the hash at its end distinguishes races."""


def race_file(task: str, model: str, digest: str) -> str:
    """The name of a race's file."""
    return f"{RACES}/{slug(task)[:LONGEST]}-{slug(model)[:LONGEST]}-{digest[:8]}.json"


def write_race(place: Place, file: str, race: RaceMeta) -> None:
    """Store a race under a name of :func:`race_file`. Raises ``UserError`` if the file cannot be written."""
    put_or_refuse(storage_at(place), file, json_content(as_stored(race)))


def read_race(place: Place, file: str) -> RaceMeta | None:
    """The race in a file; None if it is missing or, with a warning, if it cannot be read."""
    storage = storage_at(place)
    return next(readable_races(storage, [file]), None) if storage.has(file) else None
