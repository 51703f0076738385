"""Reads YAML, and refuses values that YAML silently reads differently from what people expect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from icl_bench.errors import UserError
from icl_bench.text_files import decode
from icl_bench.wording import one_line, plain


def read_yaml(raw: bytes, name: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> tuple[Any, yaml.Node | None]:
    """The value of a YAML text, and its tree, which has line numbers. Raises ``UserError``."""
    text = decode(raw, name)
    try:
        reader = loader(text)
        tree = reader.get_single_node()
        if tree is None:
            return None, None
        _count_values(tree, {}, name)
        return reader.construct_document(tree), tree
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(one_line(f"{name}:{line}: not YAML: {error.problem}")) from None
    except RecursionError:
        raise UserError(f"{name}: not a task file: nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # PyYAML does not catch errors of Python's own conversions (an impossible date, `!!int x`).
        raise UserError(one_line(f"{name}: not YAML: {error}")) from None


def locate(node: yaml.Node, loc: Sequence[int | str]) -> tuple[list[int | str], int]:
    """The part of a path (of a pydantic error) that is in the file, and its line.

    Steps that are not in the file (a missing field, the branch of a union) are skipped.
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


MOST_VALUES = 100_000
"""The largest number of values in a task file, with aliases expanded."""

OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")
"""Numbers that YAML reads differently from people: 010 is 8, and 1:30 is 90."""


def _count_values(node: yaml.Node, sizes: dict[int, int | None], name: str) -> int:
    """The number of values in a node, with aliases expanded. ``sizes`` caches them by node.

    Refuses repeated keys (the last would count), numbers in another base, and aliases that expand to
    very many values or to themselves.
    """
    where = f"{name}:{node.start_mark.line + 1}"
    if id(node) in sizes:
        count = sizes[id(node)]
        if count is None:
            raise UserError(f"{where}: an alias is inside its own anchor")
        return count
    sizes[id(node)] = None
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        parts = node.value
    elif isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node, name)
        parts = [part for pair in node.value for part in pair]
    elif OTHER_BASE.fullmatch(node.value) and node.tag.endswith((":int", ":float")):
        raise UserError(
            f"{where}: {plain(node.value[:40])} is another number in YAML than it looks like (a "
            "leading zero is octal, a colon base 60); write a plain number, or a text in quotes"
        )
    size = 1 + sum(_count_values(part, sizes, name) for part in parts)
    if size > MOST_VALUES:
        raise UserError(f"{where}: more than {MOST_VALUES:,} values, with aliases expanded")
    sizes[id(node)] = size
    return size


def _refuse_repeated_keys(node: yaml.MappingNode, name: str) -> None:
    keys = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in keys:
                line = key.start_mark.line + 1
                raise UserError(f"{name}:{line}: {plain(key.value)} appears twice")
            keys.add(key.value)
