"""Training, validation and test rows of a method, the same as in-context learning's, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from icl_bench.errors import CellError
from icl_bench.prompts.encoding import Ids
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import Example
from icl_bench.training.spec import Validation
from icl_bench.wording import short

if TYPE_CHECKING:
    import torch


VALIDATION_ROWS = 100
"""Pool rows after the k examples, on which the checkpoint is selected."""


@dataclass(frozen=True)
class LabelledQuery:
    """A query in the form of a prompt's end, with the number of its label."""

    id: str
    ids: Ids
    label: int
    """-1 for a label without a train row."""


@dataclass(frozen=True)
class Examples:
    """The rows of one training run: k examples of a draw, validation rows, test rows."""

    task: TokenizedTask
    draw: int
    k: int
    validation: Validation = "pool"

    @cached_property
    def shown(self) -> tuple[Example, ...]:
        """The first k examples of the draw, as in the prompt of k demonstrations."""
        task = self.task
        return tuple(task.data.train[i] for i in task.pool.drawn(self.draw)[: self.k])

    @cached_property
    def _parts(self) -> tuple[Sequence[Example], Sequence[Example]]:
        if self.validation == "examples":
            held = max(1, self.k // 5)
            return self.shown[:-held], self.shown[-held:]
        task = self.task
        after = task.pool.drawn(self.draw)[self.k : self.k + VALIDATION_ROWS]
        return self.shown, tuple(task.data.train[i] for i in after)

    @cached_property
    def train(self) -> tuple[LabelledQuery, ...]:
        """Rows to train on. Raises ``CellError`` if they have fewer than two labels."""
        self.check()
        return self._rows(self._parts[0])

    def check(self) -> None:
        """Raise ``CellError`` if the rows to train on have fewer than two labels."""
        if len({example.answer for example in self._parts[0]}) < 2:
            name = short(self.shown[0].answer) if self.shown else "none"
            raise CellError(f"k={self.k}: the examples to train on have one label, {name}; take a larger k")

    @cached_property
    def held_out(self) -> tuple[LabelledQuery, ...]:
        """Rows on which the checkpoint is selected. Raises ``CellError`` if the pool has none left."""
        rows = self._rows(self._parts[1])
        if not rows:
            raise CellError(
                f"k={self.k} is the whole pool: no row is left to choose a checkpoint on; "
                "take a smaller k, or --validation examples"
            )
        return rows

    @cached_property
    def test(self) -> tuple[LabelledQuery, ...]:
        """The test rows."""
        return self._rows(self.task.data.test)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Labels of the task without a training example."""
        present = {example.answer for example in self._parts[0]}
        return tuple(label for label in self.task.data.labels if label not in present)

    def _rows(self, examples: Sequence[Example]) -> tuple[LabelledQuery, ...]:
        if not examples:
            return ()
        numbers = {label: i for i, label in enumerate(self.task.data.labels)}
        prompts = self.task.encoder.own_prompts([[] for _ in examples], examples)
        return tuple(
            LabelledQuery(example.id, prompts.ids(i), numbers.get(example.answer, -1))
            for i, example in enumerate(examples)
        )


def padded(ids: Sequence[Sequence[int]], pad: int) -> dict[str, torch.Tensor]:
    """A batch padded on the right: ids and mask, ``(rows, longest)``."""
    import torch

    longest = max(map(len, ids))
    tokens = torch.full((len(ids), longest), pad)
    mask = torch.zeros((len(ids), longest), dtype=torch.long)
    for number, row in enumerate(ids):
        tokens[number, : len(row)] = torch.tensor(list(row))
        mask[number, : len(row)] = 1
    return {"input_ids": tokens, "attention_mask": mask}


def batches(rows: Sequence[LabelledQuery], size: int) -> Iterator[list[int]]:
    """Row indices in batches of similar lengths, longest first."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i].ids))
    for start in range(0, len(order), size):
        yield order[start : start + size]
