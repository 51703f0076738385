"""A plan's operations and time are those that a token-by-token count gives."""

from __future__ import annotations

import io
import json
from copy import copy
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.fakes import plan, write_task
from support.models import WINDOW, llama_tokenizer, tiny_checkpoint

from icl_bench.cli.output.plan import plan_records, print_plan
from icl_bench.models.architecture import Architecture
from icl_bench.sweep.compute_cost import AnswerWork, ComputeCost, cost_of
from icl_bench.sweep.plan import CellPlan
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.time_estimate import seconds

SHAPE = Architecture(parameters=1000, heads_width=8, windows=(None, 4), key_width=4)
RATE = 2e6
"""Operations a second of a matrix product; a model reaches 0.6 of it."""


def of_token(place: int, shape: Architecture = SHAPE, *, read: bool = True) -> float:
    """Operations of one token, counted by hand.

    Two (multiply, add) for each parameter; for each key that it sees, itself included, two for the
    score and two for the value, times the width of all heads. If its hidden state is not read, and the
    last layer is known, this layer computes its projections alone.
    """
    windows, parameters = shape.windows, shape.parameters
    if not read and shape.layer_parameters:
        windows, parameters = windows[:-1], parameters - shape.layer_parameters + shape.projection_parameters
    keys = sum(min(place + 1, window or place + 1) for window in windows)
    return 2 * parameters + 4 * shape.heads_width * keys


def by_hand(cell: CellPlan, cached: int, shape: Architecture = SHAPE) -> float:
    """Operations of a cell whose first tokens are cached: the rest of its prefix, then queries."""
    prefix = cell.prefix_tokens
    total = sum(of_token(n, shape, read=False) for n in range(cached, prefix))
    for own in cell.prompt_layout.own_tokens:
        end = prefix + own
        total += sum(of_token(n, shape, read=False) for n in range(prefix, end - 1))
        # projections of the token that is read are computed with the others', and again with its layer
        total += of_token(end - 1, shape) + 2 * shape.projection_parameters
        fed = cell.answer_tokens / 2 - 1  # half of the longest answer, whose last token is not fed back
        total += sum(min(1, fed - n) * of_token(end + n, shape) for n in range(ceil(fed)))
    return total


def half(cell: CellPlan) -> list[AnswerWork]:
    """Answers of half the longest length."""
    return [AnswerWork.generated(cell.answer_tokens / 2, 0)]


def test_a_plans_seconds_are_its_operations_over_six_tenths_of_the_rate(tmp_path: Path):
    made = plan(tmp_path, "1,4", draws=2)
    costs = [cost_of(c.prompt_layout, SHAPE, half(c), "float32") for c in made.cells]
    found = seconds(SHAPE, RATE, made.cells, costs)
    for planned, times in zip(made.groups, (found[:2], found[2:]), strict=True):
        first, second = planned.cells
        assert times[0] == pytest.approx(by_hand(first, 0) / (0.6 * 2e6))
        # the demonstrations of k=1 are kept and begin those of k=4
        assert times[1] == pytest.approx(by_hand(second, first.prefix_tokens) / (0.6 * 2e6))


def test_where_nothing_is_shared_every_prompt_is_computed_whole(tmp_path: Path):
    (cell,) = plan(tmp_path, "3", draws=1, selects=["bm25"]).cells
    cost = cost_of(cell.prompt_layout, SHAPE, half(cell), "float32")
    (found,) = seconds(SHAPE, RATE, [cell], [cost])
    assert found == pytest.approx(by_hand(cell, 0) / (0.6 * 2e6))


def test_with_reuse_each_demonstration_is_computed_once(tmp_path: Path):
    """Parameters alone, so that operations are twice the tokens: demonstrations and queries."""
    shape = Architecture(1000, 0, (None,), 4)
    made = plan(tmp_path, "4", draws=1, selects=["bm25"], attention=["block:1,reuse"])
    (cell,) = made.cells
    cost = cost_of(cell.prompt_layout, shape, [AnswerWork()], "float32")
    (found,) = seconds(shape, RATE, [cell], [cost])
    sink = cell.prompt_layout.bounds(0)[0]
    assert found == pytest.approx(2 * 1000 * (sink + cell.new_tokens) / (0.6 * 2e6))


def test_what_is_cached_of_blocks_takes_what_blocks_take(tmp_path: Path):
    """Each demonstration sees itself alone, and only the queries see what went before."""
    shape = Architecture(0, 1, (None,))
    made = plan(tmp_path, "2,4", draws=1, attention=["block:1,sink=0,local=0"])
    costs = [cost_of(c.prompt_layout, shape, [AnswerWork()], "float32") for c in made.cells]
    first, second = made.cells
    (ends,) = second.prompt_layout.ends
    blocks = [end - start for start, end in pairwise([0, *ends])]
    assert first.prefix_tokens == ends[1]
    pairs = sum(size * (size + 1) / 2 for size in blocks[2:])
    for own in second.prompt_layout.own_tokens:
        pairs += sum(range(second.prefix_tokens + 1, second.prefix_tokens + own + 1))
    assert seconds(shape, RATE, made.cells, costs)[1] == pytest.approx(4 * pairs / (0.6 * 2e6))


def test_a_cell_that_cannot_run_takes_no_time(tmp_path: Path):
    cells = plan(tmp_path, "1,41", draws=1).cells
    costs = [cost_of(cells[0].prompt_layout, SHAPE, [AnswerWork()], "float32"), None]
    assert seconds(SHAPE, RATE, cells, costs)[1] == 0.0


def test_there_is_a_cost_for_each_cell(tmp_path: Path):
    cells = plan(tmp_path, "1,2", draws=1).cells
    with pytest.raises(ValueError, match="shorter"):
        seconds(SHAPE, RATE, cells, [None])


# -- as a user sees it --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", "mistral", llama_tokenizer())


@pytest.fixture
def sweep(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e5)
    return Sweep.prepare(
        RunSpec(
            task=str(write_task(tmp_path / "task")), model=str(tiny), k="1,5", draws=1, device="cpu", dtype="float32"
        )
    )


def test_the_seconds_and_operations_of_a_plan_follow_from_the_model_itself(sweep: Sweep, tiny: Path):
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny)
    outside = 2 * model.config.vocab_size * model.config.hidden_size  # embeddings and head
    layer = model.model.layers[-1]
    before = (layer.input_layernorm, *(getattr(layer.self_attn, f"{name}_proj") for name in "qkv"))
    shape = Architecture(
        model.num_parameters() - outside,
        layer.self_attn.q_proj.out_features,
        (WINDOW,) * len(model.model.layers),
        layer_parameters=sum(p.numel() for p in layer.parameters()),
        projection_parameters=sum(p.numel() for part in before for p in part.parameters()),
    )
    first, second = sweep.plan.cells
    records = plan_records(sweep)
    assert [record["flops"] for record in records] == pytest.approx(
        [by_hand(first, 0, shape), by_hand(second, 0, shape)]
    )
    wanted = [by_hand(first, 0, shape), by_hand(second, first.prefix_tokens, shape)]
    assert [record["seconds"] for record in records] == pytest.approx(
        [operations / (0.6 * 1e5) for operations in wanted], abs=0.05
    )
    assert json.loads(json.dumps(records)) == records


def printed(sweep: Sweep, estimates: list[float], works: list[ComputeCost]) -> list[list[str]]:
    """The words of the rows of a plan's table."""
    text = io.StringIO()
    sweep = copy(sweep)
    sweep.estimates, sweep.costs = (lambda: estimates), (lambda: works)  # type: ignore[method-assign]
    print_plan(sweep, Console(file=text, width=300))
    lines = [line.split() for line in text.getvalue().splitlines()]
    return [words for words in lines if words[:1] == ["1"]]


def test_a_plans_table_is_in_tflop_of_all_queries_megabytes_and_minutes(sweep: Sweep):
    assert [cell.queries for cell in sweep.plan.cells] == [6, 6]
    # 2 + 6 · 0.5 = 5 TFLOP; 3.2 + 6 · 1 = 9.2
    works = [ComputeCost(2e12, 0.5e12, 9e12, 250e6), ComputeCost(3.2e12, 1e12, 9e12, 1.5e9)]
    first, second = printed(sweep, [89.0, 120.0], works)
    assert first[-5:] == ["5.0", "250", "MB", "89", "s"]
    assert second[-5:] == ["9.2", "1.5", "GB", "2", "min"]
    first, second = printed(sweep, [5399.0, 5400.0], works)
    assert (first[-2:], second[-2:]) == (["90", "min"], ["1.5", "h"])
