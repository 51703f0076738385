"""Estimates of a model's label bias, from log-probabilities ``(queries, labels)``.

They are used by the calibrations of :mod:`icl_bench.results.calibration`, which has the sources.
"""

from __future__ import annotations

import numpy as np

SETTLED = 1e-10
"""How closely the mean probability must match the stated prior."""

MOST_STEPS = 10_000
"""Maximum steps of iterative scaling."""


def normalised(scores: np.ndarray) -> np.ndarray:
    """Normalised log-probabilities of the labels: ``(..., labels)``, whose probabilities sum to 1."""
    top = scores.max(axis=-1, keepdims=True)
    shifted = scores - top
    total: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return total


def mean_bias(scores: np.ndarray) -> np.ndarray:
    """The mean log-probability of each label over queries ``(queries, labels)``: ``(labels,)``."""
    bias: np.ndarray = scores.mean(axis=0)
    return bias


def content_bias(scores: np.ndarray) -> np.ndarray:
    """The log of each label's mean probability among the labels over inputs ``(inputs, labels)``."""
    logs = normalised(scores)
    top = logs.max(axis=0)
    bias: np.ndarray = top + np.log(np.exp(logs - top).mean(axis=0))
    return bias


def prior_bias(scores: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The bias with which the mean probability over queries is ``prior``, ``(labels,)``.

    Found by iterative scaling. A label of share 0 gets an infinite bias.
    """
    wanted = prior > 0
    shares, own, found = np.log(prior[wanted]), scores[:, wanted], np.zeros(int(wanted.sum()))
    for _ in range(MOST_STEPS):
        mean = content_bias(own - found)  # a logarithm, because a mean of long labels may be 0 as a number
        if abs(np.exp(mean) - np.exp(shares)).max() < SETTLED:
            break
        found += mean - shares
    bias = np.full(len(prior), np.inf)
    bias[wanted] = found
    return bias


def running_bias(scores: np.ndarray, size: int) -> np.ndarray:
    """The bias of ``batch`` for queries that arrive ``size`` at a time: ``(queries, labels)``.

    The estimate for a query is over all queries up to the end of its batch (Zhou et al. 2024, section
    3, the running estimate).
    """
    count = len(scores)
    ends = np.minimum((np.arange(count) // size + 1) * size, count)
    sums = np.cumsum(scores, axis=0)[ends - 1]
    means: np.ndarray = sums / ends[:, None]
    return means


def calibrated(scores: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Normalised log-probabilities of the labels after subtracting the bias: ``(predictions, labels)``."""
    return normalised(scores.astype(float) - bias)
