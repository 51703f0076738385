"""The numbers of demonstrations that a user asks for: ``1,10,100``, ``max``, ``auto``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icl_bench.errors import UserError

LADDER = (1, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 1250, 1500, 1750, 2000)
"""The numbers of Bertsch et al. 2025, for ``auto``."""


@dataclass(frozen=True)
class Shots:
    """What ``--k`` says."""

    numbers: tuple[int, ...] = ()
    ladder: bool = False
    largest: bool = False
    """Also the largest k that fits the context window and the pool."""

    @classmethod
    def parse(cls, text: str) -> Shots:
        """Read a comma-separated list of numbers, ``max`` and ``auto``. Raises ``UserError``."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        if not words:
            raise UserError("--k: empty; give numbers like 1,10,100, or max, or auto")
        numbers = set()
        for word in words:
            if word in ("max", "auto"):
                continue
            if not re.fullmatch(r"0*[1-9][0-9]{0,8}", word, re.ASCII):
                raise UserError(
                    f"--k {word[:20]}: not a number of demonstrations; "
                    "give whole numbers from 1 up, like 1,10,100, or max, or auto"
                )
            numbers.add(int(word))
        auto = "auto" in words
        return cls(tuple(sorted(numbers)), auto, auto or "max" in words)

    def resolved(self, largest: int) -> tuple[int, ...]:
        """The numbers to run, given the largest that fits, in rising order.

        Numbers that were asked for by name stay, whether they fit or not, so that the plan can say
        why they do not; the ladder's stop where it no longer fits.
        """
        found = set(self.numbers)
        if self.ladder:
            found.update(k for k in LADDER if k <= largest)
        if self.largest and largest >= 1:
            found.add(largest)
        return tuple(sorted(found))
