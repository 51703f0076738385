"""Checks a task's data: counts, labels, duplicates, leaks and token lengths."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.models.registry import load_tokenizer, resolve
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task


def check_task(name: str, *, model: str | None, data_dir: Path | None, test_size: int | None) -> dict[str, Any]:
    """Counts, labels, duplicates and leaks of a task's data; with a model, token lengths.

    Raises ``UserError``.
    """
    spec = load_task(name)
    data = load_data(spec, data_dir=data_dir, test_size=test_size)
    report = asdict(report_on(data))
    if model is not None:
        resolved = resolve(model)
        task = TokenizedTask(data, resolved, load_tokenizer(resolved))
        report["tokens"] = {
            "model": resolved.name,
            "demonstration": _spread(task.lengths),
            "query": _spread(task.query_lengths),
            "answer_longest": task.answer_tokens,
            "dropped_from_pool": task.pool.dropped,
            "too_long": [data.test[i].id for i in np.flatnonzero(task.query_lengths > task.room)],
            "context_tokens": resolved.context_tokens,
        }
    return report


def _spread(lengths: np.ndarray) -> dict[str, float]:
    """Mean, median and extremes of token counts."""
    return {
        "mean": round(float(lengths.mean()), 2),
        "median": float(np.median(lengths)),
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
    }
