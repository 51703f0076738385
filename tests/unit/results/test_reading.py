"""What is read of a results folder, and in what order, where files overlap, differ or are damaged."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.predictions import cell, frame

from icl_bench.errors import UserError
from icl_bench.results.cells import CellSpec, Identity, Prediction
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import (
    DamagedError,
    ExportError,
    failed_cells,
    find_imported,
    finished_cells,
    imported_hashes,
    no_results,
    read_results,
    read_some,
    read_stored,
    read_whole,
    result_files,
)
from icl_bench.results.storage import storage_at
from icl_bench.results.store import Store

SPEC = CellSpec(
    task="cards", model="small", select="random", order="drawn", attention="full", k=2, draw=0
)
FACTS = {"backend": "fake", "seed": 0}
TASK = {"task": {"metrics": ["rouge", "accuracy"]}}


def identity(**axes: Any) -> Identity:
    return Identity(SPEC.model_copy(update=axes), FACTS)


def finish(results: Path, ids: str = "ab", scores: Any = None, **axes: Any) -> str:
    """A finished cell with predictions of these test rows; returns the name of its file."""
    with Store(results).claim(identity(**axes), len(ids)) as opened:
        assert opened is not None
        rows = [Prediction(i, "x", "x", i == "a", True, 20, 15, 2, f"h-{i}") for i in ids]
        opened.append(rows, 1.5)
        return opened.finish(tuple(ids), TASK, scores)


def fail(results: Path, **axes: Any) -> None:
    with Store(results).claim(identity(**axes), 2) as opened:
        assert opened is not None
        opened.fail("no memory")


def bring(results: Path, *cells: pd.DataFrame, name: str = "some") -> Path:
    """An import of made-up cells; returns its file."""
    source = results.parent / f"{name}.csv"
    frame(*cells).drop(columns=["variant", "valid"]).to_csv(source, index=False)
    import_predictions(source, results)
    (found,) = (results / "imported").glob(f"{name}-*.parquet")
    return found


def said_of(results: Path) -> list[str]:
    said: list[str] = []
    list(result_files(results, said.append))
    return said


# -- files --------------------------------------------------------------------------------------


def test_files_are_read_by_folder_and_name_and_imports_last(tmp_path: Path):
    results = tmp_path / "results"
    bring(results, cell("ab", "ab", task="aaa"))
    names = [finish(results, task=task, k=k) for task in ("zoo", "cards") for k in (5, 2)]
    found = [file.name for file in result_files(results, lambda _: None)]
    assert found[:-1] == sorted(names)
    assert found[-1].startswith("imported/")
    assert [name for name, _ in finished_cells(results)] == sorted(names)


def test_a_folder_of_folders_is_read_with_all_imports_last_too(tmp_path: Path):
    results = tmp_path / "results"
    one = bring(results, cell("ab", "ab", task="aaa"))
    name = finish(results, task="zoo")
    found = [file.name for file in result_files(tmp_path, lambda _: None)]
    assert found == [f"results/{name}", f"results/imported/{one.name}"]
    assert list(imported_hashes(tmp_path).values()) == [{one.stem.removeprefix("some-")}]


def test_a_cell_of_one_prediction_is_whole(tmp_path: Path):
    name = finish(tmp_path, "a")
    file = read_whole(storage_at(tmp_path), name, 1)
    assert (file.meta["cell"], file.meta["variant"]) == (identity().cell, identity().variant)


def test_what_is_damaged_is_said_to_who_asks_for_finished_cells(tmp_path: Path):
    path = tmp_path / finish(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    said: list[str] = []
    assert list(finished_cells(tmp_path, said.append)) == []
    assert [text.split(": ")[0] for text in said] == [str(path)]
    with pytest.warns(UserWarning, match=path.name):
        assert list(finished_cells(tmp_path)) == []


def test_a_mark_that_cannot_be_read_is_named(tmp_path: Path):
    fail(tmp_path)
    (mark,) = tmp_path.glob("**/*.failed.json")
    mark.write_text("{")
    with pytest.warns(UserWarning, match=f"{mark.name}: cannot be read"):
        assert failed_cells(tmp_path) == []


def test_what_lies_beside_the_cells_is_no_result(tmp_path: Path):
    results = tmp_path / "results"
    finish(results)
    export_results(results, results / "base.parquet")
    (results / "_perplexity").mkdir()
    pq.write_table(pa.table({"x": [1]}), results / "_perplexity" / "losses.parquet")
    (results / "notes.txt").write_text("mine")
    assert said_of(results) == []
    assert len(list(result_files(results, lambda _: None))) == 1
    with pytest.raises(ExportError, match="is an export, not a result"):
        read_whole(storage_at(results), "base.parquet")


def test_a_copy_is_left_out_and_both_files_are_named(tmp_path: Path):
    results = tmp_path / "results"
    first = results / finish(results)
    copy = first.with_name("zz.parquet")
    copy.write_bytes(first.read_bytes())
    assert said_of(results) == [f"{copy}: holds the same cell as {first}; left out"]


def test_of_an_import_only_the_cells_that_are_copies_are_left_out(tmp_path: Path):
    """The second file has a cell of the first and one of its own, with their predictions."""
    results = tmp_path / "results"
    shared, own = cell("ab", "ab", k=5), cell("ba", "ab", k=9)
    one = bring(results, shared, cell("aa", "ab", k=1), name="one")
    table = pq.read_table(one)
    of_k5 = table.filter(pa.compute.equal(table["k"], 5))
    two = bring(results, own, name="two")
    # as it would be with the first file's cell in it
    both = pa.concat_tables(
        [of_k5, pq.read_table(two).select(of_k5.schema.names).cast(of_k5.schema)]
    )
    meta = pq.read_schema(two).metadata
    meta = {
        **meta,
        b"icl_bench_import": meta[b"icl_bench_import"].replace(b'"rows": 2', b'"rows": 4'),
    }
    pq.write_table(both.unify_dictionaries().replace_schema_metadata(meta), two)
    assert said_of(results) == [f"{two}: 1 of its 2 cells are in other files too ({one}); left out"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read_results(results)
    assert found.groupby("k").size().to_dict() == {1: 2, 5: 2, 9: 2}
    assert found.loc[found["k"] == 9, "prediction"].tolist() == ["b", "a"]


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path):
    results = tmp_path / "results"
    name = finish(results)
    storage = storage_at(results)
    assert len(read_whole(storage, name, 2).table) == 2
    with pytest.raises(DamagedError, match=r"^has 2 predictions instead of 3$"):
        read_whole(storage, name, 3)
    table = pq.read_table(results / name)
    pq.write_table(table.replace_schema_metadata(None), results / "plain.parquet")
    with pytest.raises(DamagedError, match=r"^is not a results file of this program$"):
        read_whole(storage, "plain.parquet")
    with pytest.raises(DamagedError, match=r"^cannot be read "):
        read_whole(storage, "nothing.parquet")
    place = table.schema.get_field_index("cell")
    unknown = pa.array([None, None], table.schema.field("cell").type)
    pq.write_table(table.set_column(place, "cell", unknown), results / "unknown.parquet")
    with pytest.raises(DamagedError, match=r"^cannot be read \(rows that are of no cell\)$"):
        read_whole(storage, "unknown.parquet")
    (results / "torn.parquet").write_bytes((results / name).read_bytes()[:-20])
    said = said_of(results)
    assert [text.split(": ", 1)[0] for text in said] == [
        str(results / f"{kind}.parquet") for kind in ("plain", "torn", "unknown")
    ]
    assert all("; left out" in text for text in said)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(
        UserError, match=f"results folder {tmp_path / 'no'}: not there; run somethi"
    ):
        list(result_files(tmp_path / "no", lambda _: None))
    with pytest.raises(UserError, match=f"results folder {tmp_path}: no results yet; run somethin"):
        read_stored(tmp_path)


# -- imports ------------------------------------------------------------------------------------


def test_an_import_is_found_by_a_cells_axes_and_the_beginning_of_its_hash(tmp_path: Path):
    results = tmp_path / "results"
    finish(results, task="t")
    bring(results, cell("ab", "ab", k=5), cell("ab", "ab", k=9), name="one")
    bring(results, cell("ab", "ab", k=7), name="two")
    found = find_imported(results, {"k": 9, "task": "t"})
    assert found is not None
    assert found.startswith("imported/one-")
    file = read_whole(storage_at(results), found)
    hashes = {known["k"]: known["cell"] for known in file.cells()}
    assert find_imported(results, {"k": 9}, hashes[9][:4]) == found
    assert find_imported(results, {"k": 9}, hashes[5]) is None
    assert find_imported(results, {"k": 2}) is None
    assert file.imported is not None
    assert file.imported["source"] == "one.csv"


def test_imports_of_a_variant_are_known_by_the_hash_in_their_name(tmp_path: Path):
    results = tmp_path / "results"
    finish(results)
    one = bring(results, cell("ab", "ab"), name="one")
    (variant,) = pq.read_table(one)["variant"].unique().to_pylist()
    assert imported_hashes(results)[variant] == {one.stem.removeprefix("one-")}
    for torn in ("a", "z"):
        (results / "imported" / f"{torn}-0.parquet").write_bytes(b"PAR1")
    assert set(imported_hashes(results)) == {variant}
    assert imported_hashes(tmp_path / "results" / "cards") == {}


def test_a_variant_of_an_import_is_the_file_that_it_is_from(tmp_path: Path):
    results = tmp_path / "results"
    finish(results)
    one = bring(results, cell("ab", "ab"), name="one")
    (variant,) = pq.read_table(one)["variant"].unique().to_pylist()
    assert read_stored(results).variants == {
        identity().variant: FACTS, variant: {"imported": "one.csv"},
    }  # fmt: skip


# -- columns ------------------------------------------------------------------------------------


def own_columns(results: Path, *values: Sequence[Any]) -> pd.Series:
    """A column of the user's own in several files, as the whole folder has it."""
    for k, of_file in enumerate(values):
        path = results / finish(results, k=k)
        table = pq.read_table(path)
        pq.write_table(table.append_column("own", pa.array(list(of_file))), path)
    return read_results(results)["own"]


def test_whole_numbers_and_fractions_are_fractions(tmp_path: Path):
    found = own_columns(tmp_path, [1, 2], [0.5, 0.25])
    assert found.tolist() == [1.0, 2.0, 0.5, 0.25]
    assert found.dtype == float


def test_numbers_and_text_are_text_and_lists_too(tmp_path: Path):
    assert own_columns(tmp_path / "a", [1, 2], ["x", None]).tolist()[:3] == ["1", "2", "x"]
    lists = own_columns(tmp_path / "b", [[1], None], ["x", "y"])
    assert lists.isna().tolist() == [False, True, False, False]
    assert lists.dropna().tolist() == ["[1]", "x", "y"]


def test_a_column_that_a_file_lacks_is_empty_there(tmp_path: Path):
    finish(tmp_path, k=9)
    found = own_columns(tmp_path, [1, 2])
    assert found[:2].tolist() == [1, 2]
    assert found[2:].isna().all()


def test_a_column_that_no_file_has_is_of_its_type_all_the_same(tmp_path: Path):
    path = tmp_path / finish(tmp_path)
    pq.write_table(pq.read_table(path).drop_columns(["margin", "queries"]), path)
    types = read_results(tmp_path).dtypes.astype(str)
    assert (types["margin"], types["queries"]) == ("float64", "category")


def test_nothing_has_the_columns_of_a_result(tmp_path: Path):
    finish(tmp_path)
    assert no_results().empty
    assert list(no_results().columns) == list(read_results(tmp_path).columns)


# -- a folder -----------------------------------------------------------------------------------


def test_a_folder_is_read_with_what_its_files_say_and_what_failed(tmp_path: Path):
    finish(tmp_path)
    fail(tmp_path, k=9)
    stored = read_stored(tmp_path)
    assert set(stored.cells) == {identity().cell}
    assert stored.cells[identity().cell]["seconds"] == 1.5
    assert [(mark["spec"]["k"], mark["reason"]) for mark in stored.failed] == [(9, "no memory")]
    assert stored.first_scores == {"cards": "rouge1"}
    assert len(stored.predictions) == 2


def test_a_mark_counts_until_its_cell_is_finished_and_marks_are_in_order(tmp_path: Path):
    for k in (9, 5, 7):
        fail(tmp_path, k=k)
    assert [mark["spec"]["k"] for mark in failed_cells(tmp_path)] == [5, 7, 9]
    (mark,) = tmp_path.glob(f"**/*{identity(k=7).cell}.failed.json")
    kept = mark.read_bytes()
    finish(tmp_path, k=7)
    mark.write_bytes(kept)
    assert [found["spec"]["k"] for found in failed_cells(tmp_path)] == [5, 9]


def test_a_part_of_a_folder_has_the_values_that_are_asked_for_alone(tmp_path: Path):
    for task in ("cards", "zoo"):
        for model in ("small", "large"):
            finish(tmp_path, task=task, model=model)
    fail(tmp_path, task="zoo", k=9)
    fail(tmp_path, task="cards", model="large", k=9)
    some = read_some(tmp_path, {"task": "zoo", "model": "small"})
    assert some.predictions[["task", "model"]].drop_duplicates().to_numpy().tolist() == [
        ["zoo", "small"]
    ]
    assert some.predictions["task"].cat.categories.tolist() == ["zoo"]
    assert [mark["spec"]["task"] for mark in some.failed] == ["zoo"]
    assert len(read_some(tmp_path).failed) == 2
    assert len(read_some(tmp_path).predictions) == 8


def test_a_value_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    for task in ("zoo", "cards"):
        finish(tmp_path, task=task)
    said = rf"^results folder {tmp_path}: nothing of task 'xyz' \(has: cards, zoo\)$"
    with pytest.raises(UserError, match=said):
        read_some(tmp_path, {"task": "xyz"})


def test_where_all_that_is_asked_for_failed_there_are_its_marks_and_no_row(tmp_path: Path):
    finish(tmp_path)
    fail(tmp_path, task="zoo")
    some = read_some(tmp_path, {"task": "zoo"})
    assert some.predictions.empty
    assert [mark["spec"]["task"] for mark in some.failed] == ["zoo"]
    only = tmp_path / "only"
    fail(only)
    assert list(read_stored(only).predictions.columns) == list(no_results().columns)
