"""``choose``: methods that learn from the examples race beside prompts, as cells of ``finetune``."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import fakes
from support.in_process import run_command, said
from support.models import llama_tokenizer, tiny_checkpoint

from icl_bench.choosing.contest import Contest
from icl_bench.choosing.learners import sizes_of
from icl_bench.choosing.options import ChooseSpec
from icl_bench.choosing.race import Ask
from icl_bench.errors import CellError
from icl_bench.results.reading import finished_cells, read_races, read_results
from icl_bench.sweep.runner import Runner
from icl_bench.sweep.sweep import Sweep
from icl_bench.training.examples import Examples
from icl_bench.training.finetune import LABELS, Finetuning
from icl_bench.training.interface import Learned
from icl_bench.training.methods.finetuned import Lora
from icl_bench.training.methods.nearest_neighbours import NearestNeighbours
from icl_bench.training.methods.probe import Probe

pytestmark = pytest.mark.usefixtures("loading_once")

HERE = ("--device", "cpu", "--dtype", "float32")
PROMPTS = ("--k", "0,1", "--select", "random", "--draws", "2")
AXES = ["select", "k", "draw", "cell", "test_id"]


@pytest.fixture(autouse=True)
def _of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Method, k and draw of each training."""
    trainings: list[tuple[str, int, int]] = []
    learn = Finetuning._learn

    def counted(self: Finetuning, method: Any, examples: Any, identity: Any) -> Any:
        trainings.append((method.name, examples.k, examples.draw))
        return learn(self, method, examples, identity)

    monkeypatch.setattr(Finetuning, "_learn", counted)
    return trainings


@pytest.fixture
def words(tmp_path: Path, tiny: Path) -> tuple[object, ...]:
    task = fakes.write_task(tmp_path / "task", train_rows=80, test_rows=30)
    return ("--task", task, "--model", tiny, *HERE)


def choose(words: tuple[object, ...], *more: object, results: Path) -> dict[str, Any]:
    ended = run_command("choose", *words, *PROMPTS, *more, "--json", "--results", results)
    assert ended.code == 0, ended.err
    return dict(json.loads(ended.out))


def prepared(tmp_path: Path, tiny: Path, changes: dict[str, Any] | None = None, **options: Any) -> Contest:
    """A race on a task with these changes, before its first question."""
    task = fakes.write_task(tmp_path / "task", test_rows=30, **changes or {})
    common = {"k": "0", "device": "cpu", "dtype": "float32", "draws": 2, "model": str(tiny)}
    return Contest.prepare(ChooseSpec(task=str(task), **common | options), lambda _: None, tmp_path / "results")


def test_a_trained_setting_has_the_cells_of_finetune_and_nothing_is_trained_twice(
    words: tuple[object, ...], tmp_path: Path, trained: list[tuple[str, int, int]]
) -> None:
    methods = ("--method", "probe,lora", "--train-k", "12")
    record = choose(words, *methods, results=tmp_path / "raced")
    settings = {one["setting"]: one for one in record["settings"]}
    assert set(settings) == {"no demonstrations", "random, k=1", "probe, k=12", "lora, k=12"}
    each = {("probe", 12, 0), ("probe", 12, 1), ("lora", 12, 0), ("lora", 12, 1)}
    assert sorted(trained) == sorted(each)
    assert settings["lora, k=12"]["flops_per_query"] > settings["probe, k=12"]["flops_per_query"]
    assert record["predictions_of_full_sweep"] == 30 + 3 * 2 * 30
    (race,) = read_races(tmp_path / "raced")
    assert sum("lora-paper" in cell for cell in race.cells) == 2
    stored = {name.removesuffix(".parquet") for name, _ in finished_cells(tmp_path / "raced")}
    partial = {str(path.relative_to(tmp_path / "raced")) for path in (tmp_path / "raced").rglob("*.journal.jsonl")}
    assert set(race.cells) == stored | {name.partition(".journal")[0] for name in partial}

    alone = ("--method", "probe,lora", "--k", "12", "--draws", "2", "--quiet")
    said("finetune", *words, *alone, "--results", tmp_path / "raced")
    assert len(trained) == 4
    said("finetune", *words, *alone, "--results", tmp_path / "alone")
    frames = [read_results(tmp_path / name) for name in ("raced", "alone")]
    frames[0] = frames[0][frames[0]["select"].isin(["probe", "lora", "lora-paper"])]
    for frame in frames:
        frame.sort_values(AXES, inplace=True, ignore_index=True)
    columns = [*AXES, "prediction", "probability", "prompt_hash"]
    pd.testing.assert_frame_equal(*(frame[columns].astype({"select": str, "cell": str}) for frame in frames))

    del trained[:]
    again = choose(words, *methods, results=tmp_path / "raced")
    assert not trained
    assert again["settings"] == record["settings"]
    (resumed,) = read_races(tmp_path / "raced")
    assert resumed.cells == race.cells


def test_the_history_of_a_race_that_is_interrupted_in_a_training_has_what_its_answer_has(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompts of its round counted in the answer, and not in the rounds of the file."""

    def interrupted(*_: Any) -> Learned:
        raise KeyboardInterrupt

    monkeypatch.setattr(Probe, "learn", interrupted)
    racing = ("--k", "0,1,4,8", "--select", "random,balanced,bm25", "--draws", "2", "--method", "probe")
    ended = run_command("choose", *words, *racing, "--train-k", "12", "--json", "--results", tmp_path / "results")
    assert ended.code == 130, ended.err
    record = json.loads(ended.out)
    (race,) = read_races(tmp_path / "results")
    last = race.rounds[-1]
    assert (last.predictions, last.leader) == (record["predictions"], record["choice"])
    told = [(one["predictions"], one["score"]) for one in record["settings"]]
    assert [(one.predictions, one.score) for one in last.standings] == told


def test_the_scores_of_a_trained_setting_are_those_of_its_draws(words: tuple[object, ...], tmp_path: Path) -> None:
    record = choose(words, "--method", "probe", "--train-k", "12", "--margin", "0.01", results=tmp_path / "results")
    (score,) = (one["score"] for one in record["settings"] if one["select"] == "probe" and one["predictions"] == 60)
    frame = read_results(tmp_path / "results")
    assert score == pytest.approx(frame[frame["select"] == "probe"]["correct"].mean(), abs=1e-9)


def test_the_answers_command_writes_what_the_choice_learned(words: tuple[object, ...], tmp_path: Path) -> None:
    more = (*PROMPTS, "--method", "encoder-probe", "--train-k", "60", "--results", tmp_path / "results")
    ended = run_command("choose", *words, *more)
    lines = ended.out.splitlines()
    assert lines[0].startswith("Use: encoder-probe, k=60, accuracy"), ended.out
    assert "a linear classifier of sentence embeddings learns from 60 examples" in lines[0]
    assert re.search(r" answers \(on the same test rows and draws \S+%, the choice \S+%\); a query costs ", lines[2])
    assert "training by knn, probe, lora and full" in lines[3]
    program, *command = shlex.split(lines[4].partition(": ")[2], comments=True)
    assert (program, command[-1]) == ("icl-bench", "trained")
    assert run_command(*command[:-1], tmp_path / "trained", "--quiet").code == 0
    (folder,) = (tmp_path / "trained").iterdir()
    assert (folder / LABELS).is_file()
    (race,) = (tmp_path / "results" / "_races").iterdir()
    run, finetune = (shlex.split(one) for one in json.loads(race.read_text())["command"].split(" && "))
    assert (run[1], finetune[1]) == ("run", "finetune")
    assert run_command(*finetune[1:], "--quiet").code == 0
    frame = read_results(tmp_path / "results")
    of_choice = frame[frame["select"] == "encoder-probe"]
    assert set(of_choice["draw"]) == {0, 1}
    first = f"{100 * of_choice[of_choice['draw'] == 0]['correct'].mean():.1f}"
    assert f"# trains the first of 2 draws again (alone {first}%)" in lines[4]
    assert " over 60 answers (30 test rows, 2 random draws of examples), 95% interval" in lines[0]


@pytest.mark.parametrize(
    ("spend", "why"), [("7000tokens", "2 trainings would take about"), ("30m", "draw 0: this method cannot")]
)
def test_what_cannot_be_trained_or_is_too_dear_is_left_out_by_name_and_the_others_race(
    words: tuple[object, ...],
    tmp_path: Path,
    trained: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch,
    spend: str,
    why: str,
) -> None:
    def broken(*_: object) -> None:
        raise CellError("this method cannot")

    monkeypatch.setattr(Lora, "learn", broken)
    more = ("--method", "lora,probe", "--train-k", "12", "--margin", "40", "--spend", spend)
    record = choose(words, *more, results=tmp_path / "results")
    assert record["decided"]
    assert {method for method, _, _ in trained} == ({"probe"} if "tokens" in spend else {"probe", "lora"})
    (left_out,) = record["left_out"]
    assert left_out.startswith(f"lora, k=12: {why}")
    (lora,) = (one for one in record["settings"] if one["select"] == "lora")
    assert (lora["score"], lora["out"], lora["why"]) == (None, True, "left out")
    (probe,) = (one for one in record["settings"] if one["select"] == "probe")
    assert probe["predictions"] == 2 * 30  # all that a training answers counts, however early the race ends
    assert record["choice"] != "lora, k=12"
    assert "left out" in said("summary", "--results", tmp_path / "results")


def test_a_training_that_is_left_out_again_spends_nothing_of_a_repeated_race(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise CellError("this method cannot")

    monkeypatch.setattr(Lora, "learn", broken)
    more = ("--method", "lora,probe", "--train-k", "12", "--margin", "0.01")
    before = choose(words, *more, results=tmp_path / "results")
    moments = itertools.count(1.0)
    monkeypatch.setattr("icl_bench.choosing.contest.time.monotonic", lambda: next(moments))
    after = choose(words, *more, "--spend", "1s", results=tmp_path / "results")
    names = ("choice", "decided", "predictions", "ended")
    assert [after[name] for name in names] == [before[name] for name in names]
    assert "would take about" in after["left_out"][0]
    answer = said("choose", *words, *PROMPTS, *more, "--spend", "1s", "--results", tmp_path / "results")
    assert "training by knn, encoder-probe, lora (left out) and full" in answer


@pytest.mark.parametrize(
    ("changes", "more", "reason", "racing"),
    [
        (fakes.FREE_TEXT, (), "probe, lora: task cards is free text; fine-tuning needs labels", set()),
        ({}, ("--train-k", "12", "--price", "input=1,cached=0.1,output=2"), "a training has no price of tokens", set()),
        ({}, ("--train-k", "1"), "probe, k=1, lora, k=1: the examples to train on have one label", set()),
        ({}, ("--train-k", "40"), "lora, k=40: k=40 is the whole pool", {"probe"}),
        ({}, ("--train-k", "500"), "probe, k=500, lora, k=500: the pool has 40 examples", set()),
        (
            {},
            (),
            "probe, lora: --train-k auto: --k has no number from 25 below the pool's 40 rows, and the pool is too small "
            "for 100 rows and 100 for validation; give --train-k",
            set(),
        ),
    ],
)
def test_methods_that_do_not_fit_are_named_with_the_reason(
    tmp_path: Path, tiny: Path, changes: dict[str, Any], more: tuple[str, ...], reason: str, racing: set[str]
) -> None:
    options = {
        one.removeprefix("--").replace("-", "_"): value for one, value in zip(more[::2], more[1::2], strict=True)
    }
    contest = prepared(tmp_path, tiny, changes, method="probe,lora", **options)
    assert any(reason in text for text in contest.left_out), contest.left_out
    assert {one.select for one in contest.settings if one.learner} == racing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds so far of a race, in which nothing takes time by itself."""
    now = [0.0]
    monkeypatch.setattr("icl_bench.choosing.contest.time.monotonic", lambda: now[0])
    return now


def test_the_time_of_trainings_is_estimated_from_the_first_one_of_the_method(
    tmp_path: Path, tiny: Path, clock: list[float], trained: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Probe.learn

    def first_slowly(self: Probe, examples: Examples, keep: Path | None) -> list[Learned]:
        clock[0] += 20.0 * (len(trained) == 1)  # later ones have the states of the test rows
        return learn(self, examples, keep)

    monkeypatch.setattr(Probe, "learn", first_slowly)
    contest = prepared(tmp_path, tiny, method="probe", train_k="12,30", spend="100s")
    contest.run(tmp_path / "results")
    assert trained == [("probe", 12, 0), ("probe", 12, 1)]
    (left_out,) = contest.left_out
    assert left_out.startswith("probe, k=30: 2 trainings would take about ")


@pytest.mark.usefixtures("clock")
def test_the_time_of_a_training_that_failed_estimates_no_other(
    tmp_path: Path, tiny: Path, trained: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise CellError("this method cannot")

    monkeypatch.setattr(Probe, "learn", broken)
    contest = prepared(tmp_path, tiny, method="probe", train_k="12,30", spend="100s")
    flops = [one.learner.cost.all_flops for one in contest.settings if one.learner]
    vars(contest.entrants[0])["rate"] = sum(flops) / 50  # half of the budget is between two trainings of each k
    contest.run(tmp_path / "results")
    assert trained == [("probe", 12, 0)]
    assert [why.partition(" would take")[0] for why in contest.left_out] == [
        "probe, k=12: draw 0: this method cannot",
        "probe, k=30: 2 trainings",
    ]


def test_one_model_of_several_is_in_memory_while_it_is_trained(
    tmp_path: Path, tiny: Path, trained: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_checkpoint(tmp_path / "other", "llama", llama_tokenizer())
    runners: list[Runner] = []
    make, learn = Sweep.runner, Probe.learn

    def made(self: Sweep, *given: Any) -> Runner:
        runners.append(make(self, *given))
        return runners[-1]

    loaded: list[tuple[int, int]] = []

    def observed(self: Probe, examples: Examples, keep: Path | None) -> list[Learned]:
        others = [one.learner.finetuning.methods["probe"] for one in contest.settings if one.learner]
        probes = {id(one) for one in others if one is not self and "_states" in vars(one)}
        loaded.append((sum(one._backend is not None for one in runners), len(probes)))
        return learn(self, examples, keep)

    monkeypatch.setattr(Sweep, "runner", made)
    monkeypatch.setattr(Probe, "learn", observed)
    contest = prepared(tmp_path, tiny, model=[str(tiny), str(other)], method="probe", train_k="12,30")
    contest.run(tmp_path / "results")
    assert [k for _, k, _ in trained] == [12] * 4 + [30] * 4, "the models take turns"
    assert loaded == [(0, 0)] * 8


def test_a_round_of_trained_settings_alone_needs_nothing_of_the_budget(tmp_path: Path, tiny: Path) -> None:
    contest = prepared(tmp_path, tiny, method="probe", train_k="12")
    last = len(contest.settings) - 1
    for place in (0, last):
        contest.race.tell(Ask(place, 0, 20), [1.0] * 20)
    prompts, probe = [Ask(0, 20, 30)], [Ask(last, 20, 30)]
    contest.entrants[0].estimated, contest.entrants[0].took = 1.0, 1.0
    contest.account.purse.spent = contest.spec.spend.amount + 1
    assert contest._fit(probe) == probe
    assert contest._fit(prompts) is None


def test_by_default_methods_learn_from_as_many_examples_as_prompts_show_and_a_round_number() -> None:
    def sizes(pool: int, **given: Any) -> tuple[int, ...]:
        return sizes_of(ChooseSpec(task="t", model="m", **given), pool)

    assert sizes(5000) == (200, 1000)
    assert sizes(500) == (200,)
    assert sizes(120) == (100,)
    assert sizes(40) == (25,)
    assert sizes(40, k="0,1") == ()
    assert sizes(5000, k="0,1") == (1000,)
    assert sizes(40, train_k="12,500") == (12, 500)


def test_none_races_prompts_alone_and_a_wrong_method_is_one_line() -> None:
    assert ChooseSpec(task="t", model="m", method="none").methods == ()
    for words, message in (
        (("--method", "nearest"), "--method nearest: not a training method"),
        (("--method", "none,knn"), "--method none: not a training method"),
        (("--train-k", "x"), "--train-k x: not a number of demonstrations"),
    ):
        ended = run_command("choose", "--task", "t", "--model", "m", *words)
        assert (ended.code, len(ended.err.splitlines())) == (2, 1)
        assert message in ended.err


def test_an_encoder_takes_two_operations_a_parameter_and_token() -> None:
    from icl_bench.models.text_encoders import SentenceEncoder

    encoder = SentenceEncoder.find()
    short, long = encoder.cost(["a"]), encoder.cost(["a " * 50])
    assert short is not None
    assert long is not None
    assert (short.tokens, long.tokens) == (3, 52)
    # six layers of four square matrices and two of four times the width, with biases and norms
    width = 384
    weights = 6 * (12 * width * width + 13 * width)
    for cost in (short, long):
        assert cost.flops == 2 * weights * cost.tokens + 4 * 6 * width * cost.tokens**2


def test_what_an_encoder_reads_and_takes_is_known_without_loading_it_again(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icl_bench.models.text_encoders import SentenceEncoder

    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))

    def found(part: str) -> tuple[list[str], list[Any]]:
        contest = prepared(tmp_path / part, tiny, method="knn,encoder-probe", train_k="12")
        return contest.notes_on_learning, [one.learner.cost for one in contest.settings if one.learner]

    first = found("first")
    assert len(first[1]) == 2
    monkeypatch.setattr(SentenceEncoder, "load", None)
    assert found("again") == first


def test_methods_say_whether_they_compute_with_the_model() -> None:
    assert Probe.has_architecture
    assert not NearestNeighbours.has_architecture


def test_a_training_whose_file_is_removed_during_the_race_is_an_error(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = Contest._learn

    def removed(self: Contest, *given: Any) -> None:
        learn(self, *given)
        for file in (tmp_path / "results").rglob("knn*.parquet"):
            file.unlink()

    monkeypatch.setattr(Contest, "_learn", removed)
    options = (*PROMPTS, "--method", "knn", "--train-k", "20", "--results", tmp_path / "results")
    ended = run_command("choose", *words, *options)
    assert ended.code == 2, ended.out
    assert "answers of 2 cells were removed during the race (the first is " in ended.err
