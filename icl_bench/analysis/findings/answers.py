"""Answers: the recommended setting of each task and model, its score and cost, and its closest alternative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.advice import COLUMN_MEASURES, NO_CANDIDATE, UNKNOWN_COST, UNSURE, Budget, advise
from icl_bench.analysis.by_task import BY_NAME
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.curves import curves
from icl_bench.analysis.draws import is_drawn, said
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.findings.best_points import INCOMPARABLE, best_points
from icl_bench.analysis.findings.cost import costs_of
from icl_bench.analysis.query_cost import QUERIES
from icl_bench.analysis.words import too_little
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

COSTS = ("tokens", "operations", "seconds")
"""Costs of a query, in display order."""

UNJUDGED = (*NO_CANDIDATE, UNKNOWN_COST)
"""Verdicts of points that were not tested."""

BASE = [f"base_{name}" for name in ("select", "order", "attention", "variant", "k", "mean")]

TEST = ["difference", "ci_low", "ci_high", "detectable", "rows", "draws", "base_draws", "interval_over"]

ANSWERS = [
    *POINT,
    "metric",
    "score",
    "score_low",
    "score_high",
    "score_draws",
    "test_rows",
    "points",
    "queries",
    *COSTS,
    "verdict",
    "p_margin",
    "beside",
    *BASE,
    *TEST,
    "others",
    "unjudged",
    "why",
    "command",
]


def answers(context: Context) -> pd.DataFrame:
    """The recommended setting, one row per task and model.

    It is the advice of :func:`icl_bench.analysis.advice.advise` for ``QUERIES`` queries without a budget: the cheapest
    point that is shown to lose less than :data:`icl_bench.analysis.advice.MARGIN` to the best, else the best found.

    Columns: the setting and k; metric, score with score_low and score_high (95%), corrected for selecting the maximum
    if it is the highest; score_draws and test_rows; ``points``, the number of compared points (without advice, of all
    points); tokens, operations and seconds of a query, including its share among ``queries`` of what is computed once
    (NaN if unknown). ``verdict`` is ``best``, ``as good`` or, without advice, ``highest``, and ``why`` is the reason.
    ``beside`` is the role of the compared point:

    - ``best``: the best found, which has a higher mean;
    - ``cheaper``: the best of the cheaper points that were not shown to be worse, of which there are ``others`` more;
    - ``worse``: the best of the cheaper points, all of which were shown to be worse;
    - None: no cheaper point was tested.

    The columns that begin with ``base_`` name it. Difference, ci_low and ci_high are for the cheaper point's mean minus
    that of the best found. ``p_margin`` belongs to the verdict that no point is better by
    :data:`icl_bench.analysis.advice.MARGIN` or more. ``unjudged`` is the number of points that could not be compared.
    Halves of a label space are left out. ``command`` is the command that computed the answer, empty if it is not
    stored.
    """
    import pandas as pd

    frame = context.unperturbed
    if "label_space" in frame:
        frame = frame[frame["label_space"].isna()]
    frame = frame.astype(dict.fromkeys(SETTING, object))
    costs = costs_of(context).astype(dict.fromkeys(SETTING, object))
    budget = Budget(queries=QUERIES)
    advised = advise(frame, costs, budget, facts=context.facts)
    best = best_points(frame, costs, context.facts)
    own_sizes = frame.groupby(POINT)[["draw", "test_id"]].nunique()
    sizes = own_sizes["test_id"].groupby(["task", "model"]).max()
    measured = cache(lambda: curves(frame.merge(advised.loc[advised["advised"], POINT], on=POINT)))
    paid = budget.of(costs).rename(columns=COLUMN_MEASURES)
    commands = _commands(context)
    rows = []
    for highest in best.to_dict("records"):
        pair = (highest["task"], highest["model"])
        part = advised[(advised["task"] == pair[0]) & (advised["model"] == pair[1])]
        own = own_sizes.loc[list(part[POINT].itertuples(index=False, name=None))]
        part = part.assign(own_draws=own["draw"].to_numpy(), own_rows=own["test_id"].to_numpy())
        row = _row(part, highest, measured, int(sizes[pair]))
        cost = paid[_is(paid, row)]
        rows.append(
            {
                **row,
                **{name: cost[name].iloc[0] if len(cost) else np.nan for name in COSTS},
                "queries": QUERIES,
                "command": commands.get(_stored(row), ""),
            }
        )
    return pd.DataFrame(rows, columns=ANSWERS)


def _is(frame: pd.DataFrame, point: Mapping[Any, Any]) -> np.ndarray:
    """Which rows belong to the point."""
    found: np.ndarray = np.logical_and.reduce([frame[name].to_numpy() == point[name] for name in POINT])
    return found


def _stored(point: Mapping[Any, Any]) -> tuple[str, ...]:
    """The point whose cells contain its answers. Calibrated points are derived, with a longer variant name."""
    return tuple(str(point[name]).partition("+")[0] if name == "variant" else str(point[name]) for name in POINT)


def _row(
    part: pd.DataFrame, highest: Mapping[Any, Any], measured: Callable[[], pd.DataFrame], most: int
) -> dict[str, Any]:
    """The answer for a task and model: its point, score and compared point.

    ``measured`` returns the curves' rows of the advised points, ``most`` is the largest number of test examples of a
    point.
    """
    unjudged = part["verdict"].isin(UNJUDGED)
    taken = part[part["advised"]]
    point = taken.iloc[0] if len(taken) else None
    beside = {} if point is None else _beside(part, point)
    why = _why_not(part, highest, point, beside, most)
    row: dict[str, Any] = {name: (highest if why or point is None else point)[name] for name in POINT}
    of = highest if all(row[name] == highest[name] for name in POINT) else measured()[_is(measured(), row)].iloc[0]
    row |= {
        "metric": highest["metric"],
        "score": of["score"],
        "score_low": of["ci_low"],
        "score_high": of["ci_high"],
        "score_draws": int(of["draws"]),
        "test_rows": int(of["test_rows"]),
        "points": int(highest["points"] if why else (~unjudged).sum()),
        "verdict": "highest" if why or point is None else point["verdict"],
        "p_margin": np.nan if point is None else point["p_margin"],
        "unjudged": int(unjudged.sum()),
        "why": why,
        "beside": None,
        "others": 0,
    }
    return row if why else {**row, **beside}


def _why_not(part: pd.DataFrame, highest: Mapping[Any, Any], point: Any, beside: Mapping[str, Any], most: int) -> str:
    """Why nothing can be advised; empty if something can."""
    judged = part[~part["verdict"].isin(UNJUDGED)]
    drawn = judged[(judged["k"] > 0) & judged["select"].map(is_drawn)]
    sides: list[Mapping[Any, Any]] = [highest if point is None else point]
    if beside.get("beside"):
        sides.append({name.removeprefix("base_"): beside[name] for name in BASE})
    if len(drawn) and drawn["own_draws"].max() == 1:  # every comparison with them is withheld
        sides.append(drawn.iloc[0].to_dict())
    for side in sides:
        if thin := _thin(part[_is(part, {**highest, **side})].iloc[0].to_dict(), most):
            return f"too little data: {thin}"
    if highest["points"] == 1:
        return "it is the only point that was tested"
    if point is None:
        return "what a query costs is not known, so cheaper points were not compared"
    verdict = part.loc[_is(part, highest), "verdict"].item()
    if verdict in UNJUDGED:
        return f"{INCOMPARABLE} ({said(verdict)})"
    return "" if len(judged) > 1 else "no other point could be compared with it"


def _thin(point: Mapping[Any, Any], most: int) -> str:
    """Why a point has too little data."""
    own = {"select": point["select"], "k": point["k"], "draws": point["own_draws"], "rows": point["own_rows"]}
    return too_little({**own, "all_rows": most})


def _beside(part: pd.DataFrame, point: pd.Series[Any]) -> dict[str, Any]:
    """The point that the answer is compared with, and its role."""
    if point["verdict"] != "best":
        base = part[part["verdict"] == "best"].iloc[0]
        return {"beside": "best", **_named(base), **_test(point)}
    for name, verdict in (("cheaper", UNSURE), ("worse", "worse")):
        rows = part[part["verdict"] == verdict].sort_values("mean", kind="stable")
        if len(rows):
            return {"beside": name, **_named(rows.iloc[-1]), **_test(rows.iloc[-1]), "others": len(rows) - 1}
    return {}


def _named(point: pd.Series[Any]) -> dict[str, Any]:
    return {name: point[name.removeprefix("base_")] for name in BASE}


def _test(point: pd.Series[Any]) -> dict[str, Any]:
    return {name: point[name] for name in TEST}


def _commands(context: Context) -> dict[tuple[str, ...], str]:
    """Point -> the distinct commands that computed its cells, one per line."""
    commands: dict[tuple[str, ...], dict[str, None]] = {}
    for meta in context.stored.own_cells.values():
        if meta.run.command:
            values = {**meta.spec.model_dump(), "variant": meta.variant}
            point = tuple(str(values[name]) for name in POINT)
            commands.setdefault(point, {})[meta.run.command] = None
    return {point: "\n".join(of_point) for point, of_point in commands.items()}


ANSWERED = Finding(
    "answers",
    answers,
    (
        Column("verdict", "verdict"),
        Column("points", "tested points", "count"),
        Column("queries", "queries", "count"),
        Column("command", "command"),
    ),
    caption="What to use",
    by_task=BY_NAME,
)
