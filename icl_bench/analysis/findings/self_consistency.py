"""Self-consistency: the gain of the majority of several sampled answers over a single one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.analysis.by_task import ByTask
from icl_bench.analysis.columns import POINT, SIGNED_LIMITS, Column
from icl_bench.analysis.finding import Chart, Finding, Printed, Section
from icl_bench.analysis.predictions import joined
from icl_bench.analysis.statistics.paired import compare
from icl_bench.metrics.scores import scored
from icl_bench.results.facts import NO_FACTS, FactsOf

if TYPE_CHECKING:
    import pandas as pd

SIZES = (1, 3, 5, 10, 20, 40, 80, 160)
"""Numbers of samples whose majority is estimated, as far as a point has more."""


def self_consistency(frame: pd.DataFrame, facts: FactsOf = NO_FACTS) -> pd.DataFrame:
    """The score of the majority of several samples minus that of a single one (Wang et al. 2023, figure 2).

    Points with fewer than two samples have no row. ``votes`` is the number of answers in the vote and ``sampled`` the
    number that the point has. The score of all of them is the stored prediction's. The score of fewer is exact for
    these samples: the mean over all subsets of that size (:func:`win_chances`), so that the base is the mean score of
    single samples. ``agreement`` is the share of pairs of samples that give the same answer. Both sides have the same
    prompts and are paired by draw and test example. Each pair has its own samples, so the limits are over samples too.
    The other columns are those of :func:`icl_bench.analysis.statistics.paired.compare`.
    """
    frame = scored(frame).reset_index(drop=True)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, "samples", "sample_scores"])))
    frame = frame[frame["samples"].notna() & frame["sample_scores"].notna()]
    frame = frame.assign(sampled=frame["samples"].map(len).astype(int))
    frame = frame[frame["sampled"] > 1]
    parts = [frame.assign(votes=frame["sampled"])]
    for size in SIZES if len(frame) else ():
        part = frame[frame["sampled"] > size]
        pairs = zip(part["samples"], part["sample_scores"], strict=True)
        parts.append(part.assign(votes=size, score=np.array([expected(*pair, size) for pair in pairs], dtype=float)))
    table = compare(joined(parts, parts[0]), {"votes": 1}, facts=facts, about="demonstrations")  # type: ignore[dict-item]
    agreed = frame.assign(agreement=np.array([agreement(samples) for samples in frame["samples"]], dtype=float))
    of_points = agreed.astype(dict.fromkeys(POINT, object)).groupby(POINT)[["agreement", "sampled"]].mean()
    table = table.astype(dict.fromkeys(POINT, object)).merge(of_points.reset_index(), on=POINT, how="left")
    return table.drop(columns=["base_votes", "advice"])


def expected(samples: Sequence[str | None], scores: Sequence[float], size: int) -> float:
    """The mean score of the majority over all subsets of this number of samples, in all orders.

    Equal answers have equal scores.
    """
    if size == 1:
        return float(np.mean(scores))
    counts = Counter(samples)
    score_of = dict(zip(samples, scores, strict=True))
    chances = win_chances(tuple(counts.values()), size)
    return float(sum(chance * score_of[answer] for answer, chance in zip(counts, chances, strict=True)))


def agreement(samples: Sequence[str | None]) -> float:
    """The share of pairs of samples that are equal."""
    pairs = sum(comb(count, 2) for count in Counter(samples).values())
    return pairs / comb(len(samples), 2)


@lru_cache(maxsize=2**16)
def win_chances(counts: tuple[int, ...], size: int) -> tuple[float, ...]:
    """The chance of each answer to be the majority of a random subset, given how often each was sampled.

    Ties in a subset are broken with equal probability. The result is exact, by the multivariate hypergeometric
    distribution: subsets with ``a`` samples of an answer and at most ``a`` of each other one are counted by their size
    and by the number of answers that also have ``a``.
    """
    chances = {count: _win_chance(counts, count, size) for count in set(counts)}
    return tuple(chances[count] for count in counts)


def _win_chance(counts: Sequence[int], own: int, size: int) -> float:
    """The chance of an answer that was sampled ``own`` times."""
    others = list(counts)
    others.remove(own)
    found = 0.0
    for most in range(1, min(own, size) + 1):
        left = size - most
        ways = np.zeros((left // most + 1, left + 1))  # answers with the same number, samples of others
        ways[0, 0] = 1.0
        for count in others:
            further = np.zeros_like(ways)
            for taken in range(min(count, most - 1, left) + 1):
                further[:, taken:] += comb(count, taken) * ways[:, : left + 1 - taken]
            if most <= min(count, left):
                further[1:, most:] += comb(count, most) * ways[:-1, : left + 1 - most]
            ways = further
        found += comb(own, most) * float((ways[:, left] / np.arange(1, len(ways) + 1)).sum())
    return found / comb(sum(counts), size)


def _of_all(table: pd.DataFrame) -> pd.DataFrame:
    """The points of majorities over all samples."""
    return table[table["votes"] == table["sampled"]]


SELF_CONSISTENCY = Finding(
    "self_consistency",
    lambda context: self_consistency(context.prompts, context.facts),
    (
        *SIGNED_LIMITS,
        Column("votes", "samples voted on", "count", short="samples"),
        Column("sampled", "samples", "count"),
        Column("base_mean", "one sample", "share"),
        Column("mean", "majority", "share"),
        Column("agreement", "pairs of samples that agree", "share", short="agree"),
    ),
    caption="Majority of several samples minus a single one",
    shown="task model series votes k metric base_mean mean difference ci_low ci_high interval_over p p_holm agreement "
    "sampled rows draws left_out",
    printed=Printed(
        "self-consistency: {score} of the majority of all samples minus that of one, points",
        "task model select order k votes draws base_mean mean difference ci_low p_holm agreement",
        rows=_of_all,
        columns_here=(Column("base_mean", "one", "share"), Column("mean", "majority", "share")),
    ),
    section=Section(
        "self-consistency",
        "What does a majority of samples gain?",
        "Self-consistency",
        "run --samples 10 --temperature 0.7",
        "{Score} of the majority of several sampled answers, minus that of a single sample. Above 0: voting helps. "
        "Fewer votes than samples: the mean over all subsets of that size. The tokens of all samples are paid.",
        "Wang et al. 2023, figure 2",
        Chart("difference", by=("task", "model", "select", "order"), line="votes", difference=True),
        place=46,
    ),
    by_task=ByTask(("votes", "task")),
)
