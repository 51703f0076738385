"""Refuses a model folder in which a name belongs to something other than a file."""

from __future__ import annotations

from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.wording import first_line, plain

_SUFFIXES = frozenset({".json", ".safetensors", ".model", ".txt", ".jinja"})


def refuse_odd_files(folder: Path, subject: str) -> None:
    """Raise ``UserError`` if a file that libraries would read is a folder, a named pipe or a broken link.

    A pipe would block them forever, and a folder causes a traceback. ``subject`` begins the message.
    """
    try:
        files = sorted(file for depth in ("*", "*/*") for file in folder.glob(depth))
        odd = [file for file in files if file.suffix in _SUFFIXES and not file.is_file()]
    except OSError as error:
        raise UserError(f"{subject} cannot be read ({first_line(error)})") from None
    if odd:
        name = plain(odd[0].relative_to(folder))
        kind = "a folder" if odd[0].is_dir() else "a broken link" if odd[0].is_symlink() else "a pipe or a device"
        raise UserError(f"{subject} {name} is {kind}, not a file; give a folder that save_pretrained wrote")
