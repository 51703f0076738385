"""The label constraint: which tokens may follow while an answer is generated.

The constraint's language is ``" " + label + "\\n"`` for each label, in every tokenization that the
vocabulary allows. ``outlines_core`` (the engine of ``outlines``) compiles it to an automaton over
token ids, once for each set of labels and tokenizer. The language includes the ending. Without it,
if one label begins another ("order", "order status"), the shorter one would compete at end-of-text
with a continuation, and lose.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.tokenizers import CachedTokenizer
from icl_bench.prompts.encoding import Ids

if TYPE_CHECKING:
    from outlines_core import Index, Vocabulary

    from icl_bench.models.tokenizers import Tokenizer

END = "\x00"
"""A placeholder for a special token that ends an answer. Ordinary tokens cannot write it."""

Spellings = dict[bytes, list[int]]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class LabelAutomaton:
    """States and token transitions of the constraint. State 0 is the start.

    ``answers[i]`` is the text of label ``i`` with its lead and its ending, :data:`END` for a special
    token. A state is a text written so far. In state ``s``, the tokens ``tokens[s]`` (sorted ids)
    are allowed and lead to the states ``targets[s]``. ``decided[s]`` is the only answer that begins
    with its text, or -1 if there are several. In a decided state, further tokens cannot change the
    answer.
    """

    answers: tuple[str, ...]
    tokens: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    decided: np.ndarray
    vocabulary: np.ndarray = field(repr=False)
    """All token ids that are allowed in some state, sorted: ``(allowed,)``."""

    @cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The places in ``vocabulary`` of each state's tokens."""
        return tuple(np.searchsorted(self.vocabulary, tokens) for tokens in self.tokens)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest answer, which is also the largest possible number of tokens."""
        return max(len(answer.encode()) for answer in self.answers)

    @cached_property
    def deciding(self) -> tuple[int, ...]:
        """Tokens that decide the answer in every state that allows them. Generation can stop there."""
        undecided: set[int] = set()
        for tokens, targets in zip(self.tokens, self.targets, strict=True):
            undecided.update(tokens[self.decided[targets] < 0].tolist())
        return tuple(token for token in self.vocabulary.tolist() if token not in undecided)

    def read(self, tokens: Iterable[int]) -> int:
        """Return the answer that a sequence of tokens decides, or -1. Later tokens are ignored.

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
    """Compile answers (lead, label and ending: ``" card arrival\\n"``) to an automaton.

    If a special token ends them (the end of a chat's turn), they are given without it. Nothing may follow this token,
    and its text written with ordinary tokens does not count. ``spellings`` are the tokenizer's (:func:`spellings_of`),
    reused to compile many automata.

    The vocabulary is first reduced to tokens whose bytes occur in some answer, because no others
    can be allowed. The automaton is the same, compiled hundreds of times faster.

    Raises ``UserError`` if the tokenizer cannot write an answer, or has a token that begins one but that no tokens
    complete.
    """
    from outlines_core import Vocabulary

    usable_spellings = _spellings_inside(answers, spellings or spellings_of(tokenizer))
    if end_token is not None:
        answers = [answer + END for answer in answers]
        usable_spellings = {text: ids for text, ids in usable_spellings.items() if END.encode() not in text}
        usable_spellings[END.encode()] = [end_token]
    for answer in answers:
        if not _can_write(answer.encode(), usable_spellings):
            raise UserError(
                f"label {shown(answer)}: this model's tokenizer cannot write it; spell it as the tokenizer "
                f"does ({_rewritten(answer, tokenizer)}), or take --score exact"
            )
    eos = tokenizer.eos_token_id
    # outlines_core needs an end token outside the given vocabulary: any unused id
    end = int(eos) if isinstance(eos, int) and eos != end_token else len(tokenizer)
    vocabulary = Vocabulary(end, usable_spellings)
    if (index := _index(answers, vocabulary)) is None:
        stuck = next((answer for answer in answers if _index([answer], vocabulary) is None), answers[0])
        raise UserError(
            f"label {shown(stuck)}: this model's tokenizer has a token that begins it and none that continues it; "
            "rename it, or take --score exact"
        )
    raw = {
        state: {token: target for token, target in moves.items() if token != end}
        for state, moves in index.get_transitions().items()
    }
    return _unfold(answers, raw, index.get_initial_state(), usable_spellings)


def _index(answers: Sequence[str], vocabulary: Vocabulary) -> Index | None:
    """The automaton of these answers; None if a token leads to a state without transitions."""
    from outlines_core import Index

    try:
        return Index(one_of(answers), vocabulary)
    except ValueError:
        return None


def check_told_apart(answers: Sequence[str], ids: Sequence[Ids]) -> None:
    """Raise ``UserError`` if two answers have the same tokens, or one's tokens begin another's.

    A tokenizer that normalises texts or ignores case encodes different texts as the same tokens, in prompts and in
    answers. ``ids`` are the answers' tokens, with their endings.
    """
    holders = dict(zip(ids, answers, strict=True))
    for answer, tokens in zip(answers, ids, strict=True):
        if holders[tokens] != answer:
            raise UserError(
                f"labels {shown(answer)} and {shown(holders[tokens])}: this model's tokenizer writes both with the "
                "same tokens, so no answer tells them apart; rename one, or make them one label"
            )
    for answer, tokens in zip(answers, ids, strict=True):
        for size in range(len(tokens)):
            if (shorter := holders.get(tokens[:size])) is not None:
                raise UserError(
                    f"labels {shown(shorter)} and {shown(answer)}: this model's tokenizer writes the second as a "
                    "continuation of the first, without a token that ends it; rename one"
                )


def shown(answer: str) -> str:
    """An answer's label for a message, with ambiguous characters escaped."""
    label = answer.removesuffix(END).strip()
    return repr(label) if unicodedata.is_normalized("NFKC", label) else ascii(label)


def _can_write(text: bytes, spellings: Spellings) -> bool:
    """Whether some sequence of tokens writes a text."""
    reached = [True, *[False] * len(text)]
    for end in range(1, len(text) + 1):
        reached[end] = any(reached[start] and text[start:end] in spellings for start in range(end))
    return reached[-1]


def _rewritten(answer: str, tokenizer: Tokenizer) -> str:
    """An answer's label after encoding and decoding."""
    ids = tokenizer(answer.removesuffix(END), add_special_tokens=False)["input_ids"]
    return repr(str(tokenizer.decode(ids)).strip())


def one_of(texts: Iterable[str]) -> str:
    """A regular expression that matches exactly these texts, for any grammar engine."""
    return f"({'|'.join(map(re.escape, texts))})"


def _spellings_inside(answers: Sequence[str], spellings: Spellings) -> dict[bytes, list[int]]:
    """The spellings that occur in some answer."""
    encoded = map(str.encode, answers)
    pieces = {text[i:j] for text in encoded for i in range(len(text)) for j in range(i + 1, len(text) + 1)}
    return {piece: spellings[piece] for piece in pieces if piece in spellings}


def spellings_of(tokenizer: Tokenizer) -> Spellings:
    """Bytes -> the ids of tokens that write them (:func:`token_bytes`)."""
    if not isinstance(tokenizer, CachedTokenizer):
        return _spellings_of(tokenizer)
    if tokenizer not in _KNOWN_SPELLINGS:
        _KNOWN_SPELLINGS[tokenizer] = _spellings_of(tokenizer)
    return _KNOWN_SPELLINGS[tokenizer]


_KNOWN_SPELLINGS = WeakKeyDictionary[CachedTokenizer, Spellings]()
"""Of tokenizers that nothing changes, for as long as they are in memory: a large vocabulary takes a second."""


def _spellings_of(tokenizer: Tokenizer) -> Spellings:
    spellings: Spellings = {}
    for token, spelling in token_bytes(tokenizer).items():
        spellings.setdefault(spelling, []).append(token)
    return spellings


def _unfold(
    answers: Sequence[str], moves: Mapping[int, Mapping[int, int]], start: int, spellings: Mapping[bytes, Sequence[int]]
) -> LabelAutomaton:
    """Unfold the compiled automaton so that a state is one text written so far.

    The compiled automaton is minimal: labels with a common ending share its last states, so these
    states do not determine the label. After unfolding, they do.
    """
    bytes_of = {token: text for text, tokens in spellings.items() for token in tokens}
    compiled, numbers = {b"": start}, {b"": 0}
    tokens, targets = [], []
    for text in (order := [b""]):  # grows during iteration
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
    """For each state, the only answer that begins with its text, or -1 if there are several: ``(states,)``."""
    decided = np.full(len(texts), -1)
    for i, answer in enumerate(map(str.encode, answers)):
        for end in range(len(answer) + 1):
            state = numbers.get(answer[:end])
            if state is not None:
                decided[state] = i if decided[state] == -1 else -2
    return np.where(decided == -2, -1, decided)


def token_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """The bytes of each ordinary token, without special tokens.

    Supports both spellings of bytes in vocabularies: byte-level (GPT-2, Llama 3, Qwen) and
    SentencePiece (``\u2581`` for a space, ``<0xNN>`` for a byte: Llama 2, Mistral, Gemma). Added
    tokens are spelled literally.
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
    """The labels' tokenizations as a tree, to score all of them in one pass.

    Node 0 is the end of the query. Node ``n`` is reached from ``parents[n]`` by ``tokens[n]``.
    ``ends[i]`` is the node where answer ``i`` is complete. Parents come before children.
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
    def ancestors(self) -> np.ndarray:
        """Whether a node is on another's path, including itself: ``(nodes, nodes)`` bool."""
        is_ancestor = np.eye(len(self.tokens), dtype=bool)
        for node in range(1, len(self.tokens)):
            is_ancestor[node] |= is_ancestor[self.parents[node]]
        return is_ancestor

    @cached_property
    def inner(self) -> np.ndarray:
        """Nodes that have children, the root first. Their next-token probabilities are needed."""
        return np.unique(self.parents[1:])

    @cached_property
    def children(self) -> dict[int, np.ndarray]:
        """Each inner node -> its children, ascending."""
        return {node: np.flatnonzero(self.parents == node) for node in self.inner.tolist()}

    @cached_property
    def branches(self) -> tuple[tuple[Ids, np.ndarray], ...]:
        """For each inner node, the tokens from the root to it, and its children."""
        paths: list[Ids] = [()]
        for token, parent in zip(self.tokens[1:].tolist(), self.parents[1:].tolist(), strict=True):
            paths.append((*paths[parent], token))
        return tuple((paths[node], children) for node, children in self.children.items())

    def sums(self, log_probabilities: np.ndarray) -> np.ndarray:
        """Log-probability of each answer: the sum along its path from the root, ``(..., answers)``.

        ``log_probabilities`` are those of each node's token after its parent, ``(..., nodes)``, 0 for the root.
        """
        total = log_probabilities @ self.ancestors.T
        return np.asarray(total[..., self.ends])


def label_trie(answers: Sequence[Ids]) -> LabelTrie:
    """Build the tree of tokenized answers.

    Raises ``ValueError`` if one answer's tokens begin another's (:func:`check_told_apart`).
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
