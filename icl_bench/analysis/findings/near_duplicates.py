"""Retrieval with and without the test rows that have a near duplicate in the pool."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.draws import by_name, interval_over, is_shuffled
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.statistics.grid import Grid, grids
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.zero_shot import with_demonstrations
from icl_bench.demonstrations.selector_spec import known
from icl_bench.metrics.scores import metrics, scored

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context
    from icl_bench.results.facts import Facts
    from icl_bench.results.stored_meta import CellMeta

PARTS = ("", "without_", "with_")
"""Prefixes of the score columns for all test rows, and for those without and with a near duplicate."""


SCORES = ("score", "ci_low", "ci_high")


COLUMNS = [
    *POINT,
    "near",
    "rows",
    "draws",
    "metric",
    *(f"{part}{name}" for part in PARTS for name in SCORES),
    "interval_over",
    "reason",
]


NOT_KNOWN = "unknown (cells of an earlier version)"


def near_duplicates(frame: pd.DataFrame, near: Mapping[str, Collection[str] | None]) -> pd.DataFrame:
    """Scores of retrieval on all test rows, and separately on rows with and without a near duplicate in the pool.

    ``near`` has the ids of these test rows by variant, None if its cells do not report them. Points of other variants,
    such as imports, are left out. Retrieval is every selection with query-specific demonstrations.

    Columns: the setting, k; ``near``, the number of the ``rows`` (test examples) with a near duplicate; draws and
    metric; score, ci_low and ci_high (95%) of all rows; the same as ``without_...`` and ``with_...`` for the rows
    without and with one, missing if there is none; interval_over (:func:`icl_bench.analysis.draws.interval_over`); and
    ``reason``, why it is unknown. The two parts are different test examples: their difference is not the effect of near
    duplicates alone.
    """
    import pandas as pd

    frame = scored(with_demonstrations(frame))
    kept = by_name(frame["select"], _retrieves).astype(bool) & frame["variant"].astype(object).isin(near)
    frame = frame.loc[kept & frame["score"].notna(), [*POINT, "draw", "test_id", "score", "metric"]]
    of_task, values = metrics(frame), frame["score"].to_numpy(dtype=float).clip(0, 1)
    keys, points = grids(frame, POINT)
    ids = frame["test_id"].to_numpy()
    rows: list[dict[str, Any]] = []
    for key, whole in zip(keys.to_dict("records"), points, strict=True):
        point, of_variant = whole.joined(), near[str(key["variant"])]
        row: dict[str, Any] = {str(name): value for name, value in key.items()}
        row |= {"metric": of_task[key["task"]], "rows": len(point.tests), "draws": len(point.draws)}
        row |= {"interval_over": interval_over(len(point.draws) > 1), **_scores("", point, values)}
        if of_variant is None:
            row["reason"] = NOT_KNOWN
        else:
            is_near = np.isin(ids, list(of_variant))
            others, nearly = point.of_rows(~is_near), point.of_rows(is_near)
            row |= {**_scores("without_", others, values), **_scores("with_", nearly, values)}
            row["near"] = len(nearly.tests)
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS).astype({"near": float, "reason": object})


def _retrieves(select: str) -> bool:
    """Whether each query has its own demonstrations."""
    choice = known(select)
    return choice is not None and not choice.shared


def _scores(part: str, grid: Grid, values: np.ndarray) -> dict[str, float]:
    scores = grid.joined().values(values)
    interval = mean_interval(scores) if scores.size else (np.nan,) * len(SCORES)
    return {f"{part}{name}": number for name, number in zip(SCORES, interval, strict=True)}


def known_near(cells: Iterable[CellMeta]) -> dict[str, Collection[str] | None]:
    """Variant -> ids of the test rows that have a near duplicate, None if no cell reports it.

    A cell's report applies to all variants with the same data, test rows and pool.
    """
    cells = list(cells)
    of_data = {_data(cell.facts): set(cell.near_duplicates) for cell in cells if cell.near_duplicates is not None}
    return {cell.variant: of_data.get(_data(cell.facts)) for cell in cells}


def _data(facts: Facts) -> str:
    return json.dumps([facts.data, facts.fields, facts.passages, facts.test, facts.pool], sort_keys=True)


def _near(context: Context) -> Mapping[str, Collection[str] | None]:
    return context.of_cells("near duplicates", lambda cells: known_near(cells.values()))


def _worth_printing(table: pd.DataFrame) -> pd.DataFrame:
    """The points with near duplicates, and those for which they are unknown, without random reorderings."""
    unknown = table["reason"].notna()
    shown = table[((table["near"] > 0) | unknown) & ~is_shuffled(table["order"])]
    return shown.assign(near=shown["near"].map("{:,.0f}".format).where(shown["reason"].isna(), "not known"))


NEAR_DUPLICATES = Finding(
    "near_duplicates",
    lambda context: near_duplicates(context.prompts, _near(context)),
    (
        Column("near", "test rows with a near duplicate", "count", short="near\ndupl."),
        Column("without_score", "{score} without them", "share", short="without\nthem"),
        Column("without_ci_low", "95% from", "share", short="95% interval", upper="without_ci_high"),
        Column("without_ci_high", "95% to", "share"),
        Column("with_score", "{score} of them", "share", short="of them"),
        Column("with_ci_low", "95% from", "share", short="95% interval", upper="with_ci_high"),
        Column("with_ci_high", "95% to", "share"),
        Column("reason", "near duplicates", optional=True),
    ),
    caption="Retrieval with and without near duplicates",
    shown="task model series k rows near metric score ci_low ci_high without_score without_ci_low without_ci_high "
    "with_score with_ci_low with_ci_high draws interval_over reason",
    printed=Printed(
        "near duplicates in the pool: {score} of retrieval on all test rows and on those without one, %",
        "task model select k rows near score ci_low without_score without_ci_low",
        rows=_worth_printing,
    ),
    section=Section(
        "near-duplicates",
        "Retrieval without near duplicates",
        "Near duplicates",
        "run --select bm25; cells of earlier versions do not know it",
        "{Score} of retrieval on all test rows, on those without a near duplicate in the pool, and on those with "
        "one: a pool's row that is the same except for case, punctuation and blanks, or whose set of words has a "
        "Jaccard index of 0.8 or more. They are different test rows, so that their difference is not the effect "
        "of near duplicates alone.",
        place=57,
    ),
    by_task=IN_ORDER,
)
