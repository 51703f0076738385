"""Thoughts before answers: the texts around them, in demonstrations and after a query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThoughtRule:
    """How a task's answers are thought about (``answer.think`` in a task file)."""

    opens: str
    """The text that begins a thought, in place of the answer."""
    ends: str
    """The text that ends a thought and begins the answer, with the answer's leading spaces."""
    limit: int
    """The maximum tokens of a thought."""
    rationale: str | None = None
    """The field of the train rows' thoughts, which demonstrations show; None if they show plain answers."""

    @property
    def mark(self) -> str:
        """The text that ends a thought, without the spaces that belong to the answer."""
        return self.ends.rstrip(" ")

    @property
    def answer_lead(self) -> str:
        """The spaces between the end mark and the answer."""
        return self.ends[len(self.mark) :]

    def worked(self, rationale: str) -> str:
        """The text of a demonstration before its answer: a whole thought, from its opening to its end mark.

        A rationale that repeats the opening or contains the end mark is cut there, so that both appear once.
        """
        rationale = rationale.partition(self.mark.strip())[0].strip()
        opens = self.opens.strip()
        rationale = rationale.removeprefix(opens).strip()
        begun = joined(self.opens, rationale)
        return joined(begun, self.ends)

    def until_answer(self, before: str, thought: str, closing: str = "") -> str:
        """A thought with its end mark, as it follows the text ``before``. The model's text is unchanged.

        ``closing`` first closes the model's own thought.
        """
        return joined(before + thought, f"{closing}{self.mark}")[len(before) :]


def joined(before: str, after: str) -> str:
    """Both texts, with a space between them unless there is white space already or one is empty."""
    apart = not before or not after or before[-1].isspace() or after[0].isspace()
    return f"{before}{'' if apart else ' '}{after}"
