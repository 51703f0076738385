"""Changes of a model's rotary positions: divided positions, and another base of their rotation.

Dividing positions by a number (position interpolation; Chen et al. 2023, arXiv 2306.15595) lets a model read longer
sequences than it was trained on: position ``scale * n`` is rotated like position ``n`` in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from icl_bench.errors import UserError


@dataclass(frozen=True)
class RotaryPositions:
    """Differences from the positions of a model's config."""

    scale: float | None = None
    """The divisor of positions; None to keep them."""
    theta: float | None = None
    """The base of their rotation; None for the model's own."""

    def check(self) -> None:
        """Raise ``UserError`` for an invalid value."""
        for name, value in (("scale", self.scale), ("theta", self.theta)):
            if value is not None and not 1 <= value < math.inf:
                raise UserError(f"--rope-{name} {value}: expected 1 or more")

    def facts(self) -> dict[str, float]:
        """Differences from the model's own positions, for a result's identity; empty if there are none."""
        named = {"rope_scale": self._divisor, "rope_theta": self.theta}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def _divisor(self) -> float | None:
        """The scale, if it changes positions."""
        return None if self.scale == 1 else self.scale

    def reach(self, context_tokens: int) -> int:
        """The number of tokens whose positions are within a model's training, given its window."""
        return int(context_tokens * (self.scale or 1))

    def config(self, source: str, revision: str | None = None) -> Any:
        """The config of a model with these positions, of the transformers library. Raises ``UserError``."""
        from transformers import AutoConfig

        found = AutoConfig.from_pretrained(source, revision=revision or "main", trust_remote_code=False)
        self.change(found)
        return found

    def change(self, config: Any) -> None:
        """Change a config of the transformers library in place, for all layers.

        Raises ``UserError`` if the model has no rotary positions, or if they should be scaled and already are.
        """
        if self.scale is None and self.theta is None:
            return
        text = config.get_text_config()
        for rotation in _rotations(text):
            if self._divisor:
                if rotation.get("rope_type", "default") != "default":
                    kind = rotation["rope_type"]
                    raise UserError(f"--rope-scale: this model's positions are scaled already ({kind})")
                rotation |= {"rope_type": "linear", "factor": self._divisor}
            if self.theta:
                rotation["rope_theta"] = self.theta
        if self._divisor:
            text.max_position_embeddings = int(text.max_position_embeddings * self._divisor)


OWN_POSITIONS = RotaryPositions()
"""The positions of the model's config."""


def _rotations(config: Any) -> list[dict[str, Any]]:
    """Rotary parameters of all layers, or of each type of layers. Raises ``UserError``."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict):
        raise UserError("--rope-scale, --rope-theta: this model has no rotary positions")
    inner = [part for part in parameters.values() if isinstance(part, dict)]
    return inner or [parameters]
