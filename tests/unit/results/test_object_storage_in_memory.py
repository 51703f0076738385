"""Results in object storage, by a store in memory: what is asked of it, and what its errors say."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from icl_bench.errors import UserError
from icl_bench.results import object_storage
from icl_bench.results.object_storage import ObjectStorage


class Watched:
    """A store in memory that notes what is asked of it, and fails where it is told to."""

    def __init__(self) -> None:
        from obstore.store import MemoryStore

        self.store = MemoryStore()
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.errors: dict[str, list[BaseException]] = {}
        """Of each method, what its next calls raise."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            self.asked.append((name, args, given))
            if self.errors.get(name):
                raise self.errors[name].pop(0)
            return getattr(self.store, name)(*args, **given)

        return call


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """The stores of ``memory:///``: the one of a command's first request is the second of two."""
    found: list[Watched] = []

    def from_url(url: str, **given: Any) -> Watched:
        found.append(Watched())
        found[-1].asked.append(("from_url", (url,), given))
        return found[-1]

    monkeypatch.setattr("obstore.store.from_url", from_url)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(object_storage, "time", found)
    return found


def errors(*said: str, kind: str = "GenericError") -> list[BaseException]:
    from obstore import exceptions

    return [getattr(exceptions, kind)(text) for text in said]


def test_a_command_gives_up_sooner_on_its_first_request(stores: list[Watched]):
    storage = ObjectStorage("memory:///a/")
    assert storage.url == "memory:///a"
    assert [one.asked for one in stores] == [
        [
            (
                "from_url",
                ("memory:///a",),
                {"retry_config": {"max_retries": 20, "retry_timeout": timedelta(seconds=seconds)}},
            )
        ]
        for seconds in (180, 15)
    ]
    assert ObjectStorage("memory:///aX//").url == "memory:///aX"
    assert (storage.where(), storage.where("t/a")) == ("memory:///a", "memory:///a/t/a")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory", "relative URL without a base"),
        ("", "'': relative URL without a base"),
        ("zz://x", 'zz://x: Generic URL error: Unable to recognise URL "zz://x"'),
    ],
)
def test_an_address_that_no_library_knows_is_named(address: str, said: str):
    with pytest.raises(UserError) as raised:
        ObjectStorage(address)
    assert str(raised.value).startswith("--results ")
    assert str(raised.value).endswith(said)


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    told = "--results s3://b/x: the obstore package is missing; pip install 'icl-bench[storage]'"
    with pytest.raises(UserError) as raised:
        ObjectStorage("s3://b/x")
    assert str(raised.value) == told


def test_names_with_a_dot_are_no_part_of_the_storage(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    for name in ("t/m/a", "t/.b", ".locks/c", "t/m.x/d.e", "u/f"):
        storage.put(name, b"")
    assert sorted(storage.names()) == ["t/m.x/d.e", "t/m/a", "u/f"]
    assert sorted(storage.names("t")) == ["t/m.x/d.e", "t/m/a"]
    before = dict(storage.listed())
    assert sorted(before) == [".locks/c", "t/.b", "t/m.x/d.e", "t/m/a", "u/f"]
    assert dict(storage.listed(".locks")) == {".locks/c": before[".locks/c"]}
    storage.put("u/f", b"")
    assert {name for name, tag in storage.listed() if tag != before[name]} == {"u/f"}
    assert stores[0].asked[-1] == ("list", (None,), {"chunk_size": 1000})
    assert stores[0].asked[-2] == ("put", ("u/f", b""), {"use_multipart": False})


def test_objects_are_renamed_deleted_and_asked_for(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    storage.put("a", b"1")
    storage.rename("a", "b")
    assert (storage.has("a"), storage.has("b"), storage.read("b")) == (False, True, b"1")
    for _ in range(2):
        storage.delete("b")
    assert not storage.has("b")
    with pytest.raises(FileNotFoundError) as raised:
        storage.read("b")
    assert raised.value.errno == 2
    assert raised.value.strerror.startswith("Object at location b not found")


def test_to_prepare_writes_an_object_and_removes_it(stores: list[Watched]):
    storage = ObjectStorage("memory:///a")
    storage.prepare()
    first = stores[1].asked[1]
    assert (first[0], first[1][1]) == ("put", b"")
    assert re.fullmatch(r"\.writable-[0-9a-f]{32}", first[1][0])
    assert stores[0].asked[1] == ("delete", (first[1][0],), {})
    for kind, said in (("GenericError", "no luck"), ("PermissionDeniedError", "not you")):
        stores[1].errors["put"] = errors(f"{said}\n\nDebug source:\nmuch", kind=kind)
        with pytest.raises(UserError) as raised:
            storage.prepare()
        assert str(raised.value) == (
            f"results folder memory:///a: cannot be written ({said}); give another with --results"
        )


def test_a_place_is_there_where_any_object_is(stores: list[Watched]):
    storage = ObjectStorage("memory:///a")
    assert not storage.exists()
    stores[1].store.put("x", b"")
    assert storage.exists()
    assert stores[1].asked[-1] == ("list", (), {"chunk_size": 1})
    stores[1].errors["list"] = errors("gone", kind="NotFoundError")
    assert not storage.exists()
    stores[1].errors["list"] = errors("no luck")
    with pytest.raises(UserError) as raised:
        storage.exists()
    assert str(raised.value) == "results folder memory:///a: cannot be read (no luck)"


@pytest.mark.parametrize(
    ("kind", "number"), [("NotFoundError", 2), ("PermissionDeniedError", 13), ("UnauthenticatedError", 13)]
)
def test_what_will_not_change_is_asked_for_once(stores: list[Watched], clock: Clock, kind: str, number: int):
    storage = ObjectStorage("memory:///")
    stores[0].errors["get"] = errors("a  b\nc" + "x" * 400 + "\n\nDebug source:\nd", kind=kind)
    with pytest.raises(FileNotFoundError if number == 2 else PermissionError) as raised:
        storage.read("a")
    assert raised.value.errno == number
    assert raised.value.strerror is not None
    assert len(raised.value.strerror) == 300
    assert raised.value.strerror.startswith("a b cxxx")
    assert clock.slept == []


def test_an_error_without_words_is_named_by_its_kind(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    stores[0].errors["get"] = errors("", kind="NotFoundError")
    with pytest.raises(FileNotFoundError) as raised:
        storage.read("a")
    assert raised.value.strerror == "NotFoundError"


def test_requests_are_made_again_after_pauses_that_grow(
    stores: list[Watched], clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    storage = ObjectStorage("memory:///")
    stores[0].errors["put"] = errors(*"abc")
    storage.put("x", b"1")
    assert storage.read("x") == b"1"
    assert clock.slept == [0.1, 0.2, 0.4]
    clock.slept.clear()
    stores[0].errors["put"] = errors(*map(str, range(100)))
    with pytest.raises(OSError, match="24") as raised:
        storage.put("x", b"1")
    assert (raised.value.errno, raised.value.strerror) == (5, "24")
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, *[10.0] * 17]
    clock.slept.clear()
    clock.now = 0.0
    monkeypatch.setattr(object_storage, "PATIENCE", timedelta(seconds=0.1))
    with pytest.raises(OSError, match="27"):
        storage.put("x", b"1")
    assert clock.slept == [0.1, 0.2]


def test_a_version_is_what_a_store_has_of_it(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    for said, found in (
        ({"e_tag": "e", "version": "v"}, {"e_tag": "e", "version": "v"}),
        ({"e_tag": "e", "version": None}, {"e_tag": "e"}),
        ({"e_tag": None, "version": "v"}, {"version": "v"}),
    ):
        stores[0].head = lambda _, said=said: said
        assert storage.version("a") == found


def test_an_object_is_made_and_replaced_on_conditions(stores: list[Watched], clock: Clock):
    storage = ObjectStorage("memory:///")
    first = storage.create("a", b"1")
    assert first == storage.version("a")
    assert storage.create("a", b"2") is None
    assert stores[0].asked[1] == ("put", ("a", b"1"), {"mode": "create", "use_multipart": False})
    second = storage.replace("a", b"2", first)
    assert second == storage.version("a") != first
    assert [one for one in stores[0].asked if one[2].get("mode") == first] == [
        ("put", ("a", b"2"), {"mode": first, "use_multipart": False})
    ]
    assert storage.replace("a", b"3", first) is None
    assert storage.read("a") == b"2"
    # what a request did whose answer was lost is known by its content
    assert storage.create("a", b"2") == second
    assert storage.replace("a", b"2", first) == second
    # it is gone when it is asked for whose it was
    stores[0].errors["put"] = errors("there", kind="AlreadyExistsError")
    assert storage.create("b", b"1") is None
    for kind in ("NotFoundError", "AlreadyExistsError", "PreconditionError"):
        stores[0].errors["put"] = errors("no", kind=kind)
        assert storage.replace("b", b"1", first) is None
    assert clock.slept == []


# -- locks and journals ----------------------------------------------------------------------------


def test_a_lock_says_whose_it_is(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    give_back = storage.journals().take("t/m/random-k1-abc")
    assert give_back is not None
    (name,) = dict(storage.listed())
    assert name == ".locks/abc.json"
    (lease,) = [one for one in threading.enumerate() if one.name == "lease .locks/abc.json"]
    assert lease.daemon
    owner = json.loads(storage.read(name))
    assert owner["host"] == socket.gethostname()
    assert owner["process"] == os.getpid()
    assert re.fullmatch("[0-9a-f]{32}", owner["id"])
    give_back()
    assert storage.listed() == []
    assert not lease.is_alive()
    again = storage.journals().take("t/m/random-k1-abc")
    assert again is not None
    assert json.loads(storage.read(name))["id"] != owner["id"]
    again()


def test_a_lock_is_dead_when_it_was_as_it_is_for_longer_than_a_lease(stores: list[Watched], clock: Clock):
    storage = ObjectStorage("memory:///")
    journals = storage.journals()
    storage.put("t/m/x-a.parquet", b"")  # what is no lock says nothing of who is at work
    assert not journals.others_at_work()
    storage.delete("t/m/x-a.parquet")
    storage.put(".locks/a.json", b"1")
    storage.put(".locks/b.json", b"1")
    assert journals.others_at_work()
    assert journals.take("t/m/x-a") is None
    clock.now = 30.0
    assert journals.others_at_work()
    assert journals.take("t/m/x-a") is None
    storage.put(".locks/b.json", b"2")
    clock.now = 30.5
    assert journals.others_at_work()  # the second was renewed
    take = journals.take("t/m/x-a")
    assert take is not None
    assert journals.take("t/m/x-a") is None
    clock.now = 61.0
    assert journals.take("t/m/x-a") is None  # one's own is never dead
    assert not journals.others_at_work()
    take()
    assert dict(storage.listed()).keys() == {".locks/b.json"}
    storage.put(".locks/a.json", b"another's")  # once it is given back, it is anyone's
    assert journals.others_at_work()


def test_each_of_several_locks_is_looked_at_by_itself(stores: list[Watched], clock: Clock):
    storage = ObjectStorage("memory:///")
    storage.put(".locks/a.json", b"1")
    storage.put(".locks/b.json", b"1")
    journals = storage.journals()
    for clock.now, alive in ((0.0, True), (30.0, True), (30.5, False)):
        assert journals.others_at_work() is alive


def test_a_lock_is_renewed_within_a_lease(stores: list[Watched], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(object_storage, "LEASE", 0.6)
    storage = ObjectStorage("memory:///")
    start = time.monotonic()
    give_back = storage.journals().take("t/m/x-a")
    assert give_back is not None
    before = storage.version(".locks/a.json")
    while storage.version(".locks/a.json") == before and time.monotonic() < start + 1.2:
        time.sleep(0.01)
    assert storage.version(".locks/a.json") != before
    give_back()
    assert storage.listed() == []


def test_a_lock_that_was_given_back_or_taken_meanwhile_is_not_had(stores: list[Watched], clock: Clock):
    storage = ObjectStorage("memory:///")
    storage.put(".locks/a.json", b"1")
    journals = storage.journals()
    stores[0].errors["head"] = errors("gone", kind="NotFoundError")
    assert journals.take("t/m/x-a") is None
    assert journals.take("t/m/x-a") is None
    clock.now = 31.0
    stores[0].errors["put"] = [*errors("there", kind="AlreadyExistsError"), *errors("other", kind="PreconditionError")]
    assert journals.take("t/m/x-a") is None
    take = journals.take("t/m/x-a")
    assert take is not None
    take()


def test_a_lock_that_another_has_taken_is_not_removed(stores: list[Watched], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(object_storage, "LEASE", 0.03)
    storage = ObjectStorage("memory:///")
    monkeypatch.setattr(object_storage, "PATIENCE", timedelta())
    give_back = storage.journals().take("t/m/x-a")
    assert give_back is not None
    before = storage.version(".locks/a.json")
    stores[0].errors["put"] = errors("no luck")  # the next renewal gets through
    end = time.monotonic() + 5
    while storage.version(".locks/a.json") == before and time.monotonic() < end:
        time.sleep(0.005)
    assert storage.version(".locks/a.json") != before
    assert stores[0].errors["put"] == []
    (lease,) = [one for one in threading.enumerate() if one.name == "lease .locks/a.json"]
    storage.put(".locks/a.json", b"another's")
    lease.join(5)
    assert not lease.is_alive()
    give_back()
    assert storage.read(".locks/a.json") == b"another's"


def test_a_lock_that_cannot_be_removed_runs_out_by_itself(
    stores: list[Watched], clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(object_storage, "PATIENCE", timedelta(seconds=-1))
    storage = ObjectStorage("memory:///")
    give_back = storage.journals().take("t/m/x-a")
    assert give_back is not None
    stores[0].errors["delete"] = errors("no luck")
    give_back()
    assert storage.has(".locks/a.json")


def test_parts_of_a_journal_are_numbered_on(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    other = "t/m/x-ab.journal.jsonl/00000009-00000000"
    storage.put(other, b"of another cell")
    journals = storage.journals()
    for numbers, text in (((1, 2), b"ab"), ((1, 2, 3, 4), b"abab")):
        journal = journals.open("t/m/x-a")
        journal.append(b"a")
        journal.append(b"b")
        names = sorted(storage.names("t/m/x-a.journal.jsonl"))
        assert [name.partition("-a")[2][:-8] for name in names] == [
            f".journal.jsonl/{number:08d}-" for number in numbers
        ]
        assert all(re.fullmatch("[0-9a-f]{8}", name[-8:]) for name in names)
        assert journal.read() == text
    journal.cut(3)
    assert journal.read() == b"aba"
    left = min(storage.names())
    assert left.partition("jsonl/")[2][:9] == "00000005-"
    journal.cut(0)
    assert (journal.read(), storage.names()) == (b"", [other])
    journal.append(b"a")
    journals.delete("t/m/x-a")
    assert storage.names() == [other]


def test_a_journal_is_there_twice_rather_than_not_at_all_while_it_is_cut(stores: list[Watched]):
    storage = ObjectStorage("memory:///")
    journal = storage.journals().open("t/m/x-a")
    journal.append(b"abc")
    journal.cut(2)
    assert [name for name, _, _ in stores[0].asked if name != "list"][-2:] == ["put", "delete"]
    assert journal.read() == b"ab"
