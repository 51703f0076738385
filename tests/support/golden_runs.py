"""A fixed set of small runs over every selector, order, attention pattern, perturbation and method.

``python tests/support/golden_runs.py FOLDER`` carries them out with the real model in float32 and writes
one CSV file a run: what is stored in ``tests/golden/predictions`` was made so, and later versions are held
to it. Each run has a results folder of its own.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # where it is run as a script

from support.in_process import said

GOLDEN = Path(__file__).parent.parent / "golden"
FREE_TEXT = GOLDEN / "free_text.yaml"
WRITTEN_OUT = GOLDEN / "written_out.yaml"
TREC_SHORT = GOLDEN / "trec_short.yaml"
BY_MEANING = "centroids,centroids,of=queries,bertscore,dense,hybrid:4,by=dense,centroids+hybrid:4,by=bertscore"
"""Selectors that embed every text of the pool."""
SMOLLM2 = "--model smollm2-135m-instruct"
SYSTEM = "'Name the type of a question.'"
PORT = 18437
"""Of the run against a server: its address is a part of its cells' names."""
SERVER = f"--backend openai --base-url http://127.0.0.1:{PORT}/v1 --model m"
COMMON = ("--model", "gemma3-270m", "--dtype", "float32", "--device", "cpu")
"""Of a run that names no backend; one that names a model has that in place of this one."""

RUNS: Mapping[str, str] = {
    "selectors": (
        "run --task trec --k 6 --draws 1 --test-size 8 --select random,balanced,bm25,hybrid:4,balanced+hybrid:4"
    ),
    "selectors-by-meaning": f"run --task {TREC_SHORT} --k 6 --draws 1 --test-size 8 --select {BY_MEANING}",
    "selectors-by-meaning-of-all": f"run --task trec --k 6 --draws 1 --test-size 8 --select {BY_MEANING}",
    "orders": "run --task trec --k 6 --draws 2 --test-size 8 --order drawn,shuffled:1,by-label",
    "orders-of-retrieval": (
        "run --task trec --k 6 --test-size 8 --select bm25 --order relevance,relevance-reversed,shuffled:2,by-label"
    ),
    "attention": (
        "run --task trec --k 12,24 --draws 1 --test-size 8 "
        "--attention full,block:4,sink=1,local=1,block:6,sink=0,local=0,grouped:2,64,approx:64,8"
    ),
    "reuse": (
        "run --task trec --k 6 --select bm25 --test-size 8 "
        "--attention block:1,reuse,block:1,sink=0,local=0,reuse,block:2"
    ),
    "permuted": "run --task trec --k 8 --draws 2 --test-size 8 --perturbation labels:permuted",
    "noise": "run --task trec --k 8 --draws 2 --test-size 8 --select random,bm25 --perturbation labels:noise=0.3",
    "inputs-only": "run --task trec --k 8 --draws 1 --test-size 8 --perturbation inputs-only",
    "inputs-only-format": "run --task trec --k 4,8 --draws 1 --test-size 8 --perturbation inputs-only,format=3",
    "labels-only": "run --task trec --k 8 --draws 1 --test-size 8 --perturbation labels-only",
    "nearest-removed": "run --task trec --k 8 --draws 1 --test-size 8 --perturbation nearest-removed:25",
    "half-of-the-labels": "run --task trec --k 8 --draws 1 --test-size 30 --labels half:1",
    "copied": "run --task trec --k 8 --draws 1 --test-size 8 --queries copied",
    "unconstrained": "run --task trec --k 8 --draws 1 --test-size 8 --unconstrained",
    "exact": "run --task trec --k 8 --draws 1 --test-size 8 --score exact",
    "per-label": "run --task trec --per-label 2 --draws 1 --test-size 8 --select balanced",
    "seed": "run --task banking77 --k 20 --draws 1 --test-size 8 --seed 5",
    "free-text": f"run --task {FREE_TEXT} --k 2,4 --draws 1 --test-size 4",
    "simple-methods": "finetune --task trec --k 12 --draws 2 --test-size 8 --method probe,knn",
    "training": (
        "finetune --task trec --k 12 --draws 1 --test-size 8 --method lora,full --epochs 1 --validation examples"
    ),
    "server": (
        f"run --task trec --k 4 --draws 1 --test-size 6 --backend openai --base-url http://127.0.0.1:{PORT}/v1 "
        "--tokenizer gemma3-270m --model m"
    ),
    "zero-shot": "run --task trec --k 0 --test-size 8",
    "context": "run --task trec --k 4,max --context 300 --draws 1 --test-size 8 --select random,bm25",
    "per-label-retrieved": (
        "run --task trec --k 6 --draws 1 --test-size 6 --select per-label:1,per-label:1,by=bm25,hybrid:per-label:1"
    ),
    "choices-letters": "run --task commonsenseqa --k 0,3 --draws 1 --test-size 6",
    "choices-letters-unconstrained": "run --task commonsenseqa --k 3 --draws 1 --test-size 6 --unconstrained",
    "choices-written": f"run --task {WRITTEN_OUT} --k 0,4 --draws 1 --test-size 6",
    "choices-written-bytes": f"run --task {WRITTEN_OUT} --k 0,4 --draws 1 --test-size 6 --score exact",
    "choices-written-jinja": (
        f"run --task {GOLDEN}/written_out_jinja.yaml --k 2 --draws 1 --test-size 6 --score exact"
    ),
    "choices-written-noise": (
        f"run --task {WRITTEN_OUT} --k 6 --select random,bm25 --draws 1 --test-size 6 --perturbation labels:noise=0.5"
    ),
    "numeric": "run --task gsm8k_answers --k 1,4 --draws 1 --test-size 6",
    "several-golds": "run --task nq_open,webquestions --k 0,5 --draws 1 --test-size 4",
    "golds-in-a-path": "run --task commonsenseqa_free --k 5 --draws 1 --test-size 6 --select random,bm25",
    "passages": "run --task nq_open_passage --k 2 --draws 1 --test-size 4 --attention block:1",
    "unanswerable": "run --task squad2 --k 2 --draws 1 --test-size 6",
    "summaries": f"run --task {GOLDEN}/summaries.yaml --k 2 --draws 1 --test-size 4",
    "free-metrics": f"run --task {GOLDEN}/free_metrics.yaml --k 4 --draws 1 --test-size 6",
    "chat-turns": f"run --task trec {SMOLLM2} --k 0,6 --draws 1 --test-size 8 --chat turns --select random,bm25",
    "chat-turns-system": f"run --task trec {SMOLLM2} --k 0,6 --draws 1 --test-size 8 --chat turns --system {SYSTEM}",
    "chat-single": f"run --task trec {SMOLLM2} --k 0,6 --draws 1 --test-size 8 --chat single --select random,bm25",
    "chat-exact": (
        f"run --task trec {SMOLLM2} --k 4 --draws 1 --test-size 6 --chat turns --system {SYSTEM} --score exact"
    ),
    "chat-attention": (
        f"run --task trec {SMOLLM2} --k 8 --draws 1 --test-size 6 --chat turns --attention full,block:2"
    ),
    "chat-perturbed": (
        f"run --task trec {SMOLLM2} --k 6 --draws 1 --test-size 6 --chat turns --perturbation labels:permuted "
        "--order drawn,shuffled:1"
    ),
    "chat-written": (f"run --task {WRITTEN_OUT} {SMOLLM2} --k 3 --draws 1 --test-size 6 --chat single --score exact"),
    "chat-free": f"run --task nq_open,squad2 {SMOLLM2} --k 2 --draws 1 --test-size 4 --chat turns",
    "server-choices": (
        f"run --task commonsenseqa,{WRITTEN_OUT} --k 3 --draws 1 --test-size 6 {SERVER} --tokenizer gemma3-270m"
    ),
    "server-free": (
        f"run --task nq_open,gsm8k_answers,squad2 --k 2 --draws 1 --test-size 4 {SERVER} --tokenizer gemma3-270m"
    ),
    "server-chat": (
        f"run --task trec,nq_open --k 0,3 --draws 1 --test-size 4 {SERVER} --tokenizer smollm2-135m-instruct "
        f"--chat turns --system {SYSTEM}"
    ),
}
"""By name: the command's words but for those that all have."""

VLLM = (
    "run --backend vllm --task trec --model gemma3-270m --dtype float32 --k 6,12 --draws 1 --test-size 8 "
    "--select random,bm25,hybrid:4"
)
"""The run of the vLLM backend, which has an environment of its own."""


def carry_out(name: str, folder: Path, options: str = "") -> bytes:
    """Carry out one run in this process and return its export as CSV. Further options take the place of its own."""
    words = [*shlex.split(VLLM if name == "vllm" else RUNS[name]), *shlex.split(options)]
    if "--backend" not in words:
        words += COMMON[2:] if "--model" in words else COMMON
    results = folder / "results"
    with _server() if "--base-url" in words else contextlib.nullcontext():
        said(*words, "--results", results, "--quiet")
    return exported(results, folder / f"{name}.csv")


def exported(results: Path, out: Path) -> bytes:
    """Export a results folder in this process, into a CSV file that is returned."""
    said("export", "--results", results, "--out", out)
    return out.read_bytes()


@contextlib.contextmanager
def _server() -> Iterator[None]:
    """A server whose answer depends on the prompt alone."""
    from support.api_server import chat, completion, serving

    os.environ["OPENAI_API_KEY"] = "none"
    labels = ("entity", "human being", "location", "no label")

    def answer(request: dict[str, Any]) -> Any:
        if "messages" in request:
            asked = "".join(message["content"] for message in request["messages"])
            return chat(labels[len(asked) % 4])
        return completion(f" {labels[len(request['prompt']) % 4]}", prompt_tokens=len(request["prompt"]) // 4)

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
