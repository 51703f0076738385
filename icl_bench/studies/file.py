"""A study's file: its fields, and all its problems with their lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import Field, ValidationError

from icl_bench.errors import UserError
from icl_bench.frozen import Frozen
from icl_bench.studies.rules import Rule
from icl_bench.sweep.options import OF_MONEY, OF_THE_MODEL
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.tasks.task_files import tasks_of
from icl_bench.tasks.yaml_files import locate, read_yaml
from icl_bench.text_files import read_file
from icl_bench.training.spec import FinetuneSpec
from icl_bench.wording import nearest, one_line, plain, short

T = TypeVar("T")

RUN = frozenset(RunSpec.declared()) - {"task", "model"} - OF_MONEY
"""Options of a block of prompts: those of ``icl-bench run``."""

FINETUNE = frozenset(FinetuneSpec.declared()) - {"task", "model", "method", "keep_checkpoints"}
"""Options of a block with ``finetune``: those of ``icl-bench finetune``."""

BLOCK = ("name", "tasks", "models", "finetune")
"""Fields of a block other than options."""

EVERY = "*"
"""All models, in ``engines``."""

OPTION = re.compile(r"^--([a-z-]+)")


class StudyFields(Frozen):
    """The fields of a file."""

    description: str = ""
    tasks: tuple[str, ...] = Field(min_length=1)
    models: tuple[str, ...] = Field(min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of all blocks; a block may override them."""
    engines: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options by model; ``*`` for all models."""
    settings: tuple[dict[str, Any], ...] = Field(min_length=1)
    exclude: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Job:
    """One block of settings with one task and one model."""

    setting: str
    task: str
    model: str
    options: Mapping[str, Any]
    finetune: str | None = None
    """Training methods; None for prompts."""
    place: tuple[int | str, ...] = field(default=(), compare=False)
    """The place of its block in the file."""

    def spec(self) -> RunSpec | FinetuneSpec:
        """Read its options. Raises ``UserError``."""
        if self.finetune is None:
            return RunSpec(task=self.task, model=self.model, **self.options)
        return FinetuneSpec(task=self.task, model=self.model, method=self.finetune, **self.options)

    def __str__(self) -> str:
        return f"{self.setting}: {self.task} with {self.model}"


@dataclass
class Problems:
    """The problems of a file, each once, with its line."""

    shown: str
    tree: yaml.Node
    messages: dict[tuple[int, str], None] = field(default_factory=dict)

    def add(self, place: Sequence[int | str], message: str) -> None:
        """Add a problem at a place."""
        self.messages[self.line(place), one_line(message)] = None

    def line(self, place: Sequence[int | str]) -> int:
        """The line of a place."""
        return locate(self.tree, place)[1]

    def attempt(self, place: Sequence[int | str], do: Callable[[], T]) -> T | None:
        """Return the result of ``do``; None if it raises ``UserError``, which is added as a problem.

        A problem of an option gets the option's line, if the block at the place has it.
        """
        try:
            return do()
        except UserError as error:
            at = list(place)
            if option := OPTION.match(str(error)):
                at.append(option[1].replace("-", "_"))
            self.add(at, str(error))
            return None

    def refuse(self) -> None:
        """Raise ``UserError`` with all problems, sorted by line, if there are any."""
        if self.messages:
            lines = [f"{self.shown}:{line}: {message}" for line, message in sorted(self.messages)]
            raise UserError("\n".join(lines))


@dataclass(frozen=True)
class StudyFile:
    """A parsed study file."""

    name: str
    shown: str
    fields: StudyFields
    tree: yaml.Node
    folder: Path | None
    """Base of names that begin with a dot; None for a shipped study."""
    data_dir: Path | None = None
    """The folder of data sets, for blocks without ``data_dir``."""

    @cached_property
    def jobs(self) -> list[Job]:
        """Every block with each of its tasks and models, sorted by model."""
        jobs = [job for i in range(len(self.fields.settings)) for job in self._of_block(i)]
        models = list(dict.fromkeys(job.model for job in jobs))
        return sorted(jobs, key=lambda job: models.index(job.model))

    @cached_property
    def exclude(self) -> tuple[Rule, ...]:
        """Rules of the excluded points."""
        return tuple(Rule.read(rule) for rule in self.fields.exclude)

    def place_of(self, kind: str, name: str) -> tuple[int | str, ...]:
        """The place of the first mention of a task (``tasks``) or model (``models``)."""
        lists: list[tuple[tuple[int | str, ...], Sequence[Any]]] = [((kind,), getattr(self.fields, kind))]
        for i, block in enumerate(self.fields.settings):
            lists.append((("settings", i, kind), _listed(_value_or(block, kind, ()))))
        for place, named in lists:
            for i, listed in enumerate(named):
                if name in tasks_of(self.path(str(listed))):
                    return *place, i
        return ()

    def path(self, name: str) -> str:
        """A task's or model's name; one that begins with a dot is a path from the file's folder."""
        if self.folder is None or not name.startswith("."):
            return name
        return os.path.normpath(self.folder / name) if self.folder.parts else name

    def _of_block(self, number: int) -> Iterator[Job]:
        block = self.fields.settings[number]
        methods = block.get("finetune")
        allowed = RUN if methods is None else FINETUNE
        # null resets an option of all blocks, so it is dropped only after merging
        own = {name: value for name, value in block.items() if name not in BLOCK}
        for model in _listed(_value_or(block, "models", self.fields.models)):
            general = {
                **self.fields.options,
                **self.fields.engines.get(EVERY, {}),
                **self.fields.engines.get(str(model), {}),
            }
            shared = {name: value for name, value in general.items() if name in allowed}
            options = {name: value for name, value in {**shared, **own}.items() if value is not None}
            for task in _listed(_value_or(block, "tasks", self.fields.tasks)):
                for name in tasks_of(self.path(str(task))):
                    yield Job(
                        str(_value_or(block, "name", _named(block))),
                        name,
                        self.path(str(model)),
                        self._with_paths(options),
                        None if methods is None else ",".join(map(str, _listed(methods))),
                        ("settings", number),
                    )

    def _with_paths(self, options: Mapping[str, Any]) -> dict[str, Any]:
        resolved = dict(options)
        if resolved.get("data_dir") is not None:
            resolved["data_dir"] = Path(self.path(str(resolved["data_dir"])))
        elif self.data_dir is not None:
            resolved["data_dir"] = self.data_dir
        return resolved


def load_study(name_or_path: str | Path, data_dir: Path | None = None) -> StudyFile:
    """Read a shipped study by its name, or a file by its path (ending in ``.yaml`` or ``.yml``).

    ``data_dir`` is the folder of data sets, for blocks without one. Raises ``UserError`` with all
    problems of the file's form, one a line. :class:`icl_bench.studies.study.Study` checks the values
    of tasks, models and options.
    """
    name = os.fspath(name_or_path)
    if name.lower().endswith((".yaml", ".yml")) or os.sep in name:
        path = Path(name)
        return _parse(read_file(path), name, path.stem, path.parent, data_dir)
    shelf = _shelf()
    if name not in shelf:
        own = "for a file of your own give its path, like ./mine.yaml"
        raise UserError(f"no study {plain(name)}; {nearest(name, shelf)} ({own})")
    return _parse(shelf[name].read_bytes(), f"studies/{name}.yaml", name, None, data_dir)


def known_studies() -> tuple[str, ...]:
    """Names of the studies that come with the program, sorted."""
    return tuple(sorted(_shelf()))


def _shelf() -> dict[str, Traversable]:
    package = package_files("icl_bench")
    folders: tuple[Traversable, ...] = (package / "study_files", Path(__file__).resolve().parents[2] / "studies")
    folder = next((f for f in folders if f.is_dir()), None)
    files = folder.iterdir() if folder else ()
    return {f.name.removesuffix(".yaml"): f for f in files if f.name.endswith(".yaml")}


def _parse(raw: bytes, shown: str, name: str, folder: Path | None, data_dir: Path | None) -> StudyFile:
    values, tree = read_yaml(raw, shown)
    if not isinstance(values, dict) or tree is None:
        what = "empty" if values is None else short(values)
        raise UserError(f"{shown}: expected a study's fields (tasks: …), not {what}")
    problems = Problems(shown, tree)
    try:
        fields = StudyFields.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            problems.add(detail["loc"], _message(detail))
        problems.refuse()
        raise  # not reached: each error is recorded as a problem
    _check_options(fields, problems)
    problems.refuse()
    return StudyFile(name, shown, fields, tree, folder, data_dir)


def _message(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown field; {nearest(where, StudyFields.model_fields)}"
    if error["type"] == "missing":
        return f"{where}: is missing"
    return f"{where}: {error['msg']}, not {short(error['input'])}"


def _check_options(fields: StudyFields, problems: Problems) -> None:
    """Add a problem for every unknown option or invalid block."""
    for name, value in fields.options.items():
        _check_name(("options", name), name, RUN | FINETUNE, problems)
        _check_value(("options", name), name, value, problems)
    for model, options in fields.engines.items():
        for name, value in options.items():
            _check_name(("engines", model, name), name, OF_THE_MODEL, problems)
            _check_value(("engines", model, name), name, value, problems)
        models = {str(m) for b in fields.settings for m in _listed(_value_or(b, "models", ()))}
        if model not in {EVERY, *fields.models, *models}:
            problems.add(("engines", model), f"engines: {plain(model)} is not one of the models")
    for i, block in enumerate(fields.settings):
        known = RUN if block.get("finetune") is None else FINETUNE
        for name, value in block.items():
            _check_name(("settings", i, name), name, known | set(BLOCK), problems)
            _check_value(("settings", i, name), name, value, problems)
        for kind in ("tasks", "models"):
            if kind in block and not _listed(block[kind]):
                problems.add(("settings", i, kind), f"{kind}: is empty")
        merged = {**fields.options, **block}
        if merged.get("k") is None and merged.get("per_label") is None:
            problems.add(("settings", i), "a block needs k: numbers of demonstrations")
    for i, rule in enumerate(fields.exclude):
        problems.attempt(("exclude", i), lambda rule=rule: Rule.read(rule))  # type: ignore[misc]


def _check_value(place: Sequence[int | str], name: str, value: Any, problems: Problems) -> None:
    """Add a problem for a value that is a mapping."""
    if isinstance(value, dict) and name != "chat_arg":
        problems.add(place, f"{name}: expected a value, not a mapping")


def _check_name(place: Sequence[int | str], name: str, known: set[str] | frozenset[str], problems: Problems) -> None:
    if name not in known:
        problems.add(place, f"{plain(name)}: unknown option; {nearest(str(name), known)}")


def _value_or(block: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """A block's value; ``otherwise`` if it is missing or null."""
    value = block.get(name)
    return otherwise if value is None else value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _named(block: Mapping[str, Any]) -> str:
    """Default name of a block: its selectors or training methods."""
    chosen = _value_or(block, "finetune", _value_or(block, "select", "random"))
    return ",".join(map(str, _listed(chosen)))
