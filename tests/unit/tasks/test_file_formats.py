"""People's own files: each format and encoding gives the rows that it holds, or one line that says what to do."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.errors import UserError
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.file_readers import hold_out, kind_of, read_split
from icl_bench.tasks.spec import Holdout, TaskSpec
from icl_bench.tasks.splits import StoredRow

ROWS = [{"text": "où est-il ; là", "label": "perdu"}, {"text": 'a "b"\nc', "label": "été"}]


def table(delimiter: str, **how: Any) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(ROWS[0]), delimiter=delimiter, **how)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue()


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
FILES: dict[str, tuple[str, str]] = {
    "array.json": (json.dumps(ROWS), ""),
    "printed.json": (json.dumps(ROWS, indent=2), ""),
    "lines.json": (LINES, ""),
    "of_one_key.json": (json.dumps({"version": 1, "data": ROWS}), ""),
    "array.jsonl": (json.dumps(ROWS), ""),
    "lines.ndjson": (LINES, ""),
    "tabs.tsv": (table("\t"), ""),
    "semicolons.csv": (table(";"), "a semicolon separates its cells"),
    "tabs.csv": (table("\t"), "a tab separates its cells"),
    "bars.csv": (table("|"), "a vertical bar separates its cells"),
    "commas.csv": (table(","), ""),
    "said.csv": (f"sep=;\r\n{table(';')}", "a semicolon separates its cells"),
    "quoted.csv": (table(";", quoting=csv.QUOTE_ALL), "a semicolon separates its cells"),
}


def cells(path: Path, encoding: str | None = None) -> list[Any]:
    return [row.cells for row in read_split(path, "train", {}, encoding).rows]


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_holds_the_same_rows(name: str, tmp_path: Path):
    content, note = FILES[name]
    for path, raw in {name: content.encode(), f"{name}.gz": gzip.compress(content.encode())}.items():
        (tmp_path / path).write_bytes(raw)
        split = read_split(tmp_path / path, "train", {})
        assert [row.cells for row in split.rows] == ROWS
        assert split.notes == ((f"{path}: {note}",) if note else ())


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["lines.json", "semicolons.csv"])
def test_a_byte_order_mark_says_the_encoding(name: str, mark: str, tmp_path: Path):
    (tmp_path / name).write_bytes(FILES[name][0].encode(mark))
    assert cells(tmp_path / name) == ROWS


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "utf-16", "utf-8"])
def test_an_encoding_that_is_named_is_read(encoding: str, tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes(FILES["commas.csv"][0].encode(encoding))
    assert cells(path, encoding) == ROWS


@given(
    st.text(st.characters(codec="cp1252", exclude_characters="\0\r\x1a"), min_size=1),
    st.sampled_from(["cp1252", "utf-16"]),
)
def test_any_text_of_an_encoding_is_read_as_it_is(text: str, encoding: str):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(json.dumps([{"text": text}], ensure_ascii=False).encode(encoding))
        assert cells(path, encoding) == [{"text": text}]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.csv", "text,label\na,été\n".encode("cp1252"), r"a.csv:2: not UTF-8 \(byte 0xe9\); data.encoding names"),
        ("a.csv", "text,label\na,b\n".encode("utf-16-le"), "looks like UTF-16 .*data.encoding: utf-16-le"),
        (
            "a.json",
            b'{"text": {"0": "a"},\n "label": {"0": "b"}}',
            "expected an array of objects, .* with: text, label",
        ),
        ("a.json", b'{"train": [{"a": 1}],\n "test": [{"a": 1}]}', "one object with: train, test"),
        ("a.json", b"{%s\n}" % b",".join(b'"k%d": 1' % i for i in range(12)), r"with: k0, .*, k8, k9 and 2 more$"),
        ("a.json", b"{\n}", "one object with: nothing"),
        ("a.json", b"[1]", "a.json row 1: expected a JSON object, not 1"),
        ("a.json", b'[{"a": 1}', "a.json: not JSON"),
        ("a.json", b'{"a": 1}\n{"a":', "a.json:2: not JSON"),
        ("a.json", b"3", "expected an array of objects"),
        ("a.json", b"[]", "has no rows"),
        ("a.tsv", b"a\tb\n1\n", "a.tsv:2: 1 cells, but the header has 2"),
        ("a.xlsx", b"no zip file", r"a.xlsx: (not a complete Excel file|needs the package openpyxl)"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_what_it_is(name: str, raw: bytes, message: str, tmp_path: Path):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError, match=message):
        read_split(tmp_path / name, "train", {})


@pytest.mark.parametrize(("name", "first"), [("a.tsv", ""), ("a.csv", ""), ("a.csv", "sep=\t\n")])
def test_a_quotation_mark_without_its_pair_among_tabs_is_noted(name: str, first: str, tmp_path: Path):
    (tmp_path / name).write_text(first + 'text\tlabel\n"hm\tno\nyes"\tno\n', encoding="utf-8")
    assert "is a quotation mark unpaired?" in read_split(tmp_path / name, "train", {}).notes[-1]


def test_a_tab_in_a_quoted_cell_among_semicolons_is_no_fault(tmp_path: Path):
    (tmp_path / "a.tsv").write_text('sep=;\ntext;label\n"hm\tno\nyes";no\n', encoding="utf-8")
    assert read_split(tmp_path / "a.tsv", "train", {}).notes == ("a.tsv: a semicolon separates its cells",)


@pytest.mark.parametrize("name", ["a.xlsx.gz", "a.parquet.gz", "a.XLSX.GZ"])
def test_only_files_of_text_may_be_compressed(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes(gzip.compress(b"PK"))
    assert kind_of(tmp_path / name) is None
    with pytest.raises(UserError, match=r"expected \.jsonl, .* \(.*\.tsv also with \.gz\)"):
        read_split(tmp_path / name, "train", {})


def spec(path: Path, **data: Any) -> TaskSpec:
    return TaskSpec.model_validate(
        {
            "name": "mine",
            "data": {"train": path, "test": path, "fields": {"text": "text", "label": "label"}, **data},
            "template": {"input": "query: {text}", "output": "intent: {label}"},
            "labels": {},
            "metrics": ["accuracy"],
        }
    )


def test_one_file_in_two_encodings_is_two_data_sets(tmp_path: Path):
    """The bytes are the same and the texts are not, so cells of one are not those of the other."""
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\na,é\nb,c\n".encode("cp1252"))
    (windows, dos) = (load_data(spec(path, encoding=name)) for name in ("cp1252", "cp850"))
    assert windows.labels != dos.labels
    assert windows.files != dos.files


def test_how_a_file_was_read_is_noted(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("text;label\na;b\nc;d\n", encoding="utf-8")
    notes = load_data(spec(path)).notes
    assert notes.count("a.csv: a semicolon separates its cells") == 2


@pytest.mark.parametrize("name", ["cp9999", "base64", ""])
def test_an_encoding_that_does_not_exist_is_refused(name: str, tmp_path: Path):
    with pytest.raises(ValueError, match="is not an encoding of text"):
        spec(tmp_path / "a.csv", encoding=name)


def test_an_encoding_for_a_file_without_text_is_refused(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(UserError, match=r"data\.encoding is for files of text"):
        read_split(tmp_path / "a.parquet", "train", {}, "cp1252")


# -- Excel ----------------------------------------------------------------------------------------


def test_the_first_sheet_of_an_excel_file_is_read_as_text(tmp_path: Path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label"], ["NA", 1], [12, 0], [None, None], ["x\ny", True]):
        book.active.append(row)
    book.active.title = "Tickets"
    book.create_sheet("other")
    book.save(tmp_path / "a.xlsx")
    split = read_split(tmp_path / "a.xlsx", "train", {})
    texts = [{"text": "NA", "label": "1"}, {"text": "12", "label": "0"}, {"text": "x\ny", "label": "true"}]
    assert [row.cells for row in split.rows] == texts
    assert split.rows[-1].where == f"{tmp_path}/a.xlsx row 5"
    assert split.notes == ("a.xlsx: 'Tickets' is read, the first of its 2 sheets",)


def excel(path: Path, *rows: list[Any]) -> Path:
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def test_cells_with_an_error_of_excel_are_empty_and_counted(tmp_path: Path):
    path = excel(tmp_path / "a.xlsx", ["text", "label"], ["a", "#N/A"], ["#DIV/0!", "nan"], ["#REF!", None])
    split = read_split(path, "train", {})
    assert [row.cells for row in split.rows] == [{"text": "a", "label": ""}, {"text": "", "label": "nan"}]
    assert split.notes == ("a.xlsx: 3 cells with an error, like #N/A, are read as empty",)


@pytest.mark.parametrize("headings", [["text", "label", "text"], [1, "label", "1"], [True, "label", "True"]])
def test_two_columns_of_an_excel_file_with_one_name_are_refused(headings: list[Any], tmp_path: Path):
    path = excel(tmp_path / "a.xlsx", headings, ["a", "b", "c"])
    with pytest.raises(UserError) as error:
        read_split(path, "train", {})
    assert str(error.value) == f"{path} row 1: column {headings[2]} appears twice"


def test_headings_of_an_excel_file_are_as_they_are_and_columns_without_one_are_numbered(tmp_path: Path):
    path = excel(tmp_path / "a.xlsx", [None, "text", "text.1", 1, 2.0, None], ["i", "a", "b", 3, 4.5, "j"])
    (row,) = read_split(path, "train", {}).rows
    assert row.cells == {"Unnamed: 0": "i", "text": "a", "text.1": "b", "1": "3", "2": "4.5", "Unnamed: 5": "j"}


def test_an_excel_file_without_rows_is_refused(tmp_path: Path):
    for headings in ([], ["text", "label"]):
        with pytest.raises(UserError, match=r"a.xlsx: has no rows"):
            read_split(excel(tmp_path / "a.xlsx", headings), "train", {})


def test_without_its_package_an_excel_file_is_refused_with_what_to_install(tmp_path: Path, monkeypatch):
    import pandas as pd

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Missing optional dependency 'openpyxl'")

    monkeypatch.setattr(pd, "ExcelFile", missing)
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    with pytest.raises(UserError, match=r"pip install openpyxl\); or save it as CSV"):
        read_split(tmp_path / "a.xlsx", "train", {})


# -- class names, and the hub's configurations ----------------------------------------------------


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features).to_parquet(path)
    return path


def test_class_numbers_of_a_parquet_file_become_the_names_beside_them(classes: Path):
    columns = {"text": "text", "label": "label"}
    assert [row.cells["label"] for row in read_split(classes, "train", columns).rows] == ["yes", "no", None]
    # a Jinja template, which has no fields, expects numbers
    assert [row.cells["label"] for row in read_split(classes, "train", {}).rows] == [1, 0, -1]


def test_a_class_number_without_a_name_is_refused(classes: Path):
    table = pq.read_table(classes)
    info = json.loads(table.schema.metadata[b"huggingface"])
    info["info"]["features"]["label"]["names"] = ["no"]
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), classes)
    with pytest.raises(UserError, match="label has the class 1, and names for 1"):
        read_split(classes, "train", {"label": "label"})


@pytest.mark.parametrize("values", [["yes", "no", None], [1.0, 0.0, None], [[1], [0], None], [True, False, None]])
def test_class_names_beside_a_column_that_has_no_class_numbers_change_nothing(classes: Path, values: list[Any]):
    stored = pq.read_table(classes)
    pq.write_table(stored.set_column(1, "label", pa.array(values)), classes)
    assert [row.cells["label"] for row in read_split(classes, "train", {"label": "label"}).rows] == values


def test_two_columns_of_a_parquet_file_with_one_name_are_refused(classes: Path):
    pq.write_table(pa.table([["a"], ["b"], ["c"]], names=["text", "label", "text"]), classes)
    for columns in ({}, {"label": "label"}):
        with pytest.raises(UserError, match=r"a\.parquet: column text appears twice"):
            read_split(classes, "train", columns)


@pytest.mark.parametrize("metadata", [b"", b"[]", b'{"info": 3}', b'{"info": {"features": {"label": 3}}}'])
def test_what_else_stands_beside_a_table_changes_nothing(classes: Path, metadata: bytes):
    pq.write_table(pq.read_table(classes).replace_schema_metadata({"huggingface": metadata}), classes)
    assert [row.cells["label"] for row in read_split(classes, "train", {"label": "label"}).rows] == [1, 0, -1]


@pytest.fixture
def configurations(tmp_path: Path, monkeypatch) -> Callable[..., TaskSpec]:
    """A data set with two configurations, in a local folder as on the hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    listed = []
    for name in ("plain", "hard"):
        (folder / name).mkdir(parents=True)
        for split in ("train", "test"):
            (folder / name / f"{split}.jsonl").write_text(LINES, encoding="utf-8")
        listed.append(f"- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train.jsonl\n")
        listed.append(f"  - split: test\n    path: {name}/test.jsonl\n")
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(listed)}---\n", encoding="utf-8")

    def task(**hub: Any) -> TaskSpec:
        hub = {"path": str(folder), "revision": "main", **hub}
        fields = {"text": "text", "label": "label"}
        return spec(folder).model_copy(
            update={"data": spec(folder).data.model_validate({"hub": hub, "fields": fields})}
        )

    return task


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        ({}, "has several configurations: set data.hub.name: (plain or hard|hard or plain)"),
        ({"name": "easy"}, "has no configuration 'easy': set data.hub.name: (plain or hard|hard or plain)"),
        ({"name": "plain", "test": "validation"}, "has no split 'validation': .*(train or test|test or train)"),
    ],
)
def test_a_configuration_or_split_that_a_set_does_not_have_is_named(configurations, hub: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message) as error:
        load_data(configurations(**hub))
    assert "network" not in str(error.value)


def test_a_configuration_that_is_named_is_read(configurations):
    assert len(load_data(configurations(name="hard")).train) == 2


# -- stratified holdouts --------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from("aaaaaabbbc"), min_size=2, max_size=80),
    st.sampled_from([0.1, 0.25, 0.5, 0.9]),
    st.integers(0, 9),
)
def test_a_stratified_holdout_takes_its_share_of_each_value(values: list[str], share: float, seed: int):
    rows = [StoredRow(str(i), {"label": value}) for i, value in enumerate(values)]
    parts = hold_out(rows, Holdout(share=share, seed=seed, stratify="label"))
    assert sorted([*parts["train"], *parts["test"]]) == list(range(len(rows)))
    assert hold_out(rows, Holdout(share=share, seed=seed, stratify="label"))["test"].tolist() == parts["test"].tolist()
    of_test = Counter(values[i] for i in parts["test"])
    for value, count in Counter(values).items():
        assert min(share * count - 1, count - 1) <= of_test[value] <= min(share * count + 1, count - 1)


def test_another_seed_holds_out_other_rows_of_the_same_strata():
    rows = [StoredRow(str(i), {"label": i % 2}) for i in range(40)]
    first, other = (hold_out(rows, Holdout(share=0.25, seed=seed, stratify="label"))["test"] for seed in (1, 2))
    assert set(first) != set(other)
    assert len(first) == len(other) == 10


def test_a_holdout_by_a_column_that_is_not_there_is_refused(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,b\nc,d\n", encoding="utf-8")
    data = {"file": path, "train": None, "test": None, "holdout": {"share": 0.5, "seed": 1, "stratify": "queue"}}
    with pytest.raises(UserError, match="no column 'queue'; columns: text, label"):
        load_data(spec(path, **data))
