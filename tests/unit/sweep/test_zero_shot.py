"""The prompt without demonstrations is one cell, whatever else is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner, tokenized_task

from icl_bench.errors import UserError
from icl_bench.prompts.encoding import PromptTokenizer
from icl_bench.prompts.rendering import PlainForm, query_text
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.cells import CellSpec
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.sweep.plan import CellPlan, Plan

ZERO_SHOT = {"select": "random", "order": "drawn", "attention": "full", "k": 0, "draw": 0}


def of_k(made: Plan, k: int) -> list[CellPlan]:
    return [cell for cell in made.cells if cell.spec.k == k]


def test_its_prompts_are_the_bare_queries(tmp_path: Path):
    made = plan(tmp_path, "0")
    found, (group,) = made.task, made.groups
    ((_, prompts),) = group.group.prompts([0])
    template, test = found.data.spec.template, found.data.test
    texts = [query_text(template, row) for row in test]
    assert [prompts.ids(i) for i in range(len(test))] == [found.encoder.whole(t) for t in texts]
    assert [prompts.text(i) for i in range(len(test))] == texts
    (cell,) = made.cells
    assert cell.prompt_tokens == prompts.prompt_tokens
    assert cell.prefix_tokens == len(prompts.prefix) > 0


@pytest.mark.parametrize("changes", [{}, FREE_TEXT])
@pytest.mark.parametrize(
    "asked",
    [
        {"selects": ["bm25"]},
        {"selects": ["random", "hybrid:2", "bm25"], "draws": 3},
        {"orders": ["shuffled:1", "shuffled:2"]},
        {"attention": ["full", "block:1"]},
        {"attention": ["block:1"], "draws": None},
    ],
)
def test_selectors_orders_patterns_and_draws_have_one_cell_together(
    tmp_path: Path, asked: dict[str, Any], changes: dict[str, Any]
):
    made = plan(tmp_path, "0,2", **asked, **changes)
    (cell,) = of_k(made, 0)
    assert cell.spec.model_dump(exclude={"task", "model"}) == ZERO_SHOT
    without = plan(tmp_path, "2", **asked, **changes)
    assert of_k(made, 2) == without.cells


def test_a_hybrid_needs_room_for_its_own_where_there_are_demonstrations(tmp_path: Path):
    made = plan(tmp_path, "0,2", selects=["hybrid:2"], draws=1)
    assert [cell.spec.k for cell in made.cells] == [0, 2]
    with pytest.raises(UserError, match="k=1 has no room for 2"):
        plan(tmp_path, "1", selects=["hybrid:2"])
    beside = plan(tmp_path, "0,1", selects=["hybrid:2"])
    assert [cell.spec.k for cell in beside.cells] == [0]


def test_with_auto_it_stands_before_the_ladder(tmp_path: Path):
    made = plan(tmp_path, "0,auto", draws=1)
    assert [cell.spec.k for cell in made.cells] == [0, 1, 5, 10, 25, 40]


def test_it_runs_where_no_demonstration_fits(tmp_path: Path):
    (bare,) = plan(tmp_path, "0").cells
    made = plan(tmp_path, "0,30", draws=1, context_tokens=bare.needed_tokens)
    assert [cell.problem is None for cell in made.cells] == [True, False]


def test_changed_demonstrations_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="labels:permuted: a prompt of k=0 has no demonstration"):
        plan(tmp_path, "0", perturbation="labels:permuted")


def test_its_cell_has_the_facts_of_random_selection_and_shows_nothing(tmp_path: Path):
    made = plan(tmp_path / "task", "0,2", draws=2)
    outcome = runner(made, tmp_path / "results", FakeBackend()).run()
    assert [spec.k for spec in outcome.computed] == [0, 2, 2]
    frame = read_results(tmp_path / "results")
    assert frame["variant"].nunique() == 1
    bare = frame[frame["k"] == 0]
    assert len(bare) == len(made.task.data.test)
    assert set(bare["draw"]) == {0}
    (meta,) = (m for _, m in finished_cells(tmp_path / "results") if m.spec.k == 0)
    assert meta.demonstration_ids == []
    assert meta.demonstration_labels == {}


def test_more_of_it_is_computed_once(tmp_path: Path):
    first = plan(tmp_path / "task", "0", selects=["bm25"])
    runner(first, tmp_path / "results", FakeBackend()).run()
    again = plan(tmp_path / "task", "0", orders=["by-label"], draws=5)
    outcome = runner(again, tmp_path / "results", engine=None).run()
    assert [spec.k for spec in outcome.kept] == [0]
    assert outcome.computed == []


def test_cells_with_demonstrations_keep_their_names(tmp_path: Path):
    names = {
        (made.cells[-1].spec, runner(made, tmp_path / "results").identity(made.cells[-1]).cell)
        for made in (plan(tmp_path, "2"), plan(tmp_path, "0,2"))
    }
    assert len(names) == 1
    ((spec, _),) = names
    assert spec == CellSpec(task="cards", model="small", select="random", order="drawn", attention="full", k=2, draw=1)


@pytest.mark.parametrize("named", [{}, {"select": "bm25"}, {"order": "by-label", "draw": 3}])
def test_its_prompt_is_shown_by_any_name(tmp_path: Path, named: dict[str, Any]):
    made = plan(tmp_path / "task", "0,2", selects=["bm25"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    shown = find_prediction(tmp_path / "results", {"task": "cards", "k": 0, "draw": 0, **named})
    first, template = made.task.data.test[0], made.task.data.spec.template
    assert shown.prompt == query_text(template, first)
    assert shown.demonstrations == ()


def test_without_a_first_token_queries_may_have_nothing_in_common(tmp_path: Path):
    found = tokenized_task(tmp_path, template={"input": "{text}", "output": "intent: {label}"})
    tokenizer: Any = found.tokenizer
    encoder = PromptTokenizer(PlainForm(found.data.spec.template), _without_bos(tokenizer))
    prompts = encoder.shared_prompts([], [0], found.data.test)[0]
    assert prompts.prefix == ()
    texts = [query_text(found.data.spec.template, row) for row in found.data.test]
    assert list(prompts.suffixes) == [encoder.whole(text) for text in texts]


def _without_bos(tokenizer: Any) -> Any:
    from support.fakes import SmallTokenizer

    found = SmallTokenizer.__new__(SmallTokenizer)
    found.backend_tokenizer = tokenizer.backend_tokenizer
    found.bos_token_id = None
    return found
