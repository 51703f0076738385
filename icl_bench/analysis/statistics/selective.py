"""Selective prediction: answering only where the probability of the answer is high enough."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Cuts(NamedTuple):
    """Predictions in the order of their probability, the most probable first; equal ones stay together."""

    threshold: np.ndarray
    """The probability at which each group of equal predictions ends: ``(groups,)``."""
    answered: np.ndarray
    """The number of predictions with this probability or more: ``(groups,)``."""
    right: np.ndarray
    """The number of right ones among these: ``(groups,)``."""


def cuts(probability: np.ndarray, right: np.ndarray) -> Cuts:
    """The possible thresholds of predictions ``(predictions,)``."""
    order = np.argsort(-probability, kind="stable")
    descending, hits = probability[order], np.cumsum(right[order])
    ends = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))[: len(order)]
    return Cuts(descending[ends], ends + 1, hits[ends])


def lowest_threshold(probability: np.ndarray, right: np.ndarray, wanted: float) -> float:
    """The lowest threshold at which a share of ``wanted`` or more of the answers is right.

    0 if all predictions may be answered, infinite if no threshold reaches it.
    """
    of = cuts(probability, right)
    reached = np.flatnonzero(of.right / of.answered >= wanted)
    if not reached.size:
        return math.inf
    return 0.0 if reached[-1] == len(of.answered) - 1 else float(of.threshold[reached[-1]])


def risk_parts(probability: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The contribution of each prediction to the area under the risk-coverage curve: ``(predictions,)``.

    The area is the mean, over the numbers of answered predictions from 1 to all, of the share of wrong ones among these
    (Geifman, Uziel & El-Yaniv 2019, ICLR, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", section
    2); predictions of equal probability are answered in random order. The mean of the parts is the area. They are its
    influence function, so limits of their mean are limits of the area.
    """
    count = len(probability)
    if not count:
        return np.empty(0)
    of = cuts(probability, right)
    sizes = np.diff(of.answered, prepend=0)
    group = np.repeat(np.arange(len(sizes)), sizes)
    start, size = (of.answered - sizes)[group], sizes[group]
    wrong = of.answered - of.right
    wrong_before = (wrong - np.diff(wrong, prepend=0))[group]
    rate = (np.diff(wrong, prepend=0) / sizes)[group]
    place = np.arange(1, count + 1)
    risk = (wrong_before + (place - start) * rate) / place
    # a prediction is among the first ``place`` in this share of the random orders of its equals
    among = (place - start) / size

    def from_group(values: np.ndarray) -> np.ndarray:
        """Sums over all positions of ``values``, weighted by the share of each group's predictions there."""
        own = np.bincount(group, weights=values * among)
        after = values.sum() - np.cumsum(np.bincount(group, weights=values))
        return np.asarray(own + after)

    mean_risk = np.bincount(group, weights=risk) / sizes
    order = np.argsort(-probability, kind="stable")
    parts = np.empty(count)
    parts[order] = mean_risk[group] - from_group(risk / place)[group] + ~right[order] * from_group(1 / place)[group]
    return parts
