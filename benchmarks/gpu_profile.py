"""Where a card's time goes: its attention kernels, chunks of a prefix, and shares by kind of kernel.

    python benchmarks/gpu_profile.py [--out FILE.json]
    python benchmarks/gpu_profile.py --device cpu --small     # runs small, measures nothing

An 8-layer model of Llama-2-7B's shape with random weights. Prints TFLOP/s of flash and of cuDNN (and
the seconds of its first call with a shape), the rate of a prefill by chunk with each, and of the last
chunk, of a pack of queries and of a step of their answers, which kernels take the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from gpu.findings import Options
from gpu.models import LLAMA_2_7B, TINY, backend_of, config_of, ids, random_network, shape_of
from gpu.speed import rates
from torch.profiler import ProfilerActivity, profile

from icl_bench.backends.interface import Free
from icl_bench.backends.transformers import attention_kernels
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.backends.transformers.loaded_model import LoadedModel
from icl_bench.backends.transformers.packed_decoding import OpenPack
from icl_bench.models.attention_patterns import FULL
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.compute_cost import flops

HEADS, WIDTH = 32, 128
KINDS = {
    "attention": ("flash", "fmha", "sdpa", "cudnn", "mha"),
    "products": ("gemm", "nvjet", "cutlass", "cublas", "gemv"),
    "copies": ("copy", "memcpy", "memset", "cat", "index", "scatter", "gather"),
}


def attention_table(options: Options) -> Iterator[dict[str, Any]]:
    """TFLOP/s of each kernel for a chunk, a pack and a step, without a mask."""
    shapes = [(tokens, keys) for tokens in (1024, 4096) for keys in (8192, 32_768, 65_536)]
    shapes += [(6250, 65_536), (250, 65_536), (250, 80_001)]
    for tokens, keys in [(16, 64)] if options.small else shapes:
        half = torch.bfloat16 if options.on_card else torch.float32
        query = torch.randn(1, tokens, HEADS, WIDTH, device=options.device, dtype=half).transpose(1, 2)
        key, value = (
            torch.randn(1, keys, HEADS, WIDTH, device=options.device, dtype=half).transpose(1, 2) for _ in range(2)
        )
        row: dict[str, Any] = {"tokens": tokens, "keys": keys}
        for name in ("flash", "cudnn"):
            kernel = attention_kernels.KERNELS[name] if options.on_card else attention_kernels.plain_attention
            work = partial(kernel, query, key, value, WIDTH**-0.5, None, causal=False)
            try:
                options.settle()
                start = time.perf_counter()
                work()
                options.settle()
                row[f"{name}_first_s"] = time.perf_counter() - start
                seconds = options.seconds(work)
            except RuntimeError as error:
                row[f"{name}_error"] = str(error).splitlines()[0][:200]
                continue
            row |= {f"{name}_ms": 1e3 * seconds, f"{name}_tflops": 4e-12 * tokens * keys * HEADS * WIDTH / seconds}
        yield row


@contextmanager
def without_cudnn() -> Iterator[None]:
    """The backend as on a card on which cuDNN's attention is not taken."""
    real = attention_kernels.runs
    with mock.patch.object(attention_kernels, "runs", lambda kernel, *of: kernel != "cudnn" and real(kernel, *of)):
        yield


def prefill_table(options: Options, model: LoadedModel, tokens: int, product: float) -> Iterator[dict[str, Any]]:
    """Seconds of a prefill by chunk, with cuDNN and with flash alone."""
    work = flops(shape_of(model.config), FULL, None, 0, tokens)
    for chunk in (64, 128) if options.small else (1024, 2048, 4096):
        for name, taken in (("cudnn", nullcontext), ("flash", without_cudnn)):
            backend = TransformersBackend(model, chunk_tokens=chunk)
            prompts = PromptSet(ids(tokens, 0), (ids(3, 1),))

            def prefill() -> None:
                backend.cache.drop()  # noqa: B023
                backend.load_prefix(prompts)  # noqa: B023

            with taken():
                seconds = options.seconds(prefill, 1)
            yield {"chunk": chunk, "kernel": name, "seconds": seconds, "share": work / seconds / product}
            backend.cache.drop()


def shares(options: Options, work: Callable[[], object]) -> dict[str, Any]:
    """Seconds of some work, of its kernels, and each kind's share of these; the longest kernels."""
    seconds = options.seconds(work, 2)
    kind = ProfilerActivity.CUDA if options.on_card else ProfilerActivity.CPU
    with profile(activities=[kind]) as profiled:
        work()
        options.settle()
    times: dict[str, float] = {}
    launches = 0
    for event in profiled.key_averages():
        own = event.self_device_time_total if options.on_card else event.self_cpu_time_total
        times[event.key] = times.get(event.key, 0.0) + own / 1e6
        launches += event.count
    total, by_kind = sum(times.values()) or 1.0, dict.fromkeys((*KINDS, "element by element"), 0.0)
    for name, spent in times.items():
        lower = name.lower()
        of = next((k for k, words in KINDS.items() if any(word in lower for word in words)), "element by element")
        by_kind[of] += spent / total
    longest = sorted(times.items(), key=lambda item: -item[1])[:12]
    return {
        "seconds": seconds,
        "kernel_seconds": total,
        "kernels": launches,
        "shares": by_kind,
        "longest": [[name[:100], spent] for name, spent in longest],
    }


def share_table(options: Options, model: LoadedModel, tokens: int) -> dict[str, Any]:
    """Where the time goes in the last chunk of a prefix, in a pack behind it, and in a step."""
    backend = TransformersBackend(model)
    chunk, rows, own = backend.cache.chunk_tokens, *((5, 7) if options.small else (250, 25))
    suffixes = [ids(own, 1 + i) for i in range(rows)]
    whole = tokens // chunk * chunk
    backend.load_prefix(PromptSet(ids(whole, 0), (ids(3, 1),)))
    mark, more = backend.cache.prefix.mark(), ids(chunk, 5)
    backend.cache.prefix.reserve(whole + chunk)

    def last_chunk() -> None:
        backend.cache.prefix.rewind(mark)
        backend.cache.read(more)

    found = {f"chunk of {chunk} behind {whole}": shares(options, last_chunk)}
    backend.cache.prefix.rewind(mark)
    found[f"pack of {rows} x {own}"] = shares(options, lambda: OpenPack(backend.cache, suffixes, 16))
    answers = [Free(("\x00no such text",), 4)] * rows
    found["pack and 3 steps"] = shares(options, lambda: OpenPack(backend.cache, suffixes, 16).answers(answers))
    return found


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("gpu-profile.json"))
    arguments = parser.parse_args()
    options = Options(arguments.device, arguments.small)
    product, copy = rates(options)
    found: dict[str, Any] = {"product_tflops": product / 1e12, "copy_gbs": copy / 1e9, "attention": [], "prefill": []}

    def told(row: dict[str, Any]) -> dict[str, Any]:
        shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
        print("ran; not measured" if options.small else shown, flush=True)
        return row

    found["attention"] = [told(row) for row in attention_table(options)]
    shape = TINY if options.small else LLAMA_2_7B | {"num_hidden_layers": 8}
    network = random_network(config_of("llama", **shape), options.device, "bfloat16" if options.on_card else "float32")
    model = backend_of(network, options.device, str(network.dtype).removeprefix("torch.")).model
    tokens = 600 if options.small else 80_000
    found["prefill"] = [told(row) for row in prefill_table(options, model, tokens, product)]
    found["shares"] = share_table(options, model, tokens)
    for name, row in found["shares"].items():
        longest = row.pop("longest")
        told({"part": name} | row)
        for kernel in longest if not options.small else ():
            print(f"    {kernel[1]:.4f} s {kernel[0]}")
        row["longest"] = longest
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
