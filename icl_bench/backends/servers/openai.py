"""OpenAI's interfaces: completions, chat completions and responses, and those of compatible servers.

https://developers.openai.com/api/reference. Google is used through its OpenAI-compatible chat completions
(https://ai.google.dev/gemini-api/docs/openai): one client serves both, and caching is automatic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from icl_bench.backends.label_constraint import one_of
from icl_bench.backends.servers.interface import Held, Interface, Question, label_schema
from icl_bench.backends.servers.replies import Completion, Response, Said
from icl_bench.backends.servers.thinking import Thinking


class Completions(Interface):
    """Text completion: ``/completions``."""

    name = "completions"
    chat = False
    limits = ("max_tokens", "max_completion_tokens")
    seed = "seed"
    batches: ClassVar[str | None] = "openai"

    def marked(self, question: Question) -> Mapping[str, Any]:
        """See ``Interface.marked``."""
        return {"prompt": question.text}

    def held(self, hold: Held, labels: Sequence[str]) -> dict[str, Any]:
        """See ``Interface.held``.

        ``choice`` is sent with the argument names of every server that supports it. Servers ignore unknown names. vLLM:
        https://docs.vllm.ai/en/latest/features/structured_outputs; SGLang:
        https://docs.sglang.ai/advanced_features/structured_outputs.html; llama.cpp:
        https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md.
        """
        if hold == "choice":
            texts = [label.strip() if self.chat else label for label in labels]
            # not vLLM's choice: xgrammar 0.2 misreads é before a hexadecimal digit in its grammar, as in "fiancée"
            regex = one_of(texts)
            return {
                "structured_outputs": {"regex": regex},
                "regex": regex,
                "grammar": f"root ::= {' | '.join(map(_gbnf, texts))}",
            }
        schema = {"name": "answer", "strict": True, "schema": label_schema(labels)}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """See ``Interface.thinking``: a completion does not think."""
        raise AssertionError(f"--thinking {thinking} is refused for completions")

    def create(self, client: Any) -> Any:
        """See ``Interface.create``."""
        return client.completions.with_raw_response.create

    def read(self, content: bytes) -> Said:
        """See ``Interface.read``."""
        return Completion.model_validate_json(content).said(chat=self.chat)


class Chat(Completions):
    """A conversation: ``/chat/completions``."""

    name = "chat"
    chat = True
    limits = ("max_completion_tokens", "max_tokens")

    def marked(self, question: Question) -> Mapping[str, Any]:
        """See ``Interface.marked``."""
        return Interface.marked(self, question)

    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """See ``Interface.thinking``: OpenAI's effort levels."""
        return {} if thinking.effort is None else {"reasoning_effort": _effort(thinking)}

    def create(self, client: Any) -> Any:
        """See ``Interface.create``."""
        return client.chat.completions.with_raw_response.create


class OwnServerChat(Chat):
    """Chat completions of a server that is not OpenAI's: vLLM, SGLang, llama.cpp, Ollama.

    Templates of Qwen and other families read ``enable_thinking``
    (https://docs.vllm.ai/en/latest/features/reasoning_outputs), gpt-oss reads an effort. vLLM also has a token limit
    for thoughts.
    """

    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """See ``Interface.thinking``."""
        said = {"chat_template_kwargs": {"enable_thinking": thinking.how != "off"}}
        if thinking.effort is None:
            return {**said, "thinking_token_budget": thinking.tokens}
        return {**said, **Chat.thinking(self, thinking)}


class GoogleChat(Chat):
    """Google's OpenAI-compatible chat completions: https://ai.google.dev/gemini-api/docs/openai.

    Its batches use files of Google's own interface.
    """

    batches = None

    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """See ``Interface.thinking``: ``extra_body`` is a field of Google's."""
        if thinking.effort is not None:
            return Chat.thinking(self, thinking)
        return {"extra_body": {"google": {"thinking_config": {"thinking_budget": thinking.tokens}}}}


class Responses(Interface):
    """A conversation in OpenAI's newer interface: ``/responses``. The server stores nothing."""

    name = "responses"
    holds = ("json",)
    limits = ("max_output_tokens",)
    stop = None
    batches = "openai"

    def marked(self, question: Question) -> Mapping[str, Any]:
        """See ``Interface.marked``."""
        return {"input": [dict(message) for message in question.messages], "store": False}

    def held(self, hold: Held, labels: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - only one
        """See ``Interface.held``."""
        return {
            "text": {
                "format": {"type": "json_schema", "name": "answer", "strict": True, "schema": label_schema(labels)}
            }
        }

    def thinking(self, thinking: Thinking) -> dict[str, Any]:
        """See ``Interface.thinking``."""
        return {} if thinking.effort is None else {"reasoning": {"effort": _effort(thinking)}}

    def create(self, client: Any) -> Any:
        """See ``Interface.create``."""
        return client.responses.with_raw_response.create

    def read(self, content: bytes) -> Said:
        """See ``Interface.read``."""
        return Response.model_validate_json(content).said()


def _effort(thinking: Thinking) -> str:
    """OpenAI's name of an effort (https://developers.openai.com/api/docs/guides/reasoning)."""
    return "none" if thinking.how == "off" else str(thinking.how)


def _gbnf(text: str) -> str:
    """A text as a literal of llama.cpp's grammars, which are UTF-8 and have an escape for any byte."""
    return f'"{"".join(map(_gbnf_sign, text))}"'


def _gbnf_sign(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    return sign if " " <= sign != "\x7f" else f"\\x{ord(sign):02X}"
