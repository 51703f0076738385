"""How demonstrations are chosen: written, read, and put together from two parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.program import as_words

from icl_bench.demonstrations.balanced import Balanced
from icl_bench.demonstrations.centroids import Centroids
from icl_bench.demonstrations.per_label import nearest_of_each
from icl_bench.demonstrations.random import Random
from icl_bench.demonstrations.ranking import Ranking, most_similar, own_part
from icl_bench.demonstrations.selector_spec import SelectorSpec, cautions, known, split
from icl_bench.errors import UserError

WRITTEN = [
    *as_words(
        "random bm25 bertscore dense balanced centroids centroids,of=queries hybrid:20 hybrid:20,by=dense "
        "hybrid:1,by=bertscore centroids+hybrid:20 centroids,of=queries+hybrid:20,by=dense "
        "balanced+hybrid:3,by=dense per-label:2 per-label:2,by=bm25 hybrid:per-label:2 "
        "centroids,of=queries+hybrid:per-label:3,by=bertscore"
    )
]
bys = st.sampled_from(["bm25", "bertscore", "dense"])
bases = st.sampled_from([Random(), Balanced(), Centroids(), Centroids("queries")])
choices = (
    bases.map(SelectorSpec)
    | bys.map(lambda by: SelectorSpec(None, by, None))
    | st.builds(SelectorSpec, bases, bys, st.integers(1, 10**9 - 1))
    | st.builds(SelectorSpec, st.none() | bases, bys, st.none(), st.integers(1, 10**9 - 1))
)


# -- written and read ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", WRITTEN)
def test_the_shortest_way_to_write_a_choice_is_the_one_that_it_writes(text):
    assert str(SelectorSpec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("hybrid:20,by=bm25", "hybrid:20"),
        ("hybrid:007", "hybrid:7"),
        ("random+hybrid:20", "hybrid:20"),
        ("per-label:02,by=dense", "per-label:2"),
        ("random+hybrid:per-label:2,by=dense", "hybrid:per-label:2"),
        ("centroids,of=pool", "centroids"),
        ("centroids+hybrid:20,of=queries", "centroids,of=queries+hybrid:20"),
        (" centroids , of = queries + hybrid:20 , by = dense ", "centroids,of=queries+hybrid:20,by=dense"),
    ],
)
def test_ways_to_write_one_choice_are_one_choice(text, written):
    assert str(SelectorSpec.parse(text)) == written


@given(st.lists(choices, max_size=6))
def test_a_list_is_split_where_a_choice_begins_although_its_options_have_commas(some):
    texts = list(map(str, some))
    assert split(",".join(texts)) == texts
    assert split(" , ".join(texts).replace(",", " , ")) == texts


def test_split_drops_what_is_empty_and_leaves_mistakes_to_be_read():
    assert split("random,hybrid:20,by=dense,bm25") == ["random", "hybrid:20,by=dense", "bm25"]
    assert split(" ,random,, ") == ["random"]
    assert split("") == []
    assert split("random,foo=3") == ["random,foo=3"]
    assert split("by=dense,random") == ["by=dense", "random"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm52", "--select bm52: not a selector; did you mean bm25"),
        ("", "--select '': not a selector; known: balanced, balanced\\+hybrid:S"),
        ("by=dense", "--select by=dense: not a selector"),
        ("centriods,of=queries", "did you mean centroids"),
        ("hybrid", "a whole number of at least 1, like hybrid:20"),
        ("hybrid:", "a whole number of at least 1"),
        ("hybrid:0", "a whole number of at least 1"),
        ("hybrid:-3", "a whole number of at least 1"),
        ("hybrid:2.5", "a whole number of at least 1"),
        ("hybrid:٣", "a whole number of at least 1"),
        ("hybrid:" + "9" * 5000, "a whole number of at least 1"),
        ("hybrid:20,by=cosine", "by=cosine: not a similarity; known: bertscore, bm25, dense"),
        ("hybrid:20,by=", "by='': not a similarity"),
        ("hybrid:20,by=bm52", "did you mean bm25"),
        ("hybrid:20,by=dense,by=bm25", "by= is given twice"),
        ("hybrid:20,dense", "dense is not an option; there are by="),
        ("hybrid:20,k=3", "k=3 is not an option"),
        ("hybrid:20,of=queries", "of= is an option of centroids only"),
        ("random,by=dense", "by= is an option of hybrid:S and per-label:N only"),
        ("random,of=queries", "of= is an option of centroids only"),
        ("dense,of=queries", "of= is an option of centroids only"),
        ("centroids,of=query", "of=query: not known; did you mean queries"),
        ("bm25+hybrid:20", "bm25 cannot be combined with \\+hybrid:S; known: balanced, centroids"),
        ("centroids+balanced+hybrid:20", "only one selector can be combined with"),
        ("hybrid:20+centroids", "cannot read hybrid:20 \\+ centroids; only hybrid takes a \\+"),
        ("random:3", "only hybrid and per-label a number"),
        ("hybrid:20+hybrid:30", "hybrid:20 cannot be combined with"),
        ("+", "cannot read '' \\+ ''"),
        ("\0", "not a selector"),
        ("per-label", "per-label: how many demonstrations of each label"),
        ("per-label:0", "a whole number of at least 1, like per-label:2"),
        ("hybrid:per-label", "per-label: how many demonstrations of each label"),
        ("per-label:2,by=bm", "by=bm: not a similarity; did you mean bm25"),
        ("per-label:2,of=queries", "of= is an option of centroids only"),
        ("centroids+per-label:2", "cannot read centroids \\+ per-label:2"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(text, message):
    with pytest.raises(UserError, match=message) as refused:
        SelectorSpec.parse(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "fields",
    [
        {"own": 3},
        {"by": "dense"},
        {"base": None},
        {"base": None, "by": "dense"},
        {"by": "dense", "own": -1},
        {"by": "dense", "own": None},
        {"each": 2},
        {"by": "dense", "own": 3, "each": 2},
    ],
)
def test_parts_that_do_not_fit_together_are_no_choice(fields):
    with pytest.raises(ValueError, match="not a valid selection"):
        SelectorSpec(**fields)


# -- what follows -------------------------------------------------------------------------------


def test_what_is_shared_nested_retrieved_and_encoded():
    found = {text: SelectorSpec.parse(text) for text in WRITTEN}

    def where(name: str) -> list[str]:
        return [text for text, choice in found.items() if getattr(choice, name)]

    assert where("shared") == ["random", "balanced", "centroids", "centroids,of=queries"]
    assert where("retrieves") == ["bm25", "bertscore", "dense", "per-label:2", "per-label:2,by=bm25"]
    assert [t for t in WRITTEN if t not in where("nested")] == [
        t for t in WRITTEN if "centroids" in t or t in where("retrieves")
    ]
    nearest_embedded = ["per-label:2", "hybrid:per-label:2"]  # by=dense is the usual one
    assert where("embeds") == [t for t in WRITTEN if "centroids" in t or "dense" in t or t in nearest_embedded]
    assert where("says_k") == ["per-label:2", "per-label:2,by=bm25"]
    assert where("sees_queries") == where("caution") == [t for t in WRITTEN if "queries" in t]
    assert "texts of the test queries were used" in str(found["centroids,of=queries"].caution)


def test_the_last_s_of_k_are_the_querys_own():
    hybrid = SelectorSpec.parse("hybrid:20")
    assert (hybrid.own_count(50, 7), hybrid.shared_count(50, 7)) == (20, 30)
    assert (hybrid.own_count(20, 7), hybrid.shared_count(20, 7)) == (20, 0)
    assert SelectorSpec.parse("random").own_count(50, 7) == 0
    assert SelectorSpec.parse("dense").own_count(50, 7) == 50


def test_so_many_of_each_label_are_as_many_as_there_are_labels():
    hybrid = SelectorSpec.parse("hybrid:per-label:2")
    assert (hybrid.own_count(50, 7), hybrid.shared_count(50, 7)) == (14, 36)
    assert SelectorSpec.parse("per-label:3").fewest(7) == 21
    with pytest.raises(UserError, match=r"no room for 14 .* own \(2 of each of 7 labels\); use a k of"):
        hybrid.own_count(13, 7)
    with pytest.raises(UserError, match="per-label:2: this task's answers are free text"):
        SelectorSpec.parse("hybrid:per-label:2").check_allowed(labelled=False)


def test_more_of_its_own_than_there_are_is_refused():
    with pytest.raises(UserError, match="hybrid:20,by=dense: k=19 has no room for 20") as refused:
        SelectorSpec.parse("hybrid:20,by=dense").own_count(19, 7)
    assert "k of 20 or more" in str(refused.value)
    with pytest.raises(UserError, match="no room"):
        SelectorSpec.parse("hybrid:20").shared_count(1, 7)


def test_free_text_cannot_be_balanced():
    with pytest.raises(UserError, match="balanced\\+hybrid:3: this task's answers are free text"):
        SelectorSpec.parse("balanced+hybrid:3").check_allowed(labelled=False)
    SelectorSpec.parse("balanced").check_allowed(labelled=True)
    SelectorSpec.parse("hybrid:3").check_allowed(labelled=False)


# -- the two parts together ---------------------------------------------------------------------

pools = st.integers(1, 30).flatmap(
    lambda size: st.tuples(
        st.lists(
            st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.integers(0, size)),
            min_size=size,
            max_size=size,
        ),
        st.permutations(range(size)),
        st.integers(0, size),
    )
)
"""Of each of the pool its score, whether it is related and which it is like; a draw; a k."""


@given(pools, st.data())
def test_the_querys_own_are_the_most_similar_unlike_any_shown_the_most_similar_last(pool, data):
    rows, drawn, k = pool
    *ranked, like = (np.array(column) for column in zip(*rows, strict=True))
    ranking, alike = Ranking(*ranked), np.unique(like, return_inverse=True)[1]
    count = data.draw(st.integers(0, k))
    shared = np.array(drawn[: k - count], dtype=np.int64)
    shown, expected = {*alike[shared].tolist()}, []
    for i in most_similar(ranking, len(rows), np.random.default_rng(3)).tolist():
        if alike[i] not in shown:
            shown.add(alike[i])
            expected.append(i)
    rng = np.random.default_rng(3)
    if len(expected) >= count:
        own = own_part(ranking, alike, shared, count, rng).tolist()
        assert own[::-1] == expected[:count]
    else:
        with pytest.raises(UserError, match=f"hybrid:{count}: .* ask for at most {len({*alike})}"):
            own_part(ranking, alike, shared, count, rng)


@given(pools, st.data())
def test_of_each_label_the_most_similar_are_chosen_the_most_similar_label_first(pool, data):
    rows, drawn, k = pool
    *ranked, like = (np.array(column) for column in zip(*rows, strict=True))
    ranking, alike = Ranking(*ranked), np.unique(like, return_inverse=True)[1]
    of_alike = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    names = ["a", "b", "c"]
    labels, each = np.array([of_alike[i] for i in alike]), data.draw(st.integers(1, 3))
    places = np.array(drawn[:k], dtype=np.int64)
    shown, found = {*alike[places].tolist()}, dict[int, list[int]]()
    for i in most_similar(ranking, len(rows), np.random.default_rng(3)).tolist():
        if alike[i] not in shown:
            shown.add(alike[i])
            found.setdefault(int(labels[i]), []).append(i)
    given = (ranking, labels, names, alike, places, each, np.random.default_rng(3), "per-label")
    if all(len(found.get(label, [])) >= each for label in range(3)):
        expected = [i for of_label in found.values() for i in of_label[:each]]
        assert nearest_of_each(*given).tolist() == expected
    else:
        fewest = min(range(3), key=lambda label: len(found.get(label, [])))
        with pytest.raises(UserError, match=f"label '?{names[fewest]}'? has {len(found.get(fewest, []))}"):
            nearest_of_each(*given)


def test_a_shared_demonstration_is_not_shown_again_however_similar_it_is():
    ranking = Ranking(np.array([0.1, 0.9, 0.5, 0.8]), np.ones(4, bool))
    rng, unlike = np.random.default_rng(0), np.arange(4)
    assert own_part(ranking, unlike, np.array([1, 0]), 2, rng).tolist() == [2, 3]
    assert own_part(ranking, unlike, np.array([], dtype=int), 2, rng).tolist() == [3, 1]


def test_what_saw_the_queries_is_said_once_and_other_names_need_no_word():
    of_queries = ["centroids,of=queries", "random", "lora", "somebody's own", "centroids,of=queries"]
    (said,) = cautions(of_queries)
    assert said.startswith("centroids,of=queries: ")
    assert known("lora") is None
    assert known("hybrid:07") == SelectorSpec.parse("hybrid:7")
