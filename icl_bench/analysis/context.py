"""The inputs of findings: predictions, facts and other findings, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.label_probabilities import label_probabilities
from icl_bench.analysis.predictions import (
    joined,
    prompted,
    unperturbed_predictions,
    with_copies_as_one_draw,
    with_rows_left_out,
)
from icl_bench.analysis.zero_shot import from_zero_shot
from icl_bench.metrics.scores import scored
from icl_bench.models.registry import REGISTRY
from icl_bench.registry import FINDINGS
from icl_bench.results.facts import FactsOf
from icl_bench.results.reading import read_races
from icl_bench.results.storage import Place
from icl_bench.seeds import generator

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from icl_bench.results.reading import Stored
    from icl_bench.results.stored_meta import RaceMeta

SEED = 0
"""The seed of resampling: the same folder gives the same numbers."""


@dataclass(frozen=True)
class CellFacts:
    """Metadata of cells' files, besides their predictions."""

    shared: Mapping[str, Sequence[str]]
    """Cell -> ids of the demonstrations that all its prompts share."""
    labels: Mapping[str, Mapping[str, str]]
    """Variant -> id of each demonstration -> its label."""
    costs: Mapping[str, CellCost]
    """Cell -> its cost."""
    windows: Mapping[str, int]
    """Model -> tokens of its window."""

    @classmethod
    def of(cls, stored: Stored) -> CellFacts:
        """Collect the metadata of a folder's cells. Windows of other models are from the registry."""
        labels: dict[str, dict[str, str]] = {}
        windows = {name: spec.context_tokens for name, spec in REGISTRY.items()}
        shared, costs = {}, {}
        for cell, meta in stored.cells.items():
            if meta.demonstration_ids is not None:
                shared[cell] = meta.demonstration_ids
            of_variant = labels.setdefault(meta.variant, {})
            for label, ids in (meta.demonstration_labels or {}).items():
                of_variant.update(dict.fromkeys(ids, label))
            costs[cell] = CellCost.of(meta)
            if meta.context_tokens is not None:
                windows[meta.spec.model] = meta.context_tokens
        return cls(shared, labels, costs, windows)


@dataclass(frozen=True)
class Context:
    """The argument of every finding's ``make``.

    All frames of predictions have ``score`` and ``metric``, those of each task's own metric in the
    whole folder (:func:`icl_bench.metrics.scores.scored`).
    """

    stored: Stored
    base_model: str | None = None
    """The model that others are compared with, by default each task's usual one."""
    results: Place | None = None
    """The folder that was read, for files other than predictions."""
    model: str | None = None
    """The model that the tables are restricted to."""
    task: str | None = None
    """The task that the tables are restricted to."""
    wanted: float | None = None
    """A score, as a share of 1: the target of forecasts, and the accuracy required of answers."""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Group name -> its tasks, for means over them."""
    beside: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Data of findings for their charts, in addition to their tables, by name."""
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str) -> pd.DataFrame:
        """The table of a finding, computed on first access."""
        if name not in self._tables:
            self._tables[name] = with_rows_left_out(FINDINGS[name].make(self), self.stored.cells)
        return self._tables[name]

    def once(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A table that several findings use, computed on first access. ``name`` is not a finding's."""
        if name not in self._tables:
            self._tables[name] = make()
        return self._tables[name]

    @property
    def only(self) -> dict[str, str]:
        """The task and the model that restrict the tables, where given."""
        return {name: value for name, value in (("task", self.task), ("model", self.model)) if value is not None}

    @property
    def facts(self) -> FactsOf:
        """Variant -> its facts."""
        return self.stored.variants

    @cached_property
    def cells(self) -> CellFacts:
        """Metadata of cells' files besides their predictions."""
        return CellFacts.of(self.stored)

    @cached_property
    def races(self) -> list[RaceMeta]:
        """All races of the results folder, read once."""
        return [] if self.results is None else read_races(self.results)

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """All predictions. Draws that are copies count as one draw."""
        return with_copies_as_one_draw(scored(self.stored.predictions, first=self.stored.first_scores))

    @cached_property
    def of_tests(self) -> pd.DataFrame:
        """Predictions of test examples; demonstrations may be perturbed."""
        return self.predictions[self.predictions["queries"].isna()]

    @cached_property
    def copied(self) -> pd.DataFrame:
        """Predictions of queries that are copies of demonstrations."""
        return self.predictions[self.predictions["queries"].notna()]

    @cached_property
    def unperturbed(self) -> pd.DataFrame:
        """The predictions of test examples with unperturbed demonstrations, which most findings use."""
        return unperturbed_predictions(self.predictions)

    @cached_property
    def prompts(self) -> pd.DataFrame:
        """Unperturbed predictions without trained classifiers."""
        return prompted(self.unperturbed)

    @cached_property
    def label_probabilities(self) -> pd.DataFrame:
        """Label probabilities of the unperturbed predictions."""
        return label_probabilities(self.unperturbed, self.stored.label_scores, self.facts)

    def from_zero_shot(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Predictions or points in which every curve begins with k=0, if that was run."""
        return from_zero_shot(frame, self.facts)

    def uncalibrated(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Predictions or points without the calibrated ones, which are derived from others."""
        derived = [variant for variant, facts in self.facts.items() if facts.calibration is not None]
        return frame[~frame["variant"].astype(object).isin(derived)] if derived else frame

    def generator(self, name: str) -> np.random.Generator:
        """The random generator of a finding; the same folder gives the same numbers."""
        return generator(SEED, name)

    def by_variant(self, frame: pd.DataFrame, table: Callable[..., pd.DataFrame]) -> pd.DataFrame:
        """One table of all variants whose demonstrations' labels are known.

        ``table`` takes predictions, labels by id and the shared demonstrations of cells. It is called per variant,
        because demonstration ids are unique only within a data set.
        """
        of_variant = frame["variant"].astype(object)
        parts = [
            table(frame[of_variant == variant], labels, self.cells.shared)
            for variant, labels in self.cells.labels.items()
            if labels
        ]
        return joined(parts, table(frame.iloc[:0], {}, {}))
