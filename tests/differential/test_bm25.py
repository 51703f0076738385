"""BM25 selection beside rank_bm25 itself."""

from __future__ import annotations

import inspect
import statistics
import string
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from icl_bench.demonstrations.bm25 import BM25, words
from icl_bench.demonstrations.bm25_index import Index


def paragraphs() -> list[str]:
    """Real English: the docstrings of three modules of the standard library."""
    found = []
    for module in (statistics, string, textwrap):
        for _, member in inspect.getmembers(module):
            text = inspect.getdoc(member) or ""
            found += [part for part in text.split("\n\n") if len(part) > 40]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    found = paragraphs()
    assert len(found) > 100
    return found


def test_scores_are_rank_bm25s_over_words_without_stop_words(texts):
    queries, pool = texts[::5], texts
    index = BM25Okapi([words(text) for text in pool])
    retriever = BM25()
    retriever.fit(pool)
    for query, ranking in zip(queries, retriever.rank(queries), strict=True):
        np.testing.assert_allclose(ranking.scores, index.get_scores(words(query)), rtol=1e-12)


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=8), max_size=30))
def test_each_word_adds_what_it_adds_in_rank_bm25(documents):
    index = Index(documents)
    everywhere = set("abcdefg").intersection(*documents) if documents else set()
    telling = [[word for word in document if word not in everywhere] for document in documents]
    known = {word for document in telling for word in document}
    reference = BM25Okapi(telling) if known else None
    for word in "abcdefg":
        holders = index.holders(word)
        assert (holders is None) == (word not in known)
        if holders is not None:
            assert holders.tolist() == [place for place, document in enumerate(telling) if word in document]
            assert index.added(word).tolist() == reference.get_batch_scores([word], holders.tolist())


def test_the_words_of_the_template_change_no_score(texts):
    plain, formatted = BM25(), BM25()
    plain.fit(texts)
    formatted.fit([f"query: {text}\nintent: intent" for text in texts])
    query = "query: how is the mean of a sample computed? intent:"
    (expected,), (ranking,) = plain.rank([query]), formatted.rank([query])
    assert not any("query" in words(text) or "intent" in words(text) for text in texts)
    np.testing.assert_array_equal(ranking.scores, expected.scores)
    np.testing.assert_array_equal(ranking.related, expected.related)


def test_related_is_what_shares_a_word(texts):
    retriever = BM25()
    retriever.fit(texts)
    for query, ranking in zip(texts[::7], retriever.rank(texts[::7]), strict=True):
        shares = [bool(set(words(query)) & set(words(text))) for text in texts]
        assert ranking.related.tolist() == shares
