"""Reads files of lm-evaluation-harness: included files, and the tasks of groups.

A group's file lists tasks by name, or as fields of their own. As in lm-evaluation-harness, fields of the group and of
its list override those of the tasks' own files. A name refers to a task, a group or a tag, in the group's folder and
below; in a folder ``tasks``, also anywhere in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from icl_bench.errors import UserError
from icl_bench.tasks.yaml_files import read_yaml
from icl_bench.text_files import read_file
from icl_bench.wording import one_line, plain, short

MEMBER = "::"
"""Separates the path of a group's file from the name of one of its tasks."""

_OF_GROUPS = {"group", "group_alias", "task", "tag", "aggregate_metric_list", "metadata"}
"""Fields of a group that are not passed on to its tasks."""


@dataclass(frozen=True)
class Function:
    """The Python function that ``!function`` names."""

    name: str


@dataclass(frozen=True)
class SourceTask:
    """The fields of one task, as lm-evaluation-harness has them."""

    fields: Mapping[str, Any]
    folder: Path
    """The folder of its file."""
    file: Path | None = None
    """Its own file, if that defines it completely."""


class FunctionLoader(yaml.SafeLoader):
    """Reads YAML with ``!function`` without calling the function."""


def _function(loader: yaml.SafeLoader, node: yaml.Node) -> Function:
    return Function(str(loader.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else "")


FunctionLoader.add_constructor("!function", _function)


def read_source(path: Path) -> SourceTask:
    """The fields of a task: of its own file, or of a group's file (``group.yaml::task``).

    Raises ``UserError``; for a group, it lists the group's tasks.
    """
    file, _, name = str(path).partition(MEMBER)
    if not name:
        fields = with_includes(path)
        if is_group(fields):
            shown = ", ".join(Group.read(path).paths) or "it has none"
            raise UserError(one_line(f"{path}: is a group of tasks, and one is needed here: {shown}"))
        return SourceTask(fields, path.parent, path)
    return Group.read(Path(file)).task(name)


def is_group(values: Mapping[str, Any]) -> bool:
    """Whether a file is of a group. Older files have tasks with a ``group``, which is a tag."""
    return isinstance(values.get("task"), list) or ("group" in values and "task" not in values)


def with_includes(path: Path, parents: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file's fields, merged over those of its included files. Raises ``UserError``."""
    real = path.resolve()
    if real in parents:
        raise UserError(f"{path}: includes itself")
    values, _ = read_yaml(read_file(path), str(path), FunctionLoader)
    if not isinstance(values, dict):
        raise UserError(f"{path}: a task file holds fields, and this one is {short(values)}")
    return _included(values, path, (*parents, real))


def _included(values: Mapping[str, Any], path: Path, parents: tuple[Path, ...]) -> dict[str, Any]:
    """Fields of a file, or of a task in a group's list, merged over those of what they include."""
    own = dict(values)
    names = own.pop("include", [])
    merged: dict[str, Any] = {}
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str):
            raise UserError(f"{path}: include must be the name of a file, not {short(name)}")
        found = with_includes(path.parent / name, parents)
        found.pop("task_list", None)
        merged |= found
    return merged | own


@dataclass
class Group:
    """A group's file with the tasks, groups and tags that its names refer to."""

    path: Path
    fields: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Group:
        """Read a group. Raises ``UserError`` if the file is not a group."""
        fields = with_includes(path)
        if not is_group(fields):
            raise UserError(f"{path}: is one task, not a group of tasks")
        return cls(path, fields)

    @property
    def paths(self) -> list[str]:
        """All its tasks, in order: paths of their files, else of the group's file with the task's name."""
        return list(
            {
                name: str(task.file) if isinstance(task, SourceTask) and task.file else f"{self.path}{MEMBER}{name}"
                for name, task in self._tasks
            }.values()
        )

    def task(self, name: str) -> SourceTask:
        """One of its tasks. Raises ``UserError`` for an unknown one, and for one that cannot be read."""
        task = dict(self._tasks).get(name)
        if task is None:
            known = ", ".join(plain(name) for name, _ in self._tasks)
            raise UserError(one_line(f"{self.path}: the group has no task {plain(name)}; it has {known or 'none'}"))
        if isinstance(task, UserError):
            raise task
        return task

    @cached_property
    def _tasks(self) -> list[tuple[str, SourceTask | UserError]]:
        return list(self._members(self.path, self.fields, {}, ()))

    @cached_property
    def _index(self) -> _Index:
        return _Index(self.path.parent)

    def _members(
        self, path: Path, group: Mapping[str, Any], overrides: Mapping[str, Any], within: tuple[str, ...]
    ) -> Iterator[tuple[str, SourceTask | UserError]]:
        """The tasks of a group and of its subgroups, each with its name or the reason why it cannot be read."""
        name = str(group.get("group"))
        if name in within:
            raise UserError(f"{self.path}: the group {plain(name)} is inside itself")
        within = (*within, name)
        passed = {**{key: value for key, value in group.items() if key not in _OF_GROUPS}, **overrides}
        listed = group.get("task") or []
        for item in listed if isinstance(listed, list) else [listed]:
            own = {"task": item} if isinstance(item, str) else item
            kind = next((key for key in ("group", "task") if isinstance(own, dict) and key in own), None)
            if kind is None or not isinstance(own[kind], str):
                raise UserError(f"{path}: a group lists names of tasks, or fields with a task, not {short(item)}")
            more = {key: value for key, value in own.items() if key != kind}
            yield from self._named(path, own[kind], kind, more, passed, within)

    def _named(
        self,
        path: Path,
        name: str,
        kind: str,
        more: Mapping[str, Any],
        passed: Mapping[str, Any],
        within: tuple[str, ...],
    ) -> Iterator[tuple[str, SourceTask | UserError]]:
        """The tasks of one entry of a group's list. ``more`` are the entry's other fields."""
        try:
            found, own = self._index.find(name), _included(more, path, (path.resolve(),))
        except UserError as error:
            yield name, error
            return
        overrides = {**passed, **{key: value for key, value in own.items() if key not in _OF_GROUPS}}
        shown = f"{within[-1]}{MEMBER}{name}"
        if kind == "group" and not found:  # a group that is defined here
            yield from self._members(path, {**own, "group": shown}, passed, within)
            return
        if not found:
            if "dataset_path" not in overrides:
                yield name, UserError(f"{self.path}: no task, group or tag {plain(name)} in {self._index.searched}")
                return
            yield name, SourceTask({**overrides, "task": shown}, path.parent)
            return
        for file, fields in found:
            if is_group(fields):
                yield from self._members(file, fields, overrides, within)
            else:
                whole = None if overrides else file
                yield str(fields["task"]), SourceTask({**fields, **overrides}, file.parent, whole)


_DECLARED = re.compile(r"^(?:task|group):[ \t]*['\"]?([^\s'\"#]+)", re.MULTILINE)

_LARGEST = 1 << 20
"""The maximum bytes of a file that may be a task's."""

Files = list[tuple[Path, dict[str, Any]]]
"""Files with their fields."""


@dataclass
class _Index:
    """Tasks, groups and tags by name, in a folder and in the folder ``tasks`` that it is in.

    There may be thousands of files, so only those that may contain the name are parsed as YAML.
    """

    folder: Path

    def find(self, name: str) -> Files:
        """The file of a task or a group, or all files with this tag, which are searched only in the folder.

        Raises ``UserError`` for a file that has the name and cannot be read.
        """
        for folder in self._folders:
            for file in self._declared(folder).get(name, ()):
                fields = with_includes(file)
                if _own_name(fields) == name:
                    return [(file, fields)]
        mentioning = list(_read_all(self._mentioning(name)))
        named = [one for one in mentioning if _own_name(one[1]) == name]  # in an included file
        tagged = [one for one in mentioning if name in _tags(one[1])]
        return named[:1] or sorted(tagged, key=lambda one: str(one[1]["task"]))

    @property
    def searched(self) -> str:
        """The folders that are searched, for messages."""
        return " and ".join(map(str, self._folders))

    @cached_property
    def _folders(self) -> list[Path]:
        """The folder, and the outermost folder ``tasks`` around it."""
        around = [p for p in self.folder.absolute().parents if p.name == "tasks"]
        return [self.folder, *around[-1:]]

    def _mentioning(self, name: str) -> list[Path]:
        """The task files of the folder that contain a name, directly or in an included file."""
        texts, found, words = self._texts(self.folder), set[Path](), {name}
        while more := {p for p, text in texts.items() if p not in found and any(word in text for word in words)}:
            found |= more
            words = {p.name for p in more}
        return sorted(p for p in found if p.suffix == ".yaml")

    def _declared(self, folder: Path) -> dict[str, list[Path]]:
        """The files of a folder and below, by the names of tasks and groups that they define."""
        if folder not in self._known:
            names = self._known[folder] = {}
            for file, text in self._texts(folder).items():
                for name in set(_DECLARED.findall(text)) if file.suffix == ".yaml" else ():
                    names.setdefault(name, []).append(file)
        return self._known[folder]

    def _texts(self, folder: Path) -> dict[Path, str]:
        """The text of every file of a folder and below that may be a task, a group, or included by one."""
        if folder not in self._read:
            texts = self._read[folder] = {}
            for file in sorted(p for p in _visible(folder) if p.suffix in ("", ".yaml", ".yml") and p.is_file()):
                with suppress(OSError, UnicodeDecodeError):
                    if file.stat().st_size <= _LARGEST:
                        texts[file] = file.read_text(encoding="utf-8")
        return self._read[folder]

    @cached_property
    def _known(self) -> dict[Path, dict[str, list[Path]]]:
        return {}

    @cached_property
    def _read(self) -> dict[Path, dict[Path, str]]:
        return {}


def _visible(folder: Path) -> Iterator[Path]:
    """The files of a folder and below, without those of hidden folders: ``.git``, ``.venv``."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in names)


def _read_all(files: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Files with their fields; damaged ones are skipped, as in lm-evaluation-harness."""
    for file in files:
        with suppress(UserError):
            yield file, with_includes(file)


def _own_name(fields: Mapping[str, Any]) -> Any:
    return fields.get("group") if is_group(fields) else fields.get("task")


def _tags(fields: Mapping[str, Any]) -> list[Any]:
    """A task's tags; in older files, its groups."""
    named = [fields.get("tag"), fields.get("group")] if isinstance(fields.get("task"), str) else []
    return [tag for value in named for tag in (value if isinstance(value, list) else [value])]
