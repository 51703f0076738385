"""Reads a file that a user names, or says why it cannot be read."""

from __future__ import annotations

from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.wording import plain


def read_file(path: Path) -> bytes:
    """The bytes of a file. Raises ``UserError``."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{plain(path)}: cannot be read: {reason}") from None


def decode(raw: bytes, shown: str) -> str:
    """UTF-8 text, a byte order mark left off. Raises ``UserError`` with the line."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{shown}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x})") from None
