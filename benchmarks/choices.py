"""Choices of each row against a fixed set of as many labels: seconds, side by side in one run.

    python benchmarks/choices.py --data DIR [--rows 100] [--k 10] [--rounds 3]

The prompts are the same for both: CommonsenseQA's questions, answers written out. The fixed set is
the choices of one row, that whose tree of tokens is of the middle size. Compared are the queries of
a cell, their prefix computed before; ``made`` is what compiling the automata, or building the
trees, of all rows takes once a run. Both sides take turns, and the least of the rounds counts;
seconds are the process's own, which other work on the machine changes least.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from icl_bench.backends.interface import Decoding, Exact, Free
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep

CHOICES = 5


def task_file(data: Path, folder: Path) -> Path:
    """The rows of the data folder whose choices differ, four fifths to show and a fifth to ask."""
    text = (data / "odqa" / "commonsenseqa_dev.jsonl").read_text("utf-8")
    lines = [line for line in text.splitlines(keepends=True) if _differ(json.loads(line))]
    cut = len(lines) * 4 // 5
    for name, part in {"train": lines[:cut], "test": lines[cut:]}.items():
        (folder / f"{name}.jsonl").write_text("".join(part), "utf-8")
    fields = {"question": "question", "choices": "choices", "answer": "answerKey"}
    task = {
        "name": "written_out",
        "data": {"train": "train.jsonl", "test": "test.jsonl", "fields": fields},
        "template": {"input": "Question: {question}", "output": "Answer: {answer}"},
        "labels": {"choices": "choices", "gold": "key"},
        "metrics": ["accuracy"],
    }
    path = folder / "task.yaml"
    path.write_text(json.dumps(task), "utf-8")
    return path


def _differ(row: Any) -> bool:
    return len({choice["text"] for choice in row["choices"]}) == CHOICES


def sweep(path: Path, arguments: argparse.Namespace, scoring: Any) -> Sweep:
    return Sweep.prepare(
        RunSpec(
            task=str(path), model="gemma3-270m", k=str(arguments.k), draws=1, score=scoring, test_size=arguments.rows
        )
    )


def middle(decodings: list[Decoding]) -> Decoding:
    """The one whose tree, or automaton, is of the middle size."""

    def size(found: Decoding) -> int:
        assert not isinstance(found, Free)
        return len((found.trie if isinstance(found, Exact) else found.automaton).tokens)

    return sorted(decodings, key=size)[len(decodings) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    backend: Any = None
    with tempfile.TemporaryDirectory() as folder:
        path = task_file(arguments.data, Path(folder))
        for scoring in ("greedy", "exact"):
            made = sweep(path, arguments, scoring)
            backend = backend or made.load_backend()
            asked = made.task.data.test
            made.task.decodings(asked[:1])  # reads the vocabulary, which both need
            start = time.process_time()
            own = made.task.decodings(asked)
            compiled = time.process_time() - start
            sides = {"own": own, "fixed": [middle(own)] * len(own)}
            ((_, prompts),) = made.plan.groups[0].group.prompts([arguments.k])
            backend.load_prefix(prompts)
            took: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(arguments.rounds):
                for side, decodings in sides.items():
                    start = time.process_time()
                    for _ in backend.answer(prompts, range(len(prompts)), decodings, 0):
                        pass
                    took[side].append(time.process_time() - start)
            best = {side: min(seconds) for side, seconds in took.items()}
            whole = (best["own"] + compiled) / best["fixed"]
            print(
                f"{scoring:>7}: {len(own)} rows, own {best['own']:.2f} s, fixed "
                f"{best['fixed']:.2f} s, ratio {best['own'] / best['fixed']:.2f}; made in "
                f"{compiled:.2f} s ({1000 * compiled / len(own):.1f} ms a row), with it "
                f"{whole:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
