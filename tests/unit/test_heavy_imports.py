"""Light commands load no heavy library: each runs in a process of its own, which says what it has.

What is made once for a checkpoint (the tokenizer that is kept) is made before.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import fakes
from support.in_process import said
from support.models import llama_tokenizer, tiny_checkpoint
from support.program import as_words

from icl_bench.models import tokenizers

HEAVY = {
    *as_words(
        "torch transformers pandas pyarrow scipy datasets sklearn altair sentence_transformers huggingface_hub "
        "tokenizers numpy"
    )
}

SCRIPT = """
import sys
from icl_bench.cli import main
try:
    main(sys.argv[1:])
except SystemExit as done:
    assert not done.code, done.code
print(" ".join(sys.modules), file=sys.stderr)
"""


def loaded(*arguments: str | Path) -> set[str]:
    """The heavy libraries that a command loads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return HEAVY & set(done.stderr.splitlines()[-1].split())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose tokenizer is kept, in a cache folder of its own."""
    return tiny_checkpoint(tmp_path_factory.mktemp("startup") / "tiny", tokenizer=llama_tokenizer(add_bos_token=True))


@pytest.fixture
def model(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(checkpoint.parent / "cache"))
    tokenizers.load(str(checkpoint))
    return checkpoint


@pytest.mark.parametrize("arguments", [("--help",), ("plan", "--help"), ("tasks",)])
def test_help_and_the_list_of_tasks_load_nothing_heavy(arguments: tuple[str, ...]):
    assert loaded(*arguments) == set()


def test_a_look_at_a_task_loads_numpy_and_the_tokenizer_alone(model: Path, tmp_path: Path):
    task = fakes.write_task(tmp_path)
    assert loaded("tasks", "--check", task) <= {"numpy"}
    assert loaded("tasks", "--check", task, "--model", model) <= {"numpy", "tokenizers"}


def test_a_plan_loads_neither_torch_nor_transformers(model: Path, tmp_path: Path):
    task = fakes.write_task(tmp_path)
    options = ("--task", task, "--model", model, "--k", "1,2")
    assert loaded("plan", *options, "--json") <= {"numpy", "tokenizers"}
    assert loaded("plan", *options, "--attention", "full,block:2") <= {"numpy", "tokenizers"}


def test_a_summary_and_a_trace_load_neither_torch_nor_transformers(model: Path, tmp_path: Path):
    task = fakes.write_task(tmp_path)
    results = tmp_path / "results"
    said(*as_words(f"run --task {task} --model {model} --k 1 --draws 1 --results {results} --quiet"))
    assert list((model.parent / "cache").glob("rates.json"))  # for plans, which load no torch
    light = {"numpy", "pandas", "pyarrow", "scipy"}
    assert loaded("summary", "--results", results) <= light
    shown = loaded("show", "--task", "cards", "--k", "1", "--results", results)
    assert shown <= {*light, "tokenizers"}
