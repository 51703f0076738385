"""Imports run one way: each package imports what stands below it, and nothing goes in a circle."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.program import as_words

import icl_bench

ROOT = Path(icl_bench.__file__).parent
DOCS = ROOT.parent / "docs"
PAGE = (DOCS / "architecture.md").read_text(encoding="utf-8")
MAP = runpy.run_path(str(ROOT.parent / "benchmarks" / "package_map.py"))

GROUND = as_words(
    "errors wording seeds frozen quiet_libraries registry text_files table_files escaping options unicode_words machine"
)
LAYERS: Mapping[str, tuple[str, ...]] = {
    "models": GROUND,
    "metrics": (*GROUND, "models"),
    "tasks": (*GROUND, "models", "metrics"),
    "prompts": (*GROUND, "models", "tasks"),
    "results": (*GROUND, "models", "metrics", "prompts"),
    "demonstrations": (*GROUND, "models", "tasks", "prompts"),
    "backends": (*GROUND, "models", "prompts"),
    "sweep": (*GROUND, "models", "metrics", "tasks", "prompts", "results", "demonstrations", "backends"),
    "analysis": (*GROUND, "models", "metrics", "results", "demonstrations"),
    "training": (*GROUND, "models", "tasks", "prompts", "results", "demonstrations", "backends", "sweep"),
    "studies": (*GROUND, "models", "tasks", "results", "demonstrations", "backends", "sweep", "training"),
    "report": (*GROUND, "models", "metrics", "tasks", "prompts", "results", "demonstrations", "analysis"),
    "choosing": (*GROUND, "models", "tasks", "results", "backends", "sweep", "analysis", "training"),
    "cli": (
        *GROUND,
        *as_words(
            "models metrics tasks prompts results demonstrations backends sweep analysis training studies report "
            "choosing"
        ),
    ),
    "api": (*GROUND, *as_words("models tasks results sweep analysis training studies report choosing cli")),
}
"""Package -> what it may import besides itself: the table of ``docs/architecture.md``."""
WITHIN_GROUND = {
    "text_files": {"errors", "wording"},
    "table_files": {"errors", "wording", "text_files"},
    "registry": {"errors", "wording"},
    "escaping": {"wording"},
    "options": {"errors", "wording", "frozen", "registry"},
}
"""The same for the modules of the ground floor, of which the others import nothing."""


def modules() -> dict[str, Path]:
    """Every module but the package itself and its ``__main__``, by its dotted name below it."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in ("", "__main__"):
            found[name] = path
    return found


MODULES = modules()


def imported(module: str) -> Iterator[str]:
    """Modules that one imports, at its top, in its functions or for types alone."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: import by the full name"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] != "icl_bench":
                continue
            while parts and ".".join(parts[1:]) not in MODULES:
                parts.pop()
            if len(parts) > 1:
                yield ".".join(parts[1:])


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_from_what_stands_below_its_package(module: str) -> None:
    own = module.partition(".")[0]
    allowed = {own, *(LAYERS[own] if own in LAYERS else WITHIN_GROUND.get(own, ()))}
    wrong = {name for name in imported(module) if name.partition(".")[0] not in allowed}
    assert not wrong


def test_every_package_and_every_module_of_the_ground_floor_has_its_place() -> None:
    assert {name.partition(".")[0] for name in MODULES} == {*LAYERS, *GROUND}


def test_packages_import_each_other_in_no_circle_on_ten_levels_below_the_public_face() -> None:
    levels: dict[str, int] = {}
    for package, below in LAYERS.items():  # in an order in which what is below comes first
        levels[package] = 1 + max((levels.get(name, 1) for name in below), default=0)
        assert not [name for name in below if name in LAYERS and name not in levels]
    face = levels.pop("api")
    assert face > max(levels.values()) <= 10


def test_modules_import_each_other_in_no_circle() -> None:
    waiting = {name: {n for n in imported(name) if n != name} for name in MODULES}
    # a package's own module holds its public names: what it imports may import it again
    packages = {name for name in MODULES if any(m.startswith(f"{name}.") for m in MODULES)}
    waiting = {name: {n for n in found if n not in packages} for name, found in waiting.items()}
    while free := [name for name, found in waiting.items() if not found & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert not waiting, f"in circles: {sorted(waiting)}"


def test_the_page_of_the_architecture_has_the_same_tables() -> None:
    tables = {"Packages": {name: [n for n in below if n in LAYERS] for name, below in LAYERS.items()}}
    tables["Base modules"] = {name: [n for n in GROUND if n in WITHIN_GROUND.get(name, ())] for name in GROUND}
    for title, rows in tables.items():
        shown = {name: sorted(row.imports) for name, row in MAP["table"](PAGE, title).items()}
        assert shown == {name: sorted(below) for name, below in rows.items()}


def test_the_map_is_drawn_from_the_tables_and_names_every_package() -> None:
    stored = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    assert stored == MAP["drawn"](PAGE), "python benchmarks/package_map.py"
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(stored).findall(".//{*}text")]
    assert {*LAYERS, *GROUND} <= {name for text in texts for name in text.split(" · ")}


def test_the_map_has_an_arrow_for_each_import_that_no_longer_path_implies() -> None:
    shown = MAP["arrows"](MAP["table"](PAGE, "Packages"))
    reached: dict[str, set[str]] = {}
    for name in LAYERS:
        reached[name] = {*shown[name]}.union(*(reached[below] for below in shown[name]))
        assert reached[name] == {n for n in LAYERS[name] if n in LAYERS}.union(*(reached[n] for n in shown[name]))
    assert shown["tasks"] == ("metrics",), "models through metrics"
    assert shown["choosing"] == ("analysis", "training")


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+(?:\.py|/))`", PAGE)
    assert len(named) > 25
    assert [name for name in named if not ((ROOT / name).exists() or (ROOT.parent / name).exists())] == []
