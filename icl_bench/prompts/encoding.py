"""Examples to text and token ids: the only place that builds a prompt.

A prompt is a list of token ids, built once and handed to a backend as it is. It always equals the
tokenization of its whole text (with BOS once in front, where the tokenizer has one), although the
shared demonstrations and the queries are tokenized apart: every join is checked, and where one
does not hold (a token would span it), the prompt is tokenized whole instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_bench.errors import UserError
from icl_bench.prompts.rendering import HasText, Message, PromptForm

if TYPE_CHECKING:
    from icl_bench.models.attention_patterns import Pattern, Ranges
    from icl_bench.models.tokenizers import Tokenizer

Ids = tuple[int, ...]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one cell: a shared prefix and what each query adds to it.

    ``prefix`` is shared by all; prompt ``i`` is ``prefix + suffixes[i]``.
    """

    prefix: Ids
    suffixes: tuple[Ids, ...]
    shared_text: str = ""
    """Text that all prompts begin with; it need not end where ``prefix`` ends."""
    own_texts: tuple[str, ...] = ()
    """What each prompt's text adds to it."""
    ends: tuple[tuple[int, ...], ...] = ()
    """Where each demonstration, its separator included, ends in a prompt, in tokens: one tuple for
    all prompts where the demonstrations are shared, one for each where they are not and it was
    asked for, else none."""
    lead: int = 0
    """Tokens before the first demonstration: BOS, or what a chat begins with."""
    vector_texts: tuple[tuple[str, ...], ...] = ()
    """Texts that each prompt has besides, to be read as vectors: one tuple for all prompts where
    they share them, else one for each; none where there are none."""
    similar: np.ndarray | None = field(default=None, repr=False, compare=False)
    """How similar each of the demonstrations that all share is to each query, ``(queries, k)``,
    where it decides what is read of them."""
    talk: Callable[[int], Sequence[Message]] | None = field(default=None, repr=False, compare=False)
    """The messages of each prompt that is a conversation."""

    def __len__(self) -> int:
        return len(self.suffixes)

    def ends_of(self, index: int) -> tuple[int, ...]:
        """Where the demonstrations of one prompt end."""
        return self.ends[0 if len(self.ends) == 1 else index]

    def vectors_of(self, index: int) -> tuple[str, ...]:
        """The texts that one prompt has as vectors."""
        if not self.vector_texts:
            return ()
        return self.vector_texts[0 if len(self.vector_texts) == 1 else index]

    def read_by(self, pattern: Pattern) -> tuple[Ranges | None, ...]:
        """Which tokens of the demonstrations each query reads; empty where all read the same."""
        if self.similar is None or pattern.compares is None:
            return ()
        return tuple(pattern.read(self.ends_of(i), row) for i, row in enumerate(self.similar))

    def with_vectors(self, texts: Sequence[tuple[str, ...]]) -> PromptSet:
        """The same prompts, each with texts of its own to be read as vectors.

        What a token becomes depends on the vectors that it sees: prompts that have different ones
        share no token.
        """
        if len(set(texts)) == 1:
            return replace(self, vector_texts=(texts[0],) if texts[0] else ())
        whole = tuple(self.ids(i) for i in range(len(self)))
        return replace(self, prefix=(), suffixes=whole, vector_texts=tuple(texts))

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return len(self.prefix) + max((len(s) for s in self.suffixes), default=0)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, the shared prefix counted once for each."""
        return len(self.prefix) * len(self.suffixes) + self.own_tokens

    @property
    def own_tokens(self) -> int:
        """Tokens of all suffixes: what is left to compute once the prefix is cached."""
        return sum(map(len, self.suffixes))

    def ids(self, index: int) -> Ids:
        """The whole prompt of one query."""
        return self.prefix + self.suffixes[index]

    def text(self, index: int) -> str:
        """The whole prompt of one query as text, without BOS."""
        return self.shared_text + self.own_texts[index]

    def messages(self, index: int) -> Sequence[Message]:
        """The prompt of one query as messages; plain text is one of the user's."""
        if self.talk is None:
            return [{"role": "user", "content": self.text(index)}]
        return self.talk(index)

    def hashes(self) -> list[str]:
        """SHA-256 (16 hex digits) of each prompt's ids, as little-endian 32-bit integers, and of
        the texts that are read as vectors behind them, where there are any.
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
    """Split off the longest common beginning, leaving each prompt at least one token of its own.

    ``within`` keeps to a beginning that these ids share too.
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
    """Demonstrations that prompts begin with, tokenized as one text."""

    ids: Ids
    sizes: np.ndarray | None
    """Tokens of the first n, ``(demonstrations + 1,)``; None where a token spans two of them."""
    behind: Sequence[Ids | None]
    """Each as it stands behind a separator; None where a token would span the join."""


class PromptEncoder:
    """Builds token ids of prompts of one form with one tokenizer."""

    def __init__(self, form: PromptForm, tokenizer: Tokenizer) -> None:
        """A form with special tokens writes BOS itself, where its model wants it."""
        self.form = form
        self._tokenizer: Any = tokenizer
        self._known: dict[str, Ids | None] = {}
        bos = None if form.has_special_tokens else tokenizer.bos_token_id
        self.bos: Ids = () if bos is None else (int(bos),)
        self._anchor, start = self._encode([form.joint, form.start])
        self._lead = len(self.bos) + len(start)

    def _tokens_before(self, text: str, cuts: Sequence[int]) -> np.ndarray:
        """How many tokens of a text begin before each of these places, in characters.

        Raises ``UserError`` for a tokenizer that does not tell where its tokens stand.
        """
        if not getattr(self._tokenizer, "is_fast", False):
            raise UserError(
                "--attention block: this model's tokenizer does not tell where its "
                "tokens stand in a text; it needs a tokenizer.json"
            )
        found = self._tokenizer(
            [text],
            add_special_tokens=False,
            split_special_tokens=not self.form.has_special_tokens,
            return_offsets_mapping=True,
            verbose=False,
        )
        return np.searchsorted([start for start, _ in found["offset_mapping"][0]], cuts)

    def _ends(self, pieces: Sequence[str], text: str) -> tuple[int, ...]:
        """Where demonstrations end in a prompt that begins with their pieces, in tokens.

        A token that spans the end of one belongs to it. Raises ``UserError`` as above.
        """
        before = self._tokens_before(text, np.cumsum([len(piece) for piece in pieces]).tolist())
        return tuple(len(self.bos) + int(n) for n in before)

    def _encode(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text alone, no special tokens but those that the form writes: text that looks
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
        """Ids of a whole prompt: BOS once, then its text."""
        return self.bos + self._encode([text])[0]

    def _after_separator(self, texts: Sequence[str]) -> list[Ids | None]:
        """Ids of texts as they stand behind a joint; None where a token would span the join."""
        new = [t for t in dict.fromkeys(texts) if t not in self._known]
        self._known.update(zip(new, self._after(self.form.joint, new), strict=True))
        return [self._known[t] for t in texts]

    def demonstrations(self, examples: Sequence[HasText]) -> list[str]:
        """Text of each demonstration with the joint behind it."""
        return [self.form.demonstration(example) for example in examples]

    def _talk(
        self, demonstrations: Sequence[Sequence[HasText]], queries: Sequence[HasText]
    ) -> Callable[[int], Sequence[Message]] | None:
        """Messages of each prompt, made when they are asked for."""
        if not self.form.has_special_tokens:
            return None
        return lambda index: self.form.messages(demonstrations[index], queries[index])

    def _begun(self, pieces: list[str]) -> list[str]:
        """Pieces that prompts begin with: what stands before the first demonstration is its."""
        return [self.form.start + pieces[0], *pieces[1:]] if pieces else []

    def demonstration_lengths(self, examples: Sequence[HasText]) -> np.ndarray:
        """Tokens of each demonstration with its separator, as it stands inside a prompt.

        Returns an ``(examples,)`` integer array.
        """
        pieces = self.demonstrations(examples)
        joined = zip(self._after_separator(pieces), pieces, strict=True)
        return np.array([len(ids or self._encode([piece])[0]) for ids, piece in joined], dtype=int)

    def lesson(self, examples: Sequence[HasText]) -> tuple[Ids, tuple[int, ...], list[tuple[int, int]]]:
        """Demonstrations one behind another, to learn from: ids with BOS, where each ends, and
        where each one's answer with its end begins and ends, in tokens.

        A token that spans the beginning of an answer belongs to it. Raises ``UserError`` for a
        form that cannot be put together of pieces, and for a tokenizer that does not tell where
        its tokens stand.
        """
        pieces = self._begun(self.demonstrations(examples))
        if not self.form.is_pieced(examples, ()):
            raise UserError(
                "demonstrations to learn from must not depend on each other; this task's template writes them together"
            )
        text = "".join(pieces)
        ends = np.cumsum([len(piece) for piece in pieces])
        asked = [len(self.form.query(example)) for example in examples]
        begins = [0, *ends[:-1].tolist()]
        begins[:1] = [len(self.form.start)]
        starts = [begin + size for begin, size in zip(begins, asked, strict=True)]
        ids = self.whole(text)
        lead = len(self.bos)
        # the token that begins before a place and ends behind it spans it
        before = self._tokens_before(text, [*(start + 1 for start in starts), *ends.tolist()])
        first = [lead + int(n) - 1 for n in before[: len(starts)]]
        last = [lead + int(n) for n in before[len(starts) :]]
        return ids, tuple(last), list(zip(first, last, strict=True))

    def answers(self, answers: Sequence[str]) -> list[Ids]:
        """Ids of each answer with its end, as it continues a query.

        Where a token would span the query's end and the answer, the answer is tokenized as it
        stands at the beginning of a line.
        """
        texts = [self.form.answer(answer) for answer in answers]
        behind_query = self._after(self.form.before_answer, texts)
        on_a_line = self._after("\n", texts)
        alone = self._encode(texts)
        return [a or b or c for a, b, c in zip(behind_query, on_a_line, alone, strict=True)]

    @property
    def ending_token(self) -> int | None:
        """The special token that ends answers, where one does."""
        if not self.form.has_special_tokens:
            return None
        last = int(self._encode([self.form.answer("a")])[0][-1])
        added = self._tokenizer.added_tokens_decoder.get(last)
        return last if added is not None and added.special else None

    def _after(self, start: str, texts: Sequence[str]) -> list[Ids | None]:
        """Ids of texts as they stand after ``start``; None where a token would span the join."""
        anchor, *joined = self._encode([start, *(start + text for text in texts)])
        size = len(anchor)
        return [ids[size:] if ids[:size] == anchor else None for ids in joined]

    def own_prompts(
        self, demonstrations: Sequence[Sequence[HasText]], queries: Sequence[HasText], ends: bool = False
    ) -> PromptSet:
        """Prompts in which every query has demonstrations of its own (retrieval).

        With ``ends``, it is told where each demonstration ends.
        """
        prompts = zip(demonstrations, queries, strict=True)
        if not all(self.form.is_pieced(shown, [query]) for shown, query in prompts):
            return self._rendered_whole(demonstrations, queries)
        pieces = [self._begun(self.demonstrations(shown)) for shown in demonstrations]
        tails = [self.form.query(query) for query in queries]
        texts = ["".join(shown or [self.form.start]) + end for shown, end in zip(pieces, tails, strict=True)]
        found = shared_prefix([self.bos + ids for ids in self._encode(texts)])
        where: list[tuple[int, ...]] = []
        if ends:
            where = [self._ends(p, text) for p, text in zip(pieces, texts, strict=True)]
        return replace(
            found, own_texts=tuple(texts), ends=tuple(where), lead=self._lead, talk=self._talk(demonstrations, queries)
        )

    def shared_prompts(
        self, demonstrations: Sequence[HasText], shots: Sequence[int], queries: Sequence[HasText]
    ) -> dict[int, PromptSet]:
        """Prompts for several k over one list of demonstrations: k uses the first k of it.

        As long as every join holds, every demonstration is tokenized once, whatever the number of
        shots, and the prefix of a smaller k is a prefix of a larger one's, so that a cache can be
        extended from one to the next; that of k=0 is what the queries begin with alike.
        """
        demonstrations = demonstrations[: max(shots)]
        if not self.form.is_pieced(demonstrations, queries):
            of = {k: [demonstrations[:k]] * len(queries) for k in shots}
            return {k: self._rendered_whole(shown, queries) for k, shown in of.items()}
        pieces = self._begun(self.demonstrations(demonstrations))
        tails = [self.form.query(query) for query in queries]
        start = self._start(pieces)
        result: dict[int, PromptSet] = {}
        for k in shots:
            if k == 0:
                result[k] = self.own_prompts([[] for _ in queries], queries)
                continue
            found = self._joined(pieces[:k], start, tails)
            if not found.ends:
                where = self._clipped_ends(pieces[:k], len(found.prefix))
                found = replace(found, ends=(where,))
            talk = self._talk([demonstrations[:k]] * len(queries), queries)
            result[k] = replace(found, talk=talk)
        return result

    def mixed_prompts(
        self,
        shared: Sequence[HasText],
        own: Sequence[Sequence[HasText]],
        queries: Sequence[HasText],
        ends: bool = False,
    ) -> PromptSet:
        """Prompts that begin with shared demonstrations, followed by some of each query's own.

        As long as every join holds, the prefix is the shared ones, tokenized once. With ``ends``,
        it is told where each prompt's demonstrations end.
        """
        if not shared:
            return self.own_prompts(own, queries, ends)
        shown_to = [[*shared, *shown] for shown in own]
        if not all(self.form.is_pieced(d, [q]) for d, q in zip(shown_to, queries, strict=True)):
            return self._rendered_whole(shown_to, queries)
        pieces = self._begun(self.demonstrations(shared))
        behind = [self.demonstrations(shown) for shown in own]
        pairs = zip(behind, queries, strict=True)
        tails = ["".join([*shown, self.form.query(q)]) for shown, q in pairs]
        found = self._joined(pieces, self._start(pieces), tails)
        found = replace(found, talk=self._talk(shown_to, queries))
        if not ends:
            return replace(found, ends=())
        where = [self._ends([*pieces, *shown], found.text(i)) for i, shown in enumerate(behind)]
        return replace(found, ends=tuple(where))

    def _rendered_whole(self, demonstrations: Sequence[Sequence[HasText]], queries: Sequence[HasText]) -> PromptSet:
        """Prompts that cannot be put together of pieces: each rendered and tokenized by itself.

        What they share is found in their ids; where demonstrations end is not known.
        """
        texts = [self.form.whole(d, q) for d, q in zip(demonstrations, queries, strict=True)]
        found = shared_prefix([self.bos + ids for ids in self._encode(texts)])
        return replace(found, own_texts=tuple(texts), lead=len(self.bos), talk=self._talk(demonstrations, queries))

    def _start(self, pieces: Sequence[str]) -> _Start:
        """Tokenize demonstrations that all prompts begin with."""
        behind = self._after_separator(pieces)
        (whole,) = self._encode(["".join(pieces)])
        parts = [*self._encode(pieces[:1]), *(ids or () for ids in behind[1:])]
        exact = tuple(chain.from_iterable(parts)) == whole
        return _Start(whole, np.cumsum([0, *map(len, parts)]) if exact else None, behind)

    def _joined(self, pieces: Sequence[str], start: _Start, tails: Sequence[str]) -> PromptSet:
        """Prompts of the first pieces of a start, each followed by a tail of its own.

        ``ends`` are those of the pieces, none where the prompts had to be tokenized whole.
        """
        text, count = "".join(pieces), len(pieces)
        where: tuple[tuple[int, ...], ...] = ()
        behind = self._tails(pieces[-1], start.behind[count - 1], tails)
        if start.sizes is not None and behind is not None:
            sizes = start.sizes[: count + 1]
            found = PromptSet(self.bos + start.ids[: sizes[-1]], behind)
            where = (tuple(int(n) for n in len(self.bos) + sizes[1:]),)
        else:
            prompts = [self.bos + ids for ids in self._encode([text + tail for tail in tails])]
            found = shared_prefix(prompts, within=self.bos + start.ids)
        return replace(found, shared_text=text, own_texts=tuple(tails), ends=where, lead=self._lead)

    def _tails(self, piece: str, piece_ids: Ids | None, tails: Sequence[str]) -> tuple[Ids, ...] | None:
        """Ids of texts as they stand behind a demonstration; None where a token would span a join.

        Looks one demonstration back: no tokenizer in use merges across a whole demonstration.
        """
        if piece_ids is None:
            return None
        before = self._anchor + piece_ids
        together = self._encode([self.form.joint + piece + tail for tail in tails])
        if any(ids[: len(before)] != before for ids in together):
            return None
        return tuple(ids[len(before) :] for ids in together)

    def _clipped_ends(self, pieces: Sequence[str], prefix: int) -> tuple[int, ...]:
        """As :meth:`_ends`, none behind the shared prefix: what is not shared is the query's."""
        if not getattr(self._tokenizer, "is_fast", False):
            return ()
        return tuple(min(end, prefix) for end in self._ends(pieces, "".join(pieces)))


def parts(prompts: PromptSet, index: int, sink: int = 0) -> list[Ids]:
    """Ids of one prompt's demonstrations behind the first ``sink`` of them."""
    ids, ends = prompts.ids(index), prompts.ends_of(index)
    bounds = [prompts.lead, *ends]
    return [ids[start:end] for start, end in pairwise(bounds[sink:])]
