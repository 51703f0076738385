"""Writes the page and all predictions into a folder.

The page refers to its data files by hashes of their content and is replaced after they are written. So the folder
always has the previous page or the new one, each with its own data, even if writing was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.report.build import Report
from icl_bench.report.page import GENERATOR, page
from icl_bench.report.prediction_sample import Sample, sample_fields
from icl_bench.report.published.data_files import FOLDER, NAME, DataFiles
from icl_bench.report.published.details import READ, Details
from icl_bench.report.published.lists import Lists
from icl_bench.report.viewer.folder import Folder
from icl_bench.report.viewer.predictions import CURVE_COLUMNS
from icl_bench.results.storage import Place
from icl_bench.text_files import WRITING, write_whole
from icl_bench.wording import plain

PAGE = "index.html"


ALLOWED = ("readme.md", "license", "cname")
"""Lower-case names of other files that the folder may contain, because it may be the root of a repository. Names that
begin with a dot are allowed too.
"""


@dataclass(frozen=True)
class Published:
    """The written files."""

    page: Path
    size: int
    """Bytes of all files."""
    predictions: int


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not writable, or has files of other programs, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--all {plain(folder)}: is not a folder")
    if not folder.parent.is_dir():
        raise UserError(f"--all {plain(folder)}: there is no folder {plain(folder.parent)}")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise UserError(f"--all {plain(folder)}: cannot be written (Permission denied)")
    if foreign := _foreign(folder):
        raise UserError(
            f"--all {plain(folder)}: has another file, {plain(foreign)}; give a new folder, or one that --all wrote"
        )


def _foreign(folder: Path) -> str:
    """The first name in the folder that this program did not write; empty if there is none."""
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    for name in names:
        if name not in (PAGE, FOLDER) and not name.startswith(".") and name.lower() not in ALLOWED:
            return name
    if PAGE in names and not _is_ours(folder / PAGE):
        return PAGE
    data = folder / FOLDER
    if FOLDER in names and not data.is_dir():
        return FOLDER
    others = (path.name for path in data.iterdir() if not NAME.fullmatch(path.name)) if data.exists() else ()
    other = min((name for name in others if not name.startswith(".")), default="")
    return f"{FOLDER}/{other}" if other else ""


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return GENERATOR.encode() in stream.read(4096)
    except OSError:
        return False


def publish(
    report: Report,
    results: Place,
    folder: Path,
    *,
    only: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Published:
    """Write a report and all predictions of its results folder. Raises ``UserError``."""
    files, read = DataFiles(folder / FOLDER), None
    if report.sample.total:  # else cells that failed, or a race
        say("reading the predictions")
        read = Folder(results, dict(only or {}), data_dir)
        read.read()
    try:
        files.folder.mkdir(parents=True, exist_ok=True)
        sample = Sample((), (), 0) if read is None else _data(files, read, say)
        content = page(replace(report, sample=sample)).encode()
        write_whole(folder / PAGE, content)
        for path in files.folder.iterdir():  # of the page of before, and of writes that were killed
            if path.name not in files.names and (NAME.fullmatch(path.name) or path.name.startswith(WRITING)):
                path.unlink()
    except OSError as error:
        raise UserError(f"--all {plain(folder)}: cannot be written ({error.strerror})") from None
    return Published(folder / PAGE, files.bytes + len(content), sample.total)


def _data(files: DataFiles, results: Folder, say: Callable[[str], None]) -> Sample:
    """Write all predictions of a results folder that was read. Returns the page's replacement for a sample."""
    now = results.wait()
    lists = Lists(now.predictions)
    say("writing the list of predictions")
    index = lists.index()
    written = lists.write(files)
    tables = lists.in_order(results.tables({*sample_fields(), *CURVE_COLUMNS, *READ, "demonstration_ids"}))
    written |= Details(files, now.prompts).write(tables, lists.questions(), say)
    return Sample.of_folder(len(now.predictions), files.put("index", 0, {**index, "files": written}))
