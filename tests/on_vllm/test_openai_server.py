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

import numpy as np
import pytest
from support.api_server import Reply, Server, free_port, serving
from support.in_process import said
from support.program import as_words

import icl_bench
from icl_bench.results.reading import finished_cells

pytestmark = pytest.mark.slow

KEY = "sk-loopback-secret"
MODEL = "smollm2-135m-instruct"
BLOCK = 128
"""Tokens of a cache block of vLLM's CPU build."""
ROWS = 30


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
            "-m vllm.entrypoints.openai.api_server --served-model-name m --dtype float32 --max-model-len 4096 "
            f"--enforce-eager --enable-prompt-tokens-details --kv-cache-memory-bytes {2**29} "
            f"--distributed-executor-backend uni --host 127.0.0.1 --port {self.port} --api-key {KEY} --model"
        )
        command = [sys.executable, *as_words(words), resolve(MODEL).source]
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
        f"-m icl_bench run --task banking77 --backend openai --base-url {url} --model m --tokenizer {MODEL} "
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


@pytest.mark.thorough
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


def forwarded(server: VllmServer, path: str, body: dict[str, Any]) -> Reply:
    """The real server's response."""
    asked = urllib.request.Request(
        f"{server.url}/{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=300) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, {"error": {"message": error.read().decode()}}


def test_a_server_that_is_overloaded_for_a_while_answers_in_the_end(server: VllmServer, data_dir: Path, tmp_path: Path):
    """A proxy in front of the real server refuses the first requests with 429."""
    refused = 0

    def forward(body: dict[str, Any]) -> Reply:
        nonlocal refused
        if refused < 12:
            refused += 1
            return 429, {"error": {"message": "too many requests"}}
        return forwarded(server, "completions", body)

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


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs in this process, which imports the libraries once for all."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def on_transformers(results: Path, data_dir: Path, *more: object) -> Any:
    """The predictions of the same model in this package, in float32."""
    here = (
        f"run --model {MODEL} --backend transformers --dtype float32 --device cpu --draws 1 "
        f"--data-dir {data_dir} --results {results}"
    )
    said(*as_words(here), *more)
    return icl_bench.read(results).predictions.set_index("test_id")


def of_chats(server: VllmServer | Server, results: Path, data_dir: Path, *more: object) -> Any:
    """The predictions of chats at the server."""
    words = (
        f"run --backend openai --base-url {server.url} --model m --tokenizer {MODEL} --draws 1 "
        f"--data-dir {data_dir} --results {results}"
    )
    said(*as_words(words), *more)
    return icl_bench.read(results).predictions.set_index("test_id")


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("rows", [12, pytest.param(100, marks=pytest.mark.thorough)])
def test_auto_holds_chats_by_choice_and_all_answers_are_those_of_transformers(
    rows: int, server: VllmServer, data_dir: Path, tmp_path: Path
):
    asked = as_words(f"--task banking77 --k 5 --test-size {rows} --chat turns")
    held = of_chats(server, tmp_path / "held", data_dir, *asked, "--hold", "auto")
    ((_, meta),) = finished_cells(tmp_path / "held")
    assert meta.facts.held == "choice"
    local = on_transformers(tmp_path / "here", data_dir, *asked)
    assert held["valid"].all()
    assert len(held) == len(local) == rows
    assert held["prediction"].to_dict() == local["prediction"].to_dict()
    assert (held["prompt_tokens"] == held["local_prompt_tokens"]).all()


@pytest.mark.usefixtures("key")
def test_the_first_request_warms_the_cache_for_those_beside_each_other(
    server: VllmServer, data_dir: Path, tmp_path: Path
):
    times: list[tuple[float, float, int]] = []

    def forward(body: dict[str, Any]) -> Reply:
        start = time.monotonic()
        status, reply = forwarded(server, "chat/completions", body)
        times.append((start, time.monotonic(), reply["usage"]["prompt_tokens_details"]["cached_tokens"]))
        return status, reply

    with serving(forward) as proxy:
        asked = as_words("--task banking77 --k 40 --test-size 6 --chat turns --hold choice --concurrency 6")
        of_chats(proxy, tmp_path, data_dir, *asked)
    ((_, meta),) = finished_cells(tmp_path)
    assert meta.prefix_tokens is not None
    assert meta.prefix_tokens > 1024
    (_, end, cached), *others = sorted(times)
    assert cached < meta.prefix_tokens // 2
    assert len(others) == 5
    for start, _, found in others:
        assert start > end
        assert found >= meta.prefix_tokens // BLOCK * BLOCK


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("hold", ["json", "auto"])
def test_thinking_that_is_off_and_schemas_break_nothing(hold: str, server: VllmServer, data_dir: Path, tmp_path: Path):
    asked = as_words(f"--task trec --k 5 --test-size 10 --chat turns --thinking off --hold {hold}")
    frame = of_chats(server, tmp_path, data_dir, *asked)
    assert frame["valid"].all()
    assert "reason" not in frame or frame["reason"].isna().all()


@pytest.mark.usefixtures("key")
def test_scores_of_labels_are_those_of_the_transformers_backend(server: VllmServer, data_dir: Path, tmp_path: Path):
    asked = as_words("--task trec --k 5 --test-size 6 --chat turns --score exact --calibrate batch")
    there = of_chats(server, tmp_path / "there", data_dir, *asked)
    here = on_transformers(tmp_path / "here", data_dir, *asked)
    assert there["prediction"].to_dict() == here["prediction"].to_dict()
    for name in ("probability", "margin", "label_mass"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-3, atol=1e-6)
