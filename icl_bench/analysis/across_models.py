"""Comparison of points, of one or several models: which are compared, and on which test rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.query_cost import MEASURES
from icl_bench.analysis.statistics.right_answers import with_rows_apart
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


def on_same_rows(frame: pd.DataFrame, facts: FactsOf, across: bool = True) -> pd.DataFrame:
    """Return predictions in which equal test ids are equal rows.

    The ids of a task are those of its data, and runs may have had different versions of its files. The version with the
    most predictions of a task keeps its ids, or without ``across`` that of a task and model. Rows of other versions get
    different ids, so that their points count as asked on other test examples. The data of imports are unknown: their
    rows with another right answer get different ids (:func:`with_rows_apart`). Without ``across``, a version keeps its
    ids also if all its right answers are the same: then other files have the same test rows, as those of rationales, or
    those with more rows for demonstrations.
    """
    frame = with_rows_apart(frame, facts)
    within = compared_within(across)
    versions = frame[[*within, "variant"]].drop_duplicates().astype(object)
    versions["data"] = [_data(facts.get(str(variant), Facts())) for variant in versions["variant"]]
    if not (versions.groupby(within)["data"].nunique() > 1).any():
        return frame
    variants = frame["variant"].astype(object)
    data = variants.map(dict(zip(versions["variant"], versions["data"], strict=True)))
    usual = data.groupby([frame[name].astype(object) for name in within]).transform(lambda part: part.mode().get(0))
    other = data.notna() & (data != usual)
    if not across and other.any():
        other &= variants.isin(_with_other_golds(frame, other, within))
    if not other.any():
        return frame
    ids = frame["test_id"].astype(object)
    ids[other] = data[other] + " " + ids[other]
    return frame.assign(test_id=ids)


def _with_other_golds(frame: pd.DataFrame, other: pd.Series[bool], within: list[str]) -> set[str]:
    """The variants of ``other`` rows that have another right answer to a test row than the rest of the frame."""
    rows = frame[[*within, "variant", "test_id", "gold"]].astype(object)
    keys = [*within, "test_id"]
    usual = rows[~other].drop_duplicates(keys)[[*keys, "gold"]]
    both = rows[other].drop_duplicates([*keys, "variant"]).merge(usual, on=keys, suffixes=("", "_usual"))
    return set(both.loc[both["gold"] != both["gold_usual"], "variant"])


def _data(facts: Facts) -> str | None:
    """A hash of a variant's data files and of how they are read; None if unknown."""
    return None if facts.data is None else short_hash([facts.data, facts.fields])
