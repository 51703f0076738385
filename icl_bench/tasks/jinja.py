"""Jinja texts of task files: what they make of a row's columns, in a sandbox.

The rules are those of lm-evaluation-harness (its ``doc_to_text``, ``doc_to_target`` and
``doc_to_choice``): a text that is the name of a column stands for the column's value; an undefined
name is an error; line breaks at the end are kept.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.tasks.splits import Row, encodable
from icl_bench.wording import first_line, one_line, short

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def check_source(text: str) -> None:
    """Raise ``ValueError`` for a text that is no Jinja."""
    from jinja2 import TemplateSyntaxError

    try:
        _environment().parse(text)
    except TemplateSyntaxError as error:
        raise ValueError(one_line(f"not a Jinja template: {error.message} in {text!r}")) from None
    except RecursionError:
        raise ValueError("not a Jinja template: nested too deeply") from None


def names_in(text: str) -> frozenset[str]:
    """The columns that a Jinja text speaks of."""
    from jinja2 import meta

    return frozenset(meta.find_undeclared_variables(_environment().parse(text)))


def input_of(source: str, row: Row, *, has_choices: bool) -> str:
    """What a row's input is. Raises ``UserError`` that names the row."""
    value = _value(source, row, "template.input")
    if not isinstance(value, str):
        raise UserError(f"{row.where}: template.input must give text, not {short(value)}")
    if has_choices and value.isdigit() and source not in row.cells:
        raise UserError(
            f"{row.where}: template.input gives the number {short(value)}; inputs that are chosen "
            "among (several inputs, one answer) are not known here"
        )
    return encodable(value, row, "template.input")


def output_of(source: str, row: Row, *, has_choices: bool) -> Any:
    """A row's right answer as its template gives it: a text, a list of texts, or for choices also
    a whole number.

    What is rendered is a number where it is digits and there are choices, and a list where it is
    written as one. Raises ``UserError`` that names the row.
    """
    value = _value(source, row, "template.output")
    if source in row.cells:
        return value
    if has_choices and value.isdigit():
        return int(value[:9])
    if value.startswith("[") and value.endswith("]"):
        try:
            return ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return value
    return value


def choices_of(source: str, row: Row) -> list[Any]:
    """A row's own choices. Raises ``UserError`` that names the row."""
    value = _value(source, row, "labels.choices")
    if source not in row.cells:
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UserError(f"{row.where}: labels.choices must give a list, not {short(value)}") from None
    if not isinstance(value, list | tuple):
        raise UserError(f"{row.where}: labels.choices must give a list, not {short(value)}")
    return list(value)


def _value(source: str, row: Row, what: str) -> Any:
    if source in row.cells:
        return row.cells[source]
    try:
        return _compiled(source).render(**row.cells)
    except Exception as error:  # whatever a template's expressions raise
        raise UserError(one_line(f"{row.where}: {what} fails on this row: {first_line(error)}")) from None


@lru_cache
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    found = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    found.filters["regex_replace"] = _regex_replace
    return found


def _regex_replace(text: str, pattern: str, by: str, count: int = 0) -> str:
    return re.sub(pattern, by, text, count=count)
