"""Prompts that a server has cut without saying so, found by its own count of their tokens.

A server's tokenizer may be another than the one that counts here, but the ratio of the two counts is
nearly the same for all prompts of a task. A cut prompt has fewer tokens than this ratio says. Ollama
cuts at its window (``num_ctx``, https://docs.ollama.com/context-length), so do servers that are told to.
"""

from __future__ import annotations

from icl_bench.errors import CellError

LEAST_RATIO = 0.5
"""Counts of two tokenizers differ by less than this in any language that both know."""

DRIFT = 0.85
"""A longer prompt's ratio, of the smallest ratio of shorter ones, below which it was cut."""

SHORTEST = 200
"""Tokens of a prompt, as counted here, from which its ratio means something: chat templates add some."""

ALIKE = 8
"""Prompts with different local counts that have one and the same count at the server."""


class CutPrompts:
    """Compares a server's counts of prompts with those of the local tokenizer."""

    def __init__(self) -> None:
        self._ratio: float | None = None
        """The smallest ratio of whole prompts."""
        self._locals_of: dict[int, set[int]] = {}
        """Local counts of prompts by the server's count."""

    def check(self, counted: int, said: int) -> None:
        """Compare the count here with the server's. Raises ``CellError`` if the prompt was cut."""
        if counted < SHORTEST:
            return
        ratio = said / counted
        alike = self._locals_of.setdefault(said, set())
        alike.add(counted)
        if ratio < LEAST_RATIO or (self._ratio is not None and ratio < DRIFT * self._ratio):
            raise _error(counted, said)
        if len(alike) >= ALIKE and max(alike) - min(alike) >= ALIKE:
            raise _error(max(alike), said)
        self._ratio = ratio if self._ratio is None else min(self._ratio, ratio)


def _error(counted: int, said: int) -> CellError:
    return CellError(
        f"the server counts {said:,} tokens of a prompt of {counted:,}: it seems to have cut it; raise its window "
        "(Ollama: num_ctx), ask for fewer demonstrations, or, if its tokenizer is another, name it with --tokenizer"
    )
