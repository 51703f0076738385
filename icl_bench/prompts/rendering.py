"""Examples to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from icl_bench.tasks.spec import Template


def input_text(template: Template, example: HasText) -> str:
    """A demonstration without its answer: ``"query: ..."``."""
    return template.input.format_map(example.fields)


def answer_line(template: Template, example: HasText) -> str:
    """A demonstration without its input: ``"intent: card arrival"``."""
    return f"{template.answer_lead}{example.answer}"


class HasText(Protocol):
    """What a prompt needs of an example (``icl_bench.tasks.examples.Example`` is one)."""

    @property
    def fields(self) -> Mapping[str, str]:
        """Values of the template's input fields."""

    @property
    def answer(self) -> str:
        """The label as the prompt shows it, or the free text."""


Piece = Callable[["Template", HasText], str]
"""Text of one demonstration, without the separator behind it."""


def demonstration_text(template: Template, example: HasText) -> str:
    """One example with its answer: ``"query: ...\\nintent: card arrival"``."""
    shown = template.input.format_map(example.fields)
    return f"{shown}\n{template.answer_lead}{example.answer}"


def query_text(template: Template, example: HasText) -> str:
    """One example up to its answer, without the trailing space: ``"query: ...\\nintent:"``."""
    shown = template.input.format_map(example.fields)
    return f"{shown}\n{template.answer_lead.rstrip(' ')}"


def answer_text(template: Template, answer: str) -> str:
    """What a model should write after the query: ``" card arrival\\n"``.

    The end belongs to it: where one label begins another ("order", "order status"), only the end
    tells the shorter one from the longer one's beginning.
    """
    lead = template.answer_lead
    return f"{lead[len(lead.rstrip(' ')) :]}{answer}\n"


def prompt_text(
    template: Template,
    demonstrations: Sequence[HasText],
    query: HasText,
    piece: Piece = demonstration_text,
) -> str:
    """The whole prompt as text (Bertsch et al. 2025, appendix G)."""
    pieces = [piece(template, d) + template.separator for d in demonstrations]
    return "".join([*pieces, query_text(template, query)])
