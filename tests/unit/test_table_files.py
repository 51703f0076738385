"""Tables that users give are read cell by cell as they stand, or refused with what is wrong."""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icl_bench import table_files
from icl_bench.errors import UserError
from icl_bench.results.importing.inspect_logs import of_archive
from icl_bench.results.reading import read_results
from icl_bench.table_files import csv_rows, gunzip, parquet_bytes, parquet_table, refusing_damaged_parquet
from icl_bench.tasks.file_readers import read_split
from icl_bench.tasks.texts import read_text

cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
odd = st.sampled_from(["", " ", "a,b", 'q"q', "a\nb", "a\r\nb", "\r", "007", "NA", "\ufeff"])
tables = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(st.one_of(cells, odd), min_size=width, max_size=width), min_size=1, max_size=5)
)


@given(tables, st.sampled_from(["\n", "\r\n"]), st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
@example([["a", "b"], ["", ""]], "\n", csv.QUOTE_MINIMAL)
def test_every_cell_that_a_program_writes_is_read_as_it_is(table: list[list[str]], end: str, quoting: int):
    if end == "\n" and any("\r" in cell for row in table for cell in row):
        quoting = csv.QUOTE_ALL  # else csv leaves a "\r" without quotes, which ends a line
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(table)
    assert [row for _, row in csv_rows(text.getvalue(), "x.csv")] == table


@given(st.text(st.sampled_from('a,1"\n\r\0é'), max_size=30))
def test_any_text_is_read_or_refused_with_its_line(text: str):
    try:
        rows = list(csv_rows(text, "x.csv"))
    except UserError as error:
        message = str(error)
        assert message.startswith("x.csv:")
        assert "\n" not in message
        return
    assert len({len(row) for _, row in rows}) <= 1
    lines = [int(where.removeprefix("x.csv:")) for where, _ in rows]
    assert lines == sorted(lines)


def test_lines_without_a_cell_are_skipped_and_each_row_says_where_it_is():
    assert list(csv_rows('\na,b\n\n"1\n2",3\n', "x.csv")) == [("x.csv:2", ["a", "b"]), ("x.csv:5", ["1\n2", "3"])]


def test_a_cell_may_be_of_any_length_and_other_readers_keep_their_limit():
    before, long = csv.field_size_limit(), "x" * 300_000
    rows = csv_rows(f"a,b\n{long},1\n", "x.csv")
    assert next(rows)
    assert csv.field_size_limit() == before
    assert [row for _, row in rows] == [[long, "1"]]
    assert csv.field_size_limit() == before


def test_half_a_gzip_file_is_refused():
    assert gunzip(gzip.compress(b"text"), "x.gz") == b"text"
    with pytest.raises(UserError, match=r"x\.gz: not a complete gzip file"):
        gunzip(gzip.compress(b"text" * 99)[:-5], "x.gz")


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "LARGEST", 10_000)
    monkeypatch.setattr(table_files, "LARGEST_ROWS", 5_000)


def larger(path: Path, read: Callable[[], object]) -> None:
    """Reading is refused in one line that names the file."""
    with pytest.raises(UserError) as refused:
        read()
    message = str(refused.value)
    assert message.startswith(str(path))
    assert "holds more than" in message or "GiB; split it first" in message
    assert "\n" not in message
    assert path.stat().st_size < 10_000, "it is small itself"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.usefixtures("small_limits")
def test_compressed_files_that_hold_far_more_than_they_are_are_refused(tmp_path: Path):
    row = b'{"text": "' + b"a" * 20_000 + b'", "label": "x"}\n'
    assert gunzip(gzip.compress(b"a" * 10_000), "x.gz") == b"a" * 10_000
    rows = written(tmp_path / "rows.jsonl.gz", gzip.compress(row))
    larger(rows, lambda: read_split(rows, "train", {}))
    text = written(tmp_path / "long.txt.gz", gzip.compress(b"a" * 10_001))
    larger(text, lambda: read_text(text))
    for name, member in (("rows.xlsx", "xl/worksheets/sheet1.xml"), ("log.eval", "header.json")):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, b" " * 10_001)
    larger(tmp_path / "rows.xlsx", lambda: read_split(tmp_path / "rows.xlsx", "train", {}))
    larger(tmp_path / "log.eval", lambda: of_archive((tmp_path / "log.eval").read_bytes(), str(tmp_path / "log.eval")))
    for number, table in enumerate([pa.table({"text": ["a"] * 5_001}), pa.table({"text": ["a" * 10_001]})]):
        bomb = tmp_path / f"{number}.parquet"
        pq.write_table(table, bomb, compression="zstd", use_dictionary=number == 0)
        larger(bomb, lambda bomb=bomb: read_split(bomb, "train", {}))  # type: ignore[misc]


@pytest.mark.usefixtures("small_limits")
def test_own_results_have_no_limit():
    table = pa.table({"text": ["a" * 20_000] * 6_000})
    assert parquet_table(parquet_bytes(table)).equals(table)


class Runs:
    """Runs code where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_metadata_of_a_foreign_parquet_file_runs_no_code_and_does_not_fill_the_memory(tmp_path: Path):
    ran, path = tmp_path / "ran", tmp_path / "rows.parquet"
    pickled = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Runs(ran)),
    }
    about = {
        b"huggingface": b"[" * 100_000,
        b"pandas": b"{" * 100_000,
        b"icl_bench": pickle.dumps(Runs(ran)),
        b"icl_bench_import": b"[" * 100_000,
        b"long": b"x" * 5_000_000,
    }
    field = pa.field("text", pa.string(), metadata=pickled)
    table = pa.table([["a", "b"], ["x", "y"]], schema=pa.schema([field, ("label", pa.string())], about))
    pq.write_table(table, path)
    rows = read_split(path, "train", {"text": "text", "label": "label"}).rows
    assert [row.cells["text"] for row in rows] == ["a", "b"]
    (tmp_path / "results").mkdir()
    path.rename(tmp_path / "results" / "rows.parquet")
    with pytest.warns(UserWarning, match="rows.parquet: .*left out") as said, pytest.raises(UserError):
        read_results(tmp_path / "results")
    assert len(str(said[0].message)) < 500
    assert not ran.exists()


def test_named_columns_may_be_lists_of_texts():
    table = pa.table({"cell": ["a", "a"], "ids": [["x", "y"], []], "n": [1, 2]})
    found = parquet_table(parquet_bytes(table), ["cell", "ids"])
    assert found.column_names == ["cell", "ids"]
    assert found["ids"].to_pylist() == [["x", "y"], []]
    assert pa.types.is_dictionary(found.schema.field("cell").type)


@given(st.integers(0), st.binary(min_size=1, max_size=4))
def test_a_changed_parquet_file_is_read_or_refused_in_a_line(place: int, inserted: bytes):
    table = pa.table({"text": ["a", "é", None], "number": [1.5, 2.5, None]})
    whole = parquet_bytes(table)
    assert parquet_table(whole).equals(table)
    place %= len(whole)
    try:
        with refusing_damaged_parquet("x.parquet"):
            parquet_table(whole[:place] + inserted + whole[place + len(inserted) :]).to_pylist()
    except UserError as error:
        message = str(error)
        assert message.startswith("x.parquet: not a complete Parquet file")
        assert "\n" not in message


def test_any_flipped_bit_of_a_sealed_file_is_found_and_other_readers_see_no_seal():
    table = pa.table({"k": [1, 2, 3], "said": ["a", "b", "c" * 500]}).replace_schema_metadata({b"about": b"x" * 200})
    raw = parquet_bytes(table)
    assert pq.read_table(io.BytesIO(raw)).equals(table, check_metadata=True)
    missed = 0
    for place in range(len(raw)):
        broken = bytearray(raw)
        broken[place] ^= 1 << place % 8
        try:
            found = parquet_table(bytes(broken))
        except (pa.ArrowException, OSError, ValueError):
            continue
        missed += 1  # of the seal's own name: the rest is right
        assert found.equals(table, check_metadata=True)
    assert missed <= 17


def test_a_file_without_a_seal_and_one_that_another_program_wrote_anew_are_read():
    table = pa.table({"k": [1, 2, 3]})
    again = pq.read_table(io.BytesIO(parquet_bytes(table))).slice(1)
    for written in (table, again):
        stream = io.BytesIO()
        pq.write_table(written, stream)
        assert parquet_table(stream.getvalue()).equals(written)
