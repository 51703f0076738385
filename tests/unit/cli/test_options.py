"""Options of the commands are made of the specifications' declarations: no second list of them exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from support import fakes
from support.in_process import run_command
from support.outside import described

from icl_bench.choosing.options import ChooseSpec
from icl_bench.cli import COMMANDS, program
from icl_bench.cli.options import OptionValues, command
from icl_bench.errors import UserError
from icl_bench.options import GROUPS, Options
from icl_bench.registry import ATTENTION_PATTERNS, ORDERS, PERTURBATIONS, SELECTORS
from icl_bench.studies.options import MachineOptions
from icl_bench.sweep.options import PerplexitySpec, RunOptions
from icl_bench.sweep.rationale_options import NOT_FOR_THEM, RationalesOptions
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.training.adaptation.spec import AdaptationSpec
from icl_bench.training.spec import FinetuneSpec
from icl_bench.training.vectors.spec import VectorSpec

SPECS: dict[str, type[Options]] = {
    "run": RunSpec,
    "plan": RunSpec,
    "choose": ChooseSpec,
    "finetune": FinetuneSpec,
    "adapt": AdaptationSpec,
    "train-vectors": VectorSpec,
    "perplexity": PerplexitySpec,
    "rationales": RationalesOptions,
}
REQUIRED = {
    "task": "trec",
    "model": "gemma3-270m",
    "k": "1",
    "attention": "full",
    "texts": ".",
    "out": "x",
    "vectors": "1",
}


def parsed(*specs: type[Options], words: list[str]) -> list[OptionValues]:
    """What a command of these specifications hands over for these words."""
    taken: list[OptionValues] = []

    # the function's own signature says how many mappings it takes
    one = command(*specs)(taker(len(specs), taken))
    app = typer.Typer()
    app.command()(one)
    typer.main.get_command(app).main(words, standalone_mode=False)
    return taken


def taker(count: int, taken: list[OptionValues]) -> Any:
    def one(given: OptionValues) -> None:
        """Take it."""
        taken.append(given)

    def two(given: OptionValues, machines: OptionValues) -> None:
        """Take both."""
        taken.extend([given, machines])

    return {1: one, 2: two}[count]


def required(spec: type[Options]) -> dict[str, str]:
    return {name: REQUIRED[name] for name, one in spec.declared().items() if one.field.is_required()}


@pytest.mark.parametrize("name", SPECS)
def test_without_options_the_command_line_means_what_python_means(name: str) -> None:
    spec = SPECS[name]
    given = required(spec)
    words = [word for option, value in given.items() for word in (spec.declared()[option].flag, value)]
    (taken,) = parsed(spec, words=words)
    assert taken == given
    assert spec(**taken) == spec(**given)


@pytest.mark.parametrize("spec", dict.fromkeys([*SPECS.values(), MachineOptions]), ids=lambda spec: spec.__name__)
def test_every_field_of_a_specification_is_an_option_with_a_help_text_and_a_group(spec: type[Options]) -> None:
    hidden = NOT_FOR_THEM if spec is RationalesOptions else set()
    assert spec.declared().keys() == spec.model_fields.keys() - hidden
    for one in spec.declared().values():
        assert one.option.help.endswith((".", ")", "e"))
        assert one.option.group in GROUPS


def test_plan_takes_every_option_of_run() -> None:
    commands = typer.main.get_command(program()).commands  # type: ignore[attr-defined]
    run, plan = ({parameter.name for parameter in commands[name].params} for name in ("run", "plan"))
    assert run <= plan
    assert {"results", "tensor_parallel", "on", "engines", "quiet"} <= plan


def test_the_help_lists_options_by_group() -> None:
    done = run_command("run", "--help")
    headings = [line.removesuffix(":") for line in done.out.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Task", "Prompts", "Model", "Servers", "Many machines", "Output", "Options"]
    of_task = done.out.partition("Task:")[2].partition("Prompts:")[0]
    assert "--test-size" in of_task
    assert "--draws" not in of_task
    assert "[default: random]" in " ".join(done.out.split())


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_of_a_help_text_ends_within_a_name(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names as they can be copied: with plain hyphens, each on one line."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in COMMANDS:
        text = run_command(name, "--help").out
        assert [line for line in text.splitlines() if line.endswith("-")] == [], name
        assert "\N{NON-BREAKING HYPHEN}" not in text
    assert {"nearest-removed:P", "relevance-reversed.", "--data-dir"} <= set(run_command("run", "--help").out.split())


def test_the_help_of_the_program_has_the_first_line_of_every_command() -> None:
    listed = run_command("--help").out
    commands = typer.main.get_command(program()).commands  # type: ignore[attr-defined]
    assert commands.keys() == COMMANDS.keys()
    for name, one in commands.items():
        first = str(one.help).splitlines()[0]
        assert f"  {name:<14} {first}" in listed


@pytest.mark.parametrize(
    ("option", "registry", "further"),
    [
        ("select", SELECTORS, {"hybrid:S", "per-label:N", "hybrid:per-label:N", "centroids+", "balanced+"}),
        ("order", ORDERS, set()),
        ("perturbation", PERTURBATIONS, set()),
        ("attention", ATTENTION_PATTERNS, set()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_help_names_everything_that_an_option_selects(option: str, registry: Any, further: set[str]) -> None:
    words = set(re.split(r"[\s,;.()\[]+", RunOptions.declared()[option].option.help))
    named = {word.partition("=")[0] for word in words}
    missing = {
        name for name in registry.names if not any(word == name or word.startswith(f"{name}:") for word in named)
    }
    assert (missing, further - words) == (set(), set())


def test_the_help_names_selectors_that_installed_packages_add(tmp_path: Path) -> None:
    described(tmp_path, "theirs", {"icl_bench.selectors": "mine = nowhere:Mine"})
    done = subprocess.run(
        [sys.executable, "-m", "icl_bench", "run", "--help"],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Installed packages add: mine." in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_a_plan_says_what_is_finished_and_what_is_left(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be broken at the terminal's width
    words = ["--task", fakes.write_task(tmp_path / "task"), "--model", tiny, "--draws", "1", "--device", "cpu"]
    words += ["--dtype", "float32", "--results", "results"]
    assert json.loads(run_command("plan", *words, "--k", "1", "--json").out)[0]["finished"] is False
    assert run_command("run", *words, "--k", "1", "--quiet").code == 0
    before = sorted(tmp_path.rglob("*"))
    records = json.loads(run_command("plan", *words, "--k", "1,2", "--json").out)
    assert [record["finished"] for record in records] == [True, False]
    said = run_command("plan", *words, "--k", "1,2").out
    assert "finished in results: 1 cell " in " ".join(said.split())
    assert "left: 1 cell, " in said
    # another seed is another cell
    records = json.loads(run_command("plan", *words, "--k", "1", "--seed", "1", "--json").out)
    assert records[0]["finished"] is False
    assert sorted(tmp_path.rglob("*")) == before
    without = [word for word in words if word not in ("--results", "results")]
    assert json.loads(run_command("plan", *without, "--k", "1", "--json").out)[0]["finished"] is None


@pytest.mark.parametrize(
    "more",
    [("--tensor-parallel", "2"), ("--on", "ray", "--engines", "2"), ("--backend", "vllm"), ("--gpu-memory", "0.5")],
)
def test_a_plan_needs_no_engine_that_only_a_run_needs(tmp_path: Path, tiny: Path, more: tuple[str, ...]) -> None:
    pytest.importorskip("ray")
    task = fakes.write_task(tmp_path / "task")
    done = run_command("plan", "--task", task, "--model", tiny, "--k", "1", "--draws", "1", *more)
    assert (done.code, done.err) == (0, "")


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"draws": "three"}, "--draws three: expected a whole number"),
        ({"draws": True}, "--draws true: expected a whole number"),
        ({"draws": 0}, "--draws 0: expected 1 or more"),
        ({"k": 1.5}, "--k 1.5: expected numbers like 1,10,100, max or auto"),
        ({"k": {"1": 2}}, "--k a mapping: expected numbers like 1,10,100, max or auto"),
        ({"select": 5}, "--select 5: expected text like random,bm25, or a list"),
        ({"order": [3]}, "--order 3: expected text like drawn,by-label, or a list"),
        ({"attention": object()}, "--attention a object: expected text like full,block:25, or a list"),
        ({"perturbation": ["inputs-only", 1]}, "--perturbation inputs-only,1"),
        ({"score": "best"}, "--score best: expected greedy or exact"),
        ({"unconstrained": "no"}, "--unconstrained no: expected true or false"),
        ({"gpu_memory": 3}, "--gpu-memory 3: expected at most 1"),
        ({"seed": 2**70}, "--seed 1180591620717411303424: expected a whole number of 64 bits"),
        ({"labels": 5}, "--labels '5': expected all or half:SEED"),
        ({"drawz": 3}, "drawz: not an option of run; did you mean draws?"),
        ({"task": 5}, "--task 5: expected a task's name, the path of a task file, or an icl_bench.Task"),
        ({"model": ("a",)}, "--model a tuple: expected a model's name, a folder, a hub id, or a loaded model"),
        ({"model": None}, "--model None: expected a model's name"),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_line_with_the_option_the_value_and_what_is_expected(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        RunSpec(**{"task": "trec", "model": "gemma3-270m", "k": 1, **given})
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(UserError, match=r"^--task: is missing$"):
        RunSpec(model="gemma3-270m")


numbers = st.lists(st.integers(0, 5000), min_size=1, max_size=5)
selectors = st.lists(st.sampled_from(["random", "bm25", "hybrid:5,by=dense", "centroids,of=queries"]), min_size=1)
orders = st.lists(st.sampled_from(["drawn", "by-label", "shuffled:3"]), min_size=1)
patterns = st.lists(st.sampled_from(["full", "block:4,sink=1", "grouped:2,64"]), min_size=1)


@given(numbers, selectors, orders, patterns, st.integers(1, 9), st.booleans())
def test_lists_and_numbers_mean_what_the_command_lines_text_means(
    k: list[int], select: list[str], order: list[str], attention: list[str], draws: int, unconstrained: bool
) -> None:
    common = {"task": "trec", "model": "gemma3-270m", "unconstrained": unconstrained}
    here = RunSpec(**common, k=k, select=select, order=tuple(order), attention=attention, draws=draws)
    there = RunSpec(
        **common,
        k=",".join(map(str, k)),
        select=",".join(select),
        order=",".join(order),
        attention=",".join(attention),
        draws=str(draws),
    )
    assert here == there
    # what has been parsed is taken as it is
    assert (
        RunSpec(**common, k=here.k, select=here.select, order=here.order, attention=here.attention, draws=draws) == here
    )
    options = RunOptions.declared()
    assert {name: getattr(here, name) for name in options} == {name: getattr(there, name) for name in options}


def test_a_mapping_is_what_the_command_line_repeats() -> None:
    common = {"task": "trec", "model": "smollm2-135m-instruct", "k": 1, "chat": "turns"}
    here = RunSpec(**common, chat_arg={"enable_thinking": False, "tone": "dry"})
    there = RunSpec(**common, chat_arg=["enable_thinking=false", 'tone="dry"'])
    assert here == there
    assert here.chat_settings is not None
    assert dict(here.chat_settings.arguments) == {"enable_thinking": False, "tone": "dry"}
