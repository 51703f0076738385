"""Diverse selection: demonstrations chosen together instead of one by one, for each query or for all of them.

One set for all queries is selected for a random sample of the pool's inputs, which is treated as one query, so it does
not depend on test rows. A greedy selection adds the best demonstration given those already selected, so the selection
for k begins the selection for a larger k.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from icl_bench.demonstrations.bertscore import BertScoreRecall
from icl_bench.demonstrations.interface import Diversity, Encoders, Pool, SharedSelector

DECIMALS = 6
"""Scores are compared to this many decimals, so that rounding errors of the processor do not decide."""


@dataclass(frozen=True)
class MarginalRelevance(Diversity):
    """Maximal marginal relevance (Carbonell & Goldstein 1998): similar to the query, unlike each other.

    Similarity is the cosine of sentence embeddings of inputs, to the query as between demonstrations.
    """

    lambda_: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The weight of the similarity to the query; 1 is ``dense``."""
    name = "diverse:mmr"
    by = "dense"

    def choose(self, pool: Pool, k: int) -> np.ndarray:
        """See ``Diversity``."""
        embeddings = pool.similarity.pool_embeddings
        queries = pool.similarity.query_embeddings
        return np.stack([marginal_relevance(embeddings, query, k, self.lambda_) for query in queries])


def marginal_relevance(embeddings: np.ndarray, query: np.ndarray, k: int, weight: float) -> np.ndarray:
    """Choose k of unit embeddings ``(n, width)`` for one query's ``(width,)``: indices ``(k,)``.

    Each has the largest ``weight * cos(query) - (1 - weight) * max cos(chosen)``; the first on ties.
    """
    relevance = embeddings @ query
    redundancy = np.zeros_like(relevance)
    chosen = np.zeros(k, dtype=np.int64)
    for step in range(k):
        scores = (weight * relevance - (1 - weight) * redundancy).round(DECIMALS)
        scores[chosen[:step]] = -np.inf
        chosen[step] = scores.argmax()
        similar = embeddings @ embeddings[chosen[step]]
        redundancy = np.maximum(redundancy, similar) if step else similar
    return chosen


@dataclass(frozen=True)
class Coverage(Diversity):
    """Greedy set coverage by BERTScore recall (Gupta et al. 2023, "Coverage-based Example Selection").

    A set covers each token of the query by the most similar token among its demonstrations.
    """

    name = "diverse:bertscore"
    by = "bertscore"

    def choose(self, pool: Pool, k: int) -> np.ndarray:
        """See ``Diversity``."""
        retriever = pool.similarity.fitted(self.by)
        assert isinstance(retriever, BertScoreRecall)
        similar = retriever.token_similarities(pool.similarity.queries)
        return np.stack([coverage(of_query[pool.rows], k) for of_query in similar])


def coverage(similar: np.ndarray, k: int) -> np.ndarray:
    """Choose k of n demonstrations by their similarity to each token of a query ``(n, tokens)``: indices ``(k,)``.

    Each selected demonstration maximally increases the sum over tokens of the largest similarity; the first on ties. If
    none increases it, coverage restarts with the remaining demonstrations, as in the authors' algorithm.
    """
    chosen = np.zeros(k, dtype=np.int64)
    none = np.full(similar.shape[1], -np.inf, dtype=similar.dtype)
    covered, total = none, -np.inf
    for step in range(k):
        scores, best = _covering(similar, covered, chosen[:step])
        if scores[best] <= total:
            scores, best = _covering(similar, none, chosen[:step])
            covered = none
        chosen[step], total = best, scores[best]
        covered = np.maximum(covered, similar[best])
    return chosen


def _covering(similar: np.ndarray, covered: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, int]:
    """The coverage with each demonstration added, and the best one that is not chosen."""
    scores = np.maximum(similar, covered).sum(axis=1, dtype=np.float64).round(DECIMALS)
    scores[chosen] = -np.inf
    return scores, int(scores.argmax())


@dataclass(frozen=True)
class DeterminantalProcess(Diversity):
    """Greedy maximum of a determinantal point process (Chen et al. 2018, "Fast Greedy MAP Inference").

    It maximises ``theta * sum of relevance + (1 - theta) * log det S`` of the selected demonstrations: relevance is the
    cosine of sentence embeddings to the query, S the matrix of cosines between demonstrations.
    """

    theta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The weight of the similarity to the query; 1 is ``dense``."""
    name = "diverse:dpp"
    by = "dense"

    def choose(self, pool: Pool, k: int) -> np.ndarray:
        """See ``Diversity``."""
        embeddings = pool.similarity.pool_embeddings.astype(np.float64)
        queries = pool.similarity.query_embeddings.astype(np.float64)
        return np.stack([determinantal(embeddings, query, k, self.theta) for query in queries])


SMALLEST_VARIANCE = 1e-6
"""Squared norm of a unit vector's part outside the span of selected vectors, below which it counts as inside."""


def determinantal(embeddings: np.ndarray, query: np.ndarray, k: int, theta: float) -> np.ndarray:
    """Choose k of unit embeddings ``(n, width)`` for one query's ``(width,)``: indices ``(k,)``.

    The determinant grows by the part of a vector that is outside the span of those chosen. A vector inside it, such as
    a copy, counts with ``SMALLEST_VARIANCE``: it comes after all others of its relevance, and if all are inside, the
    most relevant is selected. Ties select the first.
    """
    relevance = embeddings @ query
    variance = np.ones(len(embeddings))
    factors = np.zeros((min(k, embeddings.shape[1]), len(embeddings)))
    """Rows of the Cholesky factor of S, one for each selected vector outside the span of earlier ones."""
    rank = 0
    chosen = np.zeros(k, dtype=np.int64)
    for step in range(k):
        growth = np.log(np.maximum(variance, SMALLEST_VARIANCE))
        scores = (theta * relevance + (1 - theta) * growth).round(DECIMALS)
        scores[chosen[:step]] = -np.inf
        best = chosen[step] = scores.argmax()
        if variance[best] > SMALLEST_VARIANCE and rank < len(factors):
            known = factors[:rank]
            row = (embeddings @ embeddings[best] - known[:, best] @ known) / np.sqrt(variance[best])
            variance = variance - row**2
            factors[rank] = row
            rank += 1
    return chosen


# -- one set for all queries ----------------------------------------------------------------------


@dataclass(frozen=True)
class SharedDiversity(SharedSelector):
    """Base of diverse selections that all queries share. Draws differ by the sample of the pool."""

    sample: Annotated[int, Field(ge=1, le=10**6)] = 100
    """The number of the pool's inputs in the sample; all if the pool has fewer."""

    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """See ``SharedSelector``."""
        places = self._places(pool, pool.places(pool.drawn(draw)[: self.sample]), min(k, len(pool)))
        rows: np.ndarray = pool.rows[places]
        return rows

    @abstractmethod
    def _places(self, pool: Pool, sample: np.ndarray, k: int) -> np.ndarray:
        """Pool positions of k demonstrations for the inputs at the positions ``sample``: ``(k,)``."""


@dataclass(frozen=True)
class SharedRelevance(SharedDiversity):
    """Maximal marginal relevance to the sample: ``MarginalRelevance`` with the mean cosine to its inputs."""

    lambda_: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The weight of the similarity to the sample."""
    name = "diverse:mmr-shared"
    embeds = True

    def _places(self, pool: Pool, sample: np.ndarray, k: int) -> np.ndarray:
        embeddings = pool.similarity.pool_embeddings
        return marginal_relevance(embeddings, embeddings[sample].mean(axis=0), k, self.lambda_)


@dataclass(frozen=True)
class SharedProcess(SharedDiversity):
    """A determinantal point process over the sample: ``DeterminantalProcess`` with the mean cosine to its inputs."""

    theta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The weight of the similarity to the sample."""
    name = "diverse:dpp-shared"
    embeds = True

    def _places(self, pool: Pool, sample: np.ndarray, k: int) -> np.ndarray:
        embeddings = pool.similarity.pool_embeddings.astype(np.float64)
        return determinantal(embeddings, embeddings[sample].mean(axis=0), k, self.theta)


@dataclass(frozen=True)
class SharedCoverage(SharedDiversity):
    """Greedy set coverage of the sample: ``Coverage`` of the tokens of all its inputs, with equal weights."""

    name = "diverse:bertscore-shared"
    similarity = "bertscore"

    def facts(self, encoders: Encoders) -> Mapping[str, Any]:
        """See ``SharedSelector``."""
        return BertScoreRecall.facts(encoders)

    def _places(self, pool: Pool, sample: np.ndarray, k: int) -> np.ndarray:
        retriever = pool.similarity.fitted(self.similarity)
        assert isinstance(retriever, BertScoreRecall)
        inputs = pool.similarity.pool_inputs
        similar = retriever.token_similarities([inputs[place] for place in sample.tolist()])
        return coverage(of_all([of_one[pool.rows] for of_one in similar]), k)


def of_all(similar: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate the similarities of n demonstrations to each token of several inputs, ``(n, tokens)`` each, as for
    one query: ``(n, all tokens)``.

    Each is divided by the number of the input's tokens, so the coverage is the sum of the inputs' recalls.
    """
    return np.concatenate([of_one / max(of_one.shape[1], 1) for of_one in similar], axis=1, dtype=np.float32)
