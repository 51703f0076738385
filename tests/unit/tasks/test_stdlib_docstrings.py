"""The embedded task: sentences of the standard library and the modules they document."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from icl_bench.errors import UserError
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.stdlib_docstrings import FEWEST_EXAMPLES, SIX_MODULES, STDLIB_MODULES, build, first_sentence
from icl_bench.tasks.task_files import load_task


def library(folder: Path, **modules: str) -> Path:
    """A small library: module sources by name, filled up with sentences of their own."""
    for name, source in modules.items():
        filler = "".join(
            f'def filler_{i}():\n    """Sentence number {i} that fills the {name[::-1]} room."""\n'
            for i in range(FEWEST_EXAMPLES)
        )
        (folder / f"{name}.py").write_text(f"{source}\n{filler}")
    return folder


def texts(folder: Path) -> Counter[tuple[str, str]]:
    rows = build(folder)
    found = Counter((row.label, row.text) for row in (*rows.train, *rows.test))
    return Counter({key: count for key, count in found.items() if "Sentence number" not in key[1]})


def test_the_task_has_about_sixty_labels_and_three_thousand_examples():
    rows = load_data(load_task("stdlib"))
    assert 50 <= len(rows.labels) <= len(STDLIB_MODULES) == 60
    assert 2_500 <= len(rows.train) + len(rows.test_pool) <= 3_500
    assert len(rows.test) == 250
    assert rows.origin == f"standard library of Python {sys.version.split()[0]}"
    assert set(rows.files) == {"stdlib-train", "stdlib-test"}


def test_every_label_stands_in_both_splits_and_nothing_leaks():
    report = report_on(load_data(load_task("stdlib")))
    assert all(count.train and count.test for count in report.labels)
    assert min(count.train + count.test for count in report.labels) >= FEWEST_EXAMPLES
    assert report.leaks == ()
    assert report.duplicates == 0


def test_the_demos_task_has_six_labels_and_is_checked_like_the_large_one():
    rows = load_data(load_task("stdlib_six"))
    assert sorted(rows.labels) == sorted(SIX_MODULES)
    assert set(SIX_MODULES) < set(STDLIB_MODULES)
    assert 600 <= len(rows.train) <= 1_000
    assert 100 <= len(rows.test) <= 250
    assert set(rows.files) == {"stdlib-six-train", "stdlib-six-test"}
    report = report_on(rows)
    assert report.leaks == ()
    assert report.duplicates == 0
    assert all(count.test for count in report.labels)


def test_no_sentence_names_its_module():
    for row in build().train:
        assert not re.search(rf"\b{re.escape(row.label)}\b", row.text, re.IGNORECASE), row


def test_the_same_library_gives_the_same_rows():
    first = build()
    build.cache_clear()
    again = build()
    assert first == again
    assert first.train == again.train != first.test


def test_nothing_of_the_library_is_imported(tmp_path: Path):
    before = set(sys.modules)
    build(library(tmp_path, webbrowser="raise SystemExit('imported')"))
    build.cache_clear()
    build()
    assert set(sys.modules) == before


def test_public_classes_functions_and_methods_are_read_and_private_ones_are_not(tmp_path: Path):
    source = '''
class Public:
    """A class that everybody may use."""
    def method(self):
        """A method that everybody may use."""
    def _method(self):
        """A method that nobody may use."""
class _Private:
    """A class that nobody may use."""
    def method(self):
        """A hidden method that nobody may use."""
if True:
    async def conditional():
        """A function that stands under a condition."""
'''
    assert {text for _, text in texts(library(tmp_path, ast=source))} == {
        "A class that everybody may use.",
        "A method that everybody may use.",
        "A function that stands under a condition.",
    }


def test_a_text_of_two_modules_is_dropped_and_one_of_the_same_module_kept_once(tmp_path: Path):
    shared = 'def f():\n    """A sentence that stands in both."""\n'
    twice = "".join(f'def {n}():\n    """A sentence that stands here twice."""\n' for n in "gh")
    found = texts(library(tmp_path, ast=shared + twice, dis=shared))
    assert found == {("ast", "A sentence that stands here twice."): 1}


def test_a_text_keeps_its_side_of_the_split_when_other_modules_change(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    small = build(library(tmp_path / "a", ast=""))
    large = build(library(tmp_path / "b", ast="", dis=""))
    assert set(small.test) < set(large.test)
    assert [row.id for row in small.test] == ["ast:filler_2", "ast:filler_11"]


def test_a_module_with_few_examples_is_left_out(tmp_path: Path):
    library(tmp_path, ast="")
    (tmp_path / "dis.py").write_text('def f():\n    """A sentence that stands alone here."""\n')
    assert {row.label for row in build(tmp_path).train} == {"ast"}


def test_a_python_without_its_sources_is_a_clear_error(tmp_path: Path):
    with pytest.raises(UserError, match=r"no sources of Python's standard library in .*Use a Pyt"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Return the key\n    of a row.  Never fails.\n\nMore.", "Return the key of a row."),
        ("Return the key of a row\n\nMore.", "Return the key of a row"),
        ("Read e.g. a file. Then close it.", "Read e.g. a file."),
        ("Is it open? Say so.", "Is it open?"),
        ("Version 1.2 of it. (Old.)", "Version 1.2 of it."),
    ],
)
def test_the_first_sentence_ends_where_a_new_one_begins(docstring: str, sentence: str):
    assert first_sentence(docstring) == sentence


def test_what_is_kept_of_the_sources_is_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "library"
    folder.mkdir()
    library(folder, calendar="")
    found = []
    for text in ("One day of any month.", "One day of any month.", "Another day of any month."):
        source = (folder / "calendar.py").read_text().split("def today", maxsplit=1)[0]
        (folder / "calendar.py").write_text(f'{source}def today():\n    """{text}"""\n')
        build.cache_clear()
        found += [texts(folder), build.__wrapped__(folder)]
    assert found[0] == found[2] == {("calendar", "One day of any month."): 1}
    assert found[4] == {("calendar", "Another day of any month."): 1}
    for damage in (
        lambda _: b"[",
        lambda kept: kept.replace(b"Another", b"A wrong"),
        lambda kept: kept.partition(b"\n")[2],
    ):
        for file in (tmp_path / "cache" / "stdlib").glob("*.json"):
            file.write_bytes(damage(file.read_bytes()))
        build.cache_clear()
        assert texts(folder) == found[4]
