"""Free answers that were cut at the task's limit, so that their scores are of a part of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding, Printed

if TYPE_CHECKING:
    import pandas as pd


_READ = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}
"""An import of an export may have texts instead; what else its column may hold is left out."""


def truncated_answers(frame: pd.DataFrame) -> pd.DataFrame:
    """How many free answers of each point ended at ``max_answer_tokens`` instead of by themselves.

    Columns: the setting, k; answers, those of which it is known; truncated; and share, of them.
    Imports do not say.
    """
    truncated = frame["truncated"] if "truncated" in frame else frame["k"].map({})
    known = frame.assign(truncated=truncated.astype(object).map(_READ))
    known = known[known["truncated"].notna()].astype({"truncated": bool})
    points = known.groupby(POINT, observed=True)["truncated"]
    table = points.agg(answers="size", truncated="sum").reset_index()
    return table.assign(share=table["truncated"] / table["answers"])


def _with_some(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["truncated"] > 0]


TRUNCATED_ANSWERS = Finding(
    "truncated_answers",
    lambda context: truncated_answers(context.predictions),
    (
        Column("answers", "answers", "count"),
        Column("truncated", "cut", "count"),
        Column("share", "share cut", "share", short="cut %"),
    ),
    caption="Answers cut at max_answer_tokens",
    printed=Printed("answers cut at max_answer_tokens: their scores cover only a part of the text", rows=_with_some),
)
