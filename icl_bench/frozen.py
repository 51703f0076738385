"""The base of all specifications: immutable data that refuses unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of all specifications: immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
