"""Anytime-valid evidence that one candidate is not worse than another by more than the margin.

The scores of two candidates on the same draws and rows give paired differences. Their mean and its
variance give a score process: with the information ``I = 1 / variance``, ``I * (mean - truth)`` behaves
like a Brownian motion at time I, whatever mix of rows and draws the information comes from (Jennison &
Turnbull 2000, Group Sequential Methods, chapter 3; time-uniformly: Waudby-Smith, Arbour, Sinha, Kennedy &
Ramdas 2024, Ann. Statist. 52(6), asymptotic confidence sequences). Against the null hypothesis that the
truth is at most ``-margin``, the mixture of likelihood ratios over half-normal effects is an e-process
(Robbins 1970, Ann. Math. Statist. 41(5); Howard, Ramdas, McAuliffe & Sekhon 2021, Ann. Statist. 49(2)).
It exceeds 1/a at any time with a probability of at most a (Ville's inequality), so looking costs no error.

Three mixtures of equal weight, for gaps of 1, 4 and 16 margins, find large gaps early and small ones at
all. Three guards serve small samples. Two pseudo-differences, one of each sign, keep the variance above 0
where no answers differ yet (after Agresti & Min 2005, Stat. Med. 24:729). Statistics are referred to t, then
to the normal quantile of the same tail (Jennison & Turnbull, section 11.2). Evidence starts at
``FIRST_LOOK`` rows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

Target = Literal["sweep", "new"]
"""What means stand for: the rows and draws of a full sweep, or all rows and draws that there could be."""

FIRST_LOOK = 20
"""Rows before the first look: fewer differences of -1, 0 and 1 have no nearly normal mean."""
GAPS = (1.0, 4.0, 16.0)
"""Effects that the mixtures are for, in margins."""
PSEUDO = 2.0
"""Pseudo-differences: half of them 1, half of them -1."""
WITHIN_PRIOR = 10.0
"""Weight, in degrees of freedom, of the variance of all differences as that between draws of a row."""
KNOWN = 1e-9
"""Differences of known means up to this are rounding."""


class Means(NamedTuple):
    """Mean differences ``(...)``, as shares of 1, with the precision of each."""

    mean: np.ndarray
    variance: np.ndarray
    """Of the mean; 0 where all answers that it stands for are known."""
    freedom: np.ndarray
    """Degrees of freedom of the variance."""


class Rows(NamedTuple):
    """What was asked of each row, in the rows' order."""

    sums: np.ndarray
    """``(..., rows)``"""
    squares: np.ndarray
    """``(..., rows)``"""
    counts: np.ndarray
    """``(rows,)``"""


def by_row(scores: np.ndarray, asked: int) -> Rows:
    """Return the sums of the first ``asked`` scores of ``(..., passes, rows)``: pass after pass over the rows."""
    passes, begun = divmod(asked, scores.shape[-1])
    whole = scores[..., :passes, :]
    sums, squares = whole.sum(axis=-2), np.square(whole).sum(axis=-2)
    counts = np.full(scores.shape[-1], passes)
    if begun:
        rest = scores[..., passes, :begun]
        sums[..., :begun] += rest
        squares[..., :begun] += np.square(rest)
        counts[:begun] += 1
    return Rows(sums, squares, counts)


def mean_differences(scores: np.ndarray, asked: int, draws: int, drawn: np.ndarray, target: Target) -> Means:
    """Return the mean of each array of differences, and the variance of that mean.

    ``scores`` are ``(n, passes, rows)``, from -1 to 1: pass p asks row i with draw ``(i + p) % draws``.
    The first ``asked`` of them count. ``drawn`` ``(n,)`` says whether either side depends on the draw.
    """
    if asked < scores.shape[-1] or (asked == scores.shape[-1] and target == "new"):
        return _first_pass(scores[:, 0, :asked], scores.shape[-1], draws, drawn, target)
    rows = by_row(scores, asked)
    of_rows = rows.sums / rows.counts
    number, asked_twice = len(rows.counts), asked - len(rows.counts)
    mean = of_rows.mean(axis=-1)
    if target == "sweep":
        # all rows are there: what is open is their other draws
        inside = (rows.squares - rows.counts * np.square(of_rows)).sum(axis=-1)
        total = (rows.squares.sum(axis=-1) + PSEUDO) / (asked + PSEUDO)
        total -= np.square(rows.sums.sum(axis=-1) / (asked + PSEUDO))
        freedom = asked_twice + WITHIN_PRIOR
        open_ = ((1 - rows.counts / draws) / rows.counts).sum() / number**2
        variance = np.where(drawn, (inside + WITHIN_PRIOR * total) / freedom * open_, 0.0)
        return Means(mean, variance, np.full(mean.shape, freedom))
    between = np.square(of_rows - mean[:, None]).sum(axis=-1) + PSEUDO
    of_sample = between / (number + PSEUDO - 1) / number
    of_draws, seen = _between_draws(scores, asked, of_rows, draws)
    of_draws = np.where(drawn, of_draws, 0.0)
    # degrees of freedom of a sum of mean squares: Satterthwaite 1946, Biometrics Bull. 2(6)
    variance, of_sum = of_sample + of_draws, np.full(mean.shape, max(number - 1.0, 1.0))
    mixed = np.isfinite(of_draws) & (of_draws > 0)
    parts = np.square(of_sample[mixed]) / of_sum[mixed] + np.square(of_draws[mixed]) / (seen - 1)
    of_sum[mixed] = np.square(variance[mixed]) / parts
    return Means(mean, variance, of_sum)


def _first_pass(seen: np.ndarray, rows: int, draws: int, drawn: np.ndarray, target: Target) -> Means:
    n = seen.shape[-1]
    mean = seen.sum(axis=-1) / (n + PSEUDO)
    total = (np.square(seen).sum(axis=-1) + PSEUDO) / (n + PSEUDO) - np.square(mean)
    variance, freedom = total / (n + PSEUDO - 1), np.full(mean.shape, n + PSEUDO - 1)
    if target == "sweep":
        # one draw of each row does not show how much of the variance is between its draws: all of it may be
        return Means(mean, variance * np.where(drawn, 1 - n / (rows * draws), 1 - n / rows), freedom)
    if min(n, draws) < 2:
        return Means(mean, np.where(drawn, np.inf, variance), freedom)
    if n > draws:
        # rows of a draw are a sample of its own: the draws' means are independent, rows and draws in one
        of_draws = np.stack([seen[:, d::draws].mean(axis=-1) for d in range(draws)], axis=-1)
        variance = np.where(drawn, np.maximum(variance, of_draws.var(axis=-1, ddof=1) / draws), variance)
        freedom = np.where(drawn, draws - 1.0, freedom)
    return Means(mean, variance, freedom)


def _between_draws(scores: np.ndarray, asked: int, of_rows: np.ndarray, draws: int) -> tuple[np.ndarray, int]:
    """Return what draws add to the variance of the means, ``(n,)``, and how many draws there are.

    Two estimates are too large, the smaller is taken: from the draws' plain means, which have other rows
    each, and from their deviations from the means of their rows. A draw is itself a part of these, so that
    deviations are divided by the share of the others, which is small at the beginning of the second pass.
    """
    rows = of_rows.shape[-1]
    plain, centred, number = np.zeros((len(scores), draws)), np.zeros((len(scores), draws)), np.zeros(draws)
    for p in range(-(-asked // rows)):
        size = min(asked - p * rows, rows)
        of_draw = (np.arange(size)[:, None] + p) % draws == np.arange(draws)
        plain += scores[:, p, :size] @ of_draw
        centred += (scores[:, p, :size] - of_rows[:, :size]) @ of_draw
        number += of_draw.sum(axis=0)
    there = number > 0
    seen = int(there.sum())
    if seen < 2:
        return np.full(len(scores), np.inf), seen
    others = max(1 - rows / asked, 1 / draws)
    of_plain, of_centred = (
        (sums[:, there] / number[there]).var(axis=-1, ddof=1) / seen for sums in (plain, centred / others)
    )
    return np.minimum(of_plain, of_centred), seen


def log_evidence(found: Means, margin: float, least: float | None = None) -> np.ndarray:
    """Return the logarithm of the e-value against "the true mean is below ``least``", ``(...)``.

    ``least`` is ``-margin`` by default. With 0 it is against "the true mean is 0 or below". Effects of the mixtures
    are in margins. Infinite where the variance is 0, minus infinity where it is infinite.
    """
    from icl_bench.analysis.statistics.special import ndtr

    least = -margin if least is None else least
    known = found.variance <= 0
    variance = np.where(known, 1.0, found.variance)
    statistic = as_normal((found.mean - least) / np.sqrt(variance), found.freedom)
    logs = []
    for gap in GAPS:
        shrinkage = 1 / (1 + variance / (gap * margin) ** 2)
        inside = statistic * np.sqrt(shrinkage)
        logs.append(0.5 * np.log1p(-shrinkage) + np.square(inside) / 2 + np.log(2 * ndtr(np.maximum(inside, -30))))
    evidence = np.logaddexp.reduce(logs, axis=0) - np.log(len(GAPS))
    reached = found.mean > KNOWN if least == 0 else found.mean >= least - KNOWN
    evidence = np.where(known, np.where(reached, np.inf, -np.inf), evidence)
    return np.where(np.isinf(found.variance), -np.inf, evidence)


def as_normal(statistic: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Return the normal quantiles with the tails of t statistics."""
    from icl_bench.analysis.statistics.special import ndtri, stdtr

    tail = np.clip(stdtr(freedom, -np.abs(statistic)), 1e-300, 0.5)
    return np.asarray(-ndtri(tail) * np.sign(statistic))


def radius(found: Means, error: float, gap: float) -> np.ndarray:
    """Return half the width of the confidence sequence of a mean, of ``1 - error`` at all times together.

    Normal mixture (Robbins 1970; Waudby-Smith et al. 2024, theorem 2.2), narrowest where it is about ``gap`` wide.
    """
    from icl_bench.analysis.statistics.special import ndtr, stdtrit

    variance = np.clip(found.variance, 1e-300, 1e300)
    normal = np.sqrt(np.log((1 + gap**2 / variance) / error**2) * (1 + variance / gap**2))
    wide = -stdtrit(found.freedom, np.maximum(ndtr(-normal), 1e-300)) * np.sqrt(variance)
    return np.where(found.variance <= 0, 0.0, np.where(np.isinf(found.variance), np.inf, wide))
