"""Seconds a written token of answers that are thought about first, beside free answers, in one run.

    python benchmarks/thinking.py --data DIR [--model M] [--rows 64] [--k 4] [--limit 64] [--rounds 3]

GSM8K on the CPU. Both sides answer the same prompts by turns, with the prefix computed before: ``free`` writes
the thoughts alone, as free answers are written, ``thinking`` writes them and answers behind their end mark.
Times are the process's own seconds (least of the rounds), which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

from icl_bench.backends.interface import Answer
from icl_bench.models.attention_patterns import FULL
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

GOAL = 1.3


def timed(packs: Callable[[], Iterator[list[Answer]]]) -> tuple[float, int]:
    """Seconds of the process, and the tokens that were written."""
    start = time.process_time()
    answers = [answer for pack in packs() for answer in pack]
    seconds = time.process_time() - start
    return seconds, sum(a.answer_tokens + (a.thought.tokens if a.thought else 0) for a in answers)


def main() -> None:
    """Print seconds, tokens and seconds a token of both sides, and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="data folder")
    parser.add_argument("--task", default="gsm8k_thoughts")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    made = Sweep.prepare(
        RunSpec(
            task=arguments.task,
            model=arguments.model,
            k=str(arguments.k),
            think=str(arguments.limit),
            draws=1,
            test_size=arguments.rows,
            data_dir=arguments.data,
            device=arguments.device,
            dtype=arguments.dtype,
        )
    )
    backend, task = made.load_backend(), made.task
    ((_, prompts),) = made.plan.groups[0].group.prompts([arguments.k])
    thinking, decodings = task.thinking, task.decodings(task.data.test)
    assert thinking is not None, "the task thinks"
    sides: dict[str, Callable[[], Iterator[list[Answer]]]] = {
        "free": lambda: backend.answer(prompts, range(len(prompts)), [thinking.free] * len(prompts), 0),
        "thinking": lambda: thinking.answer(backend, prompts, range(len(prompts)), decodings, 0, FULL),
    }
    next(backend.answer(prompts, [0], [thinking.free] * len(prompts), 0))  # computes the prefix
    found: dict[str, list[tuple[float, int]]] = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side, packs in sides.items():
            found[side].append(timed(packs))
    each = {}
    print(f"{arguments.model}, {arguments.dtype}: {arguments.rows} rows, k={arguments.k}, prefix {len(prompts.prefix)}")
    for side, rounds in found.items():
        seconds, tokens = min(rounds)
        each[side] = seconds / tokens
        print(f"    {side}: {seconds:.2f} s, {tokens:,} tokens, {1000 * each[side]:.2f} ms each", flush=True)
    ratio = each["thinking"] / each["free"]
    print(f"    thinking takes {ratio:.2f} times the seconds a token (goal: at most {GOAL})")


if __name__ == "__main__":
    main()
