"""Scoring every label against generating one: seconds, their ratio, and where the time goes.

    python benchmarks/exact_scores.py --data DIR [--rows 16] [--k 20] [--dtype float32] [--rounds 3]

Banking-77 and TREC with Gemma 3 270M on the CPU. The sides answer the same prompts by turns, with the
prefix computed before: greedy answers, every label's score (``exact``), and the two most probable labels
alone (``search``). Times are the process's own seconds (least of the rounds), which other work on the
machine changes least. Operations are by the program's formulas.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from torch.profiler import profile

from icl_bench.backends.interface import Decoding
from icl_bench.models.architecture import architecture_of
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.registry import resolve
from icl_bench.prompts.encoding import PromptSet
from icl_bench.sweep.compute_cost import PromptLayout, cost_of
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

MODEL = "gemma3-270m"
SIDES = {"greedy": ("greedy", None), "exact": ("exact", "all"), "search": ("exact", "none")}
"""Side -> ``--score`` and ``--keep-scores``."""


def sweep(task: str, side: str, arguments: argparse.Namespace) -> Sweep:
    score: Any
    score, keep = SIDES[side]
    return Sweep.prepare(
        RunSpec(
            task=task,
            model=MODEL,
            k=str(arguments.k),
            draws=1,
            score=score,
            keep_scores=keep,
            test_size=arguments.rows,
            data_dir=arguments.data,
            device="cpu",
            dtype=arguments.dtype,
        )
    )


def answer(backend: Any, prompts: PromptSet, decodings: Sequence[Decoding]) -> tuple[float, list[int]]:
    """Seconds of the process for all answers, and the tokens that were generated for each."""
    start = time.process_time()
    packs = backend.answer(prompts, range(len(prompts)), decodings, 0)
    answers = sorted((a for pack in packs for a in pack), key=lambda a: a.index)
    return time.process_time() - start, [a.answer_tokens for a in answers]


def floors(made: dict[str, Sweep], prompts: PromptSet, tokens: dict[str, list[int]]) -> list[float]:
    """How many times the operations of greedy answers each side takes."""
    shape = architecture_of(resolve(MODEL).source)
    layout = PromptLayout.of(prompts, FULL)
    took = []
    for side in SIDES:
        task = made[side].task
        works = task.answer_works(task.data.test, tokens[side], shape.vocabulary, skips_unread=True)
        took.append(cost_of(layout, shape, works, "float32").query_flops)
    return [operations / took[0] for operations in took]


def shares(backend: Any, prompts: PromptSet, decodings: Sequence[Decoding]) -> str:
    """The largest shares of the operators' time."""
    with profile() as profiler:
        answer(backend, prompts, decodings)
    spent = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    whole = sum(spent.values())
    largest = sorted(spent.items(), key=lambda item: -item[1])[:8]
    return ", ".join(f"{name} {100 * time / whole:.0f}%" for name, time in largest)


def main() -> None:
    """Print a line and the shares of a profile for each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="data folder")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", default="banking77,trec")
    arguments = parser.parse_args()
    backend: Any = None
    for task in arguments.tasks.split(","):
        made = {side: sweep(task, side, arguments) for side in SIDES}
        backend = backend or made["exact"].load_backend()
        ((_, prompts),) = made["exact"].plan.groups[0].group.prompts([arguments.k])
        decodings = {side: made[side].task.decodings(made[side].task.data.test) for side in SIDES}
        backend.load_prefix(prompts)
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        tokens: dict[str, list[int]] = {}
        for _ in range(arguments.rounds):
            for side in SIDES:
                spent, tokens[side] = answer(backend, prompts, decodings[side])
                seconds[side].append(spent)
        least, times = {side: min(spent) for side, spent in seconds.items()}, floors(made, prompts, tokens)
        print(f"{task}: {arguments.rows} rows, k={arguments.k}, {arguments.dtype}", flush=True)
        for side, operations in zip(SIDES, times, strict=True):
            mean = sum(tokens[side]) / len(prompts)
            print(
                f"    {side}: {least[side]:.2f} s, {least[side] / least['greedy']:.1f} times greedy's; operations "
                f"{operations:.1f} times; {mean:.1f} tokens",
                flush=True,
            )
        print(f"    exact: {shares(backend, prompts, decodings['exact'])}", flush=True)


if __name__ == "__main__":
    main()
