"""The packed backend answers as plain forward passes of the same model do."""

from __future__ import annotations

import copy
import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import FAMILIES, WINDOW, packed_logits, plain_logits, plain_model, save_tiny_model
from support.models import random_ids as ids

from icl_bench.backends.device import choose_device
from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import compile_labels, label_trie, token_bytes
from icl_bench.backends.transformers import loaded_model
from icl_bench.backends.transformers.attention_steps import Extend, Pack
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.device_memory import finish
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.kv_cache import Prefix
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.backends.transformers.packed_decoding import PackLimits
from icl_bench.backends.transformers.single_precision import in_float32
from icl_bench.errors import CellError, UserError
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.memory import out_of_memory
from icl_bench.prompts.encoding import Ids, PromptSet

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = ["card arrival", "card", "card status", "order", "état", "top up"]
ANSWERS = [f" {label}\n" for label in LABELS]


@pytest.fixture(scope="session")
def references(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: plain_model(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="session")
def loaded(folders: dict[str, Path], tokenizer: Any) -> dict[str, LoadedModel]:
    models = {}
    for kind, folder in folders.items():
        models[kind] = LoadedModel.load(folder, tokenizer, None, "float32", "cpu")
        check_forward(models[kind])
    return models


@pytest.fixture
def load(loaded: dict[str, LoadedModel]) -> Callable[..., TransformersBackend]:
    """Make a fresh backend around a model that is read from disk only once."""

    def make(kind: str, **settings: Any) -> TransformersBackend:
        return TransformersBackend(copy.copy(loaded[kind]), **settings)

    return make


@pytest.fixture(params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of attention, where its arithmetic is the point."""
    return str(request.param)


@pytest.fixture(params=["llama", "gemma3_text"])
def either(request: pytest.FixtureRequest) -> str:
    """Full layers only, and full and sliding ones, where what is kept is the point."""
    return str(request.param)


def prompts_of(prefix: int, suffixes: Sequence[int], seed: int = 0) -> PromptSet:
    """Random prompts of these lengths; the prefixes of one seed extend one another."""
    own = tuple(ids(size, 1000 * seed + 7 * i + 1) for i, size in enumerate(suffixes))
    return PromptSet(ids(500, seed)[:prefix], own)


def packs_of(
    backend: TransformersBackend,
    prompts: PromptSet,
    decoding: Decoding | Sequence[Decoding],
    todo: Sequence[int],
    reserve: int = 0,
) -> list[list[Answer]]:
    """Packs of answers; one decoding is for all prompts."""
    same = isinstance(decoding, Greedy | Exact | Free)
    each = [decoding] * len(prompts) if same else decoding
    return list(backend.answer(prompts, todo, each, reserve))


def run(
    backend: TransformersBackend,
    prompts: PromptSet,
    decoding: Decoding | Sequence[Decoding],
    todo: Sequence[int] | None = None,
) -> list[Answer]:
    """All answers, in the order of the prompts; each comes once."""
    wanted = list(range(len(prompts.suffixes))) if todo is None else list(todo)
    packs = packs_of(backend, prompts, decoding, wanted)
    needed = [answer for pack in packs for answer in pack if answer.index in wanted]
    found = {answer.index: answer for answer in needed}
    assert sorted(found) == sorted(answer.index for answer in needed) == sorted(wanted)
    return [found[i] for i in wanted]


def label_ids(tokenizer: Any, answers: Sequence[str] = ANSWERS) -> list[Ids]:
    return [tuple(tokenizer(answer)["input_ids"]) for answer in answers]


@pytest.fixture(scope="session")
def greedy(tokenizer: Any) -> Greedy:
    return Greedy(compile_labels(ANSWERS, tokenizer))


@pytest.fixture(scope="session")
def exact(tokenizer: Any) -> Exact:
    return Exact(label_trie(label_ids(tokenizer)))


# -- the same by plain forward passes -----------------------------------------------------------


def greedy_label(model: Any, tokenizer: Any, prompt: Ids, answers: Sequence[str] = ANSWERS) -> int:
    """Constrained greedy decoding by its definition, from texts alone."""
    spelled, written, tokens = token_bytes(tokenizer), b"", list(prompt)
    encoded = [answer.encode() for answer in answers]
    while len(left := [i for i, a in enumerate(encoded) if a.startswith(written)]) > 1:
        logits = plain_logits(model, tuple(tokens))[-1]
        allowed = [token for token, text in spelled.items() if any(encoded[i].startswith(written + text) for i in left)]
        token = max(allowed, key=lambda t: float(logits[t]))
        tokens.append(token)
        written += spelled[token]
    return left[0]


def label_logs(model: Any, tokenizer: Any, prompt: Ids) -> np.ndarray:
    """Sum of the log-probabilities of each label's tokens: ``(labels,)``."""
    logs = []
    for answer in label_ids(tokenizer):
        steps = torch.log_softmax(plain_logits(model, prompt + answer), -1)
        behind = steps[len(prompt) - 1 : -1]
        logs.append(float(sum(step[t] for step, t in zip(behind, answer, strict=True))))
    return np.array(logs)


def assert_exact(answer: Answer, logs: np.ndarray) -> None:
    chances = np.sort(np.exp(logs))
    assert answer.label == logs.argmax()
    assert answer.probability == pytest.approx(chances[-1], rel=1e-3)
    assert answer.margin == pytest.approx(chances[-1] - chances[-2], rel=1e-2)
    assert answer.label_mass == pytest.approx(chances.sum(), rel=1e-3)
    assert 0 < answer.label_mass <= 1


# -- logits -------------------------------------------------------------------------------------

LENGTHS = [1, 5, 3, 20, 9, 2]  # shorter and longer than the sliding window


@pytest.mark.parametrize("smaller", [5, 16, 37])
def test_a_cell_has_the_same_logits_alone_and_after_smaller_ones_in_half_precision(folders, tokenizer, smaller):
    """Bit for bit: else answers would depend on which other k were asked for."""
    half = TransformersBackend.load(folders["gemma3_text"], tokenizer, dtype="bfloat16", device="cpu", chunk_tokens=16)
    longer = prompts_of(50, LENGTHS)
    alone = packed_logits(half, longer)
    half.cache.drop()
    packed_logits(half, prompts_of(smaller, LENGTHS), reserve=50 + 77)
    assert torch.equal(packed_logits(half, longer), alone)


@pytest.mark.parametrize("chunk", [5, 16, 512])
def test_packed_queries_over_a_growing_prefix_have_the_plain_forwards_logits(load, references, kind, chunk):
    backend = load(kind, chunk_tokens=chunk)
    for prefix in (0, 1, 6, 30, 31, 77, 200):
        prompts = prompts_of(prefix, LENGTHS)
        found = packed_logits(backend, prompts)
        for i, _ in enumerate(LENGTHS):
            expected = plain_logits(references[kind], prompts.ids(i))[-1]
            torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)


def test_a_sliding_block_boundary_changes_nothing(load, references, monkeypatch, kind):
    monkeypatch.setattr("icl_bench.backends.transformers.attention_steps.SLIDING_BLOCK", 7)
    prompts = prompts_of(60, LENGTHS)
    found = packed_logits(load(kind, chunk_tokens=25), prompts)
    for i, _ in enumerate(LENGTHS):
        expected = plain_logits(references[kind], prompts.ids(i))[-1]
        torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)


def test_the_tiny_models_tell_far_and_near_tokens_apart(references, kind):
    """Else the other tests here would pass whatever a query sees."""
    prompt = ids(60, 3)
    window = {"mistral": 2 * (WINDOW - 1) + 1}.get(kind, 60)  # what two layers reach together
    logits = plain_logits(references[kind], prompt)[-1]
    changed = plain_logits(references[kind], (*prompt[:-window], 7, *prompt[1 - window :]))[-1]
    assert (changed - logits).abs().max() > 1e-3


# -- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [0, 33])
def test_greedy_answers_are_those_of_whole_forward_passes(load, references, tokenizer, greedy, kind, prefix):
    prompts = prompts_of(prefix, LENGTHS * 2)
    answers = run(load(kind, chunk_tokens=25), prompts, greedy)
    expected = [greedy_label(references[kind], tokenizer, prompts.ids(i)) for i, _ in enumerate(answers)]
    assert [answer.label for answer in answers] == expected
    assert len(set(expected)) > 1
    assert {answer.cached_tokens for answer in answers} == {prefix}


@pytest.mark.parametrize("prefix", [0, 33])
def test_exact_answers_are_the_summed_log_probabilities_of_whole_forward_passes(
    load, references, tokenizer, exact, kind, prefix
):
    prompts = prompts_of(prefix, LENGTHS)
    for i, answer in enumerate(run(load(kind, chunk_tokens=25), prompts, exact)):
        assert_exact(answer, label_logs(references[kind], tokenizer, prompts.ids(i)))
        assert answer.answer_tokens == 0


def test_exact_answers_need_no_label_of_several_tokens(load, references, kind):
    """Labels of one token each: the tree is a root with leaves."""
    prompts, tokens = prompts_of(33, LENGTHS), [3, 50, 200]
    for i, answer in enumerate(run(load(kind), prompts, Exact(label_trie([(t,) for t in tokens])))):
        chances = plain_logits(references[kind], prompts.ids(i))[-1].softmax(-1)[tokens]
        assert answer.label == int(chances.argmax())
        assert answer.label_mass == pytest.approx(float(chances.sum()), rel=1e-4)


def generated(model: Any, prompt: Ids, tokens: int, **options: Any) -> list[int]:
    with torch.inference_mode():
        found = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens, **options)
    return found[0, len(prompt) :].tolist()


def test_free_answers_are_greedily_generated_text(load, references, tokenizer, kind):
    prompts = prompts_of(33, LENGTHS)
    answers = run(load(kind, chunk_tokens=25), prompts, Free(("no such text",), 12))
    for i, answer in enumerate(answers):
        tokens = generated(references[kind], prompts.ids(i), 12)
        assert answer.text == tokenizer.decode(tokens)
        assert (answer.answer_tokens, answer.label, answer.probability) == (12, None, None)


def test_free_text_is_cut_at_its_stop_even_inside_a_token_or_across_several(load, references, tokenizer, kind):
    backend = load(kind)
    prompts = prompts_of(33, LENGTHS)
    texts = [tokenizer.decode(generated(references[kind], prompts.ids(i), 12)) for i, _ in enumerate(LENGTHS)]
    for cut in (slice(2, 9), slice(4, 5), slice(3), slice(-4, None)):
        answers = run(backend, prompts, [Free((text[cut],), 12) for text in texts])
        for answer, text in zip(answers, texts, strict=True):
            assert answer.text == text.split(text[cut])[0]


def test_the_earliest_of_several_stops_ends_free_text(load, references, tokenizer, kind):
    prompts = prompts_of(33, LENGTHS)
    tokens = generated(references[kind], prompts.ids(0), 12)
    written = [tokenizer.decode(tokens[: n + 1]) for n in range(12)]
    text = written[-1]
    for stops in ((text[6:9], text[2:5]), ("no such text", text[-4:]), (text[4:9], text[5:6])):
        (answer,) = run(load(kind), prompts, Free(stops, 12), [0])
        # as soon as one stop is whole, the earliest of those that are
        so_far = next(part for part in written if any(stop in part for stop in stops))
        first = min(so_far.index(stop) for stop in stops if stop in so_far)
        assert (answer.text, answer.truncated) == (so_far[:first], False)


def test_free_text_ends_at_the_models_end_token(folders, tokenizer, references, tmp_path, kind):
    from transformers import AutoModelForCausalLM

    prompts = prompts_of(33, LENGTHS)
    found = [generated(references[kind], prompts.ids(i), 12) for i, _ in enumerate(LENGTHS)]
    end = next(t for full in found for n, t in enumerate(full) if n and t not in full[:n])
    model = AutoModelForCausalLM.from_pretrained(folders[kind])
    model.generation_config.eos_token_id = [end, 0]
    model.save_pretrained(tmp_path / "ending")
    backend = TransformersBackend.load(tmp_path / "ending", tokenizer, dtype="float32", device="cpu")
    for i, answer in enumerate(run(backend, prompts, Free(("no such text",), 12))):
        full = found[i]
        stops = {end, 0, tokenizer.eos_token_id}
        kept = next((full[:n] for n, t in enumerate(full) if t in stops), full)
        assert answer.text == tokenizer.decode(kept)
        assert answer.answer_tokens == min(len(kept) + 1, 12)


# -- answers of their own ------------------------------------------------------------------------

CHOICES = [
    ["card arrival", "card", "card status"],
    ["order", "état"],
    ["top up", "a", "b", "ab"],
    ["an order of cards", "an order"],
    ["card", "top up"],
]


def choices_of(row: int) -> list[str]:
    return [f" {choice}\n" for choice in CHOICES[row % len(CHOICES)]]


def own_decoding(tokenizer: Any, row: int) -> Decoding:
    """Rows take turns: greedy, exact and free, each with choices or a limit of its own."""
    if row % 3 == 0:
        return Greedy(compile_labels(choices_of(row), tokenizer))
    if row % 3 == 1:
        return Exact(label_trie(label_ids(tokenizer, choices_of(row))))
    return Free(("e" if row % 2 else "no such text",), 3 + row % 5)


@pytest.mark.parametrize("prefix", [0, 33])
def test_rows_with_choices_of_their_own_are_answered_as_each_alone(load, references, tokenizer, kind, prefix):
    prompts = prompts_of(prefix, [*LENGTHS * 2, 40])
    own = [own_decoding(tokenizer, row) for row in range(len(prompts))]
    found = run(load(kind, chunk_tokens=25), prompts, own)
    alone = load(kind, chunk_tokens=25, pack_rows=1)
    each = [answer for row in range(len(prompts)) for answer in run(alone, prompts, own, [row])]
    assert_same(found, each)
    for row in range(0, len(prompts), 3):
        prompt = prompts.ids(row)
        wanted = greedy_label(references[kind], tokenizer, prompt, choices_of(row))
        assert found[row].label == wanted


def test_rows_that_are_answered_in_one_way_are_packed_whatever_their_choices(load, tokenizer):
    prompts = prompts_of(20, [3] * 12)
    tree = Exact(label_trie(label_ids(tokenizer)))
    same_tree = Exact(tree.trie)
    other_tree = Exact(label_trie(label_ids(tokenizer)))
    own = [Greedy(compile_labels(choices_of(row), tokenizer)) for row in range(4)]
    own += [tree, other_tree, same_tree, tree, Free(("e",), 2), Free(("x",), 5), Free(("e",), 3), own[1]]
    packs = packs_of(load("llama"), prompts, own, range(12))
    assert [[answer.index for answer in pack] for pack in packs] == [[0, 1, 2, 3, 11], [4, 5, 6, 7], [8, 9, 10]]


def test_a_row_that_is_answered_at_length_needs_no_more_room_in_a_window_than_it_takes(load, tokenizer):
    """The window must hold the longest answer of those that are asked, not of all that are there."""

    prompts, backend = prompts_of(20, [3, 3]), load("llama")
    own = [Free(("\n",), 2), Free(("\n",), 50)]
    pattern = Pattern.parse("approx:16,4")
    assert len(list(backend.answer(prompts, [0], own, 0, pattern))) == 1
    with pytest.raises(CellError, match="here 51 tokens"):
        list(backend.answer(prompts, [0, 1], own, 0, pattern))


# -- packs, resuming, caching -------------------------------------------------------------------


def decodings(greedy: Greedy, exact: Exact) -> list[Decoding]:
    return [greedy, exact, Free(("e",), 8)]


def assert_same(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """The same answers; their probabilities up to rounding."""
    for mine, other in zip(found, expected, strict=True):
        for name in ("probability", "margin", "label_mass"):
            if getattr(other, name) is not None:
                value = getattr(other, name)
                assert getattr(mine, name) == pytest.approx(value, rel=1e-3, abs=1e-9)
                mine = replace(mine, **{name: value})
        assert mine == other


def test_answers_do_not_depend_on_what_is_packed_together(load, greedy, exact, either):
    sizes = [1, 5, 3, 20, 9, 2] * 2 + [4]
    prompts = prompts_of(40, sizes)
    for decoding in decodings(greedy, exact):
        one_by_one = run(load(either, pack_rows=1), prompts, decoding)
        for rows in (5, 13):
            assert_same(run(load(either, pack_rows=rows), prompts, decoding), one_by_one)
        few_tokens = load(either, pack_tokens=30)
        assert_same(run(few_tokens, prompts, decoding), one_by_one)
        some = [12, 3, 0, 11]
        assert_same(run(load(either), prompts, decoding, some), [one_by_one[i] for i in some])


def test_packs_keep_within_rows_and_their_calls_within_tokens(load, greedy, exact):
    prompts = prompts_of(4, [1, 5, 3, 20, 9, 2] * 4)
    backend = load("llama", pack_rows=5, pack_tokens=40)
    for decoding in (greedy, exact):
        steps = queries_computed(backend)
        assert backend.counters.packs in ({}, {"rows": 5, "tokens": 40, "calls": 4})
        packs = packs_of(backend, prompts, decoding, range(24))
        assert all(len(pack) <= 5 for pack in packs)
        for step in steps:
            rows = len(step.live)
            tree = len(exact.trie.inner) if decoding is exact else 0
            assert rows == 1 or rows * (step.visible.shape[1] + tree) <= 40
        assert len(packs) < len(steps) if decoding is greedy else len(packs) == len(steps)


def queries_computed(backend: TransformersBackend) -> list[Pack]:
    """The calls that compute queries, from here on: a list that grows."""
    found, own = list[Pack](), type(backend.model).forward

    def forward(tokens: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
        if isinstance(step, Pack) and step.causal:
            found.append(step)
        return own(backend.model, tokens, positions, step)

    backend.model.forward = forward
    return found


def test_answers_of_several_calls_are_written_together(load, greedy, either):
    prompts = prompts_of(9, [1, 5, 3, 20, 9, 2] * 4)
    backend = load(either, pack_tokens=60)
    queries, steps = queries_computed(backend), list[int]()
    compute = backend.model.forward

    def forward(tokens: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
        if isinstance(step, Pack) and not step.causal:
            steps.append(len(step.live))
        return compute(tokens, positions, step)

    backend.model.forward = forward
    packs = packs_of(backend, prompts, greedy, range(24))
    assert len(queries) > 2 * len(packs)
    assert len(steps) <= len(packs) * greedy.automaton.longest
    assert sum(steps) > len(steps)


def test_lack_of_memory_opens_fewer_calls_and_then_makes_them_smaller():
    limits, found = PackLimits(rows=256, tokens=2048, calls_open=4), []
    for rows in (128, 128, 128, 64):
        limits.lower(rows, 10)
        found.append((limits.calls_open, limits.tokens))
    assert found == [(2, 2048), (1, 2048), (1, 640), (1, 320)]


@pytest.mark.parametrize("chunk", [4, 7])
def test_a_query_longer_than_a_chunk_is_answered_alike(load, references, tokenizer, greedy, exact, either, chunk):
    """Its beginning is computed as a prefix of its own and dropped again."""
    sizes = [30, 2, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1]
    for prefix in (0, 40):
        prompts = prompts_of(prefix, sizes)
        for decoding in decodings(greedy, exact):
            small = load(either, chunk_tokens=chunk)
            assert_same(run(small, prompts, decoding), run(load(either), prompts, decoding))
            assert small.counters.prefix_tokens == prefix
            assert small.counters.own_tokens == sum(sizes)
    (answer,) = run(small, prompts, exact, [0])
    assert_exact(answer, label_logs(references[either], tokenizer, prompts.ids(0)))


def test_after_a_long_query_the_prefix_can_still_be_extended(load, references, exact, either):
    backend = load(either, chunk_tokens=6)
    for prefix in (11, 25, 60):
        run(backend, prompts_of(prefix, [40, 3]), exact)
    prompts = prompts_of(90, LENGTHS)
    found = packed_logits(backend, prompts)
    assert backend.counters.prefix_tokens == 11 + (25 - 6) + (60 - 24) + (90 - 60)
    for i, _ in enumerate(LENGTHS):
        expected = plain_logits(references[either], prompts.ids(i))[-1]
        torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)


def test_a_nested_sweep_computes_whole_chunks_of_a_prefix_once(load, greedy, either):
    """What lies behind the last whole chunk is computed for each prefix."""
    backend = load(either, chunk_tokens=16)
    own = 0
    for k, prefix in enumerate((3, 40, 41, 100)):
        prompts = prompts_of(prefix, [k + 1, 5, 9])
        run(backend, prompts, greedy)
        own += prompts.own_tokens
    computed = 3 + 40 + (41 - 32) + (100 - 32)
    assert backend.counters.prefix_tokens == computed
    assert backend.counters.prompt_tokens == computed + own


def test_another_or_a_shorter_prefix_starts_anew(load, references, greedy, either):
    backend = load(either, chunk_tokens=16)
    computed = 0
    for prefix, seed in ((50, 0), (50, 1), (20, 1), (20, 1), (0, 1), (50, 0)):
        prompts = prompts_of(prefix, LENGTHS, seed)
        found = packed_logits(backend, prompts)
        for i, _ in enumerate(LENGTHS):
            expected = plain_logits(references[either], prompts.ids(i))[-1]
            torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)
        again = prefix == 20 and backend.counters.prefix_tokens == computed
        computed += 0 if again else prefix
        assert backend.counters.prefix_tokens == computed
    assert computed == 50 + 50 + 20 + 50


def test_a_dropped_prefix_is_freed_at_once_without_a_search_for_garbage(load, greedy, either, monkeypatch):
    """Where large libraries are loaded the search takes longer than a small window's losses."""

    def looked(*_: int) -> int:
        raise AssertionError("garbage was looked for")

    monkeypatch.setattr("gc.collect", looked)
    gc.disable()
    try:
        backend = load(either)
        run(backend, prompts_of(40, [3, 5]), greedy)
        held = weakref.ref(backend.cache.prefix)
        assert held().nbytes() > 0
        backend.losses(ids(30, 1))
        assert held() is None
    finally:
        gc.enable()


def test_room_kept_for_a_longer_prefix_changes_nothing(load, greedy, either):
    prompts = prompts_of(40, LENGTHS)
    backend, roomy = load(either), load(either)
    expected = run(backend, prompts, greedy)
    (pack,) = packs_of(roomy, prompts, greedy, range(len(LENGTHS)), 400)
    assert_same(sorted(pack, key=lambda a: a.index), expected)
    assert roomy.peak_prefix_bytes >= backend.peak_prefix_bytes


def test_nothing_to_do_gives_no_answers(load, greedy):
    assert run(load("llama"), prompts_of(9, [2, 3]), greedy, []) == []


def test_a_cell_left_in_the_middle_does_not_disturb_the_next(load, greedy, either):
    backend, prompts = load(either, pack_rows=2), prompts_of(40, LENGTHS)
    packs: Iterator[list[Answer]] = backend.answer(prompts, range(6), [greedy] * 6, 0)
    next(packs)
    packs.close()
    assert_same(run(backend, prompts, greedy), run(load(either), prompts, greedy))


def test_an_interrupted_prefix_is_taken_up_where_it_was_whole(load, greedy, either, monkeypatch):
    backend, prompts = load(either, chunk_tokens=16), prompts_of(40, LENGTHS)
    real, calls = backend.model.forward, []

    def forward(*step: Any) -> torch.Tensor:
        calls.append(real(*step))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return calls[-1]

    monkeypatch.setattr(backend.model, "forward", forward)
    with pytest.raises(KeyboardInterrupt):
        run(backend, prompts, greedy)
    assert_same(run(backend, prompts, greedy), run(load(either), prompts, greedy))
    assert backend.counters.prefix_tokens == 40


# -- lack of memory -----------------------------------------------------------------------------


def limit_memory(monkeypatch: Any, backend: TransformersBackend, tokens: int, steps: type = object) -> None:
    """Pretend that calls of more than so many tokens do not fit."""
    real = backend.model.forward

    def forward(flat: torch.Tensor, positions: torch.Tensor, step: Any) -> torch.Tensor:
        hidden = real(flat, positions, step)  # as on a device, part of the work is done by then
        if len(flat) > tokens and isinstance(step, steps):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return hidden

    monkeypatch.setattr(backend.model, "forward", forward)


def test_packs_are_halved_until_they_fit(load, greedy, exact, either, monkeypatch):
    prompts = prompts_of(40, [1, 5, 3, 20, 9, 2] * 4)
    for decoding in decodings(greedy, exact):
        nodes = 4 if decoding is exact else 1
        backend = load(either, chunk_tokens=32)
        limit_memory(monkeypatch, backend, 32 * nodes)
        assert_same(run(backend, prompts, decoding), run(load(either), prompts, decoding))
        assert backend.counters.own_tokens == prompts.own_tokens
        assert backend.counters.prefix_tokens == 40
        assert backend.counters.packs["tokens"] < 2048


def test_a_prefix_is_computed_in_smaller_chunks_where_memory_is_short(load, references, either, monkeypatch):
    backend = load(either, chunk_tokens=300)
    limit_memory(monkeypatch, backend, 80)
    prompts = prompts_of(400, [4, 5])
    found = packed_logits(backend, prompts)
    assert backend.counters.prefix_tokens == 400
    for i in range(2):
        expected = plain_logits(references[either], prompts.ids(i))[-1]
        torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)


def test_queries_are_still_packed_after_the_prefix_needed_smaller_chunks(load, greedy, monkeypatch):
    backend = load("llama", chunk_tokens=300)
    limit_memory(monkeypatch, backend, 80, steps=Extend)
    (pack,) = packs_of(backend, prompts_of(400, [100, 101, 3]), greedy, range(3))
    assert len(pack) == 3


def test_short_queries_are_still_packed_after_long_ones_did_not_fit_together(load, greedy, monkeypatch):
    backend = load("llama")
    limit_memory(monkeypatch, backend, 80)
    prompts = prompts_of(40, [70, 71, *[3] * 20])
    for _ in range(2):
        packs = packs_of(backend, prompts, greedy, range(22))
        assert [len(pack) for pack in packs] == [20, 1, 1]


def test_a_query_too_long_for_one_call_is_answered_in_several(load, greedy, either, monkeypatch):
    backend, prompts = load(either), prompts_of(40, [100, 3])
    limit_memory(monkeypatch, backend, 80)
    assert_same(run(backend, prompts, greedy), run(load(either), prompts, greedy))
    assert backend.counters.prompt_tokens == 143


def test_a_query_that_cannot_fit_fails_its_cell_and_no_other(load, greedy, either, monkeypatch):
    backend, fitting = load(either), prompts_of(40, [3, 4])
    limit_memory(monkeypatch, backend, 50)
    with pytest.raises(CellError, match=r"out of memory at 100 prompt tokens \(CUDA"):
        run(backend, prompts_of(40, [3, 60]), greedy)
    assert_same(run(backend, fitting, greedy), run(load(either), fitting, greedy))


def test_a_prefix_that_cannot_fit_fails_its_cell_and_no_other(load, greedy, either, monkeypatch):
    backend, fitting = load(either, chunk_tokens=64), prompts_of(9, [3, 4])
    limit_memory(monkeypatch, backend, 20)
    with pytest.raises(CellError, match="out of memory"):
        run(backend, prompts_of(40, [3, 60]), greedy)
    assert_same(run(backend, fitting, greedy), run(load(either), fitting, greedy))


def test_a_long_query_that_cannot_fit_fails_its_cell_and_no_other(load, greedy, either, monkeypatch):
    backend, prompts = load(either, chunk_tokens=16), prompts_of(40, [3, 60])
    real, calls = backend.model.forward, []

    def forward(*step: Any) -> torch.Tensor:
        calls.append(real(*step))
        if len(calls) == 7:  # the prefix takes three, the short query one, the long one four
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return calls[-1]

    monkeypatch.setattr(backend.model, "forward", forward)
    with pytest.raises(CellError, match="out of memory"):
        run(backend, prompts, greedy)
    assert len(calls) == 7
    computed = backend.counters.prompt_tokens
    assert_same(run(backend, prompts, greedy), run(load(either), prompts, greedy))
    assert backend.counters.prompt_tokens == computed + 40 + 63


def test_memory_kept_for_later_cells_does_not_fail_a_cell_that_fits(load, greedy, monkeypatch):
    real = Prefix.append_full

    def append(prefix: Prefix, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if max(prefix.capacity, prefix.length + key.shape[2]) > 120:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        real(prefix, layer, key, value)

    monkeypatch.setattr(Prefix, "append_full", append)
    backend = load("gemma3_text", chunk_tokens=16)
    for prefix in (9, 40, 100):
        prompts = prompts_of(prefix, [3, 4])
        (pack,) = packs_of(backend, prompts, greedy, [0, 1], 5_000)
        monkeypatch.undo()
        expected = run(load("gemma3_text"), prompts, greedy)
        monkeypatch.setattr(Prefix, "append_full", append)
        assert_same(sorted(pack, key=lambda a: a.index), expected)
    assert backend.counters.prefix_tokens == 9 + 40 + (100 - 32)
    with pytest.raises(CellError, match="out of memory"):
        run(backend, prompts_of(200, [3]), greedy)


def test_the_messages_of_cpu_and_gpu_allocators_are_lack_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**17)
    assert out_of_memory(caught.value)
    assert out_of_memory(torch.OutOfMemoryError("x"))
    for library in ("CUBLAS", "CUDNN", "CUSOLVER"):
        said = f"CUDA error: {library}_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        assert out_of_memory(RuntimeError(said))
    assert not out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_clock_is_read_when_the_device_has_done_its_work(load, greedy, monkeypatch):
    backend, waited = load("llama"), []

    def wait(device: torch.device) -> None:
        waited.append(device)
        time.sleep(0.05)

    monkeypatch.setattr("icl_bench.backends.transformers.backend.finish", wait)
    run(backend, prompts_of(40, [3, 5]), greedy)
    assert len(waited) == 2  # the prefix, the pack
    assert backend.counters.prefix_seconds >= 0.05
    assert backend.counters.seconds >= 0.1


def test_a_gpu_is_waited_for_and_a_cpu_need_not_be(monkeypatch):
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    finish(torch.device("cpu"))
    assert not waited
    finish(torch.device("cuda:1"))
    assert waited == [torch.device("cuda:1")]


def test_other_errors_are_not_taken_for_lack_of_memory(load, greedy, monkeypatch):
    backend = load("llama")

    def forward(*step: Any) -> torch.Tensor:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(backend.model, "forward", forward)
    with pytest.raises(RuntimeError, match="shapes"):
        run(backend, prompts_of(0, [3]), greedy)
    with pytest.raises(RuntimeError, match="shapes"):
        run(backend, prompts_of(5, [3]), greedy)


# -- logits that are no numbers -------------------------------------------------------------------


def poisoned(real: Callable[..., torch.Tensor], value: float) -> Callable[..., torch.Tensor]:
    """A call of the model whose last hidden state is not what it was."""

    def forward(*step: Any) -> torch.Tensor:
        hidden = real(*step).clone()
        hidden[-1:] = value  # of a prefix none is read
        return hidden

    return forward


HELP = {
    "float16": "use --dtype bfloat16 or float32",
    "bfloat16": "use --dtype float32",
    "float32": "the checkpoint is damaged",
}


@pytest.mark.parametrize("dtype", HELP)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_fail_the_cell_with_what_helps(load, greedy, exact, monkeypatch, dtype, value):
    prompts = prompts_of(9, [20, 2])
    for decoding in decodings(greedy, exact):
        backend = load("llama", chunk_tokens=8)
        monkeypatch.setattr(backend.model, "forward", poisoned(backend.model.forward, value))
        backend.model.head.dtype = getattr(torch, dtype)
        for todo in ([0], [1]):  # in calls of its own, and packed
            with pytest.raises(CellError, match=f"logits in {dtype} are infinite.*{HELP[dtype]}"):
                run(backend, prompts, decoding, todo)
        with pytest.raises(CellError, match="are infinite or NaN"):
            backend.losses(ids(20, 0))


@pytest.mark.parametrize("place", ["demonstrations", "query"])
def test_a_token_that_the_model_has_no_weights_for_fails_the_cell_by_its_number(load, tokenizer, greedy, exact, place):
    """As a special token that was added to the tokenizer alone: a card would end the program."""
    prompts, unknown = prompts_of(9, [5, 2]), len(tokenizer)
    if place == "query":
        own = prompts.suffixes[0]
        prompts = replace(prompts, suffixes=((*own[:2], unknown, *own[2:]), prompts.suffixes[1]))
    else:
        prompts = replace(prompts, prefix=(*prompts.prefix[:4], unknown, *prompts.prefix[4:]))
    for decoding in decodings(greedy, exact):
        for todo in ([0], [0, 1]):
            with pytest.raises(CellError, match=f"token {unknown:,}, .* weights of {unknown:,} tok"):
                run(load("llama"), prompts, decoding, todo)
    backend = load("llama")
    with pytest.raises(CellError, match=f"token {unknown:,}"):
        backend.losses((*ids(6, 0), unknown, *ids(6, 1)))


def test_a_model_that_leaves_the_range_of_a_format_is_not_loaded_in_it(folders, tokenizer, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folders["llama"])
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(100)
        model.model.layers[0].mlp.down_proj.weight.mul_(2e4)
    model.save_pretrained(tmp_path / "wide")
    with pytest.raises(CellError, match=r"logits in float16 .*use --dtype bfloat16 or float32"):
        TransformersBackend.load(tmp_path / "wide", tokenizer, dtype="float16", device="cpu")
    TransformersBackend.load(tmp_path / "wide", tokenizer, dtype="float32", device="cpu")


# -- what is refused ----------------------------------------------------------------------------


def small(kind: str, **fields: Any) -> Any:
    from transformers import AutoConfig

    common = {"vocab_size": 421, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return AutoConfig.for_model(kind, **{**common, **fields})


HEADS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
REFUSED = {
    "alibi": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "alibi, another way": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4}),
    "a state instead of attention": ("mamba", {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}),
    "capped scores": ("gemma2", {**HEADS, "head_dim": 8}),
    "sinks": ("gpt_oss", {**HEADS, "head_dim": 8, "num_local_experts": 2}),
    "chunks": ("llama4_text", {**HEADS, "head_dim": 8, "intermediate_size_mlp": 48}),
    "frequencies that depend on the length": (
        "llama",
        {**HEADS, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "long and short frequencies": (
        "phi3",
        {
            **HEADS,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "a window that its attention is not told": ("phimoe", {**HEADS, "sliding_window": 64, "num_local_experts": 2}),
    "sparse layers": (
        "minimax_m3_vl_text",
        {
            **HEADS,
            "head_dim": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "layer_types": ["full_attention", "minimax_m3_sparse"],
        },
    ),
    "a state beside attention": (
        "falcon_h1",
        {**HEADS, "head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "positions of its own": ("marian", {**HEADS, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4}),
    "some layers without attention": (
        "lfm2",
        {**HEADS, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_attention_is_not_computed_here_is_refused(name, tokenizer, tmp_path):
    kind, fields = REFUSED[name]
    folder = save_tiny_model(small(kind, **fields), tmp_path / kind)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(UserError, match=r"does not compute it \(.*\); vLLM [\d.]+ ") as caught:
            TransformersBackend.load(folder, tokenizer, dtype=dtype, device="cpu")
        assert len(str(caught.value).replace(str(folder), "")) < 300


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
COMPUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "gpt_neox": ("gpt_neox", {**HEADS, "rotary_pct": 0.5}),
    "granite": ("granite", {**HEADS, "logits_scaling": 3.0, "attention_multiplier": 0.1}),
    "olmo2": ("olmo2", HEADS),
    "phi3": ("phi3", HEADS),
    "qwen2, with windows": (
        "qwen2",
        {**HEADS, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {**HEADS, "head_dim": 16}),
    "a window of no tokens": ("qwen2_moe", {**HEADS, "moe_intermediate_size": 16, "num_experts": 4}),
    "heads of another width in some layers": (
        "gemma4_text",
        {**HEADS, **MIXED, "head_dim": 8, "global_head_dim": 16, "vocab_size_per_layer_input": 421},
    ),
    "keys of an earlier layer": (
        "gemma4_text",
        {
            **HEADS,
            "num_hidden_layers": 4,
            "layer_types": MIXED["layer_types"] * 2,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "head_dim": 8,
            "global_head_dim": 16,
            "vocab_size_per_layer_input": 421,
        },
    ),
    "a result that is viewed in another shape": (
        "afmoe",
        {**HEADS, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 8, "num_dense_layers": 1},
    ),
}


def test_an_encoder_with_a_decoder_is_refused_in_one_line(tokenizer, tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=421, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"does not compute it \(it is not a decoder-only model\); vLLM [\d.]+ does not list"
    ):
        TransformersBackend.load(tmp_path, tokenizer, dtype="float32", device="cpu")


@pytest.mark.parametrize("name", COMPUTED)
def test_other_common_models_are_computed_as_by_their_own_forward_pass(name, tokenizer, tmp_path):
    kind, fields = COMPUTED[name]
    folder = save_tiny_model(small(kind, **fields), tmp_path / kind)
    backend = TransformersBackend.load(folder, tokenizer, dtype="float32", device="cpu", chunk_tokens=9)
    prompts = prompts_of(50, LENGTHS)
    found, reference = packed_logits(backend, prompts), plain_model(folder)
    for i, _ in enumerate(LENGTHS):
        expected = plain_logits(reference, prompts.ids(i))[-1]
        torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_small_error_of_attention_is_found_in_every_format(dtype, folders, tokenizer, monkeypatch):
    """Of a size that rounding in 16 bits has, too."""
    right = loaded_model._attention

    def wrong(*given: Any, scaling: float, **options: Any) -> Any:
        return right(*given, scaling=scaling * 1.02, **options)

    TransformersBackend.load(folders["llama"], tokenizer, dtype=dtype, device="cpu")
    monkeypatch.setattr(loaded_model, "_attention", wrong)
    with pytest.raises(UserError, match="its logits differ from the model's own"):
        TransformersBackend.load(folders["llama"], tokenizer, dtype=dtype, device="cpu")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_indices": torch.zeros(1)}, r"the argument 'block_indices', which is not supported"),
        ({"is_causal": False}, r"the argument 'is_causal'"),
        ({"anything": 0.5}, r"the argument 'anything'"),
        ({"attention_mask": torch.zeros(1)}, r"uses its own mask"),
        ({"step": None}, r"does not pass options"),
    ],
)
def test_an_argument_of_attention_that_is_not_known_is_refused_by_name(
    options, reason, folders, tokenizer, monkeypatch
):
    right = loaded_model._attention

    def given(module: Any, query: Any, key: Any, value: Any, mask: Any, **other: Any) -> Any:
        named = {"attention_mask": mask, **other, **options}
        return right(module, query, key, value, named.pop("attention_mask"), **named)

    monkeypatch.setattr(loaded_model, "_attention", given)
    with pytest.raises(UserError, match=rf"{reason}.*\); vLLM [\d.]+ computes it: --backend vllm"):
        TransformersBackend.load(folders["llama"], tokenizer, dtype="float32", device="cpu")


def test_a_layer_of_a_kind_that_is_not_known_is_refused_by_name(folders, tokenizer):
    model = LoadedModel.load(folders["gemma3_text"], tokenizer, None, "float32", "cpu")
    model.config.layer_types = ["sliding_attention", "a_new_kind"] * 2
    with pytest.raises(UserError, match="layers of the kind 'a_new_kind'"):
        check_forward(model)


def test_a_model_that_its_own_library_cannot_compute_is_a_users_error(folders, tokenizer, monkeypatch):
    model = LoadedModel.load(folders["llama"], tokenizer, None, "float32", "cpu")

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("no such kernel")

    monkeypatch.setattr(model.network, "forward", fails)
    with pytest.raises(UserError, match=r"its own forward pass fails: no such kernel"):
        check_forward(model)


@pytest.mark.parametrize("fails", ["own", "packed"])
def test_a_model_without_room_for_a_layer_in_float32_is_compared_in_its_own_format(
    fails, folders, tokenizer, monkeypatch
):
    model = LoadedModel.load(folders["llama"], tokenizer, None, "bfloat16", "cpu")
    forward, calls = model.network.model.layers[0].forward, 0

    def layer(hidden: torch.Tensor, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (1 if fails == "own" else 2):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(hidden, **options)

    monkeypatch.setattr(model.network.model.layers[0], "forward", layer)
    weights = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    check_forward(model)
    assert calls > 3
    kept = model.network.get_input_embeddings().weight
    assert torch.equal(kept, weights["model.embed_tokens.weight"])


def test_weights_are_the_same_after_a_pass_in_float32(folders, tokenizer):
    model = LoadedModel.load(folders["gemma3_text"], tokenizer, None, "bfloat16", "cpu")
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    with in_float32(model.network):
        hidden = model.core(torch.tensor([[1, 2, 3]]), use_cache=False).last_hidden_state
    assert hidden.dtype == torch.float32
    for name, weight in model.network.state_dict().items():
        assert weight.dtype == before[name].dtype
        assert torch.equal(weight, before[name]), name
    plain = model.core(torch.tensor([[1, 2, 3]]), use_cache=False).last_hidden_state
    assert plain.dtype == torch.bfloat16


def test_a_folder_without_a_model_is_a_users_error(tmp_path, tokenizer):
    with pytest.raises(UserError, match="cannot be loaded"):
        TransformersBackend.load(tmp_path, tokenizer, device="cpu")


def test_a_device_that_is_not_there_is_a_users_error():
    with pytest.raises(UserError, match="--device nonsense: not usable here"):
        choose_device("nonsense")


def test_a_backend_says_its_arithmetic(load):
    assert load("llama").identity() == {"backend": "transformers", "dtype": "float32"}


def test_a_model_that_does_not_fit_the_memory_is_a_users_error(folders, tokenizer, monkeypatch):
    from transformers import AutoModelForCausalLM

    def load(*_: Any, **__: Any) -> Any:
        return torch.empty(10**17)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load)
    with pytest.raises(UserError, match="does not fit the memory"):
        TransformersBackend.load(folders["llama"], tokenizer, device="cpu")


def test_a_model_that_leaves_no_memory_to_compute_in_is_a_users_error(folders, tokenizer, monkeypatch):
    def full(*_: Any) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")

    monkeypatch.setattr(LoadedModel, "plain_logits", full)
    with pytest.raises(UserError, match=r"does not fit the memory \(CUDA error: CUBLAS"):
        TransformersBackend.load(folders["llama"], tokenizer, device="cpu")


# -- prompts that go on from a pack -------------------------------------------------------------


def going_on(prompts: PromptSet, pack: Sequence[Answer], seed: int) -> PromptSet:
    """Each prompt of a pack with a part of what was written, and other tokens behind it."""
    rng = np.random.default_rng(seed)
    further = [answer.ids[: int(rng.integers(len(answer.ids) + 1))] + ids(3, 40 + i) for i, answer in enumerate(pack)]
    return prompts.extended([answer.index for answer in pack], further)


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        (256, "full"),
        (3, "full"),
        (3, "grouped:2,60"),
        (3, "approx:60,4"),
        pytest.param(256, "grouped:2,60", marks=pytest.mark.thorough),
        pytest.param(256, "approx:60,4", marks=pytest.mark.thorough),
    ],
)
def test_prompts_that_go_on_from_a_pack_are_answered_as_if_computed_anew(load, exact, greedy, kind, pattern, rows):
    how, free = Pattern.parse(pattern), Free((), 11)
    prompts, decodings = prompts_of(70, [9, 4, 12, 4, 7, 30]), [exact, greedy]
    for decoding in decodings:
        backend, number = load(kind, pack_tokens=64, pack_rows=rows), 0
        for number, pack in enumerate(backend.answer(prompts, range(6), [free] * 6, 0, how)):
            second = going_on(prompts, pack, number)
            before = backend.counters.own_tokens
            found = [a for p in backend.answer(second, range(len(pack)), [decoding] * len(pack), 0, how) for a in p]
            assert backend.counters.own_tokens - before < second.own_tokens - sum(map(len, prompts.suffixes[:1]))
            anew = load(kind)
            expected = [a for p in anew.answer(second, range(len(pack)), [decoding] * len(pack), 0, how) for a in p]
            assert_same(sorted(found, key=by_index), sorted(expected, key=by_index))
        assert number or rows > 3


def by_index(answer: Answer) -> int:
    return answer.index


def test_a_packs_keys_are_kept_only_while_its_answers_are_handed_over(load, either):
    backend, prompts = load(either, pack_rows=2), prompts_of(20, [5, 6, 7, 8])
    for _ in backend.answer(prompts, range(4), [Free((), 3)] * 4, 0):
        assert backend._kept is not None
    assert (backend._kept, backend._answered) == (None, None)


def test_a_query_that_is_asked_again_is_computed_anew(load, either):
    prompts, free = prompts_of(20, [5, 6]), Free((), 3)
    backend = load(either)
    packs = backend.answer(prompts, range(2), [free] * 2, 0)
    first = next(packs)  # and the packs are left open, as by an exception that is looked at
    before = backend.counters.own_tokens
    assert [a for pack in backend.answer(prompts, range(2), [free] * 2, 0) for a in pack] == first
    assert backend.counters.own_tokens == before + prompts.own_tokens
    packs.close()
    assert backend._kept is None


def test_queries_that_are_equal_go_on_from_their_own_answers(load, exact, either):
    backend, suffix = load(either), ids(6, 3)
    prompts = PromptSet(ids(30, 1), (suffix, suffix, suffix[:4]))
    (pack,) = backend.answer(prompts, range(3), [Free((), 6)] * 3, 0)
    del pack
    for pack in backend.answer(prompts, range(3), [Free((), 6)] * 3, 0):
        second = going_on(prompts, pack, 5)
        found = [a for p in backend.answer(second, range(3), [exact] * 3, 0) for a in p]
        expected = [a for p in load(either).answer(second, range(3), [exact] * 3, 0) for a in p]
        assert_same(sorted(found, key=by_index), sorted(expected, key=by_index))
