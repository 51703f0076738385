"""The terminal in the README is what the stored recording shows, and a recording is what remains on the screen."""

from __future__ import annotations

import io
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from support.benchmarks import benchmark

DOCS = Path(__file__).parents[3] / "docs"


def texts(svg: str) -> list[str]:
    """The lines of a picture."""
    lines: dict[float, str] = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if element.get("y") is not None:
            lines[float(element.attrib["y"])] = lines.get(float(element.attrib["y"]), "") + (element.text or "")
    return [lines[y].replace("\N{NO-BREAK SPACE}", " ").rstrip() for y in sorted(lines)]


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_the_pictures_are_those_of_the_recording(ground: str):
    with benchmark("terminal_picture") as program:
        recording = program.RECORDING.read_text(encoding="utf-8")
        svg = (DOCS / f"terminal-{ground}.svg").read_text(encoding="utf-8")
        assert svg == program.picture(recording, program.GROUNDS[ground])
        assert recording.startswith(f"$ {program.COMMAND}\n")
    assert len(svg.encode()) < 40_000
    assert "url(" not in svg
    assert "@font-face" not in svg
    shown = texts(svg)
    assert shown[0].startswith("$ icl-bench choose --data docstrings.csv")
    assert max(map(len, shown)) <= 80
    for words in ("leads", "Use: ", "Cost: ", "Runner-up: ", "Not known: ", "Next: icl-bench "):
        assert any(words in line for line in shown)


def test_the_page_of_choose_shows_the_answer_of_the_recording():
    """Lines are broken elsewhere, and without the picture's line ends in commands."""
    with benchmark("terminal_picture") as program:
        recorded = Text.from_ansi(program.RECORDING.read_text(encoding="utf-8")).plain
    block = (DOCS / "choosing.md").read_text(encoding="utf-8").split("```\nUse: ")[1].split("```")[0]
    answer = recorded[recorded.index("Use: ") + len("Use: ") :]
    assert block.replace("\\", "").split() == answer.split()


def test_of_a_changing_table_the_last_state_remains():
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=40, color_system="standard")
    console.print("before")
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for rows in (1, 3, 2):
            table = Table()
            for row in range(rows):
                table.add_row(f"changing {row}")
            live.update(table, refresh=True)
    console.print("after", style="bold")
    with benchmark("terminal_picture") as program:
        assert program.screen(written.getvalue()) == ["before", "\x1b[1mafter\x1b[0m"]
        assert program.screen("50%\r100%\r\nend\r\n") == ["100%", "end"]


@pytest.mark.parametrize("control", ["\x1b[2J", "\x1b[10;5H", "\x07", "\x1b]0;title\x07"])
def test_control_characters_that_change_the_screen_in_another_way_are_refused(control: str):
    with benchmark("terminal_picture") as program, pytest.raises(ValueError, match="unknown control character"):
        program.screen(f"before\n{control}after\n")


def test_long_lines_break_at_80_columns_and_styles_have_the_colours_of_the_ground():
    with benchmark("terminal_picture") as program:
        for theme in program.GROUNDS.values():
            svg = program.picture(f"{'a' * 80}bc\n\n\x1b[31mred\x1b[0m <&>\n", theme)
            assert texts(svg) == ["a" * 80, "bc", "", "red <&>"]
            assert theme.ansi_colors[1] != theme.foreground_color
            assert "#{:02x}{:02x}{:02x}".format(*theme.ansi_colors[1]) in svg


def test_a_command_sees_a_terminal_of_80_columns_and_its_failure_is_raised(tmp_path: Path):
    import subprocess

    size = "import os, sys; print(os.get_terminal_size().columns, sys.stderr.isatty(), os.getcwd())"
    with benchmark("terminal_picture") as program:
        assert program.on_terminal([sys.executable, "-c", size], str(tmp_path)) == f"80 True {tmp_path}\r\n"
        with pytest.raises(subprocess.CalledProcessError):
            program.on_terminal([sys.executable, "-c", "raise SystemExit(3)"], str(tmp_path))
