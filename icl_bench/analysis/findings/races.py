"""Races of ``choose``: the state of settings, now and after each round."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.results.stored_meta import RaceMeta

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

OF_RACE = ["task", "model", "metric", "race"]

STANDING = ["setting", "select", "k", "predictions", "draws", "score", "ci_low", "ci_high"]

RACE_COLUMNS = [*OF_RACE, *STANDING, "state", "dropped_after"]

ROUND_COLUMNS = [*OF_RACE, "round", "asked", *STANDING, "out"]

WHY = {
    "worse": "dropped: worse than another",
    "dearer": "dropped: not better, and dearer",
    "not better": "dropped: not better",
    "left out": "left out",
}
"""Why a setting was dropped, in words: shown to be worse than another one, shown not to be better than the choice by
more than the margin, or because it could not be trained or not within the remaining budget.
"""


def races(context: Context) -> pd.DataFrame:
    """The state of each race's settings, one row per setting.

    The choice comes first, then settings that may still be better, then dropped settings, each by score. Columns: task,
    model, metric, race (distinguishes races of a task and model), setting (its name), select, k, predictions and draws
    so far, score with ci_low and ci_high (for new rows and draws, valid at any moment), state, and dropped_after
    (predictions of all settings together when it was dropped; NaN if it was not). Empty without a race.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for race, of_race in _races(context):
        last = race.rounds[-1]
        order = sorted(range(len(race.settings)), key=lambda place: _rank(race, place))
        for place in order:
            setting = race.settings[place]
            standing = last.standings[place]
            state = "cheaper, may be as good" if race.decided else "may be better"  # once decided, only these run
            if not standing.predictions:
                state = "not asked yet"
            if standing.out:
                state = WHY.get(standing.why or "not better", "dropped")
            if setting.setting == race.choice:
                state = "chosen" if race.decided else "leads"
            rows.append(
                {**of_race, **_standing(race, place, -1), "state": state, "dropped_after": _dropped_after(race, place)}
            )
    return pd.DataFrame(rows, columns=RACE_COLUMNS).astype({"dropped_after": float, "score": float})


def race_rounds(context: Context) -> pd.DataFrame:
    """The state of each race's settings after each round, one row per setting and round.

    Columns: those of :func:`races` up to ci_high; round; asked, the predictions of all settings together; and out,
    whether the setting was dropped. Empty without a race.
    """
    import pandas as pd

    rows = [
        {
            **of_race,
            "round": number + 1,
            "asked": one.predictions,
            **_standing(race, place, number),
            "out": one.standings[place].out,
        }
        for race, of_race in _races(context)
        for number, one in enumerate(race.rounds)
        for place in range(len(race.settings))
    ]
    return pd.DataFrame(rows, columns=ROUND_COLUMNS).astype({"score": float})


def races_of(context: Context) -> list[RaceMeta]:
    """The races of the task and model that restrict the tables, in the order of their files."""
    return [race for race in context.races if race.is_of(context.task, context.model)]


def race_names(found: list[RaceMeta]) -> list[str]:
    """Distinguishing names of races: the margin, and a number among races with equal margins."""
    names: list[str] = []
    seen: dict[tuple[str, str, str], int] = {}
    for race in found:
        name = f"margin {100 * race.margin:g} points"
        count = seen[race.task, race.model, name] = seen.get((race.task, race.model, name), 0) + 1
        names.append(name if count == 1 else f"{name}, race {count}")
    return names


def _races(context: Context) -> list[tuple[RaceMeta, dict[str, str]]]:
    found = races_of(context)
    return [
        (race, {"task": race.task, "model": race.model, "metric": race.measure, "race": name})
        for race, name in zip(found, race_names(found), strict=True)
    ]


def _standing(race: RaceMeta, place: int, number: int) -> dict[str, Any]:
    setting, standing = race.settings[place], race.rounds[number].standings[place]
    known = setting.model_dump() | standing.model_dump()
    return {name: known[name] for name in STANDING}


def _rank(race: RaceMeta, place: int) -> tuple[bool, bool, float]:
    standing = race.rounds[-1].standings[place]
    return race.settings[place].setting != race.choice, standing.out, -(standing.score or 0.0)


def _dropped_after(race: RaceMeta, place: int) -> int | None:
    """The number of answers of all settings when this one was finally dropped; None if it was not dropped."""
    since = list(takewhile(lambda one: one.standings[place].out, reversed(race.rounds)))
    return since[-1].predictions if since else None


OF_TABLES = (
    Column("race", "race", "text"),
    Column("setting", "setting", "text"),
    Column("state", "state", "text"),
    Column("round", "round", "count"),
    Column("predictions", "answers", "count"),
    Column("asked", "answers of all", "count"),
    Column("dropped_after", "dropped after", "count", short="dropped\nafter"),
    Column("out", "dropped", "flag"),
)

RACES = Finding(
    "races",
    races,
    OF_TABLES,
    caption="Settings of races",
    shown="task model metric race setting predictions draws score ci_low ci_high state dropped_after",
    printed=Printed(
        "races of choose: {score} of each setting so far",
        "task model race setting predictions draws score ci_low state",
    ),
    section=Section(
        "race",
        "Which setting did the race choose?",
        "Race",
        "icl-bench choose",
        "Each line is a setting of a race: its {score} so far, over the answers that were asked of all settings "
        "together (logarithmic axis). A cross marks where a setting was dropped: it is worse than another (error "
        "5%), or not better than the choice by more than the margin. Intervals (95%) hold at any moment, for new "
        "test rows and draws of demonstrations.",
        also=("race_rounds",),
        place=3,
    ),
)


RACE_ROUNDS = Finding(
    "race_rounds",
    race_rounds,
    OF_TABLES,
    caption="Rounds of races",
    shown="task model metric race round asked setting predictions draws score ci_low ci_high out",
)
