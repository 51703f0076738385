"""Cost of retrieval: every query its own demonstrations, beside plain prefills of such prompts.

    python benchmarks/retrieval.py --data DIR [--k 10] [--sample 25]

A run with ``--select bm25`` is timed from the first prompt to the last answer (retrieval itself
included), and compared with the number of queries times one prompt's prefill, which is measured
by the model's own forward pass on a sample of the same prompts, half before and half after.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def prefill_seconds(model: Any, prompts: list[tuple[int, ...]]) -> list[float]:
    """Seconds of one plain forward pass for each prompt, logits of the last token only."""
    import torch

    seconds = []
    with torch.inference_mode():
        for ids in prompts:
            start = time.perf_counter()
            model(torch.tensor([ids]), logits_to_keep=1)
            seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Measure and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="data folder with banking77/")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rows", type=int, default=250)
    parser.add_argument("--sample", type=int, default=26)
    arguments = parser.parse_args()

    from transformers import AutoModelForCausalLM

    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    spec = RunSpec(
        task="banking77",
        model="gemma3-270m",
        k=str(arguments.k),
        select=("bm25",),
        test_size=arguments.rows,
        data_dir=arguments.data,
    )
    sweep = Sweep.prepare(spec)
    backend = sweep.load_backend()
    sweep.load_backend = lambda: backend  # type: ignore[method-assign]
    plain = AutoModelForCausalLM.from_pretrained(sweep.model.source, dtype=backend.dtype)  # type: ignore[attr-defined]
    ((_, prompts),) = sweep.plan.groups[0].group.prompts([arguments.k])
    step = max(1, arguments.rows // arguments.sample)
    chosen = [prompts.ids(i) for i in range(0, arguments.rows, step)]
    prefill_seconds(plain, chosen[:2])  # warm up
    single = prefill_seconds(plain, chosen[::2])
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        sweep.run(Path(folder))
        elapsed = time.perf_counter() - start
    single += prefill_seconds(plain, chosen[1::2])
    each = statistics.mean(single)
    print(
        f"{arguments.rows} queries, k={arguments.k}: {elapsed:.1f} s; "
        f"one prefill: {each:.3f} s (sample of {len(single)})"
    )
    print(f"time / ({arguments.rows} x one prefill): {elapsed / (arguments.rows * each):.2f}")


if __name__ == "__main__":
    main()
