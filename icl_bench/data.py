"""From a task's name to its examples: task files, data files, the hub, the chosen test rows.

Nothing is repaired on the way. Text is taken as it stands in the source, white space and line
breaks included; a row that cannot be used is either an error that names its line or is left out,
counted and noted.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
import statistics
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml
from pydantic import BaseModel, ValidationError

from icl_bench.errors import UserError, nearest
from icl_bench.seeds import generator
from icl_bench.spec import HubSource, TaskSpec

DATA_DIR_VARIABLE = "ICL_BENCH_DATA"
PAPER_IDS = "paper_test_ids.json"


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data set, in the names that the task's template uses."""

    id: str
    fields: Mapping[str, str]
    """Values of the template's input fields, exactly as in the source."""
    answer: str
    """The label as the prompt shows it (``spec.labels.written``), or the free text."""


@dataclass(frozen=True)
class TaskData:
    """A task with its examples."""

    spec: TaskSpec
    train: tuple[Example, ...]
    """Every usable train row, in file order."""
    test: tuple[Example, ...]
    """The chosen test rows, in evaluation order."""
    test_pool: tuple[Example, ...]
    """Every usable test row, in file order."""
    labels: tuple[str, ...]
    """The labels of ``train``, sorted; empty for free text."""
    origin: str
    """Where the rows are from, in one line: ``folder ../data/banking77``."""
    files: Mapping[str, str]
    """Name of each file read -> SHA-256, in hex, of its bytes as stored (of the rows, where there
    is no file)."""
    left_out: Mapping[str, int]
    """``train`` and ``test`` -> rows of the file that lack an input field."""
    notes: tuple[str, ...]
    """What a user should know, one sentence each."""


@dataclass(frozen=True, slots=True)
class LabelCount:
    """How often one label stands in the usable rows of the train and of the whole test file."""

    label: str
    train: int
    test: int


@dataclass(frozen=True)
class DataReport:
    """What a look at a task's data tells, before any model is involved."""

    task: str
    origin: str
    train_rows: int
    """Usable rows."""
    test_rows: int
    """Usable rows of the whole test file."""
    chosen_rows: int
    """Test rows that are asked."""
    left_out: Mapping[str, int]
    """``train`` and ``test`` -> rows that lack an input field."""
    labels: tuple[LabelCount, ...]
    """Every label of either split, sorted; empty for free text."""
    fewest: int
    """Train rows of the rarest train label (0 for free text, like the next two)."""
    median: float
    most: int
    unseen_labels: Mapping[str, int]
    """Labels that only the test file has -> its rows with them."""
    duplicates: int
    """Train rows whose input stands in an earlier train row."""
    leaks: tuple[str, ...]
    """Ids of rows of the test file whose input also stands in train."""
    chosen_leaks: tuple[str, ...]
    """The same, of the chosen test rows."""
    notes: tuple[str, ...]


# -- task files ---------------------------------------------------------------------------------


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
    spec = _parse_task(_read(path), name)
    if spec.data.train is None or spec.data.test is None:
        return spec
    places = {"train": path.parent / spec.data.train, "test": path.parent / spec.data.test}
    return spec.model_copy(update={"data": spec.data.model_copy(update=places)})


def _shelf() -> dict[str, Traversable]:
    """The shipped task files: inside the installed package, or beside it in a source checkout."""
    package = package_files("icl_bench")
    folders: tuple[Traversable, ...] = (
        package / "tasks",
        Path(__file__).resolve().parent.parent / "tasks",
    )
    folder = next((f for f in folders if f.is_dir()), None)
    found = folder.iterdir() if folder else ()
    return {f.name.removesuffix(".yaml"): f for f in found if f.name.endswith(".yaml")}


def _parse_task(raw: bytes, shown: str) -> TaskSpec:
    text = _decode(raw, shown)
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_repeated_keys(tree, shown)
        values = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(_one_line(f"{shown}:{line}: not YAML: {error.problem}")) from None
    except RecursionError:
        raise UserError(f"{shown}: not a task file: nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # PyYAML lets through what Python's own conversions raise (an impossible date, `!!int x`).
        raise UserError(_one_line(f"{shown}: not YAML: {error}")) from None
    if not isinstance(values, dict) or tree is None:
        what = "empty" if values is None else _short(values)
        raise UserError(f"{shown}: a task file holds fields (name: …), and this one is {what}")
    try:
        return TaskSpec.model_validate(values)
    except ValidationError as error:
        raise UserError(_field_error(error, tree, shown)) from None


def _refuse_repeated_keys(tree: yaml.Node | None, shown: str) -> None:
    """YAML readers keep the last of two equal keys without a word; here they are an error."""
    waiting, seen = [tree], set()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            waiting.extend(value for _, value in node.value)
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        line = key.start_mark.line + 1
                        raise UserError(f"{shown}:{line}: {_plain(key.value)} stands here twice")
                    keys.add(key.value)


def _field_error(error: ValidationError, tree: yaml.Node, shown: str) -> str:
    """One line for the most telling of pydantic's errors: an unknown field, else the deepest."""
    found = [(e, *_locate(tree, e["loc"])) for e in error.errors(include_url=False)]
    worst, path, line = min(found, key=lambda f: (f[0]["type"] != "extra_forbidden", -len(f[1])))
    problem = f"{worst['msg']}, not {_short(worst['input'])}"
    if worst["type"] == "extra_forbidden":
        path = list(worst["loc"])
        problem = f"unknown field; {nearest(str(path[-1]), _siblings(path))}"
    elif worst["type"] == "missing":
        path, problem = list(worst["loc"]), "is missing"
    elif worst["type"] == "value_error":
        problem = worst["msg"].removeprefix("Value error, ")
    names = (f"[{p}]" if isinstance(p, int) else f".{_plain(p)}" for p in path)
    where = "".join(names).lstrip(".")
    return _one_line(f"{shown}:{line}: {where + ': ' if where else ''}{problem}")


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


def _plain(text: object) -> str:
    """A name as it is, or quoted where it would not show as one."""
    name = str(text)
    return name if name.isprintable() and name.strip() else repr(name)


def _short(value: object) -> str:
    """A value as an error message shows it: short, on one line."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge number"
    if isinstance(value, str | int | float | None):
        shown = repr(value)
        return shown if len(shown) <= 60 else f"{shown[:60]}…"
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"


def _one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 400 else f"{line[:400]}…"


# -- rows, as they are stored -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    """File and line, for messages: ``train.jsonl:12``."""
    cells: Mapping[str, Any]

    def cell(self, column: str) -> Any:
        if column not in self.cells:
            raise UserError(_no_column(self.where, column, self.cells))
        return self.cells[column]


@dataclass(frozen=True)
class _Split:
    name: str
    """``train`` or ``test``."""
    file: str
    sha256: str
    rows: Sequence[_Row]


@dataclass(frozen=True)
class _Source:
    origin: str
    train: _Split
    test: _Split
    columns: Mapping[str, str]
    """Template field -> column."""
    notes: tuple[str, ...] = ()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{_plain(path)}: cannot be read: {reason}") from None


def _decode(raw: bytes, shown: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{shown}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x})") from None


def _no_column(where: str, column: str, columns: Iterable[str]) -> str:
    there = ", ".join(_plain(c) for c in columns) or "none"
    return _one_line(f"{where}: no column {column!r}; columns: {there}")


def _read_split(path: Path, split: str, columns: Mapping[str, str]) -> _Split:
    """Read a JSONL, CSV or Parquet file, by its extension; the first two also as ``.gz``."""
    raw = content = _read(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"] and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
        try:
            content = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(_one_line(f"{path}: not a whole gzip file: {error}")) from None
    match suffixes[-1:]:
        case [".jsonl"]:
            rows = list(_jsonl_rows(content, str(path)))
        case [".csv"]:
            rows = list(_csv_rows(content, str(path)))
        case [".parquet"]:
            rows = list(_parquet_rows(content, str(path), columns))
        case _:
            raise UserError(f"{path}: expected .jsonl[.gz], .csv[.gz] or .parquet")
    if not rows:
        raise UserError(f"{path}: has no rows")
    return _Split(split, path.name, hashlib.sha256(raw).hexdigest(), rows)


def _jsonl_rows(content: bytes, shown: str) -> Iterator[_Row]:
    for number, line in enumerate(_decode(content, shown).split("\n"), 1):
        if not line or line.isspace():
            continue
        where = f"{shown}:{number}"
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(_one_line(f"{where}: not JSON: {error}")) from None
        if not isinstance(cells, dict):
            raise UserError(f"{where}: expected a JSON object, not {_short(cells)}")
        yield _Row(where, cells)


def _csv_rows(content: bytes, shown: str) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(_decode(content, shown), newline=""), strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            where = f"{shown}:{reader.line_num}"
            if not cells:
                continue
            if header is None:
                header = cells
                if twice := [name for name, count in Counter(header).items() if count > 1]:
                    raise UserError(_one_line(f"{where}: column {twice[0]!r} stands here twice"))
            elif len(cells) != len(header):
                raise UserError(f"{where}: {len(cells)} cells, but the header has {len(header)}")
            else:
                yield _Row(where, dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise UserError(_one_line(f"{shown}:{reader.line_num}: not CSV: {error}")) from None


def _parquet_rows(content: bytes, shown: str, columns: Mapping[str, str]) -> Iterator[_Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
        wanted = _wanted(columns, table.column_names, shown)
        records = table.select(wanted).to_pylist()
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise UserError(_one_line(f"{shown}: not a whole Parquet file: {error}")) from None
    for number, record in enumerate(records, 1):
        yield _Row(f"{shown} row {number}", record)


def _wanted(columns: Mapping[str, str], there: Sequence[str], shown: str) -> list[str]:
    """The columns to read of a table: those of the template's fields, and ``id`` if it has one."""
    for column in columns.values():
        if column not in there:
            raise UserError(_no_column(shown, column, there))
    return sorted({*columns.values(), "id"} & set(there))


# -- where the rows come from -------------------------------------------------------------------


def _find_source(spec: TaskSpec, data_dir: Path | None) -> _Source:
    """The task's rows: its own files, the embedded task, the data folder, or the hub."""
    data = spec.data
    if data.embedded:
        return _embedded(spec)
    if data.train is not None and data.test is not None:
        train = _read_split(data.train, "train", data.fields)
        test = _read_split(data.test, "test", data.fields)
        return _Source(f"files {data.train} and {data.test}", train, test, data.fields)
    tried = "no data folder is given"
    if data_dir is not None:
        folder = data_dir / (data.folder or spec.name)
        train_path, test_path = _stored(folder, "train"), _stored(folder, "test")
        if train_path and test_path:
            train = _read_split(train_path, "train", data.fields)
            test = _read_split(test_path, "test", data.fields)
            return _Source(f"folder {folder}", train, test, data.fields)
        if train_path or test_path:
            lacking = "test" if train_path else "train"
            raise UserError(f"{folder}: {lacking}.jsonl (or .jsonl.gz) is missing")
        tried = f"{folder} has no train.jsonl" if folder.is_dir() else f"there is no {folder}"
    advice = f"Give the data folder (--data-dir, or {DATA_DIR_VARIABLE})"
    if data.hub is None:
        raise UserError(f"{spec.name}: no data: {tried}. {advice}")
    try:
        source = _from_hub(spec.name, data.hub, data.hub.fields or data.fields)
    except _HubError as error:
        raise UserError(
            f"{spec.name}: no data: {tried}, and {_hub_name(data.hub)} on the hub gave {error}.\n"
            f"{advice} or a network connection to huggingface.co"
        ) from None
    if data_dir is None:
        return source
    return replace(source, notes=(f"{tried}: the hub's copy is used",))


def _stored(folder: Path, split: str) -> Path | None:
    found = [p for p in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz") if p.is_file()]
    if len(found) > 1:
        raise UserError(f"{folder} has both {found[0].name} and {found[1].name}: keep one of them")
    return found[0] if found else None


def _embedded(spec: TaskSpec) -> _Source:
    from icl_bench import stdlib_task

    built = stdlib_task.build()
    splits = {}
    for split, rows in {"train": built.train, "test": built.test}.items():
        cells = [{"id": row.id, "text": row.text, "label": row.label} for row in rows]
        stored = [_Row(row["id"], row) for row in cells]
        splits[split] = _Split(split, f"stdlib-{split}", _digest(cells), stored)
    origin = f"standard library of Python {built.python}"
    return _Source(origin, splits["train"], splits["test"], spec.data.fields)


class _HubError(Exception):
    """The hub did not give a data set; the message says why, in one line."""


def _hub_name(hub: HubSource) -> str:
    return f"{hub.path}@{hub.revision}"


def _from_hub(task: str, hub: HubSource, columns: Mapping[str, str]) -> _Source:
    """Read a set of the Hugging Face hub; where it has no test split, cut one from train."""
    cells = {"train": _hub_rows(hub, hub.train, columns)}
    if hub.holdout is None:
        cells["test"] = _hub_rows(hub, hub.test, columns)
    else:
        rows, share = cells["train"], hub.holdout.share
        order = np.random.default_rng(hub.holdout.seed).permutation(len(rows))
        cut = math.ceil(share * len(rows))
        cells = {"train": [rows[i] for i in order[cut:]], "test": [rows[i] for i in order[:cut]]}
    splits = {}
    for split, rows in cells.items():
        if not rows:
            raise UserError(f"{task}: {_hub_name(hub)} has no {split} rows")
        named = [_Row(f"{_hub_name(hub)} {split} row {n}", row) for n, row in enumerate(rows)]
        splits[split] = _Split(split, f"{_hub_name(hub)}:{split}", _digest(rows), named)
    return _Source(f"hub {_hub_name(hub)}", splits["train"], splits["test"], columns)


def _hub_rows(hub: HubSource, split: str, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """The needed columns of one split, class numbers replaced by the classes' names."""
    try:
        import datasets

        table = datasets.load_dataset(hub.path, hub.name, revision=hub.revision, split=split)
    except Exception as error:  # whatever the library, its transports and its parsers raise
        lines = str(error).strip().splitlines() or [""]
        raise _HubError(_one_line(f"{type(error).__name__}: {lines[0]}"[:200])) from error
    wanted = _wanted(columns, table.column_names, _hub_name(hub))
    table = table.select_columns(wanted)
    rows: list[dict[str, Any]] = table.to_list()
    for column in wanted:
        if names := getattr(table.features[column], "names", None):
            for row in rows:
                number = row[column]
                row[column] = None if number is None or number < 0 else names[number]
    return rows


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256, in hex, of rows as canonical JSON lines."""
    lines = (json.dumps(row, sort_keys=True, default=str) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# -- rows to examples ---------------------------------------------------------------------------


@dataclass
class _ExampleReader:
    """Turns stored rows into examples; remembers how labels are written, across both splits."""

    spec: TaskSpec
    columns: Mapping[str, str]
    sources: dict[str, str] = field(default_factory=dict)
    """Written label -> label of the source."""

    def read(self, split: _Split) -> tuple[tuple[Example, ...], dict[str, str]]:
        """The usable rows, and the ids of the others with the field that they lack."""
        examples, lacking = [], {}
        places: dict[str, str] = {}
        for number, row in enumerate(split.rows):
            name = self._id(row, split.name, number)
            if name in places:
                raise UserError(f"{row.where}: id {name!r} stands already at {places[name]}")
            places[name] = row.where
            inputs = {f: _text(row, self.columns[f]) for f in self.spec.template.input_fields}
            filled = {f: text for f, text in inputs.items() if text and not text.isspace()}
            if len(filled) < len(inputs):
                lacking[name] = next(f for f in inputs if f not in filled)
            else:
                examples.append(Example(name, filled, self._answer(row)))
        if not examples:
            raise UserError(f"{split.file}: no row has {{{next(iter(lacking.values()))}}}")
        return tuple(examples), lacking

    def _id(self, row: _Row, split: str, number: int) -> str:
        if "id" not in row.cells:
            return f"{self.spec.data.folder or self.spec.name}-{split}-{number}"
        value = row.cells["id"]
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise UserError(f"{row.where}: id must be text or a whole number, not {_short(value)}")
        return _encodable(str(value), row, "id")

    def _answer(self, row: _Row) -> str:
        column = self.columns[self.spec.template.answer_field]
        value = row.cell(column)
        if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            value = json.dumps(value)
        answer = _text(_Row(row.where, {column: value}), column)
        if not answer or answer.isspace():
            raise UserError(f"{row.where}: {_plain(column)} is empty")
        return answer if self.spec.labels is None else self._label(answer, row)

    def _label(self, source: str, row: _Row) -> str:
        assert self.spec.labels is not None
        label = self.spec.labels.written(source)
        if not label or label.isspace():
            raise UserError(f"{row.where}: the label {_short(source)} is written as nothing")
        if label.splitlines() != [label]:
            raise UserError(f"{row.where}: the label {_short(label)} holds a line break")
        if label != label.strip():
            raise UserError(f"{row.where}: the label {_short(label)} begins or ends with a space")
        other = self.sources.setdefault(label, source)
        if other != source:
            raise UserError(
                f"{row.where}: labels {_short(other)} and {_short(source)} are duplicated after "
                f"formatting: both are written {_short(label)}. Tell them apart in labels.names"
            )
        return label


def _text(row: _Row, column: str) -> str | None:
    value = row.cell(column)
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(f"{row.where}: {_plain(column)} must be text, not {_short(value)}")
    return _encodable(value, row, column)


def _encodable(text: str, row: _Row, column: str) -> str:
    """JSON can escape half of a surrogate pair, which no file or tokenizer can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise UserError(f"{row.where}: {_plain(column)} holds {half}, half a character") from None
    return text


# -- the data of a task -------------------------------------------------------------------------


def load_data(
    spec: TaskSpec, *, data_dir: Path | None = None, test_size: int | None = None
) -> TaskData:
    """Read a task's rows and choose its test rows.

    ``data_dir`` is the data folder (else the environment variable ``ICL_BENCH_DATA``); what it does
    not have comes from the hub. ``test_size`` overrides the number of test rows: the first so many
    in evaluation order.

    Raises UserError with file and line for rows that cannot be used, and where there is no data.
    """
    data_dir = _data_folder(spec, data_dir)
    source = _find_source(spec, data_dir)
    reader = _ExampleReader(spec, source.columns)
    train, train_lacking = reader.read(source.train)
    pool, test_lacking = reader.read(source.test)
    labels = tuple(sorted({e.answer for e in train})) if spec.is_classification else ()
    if spec.is_classification and len(labels) < 2:
        raise UserError(f"{spec.name}: train has one label, {_short(labels[0])}; expected several")
    chosen = _choose(spec, data_dir, pool, test_lacking, test_size)
    splits = (source.train, source.test)
    same_name = source.train.file == source.test.file
    files = {f"{s.name}/{s.file}" if same_name else s.file: s.sha256 for s in splits}
    notes = [
        *source.notes,
        *_lacking_notes("train", train_lacking),
        *_lacking_notes("test", test_lacking),
        *chosen.notes,
        *(["train and test are the same rows"] if len({s.sha256 for s in splits}) == 1 else []),
        *_unseen_notes(chosen.rows, labels),
    ]
    return TaskData(
        spec=spec,
        train=train,
        test=chosen.rows,
        test_pool=pool,
        labels=labels,
        origin=source.origin,
        files={**files, **chosen.files},
        left_out={"train": len(train_lacking), "test": len(test_lacking)},
        notes=tuple(notes),
    )


def _data_folder(spec: TaskSpec, given: Path | None) -> Path | None:
    """The given data folder, else the environment's; one that is needed must be there."""
    if given is not None:
        if not given.is_dir():
            raise UserError(f"the data folder {given} is not there")
        return given
    named = os.environ.get(DATA_DIR_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    if folder.is_dir():
        return folder
    if spec.data.embedded or spec.data.train:
        return None
    raise UserError(f"the data folder {folder}, which {DATA_DIR_VARIABLE} names, is not there")


def _lacking_notes(split: str, lacking: Mapping[str, str]) -> list[str]:
    return [
        f"{_rows(count, split)} {'has' if count == 1 else 'have'} no {name} and "
        f"{'was' if count == 1 else 'were'} left out"
        for name, count in Counter(lacking.values()).items()
    ]


def _unseen_notes(test: Sequence[Example], labels: Sequence[str]) -> list[str]:
    unseen = Counter(e.answer for e in test if e.answer not in set(labels)) if labels else Counter()
    if not unseen:
        return []
    shown = ", ".join(f"{label!r}: {count}" for label, count in unseen.most_common(5))
    more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
    total = unseen.total()
    verb = "has" if total == 1 else "have"
    return [f"{_rows(total, 'test')} {verb} a label that no train row has ({shown}{more})"]


def _rows(count: int, split: str) -> str:
    return f"{count:,} {split} row{'' if count == 1 else 's'}"


# -- the chosen test rows -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Chosen:
    rows: tuple[Example, ...]
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def _choose(
    spec: TaskSpec,
    data_dir: Path | None,
    pool: tuple[Example, ...],
    lacking: Mapping[str, str],
    test_size: int | None,
) -> _Chosen:
    """The test rows that are asked, in evaluation order."""
    if test_size is not None and test_size < 1:
        raise UserError(f"a test size of {test_size}: expected 1 or more")
    rows = spec.test
    if isinstance(rows.ids, tuple):
        return _by_ids(rows.ids, f"{spec.name}: test.ids", pool, lacking, test_size)
    path = _paper_ids_file(spec, data_dir) if rows.ids == "paper" else None
    if path is not None:
        raw = _read(path)
        chosen = _by_ids(_paper_ids(raw, str(path)), str(path), pool, lacking, test_size)
        return _Chosen(chosen.rows, chosen.notes, {path.name: hashlib.sha256(raw).hexdigest()})
    size = rows.size if test_size is None else test_size
    notes = []
    if size > len(pool):
        if test_size is not None:
            _refuse_size(size, len(pool), "the test file has")
        fewer = f"fewer than the {size:,} of the task file: all are used"
        notes.append(f"the test file has {_rows(len(pool), 'usable')}, {fewer}")
    if rows.ids == "paper":
        count = min(size, len(pool))
        notes.append(f"the paper's test rows were not found; {count:,} rows by seed {rows.seed}")
    order = generator(rows.seed, "test").permutation(len(pool))[:size]
    return _Chosen(tuple(pool[i] for i in order), tuple(notes))


def _by_ids(
    ids: Sequence[str],
    shown: str,
    pool: Sequence[Example],
    lacking: Mapping[str, str],
    test_size: int | None,
) -> _Chosen:
    known = {example.id: example for example in pool}
    unknown = [name for name in ids if name not in known and name not in lacking]
    if unknown:
        first = ", ".join(_short(name) for name in unknown[:3])
        raise UserError(f"{shown}: {_rows(len(unknown), 'chosen')} not in the test file: {first}")
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise UserError(f"{shown}: {_short(twice)} is chosen twice")
    rows = tuple(known[name] for name in ids if name in known)
    out = [name for name in ids if name in lacking]
    notes = tuple(f"chosen test row {n} has no {lacking[n]} and was left out" for n in out)
    if not rows:
        raise UserError(f"{shown}: none of the chosen rows can be used")
    if test_size is not None and test_size > len(rows):
        _refuse_size(test_size, len(rows), f"{shown} lists")
    return _Chosen(rows[:test_size], notes)


def _refuse_size(asked: int, there: int, whose: str) -> None:
    raise UserError(f"{asked:,} test rows are asked for; {whose} {there:,}: ask for at most those")


def _paper_ids_file(spec: TaskSpec, data_dir: Path | None) -> Path | None:
    if data_dir is None:
        return None
    folders = dict.fromkeys((spec.name, spec.data.folder or spec.name))
    return next((p for f in folders if (p := data_dir / f / PAPER_IDS).is_file()), None)


def _paper_ids(raw: bytes, shown: str) -> list[str]:
    try:
        content = json.loads(_decode(raw, shown))
    except (ValueError, RecursionError) as error:
        raise UserError(_one_line(f"{shown}: not JSON: {error}")) from None
    ids = content.get("row_ids") if isinstance(content, dict) else None
    if not isinstance(ids, list) or not ids or not all(isinstance(name, str) for name in ids):
        raise UserError(f"{shown}: expected an object with row_ids, a list of row ids")
    return ids


# -- a look at the data -------------------------------------------------------------------------


def check(data: TaskData) -> DataReport:
    """Count labels, duplicates and test rows that leak into train; texts are compared exactly."""
    seen: set[tuple[str, ...]] = set()
    duplicates = 0
    for example in data.train:
        key = tuple(example.fields.values())
        duplicates += key in seen
        seen.add(key)
    leaks = tuple(e.id for e in data.test_pool if tuple(e.fields.values()) in seen)
    chosen = {e.id for e in data.test}
    classes = data.spec.is_classification
    train = Counter(e.answer for e in data.train) if classes else Counter[str]()
    test = Counter(e.answer for e in data.test_pool) if classes else Counter[str]()
    sizes = list(train.values()) or [0]
    return DataReport(
        task=data.spec.name,
        origin=data.origin,
        train_rows=len(data.train),
        test_rows=len(data.test_pool),
        chosen_rows=len(data.test),
        left_out=data.left_out,
        labels=tuple(LabelCount(name, train[name], test[name]) for name in sorted(train | test)),
        fewest=min(sizes),
        median=statistics.median(sizes),
        most=max(sizes),
        unseen_labels={label: n for label, n in sorted(test.items()) if label not in train},
        duplicates=duplicates,
        leaks=leaks,
        chosen_leaks=tuple(name for name in leaks if name in chosen),
        notes=data.notes,
    )
