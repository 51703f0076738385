"""The options of a backend."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from icl_bench.errors import UserError
from icl_bench.options import MODEL, PROMPTS, SERVERS, Option, Options, as_pairs, as_text, read_pair
from icl_bench.registry import BACKENDS
from icl_bench.wording import nearest

DTYPES = ("auto", "float32", "bfloat16", "float16")

Dtype = Annotated[
    str,
    Option(
        "Number format of matrix products: auto (bfloat16, or float32 on a CPU without bfloat16 arithmetic), float32, "
        "bfloat16, float16.",
        MODEL,
        "NAME",
    ),
]

Device = Annotated[
    str | None, Option("transformers: cpu, cuda, cuda:1, ... (default: cuda if available).", MODEL, "NAME")
]


OF_THE_PROGRAM = ("model", "prompt", "messages", "input", "system", "stream", "n")
"""Request arguments that the program sets: they decide the request and its number of answers."""


def _arguments(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Validate request arguments that a user may set, and return them. Raises ``UserError``."""
    for text in texts:
        name, _ = read_pair(text, "--server-arg")
        if name in OF_THE_PROGRAM:
            raise UserError(f"--server-arg {name}: is set by the program")
    return texts


def _thinking(text: str | None) -> str | None:
    """Validate a setting of ``--thinking``, and return it. Raises ``UserError``."""
    from icl_bench.backends.servers.thinking import Thinking

    return None if text is None else str(Thinking.parse(text))


class BackendSpec(Options):
    """The user's options for the backend. Options of other backends must have their defaults."""

    backend: Annotated[
        str,
        Option(
            "Engine: transformers, vllm, openai (any server with OpenAI's API), anthropic or google. auto: "
            "transformers, or vllm where it is faster on a GPU (docs/backends.md); plan shows which one and why.",
            MODEL,
            "NAME",
            more=BACKENDS.added,
        ),
    ] = "auto"
    """A name of :data:`icl_bench.registry.BACKENDS`, or ``auto`` (:func:`icl_bench.backends.choice.choose`)."""
    dtype: Dtype = "auto"
    device: Device = None
    pack: Annotated[
        int | None,
        Option("transformers: at most N queries per call. In 16-bit formats a few answers depend on N.", MODEL, "N"),
    ] = Field(default=None, ge=1)
    tensor_parallel: Annotated[int | None, Option("vllm: number of GPUs that share one model.", MODEL, "GPUS")] = Field(
        default=None, ge=1
    )
    max_model_len: Annotated[
        int | None, Option("vllm: context length to reserve (default: that of the largest cell).", MODEL, "TOKENS")
    ] = Field(default=None, ge=1)
    gpu_memory: Annotated[
        float | None, Option("vllm: share of the card's memory to use (vLLM's default: 0.9).", MODEL, "SHARE")
    ] = Field(default=None, ge=0.05, le=1)
    quantization: Annotated[str | None, Option("vllm: awq, gptq, fp8, ...: a name that vLLM knows.", MODEL, "NAME")] = (
        None
    )
    kv_cache_dtype: Annotated[
        str | None, Option("vllm: number format of keys and values: fp8, ... (default: as computed).", MODEL, "NAME")
    ] = None
    base_url: Annotated[
        str | None,
        Option(
            "Address of the server, like https://host/v1. The key is read from OPENAI_API_KEY, ANTHROPIC_API_KEY or "
            "GEMINI_API_KEY.",
            SERVERS,
            "URL",
        ),
    ] = None
    endpoint: Annotated[
        Literal["completions", "chat", "responses"] | None,
        Option(
            "openai: completions, chat or responses (default: chat with --chat, else completions). Without --chat, a "
            "prompt is one user message of a chat.",
            SERVERS,
            "NAME",
            default="",
        ),
    ] = None
    concurrency: Annotated[int | None, Option("Servers: at most N requests at a time (default: 8).", SERVERS, "N")] = (
        Field(default=None, ge=1)
    )
    hold: Annotated[
        Literal["auto", "choice", "json"] | None,
        BeforeValidator(lambda text: None if text == "none" else text),
        Option(
            "How the server constrains answers to the labels. choice: structured outputs of vLLM and SGLang, grammars "
            "of llama.cpp; json: a JSON schema, for OpenAI, Anthropic and Google; auto: a test request detects the "
            "method. none (default): answers are free, and the label is recognised in the text.",
            SERVERS,
            "HOW",
            default="",
        ),
    ] = None
    thinking: Annotated[
        str | None,
        BeforeValidator(as_text),
        AfterValidator(_thinking),
        Option(
            "Reasoning of a model behind a server: off, low, high or a number of tokens. The token limit of an answer "
            "grows by 8,192 (low), 32,768 (high) or the number.",
            SERVERS,
            "HOW",
            default="",
        ),
    ] = None
    on_model_change: Annotated[
        Literal["fail", "mark"],
        Option("If the server's model changes: fail the cell, or mark it with a note.", SERVERS, "HOW"),
    ] = "fail"
    server_arg: Annotated[
        tuple[str, ...],
        BeforeValidator(as_pairs),
        AfterValidator(_arguments),
        Option(
            "Servers: an argument of requests, like seed=1 or service_tier=flex; temperature= removes it. May be "
            "repeated.",
            SERVERS,
            "NAME=VALUE",
            repeated=True,
            expected="text like seed=1, or a dictionary",
        ),
    ] = ()
    chat: Annotated[
        Literal["turns", "single"] | None,
        Option(
            "Use the model's chat template. turns: each demonstration is a user turn and an assistant turn; single: "
            "all demonstrations and the query are one user message. A server is asked for chat completions.",
            PROMPTS,
            "STYLE",
        ),
    ] = None
    """Determines the prompts, and the endpoint of a server."""

    @property
    def given(self) -> list[str]:
        """Options that are set and not supported by every backend."""
        fields = BackendSpec.model_fields
        special = [name for name in fields if name not in ("backend", "dtype", "chat")]
        return [name for name in special if getattr(self, name) != fields[name].default]


def check_dtype(name: str) -> None:
    """Raise ``UserError`` for an unknown dtype."""
    if name not in DTYPES:
        raise UserError(f"--dtype {name}: not a dtype; {nearest(name, DTYPES)}")
