"""A server's completions with log-probabilities, computed by a small model as their documents say.

vLLM (https://docs.vllm.ai/en/latest/api/vllm/entrypoints/openai/completion/protocol): ``logprob_token_ids`` with
``logprobs`` returns those tokens at the generated position, named ``token_id:N`` with ``return_tokens_as_token_ids``;
it excludes ``echo``. OpenAI's legacy completions (https://developers.openai.com/api/reference/resources/completions)
and SGLang: ``echo`` with ``logprobs`` returns those of the prompt's tokens, null for the first.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from support.api_server import Reply


class ScoringModel:
    """A checkpoint behind completions; ``ways`` are those in which it returns log-probabilities."""

    def __init__(self, folder: Path, tokenizer: Any, ways: Collection[str] = ("tokens", "echo")) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer, self._ways = tokenizer, ways
        self.tokens = 0
        """Prompt tokens of all requests."""

    def logs(self, ids: list[int]) -> np.ndarray:
        """Log-probabilities of what follows each token, ``(tokens, vocabulary)``."""
        with self._torch.inference_mode():
            logits = self._model(self._torch.tensor([ids])).logits[0]
        found: np.ndarray = logits.double().log_softmax(-1).numpy()
        return found

    def answer(self, body: dict[str, Any]) -> Reply:
        """The response to a request for completions."""
        ids = body["prompt"]
        if not isinstance(ids, list):
            return 400, {"error": {"message": "only token ids here"}}
        self.tokens += len(ids)
        logs = self.logs(ids)
        best = int(logs[-1].argmax())
        text, logprobs = self._tokenizer.decode([best]), None
        if body.get("echo"):
            text = self._tokenizer.decode(ids) + text
        if body.get("logprobs") is not None and body.get("echo"):
            if "echo" not in self._ways:
                return 400, {"error": {"message": "echo and logprobs exclude each other for this model"}}
            own = [None, *(float(logs[at, token]) for at, token in enumerate(ids[1:]))]
            logprobs = {"token_logprobs": [*own, float(logs[-1, best])], "top_logprobs": None}
        elif body.get("logprobs") is not None:
            asked = [best]
            if "tokens" in self._ways:
                asked += body.get("logprob_token_ids") or []
            top = {f"token_id:{token}": float(logs[-1, token]) for token in asked}
            logprobs = {"token_logprobs": [float(logs[-1, best])], "top_logprobs": [top]}
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": logprobs}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        return 200, {"id": "1", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]} | {
            "usage": usage
        }
