"""Fine-tuning and its simple rivals learn from the prompt's examples and answer the same rows."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from accelerate.state import AcceleratorState
from support.fakes import FREE_TEXT, FakeBackend, plan, runner, tokenized_task, write_task
from support.in_process import said
from support.predictions import cell
from support.program import as_words
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from icl_bench.analysis.all_findings import find
from icl_bench.backends.transformers import checkpoint
from icl_bench.cli.output.lists import write_prompt
from icl_bench.errors import CellError, UserError
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.cells import Prediction
from icl_bench.results.reading import failed_cells, finished_cells, read_results, read_some
from icl_bench.results.store import Store
from icl_bench.seeds import generator
from icl_bench.training import trainer as training
from icl_bench.training.classification_head import first_tokens, load_classifier, sharing_rows
from icl_bench.training.examples import VALIDATION_ROWS, Examples, LabelledQuery, batches, padded
from icl_bench.training.finetune import LABELS, Finetuning
from icl_bench.training.methods import finetuned
from icl_bench.training.methods.classifiers import CLASSIFIER_FILE, fitted, linear_classifier
from icl_bench.training.spec import FinetuneSpec
from icl_bench.training.trainer import FinetuningResult, LengthBatches, Recipe, accuracy, predict


def prepared(tmp_path: Path, tiny: Path, **changes: Any) -> Finetuning:
    task = write_task(tmp_path / "task")
    options = {"k": "12", "method": ("full",), "draws": 1, "epochs": 2, "device": "cpu", "dtype": "float32"}
    return Finetuning.prepare(FinetuneSpec(task=str(task), model=str(tiny), **options | changes))


# -- examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [0, 1])
def test_the_examples_are_those_of_the_prompt(tmp_path: Path, draw: int):
    made = plan(tmp_path, "12")
    shown = made.groups[draw].group.demonstrations(12)
    examples = Examples(made.task, draw, 12)
    names = [made.task.data.train[i].id for i in shown]
    assert [row.id for row in examples.train] == [row.id for row in examples.shown] == names


def test_validation_rows_are_neither_examples_nor_test_rows(tmp_path: Path):
    there = tokenized_task(tmp_path, train_rows=300)
    examples = Examples(there, 0, 12)
    names = {row.id for row in examples.held_out}
    assert len(names) == VALIDATION_ROWS
    assert not names & {row.id for row in examples.train}


def test_a_fifth_of_the_examples_can_validate(tmp_path: Path):
    examples = Examples(tokenized_task(tmp_path), 0, 20, "examples")
    assert (len(examples.train), len(examples.held_out)) == (16, 4)
    assert [r.id for r in (*examples.train, *examples.held_out)] == [e.id for e in examples.shown]


@pytest.mark.parametrize("method", ["probe", "knn", "encoder-probe", "lora"])
def test_only_methods_that_select_a_checkpoint_give_up_examples_for_it(tmp_path: Path, tiny: Path, method: str):
    cells, rows = {}, {}
    for validation in ("pool", "examples"):
        made = prepared(tmp_path, tiny, method=(method,), k="10", validation=validation)
        ((learner, examples),) = made._planned()
        rows[validation] = len(examples.train)
        cells[validation] = made.identity(learner.name, examples).cell
    selects = method == "lora"
    assert rows == {"pool": 10, "examples": 8 if selects else 10}
    assert (cells["pool"] != cells["examples"]) == selects


def test_a_query_is_the_end_of_a_prompt(tmp_path: Path):
    there = tokenized_task(tmp_path)
    (first, *_) = Examples(there, 0, 12).train
    example = there.data.train[there.pool.drawn(0)[0]]
    text = f"query: {example.fields['text']}\nintent:"
    assert first.ids == there.encoder.whole(text)
    assert there.data.labels[first.label] == example.answer


def test_one_label_cannot_be_learnt(tmp_path: Path):
    with pytest.raises(CellError, match="k=1: the examples to train on have one label"):
        _ = Examples(tokenized_task(tmp_path), 0, 1).train


def test_the_whole_pool_leaves_nothing_to_validate_by(tmp_path: Path):
    with pytest.raises(CellError, match="k=40 is the whole pool"):
        _ = Examples(tokenized_task(tmp_path), 0, 40).held_out


def test_labels_without_an_example_are_named(tmp_path: Path):
    there = tokenized_task(tmp_path)
    examples = Examples(there, 0, 2)
    known = {example.answer for example in examples.shown}
    assert set(examples.missing) == set(there.data.labels) - known


# -- the head -----------------------------------------------------------------------------------


def test_the_first_logits_are_the_language_models(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny)
    tokens = first_tokens(made.task)
    model = load_classifier(str(tiny), len(tokens), tokens, 0, "float32").eval()
    language = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    rows = Examples(made.task, 0, 12).test
    found = predict(model, rows, 0, 4)
    for row, logits in zip(rows, found, strict=True):
        with torch.no_grad():
            expected = language(torch.tensor([row.ids])).logits[0, -1, tokens]
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)


def test_a_random_head_is_another(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny)
    tokens = first_tokens(made.task)
    lm, random = (load_classifier(str(tiny), 3, t, 0, "float32") for t in (tokens, None))
    assert not torch.equal(lm.score.weight, random.score.weight)


def test_labels_that_begin_alike_are_counted():
    assert sharing_rows([5, 7, 5, 5, 9]) == 3
    assert sharing_rows([1, 2, 3]) == 0


def test_a_head_that_caps_its_logits_is_refused(tmp_path: Path, tiny: Path, monkeypatch):
    from transformers import LlamaConfig

    monkeypatch.setattr(LlamaConfig, "final_logit_softcapping", 30.0, raising=False)
    with pytest.raises(CellError, match="caps its logits; use --head random"):
        load_classifier(str(tiny), 3, [1, 2, 3], 0, "float32")


def test_of_the_language_model_only_its_heads_rows_are_left_when_the_classifier_is_loaded(tiny: Path, monkeypatch):
    load, before, alive = checkpoint.load_network, [], []

    def watched(auto: Any, *where: Any, **options: Any) -> Any:
        gc.collect()
        alive.append(sum(model() is not None for model in before))
        model = load(auto, *where, **options)
        before.append(weakref.ref(model))
        return model

    monkeypatch.setattr(checkpoint, "load_network", watched)
    load_classifier(str(tiny), 3, [1, 2, 3], 0, "float32")
    assert alive == [0, 0]


def test_chance_goes_on_alike_whatever_the_head_begins_from(tiny: Path):
    """So the order in which models are loaded changes no training."""
    states = []
    for tokens in (None, [1, 2, 3]):
        torch.manual_seed(5)
        load_classifier(str(tiny), 3, tokens, 0, "float32")
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# -- training -----------------------------------------------------------------------------------


class StoppedError(Exception):
    pass


@pytest.fixture
def several_cards(monkeypatch) -> Iterator[list[torch.device]]:
    """Four cards seem to be there; which of them was made the current one."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda where: chosen.append(torch.device(where)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (10**12, 10**12))
    yield chosen
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(("asked", "device"), [("cuda:1", "cuda:1"), ("cuda", "cuda:2")])
def test_training_is_on_the_card_that_was_asked_for_and_on_no_other(
    asked: str, device: str, tmp_path: Path, tiny: Path, several_cards, monkeypatch
):
    seen: list[Any] = []

    def stopped(**given: Any) -> None:
        seen.append(given["args"])
        raise StoppedError

    examples = Examples(prepared(tmp_path, tiny).task, 0, 12)
    monkeypatch.setattr(training, "with_batches", lambda *_: stopped)
    with pytest.raises(StoppedError):
        training.fine_tune(
            examples, Recipe.of("full", epochs=1), source=str(tiny), device=asked, dtype="float32", seed=0
        )
    (arguments,) = seen
    assert arguments.device == torch.device(device)
    assert arguments.n_gpu == 1
    assert arguments.parallel_mode.value == "not_parallel"
    assert arguments.distributed_state.device == torch.device(device)
    assert set(several_cards) == {torch.device(device)}


@pytest.mark.parametrize("where", ["_move_model_to_device", "train"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_lack_of_memory_is_told_in_one_line_wherever_it_shows(
    where: str, error: Exception, tmp_path: Path, tiny: Path, monkeypatch
):
    import transformers

    def full(*_: Any, **__: Any) -> None:
        raise error

    examples = Examples(prepared(tmp_path, tiny).task, 0, 12)
    monkeypatch.setattr(transformers.Trainer, where, full)
    said = r"^out of memory on cpu while training \(full, batch 32\): CUDA \S+ .*[^\n]$"
    with pytest.raises(CellError, match=said):
        training.fine_tune(
            examples, Recipe.of("full", epochs=1), source=str(tiny), device="cpu", dtype="float32", seed=0
        )


@pytest.mark.parametrize(
    ("method", "device", "dtype", "weights"),
    [
        ("lora", "cuda:1", "bfloat16", "bfloat16"),
        ("lora", "cuda", "float32", "float32"),
        ("lora", "cuda", "float16", "float32"),
        ("lora", "cpu", "bfloat16", "float32"),
        ("full", "cuda", "bfloat16", "float32"),
    ],
)
def test_weights_that_lora_freezes_are_no_more_precise_than_products_on_a_gpu(
    method: Any, device: str, dtype: str, weights: str
):
    assert training.base_weights(method, device, dtype) == weights


def test_lora_trains_in_float32_over_a_base_in_bfloat16(tmp_path: Path, tiny: Path, monkeypatch):
    """As on a GPU, but for the device."""
    kinds: dict[bool, set[torch.dtype]] = {}
    adapted = training._with_lora

    def watched(*given: Any) -> Any:
        model = adapted(*given)
        for weight in model.parameters():
            kinds.setdefault(weight.requires_grad, set()).add(weight.dtype)
        return model

    monkeypatch.setattr(training, "base_weights", lambda *_: "bfloat16")
    monkeypatch.setattr(training, "_with_lora", watched)
    examples = Examples(prepared(tmp_path, tiny).task, 0, 12)
    recipe = Recipe.of("lora", epochs=3, batch=4)
    done = training.fine_tune(examples, recipe, source=str(tiny), device="cpu", dtype="bfloat16", seed=0)
    assert kinds == {True: {torch.float32}, False: {torch.bfloat16}}
    assert len(done.test) == 3
    assert np.ptp(np.stack(done.logits), axis=0).max() > 0  # something was learnt


def rows(*lengths: int) -> list[LabelledQuery]:
    return [LabelledQuery(str(i), tuple(range(3, 3 + n)), 0) for i, n in enumerate(lengths)]


def test_batches_are_of_similar_lengths_and_lose_no_row():
    some = rows(3, 9, 4, 8, 5)
    assert list(batches(some, 2)) == [[1, 3], [4, 2], [0]]


def test_every_epoch_has_each_row_once_in_other_batches_of_similar_lengths():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 60, 100)
    batches_of = LengthBatches(lengths.tolist(), 32, np.random.default_rng(1))
    assert len(batches_of) == 4
    epochs = [list(batches_of) for _ in range(3)]
    mixed = np.array_split(rng.permutation(100), [32, 64, 96])
    padding = sum(len(b) * lengths[b].max() for b in mixed) - lengths.sum()
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == list(range(100))
        assert sum(len(b) * lengths[b].max() for b in epoch) - lengths.sum() < 0.7 * padding
    assert epochs[0] != epochs[1] != epochs[2]
    again = LengthBatches(lengths.tolist(), 32, np.random.default_rng(1))
    assert list(again) == epochs[0]


def test_padding_is_masked_and_on_the_right():
    batch = padded([(5, 6, 7), (8,)], 0)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_rows_in_a_batch_are_answered_as_if_alone(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny)
    some = Examples(made.task, 0, 30).train
    model = load_classifier(str(tiny), 3, None, 0, "float32")
    alone = np.vstack([predict(model, [row], 0, 1) for row in some])
    np.testing.assert_allclose(predict(model, some, 0, 8), alone, atol=1e-5)


def test_rank_alpha_and_scaling_are_those_that_are_asked_for(tmp_path: Path, tiny: Path, monkeypatch):
    """Of lora alone; without them, what decides a cell is what it was before there were such options."""
    changed = {"lora_rank": 16, "lora_alpha": 8, "rslora": True}
    methods = prepared(tmp_path, tiny, method=("lora", "full"), **changed).methods
    recipe = methods["lora"].facts("lora")["recipe"]
    assert recipe.items() >= changed.items()
    usual = prepared(tmp_path, tiny, method=("lora", "full")).methods
    assert methods["full"].facts("full") == usual["full"].facts("full")
    assert usual["lora"].facts("lora")["recipe"] == {
        **{"method": "lora", "head": "lm", "epochs": 2, "batch": 32, "learning_rate": 1e-3, "weight_decay": 0.01},
        **{"lora_rank": 8, "lora_alpha": 32, "lora_dropout": 0.1},
    }
    model = training._with_lora(AutoModelForSequenceClassification.from_pretrained(tiny), methods["lora"].recipe)
    scaled = {
        m.scaling["default"] for m in model.modules() if isinstance(getattr(m, "scaling", None), dict) and m.scaling
    }
    assert scaled == {8 / 16**0.5}
    assert {w.shape[0] for name, w in model.named_parameters() if "lora_A" in name} == {16}


@pytest.mark.parametrize("method", ["full", "lora"])
def test_training_learns_its_examples(tmp_path: Path, tiny: Path, method: Any):
    """Asked its own training rows, the model ends up answering all of them right."""
    made = prepared(tmp_path, tiny)
    examples = Examples(made.task, 0, 12)
    object.__setattr__(examples, "test", examples.train)
    recipe = Recipe.of(method, epochs=28, batch=4, learning_rate=2e-2, lora_dropout=0.0)
    done = training.fine_tune(examples, recipe, source=str(tiny), device="cpu", dtype="float32", seed=0)
    assert max(done.test) == 1.0
    assert len(done.test) == len(done.validation) == len(done.logits) == 28
    assert done.padded_tokens >= done.training_tokens == 28 * sum(len(r.ids) for r in examples.train)


def test_products_are_computed_in_the_dtype_that_was_asked_for(tmp_path: Path, tiny: Path):
    examples = Examples(prepared(tmp_path, tiny).task, 0, 12)
    seen: dict[str, np.ndarray] = {}
    for dtype in ("float32", "bfloat16"):
        recipe = Recipe.of("full", epochs=1, batch=4, head="lm")
        done = training.fine_tune(examples, recipe, source=str(tiny), device="cpu", dtype=dtype, seed=0)
        seen[dtype] = done.logits[0]
    largest = np.abs(seen["float32"]).max()
    assert 1e-5 < np.abs(seen["float32"] - seen["bfloat16"]).max() / largest < 0.2


def test_lora_trains_little_and_full_training_all(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny)
    examples = Examples(made.task, 0, 12)
    found = {
        method: training.fine_tune(
            examples, Recipe.of(method, epochs=1), source=str(tiny), device="cpu", dtype="float32", seed=0
        ).trainable
        for method in ("lora", "full")
    }
    assert 0 < found["lora"] < found["full"] / 5


def test_the_checkpoint_is_the_first_of_the_best():
    done = FinetuningResult(validation=[0.2, 0.6, 0.6, 0.5], test=[0.1, 0.2, 0.3, 0.4])
    assert (done.best, done.best_on_test) == (1, 3)


def test_accuracy_counts_the_largest_logit():
    assert (
        accuracy(np.array([[1.0, 2.0], [3.0, 0.0]]), [LabelledQuery("a", (1,), 1), LabelledQuery("b", (1,), 1)]) == 0.5
    )


# -- cells --------------------------------------------------------------------------------------


def test_one_training_gives_the_honest_cell_and_the_upper_bound(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, epochs=4)
    outcome = made.run(tmp_path / "results")
    assert sorted(cell.select for cell in outcome.computed) == ["full", "full-paper"]
    frame = read_results(tmp_path / "results")
    assert len(frame) == 2 * 6
    metas = {meta.spec.select: meta for _, meta in finished_cells(tmp_path / "results")}
    training = metas["full"].training
    right = frame.groupby("select", observed=True)["correct"].mean()
    assert right["full"] == pytest.approx(training.test_accuracy[training.epoch - 1], abs=1e-6)
    assert right["full-paper"] == pytest.approx(max(training.test_accuracy), abs=1e-6)
    assert metas["full"].facts.checkpoint == "validation"
    assert metas["full-paper"].facts.checkpoint == "test"
    assert (frame["label_mass"] == 1).all()
    assert frame["probability"].between(1 / 3, 1).all()


def test_icl_and_fine_tuning_had_the_same_examples(tmp_path: Path, tiny: Path):
    prepared(tmp_path, tiny, draws=2, method=("full", "knn")).run(tmp_path / "results")
    runner(plan(tmp_path / "task", "12"), tmp_path / "results", FakeBackend()).run()
    ids: dict[int, set[tuple[str, ...]]] = {}
    for _, meta in finished_cells(tmp_path / "results"):
        ids.setdefault(meta.spec.draw, set()).add(tuple(meta.demonstration_ids))
    assert [len(of_draw) for of_draw in ids.values()] == [1, 1]
    assert ids[0] != ids[1]


def test_the_same_seed_gives_the_same_predictions(tmp_path: Path, tiny: Path):
    found = []
    for name in ("one", "two"):
        prepared(tmp_path, tiny, method=("lora",), head="random").run(tmp_path / name)
        found.append(read_results(tmp_path / name).sort_values(["select", "test_id"]))
    assert found[0]["probability"].tolist() == found[1]["probability"].tolist()


def test_finished_cells_are_kept(tmp_path: Path, tiny: Path, monkeypatch):
    made = prepared(tmp_path, tiny, method=("full", "probe"))
    made.run(tmp_path / "results")
    monkeypatch.setattr(finetuned, "fine_tune", None)
    again = prepared(tmp_path, tiny, method=("full", "probe")).run(tmp_path / "results")
    assert not again.computed
    assert len(again.kept) == 2


def test_an_upper_bound_has_the_metrics_of_its_training(tmp_path: Path, tiny: Path):
    for metrics in (["accuracy"], ["macro_f1", "accuracy"]):
        task = write_task(tmp_path / "task", metrics=metrics)
        spec = FinetuneSpec(task=str(task), model=str(tiny), k="12", method=("full",), draws=1, epochs=1, device="cpu")
        Finetuning.prepare(spec).run(tmp_path / "results")
        stored = {meta.spec.select: meta.task.metrics for _, meta in finished_cells(tmp_path / "results")}
        assert stored == {"full": metrics, "full-paper": metrics}


def test_a_deleted_upper_bound_is_trained_again(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, method=("full", "probe"))
    made.run(tmp_path / "results")
    before = read_results(tmp_path / "results")
    (name,) = [name for name, meta in finished_cells(tmp_path / "results") if meta.spec.select == "full-paper"]
    (tmp_path / "results" / name).unlink()
    examples, said = Examples(made.task, 0, 12), list[str]()
    assert not made.train(Store(tmp_path / "results"), "full", examples).computed, "a race does not need it"
    outcome = made.run(tmp_path / "results", said.append)
    assert [cell.select for cell in outcome.computed] == ["full-paper"]
    assert "full, k=12, draw 1 of 1: training again, because full-paper is missing" in said
    after = read_results(tmp_path / "results")
    assert after["prediction"].tolist() == before["prediction"].tolist()
    assert not made.run(tmp_path / "results").computed


def test_a_damaged_upper_bound_is_trained_again(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny)
    made.run(tmp_path / "results")
    before = read_results(tmp_path / "results")
    (name,) = [name for name, meta in finished_cells(tmp_path / "results") if meta.spec.select == "full-paper"]
    file = tmp_path / "results" / name
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.warns(UserWarning, match=r"full-paper.*set aside"):
        outcome = made.run(tmp_path / "results")
    assert [cell.select for cell in outcome.computed] == ["full-paper"]
    after = read_results(tmp_path / "results")
    assert after["prediction"].tolist() == before["prediction"].tolist()
    assert not made.run(tmp_path / "results").computed


def test_a_cells_answers_are_all_of_one_training(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, method=("probe",))
    identity = made.identity("probe", Examples(made.task, 0, 12))
    made.run(tmp_path / "results")
    ((name, _),) = finished_cells(tmp_path / "results")
    whole = read_results(tmp_path / "results")
    (tmp_path / "results" / name).unlink()
    store = Store(tmp_path / "results")
    with store.claim(identity, 6) as interrupted:
        row = whole.iloc[0]
        interrupted.append(
            [Prediction(row.test_id, row.gold, "of before", False, True, 1, 0, 0, row.prompt_hash)], 500.0
        )
    made.run(tmp_path / "results")
    ((_, meta),) = finished_cells(tmp_path / "results")
    assert read_results(tmp_path / "results")["prediction"].tolist() == whole["prediction"].tolist()
    assert meta.seconds < 500


def test_a_cell_that_cannot_be_trained_is_marked_and_the_others_run(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, k="1,12,40", method=("full", "knn"))
    told: list[str] = []
    outcome = made.run(tmp_path / "results", told.append)
    failed = {outcome.names[name]: why for name, why in outcome.failed.items()}
    reasons = {(cell.select, cell.k): why for cell, why in failed.items()}
    assert set(reasons) == {("full", 1), ("knn", 1), ("full", 40)}
    assert "one label" in reasons["full", 1]
    assert len(failed_cells(tmp_path / "results")) == 3
    assert any("failed: k=1" in text for text in told)
    assert "full, k=1, draw 1 of 1: training (2 of 3 labels have no example)" in told
    assert "full, k=12, draw 1 of 1: training" in told


def test_a_loss_that_is_no_number_fails_its_cell(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, learning_rate=1e30, epochs=3)
    (why,) = made.run(tmp_path / "results").failed.values()
    assert "is infinite or NaN" in why or "are infinite or NaN" in why


def test_a_full_disk_fails_the_cell_that_keeps_its_checkpoint(tmp_path: Path, tiny: Path):
    (tmp_path / "taken").touch()
    made = prepared(tmp_path, tiny, keep_checkpoints=tmp_path / "taken")
    (why,) = made.run(tmp_path / "results").failed.values()
    assert "checkpoint" in why


def test_checkpoints_are_kept_where_asked_and_nowhere_else(tmp_path: Path, tiny: Path):
    prepared(tmp_path, tiny, keep_checkpoints=tmp_path / "kept").run(tmp_path / "results")
    (folder,) = (tmp_path / "kept").iterdir()
    assert (folder / "model.safetensors").exists()
    assert not list((tmp_path / "results").rglob("*.safetensors"))


def test_what_a_finished_cell_learned_is_kept_by_training_it_again(tmp_path: Path, tiny: Path):
    results, kept = tmp_path / "results", tmp_path / "kept"
    prepared(tmp_path, tiny, method=("probe", "encoder-probe")).run(results)
    before = read_results(results)
    made = prepared(tmp_path, tiny, method=("probe", "encoder-probe"), keep_checkpoints=kept)
    assert len(made.run(results).kept) == 2
    folders = sorted(kept.iterdir())
    assert [folder.name.partition("-k")[0] for folder in folders] == ["encoder-probe", "probe"]
    for folder in folders:
        labels = json.loads((folder / LABELS).read_text())
        assert labels == list(made.task.data.labels)
        classifier = joblib.load(folder / CLASSIFIER_FILE)
        assert set(classifier.classes_) <= set(range(len(labels)))
    pd.testing.assert_frame_equal(read_results(results), before)
    stamps = [(folder / LABELS).stat().st_mtime_ns for folder in folders]
    made.run(results)
    assert [(folder / LABELS).stat().st_mtime_ns for folder in folders] == stamps


def test_the_folder_of_a_classifier_is_named(tmp_path: Path, tiny: Path):
    results, kept, told = tmp_path / "results", tmp_path / "kept", list[str]()
    prepared(tmp_path, tiny, method=("probe",)).run(results)
    made = prepared(tmp_path, tiny, method=("probe",), keep_checkpoints=kept)
    made.run(results, told.append)
    (folder,) = kept.iterdir()
    again = "probe, k=12, draw 1 of 1: training again, to keep what it learns"
    assert told == [again, f"classifier written: {folder}"]
    made.run(results, told.append)
    assert told[2:] == [f"classifier already written: {folder}"]
    made.run(tmp_path / "others", told.append)
    assert f"classifier written: {folder}" in told[3:]


@pytest.mark.parametrize("method", ["lora", "probe", "knn", "encoder-probe"])
def test_a_training_takes_what_was_predicted(tmp_path: Path, tiny: Path, method: str):
    made = prepared(tmp_path, tiny, method=(method,))
    examples = made.examples(method, 12, 0)
    expected = made.methods[method].cost(examples)
    assert expected is not None
    made.run(tmp_path / "results")
    metas = {meta.spec.select: meta for _, meta in finished_cells(tmp_path / "results")}
    took = metas[method].training
    few = 0.2 if method == "lora" else 1e-9  # adapters and head, which are a larger part of a tiny model
    assert took.flops == pytest.approx(expected.flops, rel=few)
    assert metas[method].compute["query_flops"] == pytest.approx(expected.query_flops, rel=few)
    if took.tokens is not None:
        assert took.tokens == expected.tokens


def test_another_head_is_another_variant(tmp_path: Path, tiny: Path):
    for head in ("lm", "random"):
        prepared(tmp_path, tiny, head=head).run(tmp_path / "results")
    frame = read_results(tmp_path / "results")
    assert frame.groupby("select", observed=True)["variant"].nunique().tolist() == [2, 2]


def test_findings_set_training_beside_prompting_with_the_same_examples(tmp_path: Path, tiny: Path):
    made = prepared(tmp_path, tiny, draws=2, method=("full", "probe"))
    made.run(tmp_path / "results")
    runner(plan(tmp_path / "task", "12"), tmp_path / "results", FakeBackend()).run()
    stored = read_some(tmp_path / "results")
    # made by other engines under other names: one model, as far as tables are concerned
    frame = stored.predictions.assign(model="one")
    variants = {name: facts.with_more(fingerprint="one") for name, facts in stored.variants.items()}
    found = find(replace(stored, given=frame, variants=variants))
    table = found.training_gain.set_index("select")
    assert sorted(table.index) == ["full", "full-paper", "probe"]
    means = frame.groupby("select", observed=True)["correct"].mean()
    for name, row in table.iterrows():
        assert row["difference"] == pytest.approx(means[name] - means["random"])
        assert (row["draws"], row["base_draws"], row["rows"]) == (2, 2, 6)
    assert found.retrieval_gain.empty
    assert found.noise_floor.empty
    assert set(found.by_distance["select"]) == {"random"}
    cost = found.cost.set_index("select")
    assert cost.loc["full", "training_seconds"] > 0
    assert cost.loc["full", "training_flops"] > cost.loc["probe", "training_flops"] > 0
    assert cost.loc["full", "training_tokens"] > cost.loc["probe", "training_tokens"]
    assert np.isnan(cost.loc["random", "training_seconds"])


def test_training_and_prompts_are_no_settings_of_each_other(tmp_path: Path, tiny: Path):
    """A learning rate that a prompt does not have is no difference; two of one method are."""
    results = tmp_path / "results"
    prepared(tmp_path, tiny).run(results)
    prepared(tmp_path, tiny, method=("probe",)).run(results)
    assert not find(read_some(results)).summary.settings
    prepared(tmp_path, tiny, head="random").run(results)
    named = find(read_some(results)).summary.settings
    assert len(named) == 4
    frame = read_results(results)
    assert set(frame.loc[frame["variant"].isin(list(named)), "select"]) == {"full", "full-paper"}


def test_an_upper_bound_is_never_called_the_best(tmp_path: Path, tiny: Path):
    from icl_bench.report.build import make_report

    prepared(tmp_path, tiny, epochs=6).run(tmp_path / "results")
    said = [s for h in make_report(tmp_path / "results").headlines for s in h.sentences]
    (best,) = (sentence.text for sentence in said if sentence.topic == "Best")
    assert "by full at k" in best


def test_an_upper_bound_that_is_higher_is_not_called_the_best(tmp_path: Path):
    from icl_bench.report.build import make_report
    from icl_bench.results.importing import import_predictions

    made = pd.concat(
        cell(said, select=select, draw=draw)
        for draw in range(3)
        for said, select in (("aabb", "lora-paper"), ("aabx", "lora"), ("axxx", "random"))
    )
    made.drop(columns=["variant", "valid"]).to_csv(tmp_path / "some.csv", index=False)
    import_predictions(tmp_path / "some.csv", tmp_path / "results")
    said = [s.text for h in make_report(tmp_path / "results").headlines for s in h.sentences]
    assert [text.split(" (")[0] for text in said if "accuracy" in text] == ["75.0% accuracy"]


def test_a_trained_cells_prompt_is_the_bare_query(tmp_path: Path, tiny: Path):
    prepared(tmp_path, tiny).run(tmp_path / "results")
    wanted = {"task": "cards", "k": 12, "draw": 0, "select": "full"}
    shown = find_prediction(tmp_path / "results", wanted)
    assert shown.prompt.startswith("query: ")
    assert shown.prompt.count("query:") == 1
    assert len(shown.demonstrations) == 12
    assert "hash checked" in shown.checked
    with pytest.raises(UserError, match="a trained classifier answers without a prompt; leave --prompt out"):
        write_prompt(shown, tmp_path / "prompt.txt")


# -- rivals -------------------------------------------------------------------------------------


def test_a_probe_separates_what_can_be_separated():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 2], 20)
    states = rng.normal(size=(40, 5)) + 6 * labels[:, None]
    found = fitted(linear_classifier(), states, labels, states, 3).probabilities
    assert (found.argmax(axis=1) == labels).all()
    assert (found[:, 1] == 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_neighbours_choose_their_number_by_leaving_one_out():
    pytest.importorskip("sklearn")
    from icl_bench.training.methods.nearest_neighbours import neighbours

    # pairs that contradict each other in clusters that agree: one neighbour misleads, five do not
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(3), 20, axis=0)
    points = centres + 0.05 * rng.normal(size=centres.shape)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels = np.repeat([0, 1, 2], 20)
    noisy = labels.copy()
    noisy[::7] = (noisy[::7] + 1) % 3
    said, number = neighbours(points, noisy, points, 4)
    found = said.probabilities
    assert number > 1
    assert (found.argmax(axis=1) == labels).mean() > 0.95
    assert (found[:, 3] == 0).all()


def test_examples_unlike_a_query_do_not_turn_the_votes_around():
    pytest.importorskip("sklearn")
    from icl_bench.training.methods.nearest_neighbours import neighbours

    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(4)[:3], 20, axis=0)
    points = centres + 0.05 * rng.normal(size=centres.shape)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    labels = np.repeat([0, 1, 2], 20)
    labels[::7] = (labels[::7] + 1) % 3
    # from beside all clusters to opposite them: fewer and fewer examples are similar
    queries = np.eye(4)[3] - np.linspace(0, 0.3, 200)[:, None] * [1, 1, 1, 0]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    said, number = neighbours(points, labels, queries, 3)
    assert number > 1
    assert said.probabilities.min() >= 0
    np.testing.assert_allclose(said.probabilities.sum(axis=1), 1)
    similar = queries @ points.T
    nearest = np.argsort(-similar, axis=1)[:, :number]
    ranked = np.take_along_axis(similar, nearest, axis=1)
    single = (ranked[:, 0] > 0.01) & (ranked[:, 1] < -0.001)
    assert single.any()
    assert (said.probabilities.argmax(axis=1) == labels[nearest[:, 0]])[single].all()


def test_states_are_those_of_the_last_token(tmp_path: Path, tiny: Path):
    from transformers import AutoModel

    from icl_bench.training.methods.probe import LastStates

    made = prepared(tmp_path, tiny)
    some = Examples(made.task, 0, 12).train
    states, _ = LastStates(str(tiny), 0, "cpu", "float32").of(some)
    model = AutoModel.from_pretrained(tiny, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = [model(torch.tensor([row.ids])).last_hidden_state[0, -1] for row in some]
    np.testing.assert_allclose(states, torch.stack(expected).numpy(), atol=1e-5)


def test_equal_ids_of_train_and_test_rows_are_not_mixed_up(tmp_path: Path, tiny: Path):
    from icl_bench.training.methods.probe import LastStates

    made = prepared(tmp_path, tiny)
    examples = Examples(made.task, 0, 12)
    shown = [replace(row, id=f"row {i}") for i, row in enumerate(examples.train)]
    asked = [replace(row, id=f"row {i}") for i, row in enumerate(examples.test)]
    together = LastStates(str(tiny), 0, "cpu", "float32")
    together.of(shown)
    alone, _ = LastStates(str(tiny), 0, "cpu", "float32").of(asked)
    np.testing.assert_allclose(together.of(asked)[0], alone, atol=1e-5)


def test_states_that_are_known_already_have_the_seconds_of_their_first_computation(tmp_path: Path, tiny: Path):
    """A training's seconds do not depend on which k and draws were trained before it."""
    from icl_bench.training.methods.probe import LastStates

    some = Examples(prepared(tmp_path, tiny).task, 0, 12).train
    states = LastStates(str(tiny), 0, "cpu", "float32")
    _, half = states.of(some[:6])
    _, whole = states.of(some)
    assert 0 < half < whole
    assert [states.of(some)[1], states.of(some[:6])[1]] == [whole, half]


@pytest.mark.parametrize("method", ["knn", "encoder-probe", "probe"])
def test_fitting_is_a_part_of_the_training_and_not_of_the_answers(
    method: str, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    waits = 0.5
    for one in (LogisticRegression, KNeighborsClassifier):
        fit = one.fit

        def slow(self: Any, *given: Any, fit: Any = fit) -> Any:
            time.sleep(waits)
            return fit(self, *given)

        monkeypatch.setattr(one, "fit", slow)
    made = prepared(tmp_path, tiny, method=(method,))
    made.run(tmp_path / "results")
    ((_, meta),) = finished_cells(tmp_path / "results")
    assert meta.training.seconds >= waits
    assert meta.seconds < waits


def test_training_uses_batches_of_similar_lengths(tmp_path: Path, tiny: Path):
    """The padding that was counted is that of these batches and of no others."""
    made = prepared(tmp_path, tiny)
    examples = Examples(made.task, 0, 30)
    recipe = Recipe.of("full", epochs=2, batch=8)
    done = training.fine_tune(examples, recipe, source=str(tiny), device="cpu", dtype="float32", seed=5)
    lengths = [len(row.ids) for row in examples.train]
    batches_of = LengthBatches(lengths, 8, generator(5, "batches"))
    epochs = [batch for _ in range(2) for batch in batches_of]
    expected = sum(len(batch) * max(lengths[i] for i in batch) for batch in epochs)
    assert done.padded_tokens == expected


# -- the command --------------------------------------------------------------------------------


def test_prompts_and_training_of_one_model_meet_in_tables_and_report(tmp_path, tiny):
    """The commands as a user gives them, one after the other."""
    from icl_bench.report.build import make_report
    from icl_bench.report.page import page
    from icl_bench.report.prediction_sample import sample_fields

    results = tmp_path / "results"
    task = write_task(tmp_path / "task")
    words = f"--task {task} --model {tiny} --k 6,12 --draws 1 --device cpu --dtype float32 --results {results} --quiet"
    said("run", *as_words(words), "--select", "random,bm25")
    said("finetune", *as_words(words), "--method", "lora,knn", "--epochs", 1)
    found = find(read_some(results))
    assert set(found.training_gain["select"]) == {"lora", "lora-paper", "knn"}
    even = found.break_even[found.break_even["select"] == "lora"]
    assert sorted(set(even["beside"])) == ["bm25", "random, cached", "random, not cached"]
    assert even["queries"].dropna().between(0, 1e7).all()
    assert set(found.break_even["select"]) == {"lora", "lora-paper", "knn"}
    out = said("summary", "--results", results, "--cost")
    assert "training: accuracy minus that of a prompt" in out
    assert "queries until training is cheaper" in out
    made = make_report(results)
    assert {"training", "even"} <= {section.name for section in made.sections}
    fields, select = sample_fields().index("count"), sample_fields().index("select")
    counts = {made.sample.texts[row[select]]: row[fields] for row in made.sample.rows}
    assert (counts["lora"], counts["knn"]) == (0, 0)  # learnt, not shown
    assert counts["random"] in (6, 12)
    assert "When training pays" in page(made)


def test_a_single_draw_beside_more_in_the_folder_asks_for_no_more_draws(tmp_path, tiny, monkeypatch):
    """The last command is the one that a race names, whose draws are in the folder."""
    monkeypatch.setattr("icl_bench.analysis.next_step.at_chance", lambda _: False)
    task = write_task(tmp_path / "task")
    words = as_words(f"--task {task} --model {tiny} --method knn --device cpu --results {tmp_path / 'results'}")
    assert "point with a single draw" in said("finetune", *words, "--k", 12, "--draws", 1)
    said("finetune", *words, "--k", "9,12,15,18", "--draws", 4, "--quiet")
    again = said("finetune", *words, "--k", 12, "--draws", 1)
    _, _, hint = again.partition("next: ")
    assert hint
    assert "draw" not in hint.partition(":")[0]
    assert "of k: with" not in hint
    kept = said("finetune", *words, "--k", 12, "--draws", 1, "--keep-checkpoints", tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir())
    assert "next: " not in kept


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "loar"], "--method loar: not a training method; did you mean lora?"),
        (["--method", ","], "--method: empty; give lora, full, probe, knn, encoder-probe"),
        (["--dtype", "float31"], "--dtype float31: not a dtype; did you mean float32 or"),
        (["--dtype", "float16"], "--dtype float16: a CPU trains in float32 or bfloat16"),
        (["--device", "gpu7"], "--device gpu7: not usable here"),
        (["--learning-rate", "-1"], "--learning-rate -1.0: expected more than 0"),
        (["--learning-rate", "nan"], "--learning-rate nan: expected more than 0"),
        (["--k", "max"], "max and auto are for prompts"),
        (["--k", "0,10"], "--k 0: training needs examples; give numbers of at least 1"),
        (["--k", "99"], "--k 99: the pool has 40 examples"),
        (["--k", "x"], "not a number of demonstrations"),
    ],
)
def test_a_mistake_ends_in_one_line(words, message, tmp_path, tiny):
    task = write_task(tmp_path / "task")
    given = ["finetune", "--task", task, "--model", tiny, "--k", 12, "--results", tmp_path / "r"]
    err = said(*given, *words, code=2)
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_free_text_cannot_be_learnt_as_labels(tmp_path: Path, tiny: Path):
    task = write_task(tmp_path / "task", **FREE_TEXT)
    with pytest.raises(UserError, match="free text; fine-tuning needs labels"):
        Finetuning.prepare(FinetuneSpec(task=str(task), model=str(tiny), k="2"))
