"""Unfinished cells: their answers are in journals, which tables and charts do not read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from icl_bench.results.cells import FINISHED, JOURNAL, folder_name
from icl_bench.results.reading import read_races
from icl_bench.results.storage import Place, Storage, storage_at
from icl_bench.results.stored_meta import RaceMeta
from icl_bench.wording import counted

PARTS = 3
"""Parts of a cell's name: task, model and the rest."""


@dataclass(frozen=True)
class PartialCells:
    """The partial cells of a race, or of a task and model whose run was interrupted."""

    task: str
    model: str
    cells: int
    fewest: int
    """Minimum number of answered rows of a cell."""
    most: int
    rows: int | None = None
    """Rows of a complete cell; None if the cells do not belong to a race."""
    command: str | None = None
    """The command that completes the cells of a race."""

    def in_words(self) -> str:
        """Text for the user."""
        span = f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"
        of = "" if self.rows is None else f" of {self.rows:,}"
        are, each, them = ("is", "", "it") if self.cells == 1 else ("are", " each", "them")
        row = "row" if span == "1" and not of else "rows"
        what = f"{counted(self.cells, 'cell')} {are} unfinished ({span}{of} {row}{each}) and not in the tables"
        again = f"run the same command again to complete {them}"
        how = again if self.command is None else f"to complete {them}: {self.command}"
        return f"{self.task} · {self.model}: {what}; {how}"


def partial_cells(
    place: Place, only: Mapping[str, str] | None = None, races: Sequence[RaceMeta] | None = None
) -> list[PartialCells]:
    """The partial cells of a results folder, or of one of its tasks or models.

    ``races`` are all races of the folder, if they have been read.
    """
    storage = storage_at(place)
    names = storage.names()
    finished = {name.removesuffix(FINISHED) for name in names if name.endswith(FINISHED)}
    parts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        cell, found, _ = name.partition(JOURNAL)  # object storage has a journal in several objects
        if found and cell not in finished and cell.count("/") == PARTS - 1:
            parts[cell].append(name)
    if not parts:
        return []
    races = read_races(place) if races is None else races
    race_of = {cell: race for race in races for cell in race.cells}
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    owners: dict[tuple[str, str, str], RaceMeta | None] = {}
    wanted = {name: (only or {}).get(name) for name in ("task", "model")}
    for cell in sorted(parts):
        race, (task, model, _) = race_of.get(cell), cell.split("/", 2)
        if race is not None:
            key, is_wanted = (race.task, race.model, race.command), race.is_of(**wanted)
        else:
            folders = {"task": task, "model": model}
            key = (task, model, "")
            is_wanted = all(value is None or folder_name(value) == folders[name] for name, value in wanted.items())
        if is_wanted:
            groups[key].append(cell)
            owners[key] = race
    counts = _counts(storage, {cell: parts[cell] for cells in groups.values() for cell in cells})
    found_cells = []
    for key, cells in groups.items():
        asked = [counts[cell] for cell in cells if counts[cell]]
        if asked:
            race = owners[key]
            whole = (None, None) if race is None else (race.rows, race.command)
            found_cells.append(PartialCells(*key[:2], len(asked), min(asked), max(asked), *whole))
    return found_cells


def _counts(storage: Storage, parts: Mapping[str, list[str]]) -> dict[str, int]:
    """Cell -> rows with an answer in its journal."""
    names = [name for of_cell in parts.values() for name in sorted(of_cell)]
    with ThreadPoolExecutor(getattr(storage, "readers", 1)) as pool:
        contents = dict(zip(names, pool.map(lambda name: _ids(storage, name), names), strict=True))
    return {cell: len(set().union(*(contents[name] for name in of_cell))) for cell, of_cell in parts.items()}


def _ids(storage: Storage, name: str) -> set[str]:
    """The rows of a journal; none if it is gone because another process has finished its cell."""
    try:
        content = storage.read(name)
    except OSError:
        return set()
    ids = set()
    for line in content.splitlines():
        try:
            record = json.loads(line)
            ids.add(record["test_id"])
        except (ValueError, TypeError, KeyError, RecursionError):  # damaged or torn lines are computed again
            continue
    return ids
