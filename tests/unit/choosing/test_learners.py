"""``choose``: methods that learn from the examples race beside prompts, as cells of ``finetune``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import fakes
from support.in_process import run_command, said

from icl_bench.choosing.learners import sizes_of
from icl_bench.choosing.options import ChooseSpec
from icl_bench.results.reading import read_results
from icl_bench.training.finetune import LABELS, Finetuning
from icl_bench.training.methods.finetuned import Lora
from icl_bench.training.methods.nearest_neighbours import NearestNeighbours
from icl_bench.training.methods.probe import Probe

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
    assert "training (knn, probe, lora, full)" in lines[3]
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
    assert set(frame[frame["select"] == "encoder-probe"]["draw"]) == {0, 1}


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
        from icl_bench.errors import CellError

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
    assert record["choice"] != "lora, k=12"
    assert "left out" in said("summary", "--results", tmp_path / "results")


@pytest.mark.parametrize(
    ("changes", "more", "reason"),
    [
        (fakes.FREE_TEXT, (), "probe, lora: task cards is free text; fine-tuning needs labels"),
        ({}, ("--train-k", "12", "--price", "input=1,cached=0.1,output=2"), "a training has no price of tokens"),
        ({}, ("--train-k", "1"), "probe, k=1, lora, k=1: the examples to train on have one label"),
        ({}, ("--train-k", "40"), "lora, k=40: k=40 is the whole pool"),
        ({}, ("--train-k", "500"), "probe, k=500, lora, k=500: the pool has 40 examples"),
        ({}, (), "probe, lora: --train-k auto begins with 25 of the pool's 40 rows"),
    ],
)
def test_methods_that_do_not_fit_are_named_with_the_reason(
    tmp_path: Path, tiny: Path, changes: dict[str, Any], more: tuple[str, ...], reason: str
) -> None:
    from icl_bench.choosing.contest import Contest

    task = fakes.write_task(tmp_path / "task", test_rows=30, **changes)
    options: dict[str, Any] = {"k": "0", "method": "probe,lora", "device": "cpu", "dtype": "float32", "draws": 2}
    options |= {
        one.removeprefix("--").replace("-", "_"): value for one, value in zip(more[::2], more[1::2], strict=True)
    }
    contest = Contest.prepare(
        ChooseSpec(task=str(task), model=str(tiny), **options), lambda _: None, tmp_path / "results"
    )
    assert any(reason in text for text in contest.left_out), contest.left_out
    assert {one.select for one in contest.settings if one.learner} <= {"probe"}


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


def test_methods_say_whether_they_compute_with_the_model() -> None:
    assert Probe.has_architecture
    assert not NearestNeighbours.has_architecture
