"""``choose``: a race of the settings of a sweep, whose answers are rows of ordinary cells."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import fakes
from support.in_process import Ended, run_command, said

import icl_bench
from icl_bench.choosing import contest as module
from icl_bench.choosing.contest import Contest, Setting, first_round, names_of, stratified
from icl_bench.choosing.evidence import FIRST_LOOK
from icl_bench.choosing.options import ChooseSpec
from icl_bench.choosing.race import Ask
from icl_bench.choosing.spending import Account, Spend
from icl_bench.cli.output.choose import answer_lines, raced, unknown
from icl_bench.cli.output.progress import Display
from icl_bench.cli.output.race import RaceProgress
from icl_bench.errors import StopRunError, UserError
from icl_bench.results.reading import finished_cells, read_results, read_stored
from icl_bench.results.store import OpenCell
from icl_bench.sweep.compute_cost import ComputeCost
from icl_bench.sweep.plan import CellPlan, PlannedGroup
from icl_bench.sweep.runner import Outcome, Runner
from icl_bench.tasks.examples import Example, load_data
from icl_bench.tasks.near_duplicates import near_duplicates
from icl_bench.tasks.task_files import load_task
from icl_bench.training.examples import Examples
from icl_bench.training.interface import Learned
from icl_bench.training.methods.probe import Probe

pytestmark = pytest.mark.usefixtures("loading_once")

HERE = ("--device", "cpu", "--dtype", "float32")
SETTINGS = ("--k", "0,1,2", "--select", "random,bm25", "--draws", "3")


@pytest.fixture(autouse=True)
def _of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return fakes.write_task(tmp_path / "task", test_rows=30)


@pytest.fixture
def words(task: Path, tiny: Path) -> tuple[object, ...]:
    return ("--task", task, "--model", tiny, *SETTINGS, *HERE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each row of each cell was answered."""
    counts: Counter[tuple[str, str]] = Counter()
    append = OpenCell.append

    def counted(self: OpenCell, predictions: Any, *seconds: float | None) -> None:
        counts.update((self.identity.name, prediction.test_id) for prediction in predictions)
        append(self, predictions, *seconds)

    monkeypatch.setattr(OpenCell, "append", counted)
    return counts


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that makes each look at the clock take so many seconds."""

    def every(seconds: float) -> None:
        moments = itertools.count(seconds, seconds)
        monkeypatch.setattr(module.time, "monotonic", lambda: next(moments))

    return every


def choose(*words: object, results: Path) -> Ended:
    return run_command("choose", *words, "--results", results)


def test_the_answer_has_five_lines_and_names_the_choice_its_score_and_the_run_of_it(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    ended = choose(*words, "--queries", 20000, results=tmp_path / "results")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Use", "Cost", "Runner-up", "Not known", "Next"]
    assert "20,000 queries" in lines[1]
    assert "5 settings" in lines[0]
    run, show = (shlex.split(command, comments=True) for command in lines[4].partition(": ")[2].split(" && "))
    assert run_command(*run[1:], "--quiet").code == 0
    assert run_command(*show[1:-1], tmp_path / "prompt.txt").code == 0
    assert (tmp_path / "prompt.txt").stat().st_size
    record = json.loads(choose(*words, "--json", results=tmp_path / "results").out)
    assert f"Use: {record['choice']}, accuracy" in lines[0]
    assert {one["setting"] for one in record["settings"]} >= {"no demonstrations", "random, k=1", "bm25, k=2"}


def test_a_later_sweep_asks_only_what_the_race_did_not_and_has_the_same_answers(
    words: tuple[object, ...], tmp_path: Path, asked: Counter[tuple[str, str]]
) -> None:
    record = json.loads(choose(*words, "--margin", 40, "--json", results=tmp_path / "results").out)
    assert 0 < record["predictions"] < record["predictions_of_full_sweep"]
    said("run", *words, "--quiet", "--results", tmp_path / "results")
    assert set(asked.values()) == {1}
    said("run", *words, "--quiet", "--results", tmp_path / "whole")
    frames = [
        read_results(tmp_path / place).sort_values(["cell", "test_id"]).reset_index(drop=True)
        for place in ("results", "whole")
    ]
    columns = ["cell", "test_id", "prediction", "correct", "prompt_hash"]
    pd.testing.assert_frame_equal(frames[0][columns], frames[1][columns])


def test_after_a_whole_sweep_nothing_is_computed_and_the_best_of_it_is_chosen(
    words: tuple[object, ...], tmp_path: Path, asked: Counter[tuple[str, str]]
) -> None:
    said("run", *words, "--quiet", "--results", tmp_path / "results")
    asked.clear()
    record = json.loads(choose(*words, "--margin", 0.01, "--json", results=tmp_path / "results").out)
    assert not asked
    assert record["decided"]
    assert (record["predictions_to_decide"], record["spend_to_decide"]) == (0, None)
    frame = read_results(tmp_path / "results")
    means = frame.groupby(["select", "k"], observed=True)["correct"].mean()
    score = next(one["score"] for one in record["settings"] if one["setting"] == record["choice"])
    assert score == pytest.approx(means.max(), abs=1e-4)
    assert len(list(finished_cells(tmp_path / "results"))) == 13


def test_an_interrupted_race_answers_and_goes_on_when_it_is_started_again(
    words: tuple[object, ...], tmp_path: Path, asked: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, ask = [0], Runner.ask

    def stopped(
        self: Runner, group: PlannedGroup, cell: CellPlan, rows: Collection[str], outcome: Outcome
    ) -> dict[str, float]:
        calls[0] += 1
        if calls[0] > 16:  # in the second round
            raise KeyboardInterrupt
        return ask(self, group, cell, rows, outcome)

    monkeypatch.setattr(Runner, "ask", stopped)
    ended = choose(*words, "--margin", 0.01, results=tmp_path / "results")
    assert ended.code == 130
    assert "undecided, interrupted" in ended.out
    needed = re.search(r"about ([\d,]+) more answers \(\d+ (s|min)\) would decide it", ended.out)
    assert needed is not None
    assert 0 < int(needed[1].replace(",", "")) <= 13 * 30
    monkeypatch.setattr(Runner, "ask", ask)
    assert choose(*words, "--margin", 0.01, results=tmp_path / "results").code == 0
    assert set(asked.values()) == {1}


def test_loading_the_model_is_no_part_of_the_forecast(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asks, ask = [0.0], itertools.count(1), Runner.ask
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def timed(self: Runner, *given: Any) -> dict[str, float]:
        if next(asks) > 30:
            raise KeyboardInterrupt
        now[0] += 1 if self.is_loaded else 36_000
        return ask(self, *given)

    monkeypatch.setattr(Runner, "ask", timed)
    ended = choose(*words, "--margin", 0.01, "--spend", "20h", results=tmp_path / "results")
    assert "undecided, interrupted" in ended.out
    assert re.search(r"about [\d,]+ more answers \(\d+ (s|min)\) would decide it", ended.out), ended.out


def stopped_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a race after so many requests."""
    ask, count = Runner.ask, itertools.count(1)

    def stopped(*given: Any) -> dict[str, float]:
        if next(count) > calls:
            raise KeyboardInterrupt
        return ask(*given)

    monkeypatch.setattr(Runner, "ask", stopped)


def test_cheap_settings_are_asked_first_so_that_an_early_interruption_has_an_answer(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(5, monkeypatch)
    ended = choose(*words, "--margin", 0.01, results=tmp_path / "results")
    assert ended.code == 130
    assert re.match("Use for now: (no demonstrations|bm25, k=1|random, k=1)", ended.out)
    assert re.search(
        r"undecided, interrupted: 4 other settings are not ruled out .*; [23] of them have no answers yet", ended.out
    )
    assert re.search(r"at least [1-9]\d* more answers", ended.out)
    assert re.search(r"5 of 5 settings left, [23] of them without answers yet", ended.err)


def test_the_first_answers_of_settings_are_asked_once_in_rounds_that_cost_no_more_than_all_before(
    task: Path, tiny: Path, tmp_path: Path
) -> None:
    spec = ChooseSpec(task=str(task), model=str(tiny), k="0,1,2,4,6,8", select="random,bm25", draws=3, device="cpu")
    contest = Contest.prepare(spec, lambda _: None, tmp_path / "results")
    costs, rounds, first = [], [], contest.race.rules.first
    while (asks := contest._entering(contest.race.next())) and not asks[0].start:
        costs.append(contest._cost_of(asks, contest.costs, contest.measure or ""))
        rounds.append([contest.settings[ask.candidate] for ask in asks])
        for ask in asks:
            contest.race.tell(ask, np.ones(ask.stop - ask.start))
    names = [one.name for entered in rounds for one in entered]
    assert sorted(names) == sorted(one.name for one in contest.settings)
    assert [contest.race.asked.min() >= first, rounds[0][0].name] == [True, "no demonstrations"]
    assert 2 < len(rounds) < 8
    for n, entered in enumerate(rounds):
        if len({one.read_with for one in entered}) > 1:
            assert costs[n] <= max(sum(costs[:n]), 0.1 * sum(costs))
    shared = [n for n, entered in enumerate(rounds) if any(one.select == "random" and one.k > 2 for one in entered)]
    assert len(shared) == 1  # nested demonstrations are read once


def test_by_default_hybrids_and_retrieval_by_embeddings_race(task: Path, tiny: Path, tmp_path: Path) -> None:
    options = {"task": str(task), "model": str(tiny), "k": "0,1,5,6", "draws": 2, "device": "cpu", "method": "none"}
    contest = Contest.prepare(ChooseSpec(**options), lambda _: None, tmp_path)
    hybrid = "hybrid:5,by=dense"
    wanted = {f"{one}, k={k}" for one in ("random", "balanced", "bm25", "dense") for k in (1, 5, 6)}
    assert {one.name for one in contest.settings} == {"no demonstrations", f"{hybrid}, k=6"} | wanted
    assert contest.left_out == []
    named = Contest.prepare(ChooseSpec(**options, select=f"{hybrid},dense"), lambda _: None, tmp_path)
    assert {one.name for one in named.settings} == {one for one in wanted if "dense" in one} | {
        "no demonstrations",
        f"{hybrid}, k=6",
    }
    assert ["k=1 has no room" in named.left_out[0], named.left_out[1:]] == [
        True,
        [f"{hybrid}, k=5: shows no shared demonstrations; dense, k=5 races"],
    ]
    alone = Contest.prepare(ChooseSpec(**options, select=hybrid), lambda _: None, tmp_path)
    assert f"{hybrid}, k=5" in {one.name for one in alone.settings}


def test_selections_of_the_default_without_their_encoder_are_named_and_others_race(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icl_bench.models.text_encoders._packaged_folder", lambda: None)
    words = ("choose", "--task", task, "--model", tiny, "--k", "0,6", "--draws", "2", "--method", "none", *HERE)
    ended = run_command(*words, "--margin", "50", "--results", tmp_path / "results", "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert {one["select"] for one in record["settings"] if one["k"]} == {"random", "balanced", "bm25"}
    (reason,) = record["left_out"]
    assert reason.startswith("hybrid:5,by=dense and dense: sentence embeddings need the encoder")
    named = run_command(*words, "--select", "bm25,dense", "--results", tmp_path / "named")
    assert [named.code, "pip install 'icl-bench[encoder]'" in named.err] == [2, True]


@pytest.mark.parametrize(
    ("error", "ended"),
    [(KeyboardInterrupt(), "interrupted"), (StopRunError("the server is away"), "the server is away")],
)
def test_the_answers_of_a_request_that_is_stopped_are_counted(
    task: Path,
    tiny: Path,
    tmp_path: Path,
    asked: Counter[tuple[str, str]],
    error: BaseException,
    ended: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = itertools.count(1)

    def stopped(*_: object) -> None:
        if next(calls) > 16:  # in the second round
            raise error

    monkeypatch.setattr(RaceProgress, "predicted", stopped)
    options = {"k": "0,1,2", "select": "random,bm25", "draws": 3, "margin": 0.01, "device": "cpu", "dtype": "float32"}
    contest = raced({"task": str(task), "model": str(tiny), **options}, tmp_path / "results", Display(quiet=True))
    assert contest.ended == ended
    assert contest.outcome.answers == sum(asked.values())


def test_the_answers_of_an_interrupted_request_are_paid(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RaceProgress, "predicted", stopped)
    options = {"k": "0,1", "select": "random", "device": "cpu", "dtype": "float32", "spend": "1Mtokens"}
    contest = raced({"task": str(task), "model": str(tiny), **options}, tmp_path / "results", Display(quiet=True))
    done = contest.outcome
    assert done.answers > 0
    assert contest.spent >= done.prompt_tokens - done.cached_tokens + done.answer_tokens > 0


def test_a_time_that_is_too_short_for_a_first_look_is_refused_and_its_answers_are_kept(
    words: tuple[object, ...], tmp_path: Path, tick: Callable[[float], None]
) -> None:
    tick(10)
    ended = choose(*words, "--spend", "30s", results=tmp_path / "results")
    assert ended.code == 2
    assert "--spend 30s: too short for the first answers of 5 prompts" in ended.err
    assert list((tmp_path / "results").rglob("*.journal.jsonl"))


def test_the_time_of_a_first_look_is_not_extrapolated_from_a_small_part_of_it(
    words: tuple[object, ...], tmp_path: Path, tick: Callable[[float], None]
) -> None:
    tick(10)
    ended = choose(*words, "--k", "0,1,2,3,4", "--spend", "15s", results=tmp_path / "results")
    assert ended.code == 2
    assert "--spend 15s: too short for the first answers of 9 prompts; " in ended.err


def test_it_is_then_estimated_from_the_operations(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick: Callable[[float], None]
) -> None:
    monkeypatch.setattr(module, "rate_of", lambda _: 100.0)
    tick(10)
    ended = choose(*words, "--k", "0,1,2,3,4", "--spend", "15s", results=tmp_path / "results")
    assert re.search(
        r"--spend 15s: too short for the first answers of 9 prompts, which takes about [\d.,]+ (h|d)", ended.err
    )


def test_a_spent_time_ends_the_race_with_what_it_knows(
    words: tuple[object, ...], tmp_path: Path, tick: Callable[[float], None]
) -> None:
    tick(1)
    record = json.loads(choose(*words, "--margin", 0.01, "--spend", "34s", "--json", results=tmp_path / "results").out)
    assert (record["decided"], record["ended"]) == (False, "the time is spent")
    assert record["choice"]


@pytest.mark.parametrize("spend", [("--spend", "2s"), ("--spend", "$0.01", "--price", "hour=3600")])
def test_stored_answers_are_read_again_whatever_the_budget_so_that_the_answer_does_not_regress(
    words: tuple[object, ...], tmp_path: Path, tick: Callable[[float], None], spend: tuple[str, ...]
) -> None:
    racing = (*words, "--margin", 0.01, "--json")
    before = json.loads(choose(*racing, *spend[2:], "--spend", "30m", results=tmp_path / "results").out)
    tick(1)
    after = json.loads(choose(*racing, *spend, results=tmp_path / "results").out)
    assert before["predictions"] == before["predictions_of_full_sweep"]
    assert [after[name] for name in ("choice", "decided", "predictions", "ended", "settings")] == [
        before[name] for name in ("choice", "decided", "predictions", "ended", "settings")
    ]
    assert after["budget"]["spent"] == 0


def test_scores_without_near_duplicates_are_those_of_the_other_rows(task: Path, tiny: Path, tmp_path: Path) -> None:
    repeated = [one | {"text": one["text"].upper()} for one in map(fakes.row, range(6))]
    fakes.write_rows(task.parent / "test.jsonl", [*repeated, *map(fakes.row, range(1000, 1024))])
    data = load_data(load_task(task))
    near = near_duplicates(data.test, data.train)
    assert 6 <= len(near) < len(data.test) == 30
    words = ("--task", task, "--model", tiny, *SETTINGS, *HERE, "--margin", 0.01)
    record = json.loads(choose(*words, "--json", results=tmp_path / "results").out)
    assert record["rows_with_near_duplicates"] == len(near)
    frame = read_results(tmp_path / "results")
    others = frame[~frame["test_id"].isin(near)]
    for one in record["settings"]:
        mine = others[(others["k"] == one["k"]) & ((others["select"] == one["select"]) | (one["k"] == 0))]
        assert one["score_without_near_duplicates"] == pytest.approx(mine["correct"].mean())
    answer = choose(*words, results=tmp_path / "results").out
    assert (
        f"% on new texts: this is without the {len(near)} of 30 test rows with a near duplicate among the examples"
        in answer
    )


@pytest.mark.parametrize(("select", "written"), [("bm25", "the prompt of one row"), ("random", "the prompt")])
def test_the_last_line_says_whether_one_prompt_serves_all_queries(
    task: Path, tiny: Path, tmp_path: Path, select: str, written: str
) -> None:
    words = ("--task", task, "--model", tiny, "--k", "1", "--select", select, "--draws", "2", *HERE)
    assert f"writes {written} " in choose(*words, results=tmp_path / "results").out.splitlines()[-1]


def test_the_time_of_this_machine_is_paid_by_the_hour_where_money_is_spent(
    words: tuple[object, ...], tmp_path: Path, tick: Callable[[float], None]
) -> None:
    tick(1)
    priced = ("--margin", "0.01", "--price", "hour=3600", "--spend", "$18", "--json")
    record = json.loads(said("choose", *words, *priced, "--results", tmp_path / "results"))
    assert (record["decided"], record["ended"]) == (False, "the money is spent")
    assert record["compared_by"] == "money"
    assert 18 <= record["budget"]["spent"] <= 20


def test_one_draw_of_what_is_drawn_says_nothing_of_others(words: tuple[object, ...], tmp_path: Path) -> None:
    record = json.loads(choose(*words, "--draws", 1, "--json", results=tmp_path / "results").out)
    wide = {one["setting"]: one["ci_high"] - one["ci_low"] for one in record["settings"]}
    assert wide["random, k=1"] == wide["random, k=2"] == 1
    assert wide["bm25, k=1"] < 1
    assert wide["no demonstrations"] < 1
    assert record["decided"]  # of the sweep


def test_settings_that_do_not_fit_are_left_out_by_name(words: tuple[object, ...], tmp_path: Path) -> None:
    ended = choose(*words, "--k", "1,500", results=tmp_path / "results")
    assert ended.code == 0
    assert "left out: k=500 is more than the pool's 40 demonstrations" in ended.err
    assert "k=500" not in ended.out


def test_python_has_the_same(words: tuple[object, ...], task: Path, tiny: Path, tmp_path: Path) -> None:
    there = json.loads(choose(*words, "--json", results=tmp_path / "there").out)
    here = icl_bench.choose(
        task=task,
        model=tiny,
        k=[0, 1, 2],
        select=["random", "bm25"],
        draws=3,
        device="cpu",
        dtype="float32",
        spend="30m",
        results=tmp_path / "here",
        quiet=True,
    )
    assert {**here, "seconds": 0, "budget": {}} == {**there, "seconds": 0, "budget": {}}
    with pytest.raises(UserError, match="not an option of choose"):
        icl_bench.choose(task=task, model=tiny, batch=True)
    with pytest.raises(UserError, match="on this machine"):
        icl_bench.choose(task=task, model=tiny, on="ray")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--spend", "5"), "--spend 5: expected a time like 90s, 30m or 1.5h"),
        (("--spend", "0m"), "--spend 0m: expected a time like 90s, 30m or 1.5h"),
        (("--margin", "0"), "--margin 0"),
        (("--queries", "0"), "--queries 0"),
        (("--queries", "1" + "0" * 400), "expected 1 or more, at most 1,000,000,000,000,000"),
    ],
)
def test_a_wrong_value_is_one_line(words: tuple[str, ...], message: str) -> None:
    ended = run_command("choose", "--task", "t", "--model", "m", *words)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert message in ended.err


def test_the_first_round_costs_what_it_takes_to_read_the_demonstrations() -> None:
    cells = [(None, SimpleNamespace(prefix_tokens=90, queries=10, prompt_tokens=1000))] * 10
    cheap = Setting("a", "random", 1, tuple(cells), compute=(ComputeCost(1.0, 2.0, 3.0, 0.0),))  # type: ignore[arg-type]
    dear = Setting(
        "b",
        "random",
        9,
        tuple(cells),  # type: ignore[arg-type]
        compute=(ComputeCost(90.0, 2.0, 92.0, 0.0), ComputeCost(108.0, 4.0, 112.0, 0.0)),
    )
    assert first_round([cheap]) == FIRST_LOOK
    assert first_round([cheap, dear]) == round(10 * 99 / (2 + 3))  # the nine begin with the one
    assert first_round([cheap, replace(dear, select="balanced")]) == 10 * (1 + 99) / (2 + 3)
    assert first_round([Setting("c", "random", 1, ())]) == FIRST_LOOK


@given(st.integers(1, 10**4), st.sampled_from(["s", "m", "h"]))
def test_times_are_read_in_seconds(number: int, unit: str) -> None:
    spec = ChooseSpec(task="t", model="m", spend=f"{number}{unit}")
    assert spec.spend == Spend(number * {"s": 1, "m": 60, "h": 3600}[unit], "time")
    assert ChooseSpec(task="t", model="m", spend=spec.spend).spend == spec.spend
    assert ChooseSpec(task="t", model="m", spend=spec.spend.amount).spend == spec.spend


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.integers(0, 5))
def test_every_beginning_of_the_order_has_the_labels_shares(labels: list[str], seed: int) -> None:
    rows = [Example(f"r{i}", {"text": ""}, label) for i, label in enumerate(labels)]
    order = stratified(rows, np.random.default_rng(seed))
    assert sorted(order) == sorted(row.id for row in rows)
    label_of = {row.id: row.answer for row in rows}
    for size in range(1, len(rows) + 1):
        seen = Counter(label_of[name] for name in order[:size])
        for label, count in Counter(labels).items():
            assert abs(seen[label] - size * count / len(rows)) < len(set(labels)) + 1


def test_settings_without_draws_are_asked_once_a_row(task: Path, tiny: Path, tmp_path: Path) -> None:
    words = ("--task", task, "--model", tiny, "--k", "2", "--select", "first,random", *HERE)
    ended = run_command("choose", *words, "--margin", "0.01", "--results", tmp_path / "results", "--json")
    record = json.loads(ended.out)
    by_name = {one["select"]: one for one in record["settings"]}
    assert by_name["first"]["predictions"] <= 30
    assert by_name["first"]["draws"] == 1
    assert record["predictions"] <= record["predictions_of_full_sweep"]


def test_draws_of_retrieval_that_are_copies_count_as_one(
    task: Path, tiny: Path, tmp_path: Path, asked: Counter[tuple[str, str]]
) -> None:
    """As the note before the race says. They were counted as further answers and random draws of examples."""
    texts = [
        f"{'card' if number < 3 else 'lost'}{' word' * number}" for number in range(12)
    ]  # shorter ones match better
    rows = [{"text": text, "label": fakes.LABELS[number % 3]} for number, text in enumerate(texts)]
    fakes.write_rows(task.parent / "train.jsonl", rows)
    fakes.write_rows(
        task.parent / "test.jsonl", [{"text": f"card {i}", "label": fakes.LABELS[i % 3]} for i in range(9)]
    )
    words = (
        "--task",
        task,
        "--model",
        tiny,
        *HERE,
        "--k",
        "1,2",
        "--select",
        "bm25",
        "--draws",
        "3",
        "--method",
        "none",
    )
    ended = choose(*words, "--margin", "0.1", results=tmp_path / "results")
    assert "its draws count as one" in " ".join(ended.err.split())
    assert "over 9 answers to 9 test rows, 95% interval" in ended.out
    assert len(asked) == sum(asked.values()) == 2 * 9
    record = json.loads(choose(*words, "--margin", "0.1", "--json", results=tmp_path / "results").out)
    assert [(one["predictions"], one["draws"]) for one in record["settings"]] == [(9, 1), (9, 1)]
    assert record["predictions"] == record["predictions_of_full_sweep"] == 18


def test_scores_a_little_outside_0_to_1_are_rounding_and_end_no_race(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Runner.ask
    by_rounding = {0.0: -1e-9, 1.0: 1.0000000000000004}
    monkeypatch.setattr(Runner, "ask", lambda *given: {n: by_rounding[s] for n, s in ask(*given).items()})
    ended = run_command("choose", *words, "--margin", "5", "--results", tmp_path / "results", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["decided"]


def test_the_printed_commands_write_the_prompt_of_the_choice_for_any_query(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--task", task, "--model", tiny, "--k", "2", "--draws", "2", *HERE)
    last = said("choose", *words, "--select", "random", "--results", "here").splitlines()[-1]
    commands = [shlex.split(one.partition("icl-bench ")[2], comments=True) for one in last.split(" && ")]
    refused = run_command(*commands[1])
    assert (refused.code, "no finished cell" in refused.err) == (2, True)
    said(*commands[0], "--quiet")
    assert "put the query's text in place of {text}" in said(*commands[1]).replace("\n", " ")
    prompt = (tmp_path / "prompt.txt").read_bytes().decode()
    assert prompt.endswith("query: {text}\nintent:")
    assert prompt.count("intent: ") == 2
    for place, name in enumerate(icl_bench.read("here").predictions["test_id"].unique()[:2]):
        shown = icl_bench.read("here").show(2, test_id=name).prompt
        text = shown.removesuffix("\nintent:").rpartition("query: ")[2]
        assert prompt.replace("{text}", text) == shown, place


def test_of_retrieval_the_prompt_of_one_row_is_written_and_it_says_so(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said("run", "--task", task, "--model", tiny, "--k", "1", "--select", "bm25", "--quiet", *HERE)
    words = ("show", "--task", task, "--k", "1", "--prompt", tmp_path / "new" / "prompt.txt")
    assert "other queries have demonstrations of their own" in said(*words).replace("\n", " ")
    assert (tmp_path / "new" / "prompt.txt").read_bytes().decode() == icl_bench.read().show(1).prompt
    ended = run_command(*words[:-1], tmp_path)
    assert (ended.code, "--prompt" in ended.err) == (2, True)


def test_calibrated_settings_race_at_no_further_predictions_and_have_the_scores_of_the_whole_cells(
    task: Path, tiny: Path, tmp_path: Path, asked: Counter[tuple[str, str]]
) -> None:
    words = ("--task", task, "--model", tiny, "--k", "0,2", "--select", "random", "--draws", "2", *HERE)
    exact = ("--score", "exact", "--calibrate", "batch", "--margin", "0.01", "--json")
    record = json.loads(said("choose", *words, *exact, "--results", tmp_path / "results"))
    assert set(asked.values()) == {1}
    assert record["predictions"] == record["predictions_of_full_sweep"] == sum(asked.values())
    frame = read_stored(tmp_path / "results", apart=False, derive=True).predictions
    for one in record["settings"]:
        mine = frame[
            (frame["k"] == one["k"]) & (frame["cell"].str.endswith("+batch") == (one["calibration"] == "batch"))
        ]
        assert one["score"] == pytest.approx(mine["correct"].mean(), abs=1e-9), one["setting"]
    assert [one["calibration"] for one in record["settings"]] == [None, None, "batch", "batch"]


def test_a_calibrated_choice_says_that_answers_are_to_be_calibrated_in_use(
    task: Path, tiny: Path, tmp_path: Path
) -> None:
    spec = ChooseSpec(
        task=task, model=tiny, k="0,2", select="random", draws=2, score="exact", calibrate="batch", device="cpu"
    )
    contest = Contest.prepare(spec, lambda _: None, tmp_path / "results")
    assert [one.calibration is None for one in contest.settings] == [True, True, False, False]
    contest.run(tmp_path / "results")
    plain, *_, without = answer_lines(contest, tmp_path / "results")
    assert "log-probability" not in plain
    assert "not calibrated" not in without
    for one in (0, 1):
        contest.race.withdraw(one)
    use, *_, then = answer_lines(contest, tmp_path / "results")
    assert ", calibrated (batch), accuracy" in use
    assert "in use, too, subtract from each label's log-probability its mean over the queries" in use
    assert then.endswith("to a file, whose answers are not calibrated yet")


def test_a_calibrated_setting_is_out_no_earlier_than_after_ten_rows_of_every_draw(
    task: Path, tiny: Path, tmp_path: Path
) -> None:
    words = ("--task", task, "--model", tiny, "--k", "1,2", "--select", "random", "--draws", "6", *HERE)
    exact = ("--score", "exact", "--calibrate", "batch", "--margin", "60", "--json")
    record = json.loads(said("choose", *words, *exact, "--results", tmp_path / "results"))
    out = {
        calibrated: [
            one["predictions"] for one in record["settings"] if one["out"] and bool(one["calibration"]) is calibrated
        ]
        for calibrated in (True, False)
    }
    assert min(out[True]) >= 60
    assert min(out[False]) < 60


@pytest.mark.parametrize("whole", [True, False])
def test_stored_answers_without_the_scores_of_all_labels_are_not_calibrated(
    task: Path, tiny: Path, tmp_path: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--task", task, "--model", tiny, "--k", "0,2", "--select", "random", "--draws", "2", *HERE)
    exact, append = (*words, "--score", "exact", "--results", tmp_path / "results"), OpenCell.append

    def cut(self: OpenCell, predictions: Any, *seconds: float | None) -> None:
        append(self, predictions, *seconds)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if not whole:
            patched.setattr(OpenCell, "append", cut)
        run_command("run", *exact, "--keep-scores", "top:1", "--quiet")
    assert bool(list((tmp_path / "results").rglob("*.parquet"))) is whole
    ended = run_command("choose", *exact, "--calibrate", "batch")
    assert (ended.code, len(ended.err.strip().splitlines()[-1:])) == (2, 1)
    finished, begun = "not all scores of its answers are stored", "lacks label scores that this run needs"
    assert (finished if whole else begun) in ended.err


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds so far, where an answer takes a tenth of one and all else nothing."""
    now, append = [0.0], OpenCell.append

    def slowly(self: OpenCell, predictions: Any, *seconds: float | None) -> None:
        now[0] += 0.1 * len(predictions)
        append(self, predictions, *seconds)

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(OpenCell, "append", slowly)
    return now


@pytest.mark.usefixtures("clock")
def test_a_round_is_cut_to_the_time_that_is_left_so_that_its_answers_count(
    words: tuple[object, ...], tmp_path: Path, asked: Counter[tuple[str, str]]
) -> None:
    racing = ("choose", *words, "--margin", "0.01", "--json", "--spend")
    for seconds in (14, 22):
        asked.clear()
        record = json.loads(said(*racing, f"{seconds}s", "--results", tmp_path / str(seconds)))
        assert (record["decided"], record["ended"]) == (False, "the time is spent")
        assert record["predictions"] == sum(asked.values())
        assert 0.8 * seconds < record["budget"]["spent"] <= seconds + 1e-6


@pytest.mark.usefixtures("clock")
def test_a_repeated_race_comes_as_far_as_one_whose_rounds_were_cut(words: tuple[object, ...], tmp_path: Path) -> None:
    racing = ("choose", *words, "--margin", "0.01", "--json", "--results", tmp_path / "results", "--spend")
    before, after = (json.loads(said(*racing, spend)) for spend in ("22s", "0.2s"))
    assert before["predictions"] > 5 * 21
    for old, new in zip(before["settings"], after["settings"], strict=True):
        assert new["predictions"] >= old["predictions"], new["setting"]


def test_after_a_training_a_round_is_cut_to_the_time_that_is_left(
    words: tuple[object, ...],
    tmp_path: Path,
    asked: Counter[tuple[str, str]],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn = Probe.learn

    def slow(self: Probe, examples: Examples, keep: Path | None) -> list[Learned]:
        clock[0] += 13.0 * (examples.draw == 2)
        return learn(self, examples, keep)

    monkeypatch.setattr(Probe, "learn", slow)
    trained = ("--method", "probe", "--train-k", "12")
    # the first round takes 10.5 s, its trainings 3, 3 and 16 s, a whole second round 4.5 s
    racing = ("choose", *words, *trained, "--margin", "0.01", "--spend", "36s", "--json")
    record = json.loads(said(*racing, "--results", tmp_path / "results"))
    assert (record["decided"], record["ended"]) == (False, "the time is spent")
    counted = sum(one["predictions"] for one in record["settings"] if one["select"] != "probe")
    assert counted == sum(count for (cell, _), count in asked.items() if "probe" not in Path(cell).name)
    assert counted > 5 * 21


@pytest.mark.usefixtures("clock")
def test_the_time_of_a_first_look_is_estimated_from_what_this_command_answered(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    for _ in range(2):
        ended = choose(*words, "--k", "2", "--spend", "1s", results=tmp_path / "results")
        assert ended.code == 2
        amount = float(ended.err.partition("takes about ")[2].partition("s;")[0])
        assert amount == pytest.approx(4.2, rel=0.4)  # 2 settings, 21 answers each; prompts differ in length


def test_tokens_of_this_machine_end_a_race_before_the_budget_is_passed(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    racing = ("choose", *words, "--margin", "0.01", "--json", "--spend")
    for spend in (6000, 9000):
        record = json.loads(said(*racing, f"{spend}tokens", "--results", tmp_path / str(spend)))
        assert (record["ended"], record["decided"]) == ("the tokens are spent", False)
        assert 0.6 * spend < record["budget"]["spent"] <= spend
    ended = run_command(*racing, "20tokens", "--results", tmp_path / "little")
    assert ended.code == 2
    assert "too small for the first answers of 5 prompts; it takes about " in ended.err
    assert not list((tmp_path / "little").rglob("*.jsonl"))


@pytest.mark.parametrize("calls", [1, pytest.param(7, marks=pytest.mark.thorough), 15])
def test_a_results_folder_that_is_deleted_during_a_race_is_an_error(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    ask, count = Runner.ask, itertools.count(1)

    def asked_and_deleted(*given: Any) -> dict[str, float]:
        found = ask(*given)
        if next(count) == calls:
            shutil.rmtree(tmp_path / "results")
        return found

    monkeypatch.setattr(Runner, "ask", asked_and_deleted)
    ended = choose(*words, "--margin", 0.01, results=tmp_path / "results")
    assert ended.code != 0, ended.out
    assert "results" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("spend", "left", "positions"),
    [("10s", 10.0, 5), ("50s", 50.0, 20), ("10s", 1.2, 1), ("10s", 0.9, None), ("10tokens", 10.0, 10)],
)
def test_a_round_takes_at_most_half_of_the_remaining_time_by_its_estimate(
    spend: str, left: float, positions: int | None
) -> None:
    contest: Any = SimpleNamespace(
        account=SimpleNamespace(left=left),
        spec=SimpleNamespace(spend=Spend.parse(spend)),
        race=SimpleNamespace(looked=True),
        _estimate=lambda asks: float(sum(ask.stop - ask.start for ask in asks)),
        _stored=lambda _asks: 0,
    )
    found = Contest._fit(contest, [Ask(0, 100, 120)])
    assert found == (None if positions is None else [Ask(0, 100, 100 + positions)])


def test_a_budget_that_ends_within_a_round_is_reported_with_the_answers_that_do_not_count(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, count = Contest._asked, itertools.count(1)

    def ended_within(self: Contest, *given: Any) -> bool:
        whole = asked(self, *given)
        return whole and next(count) < 3

    monkeypatch.setattr(Contest, "_asked", ended_within)
    ended = choose(*words, "--margin", 0.01, results=tmp_path / "results")
    said = " ".join(ended.err.split())
    assert re.search(r"the budget ended within a round: its [1-9]\d* answers are stored, but count only once", said)


@pytest.fixture
def seconds_a_token(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a computed token of a prompt takes on a clock which nothing else moves: settable."""
    now, pace = [0.0], [0.0]
    ask = Runner.ask

    def slow(self: Runner, group: PlannedGroup, cell: CellPlan, names: Sequence[str], outcome: Outcome) -> Any:
        before = outcome.answers
        found = ask(self, group, cell, names, outcome)
        now[0] += pace[0] * (outcome.answers - before) * cell.prompt_tokens / cell.queries
        return found

    monkeypatch.setattr(Runner, "ask", slow)
    monkeypatch.setattr("icl_bench.choosing.contest.time.monotonic", lambda: now[0])
    return pace


def test_prompts_whose_first_answers_take_more_than_half_of_the_remaining_time_leave_the_race(
    task: Path, tiny: Path, tmp_path: Path, seconds_a_token: list[float]
) -> None:
    words = {"task": str(task), "model": str(tiny), "k": "0,1,2,8", "select": "bm25", "method": "none"}

    def race(budget: str) -> Contest:
        contest = Contest.prepare(
            ChooseSpec(**words, spend=budget, device="cpu", dtype="float32", margin=0.01), lambda _: None, tmp_path
        )
        vars(contest.entrants[0])["rate"] = 1e9
        if not seconds_a_token[0]:
            largest = contest.settings[-1].cells[0][1]
            seconds_a_token[0] = 60 / (20 * largest.prompt_tokens / largest.queries)
        contest.run(tmp_path)
        return contest

    contest = race("100s")
    assert [
        one.name for one, left in zip(contest.settings, contest.answer().standings, strict=True) if not left.raced
    ] == ["bm25, k=8"]
    (reason,) = contest.left_out
    assert re.match(
        r"bm25, k=8: the first answers would take about \d+ s, more than half of what is left of --spend \(\d+ s\)$",
        reason,
    )
    assert "bm25, k=8 (no time)" in unknown(contest, contest.answer())
    asked = contest.race.asked.tolist()
    assert [asked[-1], min(asked[:-1])] == [0, len(contest.rows)]  # the others come to an end
    seconds_a_token[0] /= 1000
    again = race("100s")  # a new budget tries it again
    assert [again.left_out, int(again.race.asked.min()) > 0] == [[], True]


def test_a_forecast_counts_answers_once_and_none_that_is_stored(task: Path, tiny: Path, tmp_path: Path) -> None:
    """A calibrated setting is derived from the answers of its prompt."""
    words = {"task": str(task), "model": str(tiny), "k": "2,4", "select": "random", "draws": 2, "method": "none"}
    words |= {"score": "exact", "device": "cpu", "dtype": "float32"}
    needed = []
    for calibrate in ((), ("batch",)):
        contest = Contest.prepare(ChooseSpec(**words, calibrate=calibrate or None), lambda _: None, tmp_path)
        for place in range(len(contest.settings)):
            contest.race.tell(Ask(place, 0, 20), np.arange(20.0) % 2)
        needed.append(contest.still_needed()[0])
    assert [needed[0] > 0, needed[1]] == [True, needed[0]]
    left = []
    for place in (0, 1):
        for one in contest._questions_of([Ask(place, 20, contest.race.length)]):
            contest._known[id(one.cell)] |= set(one.rows)
        left.append(contest.still_needed()[0])
    assert [0 < left[0] < needed[0], left[1]] == [True, 0]


def test_the_time_of_first_answers_is_estimated_by_operations_whatever_costs_are_compared(
    task: Path, tiny: Path, tmp_path: Path
) -> None:
    words = {"task": str(task), "model": str(tiny), "k": "0,2", "method": "none", "device": "cpu", "dtype": "float32"}
    seconds = []
    for price, measure in ((None, "operations"), ("hour=0.4", "money")):
        contest = Contest.prepare(ChooseSpec(**words, price=price), lambda _: None, tmp_path)
        vars(contest.entrants[0])["rate"] = 1e9
        assert contest.measure == measure
        seconds.append(contest._by_formula(contest._first_prompts()))
    assert seconds[0] == seconds[1]
    assert seconds[0]


def test_of_settings_that_read_the_same_demonstrations_those_with_the_most_leave_the_race_first(
    task: Path, tiny: Path, tmp_path: Path
) -> None:
    words = {"task": str(task), "model": str(tiny), "k": "0,1,2,4,8", "select": "random", "method": "none"}
    contest = Contest.prepare(ChooseSpec(**words, device="cpu", dtype="float32"), lambda _: None, tmp_path)
    asks = [Ask(place, 0, 20) for place, one in enumerate(contest.settings) if one.k]
    shared = [ask for ask in asks if contest.settings[ask.candidate].read_with == contest.settings[-1].read_with]
    assert len(shared) > 1
    contest.race.tell(Ask(0, 0, 20), np.ones(20))
    contest.entrants[0].estimated = contest.entrants[0].took = 1.0  # a second a token
    kept = contest._seconds_of(asks[:2])
    contest.account = Account(Spend(2 * kept + 0.1, "time"))
    most = contest._affordable(asks)
    names = [contest.settings[ask.candidate].name for ask in most]
    assert names == ["random, k=1", "random, k=2"]
    (reason,) = contest.left_out
    assert reason.startswith("random, k=4 and 8: the first answers, with those of smaller k, would take about ")
    assert [one.raced for one in contest.answer().standings] == [True, True, True, False, False]


def test_names_of_settings_that_differ_in_k_alone_are_joined() -> None:
    named = [("no demonstrations", 0), ("bm25, k=5", 5), ("a k=5: dense, k=10", 10), ("bm25, k=50", 50)]
    settings = [SimpleNamespace(name=name, k=k) for name, k in named]
    assert names_of(settings) == "no demonstrations; bm25, k=5 and 50; a k=5: dense, k=10"
