"""The report: one HTML page of all findings, and its charts as figures.

Altair, Jinja2 and vl-convert come with the extra ``report``; without them every other part of the
program works.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.results.storage import Place
from icl_bench.text_files import write_whole

MODULES = {"altair", "jinja2", "markupsafe", "vl_convert"}


@dataclass(frozen=True)
class Written:
    """What was written where."""

    page: Path
    size: int
    """Bytes of the page."""
    figures: tuple[Path, ...] = ()

    def in_words(self) -> str:
        """The same for a person."""
        text = f"{self.page} ({self.size / 1e6:.1f} MB)"
        if self.figures:
            text += f" and {len(self.figures)} figures in {self.figures[0].parent}"
        return text


def write_report(
    results: Place,
    out: Path,
    *,
    only: Mapping[str, str] | None = None,
    figures: Path | None = None,
    data_dir: Path | None = None,
) -> Written:
    """Write the page of a results folder, or of what in it has these values (task, model).

    ``figures`` is a folder for the charts as files; ``data_dir`` is where prompts are rebuilt from.
    Raises ``UserError`` where there are no results, a file cannot be written, or a library of the
    extra ``report`` is missing.
    """
    try:
        from icl_bench.report.build import make_report
        from icl_bench.report.figures import prepare, write_figures
        from icl_bench.report.page import page
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in MODULES:
            raise
        raise UserError(
            f"the report needs {error.name}, which is missing: pip install 'icl-bench[report]'"
        ) from None
    _check(out)
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(f"the data folder {data_dir} is not there")
    if figures is not None:
        prepare(figures)
    made = make_report(results, only, data_dir)
    content = page(made).encode()
    _write(out, content)
    written = write_figures(made, figures) if figures is not None else []
    return Written(out, len(content), tuple(written))


def _check(out: Path) -> None:
    """Refuse what cannot be written before anything is computed."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; give a file like {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise UserError(f"--out {out}: cannot be written (Permission denied)")


def _write(out: Path, content: bytes) -> None:
    try:
        write_whole(out, content)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
