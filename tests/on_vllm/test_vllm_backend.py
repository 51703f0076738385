"""vLLM beside the transformers backend: the same weights, the same cells, the same answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import icl_bench
from icl_bench.backends.interface import Answer, Decoding, Exact, Free
from icl_bench.backends.label_constraint import label_trie
from icl_bench.backends.vllm import backend as backend_of_vllm
from icl_bench.models.attention_patterns import FULL
from icl_bench.prompts.encoding import Ids, PromptSet
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

pytestmark = pytest.mark.slow

BLOCK = 128
"""Tokens of a cache block of vLLM's CPU build."""
NEAR_TIE = {"float32": 0.01, "bfloat16": 0.5}
"""Logits. bfloat16 has steps of 0.06 to 0.13 where Gemma's logits lie, and layers add up."""


def prepared(
    task: str, k: str, data_dir: Path, rows: int, select: str = "random", model: str = "gemma3-270m", **more: Any
) -> Sweep:
    spec = RunSpec(
        task=task,
        model=model,
        k=k,
        draws=1,
        test_size=rows,
        select=(select,),
        data_dir=data_dir,
        **{"backend": "transformers", "device": "cpu"} | more,
    )
    return Sweep.prepare(spec)


def on_vllm(dtype: str, named: str = "gemma3-270m", **more: Any) -> Any:
    from icl_bench.models.registry import load_tokenizer, resolve

    model = resolve(named)
    options = {"max_model_len": 12288, "kv_cache_memory_bytes": 2**30, **more}
    identity = {"backend": "vllm", "dtype": dtype}
    return backend_of_vllm.VllmBackend(model.source, load_tokenizer(model), identity=identity, **options)


@contextmanager
def engine_of(dtype: str, named: str = "gemma3-270m", **more: Any) -> Iterator[Any]:
    """The same for a while; then its memory is free for the next one of this process."""
    backend = on_vllm(dtype, named, **more)
    yield backend
    backend.llm.llm_engine.engine_core.shutdown()


def on_transformers(dtype: str, named: str = "gemma3-270m") -> Any:
    from icl_bench.backends.transformers.backend import TransformersBackend
    from icl_bench.models.registry import load_tokenizer, resolve

    model = resolve(named)
    return TransformersBackend.load(model.source, load_tokenizer(model), dtype=dtype, device="cpu")


@pytest.fixture(scope="module")
def vllm() -> Iterator[Any]:
    with engine_of("float32") as backend:
        yield backend


@pytest.fixture(scope="module")
def transformers() -> Any:
    return on_transformers("float32")


def answered(backend: Any, sweep: Sweep, prompts: PromptSet) -> list[Answer]:
    todo = range(len(prompts.suffixes))
    packs = backend.answer(prompts, todo, [sweep.task.decoding] * len(prompts), 0)
    return sorted((a for pack in packs for a in pack), key=lambda a: a.index)


def margin(backend: Any, prompts: PromptSet, index: int, one: Ids, other: Ids) -> float:
    """Difference of the logits at the token where two labels part."""
    from icl_bench.backends.transformers.packed_decoding import OpenPack

    common = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    backend.load_prefix(prompts)
    pack = OpenPack(backend.cache, [prompts.suffixes[index] + one[:common]], 0)
    tokens = np.array(sorted({one[common], other[common]}))
    low, high = backend.model.head.some_logits(pack.ends, tokens)[0]
    return abs(float(high - low))


class Compared(NamedTuple):
    total: int
    differing: int
    gap: int
    """Right answers of one less those of the other."""


Both = tuple[PromptSet, list[Answer], list[Answer]]
"""A cell's prompts and what two backends answer to them."""


def compared(sweep: Sweep, one: Any, other: Any, dtype: str) -> Compared:
    """Answer all cells with both; every disagreement is a near tie."""
    shots = [cell.spec.k for cell in sweep.plan.cells]
    cells = [prompts for _, prompts in sweep.plan.groups[0].group.prompts(shots)]
    found = [(prompts, answered(one, sweep, prompts), answered(other, sweep, prompts)) for prompts in cells]
    return near_ties_alone_differ(sweep, found, other, dtype)


def near_ties_alone_differ(sweep: Sweep, cells: Sequence[Both], other: Any, dtype: str) -> Compared:
    labels = sweep.task.data.labels
    written = sweep.task.encoder.answers(labels)
    right, differing, total = [0, 0], 0, 0
    for prompts, *found in cells:
        for row, a, b in zip(sweep.task.data.test, *found, strict=True):
            right[0] += labels[a.label] == row.answer
            right[1] += labels[b.label] == row.answer
            total += 1
            if a.label != b.label:
                differing += 1
                close = margin(other, prompts, a.index, written[a.label], written[b.label])
                print(f"{labels[a.label]!r} / {labels[b.label]!r}: margin {close:.4f}")
                assert close <= NEAR_TIE[dtype]
    print(f"{dtype} {sweep.task.data.spec.name}: {differing} of {total} differ; right {right}")
    return Compared(total, differing, right[0] - right[1])


@pytest.mark.parametrize(
    ("task", "k", "rows"),
    [
        ("banking77", "10,40", 12),
        ("clinic150", "10", 12),
        pytest.param("banking77", "10,40", 25, marks=pytest.mark.thorough),
        pytest.param("clinic150", "10", 25, marks=pytest.mark.thorough),
        pytest.param("trec", "40", 25, marks=pytest.mark.thorough),
    ],
)
def test_both_backends_give_the_same_answers_but_for_near_ties(
    task: str, k: str, rows: int, data_dir: Path, vllm: Any, transformers: Any
):
    """Clinic-150 has labels that begin others: "order" and "order status"."""
    found = compared(prepared(task, k, data_dir, rows), vllm, transformers, "float32")
    assert found.differing <= 0.03 * found.total
    # two accuracies on the same rows: the 95% interval of their difference holds 0
    assert abs(found.gap) <= 1.96 * math.sqrt(max(found.differing, 1))


def test_vllms_own_grammar_engine_gives_the_answers_of_our_processor(data_dir: Path, vllm: Any):
    """The way that is taken on CUDA, where the processor is not loaded."""
    sweep = prepared("clinic150", "10", data_dir, rows=6)
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([10])
    ours = answered(vllm, sweep, prompts)
    vllm.constraint = "xgrammar"
    try:
        theirs = answered(vllm, sweep, prompts)
    finally:
        vllm.constraint = "processor"
    assert [a.label for a in theirs] == [a.label for a in ours]
    assert sum(a.answer_tokens for a in theirs) > sum(a.answer_tokens for a in ours)


def test_a_sweep_computes_its_prefix_once_and_each_query_a_block_more_at_most(data_dir: Path, vllm: Any):
    rows = 6
    sweep = prepared("banking77", "10,60,160", data_dir, rows)
    vllm.llm.reset_prefix_cache()
    before = vllm.counters.prompt_tokens
    cells = sweep.plan.cells
    shares = []
    for _, prompts in sweep.plan.groups[0].group.prompts([10, 60, 160]):
        for answer in answered(vllm, sweep, prompts):
            whole = len(prompts.ids(answer.index))
            assert answer.cached_tokens >= len(prompts.prefix) - BLOCK
            shares.append(answer.cached_tokens / whole)
    computed = vllm.counters.prompt_tokens - before
    own = sum(cell.prompt_tokens - cell.prefix_tokens * rows for cell in cells)
    longest = max(cell.prefix_tokens for cell in cells)
    print(f"computed {computed}, longest prefix {longest}, own {own}; cached {shares[-1]:.3f}")
    assert computed <= longest + own + BLOCK * (3 * rows + 3)
    assert shares[-1] >= 0.97


def test_queries_with_demonstrations_of_their_own_keep_what_they_share_once(
    data_dir: Path, vllm: Any, transformers: Any
):
    rows = 8
    sweep = prepared("banking77", "10,24", data_dir, rows=rows, select="hybrid:4")
    cells = [prompts for _, prompts in sweep.plan.groups[0].group.prompts([10, 24])]
    vllm.llm.reset_prefix_cache()
    transformers.cache.drop()
    # vLLM computes up to a block more for each query; ours the last part of a chunk for each k
    both = {
        "vllm": (vllm, BLOCK, BLOCK * (2 * rows + 2)),
        "transformers": (transformers, 0, transformers.cache.chunk_tokens),
    }
    answers: dict[str, list[list[Answer]]] = {name: [] for name in both}
    for name, (backend, block, more) in both.items():
        before, own, longest = backend.counters.prompt_tokens, 0, 0
        for prompts in cells:
            assert len(prompts.prefix) > longest
            longest = len(prompts.prefix)
            answers[name].append(answered(backend, sweep, prompts))
            for answer in answers[name][-1]:
                assert longest - block <= answer.cached_tokens <= longest + 2 * block
                own += len(prompts.ids(answer.index)) - longest
        computed = backend.counters.prompt_tokens - before
        print(f"{name}: computed {computed}, longest prefix {longest}, own {own}")
        assert longest + own <= computed <= longest + own + more
    found = list(zip(cells, *answers.values(), strict=True))
    assert near_ties_alone_differ(sweep, found, transformers, "float32").differing <= 1


def test_rows_with_choices_of_their_own_are_answered_as_each_alone(data_dir: Path, vllm: Any):
    from icl_bench.backends.interface import Greedy
    from icl_bench.backends.label_constraint import compile_labels

    sweep = prepared("banking77", "10", data_dir, rows=6)
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([10])
    labels, tokenizer = sweep.task.data.labels, sweep.task.tokenizer
    own: list[Decoding] = [
        Greedy(compile_labels([f" {label}\n" for label in labels[3 * row : 3 * row + 4]], tokenizer))
        for row in range(4)
    ]
    own += [Free(("\n",), 12), Free((" ",), 3)]

    def said(todo: Sequence[int]) -> list[tuple[int, int | None, str | None]]:
        found = [answer for pack in vllm.answer(prompts, todo, own, 0) for answer in pack]
        return sorted((a.index, a.label, a.text) for a in found)

    assert said(range(6)) == [row for i in range(6) for row in said([i])]


def test_free_text_ends_at_the_stop_and_is_that_of_the_other_backend(data_dir: Path, vllm: Any, transformers: Any):
    sweep = prepared("banking77", "10", data_dir, rows=12)
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([10])
    free = Free(("\n",), 12)

    def said(backend: Any) -> Sequence[str]:
        packs = backend.answer(prompts, range(12), [free] * 12, 0)
        found = sorted((a for pack in packs for a in pack), key=lambda a: a.index)
        return [str(a.text).strip() for a in found]

    one, other = said(vllm), said(transformers)
    assert all("\n" not in text for text in one)
    assert sum(a == b for a, b in zip(one, other, strict=True)) >= 10


def scored(backend: Any, prompts: PromptSet, own: Sequence[Decoding]) -> list[Answer]:
    packs = backend.answer(prompts, range(len(own)), own, 0)
    return sorted((a for pack in packs for a in pack), key=lambda a: a.index)


def assert_scored_alike(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Two kinds of kernels round differently; near ties alone have another label."""
    for one, other in zip(found, expected, strict=True):
        assert one.scores is not None
        assert other.scores is not None
        np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-3)
        assert one.label == other.label or abs(float(other.margin or 0)) < 1e-3
        for name in ("probability", "margin", "label_mass"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-3)
        assert one.answer_tokens == 0


def trees(sweep: Sweep, *labels: Sequence[str]) -> list[Decoding]:
    return [Exact(label_trie([tuple(ids) for ids in sweep.task.encoder.answers(some)])) for some in labels]


def test_every_labels_log_probability_is_that_of_the_other_backend(
    data_dir: Path, vllm: Any, transformers: Any, monkeypatch: pytest.MonkeyPatch
):
    """Over several packs and calls, also of labels that begin others."""
    sweep, rows = prepared("clinic150", "6", data_dir, rows=4), 4
    labels = sweep.task.data.labels
    of_orders = sorted(label for label in labels if label.startswith(("order", "card")))
    assert any(one != other and other.startswith(one) for one in of_orders for other in of_orders)
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([6])
    own = trees(sweep, of_orders) * rows
    assert isinstance(own[0], Exact)
    inner = own[0].trie.inner
    monkeypatch.setattr(backend_of_vllm, "SCORED_NODES", 2 * len(inner))
    monkeypatch.setattr(backend_of_vllm, "SCORED_TOKENS", prompts.longest * len(inner))
    vllm.llm.reset_prefix_cache()
    before = vllm.counters.prompt_tokens, vllm.counters.answer_tokens
    found = scored(vllm, prompts, own)
    assert_scored_alike(found, scored(transformers, prompts, own))
    assert all(answer.cached_tokens >= len(prompts.prefix) - BLOCK for answer in found)
    sizes = [len(prompts.ids(i)) for i in range(rows)]
    computed = vllm.counters.prompt_tokens - before[0], vllm.counters.answer_tokens - before[1]
    print(f"{len(inner)} nodes, {sizes}: computed {computed}")
    again = sum(size % BLOCK for size in sizes) * len(inner)
    assert again <= computed[0] <= again + len(prompts.prefix) + rows * BLOCK
    assert 0 < computed[1] <= rows * own[0].trie.depths[inner].sum()


def test_scored_labels_have_the_columns_and_values_of_the_other_backend(
    tmp_path: Path, data_dir: Path, vllm: Any, transformers: Any
):
    frames = []
    for backend, loaded in (("vllm", vllm), ("transformers", transformers)):
        device = None if backend == "vllm" else "cpu"
        sweep = prepared("trec", "6", data_dir, rows=4, backend=backend, device=device, dtype="float32", score="exact")
        sweep.run(tmp_path / backend, load=lambda loaded=loaded: loaded)
        frames.append(icl_bench.read(tmp_path / backend).predictions)
    one, other = frames
    assert set(one["backend"]) == {"vllm"}
    assert list(one.columns) == list(other.columns)
    near = ["probability", "margin", "label_mass"]
    unequal = ["backend", "cell", "variant", "cached_tokens", *near]
    pd.testing.assert_frame_equal(one.drop(columns=unequal), other.drop(columns=unequal))
    for column in near:
        assert one[column].tolist() == pytest.approx(other[column].tolist(), abs=1e-3)
    assert (one["probability"] > 0).all()


def test_labels_of_each_rows_own_are_scored_as_by_the_other_backend(data_dir: Path, vllm: Any, transformers: Any):
    sweep = prepared("trec", "20", data_dir, rows=4)
    labels = sweep.task.data.labels
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([20])
    own = trees(sweep, labels, labels[:2], labels[1:3], labels[:1])
    assert_scored_alike(scored(vllm, prompts, own), scored(transformers, prompts, own))


def test_answers_behind_thoughts_are_those_of_the_other_backend(data_dir: Path, vllm: Any, transformers: Any):
    sweep = prepared("gsm8k_thoughts", "2", data_dir, rows=8, think="12")
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([2])
    task = sweep.task
    assert task.thinking is not None

    def said(backend: Any) -> list[tuple[str, int, bool, str]]:
        packs = task.thinking.answer(backend, prompts, range(8), task.decodings(task.data.test), 0, FULL)
        found = sorted((a for pack in packs for a in pack), key=lambda a: a.index)
        return [(a.thought.text, a.thought.tokens, a.thought.truncated, str(a.text).strip()) for a in found]

    one, other = said(vllm), said(transformers)
    assert sum(a == b for a, b in zip(one, other, strict=True)) >= 7
