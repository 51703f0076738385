"""The history of each race of ``choose``, stored beside the predictions: one JSON file a race.

The cells of a race may be finished, or asked in part; their answers are stored like those of any cell.
"""

from __future__ import annotations

from icl_bench.results.cells import slug
from icl_bench.results.reading import RACES, readable_races
from icl_bench.results.storage import Place, put_or_refuse, storage_at
from icl_bench.results.stored_meta import RaceMeta, as_stored, json_content

LONGEST = 60
"""Letters of a task's or a model's name in a file's name; the hash that ends it tells races apart."""


def race_file(task: str, model: str, digest: str) -> str:
    """The name of a race's file."""
    return f"{RACES}/{slug(task)[:LONGEST]}-{slug(model)[:LONGEST]}-{digest[:8]}.json"


def write_race(place: Place, file: str, race: RaceMeta) -> None:
    """Store a race under a name of :func:`race_file`. Raises ``UserError`` if the file cannot be written."""
    put_or_refuse(storage_at(place), file, json_content(as_stored(race)))


def read_race(place: Place, file: str) -> RaceMeta | None:
    """The race of a file; None if there is none, or, with a warning, if it cannot be read."""
    storage = storage_at(place)
    return next(readable_races(storage, [file]), None) if storage.has(file) else None
