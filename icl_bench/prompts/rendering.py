"""Examples to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from icl_bench.tasks.templates import AnyTemplate


def input_text(template: AnyTemplate, example: HasText) -> str:
    """A demonstration without its answer: ``"query: ..."``."""
    return template.shown(example)


def answer_line(template: AnyTemplate, example: HasText) -> str:
    """A demonstration without its input: ``"intent: card arrival"``."""
    return f"{template.answer_lead}{example.answer}"


class HasText(Protocol):
    """The attributes of an example that prompts use (``icl_bench.tasks.examples.Example``)."""

    @property
    def fields(self) -> Mapping[str, str]:
        """Values of the template's input fields."""

    @property
    def answer(self) -> str:
        """The label as written in the prompt, or the free text."""


Message = Mapping[str, str]
"""A turn of a conversation: its ``role`` (system, user, assistant) and ``content``."""


Piece = Callable[["AnyTemplate", HasText], str]
"""Writes the text of one demonstration, without the separator after it."""


def demonstration_text(template: AnyTemplate, example: HasText) -> str:
    """One example with its answer: ``"query: ...\\nintent: card arrival"``."""
    return f"{query_text(template, example)}{template.answer_link}{example.answer}"


def query_text(template: AnyTemplate, example: HasText) -> str:
    """One example up to its answer, without the trailing space: ``"query: ...\\nintent:"``."""
    return template.shown(example) + template.query_link


def answer_text(template: AnyTemplate, answer: str) -> str:
    """The text that a model should write after the query: ``" card arrival\\n"``.

    It includes the answer's ending: if one label begins another ("order", "order status"), only the
    ending distinguishes them.
    """
    return f"{template.answer_link}{answer}{template.answer_end}"


def prompt_text(
    template: AnyTemplate, demonstrations: Sequence[HasText], query: HasText, piece: Piece = demonstration_text
) -> str:
    """The whole prompt as text (Bertsch et al. 2025, appendix G)."""
    pieces = [piece(template, d) + template.separator for d in demonstrations]
    return "".join([template.start, *pieces, query_text(template, query)])


class PromptForm(Protocol):
    """How the parts of a prompt are written and put together."""

    @property
    def has_special_tokens(self) -> bool:
        """Whether special tokens in its text are to be read as such."""

    @property
    def start(self) -> str:
        """The text before the first demonstration, or before the query."""

    @property
    def joint(self) -> str:
        """The text between demonstrations, and between the last one and the query."""

    @property
    def before_answer(self) -> str:
        """The end of every prompt, which an answer follows."""

    @property
    def stop(self) -> str:
        """The text that ends a free answer."""

    def demonstration(self, example: HasText) -> str:
        """A demonstration, followed by the joint."""

    def query(self, example: HasText) -> str:
        """The query, up to the model's answer."""

    def answer(self, answer: str) -> str:
        """The text that a model should write: an answer with its lead and its ending."""

    def whole(self, demonstrations: Sequence[HasText], query: HasText) -> str:
        """The text of one prompt."""

    def messages(self, demonstrations: Sequence[HasText], query: HasText) -> Sequence[Message]:
        """One prompt as a conversation."""

    def is_pieced(self, demonstrations: Sequence[HasText], queries: Sequence[HasText]) -> bool:
        """Whether prompts of these examples are the concatenation of their pieces."""


class PlainForm:
    """Plain text, as base models read it."""

    has_special_tokens = False

    def __init__(self, template: AnyTemplate, piece: Piece = demonstration_text) -> None:
        """``piece`` writes a demonstration."""
        self.template, self._piece = template, piece
        self.start = template.start
        self.joint = self.stop = template.separator
        self.before_answer = template.before_answer

    def demonstration(self, example: HasText) -> str:
        """See ``PromptForm``."""
        return self._piece(self.template, example) + self.joint

    def query(self, example: HasText) -> str:
        """See ``PromptForm``."""
        return query_text(self.template, example)

    def answer(self, answer: str) -> str:
        """See ``PromptForm``: ends with the end of its line."""
        return answer_text(self.template, answer)

    def whole(self, demonstrations: Sequence[HasText], query: HasText) -> str:
        """See ``PromptForm``."""
        return prompt_text(self.template, demonstrations, query, self._piece)

    def messages(self, demonstrations: Sequence[HasText], query: HasText) -> Sequence[Message]:
        """See ``PromptForm``: one user message."""
        return [{"role": "user", "content": self.whole(demonstrations, query)}]

    def is_pieced(self, demonstrations: Sequence[HasText], queries: Sequence[HasText]) -> bool:  # noqa: ARG002
        """See ``PromptForm``: always."""
        return True
