"""Stored log-probabilities of labels: which are kept, and their form in journals and files.

A prediction has one array, ``(labels,)`` float32, in the order of the labels (``CellMeta.label_order``,
or the row's own choices). Labels whose scores were not kept are NaN.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from icl_bench.errors import UserError
from icl_bench.wording import plain

MOST_LABELS = 500
"""The largest number of labels whose scores are all kept by default."""

FEWER = 20
"""The number of scores that are kept by default if there are more labels."""

HOW_TO_STORE = "run with --score exact, which stores them unless --keep-scores says otherwise"
"""Advice for messages about results without them."""

BYTES = 4
"""Bytes per score."""


@dataclass(frozen=True)
class KeptScores:
    """Which labels' scores are stored."""

    most: int | None = None
    """The number of most probable labels; None for all, and 0 for none."""

    @classmethod
    def parse(cls, text: str) -> KeptScores:
        """Parse ``all``, ``none`` or ``top:N``. Raises ``UserError``."""
        if text in ("all", "none"):
            return cls(None if text == "all" else 0)
        name, _, number = text.partition(":")
        if name != "top" or not number.isascii() or not number.isdigit() or not 0 < int(number) <= 10**9:
            raise UserError(f"--keep-scores {plain(text[:60])}: expected all, none or top:N, like top:10")
        return cls(int(number))

    @classmethod
    def default(cls, labels: int) -> KeptScores:
        """All of up to ``MOST_LABELS`` labels, and the most probable ones of more."""
        return cls(None if labels <= MOST_LABELS else FEWER)

    def __str__(self) -> str:
        if self.most is None:
            return "all"
        return f"top:{self.most}" if self.most else "none"

    def of(self, scores: np.ndarray | None) -> np.ndarray | None:
        """The stored part of a prediction's scores ``(labels,)``; None if nothing is stored."""
        if scores is None or self.most == 0:
            return None
        if self.most is None or len(scores) <= self.most:
            return scores
        kept = np.full_like(scores, np.nan)
        top = np.argsort(-scores, kind="stable")[: self.most]
        kept[top] = scores[top]
        return kept

    def are_in(self, rows: Iterable[Sequence[float] | np.ndarray | None]) -> bool:
        """Whether rows of stored scores, ``(labels,)`` each, have at least these scores."""
        most = math.inf if self.most is None else self.most
        return most == 0 or all(
            row is not None and np.count_nonzero(~np.isnan(np.asarray(row))) >= min(most, len(row)) for row in rows
        )

    def bytes_of(self, labels: int) -> int:
        """Bytes of a prediction's scores before compression."""
        return 0 if self.most == 0 else BYTES * labels


KEEP_ALL = KeptScores()


def as_line(scores: np.ndarray) -> str:
    """Encode scores for a line of a journal: base64 of little-endian float32."""
    return base64.b64encode(scores.astype("<f4").tobytes()).decode()


def of_line(text: str) -> np.ndarray:
    """Decode the scores in a line of a journal. Raises ``ValueError``."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
