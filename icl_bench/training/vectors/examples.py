"""Training rows of a decoder that reads vectors: rows of a task's pool with additional texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from icl_bench.errors import UserError
from icl_bench.prompts.encoding import Ids
from icl_bench.seeds import generator
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import Example
from icl_bench.training.examples import VALIDATION_ROWS


@dataclass(frozen=True)
class VectorRow:
    """A prompt with its answer, and the texts that are read as vectors."""

    prompt: Ids
    answer: Ids
    texts: tuple[str, ...]


@dataclass(frozen=True)
class VectorExamples:
    """Training and validation rows; the query of each is a row of the pool.

    If the task has passages, the texts are the row's first ``vectors`` passages. Else they are demonstrations, sampled
    from the other rows for each row and epoch, after ``text`` demonstrations that stay text. Rows that the first
    ``spare_draws`` draws of random selection show up to ``spare_k`` are neither trained on nor sampled.
    """

    task: TokenizedTask
    vectors: int
    text: int = 0
    seed: int = 0
    spare_k: int = 0
    spare_draws: int = 1
    most: int | None = None
    """Maximum number of query rows, for training and for selecting the checkpoint; None for all remaining rows.
    Demonstrations are sampled from all remaining rows but those that select the checkpoint.
    """
    without: float = 0.0
    """Share of the rows that are read without vectors, sampled for each epoch."""

    @cached_property
    def _order(self) -> np.ndarray:
        """Indices of usable train rows, in random order: ``(rows,)``."""
        pool = self.task.pool
        shown = [pool.drawn(draw)[: self.spare_k] for draw in range(self.spare_draws)]
        left = np.setdiff1d(pool.rows, np.concatenate(shown))
        order: np.ndarray = generator(self.seed, "vectors").permutation(left)
        beside = 0 if self.has_passages else self.text + self.vectors
        needed = self._held_of(len(order)) + 1 + beside
        if len(order) < needed:
            raise UserError(
                f"{self.task.data.spec.name}: {len(order):,} rows of the pool are left to train "
                f"on, and {needed:,} are needed; take a smaller --spare-k or --vectors"
            )
        return order

    @property
    def has_passages(self) -> bool:
        """Whether the task's rows have their own passages."""
        return self.task.data.spec.data.passages is not None

    @property
    def _used(self) -> int:
        return self._used_of(len(self._order))

    @property
    def _held(self) -> int:
        return self._held_of(len(self._order))

    def _used_of(self, left: int) -> int:
        return left if self.most is None else min(self.most, left)

    def _held_of(self, left: int) -> int:
        return min(VALIDATION_ROWS, max(1, self._used_of(left) // 10))

    @property
    def rows(self) -> int:
        """Number of training rows of an epoch."""
        return self._used - self._held

    def epoch(self, number: int, places: Sequence[int]) -> list[VectorRow]:
        """Rows of an epoch, by position in its random order."""
        order = generator(self.seed, "vectors", "epoch", number).permutation(self.rows)
        return self._rows([int(self._order[self._held :][order[i]]) for i in places], str(number))

    @cached_property
    def validation(self) -> list[VectorRow]:
        """Rows on which the checkpoint is selected."""
        return self._rows(self._order[: self._held].tolist(), "validation")

    def all_texts(self) -> Iterator[str]:
        """Every text that may be read as a vector."""
        task, train = self.task, self.task.data.train
        for index in self._order[: self._used] if self.has_passages else self._order[self._held :]:
            if self.has_passages:
                yield from train[index].passages[: self.vectors]
            else:
                yield task.vector_text(train[index])

    def _rows(self, indices: Sequence[int], purpose: str) -> list[VectorRow]:
        task, train = self.task, self.task.data.train
        shown: list[list[Example]] = []
        texts: list[tuple[str, ...]] = []
        for index in indices:
            beside = self._beside(index, purpose)
            shown.append([train[i] for i in beside[: self.text]])
            if self._is_bare(index, purpose):
                texts.append(())
            elif self.has_passages:
                texts.append(train[index].passages[: self.vectors])
            else:
                texts.append(tuple(task.vector_text(train[i]) for i in beside[self.text :]))
        prompts = task.encoder.own_prompts(shown, [train[i] for i in indices])
        answers = task.encoder.answers([train[i].answer for i in indices])
        return [
            VectorRow(prompts.ids(i), answer, text) for i, (answer, text) in enumerate(zip(answers, texts, strict=True))
        ]

    def _is_bare(self, index: int, purpose: str) -> bool:
        """Whether a row is read without vectors."""
        return self.without > 0 and bool(
            generator(self.seed, "vectors", "without", purpose, index).random() < self.without
        )

    def _beside(self, index: int, purpose: str) -> np.ndarray:
        """Train indices of the demonstrations next to a row, without the row itself."""
        count = self.text + (0 if self.has_passages else self.vectors)
        if not count:
            return np.array([], dtype=int)
        rng = generator(self.seed, "vectors", purpose, index)
        others = self._order[self._held :]  # rows that select the checkpoint are in no training prompt
        candidates = rng.choice(others, min(count + 1, len(others)), replace=False)
        beside: np.ndarray = candidates[candidates != index][:count]
        return beside
