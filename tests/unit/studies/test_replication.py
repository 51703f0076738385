"""Each row of the table in docs/replication.md has settings that are in the paper's study and run, here in small."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fakes import FREE_TEXT, write_task
from support.models import qwen_tokenizer, save_tiny_model, tiny_config

from icl_bench.results.reading import read_results
from icl_bench.studies.file import load_study
from icl_bench.studies.rules import PointFilter
from icl_bench.studies.study import Listener, Study

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "replication.md").read_text(encoding="utf-8")
PAPER = yaml.safe_load((ROOT / "studies" / "bertsch2025.yaml").read_text(encoding="utf-8"))
ROWS = {
    row: settings.split(",")
    for row, settings in re.findall(r"^\| ([^|]+) \| `icl-bench study bertsch2025 --only setting=([^` ]+)`", PAGE, re.M)
}
"""What a row is of -> the settings of its command."""
BLOCKS: dict[str, dict[str, Any]] = {block["name"]: block for block in PAPER["settings"]}


def smaller(block: dict[str, Any]) -> dict[str, Any]:
    """A block with one k and draw, blocks of a tenth of the size, and one epoch of training."""
    small = {name: value for name, value in block.items() if name not in ("tasks", "models", "test_ids")}
    if "attention" in block:
        patterns = [re.sub(r"block:(\d+)", lambda n: f"block:{max(int(n[1]) // 10, 1)}", p) for p in block["attention"]]
        small["attention"] = list(dict.fromkeys(patterns))
    if "finetune" in block:
        return {**small, "k": 12, "draws": 1, "epochs": 1}
    return {**small, "k": 12, "draws": 1}


def test_every_setting_of_the_study_is_in_the_table():
    named = [setting for settings in ROWS.values() for setting in settings]
    assert len(ROWS) >= 14
    assert set(named) | {"bm25-by-relevance"} == set(BLOCKS)  # which the text below the table names
    assert "`bm25-by-relevance`" in PAGE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that reads 4,096 tokens."""
    folder: Path = tmp_path_factory.mktemp("replication") / "gemma3-270m"
    tokenizer = qwen_tokenizer()
    config = tiny_config("llama", len(tokenizer))
    config.max_position_embeddings = 4096
    save_tiny_model(config, folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("row", ROWS)
def test_the_settings_of_a_row_run(row: str, tiny: Path, tmp_path: Path, word_encoder: None):
    settings = ROWS[row]
    labelled, free = write_task(tmp_path / "labelled"), write_task(tmp_path / "free", **FREE_TEXT)
    blocks = [smaller(BLOCKS[setting]) for setting in settings]
    study = {
        "tasks": [str(labelled)],
        "models": [str(tiny)],
        "options": {"test_size": 4, "dtype": "float32"},
        "settings": [
            {**block, "tasks": [str(free if BLOCKS[block["name"]].get("tasks") == ["samsum"] else labelled)]}
            for block in blocks
        ],
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    file = load_study(path)
    made = Study.prepare(file, PointFilter(file.exclude))
    assert {part.job.setting for part in made.parts} == set(settings)
    assert not made.left
    outcome = made.run(tmp_path / "results", Listener())
    assert not outcome.failed
    assert set(read_results(tmp_path / "results")["k"]) == {12}
