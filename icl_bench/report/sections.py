"""The report's sections: which findings are there, how to read them, their panels and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from icl_bench.analysis.summary import records
from icl_bench.report import charts
from icl_bench.report.charts import PERCENT, POINTS, Look, tip
from icl_bench.report.naming import Naming, unshuffled
from icl_bench.report.tables import Table, table
from icl_bench.store import SCORES

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from icl_bench.analysis.findings import Findings

POINT_ROWS = 6000
"""Rows of single points that a section may hold; beyond it only each curve's largest k is kept."""
CURVE = "task model series"


class Choice(NamedTuple):
    """A point that a chart can show, and what it is called."""

    value: str
    text: str


@dataclass(frozen=True)
class Panel:
    """One chart with its rows."""

    name: str
    """For files: letters, digits, dots and dashes."""
    title: str
    chart: alt.LayerChart
    rows: list[dict[str, Any]]
    choices: tuple[Choice, ...] = ()

    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification, rows and all."""
        found: dict[str, Any] = self.chart.to_dict(validate=False)  # it takes as long as the rest
        found.pop("config", None)
        found["datasets"] = {**found.get("datasets", {}), "rows": self.rows}
        return found


@dataclass(frozen=True)
class Section:
    """One finding."""

    name: str
    title: str
    reading: str
    """How to read the charts, in a sentence or two."""
    source: str
    """The figure or table of the paper that it is modelled on."""
    panels: tuple[Panel, ...] = ()
    tables: tuple[Table, ...] = ()
    look: Look = field(default_factory=lambda: Look(()))
    short: str = ""
    """The title where there is little room."""


class Missing(NamedTuple):
    """A section without data, and what gives it."""

    title: str
    needs: str


Maker = Callable[["Findings", Naming], Section | None]


def sections(findings: Findings, naming: Naming) -> tuple[list[Section], list[Missing]]:
    """Return the sections that have data, in the page's order, and those that have none."""
    there, missing = [], []
    for title, needs, make in MAKERS:
        section = make(findings, naming)
        if section is None:
            missing.append(Missing(title, needs))
        else:
            there.append(replace(section, short=title))
    return there, missing


# -- what sections have in common ---------------------------------------------------------------


def _slug(*words: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.")[:40] or "x" for word in words)


def _panels(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, part in frame.groupby(list(by), sort=True):
        yield tuple(map(str, key if isinstance(key, tuple) else (key,))), part


def _look(frame: pd.DataFrame, *, hidden: Sequence[str] = (), room: bool = False) -> Look:
    """Common limits; ``room`` fits the vertical axis to differences, 0 among them."""
    names = [*dict.fromkeys(frame["series"])]
    values = (0.0, 1.0)
    if room:
        shown = frame[["low", "value", "high"]].astype(float).stack()  # limits may be missing
        low, high = min(shown.min(), 0.0), max(shown.max(), 0.0)
        spare = 0.05 * (high - low or 0.2)
        values = (low - spare if low else low, high + spare)
    return Look(names, tuple(hidden), (int(frame["k"].min()), int(frame["k"].max())), values)


def _lined(frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """A table with value, low and high for charts; ``alone`` where a series has one point."""
    frame = frame.rename(columns={value: "value", "ci_low": "low", "ci_high": "high"})
    size = frame.groupby([n for n in ("task", "model", "series") if n in frame])["k"]
    return frame.assign(alone=size.transform("size") == 1)


def _rows(frame: pd.DataFrame, names: str) -> list[dict[str, Any]]:
    return records(frame[[name for name in names.split() if name in frame]])


# -- curves -------------------------------------------------------------------------------------

LIMITS = [tip("low", "95% from", PERCENT), tip("high", "95% to", PERCENT)]
SIGNED_LIMITS = [tip("low", "95% from", POINTS), tip("high", "95% to", POINTS)]
ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "bertscore": "BERTScore"}


def _accuracy(findings: Findings, naming: Naming) -> Section | None:
    frame = naming.named(findings.summary.curves)
    if frame.empty:
        return None
    frame["measure"], frame["value"] = "accuracy", frame["accuracy"]
    for name in reversed(SCORES):
        free = frame["accuracy"].isna() & frame[name].notna()
        frame["measure"] = frame["measure"].where(~free, ROUGE[name])
        frame["value"] = frame["value"].where(~free, frame[name])
    frame["value"] = frame["value"].astype(float)
    shuffled = frame["order"].str.startswith("shuffled")
    lined = _lined(frame.assign(again=shuffled).sort_values(["again", "series", "k"]), "value")
    look = _look(lined, hidden=sorted(set(frame.loc[shuffled, "series"])))
    panels = []
    for (task, model), part in _panels(lined, ["task", "model"]):
        title = part["measure"].iloc[0]
        tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", title, PERCENT), *LIMITS,
                tip("draws", "draws", ",d"), tip("test_rows", "test rows", ",d")]  # fmt: skip
        says = f"{title} of {model} on {task} over the number of demonstrations, log axis"
        panels.append(Panel(
            _slug("accuracy", task, model), f"{task} · {model}",
            charts.over_shots(part, look, title, tips, says),
            _rows(part, "series k value low high draws test_rows alone"),
        ))  # fmt: skip
    hidden = " Reshuffled prompts are switched off at first." if look.hidden else ""
    return Section(
        "accuracy", "Accuracy over the number of demonstrations",
        "Each point is a mean over draws and test examples; the band is its 95% interval. "
        f"Read to the right: more demonstrations, on a logarithmic axis.{hidden}",
        "paper 003, figures 1, 2 and 11",
        tuple(panels),
        (table(frame, "Accuracy over k", f"{CURVE} k draws test_rows accuracy ci_low ci_high "
               "macro_f1 invalid rouge1 rouge2 rougeL bertscore left_out"),),
        look,
    )  # fmt: skip


def _saturation(findings: Findings, naming: Naming) -> Section | None:
    frame = unshuffled(naming.named(findings.saturation_chances))
    frame = frame[frame["chance"].notna()]
    frame = frame[frame.groupby(CURVE.split())["k"].transform("size") > 1]
    if frame.empty:
        return None
    panels = [
        Panel(_slug("saturation", task, model), f"{task} · {model}",
              charts.chances(part, f"Where the curves of {model} on {task} saturate"),
              _rows(part, "series k chance accuracy"))
        for (task, model), part in _panels(frame, ["task", "model"])
    ]  # fmt: skip
    points = unshuffled(naming.named(findings.context_shares))
    return Section(
        "saturation", "Where more demonstrations stop paying",
        "A curve is saturated at the smallest k that reaches 95% of its best accuracy. The darker "
        "a k, the more of the resamples of draws and test examples had their point there; gaps "
        "were not tested. At the last k, saturation may lie beyond what was tested.",
        "paper 003, tables 3 and 4, appendix A",
        tuple(panels),
        (table(points, "Saturation points", f"{CURVE} k best_k max_k within_window share_of_tested "
               "prompt_tokens window share_of_window"),
         table(frame, "How probably each k is the point", f"{CURVE} k accuracy chance rows "
               "left_out")),
    )  # fmt: skip


def _order(findings: Findings, naming: Naming) -> Section | None:
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
    lined = _lined(shown.sort_values(["series", "k"]), "changed")
    look = _look(lined, room=True)
    tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", "changed", PERCENT), *LIMITS,
            tip("reorderings", "reorderings", ",d"), tip("draws", "draws", ",d")]  # fmt: skip
    panels = [
        Panel(_slug("order", task), task,
              charts.over_shots(part, look, "answers changed", tips,
                                f"Answers that another order changes on {task}, over k"),
              _rows(part, "series k value low high reorderings draws alone floor"))
        for (task,), part in _panels(lined, ["task"])
    ]  # fmt: skip
    also = ""
    if len(floor):
        also = " A short bar is the share that changes when the very same prompt is run again."
    tables = [table(frame, "Answers changed by reordering", f"{CURVE} k reorderings draws rows "
                    "changed ci_low ci_high floor left_out")]  # fmt: skip
    if len(floor):
        tables.append(table(naming.named(floor), "Changed by running again", "task model variant "
                            "other_variant k predictions changed ci_low ci_high"))  # fmt: skip
    return Section(
        "order", "How much the order matters",
        "The share of answers that change when the same demonstrations stand in another random "
        f"order, with its 95% interval. It need not cost accuracy.{also}",
        "paper 003, figure 4", tuple(panels), tuple(tables), look,
    )  # fmt: skip


# -- comparisons --------------------------------------------------------------------------------

COMPARED = (f"{CURVE} k mean base_mean difference ci_low ci_high p p_holm advice rows draws "
            "base_draws left_out")  # fmt: skip
TESTED = ("The line is the 95% interval, paired by test example; p values in the table are "
          "corrected over k (Holm).")  # fmt: skip


def _compared(
    frame: pd.DataFrame, kind: str, by: Sequence[str], says: str
) -> tuple[tuple[Panel, ...], Look]:
    """Panels of differences, one for each combination of ``by``."""
    lined = _lined(frame[frame["difference"].notna()].sort_values(["series", "k"]), "difference")
    look = _look(lined, room=True)
    tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", "difference", POINTS),
            *SIGNED_LIMITS, tip("mean", "accuracy", PERCENT), tip("base_mean", "base", PERCENT),
            tip("p_holm", "p (Holm)", ".2g"), tip("rows", "test rows", ",d")]  # fmt: skip
    panels = tuple(
        Panel(_slug(kind, *key), " · ".join(key),
              charts.differences(part, look, "difference in accuracy (points)", tips,
                                 f"{says}, {' and '.join(key)}, over k"),
              _rows(part, "series k value low high mean base_mean p_holm rows"))
        for key, part in _panels(lined, by)
    )  # fmt: skip
    return panels, look


def _sorting(findings: Findings, naming: Naming) -> Section | None:
    frame = naming.named(findings.sorting_penalty)
    if frame["difference"].notna().sum() == 0:
        return None
    frame = frame.assign(series=frame["model"] + ", " + frame["series"])
    panels, look = _compared(frame, "sorting", ["task"], "What sorting by label costs")
    return Section(
        "sorting", "What sorting by label costs",
        "Accuracy with the demonstrations grouped by label, less that of the same ones as drawn. "
        f"Below 0: sorting hurts. {TESTED}",
        "paper 003, figure 5", panels, (table(frame, "Sorted less drawn", COMPARED),), look,
    )  # fmt: skip


def _retrieval(findings: Findings, naming: Naming) -> Section | None:
    frame = naming.named(findings.retrieval_gain)
    if frame["difference"].notna().sum() == 0:
        return None
    frame = naming.against(frame, ["task", "model"])
    by = ["task", "model"]
    panels, look = _compared(frame, "retrieval", by, "What retrieval gains")
    return Section(
        "retrieval", "What retrieval gains",
        "Accuracy with demonstrations chosen for each test example, less that with random ones. "
        f"Above 0: retrieval helps. {TESTED}",
        "paper 003, figures 2 and 12", panels, (table(frame, "Retrieved less random", COMPARED),),
        look,
    )  # fmt: skip


def _models(findings: Findings, naming: Naming) -> Section | None:
    frame = unshuffled(naming.named(findings.models))
    if frame["difference"].notna().sum() == 0:
        return None
    frame = frame.assign(way=frame["series"], series=frame["model"])
    frame = naming.against(frame, ["task", "way"])
    bases = sorted(set(frame["base_model"]))
    panels, look = _compared(frame, "models", ["task", "way"], "Models compared")
    shown = frame.assign(series=frame["way"])
    return Section(
        "models", "Models compared",
        f"Accuracy less that of {', '.join(bases)} with the same demonstrations, at equal k. "
        f"Above 0: better. {TESTED}",
        "paper 003, figure 10", panels,
        (table(shown, "Models at equal k", COMPARED.replace(" mean ", " base_model mean ")),),
        look,
    )  # fmt: skip


# -- single points ------------------------------------------------------------------------------


def _pointed(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of unshuffled curves with ``point``, a name for curve and k within task and model.

    Where rows are very many, only those of each curve's largest k.
    """
    frame = unshuffled(frame)
    if len(frame) > POINT_ROWS:
        frame = frame[frame["k"] == frame.groupby(CURVE.split())["k"].transform("max")]
    return frame.assign(point=frame["series"] + ", k = " + frame["k"].map("{:,}".format))


def _choices(part: pd.DataFrame) -> tuple[Choice, ...]:
    """The points of a panel, the largest k of each curve first."""
    points = part.drop_duplicates("point")
    largest = points["k"] == points.groupby("series")["k"].transform("max")
    points = points.assign(rest=~largest).sort_values(
        ["rest", "series", "k"], ascending=[True, True, False], kind="stable"
    )
    return tuple(Choice(text, text) for text in points["point"])


def _usual(part: pd.DataFrame, choices: Sequence[Choice]) -> str:
    """The point that is shown first: that of random selection as drawn, where there is one."""
    plain = part[(part["select"] == "random") & (part["order"] == "drawn")]
    first = set(plain["point"])
    return next((choice.value for choice in choices if choice.value in first), choices[0].value)


def _confusions(findings: Findings, naming: Naming) -> Section | None:
    frame = _pointed(naming.named(findings.confusions))
    if frame.empty:
        return None
    frame["rank"] = frame.groupby([*CURVE.split(), "k"]).cumcount() + 1
    said = frame["prediction"].where(frame["prediction"] != "", "(nothing)")
    count = frame["count"].map("{:,}".format) + " × "
    frame["pair"] = count + frame["gold"] + " → " + said
    panels = []
    for (task, model), part in _panels(frame, ["task", "model"]):
        choices = _choices(part)
        says = f"The most frequent mistakes of {model} on {task}"
        panels.append(Panel(
            _slug("confusions", task, model), f"{task} · {model}",
            charts.mistakes(part, _usual(part, choices), says),
            _rows(part, "point rank pair gold prediction count share"), choices,
        ))  # fmt: skip
    return Section(
        "confusions", "What is taken for what",
        "The most frequent mistakes at one point of a curve: the right label → what was said.",
        "", tuple(panels),
        (table(frame, "Mistakes", f"{CURVE} k gold prediction count share"),),
    )  # fmt: skip


def _bias(findings: Findings, naming: Naming) -> Section | None:
    frame = _pointed(naming.named(findings.label_frequencies))
    if frame.empty:
        return None
    frame["most"] = frame[["gold", "predicted"]].max(axis=1)
    frame["most"] = frame.groupby(["task", "model", "point"])["most"].transform("max") * 1.03
    panels = []
    for (task, model), part in _panels(frame, ["task", "model"]):
        choices = _choices(part)
        says = f"How often {model} says each label of {task}, and how often it is right"
        panels.append(Panel(
            _slug("bias", task, model), f"{task} · {model}",
            charts.against_gold(_usual(part, choices), says),
            _rows(part, "point label gold predicted most"), choices,
        ))  # fmt: skip
    bias = unshuffled(naming.named(findings.label_bias))
    return Section(
        "bias", "Labels said too often",
        "Each point is a label. Above the diagonal it is said more often than it is right. In the "
        "table, “answers off” is the share of answers that would have to change for the labels to "
        "be as frequent as they should be; a few predictions are off by chance alone.",
        "", tuple(panels),
        (table(bias, "Label bias over k", f"{CURVE} k total_variation label excess"),),
    )  # fmt: skip


def _calibration(findings: Findings, naming: Naming) -> Section | None:
    frame = _pointed(naming.named(findings.reliability))
    if frame.empty:
        return None
    panels = []
    for (task, model), part in _panels(frame, ["task", "model"]):
        choices = _choices(part)
        says = f"Accuracy of {model} on {task} against the probability of its answers"
        panels.append(Panel(
            _slug("calibration", task, model), f"{task} · {model}",
            charts.reliability(_usual(part, choices), says),
            _rows(part, "point probability accuracy predictions"), choices,
        ))  # fmt: skip
    error = unshuffled(naming.named(findings.calibration_error))
    return Section(
        "calibration", "Whether probabilities can be believed",
        "Answers in ten bins of equal size by their probability among the labels. On the diagonal "
        "a probability is the share of right answers; below it the model is too sure. The "
        "calibration error is the mean distance from it.",
        "Nguyen & O'Connor 2015", tuple(panels),
        (table(error, "Expected calibration error", f"{CURVE} k error ci_low ci_high predictions "
               "left_out"),),
    )  # fmt: skip


# -- demonstrations and answers -----------------------------------------------------------------


def _presence(findings: Findings, naming: Naming) -> Section | None:
    frame = unshuffled(naming.named(findings.by_presence))
    if frame.empty:
        return None
    way = {True: "its label is shown", False: "its label is not shown"}
    shown = frame.assign(way=frame["series"], series=frame["present"].map(way))
    lined = _lined(shown.sort_values(["present", "k"], ascending=[False, True]), "accuracy")
    count = lined.groupby(["task", "model", "way", "series"])["k"].transform("size")
    lined = lined.assign(alone=count == 1)
    look = _look(lined)
    tips = [tip("series", "right label"), tip("k", "k", ",d"), tip("value", "accuracy", PERCENT),
            *LIMITS, tip("predictions", "predictions", ",d")]  # fmt: skip
    panels = tuple(
        Panel(_slug("presence", *key), " · ".join(key),
              charts.over_shots(part, look, "accuracy", tips,
                                f"Accuracy by whether the right label is shown, {' '.join(key)}"),
              _rows(part, "series k value low high predictions alone"))
        for key, part in _panels(lined, ["task", "model", "way"])
    )  # fmt: skip
    return Section(
        "presence", "With and without a demonstration of the right label",
        "Accuracy of test examples whose label is that of some demonstration, and of the others. "
        "They are different examples: rare labels are more often missing.",
        "", panels,
        (table(frame, "By presence of the right label", f"{CURVE} k present predictions accuracy "
               "ci_low ci_high"),), look,
    )  # fmt: skip


def _distance(findings: Findings, naming: Naming) -> Section | None:
    frame = naming.named(findings.by_distance)
    frame = _pointed(frame.rename(columns={"ci_low": "low", "ci_high": "high"}))
    frame = frame[frame["k"] > 1]
    if frame.empty:
        return None
    near, far = frame["nearest"].map("{:,}".format), frame["farthest"].map("{:,}".format)
    several = frame["farthest"] > frame["nearest"]
    bins = near.where(~several, near + "–" + far)
    frame["bin"] = bins.where(frame["nearest"] > 0, "none")
    frame["at"] = frame["nearest"].where(frame["nearest"] > 0, 0) * 10_000 + frame["farthest"]
    panels = []
    for (task, model), part in _panels(frame, ["task", "model"]):
        choices = _choices(part)
        says = f"Accuracy of {model} on {task} by the last demonstration of the right label"
        panels.append(Panel(
            _slug("distance", task, model), f"{task} · {model}",
            charts.by_bins(part, _usual(part, choices), "demonstrations back to the label", says),
            _rows(part, "point bin at accuracy low high predictions"), choices,
        ))  # fmt: skip
    shown = frame.rename(columns={"low": "ci_low", "high": "ci_high"})
    return Section(
        "distance", "How far back the right label stands",
        "Accuracy by how many demonstrations back the last one of the right label stands; 1 is "
        "right before the query, “none” that there is none. Frequent labels stand nearer.",
        "", tuple(panels),
        (table(shown, "By distance of the right label", f"{CURVE} k nearest farthest predictions "
               "accuracy ci_low ci_high"),),
    )  # fmt: skip


def _copying(findings: Findings, naming: Naming) -> Section | None:
    copied = unshuffled(naming.named(findings.copying))
    if copied.empty:
        return None
    lined = _lined(copied.sort_values(["series", "k"]), "accuracy")
    look = _look(lined)
    tips = [tip("series", "curve"), tip("k", "k", ",d"), tip("value", "accuracy", PERCENT),
            *LIMITS, tip("predictions", "predictions", ",d")]  # fmt: skip
    panels = tuple(
        Panel(_slug("copying", *key), " · ".join(key),
              charts.over_shots(part, look, "accuracy on copies", tips,
                                f"Accuracy on copied demonstrations, {' and '.join(key)}, over k"),
              _rows(part, "series k value low high predictions alone"))
        for key, part in _panels(lined, ["task", "model"])
    )  # fmt: skip
    return Section(
        "copying", "Asked what the prompt already answers",
        "Accuracy on queries that stand among the demonstrations, answer and all. A model that "
        "looks things up in its prompt gets all of them right.",
        "paper 003, table 5", panels,
        (table(copied, "Copied queries", f"{CURVE} k predictions accuracy ci_low ci_high"),), look,
    )  # fmt: skip


def _spaces(findings: Findings, naming: Naming) -> Section | None:
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
        Panel(_slug("label-spaces", task), task,
              charts.shares_of_context(part, look, f"Saturation with all labels and half, {task}"),
              _rows(part, "row series value low high"))
        for (task,), part in _panels(long, ["task"])
    )  # fmt: skip
    return Section(
        "label-spaces", "Half of the labels",
        "Saturation, as a share of the largest tested k, with all labels and with half of them "
        "(mean of the halves).",
        "paper 003, table 4", panels,
        (table(frame, "Label spaces", f"{CURVE} full half subsets"),), look,
    )  # fmt: skip


# -- cost ---------------------------------------------------------------------------------------

COSTS = {
    "prompt_tokens": ("prompt tokens a query", "~s"),
    "computed_tokens": ("tokens computed a query", "~s"),
    "seconds": ("seconds a query", "~g"),
}


def _cost(findings: Findings, naming: Naming) -> Section | None:
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
    shown = _lined(frame.assign(series=names), "accuracy").sort_values(["series", "k"])
    look = _look(shown)
    panels = []
    for (task,), part in _panels(shown, ["task"]):
        for name in known:
            title, form = COSTS[name]
            there = part[part[name] > 0]
            there = there.assign(cost=there[name])
            if len(there):
                says = f"Accuracy against {title} on {task}"
                panels.append(Panel(
                    _slug("cost", name, task), f"{task} · {title}",
                    charts.cost(there, look, title, form, says),
                    _rows(there, "series k cost value low high"),
                ))  # fmt: skip
    return Section(
        "cost", "What accuracy costs",
        "Up and to the left is better. Tokens computed are those of the prompt that came from no "
        "cache. Seconds are the engine's, of the run as it was: a nested sweep extends the prompt "
        "of the next smaller k.",
        "", tuple(panels),
        (table(frame, "Cost of a query", f"{CURVE} k predictions accuracy prompt_tokens "
               "cached_tokens computed_tokens answer_tokens seconds"),), look,
    )  # fmt: skip


MAKERS: tuple[tuple[str, str, Maker], ...] = (
    ("Accuracy over k", "run something first", _accuracy),
    ("Saturation", "run --k with two or more numbers", _saturation),
    ("Order sensitivity", "run --order drawn,shuffled:1 with k above 1", _order),
    ("Sorting penalty", "run --order drawn,by-label", _sorting),
    ("Retrieval gain", "run --select random,bm25", _retrieval),
    ("Models compared", "run the same with another --model", _models),
    ("Confusion", "predictions of labels, some of them wrong", _confusions),
    ("Label bias", "predictions of labels", _bias),
    ("Calibration", "run --score exact", _calibration),
    ("Presence of the right label", "run it here: imports say nothing of the demonstrations",
     _presence),
    ("Distance of the right label", "run it here, with k above 1", _distance),
    ("Copying", "run --queries copied", _copying),
    ("Label spaces", "run again with --labels half:1", _spaces),
    ("Cost", "run it here: imports seldom hold token counts", _cost),
)  # fmt: skip
