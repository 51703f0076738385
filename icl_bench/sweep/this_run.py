"""The command, the time and the machine of a run. They do not affect predictions."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from icl_bench.wording import counted, one_line

PROGRAM = "icl-bench"


STARTED_AS = (PROGRAM, f"{PROGRAM}.exe", "icl_bench/__main__.py")
"""Path endings of the file that starts the program, as a script or as a module."""


def this_run() -> dict[str, str | None]:
    """The command (None where another program called this one), the time, and the hardware."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": command(sys.argv), "finished": now, "hardware": hardware()}


def command(words: list[str]) -> str | None:
    """The command line of this program on one line, :func:`cleaned`. None for another program's command line."""
    if not words or not words[0].replace("\\", "/").endswith(STARTED_AS):
        return None
    return one_line(cleaned([PROGRAM, *words[1:]]))


def cleaned(words: Iterable[str]) -> str:
    """Return a command line without secrets: user names and passwords in addresses, values named as keys or passwords,
    and strings that look like a provider's key. The path of the user's home becomes ``~``.
    """
    shown = [without_home(KEY.sub("…", NAMED_SECRET.sub(r"\1…", word))) for word in words]
    return IN_ADDRESS.sub(r"\1…@", " ".join(map(_quoted, shown)))


def _quoted(word: str) -> str:
    """A word quoted for a shell. A shell expands ``~`` only without quotes."""
    home, rest = ("~/", word[2:]) if word.startswith("~/") else ("", word)
    return home + (shlex.quote(rest) if rest or not home else "")


def without_home(text: str) -> str:
    """Replace the path of the user's home folder by ``~`` wherever a path begins with it."""
    home = str(Path("~").expanduser()).rstrip("/")
    return re.sub(rf"(?<![\w/.-]){re.escape(home)}(?=/|$)", "~", text) if home.startswith("/") else text


NAMED_SECRET = re.compile(
    r"""((?:api[_-]?key|secret|passw(?:or)?d|authorization|access[_-]?token|bearer)[\w-]*["']?\s*[=:\s]\s*["']?)"""
    r"""[^"'&,}]+""",
    re.IGNORECASE,
)
"""A secret after its name: ``api_key=...``, ``"Authorization": "..."``, ``?api-key=...``."""


KEY = re.compile(r"(?<![\w-])(?:sk-|hf_|gsk_|xai-|ghp_|AIza)(?=[\w-]*\d|[A-Za-z]{18})[\w-]{18,}")
"""The prefixes of providers' keys."""


IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/@\s]*@")


@cache
def hardware() -> str:
    """NVIDIA cards, if any, processor and cores of this machine.

    ``nvidia-smi`` lists the cards, because torch would initialise CUDA, and an engine in another
    process could then not use them.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = f"{_named() or platform.machine()}, {counted(cores or 1, 'core')}"
    cards = Counter(_cards())
    named = [f"{count} x {name}" if count > 1 else name for name, count in cards.items()]
    return ", ".join([*named, processor])


def _cards() -> list[str]:
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _named() -> str:
    """The processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
