"""The cost of a cell, as stored in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from icl_bench.models.architecture import Architecture
from icl_bench.models.attention_patterns import FULL
from icl_bench.results.stored_meta import CalibrationMeta, CellMeta, RationalesMeta, TrainingMeta

BY_FORMULA = ["prefix_flops", "query_flops", "whole_flops", "cache_bytes"]


TRAINING = ("seconds", "tokens", "flops")


OF_CELL = [
    *BY_FORMULA,
    "prefill_seconds",
    "peak_cache_bytes",
    "served",
    *(f"{what}_{name}" for what in ("training", "calibration") for name in TRAINING),
]


MAKING = [
    f"rationales_{name}" for name in ("new_tokens", "cached_tokens", "written_tokens", "seconds", "flops", "elsewhere")
]
"""Costs of writing the rationales in demonstrations, and whether another model wrote them."""


OF_MODEL = [f"model_training_{name}" for name in TRAINING]
"""Costs of the trainings of the model before a cell's own training."""


@dataclass(frozen=True)
class CellCost:
    """The cost of a cell, as stored in its file; None for missing values."""

    seconds: float | None = None
    """Seconds that the backend took to answer."""
    prefix_tokens: int = 0
    """Tokens that all prompts share."""
    architecture: Architecture | None = None
    """The model's architecture, for cells of full attention whose file has no ``counted`` cost."""
    training: TrainingMeta | None = None
    counted: Mapping[str, float] | None = None
    """Operations and bytes by formula: the fields of
    :class:`icl_bench.sweep.compute_cost.ComputeCost`."""
    prefill_seconds: float | None = None
    """Measured seconds of the shared prefix."""
    peak_cache_bytes: float | None = None
    """Measured peak bytes of keys and values."""
    calibration: CalibrationMeta | None = None
    """The cost of calibration queries."""
    made: RationalesMeta | None = None
    """The cost of writing the rationales in its demonstrations."""
    made_elsewhere: bool = False
    """Whether another model, with its own token price, wrote them."""
    served: bool | None = None
    """Whether a server answered; None if unknown, as for an import."""

    @classmethod
    def of(cls, meta: CellMeta) -> CellCost:
        """Read the cost from the metadata of a cell's file."""
        made = meta.task.rationales if meta.task is not None and meta.spec.k else None
        return cls(
            meta.seconds,
            meta.prefix_tokens or 0,
            meta.architecture if meta.spec.attention == str(FULL) else None,
            meta.training,
            meta.compute,
            meta.prefill_seconds,
            meta.peak_cache_bytes,
            meta.calibration,
            made,
            made is not None and made.model != meta.spec.model,
            (meta.facts.server is not None) if meta.facts.are_of_a_run else None,
        )

    def making(self) -> dict[str, float]:
        """The columns of ``MAKING``: the cost of writing the rationales; 0 without rationales, NaN if unknown."""
        made = self.made
        if made is None:
            return dict.fromkeys(MAKING, 0.0)
        new = made.prompt_tokens - made.cached_tokens
        took = (np.nan if one is None else one for one in (made.seconds, made.flops))
        values = (new, made.cached_tokens, made.written_tokens, *took, float(self.made_elsewhere))
        return dict(zip(MAKING, values, strict=True))

    def of_model(self) -> dict[str, float]:
        """The columns of ``OF_MODEL``; 0 without such a training, NaN if unknown."""
        costs, training = dict.fromkeys(OF_MODEL, 0.0), self.training
        while training is not None and (training := training.of_model) is not None:
            for column, name in zip(OF_MODEL, TRAINING, strict=True):
                cost = getattr(training, name)
                costs[column] += np.nan if cost is None else cost
        return costs

    def row(self, prompt_tokens: float, answer_tokens: float) -> dict[str, float]:
        """The columns of ``OF_CELL``, given the mean tokens of its queries; NaN if unknown."""
        costs = dict.fromkeys(OF_CELL, np.nan)
        known = {
            "prefill_seconds": self.prefill_seconds,
            "peak_cache_bytes": self.peak_cache_bytes,
            "served": self.served,
            **{
                f"{what}_{name}": getattr(took, name)
                for what, took in (("training", self.training), ("calibration", self.calibration))
                for name in TRAINING
                if took is not None
            },
        }
        costs |= {name: float(value) for name, value in known.items() if value is not None}
        if self.counted is not None:
            return costs | {name: float(self.counted.get(name, np.nan)) for name in BY_FORMULA}
        if self.architecture is None or np.isnan(prompt_tokens):
            return costs
        prefix = float(self.prefix_tokens)
        own = prompt_tokens - prefix
        answer = self.architecture.flops(0 if np.isnan(answer_tokens) else answer_tokens, prompt_tokens)
        costs["prefix_flops"] = self.architecture.flops(self.prefix_tokens, prefix / 2)
        costs["query_flops"] = self.architecture.flops(own, prefix + own / 2) + answer
        costs["whole_flops"] = self.architecture.flops(prompt_tokens, prompt_tokens / 2) + answer
        return costs
