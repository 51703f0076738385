"""The program on a terminal of 80 columns, and the same where it is piped."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

from support.program import PROGRAM, as_words

RUN = as_words("run --task stdlib_six --model gemma3-270m --k 1,5 --draws 1 --test-size 6 --results")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(*words: str, **more: str) -> str:
    """All that a command writes on a terminal of 80 columns, as it is."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    env |= {"TERM": "xterm-256color", **more}
    with subprocess.Popen([*PROGRAM, *words], stdin=its, stdout=its, stderr=its, env=env) as done:
        os.close(its)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # nobody has the other end any more
                break
            if not part:
                break
            written += part
    os.close(ours)
    assert done.returncode == 0, written[-2000:]
    return written.decode()


def test_a_run_on_a_terminal_shows_the_time_at_once_and_scores_as_cells_finish(tmp_path: Path):
    said = CONTROL.sub("", on_terminal(*RUN, str(tmp_path / "results")))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", said)]
    assert "0:00:00" in next(line for line in lines if line)
    loading = next(at for at, line in enumerate(lines) if "loading the model" in line)
    assert re.search(r"0:00:\d\d", " ".join(lines[loading : loading + 3]))
    assert "accuracy so far, of the cells that this run finished:" in lines
    assert any(re.fullmatch(r"  random, drawn, k=1: \d+\.\d%, done", line) for line in lines)
    assert "stdlib_six · gemma3-270m · random" in lines
    assert max(map(len, lines)) <= 80

    piped = subprocess.run(
        [*PROGRAM, "summary", "--results", tmp_path / "results"], check=True, capture_output=True, text=True
    )
    assert "\x1b" not in piped.stdout + piped.stderr
    assert piped.stderr == ""
    shown = on_terminal("summary", "--results", str(tmp_path / "results"))
    table = piped.stdout.splitlines()
    of_terminal = CONTROL.sub("", shown).replace("\r", "").splitlines()
    rows = [line.rstrip() for line in table if re.match(r" *\d+  +\d", line)]
    assert rows
    assert set(rows) <= {line.rstrip() for line in of_terminal}
    board = CONTROL.sub("", on_terminal("leaderboard", "--results", str(tmp_path / "results")))
    assert "| task |" not in board
    table = board.partition("written: ")[0]
    assert max(map(len, re.split(r"[\r\n]+", table))) <= 80
