"""Orders: written, allowed, arranged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import tokenized_task

from icl_bench.demonstrations.ordering import (
    AsDrawn,
    ByLabel,
    Order,
    Relevance,
    RelevanceReversed,
    Shuffled,
    nearest_path,
)
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.prompts.rendering import demonstration_text

OF_POOL = ["by-length", "smooth"]
WRITTEN = ["drawn", "shuffled:16", "by-label", "pool", *OF_POOL, "relevance", "relevance-reversed"]
orders = st.sampled_from([text for text in WRITTEN if text not in OF_POOL]).map(Order.parse) | st.integers(
    0, 10**12
).map(Shuffled)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relevence", "did you mean relevance"),
        ("shufled:3", "did you mean shuffled:SEED"),
        ("", "known: by-label, by-length, drawn, pool, relevance"),
        ("shuffled", "a shuffle has a number of 1 to 18 digits, like shuffled:16"),
        ("shuffled:x", "a shuffle has a number"),
        ("shuffled:-1", "a shuffle has a number"),
        ("shuffled:1.5", "a shuffle has a number"),
        ("drawn:3", "only a shuffle has a seed; write drawn"),
    ],
)
def test_a_mistyped_order_is_named_with_what_to_write(text, message):
    with pytest.raises(UserError, match=message):
        Order.parse(text)


def test_a_seed_belongs_to_shuffles_and_only_to_them():
    with pytest.raises(UserError, match="a shuffle has a number"):
        Order.parse("shuffled")
    with pytest.raises(UserError, match="only a shuffle has a seed; write drawn"):
        Order.parse("drawn:3")


def test_the_pools_order_does_not_depend_on_the_selection():
    order = Order.parse("pool")
    assert order.arrange(np.array([7, 2, 5]), ["a", "b", "a"], 3).tolist() == [2, 5, 7]
    for select in ("random", "bm25"):
        order.check_allowed(SelectorSpec.parse(select))


def test_only_drawn_demonstrations_share_a_growing_prefix():
    assert [text for text in WRITTEN if Order.parse(text).nested] == ["drawn"]


@pytest.mark.parametrize("text", ["relevance", "relevance-reversed"])
def test_random_demonstrations_have_no_relevance(text):
    with pytest.raises(UserError, match="random demonstrations have no relevance"):
        Order.parse(text).check_allowed(SelectorSpec.parse("random"))


@pytest.mark.parametrize("select", ["bm25", "bertscore"])
def test_retrieved_demonstrations_are_not_drawn_and_the_user_is_told_what_to_write(select):
    with pytest.raises(UserError, match=f"{select} .* not sampled;\\s+write relevance"):
        Order.parse("drawn").check_allowed(SelectorSpec.parse(select))


def test_free_text_cannot_be_sorted_by_label():
    with pytest.raises(UserError, match=r"free text, .* not labels that rows share"):
        Order.parse("by-label").check_allowed(SelectorSpec.parse("bm25"), labelled=False)


@pytest.mark.parametrize(
    ("select", "allowed"),
    [
        ("random", ["drawn", "shuffled:16", "by-label", "pool", *OF_POOL]),
        ("bm25", ["shuffled:16", "by-label", "pool", *OF_POOL, "relevance", "relevance-reversed"]),
    ],
)
def test_these_orders_are_allowed_and_no_others(select, allowed):
    for text in WRITTEN:
        with nullcontext() if text in allowed else pytest.raises(UserError):
            Order.parse(text).check_allowed(SelectorSpec.parse(select))


@given(orders, st.lists(st.sampled_from("abc"), max_size=20), st.randoms())
def test_arranging_keeps_every_demonstration_once(order, labels, random):
    indices = np.array(random.sample(range(100), len(labels)), dtype=np.int64)
    arranged = order.arrange(indices, labels, "draw", 3)
    assert sorted(arranged) == sorted(indices)
    assert arranged.dtype == indices.dtype


def test_relevance_puts_the_most_similar_last_and_reversed_puts_it_first():
    most_similar_first = np.array([9, 4, 7])
    labels = ["x", "y", "x"]
    assert Relevance().arrange(most_similar_first, labels).tolist() == [7, 4, 9]
    assert RelevanceReversed().arrange(most_similar_first, labels).tolist() == [9, 4, 7]


def test_drawn_leaves_demonstrations_as_they_were_drawn():
    assert AsDrawn().arrange(np.array([9, 4, 7]), ["x", "y", "x"]).tolist() == [9, 4, 7]


def test_by_label_sorts_by_label_and_keeps_the_drawn_order_within_one():
    labels = ["b", "a", "b", "a", "B"]
    arranged = ByLabel().arrange(np.array([9, 4, 7, 2, 5]), labels)
    assert arranged.tolist() == [5, 4, 2, 9, 7]


def test_a_shuffle_depends_on_its_seed_and_on_whose_demonstrations_it_shuffles():
    indices, labels = np.arange(30), ["x"] * 30

    def shuffled(seed: int, *names: str | int) -> list[int]:
        return Shuffled(seed).arrange(indices, labels, *names).tolist()

    assert shuffled(16, 0, "t1") == shuffled(16, 0, "t1")
    assert shuffled(16, 0, "t1") != indices.tolist()
    assert shuffled(16, 0, "t1") != shuffled(17, 0, "t1")
    assert shuffled(16, 0, "t1") != shuffled(16, 1, "t1")
    assert shuffled(16, 0, "t1") != shuffled(16, 0, "t2")
    assert indices.tolist() == list(range(30))  # the argument is left as it was


def test_labels_of_other_demonstrations_are_refused():
    with pytest.raises(ValueError, match="2 labels for 3 demonstrations"):
        ByLabel().arrange(np.arange(3), ["a", "b"])


# -- orders that look at the demonstrations ---------------------------------------------------------


def test_by_length_puts_the_shortest_first_and_keeps_the_selected_order_of_equal_lengths(tmp_path: Path):
    pool = tokenized_task(tmp_path).pool
    chosen, template = pool.drawn(0)[:20], pool.data.spec.template
    arranged = Order.parse("by-length").of(pool).arrange(chosen, ["x"] * 20).tolist()
    expected: list[int] = []
    sizes = {int(i): len(demonstration_text(template, pool.data.train[i])) for i in chosen}
    for size in range(max(sizes.values()) + 1):
        expected += [i for i in sizes if sizes[i] == size]
    assert len(set(sizes.values())) < 20  # some are equally long
    assert arranged == expected != chosen.tolist()


def walked(points: np.ndarray) -> list[int]:
    """The greedy path by loops."""
    path = [0]
    while len(path) < len(points):
        best, nearest = -2.0, -1
        for other in range(len(points)):
            cosine = round(sum(float(a) * float(b) for a, b in zip(points[path[-1]], points[other], strict=True)), 6)
            if other not in path and cosine > best:
                best, nearest = cosine, other
        path.append(nearest)
    return path


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3).filter(any), min_size=1, max_size=12))
def test_a_path_steps_to_the_nearest_that_remains_and_of_equals_to_the_first(points):
    unit = np.array(points, dtype=np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    assert nearest_path(unit).tolist() == walked(unit)


def test_a_path_of_nothing_is_empty():
    assert nearest_path(np.empty((0, 3), np.float32)).tolist() == []


@pytest.mark.usefixtures("word_encoder")
def test_smooth_ends_with_the_first_selected_and_leads_to_it_by_nearest_neighbours(tmp_path: Path):
    pool = tokenized_task(tmp_path).pool
    chosen = pool.drawn(0)[:12]
    arranged = Order.parse("smooth").of(pool).arrange(chosen, ["x"] * 12)
    points = pool.similarity.pool_embeddings[[pool.rows.tolist().index(i) for i in chosen]]
    assert arranged.tolist() == chosen[walked(points)].tolist()[::-1]
    assert arranged[-1] == chosen[0]
    assert arranged.tolist() != chosen.tolist()
