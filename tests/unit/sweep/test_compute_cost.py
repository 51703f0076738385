"""What prompts take: operations and bytes by formula equal a count of each token and its keys."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.fakes import ENGINE, FREE_TEXT, FakeBackend, plan, tokenized_task

from icl_bench.backends.interface import Greedy
from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import finished_cells
from icl_bench.results.store import Store
from icl_bench.sweep.compute_cost import AnswerWork, ComputeCost, PromptLayout, cache_bytes, cost_of, flops
from icl_bench.sweep.runner import Runner

SHAPE = Architecture(parameters=1000, heads_width=8, windows=(None, 4), key_width=5)
GLOBAL = Architecture(parameters=1000, heads_width=8, windows=(None,), key_width=5)
NONE, TWO = [AnswerWork()], [AnswerWork((1.0, 1.0))]
"""An answer that is read off the query, and one for which two tokens are fed back."""
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
    found = cost_of(PromptLayout(FULL, 10, (3, 5)), SHAPE, TWO, "float32")
    one, two = (read(10, end + 2) for end in (13, 15))
    assert found.prefix_flops == read(0, 10)
    assert found.query_flops == (one + two) / 2
    assert found.whole_flops == read(0, 10) + (one + two) / 2


HEADED = Architecture(1000, 8, (None, None), 5, hidden_width=3, vocabulary=50)
"""A model of which all that is computed is known, but for the parts of its last layer."""


def test_the_last_token_of_an_answer_is_not_fed_back_and_each_has_logits():
    assert AnswerWork.generated(3, 50) == AnswerWork((1.0, 1.0), 150)
    assert AnswerWork.generated(2.5, 50) == AnswerWork((1.0, 0.5), 125)
    assert AnswerWork.generated(1, 50) == AnswerWork((), 50)
    assert AnswerWork.generated(0, 50) == AnswerWork((), 0)
    none = cost_of(PromptLayout(FULL, 10, (3,)), HEADED, NONE, "float32")
    found = cost_of(PromptLayout(FULL, 10, (3,)), HEADED, [AnswerWork.generated(2.5, 50)], "float32")
    fed = 2 * 1000 + 4 * 8 * 14 * 2 + 0.5 * (2 * 1000 + 4 * 8 * 15 * 2)
    assert found.query_flops - none.query_flops == fed + 2 * 3 * 50 * 2.5
    assert found.prefix_flops == none.prefix_flops


def test_each_answer_has_work_of_its_own():
    works = [AnswerWork.generated(n, 50) for n in (1, 4)]
    both = cost_of(PromptLayout(FULL, 10, (3, 3)), HEADED, works, "float32")
    one, other = (cost_of(PromptLayout(FULL, 10, (3,)), HEADED, [work], "float32") for work in works)
    assert both.query_flops == (one.query_flops + other.query_flops) / 2


def test_of_the_last_layer_only_what_is_read_is_computed():
    """Of 1,000 parameters 400 are the last layer's, 100 of them its projections.

    Of the prefix and the query's first tokens they are computed alone, and of the query's last token
    a second time with the rest of the layer; tokens that are fed back are computed whole.
    """
    shape = Architecture(1000, 8, (None, None), 5, layer_parameters=400, projection_parameters=100)
    found = cost_of(PromptLayout(FULL, 10, (3,)), shape, TWO, "float32")
    assert found.prefix_flops == 2 * 700 * 10 + 4 * 8 * 55
    query = 2 * (700 * 3 + 400) + 4 * 8 * (11 + 12 + 13 + 13)
    assert found.query_flops == query + 2 * 1000 * 2 + 4 * 8 * (14 + 15) * 2
    whole = cost_of(PromptLayout(FULL, 10, (3,)), shape.with_whole_layers(), TWO, "float32")
    assert whole.prefix_flops == 2 * 1000 * 10 + 4 * 8 * 55 * 2


def test_scoring_all_labels_takes_the_tokens_of_all_labels(tmp_path: Path):
    """Each beginning of a label once, however many labels begin so; nothing follows an end."""
    made = plan(tmp_path / "task", "2", draws=1, scoring="exact")
    task = made.task
    ids = [tuple(found) for found in task.encoder.answers(task.data.labels)]
    beginnings = {label[:n] for label in ids for n in range(1, len(label))}
    assert len(beginnings) > 3
    fed = Counter(map(len, beginnings))
    work = AnswerWork(tuple(fed[n] for n in range(1, max(fed) + 1)), 50 * (len(beginnings) + 1))
    assert set(task.answer_works(task.data.test, [0] * 6, 50, skips_unread=True)) == {work}
    assert task.planned_answer(50, skips_unread=True) == work
    Runner(made, Store(tmp_path / "results"), ENGINE, FakeBackend, architecture=lambda: HEADED, skips_unread=True).run()
    ((_, meta),) = finished_cells(tmp_path / "results")
    (cell,) = made.cells
    assert meta.compute == asdict(cost_of(cell.prompt_layout, HEADED, [work], "float32"))


def test_a_request_for_each_token_computes_those_before_it_again(tmp_path: Path):
    made = plan(tmp_path / "task", "2", draws=1, scoring="exact")
    task = made.task
    ids = [tuple(found) for found in task.encoder.answers(task.data.labels)]
    beginnings = {label[:n] for label in ids for n in range(1, len(label))}
    fed = Counter(place for beginning in beginnings for place in range(len(beginning)))
    assert fed[1] > 0
    work = AnswerWork(tuple(fed[place] for place in range(max(fed) + 1)), 50 * (len(beginnings) + 1))
    assert set(task.answer_works(task.data.test, [0] * 6, 50, skips_unread=False)) == {work}
    assert task.planned_answer(50, skips_unread=False) == work


@pytest.mark.parametrize("skips", [False, True])
def test_generated_labels_take_the_head_at_each_token_or_of_the_allowed_tokens_alone(tmp_path: Path, skips: bool):
    made, shape = plan(tmp_path / "task", "2", draws=1), replace(HEADED, vocabulary=400)
    Runner(made, Store(tmp_path / "results"), ENGINE, FakeBackend, architecture=lambda: shape, skips_unread=skips).run()
    ((_, meta),) = finished_cells(tmp_path / "results")
    (cell,), (decoding, *_) = made.cells, made.task.decodings(made.task.data.test)
    assert isinstance(decoding, Greedy)
    logits = len(decoding.automaton.vocabulary) if skips else 400
    assert skips == (logits < 100)
    work = AnswerWork.generated(2, logits)  # answers of the stand-in have two tokens
    assert meta.compute == asdict(cost_of(cell.prompt_layout, shape, [work], "float32"))


def test_a_plan_counts_half_of_the_longest_answer(tmp_path: Path):
    there = tokenized_task(tmp_path / "labels")
    assert there.planned_answer(50, skips_unread=True) == AnswerWork.generated(there.answer_tokens / 2, 0)
    there = tokenized_task(tmp_path / "text", **FREE_TEXT)
    assert there.planned_answer(50, skips_unread=True) == AnswerWork.generated(4.5, 50)


def test_equal_lengths_count_as_often_as_they_are_there():
    found = cost_of(PromptLayout(FULL, 10, (3, 3, 3, 5)), SHAPE, NONE, "float32")
    assert found.query_flops == (3 * read(10, 13) + read(10, 15)) / 4


def test_the_cache_holds_keys_and_values_of_the_longest_prompt():
    """15 tokens in the global layer and the last 3 in the other, of width 5 and 4 bytes, twice."""
    prompts = PromptLayout(FULL, 10, (3, 5, 1))
    assert cost_of(prompts, SHAPE, TWO, "float32").cache_bytes == 2 * (15 + 3) * 5 * 4
    assert cost_of(prompts, SHAPE, TWO, "bfloat16").cache_bytes == 2 * (15 + 3) * 5 * 2
    assert cache_bytes(SHAPE, FULL, 2, "float16") == 2 * (2 + 2) * 5 * 2


def test_a_cell_without_queries_has_its_prefix_alone():
    assert cost_of(PromptLayout(FULL, 10, ()), SHAPE, TWO, "float32") == ComputeCost(
        read(0, 10), 0.0, 0.0, 2 * (10 + 3) * 5 * 4
    )


def test_blocks_that_all_share_see_themselves_and_queries_see_all():
    prompts = PromptLayout(APART, 9, (3, 4), ends=((4, 9),))
    found = cost_of(prompts, GLOBAL, TWO, "float32")
    ends, only = (4, 9), (None,)
    assert found.prefix_flops == read(0, 9, ends, only)
    queries = [read(9, 9 + own + 2, ends, only) for own in (3, 4)]
    assert found.query_flops == sum(queries) / 2
    assert found.whole_flops == found.prefix_flops + found.query_flops
    # ten tokens' worth of keys is saved on reading all of them in one block
    assert found.prefix_flops == read(0, 9, (), only) - 4 * 8 * (5 * 4)


def test_prompts_with_demonstrations_of_their_own_have_blocks_of_their_own():
    """The first prompt has demonstrations of 4 and 4 tokens, the second of 2 and 7; same length."""
    prompts = PromptLayout(APART, 1, (10, 10), ends=((4, 8), (2, 9)))
    found = cost_of(prompts, GLOBAL, NONE, "float32")
    whole = [read(0, 11, ends, (None,)) for ends in ((4, 8), (2, 9))]
    assert whole[0] != whole[1]
    assert found.whole_flops == sum(whole) / 2
    assert found.query_flops == found.whole_flops - read(0, 1, (), (None,))
    assert prompts.layout(1).starts.tolist() == [0] * 2 + [2] * 7


def test_with_reuse_each_different_demonstration_is_read_once():
    """Prompts of one token before demonstrations of 3 and 4, and of 3 and 6; all three are read once."""
    ends = ((4, 8), (4, 10))
    prompts = PromptLayout(REUSED, 1, (10, 12), ends=ends, lead=1, encoded=(3, 4, 6))
    found = cost_of(prompts, GLOBAL, TWO, "float32")
    only = (None,)
    head, each = read(0, 1, (), only), {size: read(0, size, (), only) for size in (3, 4, 6)}
    queries = [read(e[-1], end + 2, e, only) for e, end in zip(ends, (11, 13), strict=True)]
    assert found.prefix_flops == head + sum(each.values())
    assert found.query_flops == sum(queries) / 2
    assert found.whole_flops == head + (2 * each[3] + each[4] + each[6] + sum(queries)) / 2


def test_demonstrations_that_are_reused_are_read_behind_the_sink():
    """The sink is the first demonstration: with the token before it, four tokens that all others see."""
    prompts = PromptLayout(Pattern.parse("block:1,reuse"), 4, (10,), ends=((4, 8),), lead=1, encoded=(4,))
    found = cost_of(prompts, GLOBAL, NONE, "float32")
    assert found.prefix_flops == read(0, 8, (), (None,))


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
    assert PromptLayout.of(prompts(ends), FULL) == PromptLayout(FULL, 1, (5, 6), lead=1)
    assert PromptLayout.of(prompts(ends), APART) == PromptLayout(APART, 1, (5, 6), ends, 1)
    # (1, 2), (3, 4) and (5, 6): the first is in both prompts
    assert PromptLayout.of(prompts(ends), REUSED) == PromptLayout(REUSED, 1, (5, 6), ends, 1, (2, 2, 2))
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


def test_layers_of_different_widths_cost_what_each_of_them_takes():
    wide, narrow = Architecture(0, 16, (None,), 10), Architecture(0, 4, (3,), 6)
    both = Architecture(0, 10, (None, 3), 8, layer_widths=((16, 10), (4, 6)))
    parts = [flops(one, FULL, None, 2, 20) for one in (wide, narrow)]
    assert flops(both, FULL, None, 2, 20) == sum(parts)
    assert cache_bytes(both, FULL, 20, "float32") == sum(
        cache_bytes(one, FULL, 20, "float32") for one in (wide, narrow)
    )
    assert both.flops(5, 7) == wide.flops(5, 7) + narrow.flops(5, 7)
    assert Architecture.of(json.loads(json.dumps(both.as_json()))) == both
