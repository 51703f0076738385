"""The loss of many tokens in training, with the logits of few in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from icl_bench.backends.transformers.output_head import as_configured

IGNORED = -100
"""Label of tokens without a loss."""

HEAD_TOKENS = 512
"""Tokens whose logits are computed at once; the logits of a whole sequence would take most memory."""


def summed_loss(network: Any, states: Tensor, targets: Tensor) -> Tensor:
    """Sum of the losses of ``targets``, ``(tokens,)``, in nats, after hidden ``states``, ``(tokens, hidden)``.

    Logits are computed a second time for the backward pass.
    """

    def losses(part: Tensor, wanted: Tensor) -> Tensor:
        logits = as_configured(network.config.get_text_config(), network.get_output_embeddings()(part).float())
        return nn.functional.cross_entropy(logits, wanted, reduction="sum")

    total = states.new_zeros((), dtype=torch.float32)
    for part, wanted in zip(states.split(HEAD_TOKENS), targets.split(HEAD_TOKENS), strict=True):
        total = total + torch.utils.checkpoint.checkpoint(losses, part, wanted, use_reentrant=False)
    return total
