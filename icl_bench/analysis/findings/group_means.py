"""Means over the tasks of a group, such as BIG-Bench Hard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.columns import Column
from icl_bench.analysis.draws import DRAWS_AND_TESTS
from icl_bench.analysis.finding import Finding, Printed
from icl_bench.analysis.settings import name_settings
from icl_bench.results.cells import short_hash
from icl_bench.results.facts import NO_FACTS, UNKNOWN, Facts, FactsOf
from icl_bench.wording import few

if TYPE_CHECKING:
    import pandas as pd

OF_TASK = frozenset(
    {
        *("data", "fields", "passages", "test", "test_rows", "pool", "pool_rows", "labels", "choice_style"),
        *("label_rule", "normalize", "template", "max_answer_tokens", "answer", "stops", "bertscore", "score_words"),
        *("scoring", "label_reading", "held", "validation", "bm25_words"),
    }
)
"""Facts in which the tasks of one sweep differ: data, prompts, and how answers are read."""

WAY = ["model", "select", "order", "attention", "k"]
"""The columns that the points of a mean share, besides their setting."""

COLUMNS = ["group", *WAY, "setting", "tasks", "score", "ci_low", "ci_high", "interval_over", "reason"]


def group_means(curves: pd.DataFrame, groups: Mapping[str, Sequence[str]], facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """The mean score over the tasks of each group, one row per way to prompt and k.

    ``curves`` is the table of :func:`icl_bench.analysis.curves.curves`, ``groups`` the tasks of each group by its name.
    Tasks are fixed and have equal weights: the 95% limits generalise to other draws (if each task has several) and
    other test examples of these tasks, not to other tasks. They are combined from the limits of the tasks, whose draws
    and test examples are independent (method of variance estimates recovery, Zou & Donner 2008, Stat Med 27:1693).

    Columns: group, model, select, order, attention, k, setting (further differences between sweeps, else empty), tasks
    (the number with a score), score, ci_low, ci_high, interval_over (the sampled unit of the limits: the least general
    of the tasks') and reason: the missing tasks, or why there is no mean if a task has several scores. Points with
    fewer than two scored tasks are left out.
    """
    import pandas as pd

    rows = []
    for group, tasks in groups.items():
        points = curves[curves["task"].isin(tasks) & curves["score"].notna()]
        of_sweep = {str(variant): _of_sweep(str(variant), facts) for variant in points["variant"].unique()}
        points = points.assign(
            task=points["task"].astype(object),
            sweep=points["variant"].map({v: key for v, (key, _) in of_sweep.items()}),
        )
        named = points.assign(task=group, variant=points["sweep"])
        settings = name_settings(dict(of_sweep.values()), named)
        for (*way, sweep), part in points.groupby([*WAY, "sweep"], observed=True):
            if part["task"].nunique() < 2:
                continue
            several = part.loc[part["task"].duplicated(), "task"].unique().tolist()
            missing = [task for task in tasks if task not in set(part["task"])]
            found = (math.nan,) * 3 if several else mean_of_tasks(part[["score", "ci_low", "ci_high"]].to_numpy(float))
            reason = f"several scores of {few(several)}" if several else f"without {few(missing)}" if missing else ""
            over = next((one for one in part["interval_over"] if one != DRAWS_AND_TESTS), DRAWS_AND_TESTS)
            rows.append((group, *way, settings.get(str(sweep), ""), part["task"].nunique(), *found, over, reason))
    return pd.DataFrame(rows, columns=COLUMNS)


def mean_of_tasks(scores: np.ndarray) -> tuple[float, float, float]:
    """The mean of tasks' scores and its limits, from each task's score and limits: ``(tasks, 3)``."""
    score, low, high = scores.T
    mean = float(score.mean())
    below, above = (math.sqrt(float(np.square(apart).sum())) / len(score) for apart in (score - low, high - score))
    return mean, max(mean - below, 0.0), min(mean + above, 1.0)


def _of_sweep(variant: str, facts: FactsOf) -> tuple[str, Facts]:
    """The name of the sweep that produced a variant, and the facts that its variants of different tasks share.

    An import's name is its variant.
    """
    known = facts.get(variant, UNKNOWN)
    if not known.are_of_a_run:
        return variant, known
    shared = {name: fact for name, fact in known.known().items() if name not in OF_TASK}
    return short_hash(shared), Facts(**shared)


GROUP_MEANS = Finding(
    "group_means",
    lambda context: group_means(context.table("curves"), context.groups, context.facts),
    (
        Column("group", "group of tasks", short="group"),
        Column("setting", "setting", optional=True),
        Column("tasks", "tasks", "count"),
        Column("score", "mean score", "share", short="mean"),
        Column("reason", "missing"),
    ),
    caption="Means over tasks",
    shown=" ".join(COLUMNS),
    printed=Printed(
        "groups of tasks: mean score, %, tasks weighted equally; interval for these tasks",
        "group model select k setting tasks score ci_low reason",
    ),
)
