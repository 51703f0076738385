"""A close look at tasks: what is there, and what is in a task's data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from icl_bench.data import check, load_data
from icl_bench.spec import TaskSpec
from icl_bench.taskfile import known_tasks, load_task


def task_records(data_dir: Path | None) -> list[dict[str, Any]]:
    """The shipped tasks: name, description, where their data would come from, license."""
    records = []
    for name in known_tasks():
        spec = load_task(name)
        here = _here(spec, data_dir)
        hub = spec.data.hub
        needs = "" if here or hub is None else f"the hub: {hub.path}, or --data-dir"
        records.append(
            {
                "name": name,
                "description": spec.description,
                "metrics": list(spec.metrics),
                "installed": here is not None,
                "data": here or needs,
                "license": spec.license,
                "source": spec.source,
            }
        )
    return records


def _here(spec: TaskSpec, data_dir: Path | None) -> str | None:
    """Where the task's rows are on this machine, if they are."""
    if spec.data.embedded:
        return "embedded"
    folder = data_dir / (spec.data.folder or spec.name) if data_dir else None
    return str(folder) if folder and folder.is_dir() else None


def check_task(
    name: str, *, model: str | None, data_dir: Path | None, test_size: int | None
) -> dict[str, Any]:
    """Counts, labels, duplicates and leaks of a task's data; with a model, token lengths.

    Raises ``UserError``.
    """
    spec = load_task(name)
    data = load_data(spec, data_dir=data_dir, test_size=test_size)
    report = asdict(check(data))
    if model is not None:
        from icl_bench.experiment import Experiment
        from icl_bench.models import load_tokenizer, resolve

        found = resolve(model)
        experiment = Experiment(data, found, load_tokenizer(found))
        bare = experiment.encoder.own_prompts([[] for _ in data.test], data.test)
        queries = np.array([len(bare.prefix) + len(own) for own in bare.suffixes])
        report["tokens"] = {
            "model": found.name,
            "demonstration": _spread(experiment.lengths),
            "query": _spread(queries),
            "answer_longest": experiment.answer_tokens,
            "dropped_from_pool": experiment.dropped,
            "context_tokens": found.context_tokens,
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
