"""Studies on a real Ray of this machine: the same predictions, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import faulty_engine
from support.api_server import free_port
from support.models import tiny_checkpoint
from support.outside import looked_for_again
from support.program import PROGRAM, as_words, heed_interrupts

from icl_bench.cli import main
from icl_bench.errors import UserError
from icl_bench.registry import BACKENDS, STORAGES
from icl_bench.results.reading import read_results
from icl_bench.studies import on_ray
from icl_bench.studies.cluster import ClusterSpec
from icl_bench.studies.file import load_study
from icl_bench.studies.on_ray import connected
from icl_bench.studies.parts import Listener, Part, PromptPart, StudyProgress
from icl_bench.studies.rules import PointFilter
from icl_bench.studies.study import Study
from icl_bench.sweep.runner import Outcome

ray = pytest.importorskip("ray")

STUDY = """\
tasks: [stdlib_six]
models: [./first, ./second]
options: {test_size: 4, dtype: float32, draws: 2}
settings:
  - {name: plain, select: [random, bm25], k: [2, 4]}
  - {name: neighbours, finetune: probe, k: 12, models: [./first]}
"""
FAULTY = """\
tasks: [stdlib_six]
models: [./first]
settings:
  - {name: faulty, k: [1, 8], draws: 2, test_size: 4, backend: faulty}
"""
TWO_GROUPS = """\
tasks: [stdlib_six]
models: [./first]
options: {draws: 1, test_size: 4, backend: faulty}
settings:
  - {name: dies, k: [1, 8]}
  - {name: next, k: 1, select: balanced}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("ray")
    for name in ("first", "second"):
        tiny_checkpoint(root / name)
    (root / "mine.yaml").write_text(STUDY, encoding="utf-8")
    (root / "faulty.yaml").write_text(FAULTY, encoding="utf-8")
    (root / "two.yaml").write_text(TWO_GROUPS, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return faulty_engine.install(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def cluster(environment: dict[str, str]) -> Iterator[None]:
    """A Ray of this machine, for all tests of this file."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    sys.path.insert(0, environment["PYTHONPATH"].split(os.pathsep)[0])
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    with looked_for_again(BACKENDS, STORAGES):
        yield
    ray.shutdown()
    sys.path.pop(0)
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture
def faults(cluster: None, environment: dict[str, str]) -> Iterator[Path]:
    """The folder of faults, empty again afterwards."""
    root = Path(environment[faulty_engine.FAULTS])
    yield root
    for file in root.iterdir():
        file.unlink()


class Told(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.states: list[StudyProgress] = []
        self.ended: list[tuple[Part, Outcome]] = []
        self.shared: list[Part] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def cluster_progress(self, state: StudyProgress) -> None:
        self.states.append(state)

    def parts_shared(self, parts: Sequence[Part]) -> None:
        self.shared += parts

    def part_ended(self, part: Part, outcome: Outcome) -> None:
        self.ended.append((part, outcome))


def carried_out(file: Path, results: Path | str, engines: int | None = 2) -> tuple[Outcome, Told]:
    read, told = load_study(file), Told()
    study = Study.prepare(read, PointFilter(read.exclude))
    if engines is None:
        return study.run(results, told), told
    with connected(ClusterSpec("ray", engines)) as machines:
        return study.run(results, told, machines), told


def predictions(results: Path) -> pd.DataFrame:
    columns = ["cell", "test_id", "select", "k", "draw", "prediction", "prompt_hash", "demonstration_ids"]
    found = read_results(results).reindex(columns=columns)
    assert not found.duplicated(["cell", "test_id"]).any()
    return found.sort_values(["cell", "test_id"], ignore_index=True)


def test_a_study_on_ray_is_the_study_without(cluster: None, folder: Path, tmp_path: Path):
    alone, _ = carried_out(folder / "mine.yaml", tmp_path / "alone", engines=None)
    outcome, told = carried_out(folder / "mine.yaml", tmp_path / "shared")
    assert set(outcome.computed) == set(alone.computed)
    assert len(outcome.computed) == 18
    assert outcome.prompt_tokens == alone.prompt_tokens
    # one process answers prompts that draws have in common once
    assert outcome.answer_tokens >= alone.answer_tokens
    pd.testing.assert_frame_equal(predictions(tmp_path / "shared"), predictions(tmp_path / "alone"))
    assert len(told.ended) == len(told.shared) == 3
    assert sum(len(one.computed) for _, one in told.ended) == 18
    assert [one.name for one in (tmp_path / "shared" / "_studies").iterdir()] == ["mine.json"]


def test_a_group_whose_engine_dies_is_taken_up_from_what_is_stored(faults: Path, folder: Path, tmp_path: Path):
    carried_out(folder / "faulty.yaml", tmp_path / "whole", engines=None)
    (faults / "once").write_text("100")  # in the midst of a cell of 8 demonstrations
    outcome, told = carried_out(folder / "faulty.yaml", tmp_path / "results")
    assert not (faults / "once").exists(), "nothing died"
    assert not outcome.failed
    (note,) = told.notes
    assert "its process died" in note
    assert "retried" in note
    pd.testing.assert_frame_equal(predictions(tmp_path / "results"), predictions(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("die", "failed 2 times: its process died"),
        pytest.param("raise", "failed 2 times: RuntimeError: a fault of the program", marks=pytest.mark.thorough),
    ],
)
def test_a_group_that_fails_twice_is_marked_and_the_study_goes_on(
    fault: str, reason: str, faults: Path, folder: Path, tmp_path: Path
):
    (faults / fault).write_text("100")
    outcome, told = carried_out(folder / "two.yaml", tmp_path, engines=1)
    ((cell, said),) = outcome.failed.items()
    assert (outcome.names[cell].select, outcome.names[cell].k) == ("random", 8)
    assert said.startswith(reason)
    there = predictions(tmp_path)[["select", "k"]].itertuples(index=False, name=None)
    assert set(there) == {("random", 1), ("balanced", 1)}
    assert len(list(tmp_path.rglob("*.failed.json"))) == 1
    assert sum("gave up" in note for note in told.notes) == 1
    assert any("Traceback" in note for note in told.notes) == (fault == "raise")
    (faults / fault).unlink()
    again, _ = carried_out(folder / "two.yaml", tmp_path, engines=1)
    assert (len(again.computed), len(again.kept), len(again.failed)) == (1, 2, 0)
    assert not list(tmp_path.rglob("*.failed.json"))


def test_a_machine_that_does_not_see_the_results_ends_the_study(cluster: None, folder: Path):
    with pytest.raises(UserError, match=r"has no such folder, or a different one of this name"):
        carried_out(folder / "faulty.yaml", "apart://results", engines=1)


def test_a_machine_that_would_compute_other_cells_ends_the_study(
    cluster: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settled = {"backend": "faulty", "dtype": "bfloat16"}
    monkeypatch.setattr(PromptPart, "settle", lambda part: setattr(part, "_settled", settled))
    with pytest.raises(UserError, match="dtype is float32 there and bfloat16 here; give --dtype"):
        carried_out(folder / "faulty.yaml", tmp_path, engines=1)
    assert not list(tmp_path.rglob("*.parquet"))
    assert not list(tmp_path.rglob("*.failed.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "slurm"], "--on slurm: expected ray, or ray://HOST:10001"),
        (["--engines", "2"], "--engines 2: needs a cluster; give --on ray, too"),
        (["--on", "ray", "--engines", "none"], "--engines none: expected a number from 1, or auto"),
        (["--on", "ray", "--engines", "0"], "--engines 0: expected a number from 1, or auto"),
        (["--on", "ray", "--gpus-per-engine", "1.5"], "--gpus-per-engine 1.5: expected a whole number"),
        (["--on", "ray", "--gpus-per-engine", "2"], "--gpus-per-engine 2: no machine of this Ray cluster has a GPU"),
    ],
)
def test_what_is_asked_of_a_cluster_and_cannot_be_is_one_line(
    words: list[str], said: str, cluster: None, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(["study", str(folder / "faulty.yaml"), "--results", str(tmp_path / "r"), *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_results_that_cannot_be_written_are_told_before_anything_is_computed(
    cluster: None, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    words = ["--task", "stdlib_six", "--model", str(folder / "first"), "--k", "2", "--on", "ray"]
    with pytest.raises(SystemExit) as ended:
        main(["run", *words, "--quiet", "--results", str(tmp_path / "file" / "results")])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be written" in line


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_ray_that_is_not_there_is_told_at_once(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    start = time.monotonic()
    spec = ClusterSpec(address if "//" in address else "ray")
    with pytest.raises(UserError, match="cannot be reached"):
        on_ray._connect(spec)
    assert time.monotonic() - start < 10


class Spread:
    """A part whose model is spread over some cards."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus


@pytest.mark.parametrize(
    ("there", "asked", "needed", "each", "engines"),
    [
        ([{"CPU": 8.0}], None, 1, 0.0, 1),
        ([{"CPU": 8.0}, {"CPU": 4.0}], None, 1, 0.0, 2),
        ([{"CPU": 8.0, "GPU": 8.0}], None, 1, 1.0, 8),
        ([{"CPU": 8.0, "GPU": 8.0}, {"CPU": 8.0}, {"GPU": 3.0}], None, 2, 2.0, 5),
        ([{"CPU": 8.0, "GPU": 2.0}], 0.5, 1, 0.5, 4),
        ([{"CPU": 8.0, "GPU": 4.0}], 2, 1, 2.0, 2),
    ],
)
def test_engines_are_as_many_as_there_are_cards_for_or_machines(
    there: list[dict[str, float]],
    asked: float | None,
    needed: int,
    each: float,
    engines: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(on_ray, "_nodes", lambda: there)
    cluster = on_ray.RayCluster(ClusterSpec("ray", None, asked))
    assert cluster.gpus_for([Spread(1), Spread(needed)]) == each
    assert cluster.room_for_engines(each) == engines


@pytest.mark.parametrize(
    ("asked", "needed", "said"),
    [
        (1, 2, "--gpus-per-engine 1: --tensor-parallel 2 needs 2 of them"),
        (None, 4, "--gpus-per-engine 4: no machine of this Ray cluster has more than 2 GPUs"),
    ],
)
def test_an_engine_needs_the_cards_that_its_model_is_spread_over(
    asked: float | None, needed: int, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(on_ray, "_nodes", lambda: [{"CPU": 4.0, "GPU": 2.0}])
    with pytest.raises(UserError, match=said):
        on_ray.RayCluster(ClusterSpec("ray", 1, asked)).gpus_for([Spread(needed)])


@pytest.mark.thorough  # a study of prompts and trainings is above, and the commands share its parts
def test_run_and_finetune_share_out_what_they_compute(
    cluster: None, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def run(self: on_ray.RayCluster, parts: Any, *others: Any) -> Any:
        on_cluster.append(len(parts))
        return real(self, parts, *others)

    real, on_cluster = on_ray.RayCluster.run, list[int]()
    monkeypatch.setattr(on_ray.RayCluster, "run", run)

    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--on", "ray", "--results", str(tmp_path / "r"), "--json"])
        assert not ended.value.code, capsys.readouterr().err
        return capsys.readouterr().out

    first, second = folder / "first", folder / "second"
    common = ("--task", "stdlib_six", "--test-size", "4", "--draws", "2")
    asked = ("--model", f"{first},{second}", "--k", "2,4", "--backend", "faulty")
    found = json.loads(said("run", *common, *asked, "--engines", "1"))
    assert [one["curves"][0]["model"] for one in found] == ["first", "second"]
    assert [row["k"] for row in found[0]["curves"]] == [2, 4]
    asked = ("--model", str(first), "--k", "12", "--method", "probe", "--dtype", "float32")
    found = json.loads(said("finetune", *common, *asked, "--engines", "1"))
    assert {row["select"] for row in found["curves"]} == {"probe"}
    assert len(predictions(tmp_path / "r")) == (2 * 2 * 2 + 2) * 4
    assert on_cluster == [2, 1]


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


@pytest.mark.thorough
def test_a_cluster_is_reached_from_outside(environment: dict[str, str], folder: Path, tmp_path: Path):
    port, alone = free_port(), tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    outer = {**os.environ, **environment, "RAY_TMPDIR": alone, "RAY_USAGE_STATS_ENABLED": "0"}
    start = as_words(
        f"--head --port 0 --ray-client-server-port {port} --num-cpus 2 --node-ip-address 127.0.0.1 "
        "--include-dashboard false --block --min-worker-port 0 --max-worker-port 0"
    )
    head = subprocess.Popen(
        [Path(sys.executable).parent / "ray", "start", *start],
        env=outer,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        command = [*PROGRAM, *as_words(f"study {folder}/faulty.yaml --results {tmp_path} --on ray://127.0.0.1:{port}")]
        del outer["RAY_TMPDIR"]
        deadline = time.monotonic() + 300
        while not listens(port) and time.monotonic() < deadline:
            time.sleep(0.2)
        while True:
            done = subprocess.run(command, capture_output=True, text=True, env=outer, timeout=300)
            if done.returncode != 2 or time.monotonic() > deadline:
                break
            assert "cannot be reached" in done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert done.returncode == 0, done.stderr
        assert len(predictions(tmp_path)) == 4 * 4
    finally:
        head.terminate()
        head.wait(timeout=60)


def journals(results: Path) -> dict[str, int]:
    """Unfinished cells, with the bytes that are stored of each."""
    return {path.name: path.stat().st_size for path in results.rglob("*.jsonl")}


def test_ctrl_c_ends_it_in_order_and_the_same_command_goes_on(
    faults: Path, environment: dict[str, str], folder: Path, tmp_path: Path
):
    (faults / "slow").write_text("0")
    words = as_words(f"study {folder}/faulty.yaml --on ray --engines 2 --results {tmp_path}")
    alone = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: names of sockets are below it
    outer = {**os.environ, **environment, "RAY_TMPDIR": alone}
    started = subprocess.Popen(
        [*PROGRAM, *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=outer,
        preexec_fn=heed_interrupts,
    )
    deadline = time.monotonic() + 180
    while not any(journals(tmp_path).values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, error = started.communicate(timeout=60)
    (faults / "slow").unlink()
    assert started.returncode == 130, error
    assert error.splitlines()[-1] == "interrupted; run the same command again to continue"
    assert "Traceback" not in error
    assert any(journals(tmp_path).values()), "nothing was at work when it was stopped"
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code
    assert len(predictions(tmp_path)) == 4 * 4
    assert not journals(tmp_path)
