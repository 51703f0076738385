"""A fixed set of small runs over every selector, order, attention pattern, perturbation and method.

``python tests/support/golden_runs.py FOLDER`` carries them out with the real model in float32 and writes
one CSV file a run: what is stored in ``tests/golden/predictions`` was made so, and later versions are held
to it. Each run has a results folder of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # where it is run as a script

from support.program import as_words

FREE_TEXT = Path(__file__).parent.parent / "golden" / "free_text.yaml"
PORT = 18437
"""Of the run against a server: its address is a part of its cells' names."""
COMMON = ("--model", "gemma3-270m", "--dtype", "float32", "--device", "cpu")

RUNS: Mapping[str, Sequence[str]] = {
    "selectors": as_words(
        "run --task trec --k 6 --draws 1 --test-size 8 --select "
        "random,balanced,centroids,centroids,of=queries,bm25,bertscore,dense,hybrid:4,hybrid:4,by=dense,balanced+hybrid:4,centroids+hybrid:4,by=bertscore"
    ),
    "orders": as_words("run --task trec --k 6 --draws 2 --test-size 8 --order drawn,shuffled:1,by-label"),
    "orders-of-retrieval": as_words(
        "run --task trec --k 6 --test-size 8 --select bm25 --order relevance,relevance-reversed,shuffled:2,by-label"
    ),
    "attention": as_words(
        "run --task trec --k 12,24 --draws 1 --test-size 8 --attention "
        "full,block:4,sink=1,local=1,block:6,sink=0,local=0,grouped:2,64,approx:64,8"
    ),
    "reuse": as_words(
        "run --task trec --k 6 --select bm25 --test-size 8 --attention "
        "block:1,reuse,block:1,sink=0,local=0,reuse,block:2"
    ),
    "permuted": as_words("run --task trec --k 8 --draws 2 --test-size 8 --perturbation labels:permuted"),
    "noise": as_words(
        "run --task trec --k 8 --draws 2 --test-size 8 --select random,bm25 --perturbation labels:noise=0.3"
    ),
    "inputs-only": as_words("run --task trec --k 8 --draws 1 --test-size 8 --perturbation inputs-only"),
    "labels-only": as_words("run --task trec --k 8 --draws 1 --test-size 8 --perturbation labels-only"),
    "nearest-removed": as_words("run --task trec --k 8 --draws 1 --test-size 8 --perturbation nearest-removed:25"),
    "half-of-the-labels": as_words("run --task trec --k 8 --draws 1 --test-size 30 --labels half:1"),
    "copied": ("run", "--task", "trec", "--k", "8", "--draws", "1", "--test-size", "8", "--queries", "copied"),
    "unconstrained": ("run", "--task", "trec", "--k", "8", "--draws", "1", "--test-size", "8", "--unconstrained"),
    "exact": ("run", "--task", "trec", "--k", "8", "--draws", "1", "--test-size", "8", "--score", "exact"),
    "per-label": as_words("run --task trec --per-label 2 --draws 1 --test-size 8 --select balanced"),
    "seed": ("run", "--task", "banking77", "--k", "20", "--draws", "1", "--test-size", "8", "--seed", "5"),
    "free-text": ("run", "--task", str(FREE_TEXT), "--k", "2,4", "--draws", "1", "--test-size", "4"),
    "simple-methods": as_words("finetune --task trec --k 12 --draws 2 --test-size 8 --method probe,knn"),
    "training": as_words(
        "finetune --task trec --k 12 --draws 1 --test-size 8 --method lora,full --epochs 1 --validation examples"
    ),
    "server": (
        *as_words("run --task trec --k 4 --draws 1 --test-size 6 --backend openai --base-url"),
        f"http://127.0.0.1:{PORT}/v1",
        *as_words("--tokenizer gemma3-270m --model m"),
    ),
}
"""By name: the command's words but for those that all have."""

VLLM = as_words(
    "run --backend vllm --task trec --model gemma3-270m --dtype float32 --k 6,12 --draws 1 "
    "--test-size 8 --select random,bm25,hybrid:4"
)
"""The run of the vLLM backend, which has an environment of its own."""


def carry_out(name: str, folder: Path) -> bytes:
    """Carry out one run in this process and return its export as CSV."""
    words = [*(VLLM if name == "vllm" else RUNS[name])]
    if name not in ("server", "vllm"):
        words += COMMON
    results = folder / "results"
    with _server() if name == "server" else contextlib.nullcontext():
        _call([*words, "--results", str(results), "--quiet"])
    return exported(results, folder / f"{name}.csv")


def exported(results: Path, out: Path) -> bytes:
    """Export a results folder in this process, into a CSV file that is returned."""
    _call(["export", "--results", str(results), "--out", str(out)])
    return out.read_bytes()


def _call(words: Sequence[str]) -> None:
    from icl_bench.cli import main

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            main(words)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{' '.join(words)}: exit {ended.code}: {said.getvalue()}") from None


@contextlib.contextmanager
def _server() -> Iterator[None]:
    """A server whose answer depends on the prompt alone."""
    from support.api_server import completion, serving

    os.environ["OPENAI_API_KEY"] = "none"
    labels = ("entity", "human being", "location", "no label")

    def answer(request: dict[str, Any]) -> Any:
        return completion(f" {labels[len(request['prompt']) % 4]}")

    reply: Callable[[dict[str, Any]], Any] = answer
    with serving(reply, PORT):
        yield


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for run in sys.argv[2:] or RUNS:
        with tempfile.TemporaryDirectory() as work:
            (target / f"{run}.csv").write_bytes(carry_out(run, Path(work)))
        print(run, flush=True)
