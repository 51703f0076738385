"""A limit on the money that a run may spend at a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from icl_bench.backends.servers.replies import Billed

Charge = Callable[[float, float, float, float], float]
"""Money for tokens: of the prompt anew and from the cache, of the answer, and of the prompt into the cache."""


@dataclass
class Purse:
    """Money that the tasks and models of a run may spend together."""

    limit: float
    spent: float = 0.0
    reserved: float = 0.0
    """For requests under way. Exactly 0 where there are none, whatever was rounded."""
    under_way: int = 0
    requests: int = 0


@dataclass
class Budget:
    """A purse, and the prices of one model.

    A request may begin if the sum cannot pass the limit, even if nothing of its prompt is cached and its
    answer is as long as it may be. A prompt's tokens are counted here, and scaled by the largest ratio of
    a server's counts to these so far.
    """

    purse: Purse
    charge: Charge
    _ratio: float = 1.0

    def most(self, prompt: int, answer: int) -> float:
        """The most money that a request may take."""
        prompt = int(prompt * self._ratio) + 1
        return max(self.charge(prompt, 0, answer, 0), self.charge(0, 0, answer, prompt))

    def reserve(self, prompt: int, answer: int) -> float | None:
        """Reserve the most that a request may take; None if the limit could be passed."""
        most, purse = self.most(prompt, answer), self.purse
        if purse.spent + purse.reserved + most > purse.limit:
            return None
        purse.reserved += most
        purse.under_way += 1
        return most

    def settle(self, reserved: float, counted: int, billed: Billed | None) -> None:
        """Replace a reservation by what was billed; a request without a response is not billed."""
        purse = self.purse
        purse.under_way -= 1
        purse.reserved = max(purse.reserved - reserved, 0.0) if purse.under_way else 0.0
        if billed is None:
            return
        purse.requests += 1
        prompt, cached, written = billed.prompt, billed.cached or 0, billed.written or 0
        if prompt is None or billed.answer is None:  # the server says nothing: the most that it may be
            purse.spent += reserved
            return
        if counted:
            self._ratio = max(self._ratio, prompt / counted)
        purse.spent += self.charge(max(prompt - cached - written, 0), cached, billed.answer, written)
