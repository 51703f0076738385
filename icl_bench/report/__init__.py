"""The report: one HTML page of all findings, its charts as figures, and a server of both.

Altair, Jinja2, vl-convert, Starlette and uvicorn come with the extra ``report``. Other parts of the program do not need
them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from icl_bench.errors import UserError
from icl_bench.results.storage import Place
from icl_bench.text_files import write_whole
from icl_bench.wording import counted

if TYPE_CHECKING:
    import socket

    from icl_bench.report.figure_style import FigureStyle
    from icl_bench.report.viewer.folder import Folder

EXTRA_MODULES = {"altair", "jinja2", "markupsafe", "vl_convert", "starlette", "uvicorn"}


@dataclass(frozen=True)
class Written:
    """The written files."""

    page: Path
    size: int
    """Bytes of the page, and of its data files."""
    figures: tuple[Path, ...] = ()
    predictions: int = 0
    """Number of predictions in data files next to the page."""

    def in_words(self) -> str:
        """Text about the written files."""
        text = f"{self.page} ({self.size / 1e6:.1f} MB)"
        if self.predictions:
            text = f"{self.page} ({self.size / 1e6:.1f} MB with {counted(self.predictions, 'prediction')})"
        if self.figures:
            charts = len({path.stem for path in self.figures})  # each in several formats
            text += f" and {counted(charts, 'figure')} in {self.figures[0].parent}"
        return text


def write_report(
    results: Place,
    out: Path,
    *,
    only: Mapping[str, str] | None = None,
    figures: Path | None = None,
    style: FigureStyle | None = None,
    data_dir: Path | None = None,
    with_all: bool = False,
    processes: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Written:
    """Write the page of a results folder, or of its part with these values (task, model).

    With ``with_all``, ``out`` is a folder, for the page and files with all predictions. ``figures`` is a folder for the
    charts as files, ``style`` is their style (:mod:`icl_bench.report.figure_style`). Prompts are rebuilt from data in
    ``data_dir``. ``say`` receives progress messages. Raises ``UserError`` if there are no results, a file cannot be
    written, or a library of the extra ``report`` is missing.
    """
    with libraries("report"):
        from icl_bench.report.build import make_report
        from icl_bench.report.figure_style import PLAIN
        from icl_bench.report.figures import prepare, write_figures
        from icl_bench.report.page import page
        from icl_bench.report.published.folder import check_folder, publish
    if with_all:
        check_folder(out)
    else:
        _check(out)
    _check_data(data_dir)
    if figures is not None:
        prepare(figures, style or PLAIN)
    report = make_report(results, only, data_dir, served=with_all, processes=processes, say=say)
    if with_all:
        found = publish(report, results, out, only=only, data_dir=data_dir, say=say)
        written = Written(found.page, found.size, predictions=found.predictions)
    else:
        say("writing the page")
        content = page(report).encode()
        try:
            write_whole(out, content)
        except OSError as error:
            raise UserError(f"--out {out}: cannot be written ({error.strerror})") from None
        written = Written(out, len(content))
    if figures is None:
        return written
    say("drawing figures")
    return replace(written, figures=tuple(write_figures(report, figures, style or PLAIN)))


@dataclass(frozen=True)
class Viewer:
    """A server of the report, which is reachable once :meth:`serve` is called."""

    address: str
    """The address with the required token."""
    folder: Folder
    listening: socket.socket
    token: str

    def serve(self) -> None:
        """Answer requests until Ctrl-C."""
        from icl_bench.report.viewer.server import serve

        serve(self.folder, self.listening, self.token)


@contextmanager
def open_viewer(
    results: Place, port: int = 0, *, only: Mapping[str, str] | None = None, data_dir: Path | None = None
) -> Iterator[Viewer]:
    """Start a server for a results folder, or for its part with these values, and start to read it.

    ``port`` is a port of 127.0.0.1, 0 for any free one. Raises ``UserError`` if there is no result, the port is in use,
    or a library of the extra ``report`` is missing.
    """
    with libraries("viewer"):
        import uvicorn  # noqa: F401 - asked for once the page is

        from icl_bench.report.viewer.folder import Folder
        from icl_bench.report.viewer.server import HOST, listen
    _check_data(data_dir)
    folder = Folder(results, dict(only or {}), data_dir)
    with listen(port) as listening:  # before reading starts, because a reading thread delays the end of the program
        folder.start()
        try:
            if only:
                folder.wait()  # whether there is any matching prediction
            token = secrets.token_urlsafe(24)
            address = f"http://{HOST}:{listening.getsockname()[1]}/?token={token}"
            yield Viewer(address, folder, listening, token)
        finally:
            folder.stop()


@contextmanager
def libraries(user: str) -> Iterator[None]:
    """Raise an error that names a missing library, and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA_MODULES:
            raise
        raise UserError(f"the {user} needs {error.name}, which is missing: pip install 'icl-bench[report]'") from None


def _check_data(data_dir: Path | None) -> None:
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(f"the data folder {data_dir} is not there")


def _check(out: Path) -> None:
    """Refuse unwritable outputs before anything is computed."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; give a file like {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise UserError(f"--out {out}: cannot be written (Permission denied)")
