"""Reads task files, shipped ones and a user's own, and names what is wrong in one by its line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import get_args

import yaml
from pydantic import BaseModel, ValidationError

from icl_bench.errors import UserError
from icl_bench.tasks.spec import TaskSpec
from icl_bench.text_files import decode, read_file
from icl_bench.wording import nearest, one_line, plain, short


def known_tasks() -> tuple[str, ...]:
    """Names of the tasks that come with the program, sorted."""
    return tuple(sorted(_shelf()))


def load_task(name_or_path: str | Path) -> TaskSpec:
    """Read a shipped task by its name, or a task file by its path.

    A name with a path separator, or ending in ``.yaml`` or ``.yml``, is a path. The file's relative
    data paths become relative to the working folder, like the path itself.

    Raises UserError for an unknown name, a file that cannot be read, and anything wrong in it, with
    the line of the field.
    """
    name = os.fspath(name_or_path)
    is_path = isinstance(name_or_path, Path) or name.lower().endswith((".yaml", ".yml"))
    if not is_path and not any(separator in name for separator in ("/", os.sep)):
        shelf = _shelf()
        if name not in shelf:
            own = "a task file of your own is given by its path, like ./mine.yaml"
            raise UserError(f"no task {name!r}; {nearest(name, shelf)} ({own})")
        return _parse_task(shelf[name].read_bytes(), f"tasks/{name}.yaml")
    path = Path(name)
    spec = _parse_task(read_file(path), name)
    if spec.data.kind != "files":
        return spec
    named = {name: getattr(spec.data, name) for name in ("train", "test", "file")}
    places = {name: path.parent / file for name, file in named.items() if file is not None}
    return spec.model_copy(update={"data": spec.data.model_copy(update=places)})


def _shelf() -> dict[str, Traversable]:
    """The shipped task files: inside the installed package, or beside it in a source checkout."""
    package = package_files("icl_bench")
    folders: tuple[Traversable, ...] = (
        package / "task_files",
        Path(__file__).resolve().parents[2] / "tasks",
    )
    folder = next((f for f in folders if f.is_dir()), None)
    found = folder.iterdir() if folder else ()
    return {f.name.removesuffix(".yaml"): f for f in found if f.name.endswith(".yaml")}


def _parse_task(raw: bytes, shown: str) -> TaskSpec:
    text = decode(raw, shown)
    try:
        loader = yaml.SafeLoader(text)
        tree = loader.get_single_node()
        _refuse_traps(tree, shown)
        values = None if tree is None else loader.construct_document(tree)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(one_line(f"{shown}:{line}: not YAML: {error.problem}")) from None
    except RecursionError:
        raise UserError(f"{shown}: not a task file: nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # PyYAML lets through what Python's own conversions raise (an impossible date, `!!int x`).
        raise UserError(one_line(f"{shown}: not YAML: {error}")) from None
    if not isinstance(values, dict) or tree is None:
        what = "empty" if values is None else short(values)
        raise UserError(f"{shown}: a task file holds fields (name: …), and this one is {what}")
    try:
        return TaskSpec.model_validate(values)
    except ValidationError as error:
        raise UserError(_field_error(error, tree, shown)) from None


MOST_VALUES = 100_000
"""A task file's values, those that aliases repeat counted as often as they are repeated."""


OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that YAML does not read as people do: 010 is 8, and 1:30 is 90."""


def _refuse_traps(tree: yaml.Node | None, shown: str) -> None:
    """Refuse what a YAML reader takes without a word for something else, or never ends with.

    That is two equal keys (the last would count), numbers of another base, and aliases that repeat
    each other: so often that reading would take forever, or without an end.
    """
    sizes: dict[int, int | None] = {}
    if tree is not None:
        _values(tree, sizes, shown)


def _values(node: yaml.Node, sizes: dict[int, int | None], shown: str) -> int:
    """How many values there are in a node, its aliases written out; ``sizes`` are known ones."""
    where = f"{shown}:{node.start_mark.line + 1}"
    if id(node) in sizes:
        known = sizes[id(node)]
        if known is None:
            raise UserError(f"{where}: an alias stands within its own anchor, without an end")
        return known
    sizes[id(node)] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node, shown)
        parts = [part for pair in node.value for part in pair]
    elif OTHER_BASE.fullmatch(node.value) and node.tag.endswith((":int", ":float")):
        raise UserError(
            f"{where}: {plain(node.value[:40])} is another number in YAML than it looks like (a "
            "leading zero is octal, a colon base 60); write a plain number, or a text in quotes"
        )
    size = 1 + sum(_values(part, sizes, shown) for part in parts)
    if size > MOST_VALUES:
        raise UserError(f"{where}: more than {MOST_VALUES:,} values, aliases written out")
    sizes[id(node)] = size
    return size


def _refuse_repeated_keys(node: yaml.MappingNode, shown: str) -> None:
    keys = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in keys:
                line = key.start_mark.line + 1
                raise UserError(f"{shown}:{line}: {plain(key.value)} stands here twice")
            keys.add(key.value)


def _field_error(error: ValidationError, tree: yaml.Node, shown: str) -> str:
    """One line for the most telling of pydantic's errors: an unknown field, else the deepest."""
    found = [(e, *_locate(tree, e["loc"])) for e in error.errors(include_url=False)]
    worst, path, line = min(found, key=lambda f: (f[0]["type"] != "extra_forbidden", -len(f[1])))
    problem = f"{worst['msg']}, not {short(worst['input'])}"
    if worst["type"] == "extra_forbidden":
        path = list(worst["loc"])
        problem = f"unknown field; {nearest(str(path[-1]), _siblings(path))}"
    elif worst["type"] == "missing":
        path, problem = list(worst["loc"]), "is missing"
    elif worst["type"] == "value_error":
        problem = worst["msg"].removeprefix("Value error, ")
    names = (f"[{p}]" if isinstance(p, int) else f".{plain(p)}" for p in path)
    where = "".join(names).lstrip(".")
    return one_line(f"{shown}:{line}: {where + ': ' if where else ''}{problem}")


def _locate(node: yaml.Node, loc: Sequence[int | str]) -> tuple[list[int | str], int]:
    """The part of pydantic's path that stands in the file, and its line.

    What does not (a missing field, the branch of a union) is passed over.
    """
    path: list[int | str] = []
    line = node.start_mark.line + 1
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == str(part)), None)
            if pair is None:
                continue
            line, node = pair[0].start_mark.line + 1, pair[1]
        else:
            continue
        path.append(part)
    return path, line


def _siblings(path: Sequence[int | str]) -> Iterable[str]:
    """The fields that are known where an unknown one stands."""
    model: type[BaseModel] = TaskSpec
    for part in path[:-1]:
        annotation = model.model_fields[str(part)].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return model.model_fields
