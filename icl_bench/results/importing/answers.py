"""Compares imported answers with correct ones, by the rules for this program's own labels.

A model's answer often has a blank or a line break around it, and a table writes the label 1 as ``1.0``. An answer that
is unambiguously one of the correct answers of its task (its labels) is stored as that label, with the original text in
the column ``text``, as in a run.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from icl_bench.metrics.scores import golds_of
from icl_bench.prompts.written_labels import LabelReader
from icl_bench.results.importing.coded import replaced, rows_of
from icl_bench.wording import counted, listed, plain, short

FEW = 0.5
"""The share of labels among a task's predictions below which a warning is given."""

SHOWN = 3
"""The number of samples in a warning."""


@dataclass(frozen=True)
class Compared:
    """Answers, compared with the correct ones; each list is ``(groups,)``."""

    labels: list[str | None]
    """The label of an answer that is written otherwise; None if ``prediction`` stays."""
    correct: list[bool | None]
    """None for free text, which has scores."""
    right: list[bool | None]
    """Whether the answers are correct; None for free text."""
    notes: tuple[str, ...] = ()
    """Warnings."""


@dataclass(frozen=True)
class Answers:
    """The values that are compared, each ``(groups,)``. Rows with equal values are one group; groups are in the order
    of their first rows. Of free text, only task and verdict count.
    """

    number: np.ndarray
    """The group of each row, ``(rows,)``."""
    task: Sequence[str]
    gold: Sequence[str]
    prediction: Sequence[str]
    stated: Sequence[bool | None]
    """The verdict in the file, if it has one."""
    free: np.ndarray
    """Whether an answer is free text, which has scores instead of a label."""
    finished: np.ndarray
    """Whether a run of this program made the prediction, so its labels are already parsed."""
    golds: Sequence[Any] | None = None
    """All correct answers, if there are several."""

    def all_golds(self, group: int) -> Sequence[str]:
        """The correct answers of a group, ``gold`` first."""
        gold = self.gold[group]
        return (gold,) if self.golds is None else tuple(dict.fromkeys((gold, *golds_of(self.golds[group], gold))))


class Labels:
    """The labels of a task and their accepted spellings."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._reader = LabelReader(labels)
        self._composed: dict[str, str | None] = {}
        for label in self._reader.labels:
            composed = unicodedata.normalize("NFKC", label)
            self._composed[composed] = None if composed in self._composed else label
        self._composed_reader = LabelReader(self._composed)
        self._known: dict[str, str | None] = {}

    def label_in(self, text: str) -> str | None:
        """The label of an answer, in any spelling; None if it is ambiguous."""
        if text in self._reader.labels:
            return text
        if text not in self._known:
            self._known[text] = self._read(text)
        return self._known[text]

    def _read(self, text: str) -> str | None:
        if (label := self._reader.label_in(text)) is not None:
            return label
        read = self._composed_reader.label_in(unicodedata.normalize("NFKC", text))
        return None if read is None else self._composed[read]


def compare(answers: Answers, judge: str | None = None) -> Compared:
    """Compare answers with the correct ones.

    The file's verdicts are kept: an answer judged right is stored as its correct answer if its spelling differs.
    ``judge`` is the program whose verdicts the file has. Without one, an answer judged right must equal the correct
    one; the caller refuses rows in which it does not.
    """
    labels = _labels(answers)
    correct = list(answers.stated)
    new: list[str | None] = [None] * len(correct)
    right: list[bool | None] = [None] * len(correct)
    unlike: list[int] = []
    for group, (written, stated) in enumerate(zip(answers.prediction, answers.stated, strict=True)):
        if answers.free[group]:
            continue
        golds = answers.all_golds(group)
        label = None if answers.finished[group] else labels[answers.task[group]].label_in(written)
        if answers.finished[group]:
            pass  # a run has parsed the label, among all labels of its task
        elif stated is None:
            correct[group] = label in golds
        elif stated is False and label in golds:
            label = None
            if written not in golds or judge is not None:
                unlike.append(group)
        elif stated is True and judge is not None and label not in golds:
            label = golds[0]
        if label is not None and label != written:
            new[group] = written = label
        right[group] = written in golds
    notes = [*_few(answers, labels, judge), *_contradicted(answers, unlike, judge)]
    return Compared(new, correct, right, tuple(notes))


def _labels(answers: Answers) -> Mapping[str, Labels]:
    """The labels of each task: the correct answers of its rows."""
    by_task: dict[str, set[str]] = {}
    for group in np.flatnonzero(~answers.free).tolist():
        by_task.setdefault(answers.task[group], set()).update(answers.all_golds(group))
    return {task: Labels(sorted(labels)) for task, labels in by_task.items()}


def _few(answers: Answers, labels: Mapping[str, Labels], judge: str | None) -> list[str]:
    """A warning for each task with few predictions among its correct answers."""
    notes = []
    compared = ~answers.free & ~answers.finished
    if judge is not None:
        compared &= np.array([stated is None for stated in answers.stated])
    frame = pd.DataFrame({"task": answers.task, "gold": answers.gold, "prediction": answers.prediction})
    frame["rows"] = np.bincount(answers.number, minlength=len(frame))
    for task, groups in frame[compared].groupby("task", sort=False):
        name, rows = str(task), int(groups["rows"].sum())
        counts = groups.groupby("prediction", sort=False)["rows"].sum().sort_values(ascending=False, kind="stable")
        others = [text for text in counts.index if labels[name].label_in(text) is None]
        found = rows - int(counts[others].sum())
        if found >= FEW * rows:
            continue
        samples, golds = (", ".join(map(short, texts[:SHOWN])) for texts in (others, groups["gold"].unique()))
        notes.append(
            f"task {plain(name)}: {found:,} of {rows:,} predictions {'is' if found == 1 else 'are'} "
            f"among the correct answers; others are {samples}, correct answers are {golds}; write predictions as "
            "gold is written, or give free text a column of scores (f1, rouge1, ...)"
        )
    return notes


def _contradicted(answers: Answers, unlike: Sequence[int], judge: str | None) -> list[str]:
    """A warning if the file judges answers as wrong that equal the correct one."""
    if not unlike:
        return []
    rows = np.flatnonzero(np.isin(answers.number, unlike))
    shown = answers.number[rows[:SHOWN]].tolist()
    samples = [f"{short(answers.prediction[group])} for {short(answers.gold[group])}" for group in shown]
    whose = f"{judge} counts" if judge else "column correct counts"
    remedy = "" if judge else "; omit the column to have it computed"
    return [
        f"{whose} {counted(len(rows), 'answer')} as wrong that {'is' if len(rows) == 1 else 'are'} the correct "
        f"answer except for its spelling ({listed(samples)}, the first in row {rows[0] + 1:,}); kept as stated"
        f"{remedy}"
    ]


def as_columns(
    compared: Compared, number: np.ndarray, written: pa.ChunkedArray, had_texts: pa.ChunkedArray | None
) -> dict[str, pa.ChunkedArray]:
    """The columns ``prediction``, ``correct`` and, if answers were ``written`` otherwise, ``text``."""
    verdicts = pa.array(compared.correct, pa.bool_())
    columns = {"prediction": written, "correct": pa.chunked_array([verdicts.take(pa.array(number))])}
    read = np.array([label is not None for label in compared.labels])
    if read.any():
        columns["prediction"] = replaced(written, number, compared.labels)
        texts = rows_of(written, read[number])
        columns["text"] = texts if had_texts is None else pc.coalesce(had_texts, texts.cast(pa.string()))
    return columns
