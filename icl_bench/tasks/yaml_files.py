"""Reads YAML, and refuses what a YAML reader takes without a word for something else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from icl_bench.errors import UserError
from icl_bench.text_files import decode
from icl_bench.wording import one_line, plain


def read_yaml(raw: bytes, shown: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> tuple[Any, yaml.Node | None]:
    """What a YAML text holds, and its tree, which knows lines. Raises ``UserError``."""
    text = decode(raw, shown)
    try:
        reader = loader(text)
        tree = reader.get_single_node()
        _refuse_traps(tree, shown)
        return (None if tree is None else reader.construct_document(tree)), tree
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(one_line(f"{shown}:{line}: not YAML: {error.problem}")) from None
    except RecursionError:
        raise UserError(f"{shown}: not a task file: nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # PyYAML lets through what Python's own conversions raise (an impossible date, `!!int x`).
        raise UserError(one_line(f"{shown}: not YAML: {error}")) from None


def locate(node: yaml.Node, loc: Sequence[int | str]) -> tuple[list[int | str], int]:
    """The part of a path (of pydantic's errors, say) that stands in the file, and its line.

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
