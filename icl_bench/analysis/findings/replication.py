"""Points beside imported ones of the same name: does a study say what a published one said?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.analysis.columns import SIGNED_LIMITS, Column
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.findings.comparisons import SHOWN_COMPARISON
from icl_bench.analysis.statistics.paired import compare
from icl_bench.results.facts import NO_FACTS, FactsOf
from icl_bench.results.reading import IMPORTED

if TYPE_CHECKING:
    import pandas as pd

HERE = "here"


def replication(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """Compare what was computed here with imported predictions of the same setting and k.

    ``facts`` are those of each variant: those of an import name its file. Common test rows are
    paired; draws are each side's own, since equal numbers are not equal demonstrations. The columns
    are those of :func:`icl_bench.analysis.statistics.paired.compare`, after ``made`` (here), with
    ``agrees``: whether the interval of the difference holds 0, missing where a side has one draw,
    whose interval is over test examples alone.
    """
    imports = {variant for variant, known in facts.items() if known.imported is not None}
    imported = frame["variant"].astype(object).isin(imports)
    origin = imported.map({True: IMPORTED, False: HERE})
    table = compare(frame.assign(made=origin), {"made": IMPORTED}, matched=False, facts=facts, about="draws")
    agrees = (table["ci_low"] <= 0) & (table["ci_high"] >= 0)
    known = table["withheld"].isna() & table["ci_low"].notna()
    return table.assign(agrees=agrees.astype(object).where(known, None))


REPLICATION = Finding(
    "replication",
    lambda context: replication(context.unperturbed, context.facts),
    (*SIGNED_LIMITS, Column("agrees", "same within the interval", "flag", short="same")),
    caption="Computed here less imported",
    shown=f"task model series agrees {SHOWN_COMPARISON}",
    printed=Printed(
        "beside imported predictions: {score} here less theirs, points",
        "task model select order k draws base_draws difference ci_low agrees",
    ),
    section=Section(
        "replication",
        "Does it agree with what was imported?",
        "Beside imported predictions",
        "icl-bench import FILE, with predictions of the same task, model name and settings",
        "{Score} of what was computed here, less that of imported predictions of the same setting "
        "on the test examples that both have; each side has draws of its own. About 0: the same.",
        chart=Chart("difference", by=("task", "model"), difference=True),
        place=105,
    ),
)
