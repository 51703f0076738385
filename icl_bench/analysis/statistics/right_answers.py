"""Imported predictions whose test ids name other rows, as their right answers show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icl_bench.results.facts import FactsOf
from icl_bench.wording import counted, plain

if TYPE_CHECKING:
    import pandas as pd

ROW = ["task", "test_id"]


def with_rows_apart(frame: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """Return predictions in which imported rows with another right answer have other test ids.

    Ids of an import may be row numbers of another file. An imported row whose right answer differs from that of the
    runs, or of the first import without a run, gets an id with its right answer. So it is compared only with rows of
    this answer. Imports that have other names for all labels keep their ids.
    """
    import pandas as pd

    apart = _apart(frame, facts)
    if apart.empty:
        return frame
    keys = [*ROW, "variant", "gold"]
    marked = pd.MultiIndex.from_frame(frame[keys].astype(object)).isin(pd.MultiIndex.from_frame(apart[keys]))
    ids = frame["test_id"].astype(object)
    ids[marked] = frame.loc[marked, "gold"].astype(object) + " " + ids[marked]
    return frame.assign(test_id=ids)


UNRELATED = 0.5
"""A note doubts all ids if at least this share of the right answers that would differ between unrelated rows differ."""


def notes_on_rows_apart(frame: pd.DataFrame, facts: FactsOf) -> list[str]:
    """The number of test rows of each task that are not compared because right answers differ.

    If at least half as many differ as between unrelated rows, the others may be equal by chance, which is noted, too.
    """
    both = _beside_usual(frame, facts)
    notes = []
    for task, of_task in both[both["apart"]].groupby("task", sort=True):
        count = of_task["test_id"].nunique()
        notes.append(
            f"{plain(str(task))}: {counted(count, 'test row')} of imported predictions "
            f"{'has' if count == 1 else 'have'} another right answer than the row with the same id elsewhere; "
            "not compared"
        )
        of_imports = both[(both["task"] == task) & both["variant"].isin(of_task["variant"])].groupby("variant")
        equal = max((_equal_by_chance(rows) for _, rows in of_imports), default=0)
        if equal:
            notes[-1] += (
                f". So many differ that the others ({equal:,}) may be other rows with the same answer: check whether "
                "test_id names the same rows"
            )
    return notes


def _equal_by_chance(rows: pd.DataFrame) -> int:
    """The rows of an import with equal right answers, if they may be unrelated rows; else 0."""
    mine, usual = (rows[name].value_counts(normalize=True) for name in ("gold", "gold_usual"))
    expected = 1 - float(mine.mul(usual, fill_value=0).sum())
    equal = int((~rows["apart"]).sum())
    return equal if rows["apart"].mean() >= UNRELATED * expected else 0


def _apart(frame: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """The imported rows with another right answer: task, test_id, variant and gold."""
    both = _beside_usual(frame, facts)
    return both.loc[both["apart"], [*ROW, "variant", "gold"]].drop_duplicates()


def _beside_usual(frame: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """The imported rows with the usual right answer of the row with the same id: task, test_id, variant, gold,
    gold_usual and ``apart``, whether they are not the same row.
    """
    import pandas as pd

    names = [*ROW, "variant", "gold"]
    imports = [variant for variant, known in facts.items() if known.imported is not None]
    imported = frame["variant"].isin(imports)
    if "gold" not in frame or not imported.any() or frame["variant"].nunique() < 2:
        return frame.reindex(columns=[*names, "gold_usual"]).iloc[:0].astype(object).assign(apart=False)
    rows = frame[names].drop_duplicates().astype(object)
    rows["source"] = rows["variant"].where(rows["variant"].isin(imports), "")  # runs first
    rows = rows.sort_values("source", kind="stable")
    is_usual = rows["source"] == rows.groupby(ROW)["source"].transform("first")
    usual = rows.loc[is_usual, [*ROW, "gold"]].drop_duplicates()
    both = rows[~is_usual].merge(usual, on=ROW, suffixes=("", "_usual"))
    same = (both["gold"] == both["gold_usual"]).groupby([both[name] for name in names]).transform("any")
    both["apart"] = ~same.astype(bool)
    if both["apart"].any():
        renamed: list[Any] = [key for key, part in both.groupby(["task", "variant"]) if _renamed(part)]
        both["apart"] &= ~pd.MultiIndex.from_frame(both[["task", "variant"]]).isin(renamed)
    return both


def _renamed(rows: pd.DataFrame) -> bool:
    """Whether right answers are the usual ones under other names: one for each, and none of the usual names.

    Answers must repeat: single answers, as of free text, correspond to any others.
    """
    pairs = rows[["gold", "gold_usual"]].drop_duplicates()
    one_to_one = pairs["gold"].is_unique and pairs["gold_usual"].is_unique
    return bool(one_to_one and not set(pairs["gold"]) & set(pairs["gold_usual"]) and 2 * len(pairs) <= len(rows))
