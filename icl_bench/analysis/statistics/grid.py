"""Predictions as matrices of draws × test examples, from one pivot by integer codes for all tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


class Grid(NamedTuple):
    """Row positions of one point's predictions in their frame: ``column[grid.rows]`` is its matrix."""

    draws: np.ndarray
    """Numbers of the draws, ascending: ``(draws,)``."""
    tests: np.ndarray
    """Codes of the test ids, ascending, the same for all grids of a frame: ``(test,)``."""
    rows: np.ndarray
    """Positions in the frame, -1 for gaps: ``(draws, test)``."""

    @property
    def predictions(self) -> int:
        """The number of predictions."""
        return int((self.rows >= 0).sum())

    def values(self, column: np.ndarray) -> np.ndarray:
        """The values of a column of the frame, ``(draws, test)``; NaN for gaps."""
        values = column[self.rows]
        gaps = self.rows < 0
        return np.where(gaps, np.nan, values) if gaps.any() else values

    def of_rows(self, kept: np.ndarray | None = None) -> Grid:
        """The grid without rows that are not ``kept``, and without empty draws and tests."""
        rows = self.rows
        if kept is not None:
            rows = np.where((rows >= 0) & kept[rows], rows, -1)
        present = rows >= 0
        draws, tests = present.any(axis=1), present.any(axis=0)
        return Grid(self.draws[draws], self.tests[tests], rows[draws][:, tests])

    def joined(self, kept: np.ndarray | None = None) -> Grid:
        """The largest connected part of the frame's ``kept`` rows.

        Two draws are connected if they share a test example, directly or through other draws. Unconnected parts cannot
        be compared, because differences of draws and of examples are confounded.
        """
        if (self.rows >= 0).all() and (kept is None or kept[self.rows].all()):
            return self
        part = self.of_rows(kept)
        present = (part.rows >= 0).astype(float)
        common = present @ present.T
        if common.all():  # each draw with each
            return part
        from scipy.sparse.csgraph import connected_components

        number, group = connected_components(common, directed=False)
        if number < 2:
            return part
        most = np.bincount(group, weights=present.sum(axis=1)).argmax()
        draws = np.flatnonzero(group == most)
        return part.take(draws, np.flatnonzero(present[draws].any(axis=0)))

    def take(self, draws: np.ndarray, tests: np.ndarray) -> Grid:
        """The part at these positions of either axis."""
        return Grid(self.draws[draws], self.tests[tests], self.rows[np.ix_(draws, tests)])

    def whole(self) -> Grid:
        """The part that is complete in all of its draws (see :func:`complete`)."""
        return self if (self.rows >= 0).all() else self.take(*complete(self.rows >= 0))


def partition(frame: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, list[np.ndarray]]:
    """Return the combinations of the columns ``by``, sorted, and the positions of each one's rows.

    Rows with a missing value of ``by`` belong to none.
    """
    groups = _groups(frame, by)
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(groups.max(initial=-1) + 2))
    parts = [order[start:stop] for start, stop in pairwise(bounds)]
    keys = frame[list(by)].iloc[[part[0] for part in parts]].reset_index(drop=True)
    return keys, parts


def _groups(frame: pd.DataFrame, by: Sequence[str]) -> np.ndarray:
    """The number of each row's combination, -1 with a missing value: pandas' ``ngroup``, in a third of its time."""
    number, size = np.zeros(len(frame), dtype=np.int64), 1
    missing = np.zeros(len(frame), dtype=bool)
    for name in by:
        codes, values = sorted_codes(frame[name])
        missing |= codes < 0
        if size * max(values, 1) > np.iinfo(np.int64).max:
            present, number = np.unique(number, return_inverse=True)
            size = len(present)
        number, size = number * values + codes, size * max(values, 1)
    groups = np.full(len(frame), -1)
    groups[~missing] = numbered(number[~missing], size)[1]
    return groups


def sorted_codes(column: pd.Series[Any]) -> tuple[np.ndarray, int]:
    """The place of each row's value among the values in order, -1 if it is missing, and the number of values."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy(), len(column.cat.categories)
    codes, found = pd.factorize(column, sort=True)
    return codes, len(found)


def numbered(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The different codes, ascending, and each one's place among them: ``np.unique`` without a sort, if all are below
    a ``size`` that is not much larger than their number.
    """
    if size > 4 * len(codes) + 1000:
        return np.unique(codes, return_inverse=True)
    present = np.zeros(size, dtype=bool)
    present[codes] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[codes]


def grids(frame: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, list[Grid]]:
    """Return the combinations of the columns ``by``, sorted, and the grid of each.

    ``frame`` has one row per prediction, with ``draw`` and ``test_id``.

    Raises ValueError if a test example was predicted twice in one draw of a combination.
    """
    keys, parts = partition(frame, by)
    tests, known = sorted_codes(frame["test_id"])
    draws = frame["draw"].to_numpy()
    return keys, [_grid(part, draws[part], tests[part], known) for part in parts]


def _grid(rows: np.ndarray, draw: np.ndarray, test: np.ndarray, size: int) -> Grid:
    draws, row = np.unique(draw, return_inverse=True)
    tests, column = numbered(test, size)
    places = np.full((len(draws), len(tests)), -1)
    places[row, column] = rows
    if (places >= 0).sum() < len(rows):
        raise ValueError("several predictions of one test row in one draw")
    return Grid(draws, tests, places)


def common_rows(points: Sequence[Grid]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Draws, tests and rows ``(points, draws, test)`` common to all points, -1 for gaps.

    None if fewer than two test examples are left.
    """
    draws = reduce(np.intersect1d, [point.draws for point in points])
    tests = reduce(np.intersect1d, [point.tests for point in points])
    rows = np.stack(
        [point.take(np.searchsorted(point.draws, draws), np.searchsorted(point.tests, tests)).rows for point in points]
    )
    whole = np.asarray((rows >= 0).all(axis=0))
    rows = np.where(whole, rows, -1)
    kept_draws, kept_tests = whole.any(axis=1), whole.any(axis=0)
    if kept_tests.sum() < 2:
        return None
    return draws[kept_draws], tests[kept_tests], rows[:, kept_draws][:, :, kept_tests]


def complete(present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions of draws and of test examples such that every pair exists.

    ``present`` is ``(draws, test)``. Draws are added, the fullest first, as long as the number of predictions in the
    complete part grows. Both results are ascending.
    """
    fullest = np.argsort(-present.sum(axis=1), kind="stable")
    common = np.logical_and.accumulate(present[fullest], axis=0)
    sizes = common.sum(axis=1) * np.arange(1, len(present) + 1)
    # the last of equals: more draws, fewer test examples
    best = len(sizes) - 1 - int(np.argmax(sizes[::-1])) if len(sizes) else -1
    if best < 0 or sizes[best] == 0:
        return np.arange(0), np.arange(0)
    return np.sort(fullest[: best + 1]), np.flatnonzero(common[best])
