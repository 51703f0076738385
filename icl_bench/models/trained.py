"""What a checkpoint says of a training by this program: what it took, and how it is to be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern

LOG = "training.json"
"""How a training went, beside the weights."""

ATTENTION = "icl_bench_attention"
"""In ``config.json``: the pattern that a model was adapted to."""


@dataclass(frozen=True)
class Trained:
    """A checkpoint's training."""

    cost: Mapping[str, Any]
    """What it took, as results store it: ``method``, ``seconds``, ``tokens``, ``flops`` and
    ``trainable_parameters``; of an adaptation also ``base`` and ``base_fingerprint``, what was
    adapted, ``attention``, and ``losses``: on the texts that were held back, by step."""
    decoder: bool
    """Whether the decoder was trained too, so that answers without vectors rest on it as well."""


def training_of(source: str) -> Trained | None:
    """How a checkpoint was trained; None where its folder does not say."""
    try:
        told = json.loads((Path(source) / LOG).read_text(encoding="utf-8"))
        names = ("seconds", "tokens", "flops", "trainable_parameters")
        cost = {"method": told.get("method", "vectors"), **{name: told[name] for name in names}}
        if cost["method"] == "adaptation":
            more = ("base", "base_fingerprint", "attention", "losses")
            cost |= {name: told[name] for name in more if name in told}
        return Trained(cost, cost["method"] != "vectors" or told["settings"]["train"] == "all")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def adapted_to(source: str) -> Pattern | None:
    """The pattern that a checkpoint was adapted to; None where it says none.

    Raises ``UserError`` for one that is none.
    """
    file = Path(source) / "config.json"
    try:
        said = json.loads(file.read_text(encoding="utf-8")).get(ATTENTION)
    except (OSError, ValueError, AttributeError):
        return None
    if said is None:
        return None
    if not isinstance(said, str):
        raise UserError(f"{file}: {ATTENTION} is no attention pattern: {said!r}")
    try:
        return Pattern.parse(said)
    except UserError as error:
        raise UserError(f"{file}: {ATTENTION}: {error}") from None


def own_pattern(model: str) -> Pattern:
    """How a model is read unless something else is asked for: as it was adapted to, else in full.

    ``model`` is as a user names it: only a folder can be that of an adapted one. Raises
    ``UserError``.
    """
    return adapted_to(model) or FULL
