"""A cell's answers are the same, bit for bit, whatever ran before it and however it was resumed.

In 16-bit formats a number depends on which tokens are computed in one call, so these are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models import random_ids as ids

from icl_bench.backends.interface import Answer, Decoding, Exact, Free
from icl_bench.backends.label_constraint import label_trie
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.forward_check import check_forward
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet

PATTERNS = ["full", "block:3,sink=1,local=1", "block:3,sink=0,local=0", "grouped:2,20", "approx:32,4"]
QUERIES = [4, 9, 1, 6, 17, 3, 3, 8]


@pytest.fixture(scope="module", params=["llama", "gemma3_text"])
def fresh(
    request: pytest.FixtureRequest, tokenizer: Any, folders: dict[str, Path]
) -> Callable[[], TransformersBackend]:
    """Makes a backend in bfloat16 that has computed nothing yet."""
    model = LoadedModel.load(folders[str(request.param)], tokenizer, None, "bfloat16", "cpu")
    check_forward(model)
    return lambda: TransformersBackend(copy.copy(model), chunk_tokens=16, pack_rows=3)


def cell(k: int, draw: int = 0) -> PromptSet:
    """Prompts over so many demonstrations of 3 to 15 tokens; those of one draw extend each other."""
    ends = np.cumsum(np.random.default_rng(draw).integers(3, 16, k)) + 1
    own = tuple(ids(size, 100 + i) for i, size in enumerate(QUERIES))
    found = tuple(ends.tolist())
    return PromptSet(ids(900, draw)[: found[-1]], own, ends=(found,), lead=1)


def retrieved(k: int) -> PromptSet:
    """Prompts with k demonstrations of their own, most of which several prompts have."""
    rng = np.random.default_rng(2)
    pool = [ids(int(size), 50 + i) for i, size in enumerate(rng.integers(3, 16, 30))]
    suffixes, ends = [], []
    for i in range(13):
        shown = [pool[0], *(pool[j] for j in 1 + rng.permutation(29)[: k - 1])]
        suffixes.append(sum(shown, ()) + ids(5 + i % 7, 300 + i))
        ends.append(tuple((1 + np.cumsum([len(s) for s in shown])).tolist()))
    return PromptSet((7,), tuple(suffixes), ends=tuple(ends), lead=1)


EXACT = Exact(label_trie([(3, 5), (3, 9, 2), (50, 1), (200,)]))


def answered(
    backend: TransformersBackend,
    prompts: PromptSet,
    pattern: Pattern = FULL,
    todo: Sequence[int] | None = None,
    decoding: Decoding = EXACT,
    reserve: int = 0,
) -> list[Answer]:
    """Answers with their probabilities, in the prompts' order."""
    wanted = range(len(prompts)) if todo is None else todo
    packs = backend.answer(prompts, wanted, [decoding] * len(prompts), reserve, pattern)
    found = sorted((answer for pack in packs for answer in pack if answer.index in wanted), key=lambda a: a.index)
    assert [answer.index for answer in found] == sorted(wanted)
    return found


def probabilities(answers: Sequence[Answer]) -> list[Any]:
    return [(a.label, a.probability, a.margin, a.label_mass) for a in answers]


@pytest.mark.parametrize("text", PATTERNS)
def test_a_cell_is_the_same_alone_and_after_others(fresh, text):
    pattern, large = Pattern.parse(text), cell(21)
    alone = answered(fresh(), large, pattern)
    backend = fresh()
    for before in (cell(2), cell(9, draw=1), cell(4), cell(20)):
        answered(backend, before, pattern, [0, 4], reserve=len(large.prefix) + 31)
    assert answered(backend, large, pattern) == alone


def test_a_cell_is_the_same_after_one_that_was_left_in_the_middle(fresh):
    large, backend = cell(21), fresh()
    packs = backend.answer(cell(9), range(len(QUERIES)), [EXACT] * len(QUERIES), 0)
    next(packs)
    packs.close()
    assert answered(backend, large) == answered(fresh(), large)


def test_queries_over_the_same_cell_see_the_same_bits_again(fresh):
    """The cell is there as it was; nothing is computed again."""
    backend, prompts = fresh(), cell(9)
    first, computed = answered(backend, prompts), backend.counters.prefix_tokens
    assert answered(backend, prompts) == first
    assert backend.counters.prefix_tokens == computed


@pytest.mark.parametrize("text", ["full", "block:3,sink=1,local=1"])
@pytest.mark.parametrize("todo", [[6], [0, 3], [1, 2, 4, 5, 7]])
def test_a_resumed_cell_goes_on_as_if_it_had_not_been_interrupted(fresh, text, todo):
    pattern, prompts = Pattern.parse(text), cell(9)
    whole = answered(fresh(), prompts, pattern)
    assert answered(fresh(), prompts, pattern, todo) == [whole[i] for i in todo]


@pytest.mark.parametrize("sink", [0, 1])
def test_a_cell_of_demonstrations_that_are_reused_is_the_same_alone_after_others_and_resumed(fresh, sink):
    pattern, prompts = Pattern.parse(f"block:1,sink={sink},local=0,reuse"), retrieved(6)
    alone = answered(fresh(), prompts, pattern)
    backend = fresh()
    answered(backend, retrieved(3), pattern)
    assert answered(backend, prompts, pattern) == alone
    some = [7, 10, 11]
    assert answered(fresh(), prompts, pattern, some) == [alone[i] for i in some]


def test_other_chunks_make_other_bits(fresh):
    """Else the other tests here would pass whatever is cut."""
    usual, other = fresh(), fresh()
    other.cache.chunk_tokens = 24
    found = [probabilities(answered(backend, cell(21))) for backend in (usual, other)]
    assert found[0] != found[1]


def test_free_answers_say_whether_they_were_cut(fresh):
    cut = answered(fresh(), cell(2), decoding=Free(("no such text",), 5))
    assert [answer.truncated for answer in cut] == [True] * len(QUERIES)
    text = str(cut[0].text)
    stopped = answered(fresh(), cell(2), todo=[0], decoding=Free((text[1:3],), 50))
    assert [(answer.text, answer.truncated) for answer in stopped] == [(text.split(text[1:3])[0], False)]
    assert answered(fresh(), cell(2), todo=[0])[0].truncated is None
