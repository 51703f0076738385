"""A pack of queries while their answers are written: greedy, free, or every label scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.attention_steps import Pack, causal_rows
from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.kv_cache import LayerKeys, PackKeys
from icl_bench.backends.label_constraint import LabelAutomaton, LabelTrie
from icl_bench.backends.prefix_cache import PrefixCache
from icl_bench.prompts.encoding import Ids

HEAD_ROWS = 128
"""Rows of logits over a whole vocabulary that are held at once."""


def pack_kind(decoding: Decoding) -> object:
    """What the queries of one pack have in common: how they are answered, and for ``Exact``, of
    which one pass computes the same tree behind every query, the labels.
    """
    return id(decoding.trie) if isinstance(decoding, Exact) else type(decoding)


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
    ) -> None:
        """Compute the queries; ``extra`` is the tokens that a row's answer may take behind it.

        With ``limits`` they are computed so many tokens in a call, else all in one.
        """
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
                causal=True,
            )
            ends.append(hidden[torch.cumsum(self._lengths[part.start : part.stop], 0) - 1])
        self.ends = torch.cat(ends)
        """Last hidden states of the queries' ends: ``(rows, hidden)``."""

    @classmethod
    def of(
        cls,
        cache: PrefixCache,
        suffixes: Sequence[Ids],
        decodings: Sequence[Decoding],
        limits: PackLimits | None = None,
    ) -> OpenPack:
        """Compute queries that will be answered so."""
        extra = max(tree_tokens(d) or answer_room(d) for d in decodings)
        return cls(cache, suffixes, extra, limits)

    def _call(
        self,
        tokens: Sequence[int],
        rows: Tensor,
        slots: Tensor,
        offsets: Tensor,
        visible: Tensor,
        *,
        causal: bool = False,
    ) -> Tensor:
        prefix = self._cache.prefix
        seen = self._slot_offsets[:, : visible.shape[1]]
        step = Pack(
            prefix, self._keys, rows, slots, offsets, visible, seen, self._cache.view, causal=causal
        )
        flat = torch.tensor(tokens, device=self._device)
        return self._model.forward(flat, offsets + prefix.length, step)

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
        (first, *_) = decodings
        assert isinstance(first, Exact), "a pack's queries are answered in one way"
        return self._exact(first.trie)

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

    def _exact(self, trie: LabelTrie) -> list[Answer]:
        """Log-probability of every label, all of them as branches of one tree behind the query."""
        inner, count = trie.inner, len(self._lengths)
        below = inner[1:]  # the root's hidden state is the query's end
        hidden = self.ends[:, None]
        if len(below):
            hidden = torch.cat([hidden, self._tree(trie.tokens[below], trie, below)], 1)
        step = self._branches(hidden.flatten(0, 1), trie).reshape(count, len(inner), -1)
        logs = np.zeros((count, len(trie.tokens)))
        place = np.searchsorted(inner, trie.parents[1:])
        logs[:, 1:] = step[:, place, trie.ranks[1:]]
        total = logs @ trie.ancestors.T  # sums along each path from the root
        return [_scored(row, scores) for row, scores in enumerate(total[:, trie.ends])]

    def _branches(self, hidden: Tensor, trie: LabelTrie) -> np.ndarray:
        """Log-probabilities of each inner node's children, in the order of their ranks.

        ``hidden`` is ``(rows * inner nodes, hidden)``; the result ``(..., most children)``, 0
        where a node has fewer.
        """
        children = np.zeros((len(trie.inner), int(trie.ranks.max()) + 1), dtype=np.int64)
        children[np.searchsorted(trie.inner, trie.parents[1:]), trie.ranks[1:]] = trie.tokens[1:]
        wanted = torch.from_numpy(children).to(self._device)
        found = []
        for start in range(0, len(hidden), HEAD_ROWS):
            logits = self._model.logits(hidden[start : start + HEAD_ROWS])
            nodes = torch.arange(start, start + len(logits), device=self._device) % len(wanted)
            chosen = logits.gather(1, wanted[nodes])
            found.append(chosen - torch.logsumexp(logits, -1, keepdim=True))
        return torch.cat(found).cpu().numpy()

    def _tree(self, tokens: np.ndarray, trie: LabelTrie, nodes: np.ndarray) -> Tensor:
        """Hidden states of tree nodes behind every query: ``(rows, nodes, hidden)``."""
        count, size, device = len(self._lengths), len(nodes), self._device
        rows = torch.arange(count, device=device).repeat_interleave(size)
        order = torch.arange(size, device=device).repeat(count)
        depths = torch.from_numpy(trie.depths[nodes] - 1).to(device)
        paths = torch.from_numpy(trie.ancestors[np.ix_(nodes, nodes)]).to(device)
        starts = self._lengths[rows]
        used = int(self._lengths.max()) + size
        slot = torch.arange(used, device=device)
        visible = slot[None] < starts[:, None]
        visible[torch.arange(len(rows), device=device)[:, None], starts[:, None] + slot[:size]] = (
            paths[order]
        )
        every = torch.arange(count, device=device)[:, None]
        self._slot_offsets[every, self._lengths[:, None] + slot[:size]] = (
            self._lengths[:, None] + depths[None]
        )
        self._cache.counters.answer_tokens += len(rows)
        flat = np.tile(tokens, count).tolist()
        hidden = self._call(flat, rows, starts + order, starts + depths[order], visible)
        return hidden.reshape(count, size, -1)


def _joint_vocabulary(
    automata: Sequence[LabelAutomaton],
) -> tuple[np.ndarray, dict[int, np.ndarray | slice]]:
    """Tokens that any of the automata allows, sorted; by an automaton's id, where its own stand.

    One product gives the logits of all rows, however many automata they have.
    """
    different = {id(automaton): automaton for automaton in automata}
    if len(different) == 1:
        return automata[0].vocabulary, {id(automata[0]): slice(None)}
    joint = np.unique(np.concatenate([a.vocabulary for a in different.values()]))
    return joint, {name: np.searchsorted(joint, a.vocabulary) for name, a in different.items()}


def _scored(row: int, scores: np.ndarray) -> Answer:
    """The best label of ``(labels,)`` log-probabilities, with its probability and margin."""
    chances = np.exp(scores)
    best = int(scores.argmax())
    second = float(np.delete(chances, best).max(initial=0.0))
    top = float(chances[best])
    return Answer(
        row, 0, 0, label=best, probability=top, margin=top - second, label_mass=float(chances.sum())
    )
