"""Scores of every label at a server with OpenAI's completions.

A server returns log-probabilities of given texts in one of two ways:

- ``tokens``: those of given tokens after a prompt (vLLM's ``logprob_token_ids``). Each inner node of the
  labels' tree is a request, as in vLLM's offline engine (:mod:`icl_bench.backends.vllm.label_requests`). The
  server's cache holds the prompt.
- ``echo``: those of the prompt's own tokens (``echo`` with ``logprobs``: SGLang, older models of OpenAI, and
  compatible servers; vLLM also calls it ``prompt_logprobs``). Each label is a request with the whole prompt, which
  servers compute again.

``top_logprobs`` contain only the most probable tokens, so most labels of most rows would have no score.

Prompts are token ids. Chat templates are rendered locally. So labels have the same tokens and scores as in a local
backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ValidationError

from icl_bench.backends.label_constraint import LabelTrie
from icl_bench.backends.servers.failures import failure_reason
from icl_bench.backends.servers.models import client_of, probed
from icl_bench.backends.servers.openai import Completions
from icl_bench.backends.servers.providers import Connection
from icl_bench.backends.vllm.label_requests import node_requests
from icl_bench.errors import CellError, UserError
from icl_bench.models.tokenizers import Tokenizer
from icl_bench.prompts.encoding import Ids

How = Literal["tokens", "echo"]
"""How a server scores labels."""

INTERFACE = Completions()

ARGUMENTS = frozenset(
    ("max_tokens", "temperature", "echo", "logprobs", "logprob_token_ids", "return_tokens_as_token_ids")
)
"""Arguments of these requests. Log-probabilities must be those of temperature 1."""

TOLERANCE = 0.01
"""Tolerance of the sum of probabilities of different tokens above 1: servers round."""

_LEAST = -9000.0
"""Log-probabilities below this are masks: vLLM writes -9999 for minus infinity."""

_PROBE: Ids = (11, 12, 13)
"""Tokens that every vocabulary has."""

_TEXT = "Labels: order status, café au lait, 12345; naïve\n==\n日本語 {x}"
"""A text that tokenizers of different models split in different ways."""


@dataclass(frozen=True)
class ScoreRequest:
    """One request: the log-probabilities of the tokens of some nodes of a label tree."""

    how: How
    path: Ids
    """Tokens from the query's end: to the nodes' parent (``tokens``), or of the whole label (``echo``)."""
    nodes: np.ndarray
    """The children of one node, or the nodes of the path."""
    tokens: Sequence[int]
    """Their tokens."""

    def arguments(self, prompt: Ids) -> dict[str, Any]:
        """The arguments of the request. One token is generated and ignored."""
        common = {"prompt": [*prompt, *self.path], "max_tokens": 1, "temperature": 1, "logprobs": 1}
        if self.how == "echo":
            return {**common, "echo": True}
        extra = {"logprob_token_ids": list(self.tokens), "return_tokens_as_token_ids": True}
        return {**common, "extra_body": extra}

    def read(self, content: bytes, prompt: int) -> np.ndarray:
        """The nodes' log-probabilities in a response: ``(nodes,)`` float64.

        Raises ``CellError`` if they are missing or not log-probabilities.
        """
        try:
            logprobs = _Scored.model_validate_json(content).choices[0].logprobs
        except (ValidationError, IndexError):
            logprobs = None
        if logprobs is None:
            raise CellError("the server returned no log-probabilities")
        found: Sequence[float | None]
        if self.how == "echo":
            whole = prompt + len(self.path)
            if len(logprobs.token_logprobs) not in (whole, whole + 1):
                raise CellError(
                    f"the server returned log-probabilities of {len(logprobs.token_logprobs):,} tokens for a prompt of "
                    f"{whole:,}"
                )
            found = logprobs.token_logprobs[prompt:whole]
        else:
            step = (logprobs.top_logprobs or [None])[0] or {}
            found = [step.get(f"token_id:{token}") for token in self.tokens]
        if any(value is None for value in found):
            raise CellError("the server returned no log-probability of some tokens of labels")
        values = np.array(found, dtype=np.float64)
        sums = np.exp(values) if self.how == "echo" else np.exp(values).sum()
        if not np.isfinite(values).all() or values.min() < _LEAST or np.max(sums) > 1 + TOLERANCE:
            raise CellError(
                "what the server returns are not log-probabilities of the whole vocabulary; start it without masks "
                "(vLLM: logprobs_mode raw_logprobs)"
            )
        return values


class _Logprobs(BaseModel):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(BaseModel):
    text: str = ""
    logprobs: _Logprobs | None = None


class _Scored(BaseModel):
    choices: list[_Choice]


def score_requests(how: How, trie: LabelTrie) -> list[ScoreRequest]:
    """The requests that score all labels of a tree, without duplicates."""
    if how == "tokens":
        return [ScoreRequest(how, node.path, node.children, node.tokens) for node in node_requests(trie)]
    paths = [np.flatnonzero(trie.ancestors[end])[1:] for end in trie.ends.tolist()]
    tokens = [trie.tokens[nodes].tolist() for nodes in paths]
    return [ScoreRequest(how, tuple(ids), nodes, ids) for nodes, ids in zip(paths, tokens, strict=True)]


def found_scores(model: str, connection: Connection) -> How:
    """How the server scores labels, found by a request for each way.

    Raises ``UserError`` if it supports neither way, does not answer or fails.
    """
    library: Any = importlib.import_module(INTERFACE.library)
    said = ""
    nodes, ids = np.arange(2), [5, 6]
    with client_of(library, INTERFACE, connection) as client:
        for request in (ScoreRequest("tokens", (), nodes, ids), ScoreRequest("echo", _PROBE[1:], nodes, _PROBE[1:])):
            prompt = _PROBE if request.how == "tokens" else _PROBE[:1]
            try:
                asked = request.arguments(prompt)
                content = probed(library, connection, "--score exact", INTERFACE.create(client), model, asked)
                request.read(content, len(prompt))
            except library.APIError as error:
                said = f" ({connection.without_key(failure_reason(error))[:200]})"
            except CellError:
                continue
            else:
                return request.how
    raise UserError(
        "--score exact: the server does not return log-probabilities of given texts (completions with "
        f"logprob_token_ids, or with echo and logprobs){said}; leave --score exact out"
    )


def check_tokenizer(model: str, connection: Connection, tokenizer: Tokenizer) -> None:
    """Raise ``UserError`` if the server decodes token ids differently from the local tokenizer.

    Raises ``CellError`` if the server does not answer.
    """
    library: Any = importlib.import_module(INTERFACE.library)
    ids = tokenizer([_TEXT], add_special_tokens=False)["input_ids"][0]
    local = tokenizer.decode(ids)
    with client_of(library, INTERFACE, connection) as client:
        try:
            response = INTERFACE.create(client)(model=model, prompt=list(ids), echo=True, max_tokens=1)
            text = _Scored.model_validate_json(response.http_response.content).choices[0].text
        except (library.APIError, ValidationError, IndexError) as error:
            raise CellError(connection.without_key(f"--score exact: {connection.base_url}: {error}")) from None
    if not text.strip().startswith(local.strip()):
        raise UserError(
            "--score exact: the server reads token ids as another text than --tokenizer does; name the served model's "
            "own tokenizer"
        )


def refused_arguments(names: Mapping[str, Any]) -> list[str]:
    """The user's arguments that scoring does not allow."""
    return sorted(ARGUMENTS & names.keys())
