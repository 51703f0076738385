"""The parameters of a selector: the typed fields of its data class, as ``--select`` writes them.

A field without a default is written after the name and a colon, fields with defaults as options: ``nearby:3,by=words``.
A selector has at most one field without a default. A field named after a keyword ends with an underscore, which is not
written: ``lambda_`` is ``lambda=0.5``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from icl_bench.errors import UserError
from icl_bench.wording import nearest, plain


def argument_of(selector: type) -> str | None:
    """The name of the field without a default; None if all have one. Raises ``UserError`` for several."""
    required = [_name(field) for field in _fields(selector) if not _has_default(field)]
    if len(required) > 1:
        raise UserError(
            f"selector {selector.__name__}: {' and '.join(required)} have no default, and only one parameter "
            "can be written behind the name"
        )
    return required[0] if required else None


def options_of(selector: type) -> list[str]:
    """The names of the fields with defaults."""
    return [_name(field) for field in _fields(selector) if _has_default(field)]


def parse_values(selector: type, texts: Mapping[str, str], option_text: str) -> dict[str, Any]:
    """Parse the texts of fields as their types. Raises ``UserError`` that begins with ``option_text``."""
    from pydantic import TypeAdapter, ValidationError

    kinds = _kinds(selector)
    fields_of = {_name(field): field.name for field in _fields(selector)}
    parsed = {}
    for name, text in texts.items():
        context, kind = f"{option_text}: {name}={plain(text[:40])}", kinds[fields_of[name]]
        if get_origin(kind) is Literal and text not in (allowed := list(map(str, get_args(kind)))):
            raise UserError(f"{context}: not known; {nearest(text, allowed)}")
        try:
            parsed[fields_of[name]] = TypeAdapter(kind).validate_python(text)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            raise UserError(f"{context}: {why[:1].lower()}{why[1:]}") from None
    return parsed


@cache
def _kinds(selector: type) -> Mapping[str, Any]:
    """The types of its fields."""
    return get_type_hints(selector, include_extras=True)


def written(selector: Any) -> str:
    """The text of a selector after its name: ``:3,by=words``. Omits options that have their default."""
    every = _fields(type(selector))
    argument = "".join(f":{_text(getattr(selector, field.name))}" for field in every if not _has_default(field))
    changed = [field for field in every if _changed(field, getattr(selector, field.name))]
    return argument + "".join(f",{_name(field)}={_text(getattr(selector, field.name))}" for field in changed)


def _fields(selector: type) -> tuple[Field[Any], ...]:
    return fields(selector) if is_dataclass(selector) else ()


def _name(field: Field[Any]) -> str:
    """The name of the field as written in options."""
    return field.name.removesuffix("_")


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _changed(field: Field[Any], value: Any) -> bool:
    if not _has_default(field):
        return False
    return bool(value != (field.default if field.default_factory is MISSING else field.default_factory()))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("e+", "e") if isinstance(value, float) else str(value)  # a + joins selectors
