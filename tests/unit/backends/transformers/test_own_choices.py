"""Rows with choices of their own are answered, packed, as plain forward passes answer each alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import plain_logits, plain_model, qwen_tokenizer, tokenized
from support.models import random_ids as ids

from icl_bench.backends.interface import Answer, Exact, Greedy
from icl_bench.backends.label_constraint import compile_labels, label_trie, spellings_of, token_bytes
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.backends.transformers.packed_decoding import LabelSearch
from icl_bench.prompts.encoding import Ids, PromptSet

KINDS = ["llama", "gemma3_text"]  # full layers only, and full and sliding ones
WORDS = ["a", "ab", "card", "order", "status", "état", "b c", "中"]
choice_lists = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join), min_size=2, max_size=5, unique=True
)
rows = st.lists(st.tuples(choice_lists, st.integers(1, 12)), min_size=1, max_size=7)
FEW = settings(max_examples=6)


class Setup(SimpleNamespace):
    """A tiny model twice: ours, and the library's own."""

    tokenizer: Any
    loaded: LoadedModel
    plain: Any


@pytest.fixture(scope="module", params=KINDS)
def setup(request: pytest.FixtureRequest, tokenizer: Any, folders: dict[str, Path]) -> Setup:
    folder = folders[str(request.param)]
    torch.set_num_threads(1)
    loaded = LoadedModel.load(folder, tokenizer, None, "float32", "cpu")
    check_forward(loaded)  # from here on its attention is ours
    return Setup(tokenizer=tokenizer, loaded=loaded, plain=plain_model(folder))


def prompts_of(lengths: Sequence[int], prefix: int) -> PromptSet:
    return PromptSet(ids(prefix, 0), tuple(ids(n, 7 * i + 1) for i, n in enumerate(lengths)))


def written(choices: Sequence[str]) -> list[str]:
    return [f" {choice}\n" for choice in choices]


def answered(setup: Setup, prompts: PromptSet, own: Sequence[Any], **limits: int) -> tuple[list[Answer], int]:
    """All answers in the order of the prompts, and in how many packs they came."""
    backend = TransformersBackend(setup.loaded, **limits)
    packs = list(backend.answer(prompts, range(len(prompts)), own, 0))
    found = sorted((a for pack in packs for a in pack), key=lambda a: a.index)
    return found, len(packs)


def summed_logs(setup: Setup, prompt: Ids, answers: Sequence[Ids]) -> np.ndarray:
    """Log-probability of each answer by a forward pass of its own: ``(answers,)``."""
    logs = []
    for answer in answers:
        steps = torch.log_softmax(plain_logits(setup.plain, prompt + answer), -1)
        behind = steps[len(prompt) - 1 : -1]
        logs.append(float(sum(step[t] for step, t in zip(behind, answer, strict=True))))
    return np.array(logs)


@FEW
@given(rows=rows, prefix=st.sampled_from([0, 20]), divided=st.sampled_from([None, "tokens", "bytes"]))
def test_each_rows_choices_are_scored_in_one_pack_as_by_forward_passes_of_the_plain_model(
    setup: Setup, rows: list[tuple[list[str], int]], prefix: int, divided: str | None
):
    prompts = prompts_of([size for _, size in rows], prefix)
    asked = [[tokenized(setup.tokenizer, text) for text in written(own)] for own, _ in rows]
    sizes = {
        "tokens": [tuple(map(len, own)) for own in asked],
        "bytes": [tuple(len(text.encode()) for text in own) for own, _ in rows],
    }
    own = [Exact(label_trie(answers), sizes[divided][i] if divided else None) for i, answers in enumerate(asked)]
    found, packs = answered(setup, prompts, own)
    assert packs == 1
    for i, answer in enumerate(found):
        logs = summed_logs(setup, prompts.ids(i), asked[i])
        compared = logs / np.array(sizes[divided][i]) if divided else logs
        chances = np.exp(logs)
        assert compared[answer.label] == pytest.approx(compared.max(), abs=1e-3)
        assert answer.probability == pytest.approx(chances[answer.label], rel=1e-3)
        others = np.delete(chances, answer.label).max()
        assert answer.margin == pytest.approx(chances[answer.label] - others, rel=1e-2, abs=1e-7)
        assert answer.label_mass == pytest.approx(chances.sum(), rel=1e-3)
        assert (answer.margin >= 0) or divided


@FEW
@given(rows=rows, prefix=st.sampled_from([0, 20]))
def test_a_search_finds_the_two_most_probable_labels_that_forward_passes_of_the_plain_model_find(
    setup: Setup, rows: list[tuple[list[str], int]], prefix: int
):
    prompts = prompts_of([size for _, size in rows], prefix)
    asked = [[tokenized(setup.tokenizer, text) for text in written(own)] for own, _ in rows]
    tries = [label_trie(answers) for answers in asked]
    found, _ = answered(setup, prompts, [Exact(trie, every=False) for trie in tries])
    for i, answer in enumerate(found):
        chances = np.exp(summed_logs(setup, prompts.ids(i), asked[i]))
        assert chances[answer.label] == pytest.approx(chances.max(), rel=1e-3)
        assert answer.probability == pytest.approx(chances[answer.label], rel=1e-3)
        second = np.delete(chances, answer.label).max()
        assert answer.margin == pytest.approx(chances[answer.label] - second, rel=1e-2, abs=1e-7)
        assert (answer.label_mass, answer.scores) == (None, None)
        assert 1 <= answer.answer_tokens <= len(tries[i].inner)


def test_a_search_leaves_out_labels_that_cannot_win(setup: Setup):
    """Twelve labels of several tokens, of which not all beginnings are extended."""
    choices = [f"{first} {second} order" for first in ("a", "card", "top", "b") for second in ("up", "lost", "c")]
    trie = label_trie([tokenized(setup.tokenizer, text) for text in written(choices)])
    prompts = prompts_of([3, 4, 5], 20)
    searched, _ = answered(setup, prompts, [Exact(trie, every=False)] * 3)
    scored, _ = answered(setup, prompts, [Exact(trie)] * 3)
    for one, other in zip(searched, scored, strict=True):
        assert one.label == other.label
        assert one.probability == pytest.approx(other.probability, rel=1e-4)
        assert one.margin == pytest.approx(other.margin, rel=1e-3)
        assert one.answer_tokens < len(trie.inner)


def test_divided_sums_need_every_label(setup: Setup):
    trie = label_trie([tokenized(setup.tokenizer, text) for text in written(["a", "b c"])])
    (answer,), _ = answered(setup, prompts_of([3], 5), [Exact(trie, (1, 2), every=False)])
    assert answer.label_mass is not None


def test_one_label_is_scored_whole(setup: Setup):
    trie = label_trie([tokenized(setup.tokenizer, text) for text in written(["card status order"])])
    prompts = prompts_of([3], 5)
    (searched,), _ = answered(setup, prompts, [Exact(trie, every=False)])
    (scored,), _ = answered(setup, prompts, [Exact(trie)])
    assert searched.probability == pytest.approx(scored.probability, rel=1e-4)
    assert searched.answer_tokens == len(trie.inner)


def search_by_hand(
    logs: dict[tuple[str, ...], float], words: Sequence[tuple[str, ...]]
) -> tuple[LabelSearch, list[int]]:
    """A search over known log-probabilities of words, and the nodes in the order of their extension."""
    names = sorted({word for path in words for word in path})
    trie = label_trie([tuple(names.index(word) for word in path) for path in words])
    paths: dict[int, tuple[str, ...]] = {0: ()}
    for node in range(1, len(trie.tokens)):
        paths[node] = (*paths[int(trie.parents[node])], names[int(trie.tokens[node])])
    search, order, todo = LabelSearch(trie), [], [0]
    while todo:
        for node in todo:
            below = search.trie.children[node]
            order.append(paths[node])
            search.extend(node, np.array([logs[paths[int(child)]] for child in below]))
        todo = search.next(1)
    return search, order


def test_beginnings_are_extended_until_none_can_be_the_second():
    words = [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")]
    logs = {("a",): -0.1, ("b",): -3.0, ("c",): -9.0}
    logs |= {("a", "x"): -0.1, ("a", "y"): -5.0, ("b", "x"): -0.1, ("c", "x"): -0.1}
    search, order = search_by_hand(logs, words)
    # a first; of a y (-5.1) and b (at most -3.0) b may be the second, and is (-3.1); c (at most -9.0) cannot
    assert order == [(), ("a",), ("b",)]
    answer = search.answer(7)
    assert (answer.index, answer.label, answer.answer_tokens) == (7, 0, 3)
    assert answer.probability == pytest.approx(np.exp(-0.2))
    assert answer.margin == pytest.approx(np.exp(-0.2) - np.exp(-3.1))


def test_a_beginning_as_probable_as_the_second_is_extended_for_ties():
    words = [("a", "x"), ("b", "x"), ("c", "x")]
    logs = {("a",): -1.0, ("b",): -1.0, ("c",): -1.0, **{(first, "x"): 0.0 for first in "abc"}}
    search, order = search_by_hand(logs, words)
    assert order == [(), ("a",), ("b",), ("c",)]
    assert (search.answer(0).label, search.answer(0).margin) == (0, 0)


@FEW
@given(rows=rows, prefix=st.sampled_from([0, 20]), exact=st.booleans())
def test_what_is_packed_together_changes_no_answer(
    setup: Setup, rows: list[tuple[list[str], int]], prefix: int, exact: bool
):
    prompts = prompts_of([size for _, size in rows], prefix)
    own: list[Any] = [
        Exact(label_trie([tokenized(setup.tokenizer, text) for text in written(choices)]))
        if exact
        else Greedy(compile_labels(written(choices), setup.tokenizer))
        for choices, _ in rows
    ]
    together, packs = answered(setup, prompts, own)
    assert packs == 1
    for limits in ({"pack_rows": 1}, {"pack_tokens": 30}):
        apart, _ = answered(setup, prompts, own, **limits)
        for one, other in zip(together, apart, strict=True):
            assert (one.label, one.answer_tokens) == (other.label, other.answer_tokens)
            if exact:
                assert one.probability == pytest.approx(other.probability, rel=1e-4)


@FEW
@given(rows=rows)
def test_greedy_rows_take_the_likeliest_token_that_their_own_choices_allow(
    setup: Setup, rows: list[tuple[list[str], int]]
):
    prompts = prompts_of([size for _, size in rows], 20)
    spelled = token_bytes(setup.tokenizer)
    own = [Greedy(compile_labels(written(c), setup.tokenizer)) for c, _ in rows]
    found, _ = answered(setup, prompts, own)
    for i, answer in enumerate(found):
        encoded = [text.encode() for text in written(rows[i][0])]
        tokens, so_far = list(prompts.ids(i)), b""
        while sum(text.startswith(so_far) for text in encoded) > 1:
            logits = plain_logits(setup.plain, tuple(tokens))[-1]
            allowed = [t for t, piece in spelled.items() if any(text.startswith(so_far + piece) for text in encoded)]
            tokens.append(max(allowed, key=lambda t: float(logits[t])))
            so_far += spelled[tokens[-1]]
        assert encoded[answer.label].startswith(so_far)


@FEW
@given(choices=choice_lists)
def test_an_automaton_is_the_same_with_spellings_that_are_at_hand(choices: list[str]):
    tokenizer = qwen_tokenizer()
    fresh = compile_labels(written(choices), tokenizer)
    kept = compile_labels(written(choices), tokenizer, None, spellings_of(tokenizer))
    assert fresh.answers == kept.answers
    for one, other in zip([*fresh.tokens, *fresh.targets], [*kept.tokens, *kept.targets], strict=True):
        assert one.tolist() == other.tolist()
    assert fresh.decided.tolist() == kept.decided.tolist()


def test_packs_of_trees_of_their_own_keep_within_rows_and_tokens(setup: Setup):
    choices = [["a", "b c"], ["card status order", "état 中", "a b c"], ["a", "ab"]] * 4
    tries = [label_trie([tokenized(setup.tokenizer, t) for t in written(c)]) for c in choices]
    prompts = prompts_of([1 + i % 5 for i in range(12)], 5)
    backend = TransformersBackend(setup.loaded, pack_rows=5, pack_tokens=60)
    for pack in backend.answer(prompts, range(12), list(map(Exact, tries)), 0):
        widest = max(len(prompts.suffixes[a.index]) + len(tries[a.index].inner) for a in pack)
        assert len(pack) <= 5
        assert len(pack) == 1 or len(pack) * widest <= 60


def test_the_largest_log_probability_for_its_size_wins_and_the_numbers_stay_as_they_are():
    logs = np.log([0.5, 0.2, 0.1])
    plain = Answer.of_scores(0, logs, None)
    assert (plain.label, plain.probability, plain.margin) == (0, *map(pytest.approx, (0.5, 0.3)))
    divided = Answer.of_scores(0, logs, (1, 4, 2))
    assert (divided.label, divided.probability) == (1, pytest.approx(0.2))
    assert divided.margin == pytest.approx(-0.3)
    assert divided.label_mass == pytest.approx(0.8)
