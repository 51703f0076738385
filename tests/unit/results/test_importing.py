"""Predictions made elsewhere enter the results as they are, or are refused with what is wrong."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.in_process import run_command

from icl_bench import table_files
from icl_bench.analysis.all_findings import find
from icl_bench.analysis.summary import summarise_folder
from icl_bench.cli.output.summary import print_summary
from icl_bench.cli.output.terminal import console
from icl_bench.errors import UserError
from icl_bench.registry import FINDINGS
from icl_bench.report.prompt_trace import find_prediction
from icl_bench.results.cells import ALWAYS, AXES, prediction_schema
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import NEEDED, Import, find_import, import_predictions
from icl_bench.results.importing import columns as columns_of_imports
from icl_bench.results.importing.answers import Labels
from icl_bench.results.reading import failed_cells, finished_cells, read_results, read_some, read_stored
from icl_bench.results.storage import LocalStorage

FORMATS = ("mine.parquet", "mine.csv", "mine.csv.gz", "MINE.CSV")
KEY = [*AXES, "test_id"]


def made_up(**changes: Any) -> pd.DataFrame:
    """Two draws of k=1 and k=5 and three test rows; only draw 1 is all right."""
    rows = [
        ("wines", "tiny", "bm25", "pool", k, draw, test, "red", "red" if draw else "white")
        for k, draw, test in itertools.product((1, 5), (0, 1), ("007", "7", "nan"))
    ]
    return pd.DataFrame(rows, columns=list(NEEDED)).assign(**changes)


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.name.lower().endswith(".parquet"):
        frame.to_parquet(path, index=False)
        return path
    text = frame.to_csv(index=False, lineterminator="\r\n").encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.name.endswith("gz") else text)
    return path


def stored(done: Import) -> Path:
    """The file that an import is stored in."""
    return Path(done.where)


def imported(folder: Path, frame: pd.DataFrame, name: str = "mine.parquet") -> pd.DataFrame:
    """The results of a folder that holds this import alone."""
    import_predictions(write(frame, folder / name), folder / "results")
    return read_results(folder / "results")


@pytest.fixture
def quiet() -> Any:
    """Any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A results folder with cells that were run here."""
    made = plan(tmp_path / "task", "1,3", selects=["random", "bm25"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    return tmp_path / "results"


# -- what is taken ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_every_prediction_enters_the_results_with_what_it_does_not_say_filled(tmp_path: Path, name: str):
    frame = made_up()
    found = imported(tmp_path, frame, name)
    assert set(found.columns) == set(ALWAYS)
    for column in NEEDED:
        assert found[column].tolist() == frame[column].tolist()
    assert set(found["attention"]) == {"full"}
    assert set(found["backend"]) == {"imported"}
    assert found["correct"].tolist() == (frame["gold"] == frame["prediction"]).tolist()
    assert found["correct"].dtype == bool
    assert found["k"].dtype == "int32"
    for column in ("valid", "prompt_tokens", "answer_tokens"):
        assert found[column].isna().all()
    assert found["variant"].nunique() == 1
    assert set(found["cell"].str.len()) == {12}
    assert found.groupby("cell", observed=True)[["k", "draw"]].nunique().eq(1).all(axis=None)
    assert found["cell"].nunique() == 4


@pytest.mark.parametrize("name", FORMATS)
def test_texts_that_look_like_numbers_or_nothing_stay_texts(tmp_path: Path, name: str):
    odd = ["a\rb", "007", "1e3", "nan", "NA", "None", "null", " a ", "a,b", 'q"q', "a\nb", "a\r\nb", "é"]
    frame = made_up().iloc[[0] * len(odd)].assign(test_id=odd, gold=odd, prediction=odd, note=odd)
    found = imported(tmp_path, frame, name)
    for column in ("test_id", "gold", "prediction", "note"):
        assert found[column].tolist() == odd
    assert found["correct"].all()


def test_an_empty_prediction_in_csv_is_an_answer_that_says_nothing(tmp_path: Path):
    found = imported(tmp_path, made_up(prediction=""), "mine.csv")
    assert set(found["prediction"]) == {""}
    assert not found["correct"].any()


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
    ids=str,
)
def test_text_may_be_of_any_of_arrows_types(tmp_path: Path, kind: pa.DataType):
    table = pa.Table.from_pandas(made_up(note="n"), preserve_index=False)
    for name in ("task", "order", "test_id", "gold", "prediction", "note"):
        plain = table[name].cast(pa.string())
        if pa.types.is_dictionary(kind):
            plain = plain.dictionary_encode()
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, plain.cast(kind))
    pq.write_table(table, tmp_path / "mine.parquet")
    import_predictions(tmp_path / "mine.parquet", tmp_path / "results")
    found = read_results(tmp_path / "results")
    assert found["test_id"].tolist() == made_up()["test_id"].tolist()
    assert set(found["note"]) == {"n"}


def test_numbers_as_ids_and_labels_are_taken_as_their_digits(tmp_path: Path):
    found = imported(tmp_path, made_up(test_id=[*range(3)] * 4, gold=1, prediction=[1, 0] * 6))
    assert found["test_id"].tolist() == ["0", "1", "2"] * 4
    assert found["correct"].tolist() == [True, False] * 6


@pytest.mark.parametrize("kind", ["int8", "uint64", "float32", "float64", "str"])
def test_whole_numbers_may_be_of_any_type(tmp_path: Path, kind: str):
    frame = made_up()
    found = imported(tmp_path, frame.astype({"k": kind, "draw": kind}))
    assert found["k"].tolist() == frame["k"].tolist()
    assert found["draw"].tolist() == frame["draw"].tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_optional_columns_are_taken_where_they_are_there(tmp_path: Path, name: str):
    given: dict[str, Any] = {
        "attention": "block",
        "backend": "theirs",
        "variant": "v1",
        "valid": False,
        "prompt_tokens": 12,
        "cached_tokens": 10,
        "answer_tokens": 2,
        "probability": 0.1 + 0.2,
        "margin": 1e-300,
        "label_mass": 1.0,
        "prompt_hash": "0a",
    }
    frame = made_up(**given)
    found = imported(tmp_path, frame, name)
    for column, value in given.items():
        assert set(found[column]) == {value}, column
    assert found["prompt_tokens"].dtype == "int32"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_missing_in_an_optional_column_is_filled_as_if_it_was_not_there(tmp_path: Path, name: str):
    frame = made_up(prediction="red", correct=[True, None] * 6, valid=[False, None] * 6)
    given = {"backend": ["theirs", None] * 6, "probability": [0.5, None] * 6}
    found = imported(tmp_path, frame.assign(**given), name)
    assert found["valid"].tolist() == [False, None] * 6
    assert found["correct"].tolist() == [True] * 12
    assert found["backend"].tolist() == ["theirs", "imported"] * 6
    assert found["probability"].isna().tolist() == [False, True] * 6


@pytest.mark.parametrize("name", FORMATS[:2])
@pytest.mark.parametrize("pair", [("true", "false"), ("TRUE", "False"), ("1", "0"), (1, 0), (1.0, 0.0)])
def test_true_and_false_may_be_spelled_in_several_ways(tmp_path: Path, pair: tuple[Any, Any], name: str):
    found = imported(tmp_path, made_up(correct=pair * 6, prediction=["red", "white"] * 6), name)
    assert found["correct"].tolist() == [True, False] * 6


@pytest.mark.parametrize("name", FORMATS[:2])
def test_nan_beside_true_and_false_is_a_missing_one(tmp_path: Path, name: str):
    found = imported(tmp_path, made_up(valid=["NaN", "0", "nan", "1"] * 3), name)
    assert found["valid"].tolist() == [None, False, None, True] * 3


@pytest.mark.parametrize("name", FORMATS[:2])
def test_a_column_without_a_value_is_as_good_as_none(tmp_path: Path, name: str):
    empty = ("correct", "valid", "attention", "variant", "cell", "prompt_tokens", "rouge1")
    frame = made_up()
    found = imported(tmp_path, frame.assign(**dict.fromkeys(empty)), name)
    assert found["correct"].tolist() == (frame["gold"] == frame["prediction"]).tolist()
    assert found["valid"].isna().all()
    assert set(found["attention"]) == {"full"}
    assert found["cell"].nunique() == 4


@pytest.mark.parametrize("name", FORMATS[:2])
def test_the_usual_may_be_named_where_the_store_leaves_it_out(tmp_path: Path, name: str):
    usual = {"perturbation": "none", "queries": "test", "label_space": "all"}
    found = imported(tmp_path, made_up(**usual), name)
    assert not {*usual} & {*found.columns}
    tables = summarise_folder(tmp_path / "results")
    assert (len(tables.curves), len(tables.perturbed_curves)) == (2, 0)


def test_another_perturbation_is_kept_as_it_is_named(tmp_path: Path):
    some = ["none", "theirs", None] * 4
    found = imported(tmp_path, made_up(perturbation=some))["perturbation"].astype(object)
    assert found.where(found.notna(), None).tolist() == [None, "theirs", None] * 4


def test_free_text_is_not_compared_with_its_gold_text(tmp_path: Path):
    found = imported(tmp_path, made_up(rouge1=0.25, rouge2=0.1, rougeL=0.2, bertscore=0.9))
    assert found["correct"].isna().all()
    curve = summarise_folder(tmp_path / "results").curves
    assert curve["rouge1"].tolist() == [0.25, 0.25]
    assert curve["accuracy"].isna().all()


@pytest.mark.parametrize("name", FORMATS[:2])
def test_scores_of_any_known_metric_are_taken_and_say_that_an_answer_is_free_text(tmp_path: Path, name: str):
    given = {"f1": [1, 0.5, None] * 4, "exact_match": "0", "loudness": "0"}
    empty = made_up(gold=["", "red", "red"] * 4, **given)
    found = imported(tmp_path, empty, name)
    assert found["f1"].tolist()[:2] == [1, 0.5]
    assert found["f1"].isna().tolist() == [False, False, True] * 4
    assert found["exact_match"].tolist() == [0.0] * 12
    assert found["loudness"].tolist() == ["0"] * 12
    assert found["gold"].tolist() == ["", "red", "red"] * 4
    assert found["correct"].isna().all()


def test_an_empty_right_answer_in_csv_is_one_where_a_metric_has_a_score_of_it(tmp_path: Path):
    frame = made_up(gold="", f1=[0.5, None, 1] * 4)
    file = write(frame, tmp_path / "mine.csv")
    assert re.search("column gold: 4 values missing, the first in row 2", refusal(file))
    for column in ("rouge1", "numeric"):  # metrics that cannot compare with nothing
        file = write(made_up(gold="", **{column: 0.5}), tmp_path / "mine.csv")
        assert re.search("column gold: 12 values missing", refusal(file))


def test_the_variant_is_the_files_own_hash_so_that_imports_never_mix(tmp_path: Path):
    first, other = made_up(), made_up(prediction="white")
    for i, frame in enumerate((first, other)):
        import_predictions(write(frame, tmp_path / f"{i}.csv"), tmp_path / "results")
    found = read_results(tmp_path / "results")
    assert found["variant"].nunique() == 2
    assert found["cell"].nunique() == 8
    assert {len(v) for v in found["variant"]} == {8}
    curves = summarise_folder(tmp_path / "results").curves
    assert sorted(curves["accuracy"]) == [0, 0, 0.5, 0.5]


def test_a_file_may_hold_several_variants(tmp_path: Path):
    both = pd.concat([made_up(variant="a"), made_up(variant="b", prediction="red")])
    found = imported(tmp_path, both)
    assert found["cell"].nunique() == 8
    curves = summarise_folder(tmp_path / "results").curves
    assert curves.groupby("variant", observed=True)["accuracy"].max().to_dict() == {"a": 0.5, "b": 1}


# -- further columns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "kind", "other"),
    [("perturbation", "labels:permuted", "inputs"), ("label_space", "half:1", "half:2"), ("queries", "copied", "test")],
)
def test_draws_of_different_kinds_are_not_averaged(tmp_path: Path, column: str, kind: str, other: str):
    whole = made_up(variant="mine")
    first = whole.assign(draw=whole["draw"] + 2, prediction="white", **{column: kind})
    second = whole[(whole["k"] == 5) & (whole["draw"] == 1)].assign(draw=9, **{column: other})
    found = imported(tmp_path, pd.concat([whole, first, second]))
    assert found.groupby("variant", observed=True)[column].nunique(dropna=False).eq(1).all()
    table = summarise_folder(tmp_path / "results").curves
    more = 1 if other == "test" else 0  # the third draw of k=5, which is all right
    table = table[table["variant"] == "mine"]
    assert table["draws"].tolist() == [2, 2 + more]
    assert table["score"].tolist() == pytest.approx([1 / 2, (1 + more) / (2 + more)])


def test_the_same_draws_may_be_in_a_file_with_and_without_a_perturbation(tmp_path: Path):
    whole = made_up()
    frames = [whole, *(whole.assign(perturbation=name) for name in ("labels:permuted", "labels-permuted"))]
    imported(tmp_path, pd.concat(frames))
    table = summarise_folder(tmp_path / "results").perturbed_curves
    assert table.groupby("perturbation")["draws"].agg(list).to_dict() == {
        "labels-permuted": [2, 2],
        "labels:permuted": [2, 2],
    }


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"cached_tokens": 12},
            "column prompt_tokens: 10 in row 1; expected all tokens of the prompt, also those read",
        ),
        ({"cached_tokens": 4, "cache_write_tokens": 7}, "column prompt_tokens: 10 in row 1; expected all tokens of"),
        ({"cache_write_tokens": "many"}, "column cache_write_tokens: 'many' in row 1; expected a whole number from 0"),
        ({"reasoning_tokens": -1}, "column reasoning_tokens: -1 in row 1; expected a whole number from 0"),
    ],
)
def test_tokens_that_would_cost_less_than_nothing_are_refused(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        imported(tmp_path, made_up(prompt_tokens=10, **columns))
    found = imported(tmp_path, made_up(prompt_tokens=10, cached_tokens=4, cache_write_tokens=6.0))
    assert found["cache_write_tokens"].tolist() == [6] * len(found)


def test_further_columns_are_kept_and_null_in_rows_that_lack_them(own: Path, tmp_path: Path):
    frame = made_up(
        seconds=1.5,
        run=list(range(12)),
        when=datetime(2026, 1, 2),
        day=date(2026, 1, 2),
        words=[["a", "b"]] * 12,
        about=[{"a": 1}] * 12,
    )
    further = ("seconds", "run", "when", "day", "words", "about")
    done = import_predictions(write(frame, tmp_path / "mine.parquet"), own)
    assert done.further == further
    assert pq.read_schema(stored(done)).names == [*ALWAYS, *further]
    found = read_results(own)
    assert tuple(found.columns[-6:]) == further
    theirs = found[found["backend"] == "imported"]
    assert theirs["run"].tolist() == list(range(12))
    assert [list(words) for words in theirs["words"]] == [["a", "b"]] * 12
    assert set(theirs["day"]) == {date(2026, 1, 2)}
    assert found[found["backend"] == "fake"][list(further)].isna().all(axis=None)
    export_results(own, tmp_path / "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").field("run").type == pa.int64()
    export_results(own, tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 2.5, [1.0, 2.5]),
        (1, "x", ["1", "x"]),
        (None, 3, [None, 3]),
        ([1], "x", ["[1]", "x"]),
        (2**60 + 1, 0.5, [str(2**60 + 1), "0.5"]),
        (True, 7, ["true", "7"]),
    ],
)
def test_a_further_column_of_two_types_takes_the_wider_one_or_text(
    tmp_path: Path, one: Any, other: Any, expected: list[Any]
):
    for i, value in enumerate((one, other)):
        frame = made_up(task=f"t{i}").head(1)
        frame["extra"] = pd.Series([value], dtype=object)
        import_predictions(write(frame, tmp_path / f"{i}.parquet"), tmp_path / "results")
    found = read_results(tmp_path / "results").sort_values("task")["extra"]
    assert [None if pd.api.types.is_scalar(v) and pd.isna(v) else v for v in found] == expected


def test_pandas_own_notes_in_a_file_change_nothing(tmp_path: Path):
    frame = made_up().set_index(["test_id"])
    frame.to_parquet(tmp_path / "mine.parquet")
    import_predictions(tmp_path / "mine.parquet", tmp_path / "results")
    found = read_results(tmp_path / "results")
    assert found["test_id"].tolist() == made_up()["test_id"].tolist()
    assert found.index.equals(pd.RangeIndex(12))


# -- the stored file ----------------------------------------------------------------------------


def test_an_import_is_one_file_that_says_where_it_is_from(tmp_path: Path):
    source = write(made_up(), tmp_path / "my runs é.csv.gz")
    done = import_predictions(source, tmp_path / "results")
    (path,) = (p for p in (tmp_path / "results").rglob("*") if p.is_file())
    assert path == stored(done)
    assert path.parent == tmp_path / "results" / "imported"
    said = json.loads(pq.read_schema(path).metadata[b"icl_bench_import"])
    assert (said["source"], said["rows"]) == ("my runs é.csv.gz", 12)
    assert path.name == f"my-runs-{said['sha256'][:12]}.parquet"
    assert done == Import(str(path), 12)


def test_the_same_file_is_imported_once_whatever_it_is_called(tmp_path: Path, quiet: None):
    first = import_predictions(write(made_up(), tmp_path / "a.csv"), tmp_path / "results")
    written = stored(first).stat().st_mtime_ns
    again = import_predictions(tmp_path / "a.csv", tmp_path / "results")
    renamed = import_predictions(write(made_up(), tmp_path / "b.csv"), tmp_path / "results")
    assert again == renamed == Import(first.where, 12, before=True)
    assert stored(first).stat().st_mtime_ns == written
    assert len(read_results(tmp_path / "results")) == 12


def test_an_import_whose_file_was_damaged_is_stored_again(tmp_path: Path):
    source = write(made_up(), tmp_path / "a.csv")
    first = import_predictions(source, tmp_path / "results")
    whole = stored(first).read_bytes()
    stored(first).write_bytes(whole[:-30])
    assert import_predictions(source, tmp_path / "results") == first
    assert stored(first).read_bytes() == whole


def test_a_long_or_odd_file_name_is_no_obstacle(tmp_path: Path):
    for name in ("x" * 240 + ".parquet", "...csv", ".csv", "\t [b]{}.csv", "-rf.csv"):
        import_predictions(write(made_up(note=name), tmp_path / name), tmp_path / "results")
    assert len(read_results(tmp_path / "results")) == 5 * 12
    summarise_folder(tmp_path / "results")


def test_a_file_name_that_is_no_utf8_is_no_obstacle(tmp_path: Path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.csv"))
    try:
        write(made_up(), path)
    except OSError:
        pytest.skip("the file system has UTF-8 names only")
    import_predictions(path, tmp_path / "results")
    (text,) = summarise_folder(tmp_path / "results").settings.values()
    assert text.startswith("imported from ")
    text.encode()


def test_an_import_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = write(made_up(), tmp_path / "a.csv")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device; nothing was imported"):
        import_predictions(source, tmp_path / "results")
    assert not list((tmp_path / "results").rglob("*.parquet"))


def test_a_table_that_cannot_be_stored_is_named_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> bytes:
        raise pa.ArrowNotImplementedError("no such\ntype")

    monkeypatch.setattr("icl_bench.results.importing.parquet_bytes", refuse)
    with pytest.raises(UserError, match=r"^a\.csv: cannot be stored: no such type$"):
        import_predictions(write(made_up(), tmp_path / "a.csv"), tmp_path / "results")


def test_a_results_folder_that_cannot_be_written_is_refused(tmp_path: Path):
    source = write(made_up(), tmp_path / "a.csv")
    (tmp_path / "file").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "imported").touch()
    for folder in (tmp_path / "file", tmp_path / "taken", Path("/proc/nothing")):
        with pytest.raises(UserError, match=f"results folder {folder}"):
            import_predictions(source, folder)


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-20], lambda _: b"", lambda b: b"x" * len(b), lambda b: b[: len(b) // 2]]
)
def test_a_damaged_import_is_named_and_left_out(own: Path, tmp_path: Path, damage: Callable[[bytes], bytes]):
    before = read_results(own)
    done = import_predictions(write(made_up(), tmp_path / "a.csv"), own)
    stored(done).write_bytes(damage(stored(done).read_bytes()))
    with pytest.warns(UserWarning, match=rf"{stored(done).name}: cannot be read .*left out"):
        pd.testing.assert_frame_equal(read_results(own), before)
    with pytest.warns(UserWarning, match=rf"{stored(done).name}.*left out"):
        summarise_folder(own)


def test_an_import_that_lost_rows_is_named_and_left_out(tmp_path: Path):
    done = import_predictions(write(made_up(), tmp_path / "a.csv"), tmp_path / "results")
    other = import_predictions(write(made_up(note=1), tmp_path / "b.csv"), tmp_path / "results")
    table = pq.read_table(stored(done), partitioning=None)
    pq.write_table(table.slice(0, 3), stored(done))
    with pytest.warns(UserWarning, match="has 3 predictions instead of 12; left out"):
        found = read_results(tmp_path / "results")
    assert set(found["note"]) == {"1"}
    assert stored(other).exists()


def test_an_import_that_lost_a_column_is_named_and_left_out_where_cells_are_not_known(tmp_path: Path):
    done = import_predictions(write(made_up(), tmp_path / "a.csv"), tmp_path / "results")
    table = pq.read_table(stored(done), partitioning=None)
    pq.write_table(table.drop_columns(["cell"]), stored(done))
    with (
        pytest.warns(UserWarning, match=r"cannot be read \(rows without a cell\); left out"),
        pytest.raises(UserError, match="no results yet"),
    ):
        read_results(tmp_path / "results")
    pq.write_table(table.drop_columns(["valid"]), stored(done))
    assert read_results(tmp_path / "results")["valid"].isna().all()


def test_whatever_happens_to_an_imports_bytes_reading_ends_well(tmp_path: Path):
    done = import_predictions(write(made_up(note="n"), tmp_path / "a.csv"), tmp_path / "results")
    whole = stored(done).read_bytes()

    @settings(max_examples=30)
    @given(st.integers(0, len(whole) - 1), st.binary(min_size=1, max_size=4))
    def check(place: int, inserted: bytes) -> None:
        stored(done).write_bytes(whole[:place] + inserted + whole[place + len(inserted) :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert list(finished_cells(tmp_path / "results")) == []
            with suppress(UserError):  # it is named, and there is no other
                read_results(tmp_path / "results")

    check()


# -- beside cells that were run here ------------------------------------------------------------


def test_imports_and_own_cells_share_one_frame_and_one_summary(own: Path, tmp_path: Path, quiet: None):
    before, cells = read_results(own), list(finished_cells(own))
    done = import_predictions(write(made_up(), tmp_path / "a.csv"), own)
    found = read_results(own)
    pd.testing.assert_frame_equal(found.head(len(before)), before, check_dtype=False, check_categorical=False)
    assert len(found) == len(before) + 12
    assert list(finished_cells(own)) == cells
    assert failed_cells(own) == []
    assert set(read_stored(own).variants) == set(found["variant"])
    table = summarise_folder(own)
    assert set(table.curves["task"]) == {"cards", "wines"}
    assert list(table.settings.values()) == ["imported from a.csv"]
    json.dumps(table.as_json(), allow_nan=False)
    assert export_results(own, tmp_path / "all.csv") == len(found)
    assert stored(done).parent.name == "imported"


def test_a_run_beside_an_import_goes_on_as_before(own: Path, tmp_path: Path):
    import_predictions(write(made_up(), tmp_path / "a.csv"), own)
    made = plan(tmp_path / "task", "1,3", selects=["random", "bm25"])
    outcome = runner(made, own, FakeBackend()).run()
    assert (len(outcome.computed), len(outcome.kept)) == (0, 8)


def test_a_folder_of_imports_alone_has_no_finished_cells(tmp_path: Path, quiet: None):
    imported(tmp_path, made_up())
    results = tmp_path / "results"
    assert list(finished_cells(results)) == []
    assert failed_cells(results) == []
    assert [f.imported for f in read_stored(results).variants.values()] == ["mine.parquet"]
    table = summarise_folder(results, {"task": "wines"})
    assert table.curves["accuracy"].tolist() == [0.5, 0.5]
    assert list(table.settings.values()) == ["imported from mine.parquet"]


def test_settings_tell_imports_and_own_runs_of_a_task_and_model_apart(tmp_path: Path):
    results = tmp_path / "results"
    runner(plan(tmp_path / "task", "1", draws=1), results, FakeBackend()).run()
    ours = read_results(results)["variant"][0]
    frame = made_up(task="cards", model="small")
    first = import_predictions(write(frame, tmp_path / "a.csv"), results)
    texts = summarise_folder(results).settings
    assert sorted(texts.values()) == ["imported from a.csv", "run here"]
    assert texts[ours] == "run here"
    (tmp_path / "b").mkdir()
    import_predictions(write(frame.head(3), tmp_path / "b" / "a.csv"), results)
    runner(plan(tmp_path / "task", "1", draws=1, seed=5), results, FakeBackend()).run()
    texts = summarise_folder(results).settings
    assert len(set(texts.values())) == len(texts) == 4
    assert {text.partition(", variant ")[0] for text in texts.values()} == {"imported from a.csv", "seed=0", "seed=5"}
    assert f"imported from a.csv, variant {stored(first).stem[-12:-4]}" in texts.values()


def test_cells_of_the_same_settings_that_were_run_elsewhere_join_those_run_here(tmp_path: Path, quiet: None):
    for shots, folder in (("1,3", "here"), ("5", "there")):
        runner(plan(tmp_path / "task", shots), tmp_path / folder, FakeBackend()).run()
    facts = read_stored(tmp_path / "here").variants
    export_results(tmp_path / "there", tmp_path / "theirs.csv")
    import_predictions(tmp_path / "theirs.csv", tmp_path / "here")
    found = summarise_folder(tmp_path / "here")
    assert found.curves["k"].tolist() == [1, 3, 5]
    assert found.curves["variant"].nunique() == 1
    assert read_stored(tmp_path / "here").variants == facts
    assert not found.settings


def test_show_says_in_one_line_that_an_imported_cell_has_no_prompt(own: Path, tmp_path: Path):
    done = import_predictions(write(made_up(), tmp_path / "a.csv"), own)
    cell = read_results(own).query("task == 'wines' and k == 5 and draw == 0")["cell"].iloc[0]
    for wanted in ({"model": "tiny"}, {}, {"select": "bm25", "order": "pool"}, {"cell": cell[:6]}):
        with pytest.raises(UserError) as refused:
            find_prediction(own, {"task": "wines", "k": 5, "draw": 0, **wanted})
        assert str(refused.value).startswith(f"{stored(done)}: imported predictions carry no prompt")
        assert "\n" not in str(refused.value)
    for wanted in ({"k": 6}, {"model": "other"}, {"cell": "zz"}):
        with pytest.raises(UserError, match="no finished cell with"):
            find_prediction(own, {"task": "wines", "k": 5, "draw": 0, **wanted})
    shown = find_prediction(own, {"task": "cards", "k": 1, "draw": 0, "select": "random"})
    assert shown.prompt


# -- an export comes back -----------------------------------------------------------------------


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    def plainly(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.sort_values([*KEY, "variant"]).reset_index(drop=True)
        own = frame.get("demonstration_ids", [])
        lists = [None if ids is None else list(ids) for ids in own] or None
        return frame.assign(demonstration_ids=lists).astype(dict.fromkeys(frame.select_dtypes("category").columns, str))

    pd.testing.assert_frame_equal(plainly(found), plainly(expected), check_dtype=False)


@pytest.mark.parametrize("name", ["all.parquet", "all.csv", "all.csv.gz"])
def test_an_export_that_is_imported_elsewhere_gives_equal_results(own: Path, tmp_path: Path, name: str, quiet: None):
    runner(plan(tmp_path / "text", "1", name="texts", **FREE_TEXT), own, FakeBackend()).run()
    runner(plan(tmp_path / "task", "1", scoring="exact"), own, FakeBackend()).run()
    odd = made_up(note="n", prediction=["", "a\rb", "red", "red"] * 3)
    import_predictions(write(odd, tmp_path / "a.csv"), own)
    export_results(own, tmp_path / name)
    import_predictions(tmp_path / name, tmp_path / "copy")
    same(read_results(tmp_path / "copy"), read_results(own))
    ours, theirs = (summarise_folder(f).as_json() for f in (own, tmp_path / "copy"))
    for table in ("curves", "saturation", "order_sensitivity"):
        assert theirs[table] == ours[table]


@pytest.mark.parametrize("name", ["all.parquet", "all.csv"])
def test_an_export_that_is_imported_beside_its_cells_counts_no_cell_twice(own: Path, tmp_path: Path, name: str):
    before, table = read_results(own), summarise_folder(own).as_json()
    export_results(own, tmp_path / name)
    done = import_predictions(tmp_path / name, own)
    said = rf"{stored(done).name}: 8 of its 8 cells are also in other files .*left out"
    with pytest.warns(UserWarning, match=said):
        pd.testing.assert_frame_equal(read_results(own), before)
    with pytest.warns(UserWarning, match=said):
        assert summarise_folder(own).as_json() == table


def test_of_an_import_only_the_cells_that_are_elsewhere_too_are_left_out(own: Path, tmp_path: Path):
    before = read_results(own)
    export_results(own, tmp_path / "all.parquet")
    frame = pd.read_parquet(tmp_path / "all.parquet").drop(columns="cell")
    more = pd.concat([frame.astype({"task": str}), made_up(variant="v")])
    import_predictions(write(more, tmp_path / "more.parquet"), own)
    with pytest.warns(UserWarning, match="8 of its 12 cells are also in other files"):
        found = read_results(own)
    assert len(found) == len(before) + 12
    assert not found.duplicated([*KEY, "variant"]).any()


def test_validity_that_an_import_does_not_say_is_unknown_in_all_tables(icl: Any, tmp_path: Path):
    from icl_bench.report.naming import Naming
    from icl_bench.report.sections.over_k import over_k

    import_predictions(write(made_up(), tmp_path / "a.csv"), tmp_path / "results")
    curves = summarise_folder(tmp_path / "results").as_json()["curves"]
    assert [point["invalid"] for point in curves] == [None, None]
    code, out, _ = icl("summary")
    assert code == 0
    assert re.search(r"50\.0 .* 50\.0 +– *\n", out)
    found = find(read_some(tmp_path / "results"))
    drawing = over_k(FINDINGS["curves"], found, Naming.of(found.summary))
    assert drawing is not None
    (table,) = (each.as_json() for each in drawing.tables)
    assert table["caption"] == "Accuracy over k"
    assert "invalid" not in [column["name"] for column in table["columns"]]
    known = made_up(valid=[False, True] * 6, variant="v")
    import_predictions(write(known, tmp_path / "b.csv"), tmp_path / "results")
    curves = summarise_folder(tmp_path / "results").as_json()["curves"]
    assert {point["variant"]: point["invalid"] for point in curves}["v"] == 0.5


# -- what is refused ----------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """The message with which a file is refused: one or two short lines."""
    with pytest.raises(UserError) as refused:
        import_predictions(path, path.parent / "results")
    message = str(refused.value)
    assert path.name in message
    assert message.count("\n") <= 1
    assert len(message) < 1_000
    return message


@pytest.mark.parametrize("name", FORMATS)
def test_predictions_without_demonstrations_begin_the_curves_of_their_file(tmp_path: Path, name: str):
    frame = made_up().query("k == 5 or draw == 0").assign(demonstration_ids='["1"]')
    zero = frame["k"] == 1
    frame.loc[zero, ["k", "select", "order"]] = [0, "random", "drawn"]
    frame.loc[zero, "demonstration_ids"] = "[]"
    if "parquet" in name:
        frame["demonstration_ids"] = frame["demonstration_ids"].map(json.loads)
    found = imported(tmp_path, frame, name)
    assert found["k"].tolist() == frame["k"].tolist()
    assert found["demonstration_ids"].map(list).tolist() == [[]] * 3 + [["1"]] * 6
    table = summarise_folder(tmp_path / "results").curves
    assert table[["select", "k", "draws"]].to_numpy().tolist() == [["bm25", 0, 1], ["bm25", 5, 2]]


def with_cell(column: str, row: int, value: Any) -> pd.DataFrame:
    frame = made_up().astype({column: object})
    frame.loc[row, column] = value
    return frame


REFUSED_ANYWHERE: dict[str, tuple[pd.DataFrame, str]] = {
    "a column": (made_up().drop(columns="gold"), "lacks the column gold; it has: task, model,"),
    "columns": (
        made_up()[["task", "k"]],
        "lacks the columns model, test_id, gold, prediction; it has: task, k; .* set it with --model$",
    ),
    "no rows": (made_up().head(0), "has no rows"),
    "k below 0": (made_up(k=[1, 1, -1] * 4), r"column k: '?-1'? in row 3; expected a whole number from 0"),
    "draws of k=0": (
        made_up(k=[0] * 6 + [5] * 6),
        "column draw: 1 in row 4, another draw of a point of k=0; .* are the same: keep one",
    ),
    "a negative draw": (made_up(draw=-1), r"column draw: '?-1'? in row 1; expected a whole number from 0"),
    "half a k": (made_up(k=2.5), r"column k: '?2.5'? in row 1; expected a whole number"),
    "a huge k": (made_up(k=2**31), r"column k: '?2147483648'? in row 1; .* to 2,147,483,647"),
    "k in words": (made_up(k=["1", "5", "all"] * 4), "column k: 'all' in row 3; expected a whole number"),
    "a missing k": (made_up(k=[1, None, None] * 4), "column k: 8 values missing, the first in row 2"),
    "a missing gold": (with_cell("gold", 4, None), "column gold: 1 value missing, the first in row 5"),
    "a missing id": (with_cell("test_id", 4, None), "column test_id: 1 value missing, .*row 5"),
    "no task": (made_up(task=None), "column task: 12 values missing, the first in row 1"),
    "an empty name": (made_up(model=["m", ""] * 6), "column model: 6 values missing, .*row 2"),
    "repeats": (pd.concat([made_up()] * 2), "12 rows repeat .* attention, k, draw, test_id; the first is row 13"),
    "one repeat": (made_up().iloc[[*range(12), 7]], "1 row repeats an earlier one .* is row 13"),
    "percentages": (made_up(rouge1=45.2), "column rouge1: '?45.2'? in row 1; expected a share from 0 to 1"),
    "no probability": (made_up(probability="high"), "column probability: 'high' in row 1; expected a probability"),
    "endless margin": (made_up(margin=float("inf")), "column margin: '?inf'? in row 1; expected a probability"),
    "a percentage": (
        made_up(probability=[0.5, 1, 45.2] * 4),
        "column probability: '?45.2'? in row 3; expected a probability from 0 to 1",
    ),
    "below nothing": (
        made_up(label_mass=[0, -0.25] * 6),
        "column label_mass: '?-0.25'? in row 2; expected a probability from 0 to 1",
    ),
    "a log-probability": (made_up(probability=-1.5), "column probability: '?-1.5'? in row 1; expected a probability"),
    "other queries": (
        made_up(queries=["test", "copied", "foo"] * 4),
        "column queries: 'foo' in row 3; expected test or copied",
    ),
    "wrong is right": (
        made_up(correct=True),
        "column correct: True in row 1, where gold is 'red' and prediction 'white'; give predictions as",
    ),
    "right is wrong": (
        made_up(correct=[False, None] * 6),
        "column correct: False in row 5, where gold is 'red' and prediction 'red'",
    ),
    "two golds": (
        with_cell("gold", 4, "rosé"),
        "column gold: 'rosé' in row 5, but 'red' in row 2 for the same test row \\('7'\\); a test row has one",
    ),
    "maybe correct": (made_up(correct="maybe"), "column correct: 'maybe' in row 1; expected true or false"),
    "half valid": (made_up(valid=0.5), "column valid: '?0.5'? in row 1; expected true or false"),
    "tokens": (made_up(prompt_tokens=-3), "column prompt_tokens: '?-3'? in row 1; expected a whole number"),
    "ids": (made_up(demonstration_ids="1,2"), "column demonstration_ids: '1,2' in row 1; expected a JSON list"),
    "numbers as ids": (
        made_up(demonstration_ids="[1, 2]"),
        r"column demonstration_ids: '\[1, 2\]' in row 1; expected a JSON list",
    ),
    "named ids": (
        made_up(demonstration_ids='{"1": "2"}'),
        'column demonstration_ids: \'{"1": "2"}\' in row 1; expected a JSON list',
    ),
    "a percentage of words": (
        made_up(f1=[0.5, 45.2] * 6),
        "column f1: '?45.2'? in row 2; expected a share from 0 to 1, not a percentage",
    ),
    "one cell for all": (made_up(cell="c"), "column cell: must name each cell by its own hash"),
    "cells for rows": (made_up(cell=list("abcdefghijkl")), "column cell: must name each cell"),
    "some cells": (made_up(cell=["c", None] * 6), "column cell: 6 values missing"),
}


@pytest.mark.parametrize("name", FORMATS[:3])
@pytest.mark.parametrize("what", REFUSED_ANYWHERE)
def test_what_cannot_be_counted_honestly_is_refused_by_column_value_and_row(tmp_path: Path, what: str, name: str):
    frame, said = REFUSED_ANYWHERE[what]
    assert re.search(said, refusal(write(frame, tmp_path / name)))


REFUSED_TYPES: dict[str, tuple[Any, str]] = {
    "test_id": (1.5, "column test_id: holds values of type double; expected text"),
    "prediction": ([["a"]] * 12, "column prediction: holds values of type list.*; expected text"),
    "gold": (b"g", "column gold: holds values of type binary; expected text"),
    "task": (b"t", "column task: holds values of type binary; expected text"),
    "k": (True, "column k: holds values of type bool; expected a whole number"),
    "draw": (date(2026, 1, 1), "column draw: holds values of type date32.*; expected a whole"),
    "valid": ([["a"]] * 12, "column valid: holds values of type list.*; expected true or false"),
    "probability": ([{"a": 1}] * 12, "column probability: holds values of type struct"),
    "demonstration_ids": (7, "column demonstration_ids: holds values of type int64; expected lists"),
}


@pytest.mark.parametrize("column", REFUSED_TYPES)
def test_a_column_of_another_type_is_refused_by_its_type(tmp_path: Path, column: str):
    value, said = REFUSED_TYPES[column]
    frame = made_up(**{column: value})
    assert re.search(said, refusal(write(frame, tmp_path / "mine.parquet")))


def test_a_further_column_that_could_not_be_read_again_is_refused_by_its_name(tmp_path: Path):
    table = pa.Table.from_pandas(made_up(), preserve_index=False)
    far = pa.array([2**30] * 12, pa.date32())  # days: the year 2,941,773
    pq.write_table(table.append_column("far", far), tmp_path / "mine.parquet")
    assert refusal(tmp_path / "mine.parquet") == (
        f"{tmp_path}/mine.parquet: column far: holds values of type date32[day]; expected plainer "
        "values, or no such column"
    )


HEADER = ",".join(NEEDED).encode()
REFUSED_FILES: dict[str, tuple[str, bytes, str]] = {
    "another ending": ("mine.xls", b"", r"expected \.parquet, or \.csv"),
    "gzipped Parquet": ("mine.parquet.gz", b"", "expected"),
    "an empty CSV": ("mine.csv", b"", "lacks the columns task, .*; it has: none"),
    "an empty Parquet": ("mine.parquet", b"", "not a complete Parquet file"),
    "no Parquet": ("mine.parquet", b"PAR1 or what", "not a complete Parquet file"),
    "no gzip": ("mine.csv.gz", HEADER, "not a complete gzip file"),
    "half a gzip": ("mine.csv.gz", gzip.compress(HEADER * 9)[:-9], "not a complete gzip file"),
    "Latin-1": ("mine.csv", HEADER + b"\nt,m,s,o,1,0,\xe9,g,p\n", r"mine.csv:2: not UTF-8 \(byte 0xe9\)"),
    "UTF-16": ("mine.csv", HEADER.decode().encode("utf-16"), "has no rows"),
    "a short row": ("mine.csv", HEADER + b"\nt,m,s,o,1,0,a,g\n", r"mine.csv:2: 8 cells, but the header has 9"),
    "a long row": ("mine.csv", HEADER + b"\nt,m,s,o,1,0,a,g,p,x\n", "10 cells, but the header has 9"),
    "an open quote": ("mine.csv", HEADER + b'\nt,m,s,o,1,0,a,g,"p\n', "not CSV: unexpected end of data"),
    "a column twice": ("mine.csv", HEADER + b",k\n", "column k appears twice"),
    "only a header": ("mine.csv", HEADER, "has no rows"),
}


@pytest.mark.parametrize("what", REFUSED_FILES)
def test_a_file_that_cannot_be_read_is_refused_with_its_reason(tmp_path: Path, what: str):
    name, content, said = REFUSED_FILES[what]
    (tmp_path / name).write_bytes(content)
    assert re.search(said, refusal(tmp_path / name))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    (tmp_path / "folder.csv").mkdir()
    assert "a folder, but not a run of HELM" in refusal(tmp_path / "folder.csv")
    assert "cannot be read: No such file" in refusal(tmp_path / "none.csv")


def test_whole_prompts_may_stand_in_a_csv_file(tmp_path: Path):
    found = imported(tmp_path, made_up(prompt="word " * 100_000).head(1), "mine.csv")
    assert len(found["prompt"][0]) == 500_000


# -- the command --------------------------------------------------------------------------------


@pytest.fixture
def icl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    monkeypatch.chdir(tmp_path)
    return run_command


def test_the_command_says_what_it_stored_and_that_it_is_there_already(icl: Any, tmp_path: Path):
    write(made_up(note="n"), tmp_path / "a.csv")
    code, out, err = icl("import", "a.csv")
    (path,) = Path("results/imported").iterdir()
    assert (code, err) == (0, "")
    assert out == f"12 predictions imported: {path}\nfurther columns, kept: note\n"
    assert icl("import", "a.csv") == (0, f"a.csv is already imported: {path}\n", "")
    assert icl("import", "a.csv", "--results", "other", "--quiet") == (0, "", "")
    assert len(list(Path("other/imported").iterdir())) == 1


def test_the_commands_that_follow_read_an_import(icl: Any, tmp_path: Path):
    write(made_up(), tmp_path / "a.csv")
    icl("import", "a.csv")
    code, out, err = icl("summary")
    assert (code, err) == (0, "")
    assert "wines · tiny" in out
    assert "imported from a.csv" in out
    code, out, err = icl("summary", "--json", "--task", "wines")
    assert [point["accuracy"] for point in json.loads(out)["curves"]] == [0.5, 0.5]
    code, out, err = icl("show", "--task", "wines", "--k", "1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "imported predictions carry no prompt" in err
    assert icl("export", "--out", "b.parquet")[1] == "12 predictions in b.parquet\n"


def test_a_refused_file_ends_in_one_line_and_code_2(icl: Any, tmp_path: Path):
    write(made_up(k=-1), tmp_path / "a.csv")
    code, out, err = icl("import", "a.csv")
    assert (code, out) == (2, "")
    assert err == ("error: a.csv: column k: '-1' in row 1; expected a whole number from 0 to 2,147,483,647\n")
    assert not Path("results").exists()
    assert icl("import")[0] == 2


# -- whatever a file holds ----------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=5)
names = st.one_of(st.sampled_from(["a", "NA", "007", " ", "é"]), texts.filter(bool))
further = st.sampled_from([None, "x", 1, 2.5, True, b"b", date(2026, 1, 1), datetime(1, 1, 1), [1], {"a": [None]}])


@st.composite
def whole_frames(draw: st.DrawFn) -> pd.DataFrame:
    """Complete sweeps of any names, in any order, with some further columns."""

    def some(values: st.SearchStrategy[Any], most: int = 2) -> list[Any]:
        return draw(st.lists(values, min_size=1, max_size=most, unique=True))

    axes = [some(names, 1), some(names), some(names, 1), some(names), some(st.integers(1, 9))]
    grid = list(itertools.product(*axes, some(st.integers(0, 9)), some(names, 3)))
    golds = {test: draw(texts.filter(bool)) for test in sorted({key[-1] for key in grid})}
    said = draw(st.lists(texts, min_size=len(grid), max_size=len(grid)))
    rows = [(*key, golds[key[-1]], text) for key, text in zip(grid, said, strict=True)]
    frame = pd.DataFrame(draw(st.permutations(rows)), columns=list(NEEDED))
    for name in draw(st.lists(st.sampled_from(["x", "", "é b"]), max_size=2, unique=True)):
        frame[name] = pd.Series([draw(further)] * len(frame), dtype=object)
    return frame


@pytest.mark.filterwarnings("ignore:.*among the correct answers:UserWarning")
@settings(max_examples=10)
@given(whole_frames(), st.sampled_from(FORMATS[:3]))
def test_any_complete_sweep_is_taken_as_it_is_and_comes_back_from_an_export(frame: pd.DataFrame, name: str):
    with TemporaryDirectory() as created:
        folder = Path(created)
        found = imported(folder, frame, name)
        for column in NEEDED:
            if column != "prediction":
                assert found[column].tolist() == frame[column].tolist()
        labels = Labels(frame["gold"].tolist())
        read = [labels.label_in(text) for text in frame["prediction"]]
        said = [text if label is None else label for label, text in zip(read, frame["prediction"], strict=True)]
        assert found["prediction"].tolist() == said
        assert found["correct"].tolist() == [label == gold for label, gold in zip(read, frame["gold"], strict=True)]
        assert found["cell"].nunique() == len(frame.drop_duplicates(list(NEEDED[:6])))
        assert set(frame.columns) <= set(found.columns)
        curves = summarise_folder(folder / "results").curves
        assert (curves["draws"] * curves["test_rows"]).sum() == len(frame)
        for out in ("out.parquet", "out.csv"):
            export_results(folder / "results", folder / out)
            import_predictions(folder / out, folder / out.replace(".", "-"))
            again = read_results(folder / out.replace(".", "-"))
            known = [name for name in prediction_schema().names if name in found]
            same(again[known], found[known])


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    texts,
    st.binary(max_size=3),
    st.sampled_from(["1", "0", "nan", "true", '["a"]', "[", "k"]),
    st.decimals(allow_nan=False),
    st.dates(),
    st.lists(st.one_of(texts, st.integers()), max_size=2),
)
columns = st.one_of(st.sampled_from(prediction_schema().names), texts)


@st.composite
def mangled_frames(draw: st.DrawFn) -> pd.DataFrame:
    """A sweep of which columns and cells were exchanged, dropped or repeated."""
    frame = made_up().astype(object)
    rows = st.integers(0, len(frame) - 1)
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(["cell", "column", "drop", "rows", "rename"])):
            case "cell":
                place = frame.columns.get_loc(draw(st.sampled_from(list(frame.columns))))
                at = draw(rows) % max(1, len(frame))
                values = list(frame.iloc[:, place]) if isinstance(place, int) else []
                if values:
                    values[at] = draw(scalars)
                    frame.isetitem(place, pd.Series(values, index=frame.index, dtype=object))
            case "column":
                value = draw(scalars)
                frame[draw(columns)] = pd.Series([value] * len(frame), frame.index, dtype=object)
            case "drop":
                frame = frame.drop(columns=draw(st.sampled_from(list(frame.columns))))
            case "rows":
                kept = draw(st.lists(rows, max_size=14))
                frame = frame.iloc[[i for i in kept if i < len(frame)]]
            case "rename":
                frame = frame.rename(columns={draw(st.sampled_from(list(frame.columns))): draw(columns)})
    return frame


def taken_or_refused(folder: Path, path: Path) -> None:
    try:
        done = import_predictions(path, folder / "results")
    except UserError as error:
        message = str(error)
        assert message.count("\n") <= 1
        assert len(message) < 1_500
        message.encode()
        return
    assert len(read_results(folder / "results")) == done.rows
    summarise_folder(folder / "results").as_json()
    export_results(folder / "results", folder / "out.parquet")
    export_results(folder / "results", folder / "out.csv")


@st.composite
def several_tasks(draw: st.DrawFn) -> pd.DataFrame:
    """Sweeps of up to three tasks, with their rows in any order."""
    frames = draw(st.lists(mangled_frames(), min_size=1, max_size=3))
    for number, frame in enumerate(frames):
        if "task" in frame.columns:
            frame["task"] = f"task {number}"
    joined = pd.concat([frame.loc[:, ~frame.columns.duplicated()] for frame in frames], ignore_index=True)
    return joined.iloc[draw(st.permutations(range(len(joined))))] if draw(st.booleans()) else joined


def outcome(path: Path, folder: Path) -> list[Any]:
    """What an import of a file stores, and its warnings; or its error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            done = import_predictions(path, folder)
        except UserError as error:
            assert not list(folder.rglob("*.parquet"))
            return [str(error)]
    table = pq.read_table(stored(done))
    coded = [table[field.name] for field in table.schema if pa.types.is_dictionary(field.type)]
    texts = [column.combine_chunks().dictionary.to_pylist() for column in coded]
    return [stored(done).name, table.schema, repr(table.to_pylist()), texts, [str(one.message) for one in said]]


@settings(max_examples=60)
@given(several_tasks(), st.integers(1, 9))
def test_a_large_file_is_imported_like_a_small_one(frame: pd.DataFrame, rows: int):
    with TemporaryDirectory() as created, pytest.MonkeyPatch.context() as patch:
        folder = Path(created)
        try:
            frame.to_parquet(folder / "mine.parquet", index=False, row_group_size=rows)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return  # no such file can be made
        expected = outcome(folder / "mine.parquet", folder / "small")
        patch.setattr(table_files, "MANY_ROWS", 1)
        patch.setattr(columns_of_imports, "PART_ROWS", 2)
        assert outcome(folder / "mine.parquet", folder / "large") == expected


@pytest.mark.filterwarnings("ignore:.*among the correct answers:UserWarning")
@settings(max_examples=40)
@given(mangled_frames(), st.sampled_from(FORMATS[:2]))
def test_a_frame_of_anything_is_taken_or_refused_with_a_message(frame: pd.DataFrame, name: str):
    with TemporaryDirectory() as created:
        path = Path(created) / name
        try:
            write(frame, path)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return  # no such file can be made
        taken_or_refused(Path(created), path)


@pytest.mark.filterwarnings("ignore:.*among the correct answers:UserWarning")
@settings(max_examples=40)
@given(
    st.sampled_from(FORMATS[:3]),
    st.one_of(
        st.binary(max_size=40),
        st.text(st.sampled_from('a,1"\n\r\0é'), max_size=30).map(lambda s: HEADER + b"\n" + s.encode()),
    ),
)
@example("mine.csv", HEADER + b"\r\rt,m,s,o,1,0,a,g,p\r")
def test_arbitrary_bytes_are_taken_or_refused_with_a_message(name: str, content: bytes):
    with TemporaryDirectory() as created:
        path = Path(created) / name
        path.write_bytes(content)
        taken_or_refused(Path(created), path)


PARQUET = io.BytesIO()
made_up(note="n", rouge1=0.5).to_parquet(PARQUET, index=False)


@pytest.mark.filterwarnings("ignore:.*among the correct answers:UserWarning")
@settings(max_examples=40)
@given(st.integers(0, len(PARQUET.getvalue())), st.binary(max_size=6), st.booleans())
def test_a_changed_parquet_file_is_taken_or_refused_with_a_message(place: int, inserted: bytes, cut: bool):
    whole = PARQUET.getvalue()
    rest = b"" if cut else whole[place + len(inserted) :]
    with TemporaryDirectory() as created:
        path = Path(created) / "mine.parquet"
        path.write_bytes(whole[:place] + inserted + rest)
        taken_or_refused(Path(created), path)


def test_an_import_is_stored_in_the_stores_own_place(tmp_path: Path):
    done = import_predictions(write(made_up(), tmp_path / "a.csv"), tmp_path / "results")
    sha256 = json.loads(pq.read_schema(stored(done)).metadata[b"icl_bench_import"])["sha256"]
    storage = LocalStorage(tmp_path / "results")
    assert find_import(storage, sha256) == (f"imported/{stored(done).name}", 12)
    assert find_import(storage, "0" * 64) is None


def test_a_row_that_a_draw_lacks_is_missing_there_and_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    frame = made_up().drop(index=7)
    file = write(frame, tmp_path / "gap.parquet")
    assert import_predictions(file, tmp_path / "results").rows == len(frame)
    table = summarise_folder(tmp_path / "results").curves
    gap = table[table["missing"] > 0]
    assert gap["k"].tolist() == [5]
    assert (gap["test_rows"] * gap["draws"] - gap["missing"]).tolist() == [(frame["k"] == 5).sum()]
    assert table["left_out"].tolist() == [0] * len(table)
    print_summary(summarise_folder(tmp_path / "results"), console())
    assert "k=5: 1 prediction missing or without a score" in capsys.readouterr().out


@pytest.mark.parametrize("value", [10, "10", "a"])
def test_an_imports_own_samples_are_not_taken_for_those_of_a_run(tmp_path: Path, value: object):
    frame = pd.DataFrame({**FRAME_OF_ONE, "samples": [value]})
    for name in ("mine.csv", "mine.parquet"):
        with pytest.raises(UserError, match=r"column samples: .*another name for this column"):
            import_predictions(write(frame, tmp_path / name), tmp_path / "results")


FRAME_OF_ONE = {
    "task": "wines",
    "model": "m",
    "select": "bm25",
    "order": "pool",
    "k": 1,
    "draw": 0,
    "test_id": "a",
    "gold": "red",
    "prediction": "red",
}
