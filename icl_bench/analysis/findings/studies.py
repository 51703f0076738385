"""Progress of studies: which points are done, failed and missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding, Section
from icl_bench.results.studies import read_studies

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

STUDY_POINT = ["study", "setting", "task", "model", "select", "order", "attention", "k"]

STUDY_COLUMNS = [*STUDY_POINT, "cells", "done", "failed", "missing", "reason"]


def study_points(context: Context) -> pd.DataFrame:
    """Cells of each point of the studies that were started in the folder.

    Columns: study, setting (the block of its file), task, model, select, order, attention, k; cells (draws), and how
    many of them are done, failed and missing; reason, of the first failure. Cells that exceed the context window are
    not part of a study. Empty without a study.
    """
    import pandas as pd

    if context.results is None:
        return pd.DataFrame(columns=STUDY_COLUMNS)
    failed = {failure.cell: failure.reason for failure in context.stored.failed}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for study in read_studies(context.results):
        for cell in study.cells:
            if context.model not in (None, cell.model) or context.task not in (None, cell.task):
                continue
            point = {"study": study.study, **{name: getattr(cell, name) for name in STUDY_POINT[1:]}}
            row = rows.setdefault(
                tuple(point.values()), {**point, "cells": 0, "done": 0, "failed": 0, "missing": 0, "reason": None}
            )
            done = cell.cell in context.stored.cells or cell.cell in context.stored.asked_cells
            bad = not done and cell.cell in failed
            row["cells"] += 1
            row["done" if done else "failed" if bad else "missing"] += 1
            if bad and row["reason"] is None:
                row["reason"] = failed[cell.cell]
    return pd.DataFrame(list(rows.values()), columns=STUDY_COLUMNS)


STUDY_POINTS = Finding(
    "study_points",
    study_points,
    (
        Column("study", "study", "text"),
        Column("setting", "setting", "text"),
        Column("cells", "cells", "count"),
        Column("done", "done", "count"),
        Column("failed", "failed", "count"),
        Column("missing", "missing", "count"),
        Column("reason", "why it failed", "text"),
    ),
    caption="Points of studies",
    shown="study setting task model select order attention k cells done failed missing reason",
    section=Section(
        "studies",
        "How far are the studies?",
        "Studies",
        "icl-bench study FILE with this results folder",
        "Each point of the studies that were begun here: how many of its cells are done, failed or not computed yet.",
        place=200,
    ),
)
