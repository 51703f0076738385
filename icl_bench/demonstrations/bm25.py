"""BM25 selection: demonstrations that share words with the test example, rare words first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.demonstrations.interface import Retriever
from icl_bench.demonstrations.ranking import Ranking

if TYPE_CHECKING:
    from rank_bm25 import BM25Okapi

_WORD = re.compile(r"[^\W_]+")


# NLTK's English list (nltk_data, corpora/stopwords, after Porter et al.): the usual one. Other lists
# drop words like "order" or "interest", which matter in these tasks. It is embedded because NLTK
# would download it. Its contractions are omitted: words() splits them at the apostrophe, and their
# halves are listed.
STOP_WORDS = frozenset(
    _WORD.findall(
        """
        i me my myself we our ours ourselves you your yours yourself yourselves he him his himself
        she her hers herself it its itself they them their theirs themselves what which who whom
        this that these those am is are was were be been being have has had having do does did doing
        a an the and but if or because as until while of at by for with about against between into
        through during before after above below to from up down in out on off over under again
        further then once here there when where why how all any both each few more most other some
        such no nor not only own same so than too very s t can will just don should now d ll m o re
        ve y ain aren couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn
        weren won wouldn
        """
    )
)


def words(text: str) -> list[str]:
    """Return a text's words in lower case, without stop words and punctuation."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


class BM25(Retriever):
    """BM25 (Okapi, as in the library rank_bm25) of queries against whole demonstrations.

    A demonstration is related to a query if both have a word in common that is not a stop word
    (Bertsch et al. 2025, section 3.1, footnote 3). A word of every demonstration, like the
    template's "query:" and "intent:", counts as a stop word too.
    """

    name = "bm25"
    _pool_size: int
    _index: BM25Okapi | None
    _places: dict[str, np.ndarray]
    """The demonstrations that have a word, ascending."""
    _scores: dict[str, np.ndarray]
    """What a word adds to the scores of these demonstrations."""

    def fit(self, demonstrations: Sequence[str]) -> None:
        """Index the pool: whole demonstration texts."""
        from rank_bm25 import BM25Okapi

        documents = [words(text) for text in demonstrations]
        places: dict[str, list[int]] = {}
        for place, document in enumerate(documents):
            for word in dict.fromkeys(document):
                places.setdefault(word, []).append(place)
        self._pool_size = len(documents)
        self._places = {word: np.array(holders) for word, holders in places.items() if len(holders) < self._pool_size}
        telling = [[word for word in document if word in self._places] for document in documents]
        # rank_bm25 divides by the number of words
        self._index = BM25Okapi(telling) if self._places else None
        self._scores = {}

    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Score the pool for each query, as ``BM25Okapi.get_scores`` does.

        ``related`` depends on shared words, not on the score, which is zero for a word of half of
        the pool. A query of stop words alone is not related to any demonstration.
        """
        for query in queries:
            scores = np.zeros(self._pool_size)
            related = np.zeros(self._pool_size, dtype=bool)
            for word in words(query):
                if word in self._places:
                    scores[self._places[word]] += self._scores_of(word)
                    related[self._places[word]] = True
            yield Ranking(scores, related)

    def _scores_of(self, word: str) -> np.ndarray:
        """The scores of one word. A query's score is the sum over words, so each is computed once."""
        if word not in self._scores:
            assert self._index is not None, "the index has this word"
            scores = self._index.get_batch_scores([word], self._places[word].tolist())
            self._scores[word] = np.array(scores)
        return self._scores[word]
