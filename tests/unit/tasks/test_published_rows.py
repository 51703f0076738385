"""The paper's test rows, found by their texts in copies of the data that have other ids and orders."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
from huggingface_hub import HfApi
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.errors import UserError
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.published_rows import PublishedRow, digest_of, find, published_rows
from icl_bench.tasks.task_files import load_task

FIVE = ["trec", "trec_fine", "nlu", "banking77", "clinic150"]
COUNTS = {"trec": 500, "trec_fine": 500, "nlu": 6429, "banking77": 3080, "clinic150": 5500}
TEXTS = st.lists(st.text(st.sampled_from("ab \n"), max_size=3), min_size=1, max_size=12)


def split_of(texts: list[str]) -> dict[str, str]:
    return {f"row {place}": text for place, text in enumerate(texts)}


@pytest.mark.parametrize("name", FIVE)
@pytest.mark.parametrize("which", ["paper", "paper-mistral"])
def test_each_list_has_250_places_of_the_test_split(name: str, which):
    rows = published_rows(name, which)
    assert len({row.place for row in rows}) == len(rows) == 250
    assert max(row.place for row in rows) < COUNTS[name]
    assert {len(row.digest) for row in rows} == {10}


def test_mistral_was_asked_other_rows_of_three_tasks():
    others = [name for name in FIVE if published_rows(name) != published_rows(name, "paper-mistral")]
    assert others == ["nlu", "banking77", "clinic150"]
    assert published_rows("samsum") == ()


@pytest.mark.parametrize("name", FIVE)
def test_the_lists_are_those_of_the_data_folder(name: str, data_dir: Path):
    stored = json.loads((data_dir / name / "paper_test_ids.json").read_bytes())
    assert [row.place for row in published_rows(name)] == stored["ids"]
    mistral = stored.get("ids_mistral", stored["ids"])
    assert [row.place for row in published_rows(name, "paper-mistral")] == mistral


@given(TEXTS, st.randoms(use_true_random=False))
def test_rows_are_found_by_their_texts_in_any_order(texts: list[str], chance):
    wanted = [PublishedRow(place, digest_of(text)) for place, text in enumerate(texts)]
    order = list(range(len(texts)))
    chance.shuffle(order)
    chance.shuffle(wanted)
    split = split_of([texts[place] for place in order])
    found = find(wanted, split)
    assert found.missing == found.by_place == 0
    assert len(set(found.ids)) == len(wanted)
    assert [digest_of(split[name]) for name in found.ids] == [row.digest for row in wanted]


@given(TEXTS)
def test_of_equal_texts_the_one_at_the_published_place_is_taken(texts: list[str]):
    wanted = [PublishedRow(place, digest_of(text)) for place, text in reversed([*enumerate(texts)])]
    assert find(wanted, split_of(texts)).ids == tuple(f"row {row.place}" for row in wanted)


def test_a_row_whose_text_differs_is_taken_by_its_place_where_the_order_is_the_published_one():
    texts = [f"text {number}" for number in range(20)]
    wanted = [PublishedRow(place, digest_of(text)) for place, text in enumerate(texts)]
    corrected = ["text zero", *texts[1:]]
    found = find(wanted, split_of(corrected))
    assert (found.ids[0], found.by_place, found.missing) == ("row 0", 1, 0)
    reordered = find(wanted, split_of([*corrected[1:], corrected[0]]))
    assert (reordered.by_place, reordered.missing, len(reordered.ids)) == (0, 1, 19)
    assert find(wanted, {}).missing == 20


@pytest.fixture
def hub(data_dir: Path, monkeypatch):
    """A function that puts a task's rows in the place of the hub, in the hub's form: class numbers, no ids."""
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    monkeypatch.setattr(HfApi, "dataset_info", lambda *_, **__: None)

    def place(name: str, label_key: str, order: np.random.Generator | None = None) -> list[str]:
        spec = load_task(name)
        assert spec.data.hub is not None
        columns = spec.data.columns(spec.data.hub.fields or spec.data.fields)
        folder = data_dir / (spec.data.folder or name)
        stored = {
            split: [json.loads(line) for line in (folder / f"{split}.jsonl").read_text("utf-8").splitlines()]
            for split in ("train", "test")
        }
        texts = [row["text"] for row in stored["test"]]
        if spec.data.hub.holdout:
            rows = sorted([*stored["train"], *stored["test"]], key=lambda row: row["source_index"])
            stored = {"train": rows}
        elif order is not None:
            stored["test"] = [stored["test"][i] for i in order.permutation(len(texts))]
        names = sorted({row[label_key] for row in stored["train"]})
        label = columns["label"]
        features = datasets.Features({"text": datasets.Value("string"), label: datasets.ClassLabel(names=names)})
        tables = {
            split: datasets.Dataset.from_dict(
                {"text": [r["text"] for r in rows], label: [names.index(r[label_key]) for r in rows]}, features
            )
            for split, rows in stored.items()
        }
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, split, **__: tables[split])
        return texts

    return place


KEYS = {
    "trec": "label_key",
    "trec_fine": "fine_label_key",
    "nlu": "label_key",
    "banking77": "label_key",
    "clinic150": "label_key",
}


@pytest.mark.parametrize(
    ("name", "key", "reordered"),
    [
        # rows in their known order are an easier case, tried with one task
        pytest.param(*item, reordered, marks=[] if reordered or item[0] == "trec" else pytest.mark.thorough)
        for item in KEYS.items()
        for reordered in (False, True)
    ],
)
def test_the_hubs_rows_are_asked_in_the_order_of_the_study(
    name: str, key: str, hub, data_dir: Path, *, reordered: bool
):
    spec = load_task(name)
    texts = hub(name, key, np.random.default_rng(1) if reordered else None)
    data = load_data(spec)
    assert data.origin.startswith("hub ")
    local = load_data(spec, data_dir=data_dir)
    assert [row.fields["text"] for row in data.test] == [row.fields["text"] for row in local.test]
    assert [row.answer for row in data.test] == [row.answer for row in local.test]
    assert [row.fields["text"] for row in data.test] == [texts[row.place] for row in published_rows(name)]
    assert not any("does not have the paper's" in note for note in data.notes)
    assert "bertsch2025_test_rows.json" in data.files


def test_mistrals_rows_are_asked_where_they_are_wanted(data_dir: Path):
    data = load_data(load_task("banking77"), data_dir=data_dir, test_ids="paper-mistral", test_size=3)
    assert [row.id for row in data.test] == [f"banking77-test-{n}" for n in (905, 1982, 2766)]


@pytest.fixture
def other_trec(tmp_path: Path) -> Path:
    """A data folder whose rows of TREC are not the published ones."""
    folder = tmp_path / "trec"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"text": f"{split} {n}", "label": label} for n, label in enumerate(["human", "numeric"] * 2)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_rows_of_another_set_of_the_tasks_name_are_drawn_by_seed(other_trec: Path):
    data = load_data(load_task("trec"), data_dir=other_trec)
    assert "this data does not have the paper's test rows: 4 rows are drawn with seed 43" in data.notes


def test_published_rows_of_a_task_that_has_none_are_refused():
    with pytest.raises(UserError, match="--test-ids paper: task stdlib_six has no published test rows"):
        load_data(load_task("stdlib_six"), test_ids="paper")


def test_published_rows_that_are_asked_for_by_name_are_not_replaced_by_others(other_trec: Path):
    with pytest.raises(
        UserError, match="--test-ids paper: this data does not have all of the paper's test rows of trec"
    ):
        load_data(load_task("trec"), data_dir=other_trec, test_ids="paper")
