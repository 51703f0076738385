"""The terminal in the README: what ``icl-bench choose`` prints for a CSV file, as a picture.

    python benchmarks/readme_terminal.py     # docs/terminal.svg

The file holds the docstrings of the task ``stdlib_six``, with the module of each as its label. The command runs here,
with no terminal, so that each round is a line; seconds are of this machine.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task
from icl_bench.text_files import write_whole

OUT = Path(__file__).resolve().parents[1] / "docs" / "terminal.svg"
COMMAND = "choose --data docstrings.csv --model gemma3-270m --k 0,5,20 --draws 3 --method none --margin 5 --spend 3m"
WIDTH = 108
THEME = TerminalTheme((13, 17, 23), (230, 237, 243), [(13, 17, 23)] * 8, [(230, 237, 243)] * 8)
"""Light on dark, readable on both grounds of GitHub."""
FORMAT = """<svg viewBox="0 0 {terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
<rect fill="#0d1117" width="{terminal_width}" height="{terminal_height}" rx="8"/>
<g transform="translate(18, 12)" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""
"""Rich's own, without the frame of a window and the font from the network."""


def main() -> None:
    """Run the command on a new file in a new folder, and draw what it prints."""
    rows = load_data(load_task("stdlib_six"))
    with TemporaryDirectory() as folder:
        with (Path(folder) / "docstrings.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("docstring", "module"))
            writer.writerows((next(iter(row.fields.values())), row.answer) for row in (*rows.train, *rows.test))
        done = subprocess.run(
            [sys.executable, "-m", "icl_bench", *COMMAND.split()],
            cwd=folder,
            env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ icl-bench {COMMAND}\n{done.stdout.rstrip()}"))
    write_whole(OUT, console.export_svg(theme=THEME, code_format=FORMAT, unique_id="icl-bench").encode())
    print(done.stdout)


if __name__ == "__main__":
    main()
