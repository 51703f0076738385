"""Reads task files, shipped ones and the user's own. Errors name the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from icl_bench.errors import UserError
from icl_bench.tasks.file_readers import TABLE_FILES, kind_of
from icl_bench.tasks.lm_eval import converted, is_lm_eval
from icl_bench.tasks.lm_eval_files import MEMBER, Function, FunctionLoader, Group, is_group
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.templates import ENGINES
from icl_bench.tasks.yaml_files import locate, read_yaml
from icl_bench.text_files import read_file, write_new
from icl_bench.wording import first_line, listed_or, nearest, one_line, plain, short

if TYPE_CHECKING:
    from icl_bench.tasks.drafts import Draft


def known_tasks() -> tuple[str, ...]:
    """The names of the shipped tasks, sorted."""
    return tuple(sorted(_shipped_task_files()))


def known_groups() -> dict[str, tuple[str, ...]]:
    """The shipped groups: the names of their tasks, sorted. A group is a folder among the task files."""
    names = ((folder.name, _names_in(folder)) for folder in _shipped_folder() if folder.is_dir())
    return {group: tuple(sorted(tasks)) for group, tasks in sorted(names) if tasks}


def tasks_of(name: str) -> list[str]:
    """The tasks of a shipped group, or of a group's file, as ``load_task`` reads them; any other name unchanged.

    Raises ``UserError`` if a group's file cannot be read.
    """
    if not name.lower().endswith((".yaml", ".yml")):
        return list(known_groups().get(name, [name]))
    if not Path(name).is_file():
        return [name]
    values, _ = read_yaml(read_file(Path(name)), name, FunctionLoader)
    if not isinstance(values, dict) or not is_group(values):
        return [name]
    return Group.read(Path(name)).paths or [name]


def load_task(name_or_path: str | Path | TaskSpec, text: str | None = None, label: str | None = None) -> TaskSpec:
    """Read a shipped task by its name, or a task file by its path. A ``TaskSpec`` is returned unchanged.

    A name with a path separator, or ending in ``.yaml`` or ``.yml``, is a path; ``group.yaml::task`` is
    a task of a group's file. The file's relative data paths become relative to the working folder,
    like the path itself. A file of rows (``.csv``, ...) becomes a task, with ``text`` and ``label`` as its
    columns (:func:`icl_bench.tasks.drafts.draft_task`).

    Raises UserError for an unknown name, a file that cannot be read, a wrong field (with its line), and for columns
    without a file of rows.
    """
    if not isinstance(name_or_path, TaskSpec) and kind_of(Path(name_or_path)) is not None:
        from icl_bench.tasks.drafts import draft_task  # uses numpy, which a list of tasks does not need

        return draft_task(Path(name_or_path), text, label).spec
    for option, column in {"--text": text, "--label": label}.items():
        if column is not None:
            raise UserError(f"{option} {plain(column)}: is for a file of rows, like tickets.csv")
    if isinstance(name_or_path, TaskSpec):
        return name_or_path
    name = os.fspath(name_or_path)
    file = name.partition(MEMBER)[0]
    is_path = isinstance(name_or_path, Path) or file.lower().endswith((".yaml", ".yml"))
    if not is_path and not any(separator in name for separator in ("/", os.sep)):
        shipped, groups = _shipped_task_files(), known_groups()
        if name in groups:
            raise UserError(f"{name}: is a group of tasks, and one is needed here: {', '.join(groups[name])}")
        if name not in shipped:
            if name and _exists(Path(name)):
                raise UserError(_no_rows(Path(name)))
            hint = "a task file of your own is given by its path, like ./mine.yaml"
            raise UserError(f"no task {name!r}; {nearest(name, [*shipped, *groups])} ({hint})")
        return _parse_task(shipped[name].read_bytes(), f"tasks/{name}.yaml")
    path = Path(file)
    if path.name == file and not _exists(path) and path.stem in (*known_tasks(), *known_groups()):
        raise UserError(f"{plain(name)}: there is no such file; the shipped one is named {path.stem}")
    if _exists(path) and path.is_dir():
        raise UserError(_no_rows(path))
    spec = _parse_task(read_file(path), name)
    if spec.pool.file is not None and spec.data.kind != "folder":
        spec = spec.model_copy(update={"pool": spec.pool.model_copy(update={"file": path.parent / spec.pool.file})})
    if spec.data.kind != "files":
        return spec
    files = {name: getattr(spec.data, name) for name in ("train", "test", "file")}
    paths = {name: path.parent / file for name, file in files.items() if file is not None}
    return spec.model_copy(update={"data": spec.data.model_copy(update=paths)})


def _exists(path: Path) -> bool:
    """Whether there is a file or folder; not if its name is too long for one, as an imported task's may be."""
    try:
        return path.exists()
    except OSError:
        return False


ROWS_HINT = f"a file of rows ends in {listed_or(TABLE_FILES)}: --task tickets.csv --text COLUMN --label COLUMN"
"""How to run a file of rows as a task, for messages."""


def _no_rows(path: Path) -> str:
    """The message for a folder, or a file in the working folder with an unknown extension, given as a task."""
    if not path.is_dir():
        return f"{path}: is a file, but no task file (.yaml), and {ROWS_HINT}"
    inside = (f for f in path.iterdir() if f.is_file() and (kind_of(f) is not None or f.suffix in (".yaml", ".yml")))
    like = f", like {min(inside, default=path / 'tickets.csv')}"
    return f"{path}: is a folder; give a task file (.yaml) or a file of rows{like}"


class _Dumper(yaml.SafeDumper):
    """Writes line breaks of texts as ``\\n``, and Unicode's others as escapes, which PyYAML else reads as spaces."""


_BREAKS = "\n\x85\u2028\u2029"


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if set(text) & set(_BREAKS) else None)


_Dumper.add_representer(str, _text_node)


def written_from_lm_eval(path: Path, out: Path | None) -> str:
    """Convert a task file of lm-evaluation-harness. Returns the text of the new task file.

    The text is also written to ``out``, a new file, if given. Raises ``UserError`` that names
    unsupported fields.
    """
    load_task(path)
    text = as_yaml(converted(path))
    if out is not None:
        write_task_file(out, text)
    return text


def written_from_table(path: Path, out: Path | None, text: str | None, label: str | None) -> tuple[Draft, Path]:
    """Create a task from a file of rows and write it to a new task file, by default next to the rows.

    Returns the draft and the path. Raises ``UserError``.
    """
    from icl_bench.tasks.drafts import draft_task

    draft = draft_task(path, text, label)
    out = out or path.parent / f"{draft.values['name']}.yaml"
    write_task_file(out, draft_text(draft, path, out))
    return draft, out


def draft_text(draft: Draft, path: Path, out: Path) -> str:
    """The task file ``out`` for a draft of the rows in ``path``, with the guesses as comments."""
    rows = Path(os.path.relpath(path.resolve(), out.parent.resolve())).as_posix()  # as a task file names them
    values = draft.values | {"data": draft.values["data"] | {"file": rows}}
    return "".join(f"# {one}\n" for one in draft.said) + as_yaml(values)


def as_yaml(values: Mapping[str, Any]) -> str:
    """The text of a task file."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20))


def write_task_file(out: Path, text: str) -> None:
    """Write a task file that does not exist yet. Raises ``UserError``."""
    if out.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"--out {out}: a task file ends in .yaml")
    try:
        write_new(out, text.encode())
    except FileExistsError:
        raise UserError(f"--out {out}: is there already; give another name") from None
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({first_line(error)})") from None


def _shipped_task_files() -> dict[str, Traversable]:
    """The shipped task files, including those of groups."""
    folder = list(_shipped_folder())
    return {name: f for part in (folder, *(f.iterdir() for f in folder if f.is_dir())) for name, f in _named(part)}


def _shipped_folder() -> Iterator[Traversable]:
    """The content of the folder of shipped task files: in the installed package, or next to it in a source checkout."""
    package = package_files("icl_bench")
    folders: tuple[Traversable, ...] = (package / "task_files", Path(__file__).resolve().parents[2] / "tasks")
    folder = next((f for f in folders if f.is_dir()), None)
    yield from folder.iterdir() if folder else ()


def _names_in(folder: Traversable) -> list[str]:
    return [name for name, _ in _named(folder.iterdir())]


def _named(files: Iterable[Traversable]) -> Iterator[tuple[str, Traversable]]:
    """The task files among files, by name."""
    return ((f.name.removesuffix(".yaml"), f) for f in files if f.name.endswith(".yaml"))


def _parse_task(raw: bytes, name: str) -> TaskSpec:
    values, tree = read_yaml(raw, name, FunctionLoader)
    if not isinstance(values, dict) or tree is None:
        description = "empty" if values is None else short(values)
        problem = f"{name}: a task file holds fields (name: …), and this one is {description}"
        raise UserError(problem if name.endswith((".yaml", ".yml")) else f"{problem}; {ROWS_HINT}")
    try:
        if is_lm_eval(values) or MEMBER in name:
            return TaskSpec.model_validate(converted(Path(name)))
        return TaskSpec.model_validate(values)
    except ValidationError as error:
        raise UserError(_field_error(error, tree, name)) from None


def _field_error(error: ValidationError, tree: yaml.Node, shown: str) -> str:
    """One line for the most specific of pydantic's errors, with the line of the file."""
    found = [(e, *locate(tree, e["loc"])) for e in error.errors(include_url=False)]
    worst, path, line = min(found, key=lambda f: (f[0]["type"] != "extra_forbidden", -len(f[1])))
    return one_line(f"{shown}:{line}: {_problem(worst, path)}")


def field_problem(error: ValidationError) -> str:
    """The most specific of pydantic's errors on a task without a file: an unknown field, else the deepest."""
    found = error.errors(include_url=False)
    worst = min(found, key=lambda one: (one["type"] != "extra_forbidden", -len(one["loc"])))
    return one_line(_problem(worst, _without_engine(worst["loc"])))


def _problem(error: ErrorDetails, path: Sequence[int | str]) -> str:
    """The field of an error, and the problem with it."""
    problem = f"{error['msg']}, not {short(error['input'])}"
    if error["type"] == "extra_forbidden":
        path = _without_engine(error["loc"])
        problem = f"unknown field; {nearest(str(path[-1]), _siblings(error['loc']))}"
    elif isinstance(error["input"], Function):
        problem = f"a Python function ({plain(error['input'].name)}), which icl-bench never calls; write a value"
    elif error["type"] == "missing":
        path, problem = _without_engine(error["loc"]), "is missing"
    elif error["type"] == "value_error":
        problem = error["msg"].removeprefix("Value error, ")
    names = (f"[{p}]" if isinstance(p, int) else f".{plain(p)}" for p in path)
    where = "".join(names).lstrip(".")
    return f"{where + ': ' if where else ''}{problem}"


def _without_engine(loc: Sequence[int | str]) -> list[int | str]:
    """A path without the kind of template, which pydantic adds and the file does not contain."""
    return [part for i, part in enumerate(loc) if not (i == 1 and loc[0] == "template" and part in ENGINES)]


def _siblings(path: Sequence[int | str]) -> Iterable[str]:
    """The known fields next to an unknown one."""
    if path[0] == "template" and path[1] in ENGINES:
        return ENGINES[str(path[1])].model_fields
    model: type[BaseModel] = TaskSpec
    for part in path[:-1]:
        annotation = model.model_fields[str(part)].annotation
        kinds = (annotation, *get_args(annotation))
        model = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return model.model_fields
