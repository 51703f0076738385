"""Checks a task's data: counts, labels, duplicates, leaks, token lengths, and how many demonstrations fit a window."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.models.attention_patterns import FULL
from icl_bench.models.registry import load_tokenizer, resolve
from icl_bench.sweep.combinations import default_order
from icl_bench.sweep.plan import draws_of
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.data_report import report_on
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task


def check_task(
    name: str,
    *,
    model: str | None,
    data_dir: Path | None,
    test_size: int | None,
    text: str | None = None,
    label: str | None = None,
) -> dict[str, Any]:
    """Counts, labels, duplicates and leaks of a task's data; token lengths if a model is given.

    ``text`` and ``label`` are the columns of a file of rows, as in ``load_task``. Raises ``UserError``.
    """
    spec = load_task(name, text, label)
    data = load_data(spec, data_dir=data_dir, test_size=test_size)
    report = asdict(report_on(data))
    if model is not None:
        resolved = resolve(model)
        task = TokenizedTask(data, resolved, load_tokenizer(resolved))
        report["tokens"] = {
            "model": resolved.name,
            "demonstration": _spread(task.lengths),
            "pool_demonstration": _spread(task.lengths[task.pool.rows]),
            "query": _spread(task.query_lengths),
            "answer_longest": task.answer_tokens,
            "dropped_from_pool": task.pool.dropped,
            "too_long": [data.test[i].id for i in np.flatnonzero(task.query_lengths > task.room)],
            "context_tokens": resolved.context_tokens,
            "fitting": _fitting(task),
        }
    return report


def _fitting(task: TokenizedTask) -> dict[str, int]:
    """The largest k of random demonstrations that fits the window with every query, and the number of draws.

    It is the ``max`` of ``--k`` without further options.
    """
    choice = SelectorSpec()
    draws = draws_of(choice, None)
    groups = (PromptGroup(task, choice, default_order(choice), draw, FULL) for draw in range(draws))
    return {"demonstrations": min(group.largest() for group in groups), "draws": draws}


def _spread(lengths: np.ndarray) -> dict[str, float]:
    """Mean, median and extremes of token counts."""
    return {
        "mean": round(float(lengths.mean()), 2),
        "median": float(np.median(lengths)),
        "shortest": int(lengths.min()),
        "longest": int(lengths.max()),
    }
