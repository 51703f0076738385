"""A task met by a model: which examples are the pool, which demonstrations a prompt shows.

Everything here is decided by the data, the tokenizer and named seeds; nothing of it needs the
model's weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from icl_bench.data import Example, TaskData
from icl_bench.models import Model, cache_dir
from icl_bench.ordering import Order
from icl_bench.patterns import FULL, Block, Pattern
from icl_bench.prompts import PromptEncoder, PromptSet, answer_text, demonstration_text
from icl_bench.seeds import generator
from icl_bench.selection import SELECTORS, Ranking, nearest
from icl_bench.selection.random import draw as permutation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from icl_bench.backends.base import Decoding
    from icl_bench.selection.bertscore import Encoder

Scoring = Literal["greedy", "exact", "unconstrained"]
Queries = Literal["test", "copied"]


@dataclass
class Experiment:
    """One task's data in one model's tokens."""

    data: TaskData
    model: Model
    tokenizer: PreTrainedTokenizerBase
    seed: int = 0
    scoring: Scoring = "greedy"
    queries: Queries = "test"
    """``copied``: queries are demonstrations of their own prompt, not test rows."""
    label_space: str | None = None
    """Which part of the task's labels the data is cut to, in words; None for all."""
    _rankings: dict[str, list[Ranking]] = field(default_factory=dict, repr=False)

    @cached_property
    def encoder(self) -> PromptEncoder:
        """Turns examples into token ids."""
        return PromptEncoder(self.data.spec.template, self.tokenizer)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each train row as a demonstration with its separator: ``(train,)``."""
        return self.encoder.demonstration_lengths(self.data.train)

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

    def retrieved(self, select: str, draw: int, k: int) -> np.ndarray:
        """Train indices of each test row's k demonstrations, most similar first: ``(test, k)``."""
        found = [
            nearest(ranking, k, generator(self.seed, "fill", select, draw, row.id))
            for ranking, row in zip(self._ranked(select), self.data.test, strict=True)
        ]
        chosen: np.ndarray = self.pool[np.stack(found)]
        return chosen

    def _ranked(self, select: str) -> list[Ranking]:
        """How similar the pool is to each test row, computed once a selector."""
        if select not in self._rankings:
            make = SELECTORS[select].retriever
            assert make is not None, f"{select} does not retrieve"
            retriever = make(self.encoder_of(select), cache_dir() / "embeddings")
            template = self.data.spec.template
            # the whole train file, whatever a tokenizer leaves out: its embeddings are kept on disk
            retriever.fit([demonstration_text(template, row) for row in self.data.train])
            queries = [
                " ".join(row.fields[name] for name in template.input_fields)
                for row in self.data.test
            ]
            self._rankings[select] = [
                Ranking(found.scores[self.pool], found.related[self.pool])
                for found in retriever.rank(queries)
            ]
        return self._rankings[select]

    def encoder_of(self, select: str) -> Encoder | None:
        """The sentence encoder that a selector ranks by, if any. Raises ``UserError``."""
        if not SELECTORS[select].uses_encoder:
            return None
        from icl_bench.selection.bertscore import encoder_default

        return encoder_default()

    @cached_property
    def metric_encoder(self) -> Encoder | None:
        """The encoder of the BERTScore metric, for tasks that have it. Raises ``UserError``."""
        if "bertscore" not in self.data.spec.metrics:
            return None
        from icl_bench.selection.bertscore import encoder_default

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
        from icl_bench.backends.base import Exact, Free, Greedy
        from icl_bench.labels import compile_labels, label_trie

        if not self.data.spec.is_classification:
            return Free(self.data.spec.template.separator, self.answer_tokens)
        if self.scoring == "unconstrained":
            return Free("\n", self.answer_tokens)
        if self.scoring == "exact":
            return Exact(label_trie(self.encoder.answers(self.data.labels)))
        return Greedy(compile_labels(self.answers, self.tokenizer))


@dataclass
class Group:
    """Cells of one draw that share a growing prefix, or (retrieval) share nothing."""

    experiment: Experiment
    select: str
    order: Order
    draw: int
    pattern: Pattern = FULL
    """How the model reads the demonstrations."""
    _sets: dict[int, PromptSet] = field(default_factory=dict, repr=False)

    @property
    def shared(self) -> bool:
        """Whether all test rows see the same demonstrations."""
        return not SELECTORS[self.select].retrieves

    def demonstrations(self, k: int) -> np.ndarray:
        """Train indices in the order of the prompt: ``(k,)`` if shared, else ``(test, k)``."""
        experiment = self.experiment
        if self.shared:
            return self._arranged(experiment.drawn(self.draw)[:k], "")
        if isinstance(self.pattern, Block) and self.pattern.reuse and self.pattern.sink:
            return self._behind_sink(k)
        found = experiment.retrieved(self.select, self.draw, k)
        rows = zip(found, experiment.data.test, strict=True)
        return np.stack([self._arranged(chosen, row.id) for chosen, row in rows])

    def _behind_sink(self, k: int) -> np.ndarray:
        """The draw's first demonstration, then the k - 1 most similar others: ``(test, k)``.

        Demonstrations that are computed once see the sink, so it is the same in every prompt.
        """
        experiment = self.experiment
        sink = experiment.drawn(self.draw)[0]
        wanted = min(k, len(experiment.pool))
        found = experiment.retrieved(self.select, self.draw, wanted)
        rows = [
            self._arranged(chosen[chosen != sink][: k - 1], row.id)
            for chosen, row in zip(found, experiment.data.test, strict=True)
        ]
        return np.stack([np.concatenate([[sink], row]) for row in rows])

    def _arranged(self, chosen: np.ndarray, row: str) -> np.ndarray:
        labels = [self.experiment.data.train[i].answer for i in chosen]
        return self.order.arrange(chosen, labels, self.draw, row)

    def queries(self, k: int) -> Sequence[Example]:
        """What is asked: the test rows, or as many of the k demonstrations (all, if k is less).

        They are a random sample of the prompt's, in its order (Bertsch et al. 2025, table 5).
        """
        experiment = self.experiment
        if experiment.queries == "test":
            return experiment.data.test
        shown = self.demonstrations(k)
        count = min(len(experiment.data.test), k)
        rng = generator(experiment.seed, "copied", self.draw, k)
        return self._examples(shown[np.sort(rng.permutation(k)[:count])])

    def prompts(self, shots: Sequence[int]) -> Iterator[tuple[int, PromptSet]]:
        """Prompts of each k, in rising order."""
        test, encoder = self.experiment.data.test, self.experiment.encoder
        if self.shared and self.order.nested and self.experiment.queries == "test":
            if missing := [k for k in shots if k not in self._sets]:
                shown = self._examples(self.demonstrations(max(missing)))
                self._sets.update(encoder.shared_prompts(shown, missing, test))
            yield from ((k, self._sets[k]) for k in sorted(shots))
            return
        for k in sorted(shots):
            chosen = self.demonstrations(k)
            if self.shared:
                asked = self.queries(k)
                yield k, encoder.shared_prompts(self._examples(chosen), [k], asked)[k]
            else:
                own = [self._examples(c) for c in chosen]
                yield k, encoder.own_prompts(own, test, self.pattern.blocks)

    def _examples(self, indices: np.ndarray) -> list[Example]:
        return [self.experiment.data.train[i] for i in indices]

    def largest(self) -> int:
        """The largest k whose longest prompt and answer fit the context window (0 if none)."""
        experiment = self.experiment
        window = experiment.model.context_tokens
        k = self._largest_by_sums(window)
        while k:
            ((_, prompts),) = self.prompts([k])
            self._sets.pop(k, None)
            if prompts.longest + experiment.answer_tokens <= window:
                break
            k -= 1
        return k

    def _largest_by_sums(self, window: int) -> int:
        """As ``largest``, from the lengths of the demonstrations alone."""
        experiment = self.experiment
        encoder, data = experiment.encoder, experiment.data
        test = data.test if experiment.queries == "test" else data.train
        queries = [len(p) for p in encoder.own_prompts([[] for _ in test], test).suffixes]
        bare = len(encoder.own_prompts([[] for _ in test], test).prefix)
        room = window - experiment.answer_tokens - bare - np.array(queries)
        limit = min(len(experiment.pool), int(window // max(1, experiment.lengths.min())))
        if self.shared:
            totals = np.cumsum(experiment.lengths[experiment.drawn(self.draw)[:limit]])
            return int((totals <= room.min()).sum())
        if limit == 0:
            return 0
        found = experiment.retrieved(self.select, self.draw, limit)
        totals = np.cumsum(experiment.lengths[found], axis=1)
        return int((totals <= room[:, None]).all(0).sum())
