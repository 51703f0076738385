"""The label constraint: which tokens may follow while an answer is being written.

The constraint's language is ``" " + label + "\\n"`` for each label, in every tokenization the
vocabulary allows, compiled into an automaton over token ids by ``outlines_core`` (the engine of
``outlines``) once per (labels, tokenizer). The end belongs to the language: without it, where one
label begins another ("order", "order status"), the shorter one would be compared at end-of-text
against a continuation, and lose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from icl_bench.errors import UserError
from icl_bench.prompts.encoding import Ids
from icl_bench.wording import one_line

if TYPE_CHECKING:
    from icl_bench.models.tokenizers import Tokenizer

END = "\x00"
"""Stands for a special token that ends an answer; no ordinary token that writes it is allowed."""

Spellings = dict[bytes, list[int]]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class LabelAutomaton:
    """States and token transitions of the constraint; state 0 is the start.

    ``answers[i]`` is the text of label ``i`` with its lead and its end, :data:`END` where that is a
    special token. A state is a text written
    so far. In state ``s`` the tokens ``tokens[s]`` (sorted ids) are allowed and lead to the states
    ``targets[s]``; ``decided[s]`` is the one answer that begins with its text, or -1 while there
    are several: from there on no further token can change the outcome.
    """

    answers: tuple[str, ...]
    tokens: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    decided: np.ndarray
    vocabulary: np.ndarray = field(repr=False)
    """All token ids that are ever allowed, sorted: ``(allowed,)``."""

    @cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """Per state, where its tokens stand in ``vocabulary``."""
        return tuple(np.searchsorted(self.vocabulary, tokens) for tokens in self.tokens)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest answer, and so the most tokens that one may take."""
        return max(len(answer.encode()) for answer in self.answers)

    @cached_property
    def deciding(self) -> tuple[int, ...]:
        """Tokens that decide on an answer wherever they are allowed: generation can stop there."""
        undecided: set[int] = set()
        for tokens, targets in zip(self.tokens, self.targets, strict=True):
            undecided.update(tokens[self.decided[targets] < 0].tolist())
        return tuple(token for token in self.vocabulary.tolist() if token not in undecided)

    def read(self, tokens: Iterable[int]) -> int:
        """Which answer a sequence of tokens has decided on, or -1: ends at the first that does.

        Raises ``ValueError`` for a token that the constraint does not allow.
        """
        state = 0
        for token in tokens:
            if self.decided[state] >= 0:
                break
            allowed = self.tokens[state]
            place = int(np.searchsorted(allowed, token))
            if place == len(allowed) or allowed[place] != token:
                raise ValueError(f"token {token} is not allowed in state {state}")
            state = int(self.targets[state][place])
        return int(self.decided[state])

    def choose(self, state: int, logits: np.ndarray) -> tuple[int, int]:
        """Take the allowed token of largest logit: greedy decoding under the constraint.

        ``logits`` are those of ``vocabulary``, ``(allowed,)``. Returns (token id, next state).
        """
        best = int(logits[self.columns[state]].argmax())
        return int(self.tokens[state][best]), int(self.targets[state][best])


def compile_labels(
    answers: Sequence[str], tokenizer: Tokenizer, end_token: int | None = None, spellings: Spellings | None = None
) -> LabelAutomaton:
    """Compile answers (lead, label and end: ``" card arrival\\n"``) into an automaton.

    With a special token that ends them (of a chat's turn), they are given without it: after it
    nothing else may follow, and its text, written with ordinary tokens, does not count.
    ``spellings`` are the tokenizer's (:func:`spellings_of`), where many are compiled for it.

    The vocabulary is first reduced to tokens whose bytes occur inside some answer, the only ones
    that can ever be allowed: the same automaton, hundreds of times sooner.

    Raises ``UserError`` where the tokenizer cannot write an answer.
    """
    from outlines_core import Index, Vocabulary

    spelled = _inside(answers, spellings or spellings_of(tokenizer))
    if end_token is not None:
        answers = [answer + END for answer in answers]
        spelled = {text: ids for text, ids in spelled.items() if END.encode() not in text}
        spelled[END.encode()] = [end_token]
    eos = tokenizer.eos_token_id
    # outlines_core wants an end token outside the vocabulary it is given; any unused id will do.
    end = int(eos) if isinstance(eos, int) and eos != end_token else len(tokenizer)
    pattern = "|".join(re.escape(answer) for answer in answers)
    try:
        index = Index(f"({pattern})", Vocabulary(end, spelled))
    except Exception as error:  # outlines_core raises plain ValueError/BaseException subclasses
        said = one_line(str(error))
        raise UserError(f"labels: the tokenizer cannot write them ({said})") from error
    raw = {
        state: {token: target for token, target in moves.items() if token != end}
        for state, moves in index.get_transitions().items()
    }
    return _unfolded(answers, raw, index.get_initial_state(), spelled)


def _inside(answers: Sequence[str], spellings: Spellings) -> dict[bytes, list[int]]:
    """Token ids by their bytes, for tokens whose bytes occur inside some answer."""
    encoded = map(str.encode, answers)
    pieces = {text[i:j] for text in encoded for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    return {piece: spellings[piece] for piece in pieces if piece in spellings}


def spellings_of(tokenizer: Tokenizer) -> Spellings:
    """Token ids by the bytes that they write (:func:`token_bytes`)."""
    found: Spellings = {}
    for token, spelling in token_bytes(tokenizer).items():
        found.setdefault(spelling, []).append(token)
    return found


def _unfolded(
    answers: Sequence[str], moves: Mapping[int, Mapping[int, int]], start: int, spellings: Mapping[bytes, Sequence[int]]
) -> LabelAutomaton:
    """Unfold the compiled automaton so that a state is one text written so far.

    The compiled automaton is minimal: labels with a common ending share its last states, so that
    there a state does not say which label was written. Unfolded, it does.
    """
    bytes_of = {token: text for text, tokens in spellings.items() for token in tokens}
    compiled, numbers = {b"": start}, {b"": 0}
    tokens, targets = [], []
    for text in (order := [b""]):  # grows while it is walked
        allowed = sorted(moves.get(compiled[text], {}).items())
        for token, target in allowed:
            if (longer := text + bytes_of[token]) not in numbers:
                numbers[longer] = len(order)
                compiled[longer] = target
                order.append(longer)
        tokens.append(np.array([token for token, _ in allowed], dtype=np.int64))
        reached = [numbers[text + bytes_of[token]] for token, _ in allowed]
        targets.append(np.array(reached, dtype=np.int64))
    return LabelAutomaton(
        tuple(answers),
        tuple(tokens),
        tuple(targets),
        _decided(answers, order, numbers),
        np.unique(np.concatenate(tokens)),
    )


def _decided(answers: Sequence[str], texts: Sequence[bytes], numbers: Mapping[bytes, int]) -> np.ndarray:
    """Per state the one answer that begins with its text, or -1 while several do: ``(states,)``."""
    decided = np.full(len(texts), -1)
    for i, answer in enumerate(map(str.encode, answers)):
        if answer not in numbers:
            raise UserError(f"label {answers[i].strip()!r}: the tokenizer cannot write it")
        for end in range(len(answer) + 1):
            state = numbers.get(answer[:end])
            if state is not None:
                decided[state] = i if decided[state] == -1 else -2
    return np.where(decided == -2, -1, decided)


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """What each ordinary token writes, as bytes; special tokens are left out.

    Knows the two ways in which vocabularies spell bytes: byte-level (GPT-2, Llama 3, Qwen) and
    SentencePiece (``\u2581`` for a space, ``<0xNN>`` for a byte: Llama 2, Mistral, Gemma). Tokens
    that were added to a vocabulary are written as they are.
    """
    added = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
    vocabulary = {i: t for t, i in tokenizer.get_vocab().items() if i not in special}
    plain = {i: vocabulary.pop(i).encode() for i in added if i in vocabulary}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if "ByteLevel" in repr(getattr(backend, "decoder", "")):
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        return plain | {
            token: bytes(byte_of[c] for c in text)
            for token, text in vocabulary.items()
            if all(c in byte_of for c in text)
        }
    return plain | {token: _sentencepiece_bytes(text) for token, text in vocabulary.items()}


def _sentencepiece_bytes(text: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace("\u2581", " ").encode()


@dataclass(frozen=True)
class LabelTrie:
    """The labels' own tokenizations as a tree, for scoring all of them in one pass.

    Node 0 is the end of the query; node ``n`` is reached from ``parents[n]`` by ``tokens[n]``.
    ``ends[i]`` is the node at which answer ``i`` is complete. Parents come before children.
    """

    tokens: np.ndarray
    parents: np.ndarray
    ends: np.ndarray

    @cached_property
    def depths(self) -> np.ndarray:
        """Tokens from the root to each node: ``(nodes,)``."""
        depths = np.zeros(len(self.tokens), dtype=np.int64)
        for node in range(1, len(depths)):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    @cached_property
    def ranks(self) -> np.ndarray:
        """Each node's number among its parent's children: ``(nodes,)``."""
        seen: dict[int, int] = {}
        ranks = np.zeros(len(self.tokens), dtype=np.int64)
        for node in range(1, len(ranks)):
            parent = int(self.parents[node])
            ranks[node] = seen.get(parent, 0)
            seen[parent] = ranks[node] + 1
        return ranks

    @cached_property
    def ancestors(self) -> np.ndarray:
        """Whether a node is on another's path (itself included): ``(nodes, nodes)`` bool."""
        seen = np.eye(len(self.tokens), dtype=bool)
        for node in range(1, len(self.tokens)):
            seen[node] |= seen[self.parents[node]]
        return seen

    @cached_property
    def inner(self) -> np.ndarray:
        """Nodes that have children, the root first: those whose next-token probabilities count."""
        return np.unique(self.parents[1:])


def label_trie(answers: Sequence[Ids]) -> LabelTrie:
    """Build the tree of tokenized answers.

    Raises ``ValueError`` where one answer's tokens begin another's (their ends tell them apart).
    """
    nodes: dict[Ids, int] = {(): 0}
    tokens, parents = [-1], [-1]
    for ids in answers:
        for size in range(1, len(ids) + 1):
            if ids[:size] not in nodes:
                nodes[ids[:size]] = len(tokens)
                tokens.append(ids[size - 1])
                parents.append(nodes[ids[: size - 1]])
    ends = np.array([nodes[ids] for ids in answers])
    if len(set(ends.tolist())) < len(answers) or np.isin(ends, parents).any():
        raise ValueError("an answer's tokens begin another's")
    return LabelTrie(np.array(tokens), np.array(parents), ends)
