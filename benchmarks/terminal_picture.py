"""The picture of a terminal in the README, from a recording of a real race of ``icl-bench choose``.

    python benchmarks/terminal_picture.py            # docs/terminal-light.svg and docs/terminal-dark.svg
    python benchmarks/terminal_picture.py --record   # runs the race first (minutes), and stores what it shows

The race runs on a pseudo terminal of 80 columns, in an empty folder with a file of sentences from the documentation of
Python's standard library, without near duplicates. ``terminal_picture.ansi`` has the lines that remain on the screen,
with their colours.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterable
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from icl_bench.tasks.examples import Example
from icl_bench.tasks.near_duplicates import near_duplicates
from icl_bench.tasks.stdlib_docstrings import SIX_MODULES, DocstringRow, build
from icl_bench.text_files import write_whole

RECORDING = Path(__file__).with_suffix(".ansi")
DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS = 80
COMMAND = r"""icl-bench choose --data docstrings.csv --text text --label label \
    --model gemma3-270m --k 0,5,20 --select random,dense \
    --method knn,encoder-probe --test-size 100 --queries 20000 --spend 30m"""
TITLE = "icl-bench choose in a terminal"

CONTROL = re.compile(
    r"(?P<line>\r?\n)|(?P<erase>\r|\x1b\[2K)|\x1b\[(?P<up>\d+)A|\x1b\[\?25[hl]|(?P<text>(?:[^\x00-\x1f\x7f]|\x1b\[[\d;]*m)+)|."
)
"""What rich writes to a terminal: line breaks, the start of a line (which it erases then), cursor up, the cursor's
visibility, and text with styles.
"""


def _theme(background: str, text: str, colours: str) -> TerminalTheme:
    back, front, *eight = (tuple(bytes.fromhex(one)) for one in (background, text, *colours.split()))
    return TerminalTheme(back, front, eight)  # type: ignore[arg-type]


GROUNDS = {
    "light": _theme("f6f8fa", "1f2328", "24292f cf222e 116329 953800 0969da 8250df 1b7c83 59636e"),
    "dark": _theme("161b22", "e6edf3", "b1bac4 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf 6e7681"),
}
"""Background, text and the eight colours of a terminal, on GitHub's light and dark pages."""

SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>TITLE</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }}
{styles}
</style>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" class="{unique_id}-matrix">
{backgrounds}{matrix}
</g>
</svg>
"""
"""rich's own format without its fonts, which come from the network."""


def recorded() -> str:
    """Run the race on a pseudo terminal; returns the command, and the lines that the screen shows in the end."""
    with tempfile.TemporaryDirectory() as folder:
        rows = build(modules=SIX_MODULES)
        with (Path(folder) / "docstrings.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *distinct([*rows.train, *rows.test])])
        words = shlex.split(COMMAND.replace("\\\n", " "))
        written = on_terminal([sys.executable, "-m", "icl_bench", *words[1:]], folder)
    return "\n".join([f"$ {COMMAND}", *screen(written)]) + "\n"


def distinct(rows: Iterable[DocstringRow]) -> list[tuple[str, str]]:
    """Texts and labels of the rows of which no earlier one is a near duplicate."""
    kept: list[Example] = []
    for row in rows:
        example = Example(str(len(kept)), {"text": row.text}, row.label)
        if not near_duplicates([example], kept):
            kept.append(example)
    return [(one.fields["text"], one.answer) for one in kept]


def on_terminal(command: list[str], folder: str) -> str:
    """What a command writes on a terminal of 80 columns and 50 lines. Raises ``CalledProcessError`` if it fails."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
    env |= {"TERM": "xterm-256color", "PYTHONPATH": str(DOCS.parent)}
    written = b""
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=env, cwd=folder) as process:
        os.close(its)
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, written)
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines that remain on a screen, with their styles. Raises ``ValueError`` for unknown control characters."""
    lines, row = [""], 0
    for found in CONTROL.finditer(written):
        if found["line"]:
            row += 1
            lines += [""] * (row == len(lines))
        elif found["erase"]:
            lines[row] = ""
        elif found["up"]:
            row = max(row - int(found["up"]), 0)
        elif found["text"]:
            lines[row] += found["text"]
        elif not found.group().endswith(("25h", "25l")):
            raise ValueError(f"unknown control character: {written[found.start() : found.start() + 8]!r}")
    return "\n".join(lines).rstrip("\n").split("\n")


def picture(recording: str, theme: TerminalTheme) -> str:
    """The recording as SVG, with text as text."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="256")
    for line in map(AnsiDecoder().decode_line, recording.splitlines()):
        for part in line.divide(range(COLUMNS, len(line), COLUMNS)) or [Text()]:
            console.print(part, soft_wrap=True)
    svg = console.export_svg(
        title="", theme=theme, code_format=SVG.replace("TITLE", TITLE), font_aspect_ratio=0.6, unique_id="t"
    )
    return re.sub(r' clip-path="[^"]*"', "", svg).replace("&#160;", "\N{NO-BREAK SPACE}")


def main() -> None:
    """Write the picture for both grounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="run the race first")
    if parser.parse_args().record:
        write_whole(RECORDING, recorded().encode())
    recording = RECORDING.read_text(encoding="utf-8")
    for name, theme in GROUNDS.items():
        write_whole(DOCS / f"terminal-{name}.svg", picture(recording, theme).encode())


if __name__ == "__main__":
    main()
