"""What passages cost as vectors and as text: +0, +5, +10, +20 (Chen et al. 2024, figure 2).

    python benchmarks/vectors_cost.py --keep DIR [--model gemma3-270m] [--data ../shared/data]

A Markdown table of a training step of two questions (all weights trained): seconds, and memory
beyond the weights, their gradients and moments; and of a question that is answered: seconds, and
bytes of keys and values. All as ratios to +0, each line measured in a process of its own. Passages
were encoded before. The answers mean nothing: what reads vectors is trained for a step or two.
``--keep`` is a folder of ``passages_as_vectors.py``; where it is empty its task is made there.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from passages_as_vectors import TASK, rows_of, write_tasks

COUNTS = [0, 5, 10, 20]
STEPS, BATCH, QUERIES = 4, 2, 8


def write_text_task(folder: Path, count: int) -> Path:
    """The task whose prompts have the first passages as text."""
    file = folder / f"text{count}.yaml"
    for split in ("train", "test"):
        rows = [
            {**row, "context": "\n".join(f"{p['title']}\n{p['text']}" for p in row["ctxs"][:count])}
            for row in rows_of(folder / f"{split}.jsonl")
        ]
        packed = "\n".join(map(json.dumps, rows))
        (folder / f"{split}_text{count}.jsonl").write_text(packed, encoding="utf-8")
    said = TASK.format(name=file.stem, test=f"test_text{count}")
    said = said.replace("train: train.jsonl", f"train: train_text{count}.jsonl")
    said = said.replace("fields: {", "fields: {context: context, ")
    said = said.replace('input: "Question', 'input: "{context}\\nQuestion')
    file.write_text(said)
    return file


def step(task: Path, model: str, count: int) -> dict[str, float]:
    """Seconds of a training step, and the most bytes of this process beyond what the weights, their
    gradients and their moments take.
    """
    from icl_bench.training.vectors.model import collated
    from icl_bench.training.vectors.spec import VectorSpec
    from icl_bench.training.vectors.training import VectorTraining

    spec = VectorSpec(
        task=str(task),
        model=model,
        out=task.parent / "unused",
        vectors=count,
        train="all",
        batch=BATCH,
        rows=40,
        device="cpu",
        dtype="float32",
    )
    training = VectorTraining.prepare(spec)
    network = training._model(lambda _: None)
    network.train()
    optimizer = training._optimizer(network)
    rows = training.examples.epoch(0, range(STEPS * BATCH))
    taken = []
    for number in range(STEPS):
        start = time.perf_counter()
        network(**collated(rows[number * BATCH :][:BATCH], 0))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - start)
    held = 4 * sum(p.nbytes for p in network.learnt().values())
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"step": statistics.median(taken[1:]), "step_bytes": most - held}


def query(task: Path, model: str, count: int) -> dict[str, float]:
    """Seconds of a question that is answered, and bytes of its keys and values."""
    import icl_bench
    from icl_bench.sweep.run_spec import RunSpec
    from icl_bench.sweep.sweep import Sweep
    from icl_bench.training.vectors.spec import VectorSpec
    from icl_bench.training.vectors.training import VectorTraining

    if count:
        reader = task.parent / f"cost{count}"
        spec = VectorSpec(
            task=str(task),
            model=model,
            out=reader,
            vectors=count,
            batch=BATCH,
            rows=4,
            epochs=1,
            device="cpu",
            dtype="float32",
        )
        training = VectorTraining.prepare(spec)
        if not training.folder.is_done():
            training.run()
        model = str(reader)
    with tempfile.TemporaryDirectory() as results:
        run = RunSpec(
            task=str(task),
            model=model,
            k="0",
            draws=1,
            test_size=QUERIES,
            backend="transformers",
            dtype="float32",
            device="cpu",
            attention=f"vectors:{count}" if count else "full",
        )
        Sweep.prepare(run).run(Path(results))
        cost = icl_bench.read(results).findings.cost.iloc[0]
    return {"query": cost["seconds"], "query_bytes": cost["cache_bytes"]}


def measured(what: str, task: Path, model: str, count: int) -> dict[str, float]:
    """One of both, in a process of its own."""
    words = [sys.executable, __file__, "--measure", what, str(task), model, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """See the module."""
    if sys.argv[1:2] == ["--measure"]:
        measure = {"step": step, "query": query}[sys.argv[2]]
        print(json.dumps(measure(Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--model", default="gemma3-270m")
    asked = parser.parse_args()
    write_tasks(asked.keep, asked.data)
    names = ["step", "step_bytes", "query", "query_bytes"]
    print("| | step: seconds | step: memory | query: seconds | query: keys and values |")
    print("| --- | --- | --- | --- | --- |")
    base: dict[str, float] = {}
    lines: list[tuple[str, int]] = [("+0", 0)]
    lines += [(way, count) for count in COUNTS[1:] for way in ("vectors", "text")]
    for way, count in lines:
        task = asked.keep / "own.yaml" if way != "text" else write_text_task(asked.keep, count)
        of = count if way == "vectors" else 0
        found = {k: v for what in ("step", "query") for k, v in measured(what, task, asked.model, of).items()}
        base = base or found
        ratios = " | ".join(f"{found[name] / base[name]:.2f}" for name in names)
        print(f"| {way if way == '+0' else f'+{count} as {way}'} | {ratios} |", flush=True)
    print(", ".join(f"{name} {base[name]:.3g}" for name in names), "at +0")


if __name__ == "__main__":
    main()
