"""The pool: the training examples that demonstrations are chosen from, and the selections from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from icl_bench.demonstrations.interface import Diversity, SharedSelector
from icl_bench.demonstrations.per_label import nearest_of_each
from icl_bench.demonstrations.random import draw as permutation
from icl_bench.demonstrations.ranking import Ranking, most_similar, own_part
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.demonstrations.similarity import Similarity
from icl_bench.prompts.rendering import demonstration_text
from icl_bench.seeds import generator
from icl_bench.tasks.examples import TaskData


@dataclass
class DemonstrationPool:
    """The pool of one task, and the selections of draws and selectors from it.

    Everything follows from the data, the rows of the pool, and named seeds.
    """

    data: TaskData
    rows: np.ndarray
    """Train indices that may become demonstrations, in file order: ``(pool,)``."""
    seed: int
    cache_dir: Path
    """The folder of cached embeddings."""
    sentence_encoder: str | None = None
    """The value of ``--encoder``; None for the packaged one."""
    windows: bool = False
    """Whether encoders read long texts in windows, instead of truncating them."""
    _diverse: dict[Diversity, np.ndarray] = field(default_factory=dict, init=False, repr=False)
    """Pool positions chosen for the test rows, ``(test, k)`` of the largest k."""
    _shared: dict[tuple[SharedSelector, int], np.ndarray] = field(default_factory=dict, init=False, repr=False)
    """Train indices chosen by nested selectors for a draw, ``(k,)`` of the largest k."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dropped(self) -> int:
        """The number of train rows that are too long for the pool."""
        return len(self.data.train) - len(self)

    @cached_property
    def answers(self) -> Sequence[str]:
        """The answer of each train row in the data: ``(train,)``."""
        return [row.answer for row in self.data.train]

    @cached_property
    def labels(self) -> Sequence[str]:
        """The distinct answers of the train file, sorted: the labels, if rows have labels in common."""
        return sorted(set(self.answers))

    @cached_property
    def _label_numbers(self) -> np.ndarray:
        """The index into ``labels`` of each row of the pool: ``(pool,)``."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.array([numbers[self.answers[i]] for i in self.rows], dtype=np.int64)

    @cached_property
    def similarity(self) -> Similarity:
        """How similar the pool is to the test rows."""
        return Similarity(self.data, self.rows, self.cache_dir, self.sentence_encoder, self.windows)

    def rng(self, *names: str | int) -> np.random.Generator:
        """A random generator for a purpose, from the run's seed."""
        return generator(self.seed, *names)

    def places(self, train: np.ndarray) -> np.ndarray:
        """The pool positions of train indices."""
        return np.searchsorted(self.rows, train)

    def drawn(self, draw: int) -> np.ndarray:
        """Train indices of the pool in the order of one draw: ``(pool,)``.

        The whole train file is permuted, so models whose tokenizers drop different rows have the
        remaining ones in the same order.
        """
        order = permutation(len(self.data.train), self.seed, draw)
        inside: np.ndarray = order[np.isin(order, self.rows)]
        return inside

    # -- shared demonstrations -----------------------------------------------------------------

    def shared(self, spec: SelectorSpec, draw: int, k: int) -> np.ndarray:
        """Train indices of k demonstrations that all queries share, in order of selection: ``(k,)``.

        Raises ``ChoiceError`` if a label has too few, or there are more centroids than rows.
        """
        assert spec.base is not None, f"{spec} shares nothing"
        if not spec.base.nested:
            return spec.base.choose(self, draw, k)
        chosen = self._shared.get((spec.base, draw))
        if chosen is None or len(chosen) < k:
            chosen = self._shared[spec.base, draw] = spec.base.choose(self, draw, k)
        return chosen[:k]

    def most_shared(self, spec: SelectorSpec, draw: int) -> int:
        """The largest number of demonstrations that all queries could share."""
        most = len(self) if spec.base is None else min(len(self), spec.base.most(self, draw))
        if spec.base is None or spec.by is None:
            return most
        return self._most_beside_own(spec, draw, most)

    def _most_beside_own(self, spec: SelectorSpec, draw: int, most: int) -> int:
        """The number that can be shared so that enough distinct ones remain for each query's own; 0 if there are too
        few in any case.
        """
        own = spec.fewest(len(self.labels))

        def enough(count: int) -> bool:
            shared = self.alike[self.places(self.shared(spec, draw, count))]
            candidates = ~np.isin(self.alike, shared)
            different = np.unique(self.alike[candidates], return_index=True)[1]
            if spec.each is None:
                return len(different) >= own
            numbers = np.bincount(self._label_numbers[candidates][different], minlength=len(self.labels))
            return bool((numbers >= spec.each).all())

        high = max(min(most, len(self) - own), 0)
        low = 0 if spec.each is not None else max(min(high, int(self.alike.max()) + 1 - own), 0)
        while low < high:
            count = (low + high + 1) // 2
            low, high = (count, high) if enough(count) else (low, count - 1)
        return low

    # -- the query's own demonstrations ----------------------------------------------------------------

    def retrieved(self, by: str, draw: int, k: int) -> np.ndarray:
        """Train indices of each test row's k demonstrations, most similar first: ``(test, k)``."""
        return self._of_queries(by, draw, lambda ranking, rng: most_similar(ranking, k, rng))

    def diverse(self, diverse: Diversity, k: int) -> np.ndarray:
        """Train indices of each test row's k demonstrations, in the order of selection: ``(test, k)``.

        Raises ValueError if k is negative or larger than the pool.
        """
        if not 0 <= k <= len(self):
            raise ValueError(f"cannot choose {k} of {len(self)} demonstrations")
        places = self._diverse.get(diverse)
        if places is None or places.shape[1] < k:
            places = self._diverse[diverse] = diverse.choose(self, k)
        rows: np.ndarray = self.rows[places[:, :k]]
        return rows

    def of_each_label(self, spec: SelectorSpec, draw: int, shared: np.ndarray) -> np.ndarray:
        """Train indices that :func:`nearest_of_each` chooses for each test row: ``(test, labels * each)``.

        ``shared`` are train indices too. Raises ``ChoiceError`` if a label has too few.
        """
        assert spec.each is not None, f"{spec} does not go by labels"
        assert spec.by is not None, f"{spec} shares all its demonstrations"
        numbers, labels, alike = self._label_numbers, self.labels, self.alike
        each, places, written = spec.each, self.places(shared), str(spec)

        def choose(ranking: Ranking, rng: np.random.Generator) -> np.ndarray:
            return nearest_of_each(ranking, numbers, labels, alike, places, each, rng, written)

        return self._of_queries(spec.by, draw, choose)

    def own_part(self, spec: SelectorSpec, draw: int, shared: np.ndarray, count: int) -> np.ndarray:
        """Train indices of each test row's own demonstrations, most similar last: ``(test, count)``.

        ``shared`` are train indices too. Raises ``ChoiceError`` if too few differ from these.
        """
        if spec.each is not None:
            return self.of_each_label(spec, draw, shared)[:, ::-1]
        assert spec.by is not None, f"{spec} shares all its demonstrations"
        alike, places = self.alike, self.places(shared)
        return self._of_queries(spec.by, draw, lambda ranking, rng: own_part(ranking, alike, places, count, rng))

    def _of_queries(
        self, by: str, draw: int, choose: Callable[[Ranking, np.random.Generator], np.ndarray]
    ) -> np.ndarray:
        """Train indices of the pool positions that ``choose`` selects from each test row's ranking, ``(test, n)``.

        Its generator selects the remaining demonstrations if too few are related to a query.
        """
        ranked = zip(self.similarity.ranked(by), self.data.test, strict=True)
        places = [choose(ranking, self.rng("fill", by, draw, row.id)) for ranking, row in ranked]
        rows: np.ndarray = self.rows[np.stack(places)]
        return rows

    @cached_property
    def alike(self) -> np.ndarray:
        """A number for each distinct demonstration; equal text and label, equal number: ``(pool,)``."""
        template, train = self.data.spec.template, self.data.train
        numbers: dict[str, int] = {}
        texts = (demonstration_text(template, train[i]) for i in self.rows)
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=int)
