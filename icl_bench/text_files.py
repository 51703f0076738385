"""Reads users' files, or reports why they cannot be read; writes files atomically."""

from __future__ import annotations

import ast
import codecs
import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from icl_bench.errors import UserError
from icl_bench.wording import plain, short


def read_file(path: Path) -> bytes:
    """The bytes of a file, or of a shell's ``<(...)``. Raises ``UserError``.

    Named pipes and devices are not read, because they may never be written to, or never end.
    """
    try:
        shells = path == Path("/dev/stdin") or any(map(path.is_relative_to, ("/dev/fd", "/proc")))
        if path.is_char_device() or (path.is_fifo() and not shells):
            raise UserError(f"{plain(path)}: is a named pipe or a device, not a file")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{plain(path)}: cannot be read: {reason}") from None


MARKS = {  # the mark of UTF-32 begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks, and the encoding of a file that begins with one."""


def decode(raw: bytes, shown: str, encoding: str | None = None) -> str:
    """Decode text with this encoding, by default that of its byte order mark, else UTF-8. The mark is removed.

    Raises ``UserError`` with the line.
    """
    encoding = encoding or next((name for mark, name in MARKS.items() if raw.startswith(mark)), "utf-8")
    try:
        return raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        at = f"byte 0x{raw[error.start]:02x}" if error.start < len(raw) else "its end"
        raise UserError(f"{shown}:{line}: not {encoding.upper()} ({at})") from None


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises ``ValueError`` for invalid JSON, and for an object with a repeated key, of which Python would silently keep
    the last; ``RecursionError`` if it is nested too deeply.
    """
    return _DECODER.decode(text)


def parse_literal(text: str) -> Any:
    """The value of a Python literal. Raises ``ValueError`` for any other text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:  # TypeError: a set of lists
        raise ValueError(f"not a literal: {short(text)}") from error


def json_file(path: Path) -> Any:
    """The value of a JSON file, for example of a model's folder.

    Raises ``OSError``, also for a named pipe, which would block; ``ValueError`` if it is invalid or nested too deeply.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _every_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
        raise ValueError(f"the key {short(twice)} appears twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_every_key_once)
"""One for all texts: json.loads would make one for each."""


WRITING = ".writing-"
"""Prefix of the names of unfinished files."""


def write_whole(path: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, then rename; creates the folder.

    The temporary name begins with a dot. Its permissions follow the umask. Raises ``OSError``.
    """
    with writing_whole(path) as stream:
        stream.write(content)


def write_new(path: Path, content: bytes) -> None:
    """Write a new file atomically. Raises ``FileExistsError``, and other ``OSError``."""
    with writing_whole(path, new=True) as stream:
        stream.write(content)


@contextmanager
def writing_whole(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """A context for writing a file in parts; the file appears when the block has succeeded.

    If the block raises, an existing file is kept. With ``new``, no file may exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.parent / f"{WRITING}{secrets.token_hex(8)}{path.suffix}"
    # files of tempfile are readable only by their owner, regardless of the umask
    handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        _name(written, path, new=new)
    except BaseException:
        with suppress(OSError):
            written.unlink()
        raise


def _name(written: Path, path: Path, *, new: bool) -> None:
    """Move a written file to its name."""
    if new:
        try:
            path.hardlink_to(written)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        else:
            written.unlink()
            return
    written.replace(path)
