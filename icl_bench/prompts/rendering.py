"""Examples to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from icl_bench.tasks.examples import Example
    from icl_bench.tasks.templates import AnyTemplate
    from icl_bench.tasks.thoughts import ThoughtRule


def input_text(template: AnyTemplate, example: Example) -> str:
    """A demonstration without its answer: ``"query: ..."``."""
    return template.shown(example.fields)


def answer_line(template: AnyTemplate, example: Example) -> str:
    """A demonstration without its input: ``"intent: card arrival"``."""
    return f"{template.answer_lead}{example.worked}{example.answer}"


Message = Mapping[str, str]
"""A turn of a conversation: its ``role`` (system, user, assistant) and ``content``."""

Piece = Callable[["AnyTemplate", "Example"], str]
"""Writes the text of one demonstration, without the separator after it."""


def demonstration_text(template: AnyTemplate, example: Example) -> str:
    """One example with its answer: ``"query: ...\\nintent: card arrival"``."""
    return f"{query_text(template, example)}{template.answer_link}{example.worked}{example.answer}"


def query_text(template: AnyTemplate, example: Example) -> str:
    """One example up to its answer, without the trailing space: ``"query: ...\\nintent:"``."""
    return template.shown(example.fields) + template.query_link


def answer_text(template: AnyTemplate, answer: str) -> str:
    """The text that a model should write after the query: ``" card arrival\\n"``.

    It includes the answer's ending: if one label begins another ("order", "order status"), only the
    ending distinguishes them.
    """
    return f"{template.answer_link}{answer}{template.answer_end}"


def prompt_text(template: AnyTemplate, demonstrations: Sequence[Example], query: Example) -> str:
    """The whole prompt as text (Bertsch et al. 2025, appendix G)."""
    return PlainForm(template).whole(demonstrations, query)


def opening_text(template: AnyTemplate, thought: ThoughtRule | None) -> str:
    """The text that opens a thought after a query: ``" Let's think step by step."``; empty without one."""
    if thought is None or not thought.opens:
        return ""
    return f"{template.answer_link}{thought.opens}".rstrip(" ")


@dataclass(frozen=True)
class Writing:
    """How the demonstrations of one prompt are written."""

    piece: Piece = demonstration_text
    preamble: str = ""
    """The text before the first demonstration."""
    instruction: str = ""
    """The text after the last demonstration that ``piece`` writes."""
    complete: int = 0
    """How many of the last demonstrations are written with their answers, regardless of ``piece``."""

    @property
    def nested(self) -> bool:
        """Whether the text of fewer demonstrations begins that of more."""
        return not (self.instruction or self.complete)

    def texts(self, template: AnyTemplate, joint: str, demonstrations: Sequence[Example], skip: int = 0) -> list[str]:
        """The text of each demonstration after the first ``skip`` of a prompt, followed by ``joint``."""
        complete = max(len(demonstrations) - self.complete, 0)
        texts = []
        for place, one in enumerate(demonstrations[skip:], skip):
            text = (self.piece if place < complete else demonstration_text)(template, one) + joint
            if place == 0 and self.preamble:
                text = self.preamble + joint + text
            if place == complete - 1 and self.instruction:
                text += self.instruction + joint
            texts.append(text)
        return texts


AS_THEY_ARE = Writing()
"""Demonstrations with their answers and no other text."""


class PlainForm:
    """The parts of a prompt as plain text, as base models read it, and how they are put together.

    ``start`` is the text before the first demonstration, or before the query; ``joint`` between demonstrations, and
    between the last one and the query; ``before_answer`` the end of every prompt, before the answer; ``stop`` the text
    that ends a free answer.
    """

    has_special_tokens = False
    """Whether special tokens in its text are parsed as such."""

    def __init__(
        self, template: AnyTemplate, writing: Writing = AS_THEY_ARE, thought: ThoughtRule | None = None
    ) -> None:
        """``writing`` writes the demonstrations of a prompt. With ``thought``, a query ends with its opening."""
        self.template, self._writing, self.thought = template, writing, thought
        self.start = template.start
        self.joint = self.stop = template.separator
        self.before_answer = template.before_answer if thought is None else thought.mark
        self._opens = opening_text(template, thought)

    def demonstration(self, example: Example) -> str:
        """A demonstration, followed by the joint."""
        return self._writing.piece(self.template, example) + self.joint

    def demonstrations(self, examples: Sequence[Example], skip: int = 0) -> list[str]:
        """The demonstrations of one prompt without the first ``skip``, each followed by the joint."""
        return self._writing.texts(self.template, self.joint, examples, skip)

    def query(self, example: Example) -> str:
        """The query, up to the model's answer."""
        return query_text(self.template, example) + self._opens

    def answer(self, answer: str) -> str:
        """The text that a model should write: an answer with its lead and its ending."""
        if self.thought is not None:
            return f"{self.thought.answer_lead}{answer}{self.template.answer_end}"
        return answer_text(self.template, answer)

    def whole(self, demonstrations: Sequence[Example], query: Example) -> str:
        """The text of one prompt."""
        return "".join([self.start, *self.demonstrations(demonstrations), self.query(query)])

    def messages(self, demonstrations: Sequence[Example], query: Example) -> Sequence[Message]:
        """One prompt as a conversation: one user message."""
        return [{"role": "user", "content": self.whole(demonstrations, query)}]

    ends_at_next_turn = False
    """Whether the beginning of a next turn ends a free answer."""

    thought_marks: tuple[str, ...] = ()
    """Marks with which a model begins its own thoughts."""

    @property
    def thought_stops(self) -> tuple[str, ...]:
        """Texts that end a thought besides the task's end mark."""
        return (self.stop,)

    def closing(self, text: str) -> str:  # noqa: ARG002
        """The text that closes the model's own thought, if a prompt with a thought leaves it open: empty."""
        return ""

    def is_pieced(self, demonstrations: Sequence[Example], queries: Sequence[Example]) -> bool:  # noqa: ARG002
        """Whether prompts of these examples are the concatenation of their pieces: always."""
        return True
