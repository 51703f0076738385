"""Tables that fit the terminal: no line is too long, and no name, number or heading is broken.

Values that all rows share are in the title. If that is not enough, a table is split by the values of
its first names, names are folded after a comma, a dash or a slash, empty columns and long reasons are
listed below, and finally columns are distributed over several tables. Of all layouts that fit, the
one with the fewest lines is used; numbers are never folded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icl_bench.cli.output.tables import print_lines
from icl_bench.escaping import visible
from icl_bench.wording import DASH, counted

TableCell = str | Text


@dataclass(frozen=True)
class ColumnHead:
    """The head of a column, and how the column may shrink."""

    title: str
    """Wrapped at spaces if the column is narrower."""
    role: Literal["name", "key", "count", "value", "text"] = "value"
    """``name``: text that distinguishes rows; in the title if constant, may be folded or split by.
    ``key``: a number that distinguishes rows, like k. ``count``: a minor number; in the title if
    constant and there is little room. ``value``: a result. ``text``: words about a result, which may
    be folded.
    """
    bare: bool = False
    """Whether titles show the value alone: ``trec`` instead of ``task trec``."""
    usual: Sequence[str] = ()
    """Values that are not shown if all rows have them."""
    below: bool = False
    """Whether its texts may move below the table, replaced by numbers."""

    @property
    def folds(self) -> bool:
        """Whether its cells may have several lines."""
        return self.role in ("name", "text")

    def in_title(self, value: str) -> str:
        """A value that all rows share, as shown in a title."""
        return value if self.bare else f"{_words(self.title)} {value}"


BREAKS = re.compile(r"(?<=\s)(?=\S)|(?<=,)(?=[^\d\s])|(?<=[^\d],)(?=\d)|(?<=\w[/+])(?=[^\W\d])|(?<=\w-)(?<!\de-)(?=\w)")
"""Where a text may be wrapped: after a space, comma, slash, plus or dash, but not within a number, as
in 1,000, 1/2 and 1e-3."""


def pieces(text: str) -> list[str]:
    """The parts of a text that are not broken."""
    return BREAKS.split(text)


def folded(text: str, width: int) -> str:
    """A text wrapped at spaces to lines of at most ``width`` columns.

    A word that is too long is broken between its pieces, and a piece that is too long anywhere.
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


class ColumnBlock(NamedTuple):
    """Columns of a subtable, side by side, with rows that fit."""

    heads: list[ColumnHead]
    widths: list[int]
    rows: list[list[TableCell]]

    @property
    def lines(self) -> int:
        """Lines of heads, the rule, rows and the empty line below."""
        heads = max(
            (folded(_words(h.title), w).count("\n") for h, w in zip(self.heads, self.widths, strict=True)), default=0
        )
        return heads + 3 + sum(self._lines(row) for row in self.rows)

    @staticmethod
    def _lines(row: list[TableCell]) -> int:
        """Lines of a row; folded lines count twice, because they are harder to read than another table."""
        return 1 + 2 * max(str(cell).count("\n") for cell in row)


class Subtable(NamedTuple):
    """A separate table, with the values that all its rows share."""

    constants: list[str]
    blocks: list[ColumnBlock]


class Fitted(NamedTuple):
    """A layout of a table."""

    parts: list[Subtable]
    notes: list[str]

    @property
    def lines(self) -> int:
        """Approximate number of lines."""
        blocks = sum(block.lines for part in self.parts for block in part.blocks)
        return len(self.parts) + blocks + len(self.notes)


def print_table(
    console: Console,
    heads: Sequence[ColumnHead],
    rows: Sequence[Sequence[TableCell]],
    *,
    above: str = "",
    heading: str = "",
    names: Sequence[str] = (),
    splits: int | None = None,
) -> None:
    """Print a table of strings that fits the console.

    ``heading`` is printed above it, ``above`` before that, and ``names`` begin the title of each subtable. The table is
    split by at most the first ``splits`` names (default: all); a further split would break the order of rows.
    """
    fit = fitted(heads, rows, console.width, splits)  # takes a while, and Ctrl-C must not leave an empty heading
    if above:
        console.print(above, style="bold underline")
    if heading:
        console.print(heading, style="bold")
    for part in fit.parts:
        if title := " · ".join([*names, *part.constants]):
            console.print(title, style="" if heading else "bold")
        for block in part.blocks:
            console.print(_rich(block))
            console.print()
    print_lines(console, *fit.notes)


def fitted(
    heads: Sequence[ColumnHead], rows: Sequence[Sequence[TableCell]], width: int, splits: int | None = None
) -> Fitted:
    """The shortest layout of a table within ``width`` columns that breaks nothing."""
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
    """The columns to print, and notes about removed ones."""

    heads: list[ColumnHead]
    columns: list[list[TableCell]]
    hoists: bool = False
    """Whether titles show constant counts, too."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, heads: Sequence[ColumnHead], rows: Sequence[Sequence[TableCell]]) -> _Columns:
        """The columns, without those that have a usual value in all rows."""
        columns = [[_shown(cell) for cell in column] for column in zip(*rows, strict=True)]
        columns = columns or [[] for _ in heads]
        kept = [
            at
            for at, head in enumerate(heads)
            if not (head.usual and {*map(str, columns[at])} <= {*head.usual} and len({*map(str, columns[at])}) == 1)
        ]
        return cls([heads[at] for at in kept], [columns[at] for at in kept])

    def without_empty(self) -> _Columns:
        """Remove empty columns, which a note names."""
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
            notes=(*self.notes, f"empty columns omitted: {named}"),
        )

    def with_legends(self) -> _Columns:
        """Replace texts that may move below the table by numbers."""
        columns, notes = list(self.columns), list(self.notes)
        for at, head in enumerate(self.heads):
            if not head.below:
                continue
            texts = list(dict.fromkeys(map(str, columns[at])))
            number = {t: str(n) for n, t in enumerate((t for t in texts if t not in ("", DASH)), 1)}
            columns[at] = [number.get(str(cell), cell) for cell in columns[at]]
            notes += [f"{_words(head.title)} {n}: {text}" for text, n in number.items()]
        return replace(self, columns=columns, notes=tuple(notes))


def _shown(cell: TableCell) -> TableCell:
    if isinstance(cell, Text):
        return Text(visible(cell.plain).expandtabs(), cell.style)
    return visible(cell).expandtabs()


def _words(title: str) -> str:
    return " ".join(title.split())


def _levels(whole: _Columns) -> Iterator[_Columns]:
    """The table in variants with increasingly more content in titles and notes."""
    yield whole
    yield (tight := replace(whole.without_empty(), hoists=True))
    yield tight.with_legends()


def _arranged(table: _Columns, split: int, width: int, *, several: bool) -> Fitted | None:
    """The table split by the first ``split`` varying names; None if it does not fit.

    With ``several`` its columns may be distributed over blocks to make it fit.
    """
    texts = [[str(cell) for cell in column] for column in table.columns]
    names = [at for at, head in enumerate(table.heads) if head.role == "name" and len(set(texts[at])) > 1]
    if split > len(names):
        return None
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in range(len(texts[0]) if texts else 0):
        groups.setdefault(tuple(texts[at][row] for at in names[:split]), []).append(row)
    constant = [
        at
        for at, head in enumerate(table.heads)
        if (head.role == "name" or (table.hoists and head.role in ("count", "key")))
        and all(len({texts[at][row] for row in rows}) == 1 for rows in groups.values())
    ]
    if len(constant) == len(table.heads):
        constant = constant[:-1]
    kept = [at for at in range(len(table.heads)) if at not in constant]
    heads = [table.heads[at] for at in kept]
    parts = []
    for rows in groups.values():
        columns = [[table.columns[at][row] for row in rows] for at in kept]
        blocks = _blocks(heads, columns, width) if several else _block(heads, columns, width)
        if blocks is None:
            return None
        titles = [table.heads[at].in_title(texts[at][rows[0]]) for at in constant]
        parts.append(Subtable(titles, blocks))
    return Fitted(parts, list(table.notes))


GAP = 2
"""Spaces between columns."""


def _block(heads: list[ColumnHead], columns: list[list[TableCell]], width: int) -> list[ColumnBlock] | None:
    """All columns side by side, names folded as far as needed; None if they are too wide.

    The widest column is folded first; of equally wide ones, one that is folded already.
    """
    widths = whole = [_widest(head, column, lambda line: [line]) for head, column in zip(heads, columns, strict=True)]
    room = width - GAP * (len(heads) - 1)
    if sum(widths) > room:
        least = [_least(head, column) for head, column in zip(heads, columns, strict=True)]
        if sum(least) > room:
            return None
        widths = list(whole)
        while sum(widths) > room:
            foldable = (at for at in range(len(heads)) if widths[at] > least[at])
            widths[max(foldable, key=lambda at: (widths[at], widths[at] < whole[at]))] -= 1
    return [_laid(heads, columns, widths)]


def _blocks(heads: list[ColumnHead], columns: list[list[TableCell]], width: int) -> list[ColumnBlock]:
    """The columns distributed over blocks, each of which begins with the names and keys."""
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
    blocks = []
    for places in shared:
        of = sorted([*first, *places])
        some = [heads[at] for at in of], [columns[at] for at in of]
        fit = _block(*some, width)
        blocks += fit if fit else [_laid(*some, [least[at] for at in of])]
    return blocks


def _laid(heads: list[ColumnHead], columns: list[list[TableCell]], widths: list[int]) -> ColumnBlock:
    """Rows with names folded to these widths."""
    laid = [
        [_folded(cell, width) for cell in column] if head.folds else column
        for head, column, width in zip(heads, columns, widths, strict=True)
    ]
    return ColumnBlock(heads, widths, [list(row) for row in zip(*laid, strict=True)])


def _folded(cell: TableCell, width: int) -> TableCell:
    if isinstance(cell, Text):
        return Text(folded(cell.plain, width), cell.style)
    return folded(cell, width)


def _least(head: ColumnHead, column: list[TableCell]) -> int:
    return _widest(head, column, pieces if head.folds else lambda line: [line])


def _widest(head: ColumnHead, column: list[TableCell], parts: Callable[[str], list[str]]) -> int:
    lines = {line for cell in column for line in str(cell).split("\n")}
    cells = (_wide(piece) for line in lines for piece in parts(line))
    return max([*map(cell_len, head.title.split()), *cells], default=0)


def _rich(block: ColumnBlock) -> Table:
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
