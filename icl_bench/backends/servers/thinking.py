"""The length of a reasoning model's thoughts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from icl_bench.errors import UserError
from icl_bench.wording import plain

Effort = Literal["off", "low", "high"]

ALLOWED = {"off": 0, "low": 8192, "high": 32_768}
"""Tokens for thoughts that are added to an answer's limit, by effort. Providers have no separate limit for them."""

MOST = 10**6


@dataclass(frozen=True)
class Thinking:
    """A setting of ``--thinking``."""

    how: Effort | int
    """An effort, or the maximum tokens of thoughts."""

    @classmethod
    def parse(cls, text: str) -> Thinking:
        """Parse ``off``, ``low``, ``high`` or a number of tokens. Raises ``UserError``."""
        if text in ("off", "low", "high"):
            return cls(text)  # type: ignore[arg-type]
        if text.isascii() and text.isdigit() and 1 <= int(text) <= MOST:
            return cls(int(text))
        raise UserError(f"--thinking {plain(text[:30])}: expected off, low, high or a number of tokens up to {MOST:,}")

    @property
    def tokens(self) -> int:
        """The maximum tokens of thoughts."""
        return self.how if isinstance(self.how, int) else ALLOWED[self.how]

    @property
    def effort(self) -> Effort | None:
        """The effort; None for a number of tokens."""
        return None if isinstance(self.how, int) else self.how

    def __str__(self) -> str:
        return str(self.how)
