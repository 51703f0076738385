"""Patterns of attention on the backend: the logits of a dense pass under the explicit mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import FAMILIES, packed_logits, plain_model, qwen_tokenizer
from support.models import random_ids as ids
from support.outside import installed
from support.program import as_words
from transformers import AttentionInterface

from icl_bench.backends.interface import Answer, Free
from icl_bench.backends.transformers import attention_steps
from icl_bench.backends.transformers.attention_steps import View
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.demonstration_cache import DemonstrationCache
from icl_bench.backends.transformers.kv_cache import LayerKeys, PackKeys
from icl_bench.backends.transformers.packed_decoding import OpenPack
from icl_bench.errors import CellError, UserError
from icl_bench.models import attention_patterns
from icl_bench.models.architecture import architecture_of
from icl_bench.models.attention_patterns import FULL, Approx, Block, Grouped, Pattern, ReceptiveSpan, split
from icl_bench.models.config import layer_windows
from icl_bench.prompts.encoding import Ids, PromptSet, parts
from icl_bench.registry import ATTENTION_PATTERNS
from icl_bench.sweep.compute_cost import AnswerWork, PromptLayout, cache_bytes, cost_of

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCKS = [
    *as_words(
        "block:1 block:3,sink=0,local=0 block:3,sink=0,local=1 block:3,sink=1,local=0 block:3,sink=1,local=1 "
        "block:4,sink=2,local=2 block:7 block:100"
    )
]
PATTERNS = ["full", *BLOCKS, "grouped:2,20", "grouped:3,1", "approx:32,4", "approx:21,1", "approx:40,16"]
TOLERANCE = 1e-4

Sees = Callable[[int], np.ndarray]
"""For a layer, which token (row) sees which key (column)."""


@pytest.fixture(scope="module", params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], kind: str) -> Any:
    return plain_model(folders[kind])


@pytest.fixture(scope="module")
def backend(folders: dict[str, Path], kind: str) -> TransformersBackend:
    return TransformersBackend.load(folders[kind], qwen_tokenizer(), dtype="float32", device="cpu", chunk_tokens=48)


def shared(demonstrations: int, suffixes: Sequence[int]) -> PromptSet:
    """Prompts over so many demonstrations of 3 to 15 tokens, BOS before them."""
    sizes = np.random.default_rng(1).integers(3, 16, demonstrations)
    sizes[0] += 1
    ends = tuple(np.cumsum(sizes).tolist())
    own = tuple(ids(size, 100 + i) for i, size in enumerate(suffixes))
    return PromptSet(ids(500, 0)[: ends[-1]], own, ends=(ends,), lead=1)


def retrieved(count: int, demonstrations: int) -> PromptSet:
    """Prompts with demonstrations of their own, some of which several prompts have."""
    rng = np.random.default_rng(2)
    pool = [ids(int(size), 50 + i) for i, size in enumerate(rng.integers(3, 16, 12))]
    prompts, ends = [], []
    for i in range(count):
        shown = [pool[0], *(pool[j] for j in 1 + rng.permutation(11)[: demonstrations - 1])]
        prompts.append(((7,), *shown, ids(5 + i, 300 + i)))
        ends.append(tuple(1 + np.cumsum([len(s) for s in shown]).astype(int)))
    whole = [sum(pieces, ()) for pieces in prompts]
    return PromptSet((7,), tuple(p[1:] for p in whole), ends=tuple(ends), lead=1)


def mixed(count: int, demonstrations: int, own: int) -> PromptSet:
    """Prompts that share their first demonstrations and end with some of their own."""
    start, behind = shared(demonstrations, []), retrieved(count, own)
    length = len(start.prefix)
    ends = tuple((*start.ends[0], *(length - 1 + end for end in e)) for e in behind.ends)
    return PromptSet(start.prefix, behind.suffixes, ends=ends, lead=1)


# -- the definition, written out ----------------------------------------------------------------


def blocked(ends: Sequence[int], tokens: int, size: int, sink: int, local: int) -> np.ndarray:
    """Figure 17: a block sees itself, the sink and the local blocks; the query sees all."""
    block = np.full(tokens, -1)
    for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        block[start:end] = place // size
    mine, its = block[:, None], block[None]
    sees = (its == mine) | (its < sink) | ((its < mine) & (its >= mine - local))
    sees |= mine < 0
    return sees & np.tri(tokens, dtype=bool)


def sees(pattern: Pattern, ends: Sequence[int], tokens: int, windows: Sequence[int | None]) -> Sees:
    """Which keys each layer's tokens see (means of chunks aside)."""
    causal = np.tri(tokens, dtype=bool)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None]
    full = [i for i, window in enumerate(windows) if window is None]

    def of_layer(layer: int) -> np.ndarray:
        own = windows[layer]
        if own is not None:
            seen = causal & (distance < own)
        elif isinstance(pattern, Grouped) and full.index(layer) % pattern.every:
            seen = causal & (distance < pattern.window)
        elif isinstance(pattern, Approx):
            far = np.maximum(np.arange(tokens) - pattern.window + 1, 0)
            far = far // pattern.chunk * pattern.chunk
            seen = causal & (np.arange(tokens)[None] >= far[:, None])
        else:
            seen = causal
        if isinstance(pattern, Block):
            seen = seen & blocked(ends, tokens, pattern.size, pattern.sink, pattern.local)
        return seen

    return of_layer


def chosen(pattern: Block, ends: Sequence[int], tokens: int, similar: Sequence[float]) -> set[int]:
    """The blocks that a query reads: the sink, the last ones, and the most similar of the others."""
    count = math.ceil(len(similar) / pattern.size)
    score = [max(similar[b * pattern.size : (b + 1) * pattern.size]) for b in range(count)]
    always = {b for b in range(count) if b < pattern.sink or b >= count - pattern.local}
    others = sorted(set(range(count)) - always, key=lambda b: (score[b], b), reverse=True)
    assert pattern.top is not None
    wanted = pattern.top if isinstance(pattern.top, int) else math.ceil(round(pattern.top * count, 6))
    return always | set(others[:wanted])


def dense_logits(model: Any, prompt: Ids, of_layer: Sees, chunk: dict[int, int]) -> torch.Tensor:
    """Logits of every token of one plain pass with an explicit mask in each layer.

    In the layers of ``chunk``, keys that are not seen are seen as means of so many.
    """

    def attention(module: Any, query: Any, key: Any, value: Any, _: Any, **options: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = (x[0].repeat_interleave(groups, 0).double() for x in (key, value))
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        seen = of_layer(module.layer_idx)
        weights = np.where(seen, 0.0, -math.inf)
        if module.layer_idx in chunk:
            size, first = chunk[module.layer_idx], seen.argmax(1)
            starts = range(0, int(first.max()), size)
            assert not (first % size).any()
            if starts:
                means = np.where(np.array(starts) < first[:, None], math.log(size), -math.inf)
                weights = np.concatenate([weights, means], 1)
                key, value = (
                    torch.cat([x, *(x[:, at : at + size].mean(1, True) for at in starts)], 1) for x in (key, value)
                )
        scores = query[0].double() @ key.transpose(1, 2) * scale + torch.from_numpy(weights)
        out = torch.softmax(scores, -1) @ value
        return out.transpose(0, 1)[None].to(query.dtype), None

    AttentionInterface.register("dense_reference", attention)
    model.set_attn_implementation("dense_reference")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0].float()
    return logits


def expected(model: Any, prompts: PromptSet, index: int, pattern: Pattern) -> torch.Tensor:
    prompt, windows = prompts.ids(index), layer_windows(model.config.get_text_config())
    chunked = isinstance(pattern, Approx)
    chunk = {i: pattern.chunk for i, w in enumerate(windows) if w is None} if chunked else {}
    of_layer = sees(pattern, prompts.ends_of(index), len(prompt), windows)
    if prompts.similar is not None:
        of_layer = reading(of_layer, pattern, prompts, index)
    return dense_logits(model, prompt, of_layer, chunk)[-1]


def reading(of_layer: Sees, pattern: Pattern, prompts: PromptSet, index: int) -> Sees:
    """The same where the query's tokens see chosen blocks alone."""
    ends, tokens = prompts.ends_of(index), len(prompts.ids(index))
    assert prompts.similar is not None
    assert isinstance(pattern, Block)
    found = chosen(pattern, ends, tokens, prompts.similar[index].tolist())
    place = np.full(tokens, -1)
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        place[start:end] = number // pattern.size
    allowed = (place[:, None] >= 0) | np.isin(place, [*found, -1])[None]
    return lambda layer: of_layer(layer) & allowed


# -- the backend --------------------------------------------------------------------------------


def packs_of(backend: TransformersBackend, prompts: PromptSet, pattern: Pattern, tokens: int = 1) -> list[list[Answer]]:
    """Answers of so many tokens, by pack."""
    free = [Free(("\n",), tokens)] * len(prompts)
    return list(backend.answer(prompts, range(len(prompts)), free, 0, pattern))


def answers(backend: TransformersBackend, prompts: PromptSet, pattern: Pattern) -> tuple[torch.Tensor, list[Answer]]:
    """Logits of every query's end as ``answer`` computes them, and its answers."""
    ends: list[torch.Tensor] = []
    own = OpenPack.answers

    def spy(pack: OpenPack, decodings: Any) -> list[Answer]:
        ends.append(backend.model.head.logits(pack.ends))
        return own(pack, decodings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenPack, "answers", spy)
        said = [answer for pack in packs_of(backend, prompts, pattern) for answer in pack]
    by_index = {a.index: (row, a) for row, a in zip(torch.cat(ends), said, strict=True)}
    rows, found = zip(*(by_index[i] for i in range(len(prompts))), strict=True)
    return torch.stack(rows), list(found)


def compared(demonstrations: int, suffixes: Sequence[int], seed: int = 8) -> PromptSet:
    """Prompts with how similar each demonstration is to each query, some of them alike."""
    prompts = shared(demonstrations, suffixes)
    rng = np.random.default_rng(seed)
    similar = rng.integers(0, 5, (len(suffixes), demonstrations)) / 2.0
    similar[rng.random(similar.shape) < 0.3] = -np.inf
    return replace(prompts, similar=similar)


TOPS = [
    *as_words(
        "block:1,top=0.3 block:3,sink=1,local=2,top=2 block:3,sink=0,local=0,top=1 "
        "block:3,sink=0,local=1,top=0.01 block:4,sink=2,local=0,top=0.5,by=dense block:7,top=3 block:3,top=1.0 "
        "block:100,top=1"
    )
]


@pytest.mark.parametrize("text", TOPS)
def test_queries_that_read_chosen_blocks_have_the_logits_of_a_dense_pass(
    backend: TransformersBackend, model: Any, text: str
) -> None:
    pattern = Pattern.parse(text)
    packed_logits(backend, shared(11, [6, 2]), FULL)
    prompts = compared(26, [9, 1, 17, 60, 4])  # one is longer than what is packed
    got, found = answers(backend, prompts, pattern)
    for i in range(len(prompts)):
        wanted = expected(model, prompts, i, pattern)
        torch.testing.assert_close(got[i], wanted, atol=TOLERANCE, rtol=0)
        assert found[i].cached_tokens == len(prompts.prefix)


@pytest.mark.parametrize("tokens", [1, 4])
def test_answers_are_written_with_what_the_query_read(backend: TransformersBackend, model: Any, tokens: int) -> None:
    pattern, prompts = Pattern.parse("block:3,sink=1,local=0,top=2"), compared(26, [9, 5, 5, 7])
    said = {a.index: a for pack in packs_of(backend, prompts, pattern, tokens) for a in pack}
    alone = [
        next(
            iter(
                packs_of(
                    backend,
                    replace(prompts, suffixes=(prompts.suffixes[i],), similar=prompts.similar[i : i + 1]),
                    pattern,
                    tokens,
                )
            )
        )[0].text
        for i in range(len(prompts))
    ]
    assert [said[i].text for i in range(len(prompts))] == alone
    whole = {a.index: a for pack in packs_of(backend, prompts, Block(3, 1, 0), 4) for a in pack}
    assert tokens == 1 or [a.text for a in whole.values()] != [a.text for a in said.values()]


def test_what_is_not_chosen_is_not_read(backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, prompts = Pattern.parse("block:3,sink=1,local=1,top=2"), compared(26, [9, 5, 5])
    backend.load_prefix(prompts, 0, pattern)
    read: list[int] = []
    own = attention_steps.attend

    def spy(query: Any, key: Any, *others: Any, **options: Any) -> Any:
        read.append(query.shape[2] * key.shape[2])
        return own(query, key, *others, **options)

    monkeypatch.setattr(attention_steps, "attend", spy)
    monkeypatch.setattr(attention_steps, "attend_past", lambda *part: [spy(*part)])
    answers(backend, prompts, pattern)
    of_some = sum(read)
    read.clear()
    answers(backend, prompts, Block(3, 1, 1))
    has_full_layers = None in layer_windows(backend.model.core.config)
    assert of_some < sum(read) * (0.7 if has_full_layers else 1.01)


@pytest.mark.parametrize(
    "text",
    [
        PATTERNS[0],
        *(pytest.param(text, marks=pytest.mark.thorough) if at % 2 else text for at, text in enumerate(PATTERNS[1:])),
    ],
)
def test_packed_queries_over_a_growing_prefix_have_the_logits_of_a_dense_pass(
    backend: TransformersBackend, model: Any, text: str
) -> None:
    pattern = Pattern.parse(text)
    packed_logits(backend, shared(3, [4]), pattern)
    packed_logits(backend, shared(11, [6, 2]), pattern)  # extends what is cached
    prompts = shared(26, [9, 1, 17])
    got = packed_logits(backend, prompts, pattern)
    for i in range(len(prompts)):
        wanted = expected(model, prompts, i, pattern)
        torch.testing.assert_close(got[i], wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("text", ["full", *BLOCKS[:5], "grouped:2,20", "approx:40,8"])
def test_retrieved_demonstrations_have_the_logits_of_a_dense_pass(
    backend: TransformersBackend, model: Any, text: str
) -> None:
    pattern, prompts = Pattern.parse(text), retrieved(3, 6)
    got, _ = answers(backend, prompts, pattern)
    for i in range(len(prompts)):
        wanted = expected(model, prompts, i, pattern)
        torch.testing.assert_close(got[i], wanted, atol=TOLERANCE, rtol=0)


# -- demonstrations that are computed once ------------------------------------------------------


def rotated(keys: torch.Tensor, by: int, theta: float) -> torch.Tensor:
    """Keys ``(heads, tokens, head_dim)`` rotated by a distance, as complex numbers."""
    half = keys.shape[-1] // 2
    angles = by * theta ** (-torch.arange(half, dtype=torch.double) / half)
    numbers = torch.complex(keys[..., :half].double(), keys[..., half:].double())
    numbers = numbers * torch.polar(torch.ones(half, dtype=torch.double), angles)
    return torch.cat([numbers.real, numbers.imag], -1).to(keys.dtype)


def theta_of(config: Any, layer: int) -> float:
    rope, kinds = config.rope_parameters, getattr(config, "layer_types", None)
    return float((rope.get(kinds[layer], rope) if kinds else rope)["rope_theta"])


def pieced_logits(model: Any, head: Ids, shown: Sequence[Ids], alone: bool, query: Ids) -> Any:
    """Logits of a query's end, over demonstrations each of which was computed by itself.

    That is behind the head, or with ``alone`` behind nothing.
    """
    config = model.config.get_text_config()
    windows, kept, before = layer_windows(config), {}, {}

    def attention(module: Any, query: Any, key: Any, value: Any, _: Any, **options: Any) -> Any:
        layer = module.layer_idx
        groups = query.shape[1] // key.shape[1]
        if before:
            key = torch.cat([before[layer][0][None], key], 2)
            value = torch.cat([before[layer][1][None], value], 2)
        kept[layer] = key[0], value[0]
        keys, values = (x[0].repeat_interleave(groups, 0) for x in (key, value))
        ahead = keys.shape[1] - query.shape[2]
        distance = ahead + np.arange(query.shape[2])[:, None] - np.arange(keys.shape[1])[None]
        unseen = torch.from_numpy((distance < 0) | (distance >= (windows[layer] or 10**6)))
        scores = query[0] @ keys.transpose(1, 2) * (options.get("scaling") or keys.shape[-1] ** -0.5)
        out = torch.softmax(scores.masked_fill(unseen, -math.inf), -1) @ values
        return out.transpose(0, 1)[None], None

    AttentionInterface.register("pieced_reference", attention)
    model.set_attn_implementation("pieced_reference")

    def passed(tokens: Ids, first: int) -> torch.Tensor:
        places = torch.arange(first, first + len(tokens))[None]
        with torch.inference_mode():
            output = model(torch.tensor([tokens]), position_ids=places, use_cache=False)
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits

    passed(head, 0)
    whole = {layer: [pair] for layer, pair in kept.items()}
    place, base = len(head), 0 if alone else len(head)
    for demonstration in shown:
        passed(demonstration if alone else head + demonstration, 0)
        for layer, (key, value) in kept.items():
            own = rotated(key[:, base:], place - base, theta_of(config, layer)), value[:, base:]
            whole[layer].append(own)
        place += len(demonstration)
    for layer, pairs in whole.items():
        before[layer] = tuple(torch.cat(parts, 1) for parts in zip(*pairs, strict=True))
    return passed(query, place)


@pytest.mark.parametrize("sink", [0, 1])
def test_reused_demonstrations_have_the_logits_of_ones_that_were_computed_apart(
    backend: TransformersBackend, model: Any, sink: int
) -> None:
    prompts = retrieved(4, 6)
    got, answered = answers(backend, prompts, Pattern.parse(f"block:1,sink={sink},local=0,reuse"))
    for i in range(len(prompts)):
        prompt, ends = prompts.ids(i), (prompts.lead, *prompts.ends_of(i))
        shown = [prompt[a:b] for a, b in pairwise(ends)]
        head = prompt[: ends[1]] if sink else prompt[: ends[0]]
        wanted = pieced_logits(model, head, shown[sink:], not sink, prompt[ends[-1] :])
        torch.testing.assert_close(got[i], wanted, atol=TOLERANCE, rtol=0)
    assert answered[0].cached_tokens < answered[3].cached_tokens


def test_each_demonstration_is_computed_once_for_the_prompts_of_a_cell(backend: TransformersBackend) -> None:
    prompts, pattern = retrieved(4, 6), Pattern.parse("block:1,reuse")
    backend.cache.drop()
    before = backend.counters.prefix_tokens
    packs_of(backend, prompts, pattern)
    reading = PromptLayout.of(prompts, pattern)
    sink = prompts.ends_of(0)[0]
    assert backend.counters.prefix_tokens - before == reading.encoded_tokens + sink
    packs_of(backend, prompts, pattern)
    assert backend.counters.prefix_tokens - before == 2 * reading.encoded_tokens + sink


def test_demonstrations_over_the_limit_are_computed_again(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, pattern = retrieved(4, 6), Pattern.parse("block:1,reuse")
    first, _ = answers(backend, prompts, pattern)
    monkeypatch.setattr("icl_bench.backends.transformers.backend.REUSING", 1)
    monkeypatch.setattr(backend.reused, "_limit_bytes", 1)
    before = backend.counters.prefix_tokens
    again, _ = answers(backend, prompts, pattern)
    assert backend.counters.prefix_tokens - before > PromptLayout.of(prompts, pattern).encoded_tokens
    torch.testing.assert_close(first, again)


def test_prompts_are_together_as_far_as_their_demonstrations_have_room(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, pattern = retrieved(6, 4), Pattern.parse("block:1,reuse")
    assert list(backend.reused.batches(prompts, 4, pattern)) == [range(4), range(4, 6)]
    texts = [set(parts(prompts, i, pattern.sink)) for i in range(6)]
    two = max(sum(map(len, a | b)) for a, b in pairwise(texts))
    limit = two * backend.model.token_bytes
    monkeypatch.setattr(backend.reused, "_limit_bytes", limit)
    batches = list(backend.reused.batches(prompts, 4, pattern))
    assert len(batches) > 2
    for batch in batches:
        shown = set().union(*(texts[i] for i in batch))
        assert sum(map(len, shown)) * backend.model.token_bytes <= limit
    monkeypatch.setattr(backend.reused, "_limit_bytes", 1)
    assert [len(batch) for batch in backend.reused.batches(prompts, 4, pattern)] == [1] * 6


def test_never_more_demonstrations_are_kept_than_the_limit_and_what_one_batch_shows(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, pattern = retrieved(6, 4), Pattern.parse("block:1,reuse")
    first, _ = answers(backend, prompts, pattern)
    texts = [set(parts(prompts, i, pattern.sink)) for i in range(6)]
    longest = max(len(ids) for shown in texts for ids in shown)
    limit = 3 * longest * backend.model.token_bytes
    monkeypatch.setattr(backend.reused, "_limit_bytes", limit)
    monkeypatch.setattr(backend.limits, "rows", 1)
    one = max(sum(map(len, shown)) for shown in texts) * backend.model.token_bytes
    most, put = [0], DemonstrationCache.put

    def watched(kept: DemonstrationCache, *what: Any) -> None:
        put(kept, *what)
        most.append(kept.nbytes)

    monkeypatch.setattr(DemonstrationCache, "put", watched)
    again, _ = answers(backend, prompts, pattern)
    assert 0 < max(most) <= max(limit, one) + longest * backend.model.token_bytes
    torch.testing.assert_close(first, again)


def test_what_a_batch_needs_is_not_dropped_to_make_room() -> None:
    kept = DemonstrationCache(0, limit_bytes=300)
    for name in range(5):
        kept.put((name,), {0: LayerKeys(torch.zeros(25), torch.zeros(0))})  # 100 bytes
        kept.trim({(0,), (4,)})
    assert [name for name in range(5) if (name,) in kept] == [0, 3, 4]
    kept.trim()
    assert kept.nbytes == 300


@pytest.mark.parametrize("failing", [True, False])
def test_demonstrations_are_forgotten_when_a_cell_is_over_or_has_failed(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    prompts, pattern = retrieved(6, 4), Pattern.parse("block:1,reuse")

    def full(*_: object) -> None:
        assert backend.reused.kept
        raise torch.OutOfMemoryError("CUDA out of memory.")

    if failing:
        monkeypatch.setattr(backend, "_answer_pack", full)
        with pytest.raises(CellError, match=r"^out of memory"):
            packs_of(backend, prompts, pattern)
    else:
        packs_of(backend, prompts, pattern)
    assert not backend.reused.kept


# -- once a step --------------------------------------------------------------------------------


def test_how_far_a_packs_tokens_see_is_asked_of_the_device_once_a_step(
    backend: TransformersBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern, prompts = Pattern.parse("approx:12,4"), shared(26, [3])
    backend.load_prefix(prompts, 0, pattern)
    asked, first = [], ReceptiveSpan.first

    def counted(span: ReceptiveSpan, places: Any) -> Any:
        asked.append(span)
        return first(span, places)

    monkeypatch.setattr(ReceptiveSpan, "first", counted)
    OpenPack(backend.cache, prompts.suffixes, 0)
    assert len(asked) == len(set(asked))


def test_room_for_an_answer_is_made_while_it_is_written(backend: TransformersBackend) -> None:
    prompts = shared(3, [9, 4])
    backend.load_prefix(prompts)
    pack = OpenPack(backend.cache, prompts.suffixes, 10_000)
    assert {held.tokens for held in pack.keys._held.values()} == {9}
    keys, like = PackKeys(2), torch.zeros(1, 3, 5, 4)
    keys.layer(0, like, 2).key[:] = 1.0
    held = keys.layer(0, like, 3)
    assert held.key.shape == held.value.shape
    assert 3 <= held.tokens < 30
    assert (held.key[:, :, :2] == 1).all()
    assert not held.key[:, :, 2:].any()
    assert keys.layer(0, like, 3) is held


# -- what it saves ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", PATTERNS)
def test_the_cache_holds_the_bytes_of_the_formula(
    backend: TransformersBackend, folders: dict[str, Path], kind: str, text: str
) -> None:
    pattern, prompts = Pattern.parse(text), shared(26, [9])
    backend.cache.drop()
    packed_logits(backend, prompts, pattern, reserve=1000)
    wanted = cache_bytes(architecture_of(str(folders[kind])), pattern, len(prompts.prefix), "float32")
    assert backend.cache.prefix.nbytes() == wanted


@pytest.mark.parametrize("text", PATTERNS)
def test_the_formula_counts_the_keys_that_are_computed(
    backend: TransformersBackend, folders: dict[str, Path], kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: every pair that a kernel was given and no mask hides; none in the last layer."""
    from icl_bench.backends.transformers import attention_steps as module

    pattern, prompts, pairs = Pattern.parse(text), shared(26, [9]), 0
    own = module.attend

    def counting(query: Any, key: Any, value: Any, scale: float, **how: Any) -> Any:
        nonlocal pairs
        tokens, keys, heads = query.shape[2], key.shape[2], query.shape[1]
        if how.get("causal"):
            pairs += heads * tokens * (tokens + 1) // 2
        elif how.get("mask") is not None:
            pairs += int((how["mask"].bias == 0).sum()) * key.shape[1]
        else:
            pairs += heads * tokens * keys
        return own(query, key, value, scale, **how)

    monkeypatch.setattr(module, "attend", counting)
    monkeypatch.setattr(module, "attend_past", lambda *part: [counting(*part)])
    backend.cache.drop()
    backend.load_prefix(prompts, 0, pattern)
    shape = architecture_of(str(folders[kind]))
    work = cost_of(PromptLayout.of(prompts, pattern), shape, [AnswerWork()], "float32")
    width = shape.heads_width // backend.model.config.num_attention_heads
    passed = shape.parameters - shape.layer_parameters + shape.projection_parameters
    counted = 2.0 * passed * len(prompts.prefix) + 4.0 * width * pairs
    assert work.prefix_flops == pytest.approx(counted, rel=1e-12)


def test_a_window_that_cannot_hold_an_answer_is_an_error_of_the_cell(backend: TransformersBackend) -> None:
    with pytest.raises(CellError, match="WINDOW must hold an answer, here 11 tokens"):
        packs_of(backend, shared(5, [3]), Pattern.parse("approx:8,4"), 10)


def test_another_pattern_does_not_take_over_what_is_cached(backend: TransformersBackend, model: Any) -> None:
    prompts = shared(20, [5])
    for text in ("block:3", "full", "block:3,sink=0,local=0", "grouped:2,20", "full"):
        got = packed_logits(backend, prompts, Pattern.parse(text))
        wanted = expected(model, prompts, 0, Pattern.parse(text))
        torch.testing.assert_close(got[0], wanted, atol=TOLERANCE, rtol=0)


def test_full_is_the_models_own_attention(backend: TransformersBackend, model: Any) -> None:
    prompts = shared(20, [5])
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        own = model(torch.tensor([prompts.ids(0)]), use_cache=False).logits[0, -1].float()
    got = packed_logits(backend, prompts, FULL)[0]
    torch.testing.assert_close(got, own, atol=TOLERANCE, rtol=0)


# -- a pattern of another package ----------------------------------------------------------------

STAIRS = """
    from dataclasses import dataclass
    from typing import ClassVar

    import numpy as np

    from icl_bench.models.attention_patterns import BlockLayout, Pattern, ReceptiveSpan, whole_number


    @dataclass(frozen=True)
    class Stairs(Pattern):
        width: int
        name: ClassVar[str] = "stairs"
        written: ClassVar[str] = "stairs:WIDTH"

        @classmethod
        def parse_words(cls, words):
            (width,) = words
            return cls(whole_number(width))

        def __str__(self):
            return f"stairs:{self.width}"

        def spans(self, windows):
            own = [(self.width, None)[layer % 2] for layer in range(len(windows))]
            return tuple(ReceptiveSpan(w or mine) for w, mine in zip(windows, own))

        def layout(self, ends):
            bounds = np.array([0, *ends])
            place = np.arange(len(ends))
            return BlockLayout(np.repeat(bounds[place - place // 2], np.diff(bounds)), int(ends[0]))

        @property
        def blocks(self):
            return True
    """


@pytest.fixture
def stairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pattern:
    """Demonstration n sees the first and those from the (n - n // 2)th on; every other layer has a
    window.
    """
    known = installed(
        tmp_path,
        monkeypatch,
        ATTENTION_PATTERNS,
        "stairs = stairs_pattern:Stairs",
        STAIRS,
        {"full": "icl_bench.models.attention_patterns:Pattern"},
    )
    monkeypatch.setattr(attention_patterns, "ATTENTION_PATTERNS", known)
    return Pattern.parse("stairs:17")


def stairs_seen(model: Any, ends: Sequence[int], tokens: int) -> Sees:
    windows = layer_windows(model.config.get_text_config())
    place = np.full(tokens, -1)
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        place[start:end] = number
    mine, its = place[:, None], place[None]
    near = (its == 0) | (its >= mine - mine // 2) | (mine < 0)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None]

    def of_layer(layer: int) -> np.ndarray:
        window = windows[layer] or (tokens if layer % 2 else 17)
        seen: np.ndarray = near & (distance >= 0) & (distance < window)
        return seen

    return of_layer


def test_a_pattern_of_another_package_has_the_logits_of_a_dense_pass_under_its_mask(
    backend: TransformersBackend, model: Any, stairs: Pattern
) -> None:
    packed_logits(backend, shared(11, [6, 2]), stairs)
    for prompts in (shared(26, [9, 1, 17]), retrieved(3, 6), mixed(3, 9, 4)):
        got, _ = answers(backend, prompts, stairs)
        for i in range(len(prompts)):
            prompt = prompts.ids(i)
            of_layer = stairs_seen(model, prompts.ends_of(i), len(prompt))
            wanted = dense_logits(model, prompt, of_layer, {})[-1]
            torch.testing.assert_close(got[i], wanted, atol=TOLERANCE, rtol=0)


def test_a_pattern_of_another_package_is_read_and_its_mistakes_are_said(stairs: Pattern) -> None:
    assert Pattern.parse(str(stairs)) == stairs
    assert split("full, stairs:3,full") == ("full", "stairs:3", "full")
    with pytest.raises(UserError, match=r"--attention stairs:x: is written stairs:WIDTH"):
        Pattern.parse("stairs:x")


def test_blocks_and_means_of_chunks_are_not_taken_for_something_else() -> None:
    layout = Block(1).layout([3, 6])
    with pytest.raises(ValueError, match="not computed together"):
        View((ReceptiveSpan(8, 4),), layout)


# -- losses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["full", "grouped:2,20", "approx:32,4"])
def test_losses_are_those_of_a_dense_pass(backend: TransformersBackend, model: Any, text: str) -> None:
    pattern, prompt = Pattern.parse(text), ids(150, 5)
    windows = layer_windows(model.config.get_text_config())
    chunk = {i: 4 for i, w in enumerate(windows) if w is None} if text.startswith("approx") else {}
    logits = dense_logits(model, prompt, sees(pattern, (), len(prompt), windows), chunk)
    wanted = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(prompt[1:]), reduction="none")
    got = backend.losses(prompt, pattern)
    np.testing.assert_allclose(got, wanted.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize("demonstrations", [2, 9])
@pytest.mark.parametrize("text", ["full", *BLOCKS[:5], "grouped:2,20", "approx:40,8"])
def test_own_demonstrations_behind_shared_ones_have_the_logits_of_a_dense_pass(
    backend: TransformersBackend, model: Any, text: str, demonstrations: int
) -> None:
    pattern, prompts = Pattern.parse(text), mixed(3, demonstrations, 4)
    got, found = answers(backend, prompts, pattern)
    for i in range(len(prompts)):
        wanted = expected(model, prompts, i, pattern)
        torch.testing.assert_close(got[i], wanted, atol=TOLERANCE, rtol=0)
        assert found[i].cached_tokens == len(prompts.prefix)
