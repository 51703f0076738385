"""Balanced selection: labels' numbers differ by one at most, whatever k."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icl_bench.demonstrations.balanced import balanced, rounds, shots_per_label
from icl_bench.errors import UserError
from icl_bench.tasks.stdlib_docstrings import build


def choose(draw: list[int], labels: list[str], k: int, seed: int = 0) -> list[int]:
    return balanced(np.array(draw), labels, k, np.random.default_rng(seed)).tolist()


def counted(labels: list[str], chosen: list[int]) -> Counter[str]:
    """How often each label was chosen, those that never were included."""
    counts = Counter(dict.fromkeys(labels, 0))
    counts.update(labels[i] for i in chosen)
    return counts


labelled = st.lists(st.sampled_from("abcd"), min_size=1, max_size=40).flatmap(
    lambda labels: st.tuples(
        st.just(labels),
        st.permutations(range(len(labels))).flatmap(
            lambda order: st.integers(0, len(order)).map(lambda size: list(order[:size]))
        ),
        st.integers(0, 99),
    )
)
"""Labels of all train rows, a draw of some of them (the pool), a seed."""


@given(labelled)
def test_every_prefix_is_balanced_and_in_drawn_order_within_a_label(case):
    labels, draw, seed = case
    most = len(rounds(np.array(draw, dtype=int), labels, np.random.default_rng(seed))[0])
    assume(most)
    whole = choose(draw, labels, most, seed)
    assert len(set(whole)) == most
    for k in range(1, most + 1):
        counts = counted(labels, whole[:k])
        assert max(counts.values()) - min(counts.values()) <= 1
    for label in set(labels):
        chosen = [i for i in whole if labels[i] == label]
        assert chosen == [i for i in draw if labels[i] == label][: len(chosen)]


@given(labelled)
def test_the_choice_for_k_begins_the_choice_for_every_larger_k(case):
    labels, draw, seed = case
    most = len(rounds(np.array(draw, dtype=int), labels, np.random.default_rng(seed))[0])
    assume(most)
    whole = choose(draw, labels, most, seed)
    assert [choose(draw, labels, k, seed) for k in range(1, most + 1)] == [whole[:k] for k in range(1, most + 1)]


@given(labelled)
def test_the_largest_k_is_where_a_label_has_no_more(case):
    labels, draw, seed = case
    most = len(rounds(np.array(draw, dtype=int), labels, np.random.default_rng(seed))[0])
    counts = counted(labels, draw)
    fewest = min(counts.values())
    names = len(set(labels))
    assert fewest * names <= most < (fewest + 1) * names
    with pytest.raises(UserError, match=f"need more than the {fewest} examples"):
        balanced(np.array(draw, dtype=int), labels, most + 1, np.random.default_rng(seed))


def test_the_seed_decides_which_labels_have_one_more():
    labels = list("aabbccdd")
    more = {tuple(sorted(labels[i] for i in choose(list(range(8)), labels, 2, s))) for s in range(40)}
    assert more == {("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")}
    assert choose(list(range(8)), labels, 5, 1) == choose(list(range(8)), labels, 5, 1)


def test_each_round_has_its_own_order_of_labels():
    labels = [label for label in "abcdefgh" for _ in range(10)]
    order = [labels[i] for i in choose(list(range(80)), labels, 80)]
    rounds = {tuple(order[i : i + 8]) for i in range(0, 80, 8)}
    assert len(rounds) == 10


def test_a_label_that_runs_out_is_named_with_its_number_and_the_largest_k():
    labels = ["card lost", "card lost", "pin", "pin", "pin"]
    with pytest.raises(UserError) as refused:
        choose([0, 1, 2, 3, 4], labels, 6)
    text = str(refused.value)
    assert text.startswith("--select balanced: 6 demonstrations need more than the 2 examples")
    assert "label 'card lost'" in text
    assert text.endswith("at most 4 can be balanced")


@given(labelled)
def test_the_k_that_is_suggested_can_be_had_in_every_draw(case):
    labels, draw, seed = case
    with pytest.raises(UserError) as refused:
        choose(draw, labels, len(draw) + 1, seed)
    most = str(refused.value).partition("at most ")[2].partition(" ")[0]
    assert most or "cannot be balanced" in str(refused.value)
    for other in range(9):
        assert len(choose(draw[::-1], labels, int(most or 0), other)) == int(most or 0)


def test_a_label_that_the_pool_lacks_is_a_label_too():
    with pytest.raises(UserError, match=r"the 0 examples .* label 'c'; it cannot be balanced$"):
        choose([0, 1], ["a", "b", "c"], 3)


def test_no_rows_are_no_demonstrations():
    assert choose([], [], 0) == []
    with pytest.raises(UserError, match="--per-label 2: "):
        shots_per_label(2, np.array([], dtype=int), [])


def test_so_many_per_label_is_a_k():
    labels = list("aabbbcc")
    assert shots_per_label(2, np.arange(7), labels) == 6
    chosen = choose(list(range(7)), labels, 6)
    assert Counter(labels[i] for i in chosen) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize(
    ("each", "message"),
    [
        (0, "--per-label 0: must be at least 1"),
        (-2, "must be at least 1"),
        (3, "--per-label 3: label 'a' has 2 in the pool .and 1 more labels have too few.; ask for at most 2"),
        (9, "label 'a' has 2 in the pool .and 2 more labels"),
    ],
)
def test_a_label_with_fewer_than_asked_is_named(each, message):
    with pytest.raises(UserError, match=message):
        shots_per_label(each, np.arange(7), list("aabbbcc"))


def test_a_label_that_only_rows_outside_the_pool_have_cannot_be_balanced():
    with pytest.raises(UserError, match="label 'c' has 0 in the pool; it cannot be balanced"):
        shots_per_label(1, np.array([0, 1]), list("abc"))


def test_real_labels_of_very_different_numbers_are_balanced_as_far_as_the_rarest():
    labels = [row.label for row in build().train]
    draw = np.random.default_rng(0).permutation(len(labels))
    fewest = min(Counter(labels).values())
    k = shots_per_label(fewest, draw, labels)
    chosen = balanced(draw, labels, k, np.random.default_rng(1))
    assert set(Counter(labels[i] for i in chosen).values()) == {fewest}
