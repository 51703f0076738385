"""The program on a terminal of 80 columns, and the same where it is piped."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from pathlib import Path

from support.models import tiny_checkpoint
from support.program import PROGRAM, as_words
from support.warm_program import WarmProgram

RUN = as_words("run --task stdlib_six --dtype float32 --k 1,5 --draws 1 --test-size 6")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(*words: str, warm: WarmProgram | None = None) -> str:
    """All that a command writes on a terminal of 80 columns, as it is. It is started as a user does, or ``warm``."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    env["TERM"] = "xterm-256color"
    written = bytearray()

    def read() -> None:
        try:
            while part := os.read(ours, 65536):
                written.extend(part)
        except OSError:  # nobody has the other end any more
            pass

    reader = threading.Thread(target=read)
    reader.start()
    if warm is None:
        code = subprocess.run([*PROGRAM, *words], stdin=its, stdout=its, stderr=its, env=env, check=False).returncode
    else:
        code = warm.run(words, env, terminal=os.ttyname(its)).returncode
    os.close(its)
    reader.join()
    os.close(ours)
    assert code == 0, written[-2000:]
    return written.decode()


def test_a_run_on_a_terminal_shows_the_time_at_once_and_scores_as_cells_finish(warm: WarmProgram, tmp_path: Path):
    tiny_checkpoint(tmp_path / "tiny")
    words = ("--model", str(tmp_path / "tiny"), "--results", str(tmp_path / "results"))
    said = CONTROL.sub("", on_terminal(*RUN, *words))
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", said)]
    assert "0:00:00" in next(line for line in lines if line)
    loading = next(at for at, line in enumerate(lines) if "loading the model" in line)
    assert re.search(r"0:00:\d\d", " ".join(lines[loading : loading + 3]))
    assert "accuracy so far, of the cells that this run finished:" in lines
    assert any(re.fullmatch(r"  random, drawn, k=1: \d+\.\d%, done", line) for line in lines)
    assert "stdlib_six · tiny · random" in lines
    assert max(map(len, lines)) <= 80

    piped = warm.run(["summary", "--results", str(tmp_path / "results")], os.environ)
    assert piped.returncode == 0, piped.stderr
    assert "\x1b" not in piped.stdout + piped.stderr
    assert piped.stderr == ""
    shown = on_terminal("summary", "--results", str(tmp_path / "results"), warm=warm)
    table = piped.stdout.splitlines()
    of_terminal = CONTROL.sub("", shown).replace("\r", "").splitlines()
    rows = [line.rstrip() for line in table if re.match(r" *\d+  +\d", line)]
    assert rows
    assert set(rows) <= {line.rstrip() for line in of_terminal}
    board = CONTROL.sub("", on_terminal("leaderboard", "--results", str(tmp_path / "results"), warm=warm))
    assert "| task |" not in board
    table = board.partition("written: ")[0]
    assert max(map(len, re.split(r"[\r\n]+", table))) <= 80
