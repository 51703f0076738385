"""The API backend against a real server, vLLM's own on the loopback, killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.api_server import Reply, free_port, serving
from support.program import as_words

import icl_bench

pytestmark = pytest.mark.slow

KEY = "sk-loopback-secret"
ROWS = 60


class VllmServer:
    """vLLM's OpenAI server (what ``vllm serve`` runs) in a process group of its own, so that it can be killed whole."""

    def __init__(self, log: Path) -> None:
        self.port, self._log = free_port(), log
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        from icl_bench.models.registry import resolve

        # uni: one process less, which would take all cores for itself
        words = (
            "-m vllm.entrypoints.openai.api_server --served-model-name gemma --dtype float32 --max-model-len 4096 "
            f"--enforce-eager --enable-prompt-tokens-details --kv-cache-memory-bytes {2**29} "
            f"--distributed-executor-backend uni --host 127.0.0.1 --port {self.port} --api-key {KEY} --model"
        )
        command = [sys.executable, *as_words(words), resolve("gemma3-270m").source]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self, seconds: float = 400) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
            except OSError:
                time.sleep(1)
            else:
                return
        raise TimeoutError(self._log.read_text()[-2000:])

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    made = VllmServer(tmp_path_factory.mktemp("server") / "log")
    made.start()
    try:
        made.wait()
        yield made
    finally:
        made.kill()


def command(url: str, data_dir: Path, results: Path, *more: object) -> list[str]:
    words = (
        f"-m icl_bench run --task banking77 --backend openai --base-url {url} --model gemma --tokenizer gemma3-270m "
        f"--k 5 --draws 1 --test-size {ROWS} --data-dir {data_dir} --results {results}"
    )
    return [sys.executable, *as_words(words), *map(str, more)]


def started(words: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OPENAI_API_KEY": KEY, "COLUMNS": "100"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def journalled(results: Path) -> int:
    return sum(len(j.read_bytes().splitlines()) for j in results.rglob("*.journal.jsonl"))


def whole(results: Path) -> Any:
    """All predictions, checked to be there once; and no file holds the key."""
    frame = icl_bench.read(results).predictions
    assert len(frame) == frame["test_id"].nunique() == ROWS
    for file in results.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()
    return frame


def test_a_server_that_is_killed_and_restarted_loses_no_prediction(server: VllmServer, data_dir: Path, tmp_path: Path):
    running = started(command(server.url, data_dir, tmp_path, "--concurrency", 2))
    deadline = time.monotonic() + 300
    while journalled(tmp_path) < 5 and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.02)
    server.kill()
    before = journalled(tmp_path)
    assert 5 <= before < ROWS
    server.start()
    server.wait()
    out, err = running.communicate(timeout=600)
    assert running.returncode == 0, err
    assert KEY not in out + err
    assert "1 cell computed" in err
    frame = whole(tmp_path)
    assert (frame["answer_tokens"] > 0).all()
    assert frame["prediction"].map(len).max() > 0


def test_a_server_that_is_overloaded_for_a_while_answers_in_the_end(server: VllmServer, data_dir: Path, tmp_path: Path):
    """A proxy in front of the real server refuses the first requests with 429."""
    refused = 0

    def forward(body: dict[str, Any]) -> Reply:
        nonlocal refused
        if refused < 12:
            refused += 1
            return 429, {"error": {"message": "too many requests"}}
        asked = urllib.request.Request(
            f"{server.url}/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=300) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, {"error": {"message": error.read().decode()}}

    with serving(forward) as proxy:
        running = started(command(proxy.url, data_dir, tmp_path))
        out, err = running.communicate(timeout=600)
    assert running.returncode == 0, err
    assert KEY not in out + err
    assert refused == 12
    frame = whole(tmp_path)
    assert frame["cached_tokens"].max() >= 128  # the server's own cache, as it counts it
    assert 0 < frame["valid"].mean() <= 1
    asked = [r["prompt"] for r in proxy.requests]
    assert len(set(asked)) == ROWS
    assert all(text.count("\n==\n") == 5 for text in asked)


def test_held_answers_are_those_of_the_transformers_backend(server: VllmServer, data_dir: Path, tmp_path: Path):
    """The packaged model's tokenizer adds no beginning of a text by itself: the proxy does."""

    def forward(body: dict[str, Any]) -> Reply:
        asked = urllib.request.Request(
            f"{server.url}/completions",
            json.dumps({**body, "prompt": f"<bos>{body['prompt']}"}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(asked, timeout=300) as reply:
            return reply.status, json.load(reply)

    with serving(forward) as proxy:
        running = started(command(proxy.url, data_dir, tmp_path / "held", "--hold", "choice"))
        out, err = running.communicate(timeout=600)
    assert running.returncode == 0, out + err
    here = command(server.url, data_dir, tmp_path / "here")
    here = (
        " ".join(here).replace(f"--backend openai --base-url {server.url} --model gemma --tokenizer", "--model").split()
    )
    done = started([*here, "--backend", "transformers", "--dtype", "float32"])
    out, err = done.communicate(timeout=600)
    assert done.returncode == 0, out + err
    held, local = whole(tmp_path / "held"), whole(tmp_path / "here")
    assert held["valid"].all()
    assert dict(zip(held["test_id"], held["prediction"], strict=True)) == dict(
        zip(local["test_id"], local["prediction"], strict=True)
    )
    assert (held["prompt_tokens"] == held["local_prompt_tokens"]).all()
