"""Sections with curves over k: accuracy, saturation, order, and where labels stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icl_bench.metrics import measure
from icl_bench.report import charts
from icl_bench.report.charts import PERCENT, Look, tip
from icl_bench.report.naming import capital, unshuffled
from icl_bench.report.sections.panels import (
    CURVE,
    LIMITS,
    Panel,
    Section,
    common_look,
    file_name,
    groups,
    plain_rows,
    with_limits,
)
from icl_bench.report.tables import table

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.findings import Findings
    from icl_bench.report.naming import Naming


def accuracy(findings: Findings, naming: Naming) -> Section | None:
    """Each task's score against k."""
    frame = naming.named(findings.summary.curves)
    if frame.empty:
        return None
    over_k = f"{capital(measure(frame))} over"
    shuffled = frame["order"].str.startswith("shuffled")
    lined = with_limits(frame.assign(again=shuffled).sort_values(["again", "series", "k"]), "score")
    look = common_look(lined, hidden=sorted(set(frame.loc[shuffled, "series"])))
    panels = [
        curve_panel(part, file_name("accuracy", task, model), f"{task} · {model}", look,
                    f"{measure(part)} of {model} on {task} over the number of demonstrations, "
                    "log axis")
        for (task, model), part in groups(lined, ["task", "model"])
    ]  # fmt: skip
    hidden = " Reshuffled prompts are switched off at first." if look.hidden else ""
    return Section(
        "accuracy", f"{over_k} the number of demonstrations",
        "Each point is a mean over draws and test examples; the band is its 95% interval. "
        f"Read to the right: more demonstrations, on a logarithmic axis.{hidden}",
        "Bertsch et al. 2025, figures 1, 2 and 11",
        tuple(panels),
        (table(frame, f"{over_k} k", f"{CURVE} k draws test_rows metric accuracy ci_low ci_high "
               "macro_f1 invalid rouge1 rouge2 rougeL bertscore left_out"),),
        look, f"{over_k} k",
    )  # fmt: skip


def curve_panel(part: pd.DataFrame, name: str, title: str, look: Look, says: str) -> Panel:
    """A panel of curves over k, of points with limits (:func:`with_limits`)."""
    what = measure(part)
    tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", what, PERCENT), *LIMITS,
            tip("draws", "draws", ",d"), tip("test_rows", "test rows", ",d")]  # fmt: skip
    chart = charts.over_shots(part, look, what, tips, says)
    rows = plain_rows(part, "series k value low high draws test_rows alone")
    return Panel(name, title, chart, rows)


def saturation(findings: Findings, naming: Naming) -> Section | None:
    """Where each curve is saturated, and how sure that is."""
    frame = unshuffled(naming.named(findings.saturation_chances))
    frame = frame[frame["chance"].notna()]
    frame = frame[frame.groupby(CURVE.split())["k"].transform("size") > 1]
    if frame.empty:
        return None
    panels = [
        Panel(file_name("saturation", task, model), f"{task} · {model}",
              charts.chances(part, f"Where the curves of {model} on {task} saturate"),
              plain_rows(part, "series k chance accuracy"))
        for (task, model), part in groups(frame, ["task", "model"])
    ]  # fmt: skip
    points = unshuffled(naming.named(findings.context_shares))
    return Section(
        "saturation", "Where more demonstrations stop paying",
        "A curve is saturated at the smallest k that reaches 95% of its best accuracy. The "
        "stronger a k's colour, the more of the resamples of draws and test examples had their "
        "point there; gaps were not tested. At the last k, saturation may lie beyond what was "
        "tested.",
        "Bertsch et al. 2025, tables 3 and 4, appendix A",
        tuple(panels),
        (table(points, "Saturation points", f"{CURVE} k best_k max_k within_window share_of_tested "
               "prompt_tokens window share_of_window"),
         table(frame, "How probably each k is the point", f"{CURVE} k accuracy chance rows "
               "left_out")),
    )  # fmt: skip


def order(findings: Findings, naming: Naming) -> Section | None:
    """How many answers another order changes."""
    frame = naming.named(findings.summary.order_sensitivity)
    if frame.empty:
        return None
    floor = findings.noise_floor
    same = ["task", "model", "attention", "variant", "k"]
    within = floor[floor["variant"] == floor["other_variant"]]
    within = within[[*same, "changed"]].astype(dict.fromkeys(same[:4], object))
    frame = frame.merge(within.rename(columns={"changed": "floor"}), on=same, how="left")
    frame["floor"] = frame["floor"].astype(float)
    shown = frame.assign(series=frame["model"] + ", " + frame["series"])
    lined = with_limits(shown.sort_values(["series", "k"]), "changed")
    look = common_look(lined, room=True)
    tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", "changed", PERCENT), *LIMITS,
            tip("reorderings", "reorderings", ",d"), tip("draws", "draws", ",d")]  # fmt: skip
    panels = [
        Panel(file_name("order", task), task,
              charts.over_shots(part, look, "answers changed", tips,
                                f"Answers that another order changes on {task}, over k"),
              plain_rows(part, "series k value low high reorderings draws alone floor"))
        for (task,), part in groups(lined, ["task"])
    ]  # fmt: skip
    also = ""
    if len(floor):
        also = " A short bar is the share that changes when the very same prompt is run again."
    tables = [table(frame, "Answers changed by reordering", f"{CURVE} k reorderings draws rows "
                    "changed ci_low ci_high floor left_out")]  # fmt: skip
    if len(floor):
        read = "attention " * naming.attentions
        tables.append(table(naming.named(floor), "Changed by running again", f"task model {read}"
                            "variant other_variant k predictions changed ci_low "
                            "ci_high"))  # fmt: skip
    return Section(
        "order", "How much the order matters",
        "The share of answers that change when the same demonstrations stand in another random "
        f"order, with its 95% interval. It need not cost accuracy.{also}",
        "Bertsch et al. 2025, figure 4", tuple(panels), tuple(tables), look,
    )  # fmt: skip
