"""Points compared with imported ones of the same name: whether they reproduce published accuracies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.advice import MARGIN
from icl_bench.analysis.by_task import BY_NAME, IN_ORDER
from icl_bench.analysis.columns import SIGNED_LIMITS, Column
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.findings.comparisons import SHOWN_COMPARISON
from icl_bench.analysis.findings.saturation import parts_of_labels
from icl_bench.analysis.statistics.paired import compare
from icl_bench.analysis.statistics.right_answers import with_rows_apart
from icl_bench.analysis.words import points
from icl_bench.results.facts import NO_FACTS, Facts, FactsOf
from icl_bench.results.reading import IMPORTED
from icl_bench.wording import few, listed, percent

if TYPE_CHECKING:
    import pandas as pd

HERE = "here"

SAME, DIFFERENT, UNDETERMINED = f"same within {100 * MARGIN:g} points", "different", "undetermined"
"""Verdicts on a point compared with the imported one."""

OF_MACHINE = (
    *("backend", "dtype", "quantization", "kv_cache_dtype", "server", "endpoint", "fingerprint"),
    *("seed", "pool", "pool_rows"),
)
"""Facts in which an imported export may differ: another machine with other draws repeats the measurement."""

OF_CACHE = ("quantization", "kv_cache_dtype")
"""Those of them whose absence counts as a value, so that both sides must lack them."""


def replication(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare what was computed here with imported predictions of the same setting and k.

    ``facts`` are those of each variant: those of an import name its file. Common test rows are paired. Draws are not,
    because equal numbers are not equal demonstrations. The columns are those of
    :func:`icl_bench.analysis.statistics.paired.compare`, after ``made`` (here), with ``verdict`` from the 95% interval
    of the difference, and ``agrees``, the verdict as a truth value:

    - ``same within 5 points`` (True): the whole interval lies within ``MARGIN`` of 0 (two one-sided
      tests; Schuirmann 1987, J. Pharmacokinet. Biopharm. 15:657, each at 2.5%);
    - ``different`` (False): else, where it excludes 0;
    - ``undetermined`` (missing): else, and where a side has one draw, whose interval is over test
      examples alone.
    """
    imports = {variant for variant, known in facts.items() if known.imported is not None}
    imported = frame["variant"].astype(object).isin(imports)
    origin = imported.map({True: IMPORTED, False: HERE})
    facts = {v: _without(known, OF_MACHINE if v in imports else OF_CACHE) for v, known in facts.items()}
    table = compare(frame.assign(made=origin), {"made": IMPORTED}, matched=False, facts=facts, about="draws")
    verdict = verdicts(*(table[name].where(table["withheld"].isna()).to_numpy() for name in ("ci_low", "ci_high")))
    agrees = [{SAME: True, DIFFERENT: False}.get(name) for name in verdict]
    return table.assign(verdict=verdict, agrees=np.array(agrees, dtype=object))


def _without(facts: Facts, names: Collection[str]) -> Facts:
    return Facts(**{name: fact for name, fact in facts.known().items() if name not in names})


def unmatched_imports(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Why imported predictions of a task, model and selection have no counterpart here.

    One row for each that was computed here too, but without a common point. ``differs`` names the first difference in
    this order: ``labels`` (all, or a half), ``order`` (or attention), ``k``, ``test rows``; ``imported`` and ``here``
    list its values on both sides.
    """
    import pandas as pd

    imports = {variant for variant, known in facts.items() if known.imported is not None}
    if not imports:
        frame = frame.iloc[:0]
    frame = with_rows_apart(frame, facts)
    theirs = frame["variant"].astype(object).isin(imports)
    rows = []
    frame = frame.assign(theirs=theirs.to_numpy(), labels=parts_of_labels(frame))
    for names, part in frame.groupby(["task", "model", "select"], observed=True, sort=True):
        of_import, here = part[part["theirs"]], part[~part["theirs"]]
        if of_import.empty or here.empty:
            continue
        for differs, columns in (
            ("labels", ["labels"]),
            ("order", ["labels", "order", "attention"]),
            ("k", ["labels", "order", "attention", "k"]),
            ("test rows", ["labels", "order", "attention", "k", "test_id"]),
        ):
            sides = [side[columns].astype(object).drop_duplicates() for side in (of_import, here)]
            if sides[0].merge(sides[1]).empty:
                shown = [few([*dict.fromkeys(map(_written, side.itertuples(index=False)))], 4) for side in sides]
                rows.append([*names, differs, *shown])
                break
    return pd.DataFrame(rows, columns=["task", "model", "select", "differs", "imported", "here"])


def _written(row: Any) -> str:
    """The value of one side for the difference: labels, order with attention, k or test row."""
    if len(row) != 3:
        return str(row[-1])
    _, order, attention = row
    return str(order) if attention == "full" else f"{order}, {attention}"


def verdicts(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The verdict for each interval of a difference, from its limits; undetermined for NaN."""
    same = (low > -MARGIN) & (high < MARGIN)
    return np.select([same, (low > 0) | (high < 0)], [SAME, DIFFERENT], UNDETERMINED).astype(object)


def in_words(table: pd.DataFrame) -> str:
    """The verdicts on a curve's points as text, each with its k and intervals."""
    parts = []
    for verdict in (SAME, DIFFERENT, UNDETERMINED):
        rows = table[table["verdict"] == verdict].sort_values("k")
        if len(rows):
            parts.append(f"{_meaning(verdict)} at k = {listed(f'{k:,}' for k in rows['k'])} ({_intervals(rows)})")
    return "; ".join(parts)


def _meaning(verdict: str) -> str:
    if verdict == UNDETERMINED:
        return f"undetermined whether it is the same within {100 * MARGIN:g} points"
    return verdict


def _intervals(rows: Any) -> str:
    """The interval of a single point, or the range over several."""
    if len(rows) == 1:
        return points(rows.iloc[0])
    low, high = (percent(limit, "+") for limit in (rows["ci_low"].min(), rows["ci_high"].max()))
    return f"95% intervals between {low} and {high} points"


REPLICATION = Finding(
    "replication",
    lambda context: replication(context.unperturbed, context.facts),
    (*SIGNED_LIMITS, Column("verdict", "verdict")),
    caption="Computed here minus imported",
    shown=f"task model series verdict {SHOWN_COMPARISON}",
    printed=Printed(
        "compared with imported predictions: {score} here minus theirs, points",
        "task model select order k draws base_draws difference ci_low verdict",
    ),
    section=Section(
        "replication",
        "Do the results agree with the imported ones?",
        "Beside imported predictions",
        "icl-bench import FILE, with predictions of the same task, model name and settings",
        "{Score} of what was computed here, minus that of imported predictions of the same setting "
        "on the test rows that both have; each side has its own draws. "
        f"{SAME.capitalize()}: the whole 95% interval lies within {100 * MARGIN:g} points of 0. Different: it does "
        "not, and excludes 0. Undetermined: neither, or a side has one draw.",
        chart=Chart("difference", by=("task", "model"), difference=True),
        place=105,
    ),
    by_task=BY_NAME,
)

UNMATCHED_IMPORTS = Finding(
    "unmatched_imports",
    lambda context: unmatched_imports(context.unperturbed, context.facts),
    (Column("differs", "differs in"), Column("imported", "imported"), Column("here", "here")),
    caption="Imported, and not comparable with what was computed here",
    shown="task model select differs imported here",
    printed=Printed(
        "imported predictions that nothing here can be compared with", "task model select differs imported here"
    ),
    by_task=IN_ORDER,
)
