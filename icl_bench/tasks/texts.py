"""Long texts: files of a folder, as they stand."""

from __future__ import annotations

import gzip
import hashlib
import io
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError


def text_files(folder: Path) -> list[Path]:
    """The texts of a folder, by name. Raises ``UserError`` where there is none."""
    if not folder.is_dir():
        raise UserError(f"--texts {folder}: there is no such folder")
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".txt", ".txt.gz")))
    if not found:
        raise UserError(f"--texts {folder}: holds no .txt or .txt.gz file")
    return found


def text_name(file: Path) -> str:
    """What a text is called."""
    return file.name.removesuffix(".gz").removesuffix(".txt")


def read_text(file: Path) -> tuple[str, str]:
    """A file's text, and the SHA-256 of its bytes. Raises ``UserError``."""
    try:
        raw = file.read_bytes()
        raw = gzip.decompress(raw) if file.suffix == ".gz" else raw
    except (OSError, EOFError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from None
    try:
        content = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 (byte {error.start:,})") from None
    return content, hashlib.sha256(raw).hexdigest()


def text_ids(tokenizer: Any, content: str) -> list[int]:
    """A text's tokens, without special ones."""
    found = tokenizer(
        [content], add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    ids: list[int] = found["input_ids"][0]
    return ids
