"""The workflow that users copy (docs/check.md): its commands, one after the other, on a tiny model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from support.in_process import run_command

import icl_bench

WORKFLOW = Path(__file__).parents[2] / ".github" / "workflows" / "regression.yml"
SMALLER = {"--model gemma3-270m": "--model {tiny}", "--k 10,50": "--k 2", "--test-size 100": "--test-size 6"}


def test_its_commands_make_a_baseline_and_then_check_against_it(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    steps = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["check"]["steps"]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("icl-bench ")]
    assert [command.split()[1] for command in commands] == ["run", "export", "check"]
    for written, smaller in SMALLER.items():
        assert written in commands[0]
        commands[0] = commands[0].replace(written, smaller.format(tiny=tiny))
    for command in commands:
        done = run_command(*shlex.split(command)[1:])
        assert done.code == 0, done.err
    again = run_command(*shlex.split(commands[2])[1:])  # the next time, with the baseline there
    assert again.code == 0
    assert "passed: no significant loss" in again.out
    used = "\n".join(str(step.get("if", "")) for step in steps)
    assert set(re.findall(r"'(results/\S+)'", used)) == {shlex.split(commands[1])[-1]}


def test_it_installs_the_published_package_and_no_file_of_this_repository():
    steps = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["check"]["steps"]
    (install,) = (step["run"] for step in steps if "pip install" in step.get("run", ""))
    assert f"'icl-bench[gemma]=={icl_bench.__version__}'" in install
    made = re.search(r"> (\S+)$", next(step["run"] for step in steps if step.get("run", "").startswith("pip freeze")))
    assert made is not None
    named = set(re.findall(r"[\w-]+\.(?:txt|toml|lock)", WORKFLOW.read_text(encoding="utf-8")))
    assert named == {made[1]}
    assert not (WORKFLOW.parents[2] / made[1]).exists()
