"""The options of ``choose``."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import Field

from icl_bench.backends.spec import Device, Dtype
from icl_bench.errors import UserError
from icl_bench.options import TASK, Option, Options, read_with
from icl_bench.sweep.options import (
    DataDir,
    Draws,
    LabelColumn,
    ModelOption,
    NumbersOfDemonstrations,
    Seed,
    Selectors,
    TaskOption,
    TestSize,
    TextColumn,
    draws_field,
    seed_field,
)
from icl_bench.wording import plain

UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_time(text: str) -> float:
    """Read a time like 90s, 30m or 1.5h, in seconds. Raises ``UserError``."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text.strip(), re.ASCII)
    if found is None or not float(found[1]):
        raise UserError(f"--spend {plain(text)}: expected a time like 90s, 30m or 1.5h")
    return float(found[1]) * UNITS[found[2]]


class ChooseSpec(Options):
    """Options of ``choose``, for one task and one model."""

    about: ClassVar[str] = "choose"

    task: TaskOption = ""
    data: Annotated[
        Any,
        Option(
            "Instead of a task: a file of rows (.csv, .xlsx, .jsonl, ...) with a text and a label each. Its task file "
            "is written into the results folder.",
            TASK,
            "FILE",
            expected="a file of rows like tickets.csv, or in Python a pandas or polars frame",
        ),
    ] = None
    """Read by :func:`icl_bench.choosing.data.with_task` before these options are made."""
    text: TextColumn = None
    label: LabelColumn = None
    model: ModelOption
    spend: Annotated[
        float,
        read_with(parse_time),
        Option("Time to spend: 90s, 30m, 1.5h.", TASK, "TIME", expected="a time like 90s, 30m or 1.5h", default="30m"),
    ] = Field(default=1800.0, gt=0)
    """Seconds."""
    margin: Annotated[
        float,
        Option(
            "Points that do not matter to you: the choice is at most this much worse than the best setting.",
            TASK,
            "POINTS",
        ),
    ] = Field(default=2.0, gt=0, lt=100)
    queries: Annotated[
        int,
        Option("Number of queries that the choice will answer; they share the cost of the demonstrations.", TASK, "N"),
    ] = Field(default=1000, ge=1)
    select: Selectors = Field(default="random,balanced,bm25", validate_default=True)
    k: NumbersOfDemonstrations = Field(default="0,1,5,10,25,50,100,200", validate_default=True)
    draws: Draws = draws_field()
    seed: Seed = seed_field()
    test_size: TestSize = Field(default=None, ge=1)
    data_dir: DataDir = None
    device: Device = None
    dtype: Dtype = "auto"

    def of_run(self) -> dict[str, Any]:
        """The options of a run of all settings: a full sweep."""
        return {name: getattr(self, name) for name in self.declared() if name not in OF_THE_RACE}


OF_THE_RACE = frozenset({"data", "spend", "margin", "queries"})
"""Options that decide how settings are raced, not what they are."""
