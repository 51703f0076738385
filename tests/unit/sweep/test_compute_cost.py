"""What prompts take: operations and bytes by formula equal a count of each token and its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from support.fakes import ENGINE, FakeBackend, plan, tokenized_task

from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import finished_cells
from icl_bench.results.store import Store
from icl_bench.sweep.compute_cost import ComputeCost, PromptLayout, cache_bytes, cost_of, flops
from icl_bench.sweep.runner import Runner

SHAPE = Architecture(parameters=1000, heads_width=8, windows=(None, 4), key_width=5)
GLOBAL = Architecture(parameters=1000, heads_width=8, windows=(None,), key_width=5)
APART, REUSED = Pattern.parse("block:1,sink=0,local=0"), Pattern.parse("block:1,sink=0,local=0,reuse")


def read(first: int, last: int, ends: Sequence[int] = (), windows: Sequence[int | None] = (None, 4)):
    """Operations of the tokens from first to last, each counted by itself.

    Two for each of 1,000 parameters, and four for each key of width 8: a token sees itself and what
    went before it, within its layer's window; a token of a demonstration no more than this one.
    """
    total = 0
    for token in range(first, last):
        block = max((end for end in (0, *ends) if end <= token), default=0)
        low = block if ends and token < ends[-1] else 0
        keys = sum(
            len([k for k in range(low, token + 1) if window is None or token - k < window]) for window in windows
        )
        total += 2 * 1000 + 4 * 8 * keys
    return total


def test_shared_demonstrations_are_read_once_and_queries_behind_them():
    """Ten shared tokens, queries of three and five more, and two tokens of an answer each."""
    found = cost_of(PromptLayout(FULL, 10, (3, 5)), SHAPE, 2.0, "float32")
    one, two = (read(10, end) + 2 * read(end, end + 1) for end in (13, 15))
    assert found.prefix_flops == read(0, 10)
    assert found.query_flops == (one + two) / 2
    assert found.whole_flops == read(0, 10) + (one + two) / 2


def test_scoring_all_labels_takes_the_tokens_of_all_labels(tmp_path: Path):
    """Each beginning of a label once, however many labels begin so; nothing follows an end."""
    made = plan(tmp_path / "task", "2", draws=1, scoring="exact")
    task = made.task
    ids = [tuple(found) for found in task.encoder.answers(task.data.labels)]
    beginnings = {label[:n] for label in ids for n in range(1, len(label))}
    assert task.scored_tokens(task.data.test) == len(beginnings) > 3
    Runner(made, Store(tmp_path / "results"), ENGINE, FakeBackend, architecture=lambda: GLOBAL).run()
    ((_, meta),) = finished_cells(tmp_path / "results")
    (cell,) = made.cells
    expected = cost_of(cell.prompt_layout, GLOBAL, len(beginnings), "float32")
    assert meta.compute == asdict(expected)
    assert tokenized_task(tmp_path / "task").scored_tokens(task.data.test) is None


def test_equal_lengths_count_as_often_as_they_are_there():
    found = cost_of(PromptLayout(FULL, 10, (3, 3, 3, 5)), SHAPE, 0.0, "float32")
    assert found.query_flops == (3 * read(10, 13) + read(10, 15)) / 4


def test_the_cache_holds_keys_and_values_of_the_longest_prompt():
    """15 tokens in the global layer and the last 3 in the other, of width 5 and 4 bytes, twice."""
    prompts = PromptLayout(FULL, 10, (3, 5, 1))
    assert cost_of(prompts, SHAPE, 2.0, "float32").cache_bytes == 2 * (15 + 3) * 5 * 4
    assert cost_of(prompts, SHAPE, 2.0, "bfloat16").cache_bytes == 2 * (15 + 3) * 5 * 2
    assert cache_bytes(SHAPE, FULL, 2, "float16") == 2 * (2 + 2) * 5 * 2


def test_a_cell_without_queries_has_its_prefix_alone():
    assert cost_of(PromptLayout(FULL, 10, ()), SHAPE, 2.0, "float32") == ComputeCost(
        read(0, 10), 0.0, 0.0, 2 * (10 + 3) * 5 * 4
    )


def test_blocks_that_all_share_see_themselves_and_queries_see_all():
    prompts = PromptLayout(APART, 9, (3, 4), ends=((4, 9),))
    found = cost_of(prompts, GLOBAL, 1.0, "float32")
    ends, only = (4, 9), (None,)
    assert found.prefix_flops == read(0, 9, ends, only)
    queries = [read(9, 9 + own + 1, ends, only) for own in (3, 4)]
    assert found.query_flops == sum(queries) / 2
    assert found.whole_flops == found.prefix_flops + found.query_flops
    # ten tokens' worth of keys is saved on reading all of them in one block
    assert found.prefix_flops == read(0, 9, (), only) - 4 * 8 * (5 * 4)


def test_prompts_with_demonstrations_of_their_own_have_blocks_of_their_own():
    """The first prompt has demonstrations of 4 and 4 tokens, the second of 2 and 7; same length."""
    prompts = PromptLayout(APART, 1, (10, 10), ends=((4, 8), (2, 9)))
    found = cost_of(prompts, GLOBAL, 0.0, "float32")
    whole = [read(0, 11, ends, (None,)) for ends in ((4, 8), (2, 9))]
    assert whole[0] != whole[1]
    assert found.whole_flops == sum(whole) / 2
    assert found.query_flops == found.whole_flops - read(0, 1, (), (None,))
    assert prompts.layout(1).starts.tolist() == [0] * 2 + [2] * 7


def test_with_reuse_each_different_demonstration_is_read_once():
    """Demonstrations of 17 tokens are shown, of which one of 4 is in both prompts: 13 are read."""
    ends = ((4, 8), (5, 9))
    prompts = PromptLayout(REUSED, 1, (10, 11), ends=ends, encoded_tokens=13)
    found = cost_of(prompts, GLOBAL, 2.0, "float32")
    shown = [read(0, e[-1], e, (None,)) for e in ends]
    queries = [
        read(e[-1], end, e, (None,)) + 2 * read(end, end + 1, (), (None,))
        for e, end in zip(ends, (11, 12), strict=True)
    ]
    assert found.prefix_flops == pytest.approx(sum(shown) * 13 / 17)
    assert found.query_flops == sum(queries) / 2
    assert found.whole_flops == sum(queries + shown) / 2


def test_operations_begin_and_end_where_they_are_asked_for():
    assert flops(SHAPE, FULL, None, 0, 0) == 0
    assert flops(SHAPE, FULL, None, 2, 7) == read(2, 7)
    # layers of the same window count each
    assert flops(Architecture(0, 1, (None,) * 3), FULL, None, 0, 1) == 3 * 4


def prompts(ends: tuple[tuple[int, ...], ...]) -> PromptSet:
    """Two prompts that share a token: demonstrations of two tokens each, then a query."""
    own = ((1, 2, 3, 4, 9), (1, 2, 5, 6, 8, 9))
    return PromptSet((7,), own, ends=ends, lead=1)


def test_what_decides_the_cost_is_taken_from_the_prompts():
    ends = ((3, 5), (3, 5))
    assert PromptLayout.of(prompts(ends), FULL) == PromptLayout(FULL, 1, (5, 6))
    assert PromptLayout.of(prompts(ends), APART) == PromptLayout(APART, 1, (5, 6), ends)
    # (1, 2), (3, 4) and (5, 6): the first is in both prompts
    assert PromptLayout.of(prompts(ends), REUSED) == PromptLayout(REUSED, 1, (5, 6), ends, 6)
    sunk = Pattern.parse("block:1,reuse")  # the first demonstration stands in all prompts
    assert PromptLayout.of(prompts(ends), sunk).encoded_tokens == 4


def test_blocks_that_all_prompts_share_are_given_once():
    found = PromptLayout(APART, 5, (3, 4, 2), ends=((2, 5),))
    assert [found.layout(i).starts.tolist() for i in range(3)] == [[0, 0, 2, 2, 2]] * 3
    assert PromptLayout(FULL, 5, (3,)).layout(0) is None


def test_costs_are_stored_under_their_names():
    assert asdict(ComputeCost(1.0, 2.0, 3.0, 4.0)) == {
        "prefix_flops": 1.0,
        "query_flops": 2.0,
        "whole_flops": 3.0,
        "cache_bytes": 4.0,
    }
