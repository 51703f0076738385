"""Requests that score every label: the log-probabilities of the possible tokens after each token of the labels.

vLLM has no log-probabilities of prompt tokens that are in its cache (``prompt_logprobs`` computes the whole prompt
again). It has those of chosen tokens at a generated position, over the whole vocabulary and before any constraint. So
each inner node of the labels' tree is a separate request with the prompt and the node's path. It generates one token,
whose alternatives are the node's children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from icl_bench.backends.label_constraint import LabelTrie
from icl_bench.prompts.encoding import Ids

MAX_TOKENS = 128
"""Maximum log-probabilities per request in vLLM. A node with more children needs several requests."""


@dataclass(frozen=True)
class NodeRequest:
    """The request of one inner node of a label tree."""

    path: Ids
    """Tokens from the query's end to the node."""
    children: np.ndarray
    """The nodes whose log-probabilities are asked for."""
    tokens: Sequence[int]
    """Their tokens."""

    def sampling(self) -> Any:
        """The sampling parameters of vLLM. The generated token is ignored."""
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=1, detokenize=False, logprob_token_ids=list(self.tokens))

    def read(self, output: Any, log_probabilities: np.ndarray) -> None:
        """Write the output's log-probabilities into those of all nodes, ``(nodes,)``."""
        (step,) = output.outputs[0].logprobs
        found = np.array([step[token].logprob for token in self.tokens])
        if not np.isfinite(found).all():
            raise RuntimeError("log-probabilities are infinite or NaN; --dtype bfloat16 or float32 may help")
        log_probabilities[self.children] = found


def node_requests(trie: LabelTrie) -> list[NodeRequest]:
    """The requests of a tree, its root's first."""
    return [
        NodeRequest(path, part, trie.tokens[part].tolist())
        for path, children in trie.branches
        for part in np.split(children, range(MAX_TOKENS, len(children), MAX_TOKENS))
    ]
