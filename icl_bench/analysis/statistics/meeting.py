"""The common part of two points: their comparable draws and test examples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_bench.analysis.statistics.grid import Grid


class Meeting(NamedTuple):
    """The common parts of two points."""

    point: Grid
    base: Grid
    matched: bool
    """Whether row d of both is the same draw."""
    left_out: int
    """Predictions of either point outside the common part."""


def meet(point: Grid, base: Grid, matched: bool) -> Meeting:
    """Match two points by test ids and, if draws are matched and common, by draws."""
    a, b = _common(point, base, "tests")
    matched = matched and bool(np.isin(a.draws, b.draws).any())
    if matched:
        a, b = _common(a, b, "draws")
        a, b = _answered_by_both(a, b)
    else:
        a, b = _common(a.joined(), b.joined(), "tests")
        a, b = a.of_rows(), b.of_rows()  # draws without any of the common test examples
    predictions = point.predictions + base.predictions
    return Meeting(a, b, matched, predictions - a.predictions - b.predictions)


def _answered_by_both(a: Grid, b: Grid) -> tuple[Grid, Grid]:
    """Two grids of the same draws and test examples, without predictions that one of them lacks."""
    both = (a.rows >= 0) & (b.rows >= 0)
    if both.all():
        return a, b
    a = a._replace(rows=np.where(both, a.rows, -1)).joined()
    draws, tests = np.isin(b.draws, a.draws), np.isin(b.tests, a.tests)
    b = b.take(np.flatnonzero(draws), np.flatnonzero(tests))
    return a, b._replace(rows=np.where(a.rows >= 0, b.rows, -1))


def _common(a: Grid, b: Grid, axis: str) -> tuple[Grid, Grid]:
    """Both grids restricted to common test ids, or to common draws."""
    mine, others = getattr(a, axis), getattr(b, axis)
    if np.array_equal(mine, others):
        return a, b
    _, here, there = np.intersect1d(mine, others, assume_unique=True, return_indices=True)

    def part(grid: Grid, places: np.ndarray) -> Grid:
        if axis == "draws":
            return grid.take(places, np.arange(len(grid.tests)))
        return grid.take(np.arange(len(grid.draws)), places)

    return part(a, here), part(b, there)
