"""Examples to token ids: the only module that builds prompts.

A prompt is a list of token ids, which a backend receives unchanged. It always equals the
tokenization of its whole text, after BOS if the tokenizer has one, although shared demonstrations
and queries are tokenized separately. Every join is checked: if a token would span it, the whole
prompt is tokenized instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.errors import UserError
from icl_bench.models.tokenizers import bos_of, check_offsets, with_offsets
from icl_bench.prompts.rendering import Message

if TYPE_CHECKING:
    from icl_bench.models.attention_patterns import Pattern, Ranges
    from icl_bench.models.tokenizers import Tokenizer
    from icl_bench.prompts.chat import PromptForm
    from icl_bench.tasks.examples import Example

Ids = tuple[int, ...]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one cell: a shared prefix and a suffix for each query.

    Prompt ``i`` is ``prefix + suffixes[i]``.
    """

    prefix: Ids
    suffixes: tuple[Ids, ...]
    shared_text: str = ""
    """The text that all prompts begin with. It need not end where ``prefix`` ends."""
    own_texts: tuple[str, ...] = ()
    """The rest of each prompt's text."""
    ends: tuple[tuple[int, ...], ...] = ()
    """The end of each demonstration with its separator, in tokens of the prompt: one tuple for all
    prompts if demonstrations are shared; else one for each prompt, if requested; else empty."""
    lead: int = 0
    """Tokens before the first demonstration: BOS, or the beginning of a chat."""
    vector_texts: tuple[tuple[str, ...], ...] = ()
    """Additional texts that the model reads as vectors: one tuple for all prompts if they share
    them, else one for each; empty if there are none."""
    similar: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The similarity of each shared demonstration to each query, ``(queries, k)``, if it determines
    which demonstrations are read."""
    conversation: Callable[[int], Sequence[Message]] | None = field(default=None, repr=False, compare=False)
    """The messages of a prompt by its index, for chat prompts."""

    def __len__(self) -> int:
        return len(self.suffixes)

    def ends_of(self, index: int) -> tuple[int, ...]:
        """The ends of one prompt's demonstrations."""
        return self.ends[0 if len(self.ends) == 1 else index]

    def vectors_of(self, index: int) -> tuple[str, ...]:
        """The texts that the model reads as vectors in one prompt."""
        if not self.vector_texts:
            return ()
        return self.vector_texts[0 if len(self.vector_texts) == 1 else index]

    def read_by(self, pattern: Pattern) -> tuple[Ranges | None, ...]:
        """The ranges of demonstration tokens that each query reads; empty if all read the same."""
        if self.similar is None or pattern.compares is None:
            return ()
        return tuple(pattern.read(self.ends_of(i), row) for i, row in enumerate(self.similar))

    def with_vectors(self, texts: Sequence[tuple[str, ...]]) -> PromptSet:
        """The same prompts with additional texts to be read as vectors.

        Hidden states depend on the vectors that tokens see, so prompts with different vectors share
        no prefix.
        """
        if len(set(texts)) == 1:
            return replace(self, vector_texts=(texts[0],) if texts[0] else ())
        prompts = tuple(self.ids(i) for i in range(len(self)))
        return replace(self, prefix=(), suffixes=prompts, vector_texts=tuple(texts))

    def repeated(self, count: int) -> PromptSet:
        """The same prompts, each repeated this number of times in a row. They share the prefix."""
        return self.at([i for i in range(len(self)) for _ in range(count)])

    def at(self, indices: Sequence[int]) -> PromptSet:
        """The prompts with these indices, in this order. They share the prefix."""

        def those(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[i] for i in indices)

        conversation = self.conversation
        return replace(
            self,
            suffixes=those(self.suffixes),
            own_texts=those(self.own_texts) if self.own_texts else (),
            ends=those(self.ends) if len(self.ends) > 1 else self.ends,
            vector_texts=those(self.vector_texts) if len(self.vector_texts) > 1 else self.vector_texts,
            similar=None if self.similar is None else self.similar[list(indices)],
            conversation=None if conversation is None else lambda index: conversation(indices[index]),
        )

    def extended(self, indices: Sequence[int], further: Sequence[Ids]) -> PromptSet:
        """Some of the prompts, each with further tokens at its end.

        The prefix and the ends of demonstrations stay; texts and messages are left out.
        """
        those = self.at(indices)
        suffixes = tuple(suffix + ids for suffix, ids in zip(those.suffixes, further, strict=True))
        return PromptSet(self.prefix, suffixes, ends=those.ends, lead=self.lead, similar=those.similar)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return len(self.prefix) + max((len(s) for s in self.suffixes), default=0)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, including the shared prefix of each."""
        return len(self.prefix) * len(self.suffixes) + self.own_tokens

    @property
    def own_tokens(self) -> int:
        """Tokens of all suffixes: what remains to compute when the prefix is cached."""
        return sum(map(len, self.suffixes))

    def ids(self, index: int) -> Ids:
        """The token ids of one query's whole prompt."""
        return self.prefix + self.suffixes[index]

    def size(self, index: int) -> int:
        """Tokens of one query's whole prompt."""
        return len(self.prefix) + len(self.suffixes[index])

    def text(self, index: int) -> str:
        """The whole prompt of one query as text, without BOS."""
        return self.shared_text + self.own_texts[index]

    def messages(self, index: int) -> Sequence[Message]:
        """The prompt of one query as messages. Plain text is one user message."""
        if self.conversation is None:
            return [{"role": "user", "content": self.text(index)}]
        return self.conversation(index)

    def hashes(self) -> list[str]:
        """SHA-256 (16 hex digits) of each prompt's ids, as little-endian 32-bit integers, followed
        by its texts that are read as vectors.
        """
        shared = hashlib.sha256(_as_bytes(self.prefix))
        digests = []
        for i, suffix in enumerate(self.suffixes):
            digest = shared.copy()
            digest.update(_as_bytes(suffix))
            for text in self.vectors_of(i):
                digest.update(b"\0" + hashlib.sha256(text.encode()).digest())
            digests.append(digest.hexdigest()[:16])
        return digests


def _as_bytes(ids: Ids) -> bytes:
    return np.asarray(ids, dtype="<u4").tobytes()


def shared_prefix(prompts: Sequence[Ids], within: Ids | None = None) -> PromptSet:
    """Split off the longest common prefix that leaves each prompt at least one token of its own.

    With ``within``, the prefix is also a prefix of these ids.
    """
    limit = min(map(len, prompts)) - 1
    sharing = list(prompts)
    if within is not None:
        limit = min(limit, len(within))
        sharing.append(within)
    first, last = min(sharing), max(sharing)
    length = 0
    while length < limit and first[length] == last[length]:
        length += 1
    return PromptSet(first[:length], tuple(p[length:] for p in prompts))


class _Start(NamedTuple):
    """Demonstrations at the beginning of prompts, tokenized as one text."""

    ids: Ids
    sizes: np.ndarray | None
    """Tokens of the first n, ``(demonstrations + 1,)``; None if a token spans two of them."""
    behind: Sequence[Ids | None]
    """Ids of each demonstration after a separator; None if a token would span the join."""


class PromptTokenizer:
    """Encodes examples as token ids of prompts of one form, with one tokenizer."""

    def __init__(self, form: PromptForm, tokenizer: Tokenizer) -> None:
        """A form with special tokens writes BOS itself, if its model needs it."""
        self.form = form
        self._tokenizer: Any = tokenizer
        self._ids_after_joint: dict[str, Ids | None] = {}
        bos = None if form.has_special_tokens else bos_of(tokenizer)
        self.bos: Ids = () if bos is None else (bos,)
        self.leaves_bos_out = bos is None and tokenizer.bos_token_id is not None
        """Whether prompts do not begin with BOS, although the tokenizer has one."""
        self._anchor, start = self._tokenize([form.joint, form.start])
        self._lead = len(self.bos) + len(start)

    def _tokens_before(self, text: str, cuts: Sequence[int]) -> tuple[Ids, np.ndarray]:
        """Token ids of a text, and the number of its tokens that begin before each of these positions, in characters.

        Raises ``UserError`` if the tokenizer does not return offsets.
        """
        check_offsets(self._tokenizer, "--attention block")
        split = not self.form.has_special_tokens
        ids, offsets = with_offsets(self._tokenizer, text, split_special_tokens=split)
        return ids, np.searchsorted([start for start, _ in offsets], cuts)

    def _ends(self, pieces: Sequence[str], text: str) -> tuple[int, ...]:
        """The ends of demonstrations in a prompt that begins with their pieces, in tokens.

        A token that spans the end of a demonstration belongs to it. Raises ``UserError`` if the
        tokenizer does not return offsets.
        """
        _, before = self._tokens_before(text, np.cumsum([len(piece) for piece in pieces]).tolist())
        return tuple(len(self.bos) + int(n) for n in before)

    def _tokenize(self, texts: Sequence[str]) -> list[Ids]:
        """Token ids of each text separately. Only special tokens of the form are parsed; elsewhere, text that looks
        like one stays text.
        """
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            split_special_tokens=not self.form.has_special_tokens,
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]
        return [tuple(ids) for ids in encoded]

    def whole(self, text: str) -> Ids:
        """Token ids of a whole prompt: BOS and its text."""
        return self.bos + self._tokenize([text])[0]

    def _after_separator(self, texts: Sequence[str]) -> list[Ids | None]:
        """Ids of texts after a joint; None if a token would span the join."""
        new = [t for t in dict.fromkeys(texts) if t not in self._ids_after_joint]
        self._ids_after_joint.update(zip(new, self._after(self.form.joint, new), strict=True))
        return [self._ids_after_joint[t] for t in texts]

    def _conversation(
        self, demonstrations: Sequence[Sequence[Example]], queries: Sequence[Example]
    ) -> Callable[[int], Sequence[Message]] | None:
        """A function from a prompt's index to its messages; None for plain text."""
        if not self.form.has_special_tokens:
            return None
        return lambda index: self.form.messages(demonstrations[index], queries[index])

    def _begun(self, examples: Sequence[Example]) -> list[str]:
        """The demonstrations of a prompt. The form's start becomes part of the first one."""
        pieces = self.form.demonstrations(examples)
        return [self.form.start + pieces[0], *pieces[1:]] if pieces else []

    def demonstration_lengths(self, examples: Sequence[Example]) -> np.ndarray:
        """Tokens of each demonstration with its separator inside a prompt.

        Returns an ``(examples,)`` integer array.
        """
        pieces = list(map(self.form.demonstration, examples))
        joined = zip(self._after_separator(pieces), pieces, strict=True)
        return np.array([len(ids or self._tokenize([piece])[0]) for ids, piece in joined], dtype=int)

    def lesson(self, examples: Sequence[Example]) -> tuple[Ids, tuple[int, ...], list[tuple[int, int]]]:
        """Concatenated demonstrations for training: ids with BOS, the end of each demonstration, and
        the start and end of each answer (including its ending), in tokens.

        A token that spans the start of an answer belongs to the answer. Raises ``UserError`` if
        the form does not concatenate pieces, or the tokenizer does not return offsets.
        """
        pieces = self._begun(examples)
        if not self.form.is_pieced(examples, ()):
            raise UserError(
                "demonstrations to learn from must not depend on each other; this task's template writes them together"
            )
        text = "".join(pieces)
        ends = np.cumsum([len(piece) for piece in pieces])
        query_lengths = [len(self.form.query(example)) for example in examples]
        begins = [0, *ends[:-1].tolist()]
        begins[:1] = [len(self.form.start)]
        starts = [begin + size for begin, size in zip(begins, query_lengths, strict=True)]
        lead = len(self.bos)
        # a token that begins before a position and ends after it spans it
        ids, before = self._tokens_before(text, [*(start + 1 for start in starts), *ends.tolist()])
        first = [lead + int(n) - 1 for n in before[: len(starts)]]
        last = [lead + int(n) for n in before[len(starts) :]]
        return self.bos + ids, tuple(last), list(zip(first, last, strict=True))

    def answers(self, answers: Sequence[str]) -> list[Ids]:
        """Ids of each answer with its ending, as the continuation of a query.

        If a token would span the query's end and the answer, the answer is tokenized as at the
        beginning of a line.
        """
        return self._following(self.form.before_answer, [self.form.answer(answer) for answer in answers])

    def continuation(self, before: str, text: str) -> Ids:
        """Ids of a text that follows the end of another, which is not tokenized again.

        If a token would span the join, the text is tokenized as at the beginning of a line.
        """
        (ids,) = self._following(before, [text])
        return ids

    def _following(self, before: str, texts: Sequence[str]) -> list[Ids]:
        """Ids of texts after ``before``; if a token would span the join, as at the beginning of a line."""
        distinct = list(dict.fromkeys(texts))
        behind = self._after(before, distinct)
        on_a_line = self._after("\n", distinct)
        alone = self._tokenize(distinct)
        ids = {text: a or b or c for text, a, b, c in zip(distinct, behind, on_a_line, alone, strict=True)}
        return [ids[text] for text in texts]

    @property
    def ending_token(self) -> int | None:
        """The special token that ends answers, or None."""
        if not self.form.has_special_tokens:
            return None
        last = int(self._tokenize([self.form.answer("a")])[0][-1])
        added = self._tokenizer.added_tokens_decoder.get(last)
        return last if added is not None and added.special else None

    def _after(self, start: str, texts: Sequence[str]) -> list[Ids | None]:
        """Ids of texts after ``start``; None if a token would span the join."""
        anchor, *joined = self._tokenize([start, *(start + text for text in texts)])
        size = len(anchor)
        return [ids[size:] if ids[:size] == anchor else None for ids in joined]

    def own_prompts(
        self, demonstrations: Sequence[Sequence[Example]], queries: Sequence[Example], ends: bool = False
    ) -> PromptSet:
        """Prompts in which every query has its own demonstrations (retrieval).

        With ``ends``, the result has the end of each demonstration.
        """
        pairs = zip(demonstrations, queries, strict=True)
        if not all(self.form.is_pieced(own, [query]) for own, query in pairs):
            return self._rendered_whole(demonstrations, queries)
        own_pieces = [self._begun(own) for own in demonstrations]
        tails = [self.form.query(query) for query in queries]
        texts = ["".join(own or [self.form.start]) + tail for own, tail in zip(own_pieces, tails, strict=True)]
        prompts = shared_prefix([self.bos + ids for ids in self._tokenize(texts)])
        token_ends = [self._ends(p, text) for p, text in zip(own_pieces, texts, strict=True)] if ends else []
        return replace(
            prompts,
            own_texts=tuple(texts),
            ends=tuple(token_ends),
            lead=self._lead,
            conversation=self._conversation(demonstrations, queries),
        )

    def shared_prompts(
        self, demonstrations: Sequence[Example], shots: Sequence[int], queries: Sequence[Example]
    ) -> dict[int, PromptSet]:
        """Prompts for several k from one list of demonstrations: k uses its first k. If the form's text of fewer
        demonstrations does not begin that of more, only the whole list is allowed.

        If no token spans a join, every demonstration is tokenized once for all k. The prefix of a
        smaller k then is a prefix of a larger one's, so a cache can be extended from one k to the
        next. The prefix for k=0 is the common beginning of the queries.
        """
        demonstrations = demonstrations[: max(shots)]
        if not self.form.is_pieced(demonstrations, queries):
            return {k: self._rendered_whole([demonstrations[:k]] * len(queries), queries) for k in shots}
        pieces = self._begun(demonstrations)
        tails = [self.form.query(query) for query in queries]
        start = self._start(pieces)
        result: dict[int, PromptSet] = {}
        for k in shots:
            if k == 0:
                result[k] = self.own_prompts([[] for _ in queries], queries)
                continue
            prompts = self._joined(pieces[:k], start, tails)
            if not prompts.ends:
                ends = self._clipped_ends(pieces[:k], len(prompts.prefix))
                prompts = replace(prompts, ends=(ends,))
            conversation = self._conversation([demonstrations[:k]] * len(queries), queries)
            result[k] = replace(prompts, conversation=conversation)
        return result

    def mixed_prompts(
        self,
        shared: Sequence[Example],
        own: Sequence[Sequence[Example]],
        queries: Sequence[Example],
        ends: bool = False,
    ) -> PromptSet:
        """Prompts of shared demonstrations, followed by some of each query's own.

        If no token spans a join, the prefix is the shared ones, tokenized once. With ``ends``, the
        result has the end of each demonstration of each prompt.
        """
        if not shared:
            return self.own_prompts(own, queries, ends)
        demonstrations = [[*shared, *examples] for examples in own]
        if not all(
            self.form.is_pieced(examples, [query]) for examples, query in zip(demonstrations, queries, strict=True)
        ):
            return self._rendered_whole(demonstrations, queries)
        pieces = self._begun(demonstrations[0])[: len(shared)]
        own_pieces = [self.form.demonstrations(examples, len(shared)) for examples in demonstrations]
        pairs = zip(own_pieces, queries, strict=True)
        tails = ["".join([*texts, self.form.query(query)]) for texts, query in pairs]
        prompts = self._joined(pieces, self._start(pieces), tails)
        prompts = replace(prompts, conversation=self._conversation(demonstrations, queries))
        if not ends:
            return replace(prompts, ends=())
        token_ends = [self._ends([*pieces, *texts], prompts.text(i)) for i, texts in enumerate(own_pieces)]
        return replace(prompts, ends=tuple(token_ends))

    def _rendered_whole(self, demonstrations: Sequence[Sequence[Example]], queries: Sequence[Example]) -> PromptSet:
        """Prompts that are not concatenations of pieces: each is rendered and tokenized as a whole.

        The prefix is the longest common one. The ends of demonstrations are unknown.
        """
        texts = [self.form.whole(d, q) for d, q in zip(demonstrations, queries, strict=True)]
        prompts = shared_prefix([self.bos + ids for ids in self._tokenize(texts)])
        return replace(
            prompts,
            own_texts=tuple(texts),
            lead=len(self.bos),
            conversation=self._conversation(demonstrations, queries),
        )

    def _start(self, pieces: Sequence[str]) -> _Start:
        """Tokenize the demonstrations that all prompts begin with."""
        behind = self._after_separator(pieces)
        (whole_ids,) = self._tokenize(["".join(pieces)])
        parts = [*self._tokenize(pieces[:1]), *(ids or () for ids in behind[1:])]
        exact = tuple(chain.from_iterable(parts)) == whole_ids
        return _Start(whole_ids, np.cumsum([0, *map(len, parts)]) if exact else None, behind)

    def _joined(self, pieces: Sequence[str], start: _Start, tails: Sequence[str]) -> PromptSet:
        """Prompts of a start's first pieces, each followed by its own tail.

        ``ends`` are those of the pieces; empty if the prompts had to be tokenized as a whole.
        """
        text, count = "".join(pieces), len(pieces)
        ends: tuple[tuple[int, ...], ...] = ()
        behind = self._tails(pieces[-1], start.behind[count - 1], tails)
        if start.sizes is not None and behind is not None:
            sizes = start.sizes[: count + 1]
            prompts = PromptSet(self.bos + start.ids[: sizes[-1]], behind)
            ends = (tuple(int(n) for n in len(self.bos) + sizes[1:]),)
        else:
            whole_ids = [self.bos + ids for ids in self._tokenize([text + tail for tail in tails])]
            prompts = shared_prefix(whole_ids, within=self.bos + start.ids)
        return replace(prompts, shared_text=text, own_texts=tuple(tails), ends=ends, lead=self._lead)

    def _tails(self, piece: str, piece_ids: Ids | None, tails: Sequence[str]) -> tuple[Ids, ...] | None:
        """Ids of texts after a demonstration; None if a token would span a join.

        One demonstration is enough context: no tokenizer in use merges across a whole one.
        """
        if piece_ids is None:
            return None
        before = self._anchor + piece_ids
        together = self._tokenize([self.form.joint + piece + tail for tail in tails])
        if any(ids[: len(before)] != before for ids in together):
            return None
        return tuple(ids[len(before) :] for ids in together)

    def _clipped_ends(self, pieces: Sequence[str], prefix: int) -> tuple[int, ...]:
        """As :meth:`_ends`, but no end is after the shared prefix: the rest belongs to the query."""
        if not getattr(self._tokenizer, "is_fast", False):
            return ()
        return tuple(min(end, prefix) for end in self._ends(pieces, "".join(pieces)))


def parts(prompts: PromptSet, index: int, sink: int = 0) -> list[Ids]:
    """Ids of each of one prompt's demonstrations after the first ``sink``."""
    ids, ends = prompts.ids(index), prompts.ends_of(index)
    bounds = [prompts.lead, *ends]
    return [ids[start:end] for start, end in pairwise(bounds[sink:])]
