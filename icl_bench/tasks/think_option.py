"""The option for thoughts before a task's answers, and their limit."""

from __future__ import annotations

from dataclasses import dataclass

from icl_bench.errors import UserError
from icl_bench.tasks.spec import TaskSpec
from icl_bench.wording import plain

DEFAULT_LIMIT = 400
"""Default limit of a thought in tokens, if neither the task file nor the user sets one."""

MOST = 10**6


@dataclass(frozen=True)
class ThinkOption:
    """A value of ``--think``: ``on``, ``off`` or the maximum tokens of a thought."""

    how: str | int

    @classmethod
    def parse(cls, text: str) -> ThinkOption:
        """Parse a value. Raises ``UserError``."""
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
    """Raise ``UserError`` if a task with thoughts is used with training, which learns only answers."""
    if task.thought is not None:
        raise UserError(
            f"task {task.name} thinks before it answers, and {what} learns answers alone; give a task file without "
            "answer.think"
        )
