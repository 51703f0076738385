"""Decoding of a pack of queries: greedy or sampled, constrained or free, or with every label scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import LabelAutomaton, LabelTrie
from icl_bench.backends.sampling import Sampling
from icl_bench.backends.transformers.attention_steps import Pack, PrefixReading, causal_rows
from icl_bench.backends.transformers.kv_cache import PackKeys
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.prompts.encoding import Ids

WIDTH = 4
"""Label beginnings of a row that a search extends together. More would often be wasted, fewer would need more calls."""

HEAD_ROWS = 128
"""Rows of logits over the whole vocabulary in memory at once."""


def answer_room(decoding: Decoding) -> int:
    """The largest number of tokens of an answer."""
    if isinstance(decoding, Greedy):
        return decoding.automaton.longest
    return decoding.max_tokens if isinstance(decoding, Free) else int(decoding.trie.depths.max())


def tree_tokens(decoding: Decoding) -> int:
    """Tokens computed after a query in one call (0 if tokens are generated one by one)."""
    if not isinstance(decoding, Exact):
        return 0
    return WIDTH if decoding.searches else len(decoding.trie.inner)


def most_tokens(decoding: Decoding) -> int:
    """The largest number of tokens computed after a query."""
    return len(decoding.trie.inner) if isinstance(decoding, Exact) else answer_room(decoding)


@dataclass
class PackLimits:
    """How much is computed in one call. The backend lowers the limits if memory is short."""

    rows: int
    tokens: int
    """Rows of one call times the width of the widest."""
    calls_open: int = 1
    """The number of calls whose rows are decoded together, one token for all rows at a time, because products of few
    rows take nearly as long as those of many.
    """

    def as_stored(self) -> dict[str, int]:
        """The limits in the form stored in a cell's file."""
        return {"rows": self.rows, "tokens": self.tokens, "calls": self.calls_open}

    def first_rows(self, widths: Sequence[int], calls: int = 1) -> int:
        """The number of first rows for this number of calls, given ascending widths; at least one."""
        count, room = 1, calls * self.tokens
        while count < min(len(widths), self.rows) and widths[count] * (count + 1) <= room:
            count += 1
        return count

    def lower(self, rows: int, width: int) -> None:
        """Lower the limits after ``rows`` rows, the widest of ``width`` tokens, did not fit."""
        if self.calls_open > 1:
            self.calls_open //= 2
        else:
            self.tokens = rows // 2 * width

    def calls(self, widths: Sequence[int]) -> Iterator[range]:
        """The rows of each call, given ascending widths."""
        start = 0
        while start < len(widths):
            end = start + self.first_rows(widths[start:])
            yield range(start, end)
            start = end


class OpenPack:
    """A pack of queries after one prefix, during decoding."""

    def __init__(
        self,
        cache: PrefixCache,
        suffixes: Sequence[Ids],
        extra: int,
        limits: PackLimits | None = None,
        reading: PrefixReading | None = None,
    ) -> None:
        """Compute the queries. ``extra`` is the largest number of tokens of an answer.

        With ``limits``, queries are computed in several calls, else in one. ``reading`` has the
        parts of the prefix that each query reads; None for all of it.
        """
        lengths = [len(s) for s in suffixes]
        self._begin(cache, PackKeys(len(suffixes), max(lengths)), suffixes, extra, reading)
        device, arange, ends = self._device, self._slot_offsets[0], []
        for part in limits.calls(lengths) if limits else [range(len(lengths))]:
            rows, slots = causal_rows([lengths[row] for row in part], device)
            used = int(slots.max()) + 1
            hidden = self._call(
                [token for row in part for token in suffixes[row]],
                rows + part.start,
                slots,
                slots,
                arange[:used] <= slots[:, None],
                ends=torch.cumsum(self._lengths[part.start : part.stop], 0) - 1,
            )
            ends.append(hidden)
        self.ends = torch.cat(ends)
        """Last hidden states of the queries' last tokens: ``(rows, hidden)``."""
        self.computed_tokens = sum(lengths)
        """Tokens of the queries that were computed."""

    def _begin(
        self, cache: PrefixCache, keys: PackKeys, suffixes: Sequence[Ids], extra: int, reading: PrefixReading | None
    ) -> None:
        self.queries, self.fed = list(suffixes), list(suffixes)
        """Token ids of each query, and of each query with the part of its answer whose keys are cached."""
        self.keys, self._cache, self._reading = keys, cache, reading
        self._model, self._device = cache.model, cache.model.device
        self._state = cache.state
        lengths = list(map(len, suffixes))
        self._lengths = torch.tensor(lengths, device=self._device)
        self._slot_offsets = torch.arange(max(lengths) + extra, device=self._device).repeat(len(suffixes), 1)

    def continued(self, suffixes: Sequence[Ids], extra: int) -> OpenPack | None:
        """A pack that reuses this pack's keys, for queries that begin with this pack's queries and possibly their
        answers.

        Only the other tokens are computed. None if some query begins with no query of this pack.
        """
        found = [self._begun(suffix) for suffix in suffixes]
        if any(begun is None for begun in found):
            return None
        rows, held = zip(*(begun for begun in found if begun is not None), strict=True)
        pack = OpenPack.__new__(OpenPack)
        keys = self.keys.of_rows(torch.tensor(rows, device=self._device))
        pack._begin(self._cache, keys, suffixes, extra, self._reading)
        counts = [len(suffix) - size for suffix, size in zip(suffixes, held, strict=True)]
        new, ranks = causal_rows(counts, self._device)
        slots = torch.tensor(held, device=self._device)[new] + ranks
        visible = torch.arange(int(slots.max()) + 1, device=self._device) <= slots[:, None]
        tokens = [token for suffix, size in zip(suffixes, held, strict=True) for token in suffix[size:]]
        hidden = pack._call(tokens, new, slots, slots, visible)
        pack.ends = hidden[torch.cumsum(torch.tensor(counts, device=self._device), 0) - 1]
        pack.computed_tokens = len(tokens)
        return pack

    def is_over(self, cache: PrefixCache) -> bool:
        """Whether it was computed after the cache's current prefix."""
        return self._cache is cache and self._state is not None and self._state == cache.state

    def _begun(self, suffix: Ids) -> tuple[int, int] | None:
        """The row whose query this query begins with, and the number of cached tokens, excluding the query's last."""
        best: tuple[int, int] | None = None
        for row in self._rows_of.get(suffix[: self._shortest], ()):
            query, fed = self.queries[row], self.fed[row]
            if len(query) < len(suffix) and suffix[: len(query)] == query:  # the query's last token is computed again
                held = min(_common(suffix, fed), len(suffix) - 1)
                best = (row, held) if best is None or held > best[1] else best
        return best

    @cached_property
    def _shortest(self) -> int:
        """Tokens of the shortest query."""
        return min(map(len, self.queries))

    @cached_property
    def _rows_of(self) -> dict[Ids, list[int]]:
        """The rows by the first tokens of their queries."""
        rows: dict[Ids, list[int]] = {}
        for row, query in enumerate(self.queries):
            rows.setdefault(query[: self._shortest], []).append(row)
        return rows

    def _call(
        self,
        tokens: Sequence[int],
        rows: Tensor,
        slots: Tensor,
        offsets: Tensor,
        visible: Tensor,
        *,
        ends: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states of new tokens. With ``ends``, the tokens are the rows' first tokens in order, and only the
        states at ``ends`` are returned.
        """
        prefix = self._cache.prefix
        slot_offsets = self._slot_offsets[:, : visible.shape[1]]
        view, causal = self._cache.view, ends is not None
        step = Pack(prefix, self.keys, rows, slots, offsets, visible, slot_offsets, view, causal, self._reading, ends)
        flat = self._model.tokens(tokens)
        hidden = self._model.forward(flat, offsets + prefix.length, step)
        return hidden if ends is None or len(hidden) == len(ends) else hidden[ends]

    def _next(self, rows: Sequence[int], tokens: Sequence[int], written: int) -> Tensor:
        """Feed the chosen token of each remaining row. Returns hidden states ``(rows, hidden)``."""
        live = torch.tensor(rows, device=self._device)
        slots = self._lengths[live] + written
        used = int(slots.max()) + 1
        visible = torch.arange(used, device=self._device) <= slots[:, None]
        self._cache.counters.answer_tokens += len(rows)
        return self._call(tokens, live, slots, slots, visible)

    def answers(self, decodings: Sequence[Decoding]) -> list[Answer]:
        """Answer every query by its decoding. All are of the same type.

        An answer's index is its row.
        """
        greedy = [decoding for decoding in decodings if isinstance(decoding, Greedy)]
        free = [decoding for decoding in decodings if isinstance(decoding, Free)]
        if len(greedy) == len(decodings):
            return self._greedy(greedy)
        if len(free) == len(decodings):
            return self._free(free)
        exact = [decoding for decoding in decodings if isinstance(decoding, Exact)]
        assert len(exact) == len(decodings), "a pack's queries are answered in one way"
        return self._searched(exact) if all(decoding.searches for decoding in exact) else self._exact(exact)

    # -- greedy ---------------------------------------------------------------------------------

    def _greedy(self, decodings: Sequence[Greedy]) -> list[Answer]:
        """Walk each row's automaton, a token for all rows at a time, until its label is decided."""
        automata = [decoding.automaton for decoding in decodings]
        sampled = any(decoding.sampling for decoding in decodings)
        vocabulary, columns = _joint_vocabulary(automata)
        states = [0] * len(automata)
        answers: dict[int, Answer] = {}
        rows, hidden, written = list(range(len(states))), self.ends, 0
        while rows:
            logits = self._model.head.some_logits(hidden, vocabulary, configured=sampled)
            tokens = []
            for place, row in enumerate(rows):
                own = logits[place][columns[id(automata[row])]]
                if (sampling := decodings[row].sampling) is not None:
                    own = own + sampling.noise(written, len(own))
                token, states[row] = automata[row].choose(states[row], own)
                tokens.append(token)
            written += 1
            for row in rows:
                if (label := int(automata[row].decided[states[row]])) >= 0:
                    answers[row] = Answer(row, 0, written, label=label)
            going = [place for place, row in enumerate(rows) if row not in answers]
            rows, tokens = [rows[p] for p in going], [tokens[p] for p in going]
            if rows:
                hidden = self._next(rows, tokens, written - 1)
        return [answers[row] for row in range(len(states))]

    # -- free text ------------------------------------------------------------------------------

    def _free(self, decodings: Sequence[Free]) -> list[Answer]:
        """Generate without constraint until a row's stop text, end token or limit."""
        ends, decode = self._model.end_tokens, self._model.tokenizer.decode
        written: list[list[int]] = [[] for _ in decodings]
        answers: dict[int, Answer] = {}
        rows, hidden, step = list(range(len(written))), self.ends, 0
        while rows:
            blocks = zip(hidden.split(HEAD_ROWS), _blocks([decodings[row].sampling for row in rows]), strict=True)
            tokens = torch.cat([_chosen(self._model.head.logits(h), s, step) for h, s in blocks]).tolist()
            for row, token in zip(rows, tokens, strict=True):
                decoding, text, stopped = decodings[row], None, True
                if token in ends:
                    text = decode(written[row])
                else:
                    written[row].append(token)
                    so_far = decode(written[row])
                    text = decoding.before_stop(so_far)
                    stopped = text is not None
                    if step + 1 == decoding.max_tokens and not stopped:
                        text = so_far
                if text is not None:
                    ids = tuple(written[row])
                    answers[row] = Answer(row, 0, step + 1, text=text, truncated=not stopped, ids=ids)
            going = [place for place, row in enumerate(rows) if row not in answers]
            rows, tokens = [rows[p] for p in going], [tokens[p] for p in going]
            if rows:
                hidden = self._next(rows, tokens, step)
            step += 1
        self.fed = [
            query + tuple(ids[: answers[row].answer_tokens - 1])
            for row, (query, ids) in enumerate(zip(self.queries, written, strict=True))
        ]
        return [answers[row] for row in range(len(written))]

    # -- every label ----------------------------------------------------------------------------

    def _exact(self, decodings: Sequence[Exact]) -> list[Answer]:
        """Log-probability of every label. A row's labels are branches of a tree after its query."""
        tries = [decoding.trie for decoding in decodings]
        counts = np.array([len(trie.inner) for trie in tries])
        starts = np.cumsum(counts) - counts
        nodes = [trie.tokens[1:] for trie in tries]
        parents = [
            start + np.searchsorted(trie.inner, trie.parents[1:]) for start, trie in zip(starts, tries, strict=True)
        ]
        steps = self._model.head.log_probabilities(
            self._inner(tries, starts), np.concatenate(parents), np.concatenate(nodes)
        )
        answers = []
        for row, step in enumerate(np.split(steps, np.cumsum([len(tokens) for tokens in nodes])[:-1])):
            trie, logs = tries[row], np.append(0.0, step)
            answers.append(Answer.of_scores(row, trie.sums(logs), decodings[row].sizes))
        return answers

    def _inner(self, tries: Sequence[LabelTrie], starts: np.ndarray) -> Tensor:
        """Hidden states of the inner nodes of each row's tree, row by row: ``(nodes, hidden)``.

        ``starts`` are the indices of the roots, ``(rows,)``. A root's state is that of the query's
        last token.
        """
        sizes = np.array([len(trie.inner) - 1 for trie in tries])
        if not sizes.any():
            return self.ends
        roots = torch.from_numpy(starts).to(self._device)
        states = self.ends.new_empty(len(tries) + int(sizes.sum()), self.ends.shape[1])
        under = torch.ones(len(states), dtype=torch.bool, device=self._device)
        under[roots] = False
        states[roots], states[under] = self.ends, self._trees(tries, sizes)
        return states

    def _trees(self, tries: Sequence[LabelTrie], sizes: np.ndarray) -> Tensor:
        """Hidden states of inner nodes except roots, row by row: ``(nodes, hidden)``.

        ``sizes`` are their numbers, ``(rows,)``.
        """
        count, most, device = len(tries), int(sizes.max()), self._device
        paths_of = {id(trie): _paths(trie, most) for _, trie in _grouped(tries)}
        tokens = np.concatenate([trie.tokens[trie.inner[1:]] for trie in tries])
        paths = np.concatenate([paths_of[id(trie)][0] for trie in tries])
        depths = torch.from_numpy(np.stack([paths_of[id(trie)][1] for trie in tries])).to(device)
        number = np.concatenate([np.arange(size) for size in sizes])
        rows = torch.from_numpy(np.arange(count).repeat(sizes)).to(device)
        order = torch.from_numpy(number).to(device)
        starts = self._lengths[rows]
        slot = torch.arange(int(self._lengths.max()) + most, device=device)
        visible = slot[None] < starts[:, None]
        nodes = torch.arange(len(rows), device=device)[:, None]
        visible[nodes, starts[:, None] + slot[:most]] = torch.from_numpy(paths).to(device)
        all_rows = torch.arange(count, device=device)[:, None]
        self._slot_offsets[all_rows, self._lengths[:, None] + slot[:most]] = self._lengths[:, None] + depths
        self._cache.counters.answer_tokens += len(rows)
        offsets = starts + depths[rows, order]
        return self._call(tokens.tolist(), rows, starts + order, offsets, visible)

    def _searched(self, decodings: Sequence[Exact]) -> list[Answer]:
        """The two most probable labels of each row, without the scores of labels that cannot be among them.

        A label is at most as probable as its beginning. So the most probable beginnings are extended until none is more
        probable than the second best complete label.
        """
        searches = [LabelSearch(decoding.trie) for decoding in decodings]
        chosen, hidden = [(row, 0) for row in range(len(searches))], self.ends
        while chosen:
            below = [searches[row].trie.children[node] for row, node in chosen]
            counts = [len(nodes) for nodes in below]
            tokens = [searches[row].trie.tokens[nodes] for (row, _), nodes in zip(chosen, below, strict=True)]
            states = np.arange(len(chosen)).repeat(counts)
            steps = self._model.head.log_probabilities(hidden, states, np.concatenate(tokens))
            parts = np.split(steps, np.cumsum(counts)[:-1])
            for (row, node), part in zip(chosen, parts, strict=True):
                searches[row].extend(node, part)
            chosen = [(row, node) for row, search in enumerate(searches) for node in search.next(WIDTH)]
            if chosen:
                hidden = self._places(searches, chosen)
        return [search.answer(row) for row, search in enumerate(searches)]

    def _places(self, searches: Sequence[LabelSearch], chosen: Sequence[tuple[int, int]]) -> Tensor:
        """Hidden states of nodes whose parents have been computed: ``(nodes, hidden)``.

        ``chosen`` has ascending rows with one node each. A node takes the next free slot of its row.
        """
        taken = [searches[row].take_slot(node) for row, node in chosen]
        row = torch.tensor([row for row, _ in chosen], device=self._device)
        starts = self._lengths[row]
        slots = starts + torch.tensor([path[-1] for path in taken], device=self._device)
        offsets = starts + torch.tensor([len(path) - 1 for path in taken], device=self._device)
        self._slot_offsets[row, slots] = offsets
        visible = torch.arange(int(slots.max()) + 1, device=self._device)[None] < starts[:, None]
        nodes = torch.tensor([place for place, path in enumerate(taken) for _ in path], device=self._device)
        seen = torch.tensor([slot for path in taken for slot in path], device=self._device)
        visible[nodes, starts[nodes] + seen] = True
        self._cache.counters.answer_tokens += len(chosen)
        tokens = [int(searches[row].trie.tokens[node]) for row, node in chosen]
        return self._call(tokens, row, slots, offsets, visible)


def _blocks(sampling: Sequence[Sampling | None]) -> Iterator[Sequence[Sampling | None]]:
    """Blocks of ``HEAD_ROWS`` rows, with how they are sampled."""
    return (sampling[start : start + HEAD_ROWS] for start in range(0, len(sampling), HEAD_ROWS))


@torch.inference_mode()
def _chosen(logits: Tensor, sampling: Sequence[Sampling | None], step: int) -> Tensor:
    """The next token of each row: the most probable, or a sampled one. ``logits`` is ``(rows, vocabulary)``."""
    for row, one in enumerate(sampling):
        if one is not None:
            logits[row] += torch.from_numpy(one.noise(step, logits.shape[1])).to(logits.device)
    return logits.argmax(-1)


class LabelSearch:
    """The search for the two most probable labels of one row."""

    def __init__(self, trie: LabelTrie) -> None:
        self.trie = trie
        self._logs = np.full(len(trie.tokens), -np.inf)
        self._logs[0] = 0.0
        self._inner = np.isin(np.arange(len(trie.tokens)), trie.inner)
        self._open = np.zeros(len(trie.tokens), dtype=bool)
        """Beginnings that were reached but not extended."""
        self._extended = 0
        self._paths: dict[int, tuple[int, ...]] = {0: ()}
        """Node -> the slots of its path after the query, its own last."""

    def extend(self, node: int, steps: np.ndarray) -> None:
        """Extend a node: ``steps`` are the log-probabilities of its children, ``(children,)``."""
        below = self.trie.children[node]
        self._open[node] = False
        self._logs[below] = self._logs[node] + steps.astype(float)
        self._open[below] = self._inner[below]
        self._extended += 1

    def next(self, most: int) -> list[int]:
        """The nodes to extend next; empty if the two most probable labels are known."""
        known = np.sort(self._logs[self.trie.ends])[-2:]
        nodes = np.flatnonzero(self._open & (self._logs >= known[0]))
        best = nodes[np.argsort(-self._logs[nodes], kind="stable")][:most]
        return sorted(int(node) for node in best)

    def take_slot(self, node: int) -> tuple[int, ...]:
        """Give a node the next free slot. Returns the slots of its path, its own last."""
        self._paths[node] = (*self._paths[int(self.trie.parents[node])], len(self._paths) - 1)
        return self._paths[node]

    def answer(self, row: int) -> Answer:
        """The most probable label, with its margin over the second."""
        best = Answer.of_scores(row, self._logs[self.trie.ends], None)
        return replace(best, answer_tokens=self._extended, label_mass=None, scores=None)


def _common(one: Ids, other: Ids) -> int:
    """The length of the common prefix."""
    length = min(len(one), len(other))
    return next((at for at in range(length) if one[at] != other[at]), length)


def _grouped(tries: Sequence[LabelTrie]) -> Iterator[tuple[np.ndarray, LabelTrie]]:
    """Each distinct tree with its rows."""
    rows: dict[int, list[int]] = {}
    for row, trie in enumerate(tries):
        rows.setdefault(id(trie), []).append(row)
    for rows_of_trie in rows.values():
        yield np.array(rows_of_trie), tries[rows_of_trie[0]]


def _paths(trie: LabelTrie, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of a tree's inner nodes except its root see each other, ``(nodes, most)``, and their distances from the
    query's end, ``(most,)``. Padding is not visible.
    """
    nodes = trie.inner[1:]
    visible = np.zeros((len(nodes), most), dtype=bool)
    visible[:, : len(nodes)] = trie.ancestors[np.ix_(nodes, nodes)]
    depths = np.zeros(most, dtype=np.int64)
    depths[: len(nodes)] = trie.depths[nodes] - 1
    return visible, depths


def _joint_vocabulary(automata: Sequence[LabelAutomaton]) -> tuple[np.ndarray, dict[int, np.ndarray | slice]]:
    """All tokens that some automaton allows, sorted; and by automaton id, the indices of its tokens.

    One product computes the logits of all rows, for any number of automata.
    """
    different = {id(automaton): automaton for automaton in automata}
    if len(different) == 1:
        return automata[0].vocabulary, {id(automata[0]): slice(None)}
    joint = np.unique(np.concatenate([a.vocabulary for a in different.values()]))
    return joint, {name: np.searchsorted(joint, a.vocabulary) for name, a in different.items()}
