"""The pool: the training examples that demonstrations are chosen from, and the choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from icl_bench.demonstrations.hybrid import own_part
from icl_bench.demonstrations.random import draw as permutation
from icl_bench.demonstrations.ranking import nearest
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.demonstrations.similarity import Similarity
from icl_bench.prompts.rendering import demonstration_text
from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example, TaskData


@dataclass
class DemonstrationPool:
    """The pool of one task, and which of it a draw and a selector choose.

    All of it is decided by the data, the rows that are in the pool, and named seeds.
    """

    data: TaskData
    rows: np.ndarray
    """Train indices that may become demonstrations, in file order: ``(pool,)``."""
    seed: int
    cache_dir: Path
    """Where embeddings are kept."""
    encoder: str | None = None
    """The sentence encoder that is asked for; None for the packaged one."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dropped(self) -> int:
        """Train rows that are not in the pool: they are too long."""
        return len(self.data.train) - len(self)

    @cached_property
    def answers(self) -> Sequence[str]:
        """The answer of each train row, as the data has it: ``(train,)``."""
        return [row.answer for row in self.data.train]

    @cached_property
    def similarity(self) -> Similarity:
        """How similar the pool is to the test rows."""
        return Similarity(self.data, self.rows, self.cache_dir, self.encoder)

    def rng(self, *names: str | int) -> np.random.Generator:
        """The generator of a purpose, of the run's seed."""
        return generator(self.seed, *names)

    def places(self, train: np.ndarray) -> np.ndarray:
        """Where train rows of the pool stand in it."""
        return np.searchsorted(self.rows, train)

    def drawn(self, draw: int) -> np.ndarray:
        """Train indices of the pool in the order of one draw: ``(pool,)``.

        The permutation is of the whole train file, so that models whose tokenizers drop different
        rows see the others in the same order.
        """
        order = permutation(len(self.data.train), self.seed, draw)
        inside: np.ndarray = order[np.isin(order, self.rows)]
        return inside

    # -- what all queries share -----------------------------------------------------------------

    def shared(self, spec: SelectorSpec, draw: int, k: int) -> np.ndarray:
        """Train indices of k demonstrations that all queries share, as selected: ``(k,)``.

        Raises ``UserError`` where a label has too few, or there are more centroids than examples.
        """
        assert spec.base is not None, f"{spec} shares nothing"
        return spec.base.choose(self, draw, k)

    def most_shared(self, spec: SelectorSpec, draw: int) -> int:
        """How many demonstrations all queries could share at most."""
        most = len(self) if spec.base is None else min(len(self), spec.base.most(self, draw))
        if spec.own:  # the query's own are like none of them
            most = min(most, int(self.alike.max()) + 1 - spec.own)
        return most

    # -- what is the query's own ----------------------------------------------------------------

    def retrieved(self, by: str, draw: int, k: int) -> np.ndarray:
        """Train indices of each test row's k demonstrations, most similar first: ``(test, k)``."""
        found = [
            nearest(ranking, k, self._fill(by, draw, row))
            for ranking, row in zip(self.similarity.ranked(by), self.data.test, strict=True)
        ]
        return self._rows(np.stack(found))

    def own_part(self, by: str, draw: int, shared: np.ndarray, count: int) -> np.ndarray:
        """Train indices of those most similar to each test row that are like none of the shared,
        most similar last: ``(test, count)``. ``shared`` are train indices too.

        Raises ``UserError`` where the pool has too few different ones.
        """
        places = self.places(shared)
        found = [
            own_part(ranking, self.alike, places, count, self._fill(by, draw, row))
            for ranking, row in zip(self.similarity.ranked(by), self.data.test, strict=True)
        ]
        return self._rows(np.stack(found))

    @cached_property
    def alike(self) -> np.ndarray:
        """The pool's demonstrations numbered, those of one text and label alike: ``(pool,)``."""
        template, train = self.data.spec.template, self.data.train
        numbers: dict[str, int] = {}
        texts = (demonstration_text(template, train[i]) for i in self.rows)
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=int)

    def _fill(self, by: str, draw: int, row: Example) -> np.random.Generator:
        """Draws what is not related to a query, where fewer are than are wanted."""
        return self.rng("fill", by, draw, row.id)

    def _rows(self, places: np.ndarray) -> np.ndarray:
        """Train indices of places in the pool."""
        found: np.ndarray = self.rows[places]
        return found
