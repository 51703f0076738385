"""Metadata of stored files, with checked types of the fields that readers rely on.

Fields without a default are required. Unknown fields are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from icl_bench.metrics.scores import ACCURACY
from icl_bench.models.architecture import Architecture
from icl_bench.results.cells import CellSpec, Identity, Prediction, short_hash
from icl_bench.results.facts import Facts, StoredModel


class SpecMeta(CellSpec):
    """The axes of a cell."""

    model_config = ConfigDict(strict=True, extra="allow")


class RationalesMeta(StoredModel):
    """The cost of writing a pool's rationales with a model."""

    model: str
    prompt_tokens: float
    cached_tokens: float
    written_tokens: float
    seconds: float | None = None
    flops: float | None = None


class TaskMeta(StoredModel):
    """The specification of a task."""

    metrics: list[str]
    labels: Any = None
    rationales: RationalesMeta | None = None


class RunMeta(StoredModel):
    """The run that computed a cell."""

    command: str | None = None
    """None if another program called this one."""
    finished: str | None = None
    """End of the run (UTC)."""
    hardware: str | None = None


class StepLoss(StoredModel):
    """The loss on validation rows after a step of a training."""

    step: int
    validation: float
    tokens: float | None = None
    """Tokens of the training so far."""


class TrainingMeta(StoredModel):
    """The training that a cell's answers depend on, and its cost."""

    method: str | None = None
    seconds: float | None = None
    tokens: float | None = None
    flops: float | None = None
    base: str | None = None
    """The model that was adapted, for an adaptation."""
    base_fingerprint: str | None = None
    attention: str | None = None
    losses: list[StepLoss] = Field(default_factory=list)
    of_model: TrainingMeta | None = None
    """The training by this program of the model that was trained further."""

    @property
    def is_adaptation(self) -> bool:
        """Whether a model was adapted to an attention pattern, with all fields known."""
        return self.method == "adaptation" and None not in (self.base, self.attention, self.tokens)


class CalibrationMeta(StoredModel):
    """The queries that calibrate a cell's predictions (derived, in no file)."""

    cell: str
    """The cell of these queries."""
    queries: int
    tokens: float
    """Computed tokens besides the prompt's shared beginning."""
    flops: float | None = None
    seconds: float | None = None


def _architecture(value: Any) -> Architecture | None:
    if value is None or isinstance(value, Architecture):
        return value
    try:
        return Architecture.of(value) if value else None
    except (KeyError, TypeError) as error:
        raise ValueError(repr(error)) from None


StoredArchitecture = Annotated[
    Architecture | None,
    PlainValidator(_architecture),
    PlainSerializer(lambda architecture: architecture and architecture.as_json()),
]


class CellMeta(StoredModel):
    """Metadata of a finished cell's file."""

    # a field name may begin with "model"
    model_config = ConfigDict(protected_namespaces=())

    spec: SpecMeta
    facts: Facts
    protocol: int | None = None
    seconds: float | None = None
    """Time that the backend took to answer."""
    demonstration_ids: list[str] | None = None
    """Ids of the demonstrations that all prompts share."""
    demonstration_labels: dict[str, list[str]] | None = None
    """Label in the data -> ids of its demonstrations."""
    label_order: list[str] | None = None
    """The labels in the order of their scores; None without scores, or if rows have choices of their own."""
    shown_answers: dict[str, str] | None = None
    """Answers that prompts show instead of those in the data, by demonstration id."""
    near_duplicates: list[str] | None = None
    """Ids of the test rows that have a near duplicate in the pool; None if they were not searched."""
    rows_left_out: int | None = None
    """Test rows that the task file leaves out: too long, or without a label."""
    prefix_tokens: int | None = None
    """Tokens that all prompts share."""
    context_tokens: int | None = None
    """The model's context window."""
    task: TaskMeta | None = None
    model_source: str | None = None
    chat_day: str | None = None
    """The date that the chat template wrote, if it writes one."""
    tokenizer: str | None = None
    """The model whose tokenizer counts tokens for a model behind a server."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the packages that computed the predictions."""
    run: RunMeta = RunMeta()
    notes: list[str] = Field(default_factory=list)
    data_source: str | None = None
    """Source of the data, in words."""
    architecture: StoredArchitecture = None
    training: TrainingMeta | None = None
    compute: dict[str, float] | None = None
    """Operations and bytes by formula."""
    prefill_seconds: float | None = None
    """The part of ``seconds`` for tokens that queries share. A cell that was computed in parts has the sum of all."""
    peak_cache_bytes: float | None = None
    packs: dict[str, int] | None = None
    """Largest number of ``rows`` (queries) and ``tokens`` of a call of the model, and ``calls`` open at once, in the
    run that finished the cell. They are not facts of a cell, but sums in 16 bits depend on them slightly, so that a few
    answers may differ.
    """
    served: dict[str, str] | None = None
    """The server that answered: ``model`` (several with commas), ``host`` after a redirect, how it ``scores``, and
    arguments that it refused (``left_out``).
    """
    batched: bool | None = None
    """Whether answers were requested in batches, which providers bill at half price."""

    calibration: CalibrationMeta | None = Field(None, exclude=True)
    """The cost of a derived cell's calibration."""

    # columns with an equal value in all predictions
    cell: str = Field("", exclude=True)
    variant: str = Field("", exclude=True)

    @classmethod
    def of(cls, identity: Identity, **further: Any) -> CellMeta:
        """Metadata of a cell, with ``further`` fields."""
        return cls(spec=SpecMeta(**identity.spec.model_dump()), facts=identity.facts, **further)

    @property
    def task_as_given(self) -> dict[str, Any]:
        """The fields of the :class:`icl_bench.tasks.spec.TaskSpec`."""
        return self.task.model_dump(exclude_unset=True) if self.task else {}

    @model_validator(mode="after")
    def _labels_are_known(self) -> CellMeta:
        """Check that each named demonstration has a label, if rows have common labels."""
        if self.task is None or self.task.labels is None or self.facts.written_out:
            return self
        if self.demonstration_labels is None:
            raise ValueError("demonstration_labels are missing")
        known = {name for names in self.demonstration_labels.values() for name in names}
        if not known.issuperset(self.demonstration_ids or ()):
            raise ValueError("demonstration_labels do not name all demonstrations")
        return self


class ImportMeta(StoredModel):
    """Metadata of an import."""

    source: str
    sha256: str
    rows: int
    protocol: int | None = None


class Origin(StoredModel):
    """Provenance of a variant's predictions, as in an export: its facts and package versions."""

    facts: Facts
    versions: list[dict[str, str]] = Field(default_factory=list)
    """Each distinct set of package versions that computed its cells."""
    label_order: list[str] | None = None
    """The labels in the order of stored label scores."""
    metrics: list[str] | None = None
    """The task's metrics; points are compared by the first."""


def read_origins(stored: bytes) -> dict[str, Origin]:
    """Parse the origins stored in an export. Raises ``ValueError``."""
    return TypeAdapter(dict[str, Origin]).validate_json(stored)


class LossesMeta(StoredModel):
    """Metadata of a text's losses."""

    model: str
    fingerprint: str
    dtype: str
    attention: str
    sha256: str
    length: int
    by_length: dict[str, dict[str, float]]
    """Length -> ``prefill_flops`` and ``cache_bytes`` by formula."""
    backend: str | None = None
    rope_scale: float | None = None
    """The divisor of positions; None for the model's own."""
    rope_theta: float | None = None
    """The base of the rotary positions; None for the model's own."""
    text: str | None = None
    windows: int | None = None
    lengths: list[int] | None = None
    training: TrainingMeta | None = None
    seconds: float | None = None
    peak_cache_bytes: float | None = None
    versions: dict[str, str] = Field(default_factory=dict)


class PriorMeta(StoredModel):
    """A distribution over a task's labels, stated by a user."""

    task: str
    """Its name, followed by the part of its labels that the data were reduced to, if they were."""
    name: str
    shares: dict[str, float]
    """Label -> share; they sum to 1."""


class FailureMeta(StoredModel):
    """The mark of a failed cell."""

    spec: SpecMeta
    reason: str
    cell: str
    variant: str


class StudyCell(SpecMeta):
    """A cell that a study contains."""

    setting: str
    """The block of the study's file."""
    cell: str
    variant: str | None = None


class StudyMeta(StoredModel):
    """The cells of a study."""

    study: str
    cells: list[StudyCell]


class RaceStanding(StoredModel):
    """One setting after a round; scores are shares of 1."""

    predictions: int
    draws: int
    score: float | None = None
    """None before the first answer."""
    ci_low: float
    ci_high: float
    out: bool
    """Whether it was dropped."""
    why: str | None = None
    """Why it was dropped, if known: ``worse``, ``dearer`` or ``not better`` than the choice, or ``left out``."""


class RaceRound(StoredModel):
    """The state after a round."""

    predictions: int
    """Predictions of all settings together."""
    leader: str
    standings: list[RaceStanding]
    """In the order of the race's settings."""


class RacedSetting(StoredModel):
    """One setting of a race."""

    setting: str
    """Its name."""
    model: str | None = None
    select: str
    k: int


class RaceMeta(StoredModel):
    """A running or finished race."""

    task: str
    model: str
    """Several models are separated by commas."""
    measure: str = ACCURACY
    """The score that settings are compared by."""
    margin: float
    """A share of 1."""
    error: float
    rows: int
    """Test rows of a complete cell."""
    draws: int
    queries: int
    """Queries that the choice will answer."""
    prices: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Prices of its models by name; models without prices are left out."""
    choice: str | None = None
    decided: bool
    ended: str | None = None
    """Why it ended with open settings; None while it runs, and if none was open."""
    predictions: int
    predictions_of_full_sweep: int
    settings: list[RacedSetting]
    rounds: list[RaceRound]
    answer: list[str]
    """The output lines of ``choose``."""
    command: str
    """The command that computes all cells of the race completely."""
    cells: list[str]
    """Names of the race's cells, without suffixes."""

    def is_of(self, task: str | None, model: str | None) -> bool:
        """Whether it has this task and this model, each if given."""
        return task in (None, self.task) and (model is None or model in self.models)

    @property
    def models(self) -> list[str]:
        """Its models."""
        return list(dict.fromkeys(one.model or self.model for one in self.settings))

    @model_validator(mode="after")
    def _is_whole(self) -> RaceMeta:
        """Check that there is a round, and that each round has all settings."""
        if not self.rounds or any(len(one.standings) != len(self.settings) for one in self.rounds):
            raise ValueError("a round does not have the race's settings")
        return self


Meta = TypeVar("Meta", bound=BaseModel)

CHECK = "check"
"""Field of a JSON file, or of a journal's line: a hash of the other fields. Earlier versions did not write it."""


def checked(raw: bytes, kind: type[Meta]) -> Meta:
    """Parse a file's JSON as this type.

    Raises ``ValueError``, on one line, if it does not match, or has changed since :func:`json_content` wrote it.
    """
    try:
        # not with pydantic's own parser, which refuses invalid Unicode, as in some file names
        fields = json.loads(raw)
        if isinstance(fields, dict):
            unknown = next(iter(fields), CHECK) not in (CHECK, *kind.model_fields)  # perhaps the hash's changed name
            if unknown or not is_as_written(fields):
                raise ValueError("not as it was written")
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_as_written(fields: dict[str, Any]) -> bool:
    """Remove the hash from a JSON file's fields. Returns whether they are unchanged since :func:`json_content` wrote
    them.
    """
    written = fields.pop(CHECK, None)
    return written is None or written == short_hash(fields)


def as_stored(meta: BaseModel) -> dict[str, Any]:
    """The metadata as JSON that ``checked`` can read, without None values."""
    fields = meta.model_dump(exclude_unset=True)
    return {name: value for name, value in fields.items() if value is not None}


def as_json(value: Any, **options: Any) -> bytes:
    """A value as JSON with unescaped letters; invalid Unicode, as in some file names, is escaped."""
    return json.dumps(value, ensure_ascii=False, **options).encode(errors="backslashreplace")


def json_content(fields: Mapping[str, Any]) -> bytes:
    """A JSON file of these fields, with a hash that ``checked`` compares.

    The hash is first, because lost bytes before it would merge the last field with its name.
    """
    return as_json({CHECK: short_hash(fields), **fields}, indent=1) + b"\n"


def checked_prediction(line: bytes) -> Prediction:
    """Parse the prediction in a journal's line, which may also have seconds. Raises ``ValueError``."""
    return _predictions().validate_json(line, strict=True)


@cache
def _predictions() -> TypeAdapter[Prediction]:
    return TypeAdapter(Prediction)


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
