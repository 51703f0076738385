"""A decoder's output head: logits of all tokens or of some, and log-probabilities over all tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from icl_bench.errors import CellError

mkldnn: Any = torch.ops.mkldnn
"""oneDNN's products, which PyTorch's compiler uses."""

STATES, COLUMNS = 2048, 1024
"""Hidden states and tokens of the vocabulary whose logits are in memory at once: 8 MiB in float32.
They stay in the cache of a processor while their exponentials are added up."""

COLUMNS_ON_GPU = 32768


class OutputHead:
    """The product of hidden states and the vocabulary's rows, with a family's scaling and capping."""

    def __init__(self, network: Any, device: torch.device, dtype: torch.dtype) -> None:
        """``network`` is the library's model, on this device and in this dtype."""
        self._linear, self._device, self.dtype = network.get_output_embeddings(), device, dtype
        self._config = network.config.get_text_config()
        self._rows: tuple[bytes, Tensor, Tensor | float] | None = None

    @torch.inference_mode()
    def logits(self, hidden: Tensor, *, rounded: bool = True) -> Tensor:
        """Logits over the whole vocabulary in float32: ``(rows, vocabulary)``.

        With ``rounded``, hidden states are rounded to the format of the weights. Raises ``CellError`` if a logit is not
        finite.
        """
        logits: Tensor = self._linear(hidden.to(self._linear.weight.dtype) if rounded else hidden).float()
        self._check(float(logits.sum()))
        return as_configured(self._config, logits)

    @torch.inference_mode()
    def some_logits(self, hidden: Tensor, vocabulary: np.ndarray, *, configured: bool = False) -> np.ndarray:
        """Logits of some tokens only: ``(rows, allowed)`` float32.

        Unless ``configured``, exact only up to a monotone function. Always in single precision: logits rounded to
        bfloat16 are often equal. Raises ``CellError`` if one is not finite.
        """
        name = vocabulary.tobytes()
        if self._rows is None or self._rows[0] != name:
            index = torch.from_numpy(vocabulary).to(self._device)
            bias = getattr(self._linear, "bias", None)
            rows = self._linear.weight[index].float()
            self._rows = (name, rows, 0.0 if bias is None else bias[index].float())
        _, rows, bias = self._rows
        logits: Tensor = hidden.float() @ rows.T + bias
        self._check(float(logits.sum()))
        return (as_configured(self._config, logits) if configured else logits).cpu().numpy()

    @torch.inference_mode()
    def log_probabilities(self, hidden: Tensor, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Log-probability of each token after its state, among all tokens: ``(tokens,)`` float32.

        ``hidden`` is ``(states, hidden)``, and ``states`` has the index of each token's state. Raises ``CellError`` if
        a logit is not finite.
        """
        found = np.empty(len(tokens), dtype=np.float32)
        for start in range(0, len(hidden), STATES):
            block = hidden[start : start + STATES]
            inside = np.flatnonzero((states >= start) & (states < start + len(block)))
            order = inside[np.argsort(tokens[inside], kind="stable")]
            found[order] = self._of_block(block, states[order] - start, tokens[order])
        return found

    def _of_block(self, hidden: Tensor, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Log-probabilities of ascending ``tokens``, computed in parts of the vocabulary."""
        parts, logits, totals, sums = self._parts(hidden), [], [], []
        token, state = (torch.from_numpy(x).to(self._device) for x in (tokens, states))
        for start, raw in parts:
            sums.append(raw.sum())
            part = as_configured(self._config, raw)
            first, last = np.searchsorted(tokens, [start, start + len(part)])
            logits.append(part[token[first:last] - start, state[first:last]])
            highest = part.amax(0)
            totals.append(part.sub_(highest).exp_().sum(0).log_().add_(highest))  # writes no second tensor
        self._check(float(torch.stack(sums).sum()))
        total = torch.logsumexp(torch.stack(totals), 0)
        log_probabilities: np.ndarray = (torch.cat(logits) - total[state]).cpu().numpy()
        return log_probabilities

    def _parts(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of each part of the vocabulary: its first token, and ``(tokens, states)``.

        On a CPU, oneDNN multiplies, because PyTorch's float32 products take a quarter longer. States are arranged for
        it once. Arranging the vocabulary would need a second copy of it.
        """
        weight, bias = self._linear.weight, getattr(self._linear, "bias", None)
        hidden, columns = hidden.to(weight.dtype), COLUMNS if self._device.type == "cpu" else COLUMNS_ON_GPU
        arranged = mkldnn._reorder_linear_weight(hidden, columns) if _multiplies(weight) else None
        for start in range(0, len(weight), columns):
            rows = weight[start : start + columns]
            if arranged is None:
                logits = functional.linear(rows, hidden)
            else:
                logits = mkldnn._linear_pointwise(rows, arranged, None, "none", [], "")
            yield start, (logits if bias is None else logits + bias[start : start + columns, None]).float()

    def _check(self, total: float) -> None:
        """Raise ``CellError`` if a sum of logits, before they are capped, is not finite.

        Otherwise the first non-finite logit would be the largest, and every answer the first label.
        """
        if math.isfinite(total):
            return
        dtype = str(self.dtype).removeprefix("torch.")
        help_ = {
            "float16": "they leave its range: use --dtype bfloat16 or float32",
            "bfloat16": "use --dtype float32; if that does not help, the checkpoint is damaged",
        }
        advice = help_.get(dtype, "the checkpoint is damaged, or was not trained to its end")
        raise CellError(f"logits in {dtype} are infinite or NaN; {advice}")


def as_configured(config: Any, logits: Tensor) -> Tensor:
    """Logits after a family's scale, divisor and cap, by a text model's config."""
    if (scale := getattr(config, "logit_scale", None)) is not None:
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = torch.tanh(logits / cap) * cap
    return logits


def _multiplies(weight: Tensor) -> bool:
    """Whether oneDNN multiplies weights of this format on this device."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and mkldnn._is_mkldnn_bf16_supported())
