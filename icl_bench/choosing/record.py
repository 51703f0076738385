"""Keeps the history of a race in its results folder, from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from icl_bench.choosing.contest import Contest
from icl_bench.results.cells import digest
from icl_bench.results.races import race_file, read_race, write_race
from icl_bench.results.storage import Place
from icl_bench.results.stored_meta import RacedSetting, RaceMeta, RaceRound, RaceStanding


class Record:
    """Writes a race's file after each round and at its end.

    A resumed race repeats its first rounds from stored answers. Its file does not change until the race has repeated
    them, so that a kill in between loses nothing. A file of other rounds is replaced, and so is that of a race for
    another number of queries or with other prices: its first rounds may be the same, but its answer is another. A
    decided race always replaces it, because with other costs it may need fewer rounds.
    """

    def __init__(self, contest: Contest, results: Place, answer: Callable[[], Sequence[str]], **further: str) -> None:
        """``answer`` returns the lines of the answer so far; ``further`` are fields of the file: ``command`` and
        ``measure``.
        """
        self._contest, self._results, self._answer, self._further = contest, results, answer, further
        record = contest.as_json()
        names = [one["setting"] for one in record["settings"]]
        cells = [contest.cell_of(one) for one in contest.settings]
        decides = [record["margin"], record["error"], record["draws"], names, list(contest.rows), cells]
        self._file = race_file(record["task"], record["model"], digest(decides))
        self._prices = {one.sweep.model.name: one.prices.given for one in contest.entrants if one.prices is not None}
        self._before = read_race(results, self._file)
        self._rounds: list[RaceRound] = []

    def round(self) -> None:
        """Keep the state after a round. Raises ``UserError`` if the file cannot be written."""
        self._rounds.append(self._now())
        self.keep()

    def _now(self) -> RaceRound:
        """The state of the race."""
        record = self._contest.as_json()
        standings = [
            RaceStanding(**{name: one.get(name) for name in RaceStanding.model_fields}) for one in record["settings"]
        ]
        return RaceRound(predictions=record["predictions"], leader=record["choice"], standings=standings)

    def end(self) -> None:
        """Keep the state at the end: a training that is interrupted ends a round whose prompts count in the answer."""
        if self._contest.as_json()["choice"] is not None and (last := self._now()) not in self._rounds[-1:]:
            self._rounds.append(last)
        self.keep()

    def keep(self) -> None:
        """Write the file, unless the one that is there has the same rounds and more, for as many queries and with these
        prices.
        """
        if not self._rounds:
            return
        record, before, done = self._contest.as_json(), self._before, len(self._rounds)
        same = before is not None and (before.queries, before.prices) == (record["queries"], self._prices)
        stored = before.rounds if before is not None and same and not record["decided"] else []
        if len(stored) > done and stored[:done] == self._rounds:
            return
        known = {name: value for name, value in record.items() if name in RaceMeta.model_fields} | {
            **self._further,
            "prices": self._prices,
            "settings": [RacedSetting(**one) for one in record["settings"]],
            "rounds": self._rounds,
            "answer": list(self._answer()),
            "cells": sorted(self._contest.outcome.names),
        }
        write_race(self._results, self._file, RaceMeta(**known))
