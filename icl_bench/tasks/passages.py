"""A row's passages: texts that were retrieved for its question, read from a column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.spec import Passages
from icl_bench.tasks.splits import StoredRow, encodable
from icl_bench.wording import plain, short


def read_passages(spec: Passages, row: StoredRow) -> tuple[str, ...]:
    """The passages of one row, in the list's order. Raises ``UserError`` that names the row."""
    value, name = row.cell(spec.column), plain(spec.column)
    if not isinstance(value, list):
        raise UserError(f"{row.where}: {name} must be a list of texts or of objects, not {short(value)}")
    return tuple(_passage_text(spec, row, name, item) for item in value[spec.skip :])


def _passage_text(spec: Passages, row: StoredRow, name: str, item: Any) -> str:
    fields = {"text": item} if isinstance(item, str) else item
    if not isinstance(fields, Mapping):
        raise UserError(f"{row.where}: {name} holds {short(item)}, which is neither a text nor an object")
    try:
        text = spec.text.format_map({n: v for n, v in fields.items() if isinstance(v, str | int)})
    except KeyError as error:
        raise UserError(
            f"{row.where}: a passage in {name} has no text {plain(error.args[0])}, "
            f"which data.passages.text names: {short(item)}"
        ) from None
    if not text or text.isspace():
        raise UserError(f"{row.where}: {name} holds an empty passage")
    return encodable(text, row, spec.column)
