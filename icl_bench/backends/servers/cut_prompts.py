"""Detects prompts that a server truncated silently, by its own count of their tokens.

A server's tokenizer may differ from the local one, but the ratio of the two counts is nearly the same for all prompts
of a task. A truncated prompt has fewer tokens than this ratio predicts. Ollama truncates at its window (``num_ctx``,
https://docs.ollama.com/context-length). Other servers can be configured to do so.
"""

from __future__ import annotations

from icl_bench.errors import CellError

LEAST_RATIO = 0.5
"""The counts of two tokenizers differ by less than this factor in any language that both support."""

DRIFT = 0.85
"""A prompt was truncated if its ratio is below this fraction of the smallest ratio of shorter prompts."""

SHORTEST = 200
"""The minimum tokens of a prompt, counted locally, for a meaningful ratio: chat templates add tokens."""

ALIKE = 8
"""The number of prompts with different local counts and the same server count that indicates truncation."""


class CutPrompts:
    """Compares a server's counts of prompts with those of the local tokenizer."""

    def __init__(self) -> None:
        self._ratio: float | None = None
        """The smallest ratio of complete prompts."""
        self._locals_of: dict[int, set[int]] = {}
        """Local counts of prompts by the server's count."""
        self._short: set[int] = set()
        """The server's counts of prompts whose ratio was too small."""

    def recall(self, counted: int, said: int) -> None:
        """Take the counts of a stored answer into account, as earlier runs may each have had too few of them."""
        if counted >= SHORTEST:
            self._locals_of.setdefault(said, set()).add(counted)

    def suspects(self, said: int) -> bool:
        """Whether prompts with this count of the server were truncated."""
        alike = self._locals_of.get(said, set())
        return said in self._short or (len(alike) >= ALIKE and max(alike) - min(alike) >= ALIKE)

    def check(self, counted: int, said: int) -> None:
        """Compare the local count with the server's. Raises ``CellError`` if the prompt was truncated."""
        if counted < SHORTEST:
            return
        ratio = said / counted
        self.recall(counted, said)
        if ratio < LEAST_RATIO or (self._ratio is not None and ratio < DRIFT * self._ratio):
            self._short.add(said)
            raise _error(counted, said)
        if self.suspects(said):
            raise _error(max(self._locals_of[said]), said)
        self._ratio = ratio if self._ratio is None else min(self._ratio, ratio)


def _error(counted: int, said: int) -> CellError:
    return CellError(
        f"the server counts {said:,} tokens of a prompt of {counted:,}: it seems to have cut it; raise its window "
        "(Ollama: num_ctx), ask for fewer demonstrations, or, if its tokenizer is another, name it with --tokenizer"
    )
