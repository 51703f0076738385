"""What is read of a results folder, and in what order, where files overlap, differ or are damaged."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.in_memory import MemoryStorage
from support.predictions import cell, frame

from icl_bench.analysis.baseline_check import read_folder
from icl_bench.errors import UserError
from icl_bench.report.leaderboard import leaderboard
from icl_bench.results.cells import ALWAYS, AXES, JOURNAL, CellSpec, Identity, Prediction, prediction_schema
from icl_bench.results.exporting import export_results
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions
from icl_bench.results.model_names import names_apart
from icl_bench.results.partial import partial_cells
from icl_bench.results.races import race_file, write_race
from icl_bench.results.reading import (
    DamagedError,
    ExportError,
    failed_cells,
    find_imported,
    finished_cells,
    imported_hashes,
    no_results,
    nothing_in,
    read_results,
    read_row,
    read_rows,
    read_some,
    read_stored,
    read_whole,
    result_files,
)
from icl_bench.results.storage import storage_at
from icl_bench.results.store import Store
from icl_bench.results.stored_meta import CellMeta, RacedSetting, RaceMeta, RaceRound, RaceStanding, TaskMeta

SPEC = CellSpec(task="cards", model="small", select="random", order="drawn", attention="full", k=2, draw=0)
FACTS = Facts(backend="fake", seed=0)
TASK = TaskMeta(metrics=["rouge", "accuracy"])


def identity(*, facts: Facts = FACTS, **axes: Any) -> Identity:
    return Identity(SPEC.model_copy(update=axes), facts)


def finish(results: Path, ids: str = "ab", scores: Any = None, served: str | None = None, **axes: Any) -> str:
    """A finished cell with predictions of these test rows; returns the name of its file."""
    with Store(results).claim(identity(**axes), len(ids)) as opened:
        assert opened is not None
        rows = [Prediction(i, "x", "x", i == "a", True, 20, 15, 2, f"h-{i}") for i in ids]
        opened.append(rows, 1.5)
        by = None if served is None else {"model": served}
        return opened.finish(tuple(ids), CellMeta.of(opened.identity, task=TASK, served=by), scores)


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
    assert (file.meta.cell, file.meta.variant) == (identity().cell, identity().variant)
    assert file.cells() == [{**SPEC.model_dump(), "cell": identity().cell, "variant": identity().variant}]


def test_the_predictions_of_a_file_are_read_all_or_one(tmp_path: Path):
    name = finish(tmp_path)
    rows = read_rows(tmp_path, name)
    assert rows["test_id"].to_pylist() == ["a", "b"]
    assert "margin" not in rows.column_names
    (row,) = read_row(tmp_path, name, identity().cell, "b").to_pylist()
    assert (row["test_id"], row["prompt_hash"], row["margin"]) == ("b", "h-b", None)
    assert list(row) == prediction_schema().names
    for cell_, test_id in ((identity().cell, "c"), ("0", "b")):
        assert len(read_row(tmp_path, name, cell_, test_id)) == 0


def test_results_are_those_of_the_present_folder_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    finish(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    pd.testing.assert_frame_equal(read_results(), read_results(tmp_path / "results"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"^results folder empty: no results yet; run something"):
        read_results("empty")


def test_what_is_damaged_is_said_to_who_asks_for_finished_cells(tmp_path: Path):
    path = tmp_path / finish(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    said: list[str] = []
    assert list(finished_cells(tmp_path, said.append)) == []
    assert [text.split(": ")[0] for text in said] == [str(path)]
    with pytest.warns(UserWarning, match=path.name):
        assert list(finished_cells(tmp_path)) == []
    finish(tmp_path, k=9)
    with pytest.warns(UserWarning, match=path.name):
        assert len(read_stored(tmp_path).cells) == 1


def test_far_away_files_are_fetched_side_by_side_and_come_in_the_same_order(tmp_path: Path):
    names = [finish(tmp_path, k=k) for k in range(1, 13)]
    bad = finish(tmp_path, k=13)
    (tmp_path / bad).write_bytes(b"PAR1")
    lock, reading = threading.Lock(), [0]
    most = [0]

    class Far(MemoryStorage):
        readers = 2

        def read(self, name: str) -> bytes:
            with lock:
                reading[0] += 1
                most[0] = max(most[0], reading[0])
            time.sleep(0.01)
            with lock:
                reading[0] -= 1
            return super().read(name)

    far = Far({name: (tmp_path / name).read_bytes() for name in [bad, *names]})
    said: list[str] = []
    columns = [*AXES, "test_id", "cell", "variant"]
    found = list(result_files(far, said.append, columns))
    assert [file.name for file in found] == names
    assert [file.table["k"][0].as_py() for file in found] == [*range(1, 13)]
    assert {tuple(sorted(file.table.column_names)) for file in found} == {tuple(sorted(columns))}
    assert [text.split(": ")[0] for text in said] == [f"memory:{bad}"]
    assert most == [2]


def test_the_columns_that_are_asked_for_are_read_and_no_others(tmp_path: Path):
    storage, name = storage_at(tmp_path), finish(tmp_path)
    columns = ["gold", *AXES, "test_id", "cell", "variant"]
    table = read_whole(storage, name, columns=columns).table
    assert sorted(table.column_names) == sorted(columns)
    assert table["gold"].to_pylist() == ["x", "x"]


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
    both = pa.concat_tables([of_k5, pq.read_table(two).select(of_k5.schema.names).cast(of_k5.schema)])
    meta = pq.read_schema(two).metadata
    meta = {**meta, b"icl_bench_import": meta[b"icl_bench_import"].replace(b'"rows": 2', b'"rows": 4')}
    pq.write_table(both.unify_dictionaries().replace_schema_metadata(meta), two)
    assert said_of(results) == [f"{two}: 1 of its 2 cells are also in other files ({one}); left out"]
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
    with pytest.raises(DamagedError, match=r"^cannot be read \(rows without a cell\)$"):
        read_whole(storage, "unknown.parquet")
    (results / "torn.parquet").write_bytes((results / name).read_bytes()[:-20])
    said = said_of(results)
    assert [text.split(": ", 1)[0] for text in said] == [
        str(results / f"{kind}.parquet") for kind in ("plain", "torn", "unknown")
    ]
    assert all("; left out" in text for text in said)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=f"results folder {tmp_path / 'no'}: does not exist; run somethi"):
        list(result_files(tmp_path / "no", lambda _: None))
    with pytest.raises(UserError, match=f"results folder {tmp_path}: no results yet; run somethin"):
        read_stored(tmp_path)


# -- imports ------------------------------------------------------------------------------------


def test_an_import_is_found_by_a_cells_axes_and_the_beginning_of_its_hash(tmp_path: Path):
    results = tmp_path / "results"
    finish(results, task="t")
    bring(results, cell("ab", "ab", k=5), cell("ab", "ab", k=9), name="one")
    bring(results, cell("ab", "ab", k=7), name="two")
    (results / "torn.parquet").write_bytes(b"PAR1")
    found = find_imported(results, {"k": 9, "task": "t"})
    assert found is not None
    assert found.startswith("imported/one-")
    file = read_whole(storage_at(results), found)
    hashes = {known["k"]: known["cell"] for known in file.cells()}
    assert find_imported(results, {"k": 9}, hashes[9][:4]) == found
    assert find_imported(results, {"k": 9}, hashes[5]) is None
    assert find_imported(results, {"k": 2}) is None
    assert file.imported is not None
    assert file.imported.source == "one.csv"


def test_imports_of_a_variant_are_known_by_the_hash_in_their_name(tmp_path: Path):
    results = tmp_path / "results"
    finish(results)
    one = bring(results, cell("ab", "ab"), name="my-own")
    (variant,) = pq.read_table(one)["variant"].unique().to_pylist()
    assert imported_hashes(results)[variant] == {one.stem.removeprefix("my-own-")}
    for torn in ("a", "z"):
        (results / "imported" / f"{torn}-0.parquet").write_bytes(b"PAR1")
    assert set(imported_hashes(results)) == {variant}
    assert imported_hashes(tmp_path / "results" / "cards") == {}


def test_a_variant_of_an_import_is_the_file_that_it_is_from(tmp_path: Path):
    results = tmp_path / "results"
    finish(results)
    one = bring(results, cell("ab", "ab"), name="one")
    (variant,) = pq.read_table(one)["variant"].unique().to_pylist()
    assert read_stored(results).variants == {identity().variant: FACTS, variant: Facts(imported="one.csv")}


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


def test_a_column_that_no_file_has_is_of_its_type_all_the_same(tmp_path: Path):
    finish(tmp_path)
    types = read_stored(tmp_path).predictions.dtypes.astype(str)
    assert (types["margin"], types["queries"]) == ("float64", "category")


def test_each_of_many_further_columns_gets_a_type_of_its_own(tmp_path: Path):
    alike = [f"alike{n}" for n in range(8)]
    for k, value in enumerate((1, "x")):
        path = tmp_path / finish(tmp_path, k=k)
        table = pq.read_table(path)
        for name in (*alike, "one", "other"):
            column = [0, None] if name in alike else [value, None]
            table = table.append_column(name, pa.array(column))
        pq.write_table(table, path)
    found = read_results(tmp_path)
    assert {name: found[name].dropna().tolist() for name in alike} == {n: [0, 0] for n in alike}
    for name in ("one", "other"):
        assert found[name].dropna().tolist() == ["1", "x"]


def test_texts_that_are_numbers_of_a_dictionary_stay_so(tmp_path: Path):
    name = finish(tmp_path)
    table = pq.read_table(tmp_path / name)
    place = table.schema.get_field_index("test_id")
    coded = table.set_column(place, "test_id", table["test_id"].dictionary_encode())
    pq.write_table(coded, tmp_path / name)
    found = read_whole(storage_at(tmp_path), name).table["test_id"]
    assert pa.types.is_dictionary(found.type)
    assert found.to_pylist() == ["a", "b"]


def test_nothing_has_the_columns_of_a_result(tmp_path: Path):
    finish(tmp_path)
    assert no_results().empty
    assert list(no_results().columns) == list(read_stored(tmp_path).predictions.columns)


def test_users_get_the_columns_that_have_a_value(tmp_path: Path):
    finish(tmp_path)
    assert set(read_results(tmp_path).columns) == set(ALWAYS)
    finish(tmp_path, k=3, facts=FACTS.with_more(perturbation="inputs-only"), scores={"chrf": [0.5, None]})
    assert set(read_results(tmp_path).columns) == {*ALWAYS, "perturbation", "chrf"}


# -- a folder -----------------------------------------------------------------------------------


def test_a_folder_is_read_with_what_its_files_say_and_what_failed(tmp_path: Path):
    finish(tmp_path)
    fail(tmp_path, k=9)
    stored = read_stored(tmp_path)
    assert set(stored.cells) == {identity().cell}
    assert stored.cells[identity().cell].seconds == 1.5
    assert [(mark.spec.k, mark.reason) for mark in stored.failed] == [(9, "no memory")]
    assert stored.first_scores == {"cards": "rouge1"}
    assert len(stored.predictions) == 2


def test_choices_of_a_rows_own_that_are_written_out_are_marked_where_there_are_any(tmp_path: Path):
    finish(tmp_path, k=1)
    finish(tmp_path, k=2, facts=FACTS.with_more(choice_style="letters"))
    assert "own_choices" not in read_stored(tmp_path).predictions
    finish(tmp_path, k=3, facts=FACTS.with_more(choice_style="texts"))
    found = read_stored(tmp_path).predictions
    assert found.groupby("k")["own_choices"].unique().map(list).to_dict() == {1: [False], 2: [False], 3: [True]}


def test_a_mark_counts_until_its_cell_is_finished_and_marks_are_in_order(tmp_path: Path):
    for k in (9, 5, 7):
        fail(tmp_path, k=k)
    assert [mark.spec.k for mark in failed_cells(tmp_path)] == [5, 7, 9]
    (mark,) = tmp_path.glob(f"**/*{identity(k=7).cell}.failed.json")
    kept = mark.read_bytes()
    finish(tmp_path, k=7)
    mark.write_bytes(kept)
    assert [found.spec.k for found in failed_cells(tmp_path)] == [5, 9]


def test_folders_are_read_by_their_names_whatever_stands_behind_these(tmp_path: Path):
    for task in ("a-b", "a"):  # "a-b/" sorts before "a/"
        fail(tmp_path, task=task)
        finish(tmp_path, task=task, k=9)
    assert [mark.spec.task for mark in failed_cells(tmp_path)] == ["a", "a-b"]
    assert [meta.spec.task for _, meta in finished_cells(tmp_path)] == ["a", "a-b"]


def test_a_part_of_a_folder_has_the_values_that_are_asked_for_alone(tmp_path: Path):
    for task in ("cards", "zoo"):
        for model in ("small", "large"):
            finish(tmp_path, task=task, model=model)
    fail(tmp_path, task="zoo", k=9)
    fail(tmp_path, task="cards", model="large", k=9)
    some = read_some(tmp_path, {"task": "zoo", "model": "small"})
    assert some.predictions[["task", "model"]].drop_duplicates().to_numpy().tolist() == [["zoo", "small"]]
    assert some.predictions["task"].cat.categories.tolist() == ["zoo"]
    assert [mark.spec.task for mark in some.failed] == ["zoo"]
    assert len(read_some(tmp_path).failed) == 2
    assert len(read_some(tmp_path).predictions) == 8


def test_a_value_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    for task in ("zoo", "cards"):
        finish(tmp_path, task=task)
    said = rf"^results folder {tmp_path}: has no task 'xyz' \(it has: cards, zoo\)$"
    with pytest.raises(UserError, match=said):
        read_some(tmp_path, {"task": "xyz"})


def race(results: Path, task: str, model: str) -> None:
    standing = RaceStanding(predictions=1, draws=1, ci_low=0.0, ci_high=1.0, out=False)
    meta = RaceMeta(
        task=task,
        model=model,
        margin=0.01,
        error=0.05,
        rows=10,
        draws=1,
        queries=1,
        decided=False,
        predictions=1,
        predictions_of_full_sweep=10,
        settings=[RacedSetting(setting="k=1", select="random", k=1)],
        rounds=[RaceRound(predictions=1, leader="k=1", standings=[standing])],
        answer=[],
        command="icl-bench run",
        cells=[],
    )
    write_race(results, race_file(task, model, "0" * 8), meta)


def test_a_value_that_no_race_has_is_refused_with_those_of_the_races(tmp_path: Path):
    race(tmp_path, "trec", "small")
    assert read_some(tmp_path, {"task": "trec", "model": "small"}).predictions.empty
    for wanted, said in (
        ({"task": "zz"}, r"has no task 'zz' \(it has: trec\)$"),
        ({"task": "trec", "model": "zz"}, r"has no model 'zz' \(it has: small\)$"),
    ):
        with pytest.raises(UserError, match=said):
            read_some(tmp_path, wanted)
    fail(tmp_path, task="cards")
    with pytest.raises(UserError, match=r"has no task 'zz' \(it has: cards, trec\)$"):
        read_some(tmp_path, {"task": "zz"})


def test_a_folder_without_finished_cells_is_refused_in_the_same_words(tmp_path: Path):
    race(tmp_path, "trec", "small")
    for read in (leaderboard, read_folder, read_results):
        with pytest.raises(UserError) as refused:
            read(tmp_path)
        assert str(refused.value) == str(nothing_in(tmp_path))


def test_unfinished_cells_of_a_task_with_a_long_name_are_found_by_it(tmp_path: Path):
    task = "long" * 60
    journal = tmp_path / f"{identity(task=task).name}{JOURNAL}"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"test_id": "a"}\n')
    (found,) = partial_cells(tmp_path, {"task": task})
    assert found.in_words().endswith(
        "1 cell is unfinished (1 row) and not in the tables; run the same command again to complete it"
    )


def test_where_all_that_is_asked_for_failed_there_are_its_marks_and_no_row(tmp_path: Path):
    finish(tmp_path)
    fail(tmp_path, task="zoo")
    some = read_some(tmp_path, {"task": "zoo"})
    assert some.predictions.empty
    assert [mark.spec.task for mark in some.failed] == ["zoo"]
    only = tmp_path / "only"
    fail(only)
    assert list(read_stored(only).predictions.columns) == list(no_results().columns)


# -- models of one name -------------------------------------------------------------------------


def two_of_one_name(results: Path) -> list[str]:
    """Two checkpoints of one folder name, and a model of another name."""
    prints = ["files-sha256:aaaa1111aaaa", "files-sha256:bbbb2222bbbb"]
    for fingerprint in prints:
        finish(results, model="final", facts=FACTS.with_more(fingerprint=fingerprint))
    finish(results, facts=FACTS.with_more(fingerprint=prints[0]))
    return ["final@aaaa1111", "final@bbbb2222"]


def test_checkpoints_of_one_name_are_models_of_their_own(tmp_path: Path):
    names = two_of_one_name(tmp_path)
    with pytest.warns(UserWarning, match="model final: 2 models with different files") as caught:
        stored = read_stored(tmp_path)
    assert len(caught) == 1
    assert sorted(stored.predictions["model"].unique()) == [*names, "small"]
    assert sorted(meta.spec.model for meta in stored.cells.values()) == [*names, "small"]
    of_cell = stored.predictions.drop_duplicates("cell").set_index("cell")["model"].to_dict()
    assert of_cell == {cell: meta.spec.model for cell, meta in stored.cells.items()}
    assert set(read_stored(tmp_path, apart=False).predictions["model"]) == {"final", "small"}


@pytest.mark.filterwarnings("ignore:model final")
def test_the_name_in_the_files_asks_for_all_checkpoints_of_it(tmp_path: Path):
    names = two_of_one_name(tmp_path)
    assert sorted(read_some(tmp_path, {"model": "final"}).predictions["model"].unique()) == names
    assert read_some(tmp_path, {"model": names[1]}).predictions["model"].unique().tolist() == names[1:]


def test_what_has_no_files_of_its_own_keeps_its_name(tmp_path: Path):
    for fingerprint in ("files-sha256:aaaa1111", "served:small", None):
        finish(tmp_path, facts=FACTS.with_more(fingerprint=fingerprint))
    assert read_stored(tmp_path).predictions["model"].unique().tolist() == ["small"]


def test_identities_that_begin_alike_have_different_names():
    prints = ["hub:o/m@aaaa1111c", "hub:o/m@aaaa1111d", "weights-sha256:e"]
    named = names_apart([("m", fingerprint) for fingerprint in prints])
    assert len(set(named.values())) == 3
    assert named["m", "weights-sha256:e"] == "m@e"


def test_cells_that_different_models_of_a_server_answered_are_named(tmp_path: Path):
    at = FACTS.with_more(server="https://host/v1", endpoint="chat")
    for k, served in enumerate(["m-0101", "m-0101", "m-0202"], 1):
        finish(tmp_path, k=k, facts=at, served=served)
    finish(tmp_path, k=1, facts=at.with_more(server="https://other/v1"), served="m-0303")
    with pytest.warns(UserWarning, match="model small") as caught:
        read_stored(tmp_path)
    assert [str(one.message) for one in caught] == [
        "model small: https://host/v1 reported that m-0101 answered 2 cells, and m-0202 1 cell: differences between these "
        "cells may be differences between the models (served in the files)"
    ]


def test_cells_that_one_model_of_a_server_answered_need_no_words(tmp_path: Path):
    for k in (1, 2):
        finish(tmp_path, k=k, facts=FACTS.with_more(server="https://host/v1"), served="m-0101")
    finish(tmp_path, k=3, facts=FACTS.with_more(server="https://host/v1"))
    read_stored(tmp_path)
