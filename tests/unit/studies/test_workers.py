"""How many workers compute a run, and which are refused."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import write_rows, write_task
from support.in_process import Ended, run_command
from support.models import tiny_checkpoint

from icl_bench.cli import jobs, main
from icl_bench.cli.output.progress import Display
from icl_bench.errors import UserError
from icl_bench.results.reading import finished_cells
from icl_bench.studies import workers
from icl_bench.studies.options import MachineOptions
from icl_bench.studies.parts import Engines, Listener, Part, PromptPart
from icl_bench.studies.worker_process import OWN_BYTES, Crew, fitting
from icl_bench.studies.workers import GAIN, SERIAL, LocalWorkers, WorkerSpec, best_number
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.runner import Outcome
from icl_bench.sweep.sweep import Sweep


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_checkpoint(folder)
    return str(folder)


@pytest.fixture(scope="module")
def part(model: str) -> PromptPart:
    """Three draws of random demonstrations, and three of the most similar ones, which have the same prompts."""
    spec = RunSpec(task="stdlib_six", model=model, k="1,2", draws=3, test_size=4, select="random,bm25", dtype="float32")
    return PromptPart.of(Sweep.prepare(spec))


def refuse(parts: Sequence[Part], error: UserError) -> None:
    pytest.fail(f"{[part.task for part in parts]}: {error}")


def test_two_cores_are_one_process_and_many_are_a_worker_each():
    assert best_number([1.0] * 10, 2) == 1
    assert best_number([1.0] * 64, 64) == 64
    assert best_number([1.0] * 3, 64) == 3
    assert best_number([10.0, *[0.01] * 20], 8) == 1, "the long group decides"
    assert best_number([], 8) == 1


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12), st.integers(1, 16))
def test_several_workers_are_taken_only_where_they_are_faster_by_estimate(seconds: list[float], threads: int):
    number = best_number(seconds, threads)
    assert 1 <= number <= min(threads, len(seconds))
    speed = [0.0, *(1 / (SERIAL + (1 - SERIAL) / n) for n in range(1, threads + 1))]
    if number > 1:  # no assignment takes less than this
        shortest = max(max(seconds), sum(seconds) / number) / speed[threads // number]
        assert shortest <= GAIN * sum(seconds) / speed[threads] + 1e-9


def test_draws_with_the_same_prompts_are_one_group(part: PromptPart):
    units = part.units(0)
    assert [(one.cells, one.predictions) for one in units] == [(2, 8)] * 3 + [(6, 24)]
    assert units[-1].title.endswith("bm25, draws 1 to 3")
    draws = [[(identity.spec.select, identity.spec.draw) for identity in part.identities_of(n)] for n in range(4)]
    assert draws[1] == [("random", 1)] * 2
    assert draws[3] == [("bm25", draw) for draw in range(3) for _ in range(2)]


@pytest.mark.parametrize(
    ("asked", "threads", "number", "note"),
    [
        (2, 4, 2, None),
        (9, 16, 4, "note: --workers 9: there are only 4 groups of cells that share a prefix, so 4 at work"),
        (4, 2, 4, "note: --workers 4: more than 2 cores (or OMP_NUM_THREADS), so they wait for each other"),
        (None, 2, 1, "--workers auto: 1 worker"),
        (None, 16, 4, "--workers auto: 4 workers with 4 threads each"),
    ],
)
def test_workers_are_as_many_as_asked_for_or_as_there_are_groups(
    asked: int | None,
    threads: int,
    number: int,
    note: str | None,
    part: PromptPart,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(workers, "threads_here", lambda: threads)
    monkeypatch.setattr(workers, "length", lambda _: 1.0)
    notes: list[str] = []
    (team,) = WorkerSpec(asked).teams([part], tmp_path / "results", notes.append, refuse)
    assert (team.workers, team.threads, len(team.units)) == (number, threads, 4)
    assert notes == ([note] if note else [])


@pytest.mark.parametrize(
    ("changed", "value", "reason"),
    [
        ("icl_bench.backends.loaders.TransformersLoader.on_cpu", lambda _: False, "this is a GPU"),
        ("sys.platform", "darwin", "this is another system"),
    ],
)
def test_workers_are_for_a_cpu_with_linux(
    changed: str, value: object, reason: str, part: PromptPart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(changed, value)
    with pytest.raises(UserError, match=f"--workers 2: is for .* on a CPU with Linux, and {reason}; leave --workers"):
        WorkerSpec(2).teams([part], tmp_path, print, refuse)
    notes: list[str] = []
    (team,) = WorkerSpec(None).teams([part], tmp_path, notes.append, refuse)
    assert team.workers == 1
    assert notes == [f"note: --workers auto: one process, because {reason}"]


SERVER = "--backend openai --base-url http://127.0.0.1:9/v1 --tokenizer"


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--workers 0", "--workers 0: expected a number from 1, or auto"),
        ("--workers=-2", "--workers -2: expected a number from 1, or auto"),
        ("--workers many", "--workers many: expected a number from 1, or auto"),
        ("--workers 2 --on ray", "--workers 2: works on one machine only; remove --workers or --on"),
        (f"--workers 2 {SERVER}", "on a CPU with Linux, and this is --backend openai; leave --workers out"),
    ],
)
def test_what_workers_cannot_be_is_one_line(
    command: str,
    words: str,
    message: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    asked = [command, "--task", "stdlib_six", "--model", model, "--k", "1", "--test-size", "4", *words.split()]
    asked += [model] * (SERVER in words)
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--results", str(tmp_path / "results")])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_training_is_one_process(model: str, tmp_path: Path):
    words = ["--method", "probe", "--k", "12", "--draws", "1", "--test-size", "4", "--workers", "2"]
    ended = run_command("finetune", "--task", "stdlib_six", "--model", model, *words, "--results", str(tmp_path))
    assert "note: --workers 2: no effect on trainings, which run in one process" in ended.err


def test_workers_that_memory_does_not_suffice_for_are_left_out(tmp_path: Path):
    crew = Crew((), tmp_path, 4, 8, cache_bytes=2**29)
    assert fitting(crew, None).workers == 4
    assert fitting(crew, 4 * (OWN_BYTES + 2**29)).note is None
    started = fitting(crew, 3 * 2**30)
    assert (started.workers, started.note) == (
        3,
        "3 workers instead of 4: 3.0 GiB are free, and each needs 1.0 beside the weights",
    )
    assert fitting(crew, 0).workers == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [(None, "ended"), (1, "exit status 1"), (-9, "killed, perhaps for lack of memory"), (-11, "killed by signal 11")],
)
def test_how_a_worker_ended_is_said_in_words(code: int | None, words: str):
    assert workers._ending(code) == words


def test_a_task_that_fails_in_one_process_leaves_the_others_their_tables(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On two cores ``auto`` is one process, which computes tasks one after another."""

    def run_part(part: PromptPart, *others: Any) -> Any:
        if part.task != "stdlib_six":
            raise UserError("the disk is full")
        return real(part, *others)

    real, shown = jobs.run_part, list[str]()
    monkeypatch.setattr(jobs, "run_part", run_part)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    options = {"task": ["stdlib_six", str(write_task(tmp_path / "other"))], "model": model, "k": "1", "draws": 1}
    options |= {"test_size": 2, "dtype": "float32"}
    machines, display = MachineOptions(workers="auto"), Display(quiet=True)
    done, problem = jobs.carry_out(
        RunSpec, options, machines, tmp_path / "results", display, lambda one: shown.append(one.task)
    )
    assert shown == ["stdlib_six"]
    assert [one.task for one in done] == shown
    assert "1 of 2 not finished" in str(problem)


def test_a_task_that_was_changed_since_its_cells_were_finished_leaves_the_others(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workers.Team, "run", lambda self, *others: workers.run_here(self.parts, *others))

    def task(name: str, column: str) -> Path:
        fields = {"text": column, "label": "label"}
        path = write_task(
            tmp_path / name, name=name, data={"train": "train.jsonl", "test": "test.jsonl", "fields": fields}
        )
        for split in ("train", "test"):
            rows = [{"text": f"{split} {n}", "title": f"lost {n}", "label": "ab"[n % 2]} for n in range(8)]
            write_rows(tmp_path / name / f"{split}.jsonl", rows)
        return path

    def run(*tasks: Path, k: str = "2") -> Ended:
        words = ("--task", ",".join(map(str, tasks)), "--model", model, "--k", k, "--draws", 2, "--dtype", "float32")
        return run_command("run", *words, "--workers", 2, "--results", tmp_path / "results", "--json")

    first, second = task("first", "text"), task("second", "text")
    assert run(first, second).code == 0
    task("first", "title")
    ended = run(first, second, k="1,2")
    assert ended.code == 2
    assert "first with " in ended.err
    assert ended.err.count("was computed with data.fields.text: 'text', and task first now has 'title'") == 1
    assert (
        ended.err.rstrip().splitlines()[-1].endswith(f"1 of 2 not finished, see above: first with {Path(model).name}")
    )
    found = Counter(meta.spec.task for _, meta in finished_cells(tmp_path / "results"))
    assert found == {"first": 2, "second": 4}
    alone = run(first, k="1,2")
    assert alone.code == 2
    assert "not finished" not in alone.err


def test_a_model_that_cannot_be_computed_leaves_the_others(
    part: PromptPart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny_checkpoint(tmp_path / "other")
    other = PromptPart.of(Sweep.prepare(RunSpec(task="stdlib_six", model=str(tmp_path / "other"), k="1", test_size=4)))
    computed: list[Sequence[Part]] = []

    def compute(self: LocalWorkers, team: workers.Team, *_: Any) -> Outcome:
        if part in team.parts:
            raise UserError("the memory is full")
        computed.append(team.parts)
        return Outcome()

    monkeypatch.setattr(LocalWorkers, "_computed", compute)
    outcome = LocalWorkers(WorkerSpec(2)).run([part, other], tmp_path / "results", Listener())
    assert computed == [[other]]
    assert outcome.stopped == [f"{part.job}: the memory is full"]
    with pytest.raises(UserError, match="the memory is full"):
        LocalWorkers(WorkerSpec(2)).run([part], tmp_path / "results", Listener())


def test_an_engine_is_released_before_something_else_is_loaded():
    class Held:
        pass

    engines, held = Engines(), Held()
    held.itself = held  # type: ignore[attr-defined]
    there = weakref.ref(held)
    engines.free()  # the first time nothing was loaded
    del held
    engines.free()
    assert there() is None


def test_tasks_of_one_name_have_their_own_cells(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As two versions of a file in two folders."""
    monkeypatch.setattr(workers.Team, "run", lambda self, *others: workers.run_here(self.parts, *others))
    tasks = []
    for word in ("one", "two"):
        (tmp_path / word).mkdir()
        tasks.append(tmp_path / word / "rows.csv")
        tasks[-1].write_text("text,label\n" + "".join(f"{word} {n},{'ab'[n % 2]}\n" for n in range(40)))
    options = {"task": tasks, "model": model, "k": "1", "draws": 2, "test_size": 2, "dtype": "float32"}
    display, said = Display(quiet=True), lambda _: None
    done, _ = jobs.carry_out(RunSpec, options, MachineOptions(workers="2"), tmp_path / "results", display, said)
    first, second = (set(one.outcome.names) for one in done)
    assert [len(first), len(second), len(first | second)] == [2, 2, 4]


@pytest.mark.parametrize(("keep", "groups"), [("all", 2), ("top:2", 0), (None, 0)])
def test_cells_that_lack_the_requested_scores_are_not_kept_by_workers(
    keep: str | None, groups: int, model: str, tmp_path: Path
):
    """A worker marks them as failed, as a single process does."""
    options = {"task": "stdlib_six", "model": model, "k": "1", "draws": 2, "test_size": 2, "dtype": "float32"}
    stored = Sweep.prepare(RunSpec(**options, score="exact", keep_scores="top:2"))
    stored.run(tmp_path)
    part = PromptPart.of(Sweep.prepare(RunSpec(**options, score="exact", keep_scores=keep)))
    (team,) = WorkerSpec(2).teams([part], tmp_path, lambda _: None, refuse)
    assert len(team.units) == groups
