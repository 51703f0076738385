"""Long texts: the text files of a folder."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.table_files import gunzip


def text_files(folder: Path) -> list[Path]:
    """The text files of a folder, sorted by name. Raises ``UserError`` if there is none."""
    if not folder.is_dir():
        raise UserError(f"--texts {folder}: there is no such folder")
    paths = sorted(p for p in folder.iterdir() if p.name.endswith((".txt", ".txt.gz")))
    if not paths:
        raise UserError(f"--texts {folder}: holds no .txt or .txt.gz file")
    return paths


def text_name(file: Path) -> str:
    """The name of a text."""
    return file.name.removesuffix(".gz").removesuffix(".txt")


def read_text(file: Path) -> tuple[str, str]:
    """A file's text, and the SHA-256 of its (decompressed) bytes. Raises ``UserError``."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error})") from None
    raw = gunzip(raw, str(file)) if file.suffix == ".gz" else raw
    try:
        content = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 (byte {error.start:,})") from None
    return content, hashlib.sha256(raw).hexdigest()


def text_ids(tokenizer: Any, content: str) -> list[int]:
    """The token ids of a text, without special tokens."""
    encoding = tokenizer(
        [content], add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )
    ids: list[int] = encoding["input_ids"][0]
    return ids
