"""Comparison of a results folder with a leaderboard's CSV: means with intervals, without predictions.

Without predictions nothing is paired. Both sides are treated as independent samples, which may have different draws and
test rows. Only large losses can be found; with an exported Parquet file as the baseline, smaller ones are found
(:mod:`icl_bench.analysis.baseline_check`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.baseline_check import NEW, Check, check_results, point_name, refuse_limits
from icl_bench.analysis.regression import COMPARED, PAIR, ROUNDING, Overall, alone
from icl_bench.analysis.statistics.paired import holm
from icl_bench.errors import UserError
from icl_bench.escaping import formula_of
from icl_bench.metrics.scores import ACCURACY, score_columns
from icl_bench.report.leaderboard import PROVENANCE, leaderboard
from icl_bench.results.storage import Place
from icl_bench.table_files import check_names, csv_rows, gunzip
from icl_bench.text_files import decode, read_file
from icl_bench.wording import listed, nearest, one_line, plain, short

if TYPE_CHECKING:
    import pandas as pd

NEEDED = (*COMPARED, "draws", "test_rows", "accuracy", "ci_low", "ci_high")
"""The required columns of a CSV file; others are optional."""

TEXTS = ("metric", "version", "data_hash", "variant", *PROVENANCE)

COUNTS = {"k": 0, "draws": 1, "test_rows": 1}
"""Columns of integers -> their minimum."""

ROUNDED = 1e-5
"""Shares in a file are rounded to six digits."""

SAID = ("draws", "test_rows", "version", "data_hash", *PROVENANCE)
"""Columns that may differ between the two sides, and are reported."""

NOTE = (
    "compared: means and their intervals, as for two independent samples (only large losses are found). "
    "Predictions are needed to find smaller losses or a loss over all points together, to list changed answers, and to "
    "check that template, pool and scoring are the same: icl-bench export --out FILE.parquet"
)


def is_table(baseline: Path) -> bool:
    """Whether a baseline is a CSV file, which has no facts."""
    return baseline.name.lower().endswith((".csv", ".csv.gz")) and not baseline.is_dir()


def check_baseline(baseline: Path, results: Place, tolerance: float, alpha: float, allow_missing: bool) -> Check:
    """Compare a results folder with a leaderboard's CSV file, or with predictions. Raises ``UserError``."""
    compare = check_leaderboard if is_table(baseline) else check_results
    return compare(baseline, results, tolerance, alpha, allow_missing)


def check_leaderboard(
    baseline: Path, results: Place, tolerance: float = 0.01, alpha: float = 0.05, allow_missing: bool = False
) -> Check:
    """Compare a results folder with the CSV file of a leaderboard.

    Raises ``UserError`` if either cannot be read, or they have no common point.
    """
    refuse_limits(tolerance, alpha)
    base, now = read_leaderboard(baseline), leaderboard(results)
    for name in (*COMPARED, "variant"):
        if name != "k":
            now[name] = now[name].map(plain)  # as the file has names that are not printable
    return compare_leaderboards(base, now, (plain(baseline), plain(results)), tolerance, alpha, allow_missing)


def read_leaderboard(path: Path) -> pd.DataFrame:
    """Read a leaderboard's CSV file, or another one with the columns ``NEEDED``, one row per variant of a point.

    Raises ``UserError`` with the line of the first value that is not valid, or of a variant that appears twice.
    """
    import pandas as pd

    shown, raw = plain(path), read_file(path)
    text = decode(gunzip(raw, shown) if path.name.lower().endswith(".gz") else raw, shown)
    lines = csv_rows(text, shown)
    _, names = next(lines, ("", []))
    check_names(names, shown)
    if "prediction" in names:
        raise UserError(
            f"{shown}: a CSV file has no facts of predictions; a baseline is a Parquet file or a leaderboard's "
            f"CSV: {NEW}"
        )
    if lacking := [name for name in NEEDED if name not in names]:
        raise UserError(f"{shown}: not a leaderboard: it lacks the column {lacking[0]}; {NEW}")
    rows: list[dict[str, Any]] = []
    places: dict[tuple[Any, ...], str] = {}
    for where, cells in lines:
        rows.append(row := _row(dict(zip(names, cells, strict=True)), where))
        first = places.setdefault(tuple(row[name] for name in (*COMPARED, "variant")), where)
        if first != where:
            raise UserError(one_line(f"{where}: {point_name(row)} is in {first}, too; keep one line, or name variants"))
    if not rows:
        raise UserError(f"{shown}: has no points; {NEW}")
    return pd.DataFrame(rows)


def _row(cells: Mapping[str, str], where: str) -> dict[str, Any]:
    """A line of the file with validated values. Raises ``UserError``."""
    row: dict[str, Any] = {name: formula_of(cells[name]) for name in COMPARED if name != "k"}
    row |= {name: formula_of(cells.get(name, "")) for name in TEXTS}
    row |= {name: _whole(cells[name], f"{where}: {name}", least) for name, least in COUNTS.items()}
    shares = {n: _share(cells.get(n, ""), f"{where}: {n}") for n in ("accuracy", "ci_low", "ci_high", *score_columns())}
    row |= shares
    metric = _metric(row)
    if metric not in (known := (ACCURACY, *score_columns())):
        raise UserError(one_line(f"{where}: metric: unknown score {plain(metric)}; {nearest(metric, known)}"))
    if all(map(math.isnan, shares.values())):  # free text without a metric, as a leaderboard writes it
        return row
    if empty := [name for name in (metric, "ci_low", "ci_high") if math.isnan(row[name])]:
        are = "is" if len(empty) == 1 else "are"
        raise UserError(f"{where}: {listed(empty)} {are} empty, so nothing can be compared; fill or remove the line")
    low, high, value = row["ci_low"], row["ci_high"], _value(row)
    if value < low - ROUNDED or value > high + ROUNDED:
        raise UserError(f"{where}: {value:g} is not between ci_low {low:g} and ci_high {high:g}")
    return row


def _whole(text: str, where: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < least:
        raise UserError(f"{where}: {short(text)}; expected a whole number of at least {least}")
    return int(text)


def _share(text: str, where: str) -> float:
    try:
        value = float(text) if text else math.nan
    except ValueError:
        value = math.inf
    if not (math.isnan(value) or -1 <= value <= 1):
        raise UserError(f"{where}: {short(text)}; expected a share from 0 to 1, not a percentage")
    return value


def _metric(row: Mapping[str, Any]) -> str:
    return str(row["metric"] or ACCURACY)


def _value(row: Mapping[str, Any]) -> float:
    """The score that a row's interval belongs to."""
    value = row.get(_metric(row))
    return math.nan if value is None else float(value)


def compare_leaderboards(
    base: pd.DataFrame,
    now: pd.DataFrame,
    shown: tuple[str, str],
    tolerance: float = 0.01,
    alpha: float = 0.05,
    allow_missing: bool = False,
) -> Check:
    """Compare two leaderboards, with the names ``shown``, point by point.

    A difference has the limits that follow from both intervals (Zou & Donner 2008, Stat Med 27:1693), and p values are
    Holm-corrected over all points (:func:`loss_p`). Points of several variants are compared with those of their own
    variant. Raises ``UserError`` if no point is common, or if one has several variants and no common one.
    """
    import pandas as pd

    pairs = _pairs(base, now, shown)
    points = [_compared(before, after) for before, after in pairs]
    table = pd.DataFrame(points).sort_values(PAIR, kind="stable", ignore_index=True)
    table["p_holm"] = holm(table["p"])
    lost = table["p_holm"] <= alpha
    large = table["difference"] < -tolerance - ROUNDING
    table["verdict"] = [
        "no score" if math.isnan(p) else ("loss" if much else "small loss") if low else "ok"
        for p, low, much in zip(table["p"], lost, large, strict=True)
    ]
    scored = table[table["p"].notna()]
    if scored.empty:
        why = "nothing was compared: no common point has the same score on both sides"
        raise UserError(f"{shown[1]} and {shown[0]}: {why}; {NEW}")
    nothing = (math.nan,) * 6
    whole = Overall(len(scored), int(scored["rows"].sum()), 0, *nothing, math.nan, alpha, "no score")
    return Check(
        *shown,
        tolerance,
        alpha,
        allow_missing,
        whole,
        table,
        pd.DataFrame(columns=[*PAIR, "draw", "test_id", "gold", "before", "now", "change", "perturbation"]),
        alone(base, table, "base_variant").assign(perturbation=None),
        alone(now, table).assign(perturbation=None),
        [change for before, after in pairs for change in _changes(before, after)],
        notes=(NOTE,),
    )


Row = Mapping[str, Any]


def _pairs(base: pd.DataFrame, now: pd.DataFrame, shown: tuple[str, str]) -> list[tuple[Row, Row]]:
    """The rows of both sides for the same point. Raises ``UserError``."""
    sides: list[dict[tuple[Any, ...], list[Row]]] = [{}, {}]
    for side, table in zip(sides, (base, now), strict=True):
        for row in table.to_dict("records"):
            named = {str(name): value for name, value in row.items()}
            side.setdefault(tuple(named[name] for name in COMPARED), []).append(named)
    common = [point for point in sides[1] if point in sides[0]]
    if not common:
        first = [point_name(table.iloc[0]) for table in (base, now)]
        raise UserError(
            one_line(
                f"{shown[1]} and {shown[0]} have no point in common: the first has {first[1]} ..., the baseline "
                f"{first[0]} ...; run what the baseline has, or make a new baseline with icl-bench leaderboard"
            )
        )
    pairs = []
    for point in common:
        before, after = (side[point] for side in sides)
        same = [(a, b) for a in before for b in after if a["variant"] and a["variant"] == b["variant"]]
        if not same and (len(before) > 1 or len(after) > 1):
            where = shown[0] if len(before) > 1 else shown[1]
            raise UserError(
                one_line(
                    f"{where}: {point_name(after[0])} has several variants, and both sides share none; "
                    "keep the one to compare"
                )
            )
        pairs += same or [(before[0], after[0])]
    return pairs


def _compared(before: Row, now: Row) -> dict[str, Any]:
    """A point of the table of a check, without values that depend on other points."""
    same_score = _metric(before) == _metric(now)
    old, new = (_value(before), _value(now)) if same_score else (math.nan, math.nan)
    below, above = (
        math.hypot(new - now["ci_low"], before["ci_high"] - old),
        math.hypot(now["ci_high"] - new, old - before["ci_low"]),
    )
    difference = new - old
    p = loss_p(difference, above, min(_freedom(before), _freedom(now)))
    return {
        **{name: now[name] for name in COMPARED},
        "base_variant": before["variant"],
        "variant": now["variant"],
        "score": "correct" if _metric(now) == ACCURACY else _metric(now),
        "draws": now["draws"],
        "rows": now["test_rows"],
        "left_out": 0,
        "base_mean": old,
        "mean": new,
        "difference": difference,
        "ci_low": max(difference - below, -1.0),
        "ci_high": min(difference + above, 1.0),
        "p": p,
        "lost": None,
        "gained": None,
        "other_prompts": 0,
        "missing": before["draws"] * before["test_rows"] if math.isnan(p) and not math.isnan(_value(before)) else 0,
        "perturbation": None,
    }


def _freedom(row: Row) -> int:
    """The fewest degrees of freedom of an interval: the number of draws minus one if there are several, else of test
    rows.
    """
    return int(row["draws"] - 1 if row["draws"] > 1 else max(row["test_rows"] - 1, 1))


def loss_p(difference: float, above: float, freedom: int) -> float:
    """One-sided p value of a loss, from a difference and the distance ``above`` to its upper 97.5% limit.

    The interval's own distribution is unknown: it is between Student's with ``freedom`` degrees of freedom and the
    normal one. Both are scaled to the limit, and the larger p value is used. NaN for unknown values. A limit at the
    difference itself, as between scores of 0 and of 1, leaves no doubt.

    >>> round(loss_p(-0.1, 0.1, 4), 3)
    0.025
    """
    from icl_bench.analysis.statistics.special import ndtr, ndtri, stdtr, stdtrit

    if math.isnan(difference + above):
        return math.nan
    if above <= 0:
        return float(difference >= 0)
    size = difference / above
    return float(max(stdtr(freedom, size * stdtrit(freedom, 0.975)), ndtr(size * ndtri(0.975))))


def _changes(before: Row, now: Row) -> list[dict[str, Any]]:
    """Differences between the scores and the provenance of both sides of a point. Without a version, a hash is that of
    an imported file.
    """
    variants = {"base_variant": before["variant"], "variant": now["variant"]}
    hashed = bool(before.get("version") and now.get("version"))
    values: list[tuple[str, Any, Any]] = [("metric", _metric(before), _metric(now))]
    values += [(name, before.get(name), now.get(name)) for name in SAID if hashed or name != "data_hash"]
    return [
        {**variants, "fact": name, "before": old, "now": new}
        for name, old, new in values
        if old not in ("", None) and new not in ("", None) and old != new
    ]
