"""Results without what identifies their author, for blind review: a storage that shows them so.

Paths are shown by their last part; addresses, except those of large providers, by their scheme; names of this machine
and its user not at all. Names of models, tasks and data sets, predictions and questions stay: they are the results.
"""

from __future__ import annotations

import getpass
import json
import platform
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from icl_bench.results.cells import AXES
from icl_bench.results.storage import Place, storage_at
from icl_bench.results.stored_meta import CHECK, json_content
from icl_bench.table_files import parquet_bytes, parquet_table

if TYPE_CHECKING:
    import pyarrow as pa

PROVIDERS = ("api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com", "openrouter.ai")
"""Hosts that say nothing of who asks them."""

_LEFT_OUT = "…"
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^\s/'\",;)]*)[^\s'\",;)]*")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?::[\w./-]+)?")
"""Mail addresses, and remotes of Git: ``git@host:owner/name``."""
_PATH = re.compile(
    r"(?<![\w/.:~<-])(?:~[\w.-]*/|/|(?:\.\./)+|[A-Za-z]:[\\/])(?:[^\s/\\'\",;:)]+[\\/])+([^\s/\\'\",;:)]*)"
)
"""A path from the root, from a home folder, or out of the folder of the run, with its last part."""


class Anonymous:
    """A storage for reading that shows the files of another one without what identifies their author."""

    def __init__(self, place: Place) -> None:
        self._storage = storage_at(place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __str__(self) -> str:
        return self._storage.where()

    def read(self, name: str) -> bytes:
        """The file's content; a damaged one as it is, which nobody reads."""
        raw = self._storage.read(name)
        with suppress(Exception):  # what pyarrow raises for a damaged file, too
            return _table(raw) if name.endswith(".parquet") else _json(raw)
        return raw

    def where(self, name: str = "") -> str:
        """The file's name alone, which the report may quote; the place itself in errors."""
        return name or self._storage.where()


def anonymous(value: Any) -> Any:
    """A JSON value without what identifies its author, in texts and names of fields."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [anonymous(each) for each in value]
    if isinstance(value, dict):
        return {
            _text(name): each if name in AXES and isinstance(each, str) else anonymous(each)
            for name, each in value.items()
        }
    return value


def _text(text: str) -> str:
    text = _ADDRESS.sub(lambda found: found[0] if found[2] in PROVIDERS else f"{found[1]}://{_LEFT_OUT}", text)
    text = _PATH.sub(lambda found: found[1] or _LEFT_OUT, _MAIL.sub(_LEFT_OUT, text))
    return _names().sub(_LEFT_OUT, text)


@cache
def _names() -> re.Pattern[str]:
    """Names of this machine and its user."""
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    long = sorted((name for name in names - {"root", "localhost"} if len(name) > 2), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, long))})(?![\w-])" if long else r"(?!)")


def _json(raw: bytes) -> bytes:
    fields = anonymous(json.loads(raw))
    written = fields.pop(CHECK, None)
    return raw if written is None and CHECK in fields else json_content(fields)


def _table(raw: bytes) -> bytes:
    table: pa.Table = parquet_table(raw)
    about = {name: _metadata(value) for name, value in (table.schema.metadata or {}).items()}
    if "reason" in table.column_names:
        import pyarrow as pa

        reasons = [reason and _text(reason) for reason in table["reason"].to_pylist()]
        table = table.set_column(table.column_names.index("reason"), "reason", pa.array(reasons, pa.string()))
    return parquet_bytes(table.replace_schema_metadata(about))


def _metadata(value: bytes) -> bytes:
    try:
        fields = json.loads(value)
    except ValueError:
        return value
    return json.dumps(anonymous(fields), ensure_ascii=False).encode()
