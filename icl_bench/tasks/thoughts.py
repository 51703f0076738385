"""Thoughts before answers: the texts around them, in demonstrations and behind a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icl_bench.errors import UserError
from icl_bench.wording import plain

if TYPE_CHECKING:
    from icl_bench.tasks.spec import TaskSpec


@dataclass(frozen=True)
class ThoughtRule:
    """How a task's answers are thought about first (``answer.think`` in a task file)."""

    opens: str
    """The text that begins a thought, where the answer would begin."""
    ends: str
    """The text that ends a thought and begins the answer, with the answer's leading spaces."""
    limit: int
    """The most tokens of a thought."""
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

        A rationale that repeats the opening or holds the end mark is cut there: both stand once.
        """
        rationale = rationale.partition(self.mark.strip())[0].strip()
        opens = self.opens.strip()
        rationale = rationale.removeprefix(opens).strip()
        begun = joined(self.opens, rationale)
        return joined(begun, self.ends)

    def without_thought(self, answer: str) -> str:
        """A right answer without the thought before it, if its text holds both."""
        return answer.partition(self.mark.strip())[2].strip() or answer

    def until_answer(self, before: str, thought: str, closing: str = "") -> str:
        """A thought with its end mark, as it follows the text ``before``. What the model wrote stays as it is.

        ``closing`` closes a thought of the model's own first.
        """
        return joined(before + thought, f"{closing}{self.mark}")[len(before) :]


DEFAULT_LIMIT = 400
"""Tokens of a thought where neither the task file nor the user says a limit."""

MOST = 10**6


@dataclass(frozen=True)
class ThinkOption:
    """A value of ``--think``: ``on``, ``off`` or the most tokens of a thought."""

    how: str | int

    @classmethod
    def parse(cls, text: str) -> ThinkOption:
        """Read a value. Raises ``UserError``."""
        if text in ("on", "off"):
            return cls(text)
        if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST:
            return cls(int(text))
        raise UserError(f"--think {plain(text[:30])}: expected on, off or a number of tokens up to {MOST:,}")

    def __str__(self) -> str:
        return str(self.how)

    def of(self, task: TaskSpec) -> TaskSpec:
        """The task with thoughts before its answers, or without. Raises ``UserError``."""
        rule = task.answer
        if rule is None or rule.ends is None:
            if self.how == "off":
                return task
            raise UserError(
                f"--think {self}: task {task.name} does not say what ends a thought; add answer: "
                '{ends: "So the answer is "} to its task file'
            )
        limit = self.how if isinstance(self.how, int) else rule.limit or DEFAULT_LIMIT
        changed = rule.model_copy(update={"think": self.how != "off", "limit": limit})
        return task.model_copy(update={"answer": changed})


def refuse_thoughts(task: TaskSpec, what: str) -> None:
    """Raise ``UserError`` for a task that thinks before it answers, of something that learns answers alone."""
    if task.thought is not None:
        raise UserError(
            f"task {task.name} thinks before it answers, and {what} learns answers alone; give a task file without "
            "answer.think"
        )


def joined(before: str, after: str) -> str:
    """Both texts, with a space between them unless there is white space already or one is empty."""
    apart = not before or not after or before[-1].isspace() or after[0].isspace()
    return f"{before}{'' if apart else ' '}{after}"
