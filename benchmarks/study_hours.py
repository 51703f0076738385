"""Hours of the study of Bertsch et al. 2025 on GPUs, by formula, before anybody has them.

    python benchmarks/study_hours.py --data DIR [--teraflops 400] [--cards 8] [--rows 20]

The models of ``studies/bertsch2025.yaml`` are not needed: prompts are counted in the packaged
Gemma's tokens, within each model's window, and operations are those of Llama 2 7B's shape
(Mistral's and Qwen's differ by a tenth). Assumed: so many teraflops a card are reached (an H100's
products reach 989 in bfloat16 by its maker); each query of retrieval is computed whole; every
query's answer reads its keys and values once a token at 2.5 TB/s, one query at a time; trainings
take six operations a parameter and token (LoRA four), 30 epochs. Retrieved prompts are counted for
``--rows`` test rows and multiplied up to 250. Loading of models, selection on the CPU and storing
are not in it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.models.architecture import Architecture
from icl_bench.studies.file import load_study
from icl_bench.sweep.compute_cost import cost_of
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.sweep import Sweep
from icl_bench.sweep.time_estimate import EFFICIENCY, seconds
from icl_bench.training.spec import FinetuneSpec

LLAMA2_7B = Architecture(
    6_476_005_376,
    4096,
    (None,) * 32,
    4096,
    hidden_width=4096,
    vocabulary=32_000,
    layer_parameters=202_375_168,
    projection_parameters=50_331_648,
)
"""Without embeddings; keys and values are as wide as the heads."""

WINDOWS = {"llama2": 4096, "llama2-32k": 32768, "llama2-80k": 81920, "mistral": 32768, "Qwen/Qwen2.5-7B": 131072}
ROWS, BYTES_A_SECOND, EPOCHS = 250, 2.5e12, 30


def of_prompts(spec: RunSpec, window: int, rate: float, rows: int) -> tuple[float, float]:
    """Seconds of operations, and of reading keys and values for answers."""
    retrieves = any(choice.retrieves for choice in spec.select)
    found = rows if retrieves else ROWS
    changed = spec.model_copy(update={"model": "gemma3-270m", "context_tokens": window, "test_size": found})
    sweep = Sweep.prepare(changed)
    cells = sweep.plan.cells
    answer = [sweep.task.planned_answer(LLAMA2_7B.vocabulary, skips_unread=True)]
    costs = [None if c.problem else cost_of(c.prompt_layout, LLAMA2_7B, answer, "bfloat16") for c in cells]
    computed = sum(seconds(LLAMA2_7B, rate / EFFICIENCY, cells, costs))
    read = sum(
        cell.queries * cell.answer_tokens / 2 * cost.cache_bytes / BYTES_A_SECOND
        for cell, cost in zip(cells, costs, strict=True)
        if cost
    )
    if sweep.task.data.spec.is_classification and not retrieves:
        read = 0.0  # packed queries read what they share once
    return computed * ROWS / found, read * ROWS / found


def of_training(spec: FinetuneSpec, rate: float) -> float:
    """Seconds of operations of its trainings."""
    from icl_bench.training.finetune import Finetuning

    changed = spec.model_copy(update={"model": "gemma3-270m", "test_size": ROWS})
    task = Finetuning.prepare(changed).task
    tokens, total = float(task.lengths.mean()), 0.0
    for k in spec.k.numbers:
        for method in spec.method:
            each = 6 if method == "full" else 4
            total += spec.draws * min(k, len(task.pool)) * EPOCHS * tokens * each * LLAMA2_7B.parameters
            # after each epoch validation and test rows are read
            total += spec.draws * EPOCHS * (ROWS + min(k, ROWS)) * tokens * 2 * LLAMA2_7B.parameters
    return total / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--teraflops", type=float, default=400)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--model", action="append", help="one of the study's; all by default")
    given = parser.parse_args()
    rate = given.teraflops * 1e12
    totals: Counter[tuple[str, str]] = Counter()
    for job in load_study("bertsch2025", given.data).jobs:
        if given.model and job.model not in given.model:
            continue
        options: dict[str, Any] = {**job.options}
        options.pop("dtype", None)
        spec = type(job)(job.setting, job.task, job.model, options, job.finetune).spec()
        try:
            if isinstance(spec, FinetuneSpec):
                took = of_training(spec, rate), 0.0
            else:
                took = of_prompts(spec, WINDOWS[job.model], rate, given.rows)
        except UserError as error:
            print(f"{job}: {error}", flush=True)
            continue
        print(f"{job}: {took[0] / 3600:.2f} h of operations, {took[1] / 3600:.2f} h of reading", flush=True)
        totals[job.model, "operations"] += took[0]  # type: ignore[assignment]
        totals[job.model, "reading"] += took[1]  # type: ignore[assignment]
    for (model, kind), found in totals.items():
        print(
            json.dumps(
                {
                    "model": model,
                    "kind": kind,
                    "card_hours": round(found / 3600, 1),
                    "hours": round(found / 3600 / given.cards, 2),
                }
            )
        )


if __name__ == "__main__":
    main()
