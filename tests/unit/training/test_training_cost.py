"""What a training took, in operations and tokens, and when it pays: counted by hand."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fakes import ENGINE, FakeBackend, plan, write_task
from support.models import tokenized

from icl_bench.analysis.all_findings import find
from icl_bench.models.architecture import Architecture
from icl_bench.results.reading import finished_cells, read_some
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Runner
from icl_bench.training.examples import Examples, LabelledQuery
from icl_bench.training.finetune import Finetuning
from icl_bench.training.operations import Adapters
from icl_bench.training.spec import FinetuneSpec
from icl_bench.training.trainer import FinetuningResult, Method, Recipe

EPOCHS = 3


class Rows:
    """Two rows to learn from, of 10 and 30 tokens, and one of 20 to choose a checkpoint by."""

    train = (LabelledQuery("a", (7,) * 10, 0), LabelledQuery("b", (7,) * 30, 1))
    held_out = (LabelledQuery("c", (7,) * 20, 0),)


STEPS = [(10, 30)] * EPOCHS
"""A step has both rows, the shorter padded."""


def seen(lengths: Sequence[int], window: int | None = None) -> int:
    """Pairs of a token and a key in one layer, counted one by one: padding sees the row, but not itself."""
    width = max(lengths)
    return sum(
        len([key for key in range(min(token + 1, length)) if window is None or token - key < window])
        for length in lengths
        for token in range(width)
    )


@pytest.mark.parametrize(("method", "times"), [("full", 6), ("lora", 4)])
def test_a_training_takes_six_operations_a_parameter_and_token_and_with_adapters_four(method: Method, times: int):
    """C = 6 N D (Kaplan et al. 2020, section 2.1): 2 N forward, 4 N back for each token.

    Of the latter, half is for gradients of weights, which adapters do not need. The validation
    rows are read forward, once an epoch. N = 1,000; D = 3 epochs of 60 tokens with padding.
    """
    examples: Any = Rows()
    done = FinetuningResult(batches=STEPS, adapters=Adapters(0, 0) if method == "lora" else None)
    found = done.flops(Architecture(1000, 0, (None,)), examples, Recipe.of(method, epochs=EPOCHS))
    assert found == times * 1000 * 180 + EPOCHS * 2 * 1000 * 20


@pytest.mark.parametrize("method", ["full", "lora"])
def test_attention_has_gradients_however_weights_are_trained(method: Method):
    """Four operations for each key that is seen and unit of width, and twice as many for gradients."""
    examples: Any = Rows()
    done = FinetuningResult(batches=STEPS, adapters=Adapters(0, 0) if method == "lora" else None)
    found = done.flops(Architecture(0, 8, (None, 4)), examples, Recipe.of(method, epochs=EPOCHS))
    step, chosen = (seen(lengths) + seen(lengths, 4) for lengths in ((10, 30), (20,)))
    assert found == EPOCHS * 4 * 8 * (3 * step + chosen)


def test_adapters_and_head_are_passed_by_every_token_and_the_first_projections_need_no_gradient():
    examples: Any = Rows()
    done = FinetuningResult(batches=STEPS, adapters=Adapters(70, 10), head_parameters=5)
    shape = Architecture(1000, 0, (None,), layer_parameters=400, projection_parameters=100)
    found = done.flops(shape, examples, Recipe.of("lora", epochs=EPOCHS))
    step = 2 * 1000 + (2 * 1000 - 2 * 100) + 3 * 2 * 70 - 2 * 10 + 3 * 2 * 5
    assert found == EPOCHS * (60 * step + 20 * 2 * (1000 + 70 + 5))
    again = replace(done, recomputes=True).flops(shape, examples, Recipe.of("lora", epochs=EPOCHS))
    assert again - found == EPOCHS * 60 * 2 * 1070


# -- a run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finetuning, Path]:
    folder = tmp_path_factory.mktemp("trained")
    pytest.importorskip("sklearn")
    made = Finetuning.prepare(
        FinetuneSpec(
            task=str(write_task(folder / "task")),
            model=str(tiny),
            k="12",
            draws=1,
            epochs=EPOCHS,
            method=("full", "probe"),
            device="cpu",
            dtype="float32",
        )
    )
    made.run(folder / "results")
    return made, folder / "results"


def counts(made: Finetuning, tiny: Path) -> tuple[float, list[int], list[int]]:
    """Operations a token without attention, and the tokens of the examples and of the others.

    Counted with transformers and the tokenizer alone.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(tiny)
    outside = 2 * model.config.vocab_size * model.config.hidden_size
    task = made.task
    drawn = task.pool.drawn(0).tolist()

    def lengths(rows: list[int]) -> list[int]:
        texts = [f"query: {task.data.train[i].fields['text']}\nintent:" for i in rows]
        return [1 + len(tokenized(task.tokenizer, text)) for text in texts]  # with BOS

    return 2.0 * (model.num_parameters() - outside), lengths(drawn[:12]), lengths(drawn[12:])


def forward(token: float, lengths: list[int]) -> float:
    """A batch that is read forward: width 32, two layers."""
    return token * max(lengths) * len(lengths) + 4 * 32 * 2 * seen(lengths)


def test_the_stored_cost_of_a_training_is_that_of_its_rows(trained: tuple[Finetuning, Path], tiny: Path):
    made, results = trained
    stored = {meta.spec.select: meta for _, meta in finished_cells(results)}
    token, shown, others = counts(made, tiny)
    probe, full = stored["probe"].training, stored["full"].training
    assert probe.tokens == sum(shown)
    assert probe.flops == forward(token, shown)
    assert full.tokens == EPOCHS * sum(shown)
    head = 2 * 32 * 3  # three labels
    assert full.validation_rows == len(others) == 28
    assert full.flops == EPOCHS * (3 * forward(token + head, shown) + forward(token + head, others))
    test = [len(ids.ids) for ids in Examples(made.task, 0, 12).test]
    for name, passed in (("probe", token), ("full", token + head)):
        query = sum(forward(passed, [n]) for n in test) / len(test)  # alone, without padding
        assert stored[name].compute == pytest.approx({"prefix_flops": 0, "query_flops": query, "whole_flops": query})


def test_break_even_is_where_the_stored_operations_of_both_sides_meet(trained: tuple[Finetuning, Path], tmp_path: Path):
    results = Path(shutil.copytree(trained[1], tmp_path / "results"))
    shape = Architecture(parameters=100_000, heads_width=0, windows=(None,))
    prompts = plan(tmp_path / "task", "12", draws=1)
    Runner(prompts, Store(results), ENGINE, FakeBackend, architecture=lambda: shape).run()
    stored = read_some(results)
    # made by other engines under other names: one model, as far as tables are concerned
    variants = {name: facts.with_more(fingerprint="one") for name, facts in stored.variants.items()}
    frame = stored.predictions.assign(model="one")
    found = find(replace(stored, given=frame, variants=variants)).break_even
    of = {(row["select"], row["beside"]): row for row in found.to_dict("records")}
    training = {meta.spec.select: meta.training.flops for _, meta in finished_cells(results) if meta.training}
    (cell,) = prompts.cells
    read = 2 * 100_000  # a token of a prompt; answers of the stand-in have two, of which one is fed back
    cached = read * (sum(cell.prompt_layout.own_tokens) / 6 + 1)
    anew = read * (cell.prompt_tokens / 6 + 1)
    for select in ("full", "probe"):
        once = read * cell.prefix_tokens
        row = of[select, "random, cached"]
        assert row["training_flops"] == training[select]
        assert row["base_flops"] == pytest.approx(cached)
        left = training[select] - once
        assert row["queries"] == max(0, math.floor(left / (cached - row["flops"])) + 1)
        row = of[select, "random, not cached"]
        assert row["base_flops"] == pytest.approx(anew)
        assert row["queries"] == math.floor(training[select] / (anew - row["flops"])) + 1
    assert of["full", "random, cached"]["queries"] > 0
