"""Finds the test rows that have a near duplicate in train: the same words, or nearly the same."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from icl_bench.tasks.examples import Example, TaskData
from icl_bench.tasks.templates import JinjaTemplate
from icl_bench.unicode_words import folded, segmented

SHARED, OF_ALL = 4, 5
"""Two inputs are near duplicates if they share at least 4 of 5 words that either has (Jaccard 0.8)."""


def near_duplicates(
    test: Sequence[Example], train: Iterable[Example], common: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    """Ids of the test rows whose input is nearly that of a row of train, in their order.

    Inputs are near duplicates if they are equal except for case, punctuation and blanks, or if their sets of words,
    without the ``common`` ones, have a Jaccard index of 0.8 or more. So equal inputs are near duplicates, too, unless
    they contain no word.
    """
    asked = [(example.id, words_of(example) - common) for example in test]
    index, near = WordSets({words for _, words in asked}), set[frozenset[str]]()
    for example in train:  # read once, as it may have millions of rows
        words = words_of(example) - common
        near.update(index.near(words))
        if common and not words:
            near.add(words)
    return tuple(name for name, words in asked if words in near)


def common_words(data: TaskData) -> frozenset[str]:
    """The words of every rendered input of a Jinja task, which are its template's own; none for other templates."""
    if not isinstance(data.spec.template, JinjaTemplate):
        return frozenset()
    rows = chain(data.test_pool, data.train)
    common = words_of(next(rows))
    for example in rows:
        if not common:
            break
        common &= words_of(example)
    return common


def words_of(example: Example) -> frozenset[str]:
    """The distinct words of an example's input fields, without case and punctuation."""
    return frozenset(words(" ".join(example.fields.values())))


def words(text: str) -> list[str]:
    """The words of a text without case and punctuation, which separates words as blanks do.

    Compatible characters are unified (NFKC), such as full-width letters. Scripts without spaces become bigrams of
    characters.
    """
    if text.isascii():
        return text.lower().translate(_SEPARATORS).split()
    bare = "".join(" " if unicodedata.category(letter)[0] in SEPARATE else letter for letter in folded(text))
    return [part for word in bare.split() for part in segmented(word, 2)]


SEPARATE = "PSZC"
"""Unicode's categories of word separators: punctuation, symbols, blanks, controls."""

_SEPARATORS = {code: " " for code in range(128) if unicodedata.category(chr(code))[0] in SEPARATE}


class WordSets:
    """Sets of words, indexed by their rarest words.

    Two sets of a Jaccard index of at least t share one of the ``n - ceil(t n) + 1`` rarest words of
    each, n words (prefix filtering; Chaudhuri, Ganti & Kaushik 2006, ICDE). So few sets have to be
    compared. A word is rare if few sets of the index have it; any fixed order of words would be correct.
    """

    def __init__(self, sets: Iterable[frozenset[str]]) -> None:
        kept = [words for words in sets if words]
        self._counts = Counter(word for words in kept for word in words)
        self._words = frozenset(self._counts)
        self._by_word: dict[str, list[frozenset[str]]] = defaultdict(list)
        for words in kept:
            for word in self._rarest(words):
                self._by_word[word].append(words)

    def near(self, words: frozenset[str]) -> Iterator[frozenset[str]]:
        """The sets that are nearly these words; one may come several times."""
        if OF_ALL * len(words & self._words) >= SHARED * len(words) > 0:  # else no set shares enough
            found = (other for word in self._rarest(words) for other in self._by_word.get(word, ()))
            yield from (other for other in found if _are_near(words, other))

    def _rarest(self, words: frozenset[str]) -> list[str]:
        count = len(words)
        needed = -(-SHARED * count // OF_ALL)
        return sorted(words, key=lambda word: (self._counts[word], word))[: count - needed + 1]


def _are_near(first: frozenset[str], second: frozenset[str]) -> bool:
    shorter, longer = sorted((len(first), len(second)))
    if OF_ALL * shorter < SHARED * longer:
        return False
    shared = len(first & second)
    return OF_ALL * shared >= SHARED * (shorter + longer - shared)
