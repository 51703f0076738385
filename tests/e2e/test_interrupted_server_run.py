"""Ctrl-C ends a run at once, whatever its server does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.api_server import Reply, serving
from support.program import PROGRAM, as_words, heed_interrupts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "server", ["hangs", pytest.param("answers 500", marks=pytest.mark.thorough), "asks for patience"]
)
def test_an_interrupted_run_waits_for_no_server(server: str, tmp_path: Path):
    asked, over = threading.Event(), threading.Event()

    def answer(_: dict[str, Any]) -> Reply:
        asked.set()
        if server == "hangs":
            over.wait(600)
        return (429 if server == "asks for patience" else 500), {"error": {"message": "later"}}

    with serving(answer) as there:
        command = as_words(
            f"run --task stdlib --model m --tokenizer gemma3-270m --backend openai --base-url {there.url} "
            f"--unconstrained --k 1 --draws 1 --test-size 24 --results {tmp_path}/results"
        )
        running = subprocess.Popen(
            [*PROGRAM, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": "sk-secret"},
            preexec_fn=heed_interrupts,
        )
        try:
            assert asked.wait(300), running.communicate()
            time.sleep(1)
            start = time.monotonic()
            os.kill(running.pid, signal.SIGINT)
            _, said = running.communicate(timeout=60)
            seconds = time.monotonic() - start
        finally:
            over.set()
            running.kill()
    assert running.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "interrupted; run the same command again to continue"
    assert seconds < 30, "about a second of computing; a machine with much else to do takes longer"
