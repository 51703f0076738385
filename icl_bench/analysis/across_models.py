"""Comparison of points of several models: which are compared, and on which test rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.query_cost import MEASURES
from icl_bench.errors import UserError
from icl_bench.results.cells import short_hash
from icl_bench.results.facts import Facts, FactsOf
from icl_bench.wording import plain

if TYPE_CHECKING:
    import pandas as pd

MODELS = "models"
"""The value of ``--across``."""


def compares_models(across: str | None) -> bool:
    """Whether ``--across`` is ``models``. Raises ``UserError`` for another value."""
    if across not in (None, MODELS):
        raise UserError(f"--across {plain(across)}: expected {MODELS}")
    return across is not None


def compared_within(across: bool) -> list[str]:
    """The columns that compared points share."""
    return ["task"] if across else ["task", "model"]


def candidate_columns(across: bool) -> list[str]:
    """The arguments of :func:`icl_bench.analysis.draws.candidate` after the grid, by column."""
    return ["select", "k", *["model"] * across]


def compared_measures(across: bool) -> tuple[str, ...]:
    """The measures by which points are compared, without tokens, which differ between models."""
    return tuple(name for name in MEASURES if not (across and name == "tokens"))


def on_same_rows(frame: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """Return predictions of several models in which equal test ids are equal rows.

    The ids of a task are those of its data, and two models may have been run on different versions of its files. The
    version with the most predictions of a task keeps its ids. Rows of other versions get different ids, so that their
    points count as asked on other test examples. Imports keep their ids, because their data are unknown.
    """
    variants = frame["variant"].astype(object)
    data = variants.map({variant: _data(facts.get(str(variant), Facts())) for variant in variants.unique()})
    tasks = frame["task"].astype(object)
    usual = {task: of_task.mode().get(0) for task, of_task in data.groupby(tasks)}
    other = data.notna() & (data != tasks.map(usual))
    if not other.any():
        return frame
    ids = frame["test_id"].astype(object)
    ids[other] = data[other] + " " + ids[other]
    return frame.assign(test_id=ids)


def _data(facts: Facts) -> str | None:
    """A hash of a variant's data files and of how they are read; None if unknown."""
    return None if facts.data is None else short_hash([facts.data, facts.fields])
