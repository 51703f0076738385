"""Perturbed demonstrations: other answers, parts of them, all but the nearest."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_bench.demonstrations.perturbations import (
    NONE,
    InputsOnly,
    LabelsOnly,
    NearestRemoved,
    NoisyLabels,
    PermutedLabels,
    Perturbation,
    without_nearest,
)
from icl_bench.errors import UserError
from icl_bench.prompts.rendering import answer_line, demonstration_text, input_text, query_text
from icl_bench.tasks.examples import Example, load_data
from icl_bench.tasks.spec import Template
from icl_bench.tasks.task_files import load_task

PERMUTED = PermutedLabels()
LABELS = ("card arrival", "card lost", "pin", "top up")
TRAIN = tuple(Example(f"row {i}", {"text": f"text {i}"}, LABELS[min(i % 7, 3)]) for i in range(2000))
"""Labels of unequal frequency."""
ORDER = np.random.default_rng(5).permutation(len(TRAIN))
"""A draw's order of the pool, which is all of it."""


def noise(share: float) -> Perturbation:
    return NoisyLabels(share)


def answers(perturbation: Perturbation, seed: int = 0, draw: int = 0) -> list[str]:
    shown = perturbation.answers(TRAIN, LABELS, seed, draw, ORDER)
    assert [(row.id, row.fields) for row in shown] == [(row.id, row.fields) for row in TRAIN]
    return [row.answer for row in shown]


TRUE = [row.answer for row in TRAIN]


def wrong(said: list[str]) -> np.ndarray:
    return np.array([one != other for one, other in zip(said, TRUE, strict=True)])


# -- written and read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "labels:permuted",
        "labels:noise=0.3",
        "labels:noise=0",
        "labels:noise=1",
        "labels:model",
        "labels:model,k=4",
        "inputs-only",
        "inputs-only,format=4",
        "labels-only",
        "nearest-removed:10",
        "nearest-removed:2.5",
        "farthest-removed:10",
    ],
)
def test_it_is_written_as_the_user_writes_it(text):
    assert str(Perturbation.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("labels:noise=-0", "labels:noise=0"),
        ("labels:noise=0.30", "labels:noise=0.3"),
        ("labels:noise=3e-1", "labels:noise=0.3"),
        ("labels:noise=1.0", "labels:noise=1"),
        ("nearest-removed:10.0", "nearest-removed:10"),
        ("inputs-only, format = 04", "inputs-only,format=4"),
    ],
)
def test_one_amount_has_one_name_however_it_is_written(text, written):
    assert str(Perturbation.parse(text)) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "inputs-only, labels-only, labels:model, labels:noise=0.3"),
        ("permuted", "did you mean labels:permuted"),
        ("labels:random", "did you mean labels:permuted"),
        ("input-only", "did you mean inputs-only"),
        ("none:3", "did you mean none"),
        ("labels:model,k=0", "k is a whole number of demonstrations of at least 1, like labels:model,k=4"),
        ("labels:model=4", "k is a whole number"),
        ("labels:model,format=4", "format= is an option of inputs-only only"),
        ("inputs-only,k=4", "k= is an option of labels:model only"),
        ("labels:mode", "did you mean labels:model"),
        ("inputs-only,format=0", "format is a whole number of demonstrations of at least 1, like inputs-only,format=4"),
        ("inputs-only,format=-1", "format is a whole number"),
        ("inputs-only,format", "format is a whole number"),
        ("inputs-only,format=4,format=4", "format is a whole number"),
        ("inputs-only=4", "format is a whole number"),
        ("labels:permuted,format=4", "format= is an option of inputs-only only"),
        ("labels:noise=0.3,format=4", "format= is an option of inputs-only only"),
        ("nearest-removed:10,format=4", "format= is an option of inputs-only only"),
        ("labels:noise", "a share of wrong labels from 0 to 1, like labels:noise=0.3"),
        ("labels:noise=", "from 0 to 1"),
        ("labels:noise=1.01", "from 0 to 1"),
        ("labels:noise=-0.1", "from 0 to 1"),
        ("labels:noise=30%", "from 0 to 1"),
        ("labels:noise=nan", "from 0 to 1"),
        ("labels:noise=inf", "from 0 to 1"),
        ("labels:noise:0.3", "from 0 to 1"),
        ("labels:noise=٠", "from 0 to 1"),
        ("nearest-removed", "the percentage to leave out, above 0 and below 100"),
        ("nearest-removed:0", "above 0 and below 100"),
        ("nearest-removed:100", "above 0 and below 100"),
        ("nearest-removed:ten", "above 0 and below 100"),
        ("nearest-removed=10", "above 0 and below 100"),
        ("farthest-removed:0", "like farthest-removed:10"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(text, message):
    with pytest.raises(UserError, match=message) as refused:
        Perturbation.parse(text)
    assert str(refused.value).startswith("--perturbation")
    assert "\n" not in str(refused.value)


def test_an_amount_belongs_to_noise_and_removal_and_only_to_them():
    with pytest.raises(UserError, match="not known; did you mean none"):
        Perturbation.parse("none=0.3")
    for text in ("labels:noise", "nearest-removed"):
        with pytest.raises(UserError, match="like"):
            Perturbation.parse(text)


def test_removal_needs_shared_demonstrations_and_noise_needs_labels():
    with pytest.raises(UserError, match="nearest-removed:10: takes from demonstrations that all"):
        NearestRemoved(10.0).check_allowed(shared=False, labelled=True)
    with pytest.raises(UserError, match=r"noise=0.5: .* free text, so it has no wrong labels"):
        noise(0.5).check_allowed(shared=True, labelled=False)
    for perturbation in (NONE, PERMUTED, InputsOnly(), LabelsOnly()):
        perturbation.check_allowed(shared=False, labelled=False)
    NearestRemoved(10.0).check_allowed(shared=True, labelled=False)
    assert not NearestRemoved(10.0).shared


# -- other answers ------------------------------------------------------------------------------


def test_unperturbed_demonstrations_and_parts_of_them_keep_their_answers():
    for perturbation in (NONE, InputsOnly(), NearestRemoved(10.0)):
        assert answers(perturbation) == TRUE
        assert not perturbation.changes_answers


def test_permuted_answers_are_those_of_the_train_rows_in_another_order():
    said = answers(PERMUTED)
    assert Counter(said) == Counter(TRUE)
    chance = sum((count / len(TRUE)) ** 2 for count in Counter(TRUE).values())
    assert wrong(said).mean() == pytest.approx(1 - chance, abs=0.03)  # right by chance alone
    assert PERMUTED.changes_answers


def test_permuted_answers_have_nothing_to_do_with_the_inputs():
    said = np.array(answers(PERMUTED))
    for label in LABELS:
        of_label = said[np.array(TRUE) == label]
        assert (of_label == "top up").mean() == pytest.approx(4 / 7, abs=0.08)


@given(st.floats(0, 1), st.integers(0, 20))
@settings(max_examples=15)
def test_of_the_first_k_of_a_draw_that_share_has_a_wrong_label_exactly(share, draw):
    said = np.cumsum(wrong(answers(noise(share), draw=draw))[ORDER])
    exact = share * np.arange(1, len(TRAIN) + 1)
    assert (np.abs(said - exact) < 1 + 1e-9).all()
    if share in (0, 1):
        assert (said == exact).all()


def test_a_first_demonstration_is_wrong_in_that_share_of_the_draws():
    few, order = TRAIN[:5], np.array([3, 0, 2, 4, 1])
    first = [noise(0.3).answers(few, LABELS, 0, draw, order)[3] != few[3] for draw in range(300)]
    assert np.mean(first) == pytest.approx(0.3, abs=0.08)


def test_rows_that_are_not_in_the_pool_keep_their_answers():
    shown = noise(1.0).answers(TRAIN, LABELS, 0, 0, ORDER[:500])
    said = wrong([row.answer for row in shown])
    assert sorted(np.flatnonzero(said)) == sorted(ORDER[:500])


def test_every_other_label_is_equally_likely_and_the_right_one_is_never_drawn():
    said = np.array(answers(noise(1.0)))
    pins = Counter(said[np.array(TRUE) == "top up"])
    assert set(pins) == set(LABELS) - {"top up"}
    assert max(pins.values()) / min(pins.values()) < 1.3


def test_what_is_wrong_at_two_shares_is_wrong_in_the_same_way():
    less, more = answers(noise(0.35)), answers(noise(0.6))
    both = np.flatnonzero(wrong(less) & wrong(more))
    assert len(both) > 100
    assert [more[i] for i in both] == [less[i] for i in both]


@pytest.mark.parametrize("perturbation", [PERMUTED, noise(0.5)], ids=str)
def test_other_answers_depend_on_seed_and_draw_and_nothing_else(perturbation):
    assert answers(perturbation, 0, 1) == answers(perturbation, 0, 1)
    assert answers(perturbation, 0, 1) != answers(perturbation, 0, 2)
    assert answers(perturbation, 0, 1) != answers(perturbation, 1, 1)


def test_a_smaller_pools_first_rows_are_wrong_in_the_same_places():
    shown = noise(0.5).answers(TRAIN, LABELS, 0, 0, ORDER)
    fewer = noise(0.5).answers(TRAIN, LABELS, 0, 0, ORDER[:50])
    assert [shown[i] for i in ORDER[:50]] == [fewer[i] for i in ORDER[:50]]


def test_noise_needs_two_labels():
    with pytest.raises(UserError, match=r"labels:noise=0\.5: needs two labels, has 1"):
        noise(0.5).answers(TRAIN[:3], ["pin"], 0, 0, np.arange(3))


# -- parts of a demonstration -------------------------------------------------------------------

TEMPLATE = Template(input="query: {text}", output="intent: {label}")


def test_a_demonstration_shows_its_input_its_answers_line_or_both():
    row = TRAIN[0]
    assert InputsOnly().piece(TEMPLATE, row) == "query: text 0"
    assert LabelsOnly().piece(TEMPLATE, row) == "intent: card arrival"
    assert NONE.piece(TEMPLATE, row) == "query: text 0\nintent: card arrival"
    for perturbation in (NONE, PERMUTED, noise(0.5), NearestRemoved(10.0)):
        assert perturbation.piece is demonstration_text


def test_input_and_answer_line_together_are_the_whole_demonstration():
    data = load_data(load_task("stdlib"))
    template = data.spec.template
    for row in data.train[:50]:
        whole = f"{input_text(template, row)}\n{answer_line(template, row)}"
        assert whole == demonstration_text(template, row)
        assert query_text(template, row).startswith(f"{input_text(template, row)}\n")


# -- all but the nearest ------------------------------------------------------------------------


@given(st.integers(1, 99), st.integers(1, 3000))
def test_the_percent_that_is_left_out_is_rounded_up_exactly(percent, k):
    perturbation = Perturbation.parse(f"nearest-removed:{percent}")
    exact = -(-percent * k // 100)
    if exact < k:
        assert perturbation.removed_count(k) == exact
    else:
        with pytest.raises(UserError, match=f"leaves no demonstration of k={k}") as refused:
            perturbation.removed_count(k)
        enough = int(str(refused.value).split("k of ")[1].split()[0])
        assert perturbation.removed_count(enough) < enough
        assert enough == 1 or -(-percent * (enough - 1) // 100) == enough - 1


def test_a_decimal_percent_is_what_is_written_not_its_binary_neighbour():
    assert Perturbation.parse("nearest-removed:0.1").removed_count(1000) == 1
    assert Perturbation.parse("nearest-removed:32.1").removed_count(1000) == 321
    assert math.ceil(7 / 100 * 100) == 8  # as floats
    assert Perturbation.parse("nearest-removed:7").removed_count(100) == 7


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=20), st.randoms(), st.data())
def test_the_most_similar_are_left_out_and_the_others_keep_their_order(similar, random, data):
    shown = np.array(random.sample(range(100), len(similar)), dtype=np.int64)
    scores = np.array(similar)
    count = data.draw(st.integers(0, len(similar)))
    left = without_nearest(shown, scores, count).tolist()
    assert len(left) == len(shown) - count
    assert left == [i for i in shown.tolist() if i in set(left)]
    of = dict(zip(shown.tolist(), similar, strict=True))
    removed = [of[i] for i in shown.tolist() if i not in set(left)]
    assert max((of[i] for i in left), default=0.0) <= min(removed, default=1.0)


def test_of_equally_similar_ones_the_first_is_left_out():
    assert without_nearest(np.array([7, 8, 9]), np.array([1.0, 1.0, 0.5]), 1).tolist() == [8, 9]


@pytest.mark.parametrize(("scores", "count"), [(2, 1), (3, 4), (3, -1)])
def test_scores_of_other_demonstrations_are_refused(scores, count):
    with pytest.raises(ValueError, match=f"{count} of 3 demonstrations by {scores} scores"):
        without_nearest(np.arange(3), np.zeros(scores), count)
