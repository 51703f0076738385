"""A training's operations are those that PyTorch counts while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.fakes import write_task
from support.models import tiny_checkpoint
from support.operations import counting
from unit.sweep.test_vectors_of_prompts import passages_task

from icl_bench.results.reading import finished_cells
from icl_bench.training.adaptation.spec import AdaptationSpec
from icl_bench.training.adaptation.training import Adaptation
from icl_bench.training.adaptation.training import collated as one_lesson
from icl_bench.training.finetune import Finetuning
from icl_bench.training.spec import FinetuneSpec
from icl_bench.training.vectors.model import collated
from icl_bench.training.vectors.spec import VectorSpec
from icl_bench.training.vectors.training import VectorTraining

KINDS = ("llama", "gemma3_text")
WITHIN = 0.02
EPOCHS = 2
HERE: dict[str, Any] = {"device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: tiny_checkpoint(folder / kind, kind) for kind in KINDS}


@pytest.mark.parametrize("method", ["full", "lora", "probe"])
@pytest.mark.parametrize("kind", KINDS)
def test_operations_of_a_training_and_of_its_answers(
    kind: str, method: str, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The test row is answered after each epoch, too, which is no part of the training."""
    if method != "full":
        pytest.importorskip("peft" if method == "lora" else "sklearn")
    task = str(write_task(tmp_path / "task", test_rows=1))
    spec = FinetuneSpec(
        task=task, model=str(models[kind]), k="12", draws=1, epochs=EPOCHS, batch=5, method=(method,), **HERE
    )
    training = Finetuning.prepare(spec)
    with counting(monkeypatch) as counted:
        training.run(tmp_path / "results")
    (meta,) = (meta for _, meta in finished_cells(tmp_path / "results") if meta.spec.select == method)
    assert meta.training is not None
    assert meta.training.flops is not None
    assert meta.compute is not None
    answered = (1 if method == "probe" else EPOCHS) * meta.compute["query_flops"]
    assert meta.training.flops + answered == pytest.approx(counted.total, rel=WITHIN)


@pytest.mark.parametrize("train", ["added", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_operations_of_learning_to_read_vectors(
    kind: str, train: Any, models: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = str(passages_task(tmp_path / "task"))
    spec = VectorSpec(task=task, model=str(models[kind]), out=tmp_path / "out", vectors=2, train=train, **HERE)
    training = VectorTraining.prepare(spec)
    model = training._model(lambda _: None).train()
    batch = collated(training.examples.epoch(0, range(4)), 0)
    with counting(monkeypatch) as counted:
        model(**batch)["loss"].backward()
    training.log |= model.counts
    assert training._flops(model) == pytest.approx(counted.total, rel=WITHIN)


@pytest.mark.parametrize(
    ("method", "attention", "recompute"),
    [
        # of each pattern and method both, of all three half: what is computed again is the same in every pattern
        pytest.param(method, attention, recompute, marks=[] if (i + j + recompute) % 2 == 0 else pytest.mark.thorough)
        for i, method in enumerate(["full", "lora"])
        for j, attention in enumerate(["full", "grouped:2,12", "approx:16,4", "block:2"])
        for recompute in (False, True)
    ],
)
def test_operations_of_an_adaptation(
    method: Any,
    attention: str,
    recompute: bool,
    models: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    if method == "lora":
        pytest.importorskip("peft")
    (tmp_path / "text.txt").write_text("\n".join(f"The river number {i} is {i * 7 % 11}." for i in range(300)))
    blocks = attention.startswith("block")
    spec = AdaptationSpec(
        model=str(models["gemma3_text"]),
        attention=attention,
        texts=tmp_path,
        out=tmp_path / "out",
        length=96,
        tokens=400,
        batch=2,
        method=method,
        recompute=recompute,
        **({"demonstrations_too": (str(write_task(tmp_path / "task")),), "share": 1.0} if blocks else {}),
        **HERE,
    )
    training = Adaptation.prepare(spec)
    model = training._model().train()
    with counting(monkeypatch) as counted:
        for number in range(2):
            model(**one_lesson([training.examples.sequence(number)]))["loss"].backward()
    assert training._flops(model, model.counts) == pytest.approx(counted.total, rel=WITHIN)
