"""The map of packages in docs/architecture.md, drawn from the tables of that page.

    python benchmarks/package_map.py     # docs/architecture.svg

A package stands one level above the highest package that it imports. Imports that a longer path implies have no arrow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from icl_bench.text_files import write_whole

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|:;]+?)(?:[:;][^|]*)? \|$", re.MULTILINE)
"""A row of a table: a name, what it may import, and the first words of what it is."""
WIDTH, HEIGHT = 216, 46
"""Of a package's box, in pixels."""
X_STEP, Y_STEP, MARGIN = 248, 76, 16
LINE = 16
"""Of a further line in a box."""
STYLE = """text { font-family: system-ui, sans-serif; font-size: 12px; fill: #52606d; text-anchor: middle }
.name { font-family: ui-monospace, monospace; font-size: 14px; font-weight: 600; fill: #1f2933 }
.ground { fill: #ffffff } .box { fill: #f1f4fb; stroke: #3f51b5 } .base { fill: #f5f5f2; stroke: #8a8a80 }
.arrow { stroke: #7b8794; fill: none; marker-end: url(#head) } #head path { fill: #7b8794 }"""


HEAD = """<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 8 4 0 8z"/></marker></defs>"""
"""The head of an arrow."""


@dataclass(frozen=True)
class Row:
    """A package or a module of a table."""

    imports: tuple[str, ...]
    caption: str


def table(page: str, title: str) -> dict[str, Row]:
    """The rows of the table below a heading, by name."""
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return {
        name: Row(() if imports in ("nothing", "base modules only") else tuple(imports.split(", ")), caption)
        for name, imports, caption in ROW.findall(section)
    }


def levels(packages: Mapping[str, Row]) -> dict[str, int]:
    """The level of each package, from 0. Rows stand below those that they import."""
    found: dict[str, int] = {}
    for name, row in packages.items():
        found[name] = 1 + max((found[below] for below in row.imports), default=-1)
    return found


def arrows(packages: Mapping[str, Row]) -> dict[str, tuple[str, ...]]:
    """The imports of each package that no longer path implies."""
    reached: dict[str, set[str]] = {}
    for name, row in packages.items():
        reached[name] = set(row.imports).union(*(reached[below] for below in row.imports))
    return {
        name: tuple(below for below in row.imports if not any(below in reached[other] for other in row.imports))
        for name, row in packages.items()
    }


def columns(level: Mapping[str, int], below: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The column of each package: the mean of those that it imports, apart from others of its level."""
    found: dict[str, float] = {}
    for height in range(max(level.values()) + 1):
        names = [name for name, at in level.items() if at == height]
        wanted = {n: sum(found[b] for b in below[n]) / len(below[n]) if below[n] else 0.0 for n in names}
        names.sort(key=wanted.__getitem__)
        places = [wanted[names[0]]]
        for name in names[1:]:
            places.append(max(wanted[name], places[-1] + 1))
        shift = sum(map(wanted.__getitem__, names)) / len(names) - sum(places) / len(places)
        found |= {name: place + shift for name, place in zip(names, places, strict=True)}
    return found


def drawn(page: str) -> str:
    """The map as SVG."""
    packages, base = table(page, "Packages"), table(page, "Base modules")
    level, below = levels(packages), arrows(packages)
    column = columns(level, below)
    left, top = min(column.values()), max(level.values())
    x = {name: MARGIN + round((place - left) * X_STEP) for name, place in column.items()}
    y = {name: MARGIN + (top - at) * Y_STEP for name, at in level.items()}
    width, floor = max(x.values()) + WIDTH + MARGIN, MARGIN + (top + 1) * Y_STEP
    height = floor + HEIGHT + LINE + MARGIN
    boxes = [_box(x[name], y[name], WIDTH, name, "box", row.caption) for name, row in packages.items()]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" viewBox="0 0 {width} {height}" role="img">',
            f"<title>Packages of icl_bench</title><style>{STYLE}</style>",
            HEAD,
            '<rect class="ground" width="100%" height="100%" rx="8"/>',
            *_lines(below, x, y),
            *(line for box in boxes for line in box),
            *_box(MARGIN, floor, width - 2 * MARGIN, "base modules", "base", *_in_two(list(base))),
            "</svg>\n",
        ]
    )


def _lines(below: Mapping[str, Sequence[str]], x: Mapping[str, int], y: Mapping[str, int]) -> Iterator[str]:
    """An arrow from each package to those that it imports."""
    for name, imports in below.items():
        for other in imports:
            start, end = x[name] + WIDTH // 2, x[other] + WIDTH // 2
            yield f'<path class="arrow" d="M{start} {y[name] + HEIGHT} {end} {y[other]}"/>'


def _in_two(names: Sequence[str]) -> list[str]:
    """The names in two lines."""
    half = (len(names) + 1) // 2
    return [" · ".join(names[:half]), " · ".join(names[half:])]


def _box(x: int, y: int, width: int, name: str, kind: str, *captions: str) -> Iterator[str]:
    """A box with a name and lines below it."""
    height = HEIGHT + LINE * (len(captions) - 1)
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
    yield f'<text class="name" x="{x + width // 2}" y="{y + 19}">{escape(name)}</text>'
    for line, caption in enumerate(captions):
        yield f'<text x="{x + width // 2}" y="{y + 36 + LINE * line}">{escape(caption)}</text>'


def main() -> None:
    """Draw the map."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    write_whole(DOCS / "architecture.svg", drawn(page).encode())


if __name__ == "__main__":
    main()
