"""A plan's token counts are those of the prompts, and what cannot run says why."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes import FREE_TEXT, plan, tokenized_task
from support.models import tiny_checkpoint

from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.prompts.encoding import Ids
from icl_bench.prompts.rendering import prompt_text
from icl_bench.sweep import tokenized_task as tokenized_task_module
from icl_bench.sweep.k_values import KValues
from icl_bench.sweep.notes import notes, same_prompts
from icl_bench.sweep.plan import DEFAULT_DRAWS, CellPlan, Plan, make_plan
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

KINDS = [
    ("random", "drawn"),
    ("random", "shuffled:3"),
    ("random", "by-label"),
    ("bm25", "relevance"),
    ("bm25", "relevance-reversed"),
    ("hybrid:1", "drawn"),
    ("hybrid:1,by=dense", "shuffled:3"),
    ("balanced", "drawn"),
    ("balanced+hybrid:1", "by-label"),
    ("centroids", "drawn"),
    ("centroids+hybrid:1", "drawn"),
    ("dense", "relevance"),
]

pytestmark = pytest.mark.usefixtures("word_encoder")


def prompts_of(group: PromptGroup, k: int) -> list[Ids]:
    """A cell's prompts, each tokenized whole."""
    found = group.task
    shown = group.demonstrations(k)
    if group.shared:
        shown = np.tile(shown, (len(found.data.test), 1))
    template, train = found.data.spec.template, found.data.train
    texts = [
        prompt_text(template, [train[i] for i in chosen], query)
        for chosen, query in zip(shown, found.data.test, strict=True)
    ]
    return [found.encoder.whole(text) for text in texts]


def pairs(made: Plan) -> list[tuple[PromptGroup, CellPlan]]:
    return [(planned.group, cell) for planned in made.groups for cell in planned.cells]


def test_planning_says_at_which_draw_it_is(tmp_path: Path):
    said: list[str] = []
    task = tokenized_task(tmp_path, context_tokens=100)
    selects = [SelectorSpec.parse(text) for text in ("random", "bm25")]
    made = make_plan(task, KValues.parse("1,2,max"), selects, draws=3, say=said.append)
    assert len(made.groups) == 6
    counts = [text.partition(": ")[2] for text in said if text.startswith("choosing")]
    assert counts == [f"{n} of 6 draws" for n in range(1, 7)]
    searches = [text for text in said if text.startswith("searching for the largest k of bm25")]
    assert [text.partition(": ")[2] for text in searches] == [f"{n} of 3 draws" for n in range(1, 4)]


@pytest.mark.parametrize(("select", "order"), KINDS)
def test_a_cells_counts_are_those_of_its_prompts(tmp_path: Path, select: str, order: str):
    made = plan(tmp_path, "1,3,12", selects=[select], orders=[order])
    assert len(made.cells) == 6
    for group, cell in pairs(made):
        prompts = prompts_of(group, cell.spec.k)
        assert cell.longest_prompt == max(map(len, prompts))
        assert cell.prompt_tokens == sum(map(len, prompts))
        assert cell.needed_tokens == cell.longest_prompt + group.task.answer_tokens
        ((_, stored),) = group.prompts([cell.spec.k])
        assert [stored.ids(i) for i in range(len(prompts))] == prompts
        assert cell.prefix_tokens == len(stored.prefix)


def test_the_longest_answer_is_counted_with_its_end(tmp_path: Path):
    found = tokenized_task(tmp_path)
    lead = len(found.encoder.whole("intent:"))
    answers = [len(found.encoder.whole(f"intent: {label}\n")) - lead for label in found.data.labels]
    assert found.answer_tokens == max(answers)
    assert tokenized_task(tmp_path, **FREE_TEXT).answer_tokens == 9


def test_a_smaller_k_begins_a_larger_one_in_every_draw(tmp_path: Path):
    made = plan(tmp_path, "1,2,5,20", draws=3)
    assert [len(planned.cells) for planned in made.groups] == [4, 4, 4]
    for planned in made.groups:
        prompts = [p for _, p in planned.group.prompts([1, 2, 5, 20])]
        for smaller, larger in itertools.pairwise(prompts):
            assert larger.prefix[: len(smaller.prefix)] == smaller.prefix
            assert len(larger.prefix) > len(smaller.prefix)


@pytest.mark.parametrize("select", ["random", "hybrid:1", "balanced+hybrid:1"])
def test_a_group_computes_its_longest_prefix_once_and_the_queries_for_each_k(tmp_path: Path, select: str):
    groups = plan(tmp_path, "1,2,5,20", selects=[select]).groups
    assert groups
    for planned in groups:
        queries = sum(p.own_tokens for _, p in planned.group.prompts([1, 2, 5, 20]))
        assert sum(c.new_tokens for c in planned.cells) == planned.cells[-1].prefix_tokens + queries
        assert planned.reserve == planned.cells[-1].prefix_tokens
        assert all(c.shared_tokens == c.prompt_tokens - c.new_tokens for c in planned.cells)


def test_draws_are_permutations_of_their_own_that_a_seed_decides(tmp_path: Path):
    found = tokenized_task(tmp_path)
    first, second = found.pool.drawn(0), found.pool.drawn(1)
    assert sorted(first) == sorted(second) == list(found.pool.rows)
    assert list(first) != list(second)
    assert list(tokenized_task(tmp_path).pool.drawn(0)) == list(first)
    assert list(tokenized_task(tmp_path, seed=1).pool.drawn(0)) != list(first)


def test_by_default_random_is_drawn_ten_times_and_retrieval_once(tmp_path: Path):
    made = plan(tmp_path, "1", draws=None, selects=["random", "bm25"])
    of = [cell.spec.select for cell in made.cells]
    assert (of.count("random"), of.count("bm25")) == (DEFAULT_DRAWS, 1)
    assert {cell.spec.draw for cell in made.cells} == set(range(DEFAULT_DRAWS))


def test_a_selector_or_order_that_is_named_twice_is_planned_once(tmp_path: Path):
    made = plan(tmp_path, "1", draws=1, selects=["random", "random"], orders=["by-label", "by-label"])
    assert [cell.spec.order for cell in made.cells] == ["by-label"]


@pytest.mark.parametrize(("select", "order"), KINDS)
def test_every_prompt_shows_k_different_demonstrations(tmp_path: Path, select: str, order: str):
    found = tokenized_task(tmp_path, train_rows=42)
    group = PromptGroup(found, SelectorSpec.parse(select), Order.parse(order), 0)
    assert all(sorted(row) == list(found.pool.rows) for row in np.atleast_2d(group.demonstrations(42)))


def test_the_longest_demonstrations_are_left_out_of_the_pool(tmp_path: Path):
    found = tokenized_task(tmp_path, pool={"drop_longest": 0.3})
    longest = found.lengths[found.pool.rows].max()
    assert 0 < found.pool.dropped == (found.lengths > longest).sum() <= 0.3 * 40
    assert set(found.pool.drawn(0)) == set(found.pool.rows)


def test_a_pool_with_rows_of_all_lengths_is_not_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenized_task_module, "demonstration_lengths", lambda *_: pytest.fail("tokenized"))
    found = tokenized_task(tmp_path, pool={"drop_longest": 0.0})
    assert found.pool.rows.tolist() == list(range(40))
    with pytest.raises(pytest.fail.Exception, match="tokenized"):
        tokenized_task(tmp_path / "other", pool={"drop_longest": 0.3}).pool  # noqa: B018


# -- what does not fit --------------------------------------------------------------------------


def test_a_k_that_does_not_fit_is_named_with_its_numbers_and_skipped(tmp_path: Path):
    made = plan(tmp_path, "1,2,30", draws=1, context_tokens=100)
    small, _, large = made.cells
    assert small.problem is None
    assert large.needed_tokens > 100
    assert made.problems == [f"k=30 needs {large.needed_tokens:,} tokens; small reads 100"]
    assert [cell.spec.k for cell in made.groups[0].runnable] == [1, 2]
    assert made.groups[0].reserve == made.cells[1].prefix_tokens


def test_a_k_that_fits_in_some_draws_only_says_in_how_many_it_does_not(tmp_path: Path):
    needs = [c.needed_tokens for c in plan(tmp_path, "4", draws=5).cells]
    assert min(needs) < max(needs)
    made = plan(tmp_path, "4", draws=5, context_tokens=max(needs) - 1)
    fails = needs.count(max(needs))
    (said,) = made.problems
    assert said.startswith(f"k=4 needs {max(needs)} tokens; small reads {max(needs) - 1} (1 of the 6 test rows, ")
    assert said.endswith(f" (in {fails} of 5 draws)")


def test_a_k_larger_than_the_pool_is_named_with_its_numbers_and_skipped(tmp_path: Path):
    made = plan(tmp_path, "1,41,50")
    assert made.problems == [
        "k=41 is more than the pool's 40 demonstrations",
        "k=50 is more than the pool's 40 demonstrations",
    ]
    assert [cell.spec.k for group in made.groups for cell in group.runnable] == [1, 1]


@pytest.mark.parametrize("k", ["3", "max", "auto"])
@pytest.mark.parametrize("select", ["random", "bm25"])
def test_where_nothing_fits_the_plan_is_refused(tmp_path: Path, k: str, select: str):
    with pytest.raises(UserError, match="nothing fits"):
        plan(tmp_path, k, selects=[select], context_tokens=20)


def test_where_nothing_fits_the_refusal_has_the_numbers(tmp_path: Path):
    with pytest.raises(UserError, match=r"k=3 needs \d+ tokens; small reads 20"):
        plan(tmp_path, "3", context_tokens=20)


@pytest.mark.parametrize(("select", "order"), KINDS)
@pytest.mark.parametrize("window", [60, 137, 250, 409])
def test_max_is_the_largest_k_that_fits(tmp_path: Path, select: str, order: str, window: int):
    made = plan(tmp_path, "max", draws=1, selects=[select], orders=[order], context_tokens=window)
    (cell,) = made.cells
    assert cell.needed_tokens <= window
    k, group = cell.spec.k, made.groups[0].group
    longer = max(map(len, prompts_of(group, k + 1))) + group.task.answer_tokens
    assert longer > window


def test_max_is_the_whole_pool_where_that_fits(tmp_path: Path):
    assert [cell.spec.k for cell in plan(tmp_path, "max", draws=1).cells] == [40]


def test_max_is_the_same_in_all_draws(tmp_path: Path):
    found, drawn = tokenized_task(tmp_path, context_tokens=250), Order.parse("drawn")
    each = [PromptGroup(found, SelectorSpec(), drawn, draw).largest() for draw in range(10)]
    assert len(set(each)) > 1
    made = plan(tmp_path, "max", draws=10, context_tokens=250)
    assert {cell.spec.k for cell in made.cells} == {min(each)}


def test_auto_is_the_ladder_up_to_the_largest(tmp_path: Path):
    assert [cell.spec.k for cell in plan(tmp_path, "auto", draws=1).cells] == [1, 5, 10, 25, 40]


# -- bad requests -------------------------------------------------------------------------------


def test_an_unknown_selector_is_refused_with_the_nearest(tmp_path: Path):
    with pytest.raises(UserError, match=r"--select bm52: not a selector; did you mean bm25\?"):
        plan(tmp_path, selects=["bm52"])


def test_an_order_that_a_selector_cannot_have_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no relevance"):
        plan(tmp_path, orders=["relevance"])
    with pytest.raises(UserError, match="ranked, not sampled"):
        plan(tmp_path, selects=["bm25"], orders=["drawn"])
    with pytest.raises(UserError, match="free text"):
        plan(tmp_path, orders=["by-label"], **FREE_TEXT)


@pytest.mark.parametrize("draws", [0, -1, 10_001, True, "three", 1.5])
def test_a_number_of_draws_that_nobody_can_mean_is_refused_with_what_is_expected(draws: Any):
    with pytest.raises(UserError, match=r"^--draws .*: expected (1 or more|at most 10,000|a whole number)$"):
        RunSpec(task="trec", model="gemma3-270m", k=1, draws=draws)


def test_a_plan_needs_no_engine_and_writes_nothing(tmp_path: Path):
    found = tokenized_task(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    make_plan(found, KValues.parse("1,auto"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_says_how_many_prompts_draws_of_retrieval_have_in_common(tmp_path: Path):
    some = plan(tmp_path / "some", "2,8", selects=["bm25", "random"], draws=3, train_rows=12)
    assert same_prompts(some) == [
        "bm25, relevance: 10 of the 24 prompts of later draws are the same as in an earlier draw and answered once"
    ]
    every = plan(tmp_path / "every", "2", selects=["dense"], draws=2)
    assert same_prompts(every) == [
        "dense, relevance: 6 of the 6 prompts of later draws are the same as in an earlier draw and answered once; "
        "its draws count as one"
    ]
    assert same_prompts(plan(tmp_path / "one", "2", selects=["bm25"], draws=1)) == []


def test_rows_in_file_order_are_said_to_be_shuffled_by_a_holdout(tmp_path: Path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"words {i},{'ab'[i % 2]}\n" for i in range(20)))
    (model := tmp_path / "model").mkdir()
    tiny_checkpoint(model)
    options = {"model": str(model), "k": "2", "draws": 1, "dtype": "float32"}

    def said(**more: object) -> list[str]:
        return [text for text in notes(Sweep.prepare(RunSpec(**{**options, **more}))) if "shuffled" in text]

    asked = {"select": "first,bm25,first+hybrid:1", "order": "drawn,pool"}
    assert said(task=str(rows), **asked) == [
        "--select first: the rows that a holdout leaves for train are shuffled, not in the file's order",
        "--select first+hybrid:1: the rows that a holdout leaves for train are shuffled, not in the file's order",
        "--order pool: the rows that a holdout leaves for train are shuffled, not in the file's order",
    ]
    assert not said(task=str(rows), select="random,bm25")
    assert not said(task="stdlib_six", test_size=4, **asked)
