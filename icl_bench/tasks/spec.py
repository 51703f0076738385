"""What a task, a run and a cell are: frozen data that can be printed, hashed and compared."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from icl_bench.frozen import Frozen

Metric = Literal["accuracy", "macro_f1", "rouge", "bertscore"]


LABEL_METRICS: frozenset[str] = frozenset({"accuracy", "macro_f1"})


TEXT_METRICS: frozenset[str] = frozenset({"rouge", "bertscore"})


Seed = Annotated[int, Field(ge=0, lt=2**64)]


Count = Annotated[int, Field(ge=1, le=10**9)]


Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Holdout(Frozen):
    """A test split cut from a set that has none: ``rng(seed).permutation(n)[:ceil(share * n)]``."""

    share: float = Field(gt=0, lt=1)
    seed: Seed


class HubSource(Frozen):
    """A data set on the Hugging Face hub, at a pinned revision."""

    path: str = Field(min_length=1)
    revision: str = Field(min_length=1)
    name: str | None = None
    """The configuration, for sets that have several."""
    train: str = "train"
    test: str = "test"
    holdout: Holdout | None = None
    """Where set, the test split is cut from ``train``."""
    fields: dict[str, str] | None = None
    """Template field -> column, where the hub's columns differ from ``data.fields``."""


class DataSpec(Frozen):
    """Where the examples come from.

    Exactly one of ``train``/``test`` files, ``embedded``, or the data folder, with the hub behind
    it.
    """

    folder: Name | None = None
    """Sub-folder of the data folder; the task's name unless given."""
    hub: HubSource | None = None
    train: Path | None = None
    test: Path | None = None
    embedded: Literal["stdlib", "stdlib-six"] | None = None
    """Built from the running Python's own sources: :mod:`icl_bench.tasks.stdlib_docstrings`."""
    fields: dict[str, str] = Field(min_length=1)
    """Template field -> column of the data file."""

    @model_validator(mode="after")
    def _one_source(self) -> DataSpec:
        if (self.train is None) != (self.test is None):
            missing = "test" if self.test is None else "train"
            raise ValueError(f"train and test files come together: {missing} is missing")
        if self.train is not None and (self.hub or self.embedded or self.folder):
            raise ValueError("give train and test files, or a folder/hub, or embedded: not several")
        if self.embedded and (self.hub or self.folder):
            raise ValueError("give embedded, or a folder/hub: not both")
        return self


class Template(Frozen):
    r"""How an example becomes text (Bertsch et al. 2025, appendix G).

    A demonstration is ``input + "\n" + output``; demonstrations are joined by ``separator``; the
    query is the same up to the answer, with the trailing space removed.
    """

    input: str = Field(min_length=1)
    output: str = Field(min_length=1)
    separator: str = "\n==\n"

    @field_validator("input", "output")
    @classmethod
    def _well_formed(cls, text: str) -> str:
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ValueError(f"not a template: {error} in {text!r}") from None
        for _, field, form, conversion in parts:
            if field is not None and (not field.isidentifier() or form or conversion):
                raise ValueError(
                    f"a field is a plain name in braces, like {{text}}; got {{{field}}} in {text!r}"
                )
        return text

    @field_validator("separator")
    @classmethod
    def _separator_starts_a_line(cls, separator: str) -> str:
        if not separator.startswith("\n"):
            raise ValueError(
                "must begin with a line break: an answer ends where its line ends "
                f"(got {separator!r})"
            )
        return separator

    @model_validator(mode="after")
    def _answer_comes_last(self) -> Template:
        parts = list(string.Formatter().parse(self.output))
        fields = [field for _, field, _, _ in parts if field is not None]
        if len(fields) != 1 or parts[-1][1] is None:
            raise ValueError(
                f"output must hold one field, the answer, at its end, like 'intent: {{label}}' "
                f"(got {self.output!r})"
            )
        if fields[0] in self.input_fields:
            raise ValueError(f"input must not show the answer field {{{fields[0]}}}")
        return self

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields that the input shows, in the order of their first appearance."""
        seen = [f for _, f, _, _ in string.Formatter().parse(self.input) if f is not None]
        return tuple(dict.fromkeys(seen))

    @property
    def answer_field(self) -> str:
        """The field that holds the answer: the one field of ``output``."""
        return next(f for _, f, _, _ in string.Formatter().parse(self.output) if f is not None)

    @property
    def answer_lead(self) -> str:
        """``output`` up to the answer, braces unescaped: ``"intent: "``."""
        return "".join(text for text, _, _, _ in string.Formatter().parse(self.output))


class Labels(Frozen):
    """How a classification task's labels are written in the prompt."""

    style: Literal["words", "as-is"] = "as-is"
    """``words`` writes ``card_arrival`` as ``card arrival``; ``as-is`` leaves labels alone."""
    names: dict[str, str] = Field(default_factory=dict)
    """Labels of the source that are written in a way of their own: ``{ABBR: abbreviation}``."""

    def written(self, label: str) -> str:
        """The label as the prompt shows it."""
        if label in self.names:
            return self.names[label]
        return label.replace("_", " ") if self.style == "words" else label


class TestRows(Frozen):
    """Which rows of the test file are asked."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    size: Count = 250
    seed: Seed = 43
    ids: Literal["paper"] | tuple[str, ...] | None = None
    """``paper``: the rows of ``paper_test_ids.json`` where the data folder has that file, else
    ``size`` rows by ``seed``; a list: those row ids, in that order."""


class Pool(Frozen):
    """Which rows of the train file may become demonstrations."""

    drop_longest: float = Field(default=0.0, ge=0, lt=1)
    """The share of longest demonstrations (in the model's tokens) that is left out: rows longer
    than the ``1 - drop_longest`` quantile (Bertsch et al. 2025's code: 0.01)."""


class TaskSpec(Frozen):
    """One YAML file: a data set, a prompt template, labels (or free text) and metrics."""

    name: Name
    description: str = ""
    data: DataSpec
    template: Template
    labels: Labels | None = None
    """Absent for free text."""
    metrics: tuple[Metric, ...] = Field(min_length=1)
    test: TestRows = TestRows()
    pool: Pool = Pool()
    max_answer_tokens: Count = 128
    """Free text ends at the separator or after this many tokens."""
    license: str = ""
    source: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> TaskSpec:
        fields = {*self.template.input_fields, self.template.answer_field}
        mappings = [("data.fields", self.data.fields)]
        if self.data.hub and self.data.hub.fields:
            mappings.append(("data.hub.fields", self.data.hub.fields))
        for where, mapping in mappings:
            if missing := sorted(fields - mapping.keys()):
                raise ValueError(f"the template uses {{{missing[0]}}}, which {where} does not name")
        wrong = set(self.metrics) - (LABEL_METRICS if self.labels else TEXT_METRICS)
        if wrong:
            reason = "for free text" if self.labels else "for labels, and 'labels:' is missing"
            raise ValueError(f"metric {sorted(wrong)[0]} is {reason}")
        return self

    @property
    def is_classification(self) -> bool:
        """Whether the answers are labels."""
        return self.labels is not None
