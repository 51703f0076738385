"""Declarations of options: each is declared once, as a field of a specification.

The command line creates its options from these declarations, study files use their names, and Python accepts them as
keyword arguments. A value may be text as on the command line, or a Python value: a number, a list, the parsed object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.wording import comma_list, listed_or, nearest, plain, short

TASK, PROMPTS, MODEL, SERVERS = "Task", "Prompts", "Model", "Servers"
TRAINING, MACHINES, OUTPUT = "Training", "Many machines", "Output"
GROUPS = (TASK, PROMPTS, TRAINING, MODEL, SERVERS, MACHINES, OUTPUT)
"""The groups of the help, in order."""


@dataclass(frozen=True)
class Option:
    """An option's attributes besides name, type and default, which are those of its field."""

    help: str
    """One or two sentences."""
    group: str
    """One of ``GROUPS``."""
    metavar: str = "VALUE"
    """Placeholder for its value in the help."""
    expected: str = ""
    """Description of valid values, for messages; by default derived from its type."""
    more: Callable[[], Iterable[str]] | None = None
    """Names that installed packages add, which the help lists."""
    default: str | None = None
    """The default in words; by default derived from the field. Empty: the help shows none."""
    repeated: bool = False
    """Whether the command line takes it several times, instead of a list with commas."""
    short: str | None = None
    """Its one-letter name on the command line."""


@dataclass(frozen=True)
class Declared:
    """An option with its name and its field."""

    name: str
    field: FieldInfo
    option: Option

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return flag(self.name)

    @property
    def kind(self) -> Any:
        """The type of its value on the command line: text for all parsed values."""
        kinds = [kind for kind in _members(self.field.annotation) if kind is not NoneType]
        plain_kind = kinds[0] if len(kinds) == 1 else str
        if plain_kind in (bool, int, float, Path) or get_origin(plain_kind) is Literal:
            return plain_kind
        return str

    @property
    def default(self) -> str:
        """Its default in the help; empty if there is none to show."""
        if self.option.default is not None:
            return self.option.default
        value = self.field.default
        if value in (PydanticUndefined, None, "", False, ()):
            return ""
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    @property
    def choices(self) -> tuple[str, ...]:
        """The valid values, if they are few and known."""
        return tuple(map(str, get_args(self.kind))) if get_origin(self.kind) is Literal else ()

    @property
    def expected(self) -> str:
        """A description of valid values."""
        if self.option.expected:
            return self.option.expected
        if self.choices:
            return listed_or(self.choices)
        words = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
        return words.get(self.kind, "text")


class Options(Frozen):
    """Base of specifications whose fields are options. A wrong value raises ``UserError``, one line that
    names the option, the value and what is expected.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True, defer_build=True)
    about: ClassVar[str] = "command"
    """The owner of the options, for messages."""

    @classmethod
    def declared(cls) -> dict[str, Declared]:
        """Its options by name."""
        found = {}
        for name, field in cls.model_fields.items():
            options = [one for one in field.metadata if isinstance(one, Option)]
            if options:
                found[name] = Declared(name, field, options[-1])
        return found

    @classmethod
    def of_group(cls, *groups: str) -> frozenset[str]:
        """The names of the options of some groups."""
        return frozenset(name for name, one in cls.declared().items() if one.option.group in groups)

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, given: Any, handler: Any) -> Any:
        if isinstance(given, Mapping):
            given = cls._as_python_has_it(given)
            cls._check_kinds(given)
        try:
            return handler(given)
        except ValidationError as error:
            raise UserError(cls._said(error)) from None
        except _WrongKindError as error:
            declared = cls.declared()[error.name]
            raise UserError(f"{declared.flag} {_shown(error.value)}: expected {declared.expected}") from None

    @classmethod
    def _as_python_has_it(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Remove options that are None, which count as not given, and convert numpy values to Python's."""
        declared = cls.declared()
        return {
            name: value.tolist() if name in declared and hasattr(value, "tolist") else value
            for name, value in given.items()
            if value is not None or name not in declared
        }

    @classmethod
    def _check_kinds(cls, given: Mapping[str, Any]) -> None:
        """Refuse values that pydantic would convert silently: true to 1, ``"no"`` to false."""
        for name, declared in cls.declared().items():
            value = given.get(name)
            if value is None or isinstance(value, bool) == (declared.kind is bool):
                continue
            raise UserError(f"{declared.flag} {_shown(value)}: expected {declared.expected}")

    @classmethod
    def _said(cls, error: ValidationError) -> str:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            return f"{plain(name)}: not an option of {cls.about}; {nearest(name, cls.declared())}"
        if first["type"] == "missing":
            return f"{flag(name)}: is missing"
        declared = cls.declared()[name]
        context = first.get("ctx", {})
        bounds = {"greater_than_equal": "ge", "less_than_equal": "le", "greater_than": "gt", "less_than": "lt"}
        words = {"ge": "{} or more", "le": "at most {}", "gt": "more than {}", "lt": "less than {}"}
        expected = declared.expected
        if not declared.option.expected and (bound := bounds.get(first["type"])) is not None:
            expected = words[bound].format(f"{context[bound]:,}")
        return f"{declared.flag} {_shown(first['input'])}: expected {expected}"


def _shown(value: object) -> str:
    """A value in a message; text as on the command line."""
    if isinstance(value, str):
        return plain(value) if len(value) <= 60 else short(value)
    if isinstance(value, list | tuple) and not value:
        return "[]"
    return str(value).lower() if isinstance(value, bool) else short(value)


def flag(name: str) -> str:
    """An option's name on the command line."""
    return "--" + name.replace("_", "-")


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(one for member in get_args(annotation) for one in _members(member))
    return (annotation,)


# -- readers of values ----------------------------------------------------------------------------


def as_text(given: Any) -> Any:
    """Convert numbers and lists of them to command-line text; other values unchanged."""
    if isinstance(given, list | tuple | range):
        return ",".join(map(str, given))
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    return given


def path_as_text(given: Any) -> Any:
    """Convert a path to text; other values unchanged."""
    return str(given) if isinstance(given, Path) else given


class _WrongKindError(Exception):
    """A value that is neither text nor the result of parsing."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__()
        self.name, self.value = name, value


def read(kind: str) -> BeforeValidator:
    """Parse one value with the ``parse`` of a class, named as ``module:Class``. Parsed values are returned
    unchanged.
    """

    def reader(given: Any, info: ValidationInfo) -> Any:
        return None if given is None else _one(kind, str(info.field_name), as_text(given))

    return BeforeValidator(reader)


def read_each(kind: str, split: str = "icl_bench.wording:comma_list") -> BeforeValidator:
    """Parse several values of a class, without duplicates, in order of first mention.

    They are one text with commas (divided by ``split``), or an iterable.
    """

    def reader(given: Any, info: ValidationInfo) -> Any:
        if given is None:
            return None
        cut, name = resolve_name(split), str(info.field_name)
        items = given if isinstance(given, list | tuple | set | frozenset) else [given]
        parts = [part for one in items for part in (cut(one) if isinstance(one, str) else [one])]
        if not (found := tuple(dict.fromkeys(_one(kind, name, part) for part in parts))):
            raise _WrongKindError(name, given)
        return found

    return BeforeValidator(reader)


def _one(kind: str, name: str, given: Any) -> Any:
    """The value of a field. Its class is imported only now, so that help does not need it."""
    of = resolve_name(kind)
    if isinstance(given, str):
        return of.parse(given)
    if not isinstance(given, of):
        raise _WrongKindError(name, given)
    return given


def read_with(parse: Callable[[str], Any]) -> BeforeValidator:
    """Parse one value with a function of its text. Values that are not text, numbers or lists are returned
    unchanged.
    """

    def reader(given: Any) -> Any:
        text = as_text(given)
        return parse(text) if isinstance(text, str) else given

    return BeforeValidator(reader)


def names_in(given: Any) -> list[Any]:
    """The names of a text with commas, or of a list. An existing file or folder with a comma is one name, and so is a
    model that is not text.
    """
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        return [given]
    with suppress(OSError, ValueError):  # a name that is too long is refused later
        if Path(given).exists():
            return [given]
    return list(dict.fromkeys(comma_list(given))) or [given]


def _names(given: Any) -> Any:
    if isinstance(given, str):
        return tuple(comma_list(given))
    return tuple(given) if isinstance(given, list | tuple) else given


NAMES = BeforeValidator(_names)
"""Parses a list of names: one text with commas, or several texts."""

NAME = BeforeValidator(path_as_text)
"""Parses a name that may also be a path."""


def as_pairs(variables: Any) -> Any:
    """Convert a mapping to the command line's form: ``NAME=VALUE``, values as JSON."""
    if isinstance(variables, Mapping):
        try:
            return tuple(f"{name}={json.dumps(value)}" for name, value in variables.items())
        except TypeError as error:
            raise ValueError(str(error)) from None
    return (variables,) if isinstance(variables, str) else variables


def read_pair(text: str, option: str) -> tuple[str, Any]:
    """Parse ``enable_thinking=false`` as a name and a value: JSON if it is valid JSON, else text.

    Raises ``UserError``, which names the option.
    """
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise UserError(f"{option} {plain(text)}: expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
