"""Rows to examples: files, the data folder, the hub, the chosen test rows, the look at the data."""

from __future__ import annotations

import csv
import gc
import gzip
import hashlib
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.packaged_modules.parquet.parquet import Parquet
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from icl_bench.errors import UserError
from icl_bench.models import hub as hub_files
from icl_bench.seeds import generator
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import Example, TaskData, load_data
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.task_files import load_task

Rows = list[dict[str, Any]]
TRAIN: Rows = [
    {"text": "where is it", "label": "card_arrival"},
    {"text": "  two\nlines\u2028here ", "label": "lost_card"},
    {"text": "gone", "label": "lost_card"},
]
TEST: Rows = [{"text": f"question {i}", "label": "lost_card"} for i in range(5)]


def jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def task(**changes: Any) -> TaskSpec:
    fields: dict[str, Any] = {
        "name": "mine",
        "data": {"fields": {"text": "text", "label": "label"}},
        "template": {"input": "query: {text}", "output": "intent: {label}"},
        "labels": {"style": "words"},
        "metrics": ["accuracy"],
    }
    return TaskSpec.model_validate(fields | changes)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., TaskData]:
    """Load a task whose rows, or files as bytes, stand in a data folder."""

    def load(
        train: Rows | bytes = TRAIN,
        test: Rows | bytes = TEST,
        /,
        *,
        suffix: str = ".jsonl",
        test_size: int | None = None,
        **changes: Any,
    ) -> TaskData:
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        for name, rows in {"train": train, "test": test}.items():
            content = rows if isinstance(rows, bytes) else jsonl(rows)
            (folder / f"{name}{suffix}").write_bytes(content)
        return load_data(task(**changes), data_dir=tmp_path, test_size=test_size)

    return load


def complaint(load: Callable[..., TaskData], *args: Any, **changes: Any) -> str:
    with pytest.raises(UserError) as error:
        load(*args, **changes)
    return str(error.value)


# -- files --------------------------------------------------------------------------------------


def write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_compressed_csv(path: Path, rows: Rows) -> None:
    write_csv(path, rows)
    path.write_bytes(gzip.compress(path.read_bytes()))


FILES: dict[str, Callable[[Path, Rows], Any]] = {
    "a.jsonl": lambda path, rows: path.write_bytes(jsonl(rows)),
    "a.JSONL": lambda path, rows: path.write_bytes(jsonl(rows)),
    "a.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(jsonl(rows))),
    "a.csv": write_csv,
    "a.Csv.GZ": write_compressed_csv,
    "a.parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_the_same_examples(name: str, tmp_path: Path):
    FILES[name](tmp_path / name, TRAIN)
    (tmp_path / "test.jsonl").write_bytes(jsonl(TEST))
    fields = {"text": "text", "label": "label"}
    files = {"train": tmp_path / name, "test": tmp_path / "test.jsonl", "fields": fields}
    rows = load_data(task(data=files))
    assert rows.train == (
        Example("mine-train-0", {"text": "where is it"}, "card arrival"),
        Example("mine-train-1", {"text": "  two\nlines\u2028here "}, "lost card"),
        Example("mine-train-2", {"text": "gone"}, "lost card"),
    )
    assert rows.labels == ("card arrival", "lost card")
    assert rows.files[name] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert rows.origin == f"files {tmp_path / name} and {tmp_path / 'test.jsonl'}"


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path: Path):
    for split, rows in {"train": TRAIN, "test": TEST}.items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "rows.jsonl").write_bytes(jsonl(rows))
    paths = {split: tmp_path / split / "rows.jsonl" for split in ("train", "test")}
    rows = load_data(task(data={**paths, "fields": {"text": "text", "label": "label"}}))
    assert set(rows.files) == {"train/rows.jsonl", "test/rows.jsonl"}


def test_a_file_of_another_kind_is_refused_with_the_known_ones(tmp_path: Path):
    for name in ("rows.txt", "rows", "rows.parquet.gz"):
        path = tmp_path / name
        path.write_bytes(b"")
        files = {"train": path, "test": path, "fields": {"text": "text", "label": "label"}}
        with pytest.raises(UserError, match=r"expected \.jsonl, .* or \.parquet"):
            load_data(task(data=files))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"\n \n", "has no rows"),
        (b'{"text": "a", "label": "b"}\n{"text": \n', ":2: not JSON: Expecting value"),
        (b'{"text": "a", "label": "b", "text": "c"}\n', ":1: not JSON: the key 'text' appears twice"),
        (b'{"text": "a", "label": "b"}\n\n["a"]\n', ":3: expected a JSON object, not a list"),
        (b'{"text": "a", "label": "b"}\n{"text": "\xff"}\n', ":2: not UTF-8 (byte 0xff)"),
        (b'{"text": "a"}\n', ":1: no column 'label'; columns: text"),
        (b'{"text": 7, "label": "b"}\n', ":1: text must be text, not 7"),
        (b'{"text": {"a": 1}, "label": "b"}\n', ":1: text must be text, not a mapping"),
        (b'{"text": "a", "label": ["b"]}\n', ":1: label must be text, not a list"),
        (b'{"text": "a", "label": NaN}\n', ":1: label must be text, not nan"),
        (b'{"text": "a", "label": ""}\n', ":1: label is empty"),
        (b'{"text": "a", "label": null}\n', ":1: label is empty"),
        (b'{"text": "a", "label": "b\\nc"}\n', r":1: the label 'b\nc' holds a line break"),
        (b'{"text": "a", "label": "_"}\n', ":1: the label '_' is written as an empty text"),
        (b'{"text": "a", "label": "_b"}\n', ":1: the label ' b' begins or ends with a space"),
        (b'{"text": "\\ud800", "label": "b"}\n', r":1: text holds \ud800, half a character"),
        (b'{"id": 1.5, "text": "a", "label": "b"}\n', ":1: id must be text or a whole number"),
        (b'{"id": null, "text": "a", "label": "b"}\n', ":1: id must be text or a whole number"),
        (b'{"text": "a", "label": 1' + b"0" * 5000 + b"}\n", ":1: not JSON: Exceeds the limit"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_file_and_line(load, content, message):
    said = complaint(load, content)
    assert "\n" not in said
    assert "mine/train.jsonl" in said
    assert message in said


def test_the_garbage_collector_is_paused_while_rows_are_read(load):
    rows = [{"text": f"text {i}", "label": ["lost_card", "other"][i % 2]} for i in range(5000)]
    before = gc.get_stats()[0]["collections"]
    load(rows)
    assert gc.get_stats()[0]["collections"] - before <= 2
    assert gc.isenabled()
    complaint(load, b"no JSON")
    assert gc.isenabled()
    gc.disable()
    try:
        load()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,b\nc\n", ":3: 1 cells, but the header has 2"),
        ("text,text\na,b\n", ":1: column text appears twice"),
        ("text,kind\na,b\n", ":2: no column 'label'; columns: text, kind"),
        ('text,label\n"a,b\n', ":2: not CSV: unexpected end of data"),
        ("text,label\n", "has no rows"),
    ],
)
def test_a_broken_csv_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str):
    path = tmp_path / "a.csv"
    path.write_text(content)
    files = {"train": path, "test": path, "fields": {"text": "text", "label": "label"}}
    with pytest.raises(UserError) as error:
        load_data(task(data=files))
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.parquet"])
def test_a_torn_file_is_refused(name: str, tmp_path: Path):
    FILES.get(name, write_compressed_csv)(tmp_path / name, TRAIN)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    fields = {"text": "text", "label": "label"}
    files = {"train": tmp_path / name, "test": tmp_path / name, "fields": fields}
    with pytest.raises(UserError, match=r"not a complete (gzip|Parquet) file"):
        load_data(task(data=files))


# -- rows ---------------------------------------------------------------------------------------


def test_the_id_column_names_a_row(load):
    rows = load([{"id": f"x{i}", **row} for i, row in enumerate(TRAIN)])
    assert [row.id for row in rows.train] == ["x0", "x1", "x2"]
    numbered = load([{"id": 7 - i, **row} for i, row in enumerate(TRAIN)])
    assert [row.id for row in numbered.train] == ["7", "6", "5"]


def test_an_id_that_stands_twice_is_refused_with_both_places(load):
    said = complaint(load, [{"id": "x", **row} for row in TRAIN])
    assert "train.jsonl:2: id 'x' is already used at" in said
    assert "train.jsonl:1; set data.id to another column" in said


def test_another_column_names_the_rows_or_none_does(load):
    rows = [{"id": "same", "n": {"no": i}, "text": f"t{i}", "label": "ab"[i % 2]} for i in range(2)]
    fields = {"text": "text", "label": "label"}
    assert [e.id for e in load(rows, rows, data={"fields": fields, "id": "n.no"}).train] == ["0", "1"]
    assert [e.id for e in load(rows, rows, data={"fields": fields, "id": False}).train] == [
        "mine-train-0",
        "mine-train-1",
    ]


def test_the_column_of_ids_is_read_from_a_table_too(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"key": ["x", "y"], "text": ["a", "b"], "label": ["c", "d"], "more": [1, 2]}), path)
    data = {"train": path, "test": path, "fields": {"text": "text", "label": "label"}, "id": "key"}
    assert [example.id for example in load_data(task(data=data)).train] == ["x", "y"]


@pytest.mark.parametrize("values", [["a", "a"], [1.0, 2.0], [None, "b"], [True, False]])
def test_ids_that_name_no_rows_are_refused_with_a_way_out(load, values: list[Any]):
    rows = [{"id": value, "text": f"t{i}", "label": "ab"[i]} for i, value in enumerate(values)]
    assert "set data.id to another column, or to false to number the rows" in complaint(load, rows, rows)
    assert len(load(rows, rows, data={"fields": {"text": "text", "label": "label"}, "id": False}).train) == 2


def test_a_column_of_ids_that_is_not_there_is_refused(load):
    data = {"fields": {"text": "text", "label": "label"}, "id": "key"}
    assert "no column 'key'; columns: text, label" in complaint(load, data=data)


UNLABELLED: Rows = [*TRAIN, *({"text": f"t{i}", "label": value} for i, value in enumerate(["", None, " \t", "", ""]))]


def test_rows_without_a_label_are_named_all_together(load):
    said = complaint(load, UNLABELLED)
    assert said.endswith(
        "train.jsonl:4: label is empty, and in 4 further rows (train.jsonl:5, train.jsonl:6, train.jsonl:7 and 1 more); "
        "labels.empty: leave_out leaves such rows out"
    )
    one = complaint(load, TRAIN, UNLABELLED[2:4])
    assert one.endswith("test.jsonl:2: label is empty; labels.empty: leave_out leaves such rows out")


def test_rows_without_a_label_are_left_out_counted_and_noted_where_a_task_says_so(load):
    data = load(UNLABELLED, [*TEST, UNLABELLED[4]], labels={"empty": "leave_out", "style": "words"})
    assert len(data.train) == 3
    assert data.left_out == {"train": 5, "test": 1}
    assert data.not_asked == 1
    assert "5 train rows have no label and were left out" in data.notes
    assert "1 test row has no label and was left out" in data.notes


def test_an_empty_label_is_named_where_rows_share_choices(load):
    assert "label is empty" in complaint(load, UNLABELLED, labels={"choices": ["card_arrival", "lost_card"]})


def test_numbers_and_truth_values_are_labels_as_the_file_writes_them(load):
    labels = [1, 2.5, True, "three"]
    rows = load(*[[{"text": f"t{i}", "label": label} for i, label in enumerate(labels)]] * 2)
    assert [row.answer for row in rows.train] == ["1", "2.5", "true", "three"]


def test_rows_without_text_are_left_out_counted_and_noted(load):
    empty: Rows = [{"text": text, "label": "lost_card"} for text in ("", " \n", None)]
    rows = load([TRAIN[0], *empty, *TRAIN[1:]], [*TEST, *empty[:1]])
    assert [row.id for row in rows.train] == ["mine-train-0", "mine-train-4", "mine-train-5"]
    assert rows.left_out == {"train": 3, "test": 1}
    assert "3 train rows have no text and were left out" in rows.notes
    assert "1 test row has no text and was left out" in rows.notes


def test_a_file_of_rows_without_text_is_refused(load):
    assert "no row has {text}" in complaint(load, [{"text": "", "label": "a"}])


def test_two_labels_that_are_written_alike_are_refused_with_both_names(load):
    said = complaint(load, TRAIN, [{"text": "a", "label": "lost card"}])
    assert "test.jsonl:1: labels 'lost_card' and 'lost card' are duplicated after format" in said


def test_a_name_of_its_own_tells_two_labels_apart(load):
    labels = {"style": "words", "names": {"lost card": "lost bank card"}}
    rows = load(TRAIN, [{"text": "a", "label": "lost card"}, TRAIN[0]], labels=labels)
    assert rows.test_pool[0].answer == "lost bank card"


def test_a_name_for_a_label_that_no_row_has_is_noted_with_the_nearest(load):
    labels = {"names": {"card_lots": "lost", "x": "card lost"}}
    rows = [{"text": t, "label": label} for t, label in (("a", "card_lost"), ("b", "card lost"))]
    assert load(rows, rows[:1], labels=labels).notes[0] == (
        "labels.names: no row has the label 'card_lots'; did you mean card_lost or card lost?"
    )


def test_labels_are_left_alone_as_they_are(load):
    assert load(labels={"style": "as-is"}).labels == ("card_arrival", "lost_card")


def test_a_single_label_is_no_classification(load):
    assert "train has one label, 'lost card'; expected several" in complaint(load, TRAIN[1:])


def test_test_labels_that_train_lacks_are_noted_and_counted(load):
    test = [{"text": f"t{i}", "label": label} for i, label in enumerate("xxyzabc")]
    (note,) = [n for n in load(TRAIN, [*test, TRAIN[0]]).notes if "no train row" in n]
    assert note.startswith("7 test rows have a label that no train row has ('x': 2, ")
    assert note.endswith(" and 1 more)")


def test_free_text_is_taken_exactly_as_it_stands(load):
    changes = {
        "data": {"fields": {"text": "text", "summary": "label"}},
        "template": {"input": "{text}", "output": "Summary: {summary}"},
        "labels": None,
        "metrics": ["rouge"],
    }
    rows = load([{"text": "a", "label": " two\nlines_ "}], **changes)
    assert rows.train[0].answer == " two\nlines_ "
    assert rows.labels == ()
    assert "label is empty" in complaint(load, [{"text": "a", "label": " "}], **changes)


# -- the data folder ----------------------------------------------------------------------------


def test_the_data_folder_of_the_environment_is_used_unless_one_is_given(load, tmp_path: Path, monkeypatch):
    load()
    monkeypatch.setenv("ICL_BENCH_DATA", str(tmp_path))
    assert load_data(task()).origin == f"folder {tmp_path / 'mine'}"
    monkeypatch.setenv("ICL_BENCH_DATA", str(tmp_path / "nowhere"))
    assert load_data(task(), data_dir=tmp_path).origin == f"folder {tmp_path / 'mine'}"
    with pytest.raises(UserError, match="which ICL_BENCH_DATA names, does not exist"):
        load_data(task())


def test_a_data_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path):
    with pytest.raises(UserError, match=r"the data folder .*nowhere does not exist"):
        load_data(load_task("stdlib"), data_dir=tmp_path / "nowhere")


def test_half_a_data_set_and_two_copies_of_a_split_are_refused(load, tmp_path: Path):
    load()
    (tmp_path / "mine" / "test.jsonl").unlink()
    with pytest.raises(UserError, match=r"mine: test\.jsonl \(or \.jsonl\.gz\) is missing"):
        load_data(task(), data_dir=tmp_path)
    (tmp_path / "mine" / "train.jsonl.gz").write_bytes(gzip.compress(jsonl(TRAIN)))
    with pytest.raises(UserError, match=r"has both train\.jsonl and train\.jsonl\.gz"):
        load_data(task(), data_dir=tmp_path)


def test_a_task_without_data_says_where_it_looked(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    with pytest.raises(UserError, match=r"mine: no data: there is no .*mine\. Give the data fold"):
        load_data(task(), data_dir=tmp_path)
    with pytest.raises(UserError, match=r"mine: no data: no data folder is given\. Give the"):
        load_data(task())


def test_train_and_test_of_the_same_rows_are_noted(load):
    assert "train and test are the same rows" in load(TRAIN, TRAIN).notes


# -- the chosen test rows -----------------------------------------------------------------------


def test_test_rows_follow_the_seed_and_fewer_are_the_first_of_more(load):
    order = generator(7, "test").permutation(5)
    three = load(test={"size": 3, "seed": 7})
    assert [row.id for row in three.test] == [f"mine-test-{i}" for i in order[:3]]
    assert len(three.test_pool) == 5
    assert load(test={"size": 3, "seed": 7}, test_size=2).test == three.test[:2]
    assert load(test={"size": 3, "seed": 7}, test_size=5).test[:3] == three.test


def test_a_test_file_smaller_than_the_tasks_size_is_used_whole_and_noted(load):
    rows = load()
    assert len(rows.test) == 5
    wanted = "the test file has 5 usable rows, fewer than the 250 of the task file: all are used"
    assert rows.notes == (wanted,)


def test_more_test_rows_than_there_are_cannot_be_asked_for(load):
    assert "6 test rows are asked for; the test file has 5" in complaint(load, test_size=6)
    assert "a test size of 0: expected 1 or more" in complaint(load, test_size=0)
    said = complaint(load, test={"ids": ["mine-test-1"]}, test_size=2)
    assert "2 test rows are asked for; mine: test.ids lists 1" in said


def test_listed_test_rows_are_asked_in_their_order(load):
    rows = load(test={"ids": ["mine-test-4", "mine-test-0", "mine-test-2"]}, test_size=2)
    assert [row.id for row in rows.test] == ["mine-test-4", "mine-test-0"]


def test_listed_test_rows_that_are_not_there_or_stand_twice_are_refused(load):
    said = complaint(load, test={"ids": ["mine-test-9", "mine-test-1"]})
    assert said == "mine: test.ids: 1 chosen row not in the test file: 'mine-test-9'"
    said = complaint(load, test={"ids": ["mine-test-1", "mine-test-1"]})
    assert said == "mine: test.ids: 'mine-test-1' is chosen twice"


def test_a_listed_test_row_without_text_is_left_out_and_noted(load):
    test = [*TEST, {"text": "", "label": "lost_card"}]
    rows = load(TRAIN, test, test={"ids": ["mine-test-5", "mine-test-1"]})
    assert [row.id for row in rows.test] == ["mine-test-1"]
    assert "chosen test row mine-test-5 has no text and was left out" in rows.notes


def test_the_papers_test_rows_are_used_in_their_order_and_recorded(load, tmp_path: Path):
    path = tmp_path / "mine" / "paper_test_ids.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"row_ids": ["mine-test-3", "mine-test-1"]}))
    rows = load(test={"ids": "paper"})
    assert [row.id for row in rows.test] == ["mine-test-3", "mine-test-1"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert rows.files["paper_test_ids.json"] == digest
    assert rows.notes == ()


def test_without_the_papers_ids_rows_are_drawn_by_seed_and_that_is_noted(load):
    rows = load(test={"ids": "paper", "size": 2, "seed": 43})
    assert rows.test == load(test={"size": 2, "seed": 43}).test
    assert rows.notes == ("this data does not have the paper's test rows: 2 rows are drawn with seed 43",)


@pytest.mark.parametrize("content", ["", "[1]", '{"row_ids": [1]}', '{"row_ids": []}', '{"a": 1}'])
def test_a_broken_list_of_the_papers_rows_is_refused(load, tmp_path: Path, content: str):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "paper_test_ids.json").write_text(content)
    assert "paper_test_ids.json: " in complaint(load, test={"ids": "paper"})


# -- the hub ------------------------------------------------------------------------------------

NAMES = ["card_arrival", "lost_card"]


def hub_set(rows: Rows) -> datasets.Dataset:
    numbers = [{**row, "label": NAMES.index(row["label"])} for row in rows]
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_list(numbers, features=features)


def hub_task(**hub: Any) -> TaskSpec:
    source = {"path": "someone/mine", "revision": "abc", **hub}
    return task(data={"hub": source, "fields": {"text": "text", "label": "label"}})


@pytest.fixture
def hub(monkeypatch):
    """Put data sets, by split, in the place of the hub; remember what was asked of it."""
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    asked: list[tuple[Any, ...]] = []

    def place(**splits: datasets.Dataset) -> list[tuple[Any, ...]]:
        def load_dataset(path: str, name: str | None, *, revision: str, split: str):
            asked.append((path, name, revision, split))
            if split not in splits:
                raise ConnectionError(f"Couldn't reach {path!r}\nand more")
            return splits[split]

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: None)
    return place


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    """An empty cache of the hub's sets, with the hub's own requests forbidden."""
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "hf_hub_download", lambda *_, **__: pytest.fail("asks the hub"))
    return tmp_path / "cache"


def fill_cache(cache: Path) -> None:
    """Put the set someone/mine where a download leaves it."""
    files = {}
    for split, rows in {"train": TRAIN, "test": TEST}.items():
        files[split] = [str(cache.with_name(f"{split}.parquet"))]
        hub_set(rows).to_parquet(files[split][0])
    built = Parquet(cache_dir=str(cache), dataset_name="mine", hash="abc", data_files=files)
    built.download_and_prepare()
    (cache / "someone___mine" / "default").mkdir(parents=True)
    (version,) = (cache / "mine").glob("default-*/0.0.0")
    version.rename(cache / "someone___mine" / "default" / "0.0.0")


def no_network(*_: Any, **__: Any) -> None:
    raise OSError("Name or service not known")


def no_answer(*_: Any, **__: Any) -> None:
    threading.Event().wait(60)


def test_the_hubs_class_numbers_become_names_and_the_revision_is_asked_for(hub):
    asked = hub(train=hub_set(TRAIN), validation=hub_set(TEST))
    rows = load_data(hub_task(name="plus", test="validation"))
    assert asked == [("someone/mine", "plus", "abc", "train"), ("someone/mine", "plus", "abc", "validation")]
    assert rows.train[1] == Example("mine-train-1", {"text": "  two\nlines\u2028here "}, "lost card")
    assert rows.origin == "hub someone/mine@abc"
    assert set(rows.files) == {"someone/mine@abc:train", "someone/mine@abc:test"}
    assert all(len(digest) == 64 for digest in rows.files.values())


def test_a_local_folder_of_parquet_files_serves_as_a_hub_set(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "set"
    place.mkdir()
    for split, rows in {"train": TRAIN, "test": TEST}.items():
        hub_set(rows).to_parquet(place / f"{split}.parquet")
    rows = load_data(hub_task(path=str(place)))
    assert [row.answer for row in rows.train] == ["card arrival", "lost card", "lost card"]
    assert len(rows.test) == 5


def test_the_hubs_columns_may_differ_from_those_of_the_data_folder(hub):
    columns = {"label": "intent"}
    renamed = {"train": hub_set(TRAIN), "test": hub_set(TEST)}
    hub(**{split: rows.rename_columns(columns) for split, rows in renamed.items()})
    rows = load_data(hub_task(fields={"text": "text", "label": "intent"}))
    assert rows.labels == ("card arrival", "lost card")
    with pytest.raises(UserError, match=r"someone/mine@abc: no column 'label'; columns: text, int"):
        load_data(hub_task())


def test_a_class_number_of_none_is_an_empty_label(hub):
    features = hub_set(TRAIN).features
    unlabelled = datasets.Dataset.from_list([{"text": "a", "label": -1}], features=features)
    hub(train=unlabelled, test=hub_set(TEST))
    with pytest.raises(UserError, match="someone/mine@abc train row 0: label is empty"):
        load_data(hub_task())


def test_a_set_without_a_test_split_is_cut_as_its_holdout_says(hub):
    every: Rows = [{"text": f"t{i}", "label": NAMES[i % 2]} for i in range(10)]
    hub(train=hub_set(every))
    rows = load_data(hub_task(holdout={"share": 0.25, "seed": 42}))
    order = np.random.default_rng(42).permutation(10)
    cut = math.ceil(2.5)
    assert [row.fields["text"] for row in rows.test_pool] == [f"t{i}" for i in order[:cut]]
    assert [row.fields["text"] for row in rows.train] == [f"t{i}" for i in order[cut:]]
    assert rows.test_pool[0].id == "mine-test-0"
    expected = hub_set(every).train_test_split(test_size=0.25, seed=42)
    assert [row.fields["text"] for row in rows.train] == list(expected["train"]["text"])


def test_further_arguments_go_to_the_library(hub, monkeypatch):
    asked = hub(train=hub_set(TRAIN), test=hub_set(TEST))
    load, further = datasets.load_dataset, []

    def load_dataset(*names: Any, data_dir: str, **options: Any) -> Any:
        further.append(data_dir)
        return load(*names, **options)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    load_data(hub_task(arguments={"data_dir": "part"}))
    assert further == ["part"] * 2
    assert [split for *_, split in asked] == ["train", "test"]


def test_what_the_data_folder_lacks_comes_from_the_hub_and_that_is_noted(hub, tmp_path: Path):
    hub(train=hub_set(TRAIN), test=hub_set(TEST))
    rows = load_data(hub_task(), data_dir=tmp_path)
    assert rows.notes[0] == f"there is no {tmp_path / 'mine'}: the hub's copy is used"


def test_where_neither_folder_nor_hub_has_the_task_everything_tried_is_named(hub, tmp_path: Path):
    hub()
    with pytest.raises(UserError) as error:
        load_data(hub_task(), data_dir=tmp_path)
    first, second = str(error.value).split("\n")
    assert f"there is no {tmp_path / 'mine'}" in first
    assert "someone/mine@abc on the hub gave ConnectionError: Couldn't reach 'some" in first
    assert all(way in second for way in ("--data-dir", "ICL_BENCH_DATA", "network"))


@pytest.mark.parametrize(
    ("answer", "reason"), [(no_network, "OSError: Name or service not known"), (no_answer, "no answer in 0.2 s")]
)
def test_without_a_network_the_error_comes_at_once(cache, monkeypatch, answer, reason):
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(hub_files, "HUB_SECONDS", 0.2)
    monkeypatch.setattr(HfApi, "dataset_info", answer)
    with pytest.raises(UserError) as error:
        load_data(hub_task())
    expected = f"gave ConnectionError: Couldn't reach 'someone/mine' on the Hub ({reason})."
    assert expected in str(error.value)
    assert not datasets.config.HF_HUB_OFFLINE


def test_without_a_network_the_hubs_set_is_read_from_the_cache(cache, monkeypatch):
    fill_cache(cache)
    monkeypatch.setattr(HfApi, "dataset_info", no_network)
    rows = load_data(hub_task())
    assert [row.answer for row in rows.train] == ["card arrival", "lost card", "lost card"]
    assert len(rows.test) == 5
    assert not datasets.config.HF_HUB_OFFLINE


def test_in_offline_mode_the_cache_is_read_and_nobody_is_asked(cache, monkeypatch):
    fill_cache(cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    info = mock.Mock()
    monkeypatch.setattr(HfApi, "dataset_info", info)
    assert len(load_data(hub_task()).train) == 3
    with pytest.raises(UserError, match="Couldn't reach 'someone/other' on the Hub"):
        load_data(hub_task(path="someone/other"))
    info.assert_not_called()


def test_a_refusal_of_the_hub_is_an_answer(hub, monkeypatch):
    hub()
    refusal = HfHubHTTPError("401 Unauthorized", response=mock.Mock())
    monkeypatch.setattr(HfApi, "dataset_info", mock.Mock(side_effect=refusal))
    with pytest.raises(UserError, match=r"gave ConnectionError: Couldn't reach 'someone/mine'\."):
        load_data(hub_task())  # what load_dataset says stands as it is


def test_rows_of_the_hub_are_named_like_those_of_the_data_folder(hub):
    hub(train=hub_set(TRAIN), test=hub_set(TEST))
    spec = hub_task()
    shared = spec.model_copy(update={"data": spec.data.model_copy(update={"folder": "other"})})
    assert load_data(shared).train[0].id == "other-train-0"


# -- a look at the data -------------------------------------------------------------------------


def test_a_check_counts_labels_duplicates_leaks_and_unseen_labels(load):
    train = [*TRAIN, TRAIN[2], {"text": "gone", "label": "card_arrival"}]
    test: Rows = [
        {"text": "gone", "label": "lost_card"},
        {"text": "new", "label": "other"},
        {"text": "Gone", "label": "lost_card"},
    ]
    report = report_on(load(train, test, test={"ids": ["mine-test-1", "mine-test-2"]}))
    assert (report.train_rows, report.test_rows, report.chosen_rows) == (5, 3, 2)
    counts = [(count.label, count.train, count.test) for count in report.labels]
    assert counts == [("card arrival", 2, 0), ("lost card", 3, 2), ("other", 0, 1)]
    assert (report.fewest, report.median, report.most) == (2, 2.5, 3)
    assert report.unseen_labels == {"other": 1}
    assert report.duplicates == 2
    assert report.leaks == ("mine-test-0",)
    assert report.chosen_leaks == ()
    assert report.near_duplicates == ("mine-test-0", "mine-test-2")
    assert report.chosen_near_duplicates == ("mine-test-2",)


def test_ten_questions_of_trec_leak_into_train(data_dir: Path):
    report = report_on(load_data(load_task("trec"), data_dir=data_dir))
    assert (report.train_rows, report.test_rows, report.chosen_rows) == (5452, 500, 250)
    assert len(report.leaks) == 10
    assert set(report.chosen_leaks) < set(report.leaks)
    assert len(report.near_duplicates) == 13
    assert len(report.chosen_near_duplicates) == 8
    assert len(report.labels) == 6


def test_trec_fine_reads_the_rows_of_trec_and_the_ids_of_its_own(data_dir: Path):
    rows = load_data(load_task("trec_fine"), data_dir=data_dir)
    published = json.loads((data_dir / "trec_fine" / "paper_test_ids.json").read_bytes())
    assert [row.id for row in rows.test] == published["row_ids"]
    assert rows.train[0].id == "trec-train-0"
    assert len(rows.labels) == 50


@pytest.mark.parametrize(
    ("name", "labels", "left_out"),
    [
        ("banking77", 77, {"train": 0, "test": 0}),
        ("clinic150", 151, {"train": 0, "test": 0}),
        ("nlu", 68, {"train": 32, "test": 10}),
        ("samsum", 0, {"train": 1, "test": 0}),
    ],
)
def test_a_data_set_of_the_paper_has_its_labels_and_its_250_test_rows(
    name: str, labels: int, left_out: dict[str, int], data_dir: Path
):
    rows = load_data(load_task(name), data_dir=data_dir)
    assert len(rows.labels) == labels
    assert rows.left_out == left_out
    assert len({row.id for row in rows.test}) == 250


AS_ON_THE_HUB: dict[str, tuple[dict[str, Any], str, tuple[str, ...] | None]] = {
    "nq_open": ({"question": "who wrote it", "answer": ["Ann", "Ann Bee"]}, "Ann", ("Ann", "Ann Bee")),
    "webquestions": ({"url": "http://x", "question": "who", "answers": ["Ann", "Bee"]}, "Ann", ("Ann", "Bee")),
    "squad2": (
        {
            "id": "5",
            "title": "T",
            "context": "Ann did.",
            "question": "who",
            "answers": {"text": ["Ann"], "answer_start": [0]},
        },
        "Ann",
        None,
    ),
    "gsm8k": ({"question": "2 + 3?", "answer": "It is <<2+3=5>>5.\n#### 5"}, "It is <<2+3=5>>5.\n#### 5", ("5",)),
    "commonsenseqa": (
        {
            "id": "7",
            "question": "what",
            "question_concept": "c",
            "answerKey": "B",
            "choices": {"label": list("ABCDE"), "text": list("vwxyz")},
        },
        "B",
        None,
    ),
    "commonsenseqa_free": (
        {
            "id": "7",
            "question": "what",
            "question_concept": "c",
            "answerKey": "B",
            "choices": {"label": list("ABCDE"), "text": list("vwxyz")},
        },
        "w",
        None,
    ),
}
"""A row of each set as the hub has it, its answer and what is compared."""


@pytest.mark.parametrize("name", AS_ON_THE_HUB)
def test_shipped_tasks_read_rows_as_the_hub_has_them_at_a_pinned_revision(hub, name):
    row, answer, golds = AS_ON_THE_HUB[name]
    rows = [{**row, **({"id": str(i)} if "id" in row else {})} for i in range(3)]
    table = datasets.Dataset.from_list(rows)
    asked = hub(train=table, validation=table, test=table)
    data = load_data(load_task(name))
    assert [(one.answer, one.golds) for one in data.train] == [(answer, golds)] * 3
    revision = asked[0][2]
    assert len(revision) == 40
    assert set(revision) <= set("0123456789abcdef")
