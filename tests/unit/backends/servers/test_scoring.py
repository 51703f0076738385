"""Scores of all labels at a server: those of a local backend, or one clear line before anything is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.api_server import Reply, completion, serving
from support.fakes import write_task
from support.models import llama_tokenizer
from support.needs import packages
from support.scoring_server import ScoringModel

import icl_bench
from icl_bench.backends.label_constraint import label_trie
from icl_bench.backends.servers.scoring import TOLERANCE, score_requests
from icl_bench.errors import CellError, UserError
from icl_bench.results.reading import finished_cells, read_stored

packages("openai")


COLUMNS = ("prediction", "correct", "valid", "probability", "margin", "label_mass")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")


def at_server(url: str, task: Path, tiny: Path, results: Path, **more: Any) -> Any:
    """The results of a run at a server."""
    return run(task, results, model="m", tokenizer=str(tiny), backend="openai", base_url=url, **more)


def run(task: Path, results: Path, **more: Any) -> Any:
    asked = {"score": "exact", "k": "0,3", "draws": 1, **more}
    return icl_bench.run(task=str(task), results=results, **asked)


@pytest.mark.parametrize("way", ["tokens", "echo"])
def test_scores_are_those_of_a_local_backend_and_calibration_has_what_it_needs(way: str, tiny: Path, tmp_path: Path):
    task = write_task(tmp_path)
    here = run(task, tmp_path / "here", model=str(tiny), dtype="float32", device="cpu", calibrate="batch")
    model = ScoringModel(tiny, llama_tokenizer(), ways=[way])
    with serving(model.answer) as server:
        there = at_server(server.url, task, tiny, tmp_path / "there", calibrate="batch")
    assert {body["path"] for body in server.requests} == {"/v1/completions"}
    assert {meta.served["scores"] for _, meta in finished_cells(tmp_path / "there") if meta.served} == {way}
    local, served = here.predictions, there.predictions
    assert len(local) == len(served) == 2 * 6
    for name in COLUMNS:
        if local[name].dtype == float:
            np.testing.assert_allclose(served[name], local[name], rtol=1e-4, atol=1e-7)
        else:
            assert served[name].tolist() == local[name].tolist()
    scores = [read_stored(tmp_path / name, derive=True).label_scores for name in ("here", "there")]
    assert len(scores[0]) == len(scores[1]) >= 2
    for one, other in zip(*(found.values() for found in scores), strict=True):
        np.testing.assert_allclose(other.raw, one.raw, rtol=1e-4)
        assert np.isfinite(other.raw).all()


@pytest.mark.parametrize("way", ["tokens", "echo"])
def test_the_tokens_of_all_requests_of_a_row_are_counted(way: str, tiny: Path, tmp_path: Path):
    model = ScoringModel(tiny, llama_tokenizer(), ways=[way])
    with serving(model.answer) as server:
        frame = at_server(server.url, write_task(tmp_path), tiny, tmp_path / "results", k="3").predictions
    asked = [body for body in server.requests if body.get("logprobs") and len(body["prompt"]) > 3]
    assert frame["prompt_tokens"].sum() == sum(len(body["prompt"]) for body in asked)
    assert frame["answer_tokens"].sum() == len(asked)
    assert (frame["local_prompt_tokens"] < frame["prompt_tokens"]).all()
    assert all(body["temperature"] == 1 for body in asked)


def test_a_budget_counts_every_request_of_a_row(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = ScoringModel(tiny, llama_tokenizer(), ways=["echo"])
    with serving(model.answer) as server:
        at_server(
            server.url,
            write_task(tmp_path),
            tiny,
            tmp_path / "results",
            price="input=1000,cached=0,output=0",
            budget=1.5,
        )
    asked = [body for body in server.requests if body.get("logprobs") and len(body["prompt"]) > 3]
    assert 500 < sum(len(body["prompt"]) for body in asked) <= 1500  # a token is a thousandth
    assert "--budget 1.5: " in capsys.readouterr().err


def refused(url: str, task: Path, tiny: Path, results: Path, **more: Any) -> str:
    with pytest.raises(UserError) as raised:
        at_server(url, task, tiny, results, **more)
    assert not results.exists() or not list(results.rglob("*.parquet"))
    return str(raised.value)


REFUSALS: dict[str, Callable[[dict[str, Any]], Reply]] = {
    "no log-probabilities": lambda _: completion("card"),
    "a refusal": lambda _: (400, {"error": {"message": "logprobs are not supported"}}),
    "no completions": lambda _: (404, {"error": {"message": "this is a chat model"}}),
    "no choices": lambda _: (200, {"choices": [], "model": "m"}),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_server_without_them_is_refused_by_one_line_after_two_probes(name: str, tiny: Path, tmp_path: Path):
    with serving(REFUSALS[name]) as server:
        said = refused(server.url, write_task(tmp_path), tiny, tmp_path / "results")
    assert said.startswith("--score exact: the server does not return log-probabilities of given texts")
    assert "\n" not in said
    assert len(server.requests) == 2
    assert all(len(body["prompt"]) <= 3 for body in server.requests)


@pytest.mark.parametrize("status", [200, 401, 429, 503])
def test_a_key_a_limit_or_a_failure_that_stops_the_probe_is_told_as_such(status: int, tiny: Path, tmp_path: Path):
    with serving(lambda _: (status, {"error": {"message": "not now"}})) as server:
        said = refused(server.url, write_task(tmp_path), tiny, tmp_path / "results")
    assert said.startswith(f"--score exact: {server.url}: ")
    assert "not now" in said
    assert "does not return" not in said


def test_a_server_that_fails_between_the_probe_and_the_first_prompt_fails_the_cell(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = ScoringModel(tiny, llama_tokenizer())

    def answer(body: dict[str, Any]) -> Reply:
        return model.answer(body) if body.get("logprobs") else (500, {"error": {"message": "restarting"}})

    with serving(answer) as server:
        at_server(server.url, write_task(tmp_path), tiny, tmp_path / "results", k="3")
    assert "0 cells computed, 1 failed" in capsys.readouterr().err


def test_top_logprobs_alone_are_no_scores(tiny: Path, tmp_path: Path):
    """A server that ignores what it does not know, and returns its likeliest tokens."""
    model = ScoringModel(tiny, llama_tokenizer(), ways=())

    def answer(body: dict[str, Any]) -> Reply:
        return model.answer({name: value for name, value in body.items() if name != "echo"})

    with serving(answer) as server:
        assert "does not return" in refused(server.url, write_task(tmp_path), tiny, tmp_path / "results")


def test_a_server_whose_tokens_are_others_is_refused_before_a_prompt_is_sent(tiny: Path, tmp_path: Path):
    model = ScoringModel(tiny, llama_tokenizer())

    def shifted(body: dict[str, Any]) -> Reply:
        return model.answer({**body, "prompt": [(token + 7) % 300 for token in body["prompt"]]})

    with serving(shifted) as server:
        said = refused(server.url, write_task(tmp_path), tiny, tmp_path / "results")
    assert "the server reads token ids as another text than --tokenizer does" in said


def test_a_server_that_adds_a_token_to_ids_fails_the_cell(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = ScoringModel(tiny, llama_tokenizer())

    def adds(body: dict[str, Any]) -> Reply:
        first = body["prompt"][: len(body["prompt"]) > 90]
        return model.answer({**body, "prompt": [*first, *body["prompt"]]})

    with serving(adds) as server:
        at_server(server.url, write_task(tmp_path), tiny, tmp_path / "results", k="9")
    assert re.search(r"the server counts \d+ tokens for a prompt of \d+ token ids", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hold": "choice"}, "--hold choice: --score exact compares all labels"),
        ({"chat": "turns", "thinking": "low"}, "--thinking low: --score exact compares all labels"),
        ({"endpoint": "chat"}, "--endpoint chat: --score exact asks for completions"),
        ({"server_arg": ["logprobs=5"]}, "--server-arg logprobs: is set by --score exact"),
        ({"price": "input=1,cached=1,output=1"}, "--price: what scores of labels cost depends on the server"),
    ],
)
def test_options_that_exclude_scores_are_refused(options: dict[str, Any], said: str, tiny: Path, tmp_path: Path):
    with serving(lambda _: completion("")) as server:
        assert refused(server.url, write_task(tmp_path), tiny, tmp_path / "results", **options).startswith(said)
    assert not server.requests


def test_anthropic_and_google_have_no_scores(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, variable in (("anthropic", "ANTHROPIC_API_KEY"), ("google", "GEMINI_API_KEY")):
        monkeypatch.setenv(variable, "sk-x")
        with pytest.raises(UserError, match="--score exact: runs on --backend transformers, vllm or openai"):
            run(write_task(tmp_path), tmp_path / "results", model="m", tokenizer=str(tiny), backend=name, chat="turns")


TRIE = label_trie([(3, 4), (3, 5), (6,)])


def scored(**logprobs: Any) -> bytes:
    return json.dumps({"choices": [{"text": "", "logprobs": {"token_logprobs": [], **logprobs}}]}).encode()


@pytest.mark.parametrize(
    ("how", "logprobs", "said"),
    [
        ("tokens", {"top_logprobs": [{"token_id:3": -1.0, "token_id:6": -9999.0}]}, "logprobs_mode"),
        ("tokens", {"top_logprobs": [{"token_id:3": 4.0, "token_id:6": 2.0}]}, "logprobs_mode"),
        ("tokens", {"top_logprobs": [{"token_id:3": -0.1, "token_id:6": -0.1}]}, "logprobs_mode"),
        ("tokens", {"top_logprobs": [{"token_id:3": -1.0}]}, "no log-probability of some tokens"),
        ("tokens", {"top_logprobs": []}, "no log-probability of some tokens"),
        ("echo", {"token_logprobs": [None, -1.0]}, "log-probabilities of 2 tokens for a prompt of 4"),
        ("echo", {"token_logprobs": [None, -1.0, -1.0, None]}, "no log-probability of some tokens"),
        ("echo", {"token_logprobs": [None, -1.0, -1.0, 0.5]}, "logprobs_mode"),
    ],
)
def test_what_is_no_log_probability_of_the_labels_is_never_stored(how: Any, logprobs: dict[str, Any], said: str):
    request = score_requests(how, TRIE)[0]
    with pytest.raises(CellError, match=said):
        request.read(scored(**logprobs), 2)


def test_a_rounded_sum_is_no_fault():
    (root, _) = score_requests("tokens", TRIE)
    half = np.log((1 + TOLERANCE / 2) / 2)
    assert root.read(scored(top_logprobs=[{"token_id:3": half, "token_id:6": half}]), 2).tolist() == [half, half]


def test_echo_asks_for_each_label_and_tokens_for_each_place_of_the_tree():
    assert [request.path for request in score_requests("echo", TRIE)] == [(3, 4), (3, 5), (6,)]
    assert [(request.path, list(request.tokens)) for request in score_requests("tokens", TRIE)] == [
        ((), [3, 6]),
        ((3,), [4, 5]),
    ]
