"""The inverse of the trigamma function, beside SciPy's own function and its root finder."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import polygamma

from icl_bench.analysis.statistics.special import inverse_trigamma

VALUES = np.logspace(-9, 10, 400)


def test_the_trigamma_function_of_some_numbers_is_known():
    square = np.pi**2
    for place, value in ((1, square / 6), (2, square / 6 - 1), (0.5, square / 2)):
        assert inverse_trigamma(value) == pytest.approx(place, rel=1e-12)
    assert inverse_trigamma(2.0) == pytest.approx(0.8766640774642601, rel=1e-12)


def test_beyond_ten_millions_the_first_term_of_a_series_is_taken():
    assert inverse_trigamma(10_000_000.5) == 1 / np.sqrt(10_000_000.5)


@pytest.mark.parametrize("value", [*VALUES, 0.999999e-6, 1e-6, 1.000001e-6, 0.999999e7, 1e7, 1.000001e7])
def test_the_trigamma_function_of_what_is_found_is_the_value(value: float):
    close = 1e-12 if 1e-6 <= value <= 1e7 else 2e-6  # beyond, the first term of a series
    assert polygamma(1, inverse_trigamma(value)) == pytest.approx(value, rel=close, abs=0)


@pytest.mark.parametrize("place", np.logspace(-3, 5.9, 200))
def test_the_inverse_of_a_trigamma_is_where_it_was_taken(place: float):
    assert inverse_trigamma(float(polygamma(1, place))) == pytest.approx(place, rel=1e-9)


@pytest.mark.parametrize("value", np.logspace(-3, 2.6, 50))
def test_bisection_finds_the_same_place(value: float):
    expected = brentq(lambda x: float(polygamma(1, x)) - value, 0.04, 2000, xtol=1e-13)
    assert inverse_trigamma(value) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_what_the_trigamma_function_never_is_is_refused(value: float):
    with pytest.raises(ValueError, match="never"):
        inverse_trigamma(value)
