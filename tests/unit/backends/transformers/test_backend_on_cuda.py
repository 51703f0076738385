"""The transformers backend on an emulated card: the answers of the CPU, by a card's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.emulated_cuda import Card
from support.models import FAMILIES, save_tiny_model, tiny_config
from support.models import random_ids as ids
from torch import Tensor

from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import compile_labels, label_trie
from icl_bench.backends.transformers import attention_kernels
from icl_bench.backends.transformers.attention_kernels import runs
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet

pytestmark = pytest.mark.usefixtures("one_thread")

PATTERNS = ["full", "block:3,sink=1,local=1", "grouped:2,20", "approx:40,8"]
ANSWERS = [" card arrival\n", " card\n", " order\n", " top up\n"]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def card() -> Card:
    return Card()


@pytest.fixture
def present(card: Card) -> Iterator[Card]:
    """The card, for one test; its counters begin anew."""
    card.refuse, card.capability = None, (9, 0)
    with card.present():
        card.forget()
        yield card
    card.refuse = None


class Loaded:
    """Tiny models of every family on both devices, each read once."""

    def __init__(self, folders: dict[str, Path], tokenizer: Any, card: Card) -> None:
        self._folders, self._tokenizer, self._card = folders, tokenizer, card
        self._held: dict[tuple[str, str, str], TransformersBackend] = {}

    def __call__(self, kind: str, device: str, dtype: str = "float32", chunk: int = 48) -> TransformersBackend:
        if (kind, device, dtype) not in self._held:
            with self._card.present():
                self._held[kind, device, dtype] = TransformersBackend.load(
                    self._folders[kind], self._tokenizer, dtype=dtype, device=device, chunk_tokens=48
                )
        backend = self._held[kind, device, dtype]
        backend.cache.drop()
        return TransformersBackend(backend.model, chunk_tokens=chunk)


@pytest.fixture(scope="module")
def load(folders: dict[str, Path], tokenizer: Any, card: Card) -> Loaded:
    return Loaded(folders, tokenizer, card)


@pytest.fixture(scope="module")
def decodings(tokenizer: Any) -> list[Decoding]:
    """Two queries are answered greedily, two exactly, two freely."""
    greedy = Greedy(compile_labels(ANSWERS, tokenizer))
    exact = Exact(label_trie([tuple(tokenizer(answer)["input_ids"]) for answer in ANSWERS]))
    return [greedy, greedy, exact, exact, Free(("\n",), 2), Free(("\n",), 2)]


def shared(demonstrations: int = 9, suffixes: Sequence[int] = (4, 9, 5, 2, 6, 3)) -> PromptSet:
    """Prompts over the same demonstrations, BOS before them."""
    sizes = np.random.default_rng(1).integers(3, 16, demonstrations)
    ends = tuple((1 + np.cumsum(sizes)).tolist())
    own = tuple(ids(size, 100 + i) for i, size in enumerate(suffixes))
    return PromptSet(ids(500, 0)[: ends[-1]], own, ends=(ends,), lead=1)


def retrieved(count: int = 6, demonstrations: int = 4) -> PromptSet:
    """Prompts with demonstrations of their own, some of which several prompts have."""
    rng = np.random.default_rng(2)
    pool = [ids(int(size), 50 + i) for i, size in enumerate(rng.integers(3, 12, 9))]
    own, ends = [], []
    for i in range(count):
        shown = [pool[0], *(pool[j] for j in 1 + rng.permutation(8)[: demonstrations - 1])]
        own.append(sum((*shown, ids(3 + i, 300 + i)), ()))
        ends.append(tuple(1 + np.cumsum([len(s) for s in shown]).astype(int)))
    return PromptSet((7,), tuple(own), ends=tuple(ends), lead=1)


def answered(
    backend: TransformersBackend, prompts: PromptSet, decodings: Sequence[Decoding], pattern: Pattern = FULL
) -> list[Answer]:
    packs = backend.answer(prompts, range(len(prompts)), decodings, 0, pattern)
    return sorted((answer for pack in packs for answer in pack), key=lambda a: a.index)


def assert_same(found: Sequence[Answer], wanted: Sequence[Answer], within: float) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.label, mine.text) == (theirs.label, theirs.text)
        for name in ("probability", "margin", "label_mass"):
            value = getattr(theirs, name)
            assert getattr(mine, name) == (value and pytest.approx(value, abs=within, rel=within))


# -- single precision ---------------------------------------------------------------------------


OTHERS = {"block:3,sink=1,local=1": "llama", "grouped:2,20": "mistral", "approx:40,8": "qwen2"}
"""Besides Gemma, each family is asked under one of the patterns by ``make test``."""
FEW_FAMILIES = [pytest.param(kind, marks=[] if kind == "gemma3_text" else pytest.mark.thorough) for kind in FAMILIES]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        pytest.param(
            text,
            kind,
            marks=[] if kind in ("gemma3_text", OTHERS.get(text)) else pytest.mark.thorough,
            id=f"{text}-{kind}",
        )
        for text in PATTERNS
        for kind in FAMILIES
    ],
)
def test_every_pattern_has_the_cpus_answers_in_every_family(
    load: Loaded, decodings: list[Decoding], present: Card, text: str, kind: str
) -> None:
    prompts, pattern = shared(), Pattern.parse(text)
    found = answered(load(kind, "cuda"), prompts, decodings, pattern)
    assert_same(found, answered(load(kind, "cpu"), prompts, decodings, pattern), TOLERANCE)
    assert present.launches > 100


@pytest.mark.parametrize("kind", FEW_FAMILIES)
@pytest.mark.parametrize("text", ["block:1,reuse"])
def test_demonstrations_that_are_computed_once_give_the_cpus_answers(
    load: Loaded, decodings: list[Decoding], present: Card, text: str, kind: str
) -> None:
    prompts, pattern = retrieved(), Pattern.parse(text)
    found = answered(load(kind, "cuda"), prompts, decodings, pattern)
    assert_same(found, answered(load(kind, "cpu"), prompts, decodings, pattern), TOLERANCE)


@pytest.mark.parametrize("text", ["full", "block:2,sink=1,local=1"])
def test_long_queries_and_their_own_demonstrations_give_the_cpus_answers(
    load: Loaded, decodings: list[Decoding], present: Card, text: str
) -> None:
    prompts, pattern, three = retrieved(3), Pattern.parse(text), decodings[::2]
    found, wanted = (
        answered(load("gemma3_text", device, chunk=16), prompts, three, pattern) for device in ("cuda", "cpu")
    )
    assert_same(found, wanted, TOLERANCE)


@pytest.mark.parametrize("text", ["full", "approx:40,8"])
def test_losses_are_the_cpus(load: Loaded, present: Card, text: str) -> None:
    found, wanted = (load("gemma3_text", device).losses(ids(110, 5), Pattern.parse(text)) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)


def test_without_a_device_asked_for_the_card_is_taken(load: Loaded, tokenizer: Any, present: Card) -> None:
    folder = load("llama", "cpu").model.network.config._name_or_path
    backend = TransformersBackend.load(folder, tokenizer)
    assert backend.model.device.type == "cuda"
    assert backend.identity() == {"backend": "transformers", "dtype": "bfloat16"}


# -- half precision -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("gemma3_text", "bfloat16"),
        *(pytest.param(kind, "bfloat16", marks=pytest.mark.thorough) for kind in ("llama", "mistral", "qwen2")),
        ("llama", "float16"),
    ],
)
def test_half_precision_takes_the_fused_kernel_and_stays_near_the_cpus(
    load: Loaded, decodings: list[Decoding], present: Card, kind: str, dtype: str
) -> None:
    """Kernels round otherwise: a label may differ where the CPU has two nearly alike."""
    prompts = shared()
    exact = [decodings[2]] * len(prompts)
    found = answered(load(kind, "cuda", dtype), prompts, exact)
    fused = {"_scaled_dot_product_flash_attention", "_flash_attention_forward"}
    assert sum(present.operations[name] for name in fused) > 1, "more than the trial, which a wrong kernel fails"
    for mine, theirs in zip(found, answered(load(kind, "cpu", dtype), prompts, exact), strict=True):
        assert theirs.probability is not None
        assert theirs.margin is not None
        assert mine.label == theirs.label or theirs.margin < 0.3 * theirs.probability
        assert mine.label_mass == pytest.approx(theirs.label_mass, rel=0.3)


@pytest.fixture
def small_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CuDNN from the first operation on, in multiples of 8 tokens and parts of 16 keys and more."""
    for name, value in (("WORTH_A_PLAN", 0.0), ("PLAN_TOKENS", 8), ("PLAN_KEYS", 16)):
        monkeypatch.setattr(attention_kernels, name, value)
    runs.cache_clear()
    yield
    runs.cache_clear()


CUDNN = "_scaled_dot_product_cudnn_attention"


@pytest.mark.parametrize(("tokens", "keys"), [(8, 16), (8, 15), (5, 90), (24, 48), (1, 200)])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_earlier_keys_are_read_by_cudnn_in_parts_of_few_sizes(
    present: Card, small_plans: None, monkeypatch: pytest.MonkeyPatch, tokens: int, keys: int, key_heads: int
) -> None:
    random = torch.Generator().manual_seed(keys)
    shapes: set[tuple[int, ...]] = set()
    real = attention_kernels._cudnn

    def noted(query: Tensor, key: Tensor, *more: Any, **named: Any) -> Any:
        shapes.add((*query.shape[2:], *key.shape[2:], *key.stride()))
        return real(query, key, *more, **named)

    query, *pair = (
        torch.randn(1, n, heads, 16, generator=random).bfloat16()
        for n, heads in ((tokens, 4), (keys, key_heads), (keys, key_heads))
    )
    roomy = [torch.cat([x, torch.full_like(x, torch.nan)], 1).transpose(1, 2)[:, :, :keys] for x in pair]
    wanted = attention_kernels.plain_attention(
        query.transpose(1, 2),
        *(x.transpose(1, 2).repeat_interleave(4 // key_heads, 1) for x in pair),
        0.25,
        None,
        causal=False,
    )
    on_card = [present.upload(x) for x in (query.transpose(1, 2), *roomy)]
    present.forget()
    monkeypatch.setattr(attention_kernels, "_cudnn", noted)
    parts = attention_kernels.attend_past(*on_card, 0.25)
    out, lse = attention_kernels.merge(parts).cpu(), torch.stack([part.lse.cpu() for part in parts]).logsumexp(0)
    torch.testing.assert_close(out, wanted.out, atol=0.03, rtol=0.03)
    torch.testing.assert_close(lse, wanted.lse, atol=1e-3, rtol=1e-3)
    whole = keys // 16 * 16
    assert sum(part[2] for part in shapes) == whole  # halves of halves: no size twice
    assert all(part[0] % 8 == 0 for part in shapes)
    assert len(parts) == len(shapes) + (keys > whole)


def test_with_cudnn_answers_are_those_with_flash(
    load: Loaded, decodings: list[Decoding], present: Card, small_plans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, exact = shared(30), [decodings[2]] * 6
    found = answered(load("qwen2", "cuda", "bfloat16"), prompts, exact)
    assert present.operations[CUDNN] > 0
    monkeypatch.setattr(attention_kernels, "WORTH_A_PLAN", 1e18)
    present.forget()
    for mine, theirs in zip(found, answered(load("qwen2", "cuda", "bfloat16"), prompts, exact), strict=True):
        assert mine.scores == pytest.approx(theirs.scores, abs=0.3)
    assert present.operations[CUDNN] == 0


def test_other_cards_than_hopper_take_no_cudnn(present: Card, small_plans: None) -> None:
    present.capability = (8, 0)
    query = present.upload(torch.ones(1, 4, 8, 16, dtype=torch.bfloat16))
    key = present.upload(torch.ones(1, 4, 32, 16, dtype=torch.bfloat16))
    attention_kernels.attend_past(query, key, key, 0.25)
    assert present.operations[CUDNN] == 0


# -- lack of memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"), [("llama", "mm"), ("llama", "new_empty"), ("gemma3_text", "new_zeros"), ("gemma3_text", "cat")]
)
def test_an_operation_that_finds_no_memory_changes_no_label(
    load: Loaded, decodings: list[Decoding], present: Card, kind: str, name: str
) -> None:
    """Any operation of that name that takes much fails: smaller calls are left."""
    prompts, sizes, refused = shared(), [], []

    def note(operation: str, size: int) -> bool:
        sizes.extend([size] * (operation == name))
        return False

    def once(operation: str, size: int) -> bool:
        """The largest of its calls fails, the first time."""
        fails = operation == name and size == max(sizes) and not refused
        refused.extend([size] * fails)
        return fails

    present.refuse = note
    wanted = answered(load(kind, "cuda", chunk=256), prompts, decodings)
    present.refuse = once
    assert_same(answered(load(kind, "cuda", chunk=256), prompts, decodings), wanted, TOLERANCE)
    assert refused
    assert present.emptied > 0


def test_a_card_that_is_too_small_for_a_chunk_halves_it_and_gives_its_memory_back(
    load: Loaded, decodings: list[Decoding], present: Card
) -> None:
    """Chunks of 1,024 tokens do not fit, and nothing of the attempts is kept."""
    prompts = shared(40, [4, 9, 5, 2, 6, 3])
    wanted = answered(load("llama", "cpu"), prompts, decodings)
    model = load("llama", "cuda").model
    backend = TransformersBackend(model, chunk_tokens=1024)
    before = present.held_bytes
    try:
        present.forget()
        assert_same(answered(backend, prompts, decodings), wanted, TOLERANCE)
        needed = present.peak_bytes - before
        backend.cache.drop()
        assert present.held_bytes == before
        present.capacity = before + needed // 2
        backend = TransformersBackend(model, chunk_tokens=1024)
        assert_same(answered(backend, prompts, decodings), wanted, TOLERANCE)
        assert backend.cache.chunk_tokens < 1024
        assert present.peak_bytes - before > needed // 4
        backend.cache.drop()
        assert present.held_bytes == before
    finally:
        present.capacity = 2**34


# -- what the host waits for --------------------------------------------------------------------


@pytest.mark.parametrize("text", ["full", "block:3,sink=1,local=1"])
def test_waits_of_a_step_do_not_grow_with_the_layers(
    load: Loaded, tokenizer: Any, present: Card, tmp_path: Path, text: str
) -> None:
    prompts, pattern, waits = shared(), Pattern.parse(text), {}
    free = [Free(("no such text",), 3)] * len(prompts)
    for layers in (1, 4):
        config = tiny_config("llama", len(tokenizer))
        config.num_hidden_layers = layers
        folder = save_tiny_model(config, tmp_path / str(layers))
        backend = TransformersBackend.load(folder, tokenizer, dtype="float32", device="cuda")
        backend.load_prefix(prompts, 0, pattern)
        present.forget()
        answered(backend, prompts, free, pattern)
        waits[layers] = present.downloads
    assert waits[1] == waits[4] > 0
