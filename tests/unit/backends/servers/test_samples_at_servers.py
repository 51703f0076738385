"""Samples of a model behind a server: temperature and seed of each request, and servers that refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.api_server import Reply, chat, completion, serving
from support.needs import packages
from support.servers import server_backend

from icl_bench.backends.interface import Answer, Free
from icl_bench.backends.loaders import AnthropicLoader, OpenAILoader
from icl_bench.backends.sampling import Sampling
from icl_bench.errors import CellError, UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.run_spec import RunSpec

packages("openai")


PROMPTS = PromptSet((), ((1,),) * 4, "shown\n", tuple(f"query {i}" for i in range(4)))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-very-secret")


def answers(backend: Any, temperature: float = 0.7) -> list[Answer]:
    each = [Free(("\n",), 5, sampling=Sampling(temperature, 0, (f"row {i}", 0))) for i in range(4)]
    return [answer for pack in backend.answer(PROMPTS, range(4), each, 0) for answer in pack]


@pytest.mark.parametrize(("endpoint", "reply"), [("completions", completion), ("chat", chat)])
def test_each_request_has_the_temperature_and_a_seed_of_its_own(endpoint: str, reply: Callable[[Any], Reply]):
    with serving(lambda _: reply(" yes")) as server:
        answers(server_backend(server.url, endpoint=endpoint))
        answers(server_backend(server.url, endpoint=endpoint))
    assert {request["temperature"] for request in server.requests} == {0.7}
    seeds = [request["seed"] for request in server.requests]
    assert len(set(seeds)) == 4
    assert sorted(seeds[:4]) == sorted(seeds[4:])


def test_answers_that_are_not_sampled_have_no_seed():
    with serving(lambda _: completion(" yes")) as server:
        backend = server_backend(server.url)
        list(backend.answer(PROMPTS, [0], [Free(("\n",), 5)] * 4, 0))
    assert server.requests[0]["temperature"] == 0
    assert "seed" not in server.requests[0]


def refusing(name: str, message: str) -> Callable[[Any], Reply]:
    def reply(body: Any) -> Reply:
        if name in body:
            return 400, {"error": {"message": message, "param": None, "type": "invalid_request_error", "code": None}}
        return chat("yes")

    return reply


@pytest.mark.parametrize(
    "message", ["Unsupported value: 'temperature' does not support 0.7 with this model.", "temperature is deprecated"]
)
def test_a_temperature_that_is_refused_ends_the_run_with_what_to_do(message: str):
    with serving(refusing("temperature", message)) as server, pytest.raises(UserError) as error:
        answers(server_backend(server.url, endpoint="chat"))
    assert str(error.value).startswith("--temperature 0.7: the server refuses it (")
    assert str(error.value).endswith("; reasoning models sample only at temperature 1: use --temperature 1")
    assert "\n" not in str(error.value)


def test_a_temperature_of_1_may_be_left_out_because_it_is_that_of_requests_without_one():
    with serving(refusing("temperature", "temperature is not supported by this model")) as server:
        backend = server_backend(server.url, endpoint="chat")
        assert {answer.text for answer in answers(backend, 1.0)} == {"yes"}
    assert backend.counters.notes == ["temperature: the server refuses it, it is left out"]


def test_a_seed_that_is_refused_is_left_out_with_a_note():
    with serving(refusing("seed", "Unknown name seed")) as server:
        backend = server_backend(server.url, endpoint="chat")
        assert {answer.text for answer in answers(backend)} == {"yes"}
    assert backend.counters.notes == ["seed: the server refuses it, it is left out: answers may differ from run to run"]


def test_a_temperature_out_of_the_servers_range_is_the_servers_own_error():
    message = "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 7 instead."
    with serving(refusing("temperature", message)) as server, pytest.raises(CellError, match="above maximum"):
        answers(server_backend(server.url, endpoint="chat"), 7.0)


@pytest.mark.parametrize("argument", ["temperature=0.5", "temperature=", "seed=3"])
def test_arguments_that_samples_set_are_refused(argument: str):
    spec = RunSpec(task="stdlib", model="m", k="1", backend="openai", server_arg=(argument,))
    with pytest.raises(UserError) as error:
        OpenAILoader(spec.engine).check_samples(0.7)
    name = argument.partition("=")[0]
    assert str(error.value) == f"--server-arg {name}: is set by --samples and --temperature; leave it out"


def test_anthropics_models_think_at_a_temperature_of_1_alone():
    spec = RunSpec(task="stdlib", model="m", k="1", backend="anthropic", thinking="low")
    AnthropicLoader(spec.engine).check_samples(1.0)
    AnthropicLoader(spec.engine.model_copy(update={"thinking": "off"})).check_samples(0.7)
    with pytest.raises(UserError) as error:
        AnthropicLoader(spec.engine).check_samples(0.7)
    assert str(error.value) == (
        "--temperature 0.7: Anthropic's models can think only at temperature 1; take --temperature 1, or --thinking off"
    )
