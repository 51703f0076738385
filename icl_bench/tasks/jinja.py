"""Jinja texts of task files, rendered from a row's columns in a sandbox.

The rules are those of lm-evaluation-harness (its ``doc_to_text``, ``doc_to_target`` and ``doc_to_choice``): a text that
is the name of a column means the column's value, an undefined name is an error, and trailing line breaks are kept.
Unlike there, a single word that is not a column is an error, except as the right one of several choices.
Templates that are random or do not end within :data:`SECONDS` are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icl_bench.errors import UserError
from icl_bench.tasks.splits import StoredRow, encodable, no_column
from icl_bench.tasks.time_limits import TookTooLongError, time_limit
from icl_bench.text_files import parse_literal
from icl_bench.wording import first_line, one_line, short

if TYPE_CHECKING:
    from jinja2 import Environment, Template

SECONDS = 2.0
"""The time limit of rendering a template, for one row."""


def check_source(text: str) -> None:
    """Raise ``ValueError`` for a text that is not valid Jinja, or that is random."""
    from jinja2 import TemplateSyntaxError, nodes

    try:
        tree = _environment().parse(text)
        drawn = {"random" for f in tree.find_all(nodes.Filter) if f.name == "random"}
        called = (call.node for call in tree.find_all(nodes.Call))
        drawn |= {"lipsum" for name in called if isinstance(name, nodes.Name) and name.name == "lipsum"}
    except TemplateSyntaxError as error:
        raise ValueError(one_line(f"not a Jinja template: {error.message} in {text!r}")) from None
    except RecursionError:
        raise ValueError("not a Jinja template: nested too deeply") from None
    if drawn:
        raise ValueError(f"uses {min(drawn)}, which makes a different prompt in every run (got {text!r})")


def names_in(text: str) -> frozenset[str]:
    """The columns that a Jinja text uses."""
    from jinja2 import meta

    return frozenset(meta.find_undeclared_variables(_environment().parse(text)))


def input_of(source: str, row: StoredRow, *, has_choices: bool) -> str:
    """The input of a row. Raises ``UserError`` that names the row."""
    value = _value(source, row, "template.input")
    if not isinstance(value, str):
        raise UserError(f"{row.where}: template.input must give text, not {short(value)}")
    if has_choices and value.isdecimal() and source not in row.cells:
        raise UserError(
            f"{row.where}: template.input gives the number {short(value)}; tasks that choose among "
            "several inputs are not supported"
        )
    return encodable(value, row, "template.input")


def output_of(source: str, row: StoredRow, *, has_choices: bool) -> Any:
    """The right answer of a row: a text, a list of texts, or for choices also a whole number.

    A rendered text becomes a number if it is digits and there are choices, and a list if it is
    written as a Python list. Raises ``UserError`` that names the row.
    """
    value = _value(source, row, "template.output", may_be_text=has_choices)
    if isinstance(value, bool):  # in Python, an index of choices
        return int(value) if has_choices else str(value)
    if source in row.cells:
        return value
    if has_choices and value.isdecimal():
        return int(value[:9])
    if value.startswith("[") and value.endswith("]"):
        try:
            return parse_literal(value)
        except ValueError:
            return value
    return value


def rationale_of(source: str, row: StoredRow) -> str | None:
    """The thought of a row; None if it has none. Raises ``UserError`` that names the row."""
    value = _value(source, row, "answer.rationale")
    return None if value is None else str(value)


def choices_of(source: str, row: StoredRow) -> list[Any] | dict[str, Any]:
    """A row's own choices: a list, or an object of keys and texts. Raises ``UserError`` that names the row."""
    value = _value(source, row, "labels.choices")
    if source not in row.cells:
        try:
            value = parse_literal(value)
        except ValueError:
            raise UserError(f"{row.where}: labels.choices must give a list, not {short(value)}") from None
    if isinstance(value, dict):
        return value
    if not isinstance(value, list | tuple):
        raise UserError(f"{row.where}: labels.choices must give a list, not {short(value)}")
    return list(value)


def _value(source: str, row: StoredRow, field: str, *, may_be_text: bool = False) -> Any:
    """The value of a column or of a Jinja text. ``may_be_text``: whether one word may be the text of all rows."""
    if source in row.cells:
        return row.cells[source]
    if source.isidentifier() and not may_be_text:
        raise UserError(no_column(f"{row.where}: {field}", source, row.cells))
    try:
        with time_limit(SECONDS):
            return _compiled(source).render(**row.cells)
    except TookTooLongError:
        wrong = f"{field} takes more than {SECONDS:g} s on this row: {short(source)}"
        raise UserError(one_line(f"{row.where}: {wrong}")) from None
    except Exception as error:  # any error of a template's expressions
        raise UserError(one_line(f"{row.where}: {field} fails on this row: {first_line(error)}")) from None


@lru_cache
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache
def _environment() -> Environment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, finalize=_not_a_function
    )
    environment.filters["regex_replace"] = _regex_replace
    without_random(environment)
    return environment


def without_random(environment: Environment) -> None:
    """Remove random functions from an environment."""
    del environment.filters["random"]
    del environment.globals["lipsum"]


def _not_a_function(value: Any) -> Any:
    """Return a value that a template writes. Raises ``TypeError`` for a function, whose text is its address."""
    from jinja2 import Undefined

    if callable(value) and not isinstance(value, Undefined):
        name = getattr(value, "__name__", type(value).__name__)
        raise TypeError(f"{name} is a function: write {name}(), or ['{name}'] for a value of that name")
    return value


def _regex_replace(text: str, pattern: str, by: str, count: int = 0) -> str:
    return re.sub(pattern, by, text, count=count)
