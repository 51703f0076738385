"""Half of a task's labels: fewer labels in the same domain (Bertsch et al. 2025, appendix A)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from icl_bench.errors import UserError
from icl_bench.seeds import generator
from icl_bench.tasks.examples import TaskData
from icl_bench.wording import short


@dataclass(frozen=True)
class HalfLabels:
    """Leaves out a random half of the labels, the smaller one where their number is odd."""

    seed: int

    @classmethod
    def parse(cls, text: str) -> HalfLabels | None:
        """Read ``half:SEED``; ``all`` is None. Raises ``UserError``."""
        if text == "all":
            return None
        found = re.fullmatch(r"half:([0-9]{1,18})", text)
        if found is None:
            raise UserError(f"--labels {short(text)}: expected all or half:SEED, like half:1")
        return cls(int(found[1]))

    def __str__(self) -> str:
        return f"half:{self.seed}"

    def of(self, data: TaskData) -> TaskData:
        """The task with nothing but rows of the labels that are left, train and test.

        Raises ``UserError`` where not two labels, or no test row, are left.
        """
        out = len(data.labels) // 2
        left = len(data.labels) - out
        if left < 2:
            raise UserError(f"--labels {self}: of {len(data.labels)} labels only {left} is left")
        chosen = generator(self.seed, "half of the labels").permutation(len(data.labels))[out:]
        kept = {data.labels[i] for i in chosen}
        test = tuple(row for row in data.test if row.answer in kept)
        if not test:
            raise UserError(
                f"--labels {self}: none of the {len(data.test):,} test rows has one of the labels "
                "that are left; ask for more rows (--test-size) or take another seed"
            )
        note = f"{self}: {left} of {len(data.labels)} labels, with {len(test):,} of {len(data.test):,} test rows"
        return replace(
            data,
            train=tuple(row for row in data.train if row.answer in kept),
            test=test,
            test_pool=tuple(row for row in data.test_pool if row.answer in kept),
            labels=tuple(label for label in data.labels if label in kept),
            notes=(*data.notes, note),
        )
