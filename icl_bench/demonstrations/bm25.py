"""BM25 selection: demonstrations that share words with the test example, rare words first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_bench.demonstrations.interface import Encoders, Retriever
from icl_bench.demonstrations.ranking import Ranking
from icl_bench.unicode_words import UNSPACED_OR_MARKED, has_many
from icl_bench.unicode_words import words as unicode_words

if TYPE_CHECKING:
    from icl_bench.demonstrations.bm25_index import Index

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


def words(text: str, *, unicode: bool = False) -> list[str]:
    """Return a text's words in lower case, without stop words and punctuation.

    With ``unicode``, letters keep their marks, and scripts without spaces become bigrams of characters
    (:mod:`icl_bench.unicode_words`).
    """
    found = unicode_words(text, 2) if unicode else _WORD.findall(text.lower())
    return [word for word in found if word not in STOP_WORDS]


def needs_unicode(texts: Iterable[str]) -> bool:
    """Whether many words of the texts have marks, or are of scripts without spaces."""
    return has_many(UNSPACED_OR_MARKED, texts)


class BM25(Retriever):
    """BM25 (Okapi, as in the library rank_bm25) of queries against whole demonstrations.

    A demonstration is related to a query if both have a word in common that is not a stop word
    (Bertsch et al. 2025, section 3.1, footnote 3). A word of every demonstration, like the
    template's "query:" and "intent:", counts as a stop word too.

    Words follow Unicode if the pool needs it, which is then a fact of a cell.
    """

    name = "bm25"
    _index: Index
    _scores: dict[str, np.ndarray]
    """What a word adds to the scores of its demonstrations. A query's score is the sum over words, so each is computed
    once.
    """

    def __init__(self, *, unicode: bool | None = None) -> None:
        """``unicode``: whether words follow Unicode; None to decide by the pool."""
        self._unicode = unicode

    @classmethod
    def of(cls, encoders: Encoders) -> BM25:
        """See ``Retriever``."""
        return cls(unicode=encoders.unicode_words)

    @classmethod
    def facts(cls, encoders: Encoders) -> Mapping[str, Any]:
        """See ``Retriever``."""
        return {"bm25_words": "unicode"} if encoders.unicode_words else {}

    def _words(self, text: str) -> list[str]:
        return words(text, unicode=bool(self._unicode))

    def fit(self, demonstrations: Sequence[str]) -> None:
        """Index the pool: whole demonstration texts."""
        from icl_bench.demonstrations.bm25_index import Index

        if self._unicode is None:
            self._unicode = needs_unicode(demonstrations)
        self._index, self._scores = Index(map(self._words, demonstrations)), {}

    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Score the pool for each query, as ``BM25Okapi.get_scores`` does.

        ``related`` depends on shared words, not on the score, which is zero for a word of half of
        the pool. A query of stop words alone is not related to any demonstration.
        """
        for query in queries:
            scores = np.zeros(self._index.corpus_size)
            related = np.zeros(self._index.corpus_size, dtype=bool)
            for word in self._words(query):
                if (holders := self._index.holders(word)) is not None:
                    if word not in self._scores:
                        self._scores[word] = self._index.added(word)
                    scores[holders] += self._scores[word]
                    related[holders] = True
            yield Ranking(scores, related)
