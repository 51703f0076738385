"""Everything that the program knows by name, by kind: ours a line each, others' by entry points.

This is the one place where a new metric, selector, order, perturbation, attention pattern, task
source, finding, training method or backend is entered: a name and where its object stands, as
``module:object``. Nothing is imported before it is asked for. A package of someone else's adds to a
kind by an entry point of the same form, in the group that the kind names (``docs/extending.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from icl_bench.errors import UserError
from icl_bench.wording import first_line, nearest


def named_object(place: str) -> Any:
    """What stands at ``module:object``, imported."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


class Registry(Mapping[str, Any]):
    """The things of one kind, by name: a mapping whose values are imported when they are read.

    ``group`` is the group of entry points that adds to ``built_in``. What others add comes behind
    what is built in, by name, and cannot take a name that is.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind, self.group = kind, group
        self._built_in = built_in
        self._loaded: dict[str, Any] = {}

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        found = sorted(entry_points(group=self.group), key=lambda entry: entry.name)
        return {entry.name: entry for entry in found if entry.name not in self._built_in}

    def __getitem__(self, name: str) -> Any:
        """The thing itself. Raises ``KeyError``, or ``UserError`` where another's does not load."""
        if name not in self._loaded:
            if name in self._built_in:
                self._loaded[name] = named_object(self._built_in[name])
            else:
                self._loaded[name] = self._load(self._others[name])
        return self._loaded[name]

    def _load(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except Exception as error:  # whatever another's module raises
            package = f" of {entry.dist.name}" if entry.dist else ""
            raise UserError(f"{self.kind} {entry.name}{package} cannot be loaded ({first_line(error)})") from error

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._others

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from self._others

    def __len__(self) -> int:
        return len(self._built_in) + len(self._others)

    def added(self) -> list[str]:
        """The names that other packages add; nothing is imported."""
        return list(self._others)

    def unknown(self, name: str) -> str:
        """What to say of a name that is none: ``not a metric; did you mean rouge?``."""
        return f"not {_article(self.kind)}; {nearest(name, self)}"


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


METRICS = Registry(
    "metric",
    "icl_bench.metrics",
    {
        "accuracy": "icl_bench.metrics.accuracy:Accuracy",
        "macro_f1": "icl_bench.metrics.macro_f1:MacroF1",
        "rouge": "icl_bench.metrics.rouge:Rouge",
        "bertscore": "icl_bench.metrics.bertscore:BertScore",
        "exact_match": "icl_bench.metrics.exact_match:ExactMatch",
        "exact_text": "icl_bench.metrics.exact_text:ExactText",
        "f1": "icl_bench.metrics.f1:F1",
        "numeric": "icl_bench.metrics.numeric:Numeric",
        "bleu": "icl_bench.metrics.bleu:Bleu",
        "chrf": "icl_bench.metrics.chrf:Chrf",
    },
)
"""Names in a task file's ``metrics`` -> :class:`icl_bench.metrics.interface.Metric`."""

SELECTORS = Registry(
    "selector",
    "icl_bench.selectors",
    {
        "random": "icl_bench.demonstrations.random:Random",
        "centroids": "icl_bench.demonstrations.centroids:Centroids",
        "balanced": "icl_bench.demonstrations.balanced:Balanced",
        "bm25": "icl_bench.demonstrations.bm25:BM25",
        "bertscore": "icl_bench.demonstrations.bertscore:BertScoreRecall",
        "dense": "icl_bench.demonstrations.dense:Dense",
    },
)
"""Names in ``--select`` -> a class of :mod:`icl_bench.demonstrations.interface`: what chooses
demonstrations that all queries share, or a retriever, which ranks the pool for each query."""

ORDERS = Registry(
    "order",
    "icl_bench.orders",
    {
        "drawn": "icl_bench.demonstrations.ordering:Drawn",
        "shuffled": "icl_bench.demonstrations.ordering:Shuffled",
        "by-label": "icl_bench.demonstrations.ordering:ByLabel",
        "relevance": "icl_bench.demonstrations.ordering:Relevance",
        "relevance-reversed": "icl_bench.demonstrations.ordering:RelevanceReversed",
    },
)
"""Names in ``--order`` -> :class:`icl_bench.demonstrations.ordering.Order`."""

PERTURBATIONS = Registry(
    "perturbation",
    "icl_bench.perturbations",
    {
        "none": "icl_bench.demonstrations.perturbations:NoPerturbation",
        "labels:permuted": "icl_bench.demonstrations.perturbations:PermutedLabels",
        "labels:noise": "icl_bench.demonstrations.perturbations:NoisyLabels",
        "inputs-only": "icl_bench.demonstrations.perturbations:InputsOnly",
        "labels-only": "icl_bench.demonstrations.perturbations:LabelsOnly",
        "nearest-removed": "icl_bench.demonstrations.perturbations:NearestRemoved",
        "farthest-removed": "icl_bench.demonstrations.perturbations:FarthestRemoved",
    },
)
"""Names in ``--perturbation`` -> :class:`icl_bench.demonstrations.perturbations.Perturbation`."""

ATTENTION_PATTERNS = Registry(
    "attention pattern",
    "icl_bench.attention_patterns",
    {
        "full": "icl_bench.models.attention_patterns:Pattern",
        "block": "icl_bench.models.attention_patterns:Block",
        "grouped": "icl_bench.models.attention_patterns:Grouped",
        "approx": "icl_bench.models.attention_patterns:Approx",
        "vectors": "icl_bench.models.attention_patterns:Vectors",
    },
)
"""Names in ``--attention`` -> :class:`icl_bench.models.attention_patterns.Pattern`."""

TASK_SOURCES = Registry(
    "task source",
    "icl_bench.task_sources",
    {
        "files": "icl_bench.tasks.sources:own_files",
        "embedded": "icl_bench.tasks.sources:embedded",
        "folder": "icl_bench.tasks.sources:data_folder_or_hub",
        "memory": "icl_bench.tasks.in_memory:given_rows",
    },
)
"""Names in a task file's ``data.source`` -> a function that gives the task's rows
(:mod:`icl_bench.tasks.sources`)."""

TRAINING_METHODS = Registry(
    "training method",
    "icl_bench.training_methods",
    {
        "lora": "icl_bench.training.methods.finetuned:Lora",
        "full": "icl_bench.training.methods.finetuned:FullFinetuning",
        "probe": "icl_bench.training.methods.probe:Probe",
        "knn": "icl_bench.training.methods.nearest_neighbours:NearestNeighbours",
    },
)
"""Names in ``--method`` -> :class:`icl_bench.training.interface.TrainingMethod`."""

BACKENDS = Registry(
    "backend",
    "icl_bench.backends",
    {
        "transformers": "icl_bench.backends.loaders:TransformersLoader",
        "vllm": "icl_bench.backends.loaders:VllmLoader",
        "openai": "icl_bench.backends.loaders:OpenAILoader",
    },
)
"""Names in ``--backend`` -> :class:`icl_bench.backends.interface.BackendLoader`."""

STORAGES = Registry(
    "kind of storage",
    "icl_bench.storages",
    {
        "s3": "icl_bench.results.object_storage:ObjectStorage",
        "gs": "icl_bench.results.object_storage:ObjectStorage",
        "az": "icl_bench.results.object_storage:ObjectStorage",
        "file": "icl_bench.results.storage:from_file_url",
    },
)
"""Where results may lie, by the beginning of an address (``s3`` of ``s3://bucket/results``) -> what
makes an :class:`icl_bench.results.storage.Storage` of the whole address; one that is no folder has
``journals()``, too."""


FINDINGS = Registry(
    "finding",
    "icl_bench.findings",
    {
        "curves": "icl_bench.analysis.summary:CURVES",
        "best_points": "icl_bench.analysis.findings.best_points:BEST_POINTS",
        "saturation": "icl_bench.analysis.summary:SATURATION",
        "order_sensitivity": "icl_bench.analysis.findings.order:ORDER_SENSITIVITY",
        "perturbed_curves": "icl_bench.analysis.summary:PERTURBED_CURVES",
        "saturation_chances": "icl_bench.analysis.findings.saturation:SATURATION_CHANCES",
        "context_shares": "icl_bench.analysis.findings.saturation:CONTEXT_SHARES",
        "forecast": "icl_bench.analysis.findings.forecast:FORECASTS",
        "label_spaces": "icl_bench.analysis.findings.saturation:LABEL_SPACES",
        "noise_floor": "icl_bench.analysis.findings.order:NOISE_FLOOR",
        "sorting_penalty": "icl_bench.analysis.findings.comparisons:SORTING_PENALTY",
        "retrieval_gain": "icl_bench.analysis.findings.comparisons:RETRIEVAL_GAIN",
        "training_gain": "icl_bench.analysis.findings.comparisons:TRAINING_GAIN",
        "attention_patterns": "icl_bench.analysis.findings.attention:ATTENTION_PATTERNS",
        "perturbations": "icl_bench.analysis.findings.comparisons:PERTURBATIONS",
        "chat_gain": "icl_bench.analysis.findings.chat:CHAT_GAIN",
        "learning_ratio": "icl_bench.analysis.findings.learning_ratio:LEARNING_RATIO",
        "models": "icl_bench.analysis.findings.comparisons:MODELS",
        "replication": "icl_bench.analysis.findings.replication:REPLICATION",
        "label_bias": "icl_bench.analysis.findings.label_bias:LABEL_BIAS",
        "label_frequencies": "icl_bench.analysis.findings.label_bias:LABEL_FREQUENCIES",
        "confusions": "icl_bench.analysis.findings.label_bias:CONFUSIONS",
        "truncated_answers": "icl_bench.analysis.findings.truncated_answers:TRUNCATED_ANSWERS",
        "by_presence": "icl_bench.analysis.findings.demonstrations:BY_PRESENCE",
        "by_distance": "icl_bench.analysis.findings.demonstrations:BY_DISTANCE",
        "copying": "icl_bench.analysis.findings.demonstrations:COPYING",
        "reliability": "icl_bench.analysis.findings.calibration:RELIABILITY",
        "calibration_error": "icl_bench.analysis.findings.calibration:CALIBRATION_ERROR",
        "cost": "icl_bench.analysis.findings.cost:COST",
        "break_even": "icl_bench.analysis.findings.cost:BREAK_EVEN",
        "frontier": "icl_bench.analysis.frontier:FRONTIERS",
        "cascades": "icl_bench.analysis.cascade:CASCADES",
        "perplexity": "icl_bench.analysis.findings.perplexity:PERPLEXITY",
        "adaptation_losses": "icl_bench.analysis.findings.adaptation:ADAPTATION_LOSSES",
        "adaptation_points": "icl_bench.analysis.findings.adaptation:ADAPTATION_POINTS",
        "adaptation_course": "icl_bench.analysis.findings.adaptation:ADAPTATION_COURSE",
        "study_points": "icl_bench.analysis.findings.studies:STUDY_POINTS",
        "provenance": "icl_bench.analysis.findings.provenance:PROVENANCE",
    },
)
"""Names of the tables of findings, in the order of the JSON ->
:class:`icl_bench.analysis.finding.Finding`."""
