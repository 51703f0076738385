"""When a text of a results folder is kept, and everything that must make it be computed again."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.in_memory import MemoryStorage

from icl_bench.models.cache_folder import LEFT_SECONDS
from icl_bench.results import kept_texts
from icl_bench.results.kept_texts import FOLDER, MOST_KEPT, kept_text
from icl_bench.results.storage import Place, storage_at

YEAR_NS = 365 * 24 * 3600 * 10**9


@dataclass
class Text:
    """Computes a text from all files of a folder, and counts how often."""

    says: str = ""
    then: Callable[[], object] = lambda: None
    times: int = 0

    def __call__(self, place: Place) -> str:
        self.times += 1
        storage = storage_at(place)
        contents = {name: storage.read(name).decode(errors="replace") for name in sorted(storage.names())}
        if self.says:
            warnings.warn(self.says, stacklevel=2)
        self.then()
        return f"text {contents}"

    def of(self, place: Place, **asked: Any) -> str:
        return kept_text(place, asked, self)[0]


@dataclass
class Kept:
    """A results folder, the cache beside it, and a text that was kept of it."""

    results: Path
    cache: Path
    text: Text = field(default_factory=Text)

    def entries(self) -> list[Path]:
        return sorted(self.cache.rglob("*.json"))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_texts, "WORTH_SECONDS", 0.0)
    results = tmp_path / "results"
    for name in ("trec/small/one.parquet", "trec/small/two.parquet", "trec/small/three.partial.jsonl"):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_text(f"content of {name}")
    made = Kept(results, tmp_path / "cache" / FOLDER)
    made.text.of(results)
    assert len(made.entries()) == made.text.times == 1
    return made


def test_the_text_of_an_unchanged_folder_is_computed_once_and_repeats_its_warnings(kept: Kept):
    (kept.results / "more.parquet").write_text("more")
    text = Text(says="more.parquet: is damaged")
    with pytest.warns(UserWarning, match="is damaged"):
        first = text.of(kept.results)
    with pytest.warns(UserWarning, match="^more.parquet: is damaged$"):
        assert kept_text(kept.results, {}, text) == (first, True)
    assert text.times == 1


def _with_its_times(file: Path, change: Callable[[Path], object]) -> None:
    before = file.stat()
    change(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _flip_a_bit(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[3] ^= 1
    file.write_bytes(raw)


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "a file of the same size and time": lambda one: _with_its_times(one, _flip_a_bit),
    "two files change places": lambda one: (
        one.rename(one.with_name("x")),
        one.with_name("two.parquet").rename(one),
        one.with_name("x").rename(one.with_name("two.parquet")),
    ),
    "a file is added": lambda one: (one.parent / "four.parquet").write_text("4"),
    "a file is added in a new folder": lambda one: (one.parents[2] / "four.parquet").write_text("4"),
    "a file is removed": Path.unlink,
    "a file is renamed": lambda one: one.rename(one.with_name("other.parquet")),
    "a file is cut": lambda one: os.truncate(one, 5),
    "a file is empty": lambda one: one.write_bytes(b""),
    "a journal grows": lambda one: one.with_name("three.partial.jsonl").open("a").write("{}"),
    "a file cannot be read": lambda one: (one.unlink(), os.mkfifo(one)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_the_folder_computes_the_text_again(kept: Kept, change: Callable[[Path], object]):
    change(kept.results / "trec" / "small" / "one.parquet")
    with suppress(OSError):  # of a file that cannot be read
        kept.text.of(kept.results)
    assert kept.text.times == 2


@pytest.mark.parametrize("years", [-60, 5])
def test_a_clock_that_jumps_changes_nothing(kept: Kept, years: int):
    for file in kept.results.rglob("*.*"):
        at = file.stat().st_mtime_ns + years * YEAR_NS
        os.utime(file, ns=(at, at))
    assert kept_text(kept.results, {}, kept.text)[1]
    _flip_a_bit(kept.results / "trec" / "small" / "two.parquet")
    assert not kept_text(kept.results, {}, kept.text)[1]


def test_a_file_that_changes_while_the_text_is_computed_leaves_no_wrong_text(kept: Kept):
    file = kept.results / "trec" / "small" / "one.parquet"
    text = Text(then=lambda: _with_its_times(file, _flip_a_bit))
    old = text.of(kept.results, top=3)  # the file has changed since it was read
    assert kept_text(kept.results, {"top": 3}, Text())[0] == Text().of(kept.results, top=4) != old


def test_a_file_that_is_read_twice_with_different_contents_is_never_kept(kept: Kept):
    file = kept.results / "trec" / "small" / "one.parquet"
    times = []

    def make(place: Place) -> str:
        times.append(storage_at(place).read("trec/small/one.parquet"))
        _flip_a_bit(file)
        times.append(storage_at(place).read("trec/small/one.parquet"))
        _flip_a_bit(file)
        return "text"

    for _ in range(2):
        assert kept_text(kept.results, {"top": 5}, make) == ("text", False)
    assert len(times) == 4


def test_other_options_another_program_and_another_name_of_the_folder_have_their_own_text(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    kept.text.of(kept.results, top=3)
    assert kept.text.times == 2
    monkeypatch.chdir(kept.results.parent)
    kept.text.of("results")  # messages name the folder as it was given
    assert kept.text.times == 3
    monkeypatch.setattr(kept_texts, "program_files", lambda: ["another version"])
    kept.text.of(kept.results)
    assert kept.text.times == 4
    monkeypatch.undo()


def test_the_programs_files_and_the_installed_packages_are_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = tmp_path / "icl_bench" / "results"
    own.mkdir(parents=True)
    (own / "kept_texts.py").write_text("a = 1")
    monkeypatch.setattr(kept_texts, "__file__", str(own / "kept_texts.py"))
    monkeypatch.syspath_prepend(tmp_path)
    program = kept_texts.program_files.__wrapped__
    before = program()
    assert program() == before
    (own / "kept_texts.py").write_text("a = 2")
    changed = program()
    assert changed != before
    (tmp_path / "numpy-99.0.dist-info").mkdir()
    assert program() != changed


@pytest.mark.parametrize("damage", [_flip_a_bit, lambda file: os.truncate(file, 80), lambda file: file.write_text("")])
def test_a_damaged_entry_is_computed_again_and_replaced(kept: Kept, damage: Callable[[Path], object]):
    (entry,) = kept.entries()
    whole = entry.read_bytes()
    damage(entry)
    kept.text.of(kept.results)
    assert kept.text.times == 2
    assert entry.read_bytes() == whole


def test_a_changed_number_in_an_entry_is_found(kept: Kept):
    (entry,) = kept.entries()
    raw = entry.read_bytes()
    entry.write_bytes(raw.replace(b"content of trec/small/one", b"content of trec/small/off"))
    assert "off" not in kept.text.of(kept.results)


def test_a_cache_folder_that_cannot_be_written_or_found_is_no_error(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    (kept.results.parent / "file").write_text("")
    monkeypatch.setenv("ICL_BENCH_CACHE", str(kept.results.parent / "file"))
    assert kept.text.of(kept.results) == kept.text.of(kept.results)
    monkeypatch.setenv("ICL_BENCH_CACHE", "~nobody-of-this-name/cache")
    kept.text.of(kept.results)
    assert kept.text.times == 4


def test_only_entries_of_the_last_texts_stay_and_no_leftovers_of_killed_writers(kept: Kept):
    left = kept.cache / ".writing-0123456789abcdef.json"
    left.write_text("half")
    at = time.time() - LEFT_SECONDS - 60
    os.utime(left, (at, at))
    for top in range(MOST_KEPT + 3):
        kept.text.of(kept.results, top=top)
    assert len(kept.entries()) == MOST_KEPT
    assert not left.exists()
    assert all(re.fullmatch(r"[0-9a-f]{32}\.json", file.name) for file in kept.cache.iterdir())
    assert not (kept.results / FOLDER).exists()


def test_quick_texts_failed_ones_object_storage_and_plugins_are_not_kept(kept: Kept, monkeypatch: pytest.MonkeyPatch):
    def fails(place: Place) -> str:
        raise ValueError(place)

    with pytest.raises(ValueError, match="results"):
        kept_text(kept.results, {"top": 1}, fails)
    memory = MemoryStorage({"a.parquet": b"a"})
    assert [kept_text(memory, {}, kept.text)[1] for _ in range(2)] == [False, False]
    monkeypatch.setattr(kept_texts, "plugins", lambda: ["mine"])
    assert not kept_text(kept.results, {}, kept.text)[1]
    monkeypatch.setattr(kept_texts, "plugins", list)
    assert kept_text(kept.results, {}, kept.text)[1]
    monkeypatch.setattr(kept_texts, "WORTH_SECONDS", 60.0)
    kept.text.of(kept.results, top=1)
    assert len(kept.entries()) == 1
