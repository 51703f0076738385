"""Free answers that were truncated at the task's limit, so that only part of a text is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding, Printed

if TYPE_CHECKING:
    import pandas as pd


_READ = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}
"""An import of an export may have texts instead; other values of its column are left out."""


def truncated_answers(frame: pd.DataFrame) -> pd.DataFrame:
    """The share of each point's free answers that were truncated at ``max_answer_tokens``.

    Columns: the setting, k; answers, for which it is known; truncated; and share, of them. It is unknown for imports.
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
    by_task=IN_ORDER,
)
