"""Centroid selection: demonstrations spread over the pool, or over what the queries ask.

k-means finds k clusters of sentence embeddings, and the pool example nearest to each centroid is a
demonstration, the same for all queries. Golchin et al. 2025 cluster the test queries;
that is a look at the test set, if only at its texts, and ``of=queries`` in the selector's name says
so. Of the pool itself, nothing of the test set is seen.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from icl_bench.demonstrations.interface import Pool, SharedSelector
from icl_bench.errors import ChoiceError, UserError
from icl_bench.models.array_cache import kept
from icl_bench.models.fingerprints import key_of


@dataclass(frozen=True)
class Centroids(SharedSelector):
    """The pool's example nearest to each of k centroids.

    Every k has a clustering of its own, so the choice for k does not begin that for a larger k: of
    1,000 clusters none need be among 500. A nested order could only be had by another method.
    """

    of: Literal["pool", "queries"] = "pool"
    """What the k-means is of."""
    name = "centroids"
    nested = False
    embeds = True
    refuses = True

    @property
    def sees_queries(self) -> bool:
        """See ``SharedSelector``."""
        return self.of == "queries"

    def choose(self, pool: Pool, draw: int, k: int) -> np.ndarray:
        """See ``SharedSelector``."""
        if not k:
            return pool.rows[:0]
        queries = pool.similarity.query_embeddings if self.sees_queries else None
        found = nearest_to_centroids(
            pool.similarity.pool_embeddings,
            k,
            pool.rng("centroids", draw, k),
            queries=queries,
            cache_dir=pool.similarity.cache_dir,
        )
        chosen: np.ndarray = pool.rows[found]
        return chosen

    def most(self, pool: Pool, draw: int) -> int:
        """See ``SharedSelector``."""
        del draw
        return min(len(pool), len(pool.data.test)) if self.sees_queries else len(pool)


def nearest_to_centroids(
    pool: np.ndarray,
    k: int,
    rng: np.random.Generator,
    *,
    queries: np.ndarray | None = None,
    cache_dir: Path | None = None,
) -> np.ndarray:
    """Choose the pool example nearest to each of k centroids: ``(k,)`` pool indices, none twice.

    ``pool`` and ``queries`` are embeddings of length 1, ``(examples, width)``; the clusters are of
    ``queries`` where given, else of the pool. An example that is nearest to several centroids goes
    to the one that it is nearest to, and the others take the nearest of those that are left. The
    order is random: clusters have none. One generator seed gives one choice, on one machine
    whatever its number of threads; draws differ by where k-means begins, hence little at small k.

    The choice is kept in ``cache_dir``, where given: a k-means of 15,000 into 500 takes seconds.

    Raises ``ChoiceError`` where there are more centroids than examples or queries.
    """
    of = pool if queries is None else queries
    if k > len(pool):
        raise ChoiceError(
            f"--select centroids: {k:,} centroids are more than the pool's {len(pool):,} examples; "
            f"ask for k of at most {len(pool):,}"
        )
    if k > len(of):
        raise ChoiceError(
            f"--select centroids,of=queries: {k:,} centroids are more than the {len(of):,} queries "
            "to cluster; ask for a smaller k or for more queries (--test-size)"
        )
    seed = int(rng.integers(2**32))

    def choose() -> np.ndarray:
        chosen = assign(pool, kmeans(of, k, seed))
        return np.random.default_rng(seed).permutation(chosen)

    if cache_dir is None:
        return choose()
    return np.array(kept(cache_dir / f"centroids-{_key(pool, queries, k, seed)}", choose))


def kmeans(points: np.ndarray, k: int, seed: int) -> np.ndarray:
    """The centroids ``(k, width)`` of scikit-learn's k-means, begun once by k-means++.

    It runs in one thread: with more, sums are in the order in which threads end, and their rounding
    can change a cluster. MiniBatchKMeans was no way out: its clusters of 15,000 embeddings were 1.4
    to 5.7% wider (mean squared distance), in 1 to 5 seconds instead of 6.
    """
    try:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("--select centroids needs scikit-learn: pip install 'icl-bench[encoder]'") from None
    model: Any = KMeans(k, n_init=1, random_state=seed)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # fewer different points than clusters: then centroids coincide, and examples still do not
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        found: np.ndarray = model.fit(points).cluster_centers_
    return found


def assign(pool: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The example of each centroid, ``(centroids,)``, in rounds of those that have none yet."""
    # |p - c|² = 1 - 2 (p·c - |c|²/2): the larger this is, the nearer they are
    near = centroids @ pool.T - (centroids**2).sum(axis=1, keepdims=True) / 2
    chosen = np.full(len(centroids), -1)
    left = np.arange(len(centroids))
    while len(left):
        wanted = near[left].argmax(axis=1)
        # of the centroids that want one example, the nearest comes first
        first = np.lexsort((left, -near[left, wanted], wanted))
        _, heads = np.unique(wanted[first], return_index=True)
        winners = first[heads]
        chosen[left[winners]] = wanted[winners]
        near[:, wanted[winners]] = -np.inf
        left = np.delete(left, winners)
    return chosen


def _key(pool: np.ndarray, queries: np.ndarray | None, k: int, seed: int) -> str:
    """Names what decides a choice."""
    from hashlib import sha256
    from importlib.metadata import version

    sides = [pool] if queries is None else [pool, queries]
    hashes = [sha256(np.ascontiguousarray(side).tobytes()).hexdigest() for side in sides]
    return key_of([version("scikit-learn"), version("numpy"), k, seed, *hashes])
