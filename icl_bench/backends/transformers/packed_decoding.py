"""A pack of queries while their answers are written: greedy, free, or every label scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.label_constraint import LabelAutomaton, LabelTrie
from icl_bench.backends.transformers.attention_steps import Pack, Reading, causal_rows
from icl_bench.backends.transformers.kv_cache import LayerKeys, PackKeys
from icl_bench.backends.transformers.prefix_cache import PrefixCache
from icl_bench.prompts.encoding import Ids

HEAD_ROWS = 128
"""Rows of logits over a whole vocabulary that are held at once."""


def pack_kind(decoding: Decoding) -> object:
    """What the queries of one pack have in common: how they are answered."""
    return type(decoding)


def answer_room(decoding: Decoding) -> int:
    """Tokens that an answer takes at most."""
    if isinstance(decoding, Greedy):
        return decoding.automaton.longest
    return decoding.max_tokens if isinstance(decoding, Free) else int(decoding.trie.depths.max())


def tree_tokens(decoding: Decoding) -> int:
    """Tokens that are computed behind a query in one call (0 where they follow one by one)."""
    return len(decoding.trie.inner) if isinstance(decoding, Exact) else 0


@dataclass
class PackLimits:
    """How much is computed in one call; the backend lowers it where memory is short."""

    rows: int
    tokens: int
    """Rows times the width of the widest, in one call."""
    calls_open: int = 1
    """How many calls' rows are answered together: a token is written for all of them at once, and
    products of few rows take nearly as long as those of many."""

    def first_rows(self, widths: Sequence[int], calls: int = 1) -> int:
        """How many of the first rows make so many calls, given their widths in rising order: at
        least one.
        """
        count, room = 1, calls * self.tokens
        while count < min(len(widths), self.rows) and widths[count] * (count + 1) <= room:
            count += 1
        return count

    def lower(self, rows: int, width: int) -> None:
        """So many rows, the widest of this width, did not fit: from here on, fewer together."""
        if self.calls_open > 1:
            self.calls_open //= 2
        else:
            self.tokens = rows // 2 * width

    def calls(self, widths: Sequence[int]) -> Iterator[range]:
        """The rows of each call, given their widths in rising order."""
        start = 0
        while start < len(widths):
            end = start + self.first_rows(widths[start:])
            yield range(start, end)
            start = end


class OpenPack:
    """A pack of queries behind one prefix while their answers are being written."""

    def __init__(
        self,
        cache: PrefixCache,
        suffixes: Sequence[Ids],
        extra: int,
        limits: PackLimits | None = None,
        reading: Reading | None = None,
    ) -> None:
        """Compute the queries; ``extra`` is the tokens that a row's answer may take behind it.

        With ``limits`` they are computed so many tokens in a call, else all in one. ``reading`` is
        what each reads of the prefix; None for all of it.
        """
        self._reading = reading
        self._cache, self._model = cache, cache.model
        self._device = device = cache.model.device
        lengths = [len(s) for s in suffixes]
        self._lengths = torch.tensor(lengths, device=device)
        self._keys = PackKeys(len(suffixes), max(lengths))
        arange = torch.arange(max(lengths) + extra, device=device)
        self._slot_offsets = arange.repeat(len(suffixes), 1)
        ends = []
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
        """Last hidden states of the queries' ends: ``(rows, hidden)``."""

    @classmethod
    def of(
        cls,
        cache: PrefixCache,
        suffixes: Sequence[Ids],
        decodings: Sequence[Decoding],
        limits: PackLimits | None = None,
        reading: Reading | None = None,
    ) -> OpenPack:
        """Compute queries that will be answered so."""
        extra = max(tree_tokens(d) or answer_room(d) for d in decodings)
        return cls(cache, suffixes, extra, limits, reading)

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
        """Last hidden states of new tokens; of rows' first tokens, in their order, with ``ends``,
        of those at these places alone.
        """
        prefix = self._cache.prefix
        seen = self._slot_offsets[:, : visible.shape[1]]
        step = Pack(
            prefix,
            self._keys,
            rows,
            slots,
            offsets,
            visible,
            seen,
            self._cache.view,
            causal=ends is not None,
            reading=self._reading,
            ends=ends,
        )
        flat = self._model.tokens(tokens)
        hidden = self._model.forward(flat, offsets + prefix.length, step)
        return hidden if ends is None or len(hidden) == len(ends) else hidden[ends]

    def keys_of(self, row: int, tokens: int) -> dict[int, LayerKeys]:
        """Copies of one row's keys and values in every layer."""
        return self._keys.row(row, tokens)

    def _next(self, rows: Sequence[int], tokens: Sequence[int], written: int) -> Tensor:
        """Feed one chosen token for each live row; hidden states ``(rows, hidden)``."""
        live = torch.tensor(rows, device=self._device)
        slots = self._lengths[live] + written
        used = int(slots.max()) + 1
        visible = torch.arange(used, device=self._device) <= slots[:, None]
        self._cache.counters.answer_tokens += len(rows)
        return self._call(tokens, live, slots, slots, visible)

    def answers(self, decodings: Sequence[Decoding]) -> list[Answer]:
        """Answer every query by its own decoding; all are of one :func:`pack_kind`.

        An answer's index is its row.
        """
        greedy = [decoding for decoding in decodings if isinstance(decoding, Greedy)]
        free = [decoding for decoding in decodings if isinstance(decoding, Free)]
        if len(greedy) == len(decodings):
            return self._greedy([decoding.automaton for decoding in greedy])
        if len(free) == len(decodings):
            return self._free(free)
        exact = [decoding for decoding in decodings if isinstance(decoding, Exact)]
        assert len(exact) == len(decodings), "a pack's queries are answered in one way"
        return self._exact(exact)

    # -- greedy ---------------------------------------------------------------------------------

    def _greedy(self, automata: Sequence[LabelAutomaton]) -> list[Answer]:
        """Walk each row's automaton, all rows a token at a time, until it has one label left."""
        vocabulary, columns = _joint_vocabulary(automata)
        states = [0] * len(automata)
        answers: dict[int, Answer] = {}
        rows, hidden, written = list(range(len(states))), self.ends, 0
        while rows:
            logits = self._model.some_logits(hidden, vocabulary)
            tokens = []
            for place, row in enumerate(rows):
                own = logits[place][columns[id(automata[row])]]
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
        """Generate without constraint until a row's stop texts, the end token or its limit."""
        ends, decode = self._model.end_tokens, self._model.tokenizer.decode
        written: list[list[int]] = [[] for _ in decodings]
        answers: dict[int, Answer] = {}
        rows, hidden, step = list(range(len(written))), self.ends, 0
        while rows:
            blocks = hidden.split(HEAD_ROWS)
            tokens = torch.cat([self._model.logits(h).argmax(-1) for h in blocks]).tolist()
            for row, token in zip(rows, tokens, strict=True):
                asked, text, stopped = decodings[row], None, True
                if token in ends:
                    text = decode(written[row])
                else:
                    written[row].append(token)
                    so_far = decode(written[row])
                    text = asked.before_stop(so_far)
                    stopped = text is not None
                    if step + 1 == asked.max_tokens and not stopped:
                        text = so_far
                if text is not None:
                    answers[row] = Answer(row, 0, step + 1, text=text, truncated=not stopped)
            going = [place for place, row in enumerate(rows) if row not in answers]
            rows, tokens = [rows[p] for p in going], [tokens[p] for p in going]
            if rows:
                hidden = self._next(rows, tokens, step)
            step += 1
        return [answers[row] for row in range(len(written))]

    # -- every label ----------------------------------------------------------------------------

    def _exact(self, asked: Sequence[Exact]) -> list[Answer]:
        """Log-probability of every label: each row's are branches of one tree behind its query."""
        tries = [decoding.trie for decoding in asked]
        counts = np.array([len(trie.inner) for trie in tries])
        starts = np.cumsum(counts) - counts
        step = self._branches(self._inner(tries, starts), tries)
        answers: dict[int, Answer] = {}
        for rows, trie in _grouped(tries):
            inner = trie.inner
            own = step[starts[rows][:, None] + np.arange(len(inner))]
            logs = np.zeros((len(rows), len(trie.tokens)))
            place = np.searchsorted(inner, trie.parents[1:])
            logs[:, 1:] = own[:, place, trie.ranks[1:]]
            total = logs @ trie.ancestors.T  # sums along each path from the root
            for row, scores in zip(rows.tolist(), total[:, trie.ends], strict=True):
                answers[row] = _scored(row, scores, asked[row].sizes)
        return [answers[row] for row in range(len(tries))]

    def _inner(self, tries: Sequence[LabelTrie], starts: np.ndarray) -> Tensor:
        """Hidden states of the inner nodes of each row's tree, row by row: ``(nodes, hidden)``.

        ``starts`` is where each row's begin, ``(rows,)``: the root's is that of the query's end.
        """
        sizes = np.array([len(trie.inner) - 1 for trie in tries])
        if not sizes.any():
            return self.ends
        roots = torch.from_numpy(starts).to(self._device)
        found = self.ends.new_empty(len(tries) + int(sizes.sum()), self.ends.shape[1])
        under = torch.ones(len(found), dtype=torch.bool, device=self._device)
        under[roots] = False
        found[roots], found[under] = self.ends, self._trees(tries, sizes)
        return found

    def _branches(self, hidden: Tensor, tries: Sequence[LabelTrie]) -> np.ndarray:
        """Log-probabilities of each inner node's children, in the order of their ranks.

        ``hidden`` are the inner nodes of all rows, ``(nodes, hidden)``; the result is ``(nodes,
        most children)``, of what is no child's where a node has fewer.
        """
        most = max(int(trie.ranks.max()) + 1 for trie in tries)
        tables = {id(trie): _children(trie, most) for trie in tries}
        wanted = torch.from_numpy(np.concatenate([tables[id(trie)] for trie in tries]))
        wanted = wanted.to(self._device)
        found = []
        for start in range(0, len(hidden), HEAD_ROWS):
            logits = self._model.logits(hidden[start : start + HEAD_ROWS])
            chosen = logits.gather(1, wanted[start : start + len(logits)])
            found.append(chosen - torch.logsumexp(logits, -1, keepdim=True))
        return torch.cat(found).cpu().numpy()

    def _trees(self, tries: Sequence[LabelTrie], sizes: np.ndarray) -> Tensor:
        """Hidden states of inner nodes but the roots, row by row: ``(nodes, hidden)``.

        ``sizes`` are their numbers, ``(rows,)``.
        """
        count, most, device = len(tries), int(sizes.max()), self._device
        known = {id(trie): _paths(trie, most) for _, trie in _grouped(tries)}
        tokens = np.concatenate([trie.tokens[trie.inner[1:]] for trie in tries])
        paths = np.concatenate([known[id(trie)][0] for trie in tries])
        depths = torch.from_numpy(np.stack([known[id(trie)][1] for trie in tries])).to(device)
        number = np.concatenate([np.arange(size) for size in sizes])
        rows = torch.from_numpy(np.arange(count).repeat(sizes)).to(device)
        order = torch.from_numpy(number).to(device)
        starts = self._lengths[rows]
        slot = torch.arange(int(self._lengths.max()) + most, device=device)
        visible = slot[None] < starts[:, None]
        each = torch.arange(len(rows), device=device)[:, None]
        visible[each, starts[:, None] + slot[:most]] = torch.from_numpy(paths).to(device)
        every = torch.arange(count, device=device)[:, None]
        self._slot_offsets[every, self._lengths[:, None] + slot[:most]] = self._lengths[:, None] + depths
        self._cache.counters.answer_tokens += len(rows)
        offsets = starts + depths[rows, order]
        return self._call(tokens.tolist(), rows, starts + order, offsets, visible)


def _grouped(tries: Sequence[LabelTrie]) -> Iterator[tuple[np.ndarray, LabelTrie]]:
    """Each different tree with the rows that have it."""
    rows: dict[int, list[int]] = {}
    for row, trie in enumerate(tries):
        rows.setdefault(id(trie), []).append(row)
    for found in rows.values():
        yield np.array(found), tries[found[0]]


def _children(trie: LabelTrie, most: int) -> np.ndarray:
    """Tokens of each inner node's children by their ranks: ``(inner nodes, most)``."""
    children = np.zeros((len(trie.inner), most), dtype=np.int64)
    children[np.searchsorted(trie.inner, trie.parents[1:]), trie.ranks[1:]] = trie.tokens[1:]
    return children


def _paths(trie: LabelTrie, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Who sees whom among a tree's inner nodes but its root, ``(nodes, most)``, and how far behind
    the query's end they stand, ``(most,)``; what is no node is seen by none.
    """
    nodes = trie.inner[1:]
    seen = np.zeros((len(nodes), most), dtype=bool)
    seen[:, : len(nodes)] = trie.ancestors[np.ix_(nodes, nodes)]
    depths = np.zeros(most, dtype=np.int64)
    depths[: len(nodes)] = trie.depths[nodes] - 1
    return seen, depths


def _joint_vocabulary(automata: Sequence[LabelAutomaton]) -> tuple[np.ndarray, dict[int, np.ndarray | slice]]:
    """Tokens that any of the automata allows, sorted; by an automaton's id, where its own stand.

    One product gives the logits of all rows, however many automata they have.
    """
    different = {id(automaton): automaton for automaton in automata}
    if len(different) == 1:
        return automata[0].vocabulary, {id(automata[0]): slice(None)}
    joint = np.unique(np.concatenate([a.vocabulary for a in different.values()]))
    return joint, {name: np.searchsorted(joint, a.vocabulary) for name, a in different.items()}


def _scored(row: int, scores: np.ndarray, sizes: Sequence[int] | None = None) -> Answer:
    """The best label of ``(labels,)`` log-probabilities, with its probability and margin.

    With ``sizes`` the best is that of the largest log-probability for its size; the numbers are of
    the probabilities as they are.
    """
    chances = np.exp(scores)
    best = int((scores if sizes is None else scores / np.array(sizes)).argmax())
    second = float(np.delete(chances, best).max(initial=0.0))
    top = float(chances[best])
    return Answer(row, 0, 0, label=best, probability=top, margin=top - second, label_mass=float(chances.sum()))
