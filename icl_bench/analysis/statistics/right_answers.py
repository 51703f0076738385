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


def notes_on_rows_apart(frame: pd.DataFrame, facts: FactsOf) -> list[str]:
    """The number of test rows of each task that are not compared because right answers differ."""
    counts = _apart(frame, facts).drop_duplicates(ROW).groupby("task", sort=True).size()
    return [
        f"{plain(str(task))}: {counted(int(count), 'test row')} of imported predictions "
        f"{'has' if count == 1 else 'have'} another right answer than the row with the same id elsewhere; not compared"
        for task, count in counts.items()
    ]


def _apart(frame: pd.DataFrame, facts: FactsOf) -> pd.DataFrame:
    """The imported rows with another right answer: task, test_id, variant and gold."""
    import pandas as pd

    names = [*ROW, "variant", "gold"]
    imports = [variant for variant, known in facts.items() if known.imported is not None]
    imported = frame["variant"].isin(imports)
    if "gold" not in frame or not imported.any() or frame["variant"].nunique() < 2:
        return frame.reindex(columns=names).iloc[:0].astype(object)
    rows = frame[names].drop_duplicates().astype(object)
    rows["source"] = rows["variant"].where(rows["variant"].isin(imports), "")  # runs first
    rows = rows.sort_values("source", kind="stable")
    is_usual = rows["source"] == rows.groupby(ROW)["source"].transform("first")
    usual = rows.loc[is_usual, [*ROW, "gold"]].drop_duplicates()
    both = rows[~is_usual].merge(usual, on=ROW, suffixes=("", "_usual"))
    both["same"] = (both["gold"] == both["gold_usual"]).groupby([both[name] for name in names]).transform("any")
    if both["same"].all():
        return both.loc[~both["same"], names]
    renamed: list[Any] = [key for key, part in both.groupby(["task", "variant"]) if _renamed(part)]
    kept = pd.MultiIndex.from_frame(both[["task", "variant"]]).isin(renamed)
    return both.loc[~both["same"] & ~kept, names].drop_duplicates()


def _renamed(rows: pd.DataFrame) -> bool:
    """Whether right answers are the usual ones under other names: one for each, and none of the usual names.

    Answers must repeat: single answers, as of free text, correspond to any others.
    """
    pairs = rows[["gold", "gold_usual"]].drop_duplicates()
    one_to_one = pairs["gold"].is_unique and pairs["gold_usual"].is_unique
    return bool(one_to_one and not set(pairs["gold"]) & set(pairs["gold_usual"]) and 2 * len(pairs) <= len(rows))
