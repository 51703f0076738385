"""What a race may spend: time, tokens or money."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from icl_bench.backends.servers.budget import Purse
from icl_bench.errors import UserError
from icl_bench.wording import duration, plain

Unit = Literal["time", "tokens", "money"]

SECONDS = {"s": 1, "m": 60, "h": 3600}
THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
EXPECTED = "a time like 90s, 30m or 1.5h, tokens like 2Mtokens, or money like '$5' (in quotes, for the shell)"

_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_TIME = re.compile(_NUMBER + r"([smh])", re.ASCII)
_TOKENS = re.compile(_NUMBER + r" ?([kmb]?) ?tokens?", re.ASCII | re.IGNORECASE)
_MONEY = re.compile(r"([$€£¥]) ?" + _NUMBER)


@dataclass(frozen=True)
class Spend:
    """A budget: so many seconds, tokens, or units of money."""

    amount: float
    unit: Unit
    sign: str = "$"
    """The currency's sign, for messages."""

    @classmethod
    def parse(cls, text: str) -> Spend:
        """Read ``30m``, ``2Mtokens`` or ``$5``. Raises ``UserError``."""
        given = text.strip()
        spend = None
        if found := _TIME.fullmatch(given):
            spend = cls(float(found[1]) * SECONDS[found[2]], "time")
        elif found := _TOKENS.fullmatch(given.replace(",", "")):
            spend = cls(float(found[1]) * THOUSANDS[found[2].lower()], "tokens")
        elif found := _MONEY.fullmatch(given):
            spend = cls(float(found[2]), "money", found[1])
        if spend is None or not 0 < spend.amount < math.inf:
            raise UserError(f"--spend {plain(text[:60])}: expected {EXPECTED}")
        return spend

    def __str__(self) -> str:
        return self.of(self.amount)

    def of(self, amount: float) -> str:
        """Another amount in the same unit, as ``--spend`` takes it."""
        if self.unit == "tokens":
            return f"{math.ceil(amount)}tokens"
        number = f"{amount:.10f}".rstrip("0").rstrip(".")
        return f"{number}s" if self.unit == "time" else f"{self.sign}{number}"

    def at_least(self, amount: float) -> str:
        """The same, rounded up to two digits."""
        if amount <= 0:
            return self.of(0.0)
        step = 10.0 ** (math.floor(math.log10(amount)) - 1)
        return self.of(float(f"{math.ceil(amount / step * (1 - 1e-9)) * step:.6g}"))

    def about(self, amount: float) -> str:
        """The same, time in seconds, minutes or hours."""
        return duration(amount) if self.unit == "time" else self.at_least(amount)

    @property
    def spent(self) -> str:
        """Why a race ended that spent it all."""
        return f"the {self.unit} {'are' if self.unit == 'tokens' else 'is'} spent"


def read_spend(given: Any) -> Any:
    """A budget of text, or of a number of seconds. Raises ``UserError``."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Spend.parse(f"{given:f}s")
    return Spend.parse(given) if isinstance(given, str) else given


@dataclass
class Account:
    """A budget, and what is spent of it. Requests to servers and this machine spend from the same budget."""

    spend: Spend
    purse: Purse = field(init=False)

    def __post_init__(self) -> None:
        self.purse = Purse(self.spend.amount)

    @property
    def spent(self) -> float:
        """Seconds, tokens or money."""
        return self.purse.spent

    @property
    def left(self) -> float:
        """What is left; 0 or less if all is spent."""
        return self.spend.amount - self.purse.spent


def count_tokens(new: float, cached: float, answer: float, written: float) -> float:  # noqa: ARG001
    """Tokens that are computed: of prompts, without cached ones, and of answers."""
    return new + written + answer
