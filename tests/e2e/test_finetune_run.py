"""Fine-tuning the real model on real data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from icl_bench.training.classification_head import first_tokens, load_classifier, sharing_rows
from icl_bench.training.examples import Examples
from icl_bench.training.finetune import FinetuneSpec, Finetuning
from icl_bench.training.trainer import Recipe, fine_tune, pad_token, predict

pytestmark = pytest.mark.slow

LABELS = ("card arrival", "exchange rate", "lost or stolen card", "top up failed")


@pytest.fixture
def four(data_dir: Path, tmp_path: Path) -> Path:
    """Banking-77 cut to four labels: a task file."""
    folder, source = tmp_path / "four", data_dir / "banking77"
    folder.mkdir()
    for split in ("train", "test"):
        lines = (source / f"{split}.jsonl").read_text(encoding="utf-8").split("\n")
        kept = [line for line in lines if line and json.loads(line)["label"] in LABELS]
        (folder / f"{split}.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    task = {
        "name": "four",
        "data": {"train": "train.jsonl", "test": "test.jsonl", "fields": {"text": "text", "label": "label"}},
        "template": {"input": "query: {text}", "output": "intent: {label}"},
        "labels": {},
        "metrics": ["accuracy"],
        "test": {"size": 40},
    }
    (folder / "four.yaml").write_text(json.dumps(task), encoding="utf-8")
    return folder / "four.yaml"


def prepared(task: Path, **changes: object) -> Finetuning:
    options = {"k": "40", "draws": 1, "device": "cpu", "dtype": "float32", **changes}
    return Finetuning.prepare(FinetuneSpec(task=str(task), model="gemma3-270m", **options))


def test_twenty_examples_of_four_labels_are_learnt(four: Path):
    """Asked its own training rows, the model ends up answering all of them right."""
    made = prepared(four)
    examples = Examples(made.task, 0, 20)
    assert {row.label for row in examples.train} == {0, 1, 2, 3}
    object.__setattr__(examples, "test", examples.train)
    done = fine_tune(
        examples,
        Recipe.of("lora", epochs=4, batch=4),
        source=made.task.model.source,
        device="cpu",
        dtype="float32",
        seed=0,
    )
    assert max(done.test) == 1.0
    assert max(done.validation) > 0.9


def test_the_heads_first_logits_are_the_language_models(four: Path):
    import torch
    from transformers import AutoModelForCausalLM

    made = prepared(four)
    tokens, pad = first_tokens(made.task), pad_token(made.task)
    assert sharing_rows(tokens) == 0
    rows = Examples(made.task, 0, 40).test[:6]
    model = load_classifier(made.task.model.source, len(tokens), tokens, pad, "float32").eval()
    found = predict(model, rows, pad, 6)
    language = AutoModelForCausalLM.from_pretrained(made.task.model.source, dtype=torch.float32).eval()
    for row, logits in zip(rows, found, strict=True):
        with torch.no_grad():
            expected = language(torch.tensor([row.ids])).logits[0, -1, tokens]
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-3)


def test_a_probe_and_neighbours_answer_real_queries(four: Path, tmp_path: Path):
    made = prepared(four, method=("probe", "knn"))
    outcome = made.run(tmp_path / "results")
    assert len(outcome.computed) == 2
    from icl_bench.results.reading import read_results

    right = read_results(tmp_path / "results").groupby("select", observed=True)["correct"].mean()
    assert right["probe"] > 0.7
    assert right["knn"] > 0.8
