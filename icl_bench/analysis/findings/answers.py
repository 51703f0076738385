"""Answers: for each task and model what to use, its score and cost, and what it could not be told from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.analysis.advice import NO_CANDIDATE, UNSURE, Budget, advise
from icl_bench.analysis.columns import POINT, Column
from icl_bench.analysis.finding import Finding
from icl_bench.analysis.query_cost import QUERIES, query_costs
from icl_bench.analysis.words import too_little
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.context import Context

COSTS = ("tokens", "operations", "seconds")
"""What a query takes, in the order in which it is shown."""

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
    """What to use, one row a task and model.

    It is what :func:`icl_bench.analysis.advice.advise` advises for ``QUERIES`` queries whatever they cost:
    the cheapest point that is shown to lose less than
    :data:`icl_bench.analysis.advice.MARGIN` to the best, else the best found.

    Columns: the setting and k; metric, score with score_low and score_high (95%), which allow for the
    choice among the points if it is the highest; score_draws and test_rows; ``points``, how many were
    tested; tokens, operations and seconds of a query with its share among ``queries`` of what is computed
    once (NaN where not known). ``verdict`` is ``best``, ``as good`` or, where nothing can be advised,
    ``highest``, and ``why`` says why. ``beside`` says what stands beside it:

    - ``best``: the best found, which has a higher mean;
    - ``cheaper``: the best of the cheaper points that were not shown to be worse, of which there are ``others`` more;
    - ``worse``: the best of the cheaper points, all of which were shown to be worse;
    - None: no cheaper point was tested.

    The columns that begin with ``base_`` name it. Difference, ci_low and ci_high are of the cheaper one's mean
    less that of the best found. ``p_margin`` is that of the verdict: that no point is better by
    :data:`icl_bench.analysis.advice.MARGIN` or more. ``unjudged`` is the number of points that are no
    candidates. ``command`` is the command that computed the answer, an empty text if it is not stored.
    """
    import pandas as pd

    costs = context.table("cost")
    budget = Budget(queries=QUERIES)
    advised = advise(context.unperturbed, costs, budget, facts=context.facts)
    names = dict.fromkeys(SETTING, object)
    curves = context.table("curves").astype(names)
    best = context.table("best_points").astype(names)
    paid = costs[POINT].astype(names)
    paid[list(COSTS)] = query_costs(costs, None).of(QUERIES)[:, [0, 1, 2]]
    commands = _commands(context)
    rows = []
    for highest in best.to_dict("records"):
        part = advised[(advised["task"] == highest["task"]) & (advised["model"] == highest["model"])]
        row = _row(part, highest, curves)
        cost = paid[np.logical_and.reduce([paid[name] == row[name] for name in POINT])]
        rows.append(
            {
                **row,
                **{name: cost[name].iloc[0] if len(cost) else np.nan for name in COSTS},
                "queries": QUERIES,
                "command": commands.get(tuple(str(row[name]).partition("+")[0] for name in POINT), ""),
            }
        )
    return pd.DataFrame(rows, columns=ANSWERS)


def _row(part: pd.DataFrame, highest: Mapping[Any, Any], curves: pd.DataFrame) -> dict[str, Any]:
    """The answer of a task and model: its point, score and what stands beside it."""
    of_pair = curves[(curves["task"] == highest["task"]) & (curves["model"] == highest["model"])]
    most = int(of_pair["test_rows"].max())
    taken = part[part["advised"]]
    point = taken.iloc[0] if len(taken) else None
    key = highest if point is None else point
    row: dict[str, Any] = {name: key[name] for name in POINT}
    is_highest = all(row[name] == highest[name] for name in POINT)
    measured = of_pair[np.logical_and.reduce([of_pair[name] == row[name] for name in POINT])]
    of = highest if is_highest or measured.empty else measured.iloc[0]
    row |= {
        "metric": highest["metric"],
        "score": of["score"],
        "score_low": of["ci_low"],
        "score_high": of["ci_high"],
        "score_draws": int(of["draws"]),
        "test_rows": int(of["test_rows"]),
        "points": int(highest["points"]),
        "verdict": "highest" if point is None else point["verdict"],
        "p_margin": np.nan if point is None else point["p_margin"],
        "unjudged": int(part["verdict"].isin(NO_CANDIDATE).sum()),
        "why": "",
        "beside": None,
        "others": 0,
    }
    thin = too_little({**row, "draws": row["score_draws"], "rows": row["test_rows"], "all_rows": most})
    if thin:
        return {**row, "verdict": "highest", "why": f"too little data: {thin}"}
    if row["points"] == 1:
        return {**row, "verdict": "highest", "why": "it is the only point that was tested"}
    if point is None:
        return {**row, "why": "what a query costs is not known, so cheaper points were not compared"}
    return {**row, **_beside(part, point)}


def _beside(part: pd.DataFrame, point: pd.Series[Any]) -> dict[str, Any]:
    """The point that the answer is compared with, and how."""
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
    """Point -> the commands that computed its cells, each once, a line each."""
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
)
