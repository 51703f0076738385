"""A row's passages: texts that were retrieved for its question, as a column lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icl_bench.errors import UserError
from icl_bench.tasks.spec import Passages
from icl_bench.tasks.splits import Row, encodable
from icl_bench.wording import plain, short


def read_passages(asked: Passages, row: Row) -> tuple[str, ...]:
    """The passages of one row, in the list's order. Raises ``UserError`` that names the row."""
    value, name = row.cell(asked.column), plain(asked.column)
    if not isinstance(value, list):
        raise UserError(f"{row.where}: {name} must be a list of texts or of objects, not {short(value)}")
    return tuple(_written(asked, row, name, item) for item in value[asked.skip :])


def _written(asked: Passages, row: Row, name: str, item: Any) -> str:
    given = {"text": item} if isinstance(item, str) else item
    if not isinstance(given, Mapping):
        raise UserError(f"{row.where}: {name} holds {short(item)}, which is no text and no object")
    try:
        text = asked.text.format_map({n: v for n, v in given.items() if isinstance(v, str | int)})
    except KeyError as error:
        raise UserError(
            f"{row.where}: a passage in {name} has no text {plain(error.args[0])}, "
            f"which data.passages.text names: {short(item)}"
        ) from None
    if not text or text.isspace():
        raise UserError(f"{row.where}: {name} holds an empty passage")
    return encodable(text, row, asked.column)
