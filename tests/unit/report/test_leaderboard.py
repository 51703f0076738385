"""The leaderboard says what the summary says, sorted, the same each time, and as plain text."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.in_process import Ended, run_command

from icl_bench.analysis.summary import summarise_folder
from icl_bench.errors import CellError, UserError
from icl_bench.escaping import in_markdown
from icl_bench.prompts.encoding import PromptSet
from icl_bench.report.leaderboard import as_csv, as_markdown, csv_columns, leaderboard, leaderboard_of, write
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_results
from icl_bench.tasks.label_subset import HalfLabels


def board(*words: object) -> Ended:
    return run_command("leaderboard", *words)


def sweep(task: Path, results: Path, k: str = "1,2,4", version: str = "1.0", **changes: object) -> None:
    run = runner(plan(task, k, **changes), results, FakeBackend())
    run.versions = {"icl-bench": version}
    run.run()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("leaderboard")
    sweep(root / "task", root / "results", test_rows=30)
    sweep(root / "task", root / "results", "4", "2.0", test_rows=30, draws=3)
    sweep(root / "other", root / "results", name="other")
    return root / "results"


def test_every_point_is_there_with_the_summarys_numbers(results: Path):
    table, expected = leaderboard(results), summarise_folder(results).curves
    assert tuple(table.columns) == csv_columns()
    names = ["task", "model", "select", "order", "attention", "variant", "k"]
    both = table.merge(expected, on=names, suffixes=("", "_summary"))
    assert len(both) == len(table) == len(expected) == 6
    for name in ("draws", "test_rows", "accuracy", "ci_low", "ci_high", "macro_f1"):
        assert both[name].tolist() == pytest.approx(both[f"{name}_summary"].tolist(), abs=1e-6)


def test_upper_bounds_and_easier_tasks_are_left_out(results: Path, tmp_path: Path):
    before = leaderboard(results)
    shutil.copytree(results, tmp_path / "results")
    sweep(tmp_path / "task", tmp_path / "results", half=HalfLabels(1))
    frame = read_results(results).query("task == 'cards' and k == 4")
    bound = frame.assign(select="lora-paper", prediction=frame["gold"], correct=True)
    bound[["task", "model", "select", "order", "k", "draw", "test_id", "gold", "prediction"]].to_csv(
        tmp_path / "bound.csv", index=False
    )
    import_predictions(tmp_path / "bound.csv", tmp_path / "results")
    pd.testing.assert_frame_equal(leaderboard(tmp_path / "results"), before)


def test_points_are_sorted_by_task_then_best_first(results: Path):
    table = leaderboard(results)
    assert table["task"].tolist() == ["cards"] * 3 + ["other"] * 3
    for _, group in table.groupby("task"):
        assert group["accuracy"].is_monotonic_decreasing


def test_saturation_is_that_of_the_curve_and_missing_beyond_the_window(results: Path):
    table = leaderboard(results).set_index(["task", "k"])
    for row in summarise_folder(results).saturation.itertuples():
        found = table.loc[row.task, "saturation_k"]
        expected = row.k if row.within_window and row.spoken else None
        assert [None if pd.isna(k) else k for k in found] == [expected] * 3
    single = plan(results.parent / "single", "1")
    runner(single, results.parent / "single-results", FakeBackend()).run()
    assert leaderboard(results.parent / "single-results")["saturation_k"].isna().all()


def test_versions_and_data_are_those_of_the_cells(results: Path):
    table = leaderboard(results).set_index(["task", "k"])
    assert table.loc["cards", "version"].to_dict() == {1: "1.0", 2: "1.0", 4: "1.0, 2.0"}
    hashes = table.reset_index().groupby("task")["data_hash"].unique()
    assert [len(found) for found in hashes] == [1, 1]
    assert hashes["cards"][0] != hashes["other"][0]  # 30 test rows and 6
    assert re.fullmatch("[0-9a-f]{16}", hashes["cards"][0])


def test_imports_have_no_version_and_the_hash_of_their_file(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "x.csv")
    frame = pd.read_csv(tmp_path / "x.csv", dtype=str).drop(columns=["variant", "cell"])
    frame.to_csv(tmp_path / "mine.csv", index=False)
    done = import_predictions(tmp_path / "mine.csv", tmp_path / "results")
    table = leaderboard(tmp_path / "results")
    assert set(table["version"]) == {""}
    assert set(table["data_hash"]) == {Path(done.where).stem.rpartition("-")[2]}
    assert "| – |" in as_markdown(table)


def test_free_text_has_its_scores_and_no_accuracy(tmp_path: Path):
    sweep(tmp_path / "task", tmp_path / "results", "2", **FREE_TEXT)
    sweep(tmp_path / "cards", tmp_path / "results", "2", name="labels")
    table = leaderboard(tmp_path / "results").set_index("task")
    assert table["accuracy"].isna().to_dict() == {"cards": True, "labels": False}
    assert table["rougeL"].isna().to_dict() == {"cards": False, "labels": True}
    text = as_markdown(leaderboard(tmp_path / "results"))
    assert "ROUGE-1" in text
    assert "BERTScore" not in text
    assert "nan" not in text.lower()


# -- of files of predictions ---------------------------------------------------------------------


def test_files_of_predictions_make_the_table_that_their_import_makes(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "all.parquet")
    frame = pd.read_parquet(tmp_path / "all.parquet")
    for task, rows in frame.groupby("task", observed=True):
        rows.drop(columns=["variant", "cell"]).to_parquet(tmp_path / f"{task}.parquet")
        import_predictions(tmp_path / f"{task}.parquet", tmp_path / "results")
    files = [tmp_path / "cards.parquet", tmp_path / "other.parquet"]
    done = board(*files, "--out", tmp_path / "board.csv")
    assert (done.code, done.err) == (0, f"written: {tmp_path}/board.csv and {tmp_path}/board.md\n")
    assert (tmp_path / "board.csv").read_text() == as_csv(leaderboard(tmp_path / "results"))
    assert done.out == (tmp_path / "board.md").read_text()


def test_an_export_keeps_what_made_its_predictions(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "all.parquet")
    table = leaderboard_of([tmp_path / "all.parquet"])
    known = ["task", "k", "version", "data_hash", "variant", "backend", "accuracy", "ci_low", "ci_high"]
    expected = leaderboard(results)
    # a variant's versions are those of all its cells
    of_all = expected.groupby("variant")["version"].transform("max")
    pd.testing.assert_frame_equal(table[known], expected.assign(version=of_all)[known], check_dtype=False)


def test_an_import_may_say_what_made_it_in_columns_of_its_own(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "all.parquet")
    frame = pd.read_parquet(tmp_path / "all.parquet").drop(columns=["variant", "cell"])
    dtypes = ["bfloat16" if task == "cards" else None for task in frame["task"]]
    frame.assign(dtype=dtypes, hardware="a card").to_parquet(tmp_path / "mine.parquet")
    table = leaderboard_of([tmp_path / "mine.parquet"])
    said = table[["task", "dtype", "hardware"]].drop_duplicates().to_numpy().tolist()
    assert said == [["cards", "bfloat16", "a card"], ["other", "", "a card"]]
    assert "| bfloat16 | a card |" in as_markdown(table)


def test_points_of_several_lines_are_noted(results: Path, tmp_path: Path):
    export_results(results, tmp_path / "all.parquet")
    frame = pd.read_parquet(tmp_path / "all.parquet").drop(columns=["variant", "cell"])
    for draw, rows in frame[frame["draw"] < 2].groupby("draw"):
        rows.to_parquet(tmp_path / f"{draw}.parquet")
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    assert "Draws of a point in several imported files are not combined" in as_markdown(leaderboard_of(files))
    assert "several lines" not in as_markdown(leaderboard_of(files[:1]))


def test_an_error_of_files_has_its_own_reason(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    export_results(results, tmp_path / "all.parquet")

    def broken(_: object) -> pd.DataFrame:
        raise UserError("another reason")

    monkeypatch.setattr("icl_bench.report.leaderboard.leaderboard", broken)
    with pytest.raises(UserError, match="another reason"):
        leaderboard_of([tmp_path / "all.parquet"])


def test_files_that_cannot_be_used_are_refused_in_one_line(results: Path, tmp_path: Path):
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    export_results(results, tmp_path / "all.parquet")
    bound = pd.read_parquet(tmp_path / "all.parquet").assign(select="lora-paper")
    bound.drop(columns=["variant", "cell"]).to_parquet(tmp_path / "bound.parquet")
    for words, said in [
        ((tmp_path / "none.csv",), "lacks the columns task"),
        ((tmp_path / "gone.parquet",), "gone.parquet"),
        ((tmp_path / "bound.parquet",), "bound.parquet: nothing for a leaderboard"),
        ((tmp_path / "all.parquet", "--results", results), "--results: cannot be combined"),
    ]:
        done = board(*words, "--out", tmp_path / "board.csv")
        assert (done.code, done.out) == (2, "")
        assert re.fullmatch(rf"error: .*{re.escape(said)}.*\n", done.err)
    assert not (tmp_path / "board.csv").exists()


STORED = Path(__file__).parents[3] / "results"


def test_the_projects_leaderboard_is_what_the_stored_predictions_make(tmp_path: Path):
    """``icl-bench leaderboard FILE FILE --out results/leaderboard.csv`` (docs/replication.md)."""
    files = [STORED / f"headlines{part}.parquet" for part in ("", "-samsum")]
    done = board(*files, "--out", tmp_path / "leaderboard.csv", "--quiet")
    assert done == Ended(0, "", "")
    for name in ("leaderboard.csv", "leaderboard.md"):
        assert (tmp_path / name).read_text() == (STORED / name).read_text()


# -- files --------------------------------------------------------------------------------------


def test_the_command_prints_the_table_and_writes_both_files(results: Path):
    done = board("--results", results)
    assert done.code == 0
    assert done.out == (results / "leaderboard.md").read_text()
    rows = list(csv.DictReader(io.StringIO((results / "leaderboard.csv").read_text())))
    assert tuple(rows[0]) == csv_columns()
    assert len(rows) == 6
    assert done.err == f"written: {results}/leaderboard.csv and {results}/leaderboard.md\n"
    found = json.loads(board("--results", results, "--json").out)
    assert [row["k"] for row in found] == [int(row["k"]) for row in rows]
    assert found[0]["accuracy"] == pytest.approx(float(rows[0]["accuracy"]), abs=1e-6)


def test_another_file_can_be_named(results: Path, tmp_path: Path):
    out = tmp_path / "new" / "board.csv"
    assert board("--results", results, "--out", out, "--quiet") == Ended(0, "", "")
    assert sorted(path.name for path in out.parent.iterdir()) == ["board.csv", "board.md"]


def test_the_same_folder_makes_the_same_bytes(results: Path, tmp_path: Path):
    copy = shutil.copytree(results, tmp_path / "elsewhere")
    first = write(leaderboard(results), tmp_path / "a.csv")
    second = write(leaderboard(copy), tmp_path / "b.csv")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_a_table_that_cannot_be_written_leaves_the_old_one(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, table = tmp_path / "board.csv", leaderboard(results)
    write(table, out)
    before = out.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"board\.csv: cannot be written \(No space left"):
        write(table.head(1), out)
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board.csv", "board.md"]


@pytest.mark.parametrize("name", ["board.md", "board", "board.csv.gz"])
def test_another_ending_is_refused(results: Path, tmp_path: Path, name: str):
    done = board("--results", results, "--out", tmp_path / name)
    assert done.code == 2
    assert "must end in .csv" in done.err


def fails(prompts: PromptSet) -> None:
    raise CellError("out of memory")


def test_a_folder_without_results_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    runner(plan(tmp_path / "task", "1"), tmp_path / "failed", FakeBackend(fails=fails)).run()
    for name in ("none", "empty", "failed"):
        done = board("--results", tmp_path / name)
        assert (done.code, done.out) == (2, "")
        assert re.fullmatch(
            rf"error: results folder \S+{name}: .+; run (something first|the same command again).*\n", done.err
        )
        assert not (tmp_path / name / "leaderboard.csv").exists()


# -- escaping -----------------------------------------------------------------------------------


def test_markup_in_names_is_shown_as_it_is(tmp_path: Path):
    (tmp_path / "mine.csv").write_text(
        "task,model,select,order,k,draw,test_id,gold,prediction\n"
        '"a|b `c` <i>*d*_e_</i>","m\nn\r[x](y)\\",s,o,1,0,7,p,p\n'
    )
    import_predictions(tmp_path / "mine.csv", tmp_path / "results")
    table = leaderboard(tmp_path / "results")
    header, _, line, _, note = as_markdown(table).splitlines()
    assert note.startswith("1 draw: the 95% interval of 1 of 1 point is over test rows only")
    assert line.startswith(r"| a\|b \`c\` &lt;i&gt;\*d\*\_e\_&lt;/i&gt; | 'm\\nn\\r\[x\](y)\\\\' | s | o | 1 |")
    assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", header))
    (row,) = csv.DictReader(io.StringIO(as_csv(table)))
    assert row["task"] == "a|b `c` <i>*d*_e_</i>"
    assert row["model"] == repr("m\nn\r[x](y)\\")


def test_plain_names_are_left_alone():
    assert in_markdown("trec_fine") == "trec_fine"
    assert in_markdown("gemma3-270m") == "gemma3-270m"
    assert in_markdown("shuffled:1") == "shuffled:1"
    assert in_markdown("_x_") == r"\_x\_"


@given(st.text())
@example("\u2028|")
@example("\\|")
def test_no_name_breaks_the_table(text: str):
    shown = in_markdown(text)
    assert shown
    assert len(shown.splitlines()) == 1
    assert not re.search(r"[<>]", shown)
    bare = re.sub(r"\\[\\`*\[\]|~$_]", "", shown)  # without what is escaped
    assert not re.search(r"[|`*\[\]~$]", bare)
