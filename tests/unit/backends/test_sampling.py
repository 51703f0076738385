"""Noise of samples: Gumbel's distribution, from seed and names alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from icl_bench.backends.sampling import Sampling

ONE = Sampling(1.0, 0, ("row 1", 0))


def test_noise_has_gumbels_distribution():
    found = np.concatenate([ONE.noise(step, 20_000) for step in range(5)])
    assert stats.kstest(found, stats.gumbel_r().cdf).pvalue > 0.01
    assert found.max() > 9  # the tail, which decides about unlikely tokens
    assert np.isfinite(found).all()


def test_the_largest_noisy_logit_has_the_softmaxs_distribution():
    logits = np.array([2.0, 1.0, 0.0, -1.0])
    for temperature in (0.5, 1.0, 2.0):
        drawn = [(logits + Sampling(temperature, 0, (n,)).noise(3, 4)).argmax() for n in range(4000)]
        chances = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
        assert stats.chisquare(np.bincount(drawn, minlength=4), 4000 * chances).pvalue > 0.001


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.text() | st.integers(0, 99), max_size=3),
    st.integers(0, 10**6),
    st.integers(1, 300),
    st.integers(0, 50),
)
def test_noise_depends_on_seed_names_and_step_alone(seed: int, names: list[str | int], step: int, size: int, more: int):
    one = Sampling(0.7, seed, tuple(names))
    found = one.noise(step, size)
    np.random.seed(more)  # noqa: NPY002 - a global state that must not matter
    one.noise(step + 1, more + 1)
    assert (Sampling(0.7, seed, tuple(names)).noise(step, size + more)[:size] == found).all()
    assert 0 <= one.request_seed < 2**31


@pytest.mark.parametrize(
    "other",
    [
        Sampling(1.0, 1, ("row 1", 0)),
        Sampling(1.0, 0, ("row 2", 0)),
        Sampling(1.0, 0, ("row 1", 1)),
        ONE.named("answer"),
    ],
)
def test_another_seed_row_or_sample_or_part_has_noise_of_its_own(other: Sampling):
    assert abs(np.corrcoef(ONE.noise(0, 5000), other.noise(0, 5000))[0, 1]) < 0.06
    assert ONE.request_seed != other.request_seed


def test_steps_have_noise_of_their_own():
    assert abs(np.corrcoef(ONE.noise(0, 5000), ONE.noise(1, 5000))[0, 1]) < 0.06


def test_noise_is_the_same_on_every_machine():
    """Numbers written down: a change of them changes answers of runs that go on."""
    assert ONE.noise(0, 3) == pytest.approx(NUMBERS, rel=1e-5)
    assert ONE.request_seed == REQUEST_SEED


NUMBERS, REQUEST_SEED = [0.1012367, 0.2060884, 0.7568334], 433898890
