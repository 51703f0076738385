"""Recommended settings in words: the answer card of the page, and the first lines of ``summary``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icl_bench.analysis.advice import GIGA, GOOD, MARGIN
from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.findings.answers import BASE
from icl_bench.analysis.statistics.paired import ALPHA
from icl_bench.analysis.words import points, power, try_more
from icl_bench.metrics.scores import title
from icl_bench.report.naming import Naming, point_name
from icl_bench.results.storage import Place, place_words
from icl_bench.wording import capital, counted, counted_queries, percent, rounded, three_digits

LOSS = f"{100 * MARGIN:g} points"


@dataclass(frozen=True)
class Answer:
    """The recommended setting for one task and model. Texts without data are empty."""

    task: str
    model: str
    use: str
    """The point; without advice, the highest."""
    unsure: str
    """A note that another point may be better; empty if the test excludes it."""
    why_not: str
    """Why nothing can be advised."""
    score: str
    """The score with its interval."""
    measure: str
    data: str
    """The data behind the score."""
    cost: str
    against: tuple[str, ...]
    """Sentences on the points that it was not shown to be worse than, and on the comparisons."""
    commands: tuple[str, ...]
    """The command that computed it, and the command that prints the advice."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The known parts with their names."""
        facts = [
            (capital(self.measure), f"{self.score}, {self.data}"),
            ("Cost of a query", self.cost),
            ("Compared", " ".join(self.against)),
        ]
        return [(name, text) for name, text in facts if text]


def said(findings: Findings, naming: Naming) -> list[Answer]:
    """The answers for a folder as text, by task and model."""
    table = findings.answers
    bases = table[["task", "model", *BASE]].rename(columns=lambda name: name.removeprefix("base_"))
    known = bases["k"].notna()
    named = naming.named(bases[known].astype({"select": object, "k": int})) if known.any() else bases[known]
    names = iter(map(point_name, named.to_dict("records")))
    base_names = [next(names) if is_known else "" for is_known in known]
    rows = naming.named(table).to_dict("records")
    place = findings.context.results
    return [_answer(row, base, place) for row, base in zip(rows, base_names, strict=True)]


def _answer(row: Mapping[Any, Any], base: str, place: Place | None) -> Answer:
    sure = row["verdict"] in GOOD
    unsure = f"another may be better by {LOSS} or more" if sure and row["p_margin"] > ALPHA else ""
    draws = f", {counted(row['score_draws'], 'draw')}" if row["k"] else ""
    return Answer(
        str(row["task"]),
        str(row["model"]),
        point_name(row),
        unsure,
        "" if sure else str(row["why"]),
        f"{percent(row['score'])}% ({percent(row['score_low'])} to {percent(row['score_high'])})",
        title(row["metric"]),
        f"{row['test_rows']:,} test rows{draws}",
        _cost(row),
        tuple(f"{sentence}." for sentence in _against(row, base)) if sure else (),
        (*str(row["command"]).splitlines(), _advice(row, place)),
    )


def _advice(row: Mapping[Any, Any], place: Place | None) -> str:
    """The command that prints the derivation of the answer."""
    words = ["--task", row["task"], "--model", row["model"], "--advice", "any", "--queries", row["queries"]]
    return shlex.join(["icl-bench", "summary", *map(str, words), *([] if place is None else place_words(place))])


def _cost(row: Mapping[Any, Any]) -> str:
    """The known costs of a query."""
    parts = []
    if not math.isnan(row["tokens"]):
        parts.append(f"{rounded(row['tokens'], 0)} computed tokens")
    if not math.isnan(row["operations"]):
        parts.append(f"{three_digits(row['operations'] / GIGA)} GFLOP")
    if not math.isnan(row["seconds"]):
        parts.append(f"{three_digits(row['seconds'])} s")
    return f"{', '.join(parts)}, at {counted_queries(row['queries'])}" if parts else ""


def _against(row: Mapping[Any, Any], base: str) -> Iterator[str]:
    if row["unjudged"]:
        others = counted(row["unjudged"], "other point")
        yield f"{others} could not be compared (one draw, other test rows or unknown cost)"
    beside = f"{base} ({percent(row['base_mean'])}%)"
    if row["beside"] == "best":
        words = "Worse than" if row["ci_high"] < 0 else "Not shown to be worse than"
        yield f"{words} the best found, {beside}: {points(row)}"
        yield f"It loses less than {LOSS} to whichever point is the best (p = {row['p_margin']:.2g})"
        return
    yield f"None of {counted(row['points'], 'compared point')} scored higher"
    if row["beside"] == "cheaper":
        which = (
            f"{row['others'] + 1} cheaper ones were not shown to be worse; the best of them is"
            if row["others"]
            else "A cheaper one was not shown to be worse:"
        )
        yield f"{which} {beside}, {points(row)}{power(row)}{try_more(row)}"
    elif row["beside"] == "worse":
        yield f"Every cheaper one was shown to be worse; the best of them is {beside}, {points(row)}"
    else:
        yield "No cheaper one was compared"
    if row["p_margin"] > ALPHA:
        yield f"Another may be better by {LOSS} or more (p = {row['p_margin']:.2g})"
