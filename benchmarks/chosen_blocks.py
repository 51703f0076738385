"""What a query takes that reads chosen blocks of the demonstrations, beside one that reads all.

    python benchmarks/chosen_blocks.py [--model smollm2-135m-instruct] [--tokens 8000]
        [--pattern block:50,sink=1,local=2,top=0.3] [--queries 64] [--alone 4]

Demonstrations, queries and how similar they are to each other are made of random numbers: what is
computed does not depend on them. All is read once under the pattern; then the queries are answered
in packs, and some one by one, in turn with and without the choice, by the same backend. Printed are
seconds a query as shares of those of reading everything, beside the formula's operations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from icl_bench.backends.interface import Free
from icl_bench.backends.transformers.backend import TransformersBackend
from icl_bench.models.architecture import architecture_of
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.registry import load_tokenizer, resolve
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.compute_cost import AnswerWork, PromptLayout, cost_of


def made_up(shots: int, tokens: int, queries: int, query_tokens: int) -> PromptSet:
    """Prompts of random tokens, and how similar each demonstration is to each query."""
    rng = np.random.default_rng(0)
    ends = np.linspace(0, tokens, shots + 1).astype(int)[1:]
    prefix = tuple(rng.integers(100, 5000, tokens).tolist())
    own = tuple(tuple(rng.integers(100, 5000, query_tokens).tolist()) for _ in range(queries))
    return PromptSet(prefix, own, ends=(tuple(ends.tolist()),), similar=rng.random((queries, shots)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--pattern", default="block:50,sink=1,local=2,top=0.3")
    parser.add_argument("--shots", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--query-tokens", type=int, default=16)
    parser.add_argument("--answer-tokens", type=int, default=3)
    parser.add_argument("--alone", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    model = resolve(given.model)
    backend = TransformersBackend.load(model.source, load_tokenizer(model), dtype=given.dtype)
    pattern = Pattern.parse(given.pattern)
    every = Pattern.parse(given.pattern.partition(",top")[0])
    prompts = made_up(given.shots, given.tokens, given.queries, given.query_tokens)
    packs: dict[str, PromptSet] = {"packed": prompts}
    for i in range(given.alone):
        assert prompts.similar is not None
        similar = prompts.similar[i : i + 1]
        one = replace(prompts, suffixes=prompts.suffixes[i : i + 1], similar=similar)
        packs[f"alone {i}"] = one
    backend.load_prefix(prompts, 0, pattern)
    took: dict[tuple[str, str], float] = defaultdict(float)
    for _ in range(given.repeats):
        for name, asked in packs.items():
            for kind, how in (("all", every), ("chosen", pattern)):
                free: list[Any] = [Free(("\0",), given.answer_tokens)] * len(asked)
                start = time.perf_counter()
                list(backend.answer(asked, range(len(asked)), free, 0, how))
                took[name.split()[0], kind] += time.perf_counter() - start
    shape, costs = architecture_of(str(model.source)), {}
    answer = AnswerWork.generated(given.answer_tokens, shape.vocabulary)
    for kind, how in (("all", every), ("chosen", pattern)):
        costs[kind] = cost_of(PromptLayout.of(prompts, how), shape, [answer], given.dtype)
    print(
        json.dumps(
            {
                "model": given.model,
                "pattern": given.pattern,
                "prefix_tokens": given.tokens,
                **{f"{name}_share": round(took[name, "chosen"] / took[name, "all"], 3) for name in ("packed", "alone")},
                "operations_share": round(costs["chosen"].query_flops / costs["all"].query_flops, 3),
                "packed_ms_a_query_all": round(took["packed", "all"] / given.repeats / given.queries * 1e3, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
