"""The inputs of findings: predictions, facts and other findings, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from icl_bench.analysis.by_task import IN_ORDER, ByTask, each_task, joined_tables, processes_in_memory
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.label_probabilities import label_probabilities
from icl_bench.analysis.predictions import (
    joined,
    prompted,
    unperturbed_predictions,
    with_copies_as_one_draw,
    with_rows_left_out,
)
from icl_bench.analysis.statistics.bootstrap import Streams
from icl_bench.analysis.statistics.right_answers import notes_on_rows_apart
from icl_bench.analysis.zero_shot import from_zero_shot
from icl_bench.metrics.scores import scored
from icl_bench.models.registry import REGISTRY
from icl_bench.registry import FINDINGS
from icl_bench.results.facts import FactsOf
from icl_bench.results.kept_tables import KeptTables
from icl_bench.results.reading import read_races
from icl_bench.results.storage import Place
from icl_bench.seeds import generator
from icl_bench.wording import counted

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from icl_bench.results.reading import Stored
    from icl_bench.results.stored_meta import CellMeta, RaceMeta

T = TypeVar("T")

SEED = 0
"""The seed of resampling: the same folder gives the same numbers."""


def streams(name: str) -> Streams:
    """The random generators of a finding, one for each task: a task's numbers do not depend on other tasks."""

    @cache
    def of_task(task: str) -> np.random.Generator:
        del task  # each has the same beginning
        return generator(SEED, name)

    return of_task


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
    of_task: Mapping[str, Sequence[str]]
    """Task -> its cells."""

    @classmethod
    def of(cls, stored: Stored) -> CellFacts:
        """Collect the metadata of a folder's cells. Windows of other models are from the registry."""
        labels: dict[str, dict[str, str]] = {}
        windows = {name: spec.context_tokens for name, spec in REGISTRY.items()}
        shared, costs, of_task = {}, {}, dict[str, list[str]]()
        for cell, meta in stored.cells.items():
            if meta.demonstration_ids is not None:
                shared[cell] = meta.demonstration_ids
            of_variant = labels.setdefault(meta.variant, {})
            for label, ids in (meta.demonstration_labels or {}).items():
                of_variant.update(dict.fromkeys(ids, label))
            costs[cell] = CellCost.of(meta)
            of_task.setdefault(meta.spec.task, []).append(cell)
            if meta.context_tokens is not None:
                windows[meta.spec.model] = meta.context_tokens
        return cls(shared, labels, costs, windows, of_task)


def _way(name: str) -> ByTask | None:
    """How a finding is computed task by task; None if it is not."""
    return FINDINGS[name].by_task if name in FINDINGS else None


def _tables_of(context: Context, names: Collection[str]) -> dict[str, pd.DataFrame]:
    """These tables of one task; without those that failed."""
    tables = {}
    for name in names:
        with suppress(Exception):
            tables[name] = context.table(name)
    return tables


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
    processes: int = 1
    """The maximum number of processes that compute tables of a large folder."""
    whole: Context | None = field(default=None, repr=False, compare=False)
    """The context of all tasks, if this is one of a single task (:meth:`of_task`)."""
    beside: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Data of findings for their charts, in addition to their tables, by name."""
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)
    _worked_out: list[bool] = field(default_factory=list, repr=False, compare=False)
    """Not empty once the tables of a large folder were computed, or read from the cache."""
    _of_cells: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str) -> pd.DataFrame:
        """The table of a finding, computed on first access."""
        if name not in self._tables and self._is_large and _way(name) is not None:
            self._tables.update(self.kept.read() or self._by_task([name]))
        if name not in self._tables:
            table = FINDINGS[name].make(self)
            # those of all tasks have it once they are joined
            self._tables[name] = with_rows_left_out(table, self.stored.cells) if self.whole is None else table
        return self._tables[name]

    @property
    def _is_large(self) -> bool:
        """Whether this is the context of all tasks of a large folder."""
        return self.whole is None and self.stored.rows.by_task

    def work_out(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Of a large folder, compute all tables that can be computed task by task, once.

        A task's predictions are then a data frame once, and the next command finds all these tables.
        """
        if not self._is_large or self._worked_out:
            return
        self._worked_out.append(True)
        if not (tables := self.kept.read()):
            tables = self._by_task([name for name in FINDINGS if _way(name) is not None], say)
            self.kept.write(tables)
        self._tables.update(tables)

    def _by_task(self, names: Collection[str], say: Callable[[str], None] = lambda _: None) -> dict[str, pd.DataFrame]:
        """These tables, computed task by task; without those that failed in a task."""
        of_names: dict[str, dict[str, pd.DataFrame]] = {}
        tasks = self.stored.rows.tasks
        for task, found in self._each_task(partial(_tables_of, names=names), tasks, say):
            for name, table in found.items():
                of_names.setdefault(name, {})[task] = table
        tables = {}
        for name, of_tasks in of_names.items():
            if len(of_tasks) == len(tasks):  # else it is computed from all predictions, to say why
                table = joined_tables([of_tasks[task] for task in tasks], _way(name) or IN_ORDER, self.facts)
                tables[name] = with_rows_left_out(table, self.stored.cells)
        return tables

    def for_each_task(self, work: Callable[[Context], T], of: Collection[str] | None = None) -> list[T]:
        """What ``work`` returns for the contexts of these tasks, by default of all, in their order."""
        tasks = [task for task in self.stored.rows.tasks if of is None or task in of]
        results = dict(self._each_task(work, tasks))
        return [results[task] for task in tasks]

    def _each_task(
        self, work: Callable[[Context], T], tasks: Sequence[str], say: Callable[[str], None] = lambda _: None
    ) -> Iterator[tuple[str, T]]:
        """What ``work`` returns for the context of each task, in any order."""
        processes = processes_in_memory(self.processes, self.stored.rows.most_of_a_task)
        found = each_task(lambda task: work(self.of_task(task)), tasks, processes)
        for number, (task, result) in enumerate(found, 1):
            say(f"computing findings: {number} of {counted(len(tasks), 'task')}")
            yield task, result

    def of_task(self, task: str) -> Context:
        """The context of the predictions of one task, with what is known of all cells."""
        cells = {cell: self.stored.cells[cell] for cell in self.cells.of_task.get(task, ())}
        stored = replace(self.stored, given=self.stored.rows.of_task(task), cells=cells)
        return replace(self, stored=stored, whole=self, beside={}, _tables={})

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
    def kept(self) -> KeptTables:
        """The tables that an earlier command computed task by task from the same files."""
        return KeptTables(self.stored.state, {"only": self.only, "base": self.base_model, "wanted": self.wanted})

    @cached_property
    def cells(self) -> CellFacts:
        """Metadata of cells' files besides their predictions."""
        return CellFacts.of(self.stored) if self.whole is None else self.whole.cells

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

    def generators(self, name: str) -> Streams:
        """The random generators of a finding by task."""
        return streams(name)

    @cached_property
    def rows_apart(self) -> list[str]:
        """Notes on test rows that are not compared (:func:`notes_on_rows_apart`)."""
        if self._is_large:
            if len(self.stored.rows.names("variant")) < 2:
                return []
            notes = self.for_each_task(lambda context: context.rows_apart)
            return [note for _, of_task in sorted(zip(self.stored.rows.tasks, notes, strict=True)) for note in of_task]
        return notes_on_rows_apart(self.of_tests, self.facts)

    def of_cells(self, name: str, make: Callable[[Mapping[str, CellMeta]], T]) -> T:
        """A value from the metadata of all cells, computed once for all tasks."""
        if self.whole is not None:
            return self.whole.of_cells(name, make)
        if name not in self._of_cells:
            self._of_cells[name] = make(self.stored.cells)
        found: T = self._of_cells[name]
        return found

    def by_variant(self, frame: pd.DataFrame, table: Callable[..., pd.DataFrame]) -> pd.DataFrame:
        """One table of all variants whose demonstrations' labels are known.

        ``table`` takes predictions, labels by id and the shared demonstrations of cells. It is called per variant,
        because demonstration ids are unique only within a data set.
        """
        of_variant = frame["variant"].astype(object)
        present = set(of_variant.unique())
        parts = [
            table(frame[of_variant == variant], labels, self.cells.shared)
            for variant, labels in self.cells.labels.items()
            if labels and variant in present
        ]
        return joined(parts, table(frame.iloc[:0], {}, {}))
