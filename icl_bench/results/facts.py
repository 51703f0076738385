"""What decides a cell's predictions beside its axes, as its file says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_serializer


class StoredModel(BaseModel):
    """Base of what files say. Kinds are as they stand in JSON: a number in quotes is text.

    A file may say more than a class knows; that is kept.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class ChatFacts(StoredModel):
    """What decides how prompts are put to a chat model."""

    style: str
    system: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What the template is given beside the messages."""
    template: str = ""
    """Hash of the template."""
    around: list[str] = Field(default_factory=list)
    """What the template writes around contents."""


class Facts(StoredModel):
    """Whatever decides a cell's predictions and is not an axis; None where a cell has no such fact.

    What is None is not stored and does not enter a cell's hash, so that a fact that a later version
    adds does not rename the cells that are there. Further facts are those of plugins.
    """

    backend: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    server: str | None = None
    """Address of the server that answers."""
    endpoint: str | None = None

    fingerprint: str | None = None
    """Of the model's files."""
    scoring: str | None = None
    """How an answer is found: ``greedy``, ``exact``, ``unconstrained``, ``generate``, or
    ``classifier`` for what was trained."""
    seed: int | None = None

    data: dict[str, str] | None = None
    """Each data file with its SHA-256."""
    fields: dict[str, Any] | None = None
    """Names of a single file's columns."""
    passages: dict[str, Any] | None = None
    test: str | None = None
    """Hash of the ids of the test rows."""
    test_rows: int | None = None
    pool: str | None = None
    """Hash of the ids of the pool's rows."""
    pool_rows: int | None = None
    label_space: str | None = None
    """Which part of the labels there is, where it is not all of them."""
    labels: str | None = None
    """Hash of the labels, or of each row's choices."""
    choice_style: str | None = None
    """How a row's own choices are answered: ``letters`` or written out."""
    label_rule: dict[str, Any] | None = None
    normalize: str | None = None
    queries: str | None = None
    """``copied``, where demonstrations are asked for instead of test rows."""

    template: dict[str, Any] | None = None
    chat: ChatFacts | None = None
    perturbation: str | None = None
    bertscore_encoder: str | None = None
    """What BERTScore compared demonstrations by."""
    sentence_encoder: str | None = None

    max_answer_tokens: int | None = None
    """Of free text."""
    answer: dict[str, Any] | None = None
    """What of a free answer is compared."""
    stops: list[str] | None = None
    bertscore: str | None = None
    """The encoder of the metric."""

    recipe: dict[str, Any] | None = None
    """How a model was fine-tuned."""
    validation: str | None = None
    """Rows that choose the checkpoint."""
    checkpoint: str | None = None
    """Whether ``validation`` or ``test`` rows chose it."""

    imported: str | None = None
    """Of an import, about which no other fact is known: the file that it is from."""

    @model_serializer
    def known(self) -> dict[str, Any]:
        """The facts that there are, by name, as they are stored."""
        found = {name: fact for name, fact in {**self.__dict__, **(self.model_extra or {})}.items() if fact is not None}
        if self.chat is not None:
            found["chat"] = self.chat.model_dump(exclude_none=True)
        return found

    def with_more(self, **facts: Any) -> Facts:
        """The same with other facts, or further ones."""
        return Facts(**{**self.known(), **facts})

    @property
    def are_of_a_run(self) -> bool:
        """Whether predictions were computed by this program, and what decided them is known."""
        return self.imported is None and self != UNKNOWN

    @property
    def written_out(self) -> bool:
        """Whether answers are a row's own choices, written out."""
        return self.choice_style not in (None, "letters")

    def agrees(self, other: Facts) -> bool:
        """Whether all facts that both have are the same."""
        mine, others = self.known(), other.known()
        return all(mine[name] == others[name] for name in mine.keys() & others.keys())


UNKNOWN = Facts()
"""Of a variant of which nothing is known."""


FactsOf: TypeAlias = Mapping[str, Facts]
"""Variant -> its facts."""


NO_FACTS: FactsOf = {}
"""Of no variant anything is known."""
