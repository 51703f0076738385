"""``summary`` of a folder of many cells, and of the same cells in object storage.

    python benchmarks/object_storage.py [--draws 1000]

Ten cells a draw, by an engine that does nothing; the server is moto's, in a process of its own on
the loopback (``pip install --no-deps -r requirements-s3.txt``), so that what is measured is listing
and reading side by side, not a network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def summarised(results: str) -> float:
    """Seconds of the command."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "icl_bench", "summary", "--results", results]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
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
        words = [sys.executable, "-c", SERVER, str(TESTS)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            os.environ |= {
                "AWS_ENDPOINT": server.stdout.readline().strip(), "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "nobody",
                "AWS_SECRET_ACCESS_KEY": "nothing",
            }  # fmt: skip
            place, local = ObjectStorage("s3://results/many"), LocalStorage(folder / "results")
            with ThreadPoolExecutor(16) as threads:
                names = local.names()
                list(threads.map(lambda name: place.put(name, local.read(name)), names))
            said = {
                "cells": given.draws * CELLS_A_DRAW,
                "folder_seconds": round(summarised(str(folder / "results")), 1),
                "bucket_seconds": round(summarised("s3://results/many"), 1),
            }
            server.communicate()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
