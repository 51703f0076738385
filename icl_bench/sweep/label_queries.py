"""Rows of the pool that the model labels before they are used as demonstrations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from icl_bench.demonstrations.ordering import AsDrawn
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import CellError, UserError
from icl_bench.results.cells import FINISHED, Identity
from icl_bench.results.reading import DamagedError, read_whole
from icl_bench.results.store import Store
from icl_bench.sweep.prompt_group import PromptGroup
from icl_bench.sweep.tokenized_task import TokenizedTask


def labelling_group(task: TokenizedTask, rows: np.ndarray, draw: int) -> PromptGroup:
    """The prompts that ask the model for the unknown labels of these pool rows.

    ``rows`` are train indices in file order. The last rows of the draw's permutation have known labels; the
    perturbation sets their number. They are the demonstrations of all these prompts and are not labelled. Raises
    ``UserError`` if no other rows are left.
    """
    known = task.pool.drawn(draw)[len(task.pool) - task.perturbation.apart :]
    asked = rows[~np.isin(rows, known)]
    if not len(asked):
        raise UserError(
            f"--perturbation {task.perturbation}: prompts show only rows with known labels; ask for a larger k, "
            "or for labels:model alone"
        )
    return PromptGroup(task.labelling(asked, np.sort(known)), SelectorSpec(), AsDrawn(), draw)


@dataclass
class ModelLabels:
    """The labels that the model predicted, and the number of correct ones."""

    asked: int = 0
    scores: list[float] = field(default_factory=list)
    """The score of each answer, if single answers have scores."""
    invalid: int = 0

    def read(self, store: Store, identity: Identity, task: TokenizedTask, queries: int) -> dict[str, str]:
        """Read the answers of a finished cell to pool rows, by row id. Demonstrations show this text.

        Free-text answers are kept whole. Raises ``CellError`` if the file is damaged.
        """
        name = f"{identity.name}{FINISHED}"
        try:
            file = read_whole(store.storage, name, queries)
        except DamagedError as error:
            raise CellError(f"{store.storage.where(name)}: {error}; run again to ask for these labels again") from None
        rows = file.table.to_pylist()
        self.asked += len(rows)
        self.invalid += sum(not row["valid"] for row in rows)
        self.scores += [float(row[task.first_column]) for row in rows if row.get(task.first_column) is not None]
        written = None if task.data.spec.is_classification else "text"
        return {row["test_id"]: str(row.get(written) or row["prediction"] or "").strip() for row in rows}

    @property
    def note(self) -> str:
        """The number of correct labels, in one line."""
        right = f", {np.mean(self.scores):.1%} right" if self.scores else ""
        invalid = f"; {self.invalid:,} of them are invalid and shown as the model wrote them" if self.invalid else ""
        return f"labels by the model: {self.asked:,} rows of the pool{right}{invalid}"
