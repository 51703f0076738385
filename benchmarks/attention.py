"""What attention patterns save: prefill of one prompt, seconds beside the formula's operations.

    python benchmarks/attention.py --data DIR [--k 1000] [--model gemma3-270m] [--repeats 1]

Demonstrations of Banking-77 are prefilled under each pattern, in turn, by a model from the registry
and by one with random weights of which every layer is global. Printed are seconds and operations as
shares of those of full attention, and the bytes that the cache holds beside the formula's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GLOBAL = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 65536,
    "tie_word_embeddings": True,
}
PATTERNS = ("full", "block:50,sink=1,local=2", "block:50,sink=0,local=0", "grouped:4,512", "approx:512,16")


def all_global(source: str, tokenizer: Any, folder: Path) -> Path:
    """A Llama of random weights and global layers alone, with another model's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    vocabulary = AutoConfig.from_pretrained(source).get_text_config().vocab_size
    config = AutoConfig.for_model("llama", vocab_size=vocabulary, **GLOBAL)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def measure(
    name: str, source: Path, tokenizer: Any, prompts: Any, patterns: Sequence[str], repeats: int, dtype: str
) -> None:
    """Prefill under each pattern and print a table."""
    from icl_bench.backends.transformers.backend import TransformersBackend
    from icl_bench.models.architecture import architecture_of
    from icl_bench.models.attention_patterns import Pattern
    from icl_bench.sweep.compute_cost import AnswerWork, PromptLayout, cache_bytes, cost_of

    backend, shape = (TransformersBackend.load(source, tokenizer, dtype=dtype), architecture_of(str(source)))
    tokens = len(prompts.prefix)
    seconds: dict[str, float] = {}
    held: dict[str, int] = {}
    for _ in range(repeats):
        for text in patterns:
            backend.cache.drop()
            pattern = Pattern.parse(text)
            start = time.perf_counter()
            backend.load_prefix(prompts, tokens, pattern)
            elapsed = time.perf_counter() - start
            seconds[text] = min(elapsed, seconds.get(text, elapsed))
            held[text] = backend.cache.prefix.nbytes()
    backend.cache.drop()
    print(f"{name}, {tokens:,} tokens, {dtype}")
    columns = ("seconds", "of full", "formula", "ratio", "cache MB", "formula")
    print(f"{'':26}" + "".join(f"{name:>10}" for name in columns))
    works = {t: cost_of(PromptLayout.of(prompts, Pattern.parse(t)), shape, [AnswerWork()], dtype) for t in patterns}
    for text in patterns:
        share = seconds[text] / seconds[patterns[0]]
        formula = works[text].prefix_flops / works[patterns[0]].prefix_flops
        kept = cache_bytes(shape, Pattern.parse(text), tokens, dtype)
        print(
            f"{text:26}{seconds[text]:10.1f}{share:10.3f}{formula:10.3f}{share / formula:10.2f}"
            f"{held[text] / 1e6:10.1f}{kept / 1e6:10.1f}",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="data folder with banking77/")
    parser.add_argument("--k", type=int, default=1000)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()

    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    spec = RunSpec(
        task="banking77", model=arguments.model, k=str(arguments.k), draws=1, test_size=1, data_dir=arguments.data
    )
    sweep = Sweep.prepare(spec)
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([arguments.k])
    tokenizer = sweep.task.tokenizer
    with tempfile.TemporaryDirectory() as folder:
        made = all_global(sweep.model.source, tokenizer, Path(folder))
        options = prompts, PATTERNS, arguments.repeats, arguments.dtype
        measure("all layers global", made, tokenizer, *options)
    measure(arguments.model, Path(sweep.model.source), tokenizer, *options)


if __name__ == "__main__":
    main()
