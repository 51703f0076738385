"""The check of a card runs small on a CPU, part by part, and shows no figures of its speed there."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PARTS = ["kernels", "answers", "precision", "vllm", "memory", "speed", "lora"]

pytestmark = pytest.mark.slow


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program in this process, which has imported PyTorch already."""
    command = [str(BENCHMARKS / program), *options]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.syspath_prepend(BENCHMARKS)
        patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended, torch.random.fork_rng():
            runpy.run_path(command[0], run_name="__main__")
    return subprocess.CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def test_every_part_runs_on_a_cpu_and_keeps_its_bounds(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    out = tmp_path / "found.json"
    done = run("gpu_check.py", "--device", "cpu", "--small", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["failed"] == 0
    assert list(dict.fromkeys(row["part"] for row in found["findings"])) == PARTS
    timed = [row for row in found["findings"] if row["timed"]]
    assert timed == []  # told as what ran, without a figure
    assert any("not measured" in row["note"] for row in found["findings"])


def test_a_bound_that_is_not_kept_fails_and_an_error_in_one_part_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    from gpu.findings import Finding, Options, at_least, at_most, run_parts

    def broken(_: Options) -> object:
        yield at_most("broken", "too much", 2.0, 1.0)
        raise RuntimeError("no kernel\nand more")

    def fine(_: Options) -> object:
        yield at_least("fine", "enough", 2.0, 1.0)
        yield at_most("fine", "no number", float("nan"), 1.0)
        yield at_most("fine", "slow", 2.0, 1.0, timed=True)

    found = run_parts({"broken": broken, "fine": fine}, Options("cpu", small=True))
    assert [row.passed for row in found] == [False, False, True, False, None]
    assert found[1] == Finding("broken", "error", passed=False, note="RuntimeError: no kernel")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "kernels,nothing"], "--only nothing: the parts are kernels"),
        (["--device", "cpu"], "--device cpu needs --small"),
    ],
)
def test_what_cannot_be_run_is_refused(options: list[str], said: str) -> None:
    done = run("gpu_check.py", *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_study_runs_small_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of its one side is this one, too."""
    monkeypatch.setattr(subprocess, "run", lambda words, **_: run(Path(words[1]).name, *words[2:]))
    out = tmp_path / "study.json"
    options = ["--device", "cpu", "--small", "--backends", "transformers", "--out", str(out)]
    done = run("gpu_study.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(out.read_text())
    assert [cell["answers"] for cell in found["cells"].values()] == [4, 4]
    assert "not measured" in done.stdout


def test_the_profile_runs_small_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    done = run("gpu_profile.py", "--device", "cpu", "--small", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert [row["chunk"] for row in found["prefill"]] == [64, 64, 128, 128]
    for row in found["shares"].values():
        assert sum(row["shares"].values()) == pytest.approx(1.0)
    assert "TFLOP" not in done.stdout
