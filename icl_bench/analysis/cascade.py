"""Cascades: each query is answered at the first k whose margin is large enough.

A query is asked with few demonstrations first, and with more where the margin between the two most probable labels is
small. They are computed from stored predictions with probabilities of the same draws at several k: accuracy and cost
with a number of demonstrations chosen for each query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.by_task import IN_ORDER
from icl_bench.analysis.columns import POINT, TERA, Column
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.query_cost import MEASURES, QueryCosts, query_costs
from icl_bench.analysis.statistics.contrast import contrast, judge, p_values
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid, common_rows, grids
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.statistics.paired import holm, holm_steps
from icl_bench.errors import UserError
from icl_bench.results.cells import SETTING
from icl_bench.results.trained_methods import BASELINES
from icl_bench.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.all_findings import Findings

FIXED = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Fixed thresholds, not chosen from data."""

CANDIDATES = np.append(np.linspace(0, 1, 51), np.inf)
"""Candidates for the chosen threshold: 0 answers at the smallest k, the last at the largest."""

CASCADE = [
    "rule",
    "threshold",
    "other_threshold",
    "ks",
    "draws",
    "test_rows",
    "score",
    "ci_low",
    "ci_high",
    "mean_k",
    "asked",
    "computed_tokens",
    "query_flops",
    "last_k",
    "last_score",
    "last_tokens",
    "last_flops",
    "difference",
    "difference_low",
    "difference_high",
    "p",
    "p_holm",
    "left_out",
]


class Rungs(NamedTuple):
    """Predictions of the same draws and test examples at rising k, ``(ks, draws, test)``.

    A prediction that one k lacks is NaN for all k.
    """

    ks: np.ndarray
    """``(ks,)``."""
    correct: np.ndarray
    margin: np.ndarray
    """Probability of the most probable label minus that of the next, normalised over labels."""
    tokens: np.ndarray
    """Prompt tokens that were computed for this query."""
    flops: np.ndarray
    """Operations of a query: ``(ks,)``, NaN if unknown."""

    def of_tests(self, tests: np.ndarray) -> Rungs:
        """The rungs of some test examples."""
        parts = (part[:, :, tests] for part in (self.correct, self.margin, self.tokens))
        correct, margin, tokens = parts
        return Rungs(self.ks, correct, margin, tokens, self.flops)


class Ladder(NamedTuple):
    """A curve's points that can form a cascade."""

    setting: Mapping[str, Any]
    places: np.ndarray
    """Their positions among all points, by rising k: ``(ks,)``."""
    rungs: Rungs
    draws: np.ndarray
    """Numbers of the draws: ``(draws,)``."""
    tests: np.ndarray
    """Codes of the test ids: ``(test,)``."""
    rows: np.ndarray
    """Positions of the predictions in their frame, ``(ks, draws, test)``; -1 for gaps, as in ``rungs``."""
    left_out: int
    """Predictions that other k lack."""

    def grid(self, calls: np.ndarray) -> Grid:
        """The predictions of a cascade; ``calls`` is from its :class:`CascadeOutcome`."""
        place = np.nan_to_num(calls, nan=1.0).astype(int) - 1
        rows = np.take_along_axis(self.rows, place[None], axis=0)[0]
        return Grid(self.draws, self.tests, np.where(np.isnan(calls), -1, rows))


class CascadeOutcome(NamedTuple):
    """The effect of a threshold on each prediction: ``(draws, test)`` each, NaN for gaps."""

    correct: np.ndarray
    k: np.ndarray
    calls: np.ndarray
    """The number of k at which the model was called."""
    tokens: np.ndarray
    flops: np.ndarray


def outcome(rungs: Rungs, threshold: float) -> CascadeOutcome:
    """Answer each query at the first k whose margin reaches the threshold, else at the last.

    Costs include smaller k: the query is computed again for each k, shared demonstrations are not.
    """
    reached = rungs.margin >= threshold
    reached[-1] = True
    first = reached.argmax(axis=0)
    gone = np.isnan(rungs.correct[0])

    def at(values: np.ndarray) -> np.ndarray:
        taken: np.ndarray = np.take_along_axis(values, first[None], axis=0)[0]
        return np.where(gone, np.nan, taken)

    counted = np.cumsum(rungs.flops)[first]
    return CascadeOutcome(
        at(rungs.correct),
        np.where(gone, np.nan, rungs.ks[first]),
        np.where(gone, np.nan, first + 1.0),
        at(np.cumsum(rungs.tokens, axis=0)),
        np.where(gone, np.nan, counted),
    )


def alone(rungs: Rungs, place: int) -> CascadeOutcome:
    """The outcome of asking each query at one k only."""
    once = np.where(np.isnan(rungs.correct[0]), np.nan, 1.0)
    return CascadeOutcome(
        rungs.correct[place], once * rungs.ks[place], once, rungs.tokens[place], once * rungs.flops[place]
    )


def chosen_threshold(rungs: Rungs) -> float:
    """The threshold with the fewest operations that loses nothing to the largest k on these predictions.

    If operations are unknown, the threshold with the fewest calls. The threshold that always continues to the largest k
    loses nothing.
    """
    last = np.nanmean(rungs.correct[-1])
    best, least = np.inf, np.inf
    for threshold in CANDIDATES:
        result = outcome(rungs, float(threshold))
        cost = np.nanmean(result.calls if np.isnan(rungs.flops).any() else result.flops)
        if np.nanmean(result.correct) >= last and cost < least:
            best, least = float(threshold), float(cost)
    return best


def halving() -> np.random.Generator:
    """The random generator that splits test examples into halves; the same in all tables."""
    return generator(0, "cascades")


def halves(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions of two random halves of ``count`` test examples, ascending."""
    order = rng.permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def crossed(rungs: Rungs, rng: np.random.Generator) -> tuple[float, float, CascadeOutcome]:
    """Choose a threshold on each half of the test examples, and evaluate it on the other half.

    Returns both thresholds and their outcome: each test example is evaluated with the threshold chosen without it.
    """
    parted = halves(rungs.correct.shape[2], rng)
    thresholds = [chosen_threshold(rungs.of_tests(half)) for half in parted]
    parts = [np.full(rungs.correct.shape[1:], np.nan) for _ in CascadeOutcome._fields]
    for half, threshold in zip(parted, reversed(thresholds), strict=True):
        for whole, part in zip(parts, outcome(rungs.of_tests(half), threshold), strict=True):
            whole[:, half] = part
    return thresholds[0], thresholds[1], CascadeOutcome(*parts)


def cascades(predictions: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Evaluate cascades over each curve's k: one row per threshold, and one per k.

    ``costs`` is :func:`icl_bench.analysis.findings.cost.cost`'s table. Predictions without a probability (``--score
    exact``) or a test example or draw that another k lacks are left out; ``left_out`` counts them. k = 0 is not a rung.
    The halves of the test examples are random, and equal for all curves with the same number of examples.

    Columns: the setting; ``rule``: ``fixed``, a fixed threshold of the margin; ``chosen``, the cheapest threshold that
    loses nothing to the largest k on one half of the test examples, evaluated on the other half, both ways
    (``threshold`` and ``other_threshold``); or ``single``, every query at one k, for the same predictions; ``ks``;
    draws, test_rows; accuracy as ``score`` with ci_low and ci_high; means per query: ``mean_k`` at which it was
    answered, ``asked`` (number of k), computed_tokens and query_flops of all these k together; the same columns for the
    largest k only (``last_``); and for ``chosen`` the paired ``difference`` of accuracies from the largest k, with
    p, and p_holm and limits that are corrected over the curves of the task and model.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    if predictions.reindex(columns=["margin"])["margin"].notna().any():
        keys, points = grids(predictions, POINT)
        keys = keys.astype(dict.fromkeys(SETTING, object))
        paid = keys.merge(costs.astype(dict.fromkeys(SETTING, object)), on=POINT, how="left")
        rows = [
            {**ladder.setting, **row, "left_out": ladder.left_out}
            for ladder in ladders(predictions, keys, points, query_costs(paid, None))
            for row in _rows(ladder.rungs)
        ]
    table = pd.DataFrame(rows, columns=[*SETTING, *CASCADE])
    for _, part in table[table["rule"] == "chosen"].groupby(["task", "model"], observed=True):
        p = part["p"].to_numpy(dtype=float)
        table.loc[part.index, "p_holm"] = holm(p)
        low, high, _ = judge([rows[at]["gain"] for at in part.index], level=1 - holm_steps(p))
        table.loc[part.index, "difference_low"] = low.clip(-1, 1)
        table.loc[part.index, "difference_high"] = high.clip(-1, 1)
    return table


def ladders(
    predictions: pd.DataFrame, keys: pd.DataFrame, points: Sequence[Grid], paid: QueryCosts
) -> Iterator[Ladder]:
    """The curves with probabilities of the same draws and test examples at two k or more.

    ``keys`` and ``points`` are the predictions' points (:func:`grids` by ``POINT``), ``paid`` their costs. Trained
    classifiers are not rungs, because their examples are not demonstrations.
    """
    names = ["correct", "margin", "label_mass", "prompt_tokens", "cached_tokens"]
    values = predictions.reindex(columns=names).to_numpy(dtype=float)
    correct, margin, mass, prompt, cached = values.T
    usable = ~np.isnan(margin) & ~np.isnan(correct) & (predictions["k"].to_numpy() > 0)
    usable &= ~predictions["select"].astype(str).isin(BASELINES).to_numpy()
    if not usable.any():
        return
    points = [point.of_rows(usable) for point in points]
    flops = paid.each[:, MEASURES.index("operations")]
    have = keys[[len(point.draws) > 0 for point in points]]
    for names_of, part in have.groupby(SETTING, sort=False):
        places = part.index.to_numpy()[np.argsort(part["k"].to_numpy())]
        common = common_rows([points[place] for place in places])
        if len(places) < 2 or common is None:
            continue
        draws, tests, rows = common
        gone = rows < 0
        columns = (correct, margin / mass, prompt - cached)
        right, sure, tokens = (np.where(gone, np.nan, column[rows]) for column in columns)
        ks = keys["k"].to_numpy()[places]
        left = sum(points[place].predictions for place in places) - int((~gone).sum())
        setting = dict(zip(SETTING, names_of, strict=True))
        rungs = Rungs(ks, right, sure, tokens, flops[places])
        yield Ladder(setting, places, rungs, draws, tests, rows, left)


def _rows(rungs: Rungs) -> list[dict[str, Any]]:
    first, second, best = crossed(rungs, halving())
    gain = contrast(best.correct, rungs.correct[-1], matched=True)
    compared = {"difference": gain.difference, "p": float(p_values([gain])[0]), "gain": gain}
    rows = [{"rule": "chosen", "threshold": first, "other_threshold": second, **compared, **_described(rungs, best)}]
    for threshold in FIXED:
        result = outcome(rungs, threshold)
        rows.append({"rule": "fixed", "threshold": threshold, **_described(rungs, result)})
    for place in range(len(rungs.ks)):
        rows.append({"rule": "single", **_described(rungs, alone(rungs, place))})
    return rows


def _described(rungs: Rungs, result: CascadeOutcome) -> dict[str, Any]:
    score, low, high = mean_interval(result.correct)
    mean = [float(TwoWayLayout(part).mean) for part in result[1:4]]
    return {
        "ks": ", ".join(map(str, rungs.ks.tolist())),
        "draws": result.correct.shape[0],
        "test_rows": result.correct.shape[1],
        "score": score,
        "ci_low": low,
        "ci_high": high,
        "mean_k": mean[0],
        "asked": mean[1],
        "computed_tokens": mean[2],
        "query_flops": np.nan if np.isnan(rungs.flops).any() else float(np.nanmean(result.flops)),
        "last_k": int(rungs.ks[-1]),
        "last_score": float(TwoWayLayout(rungs.correct[-1]).mean),
        "last_tokens": float(TwoWayLayout(rungs.tokens[-1]).mean),
        "last_flops": float(rungs.flops[-1]),
    }


def require_cascades(findings: Findings) -> None:
    """Raise ``UserError`` if no cascade can be built from these predictions."""
    if not len(findings.context.table("cascades")):
        raise UserError(
            "--cascade: needs predictions with probabilities of the same draws at two k or more; "
            "run --score exact with several --k"
        )


def _with_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the thresholds as text."""

    def in_words(row: Any) -> str:
        both = sorted({row.threshold, row.other_threshold} - {None})
        texts = ["none" if np.isinf(t) else f"{t:g}" for t in both if not np.isnan(t)]
        return f"{row.rule} {', '.join(texts)}"

    table = table[table["rule"] != "single"]  # these are points of the curves
    return table.assign(said=[in_words(row) for row in table.itertuples()])


CASCADES = Finding(
    "cascades",
    lambda context: cascades(context.unperturbed, context.table("cost")),
    (
        Column("said", "margin needed"),
        Column("rule", "rule"),
        Column("threshold", "margin needed", "number"),
        Column("other_threshold", "on the other half", "number", optional=True),
        Column("ks", "k"),
        Column("score", "accuracy", "share"),
        Column("mean_k", "k on average", "number", short="mean k"),
        Column("asked", "times asked", "number", short="asked"),
        Column("computed_tokens", "computed tokens", "number", short="tokens"),
        Column("query_flops", "a query (TFLOP)", "number", unit=TERA),
        Column("last_k", "largest k", "count"),
        Column("last_score", "accuracy there", "share", short="largest\nk"),
        Column("last_tokens", "computed tokens there", "number"),
        Column("last_flops", "a query there (TFLOP)", "number", unit=TERA),
        Column("difference", "difference", "points"),
        Column("difference_low", "95% from", "points", short="95%", upper="difference_high"),
        Column("difference_high", "95% to", "points"),
    ),
    caption="Answered at the first k with a margin that is large enough",
    shown="task model series rule threshold other_threshold mean_k asked score ci_low ci_high "
    "computed_tokens query_flops last_k last_score last_tokens last_flops difference "
    "difference_low difference_high p_holm ks draws test_rows left_out",
    printed=Printed(
        "cascade: each query answered at the first k whose margin is large enough",
        "task model select said score ci_low mean_k query_flops last_score last_flops difference difference_low p_holm",
        _with_thresholds,
        columns_here=(
            Column("said", "margin"),
            Column("query_flops", "GFLOP", "number", unit=1e9),
            Column("last_flops", "its\nGFLOP", "number", unit=1e9),
        ),
        option="cascade",
    ),
    section=Section(
        "cascade",
        "An own number of demonstrations for each query",
        "Cascade",
        "run --score exact with several k",
        "A query is asked at the smallest k first, and at the next where the margin between the "
        "two most probable labels is smaller than the one needed. All that it takes is counted: "
        "the query at each k, not the demonstrations, where all queries share them. The chosen "
        "margin is the cheapest that lost nothing to the largest k on one half of the test "
        "rows, judged on the other half, both ways. Where a cascade lies below and to the "
        "right of a single k, asking every query at that k is better.",
        place=185,
    ),
    by_task=IN_ORDER,
)
