"""vLLM in a process of its own, against the transformers backend in float32."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from icl_bench.backends.interface import Backend, Decoding, Greedy
from icl_bench.backends.label_constraint import compile_labels
from icl_bench.prompts.encoding import PromptSet

from .findings import Finding, Options, at_least
from .models import LABELS, TINY, answered, config_of, loaded, prompts_of, random_network, saved

QUERIES = 150
BLOCK = 16
"""Tokens of a block of vLLM's cache, by default: what is behind the last whole one is computed."""


def engine(options: Options) -> Iterator[Finding]:
    """Valid answers, equal ones, and tokens that the cache had."""
    if importlib.util.find_spec("vllm") is None:
        yield Finding("vllm", "left out", note="vLLM is not installed")
        return
    if options.model is not None:
        yield from _compared(options.model, options)
        return
    config = config_of("llama", **TINY | {"head_dim": 64, "hidden_size": 256})
    with saved(random_network(config, "cpu", "float32")) as folder:
        yield from _compared(folder, options)


def _compared(folder: Path, options: Options) -> Iterator[Finding]:
    """Ask both and compare."""
    command = [sys.executable, "-m", "gpu.engine", str(folder), str(options.small)]
    here = str(Path(__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        yield Finding("vllm", "starts and answers", passed=False, note=said)
        return
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    prompts = _prompts(options.small)
    backend = loaded(folder, options.device, "float32")
    wanted = answered(backend, prompts, _decodings(backend.model.tokenizer, len(prompts)))
    valid = sum(row["label"] is not None for row in rows) / len(prompts)
    equal = [row["label"] == mine.label for row, mine in zip(rows, wanted, strict=True)]
    expected = len(prompts.prefix) // BLOCK * BLOCK
    cached = sum(row["cached"] >= expected for row in rows) / len(rows)
    yield at_least("vllm", "valid answers", valid, 1.0)
    yield at_least(
        "vllm", "equal to the transformers backend's, float32", sum(equal) / len(equal), 0.95
    )
    yield at_least("vllm", "answers whose prefix was cached", cached, 1.0)


def _prompts(small: bool) -> PromptSet:
    return prompts_of(6 if small else 100, 12, 12 if small else QUERIES, 9)


def _decodings(tokenizer: object, count: int) -> list[Decoding]:
    return [Greedy(compile_labels([f" {label}\n" for label in LABELS], tokenizer))] * count  # type: ignore[arg-type]


def engine_backend(folder: Path, room: int, dtype: str) -> tuple[Backend, object]:
    """VLLM with a model from a folder, and the model's tokenizer."""
    from icl_bench.backends.loaders import VllmLoader
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.models.registry import load_tokenizer, resolve

    loader = VllmLoader(BackendSpec(backend="vllm", dtype=dtype))
    model = resolve(str(folder))
    tokenizer = load_tokenizer(model)
    return loader.load(model, tokenizer, room), tokenizer


def main() -> None:
    """Answer with vLLM and print what it said: ``python -m gpu.engine FOLDER SMALL``."""
    folder, small = Path(sys.argv[1]), sys.argv[2] == "True"
    prompts = _prompts(small)
    backend, tokenizer = engine_backend(folder, len(prompts.prefix) + 200, "float32")
    found = answered(backend, prompts, _decodings(tokenizer, len(prompts)))
    print(json.dumps([{"label": a.label, "cached": a.cached_tokens} for a in found]))


if __name__ == "__main__":
    main()
