"""Ways of holding vLLM to the labels: seconds, and answers equal to the transformers backend's.

    python benchmarks/constraints.py --data DIR [--rows 40] [--cells banking77:10,clinic150:10]

Each side runs in a process of its own. Ways: ``choice`` with each of vLLM's grammar engines
(structured outputs), ``processor`` (a logits processor loaded by vLLM's engine) and ``steps`` (one
call per token, its tokens allowed from outside). Seconds are of the queries alone, their prefix
cached; every cell runs twice and the second time counts, so that grammars are compiled already
(the first time is printed too).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GRAMMARS = ("xgrammar", "guidance", "outlines")


def cells(text: str) -> list[tuple[str, int]]:
    return [(task, int(k)) for task, _, k in (cell.partition(":") for cell in text.split(","))]


def sweep(task: str, k: int, data: Path, rows: int, backend: str) -> Any:
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep

    return Sweep.prepare(
        RunSpec(task=task, model="gemma3-270m", k=k, draws=1, test_size=rows, data_dir=data, backend=backend)
    )


def transformers(arguments: argparse.Namespace) -> dict[str, Any]:
    """The reference: labels of each cell."""
    found, backend = {}, None
    for task, k in cells(arguments.cells):
        made = sweep(task, k, arguments.data, arguments.rows, "transformers")
        backend = backend or made.load_backend()
        ((_, prompts),) = made.plan.groups[0].group.prompts([k])
        start = time.perf_counter()
        answers = [
            a
            for pack in backend.answer(prompts, range(arguments.rows), [made.task.decoding] * len(prompts), 0)
            for a in pack
        ]
        answers.sort(key=lambda a: a.index)
        seconds = time.perf_counter() - start
        found[f"{task}:{k}"] = {"labels": [a.label for a in answers], "seconds": seconds}
    return found


def vllm(arguments: argparse.Namespace) -> dict[str, Any]:
    """The ways of one side: its grammar; or the logits processor, and stepping from outside."""
    from icl_bench.backends.vllm.backend import VllmBackend

    made = [(name, sweep(*name, arguments.data, arguments.rows, "vllm")) for name in cells(arguments.cells)]
    first = made[0][1]
    needed = max(c.needed_tokens for _, s in made for c in s.plan.cells) + 1
    constraint = arguments.side if arguments.side in GRAMMARS else "processor"
    start = time.perf_counter()
    backend = VllmBackend(
        first.model.source,
        first.task.tokenizer,
        identity=first.engine.identity(),
        max_model_len=needed,
        constraint=constraint,
    )
    print(f"{arguments.side}: engine started in {time.perf_counter() - start:.0f} s", flush=True)
    ways = {constraint: _whole} if constraint in GRAMMARS else {constraint: _whole, "steps": _steps}
    found: dict[str, Any] = {}
    for name, way in ways.items():
        for (task, k), s in made:
            ((_, prompts),) = s.plan.groups[0].group.prompts([k])
            automaton = s.task.decoding.automaton
            backend.warm(prompts.prefix)
            took: list[float] = []
            for _ in range(2):
                backend.llm.reset_prefix_cache()
                backend.warm(prompts.prefix)
                start = time.perf_counter()
                asked = [prompts.ids(i) for i in range(arguments.rows)]
                labels, tokens = way(backend, asked, automaton)
                took.append(time.perf_counter() - start)
            found.setdefault(name, {})[f"{task}:{k}"] = {
                "labels": labels,
                "first": took[0],
                "seconds": took[1],
                "tokens": tokens,
            }
    return found


def _whole(backend: Any, prompts: Any, automaton: Any) -> tuple[list[int], int]:
    from icl_bench.backends.interface import Greedy

    done = backend.generate(prompts, [backend.sampling(Greedy(automaton))] * len(prompts))
    tokens = [output.outputs[0].token_ids for output in done]
    return [automaton.read(t) for t in tokens], sum(map(len, tokens))


def _steps(backend: Any, prompts: Any, automaton: Any) -> tuple[list[int], int]:
    from vllm import SamplingParams

    states = [0] * len(prompts)
    written: list[tuple[int, ...]] = [()] * len(prompts)
    count = 0
    while open_rows := [i for i, s in enumerate(states) if automaton.decided[s] < 0]:
        params = [
            SamplingParams(
                temperature=0, max_tokens=1, detokenize=False, allowed_token_ids=automaton.tokens[states[i]].tolist()
            )
            for i in open_rows
        ]
        done = backend.generate([prompts[i] + written[i] for i in open_rows], params)
        for i, output in zip(open_rows, done, strict=True):
            (token,) = output.outputs[0].token_ids
            place = automaton.tokens[states[i]].tolist().index(token)
            states[i], written[i] = int(automaton.targets[states[i]][place]), (*written[i], token)
            count += 1
    return [int(automaton.decided[s]) for s in states], count


def main() -> None:
    """Run every side in a process of its own and print one table per cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--cells", default="banking77:10,banking77:100,clinic150:10")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        made = transformers(arguments) if arguments.side == "transformers" else vllm(arguments)
        print(json.dumps(made))
        return
    found: dict[str, Any] = {}
    for side in ("transformers", *GRAMMARS, "processor"):
        command = [
            sys.executable,
            __file__,
            "--side",
            side,
            "--data",
            str(arguments.data),
            "--rows",
            str(arguments.rows),
            "--cells",
            arguments.cells,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        lines = done.stdout.strip().splitlines()
        print(*lines[:-1], sep="\n", flush=True)
        if done.returncode:
            print(f"{side}: failed", flush=True)
            continue
        made = json.loads(lines[-1])
        found.update({side: made} if side == "transformers" else made)
    for name in arguments.cells.split(","):
        expected = found["transformers"][name]["labels"]
        print(f"\n{name}, {arguments.rows} queries")
        for way, made in found.items():
            cell = made[name]
            same = sum(a == b for a, b in zip(cell["labels"], expected, strict=True))
            first = f"{cell['first']:.1f} s at first, " if "first" in cell else ""
            tokens = f", {cell['tokens']} tokens" if "tokens" in cell else ""
            print(f"  {way:>12}: {first}{cell['seconds']:.1f} s, {same}/{len(expected)} equal{tokens}", flush=True)


if __name__ == "__main__":
    main()
