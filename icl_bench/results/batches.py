"""Batches of a cell at a server, in a small file next to its journal until the cell is finished.

The file is written before a batch is created and after its id is known, so the batch is found again after a kill
between any two steps.
"""

from __future__ import annotations

import uuid

from pydantic import BaseModel, ConfigDict, Field

from icl_bench.results.cells import short_hash

STRICT = ConfigDict(extra="forbid")
"""An unknown field may be a damaged name: an unknown batch would be sent, and paid, twice."""


class BatchRecord(BaseModel):
    """Some requests of a cell in one batch."""

    model_config = STRICT

    rows: list[tuple[str, str]]
    """Test id and hash of the prompt of each request."""
    attempt: int = 1
    """1, plus one for each batch in which the server did not answer these requests."""
    bare: bool = False
    """Whether the texts that end an answer are not sent."""
    token: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Identifies the batch at the server."""
    creating: float | None = None
    """When its creation started (seconds since 1970); None if it certainly does not exist."""
    not_before: float = 0.0
    """When it may be created (seconds since 1970)."""
    file: str | None = None
    """The uploaded file with its requests."""
    after: str | None = None
    """The newest batch at the server before it was created."""
    id: str | None = None
    """None until the server has confirmed its creation."""
    sent: list[str] = Field(default_factory=list)
    """The program's own arguments in its requests, which the server may refuse."""
    reserved: float | None = None
    """Its maximum cost, by the prices of the run that created it; None without a budget."""

    def name(self, row: tuple[str, str]) -> str:
        """The name of one of its requests: that of the row and its prompt, so that no row gets another's answer."""
        return f"{self.token}-{short_hash(row)}"

    def numbered_name(self, number: int) -> str:
        """The name of one of its requests in batches of version 0.2.0."""
        return f"{self.token}-{number}"


class CellBatches(BaseModel):
    """The batches of a cell that are planned or not yet read."""

    model_config = STRICT

    batches: list[BatchRecord] = Field(default_factory=list)
    refused: list[str] = Field(default_factory=list)
    """Arguments that the server refuses."""
