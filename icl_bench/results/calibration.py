"""Calibration: predictions without the model's bias towards some labels, derived from stored scores.

A calibration estimates a bias ``(labels,)`` that is subtracted from the labels' log-probabilities ``(predictions,
labels)`` of one cell, that is, of one prompt's demonstrations. No prompt is run again.

- ``batch``: the mean log-probability of each label over the test rows (Batch Calibration, Zhou et al.
  2024, section 3; the paper divides by the mean probability, here logarithms are averaged).
- ``batch,of=pool:N``: the same over N rows of the pool, so that test rows are not used.
- ``contextual``: the log of the mean probability over content-free inputs (Zhao et al. 2021, section 5).
- ``domain``: the same over inputs of random words of the task (Fei et al. 2023, section 4).
- ``prior=FILE``: the bias with which the mean probability over the test rows is a stated distribution
  (Liusie et al. 2023, prior matching).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from icl_bench.errors import UserError
from icl_bench.wording import comma_list, nearest, plain

BATCH, CONTEXTUAL, DOMAIN, PRIOR = "batch", "contextual", "domain", "prior"
NAMES = (BATCH, CONTEXTUAL, DOMAIN, PRIOR)

POOL = "pool"
"""The kind of queries that are rows of the pool: ``pool:64``."""

EXPECTED = "batch, batch,of=pool:N, contextual, domain or prior=FILE"

_ROWS = re.compile(r"0*[1-9][0-9]{0,6}", re.ASCII)


@dataclass(frozen=True)
class Calibration:
    """One way to estimate the bias: ``Calibration.parse(str(one)) == one``."""

    name: str
    rows: int | None = None
    """N of ``of=pool:N``."""
    prior: str | None = None
    """The file of ``prior=FILE``, or the prior's name in results."""

    @classmethod
    def parse(cls, text: str) -> Calibration:
        """Parse one calibration. Raises ``UserError``."""
        shown = f"--calibrate {plain(text[:80])}"
        first, *further = (part.strip() for part in text.split(","))
        if first.startswith(f"{PRIOR}="):
            path = text.strip().removeprefix(f"{PRIOR}=")
            if not path:
                raise UserError(f"{shown}: expected prior=FILE, a YAML or JSON file of label: share")
            return cls(PRIOR, prior=path)
        if first not in NAMES or first == PRIOR:
            raise UserError(f"{shown}: expected {EXPECTED}")
        if not further:
            return cls(first)
        kind, _, rows = further[0].removeprefix("of=").partition(":")
        if first != BATCH or len(further) > 1 or not further[0].startswith("of=") or kind != POOL:
            raise UserError(f"{shown}: expected {EXPECTED}")
        if not _ROWS.fullmatch(rows):
            raise UserError(f"{shown}: of=pool:N has a number of rows, like of=pool:64")
        return cls(BATCH, int(rows))

    def __str__(self) -> str:
        if self.prior is not None:
            return f"{PRIOR}={self.prior}"
        return self.name if self.rows is None else f"{self.name},of={POOL}:{self.rows}"

    @property
    def queries(self) -> str | None:
        """The kind of its queries, as in a cell's facts; None if it has none."""
        if self.name == BATCH:
            return None if self.rows is None else f"{POOL}:{self.rows}"
        return self.name if self.name in (CONTEXTUAL, DOMAIN) else None

    @property
    def reads_test_inputs(self) -> bool:
        """Whether the bias is estimated on the inputs of the test rows (not on their labels)."""
        return self.queries is None


def of_queries(kind: str | None) -> Calibration | None:
    """The calibration with this kind of queries; None for test rows and copied queries."""
    if kind in (CONTEXTUAL, DOMAIN):
        return Calibration(str(kind))
    name, _, rows = (kind or "").partition(":")
    return Calibration(BATCH, int(rows)) if name == POOL and rows.isdecimal() else None


def split(text: str) -> list[str]:
    """Split a comma-separated list of calibrations, which may have options.

    >>> split("batch,batch,of=pool:64,contextual")
    ['batch', 'batch,of=pool:64', 'contextual']
    """
    items: list[str] = []
    for word in comma_list(text):
        if items and word.startswith("of="):
            items[-1] += f",{word}"
        else:
            items.append(word)
    return items


def checked_prior(shares: object, labels: list[str], where: str) -> dict[str, float]:
    """Validate a stated distribution over the labels. A label that is not named has share 0. Raises ``UserError``."""
    if not isinstance(shares, dict) or not shares:
        raise UserError(f"{where}: expected label: share, one for each label")
    read: dict[str, float] = {}
    for label, share in shares.items():
        if str(label) not in labels:
            unquoted = "; YAML reads yes, no, null and some numbers as other values: put labels in quotes"
            hint = f"{nearest(str(label), labels)}{'' if isinstance(label, str) else unquoted}"
            raise UserError(f"{where}: {plain(str(label)[:60])} is not a label; {hint}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UserError(f"{where}: {plain(str(label)[:60])}: a share is a number from 0 to 1")
        read[str(label)] = float(share)
    if abs(sum(read.values()) - 1) > 0.001:
        raise UserError(f"{where}: the shares sum to {sum(read.values()):.3f}, not to 1")
    return {label: share / sum(read.values()) for label, share in read.items()}
