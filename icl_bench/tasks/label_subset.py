"""A task with half of its labels: fewer labels in the same domain (Bertsch et al. 2025, appendix A)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from icl_bench.errors import UserError
from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example, TaskData
from icl_bench.wording import short


@dataclass(frozen=True)
class HalfLabels:
    """Removes a random half of the labels, rounded down."""

    seed: int

    @classmethod
    def parse(cls, text: str) -> HalfLabels | None:
        """Parse ``half:SEED``; ``all`` gives None. Raises ``UserError``."""
        if text == "all":
            return None
        match = re.fullmatch(r"half:([0-9]{1,18})", text)
        if match is None:
            raise UserError(f"--labels {short(text)}: expected all or half:SEED, like half:1")
        return cls(int(match[1]))

    def __str__(self) -> str:
        return f"half:{self.seed}"

    def of(self, data: TaskData) -> TaskData:
        """The task with the train and test rows of the remaining labels.

        Raises ``UserError`` if fewer than two labels or no test row remain.
        """
        labels = self._remaining(data)
        if len(labels) < 2:
            raise UserError(f"--labels {self}: of {len(data.labels)} labels only {len(labels)} is left")
        test = tuple(row for row in data.test if row.answer in labels)
        if not test:
            raise UserError(
                f"--labels {self}: none of the {len(data.test):,} test rows has one of the labels "
                "that are left; ask for more rows (--test-size) or take another seed"
            )
        note = f"{self}: {len(labels)} of {len(data.labels)} labels, with {len(test):,} of {len(data.test):,} test rows"
        return replace(
            data,
            train=self.train_of(data),
            test=test,
            test_pool=tuple(row for row in data.test_pool if row.answer in labels),
            labels=tuple(label for label in data.labels if label in labels),
            notes=(*data.notes, note),
        )

    def train_of(self, data: TaskData) -> tuple[Example, ...]:
        """The train rows of the remaining labels. ``data`` have all labels."""
        labels = self._remaining(data)
        return tuple(row for row in data.train if row.answer in labels)

    def _remaining(self, data: TaskData) -> set[str]:
        order = generator(self.seed, "half of the labels").permutation(len(data.labels))
        return {data.labels[i] for i in order[len(data.labels) // 2 :]}
