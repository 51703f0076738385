"""What a server says beside the text of an answer: tokens that it bills, refusals, filters, other models."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies
from support import fakes
from support.api_server import Reply, chat, completion, serving
from support.needs import packages
from support.servers import server_backend

from icl_bench.backends.background import Together
from icl_bench.backends.interface import Answer, Free
from icl_bench.backends.servers.backend import ServerBackend
from icl_bench.backends.servers.cut_prompts import CutPrompts
from icl_bench.backends.servers.openai import Completions
from icl_bench.backends.servers.providers import PROVIDERS
from icl_bench.backends.servers.replies import Billed, Completion
from icl_bench.cli.output.progress import Display
from icl_bench.errors import CellError, UserError
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.label_scores import KEEP_ALL
from icl_bench.results.reading import finished_cells, read_results
from icl_bench.results.store import Store
from icl_bench.sweep.runner import Outcome, PredictionMaker, Runner

packages("openai")


KEY = "sk-very-secret"
IDENTITY = {"backend": "openai"}
PROMPTS = PromptSet((), ((1,),) * 6, "demonstrations\n", tuple(f"query {i}" for i in range(6)))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


backend = server_backend


def answers(asked: ServerBackend, todo: list[int], prompts: PromptSet = PROMPTS, **decoding: Any) -> list[Answer]:
    free = Free(**{"stops": ("\n",), "max_tokens": 5, "of_labels": True, **decoding})
    found = [a for pack in asked.answer(prompts, todo, [free] * len(prompts), 0) for a in pack]
    return sorted(found, key=lambda a: a.index)


def of_chat(content: Any, *, finish: str = "stop", usage: Any = None, **message: Any) -> Reply:
    """A chat completion with more fields."""
    status, body = chat(content)
    body["choices"][0] |= {"finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return status, body | {"usage": usage}


def computed(tmp_path: Path, answer: Any, **options: Any) -> tuple[Any, Outcome]:
    """A cell of six labelled rows answered by a server: its predictions, and how the run ended."""
    plan = fakes.plan(tmp_path / "task", k="2", draws=1, scoring="unconstrained")
    with serving(answer) as server:
        load = lambda: backend(server.url, **options)  # noqa: E731
        outcome = Runner(plan, Store(tmp_path / "results"), IDENTITY, load).run()
    return (read_results(tmp_path / "results") if outcome.computed else None), outcome


# -- tokens as billed ---------------------------------------------------------------------------

USAGES: dict[str, tuple[dict[str, Any], Billed]] = {
    # https://platform.openai.com/docs/guides/prompt-caching, /docs/guides/reasoning
    "OpenAI": (
        {
            "prompt_tokens": 2006,
            "completion_tokens": 300,
            "prompt_tokens_details": {"cached_tokens": 1920},
            "completion_tokens_details": {"reasoning_tokens": 256},
        },
        Billed(2006, 1920, None, 300, 256),
    ),
    # https://api-docs.deepseek.com/guides/kv_cache
    "DeepSeek": (
        {"prompt_tokens": 100, "completion_tokens": 3, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36},
        Billed(100, 64, None, 3, None),
    ),
    "Moonshot": ({"prompt_tokens": 19, "completion_tokens": 1, "cached_tokens": 10}, Billed(19, 10, None, 1, None)),
    # Anthropic counts what was read from the cache apart from the other tokens of the prompt
    "counted apart": (
        {
            "prompt_tokens": 20,
            "completion_tokens": 1,
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 0,
        },
        Billed(1020, 1000, 0, 1, None),
    ),
    "a gateway whose total has the cache's tokens": (
        {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 3055, "cache_read_input_tokens": 3000},
        Billed(3050, 3000, None, 5, None),
    ),
    "a gateway whose total has tokens written into the cache": (
        {
            "prompt_tokens": 50,
            "completion_tokens": 5,
            "total_tokens": 3555,
            "cache_read_input_tokens": 3000,
            "cache_creation_input_tokens": 500,
        },
        Billed(3550, 3000, 500, 5, None),
    ),
    "a gateway whose cache has less than the prompt": (
        {
            "prompt_tokens": 50,
            "completion_tokens": 5,
            "total_tokens": 85,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 30,
        },
        Billed(80, 0, 30, 5, None),
    ),
    "a gateway whose total has the cache's tokens and thoughts": (
        {
            "prompt_tokens": 50,
            "completion_tokens": 5,
            "total_tokens": 3062,
            "cache_read_input_tokens": 3000,
            "completion_tokens_details": {"reasoning_tokens": 7},
        },
        Billed(3050, 3000, None, 12, 7),
    ),
    "nothing": ({}, Billed()),
}


@pytest.mark.parametrize("name", USAGES)
def test_every_way_to_say_tokens_is_read(name: str) -> None:
    usage, billed = USAGES[name]
    assert Completion(choices=[], usage=usage).billed == billed  # type: ignore[arg-type]


def test_the_servers_tokens_are_stored_beside_the_local_count(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 500,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 300},
        "completion_tokens_details": {"reasoning_tokens": 7},
    }
    status, body = completion(" card lost")
    frame, outcome = computed(tmp_path, lambda _: (status, {**body, "usage": usage}))
    assert set(frame["prompt_tokens"]) == {500}
    assert set(frame["cached_tokens"]) == {300}
    assert set(frame["answer_tokens"]) == {9}
    assert set(frame["reasoning_tokens"]) == {7}
    assert (frame["local_prompt_tokens"] < 200).all()
    assert outcome.prompt_tokens == 3000
    assert outcome.cached_tokens == 1800  # 60%, where the local count made it hundreds of percent


def test_without_the_servers_tokens_local_ones_are_stored_and_nothing_is_cached(tmp_path: Path) -> None:
    status, body = completion(" card lost")
    frame, _ = computed(tmp_path, lambda _: (status, {**body, "usage": None}))
    assert (frame["prompt_tokens"] < 200).all()
    assert frame["local_prompt_tokens"].isna().all() if "local_prompt_tokens" in frame else True
    assert set(frame["cached_tokens"]) == {0}


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 60}, {"prompt_tokens": 60, "completion_tokens": 0}])
def test_tokens_of_answers_that_a_server_does_not_report_are_counted_here(tmp_path: Path, usage: Any) -> None:
    status, body = completion(" card lost")
    frame, outcome = computed(tmp_path, lambda _: (status, {**body, "usage": usage}))
    assert (frame["answer_tokens"] > 0).all()
    assert outcome.answer_tokens == frame["answer_tokens"].sum()


# -- prompts that were cut ----------------------------------------------------------------------


def test_a_count_far_below_the_local_one_is_a_cut_prompt() -> None:
    with pytest.raises(CellError, match=r"counts 50 tokens of a prompt of 590: it seems to have cut it.*num_ctx"):
        CutPrompts().check(590, 50)


def test_a_window_that_cuts_longer_prompts_is_noticed_at_the_first_of_them() -> None:
    """Ollama's window of 4,096, with another tokenizer than here: 5% more tokens."""
    seen = CutPrompts()
    for counted in (300, 1000, 3500):
        seen.check(counted, int(1.05 * counted))
    with pytest.raises(CellError, match="4,096 tokens of a prompt of 5,000"):
        seen.check(5000, 4096)


def test_prompts_of_one_cell_that_all_have_the_windows_tokens_are_noticed() -> None:
    seen = CutPrompts()
    for counted in range(5000, 5021, 3):
        seen.check(counted, 4096)
    with pytest.raises(CellError, match="4,096 tokens of a prompt of 5,021: it seems to have cut it"):
        seen.check(5021, 4096)


@pytest.mark.parametrize("ratio", [0.6, 0.9, 1.0, 1.3, 2.5])
def test_other_tokenizers_cut_nothing(ratio: float) -> None:
    seen = CutPrompts()
    for counted in (20, 90, 210, 800, 801, 802, 805, 3000, 12_000, 60_000):
        for more in range(12):  # chat templates add a few
            seen.check(counted + more, round(ratio * (counted + more)) + 8 + more % 3)


def test_prompts_of_equal_tokens_are_not_taken_for_cut_ones() -> None:
    seen = CutPrompts()
    for _ in range(100):
        seen.check(1000, 1003)


def test_a_cut_prompt_fails_the_cell() -> None:
    long = PromptSet((), (tuple(range(590)),) * 6, "demonstrations\n", tuple(f"query {i}" for i in range(6)))
    with serving(lambda _: completion(" x", prompt_tokens=50)) as server, pytest.raises(CellError, match="cut"):
        answers(backend(server.url), [0], long)


@pytest.mark.parametrize(("tokens", "noted"), [(29, True), (30, False), (33, False)])
def test_a_server_that_adds_no_beginning_of_a_text_is_noted_once(tokens: int, noted: bool) -> None:
    prompts = PromptSet((), (tuple(range(30)),) * 6, "demonstrations\n", tuple(f"query {i}" for i in range(6)))
    with serving(lambda _: completion("x", prompt_tokens=tokens)) as server:
        made = backend(server.url)
        answers(made, [0, 1, 2], prompts)
    assert len(made.counters.notes) == noted


# -- labels in another dress --------------------------------------------------------------------

DRESSES = [
    "card lost.",
    "**card lost**",
    '"card lost"',
    "Card lost",
    "intent: card lost",
    "\ncard lost",
    "\u00a0card lost",
    "<think>It may be card arrival.</think>card lost",
    "<think>\n</think>\n\ncard lost",
    "card lost<|im_end|>",
]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_right_answer_in_another_dress_is_right_and_its_whole_text_is_kept(endpoint: Any, tmp_path: Path) -> None:
    made = chat if endpoint == "chat" else completion
    for number, part in enumerate((DRESSES[:6], DRESSES[4:])):
        said = iter(part)
        frame, outcome = computed(
            tmp_path / str(number), lambda _, said=said: made(next(said)), endpoint=endpoint, concurrency=1
        )
        assert set(frame["prediction"]) == {"card lost"}
        assert frame["valid"].all()
        assert not outcome.invalid
        assert set(frame["text"].dropna()) <= set(part)
        assert frame["text"].notna().sum() >= 4  # blanks around it are no more text


def test_a_leading_line_break_that_ends_the_answer_is_asked_again_without_the_stop() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return completion("" if body.get("stop") else "\n card lost\nquery: more")

    with serving(answer) as server:
        made = backend(server.url)
        (found,) = answers(made, [0])
    assert found.text == "card lost"
    assert len(server.requests) == 2
    assert (made.counters.own_tokens, made.counters.answer_tokens) == (2 * (10 - 4), 2 * 2)
    assert [note.partition(";")[0] for note in made.counters.notes] == [
        "some answers were empty and asked again without stop texts"
    ]
    assert found.prompt_tokens == 10


def test_a_chat_is_not_stopped_at_a_line_break_and_has_room_for_a_sentence() -> None:
    with serving(lambda _: chat("card lost")) as server:
        answers(backend(server.url, endpoint="chat"), [0])
    (request,) = server.requests
    assert "stop" not in request
    assert request["max_completion_tokens"] == 64


# -- rows without an answer ---------------------------------------------------------------------

NO_ANSWER: dict[str, tuple[Reply, str]] = {
    "a refusal": (of_chat(None, refusal="I cannot help with that."), "refused: I cannot help with that."),
    "a filter": (of_chat("", finish="content_filter"), "content_filter"),
    "a filter of prompts": (
        # https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter
        (400, {"error": {"message": "The response was filtered", "code": "content_filter", "param": "prompt"}}),
        "content_filter",
    ),
    "thoughts alone": (of_chat("", finish="length", reasoning_content="It may be"), "ran out of tokens while thinking"),
    "thoughts that are counted": (
        of_chat(
            "", finish="length", usage={"completion_tokens": 64, "completion_tokens_details": {"reasoning_tokens": 64}}
        ),
        "ran out of tokens while thinking",
    ),
    "thoughts in the text": (of_chat("<think>It may be", finish="length"), "ran out of tokens while thinking"),
    "tools": (of_chat(None, finish="tool_calls"), "no text (finish_reason tool_calls)"),
    "a filter with its reason": (of_chat("card lost", finish="content_filter: RECITATION"), "content_filter"),
}


@pytest.mark.parametrize("name", NO_ANSWER)
def test_a_row_without_an_answer_is_invalid_with_its_reason_and_the_others_stand(name: str, tmp_path: Path) -> None:
    reply, reason = NO_ANSWER[name]
    asked: list[int] = []

    def answer(_: dict[str, Any]) -> Reply:
        asked.append(1)
        return reply if len(asked) == 2 else of_chat("card lost")

    frame, outcome = computed(tmp_path, answer, endpoint="chat", concurrency=1)
    assert len(asked) == 6
    assert frame["valid"].tolist().count(False) == 1
    (row,) = frame[~frame["valid"]].to_dict("records")
    assert row["reason"] == reason
    assert not row["correct"]
    assert set(frame.loc[frame["valid"], "prediction"]) == {"card lost"}
    assert (outcome.invalid, outcome.samples) == (1, [reason])


def test_an_error_with_status_200_is_asked_again_and_never_scored() -> None:
    asked: list[int] = []

    def answer(_: dict[str, Any]) -> Reply:
        asked.append(1)
        return (200, {"error": {"message": "overloaded", "code": 502}}) if len(asked) < 3 else completion("yes")

    with serving(answer) as server:
        (found,) = answers(backend(server.url), [0])
    assert found.text == "yes"
    with serving(lambda _: (200, {"error": "no workers"})) as server, pytest.raises(CellError, match="no workers"):
        answers(backend(server.url, patience_seconds=0.1), [0])


INTERRUPTED: dict[str, dict[str, Any]] = {
    # https://api-docs.deepseek.com/api/create-chat-completion
    "DeepSeek": {"finish_reason": "insufficient_system_resource"},
    # https://openrouter.ai/docs/api-reference/overview
    "OpenRouter": {"finish_reason": "error", "error": {"code": 502, "message": "upstream failed"}},
    "vLLM and SGLang": {"finish_reason": "abort"},
}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_answer_that_the_server_interrupts_is_asked_again_and_never_scored(name: str, endpoint: Any) -> None:
    asked: list[int] = []

    def answer(_: dict[str, Any]) -> Reply:
        asked.append(1)
        status, body = (chat if endpoint == "chat" else completion)("card lost" if len(asked) > 2 else "card")
        if len(asked) <= 2:
            body["choices"][0] |= INTERRUPTED[name]
        return status, body

    with serving(answer) as server:
        (found,) = answers(backend(server.url, endpoint=endpoint), [0])
    assert (found.text, len(server.requests)) == ("card lost", 3)


@pytest.mark.parametrize("ended", ["length", "model_length", "max_tokens"])
def test_an_answer_that_ends_at_a_limit_of_tokens_is_truncated(ended: str) -> None:
    with serving(lambda _: of_chat("card", finish=ended)) as server:
        (found,) = answers(backend(server.url, endpoint="chat"), [0])
    assert found.truncated


TRUNCATED = {
    "card": False,
    "The label is: card": False,
    "card lost": True,
    "**card": False,
    "card_": False,
    "card\nBecause it": True,  # the line of the label is complete
    "**card**": True,
    '{"label": "card"}': True,
    "top up\n": True,
}


@pytest.mark.parametrize("text", TRUNCATED)
def test_a_truncated_answer_that_may_be_the_beginning_of_another_label_is_invalid(text: str, tmp_path: Path) -> None:
    labels = ("card", "card lost", "top up")
    task = fakes.tokenized_task(tmp_path / "task", scoring="unconstrained")
    (group,) = fakes.planned(task, "2", draws=1).groups
    ((_, prompts),) = group.group.prompts([2])
    maker = PredictionMaker(task, group.group, 2, prompts, KEEP_ALL)
    maker._labels = labels
    made = maker.make(Answer(0, 0, 3, text=text, raw=text, truncated=True))
    assert made.valid == TRUNCATED[text]
    assert made.reason == (
        None if made.valid else "the limit of tokens ended the answer, and another label begins alike"
    )
    assert maker.make(Answer(0, 0, 3, text=text, raw=text, truncated=False)).valid


def test_an_account_without_credit_ends_at_once() -> None:
    # https://platform.openai.com/docs/guides/error-codes: 429, "You exceeded your current quota"
    error = {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}
    with serving(lambda _: (429, {"error": error})) as server:
        made = backend(server.url, patience_seconds=60)
        with pytest.raises(CellError, match=r"no credit left \(.*exceeded your current quota"):
            answers(made, [0])
    assert len(server.requests) <= 3  # the library repeats a request twice by itself


# -- arguments that a server refuses ------------------------------------------------------------


def refusing(name: str, message: str, param: str | None) -> Any:
    def answer(body: dict[str, Any]) -> Reply:
        if name in body:
            return 400, {"error": {"message": message, "type": "invalid_request_error", "param": param}}
        return chat("card lost")

    return answer


@pytest.mark.parametrize(
    ("name", "message", "param"),
    [
        ("temperature", "Unsupported value: 'temperature' does not support 0 with this model.", "temperature"),
        ("temperature", "temperature is not supported by this model", None),
        ("temperature", "`temperature` is deprecated for this model.", None),
    ],
)
def test_an_argument_that_the_server_refuses_is_left_out_and_said_once(name: str, message: str, param: Any) -> None:
    with serving(refusing(name, message, param)) as server:
        made = backend(server.url, endpoint="chat", concurrency=1)
        found = answers(made, list(range(6)))
    assert [a.text for a in found] == ["card lost"] * 6
    assert len(server.requests) == 7
    assert made.counters.notes == [
        "temperature: the server refuses it, it is left out: answers may differ from run to run"
    ]


def test_a_limit_of_another_name_is_sent_under_it() -> None:
    message = "Unsupported parameter: 'max_completion_tokens' is not supported; use 'max_tokens' instead."
    with serving(refusing("max_completion_tokens", message, "max_completion_tokens")) as server:
        made = backend(server.url, endpoint="chat", concurrency=1)
        answers(made, [0, 1])
    assert [("max_tokens" in r, "max_completion_tokens" in r) for r in server.requests] == [
        (False, True),
        (True, False),
        (True, False),
    ]
    assert made.counters.notes == ["max_completion_tokens: the server refuses it; max_tokens is sent instead"]
    assert made.counters.served["left_out"] == "max_completion_tokens"


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 32832. This model supports at most 16384 completion tokens.",
        "This model's maximum context length is 4096 tokens. However, you requested 64 output tokens.",
    ],
)
def test_a_limit_whose_value_is_refused_is_not_left_out(message: str, endpoint: Any) -> None:
    """Without it, all further answers would be longer than the task's."""
    name = "max_completion_tokens" if endpoint == "chat" else "max_tokens"
    with serving(refusing(name, message, name)) as server, pytest.raises(CellError, match=message[:20]):
        answers(backend(server.url, endpoint=endpoint), [0])
    assert len(server.requests) == 1


def test_requests_under_way_while_an_argument_is_refused_are_repeated() -> None:
    message = "Unsupported parameter: 'max_completion_tokens' is not supported; use 'max_tokens' instead."
    together = threading.Barrier(6, timeout=20)

    def answer(body: dict[str, Any]) -> Reply:
        if "max_completion_tokens" in body:
            together.wait()
        return refusing("max_completion_tokens", message, None)(body)

    with serving(answer) as server:
        made = backend(server.url, endpoint="chat", concurrency=6)
        found = answers(made, list(range(6)))
    assert [a.text for a in found] == ["card lost"] * 6
    assert made.counters.notes == ["max_completion_tokens: the server refuses it; max_tokens is sent instead"]
    assert made.counters.served["left_out"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("response_format", {"hold": "json"}),
        ("seed", {"arguments": {"seed": 1}}),
        ("temperature", {"arguments": {"temperature": 1}}),
    ],
)
def test_what_the_user_asks_for_is_never_left_out(name: str, options: dict[str, Any]) -> None:
    with serving(refusing(name, f"{name} is not supported", name)) as server:
        made = backend(server.url, endpoint="chat", **options)
        with pytest.raises(CellError, match=f"{name} is not supported"):
            answers(made, [0], labels=("card lost",))
    assert not made.counters.notes


def test_a_refusal_of_something_else_fails_the_cell() -> None:
    reply = 400, {"error": {"message": "this model's maximum context length is 4097 tokens", "param": "messages"}}
    with serving(lambda _: reply) as server, pytest.raises(CellError, match="maximum context length"):
        answers(backend(server.url, endpoint="chat"), [0])


# -- another model ------------------------------------------------------------------------------


def test_a_model_that_changes_fails_the_cell() -> None:
    names: Iterator[str] = iter(["m-2026-01-01", "m-2026-01-01", "m-2026-06-01"])

    def answer(_: dict[str, Any]) -> Reply:
        status, body = completion("yes")
        return status, {**body, "model": next(names)}

    with serving(answer) as server:
        made = backend(server.url, concurrency=1)
        with pytest.raises(
            CellError, match=r"a different model answers than before \(m-2026-06-01, not m-2026-01-01\)"
        ):
            answers(made, [0, 1, 2])


def test_a_model_that_changes_fails_a_copy_of_the_backend_too() -> None:
    name = ["m-0101"]

    def answer(_: dict[str, Any]) -> Reply:
        status, body = completion("yes")
        return status, {**body, "model": name[0]}

    with serving(answer) as server:
        made = backend(server.url, concurrency=1)
        answers(made, [0])
        name[0] = "m-0202"
        with Together.of(1) as together, pytest.raises(CellError, match="a different model answers than before"):
            together.run([lambda: answers(made.beside(together), [1])])


@pytest.mark.parametrize("on_model_change", ["fail", "mark"])
def test_a_resumed_cell_does_not_mix_models_unnoticed(tmp_path: Path, on_model_change: Any) -> None:
    asked: list[int] = []

    def answer(_: dict[str, Any]) -> Reply:
        asked.append(1)
        if len(asked) == 4:
            return 400, {"error": {"message": "no"}}
        status, body = completion(" card lost")
        return status, {**body, "model": "m-0101" if len(asked) < 4 else "m-0202"}

    _, first = computed(tmp_path, answer, concurrency=1)
    assert len(first.failed) == 1
    _, outcome = computed(tmp_path, answer, concurrency=1, on_model_change=on_model_change)
    if on_model_change == "fail":
        (reason,) = outcome.failed.values()
        assert "a different model answers than before (m-0202, not m-0101)" in reason
    else:
        assert outcome.failed == {}
        ((_, meta),) = finished_cells(tmp_path / "results")
        assert meta.served == {"model": "m-0101, m-0202"}


# -- invalid answers are shown ------------------------------------------------------------------


def test_many_invalid_answers_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    said = iter(["no idea", "card", *["card lost"] * 4])
    _, outcome = computed(tmp_path, lambda _: completion(next(said)), concurrency=1)
    assert sorted(outcome.samples) == ["card", "no idea"]
    Display(quiet=False).outcome(outcome, tmp_path)
    shown = capsys.readouterr().err
    assert "2 of 6 answers are invalid" in shown
    assert "'no idea'" in shown


# -- held labels, and arguments of requests -----------------------------------------------------


def requests_of(endpoint: Any, labels: tuple[str, ...] = (" card lost", " card"), **options: Any) -> dict[str, Any]:
    with serving(lambda _: (chat if endpoint == "chat" else completion)("card lost")) as server:
        answers(backend(server.url, endpoint=endpoint, **options), [0], labels=labels)
    (request,) = server.requests
    return request


def test_a_choice_has_the_labels_as_they_follow_the_prompt() -> None:
    held = requests_of("completions", hold="choice")
    assert held["structured_outputs"] == {"regex": held["regex"]}
    for text in (" card lost", " card"):
        assert re.fullmatch(held["regex"], text)
    assert "stop" not in held
    assert re.fullmatch(requests_of("chat", hold="choice")["regex"], "card lost")


def read_literal(text: str) -> str:
    """What llama.cpp's parser makes of a literal (``parse_char`` of its ``llama-grammar.cpp``)."""
    assert text[0] == text[-1] == '"'
    escaped = re.compile(r"""\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([trn"\\\[\]])|([^\\"\0])""")
    parts = list(escaped.finditer(text[1:-1]))
    assert "".join(part[0] for part in parts) == text[1:-1]
    short = {"t": "\t", "r": "\r", "n": "\n"}
    return "".join(
        part[5] or short.get(part[4] or "", part[4]) or chr(int(part[1] or part[2] or part[3], 16)) for part in parts
    )


@given(strategies.lists(strategies.text(min_size=1), min_size=1, max_size=4, unique=True))
@example(['say "hi"', "back\\slash", "two\nlines", "fianc\u00e9e", "\x000", "a.b*c+?^$|()[]{}", "-x #y & ~z"])
def test_any_label_is_one_of_a_grammars_and_of_a_regular_expressions_texts(labels: list[str]) -> None:
    held = Completions().held("choice", labels)
    root, _, literals = held["grammar"].partition(" ::= ")
    assert root == "root"
    assert [read_literal(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', literals, re.DOTALL)] == labels
    for label in labels:
        assert re.fullmatch(held["regex"], label)
        assert label + "x" in labels or not re.fullmatch(held["regex"], label + "x")


def test_a_schema_has_the_labels_as_values() -> None:
    schema = requests_of("chat", hold="json")["response_format"]["json_schema"]
    assert schema["strict"]
    assert schema["schema"]["properties"]["label"]["enum"] == ["card lost", "card"]
    assert schema["schema"]["required"] == ["label"]


def test_a_json_answer_of_several_lines_is_a_label(tmp_path: Path) -> None:
    frame, _ = computed(tmp_path, lambda _: chat('{\n  "label":\n"card lost"\n}'), endpoint="chat")
    assert set(frame["prediction"]) == {"card lost"}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_json_over_several_lines_is_not_cut_at_the_first(endpoint: Any) -> None:
    text = '{\n  "label": "card lost"\n}'
    made = chat if endpoint == "chat" else completion
    with serving(lambda _: made(text)) as server:
        (answer,) = answers(backend(server.url, endpoint=endpoint, hold="json"), [0], labels=(" card lost",))
    assert answer.text == text


def test_without_a_hold_or_labels_nothing_is_held() -> None:
    assert not {"structured_outputs", "response_format"} & requests_of("chat").keys()
    assert not {"structured_outputs", "response_format"} & requests_of("chat", labels=(), hold="json").keys()


def test_arguments_are_added_replaced_and_left_out() -> None:
    further = {"seed": 7, "temperature": None, "max_tokens": 900, "reasoning_effort": "low"}
    request = requests_of("chat", arguments=further)
    assert request["seed"] == 7
    assert request["reasoning_effort"] == "low"
    assert request["max_tokens"] == 900
    assert not {"temperature", "max_completion_tokens", "extra_body"} & request.keys()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"server_arg": ["seed"]}, "--server-arg seed: expected NAME=VALUE"),
        ({"server_arg": ["model=x"]}, "--server-arg model: is set by the program"),
        ({"server_arg": ["input=x"]}, "--server-arg input: is set by the program"),
        ({"server_arg": ["system=x"]}, "--server-arg system: is set by the program"),
        (
            {"backend": "anthropic", "base_url": None, "server_arg": ["max_tokens="]},
            "--server-arg max_tokens=: --backend anthropic needs it; give a value, or leave it out",
        ),
        (
            {"backend": "anthropic", "base_url": None, "server_arg": ["max_tokens=null"]},
            "--server-arg max_tokens=: --backend anthropic needs it",
        ),
        ({"hold": "grammar"}, "--hold grammar"),
        (
            {"backend": "transformers", "base_url": None, "hold": "json"},
            "--hold: applies to --backend openai, anthropic or google only",
        ),
    ],
)
def test_wrong_options_of_servers_are_refused(options: dict[str, Any], said: str) -> None:
    from icl_bench.backends.choice import check_backend
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.registry import BACKENDS

    def checked() -> None:
        spec = BackendSpec(**{"backend": "openai", "base_url": "http://127.0.0.1:9/v1", **options})
        check_backend(BACKENDS[spec.backend](spec))

    with pytest.raises(UserError, match=said):
        checked()


def test_holds_and_arguments_are_facts_of_a_cell() -> None:
    from icl_bench.backends.loaders import OpenAILoader
    from icl_bench.backends.spec import BackendSpec

    plain = BackendSpec(backend="openai", base_url="http://127.0.0.1:9/v1")
    assert OpenAILoader(plain).identity().keys() == {"backend", "server", "endpoint"}
    more = plain.model_copy(update={"hold": "json", "server_arg": ("seed=1", "temperature=")})
    identity = OpenAILoader(more).identity()
    assert identity["held"] == "json"
    assert identity["server_arguments"] == '{"seed": 1, "temperature": null}'


# -- addresses, models and time -----------------------------------------------------------------


def test_azures_version_of_the_interface_is_a_query_of_every_request() -> None:
    with serving(lambda _: chat("card lost")) as server:
        made = backend(f"{server.url}?api-version=2026-01-01", endpoint="chat")
        answers(made, [0])
    assert server.requests[0]["path"] == "/v1/chat/completions?api-version=2026-01-01"
    assert (
        PROVIDERS["openai"].where("https://host/openai/v1/?api-version=2026-01-01")
        == "https://host/openai/v1?api-version=2026-01-01"
    )
    with pytest.raises(UserError, match="query other than"):
        PROVIDERS["openai"].where("https://host/v1?api-version=1&key=2")


def test_a_model_that_the_server_does_not_have_is_told_with_its_list() -> None:
    models = 200, {"object": "list", "data": [{"id": f"model-{i}"} for i in range(10)]}
    reply = 404, {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}
    with serving(lambda _: reply, models=models) as server:
        made = backend(server.url)
        with pytest.raises(UserError, match=r"`m` does not exist.*; it lists model-0, .*model-7 and 2 more"):
            answers(made, [0])


def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icl_bench.backends.servers.backend._WHOLE_SECONDS", 0.3)

    def slow(_: dict[str, Any]) -> Reply:
        time.sleep(1)
        return completion("yes")

    with serving(slow) as server, pytest.raises(CellError, match="kept failing"):
        answers(backend(server.url, patience_seconds=0.1), [0])
