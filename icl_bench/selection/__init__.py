"""Selectors: how demonstrations are chosen from the pool, all of them named in one dict.

``random`` gives one list for all test examples (see :mod:`icl_bench.selection.random`). The others
are retrievers: they rank the whole pool for each test example, and :func:`nearest` takes the first
k of a ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from icl_bench.selection.bertscore import Encoder


class Ranking(NamedTuple):
    """How similar every demonstration of the pool is to one query."""

    scores: np.ndarray
    """``(pool,)`` float64, larger means more similar."""
    related: np.ndarray
    """``(pool,)`` bool: whether the demonstration is retrieved at all."""


class Retriever(Protocol):
    """A selector that ranks the pool for each test example."""

    def fit(self, demonstrations: Sequence[str]) -> None:
        """Take in the pool: whole demonstration texts, answers included."""

    def rank(self, queries: Sequence[str]) -> Iterator[Ranking]:
        """Rank the pool for each query (a test example's input text), in the order given."""


@dataclass(frozen=True)
class Selector:
    """A selector's place in :data:`SELECTORS`."""

    description: str
    retriever: Callable[[Encoder | None, Path | None], Retriever] | None = None
    """Makes the retriever from an encoder and a cache folder; absent where demonstrations are the
    same for all test examples."""
    uses_encoder: bool = False
    """Whether the ranking depends on the encoder, whose name then belongs to the results."""

    @property
    def retrieves(self) -> bool:
        """Whether every test example has demonstrations of its own."""
        return self.retriever is not None


def nearest(ranking: Ranking, k: int, rng: np.random.Generator) -> np.ndarray:
    """Choose the k most similar demonstrations, the most similar first: ``(k,)`` pool indices.

    Equally similar ones keep the pool's order. Where fewer than k are related, the rest is drawn
    at random from the others (Bertsch et al., section 3.1), none of them twice. With a generator of
    the same seed, the choice for k begins the choice for every larger k.

    Raises ValueError if k is negative or larger than the pool.
    """
    if not 0 <= k <= len(ranking.scores):
        raise ValueError(f"cannot choose {k} of {len(ranking.scores)} demonstrations")
    related = np.flatnonzero(ranking.related)
    chosen = related[np.argsort(-ranking.scores[related], kind="stable")]
    if len(chosen) < k:
        chosen = np.concatenate([chosen, rng.permutation(np.flatnonzero(~ranking.related))])
    return chosen[:k]


def _bm25(_encoder: Encoder | None, _cache_dir: Path | None) -> Retriever:
    from icl_bench.selection.bm25 import BM25

    return BM25()


def _bertscore(encoder: Encoder | None, cache_dir: Path | None) -> Retriever:
    from icl_bench.selection.bertscore import BertScoreRecall

    return BertScoreRecall(encoder, cache_dir)


SELECTORS: dict[str, Selector] = {
    "random": Selector("the first k of a random permutation of the training set"),
    "bm25": Selector("the k that share the rarest words with the test example (BM25)", _bm25),
    "bertscore": Selector(
        "the k that best cover the test example's meaning (BERTScore recall)", _bertscore, True
    ),
}
