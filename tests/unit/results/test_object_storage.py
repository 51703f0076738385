"""Results in object storage, against a real server with S3's protocol, with faults injected."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from support.fakes import ENGINE, FakeBackend, plan
from support.in_process import said
from support.program import as_words
from support.s3 import BUCKET, S3Server
from unit.results.test_storage import everything, fill, sweep

from icl_bench.errors import UserError
from icl_bench.results import object_storage
from icl_bench.results.cells import FINISHED, JOURNAL
from icl_bench.results.exporting import export_results
from icl_bench.results.object_storage import LOCKS, ObjectJournals, ObjectStorage
from icl_bench.results.reading import read_results
from icl_bench.results.storage import LocalStorage, storage_at
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Runner


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as found:
        found.make_bucket()
        yield found


@pytest.fixture
def place(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty prefix of its own: of all servers of a process the objects are the same."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield f"s3://{BUCKET}/{uuid.uuid4().hex}"
    server.faults.throttled = server.faults.late = 0.0
    server.faults.refused = None


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(object_storage, "LEASE", 0.6)
    monkeypatch.setattr("icl_bench.sweep.runner.POLL_SECONDS", 0.1)
    return 0.6


def test_a_sweep_in_object_storage_is_the_sweep_in_a_folder(place: str, tmp_path: Path):
    fill(tmp_path / "task", place, Store(place))
    folder = tmp_path / "results"
    fill(tmp_path / "task", folder, Store(folder))
    by = ["cell", "test_id"]
    pd.testing.assert_frame_equal(*(read_results(one).sort_values(by, ignore_index=True) for one in (place, folder)))
    assert everything(place) == everything(folder)
    for one, out in ((place, "a.csv"), (folder, "b.csv")):
        export_results(one, tmp_path / out)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    # nothing is left but what is finished, and nobody holds a lock
    storage = ObjectStorage(place)
    names = {name for name, _ in storage.listed()}
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert names == {name for name in there if not name.startswith(LOCKS) and ".journal" not in name}


# -- locks ----------------------------------------------------------------------------------------


def test_a_lock_is_held_as_long_as_it_is_renewed(place: str, short_leases: float):
    mine, other = (ObjectJournals(ObjectStorage(place)) for _ in range(2))
    give_back = mine.take("t/m/a-1234")
    assert give_back is not None
    assert mine.take("t/m/a-1234") is None
    end = time.monotonic() + 3 * short_leases
    while time.monotonic() < end:
        assert other.take("t/m/a-1234") is None
        assert other.others_at_work()
        assert not mine.others_at_work()
        time.sleep(0.1)
    give_back()
    assert not other.others_at_work()
    again = other.take("t/m/a-1234")
    assert again is not None
    again()
    assert list(ObjectStorage(place).listed(LOCKS)) == []


def test_a_dead_process_lock_is_taken_over_and_not_given_back_by_it(place: str, short_leases: float):
    dead, other = (ObjectJournals(ObjectStorage(place)) for _ in range(2))
    give_back = dead.take("t/m/a-1234")
    assert give_back is not None
    lease = next(t for t in threading.enumerate() if t.name.startswith("lease"))
    # its process is stopped: nobody renews it any more
    object_storage_lease = give_back.__closure__
    assert object_storage_lease is not None
    (held,) = [c.cell_contents for c in object_storage_lease if isinstance(c.cell_contents, object_storage._Lease)]
    held._over.set()
    lease.join()
    assert other.take("t/m/a-1234") is None  # looked at for the first time
    time.sleep(1.5 * short_leases)
    taken = other.take("t/m/a-1234")
    assert taken is not None
    # the one that was stopped comes back: its lock is another's now
    held._lost = held._storage.replace(held._name, b"mine", held._version) is None
    assert held._lost
    give_back()
    assert len(list(ObjectStorage(place).listed(LOCKS))) == 1
    taken()


def test_of_many_that_take_a_cell_one_has_it(place: str):
    found: list[object] = []
    start = threading.Barrier(8)

    def take() -> None:
        journals = ObjectJournals(ObjectStorage(place))
        start.wait()
        found.append(journals.take("t/m/a-1234"))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = [give_back for give_back in found if give_back is not None]
    one()  # type: ignore[operator]


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("throttled", "late"), [(0.2, 0.0), (0.0, 0.1)])
def test_requests_that_are_throttled_or_time_out_lose_nothing(
    place: str, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, throttled: float, late: float
):
    """Late ones are held up for longer than the client waits, and then carried out nevertheless."""
    monkeypatch.setenv("AWS_TIMEOUT", "500 ms")
    server.faults.throttled, server.faults.late = throttled, late
    before, held_up = server.faults.requests, server.faults.held_up
    assert len(sweep(tmp_path, Store(place)).computed) == 8
    assert server.faults.requests - before > 50
    assert (server.faults.held_up - held_up > 5) == bool(late)
    server.faults.throttled = server.faults.late = 0.0
    frame = read_results(place)
    assert not frame.duplicated(["cell", "test_id"]).any()
    sweep(tmp_path, Store(tmp_path / "results"))
    assert len(frame) == len(read_results(tmp_path / "results"))


def work(place: str, task: str, environment: dict[str, str], lease: float, draws: int) -> None:
    """A process that carries out the sweep, answer by answer."""
    os.environ.update(environment)
    object_storage.LEASE = lease
    from icl_bench.sweep import runner

    runner.POLL_SECONDS = 0.1
    made = plan(Path(task), "1,3", selects=["random", "bm25"], draws=draws)
    Runner(made, Store(place), ENGINE, lambda: FakeBackend(pack=1)).run()


def test_processes_that_are_killed_while_writing_lose_nothing_and_count_nothing_twice(
    place: str, server: S3Server, tmp_path: Path
):
    """Two writers, of which one is killed again and again."""
    kills = int(os.environ.get("ICL_BENCH_KILLS", "4"))
    draws, chance = 2 + kills // 2, random.Random(0)
    selects = ["random", "bm25"]
    plan(tmp_path, "1,3", selects=selects, draws=draws)  # writes the task's files
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["icl_bench.sweep.runner", "support.fakes", __name__])
    arguments = (place, str(tmp_path), server.environment, 0.6, draws)
    for _ in range(kills):
        child = context.Process(target=work, args=arguments)
        until = server.faults.requests + chance.randint(4, 40)
        child.start()
        while child.is_alive() and server.faults.requests < until:
            time.sleep(0.002)
        assert child.pid is not None
        assert child.is_alive(), "it was done before it was killed"
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    for together in (2, 1):  # the last one finds all done, and tidies up behind the dead
        last = [context.Process(target=work, args=arguments) for _ in range(together)]
        for child in last:
            child.start()
        for child in last:
            child.join()
            assert child.exitcode == 0
        time.sleep(0.7)
    frame = read_results(place)
    assert not frame.duplicated(["cell", "test_id"]).any()
    made = plan(tmp_path, "1,3", selects=selects, draws=draws)
    Runner(made, Store(tmp_path / "results"), ENGINE, FakeBackend).run()
    columns = ["cell", "test_id", "prediction", "prompt_tokens"]
    pd.testing.assert_frame_equal(
        *(
            one.sort_values(columns, ignore_index=True)[columns].astype(str)
            for one in (frame, read_results(tmp_path / "results"))
        )
    )
    assert [name for name, _ in ObjectStorage(place).listed() if "journal" in name] == []


def test_what_a_process_left_that_died_after_writing_a_cell_is_removed_although_its_lock_is_there(
    place: str, tmp_path: Path
):
    """The lock is not free for a lease, but who finds the cell finished does not wait for it."""
    sweep(tmp_path, Store(place))
    storage = ObjectStorage(place)
    name = min(name for name in storage.names() if name.endswith(FINISHED)).removesuffix(FINISHED)
    dead = ObjectJournals(storage)
    assert dead.take(name) is not None
    dead.open(name).append(b"{}\n")
    assert len(sweep(tmp_path, Store(place)).kept) == 8
    assert [name for name in storage.names() if JOURNAL in name] == []


# -- what a user sees -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://nobucket/x", "nobucket"),
        ("ftp://somewhere/x", "not a kind of storage"),
        ("s3://", "--results s3://"),
        ("file://host/x", "expected file:///"),
    ],
)
def test_a_place_that_is_none_is_refused_in_one_line(place: str, address: str, why: str):
    for words in ("summary", "run --task stdlib_six --model gemma3-270m --k 1 --test-size 1 --draws 1"):
        line = said(*as_words(words), "--results", address, code=2).splitlines()[-1]
        assert line.startswith("error: ")
        assert why in line


def test_a_bucket_that_may_not_be_written_is_said_before_anything_is_computed(place: str, server: S3Server):
    server.faults.refused = "PUT"
    with pytest.raises(UserError, match=r"cannot be written \(.*give another with --results"):
        Store(place).prepare()


def test_commands_read_object_storage(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sweep(tmp_path, Store(place))
    monkeypatch.chdir(tmp_path)
    for words in ("leaderboard", "export --out out.csv", "report --out page.html"):
        said(*as_words(words), "--results", place)
    assert (tmp_path / "leaderboard.csv").exists()
    assert len(json.loads(said("summary", "--json", "--results", place))["curves"]) == 4


def test_a_file_address_is_a_folder(tmp_path: Path):
    storage = storage_at(f"file://{tmp_path}/a%20b")
    assert isinstance(storage, LocalStorage)
    assert storage.root == tmp_path / "a b"
