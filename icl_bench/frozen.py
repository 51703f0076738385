"""The base of everything that is asked for: data that cannot change and refuses unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of all specifications: immutable, and a field it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
