"""Turns a task's stored rows into its examples, and chooses the test rows.

Rows are never repaired. A row that cannot be used either raises an error that names its line, or is left out, counted
and noted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from icl_bench.errors import UserError
from icl_bench.seeds import generator
from icl_bench.tasks.answers import FreeAnswers, RightAnswer
from icl_bench.tasks.choices import AnswerChoices, read_list
from icl_bench.tasks.collector import collector_paused
from icl_bench.tasks.jinja import choices_of, input_of, output_of, rationale_of
from icl_bench.tasks.label_spellings import merge_notes, replacements, same_labels, spelling_notes
from icl_bench.tasks.passages import read_passages
from icl_bench.tasks.published_rows import FILE, PublishedIds, file_digest, find, published_rows
from icl_bench.tasks.sources import data_folder, find_source
from icl_bench.tasks.spec import TaskSpec
from icl_bench.tasks.splits import Source, Split, StoredRow, encodable, number_as_text
from icl_bench.tasks.templates import JinjaTemplate
from icl_bench.text_files import decode, parse_json, read_file
from icl_bench.wording import few, nearest, one_line, plain, short, whole

PAPER_IDS = "paper_test_ids.json"


@dataclass(frozen=True, slots=True)
class Example:
    """One row of a data set, with the field names of the task's template."""

    id: str
    fields: Mapping[str, str]
    """Values of the template's input fields, exactly as in the source."""
    answer: str
    """The label as written in the prompt (``spec.labels.written``), or the free text."""
    golds: tuple[str, ...] | None = None
    """The texts that answers are compared with, if that is not ``answer`` alone: several right answers, or extracted
    parts. An empty text means "there is no answer".
    """
    choices: tuple[str, ...] = ()
    """The possible answers of this row, if rows have their own choices: written texts, or letters.
    ``answer`` is one of them."""
    passages: tuple[str, ...] = ()
    """Texts that a model may read as vectors, the most relevant first."""
    worked: str = ""
    """The thought that demonstrations show before the answer, up to its end mark; empty without one."""


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
    """The labels of ``train``, sorted; empty for free text, and if rows have their own written
    choices."""
    origin: str
    """The source of the rows, in one line: ``folder ../data/banking77``."""
    files: Mapping[str, str]
    """Name of each file -> SHA-256, in hex, of its stored bytes (of the rows, if there is no
    file)."""
    left_out: Mapping[str, int]
    """``train`` and ``test`` -> number of rows without an input field or a label."""
    notes: tuple[str, ...]
    """Notes for the user, one sentence each."""
    not_asked: int = 0
    """Test rows that the task file leaves out: without a label, or too long."""


OTHER_IDS = "set data.id to another column, or to false to number the rows"
"""Advice for ids that match no row."""

RENDERED = {name: name for name in ("input", "output", "choices")}
"""The columns of a row rendered by a Jinja template."""


# -- rows to examples ---------------------------------------------------------------------------


@dataclass
class _ExampleReader:
    """Turns the stored rows of both splits into examples."""

    spec: TaskSpec
    columns: Mapping[str, str]
    sources: dict[str, str] = field(default_factory=dict)
    """Written label -> label of the source."""
    spellings: dict[str, str] = field(default_factory=dict)
    """With ``labels.merge``, each label as written in the rows -> with single blanks."""
    unlabelled: dict[str, int] = field(default_factory=dict)
    """Split -> number of rows without a label."""
    repeated_choices: list[str] = field(default_factory=list)
    """Rows that have choices with equal texts, which differ only in their letters."""
    shared: AnswerChoices | None = None
    """The choices that all rows share, once they are read."""
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Split -> id -> the input fields of every row, including unusable ones."""

    def read(self, split: Split) -> tuple[tuple[Example, ...], dict[str, str]]:
        """The usable rows, and the ids of the others -> the missing field."""
        examples, lacking = [], {}
        where_of_id: dict[str, str] = {}
        texts = self.texts[split.name] = {}
        unlabelled: dict[str, str] = {}
        input_fields = [f for f in self.spec.template.input_fields if f != self._own]
        for number, row in enumerate(split.rows):
            name = self._id(row, split.name, number)
            if name in where_of_id:
                raise UserError(f"{row.where}: id {name!r} is already used at {where_of_id[name]}; {OTHER_IDS}")
            where_of_id[name] = row.where
            spec = self.spec.data.passages
            passages = () if spec is None else read_passages(spec, row)
            stored = row
            if isinstance(self.spec.template, JinjaTemplate):
                row = self._rendered(self.spec.template, row)
            inputs = {f: _text(row, self.columns[f]) for f in input_fields}
            filled = {f: text for f, text in inputs.items() if text and not text.isspace()}
            texts[name] = " ".join(filled.values())
            if len(filled) < len(inputs):
                lacking[name] = next(f for f in inputs if f not in filled)
            elif self.spec.labels is not None and _is_empty(row.cell(self.columns[self.spec.template.answer_field])):
                unlabelled[name] = row.where
            elif self.spec.labels is not None and self.spec.labels.choices is not None:
                examples.append(self._of_choices(name, filled, row))
            else:
                examples.append(Example(name, filled, *self._answer(row)))
            if passages and name not in lacking and name not in unlabelled:
                examples[-1] = replace(examples[-1], passages=passages)
            if split.name == "train" and self._shows_thoughts and name not in lacking and name not in unlabelled:
                examples[-1] = replace(examples[-1], worked=self._worked(stored))
        if unlabelled:
            self._leave_out(unlabelled.values())
            lacking |= dict.fromkeys(unlabelled, self.spec.template.answer_field)
            self.unlabelled[split.name] = len(unlabelled)
        if not examples:
            raise UserError(f"{split.file}: no row has {{{next(iter(lacking.values()))}}}")
        return tuple(examples), lacking

    @property
    def _shows_thoughts(self) -> bool:
        """Whether demonstrations show the thoughts of the train rows."""
        thought = self.spec.thought
        return thought is not None and thought.rationale is not None

    def _worked(self, row: StoredRow) -> str:
        """A train row's thought in the form of demonstrations. Raises ``UserError`` if the row has none."""
        thought = self.spec.thought
        assert thought is not None, "asked before"
        assert thought.rationale is not None, "asked before"
        if isinstance(self.spec.template, JinjaTemplate):
            column, text = thought.rationale, rationale_of(thought.rationale, row)
        else:
            column = self.columns[thought.rationale]
            text = _text(row, column)
        if text is None or not text.strip():
            raise UserError(
                f"{row.where}: {plain(column)} is empty; answer.rationale is shown with each demonstration, so every "
                "train row needs one"
            )
        return thought.worked(text)

    def _leave_out(self, unlabelled: Iterable[str]) -> None:
        """Raise ``UserError`` that names the rows without a label, unless the task leaves them out."""
        assert self.spec.labels is not None, "only labels can be left out"
        if self.spec.labels.empty == "leave_out":
            return
        first, *others = unlabelled
        column = plain(self.columns[self.spec.template.answer_field])
        also = f", and in {_row_count(len(others), 'further')}" if others else ""
        named = few([PurePath(where).name for where in others])
        raise UserError(
            f"{first}: {column} is empty{also}{f' ({named})' if others else ''}; "
            "labels.empty: leave_out leaves such rows out"
        )

    def _id(self, row: StoredRow, split: str, number: int) -> str:
        column = self.spec.data.id
        if column is None and "id" in row.cells:
            column = "id"
        if not column:
            return f"{self.spec.data.folder or self.spec.name}-{split}-{number}"
        value = row.cell(column)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            wanted = f"{plain(column)} must be text or a whole number, not {short(value)}"
            raise UserError(f"{row.where}: {wanted}, to identify the row; {OTHER_IDS}")
        return encodable(str(value), row, column)

    def _rendered(self, template: JinjaTemplate, row: StoredRow) -> StoredRow:
        """The row that a Jinja template renders from a stored row."""
        labels = self.spec.labels
        has_choices = labels is not None and labels.choices is not None
        cells = {
            "input": input_of(template.input, row, has_choices=has_choices),
            "output": output_of(template.output, row, has_choices=has_choices),
        }
        if labels is not None and labels.own is not None:
            cells["choices"] = choices_of(labels.own, row)
        if "id" in row.cells:
            cells["id"] = row.cells["id"]
        return StoredRow(row.where, cells)

    def _of_choices(self, name: str, filled: dict[str, str], row: StoredRow) -> Example:
        labels, choices_field = self.spec.labels, self._own
        assert labels is not None, "only labels have choices"
        answer = self.columns[self.spec.template.answer_field]
        if choices_field is None:
            if self.shared is None:  # equal for all rows, so checked once
                self.shared = read_list(labels, row, list(labels.choices or ()), "labels.choices")
            return Example(name, filled, self.shared.written[self.shared.right(labels, row, answer)])
        column = self.columns[choices_field]
        choices = read_list(labels, row, row.cell(column), plain(column))
        right = choices.right(labels, row, answer)
        if choices.has_repeats:
            self.repeated_choices.append(row.where)
        if choices_field in self.spec.template.input_fields:
            filled[choices_field] = choices.listing
        return Example(name, filled, choices.written[right], choices=choices.written)

    @cached_property
    def _own(self) -> str | None:
        """The field of each row's own choices, or None. For a Jinja template, its name is fixed."""
        labels = self.spec.labels
        if labels is None or labels.own is None:
            return None
        return "choices" if isinstance(self.spec.template, JinjaTemplate) else labels.own

    def _answer(self, row: StoredRow) -> tuple[str] | RightAnswer:
        column = self.columns[self.spec.template.answer_field]
        if self.spec.labels is None:
            return self._free.of(row, column)
        value = number_as_text(row.cell(column))
        answer = _text(StoredRow(row.where, {column: value}), column)
        assert answer is not None, "rows without a label are left out before"
        return (self._label(answer, row),)

    @cached_property
    def _free(self) -> FreeAnswers:
        return FreeAnswers(self.spec)

    def _label(self, source: str, row: StoredRow) -> str:
        assert self.spec.labels is not None
        label = self.spec.labels.written(source)
        if self.spec.labels.merge:
            spelling, label = label, " ".join(label.split())
            self.spellings[spelling] = label
            if self.spec.labels.named(source) != source:
                self.spellings[source] = label
        if not label or label.isspace():
            raise UserError(f"{row.where}: the label {short(source)} is written as an empty text")
        if label.splitlines() != [label]:
            raise UserError(f"{row.where}: the label {short(label)} holds a line break")
        if label != label.strip():
            raise UserError(f"{row.where}: the label {short(label)} begins or ends with a space")
        if self.spec.labels.merge:
            self.sources[source] = source  # equal spellings are meant to be one
            return label
        other_source = self.sources.setdefault(label, source)
        if other_source != source:
            raise UserError(
                f"{row.where}: labels {short(other_source)} and {short(source)} are duplicated after "
                f"formatting: both are written {short(label)}. Tell them apart in labels.names, or merge them with "
                "labels.merge: true"
            )
        return label


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _text(row: StoredRow, column: str) -> str | None:
    value = row.cell(column)
    if value is None:
        return None
    if not isinstance(value, str):
        raise UserError(f"{row.where}: {plain(column)} must be text, not {short(value)}")
    return encodable(value, row, column)


# -- the data of a task -------------------------------------------------------------------------


@collector_paused()
def load_data(
    spec: TaskSpec, *, data_dir: Path | None = None, test_size: int | None = None, test_ids: PublishedIds | None = None
) -> TaskData:
    """Read a task's rows and choose its test rows.

    ``data_dir`` is the data folder (by default, the environment variable ``ICL_BENCH_DATA``). Data that it does not
    have comes from the hub. ``test_size`` overrides the number of test rows: the first ones in evaluation order are
    taken. ``test_ids`` overrides the selection of test rows.

    Raises UserError with file and line for rows that cannot be used, and if there is no data.
    """
    if test_ids is not None:
        spec = _asking(spec, test_ids)
    data_dir = data_folder(spec, data_dir)
    source = find_source(spec, data_dir)
    columns = RENDERED if isinstance(spec.template, JinjaTemplate) else source.columns
    reader = _ExampleReader(spec, columns)
    train, train_lacking = reader.read(source.train)
    pool, test_lacking = reader.read(source.test)
    spellings: list[str] = []
    if spec.labels is not None and spec.labels.choices is None:
        if spec.labels.merge:
            replaced = replacements((row.answer for row in train), (row.answer for row in pool))
            train, pool = (
                tuple(replace(r, answer=replaced[r.answer]) if r.answer in replaced else r for r in rows)
                for rows in (train, pool)
            )
            spellings = merge_notes({one: replaced.get(label, label) for one, label in reader.spellings.items()})
        else:
            spellings = spelling_notes(row.answer for row in (*train, *pool))
    labels = _common_labels(spec, train, pool)
    if spec.has_common_labels and len(labels) < 2:
        raise UserError(f"{spec.name}: train has one label, {short(labels[0])}; expected several")
    _refuse_unknown(spec, pool, labels)
    test_rows = _select_test_rows(spec, data_dir, pool, test_lacking, test_size, reader.texts["test"])
    if test_ids is not None and not test_rows.files:
        raise UserError(f"--test-ids {test_ids}: this data does not have all of the paper's test rows of {spec.name}")
    splits = (source.train, source.test)
    same_name = source.train.file == source.test.file
    files = {f"{s.name}/{s.file}" if same_name else s.file: s.sha256 for s in splits}
    notes = [
        *spec.notes,
        *source.notes,
        *_thought_notes(spec),
        *_lacking_notes("train", train_lacking),
        *_lacking_notes("test", test_lacking),
        *_unused_name_notes(spec, set(reader.sources.values())),
        *spellings,
        *_repeated_choice_notes(reader.repeated_choices),
        *test_rows.notes,
        *(["train and test are the same rows"] if len({s.sha256 for s in splits}) == 1 else []),
        *_unseen_notes(test_rows.rows, labels),
        *_ended_at_once_notes(spec),
        *_ended_notes(spec, test_rows.rows),
    ]
    return TaskData(
        spec=spec,
        train=train,
        test=test_rows.rows,
        test_pool=pool,
        labels=labels,
        origin=source.origin,
        files={**files, **test_rows.files},
        left_out={"train": len(train_lacking), "test": len(test_lacking)},
        notes=tuple(notes),
        not_asked=reader.unlabelled.get("test", 0),
    )


def stored_rows(spec: TaskSpec, data_dir: Path | None) -> tuple[Source, dict[str, dict[str, StoredRow]]]:
    """A task's source, and its rows with all their columns: split -> id of the example -> row. Raises ``UserError``."""
    source = find_source(spec, data_folder(spec, data_dir))
    reader = _ExampleReader(spec, source.columns)
    rows = {
        split.name: {reader._id(row, split.name, number): row for number, row in enumerate(split.rows)}
        for split in (source.train, source.test)
    }
    return source, rows


def _common_labels(spec: TaskSpec, train: Sequence[Example], test: Sequence[Example]) -> tuple[str, ...]:
    """The labels that rows have in common: those of train, or the letters of all choices."""
    if not spec.has_common_labels:
        return ()
    assert spec.labels is not None, "labels that rows have in common"
    if isinstance(spec.labels.choices, tuple):
        return tuple(sorted(spec.labels.choices))
    letters = {letter for e in (*train, *test) for letter in e.choices}
    return tuple(sorted(letters or {e.answer for e in train}))


def _refuse_unknown(spec: TaskSpec, test: Sequence[Example], labels: Sequence[str]) -> None:
    """Raise ``UserError`` for a test split without a known label, because every answer would be wrong."""
    answers = dict.fromkeys(row.answer for row in test)
    if not labels or not answers.keys().isdisjoint(labels):
        return
    of_test, of_train = (few([*map(short, found)], 4) for found in (answers, labels))
    hint = "; labels.merge: true merges different spellings" if same_labels([*answers, *labels]) else ""
    raise UserError(
        f"{spec.name}: no test row has a label of the train rows: {of_test} in test, {of_train} in train{hint}"
    )


def _repeated_choice_notes(places: Sequence[str]) -> list[str]:
    if not places:
        return []
    count = f"{len(places):,} row{' has' if len(places) == 1 else 's have'}"
    return [f"{count} a choice twice, under two letters, one of which is right (first {places[0]})"]


def _thought_notes(spec: TaskSpec) -> list[str]:
    if spec.thought is None or spec.thought.rationale is not None:
        return []
    return ["answer.rationale names no field: demonstrations show answers alone, and only the query is thought about"]


def _lacking_notes(split: str, lacking: Mapping[str, str]) -> list[str]:
    return [
        f"{_row_count(count, split)} {'has' if count == 1 else 'have'} no {name} and "
        f"{'was' if count == 1 else 'were'} left out"
        for name, count in Counter(lacking.values()).items()
    ]


def _unused_name_notes(spec: TaskSpec, source_labels: Set[str]) -> list[str]:
    """Note the labels of ``labels.names`` that no row has: they may be mistyped.

    Rows that already have the written label come from another copy of the data and are not noted.
    """
    names = spec.labels.names if spec.labels else {}
    known = source_labels | {spec.labels.named(label) for label in source_labels} if spec.labels else source_labels
    return [
        one_line(f"labels.names: no row has the label {short(name)}; {nearest(name, source_labels)}")
        for name, written in names.items()
        if not {name, written} & known
    ]


def _unseen_notes(test: Sequence[Example], labels: Sequence[str]) -> list[str]:
    unseen = Counter(e.answer for e in test if e.answer not in set(labels)) if labels else Counter()
    if not unseen:
        return []
    counts = few([f"{label!r}: {count}" for label, count in unseen.most_common()], 5)
    total = unseen.total()
    verb = "has" if total == 1 else "have"
    return [f"{_row_count(total, 'test')} {verb} a label that no train row has ({counts})"]


def _ended_at_once_notes(spec: TaskSpec) -> list[str]:
    """Note that an answer ends before its text, because the delimiter before it contains a text that ends answers."""
    lead = spec.template.answer_link
    stop = next((stop for stop in spec.stops_beside(spec.template.separator) if stop in lead), None)
    if spec.labels is not None or spec.thought is not None or stop is None:
        return []
    return [
        f"answers follow the delimiter {lead!r}, which contains {stop!r}, a text that ends answers: without --chat, a "
        "model's answer is empty if it begins like those of demonstrations; write the delimiter into the input"
    ]


def _ended_notes(spec: TaskSpec, test: Sequence[Example]) -> list[str]:
    """Note the test rows whose right answers all contain a text that ends answers, so that none can be written."""
    if spec.labels is not None:
        return []
    separator = spec.template.separator
    stops = spec.stops_beside(separator)
    golds = {row.id: row.golds or (row.answer.strip(),) for row in test}
    ended = {name: texts for name, texts in golds.items() if all(any(s in text for s in stops) for text in texts)}
    if not ended:
        return []
    name, (gold, *_) = next(iter(ended.items()))
    stop = next(s for s in stops if s in gold)
    rule = "the separator, which ends answers without --chat" if stop not in (spec.stop or ()) else "which ends answers"
    answers, verb = ("answer", "contains") if len(ended) == 1 else ("answers", "contain")
    return [
        one_line(
            f"the right {answers} of {_row_count(len(ended), 'test')} {verb} {stop!r}, {rule} (first {short(name)}): a "
            "model's answer ends before it; choose another separator or stop"
        )
    ]


def _row_count(count: int, split: str) -> str:
    return f"{count:,} {split} row{'' if count == 1 else 's'}"


# -- the chosen test rows -----------------------------------------------------------------------


@dataclass(frozen=True)
class _TestSelection:
    rows: tuple[Example, ...]
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def _select_test_rows(
    spec: TaskSpec,
    data_dir: Path | None,
    pool: tuple[Example, ...],
    lacking: Mapping[str, str],
    test_size: int | None,
    texts: Mapping[str, str],
) -> _TestSelection:
    """The test rows that are evaluated, in order. ``texts`` are of every row of the split, by id."""
    if test_size is not None and test_size < 1:
        raise UserError(f"a test size of {whole(test_size)}: expected 1 or more")
    spec_rows = spec.test
    if isinstance(spec_rows.ids, tuple):
        return _by_ids(spec_rows.ids, f"{spec.name}: test.ids", pool, lacking, test_size)
    path = _paper_ids_file(spec, data_dir) if spec_rows.ids == "paper" else None
    if path is not None:
        raw = read_file(path)
        selection = _by_ids(_paper_ids(raw, str(path)), str(path), pool, lacking, test_size)
        return _TestSelection(selection.rows, selection.notes, {path.name: hashlib.sha256(raw).hexdigest()})
    notes: list[str] = []
    if spec_rows.ids is not None:
        published = _published(spec, pool, lacking, test_size, texts, notes)
        if published is not None:
            return published
    size = spec_rows.size if test_size is None else test_size
    if size > len(pool):
        if test_size is not None:
            _refuse_size(size, len(pool), "the test file has")
        fewer = f"fewer than the {size:,} of the task file: all are used"
        notes.append(f"the test file has {_row_count(len(pool), 'usable')}, {fewer}")
    if spec_rows.ids is not None:
        count = min(size, len(pool))
        notes.append(
            f"this data does not have the paper's test rows: {count:,} rows are drawn with seed {spec_rows.seed}"
        )
    order = generator(spec_rows.seed, "test").permutation(len(pool))[:size]
    return _TestSelection(tuple(pool[i] for i in order), tuple(notes))


def _asking(spec: TaskSpec, test_ids: PublishedIds) -> TaskSpec:
    """The task with other published test rows. Raises ``UserError`` for a task that has none."""
    if spec.test.ids is None or isinstance(spec.test.ids, tuple):
        raise UserError(f"--test-ids {test_ids}: task {spec.name} has no published test rows")
    return spec.model_copy(update={"test": spec.test.model_copy(update={"ids": test_ids})})


def _published(
    spec: TaskSpec,
    pool: Sequence[Example],
    lacking: Mapping[str, str],
    test_size: int | None,
    texts: Mapping[str, str],
    notes: list[str],
) -> _TestSelection | None:
    """The rows of the package's list, matched by their texts; None, with a note, if some are missing."""
    which = spec.test.ids
    assert which is not None, "some rows are published"
    assert not isinstance(which, tuple), "their own list is read before"
    rows = published_rows(spec.name, which)
    if not rows:
        return None
    found = find(rows, texts)
    if found.missing:
        if found.ids:
            notes.append(f"{found.missing:,} of the paper's {len(rows):,} test rows are not in this data")
        return None
    selection = _by_ids(found.ids, FILE, pool, lacking, test_size)
    if found.by_place:
        verb = "differs" if found.by_place == 1 else "differ"
        of_rows = f"of {found.by_place:,} of the paper's {len(rows):,} test rows"
        notes.append(f"the text {of_rows} {verb} here: they are selected by their position in the test split")
    return _TestSelection(selection.rows, (*selection.notes, *notes), {FILE: file_digest()})


def _by_ids(
    ids: Sequence[str], origin: str, pool: Sequence[Example], lacking: Mapping[str, str], test_size: int | None
) -> _TestSelection:
    examples = {example.id: example for example in pool}
    unknown = [name for name in ids if name not in examples and name not in lacking]
    if unknown:
        first = ", ".join(short(name) for name in unknown[:3])
        raise UserError(f"{origin}: {_row_count(len(unknown), 'chosen')} not in the test file: {first}")
    if len(set(ids)) < len(ids):
        repeated = Counter(ids).most_common(1)[0][0]
        raise UserError(f"{origin}: {short(repeated)} is chosen twice")
    rows = tuple(examples[name] for name in ids if name in examples)
    missing = [name for name in ids if name in lacking]
    notes = tuple(f"chosen test row {n} has no {lacking[n]} and was left out" for n in missing)
    if not rows:
        raise UserError(f"{origin}: none of the chosen rows is usable")
    if test_size is not None and test_size > len(rows):
        _refuse_size(test_size, len(rows), f"{origin} lists")
    return _TestSelection(rows[:test_size], notes)


def _refuse_size(test_size: int, available: int, subject: str) -> None:
    raise UserError(f"{whole(test_size)} test rows are asked for; {subject} {available:,}: ask for at most those")


def _paper_ids_file(spec: TaskSpec, data_dir: Path | None) -> Path | None:
    if data_dir is None:
        return None
    folders = dict.fromkeys((spec.name, spec.data.folder or spec.name))
    return next((p for f in folders if (p := data_dir / f / PAPER_IDS).is_file()), None)


def _paper_ids(raw: bytes, path: str) -> list[str]:
    try:
        content = parse_json(decode(raw, path))
    except (ValueError, RecursionError) as error:
        raise UserError(one_line(f"{path}: not JSON: {error}")) from None
    ids = content.get("row_ids") if isinstance(content, dict) else None
    if not isinstance(ids, list) or not ids or not all(isinstance(name, str) for name in ids):
        raise UserError(f"{path}: expected an object with row_ids, a list of row ids")
    return ids
