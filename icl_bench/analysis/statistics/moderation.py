"""The variance of a curve's draws at one k, moderated by those at its other k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.contrast import Contrast
from icl_bench.analysis.statistics.special import inverse_trigamma

FEWEST_DRAWS = 3
"""The minimum number of draws: two draws cannot show whether those of other k are the same information."""


SPACING = 4.0
"""Values of k within this factor count as one, because their draws begin with the same demonstrations."""


WORTH = 0.5
"""The counted fraction of the degrees of freedom that a curve gives, because three draws estimate them with a large
error. With a fraction of 1, false positives were 5.2 to 6.4% in simulations.
"""


NOTHING = 1e-12
"""A variance up to this is 0 up to rounding: scores are shares of hundreds of answers."""


class DrawMeans(NamedTuple):
    """The mean score, or mean difference, of each draw of one sample at one k."""

    curve: object
    """Key of the curve: samples with equal keys moderate each other."""
    k: int
    draws: np.ndarray
    """Their numbers, ``(draws,)``."""
    means: np.ndarray
    """``(draws,)``"""


class Prior(NamedTuple):
    """The prior for the variance of a draw's mean, from the other k."""

    variance: np.ndarray
    """At each k: ``(ks,)``."""
    freedom: float
    """Its weight in degrees of freedom; 0 for none."""


def moderated(contrasts: Sequence[Contrast], samples: Sequence[Sequence[DrawMeans]]) -> list[Contrast]:
    """Return the contrasts with the mean squares by draws shrunk to the trend of their curve.

    ``samples`` has an entry for each part of a contrast's ``of_draws``. Three draws estimate the variance of draws
    poorly, the draws of a whole curve better. So a mean square s² of n degrees of freedom becomes ``(d0 s0² + n s²) /
    (d0 + n)`` with d0 + n of them (empirical Bayes; Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3:3), where s0² is the
    curve's trend at this k, because draws differ less with many demonstrations or nearly perfect answers: log-linear in
    log k, fitted as the mean of a gamma distribution (limma-trend; Law et al. 2014, Genome Biol. 15:R29).

    Demonstrations of a smaller k begin those of a larger one, so draws of neighbouring k are not independent: see
    :func:`_independent`. The prior's weight is at most the number of independent k minus the two of the trend, and less
    if variances scatter around it by more than chance (Smyth's estimate of d0); half of it is counted. Curves with
    fewer than three independent k, or fewer than three draws, are not changed.

    Variances of 0 are excluded from the fit of the trend: retrieval has identical draws at small k, and a line through
    such zeros would predict any variance for large k. A k whose draws have the same scores on every test example is not
    changed. If only the means of draws are equal, the trend of the nearest fitted k is used. The trend is never above
    the largest variance of the curve.

    In simulations with three draws, nine ks and 250 test examples (``benchmarks/ statistics_comparisons.py``, 300 to
    1,000 curves), p was 0.05 or less in 1.6 to 6.2% of comparisons without a difference: 2.9 to 3.7% if a draw's effect
    is nested, 5.4% if half of it is the same at every k and 6.2% if all of it is, 1.6 to 2.5% if draws are identical at
    small k. A difference was found 1.3 to 2.4 times as often as without moderation. Intervals were at most 4 times as
    wide as without.
    """
    groups: dict[object, list[tuple[int, int]]] = {}
    for number, parts in enumerate(samples):
        for part, sample in enumerate(parts):
            if max(contrasts[number].of_draws[part][:2]) > NOTHING:  # else the draws are identical
                groups.setdefault(sample.curve, []).append((number, part))
    parts_of = [list(c.of_draws) for c in contrasts]
    for places in groups.values():
        curve = [samples[number][part] for number, part in places]
        prior = _prior(curve)
        for (number, part), variance in zip(places, prior.variance, strict=True):
            by_draw, residual, freedom = parts_of[number][part]
            total = prior.freedom + freedom
            draws = len(samples[number][part].draws)
            shrunk = (prior.freedom * variance / draws + freedom * by_draw) / total
            parts_of[number][part] = (float(shrunk), residual, total)
    return [c._replace(of_draws=tuple(parts)) for c, parts in zip(contrasts, parts_of, strict=True)]


def _prior(curve: Sequence[DrawMeans]) -> Prior:
    """The trend of a curve's variances and its weight in degrees of freedom."""
    from icl_bench.analysis.statistics.special import polygamma

    nothing = Prior(np.zeros(len(curve)), 0.0)
    seen = np.array([sample.means.var(ddof=1) for sample in curve])
    freedom = np.array([len(sample.means) - 1 for sample in curve], dtype=float)
    ks = np.array([sample.k for sample in curve], dtype=float)
    differ = seen > NOTHING
    if freedom.min() < FEWEST_DRAWS - 1 or _spaced(ks[differ]) < 3:
        return nothing
    log_k = np.log(np.maximum(ks, 1))
    fitted = np.minimum(_trend(log_k[differ], seen[differ], freedom[differ]), seen.max())
    fitted_curve = [sample for sample, has_variance in zip(curve, differ, strict=True) if has_variance]
    independent = min(float(_spaced(ks[differ])), _independent(fitted_curve, fitted))
    if independent <= 2:
        return nothing
    scatter = np.log(np.maximum(seen[differ] / fitted, 0.01))
    excess = scatter.var(ddof=2) - float(polygamma(1, freedom[differ] / 2).mean())
    most = float(freedom.min()) * (independent - 2)
    nearest = abs(log_k[:, None] - log_k[differ]).argmin(axis=1)
    return Prior(fitted[nearest], WORTH * min(most, _freedom_of(excess)))


def _trend(log_k: np.ndarray, seen: np.ndarray, freedom: np.ndarray) -> np.ndarray:
    """Means of a gamma distribution, log-linear in log k: iteratively reweighted least squares."""
    design = np.column_stack([np.ones_like(log_k), log_k - log_k.mean()])
    weight = np.sqrt(freedom)[:, None]
    fitted = np.full(len(seen), seen.mean())
    for _ in range(50):
        working = np.log(fitted) + (seen - fitted) / fitted
        coefficients, *_ = np.linalg.lstsq(weight * design, weight[:, 0] * working, rcond=None)
        before, fitted = fitted, np.exp(np.clip(design @ coefficients, -60, 5))
        if np.allclose(fitted, before, rtol=1e-6):
            break
    return fitted


def _spaced(ks: np.ndarray) -> int:
    """The number of k of which each is several times the previous one."""
    count, last = 0, 0.0
    for k in np.sort(ks):
        if k >= SPACING * last:
            count, last = count + 1, max(k, 0.25)
    return count


def _independent(curve: Sequence[DrawMeans], trend: np.ndarray) -> float:
    """The effective number of independent k: ``(tr R)² / tr R²``.

    R is the covariance of draws' means between ks, each by its trend (Box 1954, Ann. Math. Stat. 25:290). Both are
    estimated without bias from the draws that all k have (Srivastava 2005, J. Jpn. Stat. Soc. 35:251).
    """
    draws = curve[0].draws
    for sample in curve[1:]:
        draws = np.intersect1d(draws, sample.draws)
    freedom = len(draws) - 1
    if freedom < FEWEST_DRAWS - 1:
        return 0.0
    of_ks = [sample.means[np.isin(sample.draws, draws)] for sample in curve]
    deviations = (np.array(of_ks) - np.mean(of_ks, axis=1, keepdims=True)).T / np.sqrt(trend)
    inner = deviations @ deviations.T / freedom  # its traces belong to the larger R
    trace, squared = float(np.trace(inner)), float((inner**2).sum())
    unbiased = freedom**2 / ((freedom - 1) * (freedom + 2)) * (squared - trace**2 / freedom)
    if unbiased <= 0:
        return float(len(curve))
    return (trace**2 - 2 * unbiased / freedom) / unbiased


def _freedom_of(excess: float) -> float:
    """The d0 for which trigamma(d0 / 2) is the excess variance of log variances; may be infinite."""
    return 2 * inverse_trigamma(excess) if excess > 1e-3 else np.inf
