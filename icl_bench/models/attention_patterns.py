"""Attention patterns: which earlier tokens a token sees, in every layer.

The query sees every demonstration that its layer keeps. This module does not use models: a plan
counts keys by the same rules as a backend computes masks. So a pattern of another package is only a
subclass of :class:`Pattern` that is registered in
:data:`icl_bench.registry.ATTENTION_PATTERNS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar, Self

import numpy as np

from icl_bench.errors import UserError
from icl_bench.registry import ATTENTION_PATTERNS, PluginError
from icl_bench.wording import plain


@dataclass(frozen=True)
class ReceptiveSpan:
    """How far back one layer sees, ignoring blocks."""

    window: int | None = None
    """Tokens, including the token itself; None for full attention."""
    chunk: int | None = None
    """Tokens beyond the window are seen as means of ``chunk`` tokens; None if they are not seen."""

    def first(self, positions: np.ndarray) -> np.ndarray:
        """The first token in the window of each position: ``(positions,)``.

        With chunks, a window starts at the beginning of a chunk, so every token is in one of them.
        """
        if self.window is None:
            return np.zeros_like(positions)
        first: np.ndarray = np.maximum(positions - self.window + 1, 0)
        return first // self.chunk * self.chunk if self.chunk else first

    def kept(self, tokens: int) -> int:
        """How many keys of this number of tokens are kept: all that a later token may see."""
        if self.window is None:
            return tokens
        first = int(self.first(np.array([tokens]))[0])
        return tokens - first + (first // self.chunk if self.chunk else 0)


Ranges = tuple[tuple[int, int], ...]
"""Disjoint ranges of tokens ``[first, last)``, ascending."""


@dataclass(frozen=True)
class BlockLayout:
    """Which blocks the tokens of one prompt's demonstrations see.

    A token sees the keys ``[0, sink_end)`` and those from ``starts`` up to itself. ``starts`` is
    ``(tokens,)``, not decreasing, and 0 or at least ``sink_end``. Later tokens (the query) see all
    keys, or of the demonstrations only the ranges in ``read``.
    """

    starts: np.ndarray
    sink_end: int
    read: Ranges | None = None

    def first(self, positions: np.ndarray) -> np.ndarray:
        """The first token of the local blocks that each position sees: ``(positions,)``."""
        inside = positions < len(self.starts)
        first = np.zeros_like(positions)
        first[inside] = self.starts[positions[inside]]
        return first

    def begins(self, other: BlockLayout | None, tokens: int) -> bool:
        """Whether another layout is equal for the first ``tokens`` tokens."""
        mine = self.starts[:tokens]
        if other is None or not np.array_equal(mine, other.starts[:tokens]):
            return False
        return self.sink_end == other.sink_end or not mine.any()


def keys_seen(span: ReceptiveSpan, layout: BlockLayout | None, first: int, last: int) -> int:
    """The number of pairs of a token of ``[first, last)`` and a key that it sees (a chunk is one key)."""
    tokens = np.arange(first, last)
    window_start = span.first(tokens)
    first_local = window_start if layout is None else np.maximum(window_start, layout.first(tokens))
    count = tokens - first_local + 1
    if layout is not None:
        count += np.maximum(np.minimum(layout.sink_end, first_local) - window_start, 0)
    if span.chunk:
        count += window_start // span.chunk
    if layout is not None and layout.read is not None:
        queries, end = tokens >= len(layout.starts), len(layout.starts)
        bounds = [0, *(place for pair in layout.read for place in pair), end]
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):  # demonstrations that are not read
            count[queries] -= np.clip(stop - np.maximum(window_start, start), 0, None)[queries]
    return int(count.sum())


@dataclass(frozen=True)
class Pattern:
    """Base of all patterns, and the pattern ``full``: every token sees every earlier one.

    Backends and plans use only the members of this class. A pattern is a frozen data class.
    :meth:`parse` reads its ``str``, which names the pattern's cells.
    """

    name: ClassVar[str] = "full"
    """Its name in the registry, and the first word of its text."""
    written: ClassVar[str] = "full"
    """Its syntax, for messages."""
    blocks: ClassVar[bool] = False
    """Whether the ends of demonstrations are needed."""
    reads_vectors: ClassVar[bool] = False
    """Whether texts are read as vectors, by a model trained for this."""

    @staticmethod
    def parse(text: str) -> Pattern:
        """Parse a pattern: ``Pattern.parse(str(pattern)) == pattern``. Raises ``UserError``."""
        name, _, rest = text.strip().partition(":")
        if name not in ATTENTION_PATTERNS:
            raise UserError(f"--attention {plain(text)}: {ATTENTION_PATTERNS.unknown(name)}")
        kind: type[Pattern] = ATTENTION_PATTERNS[name]
        try:
            return kind.parse_words([word.strip() for word in rest.split(",")] if rest else [])
        except ValueError:
            raise UserError(f"--attention {plain(text)}: is written {kind.written}, with whole numbers") from None

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """Parse the words after the name and its colon, split at commas.

        Raises ``ValueError`` for wrong syntax (see ``written``), ``UserError`` for a value out of
        range.
        """
        if words:
            raise ValueError
        return cls()

    def __str__(self) -> str:
        return self.name

    def spans(self, windows: Sequence[int | None]) -> tuple[ReceptiveSpan, ...]:
        """The span of each layer, given the model's own windows."""
        return tuple(map(ReceptiveSpan, windows))

    def layout(self, ends: Sequence[int]) -> BlockLayout | None:  # noqa: ARG002
        """Which blocks the demonstrations of a prompt see; None if there are no blocks.

        ``ends`` are the ends of the demonstrations, in tokens of the prompt.
        """
        return None

    def read(self, ends: Sequence[int], similar: np.ndarray) -> Ranges | None:  # noqa: ARG002
        """The ranges of demonstration tokens that a query reads; None for all.

        ``ends`` is as for :meth:`layout`. ``similar`` is the similarity of each demonstration to
        the query, ``(demonstrations,)``, by the retriever ``compares``.
        """
        return None

    def read_blocks(self, similar: np.ndarray) -> tuple[int, ...] | None:  # noqa: ARG002
        """The blocks of demonstrations that a query reads, from 0; None for all of them.

        ``similar`` is as for :meth:`read`.
        """
        return None

    @property
    def compares(self) -> str | None:
        """The retriever whose similarity determines the demonstrations that a query reads; None if
        all queries read the same.
        """
        return None

    def check_shots(self, k: int) -> None:
        """Raise ``UserError`` if the pattern is impossible with k demonstrations."""

    def is_full(self, k: int) -> bool:  # noqa: ARG002
        """Whether the tokens of k demonstrations and of a query see all earlier ones, so that nothing differs from full
        attention. False if this depends on the lengths of texts.
        """
        return type(self) is Pattern

    def is_full_within(self, tokens: int) -> bool:
        """Whether each of so many tokens of a text sees all earlier ones, in any model."""
        spans = self.spans([None] * 100)  # groups have fewer layers
        last = np.array([max(tokens - 1, 0)])
        return not (self.blocks or self.reads_vectors or any(span.first(last).any() for span in spans))

    @property
    def reuses(self) -> bool:
        """Whether each demonstration is computed once and reused in all prompts."""
        return False

    @property
    def fewest_texts(self) -> int:
        """The smallest number of texts that can be read as vectors."""
        return 0

    def as_vectors(self, texts: int) -> int:  # noqa: ARG002
        """The number of ``texts`` (demonstrations, or a query's passages) that are read as vectors."""
        return 0

    @property
    def sink(self) -> int:
        """Blocks at a prompt's beginning that all others see (the attention sink)."""
        return 0

    def packed_query_limit(self, windows: Sequence[int | None]) -> int | None:
        """The maximum tokens of a query and its answer in one call; None for any number.

        If a layer sees means of chunks, all these tokens must be in one window. ``windows`` are the
        model's own.
        """
        spans = self.spans(windows)
        return min((span.window for span in spans if span.chunk and span.window), default=None)


FULL = Pattern()


@dataclass(frozen=True)
class Block(Pattern):
    """Blocks of demonstrations that see themselves, the first blocks and the preceding ones.

    Bertsch et al. 2025, section 5 and appendix F, figures 7 and 17. Positions are unchanged. Tokens
    before the first demonstration (BOS) belong to the first block.

    With ``top``, each query reads the sink, the last ``local`` blocks and those between them that
    are most similar to it (after the dynamic block-sparse attention of Xiao et al. 2025, arXiv
    2503.08640). A block's similarity is that of its most similar demonstration. On ties, the later block is read.
    """

    size: int
    """Demonstrations in a block."""
    sink: int = 1
    """The number of first blocks that all blocks see (the attention sink)."""
    local: int = 2
    """The number of preceding blocks that a block sees."""
    reuse: bool = False
    """Whether each demonstration is computed once, after the sink, and rotated to its position."""
    top: int | float | None = None
    """The number of other blocks that a query reads, or their share of all blocks, rounded up; None for all."""
    by: str = "bm25"
    """The retriever that compares demonstrations with a query."""
    name: ClassVar[str] = "block"
    blocks: ClassVar[bool] = True
    written: ClassVar[str] = "block:SIZE[,sink=1,local=2][,reuse] or block:SIZE[,sink=1,local=2],top=0.3[,by=bm25]"

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """See :meth:`Pattern.parse_words`."""
        size, *options = words or [""]
        named: dict[str, str] = {}
        reuse = "reuse" in options
        for option in options:
            name, _, value = option.partition("=")
            if option == "reuse" and options.count("reuse") == 1:
                continue
            if name not in ("sink", "local", "top", "by") or name in named or not value:
                raise ValueError
            named[name] = value
        local = whole_number(named.get("local", "0" if reuse else "2"))
        top = _number_or_share(named["top"]) if "top" in named else None
        if "by" in named and top is None:
            raise ValueError
        by = named.get("by", cls.by)
        return cls(whole_number(size), whole_number(named.get("sink", "1")), local, reuse, top, by)

    def __post_init__(self) -> None:
        _check_at_least(1, self, size=self.size)
        _check_at_least(0, self, sink=self.sink, local=self.local)
        if self.top is not None and not 0 < self.top <= (1 if isinstance(self.top, float) else 1e9):
            raise UserError(
                f"--attention {self}: top is a number of blocks from 1, or a share of them "
                "above 0 and up to 1.0, like 0.3"
            )
        if self.top is not None and self.reuse:
            raise UserError(
                f"--attention {self}: top chooses of demonstrations that all queries share, and "
                "reuse is for those that each query has of its own; leave one of them out"
            )
        if self.reuse and (self.size, self.local) != (1, 0):
            raise UserError(
                f"--attention {self}: a demonstration that is computed once for all prompts has no "
                "neighbours there; write block:1,reuse or block:1,sink=0,local=0,reuse"
            )
        if self.reuse and self.sink > 1:
            raise UserError(f"--attention {self}: with reuse the sink is one demonstration, or 0")

    def __str__(self) -> str:
        reuse = ",reuse" if self.reuse else ""
        top = "" if self.top is None else f",top={_top_text(self.top)}"
        by = "" if self.by == type(self).by else f",by={self.by}"
        return f"block:{self.size},sink={self.sink},local={self.local}{reuse}{top}{by}"

    def _bounds(self, ends: Sequence[int]) -> np.ndarray:
        """The starts of the blocks and the end of the last one: ``(blocks + 1,)``."""
        bounds = np.array([0, *ends[self.size - 1 :: self.size]], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        return np.append(bounds, total) if bounds[-1] < total else bounds

    def layout(self, ends: Sequence[int]) -> BlockLayout:
        """See :meth:`Pattern.layout`."""
        bounds = self._bounds(ends)
        count = len(bounds) - 1
        sink_end = int(bounds[min(self.sink, count)])
        first = bounds[np.maximum(np.arange(count) - self.local, 0)]
        first[first <= sink_end] = 0
        return BlockLayout(np.repeat(first, np.diff(bounds)), sink_end)

    def read(self, ends: Sequence[int], similar: np.ndarray) -> Ranges | None:
        """See :meth:`Pattern.read`."""
        blocks = self.read_blocks(similar)
        if blocks is None:
            return None
        bounds = self._bounds(ends)
        # the last blocks are empty if their demonstrations belong to the query
        is_read = np.isin(np.arange(len(bounds) - 1), blocks)[np.diff(bounds) > 0]
        cuts = np.flatnonzero(np.diff(np.concatenate([[False], is_read, [False]]).astype(int)))
        bounds = np.unique(bounds)
        return tuple((int(bounds[a]), int(bounds[b])) for a, b in cuts.reshape(-1, 2).tolist())

    def read_blocks(self, similar: np.ndarray) -> tuple[int, ...] | None:
        """See :meth:`Pattern.read_blocks`."""
        if self.top is None:
            return None
        scores = np.maximum.reduceat(similar, np.arange(0, len(similar), self.size))
        count = len(scores)
        between = np.arange(min(self.sink, count), max(count - self.local, min(self.sink, count)))
        later_first = between[::-1]
        ranked = later_first[np.argsort(-scores[later_first], kind="stable")]
        top = self.top if isinstance(self.top, int) else ceil(Fraction(str(self.top)) * count)
        unread = set(ranked[top:].tolist())
        return tuple(block for block in range(count) if block not in unread)

    def check_shots(self, k: int) -> None:
        """See :meth:`Pattern.check_shots`."""
        count = -(-k // self.size)
        if isinstance(self.top, int) and self.top > count:
            raise UserError(
                f"--attention {self}: k={k:,} has {count:,} blocks of {self.size:,}; ask for "
                f"top={count} at most, or for a share, like top=0.3"
            )

    def is_full(self, k: int) -> bool:
        """See :meth:`Pattern.is_full`."""
        read = self.read_blocks(np.zeros(k)) if k else None
        all_read = read is None or len(read) == -(-k // self.size)
        return not self.reuse and all_read and not self.layout(range(1, k + 1)).starts.any()

    @property
    def compares(self) -> str | None:
        """See :attr:`Pattern.compares`."""
        return None if self.top is None else self.by

    @property
    def reuses(self) -> bool:
        """See :attr:`Pattern.reuses`."""
        return self.reuse


@dataclass(frozen=True)
class Grouped(Pattern):
    """Groups of layers, of which the first layer sees all tokens and the others a window.

    Zebra (Song et al. 2023), section 2.1.1, equation 10. Layers with a window in the model keep it. The other layers
    form groups.
    """

    every: int
    """Layers in a group."""
    window: int
    """The window in tokens, including the token itself."""
    name: ClassVar[str] = "grouped"
    written: ClassVar[str] = "grouped:EVERY,WINDOW"

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """See :meth:`Pattern.parse_words`."""
        every, window = words
        return cls(whole_number(every), whole_number(window))

    def __post_init__(self) -> None:
        _check_at_least(1, self, EVERY=self.every, WINDOW=self.window)

    def __str__(self) -> str:
        return f"grouped:{self.every},{self.window}"

    def spans(self, windows: Sequence[int | None]) -> tuple[ReceptiveSpan, ...]:
        """See :meth:`Pattern.spans`."""
        spans, index = [], 0
        for window in windows:
            if window is None:
                spans.append(ReceptiveSpan(self.window if index % self.every else None))
                index += 1
            else:
                spans.append(ReceptiveSpan(window))
        return tuple(spans)


@dataclass(frozen=True)
class Approx(Pattern):
    """A window, and beyond it means of chunks of keys and values.

    Zebra, section 2.1.1, equations 8 and 9: ``ln(CHUNK)`` is added to the score of a mean, so its
    weight is that of CHUNK keys. A window starts at the beginning of a chunk. Layers with a window
    in the model keep it.
    """

    window: int
    chunk: int
    name: ClassVar[str] = "approx"
    written: ClassVar[str] = "approx:WINDOW,CHUNK"

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """See :meth:`Pattern.parse_words`."""
        window, chunk = words
        return cls(whole_number(window), whole_number(chunk))

    def __post_init__(self) -> None:
        _check_at_least(1, self, WINDOW=self.window, CHUNK=self.chunk)

    def __str__(self) -> str:
        return f"approx:{self.window},{self.chunk}"

    def spans(self, windows: Sequence[int | None]) -> tuple[ReceptiveSpan, ...]:
        """See :meth:`Pattern.spans`."""
        return tuple(ReceptiveSpan(w) if w else ReceptiveSpan(self.window, self.chunk) for w in windows)

    def packed_query_limit(self, windows: Sequence[int | None]) -> int:  # noqa: ARG002
        """See :meth:`Pattern.packed_query_limit`; the same for every model."""
        return self.window


@dataclass(frozen=True)
class Vectors(Pattern):
    """Reads some texts as one vector each, by a model that ``train-vectors`` trained.

    Vec-RA (Chen et al. 2024). Of k demonstrations, the first k - N are text, or under retrieval the
    k - N most similar ones. If a task's rows have passages, the first N passages are vectors.
    """

    count: int | None
    """The number of vectors; None for all texts."""
    name: ClassVar[str] = "vectors"
    reads_vectors: ClassVar[bool] = True
    written: ClassVar[str] = "vectors:N or vectors:all"

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """See :meth:`Pattern.parse_words`."""
        (count,) = words
        return cls(None if count == "all" else whole_number(count))

    def __post_init__(self) -> None:
        if self.count is not None:
            _check_at_least(1, self, N=self.count)

    def __str__(self) -> str:
        return f"vectors:{'all' if self.count is None else self.count}"

    @property
    def fewest_texts(self) -> int:
        """See :attr:`Pattern.fewest_texts`."""
        return self.count or 1

    def as_vectors(self, texts: int) -> int:
        """See :meth:`Pattern.as_vectors`."""
        return texts if self.count is None else min(self.count, texts)


def _check_at_least(least: int, pattern: Pattern, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise UserError(f"--attention {pattern}: {name} {value}; must be at least {least}")


def split(text: str) -> tuple[str, ...]:
    """Split a list of patterns at the commas before a pattern's name."""
    names = "|".join(map(re.escape, ATTENTION_PATTERNS.names))
    return tuple(part.strip() for part in re.split(rf",\s*(?=(?:{names})\b)", text.strip()))


def pattern_of(attention: str) -> Pattern | None:
    """Parse a stored pattern. None for the name of another kind of attention, or of a plugin that
    cannot be used.
    """
    try:
        return Pattern.parse(str(attention))
    except PluginError as error:
        ATTENTION_PATTERNS.warn_of(error)
        return None
    except UserError:
        return None


def _number_or_share(text: str) -> int | float:
    """Parse a number of blocks, or a share of them. Raises ``ValueError``."""
    if re.fullmatch(r"[0-9]{0,9}\.[0-9]{1,9}", text, re.ASCII):
        return float(text)
    return whole_number(text)


def _top_text(top: int | float) -> str:
    """The text of a number of blocks or a share, which :func:`_number_or_share` parses."""
    if isinstance(top, int):
        return str(top)
    text = f"{top:.9f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def whole_number(text: str) -> int:
    """Parse a number of a pattern. Raises ``ValueError``."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError
    return int(text)
