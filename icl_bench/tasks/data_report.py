"""Counts of a task's labels, duplicates, and test rows that leak into train."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from icl_bench.tasks.examples import Example, TaskData
from icl_bench.tasks.near_duplicates import common_words, near_duplicates


@dataclass(frozen=True, slots=True)
class LabelCount:
    """The number of usable rows of the train file and of the whole test file that have a label."""

    label: str
    train: int
    test: int


@dataclass(frozen=True)
class DataReport:
    """Facts about a task's data that do not depend on a model."""

    task: str
    origin: str
    train_rows: int
    """Usable rows."""
    test_rows: int
    """Usable rows of the whole test file."""
    chosen_rows: int
    """Test rows that are evaluated."""
    left_out: Mapping[str, int]
    """``train`` and ``test`` -> number of rows without an input field or a label."""
    labels: tuple[LabelCount, ...]
    """Every label of either split, sorted; empty for free text."""
    fewest: int
    """Train rows of the rarest train label (0 for free text, like the next two)."""
    median: float
    most: int
    unseen_labels: Mapping[str, int]
    """Labels that only the test file has -> number of its rows with them."""
    duplicates: int
    """Train rows whose input also appears in an earlier train row."""
    leaks: tuple[str, ...]
    """Ids of rows of the test file whose input also appears in train."""
    chosen_leaks: tuple[str, ...]
    """Ids of the chosen test rows among them."""
    near_duplicates: tuple[str, ...]
    """Ids of rows of the test file whose input is nearly that of a train row, or equal
    (:mod:`icl_bench.tasks.near_duplicates`)."""
    chosen_near_duplicates: tuple[str, ...]
    """Ids of the chosen test rows among them."""
    notes: tuple[str, ...]


def leaking(test: Iterable[Example], train: Iterable[Example]) -> tuple[str, ...]:
    """Ids of the test rows whose input also appears in train, compared exactly."""
    train_inputs = set(map(inputs_of, train))
    return tuple(example.id for example in test if inputs_of(example) in train_inputs)


def inputs_of(example: Example) -> tuple[str, ...]:
    """The values of an example's input fields, which must not appear in both train and test."""
    return tuple(example.fields.values())


def report_on(data: TaskData) -> DataReport:
    """Count labels, duplicates, and test rows that leak into train, exactly or nearly."""
    duplicates = len(data.train) - len(set(map(inputs_of, data.train)))
    leaks = leaking(data.test_pool, data.train)
    near = near_duplicates(data.test_pool, data.train, common_words(data))
    test_ids = {e.id for e in data.test}
    classes = data.spec.has_common_labels
    train = Counter(e.answer for e in data.train) if classes else Counter[str]()
    test = Counter(e.answer for e in data.test_pool) if classes else Counter[str]()
    sizes = list(train.values()) or [0]
    return DataReport(
        task=data.spec.name,
        origin=data.origin,
        train_rows=len(data.train),
        test_rows=len(data.test_pool),
        chosen_rows=len(data.test),
        left_out=data.left_out,
        labels=tuple(LabelCount(name, train[name], test[name]) for name in sorted(train | test)),
        fewest=min(sizes),
        median=statistics.median(sizes),
        most=max(sizes),
        unseen_labels={label: n for label, n in sorted(test.items()) if label not in train},
        duplicates=duplicates,
        leaks=leaks,
        chosen_leaks=tuple(name for name in leaks if name in test_ids),
        near_duplicates=near,
        chosen_near_duplicates=tuple(name for name in near if name in test_ids),
        notes=data.notes,
    )
