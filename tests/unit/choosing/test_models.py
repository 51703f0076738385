"""A race of models behind servers, with budgets of tokens and money."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import fakes
from support.api_server import Body, Server, completion, serving
from support.in_process import Ended, run_command, said
from support.needs import packages

import icl_bench
from icl_bench.choosing.contest import Contest
from icl_bench.choosing.options import ChooseSpec
from icl_bench.errors import UserError
from icl_bench.results.reading import read_results

packages("openai")


PRICE = "input=10,cached=1,output=20"
SETTINGS = ("--k", "0,1,2", "--select", "random,bm25", "--draws", "2")


def respond(body: dict[str, Any]) -> Any:
    """``good`` is right with a demonstration, the others one time in four. ``finer`` has more tokens a word."""
    prompt = body["prompt"]
    texts = re.findall(r"query: (.*)\nintent:", prompt)
    number = int(texts[-1].split()[-1])
    right = len(texts) > 1 and (body["model"] not in ("weak", "finer") or number % 4 == 0)
    label = fakes.LABELS[number % 3 if right else (number + 1) % 3].replace("_", " ")
    return completion(f" {label}", prompt_tokens=(9 if body["model"] == "finer" else 3) * len(prompt.split()), cached=0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with serving(respond) as running:
        yield running


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return fakes.write_task(tmp_path / "task", test_rows=30, metrics=["accuracy"])


@pytest.fixture
def words(server: Server, task: Path, tiny: Path) -> tuple[object, ...]:
    """A race of a model behind a server, without the model."""
    return ("--task", task, *SETTINGS, "--backend", "openai", "--base-url", server.url, "--tokenizer", tiny)


def choose(*words: object, results: Path) -> Ended:
    return run_command("choose", *words, "--results", results)


def asked(server: Server) -> list[tuple[str, str]]:
    return [(request["model"], str(request["prompt"])) for request in server.requests]


def tokens(server: Server) -> int:
    """What the server billed: nothing is cached, an answer has two tokens."""
    return sum(3 * len(prompt.split()) + 2 for _, prompt in asked(server))


def test_answers_of_a_server_are_rows_of_the_cells_that_a_run_completes(
    words: tuple[object, ...], server: Server, tmp_path: Path
) -> None:
    ended = choose(*words, "--model", "good", "--margin", "20", "--json", results=tmp_path / "results")
    record = json.loads(ended.out)
    assert record["decided"]
    assert record["compared_by"] == "tokens"
    assert record["left_out"] == ["knn, encoder-probe, probe, lora: good is behind a server"]
    assert 0 < record["predictions"] < record["predictions_of_full_sweep"]
    raced = len(server.requests)
    said("run", *words, "--model", "good", "--quiet", "--results", tmp_path / "results")
    assert len(read_results(tmp_path / "results")) == record["predictions_of_full_sweep"]
    assert raced < len(server.requests) <= record["predictions_of_full_sweep"]  # nothing twice
    again = choose(*words, "--model", "good", "--json", results=tmp_path / "results")
    assert len(server.requests) <= record["predictions_of_full_sweep"]
    assert json.loads(again.out)["choice"] != "no demonstrations"


def test_a_race_that_is_repeated_has_the_costs_of_what_was_billed(words: tuple[object, ...], tmp_path: Path) -> None:
    """The server caches nothing, which the plan does not know and stored answers do."""
    racing = ("--model", "good", "--margin", "20", "--price", PRICE, "--json")
    first, again = (json.loads(choose(*words, *racing, results=tmp_path / "results").out) for _ in range(2))
    costs = [[one["money_per_query"] for one in record["settings"]] for record in (first, again)]
    assert costs[1] == pytest.approx(costs[0])
    assert again["budget"]["spent"] == 0


def test_the_price_of_a_query_is_that_of_the_tokens_that_the_server_counts(
    words: tuple[object, ...], server: Server, tmp_path: Path
) -> None:
    """Its tokenizer is another one than the local one, and it caches nothing, also where draws have copied answers."""
    racing = ("--model", "finer", "--margin", "0.1", "--price", PRICE, "--json")
    record = json.loads(choose(*words, *racing, results=tmp_path / "results").out)
    rows = read_results(tmp_path / "results")
    assert len(rows) == record["predictions"]
    found = {one["setting"]: one for one in record["settings"]}
    for (select, k), answers in rows.groupby(["select", "k"], observed=True):
        billed = (10 * answers["prompt_tokens"].mean() + 20 * answers["answer_tokens"].mean()) / 1e6
        name = f"{select}, k={k}" if k else "no demonstrations"
        assert found[name]["money_per_query"] == pytest.approx(billed, rel=0.15)


@pytest.mark.parametrize("spend", ["$5", "20000tokens"])
def test_what_a_race_may_spend_needs_the_limit_of_an_answers_tokens(
    words: tuple[object, ...], server: Server, spend: str, tmp_path: Path
) -> None:
    """A request without it is not sent: nobody knows what its answer may cost."""
    racing = ("--model", "good", "--price", PRICE, "--server-arg", "max_tokens=")
    ended = choose(*words, *racing, "--spend", spend, results=tmp_path / "results")
    assert ended.code == 2
    assert "max_tokens=: a budget needs the limit of an answer's tokens" in ended.err
    assert not server.requests


def test_several_models_race_on_the_same_rows_and_the_dear_one_is_not_chosen_where_it_is_no_better(
    words: tuple[object, ...], server: Server, tmp_path: Path
) -> None:
    racing = ("--model", "good,weak,dear", "--engine", "dear:price=input=100,cached=100,output=100", "--price", PRICE)
    record = json.loads(choose(*words, *racing, "--margin", "10", "--json", results=tmp_path / "results").out)
    assert record["model"] == "good, weak, dear"
    assert record["compared_by"] == "money"
    assert record["choice"].startswith("good: ")
    assert record["decided"]
    by_model = {name: [one for one in record["settings"] if one["model"] == name] for name in ("good", "weak", "dear")}
    assert all(one["out"] and one["why"] in ("worse", "not better", "dearer") for one in by_model["weak"])
    assert "dearer" in {one["why"] for one in by_model["dear"]}
    assert {len(each) for each in by_model.values()} == {5}
    ratio = by_model["dear"][1]["money_per_query"] / by_model["good"][1]["money_per_query"]
    assert ratio > 3
    assert {model for model, _ in asked(server)} == {"good", "weak", "dear"}


def engines(server: Server, tiny: Path) -> dict[str, dict[str, Any]]:
    """Those of a model behind a server and of one here."""
    here = {"device": "cpu", "dtype": "float32", "price": {"hour": 2}}
    return {"good": {"backend": "openai", "base_url": server.url, "tokenizer": tiny, "price": PRICE}, str(tiny): here}


def test_a_model_here_races_with_one_behind_a_server_by_engines_of_their_own(
    server: Server, task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)
    engine = engines(server, tiny)
    record = icl_bench.choose(
        task=task,
        model=[tiny, "good"],
        engine=engine,
        k=[0, 2],
        select="random",
        draws=2,
        margin=20,
        results=tmp_path / "results",
        quiet=True,
    )
    assert record["choice"] == "good: random, k=2"
    assert record["compared_by"] == "money"
    assert all(one["money_per_query"] > 0 for one in record["settings"])
    assert {one["model"] for one in record["settings"]} == {"good", tiny.name}
    with pytest.raises(UserError, match="good: --device: applies to --backend transformers only, this is openai"):
        icl_bench.choose(task=task, model=[tiny, "good"], engine=engine, device="cpu", quiet=True)


def test_a_forecast_without_the_cost_of_one_of_its_models_has_none(
    server: Server, task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of the models of which it was known stood for all."""
    monkeypatch.setattr("icl_bench.backends.loaders.rate_here", lambda *_: 1e9)
    engine = engines(server, tiny)
    found = {}
    for spend in ("$5", "30m", "20Mtokens"):
        options = {"model": [str(tiny), "good"], "engine": engine, "k": "0,2", "draws": 2, "method": "none"}
        spec = ChooseSpec(task=str(task), select="random", spend=spend, **options)
        contest = Contest.prepare(spec, lambda _: None, tmp_path)
        contest.entrants[1].estimated, contest.entrants[1].took = 40.0, 4.0
        found[spend] = contest.still_needed()
        contest.entrants[0].estimated, contest.entrants[0].took = 400.0, 4.0
        found[f"{spend}, both"] = contest.still_needed()
    assert {answers for answers, _ in found.values()} == {found["$5"][0]}
    costs = {name: cost > 0 for name, (_, cost) in found.items()}
    assert costs == {
        **{"$5": False, "$5, both": False, "30m": False, "30m, both": True},
        **{"20Mtokens": True, "20Mtokens, both": True},
    }


def test_options_that_may_be_repeated_are_read_of_a_dictionary_as_of_the_command_line() -> None:
    engine = {"a": {"chat_arg": {"enable_thinking": False, "level": "low"}, "price": {"input": 1, "cached": 0.5}}}
    spec = ChooseSpec(task="t", model=["a", "b"], engine={**engine, "b": {"server-arg": ['top_p=1, "x"', "user=me"]}})
    assert spec.of_model("a")["chat_arg"] == ("enable_thinking=false", 'level="low"')
    assert spec.of_model("a")["price"] == "input=1,cached=0.5"
    assert spec.of_model("b")["server_arg"] == ('top_p=1, "x"', "user=me")
    assert ChooseSpec(task="t", model="a", engine={"a": {"chat_arg": "n=1"}}).of_model("a") == {"chat_arg": ("n=1",)}
    with pytest.raises(UserError, match="--engine"):
        ChooseSpec(task="t", model="a", engine={"a": {"chat_arg": {"n": object()}}})


def test_tokens_end_a_race_before_more_than_the_budget_are_billed_and_it_goes_on_where_it_stopped(
    words: tuple[object, ...], server: Server, tmp_path: Path
) -> None:
    racing = (*words, "--model", "good", "--margin", "0.01")
    first = json.loads(choose(*racing, "--spend", "7000tokens", "--json", results=tmp_path / "results").out)
    assert (first["ended"], first["decided"]) == ("the tokens are spent", False)
    assert first["budget"]["spent"] == tokens(server) <= 7000
    assert all(one["predictions"] >= 20 for one in first["settings"])
    before = asked(server)
    second = json.loads(choose(*racing, "--spend", "7000tokens", "--json", results=tmp_path / "results").out)
    assert tokens(server) <= 14000
    assert second["predictions"] > first["predictions"]
    assert len(server.requests) > len(before)
    whole = json.loads(choose(*racing, "--spend", "1Mtokens", "--json", results=tmp_path / "results").out)
    assert (whole["decided"], whole["ended"]) == (True, None)
    assert len(server.requests) <= whole["predictions_of_full_sweep"]


def test_money_ends_a_race_before_more_than_the_budget_is_billed(
    words: tuple[object, ...], server: Server, tmp_path: Path
) -> None:
    racing = (*words, "--model", "good", "--margin", "0.01", "--price", "input=1000,cached=1000,output=1000")
    ended = choose(*racing, "--spend", "$7", results=tmp_path / "results")
    assert ended.code == 0, ended.err
    assert "undecided, the money is spent" in ended.out
    assert 4 < tokens(server) / 1000 <= 7
    assert re.search(
        r"^Cost: \S+ a query; 1,000 queries in all: \S+ \(in the currency of --price\)", ended.out, re.MULTILINE
    )


def test_a_request_that_the_server_never_answered_spends_the_most_that_it_may_take(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr("icl_bench.backends.servers.backend._PAUSE_SECONDS", 0.01)
    number, lost = itertools.count(1), []

    def breaking(body: dict[str, Any]) -> Any:
        if next(number) % 5:
            return respond(body)
        lost.append(int(body["max_tokens"]) - 2)  # beyond the answer's two tokens, which ``tokens`` counts
        return 200, Body(b'{"choices": ', lacking=100)

    with serving(breaking) as server:
        where = ("--backend", "openai", "--base-url", server.url, "--tokenizer", tiny, "--model", "good")
        racing = ("--task", task, *SETTINGS, *where, "--margin", "0.01", "--spend", "7000tokens", "--json")
        spent = json.loads(choose(*racing, results=tmp_path / "results").out)["budget"]["spent"]
    assert len(lost) > 10
    assert tokens(server) + sum(lost) == pytest.approx(spent, rel=0.1)
    assert spent <= 7000


@pytest.mark.parametrize(
    ("spend", "more"), [("90tokens", ()), ("$0.01", ("--price", "input=1000,cached=1000,output=1000"))]
)
def test_a_budget_too_small_for_a_first_look_is_one_line_with_the_smallest_which_is_enough(
    words: tuple[object, ...], server: Server, tmp_path: Path, spend: str, more: tuple[str, ...]
) -> None:
    racing = (*words, "--model", "good", *more)
    ended = choose(*racing, "--spend", spend, results=tmp_path / "results")
    assert ended.code == 2
    (line,) = [line for line in ended.err.splitlines() if "--spend" in line]
    assert not server.requests
    least = re.search(r"too small for the first answers of 5 prompts; it takes about (\S+) ", line)
    assert least is not None, line
    enough = choose(*racing, "--spend", least[1], results=tmp_path / "results")
    assert enough.code == 0, enough.err
    assert enough.out.startswith("Use for now: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--spend", "$5"), "needs what tokens of m cost; add --price"),
        (("--engine", "m:backend"), "--engine m:backend: expected MODEL:NAME=VALUE with one of the models (m)"),
        (("--engine", "n:backend=vllm"), "expected MODEL:NAME=VALUE with one of the models (m)"),
        (("--engine", "m:bakend=vllm"), "bakend is no option of a model; did you mean backend"),
        (("--engine", "m:k=3"), "k is no option of a model"),
        (("--engine", "m:context=5", "--engine", "m:context=6"), "--context of m appears twice"),
        (("--engine", "m:context=x"), "--context x: expected a whole number"),
        (("--calibrate", "contextual", "--score", "exact"), "--calibrate contextual: choose supports only batch"),
        (("--calibrate", "batch"), "--calibrate batch"),
    ],
)
def test_wrong_options_of_models_are_one_line(
    server: Server, task: Path, tiny: Path, words: tuple[str, ...], message: str
) -> None:
    where = ("--backend", "openai", "--base-url", server.url, "--tokenizer", tiny)
    ended = run_command("choose", "--task", task, "--model", "m", "--k", "1", *where, *words)
    assert ended.code == 2
    assert message in ended.err.splitlines()[-1]
    assert not server.requests


def test_this_machine_needs_a_price_where_money_is_spent(task: Path, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add hour="):
        icl_bench.choose(task=task, model=tiny, k=[0], spend="$5", results=tmp_path / "r", quiet=True)


def test_two_models_of_one_name_are_refused(task: Path, tiny: Path, tmp_path: Path) -> None:
    twin = tmp_path / tiny.name
    twin.symlink_to(tiny)
    with pytest.raises(UserError, match=f"two models are called {tiny.name}"):
        icl_bench.choose(task=task, model=[tiny, twin], k=[0], results=tmp_path / "r", quiet=True)


def test_a_server_that_stops_answering_ends_the_race_with_one_line_and_keeps_what_it_answered(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    calls = [0]

    def tired(body: dict[str, Any]) -> Any:
        calls[0] += 1
        return respond(body) if calls[0] < 40 else (401, {"error": {"message": "no more"}})

    with serving(tired) as server:
        where = ("--backend", "openai", "--base-url", server.url, "--tokenizer", tiny)
        ended = choose("--task", task, "--model", "good", *SETTINGS, *where, results=tmp_path / "results")
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert list((tmp_path / "results").rglob("*.journal.jsonl"))


def test_hybrid_selections_race_as_any_other(words: tuple[object, ...], tmp_path: Path) -> None:
    more = ("--model", "good", "--select", "random,hybrid:1", "--k", "1,2", "--margin", "20", "--json")
    record = json.loads(choose(*words, *more, results=tmp_path / "results").out)
    wanted = {f"{select}, k={k}" for select in ("random", "hybrid:1") for k in (1, 2)}
    assert {one["setting"] for one in record["settings"]} == wanted


def test_without_prices_models_of_two_kinds_are_compared_by_accuracy_alone(
    words: tuple[object, ...], tmp_path: Path
) -> None:
    record = json.loads(
        choose(*words, "--model", "good,weak", "--margin", "20", "--json", results=tmp_path / "results").out
    )
    assert record["compared_by"] is None
    assert record["choice"].startswith("good")
    assert {one["why"] for one in record["settings"]} <= {None, "worse", "not better"}


def test_rows_that_are_too_long_for_another_model_are_left_out_by_name(
    words: tuple[object, ...], task: Path, tmp_path: Path
) -> None:
    fields = json.loads(task.read_text())
    task.write_text(json.dumps({**fields, "test": {"too_long": "leave_out"}}))
    rows = [json.loads(line) for line in (task.parent / "test.jsonl").read_text().splitlines()]
    for number in (4, 9):
        rows[number]["text"] += " a long one" * 100
    fakes.write_rows(task.parent / "test.jsonl", rows)
    racing = (
        "--model",
        "good,weak",
        "--engine",
        "good:context=4000",
        "--engine",
        "weak:context=120",
        "--k",
        "0",
        "--select",
        "random",
    )
    ended = choose(*words, *racing, "--json", results=tmp_path / "results")
    names = [f"cards-test-{number}" for number in (9, 4)]  # in the order of asking
    assert f"2 test rows of good ({', '.join(names)}): too long for another model" in json.loads(ended.out)["left_out"]


# -- requests at a time ----------------------------------------------------------------------------


def slow(body: dict[str, Any]) -> Any:
    time.sleep(0.02)
    return respond(body)


def race_of(url: str, task: Path, tiny: Path, concurrency: int) -> tuple[object, ...]:
    where = ("--backend", "openai", "--base-url", url, "--tokenizer", tiny, "--concurrency", concurrency)
    return ("--task", task, *SETTINGS, "--model", "good", *where, "--margin", "0.01")


def test_a_server_is_asked_several_cells_at_a_time_with_the_answers_of_one_at_a_time(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    records, frames, asked = [], [], []
    for concurrency in (1, 6):
        results = tmp_path / f"by-{concurrency}"
        with serving(slow) as server:
            ended = choose(*race_of(server.url, task, tiny, concurrency), "--json", results=results)
        assert ended.code == 0, ended.err
        assert server.most_at_once == concurrency
        asked.append(sorted(request["prompt"] for request in server.requests))
        record = json.loads(ended.out)
        records.append({name: record[name] for name in ("choice", "decided", "predictions", "settings")})
        frames.append(read_results(results).sort_values(["select", "k", "draw", "test_id"]))
    assert records[0] == records[1]
    assert asked[0] == asked[1]
    first, second = (frame[["select", "k", "draw", "test_id", "prediction"]].values.tolist() for frame in frames)
    assert first == second
    assert len(first) > 100


def test_an_interruption_ends_all_that_wait_and_the_race_goes_on_from_there(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    count, hangs = itertools.count(1), threading.Event()

    def until_interrupted(body: dict[str, Any]) -> Any:
        if (number := next(count)) > 20 and not hangs.is_set():
            if number == 25:
                os.kill(os.getpid(), signal.SIGINT)
            hangs.wait(30)
        return respond(body)

    before = threading.active_count()
    with serving(until_interrupted) as server:
        start = time.monotonic()
        ended = choose(*race_of(server.url, task, tiny, 6), results=tmp_path / "results")
        assert ended.code == 130, ended.err
        assert time.monotonic() - start < 20
        hangs.set()
        answered = len({request["prompt"] for request in server.requests})
        assert 20 <= answered <= 26
        again = choose(*race_of(server.url, task, tiny, 6), "--json", results=tmp_path / "results")
        assert again.code == 0, again.err
        repeated = len(server.requests) - len({request["prompt"] for request in server.requests})
        assert repeated <= 7, "those that were under way, and a prompt that two settings have"
    assert json.loads(again.out)["decided"]
    assert threading.active_count() <= before + 2


def test_a_failure_beside_other_cells_is_one_line_and_loses_no_answer(
    task: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    count, broken = itertools.count(1), [True]

    def failing(body: dict[str, Any]) -> Any:
        time.sleep(0.02)
        if broken[0] and next(count) > 15:
            return 400, {"error": {"message": "no more", "type": "invalid_request_error"}}
        return respond(body)

    with serving(failing) as server:
        ended = choose(*race_of(server.url, task, tiny, 6), results=tmp_path / "results")
        assert ended.code == 2
        assert re.search(
            r"(k=\d+|no demonstrations), draw \d: the server refuses the request \(.*no more",
            ended.err.splitlines()[-1],
        )
        assert len(server.requests) <= 15 + 6
        broken[0] = False
        assert choose(*race_of(server.url, task, tiny, 6), results=tmp_path / "results").code == 0
        prompts = [request["prompt"] for request in server.requests]
        assert len(prompts) - len(set(prompts)) <= 7
