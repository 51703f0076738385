"""Sentences on findings, shared by the terminal and the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.draws import ENOUGH_DRAWS, ONE_SIDE, TESTS_ONLY, is_drawn, said
from icl_bench.analysis.statistics.paired import NO_CHANGE, ONE_DRAW, UNKNOWN_BASE
from icl_bench.demonstrations.selector_spec import cautions
from icl_bench.wording import DASH, counted, listed, percent

if TYPE_CHECKING:
    import pandas as pd

UNPERTURBED = "unperturbed"
"""The name of unperturbed demonstrations."""


USUAL_ORDERS = ("drawn", "relevance")
"""Orders that are not named: those of random selection, and of retrieval."""


MORE_DRAWS = {1: 3, 2: 5}
"""Draws of a comparison -> the number to try if it is undecided."""


SILENT = "it does not show the effect of other demonstrations"


MOST_OUTLYING = 6
"""The number of points whose outlying draws are named below a table."""


def points(row: Any) -> str:
    """A difference with its limits: ``+50.0 points, 95% interval -18.0 to +100.0``."""
    difference, low, high = (percent(row[name], "+") for name in ("difference", "ci_low", "ci_high"))
    return f"{difference} points, 95% interval {low} to {high}"


def power(row: Any) -> str:
    """The smallest difference that an undecided comparison would have found in 80% of samples, as text."""
    least = row.get("detectable", math.nan)
    if math.isnan(least):
        return ""
    return f"; 80% power from {percent(least)} points on" if least < 1 else "; too little data to show any difference"


def try_more(row: Any) -> str:
    """Advice for more draws, if a comparison has few; else empty."""
    draws = int(max(row["draws"], row.get("base_draws", 0)))
    if draws not in MORE_DRAWS:
        return ""
    return f"; {counted(draws, 'draw')}, try --draws {MORE_DRAWS[draws]}"


def undecided(table: pd.DataFrame) -> list[str]:
    """The meaning of a dash under "better", if a table of comparisons has one."""
    tested = table["p_holm"].notna() & table["difference"].notna()
    if not (tested & table["advice"].isna()).any():
        return []
    return [f"better {DASH}: not distinguishable (corrected p above 0.05)"]


def comparison_notes(table: pd.DataFrame) -> list[str]:
    """Notes on a table of comparisons: the meaning of its dashes, limits and draws."""
    return [*undecided(table), *_withheld(table), *_over(table), *outlying(table), *rows_left_out_notes(table)]


def curve_notes(table: pd.DataFrame) -> list[str]:
    """Notes on a table of curves: limits of one draw, near-identical draws, and outlying draws."""
    return [*_over(table), *_near_copies(table), *outlying(table), *rows_left_out_notes(table)]


def rows_left_out_notes(table: pd.DataFrame) -> list[str]:
    """The number of test rows of each task and model that its file leaves out."""
    if "rows_left_out" not in table:
        return []
    rows = table[table["rows_left_out"] > 0]
    names = [name for name in ("task", "model") if name in rows and table[name].nunique() > 1]
    texts = []
    for key, group in rows.groupby(names, observed=True) if names else [((), rows)]:
        of = f"{', '.join(map(str, key))}: " if names else ""
        counts = sorted(set(group["rows_left_out"]))
        count = " or ".join(f"{number:,}" for number in counts)
        plural = "" if counts == [1] else "s"
        texts.append(f"{of}{count} test row{plural} left out as the task file says (too long, or without a label)")
    return texts


def with_reasons(table: pd.DataFrame) -> pd.DataFrame:
    """A table of comparisons for display: "better" has the reason why one draw is not tested."""
    if "withheld" not in table or not table["withheld"].notna().any():
        return table
    return table.assign(advice=table["advice"].where(table["withheld"].isna(), table["withheld"]))


def _withheld(table: pd.DataFrame) -> list[str]:
    """Why points have no p value, and how much draws differ elsewhere."""
    if "withheld" not in table:
        return []
    texts = []
    if count := (table["withheld"] == UNKNOWN_BASE).sum():
        texts.append(
            f"{UNKNOWN_BASE}: {counted(count, 'point')} without a p value, as the imported file has several variants "
            "of the base and does not say which of them is like the point's"
        )
    if count := (table["withheld"] == NO_CHANGE).sum():
        texts.append(
            f"{NO_CHANGE}: {counted(count, 'point')} without a p value, as prompts and attention are those of the base"
        )
    here = table[table["withheld"] == ONE_DRAW]
    if len(here):
        texts.append(
            f"{ONE_DRAW}: {counted(len(here), 'point')} without a p value, as other demonstrations may "
            f"give another difference; {spread_of_draws(here)}; try --draws {MORE_DRAWS[1]}"
        )
    return texts


def spread_of_draws(table: pd.DataFrame) -> str:
    """How much draws differ elsewhere, for the points of a table that have one draw."""
    deviations = table["draws_sd"].dropna()
    if deviations.empty:
        return "how much draws differ is unknown, as no point has several draws"
    low, high = percent(deviations.min()), percent(deviations.max())
    sizes = low if low == high else f"{low} to {high}"
    where = listed(sorted(set(table["draws_sd_of"].dropna())))
    return f"the score of a draw has a standard deviation of {sizes} points ({where})"


def _over(table: pd.DataFrame) -> list[str]:
    """Which intervals are not over draws although another draw would have other demonstrations."""
    if not {"interval_over", "select"} <= set(table):  # losses of texts have no selection
        return []
    drawn = table["select"].map(is_drawn).astype(bool) & (table["k"] > 0)
    notes = []
    for over in (TESTS_ONLY, ONE_SIDE):
        count = int((drawn & (table["interval_over"] == over)).sum())
        if count:
            notes.append(
                f"1 draw: the 95% interval of {count:,} of {counted(len(table), 'point')} "
                f"is over {said(over)}; {SILENT}"
            )
    return notes


def _near_copies(table: pd.DataFrame) -> list[str]:
    """The number of prompts that differ between the draws of each retrieval curve."""
    if "differing_prompts" not in table:
        return []
    rows = table[table["differing_prompts"].notna()].astype({"select": object, "order": object})
    notes = []
    for (task, model, select, order), points in rows.groupby(["task", "model", "select", "order"], observed=True):
        shown_order = "" if order in USUAL_ORDERS else f", {order}"
        counts = listed(
            f"{int(row['differing_prompts']):,} of {int(row['test_rows']):,} (k = {int(row['k']):,})"
            for row in points.sort_values("k").to_dict("records")
        )
        notes.append(f"prompts that differ between draws ({task}, {model}, {select}{shown_order}): {counts}")
    return notes


def advice_over(rows: Iterable[Mapping[Any, Any]]) -> list[str]:
    """The sampled unit of advice, if it is based on a single random draw.

    ``rows`` are the advised point and the best found, from the table of :func:`icl_bench.analysis.advice.advise`.
    """
    for row in rows:
        drawn = row["k"] > 0 and is_drawn(row["select"])
        if row["interval_over"] == ONE_SIDE or (drawn and row["interval_over"] == TESTS_ONLY):
            more = f"; try --draws {MORE_DRAWS[1]}"
            return [f"1 draw: this advice is over {said(row['interval_over'])}; {SILENT}{more}"]
    return []


def outlying(table: pd.DataFrame) -> list[str]:
    """The outlying draws of each point."""
    notes = []
    for name, select in (("outlying_draws", "select"), ("base_outlying_draws", "base_select")):
        if name not in table:
            continue
        for row in table[table[name].notna()].to_dict("records"):
            where = "of the base " if name.startswith("base") else ""
            way = row.get(select, row["select"])
            order = row.get(select.replace("select", "order"), row.get("order"))
            shown_order = "" if order is None or order in USUAL_ORDERS else f", {order}"
            notes.append(
                f"outlying {where}({row['task']}, {row['model']}, {way}{shown_order}, k={row['k']:,}): draw {row[name]}"
            )
    if len(notes) > MOST_OUTLYING:
        more = f"and {len(notes) - MOST_OUTLYING:,} more points with outlying draws (--json has all)"
        notes = [*notes[:MOST_OUTLYING], more]
    return notes


def founded_on(table: pd.DataFrame) -> str:
    """The data behind a key finding's points: ``250 test rows, 10 draws beside 3``."""
    words = [f"{_range(table['rows'])} test rows", f"{_range(table['draws'])} draws"]
    if "base_draws" in table:
        words[-1] += f" beside {_range(table['base_draws'])}"
    left_out = int(table["left_out"].sum())
    if left_out:
        words.append(f"{counted(left_out, 'prediction')} left out")
    for name, whose in (("outlying_draws", ""), ("base_outlying_draws", " of the base")):
        if name in table and table[name].notna().any():
            here = table[table[name].notna()]
            places = (f"{row[name]} (k = {row['k']:,})" for row in here.to_dict("records"))
            words.append(f"outlying draw{whose}: {listed(places)}")
    return ", ".join(words)


def _range(counts: pd.Series[int]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def too_little(row: Any) -> str:
    """Why a comparison is not a key finding; empty if it may be one.

    A key finding needs a known base, at least three random draws on each side, and common test examples that are at
    least half of those of the larger side.
    """
    reasons = []
    base = row.get("base_draws", row["draws"])
    sides = ((row["select"], row["draws"]), (row.get("base_select", row["select"]), base))
    drawn = [int(draws) for select, draws in sides if row["k"] and is_drawn(select)]
    few = [draws for draws in drawn if 0 < draws < ENOUGH_DRAWS]
    if few:
        reasons.append(f"{counted(min(few), 'draw')}, try --draws {MORE_DRAWS[min(few)]}")
    if row.get("withheld") == UNKNOWN_BASE:
        reasons.append("the base is one of several variants of an imported file")
    if row["rows"] < row["all_rows"] / 2:
        reasons.append(f"{row['rows']:,} of {row['all_rows']:,} test rows in common")
    return " and ".join(reasons)


def cautions_of(table: pd.DataFrame) -> list[str]:
    """Notes on a table's selections, and on those that a training is compared with."""
    beside = (text.split(", ")[0] for text in table.get("beside", ()))
    return cautions([*table.get("select", ()), *beside])


READS_TEST_INPUTS = (
    "calibration=batch and calibration=prior estimate the model's label bias on the inputs of the test rows, not on "
    "their labels."
)
"""A caution for calibrated points."""


def variant_names(variants: Iterable[object]) -> dict[str, str]:
    """Distinguishing names of variants, derived ones by their calibration.

    >>> variant_names(["1a2b3c4d", "1a2b3c4d+batch"])
    {'1a2b3c4d': 'calibration=none', '1a2b3c4d+batch': 'calibration=batch'}
    """
    parted = {str(variant): str(variant).partition("+") for variant in variants}
    bases = {base for base, _, _ in parted.values()}
    names = {}
    for variant, (base, _, calibration) in parted.items():
        if len(bases) == 1 and len(parted) > 1:
            names[variant] = f"calibration={calibration or 'none'}"
        else:
            names[variant] = f"variant {base}" + (f", calibration={calibration}" if calibration else "")
    return names
