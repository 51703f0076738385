"""The history of each race of ``choose``, stored beside the predictions: one JSON file a race.

The cells of a race may be finished, or asked in part; their answers are stored like those of any cell.
"""

from __future__ import annotations

import json

from icl_bench.errors import UserError
from icl_bench.results.cells import slug
from icl_bench.results.facts import StoredModel
from icl_bench.results.reading import readable
from icl_bench.results.storage import Place, storage_at
from icl_bench.results.stored_meta import as_stored

FOLDER = "_races"
"""Folder of the files; no task has this name."""

LONGEST = 60
"""Letters of a task's or a model's name in a file's name; the hash that ends it tells races apart."""


class RaceStanding(StoredModel):
    """One setting after a round; scores are shares of 1."""

    predictions: int
    draws: int
    score: float | None = None
    """None before the first answer."""
    ci_low: float
    ci_high: float
    out: bool
    """Whether the leader is not worse by more than the margin."""


class RaceRound(StoredModel):
    """The state after a round."""

    predictions: int
    """Of all settings together."""
    leader: str
    standings: list[RaceStanding]
    """In the order of the race's settings."""


class RacedSetting(StoredModel):
    """One setting of a race."""

    setting: str
    """Its name."""
    select: str
    k: int


class RaceMeta(StoredModel):
    """A race so far, or at its end."""

    task: str
    model: str
    margin: float
    """As a share of 1."""
    error: float
    rows: int
    """Test rows of a whole cell."""
    draws: int
    queries: int
    """Queries that the choice will answer."""
    choice: str | None = None
    decided: bool
    ended: str | None = None
    """Why it ended before it was decided; None if it is decided, and while it runs."""
    predictions: int
    predictions_of_full_sweep: int
    settings: list[RacedSetting]
    rounds: list[RaceRound]
    answer: list[str]
    """The lines that ``choose`` prints."""
    command: str
    """Computes all cells of the race whole."""
    cells: list[str]
    """Names of the cells that were asked, without suffixes."""


def race_file(task: str, model: str, digest: str) -> str:
    """The name of a race's file."""
    return f"{FOLDER}/{slug(task)[:LONGEST]}-{slug(model)[:LONGEST]}-{digest[:8]}.json"


def write_race(place: Place, file: str, race: RaceMeta) -> None:
    """Store a race under a name of :func:`race_file`. Raises ``UserError`` if the file cannot be written."""
    storage = storage_at(place)
    content = json.dumps(as_stored(race), ensure_ascii=False)
    try:
        storage.put(file, content.encode())
    except OSError as error:
        raise UserError(
            f"results folder {storage.where()}: {error.strerror or error}; run the same command again once there is "
            "space"
        ) from None


def read_race(place: Place, file: str) -> RaceMeta | None:
    """The race of a file; None if there is none, or, with a warning, if it cannot be read."""
    storage = storage_at(place)
    return next(readable(storage, [file], RaceMeta), None) if storage.has(file) else None


def read_races(place: Place) -> list[RaceMeta]:
    """Every race of a results folder, by name. A file that cannot be read is skipped with a warning."""
    storage = storage_at(place)
    names = [name for name in sorted(storage.names(FOLDER)) if name.endswith(".json")]
    return list(readable(storage, names, RaceMeta))
