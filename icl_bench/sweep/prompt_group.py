"""Cells of one draw, which share demonstrations and prompts where possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from icl_bench.demonstrations.as_vectors import text_and_vectors
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.errors import ChoiceError
from icl_bench.models.attention_patterns import FULL, Pattern
from icl_bench.prompts.encoding import PromptSet
from icl_bench.seeds import generator
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import Example


@dataclass
class PromptGroup:
    """Cells that differ only in k."""

    task: TokenizedTask
    choice: SelectorSpec
    order: Order
    draw: int
    pattern: Pattern = FULL
    """How the model reads the demonstrations."""
    _sets: dict[int, PromptSet] = field(default_factory=dict, repr=False)
    _shown: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def shared(self) -> bool:
        """Whether all test rows have the same demonstrations."""
        return self.choice.shared and self.task.perturbation.shared

    @property
    def grows(self) -> bool:
        """Whether the prefix for k is the beginning of the prefix for a larger k."""
        nested = self.choice.nested and self.order.nested and self.task.perturbation.shared
        nested = nested and self.task.writing.nested
        return nested and not self.pattern.reads_vectors

    @property
    def sharing(self) -> str | None:
        """A note if the prefix is not shared by all queries and all k; else None."""
        choice, order, perturbation = self.choice, self.order, self.task.perturbation
        if self.pattern.reads_vectors and self._of_passages:
            return f"{self.pattern}: each query has its own passages; nothing is shared"
        if choice.retrieves:
            return None  # retrieval never shares
        if not perturbation.shared:
            each = f"{perturbation} leaves each query its own demonstrations"
            return f"{choice}: {each}; nothing is shared except by chance"
        if self.grows and self.shared:
            return None
        name = f"{choice}, {order.name}" if choice.nested and not order.nested else str(choice)
        between = "" if self.grows else "; between different k nothing is shared"
        if choice.by is not None:
            own = choice.fewest(self._labels)
            first = f"the first k - {own} demonstrations are shared by all queries"
            return f"{name}: {first}, the last {own} are the query's own{between}"
        return f"{name}: all queries share all demonstrations{between}"

    @property
    def smallest(self) -> int:
        """The smallest k that has at least one demonstration."""
        vectors = 0 if self._of_passages else self.pattern.fewest_texts
        own = self.choice.fewest(self._labels)
        return max(self.task.perturbation.smallest_k, own, vectors, 1)

    @property
    def _labels(self) -> int:
        """Number of labels of the task."""
        return len(self.task.pool.labels)

    # -- demonstrations -------------------------------------------------------------------------

    def demonstrations(self, k: int) -> np.ndarray:
        """Train indices in the order of the prompt: ``(k,)`` if shared, else ``(test, k)``.

        A perturbation's complete demonstrations follow the k (``Perturbation.complete``).
        Raises ``ChoiceError`` if there are not enough demonstrations.
        """
        if k not in self._shown:
            chosen = self._retrieved(k) if self.choice.retrieves else self._chosen(k)
            self._shown[k] = self._with_complete(chosen)
        return self._shown[k]

    def _with_complete(self, chosen: np.ndarray) -> np.ndarray:
        """Add the demonstrations after the selected ones: the last remaining rows of the draw."""
        perturbation, pool = self.task.perturbation, self.task.pool
        if (needed := chosen.shape[-1] + perturbation.apart) > len(pool):
            raise ChoiceError(
                f"--perturbation {perturbation}: k={chosen.shape[-1]} and {perturbation.apart:,} further rows of the "
                f"pool are {needed:,}, more than the pool's {len(pool):,}"
            )
        count = perturbation.complete
        if not count:
            return chosen
        last = pool.drawn(self.draw)[::-1]
        if chosen.ndim == 1:
            return np.concatenate([chosen, last[~np.isin(last, chosen)][:count]])
        return np.stack([np.concatenate([row, last[~np.isin(last, row)][:count]]) for row in chosen])

    def _chosen(self, k: int) -> np.ndarray:
        task, choice = self.task, self.choice
        shared = task.pool.shared(choice, self.draw, choice.shared_count(k, self._labels))
        read = self._read_as_vectors(k)
        if choice.by is None:  # the draw's first demonstrations stay text
            text = self._arranged(shared[: k - read], "")
            shown = np.concatenate([text, shared[k - read :]])
        else:
            read = min(read, len(shared))
            shown = np.concatenate([shared[:read], self._arranged(shared[read:], "")])
            count = choice.own_count(k, self._labels)
            own = task.pool.own_part(choice, self.draw, shared, count)
            return np.hstack([np.tile(shown, (len(own), 1)), own])
        if not task.perturbation.shared:
            return task.perturbation.of_queries(shown, task.pool)
        return shown

    def _retrieved(self, k: int) -> np.ndarray:
        task = self.task
        if self.choice.each is not None:
            sink = task.pool.rows[:0]
            others = list(task.pool.of_each_label(self.choice, self.draw, sink))
        elif self.pattern.reuses and self.pattern.sink:
            # demonstrations computed once attend to the sink, so all prompts have the same sink
            sink = task.pool.drawn(self.draw)[:1]
            retrieved = self._most_relevant(min(k, len(task.pool)))
            others = [chosen[chosen != sink[0]][: k - 1] for chosen in retrieved]
        else:
            sink = task.pool.rows[:0]
            others = list(self._most_relevant(k))
        rows = zip(others, task.data.test, strict=True)
        text = k - self._read_as_vectors(k)  # the most similar come first
        return np.stack(
            [np.concatenate([sink, chosen[text:], self._arranged(chosen[:text], row.id)]) for chosen, row in rows]
        )

    def _most_relevant(self, k: int) -> np.ndarray:
        """Each test row's own demonstrations, in the order of selection: ``(test, k)``."""
        choice, pool = self.choice, self.task.pool
        if choice.diverse is not None:
            return pool.diverse(choice.diverse, k)
        assert choice.by is not None, f"{choice} does not retrieve"
        return pool.retrieved(choice.by, self.draw, k)

    def _read_as_vectors(self, k: int) -> int:
        """How many of k demonstrations are read as vectors, not as text."""
        return 0 if self._of_passages else self.pattern.as_vectors(k)

    def _arranged(self, chosen: np.ndarray, row: str) -> np.ndarray:
        labels = [row.answer for row in self._examples(chosen)]
        return self.order.of(self.task.pool).arrange(chosen, labels, self.draw, row)

    # -- prompts --------------------------------------------------------------------------------

    def queries(self, k: int) -> Sequence[Example]:
        """The test rows, or with ``copied`` the same number of the k demonstrations (all if k is smaller).

        Copied queries are a random sample of the prompt's demonstrations, in its order (Bertsch et al.
        2025, table 5).
        """
        return self.task.data.test if self.task.queries == "test" else self._examples(self._copied(k))

    def _copied(self, k: int) -> np.ndarray:
        """Train indices of the queries of ``copied``: ``(queries,)``."""
        task, shown = self.task, self.demonstrations(k)
        count = min(len(task.data.test), k)
        rng = generator(task.seed, "copied", self.draw, k)
        copied: np.ndarray = shown[np.sort(rng.permutation(k)[:count])]
        return copied

    def prompts(self, shots: Sequence[int]) -> Iterator[tuple[int, PromptSet]]:
        """Prompts of each k, in ascending order."""
        if self.shared and self.grows and self.task.queries == "test":
            if missing := [k for k in shots if k not in self._sets]:
                shown = self._examples(self.demonstrations(max(missing)))
                encoder, test = self.task.encoder, self.task.data.test
                self._sets.update(encoder.shared_prompts(shown, missing, test))
            yield from ((k, self._compared(k, self._sets[k])) for k in sorted(shots))
            return
        if self.choice.diverse is not None and shots:
            self._most_relevant(min(max(shots), len(self.task.pool)))  # a smaller k is the beginning of it
        for k in sorted(shots):
            yield k, self._compared(k, self._prompts(k))

    def _compared(self, k: int, prompts: PromptSet) -> PromptSet:
        """Add the similarity of each demonstration to each query, if the pattern reads by similarity.

        Demonstrations unrelated to a query get minus infinity.
        """
        by, pool = self.pattern.compares, self.task.pool
        if by is None:
            return prompts
        places = pool.places(self.demonstrations(k))
        ranked = pool.similarity.ranked(by)
        scores = [np.where(r.related[places], r.scores[places], -np.inf) for r in ranked]
        return replace(prompts, similar=np.stack(scores))

    def _prompts(self, k: int) -> PromptSet:
        task, encoder = self.task, self.task.encoder
        chosen, queries = self.demonstrations(k), self.queries(k)
        if self.pattern.reads_vectors:
            return self._with_vectors(chosen, queries)
        if self.shared:
            return encoder.shared_prompts(self._examples(chosen), [len(chosen)], queries)[len(chosen)]
        same = self.choice.shared_count(k, self._labels) if task.perturbation.shared else 0
        own = [self._examples(row[same:]) for row in chosen]
        shown = self._examples(chosen[0, :same])
        return encoder.mixed_prompts(shown, own, queries, self.pattern.blocks)

    @property
    def _of_passages(self) -> bool:
        """Whether vectors represent each query's passages instead of demonstrations."""
        return self.task.data.spec.data.passages is not None

    def _with_vectors(self, chosen: np.ndarray, queries: Sequence[Example]) -> PromptSet:
        """Prompts with some texts read as vectors."""
        encoder, pattern = self.task.encoder, self.pattern
        text, vectors = chosen, chosen[..., :0]
        if not self._of_passages:
            text, vectors = text_and_vectors(chosen, self.choice, pattern)
        if self.shared:
            shown = self._examples(text)
            prompts = encoder.shared_prompts(shown, [len(shown)], queries)[len(shown)]
        else:
            prompts = encoder.own_prompts([self._examples(row) for row in text], queries)
        if self._of_passages:
            return prompts.with_vectors([row.passages[: pattern.as_vectors(len(row.passages))] for row in queries])
        train = np.unique(vectors)
        texts = map(self.task.vector_text, self._examples(train))
        read = dict(zip(train.tolist(), texts, strict=True))
        rows = [vectors] * len(queries) if vectors.ndim == 1 else vectors
        return prompts.with_vectors([tuple(read[i] for i in row.tolist()) for row in rows])

    def forget(self) -> None:
        """Drop cached prompts after the answers of demonstrations have changed."""
        self._sets.clear()
        self._shown.clear()

    def _examples(self, indices: np.ndarray) -> list[Example]:
        """Train rows with the answers that this draw's prompts show."""
        perturbed = self.task.perturbed(self.draw)
        return [perturbed[i] for i in indices]

    # -- the largest k --------------------------------------------------------------------------

    @property
    def all_smaller_fit(self) -> bool:
        """Whether every k below one that fits the context window fits, too."""
        grows = self.choice.nested or self.choice.retrieves
        return grows and self.task.perturbation.shared and self.task.queries == "test"

    def largest(self, most: int | None = None) -> int:
        """The largest k, at most ``most``, whose longest prompt and answer fit the context window (0 if none)."""
        pool = len(self.task.pool) if most is None else min(most, len(self.task.pool))
        if self.pattern.reads_vectors and not self._of_passages:
            text = replace(self, pattern=FULL, _sets={}, _shown={}).largest()
            possible = self.task.pool.most_shared(self.choice, self.draw) + self.choice.fewest(self._labels)
            return min(pool, possible, text + self.pattern.as_vectors(len(self.task.pool)))
        most = self._largest_by_sums(pool - self.task.perturbation.apart)
        return next(filter(self.fits, range(most, self.smallest - 1, -1)), 0)

    def fits(self, k: int) -> bool:
        """Whether the longest prompt and answer of this k fit the context window. Raises ``ChoiceError``."""
        ((_, prompts),) = self.prompts([k])
        self._sets.pop(k, None)
        return prompts.longest + self.task.written_tokens <= self.task.model.context_tokens

    def _largest_by_sums(self, most: int) -> int:
        """Estimate :meth:`largest` from the lengths of the demonstrations alone."""
        task, room = self.task, self._room()
        if self.choice.says_k:
            return min(self.smallest, most)
        lengths = task.perturbed_lengths(self.draw)
        shortest = np.cumsum(np.sort(lengths[task.pool.rows]))
        fitting = room.min() if task.queries == "test" else room.max()  # only some of the pool are copied
        limit = min(int((shortest <= fitting).sum()), most)  # no selection has room for more
        if self.grows and self.shared:
            limit = min(limit, task.pool.most_shared(self.choice, self.draw))
            totals = np.cumsum(lengths[task.pool.shared(self.choice, self.draw, limit)])
            fits = (k for k in range(limit, 0, -1) if (totals[k - 1] <= self._room_at(k, room)).all())
            return next(fits, 0)
        if self.choice.retrieves and limit:
            totals = np.cumsum(lengths[self._most_relevant(limit)], axis=1)
            return int((totals <= room[:, None]).all(0).sum())
        # some of k are not shown by perturbations of their own
        return self._bisected(lengths, room, limit if task.perturbation.shared else most)

    def _bisected(self, lengths: np.ndarray, room: np.ndarray, limit: int) -> int:
        """Estimate :meth:`largest` by bisection, if demonstrations for k do not extend those for a smaller k."""
        most = self.task.pool.most_shared(self.choice, self.draw) + self.choice.fewest(self._labels)
        low, high = self.smallest - 1, min(limit, most)
        while low < high:
            k = (low + high + 1) // 2
            fits = (lengths[self.demonstrations(k)].sum(axis=-1) <= self._room_at(k, room)).all()
            self._shown.pop(k)
            low, high = (k, high) if fits else (low, k - 1)
        return low

    def _room(self) -> np.ndarray:
        """Tokens of the window that remain for demonstrations, for each test row or, with ``copied``, each row of the
        pool.
        """
        task, data = self.task, self.task.data
        queries = data.test if task.queries == "test" else [data.train[i] for i in task.pool.rows]
        bare = task.encoder.own_prompts([[] for _ in queries], queries)
        own = np.array(list(map(len, bare.suffixes))) + len(bare.prefix)
        return task.model.context_tokens - task.written_tokens - own

    def _room_at(self, k: int, room: np.ndarray) -> np.ndarray:
        """The part of :meth:`_room` for the queries that are asked at k: ``(queries,)``."""
        return room if self.task.queries == "test" else room[self.task.pool.places(self._copied(k))]
