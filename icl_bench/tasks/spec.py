"""The specification of a task: frozen data that can be printed, hashed and compared."""

from __future__ import annotations

import codecs
import re
import string
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from icl_bench.frozen import Frozen
from icl_bench.metrics.exact_match import normalised
from icl_bench.registry import METRICS, TASK_SOURCES
from icl_bench.tasks.jinja import check_source
from icl_bench.tasks.label_spellings import plain_form
from icl_bench.tasks.published_rows import PublishedIds
from icl_bench.tasks.splits import number_as_text
from icl_bench.tasks.templates import AnyTemplate, JinjaTemplate, Template
from icl_bench.tasks.thoughts import ThoughtRule


def _known_metric(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"{name!r} is {METRICS.unknown(name)}")
    return name


MetricName = Annotated[str, AfterValidator(_known_metric)]


def _refuse_bool(value: Any) -> Any:
    """Refuse booleans: pydantic would read ``true`` as 1."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, not {str(value).lower()}")
    return value


def _known_encoding(name: str) -> str:
    """Python's name of a text encoding."""
    try:
        "a".encode(name)
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise ValueError(f"{name!r} is not an encoding of text; expected one like utf-16 or cp1252") from None


IsNumber = BeforeValidator(_refuse_bool)
Seed = Annotated[int, Field(ge=0, lt=2**64), IsNumber]
Count = Annotated[int, Field(ge=1, le=10**9), IsNumber]

Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Holdout(Frozen):
    """A test split for a set without one: ``rng(seed).permutation(n)[:ceil(share * n)]``."""

    share: Annotated[float, Field(gt=0, lt=1), IsNumber]
    seed: Seed
    stratify: str | None = Field(None, min_length=1)
    """The column to stratify by: each of its values has this share of rows in the test split, up to one row, and at
    least one train row.
    """


FILE_FORMATS = frozenset({"arrow", "csv", "json", "parquet", "text"})
"""Names of ``datasets`` for sets that are files, which ``data_files`` names."""


class HubSource(Frozen):
    """A data set on the Hugging Face hub, at a pinned revision; or files as ``datasets`` reads them."""

    path: str = Field(min_length=1)
    """The set's name on the hub, or one of :data:`FILE_FORMATS`."""
    revision: str = Field(default="main", min_length=1)
    name: str | None = None
    """The configuration, for sets that have several."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of ``datasets.load_dataset``: ``data_files``, ``data_dir``, ``sep``, ..."""
    train: str = "train"
    test: str = "test"
    holdout: Holdout | None = None
    """If set, the test split is a part of ``train``."""
    fields: dict[str, str] | None = None
    """Template field -> column, if the hub's columns differ from ``data.fields``."""

    @model_validator(mode="after")
    def _is_pinned(self) -> HubSource:
        if not self.is_files and "revision" not in self.model_fields_set:
            raise ValueError("revision is missing: a commit of the set, or main")
        return self

    @property
    def is_files(self) -> bool:
        """Whether it is local files or files with an address, not a data set on the hub."""
        return self.path in FILE_FORMATS


class Passages(Frozen):
    """Texts of each row that a model may read as vectors: the passages retrieved for its question."""

    column: str = Field(min_length=1)
    """The column, or a path, of a list of texts or objects."""
    text: str = "{text}"
    """The format of a passage, with names of an object's fields in braces."""
    skip: Annotated[int, Field(ge=0), IsNumber] = 0
    """The number of passages to skip at the beginning, because the template shows them."""

    @field_validator("text")
    @classmethod
    def _names_fields(cls, text: str) -> str:
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"{error}: {text!r}") from None
        names = [name for _, name, *_ in parts if name is not None]
        if not names or not all(name.isidentifier() for name in names):
            raise ValueError(f"expected names of fields in braces, like {{title}}: {text!r}")
        if any(spec or conversion for _, _, spec, conversion in parts):
            raise ValueError(f"expected plain names in braces: {text!r}")
        return text


class DataSpec(Frozen):
    """The source of the examples.

    Exactly one of ``train``/``test`` files, ``embedded``, a ``source`` by name, or the data folder,
    with the hub as a fallback.
    """

    folder: Name | None = None
    """The sub-folder of the data folder; by default the task's name."""
    hub: HubSource | None = None
    train: Path | None = None
    test: Path | None = None
    file: Path | None = None
    """One file with all rows, from which ``holdout`` takes the test split: in ``folder`` if given,
    else relative to the task file."""
    holdout: Holdout | None = None
    embedded: Literal["stdlib", "stdlib-six"] | None = None
    """Built from the running Python's own sources: :mod:`icl_bench.tasks.stdlib_docstrings`."""
    source: str | None = None
    """One of :data:`icl_bench.registry.TASK_SOURCES`, for sources that other packages add."""
    source_options: dict[str, Any] | None = None
    """Options of the ``source``, which validates them."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Template field -> column of the data file, or a path into one
    (:meth:`icl_bench.tasks.splits.StoredRow.cell`). Empty for a Jinja template, which names
    columns."""
    passages: Passages | None = None
    """The texts that ``--attention vectors`` reads; without it, it reads demonstrations."""
    encoding: Annotated[str, AfterValidator(_known_encoding)] | None = None
    """The encoding of text files, such as ``cp1252``; by default, that of the byte order mark or UTF-8."""
    id: Annotated[str, Field(min_length=1)] | Literal[False] | None = None
    """The column that names rows; ``false`` names them by their number. By default the column ``id``, if
    there is one, else their number."""

    def columns(self, fields: dict[str, str]) -> dict[str, str]:
        """The columns to read: those of the fields, and of passages, ids and strata."""
        if not fields:
            return fields
        holdout = self.holdout or (self.hub.holdout if self.hub else None)
        further = {
            "passages of each row": self.passages and self.passages.column,
            "id of each row": self.id,
            "stratum of each row": holdout and holdout.stratify,
        }
        return {**fields, **{name: column for name, column in further.items() if column}}

    @property
    def kind(self) -> str:
        """Its name in :data:`icl_bench.registry.TASK_SOURCES`."""
        if self.source is not None:
            return self.source
        if self.file is not None and self.folder is None:
            return "files"
        return "embedded" if self.embedded else "files" if self.train else "folder"

    @model_validator(mode="after")
    def _one_source(self) -> DataSpec:
        if self.source is not None and self.source not in TASK_SOURCES:
            raise ValueError(f"source {self.source!r} is {TASK_SOURCES.unknown(self.source)}")
        if self.source is None and self.source_options is not None:
            raise ValueError("source_options are for a source that is named: source is missing")
        if self.source and (self.train or self.test or self.hub or self.embedded or self.folder):
            raise ValueError("give a source, or files, or a folder/hub, or embedded: not several")
        if (self.train is None) != (self.test is None):
            missing = "test" if self.test is None else "train"
            raise ValueError(f"give both train and test files: {missing} is missing")
        if self.train is not None and (self.hub or self.embedded or self.folder):
            raise ValueError("give train and test files, or a folder/hub, or embedded: not several")
        if self.embedded and (self.hub or self.folder):
            raise ValueError("give embedded, or a folder/hub: not both")
        return self

    @model_validator(mode="after")
    def _one_file(self) -> DataSpec:
        if (self.file is None) != (self.holdout is None):
            missing = "holdout" if self.holdout is None else "file"
            raise ValueError(f"give both file and holdout (its test split): {missing} is missing")
        if self.file is None:
            return self
        if self.source or self.train or self.test or self.embedded:
            raise ValueError("give one file with a holdout, or another source: not both")
        if self.folder is None and self.hub:
            raise ValueError("give a file, or a folder/hub: not both")
        if self.folder and (self.file.is_absolute() or ".." in self.file.parts):
            raise ValueError(f"file is in the folder {self.folder}: give its name there")
        return self


def _as_in_json(value: Any) -> Any:
    """Convert numbers and booleans among labels to text, like rows of JSON."""
    if isinstance(value, dict):
        return {number_as_text(label): written for label, written in value.items()}
    return [number_as_text(one) for one in value] if isinstance(value, list | tuple) else value


class Labels(Frozen):
    """How a classification task's labels are written in the prompt."""

    style: Literal["words", "as-is", "letters"] = "as-is"
    """``words`` writes ``card_arrival`` as ``card arrival``; ``as-is`` keeps labels unchanged.
    ``letters``, for choices, answers with A, B, C, ..., in the order of the row's list."""
    names: Annotated[dict[str, str], BeforeValidator(_as_in_json)] = Field(default_factory=dict)
    """Labels of the source -> how they are written: ``{ABBR: abbreviation}``."""
    choices: Annotated[str | Annotated[tuple[str, ...], Field(min_length=2)] | None, BeforeValidator(_as_in_json)] = (
        None
    )
    """The field of each row's own list of choices (for a Jinja template, a column, or a Jinja text
    that gives a list). In the template, it writes a line for each choice. Or a list of the labels
    of all rows. By default, the labels are those of the train rows."""
    gold: Literal["text", "key", "index", "index or text"] = "text"
    """How a row names the right one of its choices: by its text, by its key (its ``label`` in the
    list, else its letter), by its index from 0, or by its index if the row has a whole number, else
    by its text."""
    empty: Literal["refuse", "leave_out"] = "refuse"
    """What to do with rows without a label: name and refuse them, or leave them out and count them."""
    merge: bool = False
    """Read labels that differ only in case, blanks, Unicode form or the form of a number as one
    (:mod:`icl_bench.tasks.label_spellings`)."""
    normalize: Literal["none", "tokens", "characters", "bytes"] = "none"
    """The divisor of a label's log-probability under ``--score exact``: its number of tokens (with its ending), or of
    characters or bytes.
    """

    @model_validator(mode="after")
    def _of_choices(self) -> Labels:
        if self.choices is None:
            if self.style == "letters" or self.gold != "text":
                alone = "style: letters" if self.style == "letters" else f"gold: {self.gold}"
                raise ValueError(f"{alone} is for choices of each row: choices is missing")
        elif self.names:
            raise ValueError("names are of labels that all rows share, not of choices")
        elif isinstance(self.choices, tuple):
            self._check_shared(self.choices)
        for name in self.names if self.merge else ():
            if self.names[first := _by_form(tuple(self.names))[plain_form(name)]] != self.names[name]:
                raise ValueError(
                    f"names writes {first!r} and {name!r}, which merge: true reads as one, in two ways: "
                    f"{self.names[first]!r} and {self.names[name]!r}"
                )
        if self.style == "letters" and self.normalize != "none":
            raise ValueError(
                f"letters are as long as one another: normalize: {self.normalize} is for choices that are written out"
            )
        return self

    def _check_shared(self, choices: tuple[str, ...]) -> None:
        if self.style != "as-is" or self.gold == "key":
            wrong = f"gold: {self.gold}" if self.style == "as-is" else f"style: {self.style}"
            raise ValueError(f"{wrong} is for choices of each row, and these are of all rows")
        if repeated := next((c for i, c in enumerate(choices) if c in choices[:i]), None):
            raise ValueError(f"choices has {repeated!r} twice")

    @property
    def own(self) -> str | None:
        """The field of each row's own choices, or None."""
        return self.choices if isinstance(self.choices, str) else None

    def named(self, label: str) -> str:
        """The label as it is in ``names``: with ``merge``, in another spelling. The label itself if it is not there."""
        if not self.merge or label in self.names or not self.names:
            return label
        return _by_form(tuple(self.names)).get(plain_form(label), label)

    def written(self, label: str) -> str:
        """The label as written in the prompt."""
        label = self.named(label)
        if label in self.names:
            return self.names[label]
        return label.replace("_", " ") if self.style == "words" else label


@lru_cache
def _by_form(names: tuple[str, ...]) -> dict[str, str]:
    """The plain forms of labels, each with the first label of that form."""
    return {plain_form(name): name for name in reversed(names)}


def _is_regex(pattern: str) -> re.Pattern[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about syntax that a later Python may read differently
            return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error} in {pattern!r}") from None


class Ignored(Frozen):
    """Differences between a model's answer and a right one that are ignored."""

    case: bool = False
    punctuation: bool = False
    """ASCII punctuation anywhere in the text."""
    patterns: tuple[str, ...] = ()
    """Regular expressions. Their matches are removed first, in this order."""

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            _is_regex(pattern)
        return patterns


class AnswerRule(Frozen):
    """The compared part of a free answer's text, and the thought before an answer of any kind."""

    think: bool = False
    """Whether the model writes a thought before its answer."""
    opens: str = ""
    """The text that begins a thought, in place of the answer: ``Let's think step by step.``"""
    ends: str | None = None
    """The text that ends a thought and begins the answer: ``So the answer is ``."""
    limit: Count | None = None
    """The maximum tokens of a thought."""
    rationale: str | None = Field(None, min_length=1)
    """The field (for a Jinja template: a column, or a Jinja text) of each train row's thought, which
    demonstrations show."""
    extract: str | None = None
    """A regular expression. Its first group is compared."""
    group: Literal["first", "any"] = "first"
    """``any``: the first group that is not empty is compared."""
    take: Literal["first", "last"] = "first"
    """Which match counts."""
    of: Literal["both", "answers"] = "both"
    """Whether ``extract`` applies to right answers too, or to the model's answers only."""
    ignore: Ignored | None = None
    """Parts that are removed from both before comparison."""
    unanswerable: str | None = None
    """The text that demonstrations show for a question without an answer. The right answer of such
    a question is empty, and a model's answer that equals this text counts as empty."""

    def without_thought(self, answer: str) -> str:
        """A right answer without the thought before it, up to the last end mark, if its text contains both; also if
        thoughts are off.
        """
        mark = (self.ends or "").strip()
        return (mark and answer.rpartition(mark)[2].strip()) or answer

    @field_validator("extract")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        if not _is_regex(pattern).groups:
            raise ValueError(f"has no group: put what is compared in parentheses, like '#### (.+)' (got {pattern!r})")
        return pattern

    @field_validator("unanswerable")
    @classmethod
    def _is_a_word(cls, text: str | None) -> str | None:
        if text is not None and (not normalised(text) or text != text.strip()):
            raise ValueError(
                f"must be a text that differs from an empty answer, without spaces around it, "
                f"like unanswerable (got {text!r})"
            )
        return text

    @field_validator("ends")
    @classmethod
    def _is_a_mark(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError(
                f"must be a text that does not occur in thoughts by chance, like 'So the answer is ' ({text!r})"
            )
        return text

    @property
    def thought(self) -> ThoughtRule | None:
        """How answers are thought about; None without thoughts."""
        if not self.think:
            return None
        assert self.ends is not None, "checked"
        assert self.limit is not None, "checked"
        return ThoughtRule(self.opens, self.ends, self.limit, self.rationale)

    @property
    def compares(self) -> str | None:
        """The first field that sets the compared part of a free answer; None if none does."""
        return next((n for n in ("extract", "ignore", "unanswerable") if getattr(self, n) is not None), None)

    @model_validator(mode="after")
    def _thinks(self) -> AnswerRule:
        if self.think:
            for name in ("ends", "limit"):
                if getattr(self, name) is None:
                    what = "the text that ends a thought" if name == "ends" else "the most tokens of a thought"
                    raise ValueError(f"think: true needs {name}, {what}")
        elif self.ends is None and (self.opens or self.limit or self.rationale):
            raise ValueError("opens, limit and rationale need ends, the text that ends a thought")
        return self

    @model_validator(mode="after")
    def _says_something(self) -> AnswerRule:
        if not self.compares and self.ends is None:
            raise ValueError("give extract, ignore or unanswerable; or think, ends and limit")
        if self.extract is None and self.take != "first":
            raise ValueError("take chooses a match of extract, which is missing")
        if self.extract is None and (self.of != "both" or self.group != "first"):
            name = "of" if self.of != "both" else "group"
            raise ValueError(f"{name} needs extract, which is missing")
        return self


class TestRows(Frozen):
    """Which rows of the test file are evaluated."""

    __test__ = False  # not a test class of pytest

    size: Count = 250
    seed: Seed = 43
    ids: PublishedIds | tuple[str, ...] | None = None
    """``paper``: the rows of ``paper_test_ids.json`` if the data folder has that file, else those of the package's
    list, matched by their texts, else ``size`` rows by ``seed``. ``paper-mistral``: the rows of the package's list that
    were used for Mistral. A list: these row ids, in this order.
    """
    too_long: Literal["refuse", "leave_out"] | Count = "refuse"
    """What to do with rows that exceed the model's window without demonstrations: refuse to run, or leave them out of
    all cells and count them. A number also leaves out rows with more tokens.
    """


class PoolSpec(Frozen):
    """Which rows may become demonstrations: those of the train file, unless there is a ``file``."""

    drop_longest: Annotated[float, Field(ge=0, lt=1), IsNumber] = 0.0
    """The share of the longest demonstrations (in the model's tokens) to drop: rows longer than the
    ``1 - drop_longest`` quantile (Bertsch et al. 2025's code: 0.01)."""
    file: Path | None = None
    """Handwritten demonstrations that replace the train rows (:mod:`icl_bench.tasks.worked_examples`): in
    ``data.folder``, or relative to the task file.
    """


class Unsupervised(Frozen):
    """The texts around inputs without answers in prompts (Agarwal et al. 2024, section 3.2)."""

    preamble: str = "You will be provided problems similar to the ones below:"
    """Before the inputs; may be empty."""
    instruction: str = ""
    """After the inputs, before complete demonstrations and the query; may be empty."""


class RationaleOrigin(Frozen):
    """The origin of a pool's rationales, written by ``icl-bench rationales``."""

    task: str
    model: str
    revision: str | None = None
    fingerprint: str
    """Hash of the model's files."""
    demonstrations: int = 0
    """Demonstrations in its prompts."""
    samples: int
    """Samples per row."""
    temperature: float
    seed: int
    keep: Literal["right", "all", "wrong"]
    take: Literal["shortest", "first"]
    prompts: str
    """Hash of the hashes of all prompts, in the order of the rows."""
    tried: int
    """Pool rows for which rationales were written."""
    kept: int
    """Rows with a rationale."""
    cut: int = 0
    """Rows of ``kept`` whose rationale was truncated at the token limit, because no complete one qualified."""
    kept_of_label: dict[str, tuple[int, int]] | None = None
    """Label -> rows kept and tried; None for free text."""
    near_duplicates: int = 0
    """Pool rows excluded as near duplicates of a test row."""
    prompt_tokens: int
    cached_tokens: int
    """Tokens of ``prompt_tokens`` that were shared or cached."""
    written_tokens: int
    """Tokens of all samples, including thoughts."""
    seconds: float | None = None
    flops: float | None = None


class TaskSpec(Frozen):
    """One YAML file: a data set, a prompt template, labels (or free text) and metrics."""

    name: Name
    description: str = ""
    data: DataSpec
    template: AnyTemplate
    labels: Labels | None = None
    """Absent for free text."""
    metrics: tuple[MetricName, ...] = Field(min_length=1)
    """Names of :data:`icl_bench.registry.METRICS`. Points are compared by the first."""
    test: TestRows = TestRows()
    pool: PoolSpec = PoolSpec()
    max_answer_tokens: Count = 128
    """Free text ends at the separator or after this many tokens."""
    answer: AnswerRule | None = None
    """Absent if free text is compared unchanged."""
    stop: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Texts that end free text, in addition to the separator."""
    unsupervised: Unsupervised = Unsupervised()
    """Used only by ``--perturbation inputs-only``."""
    license: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    """Notes for the user, one sentence each, shown when the data is read."""
    rationales: RationaleOrigin | None = None
    """The origin of the pool's rationales, if a model wrote them."""

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        if isinstance(self.template, Template):
            self._check_fields(self.template)
        else:
            self._check_jinja()
        answers = "labels" if self.labels else "text"
        if wrong := sorted(n for n in self.metrics if METRICS[n].answers not in (answers, "any")):
            reason = "for free text" if self.labels else "for labels, and 'labels:' is missing"
            raise ValueError(f"metric {wrong[0]} is {reason}")
        common_only = sorted(n for n in self.metrics if METRICS[n].needs_common_labels)
        if common_only and self.labels and not self.has_common_labels:
            raise ValueError(
                f"metric {common_only[0]} needs labels that all rows share, but rows have their own written choices"
            )
        self._check_free_text()
        return self

    def _check_fields(self, template: Template) -> None:
        """Refuse template fields without a column."""
        fields = {*template.input_fields, template.answer_field}
        own = self.labels.own if self.labels else None
        rationale = self.answer.rationale if self.answer else None
        if own is not None:
            self._check_choices(own)
            fields.add(own)
        if rationale is not None:
            if rationale in template.input_fields:
                raise ValueError(f"answer.rationale: {rationale} is shown in the template's input already")
            fields.add(rationale)
        mappings = [("data.fields", self.data.fields)]
        if self.data.hub and self.data.hub.fields:
            mappings.append(("data.hub.fields", self.data.hub.fields))
        for where, mapping in mappings:
            if missing := sorted(fields - mapping.keys()):
                users = {own: "labels.choices", rationale: "answer.rationale"}
                user = users.get(missing[0], "the template")
                raise ValueError(f"{user} uses {{{missing[0]}}}, which {where} does not name")
        self._refuse_escaped(template, {name for _, mapping in mappings for name in mapping})

    def _check_jinja(self) -> None:
        """Refuse settings of templates in braces."""
        if self.data.fields or (self.data.hub and self.data.hub.fields):
            raise ValueError("data.fields are for a template in braces; one in Jinja names columns")
        if self.answer and self.answer.rationale is not None:
            check_source(self.answer.rationale)
        if self.labels and self.labels.own is not None:
            check_source(self.labels.own)
            if self.labels.style == "letters":
                raise ValueError(
                    "style: letters is for a template in braces; in Jinja, write the "
                    "choices into the input and give letters as choices"
                )

    def _check_free_text(self) -> None:
        """Refuse settings of free text for labels, and settings that a metric cannot score."""
        if self.labels and ((self.answer and self.answer.compares) or self.stop):
            name = f"answer.{self.answer.compares}" if self.answer and self.answer.compares else "stop"
            raise ValueError(f"{name} is for free text, not for labels")
        if blank := [text for text in self.stop or () if not text.strip(" \t")]:
            raise ValueError(f"stop must not be blank: an answer begins with a space ({blank[0]!r})")
        if self.answer and self.answer.unanswerable:
            for name in self.metrics:
                if not METRICS[name].compares_empty:
                    raise ValueError(
                        f"metric {name} has no score where the right answer is the empty one, "
                        "which answer.unanswerable stands for; leave one of them out"
                    )

    def _check_choices(self, own: str) -> None:
        assert self.labels is not None
        if own == self.template.answer_field:
            raise ValueError(f"labels.choices: {own} is the answer; expected the field of the list")
        if self.labels.style == "letters" and own not in self.template.input_fields:
            raise ValueError(
                f"style: letters needs {{{own}}} in the template's input: a letter needs its choice in the prompt"
            )

    def _refuse_escaped(self, template: Template, names: set[str]) -> None:
        """Refuse ``{{text}}``, which writes a field's name in braces, equal in all rows."""
        for part in (template.input, template.output):
            literal = "".join(text for text, *_ in string.Formatter().parse(part))
            if escaped := next((name for name in sorted(names) if f"{{{name}}}" in literal), None):
                raise ValueError(
                    f"the template writes {{{{{escaped}}}}}, which shows the word {escaped} in "
                    f"braces; for the row's own write {{{escaped}}}"
                )

    def stops_beside(self, always: str) -> tuple[str, ...]:
        """The texts that end a free answer: the task's ``stop``, and ``always`` unless it contains one
        of them.

        If a Jinja task has ``stop``, the separator does not end an answer.
        """
        own = self.stop or ()
        if own and isinstance(self.template, JinjaTemplate) and always == self.template.separator:
            return own  # as in lm-evaluation-harness
        return own if any(stop in always for stop in own) else (*own, always)

    @property
    def thought(self) -> ThoughtRule | None:
        """How answers are thought about; None without thoughts."""
        return self.answer.thought if self.answer else None

    def without_worked_examples(self) -> TaskSpec:
        """The same task with the rows of its train split instead of ``pool.file``, without rationales."""
        name = self.answer.rationale if self.answer else None
        data = self.data.model_copy(update={"fields": {n: c for n, c in self.data.fields.items() if n != name}})
        answer = self.answer and self.answer.model_copy(update={"rationale": None})
        return self.model_copy(
            update={"pool": self.pool.model_copy(update={"file": None}), "answer": answer, "data": data}
        )

    @property
    def closes_thoughts(self) -> bool:
        """Whether a thought that a chat template begins is closed at once, so that an answer can follow it."""
        return self.is_classification and self.thought is None

    @property
    def is_classification(self) -> bool:
        """Whether the answers are labels."""
        return self.labels is not None

    @property
    def has_common_labels(self) -> bool:
        """Whether rows have labels in common. Letters of choices count as such."""
        if self.labels is None:
            return False
        return self.labels.own is None or self.labels.style == "letters"
