"""Sections on what the prompt holds and costs: labels shown, copies, half the labels, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from icl_bench.report import charts
from icl_bench.report.charts import PERCENT, Look, tip
from icl_bench.report.naming import unshuffled
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
from icl_bench.results.trained_methods import UPPER

if TYPE_CHECKING:
    from icl_bench.analysis.findings import Findings
    from icl_bench.report.naming import Naming

COSTS = {
    "prompt_tokens": ("prompt tokens a query", "~s"),
    "computed_tokens": ("tokens computed a query", "~s"),
    "seconds": ("seconds a query", "~g"),
}


def presence(findings: Findings, naming: Naming) -> Section | None:
    """Accuracy with and without the right label in the prompt."""
    frame = unshuffled(naming.named(findings.by_presence))
    if frame.empty:
        return None
    way = {True: "its label is shown", False: "its label is not shown"}
    shown = frame.assign(way=frame["series"], series=frame["present"].map(way))
    lined = with_limits(shown.sort_values(["present", "k"], ascending=[False, True]), "accuracy")
    count = lined.groupby(["task", "model", "way", "series"])["k"].transform("size")
    lined = lined.assign(alone=count == 1)
    look = common_look(lined)
    tips = [tip("series", "right label"), tip("k", "k", ",d"), tip("value", "accuracy", PERCENT),
            *LIMITS, tip("predictions", "predictions", ",d")]  # fmt: skip
    panels = tuple(
        Panel(file_name("presence", *key), " · ".join(key),
              charts.over_shots(part, look, "accuracy", tips,
                                f"Accuracy by whether the right label is shown, {' '.join(key)}"),
              plain_rows(part, "series k value low high predictions alone"))
        for key, part in groups(lined, ["task", "model", "way"])
    )  # fmt: skip
    return Section(
        "presence", "With and without a demonstration of the right label",
        "Accuracy of test examples whose label is that of some demonstration, and of the others. "
        "They are different examples: rare labels are more often missing.",
        "", panels,
        (table(frame, "By presence of the right label", f"{CURVE} k present predictions accuracy "
               "ci_low ci_high"),), look,
    )  # fmt: skip


def copying(findings: Findings, naming: Naming) -> Section | None:
    """Accuracy on queries that the prompt already answers."""
    copied = unshuffled(naming.named(findings.copying))
    if copied.empty:
        return None
    lined = with_limits(copied.sort_values(["series", "k"]), "accuracy")
    look = common_look(lined)
    tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", "accuracy", PERCENT),
            *LIMITS, tip("predictions", "predictions", ",d")]  # fmt: skip
    panels = tuple(
        Panel(file_name("copying", *key), " · ".join(key),
              charts.over_shots(part, look, "accuracy on copies", tips,
                                f"Accuracy on copied demonstrations, {' and '.join(key)}, over k"),
              plain_rows(part, "series k value low high predictions alone"))
        for key, part in groups(lined, ["task", "model"])
    )  # fmt: skip
    return Section(
        "copying", "Asked what the prompt already answers",
        "Accuracy on queries that stand among the demonstrations, answer and all. A model that "
        "looks things up in its prompt gets all of them right.",
        "Bertsch et al. 2025, table 5", panels,
        (table(copied, "Copied queries", f"{CURVE} k predictions accuracy ci_low ci_high"),), look,
    )  # fmt: skip


def spaces(findings: Findings, naming: Naming) -> Section | None:
    """Saturation with all labels and with half of them."""
    frame = findings.label_spaces
    if frame.empty:
        return None
    frame = naming.named(frame)
    wide = frame.assign(row=frame["model"] + ", " + frame["series"])
    long = wide.melt(["task", "row", "model"], ["full", "half"], "series", "value")
    long["series"] = long["series"].map({"full": "all labels", "half": "half of the labels"})
    ends = long.groupby(["task", "row"])["value"]
    long = long.assign(low=ends.transform("min"), high=ends.transform("max"))
    look = Look(["all labels", "half of the labels"])
    panels = tuple(
        Panel(file_name("label-spaces", task), task,
              charts.shares_of_context(part, look, f"Saturation with all labels and half, {task}"),
              plain_rows(part, "row series value low high"))
        for (task,), part in groups(long, ["task"])
    )  # fmt: skip
    return Section(
        "label-spaces", "Half of the labels",
        "Saturation, as a share of the largest tested k, with all labels and with half of them "
        "(mean of the halves).",
        "Bertsch et al. 2025, table 4", panels,
        (table(frame, "Label spaces", f"{CURVE} full half subsets"),), look,
    )  # fmt: skip


def cost(findings: Findings, naming: Naming) -> Section | None:
    """Accuracy against tokens and seconds."""
    point = ["task", "model", "select", "order", "attention", "variant", "k"]
    plain = dict.fromkeys(point[:-1], object)
    scores = findings.summary.curves[[*point, "accuracy", "ci_low", "ci_high"]].astype(plain)
    frame = findings.cost.astype(plain).merge(scores, on=point)
    frame = unshuffled(naming.named(frame[frame["accuracy"].notna()]))
    known = [name for name in COSTS if (frame[name] > 0).any()]
    if not known:
        return None
    several = frame["model"].nunique() > 1
    names = frame["model"] + ", " + frame["series"] if several else frame["series"]
    shown = with_limits(frame.assign(series=names), "accuracy").sort_values(["series", "k"])
    look = common_look(shown)
    panels = []
    for (task,), part in groups(shown, ["task"]):
        for name in known:
            title, form = COSTS[name]
            there = part[part[name] > 0]
            there = there.assign(cost=there[name])
            if len(there):
                says = f"Accuracy against {title} on {task}"
                panels.append(Panel(
                    file_name("cost", name, task), f"{task} · {title}",
                    charts.cost(there, look, "accuracy", title, form, says),
                    plain_rows(there, "series k cost value low high"),
                ))  # fmt: skip
    return Section(
        "cost", "What accuracy costs",
        "Up and to the left is better. Tokens computed are those of the prompt that came from no "
        "cache and were not shared with other queries: demonstrations common to all are read once. "
        "Seconds are the engine's, of the run as it was: a nested sweep extends the prompt of the "
        "next smaller k.",
        "", tuple(panels),
        (table(frame, "Cost of a query", f"{CURVE} k predictions accuracy prompt_tokens "
               "cached_tokens computed_tokens answer_tokens seconds training_seconds "
               "training_tokens"),), look,
    )  # fmt: skip


def even(findings: Findings, naming: Naming) -> Section | None:
    """After how many queries training is cheaper than prompting."""
    frame = naming.named(findings.break_even.assign(order="drawn"))
    frame = frame[frame["queries"].notna() & ~frame["select"].str.endswith(UPPER)]
    if frame.empty:
        return None
    tera = {f"{name}_tera": frame[f"{name}flops"] / 1e12 for name in ("training_", "", "base_")}
    frame = frame.assign(series=frame["select"] + " beside " + frame["beside"], **tera)
    shown = frame.assign(value=frame["queries"].clip(lower=1), low=np.nan, high=np.nan)
    look = common_look(shown.sort_values(["series", "k"]))
    panels = tuple(
        Panel(file_name("even", *key), " · ".join(key),
              charts.break_even(part, look, f"Queries until training pays, {' and '.join(key)}"),
              plain_rows(part, "series k value"))
        for key, part in groups(shown, ["task", "model"])
    )  # fmt: skip
    return Section(
        "even", "When training pays",
        "After this many queries, training once and answering bare queries takes fewer "
        "floating-point operations than prompting with the same number of demonstrations, which "
        "are cached, read anew for each query, or retrieved. Accuracy is another matter. "
        "What never pays has no point.",
        "Bertsch et al. 2025, section 3.3", panels,
        (table(frame, "Break-even", f"{CURVE} k queries queries_by_seconds training__tera _tera "
               "base__tera training_seconds seconds base_seconds"),), look,
    )  # fmt: skip
