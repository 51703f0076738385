"""No command leaves threads behind that its end could trip over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import FakeBackend, plan, runner

PROGRAM = """
import sys
from pathlib import Path
from icl_bench.cli import main

for words in sys.stdin.read().splitlines():
    try:
        main(words.split())
    except SystemExit as ended:
        assert ended.code in (None, 0), (words, ended.code)
names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
print("threads:", sorted(name for name in names if name != "jemalloc_bg_thd"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tables_are_read_without_threads_that_could_abort_a_process_that_ends(tmp_path: Path):
    """A thread of pyarrow's that gives memory back while Python ends aborts the process (134)."""
    runner(plan(tmp_path / "task"), tmp_path / "results", FakeBackend()).run()
    commands = [
        "summary",
        "leaderboard",
        "export --out a.csv",
        "export --out a.parquet",
        "check --baseline a.parquet",
        "import a.csv --results other",
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "threads: ['python']"
