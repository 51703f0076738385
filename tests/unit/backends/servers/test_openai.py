"""The API backend against a small server on the loopback: retries, resume, keys, odd answers."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support import fakes
from support.api_server import PAGE, Body, Reply, chat, completion, free_port, serving
from support.needs import packages
from support.servers import server_backend

from icl_bench.backends.interface import Answer, Free
from icl_bench.backends.servers.backend import ServerBackend
from icl_bench.backends.servers.providers import PROVIDERS
from icl_bench.errors import CellError, UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import read_results
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Runner

packages("openai")


KEY = "sk-very-secret"
PROMPTS = PromptSet((), ((1,),) * 6, "demonstrations\n", tuple(f"query {i}" for i in range(6)))
IDENTITY = {"backend": "openai"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def backend(url: str, **options: Any) -> ServerBackend:
    return server_backend(url, **{"patience_seconds": 20, **options})


def answers(asked: ServerBackend, todo: list[int], prompts: PromptSet = PROMPTS, **decoding: Any) -> list[Answer]:
    free = Free(**{"stops": ("\n",), "max_tokens": 5, **decoding})
    found = [a for pack in asked.answer(prompts, todo, [free] * len(prompts), 0) for a in pack]
    return sorted(found, key=lambda a: a.index)


def echo(body: dict[str, Any]) -> Reply:
    return completion(f" {body['prompt'].split()[-1]}\nquery: more")


# -- what is asked and what is made of it -------------------------------------------------------


def test_the_prompts_own_text_is_sent_and_the_answer_is_cut_at_the_stop():
    with serving(echo) as server:
        found = answers(backend(server.url), [0, 3])
    assert [(a.index, a.text) for a in found] == [(0, " 0"), (3, " 3")]
    assert {r["prompt"] for r in server.requests} == {PROMPTS.text(0), PROMPTS.text(3)}
    assert all(r["temperature"] == 0 and r["stop"] == ["\n"] for r in server.requests)
    assert all(r["path"] == "/v1/completions" for r in server.requests)
    assert server.keys == {f"Bearer {KEY}"}


def test_a_chat_server_gets_the_prompt_as_one_user_message():
    with serving(lambda _: chat("card lost")) as server:
        (found,) = answers(backend(server.url, endpoint="chat"), [2])
    assert found.text == "card lost"
    (asked,) = server.requests
    assert asked["messages"] == [{"role": "user", "content": PROMPTS.text(2)}]
    assert asked["path"] == "/v1/chat/completions"


def test_a_chat_server_gets_the_turns_of_a_conversation():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    asked = replace(PROMPTS, conversation=lambda i: [*turns, {"role": "user", "content": f"query {i}"}])
    with serving(lambda _: chat("card lost")) as server:
        answers(backend(server.url, endpoint="chat"), [2], asked)
    (request,) = server.requests
    assert request["messages"] == [*turns, {"role": "user", "content": "query 2"}]


def test_labels_have_room_for_a_tokenizer_that_needs_more_tokens_and_free_text_its_limit():
    with serving(echo) as server:
        made = backend(server.url)
        answers(made, [0], max_tokens=5, of_labels=True)
        answers(made, [0], max_tokens=5)
        answers(made, [0], max_tokens=5, stops=("\n==\n", "\n"))
    assert [r["max_tokens"] for r in server.requests] == [18, 5, 5]
    assert [r["stop"] for r in server.requests] == [["\n"], ["\n"], ["\n==\n", "\n"]]


def test_tokens_are_counted_as_the_server_says():
    with serving(echo) as server:
        made = backend(server.url)
        found = answers(made, [0, 1, 2])
    assert [a.cached_tokens for a in found] == [4, 4, 4]
    assert made.counters.prompt_tokens == 3 * (10 - 4)
    assert made.counters.answer_tokens == 6


def test_no_more_requests_are_in_flight_than_asked_for():
    def slow(body: dict[str, Any]) -> Reply:
        time.sleep(0.1)
        return echo(body)

    with serving(slow) as server:
        answers(backend(server.url, concurrency=2), list(range(6)))
    assert server.most_at_once == 2


# -- servers that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_fails_for_a_while_is_asked_again(status: int):
    refused: dict[str, int] = {}

    def answer(body: dict[str, Any]) -> Reply:
        times = refused[body["prompt"]] = refused.get(body["prompt"], 0) + 1
        return (status, {"error": {"message": "later"}}) if times < 5 else echo(body)

    with serving(answer) as server:
        found = answers(backend(server.url, patience_seconds=10), [0, 1, 2])
    assert [a.text for a in found] == [" 0", " 1", " 2"]
    assert len(server.requests) == 3 * 5


def test_a_server_that_is_killed_and_comes_back_answers_the_rest():
    port = free_port()
    done: list[str] = []

    def answer(body: dict[str, Any]) -> Reply:
        if len(done) == 3:  # a connection that is kept open outlives the server
            raise ConnectionResetError
        done.append(body["prompt"])
        return echo(body)

    with serving(answer, port) as server:
        made = backend(server.url, concurrency=1)
        packs = made.answer(PROMPTS, range(6), [Free(("\n",), 5)] * 6, 0)
        found = next(packs)
    back = threading.Event()

    def later() -> None:
        time.sleep(4)  # longer than the client library itself repeats a request
        with serving(echo, port):
            back.wait(30)

    thread = threading.Thread(target=later)
    thread.start()
    found += [a for pack in packs for a in pack]
    back.set()
    thread.join()
    assert len(done) == 3
    assert sorted(a.index for a in found) == list(range(6))


def test_what_was_answered_before_a_failure_is_kept():
    def answer(body: dict[str, Any]) -> Reply:
        if body["prompt"].endswith("3"):
            return 400, {"error": {"message": "this prompt is too long"}}
        return echo(body)

    with serving(answer) as server:
        made = backend(server.url, concurrency=1)
        packs = made.answer(PROMPTS, range(6), [Free(("\n",), 5)] * 6, 0)
        found: list[Answer] = []
        with pytest.raises(CellError, match=r"refuses the request.*too long"):
            deque(map(found.extend, packs))
    indices = {a.index for a in found}
    assert {0, 1, 2} <= indices
    assert 3 not in indices


def test_a_server_that_stays_away_fails_the_cell_and_is_not_waited_for_again():
    with serving(lambda _: (503, {"error": {"message": "down"}})) as server:
        made = backend(server.url, patience_seconds=4)
        with pytest.raises(CellError, match=r"kept failing.*down"):
            answers(made, [0])
        first = len(server.requests)
        with pytest.raises(CellError, match="kept failing"):
            answers(made, [1])
        second = len(server.requests) - first
    assert first > second == 3  # one attempt, which the library itself repeats twice


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (completion(None), "answered with nothing instead of text"),
        (completion({"a": 1}), "instead of text"),
        ((200, {"choices": []}), "answered with nothing"),
        ((401, {"error": {"message": f"bad key {KEY}"}}), "refuses the key in OPENAI_API_KEY"),
        ((403, {"error": {"message": f"{KEY} may not"}}), r"refuses the request.*\*\*\* may not"),
        ((404, {"error": {"message": "no model m"}}), "refuses the request.*no model m"),
    ],
)
def test_an_answer_that_is_no_answer_fails_the_cell_and_never_repeats_the_key(reply: Reply, said: str):
    with serving(lambda _: reply) as server, pytest.raises(CellError, match=said) as raised:
        answers(backend(server.url), [0])
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)


GOOD = completion("yes")[1]
CHOICE = GOOD["choices"][0]


def with_usage(**usage: Any) -> dict[str, Any]:
    return {**GOOD, "usage": {**GOOD["usage"], **usage}}


ODD: dict[str, tuple[Any, str]] = {
    "a page": (PAGE, r"not JSON: text/html.*'<!doctype html> <html>.*--base-url"),
    "a page called JSON": (Body(PAGE.content), r"not JSON: .*'<!doctype html>"),
    "nothing": (Body(b""), "not JSON: .*''"),
    "half of it": (Body(b'{"choices": [{"te'), "not JSON: "),
    "not UTF-8": (Body(b'{"choices": [{"text": "\xff"}]}'), "not JSON: "),
    "half a character": (Body(rb'{"choices": [{"text": "\ud800"}]}'), "not JSON: "),
    "very deep": (Body(b"[" * 100_000), "not JSON: "),
    "a list": ([], "instead of text"),
    "null": (None, "instead of text"),
    "a number": (3, "instead of text"),
    "choices that are a mapping": ({"choices": {"0": CHOICE}}, "choices: "),
    "choices that are text": ({"choices": "yes"}, "choices: "),
    "no choices": ({"object": "list", "data": []}, "choices: Field required"),
    "a choice that is text": ({"choices": ["yes"]}, "choices.0: "),
    "a choice that is null": ({"choices": [None]}, "choices.0: "),
    "text that is a number": ({"choices": [{"text": 3}]}, "choices.0.text: "),
    "usage that is text": ({**GOOD, "usage": "much"}, "usage: "),
    "tokens that are no number": (with_usage(prompt_tokens="many"), "usage.prompt_tokens: "),
    "tokens below 0": (with_usage(completion_tokens=-1), "usage.completion_tokens: "),
    "tokens beyond all": (with_usage(completion_tokens=10**20), "usage.completion_tokens: "),
    "half tokens": (with_usage(prompt_tokens=1.5), "usage.prompt_tokens: "),
    "details that are a list": (with_usage(prompt_tokens_details=[1]), "prompt_tokens_details: "),
}


@pytest.fixture(scope="module")
def odd_backend() -> Iterator[ServerBackend]:
    """One whose server answers what a prompt's query names among ``ODD``."""

    def answer(body: dict[str, Any]) -> Reply:
        return 200, ODD[body["prompt"].splitlines()[-1]][0]

    with pytest.MonkeyPatch.context() as patch, serving(answer) as server:
        patch.setenv("OPENAI_API_KEY", KEY)
        yield backend(server.url)


@pytest.mark.parametrize("odd", ODD)
def test_nonsense_with_status_200_fails_the_cell_and_is_said_on_one_line(odd: str, odd_backend: ServerBackend):
    prompts = PromptSet((), ((1,),), "demonstrations\n", (odd,))
    with pytest.raises(CellError, match=ODD[odd][1]) as raised:
        deque(odd_backend.answer(prompts, [0], [Free(("\n",), 5)], 0))
    assert str(raised.value).startswith("the server answered with")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


def test_a_chat_without_a_message_or_with_another_one_is_no_answer():
    for message in (None, [], {"content": ["a"]}):
        reply = {"choices": [{"message": message}]}
        with (
            serving(lambda _, r=reply: (200, r)) as server,
            pytest.raises(CellError, match=r"the server answered with .* instead of text"),
        ):
            answers(backend(server.url, endpoint="chat"), [0])


def test_usage_may_be_left_out_or_null():
    for usage in ({}, {"usage": None}, {"usage": {"prompt_tokens_details": None}}):
        reply = {"choices": [CHOICE], **usage}
        with serving(lambda _, r=reply: (200, r)) as server:
            (found,) = answers(backend(server.url), [0])
        assert (found.text, found.cached_tokens, found.answer_tokens) == ("yes", 0, 0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (PAGE, r"refuses the request \(.*404.*text/html"),
        ({"error": "no such thing"}, "refuses the request .*404"),
        ({"error": {"message": ["a"]}}, "refuses the request .*404"),
        ([1], "refuses the request .*404"),
        ({"error": {"message": "half \ud800\n\x1b[31m\0 a character"}}, "half .* a character"),
    ],
)
def test_a_refusal_of_any_kind_is_said_on_one_line(body: Any, said: str):
    with serving(lambda _: (404, body)) as server, pytest.raises(CellError, match=said) as raised:
        answers(backend(server.url), [0])
    assert str(raised.value).isprintable()


def test_an_answer_that_is_cut_off_is_asked_for_again_and_then_fails_the_cell():
    reply = 200, Body(b'{"choices": [', lacking=50)
    with serving(lambda _: reply) as server, pytest.raises(CellError, match="kept failing"):
        answers(backend(server.url, patience_seconds=0.1), [0])


@pytest.mark.parametrize("models", [(200, PAGE), (404, PAGE), (200, []), (200, None), (500, 1)])
def test_a_server_need_not_list_its_models(models: Reply):
    with serving(echo, models=models) as server:
        assert answers(backend(server.url), [0])


def test_an_unreachable_server_is_named():
    with pytest.raises(CellError, match=r"http://127.0.0.1:\d+/v1 does not answer"):
        backend(f"http://127.0.0.1:{free_port()}/v1")


# -- addresses and keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "needs --base-url"),
        ("localhost:8000", "not an address"),
        ("http://", "not an address"),
        ("http://host:port/v1", "not an address"),
        (f"https://user:{KEY}@host/v1", "must not contain a key"),
        (f"https://host/v1?key={KEY}", "must not contain a key"),
    ],
)
def test_an_address_that_is_none_or_holds_a_key_is_refused_without_repeating_it(url: str | None, said: str):
    with pytest.raises(UserError, match=said) as raised:
        PROVIDERS["openai"].where(url)
    assert KEY not in str(raised.value)


def test_a_missing_key_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set"):
        PROVIDERS["openai"].secret()


@pytest.mark.parametrize("bad", [f"{KEY}\nmore", f"{KEY}\r\nX-Evil: 1", "sk-\u00e9t\u00e9", "sk-1 sk-2", "\x7f"])
@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"])
def test_a_key_that_cannot_be_sent_is_refused_without_repeating_it(
    variable: str, bad: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, bad)
    with pytest.raises(UserError, match=f"{variable}: .*letters, digits") as raised:
        PROVIDERS["openai"].secret()
    assert not any(part in str(raised.value) for part in bad.split())


def test_blanks_and_a_line_break_around_a_key_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\r\n")
    with serving(echo) as server:
        answers(backend(server.url), [0])
    assert server.keys == {f"Bearer {KEY}"}


@pytest.mark.parametrize("key", ['sk-"quoted"', "sk-back\\slash", "sk-per%cent/and+plus"])
@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_key_that_the_server_repeats_is_cut_out_however_it_is_written(
    key: str, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    forms = [key, json.dumps(key)[1:-1], quote(key, safe=""), repr(key)[1:-1]]
    reply = status, {"error": {"message": f"no: {' '.join(forms)}"}}
    with serving(lambda _: reply) as server, pytest.raises(CellError) as raised:
        answers(backend(server.url, patience_seconds=0.1), [0])
    assert not any(form in str(raised.value) for form in forms)


def test_a_page_that_repeats_the_key_does_not_bring_it_into_the_reason():
    page = Body(f"<html>{'.' * 70}{KEY}".encode(), "text/html")  # cut within the key
    with serving(lambda _: (200, page)) as server, pytest.raises(CellError) as raised:
        answers(backend(server.url), [0])
    assert KEY[:3] not in str(raised.value)
    assert "***" in str(raised.value)


# -- with the runner ----------------------------------------------------------------------------


def test_a_run_that_failed_is_resumed_without_asking_twice_and_no_file_holds_the_key(tmp_path: Path):
    plan = fakes.plan(tmp_path / "task", k="2", draws=1, scoring="unconstrained")
    broken = True
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> Reply:
        if broken and len(asked) >= 3:
            return 400, {"error": {"message": "no more"}}
        asked.append(body["prompt"])
        return completion(" card lost" if len(asked) % 2 else " it is lost")

    with serving(answer) as server:

        def run() -> Any:
            load = lambda: backend(server.url, concurrency=1)  # noqa: E731
            return Runner(plan, Store(tmp_path / "results"), IDENTITY, load).run()

        assert len(run().failed) == 1
        broken = False
        assert len(run().computed) == 1
    assert len(asked) == len(set(asked)) == 6
    frame = read_results(tmp_path / "results")
    assert frame["valid"].tolist().count(False) == 3
    assert set(frame.loc[frame["valid"], "prediction"]) == {"card lost"}
    assert not frame.loc[~frame["valid"], "correct"].any()
    for file in (tmp_path / "results").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()
