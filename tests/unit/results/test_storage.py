"""Results go through the storage and the journals they are given, and through nothing else."""

from __future__ import annotations

import os
import re
import string
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import ENGINE, FakeBackend, plan
from support.in_memory import MemoryJournals, MemoryStorage

from icl_bench.errors import UserError
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.journals import LocalJournals, journals_at
from icl_bench.results.perplexity_losses import losses_name, read_losses, write_losses
from icl_bench.results.reading import failed_cells, find_imported, finished_cells, read_results, read_rows, read_stored
from icl_bench.results.storage import LocalStorage, Place, Storage, folder_of, storage_at
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import LossesMeta
from icl_bench.sweep.runner import Runner

THEIRS = "task,model,select,order,k,draw,test_id,gold,prediction,note\nwines,tiny,bm25,pool,1,0,a,red,red,n\n"


def sweep(task: Path, store: Store) -> Any:
    made = plan(task, "1,3", selects=["random", "bm25"])
    return Runner(made, store, ENGINE, FakeBackend).run()


LOSSES = LossesMeta(model="m", fingerprint="f", dtype="float32", attention="full", sha256="0", length=4, by_length={})


def everything(place: Place) -> dict[str, Any]:
    """What the readers of a results folder find, under names that are the same anywhere; of how a
    cell was made, nothing: the second in which it was finished is there.
    """
    stored = read_stored(place)
    names = [name for name, _ in finished_cells(place)]
    return {
        "names": names,
        "rows": [read_rows(place, name).to_pylist() for name in names],
        "cells": {cell: meta.model_copy(update={"run": None}) for cell, meta in stored.cells.items()},
        "variants": dict(stored.variants),
        "failed": failed_cells(place),
        "imported": find_imported(place, {"task": "wines"}),
        "losses": [(meta, losses.tolist()) for meta, losses in read_losses(place)],
    }


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are compared byte for byte: all cells are made in the same second."""
    at = {"command": None, "finished": "2026-01-01T00:00:00+00:00", "hardware": "none"}
    monkeypatch.setattr("icl_bench.sweep.facts.this_run", lambda: at)


def fill(task: Path, place: Place, store: Store) -> None:
    """Finished cells, one that failed, an import and losses of a text."""
    assert len(sweep(task, store).computed) == 8
    made = plan(task, "2", draws=1)
    (cell,) = (cell for group in made.groups for cell in group.runnable)
    identity = Runner(made, store, ENGINE, FakeBackend).identity(cell)
    with store.claim(identity, 6) as opened:
        assert opened is not None
        opened.fail("no reason")
    theirs = task / "theirs.csv"
    theirs.write_text(THEIRS)
    import_predictions(theirs, place)
    write_losses(store.storage, losses_name("m", "text"), [np.ones(3)], LOSSES)


def test_a_sweep_in_memory_is_the_sweep_in_a_folder_and_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    memory, journals = MemoryStorage(), MemoryJournals()
    fill(tmp_path / "task", memory, Store(memory, journals))
    folder = tmp_path / "results"
    fill(tmp_path / "task", folder, Store(folder, LocalJournals(folder)))
    pd.testing.assert_frame_equal(read_results(memory), read_results(folder))
    assert everything(memory) == everything(folder)
    for place, out in ((memory, "a.csv"), (folder, "b.csv")):
        export_results(place, tmp_path / out)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    there = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    kept = memory.files | journals.as_files()
    assert set(kept) == {name for name in there if not name.startswith(".locks/")}
    assert {name: there[name].read_bytes() for name in kept} == kept
    assert list(empty.iterdir()) == []
    assert not journals.taken


def test_a_sweep_in_memory_goes_on_where_it_was_and_takes_no_taken_cell(tmp_path: Path):
    memory, journals = MemoryStorage(), MemoryJournals()
    store = Store(memory, journals)
    sweep(tmp_path, store)
    assert not sweep(tmp_path, store).computed
    name = min(name for name in memory.files if name.endswith(".parquet"))
    memory.files[name] = memory.files[name][:50]
    with pytest.warns(UserWarning, match=rf"memory:{name}: cannot be read .*set aside"):
        assert len(sweep(tmp_path, store).computed) == 1
    assert f"{name}.damaged" in memory.files
    made = plan(tmp_path, "2", draws=1)
    (cell,) = (cell for group in made.groups for cell in group.runnable)
    identity = Runner(made, store, ENGINE, FakeBackend).identity(cell)
    with store.claim(identity, 6) as first, store.claim(identity, 6) as second:
        assert first is not None
        assert second is None
        assert store.journals.others_at_work()
    assert not store.journals.others_at_work()


def test_messages_name_a_storage_as_it_names_itself():
    with pytest.raises(UserError, match=r"results folder memory:: no results yet"):
        read_results(MemoryStorage())


def test_a_place_is_a_folder_or_a_storage_itself(tmp_path: Path):
    memory = MemoryStorage()
    assert storage_at(memory) is memory
    for place in (tmp_path, str(tmp_path)):
        assert storage_at(place).where("a/b") == str(tmp_path / "a" / "b")
        assert isinstance(journals_at(place), LocalJournals)
    with pytest.raises(TypeError, match=r"memory:: its storage has no method journals\(\)"):
        Store(memory)


@pytest.mark.parametrize(
    ("place", "folder"),
    [("file:///a/b%20c", "/a/b c"), ("file://localhost/a", "/a"), ("a:b/c", "a:b/c"), ("C://x", "C:/x")],
)
def test_what_begins_like_no_address_is_a_folders_name(place: str, folder: str):
    assert folder_of(place) == folder_of(Path(folder)) == Path(folder)
    assert folder_of(MemoryStorage()) is None


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file://host/a", "--results file://host/a: expected file:///a/folder"),
        ("file://", "--results file://: expected file:///a/folder"),
        ("file://localhost", "--results file://localhost: expected file:///a/folder"),
        ("ftp://x/y", "--results ftp://x/y: not a kind of storage; known: "),
        ("s3:/x/y", "--results s3:/x/y: an address has two slashes, as text: s3://..."),
        (Path("gs://x/y"), "--results gs:/x/y: an address has two slashes, as text: gs://..."),
        ("", "--results '': expected a folder, or an address like s3://bucket/results"),
    ],
)
def test_an_address_of_no_folder_and_no_known_storage_is_refused(place: str | Path, said: str):
    with pytest.raises(UserError) as refused:
        storage_at(place)
    assert str(refused.value).startswith(said)


def test_a_folder_is_made_with_those_above_it_and_trying_it_leaves_nothing(tmp_path: Path):
    local = LocalStorage(tmp_path / "a" / "b")
    local.prepare()
    local.prepare()
    assert local.exists()
    assert list(local.root.iterdir()) == []
    with pytest.raises(UserError) as refused:
        LocalStorage(Path("/proc")).prepare()  # it is there, but takes no file
    said = r"results folder /proc: cannot be written \(.*\); give another with --results"
    assert re.fullmatch(said, str(refused.value))


def test_a_named_pipe_is_never_waited_for(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"1")
    assert LocalStorage(tmp_path).read("file") == b"1"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"^pipe is not a regular file$"):
        LocalStorage(tmp_path).read("pipe")
    with pytest.raises(FileNotFoundError):
        LocalStorage(tmp_path).read("none")


def test_a_storage_may_keep_journals_of_its_own():
    kept = MemoryJournals()

    class Keeping(MemoryStorage):
        def journals(self) -> MemoryJournals:
            return kept

    storage = Keeping()
    assert journals_at(storage) is kept
    assert Store(storage).journals is kept
    assert Store(storage, other := MemoryJournals()).journals is other


# -- journals -----------------------------------------------------------------------------------


def test_a_cell_is_taken_once_by_the_hash_that_ends_its_name_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    journals, others = LocalJournals(tmp_path / "new"), LocalJournals(tmp_path / "new")
    give_back = journals.take("task/model/random-k1-abc")
    assert give_back is not None
    assert others.take("task/model/random-k1-abc") is None
    assert [path.name for path in (tmp_path / "new" / ".locks").iterdir()] == ["abc.lock"]
    other = others.take("task/model/random-k1-def")
    assert other is not None
    other()
    assert not journals.others_at_work()  # a cell without a journal
    journals.open("task/model/random-k1-abc").close()
    journals.open("task/model/random-k1-def").close()
    assert others.others_at_work()
    give_back()
    assert not others.others_at_work()
    again = others.take("task/model/random-k1-abc")
    assert again is not None
    again()


def test_a_journal_grows_behind_its_cut_and_is_there_again_until_it_is_deleted(tmp_path: Path):
    journals = LocalJournals(tmp_path)
    journal = journals.open("a/b/c")
    assert journal.read() == b""
    journal.append(b"one\ntwo\n")
    assert (tmp_path / "a/b/c.journal.jsonl").read_bytes() == b"one\ntwo\n"  # before it is closed
    journal.cut(4)
    journal.append(b"three\n")
    assert journal.read() == b"one\nthree\n"
    journal.close()
    again = journals.open("a/b/c")
    assert again.read() == b"one\nthree\n"
    again.close()
    journals.delete("a/b/c")
    journals.delete("a/b/c")
    assert list((tmp_path / "a" / "b").iterdir()) == []


# -- one storage is as another ------------------------------------------------------------------

parts = st.text(string.ascii_lowercase[:3], min_size=1, max_size=2)
names = st.lists(parts, min_size=1, max_size=3).map(lambda path: "/".join(path) + ".x")
contents = st.binary(max_size=3)
acts: dict[str, Callable[[Storage, str, str, bytes], Any]] = {
    "put": lambda s, name, _, content: s.put(name, content),
    "read": lambda s, name, _, __: s.read(name) if s.has(name) else None,
    "rename": lambda s, name, to, _: s.rename(name, to) if s.has(name) else None,
    "delete": lambda s, name, _, __: s.delete(name),
    "names": lambda s, name, _, __: sorted(s.names(name.partition("/")[0])),
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(sorted(acts)), names, names, contents), max_size=12))
def test_a_folder_does_what_a_dictionary_of_files_does(steps: list[tuple[str, str, str, bytes]]):
    with TemporaryDirectory() as folder:
        local, memory = LocalStorage(Path(folder)), MemoryStorage()
        for act, name, to, content in steps:
            target = f"{name.rpartition('/')[0]}/{to.rpartition('/')[2]}".lstrip("/")
            assert acts[act](local, name, target, content) == acts[act](memory, name, target, content)
        assert sorted(local.names()) == sorted(memory.names())
        assert {name: local.read(name) for name in local.names()} == memory.files


def test_files_that_are_being_written_and_a_missing_folder_have_no_names(tmp_path: Path):
    local = LocalStorage(tmp_path / "results")
    assert not local.exists()
    assert local.names() == []
    local.put("a/b.parquet", b"1")
    (tmp_path / "results" / "a" / ".writing-xyz.parquet").write_bytes(b"half")
    assert local.names() == local.names("a") == ["a/b.parquet"]
    assert local.names("b") == []


def test_a_linked_folder_is_listed_and_a_circle_of_links_once(tmp_path: Path):
    runner = Runner(plan(tmp_path / "task", "1"), Store(tmp_path / "a"), ENGINE, FakeBackend)
    assert runner.run().computed
    linked = tmp_path / "b"
    linked.mkdir()
    (linked / "cards").symlink_to(tmp_path / "a" / "cards")
    assert len(read_results(linked)) == len(read_results(tmp_path / "a"))
    names = sorted(LocalStorage(linked).names())
    assert names == sorted(LocalStorage(tmp_path / "a").names("cards"))
    (linked / "above").symlink_to(tmp_path)
    (linked / "again").symlink_to(linked / "cards")
    (linked / "own").symlink_to(linked)
    (tmp_path / "a" / "cards" / "back").symlink_to(linked)
    (tmp_path / "out" / "further").mkdir(parents=True)
    (tmp_path / "out" / "further" / "round").symlink_to(tmp_path / "out")
    (linked / "out").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "file").touch()
    found = sorted(LocalStorage(linked).names())
    assert found == sorted([*names, *(f"again/{name.partition('/')[2]}" for name in names), "out/file"])
    assert sorted(LocalStorage(linked).names("cards")) == names
