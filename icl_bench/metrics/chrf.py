"""chrF of free text (Popović 2015), as sacrebleu computes it (Post 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from icl_bench.metrics.bleu import ReferenceMetric
from icl_bench.metrics.interface import Measure


class Chrf(ReferenceMetric):
    """chrF2 of each answer, and of a cell's answers as one corpus."""

    measures = (Measure("chrf", "chrf", "chrF"),)
    of_many: ClassVar[Mapping[str, str]] = {"corpus_chrf": "corpus chrF"}

    def scorer(self, golds: Sequence[Sequence[str]], *, corpus: bool) -> Any:  # noqa: ARG002 - one rule for all
        """See ``ReferenceMetric``."""
        return _chrf()


@lru_cache
def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()
