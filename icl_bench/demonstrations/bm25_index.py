"""The index of BM25: that of rank_bm25, in arrays."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count

import numpy as np
from rank_bm25 import BM25Okapi


class Index(BM25Okapi):  # type: ignore[misc]
    """rank_bm25's index, with the words of the documents in arrays instead of a dictionary for each document.

    Words of all documents are left out. Formula and parameters are the library's, and so are the scores.
    """

    def __init__(self, documents: Iterable[Sequence[str]]) -> None:
        self._numbers: dict[str, int] = defaultdict(count().__next__)
        """Word -> its number in the order of first appearance."""
        numbers, lengths = array("i"), array("i")
        for document in documents:
            lengths.append(len(document))
            numbers.extend(map(self._numbers.__getitem__, document))
        self._numbers = dict(self._numbers)
        pairs = np.array(numbers, dtype=np.int64) * len(lengths) + np.repeat(np.arange(len(lengths)), lengths)
        pairs, self._counts = np.unique(pairs, return_counts=True)
        of_words, self._holders = np.divmod(pairs, max(len(lengths), 1))
        self._starts = np.searchsorted(of_words, np.arange(len(self._numbers) + 1))
        self._everywhere = np.diff(self._starts) == len(lengths)
        super().__init__(lengths)

    def _initialize(self, corpus: array[int]) -> dict[str, int]:
        """The number of documents with each word, from the documents' lengths."""
        self.corpus_size, held = len(corpus), np.diff(self._starts)
        left_out = np.repeat(self._everywhere, held)
        own = np.bincount(self._holders[left_out], self._counts[left_out], minlength=self.corpus_size)
        self.doc_len = np.array(corpus, dtype=np.int64) - own.astype(np.int64)
        self.avgdl = int(self.doc_len.sum()) / max(self.corpus_size, 1)
        return {word: int(held[number]) for word, number in self._numbers.items() if not self._everywhere[number]}

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf: dict[str, float] = {}
        if nd:  # rank_bm25 divides by the number of words
            super()._calc_idf(nd)

    def holders(self, word: str) -> np.ndarray | None:
        """The documents that have a word, ascending; None for a word of none or all."""
        number = self._numbers.get(word)
        if number is None or self._everywhere[number]:
            return None
        return self._holders[self._starts[number] : self._starts[number + 1]]

    def added(self, word: str) -> np.ndarray:
        """What a word adds to the scores of its holders: ``BM25Okapi.get_batch_scores``."""
        number = self._numbers[word]
        of_word = slice(self._starts[number], self._starts[number + 1])
        frequency, length = self._counts[of_word], self.doc_len[self._holders[of_word]]
        tempered = frequency + self.k1 * (1 - self.b + self.b * length / self.avgdl)
        scores: np.ndarray = self.idf[word] * (frequency * (self.k1 + 1) / tempered)
        return scores
