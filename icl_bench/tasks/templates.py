"""Templates, which turn an example into text: with fields in braces, or in Jinja."""

from __future__ import annotations

import string
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from icl_bench.frozen import Frozen
from icl_bench.tasks.jinja import check_source, names_in


def _starts_a_line(separator: str) -> str:
    if not separator.startswith("\n"):
        raise ValueError(f"must begin with a line break: an answer ends where its line ends (got {separator!r})")
    return separator


class JinjaTemplate(Frozen):
    """A Jinja template of a row's columns, as in task files of lm-evaluation-harness.

    A demonstration is ``input + delimiter + output``. Demonstrations are joined by ``separator``,
    after ``start``. The query is the input alone. Instead of a Jinja text, ``input`` and ``output``
    may be the name of a column. Rows are rendered when they are read, so an example's only field is
    its rendered input.
    """

    input_fields: ClassVar[tuple[str, ...]] = ("input",)
    answer_field: ClassVar[str] = "output"
    query_link: ClassVar[str] = ""
    answer_lead: ClassVar[str] = ""

    engine: Literal["jinja"]
    input: str = Field(min_length=1)
    output: str = Field(min_length=1)
    start: str = ""
    """The beginning of every prompt."""
    delimiter: str = " "
    """The text between an input and its answer."""
    separator: str = "\n\n"

    _line = field_validator("separator")(_starts_a_line)

    @field_validator("input", "output")
    @classmethod
    def _is_jinja(cls, text: str) -> str:
        check_source(text)
        return text

    @model_validator(mode="after")
    def _shows_the_row(self) -> JinjaTemplate:
        if not names_in(self.input) and not self.input.isidentifier():
            raise ValueError(
                "input must show a column of the row, like {{text}}: all rows would make the same "
                f"prompt (got {self.input!r})"
            )
        return self

    def shown(self, fields: Mapping[str, str]) -> str:
        """An example without its answer, from the values of the input fields."""
        return fields["input"]

    @property
    def answer_link(self) -> str:
        """The text between the end of a query and its answer."""
        return self.delimiter

    @property
    def answer_end(self) -> str:
        """The end of an answer: all line breaks at the start of the separator, which may be one
        token.
        """
        return self.separator[: len(self.separator) - len(self.separator.lstrip("\n"))]

    @property
    def before_answer(self) -> str:
        """The common end of all queries."""
        _, rendered, tail = self.input.rpartition("}")
        return tail if rendered and tail else ":"


class Template(Frozen):
    r"""A template with fields in braces (Bertsch et al. 2025, appendix G).

    A demonstration is ``input + "\n" + output``. Demonstrations are joined by ``separator``. The
    query is a demonstration up to the answer, without the trailing space.
    """

    start: ClassVar[str] = ""
    answer_end: ClassVar[str] = "\n"

    input: str = Field(min_length=1)
    output: str = Field(min_length=1)
    separator: str = "\n==\n"

    @field_validator("input", "output")
    @classmethod
    def _well_formed(cls, text: str) -> str:
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"not a template: {error} in {text!r}") from None
        for _, field, form, conversion in parts:
            if field is not None and (not field.isidentifier() or form or conversion):
                raise ValueError(f"a field is a plain name in braces, like {{text}}; got {{{field}}} in {text!r}")
        return text

    _line = field_validator("separator")(_starts_a_line)

    @model_validator(mode="after")
    def _answer_comes_last(self) -> Template:
        parts = list(string.Formatter().parse(self.output))
        fields = [field for _, field, _, _ in parts if field is not None]
        if len(fields) != 1 or parts[-1][1] is None:
            raise ValueError(
                f"output must hold one field, the answer, at its end, like 'intent: {{label}}' (got {self.output!r})"
            )
        if not self.input_fields:
            hint = "; {{…}} stands for the braces themselves" if "{{" in self.input else ""
            raise ValueError(
                "input must show a field of the row, like {text}: all rows would make the same "
                f"prompt (got {self.input!r}{hint})"
            )
        if fields[0] in self.input_fields:
            raise ValueError(f"input must not show the answer field {{{fields[0]}}}")
        return self

    @cached_property
    def input_fields(self) -> tuple[str, ...]:
        """The fields that the input shows, in the order of their first appearance."""
        fields = [f for _, f, _, _ in string.Formatter().parse(self.input) if f is not None]
        return tuple(dict.fromkeys(fields))

    @cached_property
    def answer_field(self) -> str:
        """The field that holds the answer: the one field of ``output``."""
        return next(f for _, f, _, _ in string.Formatter().parse(self.output) if f is not None)

    @cached_property
    def answer_lead(self) -> str:
        """``output`` up to the answer, braces unescaped: ``"intent: "``."""
        return "".join(text for text, _, _, _ in string.Formatter().parse(self.output))

    def shown(self, fields: Mapping[str, str]) -> str:
        """An example without its answer, from the values of the input fields: ``"query: ..."``."""
        return self.input.format_map(fields)

    @cached_property
    def query_link(self) -> str:
        """The text of a query after its input: ``"\\nintent:"``."""
        return f"\n{self.answer_lead.rstrip(' ')}"

    @cached_property
    def answer_link(self) -> str:
        """The text between the end of a query and its answer: the removed space."""
        lead = self.answer_lead
        return lead[len(lead.rstrip(" ")) :]

    @property
    def before_answer(self) -> str:
        """The common end of all queries."""
        return self.query_link


ENGINES: dict[str, type[Frozen]] = {"braces": Template, "jinja": JinjaTemplate}


def _engine(value: Any) -> str:
    engine = value.get("engine") if isinstance(value, Mapping) else getattr(value, "engine", None)
    return "braces" if engine is None else "jinja"


AnyTemplate = Annotated[
    Annotated[Template, Tag("braces")] | Annotated[JinjaTemplate, Tag("jinja")], Discriminator(_engine)
]
