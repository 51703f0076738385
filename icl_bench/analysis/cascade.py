"""Cascades: each query is answered at the first k at which the model is sure enough.

A query is asked with few demonstrations first, and with more where the margin between the two most
probable labels is small. Made of stored predictions with probabilities of the same draws at several
k: what an own number of demonstrations for each query would have brought, and taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.analysis.columns import POINT, TERA, Column
from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.gaps import Layout
from icl_bench.analysis.statistics.grid import Grid, grids
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.statistics.paired import holm
from icl_bench.demonstrations.selector_spec import known
from icl_bench.errors import UserError
from icl_bench.results.cells import SETTING

if TYPE_CHECKING:
    import pandas as pd

    from icl_bench.analysis.findings import Findings

FIXED = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Thresholds that nothing was chosen by."""

CANDIDATES = np.append(np.linspace(0, 1, 51), np.inf)
"""Thresholds that one is chosen from: 0 answers at the smallest k, the last at the largest."""

CASCADE = ["rule", "threshold", "other_threshold", "ks", "draws", "test_rows", "score", "ci_low",
           "ci_high", "mean_k", "asked", "computed_tokens", "query_flops", "last_k", "last_score",
           "last_tokens", "last_flops", "difference", "difference_low", "difference_high", "p",
           "p_holm", "left_out"]  # fmt: skip


class Rungs(NamedTuple):
    """Predictions of the same draws and test examples at rising k, ``(ks, draws, test)``.

    NaN stands where a k lacks the prediction, then for all of them.
    """

    ks: np.ndarray
    """``(ks,)``."""
    correct: np.ndarray
    margin: np.ndarray
    """Of the most probable label to the next, as if nothing but labels could be said."""
    tokens: np.ndarray
    """Of the prompt that were computed for it alone."""
    flops: np.ndarray
    """Operations of a query: ``(ks,)``, NaN where they are not known."""

    def of_tests(self, tests: np.ndarray) -> Rungs:
        """The part of some test examples."""
        parts = (part[:, :, tests] for part in (self.correct, self.margin, self.tokens))
        correct, margin, tokens = parts
        return Rungs(self.ks, correct, margin, tokens, self.flops)


class Outcome(NamedTuple):
    """What a threshold does to each prediction: ``(draws, test)`` each, NaN where there is none."""

    correct: np.ndarray
    k: np.ndarray
    asked: np.ndarray
    """At how many k it was asked."""
    tokens: np.ndarray
    flops: np.ndarray


def outcome(rungs: Rungs, threshold: float) -> Outcome:
    """Answer each query at the first k whose margin reaches the threshold, else at the last.

    What was computed at smaller k is counted: the query is computed anew for each k, the
    demonstrations that all queries share are not.
    """
    reached = rungs.margin >= threshold
    reached[-1] = True
    first = reached.argmax(axis=0)
    gone = np.isnan(rungs.correct[0])

    def at(values: np.ndarray) -> np.ndarray:
        taken: np.ndarray = np.take_along_axis(values, first[None], axis=0)[0]
        return np.where(gone, np.nan, taken)

    counted = np.cumsum(rungs.flops)[first]
    return Outcome(
        at(rungs.correct), np.where(gone, np.nan, rungs.ks[first]),
        np.where(gone, np.nan, first + 1.0), at(np.cumsum(rungs.tokens, axis=0)),
        np.where(gone, np.nan, counted),
    )  # fmt: skip


def alone(rungs: Rungs, place: int) -> Outcome:
    """Ask each query at one k alone."""
    there = np.where(np.isnan(rungs.correct[0]), np.nan, 1.0)
    return Outcome(
        rungs.correct[place], there * rungs.ks[place], there, rungs.tokens[place],
        there * rungs.flops[place],
    )  # fmt: skip


def chosen_threshold(rungs: Rungs) -> float:
    """The threshold of the fewest operations that loses nothing to the largest k here.

    Where operations are not known, of the fewest times that a query is asked. Always going on is
    one of those that lose nothing.
    """
    last = np.nanmean(rungs.correct[-1])
    best, least = np.inf, np.inf
    for threshold in CANDIDATES:
        found = outcome(rungs, float(threshold))
        cost = np.nanmean(found.asked if np.isnan(rungs.flops).any() else found.flops)
        if np.nanmean(found.correct) >= last and cost < least:
            best, least = float(threshold), float(cost)
    return best


def crossed(rungs: Rungs, rng: np.random.Generator) -> tuple[float, float, Outcome]:
    """Choose a threshold on each half of the test examples, and judge it on the other half.

    Returns both thresholds and what came of them: of every test example under the one that was
    chosen without it.
    """
    count = rungs.correct.shape[2]
    order = rng.permutation(count)
    halves = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    thresholds = [chosen_threshold(rungs.of_tests(half)) for half in halves]
    parts = [np.full(rungs.correct.shape[1:], np.nan) for _ in Outcome._fields]
    for half, threshold in zip(halves, reversed(thresholds), strict=True):
        for whole, part in zip(parts, outcome(rungs.of_tests(half), threshold), strict=True):
            whole[:, half] = part
    return thresholds[0], thresholds[1], Outcome(*parts)


def cascades(
    predictions: pd.DataFrame, costs: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """What cascades of each curve's k would have brought: one row a threshold, and one a k.

    ``costs`` is :func:`icl_bench.analysis.cost.cost`'s table. Predictions without a probability
    (``--score exact``) or a test example or draw that another k lacks are left out; ``left_out``
    counts them. k = 0 is no rung.

    Columns: the setting; ``rule``: ``fixed``, a threshold of the margin by itself, or ``chosen``,
    the cheapest that loses nothing to the largest k on one half of the test examples, judged on the
    other, both ways (``threshold`` and ``other_threshold``), or ``single``, every query at one k,
    of the same predictions; ``ks``; draws, test_rows; accuracy as
    ``score`` with ci_low and ci_high; means per query: ``mean_k`` at which it was answered,
    ``asked`` (at how many k), computed_tokens and query_flops of all of these together; the same of
    the largest k alone (``last_``); and of the chosen one the ``difference`` of accuracies from it,
    paired, with limits, p and p_holm over the curves of the task and model.
    """
    import pandas as pd

    labelled = _with_margins(predictions)
    rows: list[dict[str, Any]] = []
    if len(labelled):
        keys, found = grids(labelled, POINT)
        flops = _operations(keys, costs)
        for names, part in keys.groupby(SETTING, observed=True, sort=False):
            places = part.index.to_numpy()[np.argsort(part["k"].to_numpy())]
            if len(places) < 2:
                continue
            rungs, left = _rungs(
                part["k"].to_numpy(), [found[i] for i in places], labelled, flops[places]
            )
            if rungs is not None:
                key = dict(zip(SETTING, names, strict=True))
                rows += [{**key, **row, "left_out": left} for row in _rows(rungs, rng)]
    table = pd.DataFrame(rows, columns=[*SETTING, *CASCADE])
    for _, part in table[table["rule"] == "chosen"].groupby(["task", "model"], observed=True):
        table.loc[part.index, "p_holm"] = holm(part["p"].to_numpy(dtype=float))
    return table


def _with_margins(frame: pd.DataFrame) -> pd.DataFrame:
    """The labelled predictions with a margin, and what they took."""
    wanted = [*POINT, "draw", "test_id", "correct", "margin", "label_mass", "prompt_tokens",
              "cached_tokens"]  # fmt: skip
    found = frame.reindex(columns=wanted)
    found = found[found["margin"].notna() & found["correct"].notna() & (found["k"] > 0)]
    return found.assign(
        sure=found["margin"].to_numpy(dtype=float) / found["label_mass"].to_numpy(dtype=float),
        tokens=found["prompt_tokens"].to_numpy(dtype=float)
        - found["cached_tokens"].to_numpy(dtype=float),
    ).reset_index(drop=True)


def _operations(keys: pd.DataFrame, costs: pd.DataFrame) -> np.ndarray:
    """Operations of a query at each point: on top of what is shared, or of all that is its own."""
    columns = [*POINT, "query_flops", "whole_flops"]
    there = keys.astype(dict.fromkeys(SETTING, object)).merge(
        costs[columns].astype(dict.fromkeys(SETTING, object)), on=POINT, how="left"
    )
    choices = [known(str(select)) for select in there["select"]]
    own = np.array([choice is not None and choice.retrieves for choice in choices])
    reuses = there["attention"].astype(str).str.contains("reuse").to_numpy()
    return np.where(own & ~reuses, there["whole_flops"], there["query_flops"]).astype(float)


def _rungs(
    ks: np.ndarray, points: Sequence[Grid], frame: pd.DataFrame, flops: np.ndarray
) -> tuple[Rungs | None, int]:
    """What all of a curve's points have, if there is any, and how many others are left out."""
    draws, tests = points[0].draws, points[0].tests
    for point in points[1:]:
        draws, tests = np.intersect1d(draws, point.draws), np.intersect1d(tests, point.tests)
    everything = sum(point.predictions for point in points)
    if not len(draws) or len(tests) < 2:
        return None, everything
    rows = np.stack([
        point.take(np.searchsorted(point.draws, draws), np.searchsorted(point.tests, tests)).rows
        for point in points
    ])  # fmt: skip
    whole = np.asarray((rows >= 0).all(axis=0))
    kept_draws, kept_tests = whole.any(axis=1), whole.any(axis=0)
    whole, rows = whole[kept_draws][:, kept_tests], rows[:, kept_draws][:, :, kept_tests]
    if whole.shape[1] < 2:
        return None, everything
    correct, margin, tokens = (
        np.where(whole, frame[name].to_numpy(dtype=float)[rows], np.nan)
        for name in ("correct", "sure", "tokens")
    )
    left = everything - int(whole.sum()) * len(points)
    return Rungs(np.sort(ks), correct, margin, tokens, flops), left


def _rows(rungs: Rungs, rng: np.random.Generator) -> list[dict[str, Any]]:
    first, second, best = crossed(rungs, rng)
    one = contrast(best.correct, rungs.correct[-1], matched=True)
    (low,), (high,), (p,) = judge([one])
    compared = {"difference": one.difference, "difference_low": low, "difference_high": high,
                "p": p}  # fmt: skip
    found = [{"rule": "chosen", "threshold": first, "other_threshold": second, **compared,
              **_described(rungs, best)}]  # fmt: skip
    for threshold in FIXED:
        of_it = outcome(rungs, threshold)
        found.append({"rule": "fixed", "threshold": threshold, **_described(rungs, of_it)})
    for place in range(len(rungs.ks)):
        found.append({"rule": "single", **_described(rungs, alone(rungs, place))})
    return found


def _described(rungs: Rungs, found: Outcome) -> dict[str, Any]:
    score, low, high = mean_interval(found.correct)
    mean = [float(Layout(part).mean) for part in found[1:4]]
    return {
        "ks": ", ".join(map(str, rungs.ks.tolist())),
        "draws": found.correct.shape[0], "test_rows": found.correct.shape[1],
        "score": score, "ci_low": low, "ci_high": high,
        "mean_k": mean[0], "asked": mean[1], "computed_tokens": mean[2],
        "query_flops": np.nan if np.isnan(rungs.flops).any() else float(np.nanmean(found.flops)),
        "last_k": int(rungs.ks[-1]), "last_score": float(Layout(rungs.correct[-1]).mean),
        "last_tokens": float(Layout(rungs.tokens[-1]).mean), "last_flops": float(rungs.flops[-1]),
    }  # fmt: skip


def require_cascades(findings: Findings) -> None:
    """Raise ``UserError`` where no cascade can be made of what is there."""
    if not len(findings.context.table("cascades")):
        raise UserError(
            "--cascade: needs predictions with probabilities of the same draws at two k or more; "
            "run --score exact with several --k"
        )


def _with_thresholds(table: pd.DataFrame) -> pd.DataFrame:
    """The same with what is needed in words."""

    def said(row: Any) -> str:
        both = sorted({row.threshold, row.other_threshold} - {None})
        texts = ["none" if np.isinf(t) else f"{t:g}" for t in both if not np.isnan(t)]
        return f"{row.rule} {', '.join(texts)}"

    table = table[table["rule"] != "single"]  # these are points of the curves
    return table.assign(said=[said(row) for row in table.itertuples()])


CASCADES = Finding(
    "cascades",
    lambda context: cascades(
        context.unperturbed, context.table("cost"), context.generator("cascades")
    ),
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
        "task model select said score ci_low mean_k query_flops last_score last_flops difference "
        "difference_low p_holm",
        _with_thresholds,
        columns_here=(
            Column("said", "margin"),
            Column("query_flops", "GFLOP", "number", unit=1e9),
            Column("last_flops", "its\nGFLOP", "number", unit=1e9),
        ),
        option="cascade",
    ),
    section=Section(
        "cascade", "An own number of demonstrations for each query", "Cascade",
        "run --score exact with several k",
        "A query is asked at the smallest k first, and at the next where the margin between the "
        "two most probable labels is smaller than the one needed. All that it takes is counted: "
        "the query at each k, not the demonstrations, where all queries share them. The chosen "
        "margin is the cheapest that lost nothing to the largest k on one half of the test "
        "examples, judged on the other half, both ways. Where a cascade lies below and to the "
        "right of a single k, asking every query at that k is better.",
        place=185,
    ),
)  # fmt: skip
