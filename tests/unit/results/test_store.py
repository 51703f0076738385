"""Predictions survive kills, full disks and other programs, and never mix between settings."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks import files_no_larger_than
from support.fakes import ENGINE, FREE_TEXT, FakeBackend, plan, row, runner, tokenized_task, write_rows
from support.in_memory import MemoryJournals, MemoryStorage

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import UserError
from icl_bench.results.cells import (
    ALWAYS,
    AXES,
    FAILED,
    FINISHED,
    JOURNAL,
    CellSpec,
    Identity,
    Prediction,
    prediction_schema,
)
from icl_bench.results.exporting import export_results
from icl_bench.results.facts import Facts
from icl_bench.results.journals import LOCKS
from icl_bench.results.reading import CELL_META, failed_cells, finished_cells, read_results, read_rows, result_files
from icl_bench.results.store import OpenCell, Store
from icl_bench.results.stored_meta import CHECK, CellMeta
from icl_bench.sweep.facts import facts

SPEC = CellSpec(task="cards", model="small", select="random", order="drawn", attention="full", k=2, draw=0)
ROWS = ("a", "b", "c", "d")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def identity() -> Identity:
    return Identity(SPEC, Facts(backend="fake", seed=0))


def path_of(store: Store, identity: Identity, ending: str = FINISHED) -> Path:
    """Where one of a cell's files is on the disk."""
    return Path(store.storage.where(f"{identity.name}{ending}"))


def predictions(*ids: str) -> list[Prediction]:
    return [Prediction(i, "gold é", f"said {i}", i == "a", True, 20, 15, 2, f"h-{i}") for i in ids]


@contextmanager
def opened(store: Store, identity: Identity) -> Iterator[OpenCell]:
    with store.claim(identity, len(ROWS)) as cell:
        assert cell is not None
        yield cell


def finish(store: Store, identity: Identity) -> Path:
    with opened(store, identity) as cell:
        cell.append(predictions(*(i for i in ROWS if i not in cell.done)), 1.5)
        name = cell.finish(ROWS, CellMeta.of(identity, demonstration_ids=["x"], prefix_tokens=15))
    return Path(store.storage.where(name))


# -- the journal --------------------------------------------------------------------------------


def test_a_journal_is_read_back_whole(store: Store, identity: Identity):
    own = replace(predictions("a")[0], correct=None, probability=0.5, demonstration_ids=("x", "y"))
    with opened(store, identity) as cell:
        cell.append([own, *predictions("b")], 1.25)
        cell.append(predictions("c"), 0.5)
    with opened(store, identity) as cell:
        assert list(cell.done.values()) == [own, *predictions("b", "c")]
        assert cell.seconds == 1.75


def test_a_line_of_a_journal_has_its_own_letters_and_its_part_of_the_time(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b", "c"), 2.0)
        cell.append(predictions("d"))
        assert cell.seconds == pytest.approx(2)
    lines = path_of(store, identity, JOURNAL).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["seconds"] for line in lines] == [0.666667] * 3 + [0]
    assert re.fullmatch(
        r'\{"check": "[0-9a-f]{16}", '
        + re.escape(
            '"test_id": "a", "gold": "gold é", "prediction": "said a", "correct": true, "valid": true, '
            '"prompt_tokens": 20, "cached_tokens": 15, "answer_tokens": 2, "prompt_hash": "h-a", '
            '"seconds": 0.666667}'
        ),
        lines[0],
    )


def test_predictions_of_other_prompts_are_dropped_with_their_seconds_and_it_is_said(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b"), 1.0)
        cell.append(predictions("c"), 0.25)
    changed = [replace(one, prompt_hash="new") for one in predictions("b", "c")]
    present = {"a": "h-a", "b": "new", "c": "new", "d": "h-d"}
    why = "(another library or machine chose other demonstrations?); computed again"
    where = f"{path_of(store, identity)}: "
    said = f"{where}2 predictions of an interrupted run had other prompts {why}"
    with opened(store, identity) as cell:
        with pytest.warns(UserWarning, match=f"^{re.escape(said)}$"):
            cell.keep(present)
        assert (list(cell.done), cell.seconds) == (["a"], 0.5)
        cell.append(changed[:1], 2.0)
    said = f"{where}1 prediction of an interrupted run had another prompt {why}"
    with opened(store, identity) as cell:
        with pytest.warns(UserWarning, match=f"^{re.escape(said)}$"):
            cell.keep(present)
        assert ([*cell.done.values()], cell.seconds) == ([*predictions("a"), changed[0]], 2.5)
        cell.keep(present)  # says nothing


@pytest.mark.parametrize("cut", range(1, 40, 6))
def test_a_torn_journal_line_is_dropped_on_resume(store: Store, identity: Identity, cut: int):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b"))
    journal = path_of(store, identity, JOURNAL)
    journal.write_bytes(journal.read_bytes()[:-cut])
    with opened(store, identity) as cell:
        assert list(cell.done) == ["a"]
        cell.append(predictions("b", "c"))
    lines = [json.loads(line)["test_id"] for line in journal.read_text().splitlines()]
    assert lines == ["a", "b", "c"]


DAMAGED = r"journal\.jsonl: 1 line changed since they were written, or of another cell; its row is asked again$"


@pytest.mark.parametrize("tail", [b"\xff\xfe\n", b"[1]\n", b'{"test_id": "b"}\n', b"\n"])
def test_whatever_a_broken_disk_left_behind_whole_lines_is_dropped(store: Store, identity: Identity, tail: bytes):
    with opened(store, identity) as cell:
        cell.append(predictions("a"))
    with path_of(store, identity, JOURNAL).open("ab") as stream:
        stream.write(tail)
    with pytest.warns(UserWarning, match=DAMAGED), opened(store, identity) as cell:
        assert list(cell.done) == ["a"]
    with opened(store, identity) as cell:  # what was damaged is gone
        assert list(cell.done) == ["a"]


def test_a_part_of_a_line_that_a_lost_supply_of_power_left_is_dropped(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a"))
    with path_of(store, identity, JOURNAL).open("ab") as stream:
        stream.write(b"\0" * 30)
    with opened(store, identity) as cell:
        assert list(cell.done) == ["a"]


def test_a_damaged_line_in_the_middle_costs_its_own_row_alone(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b", "c"))
    journal = path_of(store, identity, JOURNAL)
    journal.write_bytes(journal.read_bytes().replace(b"said b", b"said d"))
    with pytest.warns(UserWarning, match=DAMAGED), opened(store, identity) as cell:
        assert list(cell.done) == ["a", "c"]
    with pytest.warns(UserWarning, match=DAMAGED):
        finish(store, identity)
    assert sorted(read_results(store.storage)["prediction"]) == [f"said {row}" for row in ROWS]


def test_no_flipped_bit_of_a_journal_is_believed(identity: Identity):
    journals = MemoryJournals()
    store = Store(MemoryStorage(), journals)
    rows = [replace(row, probability=0.25, label_scores="AACAPw==") for row in predictions("a", "b", "c")]
    with opened(store, identity) as cell:
        cell.append(rows, 1.5)
    kept, whole = {row.test_id: row for row in rows}, bytes(journals.kept[identity.name])
    for place in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[place] ^= 1 << bit
            journals.kept[identity.name] = broken
            with warnings.catch_warnings(record=True) as said, opened(store, identity) as cell:
                warnings.simplefilter("always")
                assert cell.done.items() <= kept.items()
                assert len(cell.done) < 3, (place, bit)
            assert said or place == len(whole) - 1  # the end of the last line: torn


def test_no_lost_bytes_of_a_journal_make_another_prediction(identity: Identity):
    journals = MemoryJournals()
    store = Store(MemoryStorage(), journals)
    rows = [replace(row, probability=0.25, label_scores="AACAPw==") for row in predictions("a", "b")]
    with opened(store, identity) as cell:
        cell.append(rows, 1.5)
    kept, whole = {row.test_id: row for row in rows}, bytes(journals.kept[identity.name])
    marks = [place for place in range(len(whole)) if whole[place : place + 1] in b'{",}\n']  # else it is no JSON
    for start in marks:
        for end in (end for end in marks if end > start):
            journals.kept[identity.name] = bytearray(whole[:start] + whole[end:])
            with warnings.catch_warnings(action="ignore"), opened(store, identity) as cell:
                assert cell.done.items() <= kept.items(), (start, end)


def test_lines_of_another_cell_are_dropped(store: Store, identity: Identity):
    other = Identity(SPEC, Facts(backend="fake", seed=1))  # the same prompts
    with opened(store, identity) as cell:
        cell.append(predictions("a"))
    path_of(store, identity, JOURNAL).rename(path_of(store, other, JOURNAL))
    with pytest.warns(UserWarning, match=DAMAGED), opened(store, other) as cell:
        assert cell.done == {}


def test_a_journal_that_says_no_seconds_is_read_back_whole(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b"), 1.0)
    journal = path_of(store, identity, JOURNAL)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:  # as earlier versions wrote them
        del line["check"]
    journal.write_text("".join(json.dumps(line | {"seconds": 0.25}) + "\n" for line in lines[:1]))
    lines[1].pop("seconds")
    with journal.open("a") as stream:
        stream.write(json.dumps(lines[1]) + "\n")
    with opened(store, identity) as cell:
        assert list(cell.done.values()) == predictions("a", "b")
        assert cell.seconds == 0.25
        cell.append(predictions("c"), 1.0, 0.5)
        assert cell.prefill_seconds is None  # of the first two it is unknown


# -- a finished file ----------------------------------------------------------------------------


def test_a_finished_cell_is_one_file_in_the_order_of_the_test_rows(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("d", "b"), 1.0)
        cell.append(predictions("c", "a"), 0.5)
        name = cell.finish(ROWS, CellMeta.of(identity, demonstration_ids=["x"]))
    path = path_of(store, identity)
    assert name == f"{identity.name}{FINISHED}"
    assert read_rows(store.storage, name)["test_id"].to_pylist() == list(ROWS)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    ((_, meta),) = finished_cells(store.storage)
    assert meta.spec.model_dump() == SPEC.model_dump()
    assert meta.demonstration_ids == ["x"]
    assert (meta.seconds, meta.cell) == (1.5, identity.cell)


def test_a_file_says_in_every_row_and_once_what_decided_its_cell(store: Store):
    own = Facts(backend="fake", label_space="3/0", queries="copied", perturbation="vectors")
    plain, other = Identity(SPEC, Facts(backend="fake")), Identity(SPEC, own)
    for identity in (plain, other):
        schema = pq.read_schema(finish(store, identity))
        assert json.loads(schema.metadata[CELL_META]) == {
            "spec": SPEC.model_dump(),
            "facts": identity.facts.known(),
            "protocol": 1,
            "seconds": 1.5,
            "demonstration_ids": ["x"],
            "prefix_tokens": 15,
        }
        table = read_rows(store.storage, f"{identity.name}{FINISHED}")
        assert set(table.column_names) == {*ALWAYS, *identity.facts.known()}
        for name, fact in identity.facts.known().items():
            assert table[name].to_pylist() == [fact] * 4
        for name, value in {**SPEC.model_dump(), "cell": identity.cell}.items():
            assert table[name].to_pylist() == [value] * 4
        assert table["variant"].to_pylist() == [identity.variant] * 4


def test_columns_of_free_answers_and_of_read_blocks_follow_where_any_row_has_them(store: Store, identity: Identity):
    rows = predictions(*ROWS)
    rows[1] = replace(rows[1], truncated=False, golds=("x", "é"), read_blocks=(0, 2))
    rows[2] = replace(rows[2], text="so it is x")
    with opened(store, identity) as cell:
        cell.append(rows)
        name = cell.finish(ROWS, CellMeta.of(identity), {"chrf": [0.5] * 4})
    table = read_rows(store.storage, name)
    further = ["truncated", "text", "golds", "read_blocks", "chrf"]
    assert table.column_names == [*ALWAYS, *further]
    assert table.select(further).to_pydict() == {
        "truncated": [None, False, None, None],
        "text": [None, None, "so it is x", None],
        "golds": [None, ["x", "é"], None, None],
        "read_blocks": [None, [0, 2], None, None],
        "chrf": [0.5] * 4,
    }
    plain = pq.read_schema(finish(store, Identity(SPEC, Facts(backend="f"))))
    assert plain.names == list(ALWAYS)


def test_a_finished_file_appears_whole_or_not_at_all(store: Store, identity: Identity, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def look(source: Path, target: Path) -> None:
        seen.append((pq.read_metadata(source).num_rows, target.exists(), source.parent))
        source.rename(target)

    monkeypatch.setattr(Path, "replace", look)
    path = finish(store, identity)
    assert seen == [(len(ROWS), False, path.parent)]


def test_a_finished_cell_is_not_opened_again(store: Store, identity: Identity):
    finish(store, identity)
    with store.claim(identity, len(ROWS)) as cell:
        assert cell is None


def test_a_cell_that_is_open_is_not_opened_a_second_time(store: Store, identity: Identity):
    with opened(store, identity), store.claim(identity, len(ROWS)) as cell:
        assert cell is None
    with opened(store, identity):
        pass


def test_a_kill_while_the_file_is_written_loses_no_prediction(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions(*ROWS))
    half = path_of(store, identity).with_name(".writing-xyz.parquet")
    half.write_bytes(b"PAR1 and then nothing")
    assert list(finished_cells(store.storage)) == []
    path = finish(store, identity)
    assert [store.storage.where(name) for name, _ in finished_cells(store.storage)] == [str(path)]


@pytest.mark.parametrize("kept", [0, 3, 200, -1])
def test_a_file_cut_short_is_named_and_set_aside_and_the_cell_is_run_again(store: Store, identity: Identity, kept: int):
    path = finish(store, identity)
    path.write_bytes(path.read_bytes()[:kept])
    with (
        pytest.warns(
            UserWarning, match=rf"^{path}: cannot be read.*; set aside as {path.name}\.damaged, the cell is run again$"
        ),
        opened(store, identity) as cell,
    ):
        assert cell.done == {}
    assert path.with_suffix(".parquet.damaged").exists()
    assert finish(store, identity) == path


def test_a_flipped_bit_is_found_and_the_cell_is_run_again(store: Store, identity: Identity):
    path = finish(store, identity)
    whole = path.read_bytes()
    place = whole.rindex(b'"prefix_tokens": 15') + len(b'"prefix_tokens": ')
    broken = bytearray(whole)
    broken[place] ^= 2  # it says 35
    path.write_bytes(broken)
    said = "bytes of it have changed since it was written.*left out; repeat the run or import"
    with pytest.warns(UserWarning, match=said):
        assert list(finished_cells(store.storage)) == []
    with pytest.warns(UserWarning, match="set aside.*run again"):
        assert finish(store, identity) == path
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt_tokens": "20"},
        {"prompt_tokens": 1.5},
        {"test_id": 7},
        {"test_id": None},
        {"prediction": ["x"]},
        {"prediction": "\ud800"},
        {"correct": "true"},
        {"probability": "high"},
        {"demonstration_ids": "x"},
        {"demonstration_ids": [1]},
        {"seconds": "long"},
        {"seconds": None},
    ],
    ids=str,
)
def test_a_journal_line_with_values_of_other_kinds_is_dropped(
    store: Store, identity: Identity, changed: dict[str, Any]
):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b"))
    journal = path_of(store, identity, JOURNAL)
    first, second = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    unchecked = json.loads(second)
    del unchecked["check"]
    other = json.dumps({**unchecked, **changed}) + "\n"
    journal.write_text(first + other, encoding="utf-8")
    with pytest.warns(UserWarning, match=DAMAGED), opened(store, identity) as cell:
        assert list(cell.done) == ["a"]
    finish(store, identity)


MARK = {"spec": SPEC.model_dump(), "reason": "no memory", "cell": "c", "variant": "v"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"[" * 100_000,
        b"{}",
        json.dumps({**MARK, "spec": []}).encode(),
        json.dumps({**MARK, "spec": {**MARK["spec"], "k": "2"}}).encode(),
        json.dumps({**MARK, "reason": 3}).encode(),
    ],
)
def test_a_mark_that_is_none_is_named_on_one_line_and_left_out(store: Store, content: bytes):
    store.storage.put(f"cards/small/x{FAILED}", content)
    with pytest.warns(UserWarning, match=r"x\.failed\.json: cannot be read \(.*\); left out") as said:
        assert failed_cells(store.storage) == []
    assert "\n" not in str(said[0].message)


ODD_META: dict[str, dict[str, Any]] = {
    "no spec": {"spec": None},
    "a spec that is a list": {"spec": ["cards"]},
    "a k that is text": {"spec": {**SPEC.model_dump(), "k": "2"}},
    "no draw": {"spec": {**SPEC.model_dump(), "draw": None}},
    "facts that are a list": {"facts": ["fake"]},
    "no facts": {"facts": None},
    "a seed that is text": {"facts": {"backend": "fake", "seed": "0"}},
    "a run that is a list": {"run": ["icl-bench run"]},
    "seconds that are text": {"seconds": "1.5"},
    "ids that are a mapping": {"demonstration_ids": {"x": 1}},
    "ids that are numbers": {"demonstration_ids": [1]},
    "labels that are a list": {"demonstration_labels": ["x"]},
    "a task that is text": {"task": "cards"},
    "metrics that are text": {"task": {"metrics": "accuracy"}},
    "a task of labels without labels": {"task": {"metrics": [], "labels": {"style": "words"}}},
    "an architecture that is empty of numbers": {"architecture": {"layers": "two"}},
    "compute that is a list": {"compute": [1.0]},
    "training that is text": {"training": {"seconds": "long"}},
    "tokens that are text": {"context_tokens": "many"},
}


@pytest.mark.parametrize("odd", ODD_META)
def test_a_cell_that_says_odd_things_of_itself_is_left_out_and_run_again(store: Store, identity: Identity, odd: str):
    path = finish(store, identity)
    table = pq.read_table(path, partitioning=None)
    meta = {**json.loads(table.schema.metadata[CELL_META]), **ODD_META[odd]}
    pq.write_table(table.replace_schema_metadata({CELL_META: json.dumps(meta)}), path)
    with pytest.warns(UserWarning, match=rf"{path.name}: cannot be read .*left out") as said:
        assert list(finished_cells(store.storage)) == []
    assert "\n" not in str(said[0].message)
    with pytest.warns(UserWarning, match="set aside"):
        assert finish(store, identity) == path


@pytest.mark.parametrize("column", ["task", "order", "k", "test_id", "cell"])
def test_a_cell_with_rows_of_no_cell_is_left_out(store: Store, identity: Identity, column: str):
    path = finish(store, identity)
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index(column)
    empty = pa.nulls(len(table), table.schema.field(column).type)
    pq.write_table(table.set_column(place, table.schema.field(column), empty), path)
    with pytest.warns(UserWarning, match="rows without a cell"):
        assert list(finished_cells(store.storage)) == []


def test_a_cell_with_a_test_row_twice_is_left_out(store: Store, identity: Identity):
    path = finish(store, identity)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.take([0, 1, 2, 2]), path)
    with pytest.warns(UserWarning, match="duplicate test rows"):
        assert list(finished_cells(store.storage)) == []


def test_a_named_pipe_is_no_result_and_is_not_waited_for(store: Store, identity: Identity):
    path = path_of(store, identity)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    os.mkfifo(path.with_name(f"x{FAILED}"))
    with pytest.warns(UserWarning, match="is not a regular file"):
        assert list(finished_cells(store.storage)) == []
    with pytest.warns(UserWarning, match="is not a regular file"):
        assert failed_cells(store.storage) == []
    with pytest.warns(UserWarning, match="set aside"):
        assert finish(store, identity) == path


def test_a_name_that_the_file_system_does_not_take_is_shortened(store: Store):
    long, other = (
        Identity(SPEC.model_copy(update={"task": "t" * length}), Facts(backend="fake")) for length in (300, 301)
    )
    assert finish(store, long) != finish(store, other)
    stored = [meta.spec.task for _, meta in finished_cells(store.storage)]
    assert sorted(map(len, stored)) == [300, 301]


def test_a_file_with_too_few_predictions_is_set_aside(store: Store, identity: Identity):
    path = finish(store, identity)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.slice(0, 3), path)
    with pytest.warns(UserWarning, match="3 predictions instead of 4"), opened(store, identity):
        pass


def test_a_file_of_another_program_in_a_cells_place_is_set_aside(store: Store, identity: Identity):
    path = finish(store, identity)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.warns(UserWarning, match="not a results file"), opened(store, identity):
        pass


@pytest.mark.parametrize("of", ["rows", "metadata", "both"])
def test_a_file_of_another_cell_in_a_cells_place_is_set_aside(store: Store, identity: Identity, of: str):
    other = Identity(SPEC, Facts(backend="fake", seed=1))
    path, strange = finish(store, identity), finish(store, other)
    rows, meta = (pq.read_table(strange if of in (what, "both") else path) for what in ("rows", "metadata"))
    pq.write_table(rows.replace_schema_metadata(meta.schema.metadata), path)
    said = rf"^{path}: holds another cell than its name says; set aside as {path.name}\.damaged, the cell is run again$"
    with pytest.warns(UserWarning, match=said):
        assert finish(store, identity) == path
    with store.claim(identity, len(ROWS)) as cell:
        assert cell is None


# -- a failed cell ------------------------------------------------------------------------------


def test_a_failed_cell_is_marked_with_its_reason_until_it_is_finished(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a"))
        cell.fail("out of memory")
    (failure,) = failed_cells(store.storage)
    assert (failure.spec.model_dump(), failure.reason) == (SPEC.model_dump(), "out of memory")
    assert path_of(store, identity, FAILED).parent == path_of(store, identity).parent
    with opened(store, identity) as cell:
        assert list(cell.done) == ["a"]
        assert len(failed_cells(store.storage)) == 1
    finish(store, identity)
    assert failed_cells(store.storage) == []
    assert not path_of(store, identity, FAILED).exists()


def test_a_mark_is_json_in_its_own_letters(store: Store, identity: Identity):
    store.mark_failed(identity, "pas de mémoire")
    text = path_of(store, identity, FAILED).read_text(encoding="utf-8")
    assert text.endswith("\n}\n")
    assert '"reason": "pas de mémoire"' in text
    fields = json.loads(text)
    assert len(fields.pop(CHECK)) == 16
    assert fields == {
        "spec": SPEC.model_dump(),
        "reason": "pas de mémoire",
        "cell": identity.cell,
        "variant": identity.variant,
    }


def test_a_mark_beside_a_finished_file_does_not_count(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.fail("out of memory")
    mark = path_of(store, identity, FAILED).read_bytes()
    finish(store, identity)
    path_of(store, identity, FAILED).write_bytes(mark)
    assert failed_cells(store.storage) == []


# -- locks ------------------------------------------------------------------------------------------


def test_the_lock_of_a_killed_process_is_free(store: Store, identity: Identity):
    reader, writer = os.pipe()
    if not (child := os.fork()):
        held = store.journals.take(identity.name)
        os.write(writer, b"has it" if held else b"has not")
        time.sleep(60)
        os._exit(0)
    assert os.read(reader, 9) == b"has it"
    assert store.journals.take(identity.name) is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    (lock,) = (store.storage.root / LOCKS).iterdir()  # type: ignore[attr-defined]
    lock.write_text(str(os.getpid()))  # whatever stands in it, as where its number is another process's now
    give_back = store.journals.take(identity.name)
    assert give_back is not None
    give_back()


# -- folders and disks --------------------------------------------------------------------------


def test_a_results_folder_that_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    reasons = {
        tmp_path / "file": "is a file",
        tmp_path / "file" / "below": r"cannot be written \(Not a directory\)",
        Path("/proc/nothing"): "cannot be written",
    }
    for folder, reason in reasons.items():
        with pytest.raises(UserError, match=rf"results folder {folder}: {reason}.*--results"):
            Store(folder).prepare()


def test_what_is_withdrawn_stays_withdrawn_and_a_kill_meanwhile_loses_no_other(
    store: Store, identity: Identity, monkeypatch: pytest.MonkeyPatch
):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b", "c"), 3.0)
        with monkeypatch.context() as broken:
            broken.setattr(cell.journal, "append", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "x")))
            with pytest.raises(UserError, match="finished predictions are kept"):
                cell.discard(["b"])
    with opened(store, identity) as cell:
        assert cell.done.keys() == {"a", "b", "c"}
        with pytest.warns(UserWarning, match="1 answer to truncated prompts dropped"):
            cell.discard(["b"])
        assert (cell.done.keys(), cell.seconds) == ({"a", "c"}, 2.0)
    with opened(store, identity) as cell, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (cell.done.keys(), cell.seconds) == ({"a", "c"}, 2.0)
        cell.append(predictions("b"), 5.0)  # asked again, and this one counts
    with opened(store, identity) as cell:
        assert (cell.done.keys(), cell.seconds) == ({"a", "b", "c"}, 7.0)


def test_a_disk_that_is_full_while_journalling_loses_nothing_that_was_there(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions("a", "b"))
    written = path_of(store, identity, JOURNAL).stat().st_size
    with (
        pytest.raises(UserError, match="finished predictions are kept"),
        files_no_larger_than(written + 30),
        opened(store, identity) as cell,
    ):
        cell.append(predictions("c"))
    assert path_of(store, identity, JOURNAL).stat().st_size == written + 30
    with opened(store, identity) as cell:
        assert list(cell.done) == ["a", "b"]
    finish(store, identity)


def test_a_disk_that_is_full_while_a_file_is_written_leaves_the_journal(store: Store, identity: Identity):
    with opened(store, identity) as cell:
        cell.append(predictions(*ROWS))
        written = path_of(store, identity, JOURNAL).stat().st_size
    with (
        pytest.raises(UserError, match="run the same command again once there is space"),
        opened(store, identity) as cell,
        files_no_larger_than(written),
    ):
        cell.finish(ROWS, CellMeta.of(identity, notes=["x" * 4 * written]))
    folder = path_of(store, identity).parent
    assert [p.name for p in folder.iterdir()] == [path_of(store, identity, JOURNAL).name]
    with opened(store, identity) as cell:
        assert list(cell.done) == list(ROWS)


def test_no_space_left_is_said_in_the_systems_words(store: Store, identity: Identity, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(store, identity) as cell:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            cell.append(predictions("a"))


AGAIN = "finished predictions are kept; run the same command again once there is space"
LONG = (
    "the name of task, model or selection is too long for its file system; use a shorter name of the "
    "task or of the model's folder"
)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left"), f"No space left; {AGAIN}"),
        (OSError("the line is down"), f"the line is down; {AGAIN}"),
        (OSError(errno.ENAMETOOLONG, "File name too long"), LONG),
    ],
)
def test_whatever_a_storage_cannot_do_is_said_of_the_results_folder(identity: Identity, error: OSError, said: str):
    class Broken(MemoryStorage):
        def has(self, name: str) -> bool:
            raise error

        def put(self, name: str, content: bytes) -> None:
            raise error

    class Locked(MemoryJournals):
        def take(self, cell: str) -> Any:
            raise error

    def claimed(store: Store) -> None:
        with store.claim(identity, len(ROWS)):
            pytest.fail("the cell cannot be taken")

    journals = MemoryJournals()
    broken, locked = Store(Broken(), journals), Store(MemoryStorage(), Locked())
    acts: tuple[Callable[[], Any], ...] = (
        lambda: broken.has(identity),
        lambda: broken.mark_failed(identity, "no memory"),
        lambda: claimed(broken),
        lambda: claimed(locked),
    )
    for act in acts:
        with pytest.raises(UserError) as refused:
            act()
        assert str(refused.value) == f"results folder memory:: {said}"
    assert not journals.taken


# -- identities ---------------------------------------------------------------------------------


def identity_of(folder: Path, *, k: int = 2, draw: int = 0, **changes: Any) -> Identity:
    axes = {name: changes.pop(name) for name in ("select", "order") if name in changes}
    engine = {**ENGINE, **{n: changes.pop(n) for n in ("dtype", "backend") if n in changes}}
    found = tokenized_task(folder, **changes)
    spec = SPEC.model_copy(update={"k": k, "draw": draw, **axes})
    return Identity(spec, facts(found, SelectorSpec.parse(spec.select), engine))


CHANGES: dict[str, dict[str, Any]] = {
    "template": {"template": {"input": "q: {text}", "output": "intent: {label}"}},
    "separator": {"template": {"input": "query: {text}", "output": "intent: {label}", "separator": "\n\n"}},
    "label texts": {"labels": {"style": "as-is"}},
    "label names": {"labels": {"style": "words", "names": {"top_up": "payment"}}},
    "train rows": {"train_rows": 41},
    "test rows": {"test_rows": 7},
    "test size": {"test_size": 5},
    "pool": {"pool": {"drop_longest": 0.3}},
    "seed": {"seed": 1},
    "scoring": {"scoring": "exact"},
    "model files": {"fingerprint": "other"},
    "dtype": {"dtype": "bfloat16"},
    "backend": {"backend": "other"},
}


@pytest.mark.parametrize("changed", CHANGES)
def test_whatever_decides_predictions_makes_another_cell_and_variant(tmp_path: Path, changed: str):
    before, after = identity_of(tmp_path / "a"), identity_of(tmp_path / "b", **CHANGES[changed])
    assert before.cell != after.cell
    assert before.variant != after.variant
    assert before.name != after.name


def test_one_changed_character_in_the_data_makes_another_cell(tmp_path: Path):
    before = identity_of(tmp_path)
    found = tokenized_task(tmp_path)
    rows = [row(i) for i in range(40)]
    rows[7]["text"] += "."
    write_rows(tmp_path / "train.jsonl", rows)
    from icl_bench.tasks.examples import load_data

    changed = replace(found, data=load_data(found.data.spec))
    assert Identity(SPEC, facts(changed, SelectorSpec(), ENGINE)).cell != before.cell


def test_an_answers_longest_length_makes_another_cell_of_free_text(tmp_path: Path):
    longer = {**FREE_TEXT, "max_answer_tokens": 10}
    one, other = identity_of(tmp_path, **FREE_TEXT), identity_of(tmp_path, **longer)
    assert one.cell != other.cell


@pytest.mark.parametrize("axis", [{"k": 3}, {"draw": 1}, {"order": "by-label"}, {"select": "bm25"}], ids=str)
def test_axes_make_another_cell_of_the_same_variant(tmp_path: Path, axis: dict[str, Any]):
    one, other = identity_of(tmp_path), identity_of(tmp_path, **axis)
    assert one.cell != other.cell
    assert one.variant == other.variant


def test_what_decides_no_prediction_leaves_the_cell_as_it_is(tmp_path: Path):
    same = identity_of(
        tmp_path / "elsewhere", context_tokens=999, description="new", license="CC0", metrics=["accuracy"]
    )
    assert identity_of(tmp_path).cell == same.cell


def test_a_cells_files_are_called_after_its_axes_and_its_hash():
    odd = {"task": "trec_fine", "model": "org/Model-1.5 b", "select": "hybrid:4,by=dense"}
    identity = Identity(SPEC.model_copy(update=odd), Facts())
    expected = "trec_fine/org-Model-1.5-b/hybrid-4-by-dense-drawn-full-k00002-d00-"
    assert identity.name == f"{expected}{identity.cell}"


@given(st.text(max_size=5), st.text(max_size=5))
def test_no_name_leads_out_of_the_results_folder(task: str, model: str):
    name = Identity(SPEC.model_copy(update={"task": task, "model": model}), Facts()).name
    assert len(name.split("/")) == 3
    assert not {"", ".", ".."} & set(name.split("/"))


# -- reading ------------------------------------------------------------------------------------


def test_results_are_one_tidy_frame(tmp_path: Path):
    runner(plan(tmp_path, "1,2"), tmp_path / "results", FakeBackend()).run()
    frame = read_results(tmp_path / "results")
    assert len(frame) == 2 * 2 * 6
    assert list(frame.columns[:8]) == [*AXES, "test_id"]
    assert list(frame.columns) == list(ALWAYS)
    assert {str(frame[name].dtype) for name in ("task", "model", "cell", "variant")} == {"category"}
    assert str(frame["k"].dtype) == str(frame["prompt_tokens"].dtype) == "int32"
    assert frame["correct"].dtype == bool
    assert (frame["prediction"] == frame["gold"]).equals(frame["correct"])
    assert "probability" not in frame
    assert frame["cell"].nunique() == 4
    assert frame["variant"].nunique() == 1


def test_correct_is_empty_for_free_text_which_has_scores_of_its_own(tmp_path: Path):
    made = plan(tmp_path, "1", draws=1, **FREE_TEXT)
    runner(made, tmp_path / "results", FakeBackend()).run()
    frame = read_results(tmp_path / "results")
    assert frame["correct"].isna().all()
    assert frame["rouge1"].between(0, 1).all()
    assert "bertscore" not in frame
    assert not frame["prediction"].str.startswith(" ").any()


def test_a_retrieving_cell_stores_each_rows_demonstrations_and_a_shared_one_its_own_once(tmp_path: Path):
    made = plan(tmp_path, "3", draws=1, selects=["random", "bm25"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    for name, meta in finished_cells(tmp_path / "results"):
        table = read_rows(tmp_path / "results", name)
        if meta.spec.select == "random":
            assert "demonstration_ids" not in table.column_names
            assert len(meta.demonstration_ids) == 3
        else:
            assert [len(own) for own in table["demonstration_ids"].to_pylist()] == [3] * 6
            assert meta.demonstration_ids is None


def test_columns_that_a_file_lacks_are_empty_and_further_ones_are_kept(store: Store, identity: Identity):
    path = finish(store, identity)
    finish(store, Identity(SPEC.model_copy(update={"k": 3}), identity.facts))
    table = pq.read_table(path, partitioning=None).drop_columns(["valid"])
    plain = table.set_column(0, "task", table["task"].cast(pa.string()))
    pq.write_table(plain.append_column("news", [[1] * 4]), path)
    frame = read_results(store.storage)
    assert list(frame.columns) == [*ALWAYS, "news"]
    assert frame["valid"].isna().tolist() == [True] * 4 + [False] * 4
    assert frame["news"].isna().tolist() == [False] * 4 + [True] * 4
    assert set(frame["task"]) == {"cards"}


def test_folder_names_add_nothing_to_the_columns(tmp_path: Path, identity: Identity):
    inner = Store(tmp_path / "k=77" / "extra=yes")
    finish(inner, identity)
    frame = read_results(inner.storage)
    assert set(frame["k"]) == {2}
    assert "extra" not in frame


def test_a_damaged_file_is_named_and_left_out(store: Store, identity: Identity, tmp_path: Path):
    path = finish(store, identity)
    other = finish(store, Identity(SPEC.model_copy(update={"k": 3}), identity.facts))
    other.write_bytes(other.read_bytes()[:50])
    pq.write_table(pa.table({"x": [1]}), tmp_path / "results" / "mine.parquet")
    with pytest.warns(UserWarning, match="left out") as said:
        frame = read_results(store.storage)
    assert set(frame["k"]) == {2}
    messages = "\n".join(str(w.message) for w in said)
    assert f"{other.name}: cannot be read" in messages
    assert "mine.parquet: is not a results file" in messages
    assert path.name not in messages


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_are_readable_without_this_program_by_those_whom_the_umask_lets(
    store: Store, identity: Identity, mask: int, mode: int
):
    before = os.umask(mask)
    try:
        path = finish(store, identity)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert len(pd.read_parquet(path, partitioning=None)) == len(ROWS)


# -- further scores -----------------------------------------------------------------------------


def test_scores_of_another_package_are_columns_of_their_own(store: Store, identity: Identity, tmp_path: Path):
    finish(store, Identity(SPEC.model_copy(update={"k": 3}), identity.facts))
    with opened(store, identity) as cell:
        cell.append(predictions(*ROWS))
        scores = {"chrf": [0.5, 1.0, None, 0.25], "rouge1": [0.5] * 4}
        name = cell.finish(ROWS, CellMeta.of(identity, demonstration_ids=["x"]), scores)
    schema = read_rows(store.storage, name).schema
    assert schema.names == [*ALWAYS, "chrf", "rouge1"]
    assert schema.field("chrf").type == pa.float64()
    frame = read_results(store.storage)
    assert list(frame.columns) == schema.names
    own = frame[frame["k"] == 2]
    assert own["chrf"].tolist()[:2] == [0.5, 1.0]
    assert own["chrf"].isna().tolist() == [False, False, True, False]
    assert own["rouge1"].tolist() == [0.5] * 4
    assert frame.loc[frame["k"] == 3, "chrf"].isna().all()
    for out in ("all.csv", "all.parquet"):
        export_results(store.storage, tmp_path / out)
    assert pd.read_csv(tmp_path / "all.csv")["chrf"].notna().sum() == 3
    assert pq.read_table(tmp_path / "all.parquet")["chrf"].null_count == 5
    with store.claim(identity, len(ROWS)) as again:
        assert again is None  # a whole file


@pytest.mark.parametrize("taken", ["k", "gold", "probability", "cell", "perturbation"])
def test_a_score_cannot_take_the_name_of_another_column(store: Store, identity: Identity, taken: str):
    with opened(store, identity) as cell:
        cell.append(predictions(*ROWS))
        with pytest.raises(ValueError, match=f"cannot be called {taken}"):
            cell.finish(ROWS, CellMeta.of(identity), {taken: [0.5] * 4})
    assert not store.has(identity)
    assert path_of(store, identity, JOURNAL).exists()


names = st.text(min_size=1, max_size=6).filter(lambda text: text not in prediction_schema().names)
floats = st.one_of(st.none(), st.floats(allow_nan=False))


@settings(max_examples=30)
@given(st.dictionaries(names, st.lists(floats, min_size=4, max_size=4), max_size=3))
def test_scores_of_any_name_are_read_as_they_were_given(scores: dict[str, list[float | None]]):
    store = Store(MemoryStorage(), MemoryJournals())
    identity = Identity(SPEC, Facts(backend="fake", seed=0))
    with opened(store, identity) as cell:
        cell.append(predictions(*ROWS))
        cell.finish(ROWS, CellMeta.of(identity), scores)
    (file,) = result_files(store.storage, lambda message: pytest.fail(message))
    valued = {name: values for name, values in scores.items() if values != [None] * 4}
    assert file.table.select([*valued]).to_pydict() == valued
    assert not {*scores} - {*valued} & {*file.table.column_names}
