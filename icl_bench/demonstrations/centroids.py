"""Centroid selection: demonstrations spread over the pool, or over the test queries.

k-means finds k clusters of sentence embeddings. The pool example nearest to each centroid becomes a
demonstration that all queries share. Golchin et al. 2025 cluster the test queries
(``of=queries``), which uses the texts of the test set. By default the pool is clustered, which does
not use the test set.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from icl_bench.demonstrations.interface import Pool, SharedSelector
from icl_bench.errors import ChoiceError, UserError
from icl_bench.models.array_cache import cached_array
from icl_bench.models.fingerprints import key_of


@dataclass(frozen=True)
class Centroids(SharedSelector):
    """The pool's example nearest to each of k centroids. Every k has its own clustering."""

    of: Literal["pool", "queries"] = "pool"
    """What is clustered."""
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
        places = nearest_to_centroids(
            pool.similarity.pool_embeddings,
            k,
            pool.rng("centroids", draw, k),
            queries=queries,
            cache_dir=pool.similarity.cache_dir,
        )
        demonstrations: np.ndarray = pool.rows[places]
        return demonstrations

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

    ``pool`` and ``queries`` are unit embeddings, ``(examples, width)``. The ``queries`` are
    clustered if given, else the pool. If an example is nearest to several centroids, it goes to the
    nearest of them, and the others take their nearest example that remains. The order is random.
    A seed determines the selection on one machine, independent of the number of threads. Draws
    differ by the start of k-means, so they differ little at small k.

    The selection is cached in ``cache_dir``, if given: k-means of 15,000 into 500 takes seconds.

    Raises ``ChoiceError`` if there are more centroids than examples or queries.
    """
    of = pool if queries is None else queries
    if k > len(pool):
        raise ChoiceError(
            f"--select centroids: {k:,} centroids are more than the pool's {len(pool):,} examples; "
            f"use a k of at most {len(pool):,}"
        )
    if k > len(of):
        raise ChoiceError(
            f"--select centroids,of=queries: {k:,} centroids are more than the {len(of):,} queries "
            "to cluster; ask for a smaller k or for more queries (--test-size)"
        )
    seed = int(rng.integers(2**32))

    def choose() -> np.ndarray:
        places = assign(pool, kmeans(of, k, seed))
        return np.random.default_rng(seed).permutation(places)

    if cache_dir is None:
        return choose()
    return np.array(cached_array(cache_dir / f"centroids-{_key(pool, queries, k, seed)}", choose))


def kmeans(points: np.ndarray, k: int, seed: int) -> np.ndarray:
    """The centroids ``(k, width)`` of scikit-learn's k-means with one k-means++ initialisation.

    It runs in one thread: with several, the order of sums varies, and rounding can change a cluster.
    MiniBatchKMeans was not an alternative: its clusters of 15,000 embeddings were 1.4 to 5.7% wider
    (mean squared distance), in 1 to 5 seconds instead of 6.
    """
    try:
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("--select centroids needs scikit-learn: pip install 'icl-bench[encoder]'") from None
    model: Any = KMeans(k, n_init=1, random_state=seed)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # with fewer different points than clusters, centroids coincide; the chosen examples still differ
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        centroids: np.ndarray = model.fit(points).cluster_centers_
    return centroids


def assign(pool: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Assign a different example to each centroid, in rounds: ``(centroids,)``."""
    # |p - c|² = 1 - 2 (p·c - |c|²/2): the larger this is, the nearer they are
    near = centroids @ pool.T - (centroids**2).sum(axis=1, keepdims=True) / 2
    assigned = np.full(len(centroids), -1)
    unassigned = np.arange(len(centroids))
    while len(unassigned):
        nearest_example = near[unassigned].argmax(axis=1)
        # among centroids with the same nearest example, the closest comes first
        first = np.lexsort((unassigned, -near[unassigned, nearest_example], nearest_example))
        _, heads = np.unique(nearest_example[first], return_index=True)
        winners = first[heads]
        assigned[unassigned[winners]] = nearest_example[winners]
        near[:, nearest_example[winners]] = -np.inf
        unassigned = np.delete(unassigned, winners)
    return assigned


def _key(pool: np.ndarray, queries: np.ndarray | None, k: int, seed: int) -> str:
    """The cache key: a hash of everything that decides a selection."""
    arrays = [pool] if queries is None else [pool, queries]
    hashes = [sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays]
    return key_of([version("scikit-learn"), version("numpy"), k, seed, *hashes])
