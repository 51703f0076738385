"""Cells whose prompts read vectors are answered as plain forward passes answer each prompt alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.models import FAMILIES, plain_model, qwen_tokenizer, save_tiny_model, tiny_config

from icl_bench.backends.interface import Answer, Exact
from icl_bench.backends.label_constraint import label_trie
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.vector_layers import VectorReaders
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import FULL, Vectors
from icl_bench.models.text_encoders import PACKAGED
from icl_bench.models.vector_encoder import VectorEncoder, VectorSettings
from icl_bench.prompts.encoding import Ids, PromptSet

LABELS = [(3, 5), (3, 9, 2), (50, 1), (200,)]
EXACT = Exact(label_trie(LABELS))
TEXTS = ("query: where is my card\nintent: card arrival", "a river", "word: apple / colour: red")
PATTERN = Vectors(None)


class Setup(SimpleNamespace):
    """A tiny model that reads vectors, twice: ours, and the library's own."""

    folder: Path
    backend: TransformersBackend
    plain: Any
    readers: VectorReaders
    encoder: VectorEncoder


def settings(encoder: VectorEncoder, readers: VectorReaders, weights: str) -> VectorSettings:
    of_tokens, of_vectors = readers.counts()
    return VectorSettings(
        encoder=PACKAGED,
        encoder_fingerprint=encoder.fingerprint,
        pooling=encoder.pooling,
        width=encoder.width,
        vectors=3,
        parameters=of_tokens,
        vector_parameters=of_vectors,
        weights=weights,
        trained="added",
        model="tiny",
    )


@pytest.fixture(scope="module", params=FAMILIES)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    tokenizer, kind = qwen_tokenizer(), str(request.param)
    folder: Path = tmp_path_factory.mktemp(kind)
    save_tiny_model(tiny_config(kind, len(tokenizer)), folder)
    torch.manual_seed(2)
    plain, encoder = plain_model(folder), VectorEncoder.of(None, "cls")
    readers = VectorReaders(plain.get_decoder(), encoder.width)
    for gate in readers.gates():
        gate.data.fill_(0.6)
    settings(encoder, readers, readers.save(folder)).write(folder)
    backend = TransformersBackend.load(folder, tokenizer, dtype="float32", device="cpu", chunk_tokens=8, pack_tokens=40)
    return Setup(folder=folder, backend=backend, plain=plain, readers=readers, encoder=encoder)


@torch.inference_mode()
def chances(setup: Setup, ids: Ids, texts: tuple[str, ...]) -> np.ndarray:
    """Probability of each label behind a prompt, each by a forward pass of its own."""
    setup.readers.reading = None
    if texts:
        vectors = torch.stack(list(setup.encoder.tensors(texts).values()))[None]
        setup.readers.reading = setup.readers.project(vectors)
    found = []
    for label in LABELS:
        both = torch.tensor([[*ids, *label]])
        told = setup.plain(both, use_cache=False).logits[0].log_softmax(-1)
        at = range(len(ids) - 1, len(ids) + len(label) - 1)
        found.append(sum(float(told[place, token]) for place, token in zip(at, label, strict=True)))
    return np.exp(found)


def drawn(tokens: int, seed: int) -> Ids:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(250, size=tokens))


def answered(setup: Setup, prompts: PromptSet, pattern: Any = PATTERN) -> list[Answer]:
    packs = setup.backend.answer(prompts, range(len(prompts)), [EXACT] * len(prompts), 0, pattern)
    return sorted((answer for pack in packs for answer in pack), key=lambda answer: answer.index)


def check(setup: Setup, prompts: PromptSet, pattern: Any = PATTERN) -> None:
    for answer in answered(setup, prompts, pattern):
        wanted = chances(setup, prompts.ids(answer.index), prompts.vectors_of(answer.index))
        assert answer.label == int(wanted.argmax())
        assert answer.probability == pytest.approx(wanted.max(), rel=1e-3)
        assert answer.label_mass == pytest.approx(wanted.sum(), rel=1e-3)


SUFFIXES = tuple(drawn(size, seed) for seed, size in enumerate((3, 9, 1, 5, 9, 4)))


def test_vectors_that_all_share(setup: Setup):
    """The prefix reads them too, in several chunks."""
    prompts = PromptSet(drawn(21, 40), SUFFIXES, vector_texts=(TEXTS,))
    check(setup, prompts)
    assert all(answer.cached_tokens == 21 for answer in answered(setup, prompts))


@pytest.mark.parametrize("before", [2, 21])
def test_vectors_of_each_prompts_own(setup: Setup, before: int):
    """Each with another number of them, one with none. Behind two tokens four of six prompts fit a
    pack, whose tokens look at their row's alone; behind 21 each is computed by itself.
    """
    own = [TEXTS[:2], TEXTS[1:], (), TEXTS, TEXTS[:1], TEXTS[2:]]
    prompts = PromptSet(drawn(before, 41), SUFFIXES).with_vectors(own)
    assert prompts.prefix == ()
    check(setup, prompts)
    assert all(answer.cached_tokens == 0 for answer in answered(setup, prompts))


def test_the_same_tokens_are_computed_anew_where_other_vectors_are_read(setup: Setup):
    prefix = drawn(24, 42)
    for texts in (TEXTS, (), TEXTS[:1], TEXTS[1:], ()):
        pattern = PATTERN if texts else FULL
        for read in (prefix, (*prefix, 7, 8)):
            check(setup, PromptSet(read, SUFFIXES[:2], vector_texts=(texts,) if texts else ()), pattern)


def test_text_alone_is_read_as_by_the_plain_model(setup: Setup):
    prompts = PromptSet(drawn(21, 43), SUFFIXES)
    list(answered(setup, PromptSet(prompts.prefix, SUFFIXES, vector_texts=(TEXTS,))))
    ids, plain = prompts.ids(1), plain_model(setup.folder)
    with torch.inference_mode():
        told = plain(torch.tensor([[*ids, 200]]), use_cache=False).logits[0].log_softmax(-1)
    assert chances(setup, ids, ())[3] == pytest.approx(float(told[-2, 200].exp()), rel=1e-5)
    check(setup, prompts, FULL)
    losses = setup.backend.losses(ids)
    with torch.inference_mode():
        wanted = plain(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    np.testing.assert_allclose(losses[-1], -float(wanted[-2, ids[-1]]), rtol=1e-4)


def test_a_model_that_reads_none_says_so(tmp_path: Path):
    tokenizer = qwen_tokenizer()
    save_tiny_model(tiny_config("llama", len(tokenizer)), tmp_path)
    backend = TransformersBackend.load(tmp_path, tokenizer, dtype="float32", device="cpu")
    prompts = PromptSet((), SUFFIXES, vector_texts=(TEXTS,))
    with pytest.raises(CellError, match="was not trained to read vectors"):
        list(backend.answer(prompts, [0], [EXACT] * 6, 0, PATTERN))


def test_an_encoder_of_another_width_or_of_other_files_is_refused(setup: Setup, tmp_path: Path):
    told = settings(setup.encoder, setup.readers, "none")
    source = str(tmp_path)
    other = told.model_copy(update={"encoder_fingerprint": "0"})
    with pytest.raises(UserError, match="other files of the encoder all-MiniLM-L6-v2"):
        VectorEncoder.of_checkpoint(source, other)
    wide = told.model_copy(update={"width": 768})
    with pytest.raises(UserError, match=r"reads vectors of width 768, and the encoder .* makes 384"):
        VectorEncoder.of_checkpoint(source, wide)
