"""Tests which of several points are dominated by another, from samples of their scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.paired import ALPHA, holm

ON, DOMINATED, UNDECIDED = "on the frontier", "dominated", "undecided"


class Dominance(NamedTuple):
    """P values of points among others, corrected for the number of points; ``(points,)`` each."""

    on: np.ndarray
    """For some point that costs no more and scores at least as much: small if the point is on the frontier."""
    dominated: np.ndarray
    """For no such point: small if the point is dominated."""

    @property
    def verdicts(self) -> list[str | None]:
        """The significant verdict on each point; None if its cost is unknown."""
        pairs = zip(self.on.tolist(), self.dominated.tolist(), strict=True)
        return [_verdict(on, dominated) for on, dominated in pairs]

    @property
    def p(self) -> np.ndarray:
        """The p value of the verdict, or of the nearest one."""
        return np.asarray(np.fmin(self.on, self.dominated))


def _verdict(on: float, dominated: float) -> str | None:
    if math.isnan(on):
        return None
    if on <= ALPHA:
        return ON
    return DOMINATED if dominated <= ALPHA else UNDECIDED


def dominance(p_leads: np.ndarray, costs: np.ndarray) -> Dominance:
    """Test for each point whether another that costs no more scores at least as much.

    ``p_leads`` is ``(points, points)``, the p values of :func:`icl_bench.analysis.statistics.best.leads`; ``costs`` is
    ``(points,)``, known exactly. Points of unknown cost (NaN) are not compared and have NaN.

    A point is on the frontier if it scores more than each that costs no more: the largest of the single p values needs
    no correction for their number (an intersection-union test; Berger 1982, Technometrics 24:295). It is dominated if
    any of these scores more: the smallest times their number (Bonferroni). Both are corrected for the number of points
    (Holm 1979, Scand. J. Stat. 6:65), so that all verdicts of one kind hold simultaneously. A point that alone has the
    lowest cost is on the frontier by definition: its p is 0.
    """
    known = ~np.isnan(costs)
    rivals = known[:, None] & known & (costs <= costs[:, None]) & ~np.eye(len(costs), dtype=bool)
    number = rivals.sum(axis=1)
    on = np.where(rivals, p_leads, 0.0).max(axis=1, initial=0.0)
    dominated = np.minimum(np.where(rivals, p_leads.T, 1.0).min(axis=1, initial=1.0) * number, 1.0)
    alone = known & (number == 0)
    tested = known & ~alone
    on, dominated = (holm(np.where(tested, p, np.nan)) for p in (on, dominated))
    return Dominance(np.where(alone, 0.0, on), np.where(alone, 1.0, dominated))
