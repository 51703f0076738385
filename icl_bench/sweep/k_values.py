"""Numbers of demonstrations (``0,1,10``, ``max``, ``auto``) and of draws."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icl_bench.errors import UserError
from icl_bench.wording import comma_list, plain

LADDER = (1, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 1250, 1500, 1750, 2000)
"""The values of k for ``auto``, from Bertsch et al. 2025."""

MOST_DRAWS = 10_000


@dataclass(frozen=True)
class KValues:
    """The value of ``--k``."""

    numbers: tuple[int, ...] = ()
    """Ascending; 0 is the prompt without demonstrations."""
    ladder: bool = False
    largest: bool = False
    """Whether the largest k that fits the context window and the pool is added."""

    @classmethod
    def parse(cls, text: str) -> KValues:
        """Read a comma-separated list of numbers, ``max`` and ``auto``. Raises ``UserError``."""
        words = comma_list(text)
        if not words:
            raise UserError("--k: empty; give numbers like 1,10,100, or max, or auto")
        named = [word for word in words if word not in ("max", "auto")]
        numbers = {_number(word, "--k", "0,1,10,100, or max, or auto", least=0) for word in named}
        auto = "auto" in words
        return cls(tuple(sorted(numbers)), auto, auto or "max" in words)

    def resolved(self, largest: int, smallest: int = 1) -> tuple[int, ...]:
        """The values of k to run, ascending, given the largest that fits and the smallest possible one.

        Explicit numbers are kept even if they do not fit, so that the plan can report the reason. The ladder stops at
        the largest that fits.
        """
        numbers = set(self.numbers)
        if self.ladder:
            numbers.update(k for k in LADDER if smallest <= k <= largest)
        if self.largest and largest >= 1:
            numbers.add(largest)
        return tuple(sorted(numbers))


def parse_per_label(text: str) -> tuple[int, ...]:
    """Read ``--per-label``: numbers of demonstrations of each label. Raises ``UserError``."""
    words = comma_list(text)
    if not words:
        raise UserError("--per-label: empty; give whole numbers, like 1,2,5")
    return tuple(sorted({_number(word, "--per-label", "1,2,5") for word in words}))


def parse_train_k(text: str) -> tuple[int, ...]:
    """Parse ``--train-k``: numbers of examples, empty for ``auto``. Raises ``UserError``."""
    words = comma_list(text)
    if words == ["auto"]:
        return ()
    if not words:
        raise UserError("--train-k: empty; give whole numbers, like 100,1000, or auto")
    if "auto" in words:
        raise UserError("--train-k: give either auto or numbers, not both")
    return tuple(sorted({_number(word, "--train-k", "100,1000, or auto") for word in words}))


def _number(word: str, option: str, like: str, least: int = 1) -> int:
    number = r"0*[1-9][0-9]{0,8}"
    if not re.fullmatch(number if least else rf"0|{number}", word, re.ASCII):
        raise UserError(
            f"{option} {plain(word[:20])}: not a number of demonstrations; give whole numbers of at least "
            f"{least}, like {like}"
        )
    return int(word)
