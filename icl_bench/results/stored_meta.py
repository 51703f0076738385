"""What stored files say of themselves, checked for the kinds of values that readers rely on.

What is checked here may be left out only where it says so. Whatever else a file says is its own.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from icl_bench.models.architecture import Architecture
from icl_bench.results.cells import Prediction


class _Stored(BaseModel):
    """Kinds are as they stand in JSON: a number in quotes is text."""

    model_config = ConfigDict(strict=True, extra="allow")


class SpecMeta(_Stored):
    """The axes of a cell."""

    task: str
    model: str
    select: str
    order: str
    attention: str
    k: int
    draw: int


class _TaskMeta(_Stored):
    metrics: list[str]
    labels: Any = None


class _Training(_Stored):
    seconds: float = 0.0
    tokens: float = 0.0
    flops: float = 0.0


class CellMeta(_Stored):
    """Of a finished cell."""

    spec: SpecMeta
    facts: dict[str, Any]
    seconds: float | None = None
    demonstration_ids: list[str] | None = None
    demonstration_labels: dict[str, list[str]] | None = None
    shown_answers: dict[str, str] | None = None
    prefix_tokens: int | None = None
    context_tokens: int = 0
    task: _TaskMeta | None = None
    versions: dict[str, Any] | None = None
    run: dict[str, Any] | None = None
    architecture: dict[str, Any] | None = None
    training: _Training | None = None
    compute: dict[str, float] | None = None
    prefill_seconds: float | None = None
    peak_cache_bytes: float | None = None

    @model_validator(mode="after")
    def _labels_are_known(self) -> CellMeta:
        """Where answers are labels that rows have in common, each demonstration that is named has
        one.
        """
        if self.task is None or self.task.labels is None:
            return self
        if self.facts.get("choice_style", "letters") != "letters":
            return self
        if self.demonstration_labels is None:
            raise ValueError("demonstration_labels are missing")
        known = {name for names in self.demonstration_labels.values() for name in names}
        if not known.issuperset(self.demonstration_ids or ()):
            raise ValueError("demonstration_labels do not name all demonstrations")
        return self


class ImportMeta(_Stored):
    """Of an import."""

    source: str
    sha256: str
    rows: int


class LossesMeta(_Stored):
    """Of losses of a text."""

    model: str
    fingerprint: str
    dtype: str
    attention: str
    sha256: str
    length: int
    by_length: dict[str, dict[str, float]]


class FailureMeta(_Stored):
    """The mark of a failed cell."""

    spec: SpecMeta
    reason: str
    cell: str
    variant: str


class _StudyCell(SpecMeta):
    setting: str
    cell: str


class StudyMeta(_Stored):
    """What a study asked for."""

    study: str
    cells: list[_StudyCell]


def checked(raw: bytes, kind: type[_Stored]) -> dict[str, Any]:
    """What stands in a file's JSON. Raises ``ValueError``, on one line, where it is otherwise."""
    try:
        found: dict[str, Any] = json.loads(raw)
        meta = kind.model_validate(found)
        if isinstance(meta, CellMeta) and meta.architecture:
            Architecture.of(meta.architecture)
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    except RecursionError:
        raise ValueError("too deep a nesting") from None
    except (KeyError, TypeError) as error:
        raise ValueError(f"architecture: {error!r}") from None
    return found


def checked_prediction(line: bytes) -> Prediction:
    """The prediction in a journal's line, which may have seconds too. Raises ``ValueError``."""
    return _predictions().validate_json(line, strict=True)


@cache
def _predictions() -> TypeAdapter[Prediction]:
    return TypeAdapter(Prediction)


def _first(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]
