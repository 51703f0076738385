"""Providers' interfaces: what is asked of each, what it answers and bills, caches, thoughts and money."""

from __future__ import annotations

import gzip
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import fakes
from support.api_server import Body, Reply, chat, completion, serving
from support.in_process import said as printed
from support.needs import packages
from support.providers import Provider
from support.servers import server_backend

from icl_bench.analysis.query_cost import Prices
from icl_bench.backends.interface import Answer, Free
from icl_bench.backends.servers.anthropic import Messages
from icl_bench.backends.servers.batches import check_batches
from icl_bench.backends.servers.bodies import LARGEST
from icl_bench.backends.servers.budget import Budget, Purse
from icl_bench.backends.servers.interface import End, Question, shared_end
from icl_bench.backends.servers.models import found_hold, listed_models
from icl_bench.backends.servers.openai import Chat, Completions, OwnServerChat, Responses
from icl_bench.backends.servers.providers import PROVIDERS, Connection
from icl_bench.backends.servers.thinking import Thinking
from icl_bench.errors import CellError, OutOfBudgetError, UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Runner

packages("openai", "anthropic")


KEY = "sk-very-secret"
WORDS = 7
"""Words of a demonstration."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS.values():
        monkeypatch.setenv(provider.key, KEY)


def conversations(k: int, queries: int, style: str = "turns") -> PromptSet:
    """Prompts of a chat with k shared demonstrations of seven words; a token is a word."""
    shown = [(f"what is case {i}", f"label {i} .") for i in range(k)]

    def messages(index: int) -> Sequence[Mapping[str, str]]:
        system = {"role": "system", "content": "Sort these ."}
        if style == "single":
            text = "".join(f"{q} {a}\n" for q, a in shown)
            return [system, {"role": "user", "content": f"{text}query {index} ?"}]
        turns = [{"role": r, "content": t} for pair in shown for r, t in zip(("user", "assistant"), pair, strict=True)]
        return [system, *turns, {"role": "user", "content": f"query {index} ?"}]

    return PromptSet(tuple(range(3 + WORDS * k)), ((1, 2, 3),) * queries, "", ("",) * queries, conversation=messages)


def answers(asked: Any, prompts: PromptSet, **decoding: Any) -> list[Answer]:
    free = Free(
        **{"stops": ("\n",), "max_tokens": 5, "of_labels": True, "labels": (" card lost", " card arrival"), **decoding}
    )
    todo = range(len(prompts))
    found = [a for pack in asked.answer(prompts, list(todo), [free] * len(prompts), 0) for a in pack]
    return sorted(found, key=lambda a: a.index)


INTERFACES = {
    "anthropic": ("anthropic", "chat", Provider.messages, "/v1/messages"),
    "google": ("google", "chat", Provider.google, "/v1/chat/completions"),
    "responses": ("openai", "responses", Provider.responses, "/v1/responses"),
    "chat": ("openai", "chat", Provider.chat, "/v1/chat/completions"),
}


def at(url: str, name: str) -> str:
    return url.removesuffix("/v1") if name == "anthropic" else url


# -- what is asked and billed -------------------------------------------------------------------


@pytest.mark.parametrize("style", ["turns", "single"])
@pytest.mark.parametrize("name", INTERFACES)
def test_answers_and_tokens_are_those_of_the_provider_to_the_last_one(name: str, style: str) -> None:
    backend, endpoint, answer, path = INTERFACES[name]
    provider = Provider(lambda query: f"label {query.split()[-2]} .")
    with serving(lambda body: answer(provider, body)) as server:
        made = server_backend(at(server.url, name), provider=backend, endpoint=endpoint)
        found = [answers(made, conversations(k, 3, style)) for k in (200, 400)]
    assert {request["path"] for request in server.requests} == {path}
    assert [[a.text for a in each] for each in found] == [[f"label {i} ." for i in range(3)]] * 2
    stored = sorted(
        (a.prompt_tokens, a.cached_tokens, a.written_tokens or 0, a.answer_tokens) for e in found for a in e
    )
    assert stored == sorted((b.prompt, b.cached, b.written, b.answer) for b in provider.bills)
    assert not made.counters.notes


@pytest.mark.parametrize("style", ["turns", "single"])
def test_anthropic_reads_a_smaller_k_from_its_cache_and_writes_only_what_is_new(style: str) -> None:
    provider = Provider()
    with serving(provider.messages) as server:
        made = server_backend(at(server.url, "anthropic"), provider="anthropic")
        for k in (200, 400):
            answers(made, conversations(k, 3, style))
    first, *others = provider.bills[:3]
    assert (first.cached, first.written) == (0, 3 + 200 * WORDS)
    assert {(b.cached, b.written, b.new) for b in others} == {(3 + 200 * WORDS, 0, 3)}
    first, *others = provider.bills[3:]
    assert (first.cached, first.written) == (3 + 200 * WORDS, 200 * WORDS)
    assert {(b.cached, b.written, b.new) for b in others} == {(3 + 400 * WORDS, 0, 3)}


@pytest.mark.parametrize("name", INTERFACES)
def test_one_request_fills_the_cache_before_the_others_begin(name: str) -> None:
    backend, endpoint, answer, _ = INTERFACES[name]
    provider, together = Provider(), []

    def slow(body: dict[str, Any]) -> Reply:
        reply = answer(provider, body)
        together.append(server._now)
        time.sleep(0.05)
        return reply

    with serving(slow) as server:
        answers(server_backend(at(server.url, name), provider=backend, endpoint=endpoint), conversations(200, 6))
    assert together[0] == 1
    assert max(together) > 1
    assert [b.cached > 0 for b in provider.bills] == [False, *[True] * 5]


def test_short_prompts_are_asked_all_at_once_and_without_breakpoints() -> None:
    together = threading.Barrier(6, timeout=20)
    provider = Provider()

    def answer(body: dict[str, Any]) -> Reply:
        together.wait()
        return provider.messages(body)

    with serving(answer) as server:
        answers(server_backend(at(server.url, "anthropic"), provider="anthropic"), conversations(10, 6))
    assert "cache_control" not in json.dumps(server.requests)


@pytest.mark.parametrize("name", INTERFACES)
def test_a_cache_that_was_missed_is_noted_once(name: str) -> None:
    backend, endpoint, answer, _ = INTERFACES[name]
    provider = Provider(forgets=True)
    with serving(lambda body: answer(provider, body)) as server:
        made = server_backend(at(server.url, name), provider=backend, endpoint=endpoint)
        answers(made, conversations(200, 6))
    assert [note for note in made.counters.notes if "cache did not have" in note] == made.counters.notes
    assert len(made.counters.notes) == 1


def test_prompts_with_own_demonstrations_have_no_breakpoint() -> None:
    own = replace(conversations(200, 6), prefix=(1,), suffixes=((2,) * 1400,) * 6)
    provider = Provider()
    with serving(provider.messages) as server:
        answers(server_backend(at(server.url, "anthropic"), provider="anthropic"), own)
    assert "cache_control" not in json.dumps(server.requests)


TEXTS = st.text(st.sampled_from("ab \n"), max_size=12)


@given(st.lists(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4), min_size=2, max_size=5))
def test_a_shared_part_is_the_beginning_of_every_conversation_and_whole_again_with_the_rest(turns: Any) -> None:
    prompts = PromptSet(
        (1,), ((1,),) * len(turns), "", ("",) * len(turns),
        conversation=lambda i: [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(turns[i])],
    )  # fmt: skip
    todo = list(range(min(len(turns), 3)))
    end = shared_end(prompts, todo)
    if end is None:
        return
    starts = {json.dumps([turns[i][: end.message], turns[i][end.message][: end.characters]]) for i in todo}
    assert len(starts) == 1
    for index in todo:
        sent = Messages().marked(Question("", prompts.messages(index), (end,)))["messages"]
        assert ["".join(block["text"] for block in turn["content"]) for turn in sent] == turns[index]
        assert all(block["text"].strip() for turn in sent for block in turn["content"][:1])
        assert json.dumps(sent).count("cache_control") == 1


# -- thoughts -----------------------------------------------------------------------------------

THINKS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "anthropic off": ("anthropic", "off", {"thinking": {"type": "disabled"}, "max_tokens": 64}),
    "anthropic low": (
        "anthropic",
        "low",
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}, "max_tokens": 64 + 8192},
    ),
    "anthropic tokens": (
        "anthropic",
        2000,
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2064},
    ),
    "responses high": ("responses", "high", {"reasoning": {"effort": "high"}, "max_output_tokens": 64 + 32_768}),
    "responses off": ("responses", "off", {"reasoning": {"effort": "none"}, "max_output_tokens": 64}),
    "google tokens": (
        "google",
        500,
        {"extra_body": {"google": {"thinking_config": {"thinking_budget": 500}}}, "max_completion_tokens": 564},
    ),
    "google low": ("google", "low", {"reasoning_effort": "low", "max_completion_tokens": 64 + 8192}),
    "chat high": ("chat", "high", {"reasoning_effort": "high", "max_completion_tokens": 64 + 32_768}),
}


@pytest.mark.parametrize("case", THINKS)
def test_thinking_is_asked_for_in_the_providers_words_with_room_beside_the_answer(case: str) -> None:
    name, how, expected = THINKS[case]
    backend, endpoint, answer, _ = INTERFACES[name]
    provider = Provider(thinks=0 if how == "off" else 300)
    with serving(lambda body: answer(provider, body)) as server:
        made = server_backend(
            at(server.url, name), provider=backend, endpoint=endpoint, thinking=Thinking.parse(str(how))
        )
        found = answers(made, conversations(2, 3))
    assert expected.items() <= server.requests[0].items()
    assert [a.text for a in found] == ["card lost"] * 3
    assert {a.answer_tokens for a in found} == {b.answer for b in provider.bills}
    thoughts = {a.reasoning_tokens for a in found}
    assert thoughts == ({None} if name == "anthropic" else {None, 0} & thoughts if how == "off" else {300})
    if name in ("anthropic", "responses") and how != "off":
        assert {a.raw for a in found} == {"<think>I think</think>card lost"}


def test_own_servers_get_the_switch_of_chat_templates() -> None:
    assert OwnServerChat().thinking(Thinking("off")) == {
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "none",
    }
    assert OwnServerChat().thinking(Thinking(700)) == {
        "chat_template_kwargs": {"enable_thinking": True},
        "thinking_token_budget": 700,
    }


@pytest.mark.parametrize("text", ["", "medium", "0", "-1", "1.5", "9999999", "²"])
def test_thinking_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--thinking .*expected off, low, high or a number of tokens"):
        Thinking.parse(text)


def test_held_and_thinking_at_anthropic_share_an_argument() -> None:
    provider = Provider()
    with serving(provider.messages) as server:
        made = server_backend(at(server.url, "anthropic"), provider="anthropic", thinking=Thinking("low"), hold="json")
        answers(made, conversations(2, 1))
    (request,) = server.requests
    assert request["output_config"]["effort"] == "low"
    assert request["output_config"]["format"]["schema"]["properties"]["label"]["enum"] == ["card lost", "card arrival"]
    assert "temperature" not in request


def test_blank_stops_are_not_sent_to_anthropic_and_cut_the_answer_here() -> None:
    provider = Provider(lambda _: "one line\nanother")
    with serving(provider.messages) as server:
        (found,) = answers(
            server_backend(at(server.url, "anthropic"), provider="anthropic"),
            conversations(2, 1),
            of_labels=False,
            stops=("\n", "=="),
        )
    assert server.requests[0]["stop_sequences"] == ["=="]
    assert found.text == "one line"


@pytest.mark.parametrize(("text", "truncated"), [("one line\nanother", False), ("one line", True)])
def test_an_answer_that_ended_before_the_limit_cut_the_text_is_not_truncated(text: str, truncated: bool) -> None:
    reply = of_messages([{"type": "text", "text": text}], "max_tokens")
    with serving(lambda _: reply) as server:
        made = server_backend(at(server.url, "anthropic"), provider="anthropic")
        (found,) = answers(made, conversations(2, 1), of_labels=False)
    assert (found.text, found.truncated) == ("one line", truncated)


# -- no answer ----------------------------------------------------------------------------------


def of_messages(content: list[dict[str, Any]], stop: str, **usage: int) -> Reply:
    return 200, {
        "id": "1", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": stop,
        "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 3, **usage},
    }  # fmt: skip


def of_responses(output: list[dict[str, Any]], **further: Any) -> Reply:
    return 200, {"id": "1", "object": "response", "model": "m", "status": "completed", "output": output, **further}


NO_ANSWER: dict[str, tuple[str, Reply, str]] = {
    # https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons
    "anthropic refuses": ("anthropic", of_messages([], "refusal"), "refused"),
    "anthropic thinks": (
        "anthropic",
        of_messages([{"type": "thinking", "thinking": "It may be", "signature": "x"}], "max_tokens"),
        "ran out of tokens while thinking",
    ),
    "anthropic thinks in secret": (
        "anthropic",
        of_messages([{"type": "redacted_thinking", "data": "x"}], "max_tokens"),
        "ran out of tokens while thinking",
    ),
    "anthropic calls a tool": (
        "anthropic",
        of_messages([{"type": "tool_use", "id": "1", "name": "x", "input": {}}], "tool_use"),
        "no text (stop_reason tool_use)",
    ),
    "responses refuse": (
        "responses",
        of_responses([{"type": "message", "content": [{"type": "refusal", "refusal": "I cannot"}]}]),
        "refused: I cannot",
    ),
    "responses think": (
        "responses",
        of_responses(
            [{"type": "reasoning", "summary": []}],
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
            usage={"input_tokens": 5, "output_tokens": 64, "output_tokens_details": {"reasoning_tokens": 64}},
        ),
        "ran out of tokens while thinking",
    ),
    "responses are filtered": (
        "responses",
        of_responses([], status="incomplete", incomplete_details={"reason": "content_filter"}),
        "content_filter",
    ),
}


def test_a_response_that_failed_within_its_text_is_asked_again() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "card"}]}
    failed = {"status": "failed", "error": {"code": "server_error", "message": "try again"}}
    replies = iter([of_responses([message], **failed), of_responses([message])])
    with serving(lambda _: next(replies)) as server:
        made = server_backend(at(server.url, "responses"), endpoint="responses")
        (found,) = answers(made, conversations(2, 1))
    assert (found.text, len(server.requests)) == ("card", 2)


@pytest.mark.parametrize("case", NO_ANSWER)
def test_a_row_without_an_answer_has_its_reason(case: str) -> None:
    name, reply, reason = NO_ANSWER[case]
    backend, endpoint, *_ = INTERFACES[name]
    with serving(lambda _: reply) as server:
        made = server_backend(at(server.url, name), provider=backend, endpoint=endpoint)
        (found,) = answers(made, conversations(2, 1))
    assert found.reason == reason


@pytest.mark.parametrize("name", ["anthropic", "responses"])
def test_a_wrong_key_and_a_model_that_is_not_there_are_said(name: str) -> None:
    backend, endpoint, *_ = INTERFACES[name]
    missing = {"error": {"type": "not_found_error", "message": "model: m"}}
    with serving(lambda _: (404, missing), models=(200, {"data": [{"id": "other"}]})) as server:
        made = server_backend(at(server.url, name), provider=backend, endpoint=endpoint)
        with pytest.raises(UserError, match=r"--model m: the server does not know it .*; it lists other"):
            answers(made, conversations(2, 1))
    with serving(lambda _: (401, {"error": {"type": "authentication_error", "message": f"{KEY} is bad"}})) as server:
        made = server_backend(at(server.url, name), provider=backend, endpoint=endpoint)
        with pytest.raises(CellError, match=f"refuses the key in {PROVIDERS[backend].key}") as raised:
            answers(made, conversations(2, 1))
    assert KEY not in str(raised.value)


def test_a_run_of_a_model_that_is_not_there_ends_as_bad_usage_with_no_cell_marked(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="1,2", draws=2, scoring="unconstrained")
    missing = (404, {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}})
    with serving(lambda _: missing, models=(200, {"data": [{"id": "other"}]})) as server:
        load = lambda: server_backend(server.url, concurrency=1)  # noqa: E731
        with pytest.raises(UserError, match=r"--model m: the server does not know it .*; it lists other"):
            Runner(plan, Store(tmp_path / "results"), {"backend": "openai"}, load).run()
    assert len(server.requests) == 1
    assert not list((tmp_path / "results").rglob("*.failed.json"))


# -- money --------------------------------------------------------------------------------------

PRICES = Prices(input=3.0, cached=0.3, output=15.0, write=3.75)


@pytest.mark.parametrize("name", ["anthropic", "chat"])
def test_a_budget_is_never_passed_and_what_is_spent_is_what_is_billed(name: str) -> None:
    backend, endpoint, answer, _ = INTERFACES[name]
    provider = Provider()
    purse = Purse(0.03)
    with serving(lambda body: answer(provider, body)) as server:
        made = server_backend(
            at(server.url, name), provider=backend, endpoint=endpoint, budget=Budget(purse, PRICES.of_tokens)
        )
        with pytest.raises(
            OutOfBudgetError, match=r"--budget 0.03: 0.0\d+ spent in \d+ requests; the next one may cost"
        ):
            answers(made, conversations(200, 60))
    money = sum(PRICES.of_tokens(b.new, b.cached, b.answer, b.written) for b in provider.bills)
    assert purse.spent == pytest.approx(money, rel=1e-12)
    assert money <= 0.03
    assert purse.requests == len(provider.bills) > 5
    assert (round(purse.reserved, 12), purse.under_way) == (0, 0)


def test_a_server_that_says_no_tokens_is_taken_to_bill_the_most() -> None:
    purse = Purse(1.0)
    with serving(lambda _: chat("card lost")) as server:
        made = server_backend(server.url, endpoint="chat", budget=Budget(purse, PRICES.of_tokens))
        answers(made, conversations(2, 3))
    assert purse.spent == pytest.approx(3 * PRICES.of_tokens(0, 0, 64, 3 + 2 * WORDS + 3 + 1), rel=1e-9)


USAGE = {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22}
MOST = PRICES.of_tokens(0, 0, 64, 3 + 2 * WORDS + 3 + 1)
REJECTED: dict[str, tuple[Reply, float]] = {
    "another model": ((200, {**chat("card lost")[1], "model": "n", "usage": USAGE}), PRICES.of_tokens(20, 0, 2, 0)),
    "no text": (
        (200, {"choices": [{"message": {"content": None}}], "model": "m", "usage": USAGE}),
        PRICES.of_tokens(20, 0, 2, 0),
    ),
    "another shape": ((200, {"choices": 3, "model": "m", "usage": USAGE}), MOST),
    "an error": ((200, {"error": "no workers"}), 0.0),
    # Azure bills the prompts that its filter stops
    # (https://learn.microsoft.com/azure/ai-foundry/openai/how-to/manage-costs)
    "a filter": ((400, {"error": {"message": "filtered", "code": "content_filter"}}), MOST),
}


@pytest.mark.parametrize("case", REJECTED)
def test_a_response_that_is_rejected_is_billed_and_counted_as_it_says_or_as_the_most(case: str) -> None:
    reply, money = REJECTED[case]
    purse, replies = Purse(1.0), iter([(200, {**chat("card lost")[1], "usage": USAGE}), *[reply] * 9])
    with serving(lambda _: next(replies)) as server:
        made = server_backend(
            server.url, endpoint="chat", concurrency=1, patience_seconds=0, budget=Budget(purse, PRICES.of_tokens)
        )
        answers(made, conversations(2, 1))
        purse.spent, purse.requests = 0.0, 0
        with nullcontext() if case == "a filter" else pytest.raises(CellError):
            answers(made, conversations(2, 1))
    assert purse.spent == pytest.approx(money, rel=0.3 if money == MOST else 1e-9)
    assert purse.spent >= money
    assert purse.requests == (money > 0)
    assert (round(purse.reserved, 12), purse.under_way) == (0, 0)


BROKEN = (200, Body(b'{"choices": ', lacking=100))


@pytest.mark.parametrize("name", ["anthropic", "chat"])
@pytest.mark.parametrize(("reply", "charged"), [("late", True), (BROKEN, True), ((500, {}), False), ((429, {}), False)])
def test_a_request_that_a_server_has_and_never_answered_may_be_billed(
    name: str, reply: Reply | str, charged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one that was sent costs the most that it may: the client's library repeats none of them unseen."""
    ended = threading.Event()
    if reply == "late":
        monkeypatch.setattr("icl_bench.backends.servers.backend._WHOLE_SECONDS", 3)
    backend, endpoint, _, _ = INTERFACES[name]

    def never(_: dict[str, Any]) -> Reply:
        if isinstance(reply, str):
            ended.wait(60)
            return (500, {})
        return reply

    purse = Purse(1.0)
    with serving(never) as server:
        made = server_backend(
            at(server.url, name),
            provider=backend,
            endpoint=endpoint,
            concurrency=1,
            patience_seconds=0,
            budget=Budget(purse, PRICES.of_tokens),
        )
        with pytest.raises(CellError, match="the server kept failing"):
            answers(made, conversations(2, 1))
        ended.set()
    assert len(server.requests) == 1
    most = Budget(Purse(1.0), PRICES.of_tokens).most(3 + 2 * WORDS + 3, 64)
    assert purse.spent == pytest.approx(most if charged else 0.0, rel=0.3)
    assert purse.requests == charged
    assert (round(purse.reserved, 12), purse.under_way) == (0, 0)


def test_a_server_that_is_gone_bills_nothing() -> None:
    purse = Purse(1.0)
    with serving(lambda _: chat("card lost")) as server:
        made = server_backend(server.url, endpoint="chat", patience_seconds=0, budget=Budget(purse, PRICES.of_tokens))
    with pytest.raises(CellError, match="the server kept failing"):
        answers(made, conversations(2, 1))
    assert (purse.spent, purse.requests) == (0.0, 0)


@pytest.mark.parametrize("name", ["anthropic", "chat", "responses"])
def test_a_users_own_limit_of_tokens_is_what_an_answer_may_cost(name: str) -> None:
    backend, endpoint, answer, _ = INTERFACES[name]
    provider, purse = Provider(says=lambda _: "word " * 900), Purse(0.03)
    with serving(lambda body: answer(provider, body)) as server:
        limit = {"responses": "max_output_tokens"}.get(name, "max_tokens")
        made = server_backend(
            at(server.url, name),
            provider=backend,
            endpoint=endpoint,
            arguments={limit: 900},
            budget=Budget(purse, PRICES.of_tokens),
        )
        with pytest.raises(OutOfBudgetError):
            answers(made, conversations(2, 9))
    assert 0 < purse.spent <= 0.03


def test_a_run_that_spent_its_budget_says_what_is_left_and_goes_on_with_another(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="1,2", draws=2, scoring="unconstrained")
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> Reply:
        asked.append(body["prompt"])
        status, reply = completion(" card lost", prompt_tokens=len(body["prompt"]), cached=0)
        return status, reply

    def run(limit: float) -> Any:
        load = lambda: server_backend(server.url, concurrency=1)  # noqa: E731
        budget = Budget(Purse(limit), Prices(1e4, 1e4, 1e4).of_tokens)
        return Runner(plan, Store(tmp_path / "results"), {"backend": "openai"}, load, budget=budget).run()

    with serving(answer) as server:
        first = run(8.0)
        assert first.stopped
        assert not first.failed
        assert f"{4 - len(first.computed)} cells left, run it again to continue" in first.stopped[0]
        some = len(asked)
        assert 0 < some < 24
        second = run(1e6)
    assert not second.stopped
    assert first.spent == pytest.approx(sum(map(len, asked[:some])) / 100 + 2 * some / 100)
    assert len(asked) == len(set(asked)) == 24  # nothing was asked twice
    assert len(read_results(tmp_path / "results")) == 24


def test_all_models_of_a_command_spend_from_one_budget(tmp_path: Path) -> None:
    fakes.write_task(tmp_path)
    with serving(lambda _: completion(" card lost")) as server:
        line = ["run", "--task", tmp_path / "cards.yaml", "--model", "m,n", "--k", "1", "--tokenizer", "gemma3-270m"]
        line += ["--backend", "openai", "--base-url", server.url, "--results", tmp_path / "results"]
        line += ["--draws", "1", "--price", "input=10000,cached=10000,output=10000"]
        enough_for_one = 0.72 + 0.7  # 12 tokens are billed for each of 6 requests, and one may take more
        told = printed(*line, "--budget", enough_for_one, code=1)
    assert f"stopped: --budget {enough_for_one:g}: " in told
    models = [request["model"] for request in server.requests]
    assert models.count("m") == 6
    assert 0 < models.count("n") < 6


@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_a_run_that_may_not_spend_even_its_first_request_says_so(tmp_path: Path, json_too: tuple[str, ...]) -> None:
    fakes.write_task(tmp_path)
    with serving(lambda _: completion(" card lost")) as server:
        line = ["run", "--task", tmp_path / "cards.yaml", "--model", "m", "--k", "1", "--tokenizer", "gemma3-270m"]
        line += ["--backend", "openai", "--base-url", server.url, "--results", tmp_path / "results", *json_too]
        told = printed(*line, "--budget", "1e-9", "--price", "input=1,cached=1,output=1", code=1)
    assert "stopped: --budget 1e-09: 0.0000 spent in 0 requests; the next one may cost" in told
    assert "no results yet" not in told
    assert not server.requests


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "5"], "--budget 5: needs what tokens cost; add --price"),
        (["--budget", "5", "--price", "hour=2"], "--budget 5: needs what tokens cost"),
        (["--batch", "--price", "auto"], "--batch: --price auto has the prices of single requests"),
        (["--budget", "0", "--price", "input=1,cached=1,output=1"], "--budget 0"),
        (
            ["--budget", "5", "--price", "input=1,cached=1,output=1", "--server-arg", "max_tokens="],
            "--server-arg max_tokens=: a budget needs the limit of an answer's tokens; leave one of the two out",
        ),
        (["--price", "input=1"], "cached and output missing"),
        (["--batch", "--score", "exact"], "--batch: batches do not return the scores of every label"),
    ],
)
def test_a_budget_without_a_price_is_refused(options: list[str], said: str) -> None:
    line = ["run", "--task", "trec", "--model", "m", "--k", "1", "--backend", "google", "--tokenizer", "gemma3-270m"]
    assert said in printed(*line, *options, code=2)


# -- holding labels -----------------------------------------------------------------------------


def holding(*ways: str) -> Any:
    """A server that knows some ways to hold an answer, ignores one and refuses another."""

    def answer(body: dict[str, Any]) -> Reply:
        if "choice" in ways and "structured_outputs" in body:
            return chat(re.findall(r"\w+", body["structured_outputs"]["regex"])[0])
        if "grammar" in ways and "grammar" in body:
            return chat(body["grammar"].split('"')[1])
        if "json" in ways and "response_format" in body:
            label = body["response_format"]["json_schema"]["schema"]["properties"]["label"]["enum"][1]
            return chat(json.dumps({"label": label}))
        if "refuses" in ways and "structured_outputs" in body:
            return 400, {"error": {"message": "Unknown parameter: 'structured_outputs'."}}
        return chat("Hello!")

    return answer


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        (("choice", "json"), "choice"),
        (("grammar",), "choice"),
        (("json",), "json"),
        (("refuses", "json"), "json"),
        (("refuses",), None),
        ((), None),
    ],
)
def test_how_a_server_holds_answers_is_found_by_asking(ways: Any, found: str | None) -> None:
    with serving(holding(*ways)) as server:
        assert found_hold("m", Chat(), Connection(server.url, KEY, "OPENAI_API_KEY")) == found
    assert len(server.requests) <= 4


FAILING: dict[str, Reply] = {
    "rate limit": (429, {"error": {"message": "slow down"}}),
    "failure": (500, {"error": {"message": "restarting"}}),
    "overload": (529, {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}),
    "gateway": (200, {"error": {"message": "no workers", "code": 502}}),
    "key": (401, {"error": {"message": f"{KEY} is bad"}}),
}


@pytest.mark.parametrize(
    ("interface", "name"), [*((Chat(), name) for name in FAILING if name != "overload"), (Messages(), "overload")]
)
def test_a_server_that_fails_while_it_is_probed_is_not_taken_for_one_that_does_not_hold(
    interface: Any, name: str
) -> None:
    with serving(lambda _: FAILING[name]) as server, pytest.raises(UserError) as raised:
        found_hold("m", interface, Connection(server.url, KEY, "OPENAI_API_KEY"))
    assert str(raised.value).startswith(f"--hold auto: {server.url}: ")
    assert KEY not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_probe_without_an_end_is_one_line() -> None:
    big = (200, Body(b'{"choices": [{"text": "' + b"a" * (LARGEST + 10) + b'"}]}'))
    with serving(lambda _: big) as server, pytest.raises(UserError, match=r"--hold auto: .*more than 16 MiB"):
        found_hold("m", Chat(), Connection(server.url, KEY, "OPENAI_API_KEY"))


def test_an_argument_that_the_client_needs_is_never_left_out() -> None:
    refused = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: unknown argument"}}
    with serving(lambda _: (400, refused)) as server:
        made = server_backend(at(server.url, "anthropic"), provider="anthropic", endpoint="chat")
        with pytest.raises(CellError, match=r"the server refuses the request .*max_tokens: unknown argument"):
            answers(made, conversations(2, 1))


def test_a_held_answer_is_asked_for_in_the_words_of_each_kind_of_server() -> None:
    held = Completions().held("choice", [" card (lost)", ' a "quoted"\\ one'])
    for pattern in (held["structured_outputs"]["regex"], held["regex"]):
        found = [
            text for text in (" card (lost)", ' a "quoted"\\ one', " card lost", "") if re.fullmatch(pattern, text)
        ]
        assert found == [" card (lost)", ' a "quoted"\\ one']
    assert held["grammar"] == r'''root ::= " card (lost)" | " a \"quoted\"\\ one"'''
    assert Responses().held("json", [" a"])["text"]["format"]["schema"]["properties"]["label"]["enum"] == ["a"]


# -- windows, sizes, redirects, other models ----------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"context_length": 131_072}, 131_072),
        ({"max_input_tokens": 200_000}, 200_000),
        ({"meta": {"n_ctx": 8192}}, 8192),
        ({"max_model_len": True}, None),
        ({"max_model_len": "4096"}, None),
        ({}, None),
    ],
)
def test_a_models_window_is_read_from_the_servers_list(entry: dict[str, Any], window: int | None) -> None:
    with serving(lambda _: chat(""), models=(200, {"data": [{"id": "m", **entry}, "odd", {"id": 3}]})) as server:
        (listed,) = listed_models(Chat(), Connection(server.url, KEY, "X")).items()
    assert listed == ("m", (window, None))


@pytest.mark.parametrize(
    ("owner", "given", "remedy"),
    [
        ("vllm", {}, "--generation-config vllm"),
        ("sglang", {}, "--sampling-defaults openai"),
        ("vllm", {"repetition_penalty": 1}, None),
        ("openai", {}, None),
        ({}, {}, None),
    ],
)
def test_a_server_that_applies_the_models_own_sampling_settings_is_noted(
    owner: Any, given: dict[str, Any], remedy: str | None
) -> None:
    """As in vLLM's ``--generation-config auto`` and SGLang's ``--sampling-defaults model``, their defaults."""
    with serving(lambda _: chat("card"), models=(200, {"data": [{"id": "m", "owned_by": owner}]})) as server:
        made = server_backend(server.url, arguments=given)
    notes = [note for note in made.counters.notes if "generation_config.json" in note]
    assert [remedy in note for note in notes if remedy] == [True] * bool(remedy)
    assert len(notes) == bool(remedy)


@pytest.mark.parametrize(
    "models",
    [(404, {}), (500, {}), *((200, body) for body in ([], 3, "m", {"data": None}))]
    + [(200, {"data": data}) for data in (3, True, 1.5, "m", {"id": "m"}, [3, None, ["m"], {"id": None}])],
)
def test_a_list_of_models_of_another_shape_is_none(models: Reply) -> None:
    with serving(lambda _: chat(""), models=models) as server:
        assert listed_models(Chat(), Connection(server.url, KEY, "X"), retries=0) == {}


def test_a_response_without_an_end_is_given_up_at_a_limit() -> None:
    big = b'{"choices": [{"text": "' + b"a" * (LARGEST + 10) + b'"}]}'
    with serving(lambda _: (200, Body(big))) as server:
        made = server_backend(server.url)
        with pytest.raises(CellError, match="answered with more than 16 MiB"):
            answers(made, replace(conversations(2, 1), own_texts=("q",), conversation=None))


HUGE = Body(b'{"data": [{"id": "' + b"a" * (LARGEST + 10) + b'"}]}')


def test_a_list_of_models_without_an_end_is_given_up_too() -> None:
    with (
        serving(lambda _: chat(""), models=(200, HUGE)) as server,
        pytest.raises(CellError, match="answered with more than 16 MiB"),
    ):
        listed_models(Chat(), Connection(server.url, KEY, "X"), retries=0)


def test_a_list_of_batches_without_an_end_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icl_bench.backends.servers.batches.LARGEST_RESULTS", 2**20)
    with (
        serving(lambda _: chat(""), models=(200, HUGE)) as server,
        pytest.raises(UserError, match=r"does not list its batches .*answered with more than 1 MiB"),
    ):
        check_batches(Chat(), Connection(server.url, KEY, "X"))


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects to another place, or answers packed."""

    target = ""
    packed = b""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.packed:
            self.send_error(404)  # it lists no models
        else:
            self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        self.send_response(307 if self.target else 200)
        if self.target:
            self.send_header("Location", self.target + self.path)
        if self.packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.packed)))
        self.end_headers()
        self.wfile.write(self.packed)


def elsewhere(**fields: Any) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Elsewhere,), fields))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def test_the_host_that_requests_were_redirected_to_and_the_model_are_stored(tmp_path: Path) -> None:
    plan = fakes.plan(tmp_path / "task", k="2", draws=1, scoring="unconstrained")
    with serving(lambda _: completion(" card lost")) as server:
        first = elsewhere(target=server.url.removesuffix("/v1").replace("127.0.0.1", "localhost"))
        url = f"http://127.0.0.1:{first.server_port}/v1"
        Runner(plan, Store(tmp_path / "results"), {"backend": "openai"}, lambda: server_backend(url)).run()
        first.shutdown()
    ((_, meta),) = finished_cells(tmp_path / "results")
    assert meta.served == {"model": "m", "host": "localhost"}


def test_a_packed_response_is_read_and_one_that_unpacks_to_too_much_is_not() -> None:
    body = json.dumps(completion(" card lost")[1]).encode()
    for content, said in ((body, None), (b'{"a": "' + b" " * (4 * LARGEST) + b'"}', "more than 16 MiB")):
        server = elsewhere(packed=gzip.compress(content))
        made = server_backend(f"http://127.0.0.1:{server.server_port}/v1")
        prompts = replace(conversations(2, 1), own_texts=("q",), conversation=None)
        if said is None:
            assert answers(made, prompts)[0].text == "card lost"
        else:
            with pytest.raises(CellError, match=said):
                answers(made, prompts)
        server.shutdown()


def test_another_model_fails_the_cell_or_marks_it() -> None:
    names = iter(["m-1", "m-1", "m-2"] * 2)

    def answer(_: dict[str, Any]) -> Reply:
        status, reply = chat("card lost")
        return status, {**reply, "model": next(names)}

    with serving(answer) as server:
        made = server_backend(server.url, endpoint="chat", concurrency=1)
        with pytest.raises(CellError, match=r"a different model answers than before .*--on-model-change mark"):
            answers(made, conversations(2, 3))
        made = server_backend(server.url, endpoint="chat", concurrency=1, on_model_change="mark")
        answers(made, conversations(2, 3))
    assert made.counters.served == {"model": "m-1, m-2"}
    assert made.counters.notes == ["a different model answers than before (m-2, not m-1)"]


# -- options that exclude each other ------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "anthropic", "--hold", "choice"], "--hold choice: --backend anthropic with messages has json"),
        (["--backend", "openai", "--endpoint", "responses", "--hold", "choice"], "with responses has json"),
        (["--backend", "openai", "--thinking", "low"], "--thinking: completions do not think"),
        (
            ["--backend", "openai", "--endpoint", "completions", "--chat", "turns"],
            "--endpoint completions: has no messages",
        ),
        (["--backend", "google", "--endpoint", "chat"], "--endpoint: applies to --backend openai only, this is google"),
        (["--backend", "google", "--thinking", "much"], "--thinking much: expected off, low, high"),
        (["--backend", "mistral"], "--backend mistral"),
        (["--backend", "google", "--task", "samsum", "--hold", "json"], "--hold json: task samsum is free text"),
        (
            ["--backend", "transformers", "--budget", "1", "--price", "input=1,cached=1,output=1"],
            "--budget 1: is for models",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused_without_a_key(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for provider in PROVIDERS.values():
        monkeypatch.delenv(provider.key)
    line = ["plan", "--task", "trec", "--model", "m", "--k", "1", "--base-url", "http://127.0.0.1:9/v1"]
    tokenizer = [] if "transformers" in options else ["--tokenizer", "gemma3-270m"]
    line = line[:-2] if "transformers" in options else line
    told = printed(*line, *tokenizer, *options, code=2)
    assert said in told
    assert told.count("\n") <= 2


def test_shared_ends_order_and_compare() -> None:
    assert End(1, 0) < End(1, 5) < End(2, 0)
