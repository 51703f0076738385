"""A pack of queries while their answers are written: greedy, free, or every label scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from icl_bench.backends.attention_steps import Pack, causal_rows
from icl_bench.backends.interface import Answer, Decoding, Exact, Free, Greedy
from icl_bench.backends.kv_cache import LayerKeys, PackKeys
from icl_bench.backends.label_constraint import LabelTrie
from icl_bench.prompts.encoding import Ids

if TYPE_CHECKING:
    from icl_bench.backends.transformers import TransformersBackend

HEAD_ROWS = 128  # rows of logits over a whole vocabulary that are held at once


class OpenPack:
    """A pack of queries while their answers are being written."""

    def __init__(self, engine: TransformersBackend, suffixes: Sequence[Ids], extra: int) -> None:
        self._engine, self._device = engine, engine.device
        lengths = [len(s) for s in suffixes]
        self.lengths = torch.tensor(lengths, device=self._device)
        self._keys = PackKeys(len(suffixes), max(lengths) + extra)
        arange = torch.arange(max(lengths) + extra, device=self._device)
        self._slot_offsets = arange.repeat(len(suffixes), 1)
        rows, slots = causal_rows(lengths, self._device)
        used = int(slots.max()) + 1
        hidden = self._call(
            [token for suffix in suffixes for token in suffix],
            rows,
            slots,
            slots,
            arange[:used] <= slots[:, None],
        )
        self.ends = hidden[torch.cumsum(self.lengths, 0) - 1]

    def _call(
        self, tokens: Sequence[int], rows: Tensor, slots: Tensor, offsets: Tensor, visible: Tensor
    ) -> Tensor:
        prefix = self._engine._prefix
        seen = self._slot_offsets[:, : visible.shape[1]]
        view = self._engine._view
        step = Pack(prefix, self._keys, rows, slots, offsets, visible, seen, view)
        flat = torch.tensor(tokens, device=self._device)
        return self._engine._forward(flat, offsets + prefix.length, step)

    def keys_of(self, row: int, tokens: int) -> dict[int, LayerKeys]:
        """Copies of one row's keys and values in every layer."""
        return self._keys.row(row, tokens)

    def _next(self, rows: Sequence[int], tokens: Sequence[int], written: int) -> Tensor:
        """Feed one chosen token for each live row; hidden states ``(rows, hidden)``."""
        live = torch.tensor(rows, device=self._device)
        slots = self.lengths[live] + written
        used = int(slots.max()) + 1
        visible = torch.arange(used, device=self._device) <= slots[:, None]
        self._engine.counters.answer_tokens += len(rows)
        return self._call(tokens, live, slots, slots, visible)

    def greedy(self, decoding: Greedy) -> list[Answer]:
        """Walk the automaton, all rows a token at a time, until each has one label left."""
        automaton = decoding.automaton
        states = [0] * len(self.lengths)
        answers: dict[int, Answer] = {}
        rows, hidden, written = list(range(len(states))), self.ends, 0
        while rows:
            logits = self._engine._some_logits(hidden, automaton.vocabulary)
            tokens = []
            for place, row in enumerate(rows):
                token, states[row] = automaton.choose(states[row], logits[place])
                tokens.append(token)
            written += 1
            for row in rows:
                if (label := int(automaton.decided[states[row]])) >= 0:
                    answers[row] = Answer(row, 0, written, label=label)
            going = [place for place, row in enumerate(rows) if row not in answers]
            rows, tokens = [rows[p] for p in going], [tokens[p] for p in going]
            if rows:
                hidden = self._next(rows, tokens, written - 1)
        return [answers[row] for row in range(len(states))]

    def free(self, decoding: Free) -> list[Answer]:
        """Generate without constraint until the stop text, the end token or the limit."""
        engine = self._engine
        ends = _end_tokens(engine._model, engine.tokenizer)
        written: list[list[int]] = [[] for _ in self.lengths]
        answers: dict[int, Answer] = {}
        rows, hidden = list(range(len(written))), self.ends
        for step in range(decoding.max_tokens):
            blocks = hidden.split(HEAD_ROWS)
            tokens = torch.cat([engine._logits(h).argmax(-1) for h in blocks]).tolist()
            for row, token in zip(rows, tokens, strict=True):
                text = None
                if token in ends:
                    text = engine.tokenizer.decode(written[row])
                else:
                    written[row].append(token)
                    so_far = engine.tokenizer.decode(written[row])
                    if decoding.stop in so_far or step + 1 == decoding.max_tokens:
                        text = so_far.split(decoding.stop)[0]
                if text is not None:
                    answers[row] = Answer(row, 0, step + 1, text=text)
            going = [place for place, row in enumerate(rows) if row not in answers]
            rows, tokens = [rows[p] for p in going], [tokens[p] for p in going]
            if not rows:
                break
            hidden = self._next(rows, tokens, step)
        return [answers[row] for row in range(len(written))]

    def exact(self, decoding: Exact) -> list[Answer]:
        """Log-probability of every label, all of them as branches of one tree behind the query."""
        trie, count = decoding.trie, len(self.lengths)
        inner = trie.inner
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
            logits = self._engine._logits(hidden[start : start + HEAD_ROWS])
            nodes = torch.arange(start, start + len(logits), device=self._device) % len(wanted)
            chosen = logits.gather(1, wanted[nodes])
            found.append(chosen - torch.logsumexp(logits, -1, keepdim=True))
        return torch.cat(found).cpu().numpy()

    def _tree(self, tokens: np.ndarray, trie: LabelTrie, nodes: np.ndarray) -> Tensor:
        """Hidden states of tree nodes behind every query: ``(rows, nodes, hidden)``."""
        count, size, device = len(self.lengths), len(nodes), self._device
        rows = torch.arange(count, device=device).repeat_interleave(size)
        order = torch.arange(size, device=device).repeat(count)
        depths = torch.from_numpy(trie.depths[nodes] - 1).to(device)
        paths = torch.from_numpy(trie.ancestors[np.ix_(nodes, nodes)]).to(device)
        starts = self.lengths[rows]
        used = int(self.lengths.max()) + size
        slot = torch.arange(used, device=device)
        visible = slot[None] < starts[:, None]
        visible[torch.arange(len(rows), device=device)[:, None], starts[:, None] + slot[:size]] = (
            paths[order]
        )
        every = torch.arange(count, device=device)[:, None]
        self._slot_offsets[every, self.lengths[:, None] + slot[:size]] = (
            self.lengths[:, None] + depths[None]
        )
        self._engine.counters.answer_tokens += len(rows)
        flat = np.tile(tokens, count).tolist()
        hidden = self._call(flat, rows, starts + order, starts + depths[order], visible)
        return hidden.reshape(count, size, -1)


def _scored(row: int, scores: np.ndarray) -> Answer:
    """The best label of ``(labels,)`` log-probabilities, with its probability and margin."""
    chances = np.exp(scores)
    best = int(scores.argmax())
    second = float(np.delete(chances, best).max(initial=0.0))
    top = float(chances[best])
    return Answer(
        row, 0, 0, label=best, probability=top, margin=top - second, label_mass=float(chances.sum())
    )


def answer_room(decoding: Decoding) -> int:
    """Tokens that an answer takes at most (a token has at least one byte)."""
    if isinstance(decoding, Greedy):
        return max(len(text.encode()) for text in decoding.automaton.answers)
    return decoding.max_tokens if isinstance(decoding, Free) else int(decoding.trie.depths.max())


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    """Tokens after which a model is done."""
    ids = getattr(model.generation_config, "eos_token_id", None)
    ids = ids if isinstance(ids, list) else [ids]
    return {int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None}
