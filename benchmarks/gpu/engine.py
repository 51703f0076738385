"""vLLM in processes of its own, against the transformers backend in float32.

On a card answers are held to the labels by vLLM's grammar engine, as runs do it there, and by our
processor for the V2 model runner, which nothing has run yet; on a CPU as runs do it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.backends.interface import Answer, Decoding, Exact, Greedy
from icl_bench.backends.label_constraint import compile_labels
from icl_bench.backends.vllm.backend import VllmBackend
from icl_bench.prompts.encoding import PromptSet

from .findings import Finding, Options, at_least, at_most
from .models import LABELS, TINY, answered, config_of, loaded, prompts_of, random_network, saved, trie_of

QUERIES, SCORED = 150, 20
SCORES_WITHIN = 5e-3
"""Of log-probabilities in float32: vLLM's attention rounds products to TF32 on a card."""
CONSTRAINTS = ("xgrammar", "processor")


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
    """Ask both and compare; vLLM first, which wants most of a card's memory for itself."""
    prompts, said = _prompts(options.small), {}
    for constraint in CONSTRAINTS if options.on_card else CONSTRAINTS[-1:]:
        command = [sys.executable, "-m", "gpu.engine", str(folder), str(options.small), constraint]
        here = str(Path(__file__).parents[1])
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
            yield Finding("vllm", f"starts and answers, {constraint}", passed=False, note=last)
        else:
            said[constraint] = json.loads(done.stdout.strip().splitlines()[-1])
    backend = loaded(folder, options.device, "float32")
    wanted = answered(backend, prompts, _decodings(backend.model.tokenizer, len(prompts)))
    for constraint, found in said.items():
        rows = found["rows"]
        valid = sum(row["label"] is not None for row in rows) / len(prompts)
        equal = [row["label"] == mine.label for row, mine in zip(rows, wanted, strict=True)]
        # what is behind the last whole block of the cache is computed
        expected = len(prompts.prefix) // found["block"] * found["block"]
        cached = sum(row["cached"] >= expected for row in rows) / len(rows)
        yield at_least("vllm", f"valid answers, {constraint}", valid, 1.0)
        yield at_least("vllm", f"equal to transformers', float32, {constraint}", sum(equal) / len(equal), 0.95)
        yield at_least("vllm", f"answers whose prefix was cached, {constraint}", cached, 1.0)
        scores = np.array([mine.scores for mine in _scored(backend, prompts)])
        worst = float(np.abs(scores - np.array(found["scores"])).max())
        yield at_most("vllm", f"labels' log-probabilities, largest difference, {constraint}", worst, SCORES_WITHIN)
    if len(said) == len(CONSTRAINTS):
        grammar, processor = (said[name]["seconds"] for name in CONSTRAINTS)
        share = processor / grammar
        yield Finding("vllm", "seconds with the processor, of the grammar's", share, timed=True)


def _prompts(small: bool) -> PromptSet:
    return prompts_of(6 if small else 100, 12, 12 if small else QUERIES, 9)


def _decodings(tokenizer: object, count: int) -> list[Decoding]:
    return [Greedy(compile_labels([f" {label}\n" for label in LABELS], tokenizer))] * count  # type: ignore[arg-type]


def _scored(backend: Any, prompts: PromptSet) -> list[Answer]:
    """The first queries with every label scored."""
    some = PromptSet(prompts.prefix, prompts.suffixes[:SCORED], ends=prompts.ends, lead=prompts.lead)
    return answered(backend, some, [Exact(trie_of(backend_tokenizer(backend)))] * len(some))


def backend_tokenizer(backend: Any) -> Any:
    """The tokenizer of either backend."""
    return backend.tokenizer if isinstance(backend, VllmBackend) else backend.model.tokenizer


def engine_backend(
    folder: Path, room: int, dtype: str, constraint: str | None = None, **engine: Any
) -> tuple[VllmBackend, object]:
    """VLLM with a model from a folder, and the model's tokenizer."""
    from icl_bench.backends.loaders import VllmLoader
    from icl_bench.backends.spec import BackendSpec
    from icl_bench.models.registry import load_tokenizer, resolve

    model = resolve(str(folder))
    tokenizer = load_tokenizer(model)
    identity = VllmLoader(BackendSpec(backend="vllm", dtype=dtype)).identity()
    backend = VllmBackend(
        model.source, tokenizer, identity=identity, max_model_len=room, constraint=constraint, **engine
    )
    return backend, tokenizer


def main() -> None:
    """Answer with vLLM, print what it said: ``python -m gpu.engine FOLDER SMALL CONSTRAINT``."""
    folder, small, constraint = Path(sys.argv[1]), sys.argv[2] == "True", sys.argv[3]
    prompts = _prompts(small)
    backend, tokenizer = engine_backend(folder, len(prompts.prefix) + 200, "float32", constraint)
    start = time.perf_counter()
    found = answered(backend, prompts, _decodings(tokenizer, len(prompts)))
    seconds = time.perf_counter() - start
    rows = [{"label": a.label, "cached": a.cached_tokens} for a in found]
    block = backend.llm.llm_engine.vllm_config.cache_config.block_size
    scores = [answer.scores.tolist() for answer in _scored(backend, prompts) if answer.scores is not None]
    print(json.dumps({"rows": rows, "seconds": seconds, "block": block, "scores": scores}))


if __name__ == "__main__":
    main()
