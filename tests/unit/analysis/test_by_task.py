"""Tables of a large folder, computed task by task: they are those of the whole folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icl_bench import table_files
from icl_bench.analysis import by_task as by_task_of
from icl_bench.analysis import context
from icl_bench.analysis.all_findings import Findings, find
from icl_bench.analysis.by_task import BYTES_A_ROW, IN_ORDER, ByTask, each_task, joined_tables, processes_in_memory
from icl_bench.analysis.summary import records
from icl_bench.registry import FINDINGS
from icl_bench.report.prediction_sample import in_turns
from icl_bench.results import kept_tables
from icl_bench.results import rows as rows_of_folder
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_results, read_some, state_prior

ROOT = Path(__file__).parents[3]
OWN = ROOT / "tests" / "golden" / "results" / "results" / "trec"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Own cells of two tasks, and imports of three others, with free text and with rows out of order."""
    place = tmp_path_factory.mktemp("large")
    for suffix in ("-b", "-a"):
        for file in OWN.rglob("*.parquet"):
            _as_other_task(file, place / "results" / f"trec{suffix}" / f"{file.stem}{suffix}.parquet", suffix)
    for name in ("headlines-more", "headlines-samsum", "headlines-half-labels", "headlines-finetuned"):
        table = pq.read_table(ROOT / "results" / f"{name}.parquet")
        few = pc.is_in(table["test_id"], table["test_id"].unique()[:12])
        few = pc.and_(few, pc.less(table["draw"], 3))
        part = table.filter(few)
        order = np.random.default_rng(0).permutation(len(part))
        pq.write_table(part.take(order), place / f"{name}.parquet")
        import_predictions(place / f"{name}.parquet", place / "results")
    return place / "results"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of each test's own: no test has the tables of another one."""
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _as_other_task(file: Path, out: Path, suffix: str) -> None:
    """A copy of a cell's file, of a task of another name."""
    table = pq.read_table(file)
    meta = json.loads(table.schema.metadata[b"icl_bench"])
    meta["spec"]["task"] += suffix
    for name in ("task", "cell", "variant"):
        values = pc.binary_join_element_wise(table[name].cast(pa.string()), pa.scalar(suffix), "")
        table = table.set_column(table.schema.get_field_index(name), name, values.dictionary_encode())
    out.parent.mkdir(parents=True, exist_ok=True)
    table = table.replace_schema_metadata({b"icl_bench": json.dumps(meta).encode()})
    out.write_bytes(table_files.parquet_bytes(table))


def findings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, large: int, processes: int = 1, only: Mapping[str, str] | None = None
) -> Findings:
    """The findings of a folder that is large from this number of predictions."""
    monkeypatch.setattr(rows_of_folder, "LARGE", large)
    monkeypatch.setattr(table_files, "MANY_ROWS", large)
    return find(read_some(folder, only), results=folder, processes=processes)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Findings:
    """All tables, each computed from all predictions."""
    with pytest.MonkeyPatch.context() as patch:
        found = findings(folder, patch, large=10**9)
        assert len(dict(found.tables())) == len(FINDINGS.names)
    return found


def _not_again(*_: Any, **__: Any) -> Any:
    raise AssertionError("computed again")


@pytest.fixture(scope="module")
def computed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, Path]:
    """All tables of the folder, computed task by task in two processes, and the cache with them."""
    with pytest.MonkeyPatch.context() as patch:
        kept = tmp_path_factory.mktemp("cache")
        patch.setenv("ICL_BENCH_CACHE", str(kept))
        by_task = findings(folder, patch, 1, processes=2)
        said: list[str] = []
        by_task.work_out([*FINDINGS], said.append)
        assert "computing findings: 1 of 4 tasks" in said
        assert len(dict(by_task.tables())) == len(FINDINGS.names)
    return by_task, kept


@pytest.fixture
def first(computed: tuple[Findings, Path], cache: Path) -> dict[str, pd.DataFrame]:
    """All tables of the folder, with those that a first command kept in the cache."""
    shutil.copytree(computed[1], cache)
    return dict(computed[0].tables())


def _rounded(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, without the digits that depend on the order of sums."""
    return [
        {name: float(f"{value:.11g}") if isinstance(value, float) else value for name, value in row.items()}
        for row in records(table)
    ]


def test_every_table_is_that_of_the_whole_folder(whole: Findings, computed: tuple[Findings, Path]) -> None:
    expected = dict(whole.tables())
    by_task, _ = computed
    for name, table in by_task.tables():
        assert [*table] == [*expected[name]], name
        assert _rounded(table) == _rounded(expected[name]), name
    assert by_task.context.rows_apart == whole.context.rows_apart
    assert "frame" not in by_task.context.stored.rows.__dict__, "all predictions became a data frame"
    assert sum(len(table) > 0 for table in expected.values()) >= 25


def test_a_frontier_has_the_costs_and_tests_of_its_points(whole: Findings, computed: tuple[Findings, Path]) -> None:
    by_task, _ = computed
    assert len(whole.frontier) == len(by_task.frontier) > 0
    expected, found = (each.context.beside["frontier"] for each in (whole, by_task))
    np.testing.assert_array_equal(found.taken.each, expected.taken.each)
    np.testing.assert_array_equal(found.taken.once, expected.taken.once)
    np.testing.assert_array_equal(found.served, expected.served)
    assert len(found.tested) == len(expected.tested)
    for one, other in zip(found.tested, expected.tested, strict=True):
        np.testing.assert_array_equal(one.points, other.points)
        np.testing.assert_array_equal(one.p_leads, other.p_leads)


RESAMPLED = ("saturation_chances", "forecast", "learning_ratio", "calibration_error", "temperature")


def test_resampling_of_a_task_does_not_depend_on_other_tasks(
    folder: Path, whole: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = findings(folder, monkeypatch, 10**9, only={"task": "trec-b"})
    for name in RESAMPLED:
        table = getattr(whole, name)
        of_task = table[table["task"].astype(str) == "trec-b"]
        assert records(of_task) == records(getattr(alone, name)), name
    assert len(alone.saturation_chances)


@pytest.mark.parametrize("only", [{"task": "trec-a"}, {"model": "gemma3-270m"}])
def test_a_part_of_a_large_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, only: Mapping[str, str]) -> None:
    expected = findings(folder, monkeypatch, 10**9, only=only)
    found = findings(folder, monkeypatch, 1, only=only)
    assert found.context.stored.rows.tasks == expected.context.stored.rows.tasks
    pd.testing.assert_frame_equal(
        found.context.stored.predictions.astype(object),
        expected.context.stored.predictions.astype(object).reset_index(drop=True),
    )


@pytest.mark.parametrize("large", [1, 300])  # all files have encoded texts, or only the large ones
def test_the_predictions_of_a_large_folder_are_those_of_its_files(
    folder: Path, whole: Findings, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    expected, results = whole.context.stored, read_results(folder)
    stored = findings(folder, monkeypatch, large).context.stored
    assert stored.rows.by_task
    pd.testing.assert_frame_equal(stored.predictions, expected.predictions)
    pd.testing.assert_frame_equal(stored.own_predictions, expected.own_predictions)
    pd.testing.assert_frame_equal(read_results(folder), results)


def test_a_finding_that_fails_in_a_task_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_task = findings(folder, monkeypatch, 1)

    def fails(context: Any) -> pd.DataFrame:
        if len(context.stored.rows.tasks) == 1 and context.stored.rows.tasks[0] == "samsum":
            raise ValueError("no such column")
        return context.unperturbed[["task"]].drop_duplicates()

    made = FINDINGS["order_sensitivity"]
    way = lambda name: IN_ORDER if name == "order_sensitivity" else None  # noqa: E731 - of no other, which take long
    monkeypatch.setattr(context, "_way", way)
    monkeypatch.setitem(FINDINGS._loaded, "order_sensitivity", type(made)("order_sensitivity", fails, by_task=IN_ORDER))
    assert by_task.order_sensitivity["task"].nunique() == 4, "computed from all predictions"


def test_the_next_command_has_the_tables_of_the_first_one(
    folder: Path, first: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = findings(folder, monkeypatch, 1)
    monkeypatch.setattr(context, "_tables_of", _not_again)
    again.work_out(["forecast", "curves"], lambda _: None)
    for name, table in again.tables():
        pd.testing.assert_frame_equal(table, first[name], check_exact=True)
        for column in table.select_dtypes(object):
            assert [*map(type, table[column])] == [*map(type, first[name][column])], (name, column)


def test_one_table_is_computed_without_the_others(
    folder: Path, first: dict[str, pd.DataFrame], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(cache)
    asked: list[Collection[str]] = []
    compute = context._tables_of
    monkeypatch.setattr(context, "_tables_of", lambda of, names: asked.append([*names]) or compute(of, names))
    found = findings(folder, monkeypatch, 1)
    pd.testing.assert_frame_equal(found.curves, first["curves"], check_exact=True)
    assert asked == [["curves"]] * 4
    found.as_json()
    assert [len(names) for names in asked[4:]] == [len(by_task_names())] * 4, "all at once, if all are asked for"
    monkeypatch.setattr(context, "_tables_of", _not_again)
    pd.testing.assert_frame_equal(findings(folder, monkeypatch, 1).curves, first["curves"], check_exact=True)


def _curves_of(of: context.Context, names: Collection[str]) -> dict[str, pd.DataFrame]:
    return {"curves": of.table("curves")}


def _with_another_prior(folder: Path) -> None:
    state_prior(folder, "trec-a", "half", {"DESC": 0.5, "HUM": 0.5})


def _without_a_cell(folder: Path) -> None:
    next(folder.glob("trec-a/*.parquet")).unlink()


@pytest.mark.parametrize("change", [_with_another_prior, _without_a_cell])
def test_a_folder_that_changed_has_tables_of_its_own(
    folder: Path,
    first: dict[str, pd.DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:
    changed = Path(shutil.copytree(folder, tmp_path / "changed"))
    change(changed)
    tasks: list[str] = []
    monkeypatch.setattr(context, "_tables_of", lambda of, **_: tasks.extend(of.stored.rows.tasks) or {})
    found = findings(changed, monkeypatch, 1)
    assert found.context.kept.read() == {}
    found.context.work_out()
    assert len(tasks) == 4


@pytest.mark.parametrize("options", [{"base_model": "gemma3-270m"}, {"wanted": 0.5}, {"task": "trec-a"}])
def test_other_options_have_tables_of_their_own(
    folder: Path, first: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(rows_of_folder, "LARGE", 1)
    assert find(read_some(folder), results=folder).context.kept.read().keys() == first.keys() & by_task_names()
    assert not find(read_some(folder), results=folder, **options).context.kept.read()


def by_task_names() -> set[str]:
    return {name for name in FINDINGS if FINDINGS[name].by_task is not None}


def test_tables_of_another_user_are_not_read(
    folder: Path, first: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are pickled: whoever wrote them could run code."""
    kept = findings(folder, monkeypatch, 1).context.kept
    assert kept.read()
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert not kept.read()


def test_damaged_tables_are_computed_again(
    folder: Path, first: dict[str, pd.DataFrame], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = (cache / kept_tables.FOLDER).iterdir()
    whole = file.read_bytes()
    monkeypatch.setattr(context, "_tables_of", _curves_of)
    file.write_bytes(whole[:-9] + b"x" + whole[-8:])
    found = findings(folder, monkeypatch, 1)
    found.context.work_out()
    pd.testing.assert_frame_equal(found.curves, first["curves"], check_exact=True)
    assert [*findings(folder, monkeypatch, 1).context.kept.read()] == ["curves"]


def test_a_cache_that_cannot_be_written_keeps_nothing(
    folder: Path, first: dict[str, pd.DataFrame], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("ICL_BENCH_CACHE", str(cache / "file"))
    monkeypatch.setattr(context, "_tables_of", _curves_of)
    pd.testing.assert_frame_equal(findings(folder, monkeypatch, 1).curves, first["curves"], check_exact=True)


def test_columns_and_types_are_those_of_one_table() -> None:
    parts = [
        pd.DataFrame({"task": ["b"], "n": [1], "share": [None], "text": [None], "late": [0.5]}),
        pd.DataFrame({"task": ["a"], "n": [2], "share": [0.5], "extra": [1.0], "text": ["x"], "late": [1.5]}),
        pd.DataFrame({"task": [], "nothing": []}),
    ]
    table = joined_tables(parts, IN_ORDER, {})
    assert [*table] == ["task", "n", "share", "extra", "text", "late"]
    assert table["share"].dtype == float
    assert table["n"].dtype == int
    assert table["extra"].isna().tolist() == [True, False]
    assert joined_tables(parts, ByTask(("task",), lacking={"extra": 7.0}), {})["extra"].tolist() == [1.0, 7.0]
    assert [*joined_tables([parts[2], parts[2]], IN_ORDER, {})] == ["task", "nothing"]


def _ended(task: str) -> str:
    if task == "b" and os.getpid() != _PROCESS:
        os._exit(1)
    return task.upper()


_PROCESS = os.getpid()


def test_a_process_that_ends_loses_no_task() -> None:
    assert dict(each_task(_ended, "abc", 2)) == {"a": "A", "b": "B", "c": "C"}


def test_as_many_processes_as_half_of_the_memory_holds(
    computed: tuple[Findings, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = computed[0].context.stored.rows
    assert rows.most_of_a_task == rows.of(["task"])["task"].value_counts().max() > 100
    for free, processes in ((None, 8), (2 * 8 * 1000 * BYTES_A_ROW, 8), (2 * 8 * 1000 * BYTES_A_ROW - 1, 7), (0, 1)):
        monkeypatch.setattr(by_task_of, "free_bytes", lambda free=free: free)
        assert processes_in_memory(8, 1000) == processes


AT_WORK = """
import os, time
from icl_bench.analysis.by_task import each_task

def work(task):
    os.write(1, b"at work\\n")
    time.sleep(60)

list(each_task(work, ["a", "b", "c"], 2))
"""


@pytest.mark.parametrize("end", ["interrupt", "kill"])
def test_all_processes_end_at_once_with_the_command(end: str) -> None:
    """A terminal sends an interrupt to all of them; a large task would go on for minutes. A kill, as for lack of memory,
    hits the parent alone; the others would wait for tasks for ever.
    """
    process = subprocess.Popen([sys.executable, "-c", AT_WORK], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == [b"at work\n"] * 2
    if end == "interrupt":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    assert process.wait(20) < 0
    os.set_blocking(process.stdout.fileno(), False)
    for _ in range(200):
        if process.stdout.read() == b"":  # the output is open as long as a process has it
            break
        time.sleep(0.1)
    else:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("processes are left")
    process.stdout.close()


@pytest.mark.parametrize("most", [1, 5, 40])
def test_the_first_of_a_sample_are_those_of_all_in_turns(most: int) -> None:
    rng = np.random.default_rng(1)
    values: Mapping[str, Sequence[Any]] = {
        "task": pd.Categorical(rng.choice(["b", "a"], 40)),
        "k": rng.integers(0, 3, 40),
        "correct": rng.choice(np.array([True, False, None], dtype=object), 40),
    }
    frame = pd.DataFrame(values)
    order = in_turns(frame)
    assert sorted(order) == [*range(40)]
    assert in_turns(frame, most).tolist() == order[:most].tolist()
    strata = frame.groupby(["task", "k", "correct"], observed=True, dropna=False).ngroup()
    assert set(strata.iloc[order[: strata.nunique()]]) == set(strata)
