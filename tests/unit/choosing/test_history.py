"""The history of a race: stored beside the cells, read by summary and report, and no trouble for other readers."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import threading
import warnings
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support import fakes
from support.in_process import Ended, run_command, said

import icl_bench
from icl_bench.analysis.all_findings import read_findings
from icl_bench.cli import main
from icl_bench.results.partial import partial_cells
from icl_bench.results.races import write_race
from icl_bench.results.reading import RACES, finished_cells, read_races
from icl_bench.results.stored_meta import RaceMeta
from icl_bench.sweep.plan import CellPlan, PlannedGroup
from icl_bench.sweep.runner import Outcome, Runner

pytestmark = pytest.mark.usefixtures("loading_once")

HERE = ("--device", "cpu", "--dtype", "float32", "--k", "0,1,2", "--select", "random,bm25", "--draws", "3")


@pytest.fixture(autouse=True)
def _of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> tuple[object, ...]:
    task = fakes.write_task(tmp_path_factory.mktemp("history") / "task", test_rows=30)
    return ("--task", task, "--model", tiny, *HERE)


@pytest.fixture(scope="module")
def raced(words: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a decided race, whose cells are asked in part."""
    folder = tmp_path_factory.mktemp("raced") / "results"
    assert run_command("choose", *words, "--margin", 40, "--quiet", "--results", folder).code == 0
    return folder


@pytest.fixture
def results(raced: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(raced, tmp_path / "results")
    return tmp_path / "results"


def race_in(folder: Path) -> RaceMeta:
    """The only race of a folder."""
    (found,) = read_races(folder)
    return found


def stopped_run(monkeypatch: pytest.MonkeyPatch, calls: int, *words: object) -> Ended:
    """Run a command that is interrupted after so many calls of the runner."""
    ask, count = Runner.ask, [0]

    def stopped(
        self: Runner, group: PlannedGroup, cell: CellPlan, rows: Collection[str], outcome: Outcome
    ) -> dict[str, float]:
        count[0] += 1
        if count[0] > calls:
            raise KeyboardInterrupt
        return ask(self, group, cell, rows, outcome)

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "ask", stopped)
        return run_command(*words)


def test_the_history_has_every_round_the_answer_and_the_cells(results: Path, words: tuple[object, ...]) -> None:
    race = race_in(results)
    assert race.decided
    assert race.rounds[-1].predictions == race.predictions
    asked = [one.predictions for one in race.rounds]
    assert asked == sorted(asked)
    assert all(
        one.out == (setting.setting != race.choice)
        for one, setting in zip(race.rounds[-1].standings, race.settings, strict=True)
    )
    assert race.answer[0].startswith(f"Use: {race.choice}")
    partial = {str(path.relative_to(results)).partition(".journal")[0] for path in results.rglob("*.journal.jsonl")}
    assert partial <= set(race.cells)


def test_its_command_completes_all_cells_of_which_none_is_partial_then(results: Path, raced: Path) -> None:
    race = race_in(results)
    command = [word.replace(str(raced), str(results)) for word in shlex.split(race.command)]
    assert run_command(*command[1:], "--quiet").code == 0
    assert {name.removesuffix(".parquet") for name, _ in finished_cells(results)} >= set(race.cells)
    assert partial_cells(results) == []
    assert "unfinished" not in said("summary", "--results", results)


def test_neither_its_command_nor_its_answer_has_the_home_folder(
    words: tuple[object, ...], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tiny.parent))
    done = run_command("choose", *words, "--margin", 40, "--results", tmp_path / "results")
    assert done.code == 0
    race = race_in(tmp_path / "results")
    for stored in (race.command, race.answer[-1]):
        assert str(tiny) not in stored
        assert f"--model ~/{tiny.name}" in stored
    assert f"--model {tiny}" in done.out, "what is printed is whole"


def test_a_race_that_goes_on_keeps_its_history_until_it_has_come_as_far(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results"
    command = ("choose", *words, "--margin", 0.01, "--results", folder)
    assert stopped_run(monkeypatch, 30, *command).code == 130
    first = race_in(folder)
    assert first.ended == "interrupted"
    assert stopped_run(monkeypatch, 14, *command).code == 130  # within the rounds that are stored
    assert race_in(folder) == first
    assert run_command(*command).code == 0
    last = race_in(folder)
    assert last.rounds[: len(first.rounds)] == first.rounds
    assert len(last.rounds) > len(first.rounds)
    assert last.ended is None


@pytest.mark.parametrize(
    ("before", "now"), [(("--queries", 20_000), ("--queries", 15_000)), (("--price", "hour=2"), ())]
)
def test_a_race_for_another_number_of_queries_or_with_other_prices_replaces_the_history(
    before: tuple[object, ...],
    now: tuple[object, ...],
    words: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "results"
    command = ("choose", *words, "--margin", 0.01, "--results", folder)
    assert stopped_run(monkeypatch, 30, *command, *before).code == 130
    first = race_in(folder)
    ended = stopped_run(monkeypatch, 14, *command, *now)  # within the rounds that are stored
    last = race_in(folder)
    assert last.rounds == first.rounds[: len(last.rounds)]
    assert ended.out.splitlines() == last.answer
    other = stopped_run(monkeypatch, 14, *command, *now, "--price", "hour=3")
    assert "(in the currency of --price)" in race_in(folder).answer[1]
    assert other.out.splitlines() == race_in(folder).answer


def test_an_interrupted_race_says_what_it_knows(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = stopped_run(monkeypatch, 16, "choose", *words, "--margin", 0.01, "--results", tmp_path / "results")
    assert ended.code == 130
    assert ended.out.splitlines() == race_in(tmp_path / "results").answer


def test_without_a_terminal_each_round_is_one_line(words: tuple[object, ...], tmp_path: Path) -> None:
    ended = run_command("choose", *words, "--margin", 0.01, "--results", tmp_path / "results")
    rounds = [line for line in ended.err.splitlines() if line.startswith("round ")]
    assert len(rounds) == len(race_in(tmp_path / "results").rounds)
    assert all("leads with" in line and " left: " in line for line in rounds)
    assert "\x1b" not in ended.err


def test_on_a_terminal_the_table_fits_80_columns(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the program shows them in its own way
    command = ["choose", *map(str, words), "--margin", "5", "--results", str(tmp_path / "results")]
    seen = bytearray()

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                seen.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
        assert terminal.isatty()
        with pytest.raises(SystemExit) as ended:
            main(command)
    reader.join()
    os.close(ours)
    assert not ended.value.code
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "accuracy %" in text
    assert "dearer (and not better)" in text
    rows = [line.rstrip("\r") for line in text.split("\n") if re.search(r"leads|out [0-9]+: ", line)]
    assert len(rows) >= 5
    assert all(len(row.rpartition("\r")[2]) <= 80 for row in rows)


def test_summary_shows_the_race_and_names_partial_cells_with_what_completes_them(results: Path) -> None:
    race = race_in(results)
    (cells,) = partial_cells(results)
    assert (cells.rows, cells.command) == (30, race.command)
    shown = said("summary", "--results", results)
    assert "races of choose: accuracy of each setting so far" in shown
    assert f"cells are unfinished ({cells.fewest:,}" in shown
    assert race.command in shown
    record = json.loads(said("summary", "--json", "--results", results))
    assert record["partial"][0]["cells"] == cells.cells
    assert {one["setting"] for one in record["races"]} == {one.setting for one in race.settings}
    assert next(one for one in record["races"] if one["state"] == "chosen")["setting"] == race.choice
    assert len(record["race_rounds"]) == len(race.rounds) * len(race.settings)


def test_a_task_or_a_model_of_a_race_alone_is_read_and_another_one_refused(results: Path) -> None:
    assert "races of choose" in said("summary", "--results", results, "--task", "cards")
    assert "has no task 'other'" in said("summary", "--results", results, "--task", "other", code=2)


def test_partial_cells_of_an_interrupted_run_have_their_rows(results: Path) -> None:
    shutil.rmtree(results / RACES)
    for finished in results.rglob("*.parquet"):
        finished.unlink()
    (cells,) = partial_cells(results)
    assert (cells.task, cells.rows, cells.command) == ("cards", None, None)
    assert "run the same command again to complete" in cells.in_words()
    for command in (("summary",), ("export", "--out", results / "all.csv")):
        assert "all cells are unfinished" in said(*command, "--results", results, code=2)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"task": 3}', b"\xff"])
def test_a_damaged_history_is_skipped_with_a_warning(results: Path, content: bytes) -> None:
    (file,) = (results / RACES).iterdir()
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert read_races(results) == []


def test_a_damaged_history_is_made_again(results: Path, words: tuple[object, ...]) -> None:
    (file,) = (results / RACES).iterdir()
    whole = file.read_bytes()
    file.write_bytes(b"{")
    assert run_command("choose", *words, "--margin", 40, "--quiet", "--results", results).code == 0
    again, before = (RaceMeta(**json.loads(content)) for content in (file.read_bytes(), whole))
    assert (again.rounds, again.choice, again.cells) == (before.rounds, before.choice, before.cells)


def test_other_readers_do_not_take_a_history_for_results(results: Path, words: tuple[object, ...]) -> None:
    said("run", *words, "--k", "1", "--select", "bm25", "--quiet", "--results", results)
    said("export", "--results", results, "--out", results.parent / "all.csv")
    read = icl_bench.read(results)
    rows = read.predictions["cell"].value_counts()
    assert set(rows) == {30}
    assert len(rows) == len(list(results.rglob("*.parquet")))
    assert {("bm25", 1)} <= set(zip(read.predictions["select"], read.predictions["k"], strict=True))
    assert "unfinished" in said("summary", "--results", results)


def test_the_report_has_the_answer_and_a_line_for_each_setting(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    from icl_bench.report.build import make_report
    from icl_bench.report.figure_style import FigureStyle
    from icl_bench.report.figures import write_figures
    from icl_bench.report.page import page

    race = race_in(results)
    report = make_report(results)
    (section,) = [one for one in report.sections if one.name == "race"]
    (panel,) = section.panels
    assert {row["series"] for row in panel.rows} == {one.setting for one in race.settings}
    assert sum(row["state"] == "dropped" for row in panel.rows) == len(race.settings) - 1
    assert [sentence.topic for sentence in section.articles[0].sentences] == [
        line.partition(":")[0] for line in race.answer
    ]
    assert any("unfinished" in note for note in report.notes)
    assert race.answer[0].partition(": ")[2].partition(",")[0] in page(report)
    (figure,) = write_figures(replace(report, sections=[section]), tmp_path, FigureStyle(formats=("svg",)))
    assert figure.name.startswith("race-")


def test_a_race_of_other_prompts_has_a_file_of_its_own(tmp_path: Path, tiny: Path) -> None:
    task, results = fakes.write_task(tmp_path / "task", test_rows=30), tmp_path / "results"
    words = ("choose", "--task", task, "--model", tiny, *HERE[:4], "--k", "0,1", "--select", "bm25", "--draws", "1")
    for template in ("query", "question", "query"):
        written = re.sub(r"que\w+: {text}", f"{template}: {{text}}", task.read_text())
        task.write_text(written)
        said(*words, "--margin", "40", "--quiet", "--results", results)
    assert len(list((results / RACES).glob("*.json"))) == 2


def test_once_a_race_is_decided_what_runs_on_may_be_as_good_and_is_cheaper(results: Path) -> None:
    (file,) = (results / RACES).glob("*.json")
    race = race_in(results).model_dump()
    place = next(i for i, one in enumerate(race["settings"]) if one["setting"] != race["choice"])
    standing = race["rounds"][-1]["standings"][place] | {"out": False, "why": None}
    states = {}
    for decided, asked in ((True, True), (False, True), (False, False)):
        race["rounds"][-1]["standings"][place] = standing | ({} if asked else {"predictions": 0, "score": None})
        write_race(results, f"{RACES}/{file.name}", RaceMeta.model_validate({**race, "decided": decided}))
        rows = read_findings(results).races.to_dict("records")
        states[decided, asked] = {one["setting"]: one["state"] for one in rows}[race["settings"][place]["setting"]]
    assert states == {
        (True, True): "cheaper, may be as good",
        (False, True): "may be better",
        (False, False): "not asked yet",
    }
