"""Facts: what decides a cell's predictions besides its axes, as stored in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_serializer

COPIED, LABELLED, FOR_RATIONALES = "copied", "labels", "rationales"
"""Kinds of queries: copies of a prompt's demonstrations, rows of the pool that the model labels, and pool rows for
which it writes rationales.
"""

OF_RESULTS = (None, COPIED, FOR_RATIONALES)
"""Kinds of queries that are results; None for test rows."""


class StoredModel(BaseModel):
    """Base of stored metadata. Types are strict: a number in quotes is text.

    Unknown fields of a file are kept.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class ChatFacts(StoredModel):
    """Facts of the chat format of prompts."""

    style: str
    system: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Variables of the template besides the messages."""
    template: str = ""
    """Hash of the template."""
    around: list[str] = Field(default_factory=list)
    """Text that the template writes around contents."""


class Facts(StoredModel):
    """Everything other than axes that decides a cell's predictions; None if a fact does not apply.

    None is neither stored nor hashed, so a fact that a later version adds does not rename existing
    cells. Unknown facts belong to plugins.
    """

    backend: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    server: str | None = None
    """Address of the server that answers."""
    endpoint: str | None = None
    held: str | None = None
    """How a server constrains answers to the labels: ``choice`` or ``json``; None without constraint."""
    server_arguments: str | None = None
    """Arguments of its requests besides the program's, as JSON; null for one that is left out."""

    fingerprint: str | None = None
    """Hash of the model's files."""
    scoring: str | None = None
    """How an answer is decoded: ``greedy``, ``exact``, ``unconstrained``, ``generate``, or
    ``classifier`` for a training method."""
    label_reading: str | None = None
    """How an unconstrained label is found: ``normalised`` for any format; None for an exact spelling."""
    seed: int | None = None

    data: dict[str, str] | None = None
    """Each data file with its SHA-256."""
    fields: dict[str, Any] | None = None
    """Column names of a single data file."""
    passages: dict[str, Any] | None = None
    test: str | None = None
    """Hash of the ids of the test rows."""
    test_rows: int | None = None
    pool: str | None = None
    """Hash of the ids of the pool's rows."""
    pool_rows: int | None = None
    label_space: str | None = None
    """The part of the labels in use, if not all."""
    labels: str | None = None
    """Hash of the labels, or of each row's choices."""
    choice_style: str | None = None
    """How a row's own choices are answered: ``letters`` or written out."""
    label_rule: dict[str, Any] | None = None
    normalize: str | None = None
    queries: str | None = None
    """``copied``, if queries are demonstrations instead of test rows; ``pool:N``, ``contextual`` or ``domain``, if they
    calibrate a cell; ``labels`` or ``rationales``, if they are pool rows that the model labels or explains.
    """

    template: dict[str, Any] | None = None
    chat: ChatFacts | None = None
    bos: str | None = None
    """``left out``, if the tokenizer has BOS but its config omits it."""
    perturbation: str | None = None
    unsupervised: dict[str, str] | None = None
    """``preamble`` and ``instruction`` of prompts of inputs without answers, if they are not empty."""
    bertscore_encoder: str | None = None
    """The encoder with which BERTScore compared demonstrations."""
    sentence_encoder: str | None = None
    bm25_words: str | None = None
    """``unicode``, if BM25 finds words in any script; None for the words of spaced scripts without marks."""

    samples: int | None = None
    """The number of sampled answers per query, whose majority is the prediction."""
    temperature: float | None = None
    """The temperature of samples."""
    max_answer_tokens: int | None = None
    """Only for free text."""
    answer: dict[str, Any] | None = None
    """The answer rule: how an answer is extracted from free text."""
    thoughts: dict[str, Any] | None = None
    """The opening and end of a thought before an answer, its limit in tokens, and the column of thoughts that
    demonstrations show; None if the model answers at once.
    """
    stops: list[str] | None = None
    bertscore: str | None = None
    """The encoder of the BERTScore metric."""
    rationales: str | None = None
    """The model that wrote the pool's rationales, and the selection; None for the data's own rows."""
    score_words: str | None = None
    """``unicode``, if metrics find words in any script; None for those of their reference implementations."""

    recipe: dict[str, Any] | None = None
    """Settings of fine-tuning."""
    validation: str | None = None
    """Rows on which the checkpoint is chosen."""
    checkpoint: str | None = None
    """The rows that it is chosen on: ``validation`` or ``test``."""

    calibration: str | None = None
    """The calibration of derived predictions (:mod:`icl_bench.results.calibration`); never stored."""

    imported: str | None = None
    """The source file of an import, which has other facts only if it is an export of this program."""

    @property
    def asks_test_rows(self) -> bool:
        """Whether the queries are results: test rows, copied demonstrations, or pool rows for rationales. False for
        calibration queries and for rows that the model labels.
        """
        return self.queries in OF_RESULTS

    @model_serializer
    def known(self) -> dict[str, Any]:
        """The facts that are not None, by name, as stored."""
        facts = {name: fact for name, fact in {**self.__dict__, **(self.model_extra or {})}.items() if fact is not None}
        if self.chat is not None:
            facts["chat"] = self.chat.model_dump(exclude_none=True)
        return facts

    def with_more(self, **facts: Any) -> Facts:
        """These facts, with some replaced or added."""
        return Facts(**{**self.known(), **facts})

    @property
    def are_of_a_run(self) -> bool:
        """Whether this program computed the predictions and their facts are known."""
        return not self.known().keys() <= {"imported"}

    @property
    def written_out(self) -> bool:
        """Whether answers are a row's own choices, written out."""
        return self.choice_style not in (None, "letters")

    def agrees(self, other: Facts) -> bool:
        """Whether both have the same values of their common facts (:func:`agreement`)."""
        return all(agreement(self.known(), other.known()).values())


SAYS_SO_IF_ABSENT = {"calibration", "samples", "temperature", "thoughts"}
"""Facts whose absence is informative: predictions without them have no calibration, samples or thoughts."""


SAYS_SO_IF_ABSENT_IN_RUNS = {"chat", "quantization", "kv_cache_dtype", "normalize"}
"""Facts whose absence is informative in runs of this program: a prompt without a chat format is plain text. An import
without them may have had any.
"""


def agreement(mine: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, bool]:
    """Whether two variants have equal values of each fact that both know, given as in ``Facts.known``.

    The absence of some facts is known (``SAYS_SO_IF_ABSENT``).
    """
    names = mine.keys() & others.keys() | SAYS_SO_IF_ABSENT
    if not any(side.keys() <= {"imported"} for side in (mine, others)):
        names |= SAYS_SO_IF_ABSENT_IN_RUNS
    return {name: mine.get(name) == others.get(name) for name in names}


UNKNOWN = Facts()
"""Facts of an unknown variant."""


FactsOf: TypeAlias = Mapping[str, Facts]
"""Variant -> its facts."""


NO_FACTS: FactsOf = {}
"""No facts for any variant."""
