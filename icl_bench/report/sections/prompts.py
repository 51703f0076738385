"""Sections on the cost of a prompt, the break-even of training, and half of the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.across_models import compared_within
from icl_bench.analysis.all_findings import Findings
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.frontier import Compared, leading, undominated
from icl_bench.analysis.query_cost import MEASURES, QUERIES, query_costs
from icl_bench.analysis.words import USUAL_ORDERS
from icl_bench.metrics.scores import measure
from icl_bench.models.attention_patterns import FULL
from icl_bench.report import charts
from icl_bench.report.charts import Look
from icl_bench.report.naming import Naming, unshuffled
from icl_bench.report.sections.panels import (
    Choice,
    Drawing,
    Panel,
    chart_rows,
    common_look,
    groups,
    of_models,
    panel,
    with_limits,
)
from icl_bench.report.tables import of_finding
from icl_bench.results.trained_methods import UPPER
from icl_bench.wording import capital, counted_queries

if TYPE_CHECKING:
    import pandas as pd

COST_AXES = {
    "prompt_tokens": ("prompt tokens a query", "~s"),
    "tokens": ("tokens computed a query", "~s"),
    "seconds": ("seconds a query", "~g"),
}
"""Costs of the whole prompt, and the frontier's costs of a query."""


def spaces(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
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
    panels = []
    for (task,), part in groups(long, ["task"]):
        chart = charts.shares_of_context(part, look, f"Saturation with all labels and half, {task}")
        panels.append(panel(["label-spaces", task], task, chart, part, "row series value low high"))
    return Drawing(panels, [of_finding(finding, frame)], look)


def cost(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Each task's score by tokens and seconds, those of the frontier for ``QUERIES`` queries."""
    point = ["task", "model", "select", "order", "attention", "variant", "k"]
    names = dict.fromkeys(point[:-1], object)
    scores = findings.curves[[*point, "metric", "score", "ci_low", "ci_high"]].astype(names)
    costs = findings.cost.astype(names)
    paid = dict(zip(MEASURES, query_costs(costs, None).of(QUERIES).T, strict=True))
    costs = costs.assign(measured_seconds=costs["seconds"], tokens=paid["tokens"], seconds=paid["seconds"])
    frame = costs.merge(scores, on=point)
    frame = unshuffled(naming.named(frame[frame["score"].notna()]))
    if not (frame[list(COST_AXES)] > 0).any(axis=None):
        return None
    named = of_models(frame) if frame["model"].nunique() > 1 else frame
    shown = with_limits(named, "score").sort_values(["series", "k"])
    look = common_look(shown)
    panels: list[Panel] = []
    for key, part in groups(shown, ["task"]):
        panels += _against(part, COST_AXES, "cost", key, look, measure(part), "k")
    table = of_finding(finding, frame.assign(seconds=frame["measured_seconds"]))
    return Drawing(panels, [table], look, {"score": measure(frame), "queries": counted_queries(QUERIES)})


def _against(
    part: pd.DataFrame, axes: Mapping[str, tuple[str, str]], name: str, key: Sequence[str], look: Look, of: str, k: str
) -> Iterator[Panel]:
    """A panel for each known one of these costs: a score, called ``of``, by the cost; ``k`` is the name of k."""
    for column, (axis, form) in axes.items():
        says = f"{capital(of)} against {axis} on {' with '.join(key)}"
        rows = part[part[column] > 0]
        rows = rows.assign(cost=rows[column])
        if len(rows):
            chart, title = charts.cost(rows, look, of, axis, form, says, k), " · ".join([*key, axis])
            yield panel([name, column, *key], title, chart, rows, "series k cost value low high")


FRONTIER_AXES = {
    "operations": ("operations a query (GFLOP)", "~g", 1e9),
    "seconds": ("seconds a query", "~g", 1.0),
    "tokens": ("tokens computed a query", "~s", 1.0),
    "money": ("money a query", "~g", 1.0),
}
"""Measure -> the axis, its format, and the unit of the axis."""


MOST_TESTED = 150
"""The maximum number of points of a chart for which the page has the data of verdicts at other costs."""


USUAL_SETTINGS = ("calibration=none", "scoring=greedy")
"""Settings that are omitted in names."""


def _shortest_names(frame: pd.DataFrame, settings: Mapping[str, str]) -> pd.Series[str]:
    """Distinguishing names of the ways of a task and model, without full attention and usual settings, because a chart
    has many.
    """
    order, read = frame["order"], frame["attention"]
    short = frame["select"] + (", " + order).where(~order.isin(USUAL_ORDERS), "")
    short = short + (", " + read).where(read != str(FULL), "")
    unusual = {
        variant: "".join(f", {part}" for part in text.split(", ") if part not in USUAL_SETTINGS)
        for variant, text in settings.items()
    }
    longer = short + frame["variant"].astype(object).map(unusual).fillna("")
    names = frame["series"]
    for shorter in (longer, short):
        alike = frame.assign(short=shorter).groupby(["task", "model", "short"])["series"]
        names = shorter.where(alike.transform("nunique") == 1, names)
    return names


FRONTIER_FILES = ("100 queries", "10,000 queries", "1,000,000 queries")
"""The frontier's choices in figure files."""


def frontier(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Scores by the cost of a query, for a number of queries that the reader selects."""
    return _frontier(finding, findings, naming, across=False)


def frontier_across_models(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Scores by cost with the points of all models of a task in one chart."""
    return _frontier(finding, findings, naming, across=True)


def _frontier(finding: Finding, findings: Findings, naming: Naming, across: bool) -> Drawing | None:
    import pandas as pd

    table = findings.context.table(finding.name)
    if table.empty:
        return None
    frame = naming.named(table)
    frame["series"] = _shortest_names(frame, dict(naming.settings))
    if across:
        frame = of_models(frame)
    frame["series"] = frame["series"].where(frame["cascade"].isna(), frame["series"] + ", cascade")
    if "listed" in frame:
        frame["listed"] = frame["listed"].where(frame["cascade"].isna())  # a cascade's answers are of several points
    whole: Compared = findings.context.beside[finding.name]
    frame["id"] = np.arange(len(frame)) % len(whole.served)
    by = compared_within(across)
    at_first = [_AtFirstCost.of(key, part, across) for key, part in groups(frame, by)]
    at_first = [one for one in at_first if len(one.rows)]
    if not at_first:
        return None
    shown = pd.concat([one.rows for one in at_first]).sort_values(["series", "k"], kind="stable")
    look = common_look(shown)
    steps = tuple(Choice(text, text) for text in shown.sort_values("queries")["point"].unique())
    usual = counted_queries(QUERIES)
    in_files = tuple(step for step in steps if step.text in FRONTIER_FILES)
    names, panels = "point series cascade k cost value low high verdict p on left", []
    for key, first, rows, points in at_first:
        axis, form, _ = FRONTIER_AXES[first]
        task, model = (*key, "all models")[:2]
        of = measure(rows)
        says = f"{capital(of)} against {axis} of {model} on {task}, and what is dominated"
        chart = charts.frontier(rows, look, of, axis, form, usual, says)
        name, title = ["frontier", task, model], f"{task} · {model}"
        own = _own_costs(points, whole, first, across)
        panels.append(panel(name, title, chart, rows, names, choices=steps, slides=True, in_files=in_files, costs=own))
    return Drawing(panels, [of_finding(finding, frame)], look)


class _AtFirstCost(NamedTuple):
    """A chart's data at the cost that it shows first."""

    key: tuple[str, ...]
    first: str
    """The cost: a name of ``MEASURES``."""
    rows: pd.DataFrame
    """Its points for each number of queries, without those of unknown cost."""
    points: pd.DataFrame
    """All its points, each once, by number."""

    @classmethod
    def of(cls, key: tuple[str, ...], part: pd.DataFrame, across: bool) -> _AtFirstCost:
        first = leading(part, None, across)
        part = with_limits(part, "score")
        points = part.drop_duplicates("id").set_index("id", drop=False).sort_index()
        rows = part[part[first] > 0]
        rows = rows.assign(
            cost=rows[first] / FRONTIER_AXES[first][2],
            verdict=rows[f"verdict_{first}"].fillna("not compared"),
            p=rows[f"p_{first}"],
            point=rows["queries"].map(counted_queries),
            on=False,
            left=False,
        ).sort_values(["series", "k"], kind="stable")
        for _, of_step in rows.groupby("point"):
            middle = np.sqrt(of_step["cost"].min() * of_step["cost"].max())
            rows.loc[of_step.index, "left"] = of_step["cost"] > middle
            compared = of_step[~of_step["other_tests"]]
            on = undominated(compared["value"].to_numpy(), compared["cost"].to_numpy())
            rows.loc[compared.index[on], "on"] = True
        return cls(key, first, rows, points)


def _own_costs(points: pd.DataFrame, compared: Compared, first: str, across: bool) -> Mapping[str, Any]:
    """The page's data for costs that its reader sets: the costs of each point, per query and one-time, by ``PARTS``;
    whether token prices need the price of an hour beside them; and the p values for verdicts on ``tested`` points,
    which are positions in ``points``.
    """
    places = {number: place for place, number in enumerate(points["id"])}
    tested = next((one for one in compared.tested if len(one.points) and one.points[0] in places), None)
    too_many = tested is not None and len(tested.points) > MOST_TESTED
    if tested is None or too_many:
        numbers, p_leads = [], np.empty((0, 0))
    else:
        numbers, p_leads = [places[number] for number in tested.points.tolist()], tested.p_leads
    names = "series cascade k value low high other_tests" + " model" * (points["model"].nunique() > 1)
    rows = chart_rows(points, names)
    each, once, served = (part[points["id"]] for part in (*compared.taken, compared.served))
    return {
        "first": first,
        "needs_hour": bool(across and (served == 0).any() and (served > 0).any()),
        "points": [
            {**row, "each": _digits(of_each), "once": _digits(of_once), "here": bool(here)}
            for row, of_each, of_once, here in zip(rows, each, once, served == 0, strict=True)
        ],
        "tested": numbers,
        "most_tested": MOST_TESTED if too_many else None,
        "p_leads": [_digits(of_point, 6) for of_point in p_leads],
    }


def _digits(values: np.ndarray, digits: int = 9) -> list[float | None]:
    """Numbers with this number of digits, None if unknown."""
    return [None if np.isnan(value) else float(f"{value:.{digits}g}") for value in values.tolist()]


CASCADE_AXES = {"gflops": ("operations a query (GFLOP)", "~g"), "computed_tokens": ("tokens computed a query", "~s")}


def cascade(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """Accuracy by the cost of cascades, compared with single k."""
    frame = findings.cascades
    if frame.empty:
        return None
    frame = unshuffled(naming.named(frame))
    drawn = frame[frame["rule"] != "chosen"]
    kind = drawn["rule"].map({"fixed": ", cascade", "single": ", each k alone"})
    shown = drawn.assign(series=drawn["series"] + kind, k=drawn["mean_k"].round(2), gflops=drawn["query_flops"] / 1e9)
    shown = with_limits(shown, "score").sort_values(["series", "k"])
    look = common_look(shown)
    panels: list[Panel] = []
    for key, part in groups(shown, ["task", "model"]):
        panels += _against(part, CASCADE_AXES, "cascade", key, look, "accuracy", "k on average")
    return Drawing(panels, [of_finding(finding, frame)], look)


def even(finding: Finding, findings: Findings, naming: Naming) -> Drawing | None:
    """The number of queries after which training is cheaper than prompting."""
    frame = naming.named(findings.break_even.assign(order="drawn"))
    frame = frame[frame["queries"].notna() & frame["until"].isna() & ~frame["select"].str.endswith(UPPER)]
    if frame.empty:
        return None
    names = dict(naming.settings)
    base = [f", {names[variant]}" if variant in names else "" for variant in frame["base_variant"]]
    frame = frame.assign(series=frame["series"] + " beside " + frame["beside"] + base)
    shown = frame.assign(value=frame["queries"].clip(lower=1), low=np.nan, high=np.nan)
    look = common_look(shown.sort_values(["series", "k"]))
    panels = []
    for key, part in groups(shown, ["task", "model"]):
        chart = charts.break_even(part, look, f"Queries until training pays, {' and '.join(key)}")
        panels.append(panel(["even", *key], " · ".join(key), chart, part, "series k value"))
    return Drawing(panels, [of_finding(finding, frame)], look)
