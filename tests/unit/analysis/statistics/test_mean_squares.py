"""Mean squares of a two-way layout are those of its definition, for one matrix or for many."""

from __future__ import annotations

import numpy as np
import pytest

from icl_bench.analysis.statistics.mean_squares import mean_squares


def test_a_pure_draw_effect_has_no_residual_and_nothing_by_tests():
    found = mean_squares(np.array([[1.0, 1.0, 1.0], [3.0, 3.0, 3.0]]))
    assert (found.draws, found.tests, found.residual) == (6.0, 0.0, 0.0)


def test_squares_add_up_to_those_about_the_mean():
    scores = np.random.default_rng(0).random((4, 7))
    found = mean_squares(scores)
    total = 3 * found.draws + 6 * found.tests + 18 * found.residual
    assert total == pytest.approx(((scores - scores.mean()) ** 2).sum())


def test_many_matrices_at_once_are_each_alone():
    scores = np.random.default_rng(1).random((5, 3, 8))
    found = mean_squares(scores)
    for place, matrix in enumerate(scores):
        alone = mean_squares(matrix)
        for name in found._fields:
            assert getattr(found, name)[place] == pytest.approx(getattr(alone, name)), name
