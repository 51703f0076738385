"""Plugins that cannot be used: every command works without them, and names each once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import fakes
from support.models import llama_tokenizer, tiny_checkpoint
from support.outside import described
from support.warm_program import WarmProgram

from icl_bench import registry

KINDS = [found for found in vars(registry).values() if isinstance(found, registry.Registry)]
CODE = """
from pathlib import Path

(Path(__file__).parent / "imported").touch()
TEXT = "metric"


class Bare:
    pass


def add(*numbers):
    raise ZeroDivisionError("no rows")


from icl_bench.analysis.finding import Finding, Printed, Section
from icl_bench.metrics.interface import Metric

FAILS = Finding(
    "fails", add, printed=Printed("a table that fails"),
    section=Section("fails", "A chart that fails", "fails", needs="run something", reading="Nothing."),
)
NO_TABLE = Finding("no_table", lambda context: [1, 2], printed=Printed("no table"))


class Counts(Metric):
    of_many = {"counts": "counts"}
    score_many = add
"""
ENDS = "import sys\nsys.exit(3)\n"
BUILT_IN = {found.group: found.names[-1] for found in KINDS}

SWEEP = ("run", "--task", "cards.yaml", "--model", "tiny", "--k", "1,2", "--draws", 2, "--dtype", "float32")

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packages whose plugins are flawed in all ways, in every group; a task and a small model."""
    root = tmp_path_factory.mktemp("broken")
    site = root / "site"
    entries = {
        group: f"absent = nowhere:X\nends = ending:X\ntext = flawed:TEXT\nbare = flawed:Bare\n"
        f"both = flawed:Bare\n{name} = flawed:Bare\nmissing = flawed:MISSING\nempty =\n"
        for group, name in BUILT_IN.items()
    }
    entries["icl_bench.findings"] += "fails = flawed:FAILS\nno_table = flawed:NO_TABLE"
    entries["icl_bench.metrics"] += "counts = flawed:Counts"
    described(site, "flawed", entries)
    described(site, "other", dict.fromkeys(BUILT_IN, "both = flawed:TEXT"))
    (site / "flawed.py").write_text(CODE, encoding="utf-8")
    (site / "ending.py").write_text(ENDS, encoding="utf-8")
    tiny_checkpoint(root / "tiny", tokenizer=llama_tokenizer())
    fakes.write_task(root)
    return root


@pytest.fixture(scope="module")
def program(folder: Path, warm: WarmProgram) -> Iterator[Program]:
    """The program in that folder, where the packages are installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("COLUMNS", "160")

        def run(*words: object) -> subprocess.CompletedProcess[str]:
            with contextlib.chdir(folder):
                return warm.run(list(map(str, words)), os.environ)

        yield run


@pytest.fixture(scope="module")
def results(folder: Path, program: Program) -> Path:
    """Results of a run beside those plugins."""
    done = program(*SWEEP, "--results", folder / "results", "--quiet")
    assert done.returncode == 0, done.stderr
    return folder / "results"


def check_warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The warnings of a command that has ended well, one line each, none twice."""
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("written: ")]
    assert all(line.startswith("warning: ") for line in lines), done.stderr
    assert [line for line, count in Counter(lines).items() if count > 1] == []
    return lines


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["summary", "--help"], ["tasks"], ["models"]])
def test_help_and_lists_import_no_plugin(folder: Path, program: Program, words: list[str]) -> None:
    (folder / "site" / "imported").unlink(missing_ok=True)
    assert check_warnings(program(*words)) == []
    assert not (folder / "site" / "imported").exists()


def test_a_summary_leaves_out_what_cannot_be_used_and_has_everything_else(program: Program, results: Path) -> None:
    done = program("summary", "--results", results, "--json")
    said = check_warnings(done)
    found = json.loads(done.stdout)
    assert found["curves"]
    assert {"cost", "order_sensitivity", "models"} <= found.keys()
    assert not {"absent", "ends", "text", "bare", "both", "missing", "empty", "fails", "no_table"} & found.keys()
    for kind in ("metric", "finding"):
        for name in ("absent", "ends", "text", "bare", "missing", "empty"):
            assert sum(f"{kind} {name} of flawed " in line for line in said) == 1, (kind, name, said)
        assert sum(f"{kind} both " in line and "flawed and other" in line for line in said) == 1
    for text in (
        "metric chrf of flawed has a built-in name: skipped",
        "finding fails of flawed failed (ZeroDivisionError: no rows): skipped",
        "finding no_table of flawed failed (AttributeError: 'list' object has no attribute 'get'): skipped",
        "metric counts of flawed failed (ZeroDivisionError: no rows): skipped",
    ):
        assert said.count(f"warning: {text}") == 1, (text, said)


def test_tables_report_plan_and_trace_come_out_beside_broken_plugins(
    program: Program, results: Path, folder: Path
) -> None:
    printed = program("summary", "--results", results)
    assert any("finding fails of flawed " in line for line in check_warnings(printed))
    assert "95%" in printed.stdout
    check_warnings(program("report", "--results", results, "--out", folder / "report.html"))
    assert "Accuracy over" in (folder / "report.html").read_text(encoding="utf-8")
    check_warnings(program("show", "--results", results, "--task", "cards", "--k", 1))
    check_warnings(program("plan", *SWEEP[1:]))
    check_warnings(program("leaderboard", "--results", results))
    check_warnings(program("export", "--results", results, "--out", folder / "all.csv"))


NAMED = {
    "selector": ("plan", *SWEEP[1:], "--select"),
    "order": ("plan", *SWEEP[1:], "--order"),
    "perturbation": ("plan", *SWEEP[1:], "--perturbation"),
    "attention pattern": ("plan", *SWEEP[1:], "--attention"),
    "backend": ("plan", *SWEEP[1:], "--backend"),
    "training method": ("finetune", *SWEEP[1:], "--method"),
}


@pytest.mark.parametrize(
    ("kind", "name"), zip(NAMED, ["absent", "ends", "text", "bare", "both", "absent"], strict=True)
)
def test_a_command_that_asks_for_one_by_name_fails_with_one_line(program: Program, kind: str, name: str) -> None:
    done = program(*NAMED[kind], name)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {kind} {name} "), line
    assert "flawed" in line


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("metric", {"metrics": ["absent"]}),
        ("task source", {"data": {"source": "absent", "fields": {"text": "text", "label": "label"}}}),
    ],
)
def test_a_task_that_asks_for_one_by_name_fails_with_one_line(
    program: Program, folder: Path, kind: str, change: dict[str, Any]
) -> None:
    task = fakes.write_task(folder / kind.replace(" ", "-"), **change)
    done = program("plan", "--task", task, *SWEEP[3:])
    assert done.returncode == 2, done.stderr
    *warned, line = done.stderr.splitlines()
    assert all(text.startswith("warning: ") for text in warned)
    assert line.startswith("error: ")
    assert f"{kind} absent of flawed cannot be loaded (No module named 'nowhere')" in line


def test_results_in_a_storage_that_does_not_load_are_an_error_of_one_line(program: Program) -> None:
    done = program("summary", "--results", "absent://here")
    assert done.returncode == 2
    assert done.stderr.startswith("error: kind of storage absent of flawed cannot be loaded")
    assert done.stderr.count("\n") == 1
