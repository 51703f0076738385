"""A limit on the money that a run may spend at a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from icl_bench.backends.servers.replies import Billed
from icl_bench.errors import OutOfBudgetError

Charge = Callable[[float, float, float, float], float]
"""The price of tokens: prompt tokens computed and from the cache, answer tokens, and tokens written into the cache."""


@dataclass
class Purse:
    """Money that the tasks and models of a run share."""

    limit: float
    spent: float = 0.0
    reserved: float = 0.0
    """Money reserved for running requests."""
    under_way: int = 0
    """The number of requests with a reservation of their own."""
    requests: int = 0
    batches: set[str] = field(default_factory=set)
    """Tokens of batches whose money is reserved."""


@dataclass
class Budget:
    """A shared budget, and the prices of one model.

    A request may start if the sum cannot exceed the limit without cached tokens and with an answer of the maximum
    length. A prompt's tokens are counted locally, and scaled by the largest ratio of a server's count to
    the local count so far.
    """

    purse: Purse
    charge: Charge
    _ratio: float = 1.0

    def most(self, prompt: int, answer: int) -> float:
        """The maximum cost of a request."""
        prompt = int(prompt * self._ratio) + 1
        return max(self.charge(prompt, 0, answer, 0), self.charge(0, 0, answer, prompt))

    def reserve(self, prompt: int, answer: int) -> float | None:
        """Reserve the maximum cost of a request; None if the limit could be exceeded."""
        most = self.reserve_all([(prompt, answer)])
        self.purse.under_way += most is not None
        return most

    def reserve_all(self, requests: Iterable[tuple[int, int]]) -> float | None:
        """Reserve the maximum cost of several requests, each with the tokens of its prompt and of its answer."""
        most, purse = sum(self.most(*request) for request in requests), self.purse
        if purse.spent + purse.reserved + most > purse.limit:
            return None
        purse.reserved += most
        return most

    def passed(self, what: str, most: float) -> OutOfBudgetError:
        """The error if ``what``, which may cost up to ``most``, could exceed the limit."""
        purse = self.purse
        return OutOfBudgetError(
            f"--budget {purse.limit:g}: {purse.spent:.4f} spent in {purse.requests:,} requests; the next {what} "
            f"may cost {most:.4f}"
        )

    def ended(self, reserved: float, counted: int, billed: Billed | None) -> None:
        """:meth:`settle` a request with a reservation of its own."""
        self.settle(reserved, counted, billed)
        self.purse.under_way -= 1

    def settle(self, reserved: float, counted: int, billed: Billed | None) -> None:
        """Replace a reservation by the billed amount; ``billed`` is None for a request that no server worked on."""
        purse = self.purse
        purse.reserved = max(purse.reserved - reserved, 0.0)
        if billed is None:
            return
        purse.requests += 1
        prompt, cached, written = billed.prompt, billed.cached or 0, billed.written or 0
        if prompt is None or billed.answer is None:  # the server reports no tokens: assume the maximum
            purse.spent += reserved
            return
        if counted:
            self._ratio = max(self._ratio, prompt / counted)
        purse.spent += self.charge(max(prompt - cached - written, 0), cached, billed.answer, written)
