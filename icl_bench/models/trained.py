"""The record of training in a checkpoint of this program: the cost, and the attention pattern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.text_files import json_file

LOG = "training.json"
"""The file of a training's log, next to the weights."""

ADAPTED_PATTERN = "icl_bench_attention"
"""The field of ``config.json`` with the pattern that a model was adapted to."""


BEFORE = "of_model"
"""The field of a training's cost with that of the training before it."""


@dataclass(frozen=True)
class TrainingRecord:
    """A checkpoint's training."""

    cost: Mapping[str, Any]
    """Its cost as stored in results: ``method``, ``seconds``, ``tokens``, ``flops`` and
    ``trainable_parameters``. For an adaptation also ``base`` and ``base_fingerprint`` of the adapted
    model, ``attention``, and ``losses`` on the validation texts, by step. :data:`BEFORE` is the cost of the training of
    the model that was trained further."""
    decoder: bool
    """Whether the decoder was trained too, so that it affects answers without vectors."""


def training_of(source: str) -> TrainingRecord | None:
    """How a checkpoint was trained; None if its folder has no log."""
    try:
        log = json_file(Path(source) / LOG)
        names = ("seconds", "tokens", "flops", "trainable_parameters")
        cost = {"method": log.get("method", "vectors"), **{name: log[name] for name in names}}
        if BEFORE in log:
            cost[BEFORE] = log[BEFORE]
        if cost["method"] == "adaptation":
            adaptation_names = ("base", "base_fingerprint", "attention", "losses")
            cost |= {name: log[name] for name in adaptation_names if name in log}
        return TrainingRecord(cost, cost["method"] != "vectors" or log["settings"]["train"] == "all")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def before(source: str) -> dict[str, Any]:
    """The cost of a model's own training, as a field of a further training's cost; empty without one."""
    record = training_of(source)
    return {BEFORE: record.cost} if record is not None and record.decoder else {}


def adapted_to(source: str) -> Pattern | None:
    """The pattern that a checkpoint was adapted to, or None.

    Raises ``UserError`` if the field is not a valid pattern.
    """
    file = Path(source) / "config.json"
    try:
        pattern = json_file(file).get(ADAPTED_PATTERN)
    except (OSError, ValueError, AttributeError):
        return None
    if pattern is None:
        return None
    if not isinstance(pattern, str):
        raise UserError(f"{file}: {ADAPTED_PATTERN} is not an attention pattern: {pattern!r}")
    try:
        return Pattern.parse(pattern)
    except UserError as error:
        raise UserError(f"{file}: {ADAPTED_PATTERN}: {error}") from None


def own_pattern(model: str) -> Pattern:
    """The default pattern of ``--model``: the one that it was adapted to, else ``full``. Raises ``UserError``."""
    return adapted_to(model) or FULL
