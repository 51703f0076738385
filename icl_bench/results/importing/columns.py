"""The columns of imported predictions: typed, completed and checked."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from icl_bench.errors import UserError
from icl_bench.metrics.scores import LARGEST_SCORE, score_columns
from icl_bench.registry import METRICS
from icl_bench.results.cells import ALWAYS, further_fields, prediction_schema
from icl_bench.results.importing.answers import Answers, as_columns, compare
from icl_bench.results.importing.checks import cells, check, check_correct, check_golds, check_missing, refuse_type
from icl_bench.results.importing.coded import CODE, CODED, among, changed, coded, codes_of, filled, numbered, replaced
from icl_bench.results.importing.samples import short_names
from icl_bench.table_files import is_text, repeated
from icl_bench.text_files import parse_literal
from icl_bench.wording import counted, one_line, plain

NEEDED = ("task", "model", "select", "order", "k", "draw", "test_id", "gold", "prediction")
"""Columns with a value in every row."""

NOT_ASKED_FOR = {"select": "unknown", "order": "unknown", "draw": 0}
"""Values of columns that a file may lack."""

EMPTY_IS_VALUE = ("gold", "prediction")
"""Columns in which an empty text is a value; in other columns it is a missing value."""

DEFAULTS = {"perturbation": "none", "queries": "test", "label_space": "all"}
"""Default values of columns, which are stored as missing values."""

QUERY_KINDS = ("test", "copied")
"""Possible values of ``queries``."""

PROBABILITIES = ("probability", "margin", "label_mass")

LARGEST = 2**31 - 1

PART_ROWS = 2**16
"""Maximum rows that are converted together."""

NO_GOLDS = None, None
"""Marks a value that is not a list of correct answers."""

NO_IDS = [""]
"""Marks text that is not a list of ids. The empty list is valid: a prompt without demonstrations."""


@dataclass(frozen=True)
class Checked:
    """The columns of a results file, from a table that can be counted correctly."""

    known: dict[str, pa.ChunkedArray]
    further: dict[str, pa.ChunkedArray]
    """Columns unknown to this program, and scores."""
    notes: tuple[str, ...]
    """Warnings about the answers."""

    @property
    def schema(self) -> pa.Schema:
        """The stored types, known columns first; texts are coded in memory."""
        stored = {field.name: field.type for field in prediction_schema()}
        kinds = {name: values.type for name, values in self.further.items()}
        kinds = {name: kind.value_type if types.is_dictionary(kind) else kind for name, kind in kinds.items()}
        return pa.schema([*((name, stored[name]) for name in self.known), *kinds.items()])


def checked_columns(table: pa.Table, shown: str, variant: str, judge: str | None = None) -> Checked:
    """Type, complete and check the columns of a table.

    ``variant`` is the variant of rows without one. ``judge`` is the program whose verdicts ``correct`` has. Raises
    ``UserError``.
    """
    _check_needed(table.column_names, shown)
    if not len(table):
        raise UserError(f"{shown}: has no rows")
    columns = _typed_columns(table, shown, variant)
    further = {}
    kinds = {"own_choices": pa.bool_(), **{one.name: one.type for one in further_fields()}}
    for name in (name for name in table.column_names if name not in columns):
        column, where = table[name], f"{shown}: column {plain(name)}"
        if name == "text":
            values = _text(_written(column), where, empty=True)
        elif name == "golds":
            values = _gold_lists(column, where)
        elif name in score_columns():
            values = _fractions(column, where, name)
        elif name in kinds and types.is_integer(kinds[name]):
            values = _whole(column, where)
        else:
            values = _kept(column, where)
        further[name] = _retyped(values, kinds[name]) if name in kinds else values
        if name.startswith("sample") and name in kinds and not types.is_list(further[name].type):
            refuse_type(column, where, "a list in each row, as a run stores it, or another name for this column")
    notes = (*_of_cache(columns, further, shown, judge), *_compare(columns, further, shown, judge))
    columns["cell"] = cells(columns, shown)
    known = {name: columns[name] for name in prediction_schema().names}
    known = {name: values for name, values in known.items() if name in ALWAYS or values.null_count < len(table)}
    return Checked(known, further, notes)


def _check_needed(names: Sequence[str], shown: str) -> None:
    if lacking := [name for name in NEEDED if name not in names and name not in NOT_ASKED_FOR]:
        present = one_line(", ".join(map(plain, names))) or "none"
        columns = f"column{'' if len(lacking) == 1 else 's'} {', '.join(lacking)}"
        raise UserError(f"{shown}: lacks the {columns}; it has: {present}{_stated_by(lacking)}")


def _stated_by(lacking: Sequence[str]) -> str:
    """How to state a value that is equal in all rows."""
    options = [f"--{name}" for name in lacking if name in ("task", "model", "k")]
    return f"; if it is the same in all rows, set it with {', '.join(options)}" if options else ""


def _typed_columns(table: pa.Table, shown: str, variant: str) -> dict[str, pa.ChunkedArray]:
    columns = {
        field.name: _typed(table[field.name], field, f"{shown}: column {field.name}")
        if field.name in table.column_names
        else repeated(partial(pa.nulls, type=CODE if field.name in CODED else _plain_type(field)), len(table))
        for field in prediction_schema()
    }
    columns["gold"] = _with_empty_golds(columns["gold"], table)
    for name, value in NOT_ASKED_FOR.items():
        columns[name] = filled(columns[name], value) if isinstance(value, str) else columns[name].fill_null(value)
    for name in NEEDED:
        check_missing(columns[name], f"{shown}: column {name}")
    for name, default in DEFAULTS.items():
        columns[name] = changed(columns[name], partial(_without, default))
    columns["attention"] = filled(columns["attention"], "full")
    columns["backend"] = filled(columns["backend"], "imported")
    columns["variant"] = _with_kinds_apart(columns, filled(columns["variant"], variant))
    check_golds(columns, shown)
    return columns


def _with_kinds_apart(columns: dict[str, pa.ChunkedArray], variants: pa.ChunkedArray) -> pa.ChunkedArray:
    """The variants, of which each kind of rows (the columns of ``DEFAULTS``) has its own, because tables average over
    the draws of a variant.
    """
    if all(columns[name].null_count == len(variants) for name in DEFAULTS):
        return variants
    having = [variants, *(columns[name] for name in DEFAULTS)]
    number, first = numbered([codes_of(column) for column in having])
    groups = zip(*(column.take(first).to_pylist() for column in having), strict=True)
    kinds = [(variant, " ".join(filter(None, kind))) for variant, *kind in groups]
    several = [variant for variant, count in Counter(variant for variant, _ in set(kinds)).items() if count > 1]
    names = short_names(kind for variant, kind in kinds if variant in several and kind)
    apart = [f"{variant}-{names[kind]}" if kind and variant in several else None for variant, kind in kinds]
    return replaced(variants, number, apart)


def _of_cache(
    columns: dict[str, pa.ChunkedArray], further: dict[str, pa.ChunkedArray], shown: str, judge: str | None
) -> tuple[str, ...]:
    """Check that a prompt's tokens include those of the cache, because a cost below 0 would follow.

    Raises ``UserError``. The counts of a harness's log, which a user does not write, are left out; returns a note.
    """
    parts = [columns["cached_tokens"], *(further[name] for name in ("cache_write_tokens",) if name in further)]
    if all(part.null_count == len(part) for part in parts):
        return ()
    of_cache = sum(part.cast(pa.int64()).fill_null(0).to_numpy() for part in parts)
    prompts = columns["prompt_tokens"].cast(pa.int64()).fill_null(LARGEST).to_numpy()
    good = of_cache <= prompts
    if good.all():
        return ()
    if judge is None:
        expected = "all tokens of the prompt, also those read from a cache (cached_tokens) or written into one"
        check(good, columns["prompt_tokens"], f"{shown}: column prompt_tokens", expected)
    columns["cached_tokens"] = pa.chunked_array([pa.nulls(len(good), columns["cached_tokens"].type)])
    further.pop("cache_write_tokens", None)
    count = counted(int((~good).sum()), "prompt")
    return (f"tokens of the cache are left out: {count} had fewer tokens than the cache ({judge} counts others)",)


def _compare(
    columns: dict[str, pa.ChunkedArray], further: dict[str, pa.ChunkedArray], shown: str, judge: str | None
) -> tuple[str, ...]:
    """Complete ``correct``, and store labels in any spelling; returns warnings."""
    rows = len(columns["gold"])
    stated, task, golds = columns["correct"], codes_of(columns["task"]), further.get("golds")
    verdicts = np.concatenate([chunk.cast(pa.int8()).fill_null(2).to_numpy() for chunk in stated.chunks])
    scores = [values.is_valid().to_numpy() for name, values in further.items() if name in score_columns()]
    free = np.zeros(rows, dtype=bool)
    if scores:
        free = _free_text(task, np.any(scores, axis=0), verdicts < 2, judged=judge is not None)
    finished = columns["prompt_hash"].is_valid().to_numpy() if stated.null_count < rows else np.zeros(rows, dtype=bool)
    texts = [codes_of(columns["gold"]), codes_of(columns["prediction"])]
    texts += [] if golds is None or free.all() else [_codes_of_lists(golds)]
    texts = [np.where(free, 0, codes) for codes in texts] if free.any() else texts
    number, first = numbered([task, verdicts, free, finished, *texts])
    of_groups = {name: columns[name].take(first).to_pylist() for name in ("task", "gold", "prediction", "correct")}
    answers = Answers(
        number,
        task=of_groups["task"],
        gold=of_groups["gold"],
        prediction=of_groups["prediction"],
        stated=of_groups["correct"],
        free=free[first],
        finished=finished[first],
        golds=None if golds is None else golds.take(first).to_pylist(),
    )
    compared = compare(answers, judge)
    if judge is None:
        check_correct(columns, answers.stated, compared.right, first, shown)
    for name, values in as_columns(compared, number, columns["prediction"], further.get("text")).items():
        (columns if name in columns else further)[name] = values
    return compared.notes


def _free_text(task: np.ndarray, scored: np.ndarray, stated: np.ndarray, *, judged: bool) -> np.ndarray:
    """Which rows are free text, which has scores instead of labels: ``(rows,)``.

    A row without a score is free text, too, if its task has scores and no verdicts. A harness may give both.
    """
    tasks = int(task.max()) + 1
    in_scored, in_stated = (np.bincount(task[rows], minlength=tasks) > 0 for rows in (scored, stated))
    of_free_task = (in_scored & ~in_stated)[task]
    return np.asarray(of_free_task | (scored & ~stated if judged else scored))


def _with_empty_golds(gold: pa.ChunkedArray, table: pa.Table) -> pa.ChunkedArray:
    """Correct answers; a missing one becomes empty if a metric scored it.

    A CSV file does not distinguish empty from missing.
    """
    having = [
        m.column
        for metric in METRICS.values()
        if metric.compares_empty
        for m in metric.measures
        if m.column in table.column_names
    ]
    if not having or not gold.null_count:
        return gold
    scored, texts = np.any([table[name].is_valid() for name in having], axis=0), gold.cast(pa.string())
    return coded(pc.if_else(scored, texts.fill_null(""), texts))


def _plain_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if types.is_dictionary(field.type) else field.type


def _typed(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    """Convert a column to its stored type. Raises ``UserError``."""
    kind = _plain_type(field)
    if types.is_integer(kind):
        return _whole(column, where)
    if types.is_floating(kind):
        return _fractions(column, where, field.name)
    if types.is_boolean(kind):
        return _booleans(column, where)
    if types.is_list(kind):
        return _id_lists(column, where)
    answers = field.name in EMPTY_IS_VALUE
    text = _text(_written(column) if answers else column, where, empty=answers, code=field.name in CODED)
    if field.name == "queries":
        check(among(text, (*QUERY_KINDS, None)), column, where, " or ".join(QUERY_KINDS))
    return text


def _text(column: pa.ChunkedArray, where: str, *, empty: bool, code: bool = False) -> pa.ChunkedArray:
    """Convert to text, or with ``code`` to codes of texts; integers become their digits."""
    kind = column.type
    if not (is_text(kind) or types.is_integer(kind) or types.is_null(kind)):
        refuse_type(column, where, "text")
    if code:
        return coded(column) if empty else changed(coded(column), partial(_without, ""))
    text = column.cast(pa.string())
    return text if empty else _without("", text)


def _without(text: str, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column with missing values instead of this text."""
    return pc.if_else(pc.equal(column, text), None, column)


def _written(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert numbers and booleans in a column of answers to text: integers without a fraction.

    A table makes labels 0 and 1 floating-point numbers if a cell is empty.
    """
    if types.is_boolean(column.type):
        return column.cast(pa.string())
    if not types.is_floating(column.type):
        return column
    parts = []
    for part in _parts(column):
        values = (None if value is None or math.isnan(value) else value for value in part.to_pylist())
        parts.append(pa.array([value if value is None else _as_text(value) for value in values], pa.string()))
    return pa.chunked_array(parts, pa.string())


def _checked(
    column: pa.ChunkedArray,
    where: str,
    expected: str,
    kind: pa.DataType,
    values_in: Callable[[pa.Array], Any],
    is_good: Callable[[Any], np.ndarray],
) -> pa.ChunkedArray:
    """The values in a column, in this type. Raises ``UserError`` with the first value that is not good."""
    parts: list[pa.Array] = []
    for part in _parts(column):
        values = values_in(part)
        check(is_good(values), part, where, expected, before=sum(map(len, parts)))
        parts.append(pa.array(values, kind, from_pandas=True))
    return pa.chunked_array(parts, kind)


def _parts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Adjacent parts of a column, because Python's objects and temporary copies need several times its memory."""
    for chunk in column.chunks:
        yield from (chunk.slice(start, PART_ROWS) for start in range(0, len(chunk), PART_ROWS))


def _whole(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    expected = f"a whole number from 0 to {LARGEST:,}"
    if types.is_integer(column.type):
        ends = pc.min_max(column).as_py()
        if (ends["min"] or 0) >= 0 and (ends["max"] or 0) <= LARGEST:
            return column.cast(pa.int32())

    def is_good(values: np.ndarray) -> np.ndarray:
        good = (values >= 0) & (values <= LARGEST) & (values == np.floor(values))
        return np.asarray(good | np.isnan(values))

    return _checked(column, where, expected, pa.int32(), partial(_numbers, where=where, expected=expected), is_good)


def _fractions(column: pa.ChunkedArray, where: str, name: str) -> pa.ChunkedArray:
    probability = name in PROBABILITIES
    expected = "a probability from 0 to 1" if probability else "a share from 0 to 1, not a percentage"
    least = 0 if probability else -LARGEST_SCORE

    def is_good(values: np.ndarray) -> np.ndarray:
        return np.asarray(((values >= least) & (values <= LARGEST_SCORE)) | np.isnan(values))

    return _checked(column, where, expected, pa.float64(), partial(_numbers, where=where, expected=expected), is_good)


def _numbers(column: pa.Array, where: str, expected: str) -> np.ndarray:
    """Numbers ``(rows,)``: NaN for a missing value, infinity for anything else."""
    kind = column.type
    if is_text(kind):
        column = column.cast(pa.string())
        try:
            column = column.cast(pa.float64())
        except pa.ArrowInvalid:
            known = {text: _number(text) for text in column.unique().to_pylist()}
            return np.array([known[text] for text in column.to_pylist()])
    elif not any(is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
        refuse_type(column, where, expected)
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float)


def _number(text: str | None) -> float:
    if text is None:
        return math.nan
    try:
        return float(pa.scalar(text).cast(pa.float64()).as_py())
    except pa.ArrowInvalid:
        return math.inf


def _booleans(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Booleans, in any spelling: 1, 0, TRUE, False."""
    kind, expected = column.type, "true or false"
    if types.is_boolean(kind):
        return column
    if not any(is_kind(kind) for is_kind in (is_text, types.is_integer, types.is_floating, types.is_null)):
        refuse_type(column, where, expected)
    text = pc.utf8_lower(column.cast(pa.string()))
    yes, no, nothing = (
        _among(text, words) for words in (["true", "1", "1.0"], ["false", "0", "0.0"], ["", "nan", None])
    )
    check(np.any([yes, no, nothing], axis=0), column, where, expected)
    return pa.chunked_array([pc.if_else(pa.array(nothing), None, pa.array(yes))])


def _among(column: pa.ChunkedArray, values: Sequence[str | None]) -> np.ndarray:
    """Whether each value is one of ``values``, which may include None, ``(rows,)``."""
    return np.asarray(pc.is_in(column, value_set=pa.array(values, pa.string())))


def _id_lists(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Lists of ids; JSON in a text column."""
    kind = pa.list_(pa.string())
    if not is_text(column.type):
        try:
            return column.cast(kind)
        except pa.ArrowException:
            refuse_type(column, where, "lists of ids")
    return _checked(
        column,
        where,
        'a JSON list like ["12", "7"]',
        kind,
        lambda part: [_ids(text) for text in part.to_pylist()],
        lambda lists: np.array([ids != NO_IDS for ids in lists], dtype=bool),
    )


def _ids(text: str | None) -> list[str] | None:
    """The ids in one cell; ``NO_IDS`` if it is not a list of ids."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return NO_IDS
    return value if isinstance(value, list) and all(isinstance(i, str) for i in value) else NO_IDS


def _gold_lists(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Lists of correct answers, as text like ``gold``; in a text column JSON, or lists as Python writes them."""
    return _checked(
        column,
        where,
        'a JSON list of texts or numbers, like ["red", "crimson"]',
        pa.list_(pa.string()),
        lambda part: [_golds(value) for value in part.to_pylist()],
        lambda lists: np.array([golds is not NO_GOLDS for golds in lists], dtype=bool),
    )


def _codes_of_lists(column: pa.ChunkedArray) -> np.ndarray:
    """A number for each list of texts, ``(rows,)``: equal numbers for equal lists."""
    known: dict[tuple[str, ...] | None, int] = {}
    keys = (None if texts is None else tuple(texts) for part in _parts(column) for texts in part.to_pylist())
    return np.fromiter((known.setdefault(key, len(known)) for key in keys), dtype=np.int32, count=len(column))


def _golds(value: Any) -> Sequence[str | None] | None:
    """The correct answers in one cell; ``NO_GOLDS`` if it is not a list of texts or numbers."""
    if value is None or value == "" or value != value:  # NaN: a table without a value
        return None
    if isinstance(value, str):
        value = _list_in(value)
    if not isinstance(value, list) or not all(isinstance(gold, str | int | float) for gold in value):
        return NO_GOLDS
    return [gold if isinstance(gold, str) else _as_text(gold) for gold in value]


def _list_in(text: str) -> Any:
    """The value of JSON, or of a list as Python writes it, with numbers as written; None if the text is neither."""
    try:
        return json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        pass
    try:
        value = parse_literal(text)
    except ValueError:
        return None
    if not isinstance(value, list) or "".join(repr(value).split()) != "".join(text.split()):
        return None  # two texts without a comma between them are read as one
    return [str(gold) if isinstance(gold, int | float) else gold for gold in value]


def _as_text(value: float) -> str:
    """A number or truth value as the text of an answer."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value) if float(value).is_integer() else value)


def _kept(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """A column to keep unchanged. Raises ``UserError`` if it could not be read again."""
    try:
        for part in _parts(column):
            part.to_pandas(use_threads=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        refuse_type(column, where, "plainer values, or no such column")
    return column


def _retyped(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert a text column to the type that a run stores, if all its values are of that type; else unchanged."""
    if not is_text(column.type) or is_text(kind):
        return column
    try:
        as_json = str if types.is_list(kind) else str.lower  # a boolean is True, too
        values = [None if text is None else json.loads(as_json(text)) for text in column.to_pylist()]
        return pa.chunked_array([pa.array(values, kind)])
    except (ValueError, RecursionError, pa.ArrowException, TypeError, OverflowError):
        return column
