"""The style of figures: width, font, names, title and file formats, as required by a paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icl_bench.errors import UserError
from icl_bench.table_files import csv_rows
from icl_bench.tasks.yaml_files import read_yaml
from icl_bench.text_files import decode, read_file
from icl_bench.wording import comma_list, counted, listed_or, nearest, one_line, plain

FORMATS = ("svg", "pdf", "png", "pgf")
"""The supported file formats of figures."""

USUAL_FORMATS = ("svg", "pdf", "png")

DPI = 300
"""Pixels per inch of raster files."""

LEAST_WIDTH, MOST_WIDTH = 1.5, 30.0
"""Inches of a figure."""

UNITS = 72
"""A figure's units per inch: a unit is a point of PDF."""


@dataclass(frozen=True)
class FigureStyle:
    """The style of all figures in a folder.

    Raises ``UserError`` for an invalid width or format.
    """

    width: float | None = None
    """Inches of a whole figure, including axes and legend; None for the page's width."""
    font: str | None = None
    """A font family of this machine; None for a sans-serif one."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name of a task, a model or a selector -> its displayed text."""
    title: bool = True
    """Whether a figure has a title."""
    formats: tuple[str, ...] = USUAL_FORMATS
    dpi: int = DPI
    """Pixels per inch of raster files."""
    panels: int | None = None
    """Panels of a finding per row of one figure with one legend; None for one figure per panel."""

    def __post_init__(self) -> None:
        if self.width is not None and not LEAST_WIDTH <= self.width <= MOST_WIDTH:
            raise UserError(f"--width {self.width:g}: not a width in inches from {LEAST_WIDTH:g} to {MOST_WIDTH:g}")
        if unknown := [name for name in self.formats if name not in FORMATS]:
            raise UserError(f"--format {plain(unknown[0])}: not a format of figures; known: {', '.join(FORMATS)}")
        if not self.formats:
            raise UserError(f"--format: needs {listed_or(FORMATS)}")

    @property
    def units(self) -> float | None:
        """The width in units of the figure."""
        return None if self.width is None else UNITS * self.width


PLAIN = FigureStyle()
"""The default style."""


def parse_formats(text: str) -> tuple[str, ...]:
    """The formats of ``pdf,svg``, each once; :class:`FigureStyle` checks them."""
    return tuple(dict.fromkeys(name.lower().removeprefix(".") for name in comma_list(text)))


def read_names(path: Path) -> dict[str, str]:
    """The names of a file: a mapping in YAML or JSON, or two columns of a CSV file, name and shown text.

    Raises ``UserError`` for other content, and if two names would have the same text.
    """
    raw = read_file(path)
    pairs = _csv_pairs(raw, path) if path.suffix.lower() == ".csv" else _mapping_pairs(raw, path)
    names: dict[str, str] = {}
    for name, text in pairs:
        if name in names:
            raise UserError(one_line(f"--rename {path}: {plain(name)} has two names"))
        if twins := [other for other, shown in names.items() if shown == text]:
            raise UserError(one_line(f"--rename {path}: {plain(twins[0])} and {plain(name)} are both {plain(text)}"))
        names[name] = text
    return names


def _csv_pairs(raw: bytes, path: Path) -> Iterable[tuple[str, str]]:
    for number, (where, row) in enumerate(csv_rows(decode(raw, str(path)), f"--rename {path}")):
        if not number and [cell.strip().lower() for cell in row] == ["name", "shown"]:
            continue
        if len(row) != 2 or not all(cell.strip() for cell in row):
            raise UserError(f"{where}: needs two columns, name and shown; has {counted(len(row), 'cell')}")
        yield row[0].strip(), row[1].strip()


def _mapping_pairs(raw: bytes, path: Path) -> Iterable[tuple[str, str]]:
    values: Any = read_yaml(raw, str(path))[0]
    if not isinstance(values, dict):
        raise UserError(f"--rename {path}: needs lines like gemma3-270m: Gemma 3, in YAML or JSON, or CSV (.csv)")
    for name, text in values.items():
        if not isinstance(name, str) or not isinstance(text, str) or not text.strip():
            raise UserError(
                one_line(f"--rename {path}: {plain(name)}: needs a text to show instead (in quotes if it is a number)")
            )
        yield name, text.strip()


JOINTS = re.compile(r"( · |, |: | against | queries$)")
"""Separators of names in the texts of a figure."""


def parts(text: str) -> list[str]:
    """The names in a text, and the separators between them."""
    return JOINTS.split(text)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A text of a figure with replaced names, the longest first: ``bm25, pool`` before ``bm25``."""
    pieces, shown, start = parts(text), [], 0
    while start < len(pieces):
        ends = range(len(pieces), start, -1)
        end = next((end for end in ends if "".join(pieces[start:end]) in names), start + 1)
        piece = "".join(pieces[start:end])
        shown.append(names.get(piece, piece))
        start = end
    return "".join(shown)


def check_names(names: Mapping[str, str], texts: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``UserError`` for a name that is not in the figures' texts, and for a displayed text that is another name.

    ``known`` are the names of tasks, models and series, which figures without a title may not show.
    """
    there = {part for text in texts for part in (text, *parts(text))} | {*known}
    for name, shown in names.items():
        if name not in there:
            meant = nearest(name, (part for part in known if not JOINTS.fullmatch(part)))
            raise UserError(one_line(f"--rename: {plain(name)}: no figure shows this name; {meant}"))
        if shown in there - names.keys():
            raise UserError(one_line(f"--rename: {plain(name)} as {plain(shown)}: another one has this name"))
