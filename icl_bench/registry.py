"""Everything with a name, by kind: built-in parts in one line each, plugins by entry points.

A new metric, selector, order, perturbation, attention pattern, task source, finding, training method, backend or
storage is registered here by its name and the location of its object, as ``module:object``. Other packages add plugins
with entry points of the same form, in the group of their kind (``docs/extending.md``). Objects are imported on first
use.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from inspect import get_annotations
from pkgutil import resolve_name
from typing import Any

from icl_bench.errors import UserError
from icl_bench.wording import first_line, listed, nearest


class PluginError(UserError):
    """A plugin that cannot be used: which one, of which package, and why."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[1])


class Registry(Mapping[str, Any]):
    """The parts of one kind by name, built-in ones first. A value is imported on first use.

    A broken plugin does not stop commands that do not need it. Reading it by name (``METRICS["mine"]``) raises
    ``PluginError``. Iteration, ``values``, ``items`` and ``get`` skip it and warn once. ``names``, ``added`` and ``in``
    import nothing, so they count it, too.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, str],
        *,
        subclass_of: Sequence[str] = (),
        instance_of: str = "builtins:object",
        reserved: Sequence[str] = (),
    ) -> None:
        """``group`` is the group of entry points. A plugin must be a subclass of one of ``subclass_of``,
        or else an instance of ``instance_of`` (each ``module:class``). It cannot have a built-in name,
        nor one of ``reserved``.
        """
        self.kind, self.group = kind, group
        self._built_in, self._reserved = built_in, {*built_in, *reserved}
        self._as_class, self._bases = bool(subclass_of), subclass_of or [instance_of]
        self._loaded: dict[str, Any] = {}
        self._faults: dict[str, str] = {}
        self._warned: set[str] = set()

    # -- names, without imports ---------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """All names, the built-in ones first."""
        return (*self._built_in, *self.added())

    def added(self) -> list[str]:
        """The names of plugins, sorted."""
        return [name for name in self._entries if name not in self._reserved]

    def unknown(self, name: str) -> str:
        """Message for an unknown name: ``not a metric; did you mean rouge?``."""
        return f"not {_article(self.kind)}; {nearest(name, self.names)}"

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @cached_property
    def _entries(self) -> dict[str, list[EntryPoint]]:
        """Name -> its distinct entry points; more than one if packages conflict."""
        found = sorted(entry_points(group=self.group), key=lambda entry: (entry.name, _package(entry)))
        by_name: dict[str, dict[str, EntryPoint]] = {}
        for entry in found:
            by_name.setdefault(entry.name, {}).setdefault(entry.value, entry)
        return {name: [*entries.values()] for name, entries in by_name.items()}

    # -- values -----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The object of this name. Raises ``KeyError``, or ``PluginError`` if a plugin cannot be used."""
        if name not in self._loaded:
            if name in self._built_in:
                self._loaded[name] = resolve_name(self._built_in[name])
                self._warn_of_taken(name)
            elif name in self:
                self._loaded[name] = self._load(name, self._entries[name])
            else:
                raise KeyError(name)
        return self._loaded[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The object of this name; ``default`` for an unknown name or a plugin that cannot be used."""
        return self[name] if name in self and self._usable(name) else default

    def __iter__(self) -> Iterator[str]:
        for name in sorted(self._entries.keys() & self._reserved):
            self._warn_of_taken(name)
        yield from filter(self._usable, self.names)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @contextmanager
    def skipping(self, name: str) -> Iterator[None]:
        """Skip the rest of the block if the plugin of this name fails in it, and warn once. Errors of built-in parts
        are raised.
        """
        try:
            yield
        except Exception as error:
            if name in self._built_in:
                raise
            self.skip(name, f"failed ({_why(error)})")

    def warn_of(self, error: PluginError) -> None:
        """Warn, once for each name, that a plugin that could not be read is skipped."""
        self._warn(error.name, f"{error}: skipped")

    def skip(self, name: str, fault: str) -> None:
        """Warn, once for each name, that this plugin is skipped, and why."""
        self._warn(name, f"{self._called(name)} {fault}: skipped")

    def _usable(self, name: str) -> bool:
        if name in self._built_in:
            return True
        try:
            self[name]
        except PluginError as error:
            self.warn_of(error)
            return False
        return True

    def _load(self, name: str, entries: Sequence[EntryPoint]) -> Any:
        """A plugin's object, tried once. Raises ``PluginError``."""
        try:
            if name in self._faults:
                raise PluginError(name, self._faults[name])
            if len(entries) > 1:
                fault = f"is defined {len(entries)} times; uninstall all packages but one"
                raise PluginError(name, f"{self._called(name)} {fault}")
            thing = self._imported(entries[0])
            if fault := self._fault(name, thing):
                raise PluginError(name, f"{self._called(name)} {fault}")
        except PluginError as error:
            self._faults[name] = str(error)
            raise
        return thing

    def _imported(self, entry: EntryPoint) -> Any:
        try:
            return entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any error of a plugin's module, including exit()
            raise PluginError(entry.name, f"{self._called(entry.name)} cannot be loaded ({_why(error)})") from error

    def _fault(self, name: str, thing: Any) -> str:
        """The problem with a plugin's object; empty if it matches its kind."""
        bases = tuple(map(resolve_name, self._bases))
        if not self._as_class and not isinstance(thing, bases):
            return f"is {_what(thing)}, not {_article('function' if Callable in bases else bases[0].__name__)}"
        if self._as_class and not (isinstance(thing, type) and issubclass(thing, bases)):
            return f"is {_what(thing)}, not a subclass of {' or '.join(base.__name__ for base in bases)}"
        if lacking := _lacking(thing):
            return f"has no {listed(lacking)}"
        named = any("name" in get_annotations(base) for base in bases)
        own = getattr(thing, "name", None) if named else name
        return "" if own == name else f"has another name in its code, {own!r}"

    # -- messages -----------------------------------------------------------------------------

    def _called(self, name: str) -> str:
        packages = [_package(entry) for entry in self._entries[name]]
        of = f" of {listed(dict.fromkeys(filter(None, packages)))}" if any(packages) else ""
        return f"{self.kind} {name}{of}"

    def _warn_of_taken(self, name: str) -> None:
        if name in self._entries:
            self.skip(name, "has a built-in name")

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            warnings.warn(text, stacklevel=2)


def _lacking(thing: Any) -> list[str]:
    """The members of its bases that a class must define and does not: abstract methods, and class variables without a
    value.
    """
    if not isinstance(thing, type):
        return []
    declared = [item for base in thing.__mro__ for item in get_annotations(base).items()]
    values = {name for name, kind in declared if "ClassVar" in str(kind) and not hasattr(thing, name)}
    return sorted(values | getattr(thing, "__abstractmethods__", frozenset()))


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""


def _why(error: BaseException) -> str:
    kind, text = type(error).__name__, first_line(error)
    return text if isinstance(error, ImportError) or text == kind else f"{kind}: {text}"


def _what(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else _article(type(thing).__name__)


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0].lower() in "aeiou" else f"a {kind}"


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
    subclass_of=["icl_bench.metrics.interface:Metric"],
)
"""Names in a task file's ``metrics`` -> :class:`icl_bench.metrics.interface.Metric`."""

SELECTORS = Registry(
    "selector",
    "icl_bench.selectors",
    {
        "random": "icl_bench.demonstrations.random:Random",
        "first": "icl_bench.demonstrations.random:First",
        "centroids": "icl_bench.demonstrations.centroids:Centroids",
        "balanced": "icl_bench.demonstrations.balanced:Balanced",
        "bm25": "icl_bench.demonstrations.bm25:BM25",
        "bertscore": "icl_bench.demonstrations.bertscore:BertScoreRecall",
        "dense": "icl_bench.demonstrations.dense:Dense",
        "diverse:mmr": "icl_bench.demonstrations.diverse:MarginalRelevance",
        "diverse:bertscore": "icl_bench.demonstrations.diverse:Coverage",
        "diverse:dpp": "icl_bench.demonstrations.diverse:DeterminantalProcess",
        "diverse:mmr-shared": "icl_bench.demonstrations.diverse:SharedRelevance",
        "diverse:bertscore-shared": "icl_bench.demonstrations.diverse:SharedCoverage",
        "diverse:dpp-shared": "icl_bench.demonstrations.diverse:SharedProcess",
    },
    subclass_of=[
        "icl_bench.demonstrations.interface:SharedSelector",
        "icl_bench.demonstrations.interface:Retriever",
        "icl_bench.demonstrations.interface:Diversity",
    ],
    reserved=["hybrid", "per-label"],
)
"""Names in ``--select`` -> a class of :mod:`icl_bench.demonstrations.interface`: a selector of shared demonstrations, a
retriever, which ranks the pool for each query, or a selector of each query's own demonstrations as a set.
"""

ORDERS = Registry(
    "order",
    "icl_bench.orders",
    {
        "drawn": "icl_bench.demonstrations.ordering:AsDrawn",
        "shuffled": "icl_bench.demonstrations.ordering:Shuffled",
        "by-label": "icl_bench.demonstrations.ordering:ByLabel",
        "by-length": "icl_bench.demonstrations.ordering:ByLength",
        "smooth": "icl_bench.demonstrations.ordering:Smooth",
        "pool": "icl_bench.demonstrations.ordering:InPoolOrder",
        "relevance": "icl_bench.demonstrations.ordering:Relevance",
        "relevance-reversed": "icl_bench.demonstrations.ordering:RelevanceReversed",
    },
    subclass_of=["icl_bench.demonstrations.ordering:Order"],
)
"""Names in ``--order`` -> :class:`icl_bench.demonstrations.ordering.Order`."""

PERTURBATIONS = Registry(
    "perturbation",
    "icl_bench.perturbations",
    {
        "none": "icl_bench.demonstrations.perturbations:NoPerturbation",
        "labels:permuted": "icl_bench.demonstrations.perturbations:PermutedLabels",
        "labels:noise": "icl_bench.demonstrations.perturbations:NoisyLabels",
        "labels:model": "icl_bench.demonstrations.perturbations:LabelsByModel",
        "inputs-only": "icl_bench.demonstrations.perturbations:InputsOnly",
        "labels-only": "icl_bench.demonstrations.perturbations:LabelsOnly",
        "nearest-removed": "icl_bench.demonstrations.perturbations:NearestRemoved",
        "farthest-removed": "icl_bench.demonstrations.perturbations:FarthestRemoved",
    },
    subclass_of=["icl_bench.demonstrations.perturbations:Perturbation"],
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
    subclass_of=["icl_bench.models.attention_patterns:Pattern"],
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
    instance_of="collections.abc:Callable",
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
        "encoder-probe": "icl_bench.training.methods.encoder_probe:EncoderProbe",
    },
    subclass_of=["icl_bench.training.interface:TrainingMethod"],
)
"""Names in ``--method`` -> :class:`icl_bench.training.interface.TrainingMethod`."""

BACKENDS = Registry(
    "backend",
    "icl_bench.backends",
    {
        "transformers": "icl_bench.backends.loaders:TransformersLoader",
        "vllm": "icl_bench.backends.loaders:VllmLoader",
        "openai": "icl_bench.backends.loaders:OpenAILoader",
        "anthropic": "icl_bench.backends.loaders:AnthropicLoader",
        "google": "icl_bench.backends.loaders:GoogleLoader",
    },
    subclass_of=["icl_bench.backends.interface:BackendLoader"],
    reserved=["auto"],
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
    instance_of="collections.abc:Callable",
)
"""Scheme of an address of results (``s3`` of ``s3://bucket/results``) -> a function that creates an
:class:`icl_bench.results.storage.Storage` from the whole address; a storage that is not a folder also has
``journals()``.
"""


FINDINGS = Registry(
    "finding",
    "icl_bench.findings",
    {
        "curves": "icl_bench.analysis.summary:CURVES",
        "group_means": "icl_bench.analysis.findings.group_means:GROUP_MEANS",
        "best_points": "icl_bench.analysis.findings.best_points:BEST_POINTS",
        "answers": "icl_bench.analysis.findings.answers:ANSWERED",
        "saturation": "icl_bench.analysis.summary:SATURATION",
        "order_sensitivity": "icl_bench.analysis.findings.order:ORDER_SENSITIVITY",
        "perturbed_curves": "icl_bench.analysis.summary:PERTURBED_CURVES",
        "saturation_chances": "icl_bench.analysis.findings.saturation:SATURATION_CHANCES",
        "context_shares": "icl_bench.analysis.findings.saturation:CONTEXT_SHARES",
        "forecast": "icl_bench.analysis.findings.forecast:FORECASTS",
        "label_spaces": "icl_bench.analysis.findings.saturation:LABEL_SPACES",
        "noise_floor": "icl_bench.analysis.findings.order:NOISE_FLOOR",
        "sorting_penalty": "icl_bench.analysis.findings.comparisons:SORTING_PENALTY",
        "demonstrations_gain": "icl_bench.analysis.findings.comparisons:DEMONSTRATIONS_GAIN",
        "retrieval_gain": "icl_bench.analysis.findings.comparisons:RETRIEVAL_GAIN",
        "retrieval_order": "icl_bench.analysis.findings.comparisons:RETRIEVAL_ORDER",
        "near_duplicates": "icl_bench.analysis.findings.near_duplicates:NEAR_DUPLICATES",
        "calibration_gain": "icl_bench.analysis.findings.calibration_gain:CALIBRATION_GAIN",
        "self_consistency": "icl_bench.analysis.findings.self_consistency:SELF_CONSISTENCY",
        "training_gain": "icl_bench.analysis.findings.comparisons:TRAINING_GAIN",
        "attention_patterns": "icl_bench.analysis.findings.attention:ATTENTION_PATTERNS",
        "perturbations": "icl_bench.analysis.findings.comparisons:PERTURBATIONS",
        "shown_labels": "icl_bench.analysis.findings.shown_labels:SHOWN_LABELS",
        "chat_gain": "icl_bench.analysis.findings.chat:CHAT_GAIN",
        "learning_ratio": "icl_bench.analysis.findings.learning_ratio:LEARNING_RATIO",
        "models": "icl_bench.analysis.findings.comparisons:MODELS",
        "replication": "icl_bench.analysis.findings.replication:REPLICATION",
        "unmatched_imports": "icl_bench.analysis.findings.replication:UNMATCHED_IMPORTS",
        "label_bias": "icl_bench.analysis.findings.label_bias:LABEL_BIAS",
        "label_frequencies": "icl_bench.analysis.findings.label_bias:LABEL_FREQUENCIES",
        "confusions": "icl_bench.analysis.findings.label_bias:CONFUSIONS",
        "confusion_matrix": "icl_bench.analysis.findings.label_bias:CONFUSION_MATRIX",
        "truncated_answers": "icl_bench.analysis.findings.truncated_answers:TRUNCATED_ANSWERS",
        "by_presence": "icl_bench.analysis.findings.demonstrations:BY_PRESENCE",
        "by_distance": "icl_bench.analysis.findings.demonstrations:BY_DISTANCE",
        "copying": "icl_bench.analysis.findings.demonstrations:COPYING",
        "reliability": "icl_bench.analysis.findings.calibration:RELIABILITY",
        "calibration_error": "icl_bench.analysis.findings.calibration:CALIBRATION_ERROR",
        "temperature": "icl_bench.analysis.findings.temperature:TEMPERATURES",
        "probability_scores": "icl_bench.analysis.findings.probability_scores:PROBABILITY_SCORES",
        "abstention": "icl_bench.analysis.findings.abstention:ANSWERED",
        "risk_coverage": "icl_bench.analysis.findings.abstention:RISK_COVERAGE_CURVE",
        "label_thresholds": "icl_bench.analysis.findings.abstention:BY_LABEL",
        "cost": "icl_bench.analysis.findings.cost:COST",
        "break_even": "icl_bench.analysis.findings.cost:BREAK_EVEN",
        "frontier": "icl_bench.analysis.frontier:FRONTIERS",
        "frontier_across_models": "icl_bench.analysis.frontier:FRONTIERS_ACROSS",
        "cascades": "icl_bench.analysis.cascade:CASCADES",
        "perplexity": "icl_bench.analysis.findings.perplexity:PERPLEXITY",
        "adaptation_losses": "icl_bench.analysis.findings.adaptation:ADAPTATION_LOSSES",
        "adaptation_points": "icl_bench.analysis.findings.adaptation:ADAPTATION_POINTS",
        "adaptation_course": "icl_bench.analysis.findings.adaptation:ADAPTATION_COURSE",
        "races": "icl_bench.analysis.findings.races:RACES",
        "race_rounds": "icl_bench.analysis.findings.races:RACE_ROUNDS",
        "study_points": "icl_bench.analysis.findings.studies:STUDY_POINTS",
        "provenance": "icl_bench.analysis.findings.provenance:PROVENANCE",
    },
    instance_of="icl_bench.analysis.finding:Finding",
)
"""Names of the tables of findings, in the order of the JSON ->
:class:`icl_bench.analysis.finding.Finding`."""


def plugins() -> list[str]:
    """The names of all plugins, of every kind."""
    return [name for kind in globals().values() if isinstance(kind, Registry) for name in kind.added()]
