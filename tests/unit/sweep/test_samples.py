"""Several samples of an answer: their majority, what is stored and counted of them, and resumption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import planned, runner, tokenized_task, write_task
from support.in_process import run_command
from support.models import llama_tokenizer, tiny_checkpoint
from support.samples import THREE, Sampler

import icl_bench
from icl_bench.backends.loaders import TransformersLoader
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.errors import CellError, UserError
from icl_bench.metrics.exact_match import ExactMatch
from icl_bench.metrics.numeric import Numeric
from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.prices import given_prices
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.cells import Prediction
from icl_bench.results.reading import read_results
from icl_bench.sweep.compute_cost import AnswerWork, PromptLayout, cost_of
from icl_bench.sweep.facts import facts
from icl_bench.sweep.plan import Plan
from icl_bench.sweep.plan_money import planned_money
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.samples import Samples, majority

pytestmark = pytest.mark.usefixtures("loading_once")

# -- the majority --------------------------------------------------------------------------------


def one(prediction: str, valid: bool = True, **more: Any) -> Prediction:
    return Prediction("row", "a", prediction, prediction == "a", valid, 10, 4, 3, "hash", **more)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=9))
def test_the_prediction_is_the_most_frequent_answer_and_of_equals_the_first(votes: list[tuple[str, bool]]):
    samples = [one(text if valid else f"{text}?", valid, text=str(n)) for n, (text, valid) in enumerate(votes)]
    found = majority(samples, str)
    kinds = [text if valid else None for text, valid in votes]
    best = max(kinds, key=lambda kind: (kinds.count(kind), -kinds.index(kind)))
    first = samples[kinds.index(best)]
    assert (found.prediction, found.valid, found.text) == (first.prediction, best is not None, first.text)
    assert found.correct == first.correct
    assert found.samples == tuple(kinds)
    count = len(votes)
    assert (found.prompt_tokens, found.cached_tokens, found.answer_tokens) == (10 * count, 4 * count, 3 * count)
    assert found.sample_tokens == (3,) * count
    assert found.sample_texts == tuple(str(n) for n in range(count))


def test_answers_in_one_form_are_one_answer_and_written_as_the_first_of_them():
    found = majority([one("1,800"), one("7"), one("1800.0")], Numeric().form)
    assert (found.prediction, found.samples) == ("1,800", ("1,800", "7", "1,800"))
    found = majority([one("x"), one("The end."), one("end")], ExactMatch().form)
    assert (found.prediction, found.samples) == ("The end.", ("x", "The end.", "The end."))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.sampled_from(["", "$", "+"]))
def test_numbers_have_one_form_if_they_are_equal(value: Any, sign: str):
    text = f"{value:f}"
    assert Numeric().form(text) == Numeric().form(f"{text}000")
    if not text.startswith("-"):
        assert Numeric().form(sign + text) == Numeric().form(text)
    assert Numeric().form(text) != Numeric().form(f"{value + 1:f}")


def test_tokens_of_a_server_and_of_thoughts_are_summed():
    said = {"local_prompt_tokens": 9, "reasoning_tokens": 5, "thought": "so", "thought_tokens": 6}
    found = majority([one("a", **said), one("b", **said, cache_write_tokens=2)], str)
    assert (found.local_prompt_tokens, found.reasoning_tokens, found.cache_write_tokens) == (18, 10, 2)
    assert (found.thought_tokens, found.sample_thought_tokens, found.sample_thoughts) == (12, (6, 6), ("so", "so"))


# -- a run -----------------------------------------------------------------------------------------


def sampled(folder: Path, samples: Samples | None = THREE, k: str = "1,2", **changes: Any) -> Plan:
    named = {name: changes.pop(name) for name in ("selects", "draws") if name in changes}
    return planned(replace(tokenized_task(folder, **changes), samples=samples), k, **{"draws": 2, **named})


def test_each_sample_is_stored_with_its_tokens_and_its_score(tmp_path: Path):
    runner(sampled(tmp_path / "task"), tmp_path / "results", Sampler()).run()
    frame = read_results(tmp_path / "results")
    assert len(frame) == 2 * 2 * 6
    for row in frame.to_dict("records"):
        votes = list(row["samples"])
        assert row["prediction"] == max(votes, key=lambda vote: (votes.count(vote), -votes.index(vote)))
        assert row["answer_tokens"] == sum(row["sample_tokens"])
        assert row["prompt_tokens"] % 3 == 0
        assert row["cached_tokens"] % 3 == 0
        assert list(row["sample_scores"]) == [float(vote == row["gold"]) for vote in votes]
        assert row["correct"] == (row["prediction"] == row["gold"])
    assert frame["samples"].map(lambda votes: len(set(votes))).max() == 3


def test_samples_of_free_text_keep_their_texts_and_their_scores(tmp_path: Path):
    changes = {
        "labels": None,
        "metrics": ["exact_match"],
        "max_answer_tokens": 9,
        "answer": {"extract": "(where|my)", "of": "answers"},
    }
    runner(sampled(tmp_path / "task", **changes), tmp_path / "results", Sampler()).run()
    frame = read_results(tmp_path / "results")
    assert {text for texts in frame["sample_texts"] for text in texts} == {" where ", " is ", " my "}
    assert {vote for votes in frame["samples"] for vote in votes} == {"where", None, "my"}
    assert set(frame.loc[frame["valid"], "prediction"]) == {"where", "my"}
    assert (frame.loc[~frame["valid"], "prediction"] == "").all()
    assert [sum(scores) for scores in frame["sample_scores"]] == [0.0] * len(frame)


@pytest.mark.parametrize("pack", [1, 2, 7])
def test_an_interrupted_run_goes_on_with_the_same_samples(tmp_path: Path, pack: int):
    plan = sampled(tmp_path / "task")
    runner(plan, tmp_path / "whole", Sampler()).run()
    left = iter(range(5))

    def fails(_: PromptSet) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    while True:
        try:
            runner(plan, tmp_path / "parts", Sampler(pack=pack, fails=fails)).run()
            break
        except KeyboardInterrupt:
            left = iter(range(5))
    whole, parts = (read_results(tmp_path / name) for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(whole, parts)


def test_prompts_that_an_earlier_draw_had_are_answered_once_with_all_their_samples(tmp_path: Path):
    plan = sampled(tmp_path / "task", selects=["bm25"], k="2")
    engine = Sampler(log=tmp_path / "log")
    runner(plan, tmp_path / "results", engine).run()
    frame = read_results(tmp_path / "results")
    first, second = (part.set_index("test_id")["samples"].map(tuple) for _, part in frame.groupby("draw"))
    same = frame.groupby("test_id")["prompt_hash"].nunique() == 1
    assert same.any()
    assert (first[same] == second[same]).all()


def test_samples_and_temperature_are_facts_only_where_they_are_set(tmp_path: Path):
    plain = tokenized_task(tmp_path / "task")
    choice = planned(plain, "1").cells[0].choice
    assert not {"samples", "temperature"} & facts(plain, choice, {}).known().keys()
    known = facts(replace(plain, samples=THREE), choice, {}).known()
    assert (known["samples"], known["temperature"]) == (3, 0.7)


def test_the_plan_counts_what_all_samples_take(tmp_path: Path):
    (plain, more), (several, more_samples) = (sampled(tmp_path / "task", n, draws=1).cells for n in (None, THREE))
    assert several.prompt_tokens == 3 * plain.prompt_tokens
    assert several.new_tokens == plain.new_tokens + 2 * sum(plain.prompt_layout.own_tokens)
    assert more_samples.new_tokens == more.new_tokens + 2 * sum(more.prompt_layout.own_tokens)
    assert several.queries == plain.queries
    assert several.needed_tokens == plain.needed_tokens
    prices = given_prices("input=1,cached=0.5,output=2")
    assert prices is not None
    alone, three = planned_money(plain, prices), planned_money(several, prices)
    assert three.uncached == pytest.approx(3 * alone.uncached)
    assert alone.cached < three.cached < 3 * alone.cached


def test_operations_of_a_query_are_those_of_all_its_samples(tmp_path: Path):
    shape = Architecture(parameters=1000, heads_width=8, windows=(None, 4), key_width=5)
    layout = PromptLayout(FULL, 20, (3, 5))
    works = [AnswerWork.generated(n, 50) for n in (1, 2, 3, 4, 5, 6)]
    found = cost_of(layout.repeated(3), shape, works, "float32").times(3)
    singles = [cost_of(layout, shape, [works[n], works[3 + n]], "float32") for n in range(3)]
    assert found.query_flops == pytest.approx(sum(single.query_flops for single in singles))
    assert found.whole_flops == pytest.approx(sum(single.whole_flops for single in singles))
    assert found.prefix_flops == singles[0].prefix_flops


# -- a real model ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("samples") / "tiny", tokenizer=llama_tokenizer(add_bos_token=True))


@pytest.fixture
def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pd.DataFrame]:
    monkeypatch.setenv("ICL_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)
    task = write_task(tmp_path / "task")

    def ask(place: str, **options: Any) -> pd.DataFrame:
        usual = {"k": [0, 2], "draws": 2, "samples": 3, "temperature": 1.5, "device": "cpu", "dtype": "float32"}
        results = tmp_path / place
        found = icl_bench.run(task=task, model=model, results=results, quiet=True, **{**usual, **options})
        return found.predictions.sort_values(["k", "draw", "test_id"]).reset_index(drop=True)

    return ask


def votes(frame: pd.DataFrame) -> dict[Any, tuple[str, ...]]:
    return {tuple(row[:3]): tuple(row[3]) for row in frame[["k", "draw", "test_id", "samples"]].to_numpy()}


def test_a_real_models_samples_depend_on_no_pack_and_on_no_other_row(run: Callable[..., pd.DataFrame]):
    whole = votes(run("whole"))
    assert len({vote for row in whole.values() for vote in row}) > 1
    assert votes(run("alone", pack=1)) == whole
    some = votes(run("some", test_size=2))
    assert some == {name: row for name, row in whole.items() if name in some}
    more = votes(run("more", samples=5))
    assert {name: row[:3] for name, row in more.items()} == whole
    assert votes(run("seed", seed=9, k=0)) != {name: row for name, row in whole.items() if name[0] == 0}


def test_a_real_models_run_that_is_cut_in_a_pack_goes_on_with_the_same_samples(
    run: Callable[..., pd.DataFrame], monkeypatch: pytest.MonkeyPatch
):
    whole, answer, calls = votes(run("whole")), TransformersBackend.answer, 0

    def cut(*asked: Any) -> Any:
        nonlocal calls
        for pack in answer(*asked):
            calls += 1
            yield pack[: len(pack) - 2]  # the last samples are lost
            raise CellError("out of something")

    with monkeypatch.context() as broken:
        broken.setattr(TransformersBackend, "answer", cut)
        assert run("parts", pack=4).empty
    assert calls == 3
    assert votes(run("parts", pack=4)) == whole


# -- wrong use ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"samples": 4}, "--samples 4: needs --temperature above 0"),
        ({"samples": 1}, "--samples 1: needs --temperature above 0"),
        ({"samples": 4, "temperature": 0}, "--temperature 0: expected 0.01 or more"),
        ({"samples": 4, "temperature": -0.5}, "--temperature -0.5: expected 0.01 or more"),
        ({"temperature": 0.7}, "--temperature 0.7: applies to samples; add --samples N"),
        ({"samples": 0, "temperature": 0.7}, "--samples 0: expected 1 or more"),
        ({"samples": 2, "temperature": 0.7, "score": "exact"}, "--samples and --score exact exclude each other"),
        ({"samples": 2, "temperature": 0.7, "batch": True}, "--samples and --batch exclude each other"),
    ],
)
def test_wrong_use_is_one_line(given_: dict[str, Any], said: str):
    with pytest.raises(UserError) as error:
        RunSpec(task="stdlib", model="m", k="1", **given_)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in given_.items()]
    ended = run_command("run", "--task", "stdlib", "--model", "m", "--k", "1", *words)
    assert (ended.code, ended.err.startswith(f"error: {said}")) == (2, True)


def test_a_backend_that_cannot_sample_is_refused():
    class Other(TransformersLoader):
        name = "other"
        samples = False

    spec = RunSpec(task="stdlib", model="m", k="1", samples=2, temperature=0.7)
    with pytest.raises(UserError, match=r"^--samples: --backend other does not sample answers"):
        Other(spec.engine).check_samples(0.7)


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6))
def test_a_prediction_is_cut_if_one_of_its_samples_is(cut: list[bool | None], thoughts: list[bool]):
    samples = [one("a", truncated=is_cut, thought_truncated=thoughts[n]) for n, is_cut in enumerate(cut)]
    found = majority(samples, str)
    assert found.truncated is (None if set(cut) == {None} else True in cut)
    assert found.thought_truncated is any(thoughts[: len(cut)])
