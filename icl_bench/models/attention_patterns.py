"""Attention patterns: how a model reads the demonstrations, and what that leaves to compute.

A pattern says, for every layer, which earlier tokens a token sees. The query always sees every
demonstration that its layer keeps. Nothing here touches a model: the same rules count the keys for
a plan and draw the masks of a backend. So a pattern of another package is a subclass of
:class:`Pattern` that is entered in :data:`icl_bench.registry.ATTENTION_PATTERNS`, and no more.
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
    """How far back one layer sees, blocks aside."""

    window: int | None = None
    """Tokens, the token itself included; None for all."""
    chunk: int | None = None
    """Tokens beyond the window are seen as means of so many; None: not at all."""

    def first(self, positions: np.ndarray) -> np.ndarray:
        """The first token that each of the positions sees by itself: ``(positions,)``.

        With chunks a window reaches back to the beginning of one, so that no token is in neither.
        """
        if self.window is None:
            return np.zeros_like(positions)
        first: np.ndarray = np.maximum(positions - self.window + 1, 0)
        return first // self.chunk * self.chunk if self.chunk else first

    def kept(self, tokens: int) -> int:
        """Keys that are kept of so many tokens: all that a later token may see."""
        if self.window is None:
            return tokens
        first = int(self.first(np.array([tokens]))[0])
        return tokens - first + (first // self.chunk if self.chunk else 0)


Ranges = tuple[tuple[int, int], ...]
"""Tokens ``[first, last)``, rising and apart from each other."""


@dataclass(frozen=True)
class Layout:
    """Which tokens of one prompt's demonstrations see which blocks.

    A token sees the keys ``[0, sink_end)`` and from ``starts`` on up to itself. ``starts`` is
    ``(tokens,)``, never falling, 0 or at least ``sink_end``; tokens behind it (the query) see all,
    or of the demonstrations the ``read`` ones.
    """

    starts: np.ndarray
    sink_end: int
    read: Ranges | None = None

    def first(self, positions: np.ndarray) -> np.ndarray:
        """The first token of the local blocks that each position sees: ``(positions,)``."""
        inside = positions < len(self.starts)
        found = np.zeros_like(positions)
        found[inside] = self.starts[positions[inside]]
        return found

    def begins(self, other: Layout | None, tokens: int) -> bool:
        """Whether another layout is the same for so many first tokens."""
        mine = self.starts[:tokens]
        if other is None or not np.array_equal(mine, other.starts[:tokens]):
            return False
        return self.sink_end == other.sink_end or not mine.any()


def keys_seen(span: ReceptiveSpan, layout: Layout | None, first: int, last: int) -> int:
    """Pairs of a token of ``[first, last)`` and a key that it sees in a layer (chunks: one key)."""
    tokens = np.arange(first, last)
    far = span.first(tokens)
    low = far if layout is None else np.maximum(far, layout.first(tokens))
    seen = tokens - low + 1
    if layout is not None:
        seen += np.maximum(np.minimum(layout.sink_end, low) - far, 0)
    if span.chunk:
        seen += far // span.chunk
    if layout is not None and layout.read is not None:
        queries, end = tokens >= len(layout.starts), len(layout.starts)
        bounds = [0, *(place for pair in layout.read for place in pair), end]
        for start, stop in zip(bounds[::2], bounds[1::2], strict=True):  # what is not read
            seen[queries] -= np.clip(stop - np.maximum(far, start), 0, None)[queries]
    return int(seen.sum())


@dataclass(frozen=True)
class Pattern:
    """Base of all patterns; by itself ``full``: every token sees every earlier one.

    A backend and a plan ask for nothing but what is defined here. A pattern is a frozen data class
    whose ``str`` :meth:`parse` reads back: it names the pattern's cells.
    """

    name: ClassVar[str] = "full"
    """The word that it begins with, as in the registry."""
    written: ClassVar[str] = "full"
    """How it is written, for messages."""

    @staticmethod
    def parse(text: str) -> Pattern:
        """Read one pattern: ``Pattern.parse(str(pattern)) == pattern``. Raises ``UserError``."""
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
        """Read what stands behind the name and its colon, split at commas.

        Raises ``ValueError`` where it is not as ``written`` says, ``UserError`` for a value that
        is none.
        """
        if words:
            raise ValueError
        return cls()

    def __str__(self) -> str:
        return self.name

    def spans(self, windows: Sequence[int | None]) -> tuple[ReceptiveSpan, ...]:
        """How far each layer sees, given the model's own windows."""
        return tuple(map(ReceptiveSpan, windows))

    def layout(self, ends: Sequence[int]) -> Layout | None:  # noqa: ARG002
        """Which blocks the demonstrations of a prompt see; None where there are no blocks.

        ``ends`` is where each demonstration ends, in tokens of the prompt.
        """
        return None

    def read(self, ends: Sequence[int], similar: np.ndarray) -> Ranges | None:  # noqa: ARG002
        """Which of the demonstrations' tokens a query reads; None for all.

        ``ends`` is as for :meth:`layout`, ``similar`` how similar each demonstration is to the
        query, ``(demonstrations,)``, by what ``compares`` names.
        """
        return None

    def read_blocks(self, similar: np.ndarray) -> tuple[int, ...] | None:  # noqa: ARG002
        """The blocks of demonstrations that a query reads, from 0; None for all of them.

        ``similar`` is as for :meth:`read`.
        """
        return None

    @property
    def compares(self) -> str | None:
        """The retriever by whose similarity each query reads a part of the demonstrations; None
        where all queries read the same.
        """
        return None

    def check_shots(self, k: int) -> None:
        """Raise ``UserError`` where so many demonstrations cannot be read so."""

    @property
    def blocks(self) -> bool:
        """Whether the demonstrations' ends matter."""
        return False

    @property
    def reuses(self) -> bool:
        """Whether each demonstration is computed once and put into prompts as it is."""
        return False

    @property
    def reads_vectors(self) -> bool:
        """Whether texts are read as vectors, by a model that was trained to."""
        return False

    @property
    def fewest_texts(self) -> int:
        """How many texts there must be to read as vectors."""
        return 0

    def as_vectors(self, texts: int) -> int:  # noqa: ARG002
        """How many of so many texts (demonstrations, or a query's passages) are read as vectors."""
        return 0

    @property
    def sink(self) -> int:
        """Blocks at a prompt's beginning that all others see (the attention sink)."""
        return 0

    def packed_query_limit(self, windows: Sequence[int | None]) -> int | None:
        """Tokens of a query, its answer included, that one call may compute; None for any number.

        Where a layer sees means of chunks, all of them must lie in one window. ``windows`` are the
        model's own.
        """
        spans = self.spans(windows)
        return min((span.window for span in spans if span.chunk and span.window), default=None)


FULL = Pattern()


@dataclass(frozen=True)
class Block(Pattern):
    """Blocks of demonstrations that see themselves, the first and the last before them.

    Bertsch et al. 2025, section 5 and appendix F, figures 7 and 17. Positions are unchanged, and
    what stands before the first demonstration (BOS) belongs to the first block.

    With ``top`` each query reads the sink, the last ``local`` blocks and of those between them the
    ones that are most similar to it (after the dynamic block-sparse attention of Xiao et al. 2025,
    arXiv 2503.08640). A block is as similar as the most similar of its demonstrations; of equally
    similar ones the later one is read.
    """

    size: int
    """Demonstrations in a block."""
    sink: int = 1
    """First blocks that all see (the attention sink)."""
    local: int = 2
    """Blocks that each sees before itself."""
    reuse: bool = False
    """Each demonstration is computed once, behind the sink, and rotated to its place."""
    top: int | float | None = None
    """How many blocks a query reads besides, or which share of all blocks, rounded up; None: all.
    """
    by: str = "bm25"
    """The retriever that says how similar a demonstration is to a query."""
    name: ClassVar[str] = "block"
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
        _at_least(1, self, size=self.size)
        _at_least(0, self, sink=self.sink, local=self.local)
        if self.top is not None and not 0 < self.top <= (1 if isinstance(self.top, float) else 1e9):
            raise UserError(
                f"--attention {self}: top is a number of blocks from 1 up, or a share of them "
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
        top = "" if self.top is None else f",top={_written(self.top)}"
        by = "" if self.by == type(self).by else f",by={self.by}"
        return f"block:{self.size},sink={self.sink},local={self.local}{reuse}{top}{by}"

    def _bounds(self, ends: Sequence[int]) -> np.ndarray:
        """Where blocks begin and the last one ends: ``(blocks + 1,)``."""
        bounds = np.array([0, *ends[self.size - 1 :: self.size]], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        return np.append(bounds, total) if bounds[-1] < total else bounds

    def layout(self, ends: Sequence[int]) -> Layout:
        """See :meth:`Pattern.layout`."""
        bounds = self._bounds(ends)
        count = len(bounds) - 1
        sink_end = int(bounds[min(self.sink, count)])
        first = bounds[np.maximum(np.arange(count) - self.local, 0)]
        first[first <= sink_end] = 0
        return Layout(np.repeat(first, np.diff(bounds)), sink_end)

    def read(self, ends: Sequence[int], similar: np.ndarray) -> Ranges | None:
        """See :meth:`Pattern.read`."""
        blocks = self.read_blocks(similar)
        if blocks is None:
            return None
        bounds = self._bounds(ends)
        # no token of the prompt begins in the last demonstrations where they are the query's
        kept = np.isin(np.arange(len(bounds) - 1), blocks)[np.diff(bounds) > 0]
        cuts = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]]).astype(int)))
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
        left = set(ranked[self._wanted(count) :].tolist())
        return tuple(block for block in range(count) if block not in left)

    def _wanted(self, count: int) -> int:
        """How many of so many blocks a query reads beside the sink and the last ones, if there are
        so many.
        """
        assert self.top is not None, "all of them"
        if isinstance(self.top, int):
            return self.top
        return ceil(Fraction(str(self.top)) * count)

    def check_shots(self, k: int) -> None:
        """See :meth:`Pattern.check_shots`."""
        count = -(-k // self.size)
        if isinstance(self.top, int) and self.top > count:
            raise UserError(
                f"--attention {self}: k={k:,} has {count:,} blocks of {self.size:,}; ask for "
                f"top={count} at most, or for a share, like top=0.3"
            )

    @property
    def compares(self) -> str | None:
        """See :attr:`Pattern.compares`."""
        return None if self.top is None else self.by

    @property
    def blocks(self) -> bool:
        """See :attr:`Pattern.blocks`."""
        return True

    @property
    def reuses(self) -> bool:
        """See :attr:`Pattern.reuses`."""
        return self.reuse


@dataclass(frozen=True)
class Grouped(Pattern):
    """Groups of layers of which the first sees all and the others a window.

    Zebra (Song et al. 2023), section 2.1.1, equation 10. Layers that have a window of their own
    keep it; groups are counted over the others.
    """

    every: int
    """Layers in a group."""
    window: int
    """Tokens that a layer with a window sees, the token itself included."""
    name: ClassVar[str] = "grouped"
    written: ClassVar[str] = "grouped:EVERY,WINDOW"

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """See :meth:`Pattern.parse_words`."""
        every, window = words
        return cls(whole_number(every), whole_number(window))

    def __post_init__(self) -> None:
        _at_least(1, self, EVERY=self.every, WINDOW=self.window)

    def __str__(self) -> str:
        return f"grouped:{self.every},{self.window}"

    def spans(self, windows: Sequence[int | None]) -> tuple[ReceptiveSpan, ...]:
        """See :meth:`Pattern.spans`."""
        found, place = [], 0
        for window in windows:
            if window is None:
                found.append(ReceptiveSpan(self.window if place % self.every else None))
                place += 1
            else:
                found.append(ReceptiveSpan(window))
        return tuple(found)


@dataclass(frozen=True)
class Approx(Pattern):
    """A window, and beyond it means of chunks of keys and values.

    Zebra, section 2.1.1, equations 8 and 9: ``ln(CHUNK)`` is added to the score of a mean, so that
    it weighs as many as it stands for. A window reaches back to the beginning of a chunk. Layers
    that have a window of their own keep it.
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
        _at_least(1, self, WINDOW=self.window, CHUNK=self.chunk)

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
    """Some texts are read as vectors, one each, by a model that ``train-vectors`` made.

    Vec-RA (Chen et al. 2024). Of k demonstrations the first k - N are text, or under retrieval the
    most similar ones; where a task's rows have passages, their first N are vectors.
    """

    count: int | None
    """How many; None for all."""
    name: ClassVar[str] = "vectors"
    written: ClassVar[str] = "vectors:N or vectors:all"

    @classmethod
    def parse_words(cls, words: Sequence[str]) -> Self:
        """See :meth:`Pattern.parse_words`."""
        (count,) = words
        return cls(None if count == "all" else whole_number(count))

    def __post_init__(self) -> None:
        if self.count is not None:
            _at_least(1, self, N=self.count)

    def __str__(self) -> str:
        return f"vectors:{'all' if self.count is None else self.count}"

    @property
    def reads_vectors(self) -> bool:
        """See :attr:`Pattern.reads_vectors`."""
        return True

    @property
    def fewest_texts(self) -> int:
        """See :attr:`Pattern.fewest_texts`."""
        return self.count or 1

    def as_vectors(self, texts: int) -> int:
        """See :meth:`Pattern.as_vectors`."""
        return texts if self.count is None else min(self.count, texts)


def _at_least(least: int, pattern: Pattern, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise UserError(f"--attention {pattern}: {name} {value}; must be at least {least}")


def split(text: str) -> tuple[str, ...]:
    """Split a list of patterns at the commas before a pattern's name."""
    names = "|".join(map(re.escape, ATTENTION_PATTERNS.names))
    return tuple(part.strip() for part in re.split(rf",\s*(?=(?:{names})\b)", text.strip()))


def pattern_of(attention: str) -> Pattern | None:
    """The pattern that this is the text of; None for the name of some other attention, or of a plugin
    that cannot be used.
    """
    try:
        return Pattern.parse(str(attention))
    except PluginError as error:
        ATTENTION_PATTERNS.warn_of(error)
        return None
    except UserError:
        return None


def _number_or_share(text: str) -> int | float:
    """Read a number of blocks, or a share of them. Raises ``ValueError``."""
    if re.fullmatch(r"[0-9]{0,9}\.[0-9]{1,9}", text, re.ASCII):
        return float(text)
    return whole_number(text)


def _written(top: int | float) -> str:
    """A number of blocks or a share as :func:`_number_or_share` reads it back."""
    if isinstance(top, int):
        return str(top)
    text = f"{top:.9f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def whole_number(text: str) -> int:
    """Read a number of a pattern. Raises ``ValueError``."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError
    return int(text)
