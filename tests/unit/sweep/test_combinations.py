"""Each combination of a mixed sweep is planned, or left out with the reason that it has alone."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fakes import FREE_TEXT, plan, planned, tokenized_task
from support.program import as_words

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.sweep.combinations import default_order
from icl_bench.sweep.plan import Plan
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.task_files import load_task

pytestmark = pytest.mark.usefixtures("word_encoder")

SELECTS = as_words("random balanced centroids bm25 dense hybrid:2 balanced+hybrid:3 per-label:1 hybrid:per-label:1")
ORDERS = ("drawn", "shuffled:3", "by-label", "relevance", "relevance-reversed")
PATTERNS = as_words(
    "full block:2 block:1,reuse block:1,sink=0,local=0,reuse block:2,top=2 block:2,top=0.5 grouped:2,9 vectors:3"
)
NUMBERS = (0, 1, 2, 3, 5, 39, 40)
"""Of the pool's 40, each label has 13: 40 cannot be balanced."""

HOW: tuple[dict[str, Any], ...] = (
    {},
    FREE_TEXT,
    {"queries": "copied"},
    {"perturbation": "labels:permuted"},
    {"perturbation": "nearest-removed:60"},
    {"perturbation": "inputs-only"},
)


def some(values: tuple[Any, ...], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most, unique=True)


Axes = tuple[str, str, str, int | None]


def left_out(made: Plan) -> dict[Axes, str]:
    return {one.axes: reason for one, reason in made.combinations.left_out.items()}


def laid_out(made: Plan) -> set[Axes]:
    """What cells stand for, those without demonstrations for all that is possible without."""
    of_cells = {(c.spec.select, c.spec.order, c.spec.attention, c.spec.k) for c in made.cells}
    bare = {one.axes for one in made.combinations.possible if one.k == 0}
    assert bool(bare) == any(k == 0 for *_, k in of_cells)
    return {one for one in of_cells if one[3]} | bare


def refused(task: TokenizedTask, one: Axes) -> str | None:
    """What is said where one combination is all that is asked for; None where it is planned."""
    select, order, attention, k = one
    try:
        made = planned(task, str(k), [select], [order], [attention], draws=1)
    except UserError as error:
        return str(error)
    assert laid_out(made) == {one}
    assert not left_out(made)
    return None


def has_more_alone(one: Axes) -> bool:
    """Of a selector that says its own number, k=0 cannot be asked for without that number."""
    return one[0] == "per-label:1" and one[3] == 0


@pytest.fixture(scope="module")
def task_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def made(number: int) -> TokenizedTask:
        return tokenized_task(tmp_path_factory.mktemp("task"), **HOW[number])

    return made


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    selects=some(SELECTS, 3),
    orders=st.none() | some(ORDERS, 2),
    patterns=some(PATTERNS, 2),
    numbers=some(NUMBERS, 3),
    how=st.integers(0, len(HOW) - 1),
    data=st.data(),
)
def test_each_combination_is_planned_or_left_out_as_it_is_alone(
    task_of: Any,
    selects: list[str],
    orders: list[str] | None,
    patterns: list[str],
    numbers: list[int],
    how: int,
    data: st.DataObject,
):
    task = task_of(how)
    k = ",".join(map(str, numbers))
    patterns = [str(Pattern.parse(pattern)) for pattern in patterns]

    def shots(select: str) -> list[int]:
        """Where the labels say how many there are, ``--k`` does not."""
        labels = len(task.pool.labels)
        return [n for n in numbers if not n] + [labels] if select == "per-label:1" else numbers

    def orders_of(select: str) -> list[str]:
        return orders or [str(default_order(SelectorSpec.parse(select)))]

    every = [
        (select, order, pattern, n)
        for select in selects
        for order, pattern, n in product(orders_of(select), patterns, shots(select))
    ]
    try:
        made = planned(task, k, selects, orders, patterns, draws=1)
    except UserError as error:
        why = re.sub(r"k=\d+ ", "", str(error))
    else:
        why = None
    if why is not None:
        alone = {one: refused(task, one) for one in every if not has_more_alone(one)}
        assert all(said and re.sub(r"k=\d+ ", "", said) in why for said in alone.values()), alone
        return
    there, left = laid_out(made), left_out(made)
    assert there | set(left) == set(every)
    assert not there & set(left)
    for one in data.draw(some(tuple(sorted(every)), 4)):
        assert has_more_alone(one) or refused(task, one) == left.get(one), one


def test_a_mixed_sweep_does_all_that_makes_sense_and_names_the_rest(tmp_path: Path):
    made = plan(tmp_path, "1,10,30", draws=1, selects=["random", "bm25", "hybrid:5"], orders=["drawn", "by-label"])
    assert laid_out(made) == {
        *(("random", order, "full", k) for order in ("drawn", "by-label") for k in (1, 10, 30)),
        *(("bm25", "by-label", "full", k) for k in (1, 10, 30)),
        *(("hybrid:5", order, "full", k) for order in ("drawn", "by-label") for k in (10, 30)),
    }
    assert made.combinations.reasons == [
        "bm25, drawn: order drawn: bm25 demonstrations are ranked, not sampled; write relevance "
        "(most similar last) or relevance-reversed (most similar first)",
        "hybrid:5, k=1: --select hybrid:5: k=1 has no room for 5 demonstrations of the query's "
        "own; use a k of 5 or more",
    ]


def test_reasons_that_differ_in_k_alone_are_one_line(tmp_path: Path):
    made = plan(tmp_path, "1,2,3,4,5", draws=1, selects=["hybrid:5"])
    (reason,) = made.combinations.reasons
    assert reason.startswith("k=1, 2, 3, 4: --select hybrid:5: k=1 has no room for 5")
    assert len(left_out(made)) == 4


def test_a_k_that_cannot_be_chosen_in_a_draw_is_left_out_in_all(tmp_path: Path):
    made = plan(tmp_path, "3,40", draws=2, selects=["random", "balanced"])
    assert {(c.spec.select, c.spec.k) for c in made.cells} == {("random", 3), ("random", 40), ("balanced", 3)}
    (reason,) = made.combinations.reasons
    assert reason.startswith("balanced, k=40: --select balanced: 40 demonstrations need more than")


def test_where_nothing_is_left_all_reasons_are_said(tmp_path: Path):
    with pytest.raises(UserError) as error:
        plan(
            tmp_path,
            "2",
            selects=["random", "bm25"],
            orders=["relevance"],
            attention=["block:1,reuse", "block:2"],
            queries="copied",
        )
    for said in (
        "random: order relevance: random demonstrations have no relevance",
        "bm25: --queries copied: bm25 would only find the query itself",
    ):
        assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_zero_shot_is_planned_for_what_makes_sense_alone(tmp_path: Path):
    made = plan(tmp_path, "0,2", selects=["random", "bm25"], orders=["drawn"], draws=1)
    assert [(c.spec.select, c.spec.k) for c in made.cells] == [("random", 0), ("random", 2)]
    made = plan(tmp_path, "0,2", perturbation="labels:permuted", draws=1)
    assert [c.spec.k for c in made.cells] == [2]
    (reason,) = made.combinations.reasons
    assert reason.startswith("k=0: --perturbation labels:permuted: a prompt of k=0 has no")


def test_what_fits_no_window_beside_others_is_named(tmp_path: Path):
    (bare,) = plan(tmp_path, "0").cells
    made = plan(tmp_path, "0,max", draws=1, context_tokens=bare.needed_tokens)
    assert [c.spec.k for c in made.cells] == [0]
    assert made.combinations.reasons == ["k=max: nothing fits: no k fits the window"]


def test_a_pattern_that_the_backend_does_not_compute_is_left_out_beside_one_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    spec = RunSpec(
        task="stdlib",
        model="m",
        k="1",
        attention="full,block:5",
        tokenizer="gemma3-270m",
        backend="openai",
        base_url="http://127.0.0.1:9/v1",
    )
    _, asked = spec.check(load_task("stdlib"))
    assert [one.attention for one in asked.possible] == [FULL]
    (reason,) = asked.reasons
    assert "runs on --backend transformers, not openai" in reason
    assert spec.narrowed(asked).attention == (FULL,)
