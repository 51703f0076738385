"""Points on the same test examples: the selection of examples, and filling of gaps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.statistics.grid import Grid

ENOUGH = 0.75
"""The share of test examples that two points must share (or one of several points must have) for missing ones to be
gaps. With less, they were asked different examples.
"""


class Alike(NamedTuple):
    """The test examples that points are compared on."""

    tests: np.ndarray
    """Their codes, ascending: ``(test,)``."""
    lack: np.ndarray
    """Which points lack too many of these examples: ``(points,)``."""


def asked_alike(points: Sequence[Grid]) -> Alike:
    """The test examples of the largest group of points that were asked nearly the same ones.

    On ties, it is the group with the most examples. An example is included if at least half of the group has it.
    """
    tested = _tested(points)
    size, near = tested.sum(axis=1), asked_nearly_the_same(points)
    most = max(range(len(points)), key=lambda at: (near[at].sum(), size[at]))
    tests = tested[near[most]].mean(axis=0) >= 0.5
    if tested[most] @ tests < ENOUGH * tests.sum():
        tests = tested[most] > 0
    lack = tested @ tests < ENOUGH * tests.sum()
    return Alike(np.flatnonzero(tests & tested[~lack].any(axis=0)), lack)


def asked_nearly_the_same(points: Sequence[Grid]) -> np.ndarray:
    """Which pairs of points share most of their test examples: ``(points, points)``, bool."""
    tested = _tested(points)
    size = tested.sum(axis=1)
    near: np.ndarray = tested @ tested.T >= ENOUGH * np.maximum(size, size[:, None])
    return near


def all_or_common(points: Sequence[Grid]) -> np.ndarray:
    """The test examples that any of the points has, if each has nearly all; else their common ones.

    Codes, ascending: ``(test,)``.
    """
    every = reduce(np.union1d, [point.tests for point in points])
    if min(len(point.tests) for point in points) >= ENOUGH * len(every):
        return every
    return reduce(np.intersect1d, [point.tests for point in points])


def _tested(points: Sequence[Grid]) -> np.ndarray:
    """Which test examples points have, by code, as 0 or 1: ``(points, codes)``."""
    codes = 1 + max((int(point.tests.max(initial=-1)) for point in points), default=-1)
    tested = np.zeros((len(points), codes))
    for at, point in enumerate(points):
        tested[at, point.tests] = 1
    return tested


def on_tests(point: Grid, tests: np.ndarray) -> Grid:
    """The part of a point on these test examples whose draws are connected (``Grid.joined``)."""
    here = np.isin(point.tests, tests)
    return (point if here.all() else point.take(np.arange(len(point.draws)), here.nonzero()[0])).joined()


def filled(points: Sequence[Grid], column: np.ndarray, tests: np.ndarray) -> list[np.ndarray]:
    """The scores of points on the same test examples, ``(draws, test)`` each.

    ``column`` is a column of the points' frame. An example that a point lacks in all draws is filled in by an additive
    model of points and examples, fitted by least squares (adjusted means; Searle, Speed & Milliken 1980, Am. Stat.
    34:216). So missing hard examples do not improve a point's mean, and all scores are used. NaN is a gap in some
    draws. Each example needs a score of some point.
    """
    parts = [point.values(column) for point in points]
    if all(len(point.tests) == len(tests) for point in points):
        return parts
    places = [np.searchsorted(tests, point.tests) for point in points]
    layouts = [TwoWayLayout(part) for part in parts]
    by_test = np.full((len(points), len(tests)), np.nan)
    for at, (place, layout) in enumerate(zip(places, layouts, strict=True)):
        by_test[at, place] = layout.by_test
    fitted = _added_up(by_test)
    matrices = []
    for at, (place, layout) in enumerate(zip(places, layouts, strict=True)):
        of_draws = layout.by_draw - layout.mean
        scores = fitted[at] + of_draws[:, None]
        scores[:, place] = parts[at]
        matrices.append(scores)
    return matrices


def _added_up(values: np.ndarray) -> np.ndarray:
    """The least-squares fit of ``(points, test)`` with gaps by a sum of points and examples."""
    present = ~np.isnan(values)
    number, known = present.sum(axis=0), np.where(present, values, 0.0)
    shares, mean = present / number, known.sum(axis=0) / number
    within = np.where(present, known - mean, 0.0).sum(axis=1)
    # the equations of points after eliminating examples; the solution has the sum 0
    equations = np.diag(present.sum(axis=1)) - shares @ present.T
    apart = np.linalg.lstsq(equations, within, rcond=1e-9)[0]
    fitted: np.ndarray = apart[:, None] + mean - apart @ shares
    return fitted
