"""A task met by a model: which examples are the pool, which demonstrations a prompt shows.

Everything here is decided by the data, the tokenizer and named seeds; nothing of it needs the
model's weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from icl_bench.demonstrations.balanced import balanced, largest
from icl_bench.demonstrations.centroids import nearest_to_centroids
from icl_bench.demonstrations.hybrid import own_part
from icl_bench.demonstrations.perturbations import PLAIN, Perturbation, taught, without_nearest
from icl_bench.demonstrations.random import draw as permutation
from icl_bench.demonstrations.ranking import nearest
from icl_bench.demonstrations.selector_spec import By, SelectorSpec
from icl_bench.demonstrations.similarity import Similarity
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.registry import Model
from icl_bench.prompts.encoding import PromptEncoder
from icl_bench.prompts.rendering import answer_text, demonstration_text
from icl_bench.seeds import generator
from icl_bench.tasks.examples import Example, TaskData

if TYPE_CHECKING:
    from icl_bench.backends.interface import Decoding
    from icl_bench.models.text_encoders import Encoder
    from icl_bench.models.tokenizers import Tokenizer

Scoring = Literal["greedy", "exact", "unconstrained"]


Queries = Literal["test", "copied"]


@dataclass
class TokenizedTask:
    """One task's data in one model's tokens."""

    data: TaskData
    model: Model
    tokenizer: Tokenizer
    seed: int = 0
    scoring: Scoring = "greedy"
    queries: Queries = "test"
    """``copied``: queries are demonstrations of their own prompt, not test rows."""
    label_space: str | None = None
    """Which part of the task's labels the data is cut to, in words; None for all."""
    teaching: Perturbation = PLAIN
    """What prompts show of the demonstrations, and which they leave out."""
    embedder: str | None = None
    """The sentence encoder that is asked for; None for the packaged one."""
    _taught: dict[int, tuple[Example, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def encoder(self) -> PromptEncoder:
        """Turns examples into token ids."""
        return PromptEncoder(self.data.spec.template, self.tokenizer, self.teaching.piece)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each train row as a whole demonstration with its separator: ``(train,)``."""
        plain = PromptEncoder(self.data.spec.template, self.tokenizer)
        return plain.demonstration_lengths(self.data.train)

    @cached_property
    def pool(self) -> np.ndarray:
        """Indices of the train rows that may become demonstrations, in file order: ``(pool,)``.

        Rows longer than the ``1 - drop_longest`` quantile are left out (Bertsch et al.'s code).
        """
        share = self.data.spec.pool.drop_longest
        if not share:
            return np.arange(len(self.lengths))
        return np.flatnonzero(self.lengths <= np.quantile(self.lengths, 1 - share))

    @property
    def dropped(self) -> int:
        """Train rows that are too long for the pool."""
        return len(self.data.train) - len(self.pool)

    # -- demonstrations -------------------------------------------------------------------------

    def drawn(self, draw: int) -> np.ndarray:
        """Train indices of the pool in the order of one draw: ``(pool,)``.

        The permutation is of the whole train file, so that models whose tokenizers drop different
        rows see the others in the same order.
        """
        order = permutation(len(self.data.train), self.seed, draw)
        inside: np.ndarray = order[np.isin(order, self.pool)]
        return inside

    def shared_part(self, choice: SelectorSpec, draw: int, k: int) -> np.ndarray:
        """Train indices of k demonstrations that all queries share, as selected: ``(k,)``.

        Raises ``UserError`` where a label has too few, or there are more centroids than examples.
        """
        drawn = self.drawn(draw)
        if choice.base == "balanced":
            return balanced(drawn, self.answers_of_train, k, self._rounds(draw))
        if choice.base == "centroids" and k:
            queries = self.similarity.query_embeddings if choice.sees_queries else None
            found = nearest_to_centroids(
                self.similarity.pool_embeddings, k, generator(self.seed, "centroids", draw, k),
                queries=queries, cache_dir=self.similarity.cache_dir,
            )  # fmt: skip
            return self._rows(found)
        return drawn[:k]

    def most_shared(self, choice: SelectorSpec, draw: int) -> int:
        """How many demonstrations all queries could share at most."""
        most = len(self.pool)
        if choice.base == "balanced":
            most = largest(self.drawn(draw), self.answers_of_train, self._rounds(draw))
        elif choice.sees_queries:
            most = min(most, len(self.data.test))
        if choice.own:  # the query's own are like none of them
            most = min(most, int(self.alike.max()) + 1 - choice.own)
        return most

    def _rounds(self, draw: int) -> np.random.Generator:
        return generator(self.seed, "balanced", draw)

    def retrieved(self, by: By, draw: int, k: int) -> np.ndarray:
        """Train indices of each test row's k demonstrations, most similar first: ``(test, k)``."""
        found = [
            nearest(ranking, k, self._fill(by, draw, row))
            for ranking, row in zip(self.similarity.ranked(by), self.data.test, strict=True)
        ]
        return self._rows(np.stack(found))

    def own_part(self, by: By, draw: int, shared: np.ndarray, count: int) -> np.ndarray:
        """Train indices of those most similar to each test row that are like none of the shared,
        most similar last: ``(test, count)``. ``shared`` are train indices too.

        Raises ``UserError`` where the pool has too few different ones.
        """
        places = np.searchsorted(self.pool, shared)
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
        texts = (demonstration_text(template, train[i]) for i in self.pool)
        return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=int)

    def _fill(self, by: By, draw: int, row: Example) -> np.random.Generator:
        """Draws what is not related to a query, where fewer are than are wanted."""
        return generator(self.seed, "fill", by, draw, row.id)

    def without_nearest(self, shown: np.ndarray, count: int) -> np.ndarray:
        """Leave the ``count`` most similar to it out of each test row's: ``(test, k - count)``.

        ``shown`` are the train indices that are shared, ``(k,)``, whose order stays.
        """
        places = np.searchsorted(self.pool, shown)
        rankings = self.similarity.ranked("dense")
        return np.stack([without_nearest(shown, r.scores[places], count) for r in rankings])

    def _rows(self, places: np.ndarray) -> np.ndarray:
        """Train indices of places in the pool."""
        found: np.ndarray = self.pool[places]
        return found

    @cached_property
    def similarity(self) -> Similarity:
        """How similar the pool is to the test rows."""
        return Similarity(self.data, self.pool, cache_dir() / "embeddings", self.embedder)

    def encoders(self, choice: SelectorSpec) -> dict[str, str | None]:
        """Names of the encoders that decide what is shown, as facts. Raises ``UserError``.

        ``encoder`` is BERTScore's, which every cell names; ``embeddings`` the sentence encoder.
        """
        by_tokens = self.similarity.encoder.name if choice.by == "bertscore" else None
        if not (choice.embeds or self.teaching.embeds):
            return {"encoder": by_tokens}
        return {"encoder": by_tokens, "embeddings": self.similarity.sentence_encoder.name}

    # -- what prompts show of them --------------------------------------------------------------

    @cached_property
    def answers_of_train(self) -> list[str]:
        """The answer of each train row, as the data has it: ``(train,)``."""
        return [row.answer for row in self.data.train]

    def taught(self, draw: int) -> tuple[Example, ...]:
        """The train rows with the answers that one draw's demonstrations show."""
        if not self.teaching.changes_answers:
            return self.data.train
        if draw not in self._taught:
            data, drawn = self.data, self.drawn(draw)
            self._taught[draw] = taught(
                self.teaching, data.train, data.labels, self.seed, draw, drawn
            )
        return self._taught[draw]

    def taught_lengths(self, draw: int) -> np.ndarray:
        """Tokens of each train row as that draw's demonstrations show it: ``(train,)``."""
        return self.encoder.demonstration_lengths(self.taught(draw))

    @cached_property
    def metric_encoder(self) -> Encoder | None:
        """The encoder of the BERTScore metric, for tasks that have it. Raises ``UserError``."""
        if "bertscore" not in self.data.spec.metrics:
            return None
        from icl_bench.models.text_encoders import encoder_default

        return encoder_default()

    # -- answers --------------------------------------------------------------------------------

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """What may follow the query: each label with its lead and its end."""
        return tuple(answer_text(self.data.spec.template, label) for label in self.data.labels)

    @cached_property
    def answer_tokens(self) -> int:
        """Tokens that the longest answer may take."""
        if not self.data.spec.is_classification:
            return self.data.spec.max_answer_tokens
        return max(map(len, self.encoder.answers(self.data.labels)))

    @cached_property
    def decoding(self) -> Decoding:
        """How the answer is found, for a backend."""
        from icl_bench.backends.interface import Exact, Free, Greedy
        from icl_bench.backends.label_constraint import compile_labels, label_trie

        if not self.data.spec.is_classification:
            return Free(self.data.spec.template.separator, self.answer_tokens)
        if self.scoring == "unconstrained":
            return Free("\n", self.answer_tokens)
        if self.scoring == "exact":
            return Exact(label_trie(self.encoder.answers(self.data.labels)))
        return Greedy(compile_labels(self.answers, self.tokenizer))
