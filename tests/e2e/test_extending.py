"""The examples of ``docs/extending.md``, as a package of somebody else's, found and run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_server import serving
from support.extending import CODE, GROUPS, path_with, write_package
from support.models import llama_tokenizer, tiny_checkpoint
from support.outside import described
from support.program import as_words
from support.warm_program import WarmProgram

import icl_bench
from icl_bench import registry

TASK = """
name: colours
data: {source: colours, fields: {text: text, label: label}}
template: {input: "thing: {text}", output: "colour: {label}"}
labels: {style: words}
metrics: [first_letter, accuracy]
test: {size: 6}
"""

SHARED = ("random", "near-length:20", "near-length:3,by=words", "hybrid:2")
RETRIEVED = ("shared-words", "hybrid:2,by=shared-words", "near-length:3,by=words+hybrid:1,by=shared-words")

Program = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip would install it, a task of its source, and a small model."""
    root = tmp_path_factory.mktemp("extending")
    write_package(root / "site")
    groups = tomllib.loads(GROUPS)["project"]["entry-points"]
    described(
        root / "site",
        "my_package",
        {group: "\n".join(f"{n} = {at}" for n, at in found.items()) for group, found in groups.items()},
    )
    (root / "colours.yaml").write_text(TASK, encoding="utf-8")
    tiny_checkpoint(root / "tiny", tokenizer=llama_tokenizer())
    return root


@pytest.fixture(scope="module")
def program(folder: Path, warm: WarmProgram) -> Iterator[Program]:
    """The program in that folder, where the package is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path_with(folder / "site"))
        patch.setenv("COLUMNS", "160")

        def run(*words: object, code: int = 0) -> str:
            with contextlib.chdir(folder):
                done = warm.run(list(map(str, words)), os.environ)
            assert done.returncode == code, done.stderr + done.stdout
            return done.stderr if code == 2 else done.stdout

        yield run


@pytest.fixture(scope="module")
def results(folder: Path, program: Program) -> Path:
    """Results of runs with each of the examples."""
    found = folder / "results"
    common = (
        *as_words("--task colours.yaml --model tiny --k 2,4 --draws 1 --dtype float32 --results"),
        found,
        "--quiet",
    )
    program("run", *common, "--select", ",".join(SHARED), "--attention", "full,near:8")
    program("run", *common, "--select", ",".join(RETRIEVED))
    program("run", *common, "--perturbation", "shouted")
    program("run", *common, "--backend", "parrot", "--seed", 1, "--order", "drawn,reversed")
    program("finetune", *common, "--method", "majority")
    return found


@pytest.fixture(scope="module")
def summary(program: Program, results: Path) -> str:
    """All their tables, as JSON."""
    return program("summary", "--results", results, "--json")


def test_every_kind_is_shown_each_in_one_short_file() -> None:
    kinds = [r for r in vars(registry).values() if isinstance(r, registry.Registry)]
    groups = tomllib.loads(GROUPS)["project"]["entry-points"]
    assert sorted(groups) == sorted(kind.group for kind in kinds)
    entries = [at for found in groups.values() for at in found.values()]
    assert sorted(CODE) == sorted(at.partition(":")[0].replace(".", "/") + ".py" for at in entries)
    for name, code in CODE.items():
        body = [line for line in code.splitlines() if line.strip()]
        imports = [line for line in body if line.startswith(("from ", "import "))]
        assert len(body) - len(imports) < (60 if name.endswith("server.py") else 30), name


def test_selector_order_and_pattern_of_another_package_make_cells(summary: str) -> None:
    curves = json.loads(summary)["curves"]
    assert {curve["select"] for curve in curves} == {*SHARED, *RETRIEVED, "majority"}
    assert {curve["order"] for curve in curves} == {"drawn", "reversed", "relevance"}
    assert {curve["attention"] for curve in curves} == {"full", "near:8"}


def test_results_are_read_from_a_storage_of_another_package(
    program: Program, results: Path, summary: str, folder: Path
) -> None:
    (folder / "file-server").mkdir()
    (folder / "file-server" / "run").symlink_to(results)
    there = program("summary", "--results", "team://run", "--json")
    assert there == summary


def test_points_of_a_task_are_compared_by_its_first_metric_whosever_it_is(summary: str) -> None:
    found = json.loads(summary)
    assert {curve["metric"] for curve in found["curves"]} == {"first_letter"}
    for curve in found["curves"]:
        assert 0 <= curve["ci_low"] <= curve["score"] <= curve["ci_high"] <= 1
        assert curve["score"] >= curve["accuracy"]
    assert {row["metric"] for row in found["sorting_penalty"] + found["retrieval_gain"]} == {"first_letter"}


def test_demonstrations_are_shown_as_another_package_writes_them(program: Program, results: Path) -> None:
    shown = program("show", "--results", results, "--task", "colours", "--k", 2, "--perturbation", "shouted")
    assert re.search(r"THING: [A-Z]+ NUMBER \d\ncolour: ", shown)
    assert "hash checked" in shown


def test_a_finding_of_another_package_is_in_terminal_json_and_report(
    program: Program, results: Path, summary: str, folder: Path
) -> None:
    assert "answers: letters, mean" in program("summary", "--results", results)
    found = json.loads(summary)["answer_lengths"]
    assert found
    assert all(3 <= row["length"] <= 5 for row in found)  # red, blue, green
    program("report", "--results", results, "--out", folder / "report.html")
    assert "How long are answers?" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_mistake_in_an_option_of_another_packages_selector_is_an_error_of_one_line(program: Program) -> None:
    for select, message in {
        "near-length": "length is missing, like near-length:LENGTH",
        "near-length:0": "length=0: input should be greater than or equal to 1",
        "near-length:3,by=word": "by=word: not known; did you mean words?",
        "shared-words,by=words": "by= is an option of hybrid:S and per-label:N only",
    }.items():
        said = program("plan", "--task", "colours.yaml", "--model", "tiny", "--select", select, code=2)
        assert said.startswith(f"error: --select {select}: "), said
        assert message in said
        assert said.count("\n") == 1


def test_a_server_is_asked_by_a_client_of_another_package(program: Program, folder: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if body["prompt"].count("colour:") > 3:
            return 500, {"error": "busy"}
        return 200, {"content": " red\nthing: sky", "stop_type": "limit"}

    with serving(answer) as server:
        url = server.url.removesuffix("/v1")
        program(
            "run", "--task", "colours.yaml", "--model", "theirs", "--tokenizer", "tiny", "--backend", "llamacpp",
            "--base-url", url, "--k", "1,2,4", "--draws", 1, "--results", folder / "served", "--quiet", code=1,
        )  # fmt: skip
    frame = icl_bench.read(folder / "served").predictions
    assert {*frame["prediction"]} == {"red"}
    assert sorted({*frame["k"]}) == [1, 2]
    assert {request["path"] for request in server.requests} == {"/completion"}
    assert all(request["stop"] and request["n_predict"] for request in server.requests)
    failed = json.loads(program("summary", "--results", folder / "served", "--json"))["failed"]
    assert {failure["spec"]["k"] for failure in failed} == {4}
    assert "HTTPError 500" in failed[0]["reason"]


def test_results_are_shown_where_the_plugins_that_made_them_no_longer_load(results: Path, folder: Path) -> None:
    site = folder / "changed"
    shutil.copytree(folder / "site", site)
    for module in (site / "my_package").glob("*.py"):
        module.write_text("raise RuntimeError('needs another version')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "icl_bench", "summary", "--results", results, "--json"],
        env={**os.environ, "PYTHONPATH": path_with(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    selects = {curve["select"] for curve in json.loads(done.stdout)["curves"]}
    assert selects == {*SHARED, *RETRIEVED, "majority"}
    lines = done.stderr.splitlines()
    assert len(lines) == len({*lines})
    for kind, names in {
        "metric": ["first_letter"],
        "finding": ["answer_lengths"],
        "selector": ["near-length", "shared-words"],
        "attention pattern": ["near"],
    }.items():
        for name in names:
            why = "cannot be loaded (RuntimeError: needs another version)"
            assert f"warning: {kind} {name} of my_package {why}: skipped" in lines


def test_a_method_and_a_backend_of_another_package_answer(results: Path) -> None:
    frame = icl_bench.read(results).predictions
    assert {"majority", "parrot", "transformers"} == set(frame["backend"])
    parrot = frame[frame["backend"] == "parrot"]
    assert set(parrot["prediction"]) == {"blue"}
    right = (parrot["prediction"].str[0] == parrot["gold"].str[0]).astype(float)
    assert parrot["first_letter"].tolist() == right.tolist()
