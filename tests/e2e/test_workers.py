"""Workers of one machine: the same predictions, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import faulty_engine
from support.models import tiny_checkpoint
from support.outside import looked_for_again
from support.program import PROGRAM, as_words, heed_interrupts

import icl_bench
from icl_bench.cli import main
from icl_bench.registry import BACKENDS
from icl_bench.results.journals import LocalJournals
from icl_bench.results.reading import read_results
from icl_bench.studies.workers import Team

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")

FAULTY = "--task stdlib_six --k 1,8 --draws 3 --test-size 4 --backend faulty --workers 2"
STUDY = "k: [1, 8], draws: 3, test_size: 4, backend: faulty"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models") / "first"
    tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return faulty_engine.install(tmp_path_factory.mktemp("site"))


@pytest.fixture
def faults(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of faults, for this process and its workers."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.syspath_prepend(environment["PYTHONPATH"].split(os.pathsep)[0])
    root = Path(environment[faulty_engine.FAULTS])
    with looked_for_again(BACKENDS):
        yield root
    for file in root.iterdir():
        file.unlink()


def predictions(results: Path) -> pd.DataFrame:
    columns = ["cell", "test_id", "select", "k", "draw", "prediction", "prompt_hash", "demonstration_ids"]
    found = read_results(results).reindex(columns=columns)
    assert not found.duplicated(["cell", "test_id"]).any()
    return found.sort_values(["cell", "test_id"], ignore_index=True)


def ran(model: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status and the messages of a run by two workers of the faulty engine."""
    with pytest.raises(SystemExit) as ended:
        main(["run", *as_words(FAULTY), "--model", str(model), "--results", str(results)])
    return int(ended.value.code or 0), capsys.readouterr().err


def test_workers_predict_what_one_process_predicts(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    options = {"task": "stdlib_six", "model": str(model), "test_size": 4, "dtype": "float32", "draws": 2, "k": [2, 4]}
    options |= {"select": ["random", "bm25"], "quiet": True}

    def run(self: Team, *others: Any) -> Any:
        numbers.append(self.workers)
        return real(self, *others)

    real, numbers = Team.run, list[int]()
    monkeypatch.setattr(Team, "run", run)
    alone = icl_bench.run(**options, results=tmp_path / "alone")
    assert numbers == []
    shared = icl_bench.run(**options, results=tmp_path / "shared", workers=2)
    assert numbers == [2]
    assert len(shared.predictions) == len(alone.predictions) == 2 * 2 * 2 * 4
    pd.testing.assert_frame_equal(predictions(tmp_path / "shared"), predictions(tmp_path / "alone"))
    again = icl_bench.run(**options, results=tmp_path / "shared", workers="auto")
    pd.testing.assert_frame_equal(again.curves, shared.curves)


def test_a_worker_that_dies_leaves_its_group_to_the_others(
    faults: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mine.yaml"
    file.write_text(f"tasks: [stdlib_six]\nmodels: [{model}]\nsettings:\n  - {{name: faulty, {STUDY}}}\n")
    (faults / "once").write_text("100")  # in the midst of a cell of 8 demonstrations
    with pytest.raises(SystemExit) as ended:
        main(["study", str(file), "--workers", "2", "--results", str(tmp_path / "results")])
    assert not (faults / "once").exists(), "nothing died"
    assert not ended.value.code
    assert "exit status 1); retried" in " ".join(capsys.readouterr().err.split())  # lines may be folded
    options = {"task": "stdlib_six", "k": [1, 8], "draws": 3, "test_size": 4, "backend": "faulty"}
    icl_bench.run(**options, model=str(model), results=tmp_path / "whole", quiet=True)
    pd.testing.assert_frame_equal(predictions(tmp_path / "results"), predictions(tmp_path / "whole"))


@pytest.mark.thorough
def test_a_run_whose_workers_all_die_names_them_and_the_same_command_goes_on(
    faults: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (faults / "die").write_text("100")
    status, said = ran(model, tmp_path, capsys)
    assert status == 1
    (line,) = (line for line in said.splitlines() if line.startswith("stopped: "))
    assert line.startswith("stopped: all workers ended (worker ")
    assert "worker 1: exit status 1" in line
    assert "worker 2: exit status 1" in line
    assert line.endswith("of cells left, run it again to continue")
    (faults / "die").unlink()
    status, _ = ran(model, tmp_path, capsys)
    assert status == 0
    assert len(predictions(tmp_path)) == 6 * 4
    assert not journals(tmp_path)
    assert not list(tmp_path.rglob("*.failed.json"))


def test_workers_end_with_the_command_and_the_same_command_goes_on(
    faults: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (faults / "slow").write_text("0")
    command = [*PROGRAM, "run", *as_words(FAULTY), "--model", str(model), "--results", str(tmp_path)]
    for how, status in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        before = journals(tmp_path)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as started:
            try:
                until(lambda: any(size for name, size in journals(tmp_path).items() if name not in before))  # noqa: B023
                started.send_signal(how)
                _, said = started.communicate(timeout=300)
            finally:
                started.kill()
        assert started.returncode == status, said
        until(lambda: not LocalJournals(tmp_path).others_at_work())
        if how is signal.SIGINT:
            assert said.splitlines()[-1] == "interrupted; run the same command again to continue"
            assert "Traceback" not in said
    (faults / "slow").unlink()
    assert ran(model, tmp_path, capsys)[0] == 0
    assert len(predictions(tmp_path)) == 6 * 4
    assert not journals(tmp_path)


def journals(results: Path) -> dict[str, int]:
    """Unfinished cells, with the bytes that are stored of each."""
    return {path.name: path.stat().st_size for path in results.rglob("*.jsonl")}


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
