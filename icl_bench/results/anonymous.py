"""Anonymous results for blind review: a storage that removes what identifies the author.

Paths are reduced to their last part, home folders to ``~``, and addresses to their scheme, with the host for large
providers. Names of this machine and its user are removed. Names of models, tasks and data sets, predictions and
questions stay, because they are the results.
"""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from icl_bench.results.cells import AXES, FINISHED, JOURNAL, short_hash
from icl_bench.results.storage import Place, storage_at
from icl_bench.results.stored_meta import as_json, is_as_written, json_content
from icl_bench.table_files import parquet_bytes, parquet_table
from icl_bench.wording import first_line

if TYPE_CHECKING:
    import pyarrow as pa

PROVIDERS = ("api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com", "openrouter.ai")
"""Hosts that do not identify their users."""

_LEFT_OUT = "…"
_PART = r"[^\s/\\'\",;:)]+"
"""A folder or a file of a path."""
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^\s/'\",;)]*)[^\s'\",;)]*", re.IGNORECASE)
_SERVER = re.compile(
    r"(?<![\w.-])(?=[\d:]*[a-z.])(?:[\w.-]+:\d{2,5}/(?!\d)[^\s'\",;)]*|[\w-]+(?:\.[\w-]+)+:\d{4,5}\b)", re.IGNORECASE
)
"""A host and its port, without a scheme: ``host:8000/v1``, ``host.org:8000``."""
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?::[\w./-]+)?")
"""Mail addresses, and remotes of Git: ``git@host:owner/name``."""
_HOME = re.compile(
    rf"(?<![\w/\\.~<-])(?:(?:[a-z]:)?(?:[\\/]{_PART})*?[\\/](?:home\d*|users)[\\/]{_PART}|~[a-z_][\w.-]*)",
    re.IGNORECASE,
)
"""A home folder by the name of its user: ``/home/anna``, ``~anna``."""
_PATH = re.compile(
    rf"(?:(?<![\w/.~<-])~[\\/](?:{_PART}[\\/])*"
    rf"|(?<![\w/.~<-])(?:/(?!/)|(?:\.\./)+|[A-Za-z]:[\\/])(?:{_PART}[\\/])+)({_PART})?"
)
"""A path from the root, from a home folder, or outside the folder of the run, with its last part."""


class Anonymous:
    """A storage for reading that removes what identifies the author from the files of another storage."""

    hides_author = True

    def __init__(self, place: Place) -> None:
        self._storage = storage_at(place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __str__(self) -> str:
        """The last part of the place, as in commands in the report."""
        return _text(self._storage.where().rstrip("/").rpartition("/")[2]) or _LEFT_OUT

    def read(self, name: str) -> bytes:
        """The file's content without what identifies the author.

        Raises ``OSError`` for a file that cannot be parsed; readers report it as damaged.
        """
        raw = self._storage.read(name)
        try:
            if JOURNAL in name:
                return raw  # answers only
            return _table(raw) if name.endswith(FINISHED) else _json(raw)
        except OSError:
            raise
        except Exception as error:  # whatever the error is, the original content must not be shown
            raise OSError(first_line(error)) from None

    def where(self, name: str = "") -> str:
        """The file's name without its folder, which the report may quote; errors have the whole place."""
        return name or self._storage.where()


def shown_beside(place: Place) -> Callable[[str], str]:
    """How a report of a place shows texts of this machine, such as a message that names a folder: unchanged, or without
    what identifies the author if the place's files are anonymised.
    """
    return _text if getattr(storage_at(place), "hides_author", False) else str


def anonymous(value: Any) -> Any:
    """A JSON value without what identifies its author, in texts and names of fields."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [anonymous(each) for each in value]
    if isinstance(value, dict):
        names = _names_apart(value)
        return {
            names[name]: each if name in AXES and isinstance(each, str) else anonymous(each)
            for name, each in value.items()
        }
    return value


def _names_apart(names: Iterable[str]) -> dict[str, str]:
    """Names of fields after anonymisation; colliding names end in a part of their hash."""
    shown = {name: _text(name) for name in names}
    count = Counter(shown.values())
    return {
        name: text if text == name or count[text] == 1 else f"{text}-{short_hash(name)[:4]}"
        for name, text in shown.items()
    }


def _text(text: str) -> str:
    before = None
    while text != before:  # the rest may be a path again; each iteration shortens it
        before = text
        text = _SERVER.sub(_LEFT_OUT, _ADDRESS.sub(_address, text))
        text = _HOME.sub("~", _MAIL.sub(_LEFT_OUT, text))
        text = _names().sub(_LEFT_OUT, _PATH.sub(lambda found: found[1] or _LEFT_OUT, text))
    return text


def _address(found: re.Match[str]) -> str:
    scheme, host = found[1], found[2]
    return f"{scheme}://{host if host.lower() in PROVIDERS else _LEFT_OUT}"


@cache
def _names() -> re.Pattern[str]:
    """Names of this machine and its user."""
    names = {platform.node(), platform.node().partition(".")[0]}
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    long = sorted((name for name in names - {"root", "localhost"} if len(name) > 2), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, long))})(?![\w-])" if long else r"(?!)")


def _json(raw: bytes) -> bytes:
    """The anonymised JSON file; a damaged one unchanged, which :func:`checked` refuses."""
    fields = json.loads(raw)
    if not isinstance(fields, dict):
        return as_json(anonymous(fields))
    return json_content(anonymous(fields)) if is_as_written(fields) else raw


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
        return _text(value.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return as_json(anonymous(fields))
