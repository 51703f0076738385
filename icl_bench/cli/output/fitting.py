"""Tables that fit the terminal: no line is too long, and no name, number or heading is broken.

What all rows have in common stands in the title. Where that is not enough, a table becomes one for
each value of its first names, names are folded behind a comma, a dash or a slash, columns without a
value and long reasons stand below, and at last its columns are shared out among several tables. Of
the ways that fit, the one with the fewest lines is taken; numbers are never folded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich import box
from rich.cells import cell_len, chop_cells
from rich.table import Table
from rich.text import Text

from icl_bench.cli.output.tables import print_lines
from icl_bench.escaping import visible
from icl_bench.wording import DASH, counted

if TYPE_CHECKING:
    from rich.console import Console

Cell = str | Text


@dataclass(frozen=True)
class Head:
    """The head of a column, and what may become of the column where there is little room."""

    title: str
    """Broken at its spaces, where the column is narrower."""
    role: Literal["name", "key", "count", "value", "text"] = "value"
    """``name``: text that tells rows apart: in the title where it is constant, folded, split by.
    ``key``: a number that does, like k. ``count``: a number of no great interest, in the title
    where it is constant and there is little room. ``value``: what the table is about. ``text``:
    words about it, which are folded.
    """
    bare: bool = False
    """Whether a title says the value alone: ``trec`` instead of ``task trec``."""
    usual: Sequence[str] = ()
    """Values that need no mention where all rows have them."""
    below: bool = False
    """Whether its texts may stand below the table, with a number in the column for each."""

    @property
    def folds(self) -> bool:
        """Whether its cells may have several lines."""
        return self.role in ("name", "text")

    def told(self, value: str) -> str:
        """What a title says of a value that all rows have."""
        return value if self.bare else f"{_words(self.title)} {value}"


BREAKS = re.compile(r"(?<=\s)(?=\S)|(?<=,)(?=[^\d\s])|(?<=[^\d],)(?=\d)|(?<=\w[/+])(?=[^\W\d])|(?<=\w-)(?<!\de-)(?=\w)")
"""Where a text may go on in the next line: behind a space, comma, slash, plus or dash, but not
within a number, as in 1,000, 1/2 and 1e-3."""


def pieces(text: str) -> list[str]:
    """What of a text stays together."""
    return BREAKS.split(text)


def folded(text: str, width: int) -> str:
    """A text with lines of at most so many columns, broken at spaces.

    Within a word it is broken where the word has no room by itself: between its pieces, and a piece
    that has none anywhere.
    """
    lines = []
    for line in text.split("\n"):
        now = ""
        for word in re.split(r"(?<=\s)(?=\S)", line):
            for piece in pieces(word) if _wide(word) > width else [word]:
                if now and _wide(now + piece) > width:
                    lines.append(now.rstrip())
                    now = ""
                *whole, now = chop_cells(piece, width) if _wide(piece) > width else [now + piece]
                lines += whole
        lines.append(now.rstrip())
    return "\n".join(lines)


def _wide(text: str) -> int:
    return cell_len(text.rstrip())


class Block(NamedTuple):
    """Some columns of a part, side by side, with rows that fit."""

    heads: list[Head]
    widths: list[int]
    rows: list[list[Cell]]

    @property
    def lines(self) -> int:
        """Of heads, the rule, rows and the empty line below."""
        heads = max(
            (folded(_words(h.title), w).count("\n") for h, w in zip(self.heads, self.widths, strict=True)), default=0
        )
        return heads + 3 + sum(self._lines(row) for row in self.rows)

    @staticmethod
    def _lines(row: list[Cell]) -> int:
        """Of a row; one that is folded counts twice, as it reads worse than another table."""
        return 1 + 2 * max(str(cell).count("\n") for cell in row)


class Part(NamedTuple):
    """A table of its own, with what its title says of all its rows."""

    told: list[str]
    blocks: list[Block]


class Fitted(NamedTuple):
    """A way to print a table."""

    parts: list[Part]
    notes: list[str]

    @property
    def lines(self) -> int:
        """How many it takes, more or less."""
        blocks = sum(block.lines for part in self.parts for block in part.blocks)
        return len(self.parts) + blocks + len(self.notes)


def print_table(
    console: Console,
    heads: Sequence[Head],
    rows: Sequence[Sequence[Cell]],
    *,
    heading: str = "",
    names: Sequence[str] = (),
    splits: int | None = None,
) -> None:
    """Print a table of strings that fits the console.

    ``heading`` stands above it, and ``names`` begin the title of each of its parts. It is split by
    the first ``splits`` names at most, by default by all: more would tear an order of rows.
    """
    if heading:
        console.print(heading, style="bold")
    fit = fitted(heads, rows, console.width, splits)
    for part in fit.parts:
        if said := " · ".join([*names, *part.told]):
            console.print(said, style="" if heading else "bold")
        for block in part.blocks:
            console.print(_rich(block))
            console.print()
    print_lines(console, *fit.notes)


def fitted(heads: Sequence[Head], rows: Sequence[Sequence[Cell]], width: int, splits: int | None = None) -> Fitted:
    """The way to print a table within so many columns: the shortest of those that break nothing."""
    whole = _Columns.of(heads, rows)
    *_, last = levels = list(_levels(whole))
    if all(head.role in ("name", "key") for head in last.heads) and last.notes:
        return Fitted([], [f"{counted(len(rows), 'point')}; {last.notes[0]}"])
    names = sum(head.role == "name" for head in whole.heads)
    most = 1 + (names if splits is None else splits)
    ways = [
        (way, level, split)
        for level, prepared in enumerate(levels)
        for split in range(most)
        if (way := _arranged(prepared, split, width, several=False)) is not None
    ]
    if not ways:
        ways = [
            (way, 0, split) for split in range(most) if (way := _arranged(last, split, width, several=True)) is not None
        ]
    return min(ways, key=lambda way: (way[0].lines, *way[1:]))[0]


@dataclass(frozen=True)
class _Columns:
    """The columns that are to be printed, and what was taken out of them."""

    heads: list[Head]
    columns: list[list[Cell]]
    hoists: bool = False
    """Whether constant counts are told in titles, too."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, heads: Sequence[Head], rows: Sequence[Sequence[Cell]]) -> _Columns:
        """Without what is usual in all rows."""
        columns = [[_shown(cell) for cell in column] for column in zip(*rows, strict=True)]
        columns = columns or [[] for _ in heads]
        kept = [
            at
            for at, head in enumerate(heads)
            if not (head.usual and {*map(str, columns[at])} <= {*head.usual} and len({*map(str, columns[at])}) == 1)
        ]
        return cls([heads[at] for at in kept], [columns[at] for at in kept])

    def without_empty(self) -> _Columns:
        """Without columns that have no value, which a note names."""
        empty = [
            at
            for at, (head, column) in enumerate(zip(self.heads, self.columns, strict=True))
            if head.role in ("value", "count", "text") and {*map(str, column)} <= {"", DASH}
        ]
        if not empty or len(empty) == len(self.heads):
            return self
        named = "; ".join(_words(self.heads[at].title) for at in empty)
        kept = [at for at in range(len(self.heads)) if at not in empty]
        return replace(
            self,
            heads=[self.heads[at] for at in kept],
            columns=[self.columns[at] for at in kept],
            notes=(*self.notes, f"no row has a value of: {named}"),
        )

    def with_legends(self) -> _Columns:
        """With numbers for texts that may stand below."""
        columns, notes = list(self.columns), list(self.notes)
        for at, head in enumerate(self.heads):
            if not head.below:
                continue
            texts = list(dict.fromkeys(map(str, columns[at])))
            number = {t: str(n) for n, t in enumerate((t for t in texts if t not in ("", DASH)), 1)}
            columns[at] = [number.get(str(cell), cell) for cell in columns[at]]
            notes += [f"{_words(head.title)} {n}: {text}" for text, n in number.items()]
        return replace(self, columns=columns, notes=tuple(notes))


def _shown(cell: Cell) -> Cell:
    if isinstance(cell, Text):
        return Text(visible(cell.plain).expandtabs(), cell.style)
    return visible(cell).expandtabs()


def _words(title: str) -> str:
    return " ".join(title.split())


def _levels(whole: _Columns) -> Iterator[_Columns]:
    """The table with more and more of it told elsewhere."""
    yield whole
    yield (tight := replace(whole.without_empty(), hoists=True))
    yield tight.with_legends()


def _arranged(table: _Columns, split: int, width: int, *, several: bool) -> Fitted | None:
    """The table split by so many of its varying names; None where that does not fit.

    With ``several`` its columns may be shared out among blocks, so that it does.
    """
    texts = [[str(cell) for cell in column] for column in table.columns]
    names = [at for at, head in enumerate(table.heads) if head.role == "name" and len(set(texts[at])) > 1]
    if split > len(names):
        return None
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in range(len(texts[0]) if texts else 0):
        groups.setdefault(tuple(texts[at][row] for at in names[:split]), []).append(row)
    told = [
        at
        for at, head in enumerate(table.heads)
        if (head.role == "name" or (table.hoists and head.role in ("count", "key")))
        and all(len({texts[at][row] for row in rows}) == 1 for rows in groups.values())
    ]
    if len(told) == len(table.heads):
        told = told[:-1]
    kept = [at for at in range(len(table.heads)) if at not in told]
    heads = [table.heads[at] for at in kept]
    parts = []
    for rows in groups.values():
        columns = [[table.columns[at][row] for row in rows] for at in kept]
        blocks = _blocks(heads, columns, width) if several else _block(heads, columns, width)
        if blocks is None:
            return None
        said = [table.heads[at].told(texts[at][rows[0]]) for at in told]
        parts.append(Part(said, blocks))
    return Fitted(parts, list(table.notes))


GAP = 2
"""Between columns."""


def _block(heads: list[Head], columns: list[list[Cell]], width: int) -> list[Block] | None:
    """All columns side by side, names folded as far as needed; None where that is too wide."""
    widths = [_natural(head, column) for head, column in zip(heads, columns, strict=True)]
    room = width - GAP * (len(heads) - 1)
    if sum(widths) > room:
        least = [_least(head, column) for head, column in zip(heads, columns, strict=True)]
        if sum(least) > room:
            return None
        while sum(widths) > room:
            at = max((at for at in range(len(heads)) if widths[at] > least[at]), key=widths.__getitem__)
            widths[at] -= 1
    return [_laid(heads, columns, widths)]


def _blocks(heads: list[Head], columns: list[list[Cell]], width: int) -> list[Block]:
    """The columns shared out among blocks, each of which begins with what tells rows apart."""
    least = [
        min(_least(head, column), width // 2) if head.folds else _least(head, column)
        for head, column in zip(heads, columns, strict=True)
    ]
    first = [at for at, head in enumerate(heads) if head.role in ("name", "key")]
    shared: list[list[int]] = [[]]
    for at in range(len(heads)):
        if at in first:
            continue
        taken = [*first, *shared[-1], at]
        if shared[-1] and sum(least[i] for i in taken) + GAP * (len(taken) - 1) > width:
            shared.append([])
        shared[-1].append(at)
    found = []
    for places in shared:
        of = sorted([*first, *places])
        some = [heads[at] for at in of], [columns[at] for at in of]
        fit = _block(*some, width)
        found += fit if fit else [_laid(*some, [least[at] for at in of])]
    return found


def _laid(heads: list[Head], columns: list[list[Cell]], widths: list[int]) -> Block:
    """Rows with names folded to these widths."""
    laid = [
        [_folded(cell, width) for cell in column] if head.folds else column
        for head, column, width in zip(heads, columns, widths, strict=True)
    ]
    return Block(heads, widths, [list(row) for row in zip(*laid, strict=True)])


def _folded(cell: Cell, width: int) -> Cell:
    if isinstance(cell, Text):
        return Text(folded(cell.plain, width), cell.style)
    return folded(cell, width)


def _natural(head: Head, column: list[Cell]) -> int:
    return _widest(head, column, lambda line: [line])


def _least(head: Head, column: list[Cell]) -> int:
    return _widest(head, column, pieces if head.folds else lambda line: [line])


def _widest(head: Head, column: list[Cell], parts: Callable[[str], list[str]]) -> int:
    lines = {line for cell in column for line in str(cell).split("\n")}
    cells = (_wide(piece) for line in lines for piece in parts(line))
    return max([*map(cell_len, head.title.split()), *cells], default=0)


def _rich(block: Block) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head, width in zip(block.heads, block.widths, strict=True):
        table.add_column(
            folded(_words(head.title), width),
            justify="left" if head.folds else "right",
            min_width=width,
            no_wrap=True,
            overflow="fold",
        )
    for row in block.rows:
        table.add_row(*row)
    return table
