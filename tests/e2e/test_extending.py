"""The examples of ``docs/extending.md``, as a package of somebody else's, found and run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.models import llama_tokenizer, save_tiny_model, tiny_config
from support.program import as_words
from support.warm_program import WarmProgram

from icl_bench import registry

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
CODE = dict(re.findall(r"```python\n# (my_package/\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
(GROUPS,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
TASK = """
name: colours
data: {source: colours, fields: {text: text, label: label}}
template: {input: "thing: {text}", output: "colour: {label}"}
labels: {style: words}
metrics: [first_letter, accuracy]
test: {size: 6}
"""

Program = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip would install it, a task of its source, and a small model."""
    root = tmp_path_factory.mktemp("extending")
    about = root / "site" / "my_package-1.0.dist-info"
    (root / "site" / "my_package").mkdir(parents=True)
    about.mkdir()
    for name, code in CODE.items():
        (root / "site" / name).write_text(code, encoding="utf-8")
    groups = tomllib.loads(GROUPS)["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{n} = {at}\n" for n, at in found.items()) for group, found in groups.items()]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (root / "colours.yaml").write_text(TASK, encoding="utf-8")
    tokenizer = llama_tokenizer()
    tokenizer.save_pretrained(root / "tiny")
    save_tiny_model(tiny_config("llama", len(tokenizer)), root / "tiny")
    return root


@pytest.fixture(scope="module")
def program(folder: Path) -> Iterator[Program]:
    """The program in that folder, where the package is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "site"))
        patch.setenv("COLUMNS", "160")
        warm = WarmProgram()

        def run(*words: object) -> str:
            with contextlib.chdir(folder):
                done = warm.run(list(map(str, words)), os.environ)
            assert done.returncode == 0, done.stderr + done.stdout
            return done.stdout

        yield run
        warm.close()


@pytest.fixture(scope="module")
def results(folder: Path, program: Program) -> Path:
    """Results of runs with each of the examples."""
    found = folder / "results"
    common = (
        *as_words("--task colours.yaml --model tiny --k 2,4 --draws 1 --dtype float32 --results"),
        found,
        "--quiet",
    )
    program(
        "run", *common, "--select", "random,longest,hybrid:2", "--order", "drawn,reversed", "--attention", "full,near:8"
    )
    program("run", *common, "--perturbation", "shouted")
    program("run", *common, "--backend", "parrot", "--seed", 1)
    program("finetune", *common, "--method", "majority")
    return found


def test_every_kind_is_shown_in_fewer_than_twenty_lines() -> None:
    kinds = [r for r in vars(registry).values() if isinstance(r, registry.Registry)]
    assert sorted(tomllib.loads(GROUPS)["project"]["entry-points"]) == sorted(r.group for r in kinds)
    assert len(CODE) == len(kinds) == 10
    for name, code in CODE.items():
        body = [line for line in code.splitlines() if line.strip()]
        imports = [line for line in body if line.startswith(("from ", "import "))]
        assert len(body) - len(imports) < 20, name


def test_selector_order_and_pattern_of_another_package_make_cells(program: Program, results: Path) -> None:
    curves = json.loads(program("summary", "--results", results, "--json"))["curves"]
    assert {curve["select"] for curve in curves} == {"random", "longest", "hybrid:2", "majority"}
    assert {curve["order"] for curve in curves} == {"drawn", "reversed"}
    assert {curve["attention"] for curve in curves} == {"full", "near:8"}


def test_results_are_read_from_a_storage_of_another_package(program: Program, results: Path, folder: Path) -> None:
    (folder / "file-server").mkdir()
    (folder / "file-server" / "run").symlink_to(results)
    there = program("summary", "--results", "team://run", "--json")
    assert there == program("summary", "--results", results, "--json")


def test_points_of_a_task_are_compared_by_its_first_metric_whosever_it_is(program: Program, results: Path) -> None:
    found = json.loads(program("summary", "--results", results, "--json"))
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
    program: Program, results: Path, folder: Path
) -> None:
    assert "answers: letters, mean" in program("summary", "--results", results)
    found = json.loads(program("summary", "--results", results, "--json"))["answer_lengths"]
    assert found
    assert all(3 <= row["length"] <= 5 for row in found)  # red, blue, green
    program("report", "--results", results, "--out", folder / "report.html")
    assert "How long are answers?" in (folder / "report.html").read_text(encoding="utf-8")


def test_a_method_and_a_backend_of_another_package_answer(results: Path) -> None:
    import icl_bench

    frame = icl_bench.read_results(results)
    assert {"majority", "parrot", "transformers"} == set(frame["backend"])
    parrot = frame[frame["backend"] == "parrot"]
    assert set(parrot["prediction"]) == {"blue"}
    right = (parrot["prediction"].str[0] == parrot["gold"].str[0]).astype(float)
    assert parrot["first_letter"].tolist() == right.tolist()
