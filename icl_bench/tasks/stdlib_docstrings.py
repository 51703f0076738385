"""The embedded tasks: sentences from the docstrings of Python's standard library and their module.

Real text that every machine with Python has: the first sentence of each public class, function
and method is the text, the module it comes from is the label. The modules' sources are parsed,
never imported, so nothing runs. One Python version always gives the same rows; another version
gives slightly others, and the rows' hashes say so.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import json
import platform
import re
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir
from icl_bench.models.fingerprints import key_of

# fmt: off
MODULES = (
    "argparse", "ast", "asyncio", "bdb", "calendar", "codecs", "collections", "concurrent.futures",
    "configparser", "contextlib", "ctypes", "datetime", "decimal", "difflib", "dis", "doctest",
    "email", "ftplib", "functools", "http", "imaplib", "importlib", "inspect", "io", "ipaddress",
    "logging", "mailbox", "multiprocessing", "operator", "optparse", "os", "pathlib", "pdb",
    "pickletools", "platform", "poplib", "pydoc", "random", "selectors", "shutil", "smtplib",
    "socket", "socketserver", "ssl", "stat", "statistics", "subprocess", "symtable", "tarfile",
    "threading", "traceback", "tracemalloc", "typing", "unittest", "urllib", "webbrowser",
    "wsgiref", "xml", "xmlrpc", "zipfile",
)
# fmt: on
"""The modules that may become labels, in every Python from 3.11 on: fixed, so that the label set
does not follow what a distribution happens to install."""


SIX_MODULES = ("asyncio", "decimal", "email", "tarfile", "unittest", "xml")
"""Six of them with many docstrings, of subjects far apart: an easier task for a first look."""


EMBEDDED = {"stdlib": MODULES, "stdlib-six": SIX_MODULES}
"""The modules of each embedded task, by the name in a task file's ``data.embedded``."""


FEWEST_EXAMPLES = 12
"""Modules with fewer examples are left out."""


TEST_SHARE = 0.15
"""Of each module's examples, rounded: with 12 examples 2, with 229 examples 34."""


SHORTEST, LONGEST = 20, 300
"""Bounds of a sentence's length, in characters."""


_FORM = 1
"""Of what is kept: to be raised where sentences are found or cut in another way."""


_TESTS = frozenset({"test", "tests"})


_SENTENCE = re.compile(r".+?[.!?](?=\s+[A-Z(\"'`]|$)")


@dataclass(frozen=True, slots=True)
class Row:
    """One sentence and the module it documents; ``id`` is where it stands in the library."""

    id: str
    text: str
    label: str


@dataclass(frozen=True)
class StdlibRows:
    """The task's rows, its split and where they come from."""

    train: tuple[Row, ...]
    test: tuple[Row, ...]
    python: str
    """The Python version, like ``3.11.7``."""


@cache
def build(library: Path | None = None, modules: tuple[str, ...] = MODULES) -> StdlibRows:
    """Read the modules' sources in the standard library (by default this Python's) and split them.

    Texts that stand in several modules are ambiguous and texts that name their own module are
    answered by copying: neither is kept. A text that stands twice in one module is kept once. The
    split is stratified by module and follows each text's hash: it needs no seed, and a text keeps
    its side from one Python version to the next, as far as module sizes allow.

    Raises UserError where the sources are not installed.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    found = _kept_sentences(library, modules)
    homes: dict[str, set[str]] = defaultdict(set)
    for name, rows in found.items():
        for row in rows:
            homes[row.text].add(name)
    train: list[Row] = []
    test: list[Row] = []
    for name, rows in found.items():
        unique = {row.text: row for row in reversed(rows) if len(homes[row.text]) == 1}
        kept = [row for row in reversed(unique.values()) if not _names(row.text, name)]
        if len(kept) >= FEWEST_EXAMPLES:
            chosen = _test_texts(kept)
            train += [row for row in kept if row.text not in chosen]
            test += [row for row in kept if row.text in chosen]
    if not train:
        raise UserError(
            f"no sources of Python's standard library in {library}: the embedded task reads them. "
            "Use a Python that is installed with its .py files, or another task"
        )
    return StdlibRows(tuple(train), tuple(test), platform.python_version())


def _kept_sentences(library: Path, modules: tuple[str, ...]) -> dict[str, list[Row]]:
    """:func:`_sentences` of each module, from the cache folder where the sources are unchanged.

    Parsing takes two seconds. A source is told by its path, size and time of change.
    """
    files = {name: _sources(library, name) for name in modules}
    about = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for some in files.values() for f in some]
    key = key_of([str(_FORM), platform.python_version(), json.dumps([modules, about])])
    entry = cache_dir() / "stdlib" / f"{key}.json"
    try:
        kept = json.loads(entry.read_text(encoding="utf-8"))
        return {name: [Row(*row) for row in rows] for name, rows in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    with _collector_paused():
        found = {name: _sentences(library, name, sources) for name, sources in files.items()}
    rows = {name: [[row.id, row.text, row.label] for row in some] for name, some in found.items()}
    # without a cache they are parsed again: no reason to stop
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=entry.parent, delete=False) as draft:
            json.dump(rows, draft)
        Path(draft.name).replace(entry)
    return found


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Spare the search for cycles while syntax trees, which have none, come and go.

    The collector would walk the whole heap at every few thousand nodes: with a deep learning
    library loaded, that doubles the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _test_texts(rows: list[Row]) -> set[str]:
    """One module's share of test texts: those whose hashes come first."""
    ranked = sorted((row.text for row in rows), key=lambda t: hashlib.sha256(t.encode()).digest())
    return set(ranked[: round(TEST_SHARE * len(rows))])


def _names(text: str, module: str) -> bool:
    """Whether a text holds its module's name, or for a dotted one any part of it, as a word."""
    parts = "|".join(map(re.escape, module.split(".")))
    return re.search(rf"\b(?:{parts})\b", text, re.IGNORECASE) is not None


def _sources(library: Path, module: str) -> list[Path]:
    """A module's files: ``name.py``, the package ``name/`` without its tests, ``_pyname.py``."""
    place = library.joinpath(*module.split("."))
    pure = place.with_name(f"_py{place.name}.py")  # decimal, io, datetime: the code behind the name
    single = [path for path in (place.with_suffix(".py"), pure) if path.is_file()]
    package = [p for p in place.rglob("*.py") if not _TESTS & set(p.relative_to(place).parts)]
    return single + sorted(package)


def _sentences(library: Path, module: str, sources: list[Path]) -> list[Row]:
    """Every usable sentence of a module, in the order of its sources."""
    rows = []
    for path in sources:
        where = ".".join(path.relative_to(library).with_suffix("").parts)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as Python source: {error}") from None
        seen: set[str] = set()
        for name, docstring in _docstrings(tree):
            text = first_sentence(docstring)
            if name not in seen and SHORTEST <= len(text) <= LONGEST:
                seen.add(name)
                rows.append(Row(f"{where}:{name}", text, module))
    return rows


def _docstrings(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Qualified name and docstring of all public classes, functions and methods below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name.startswith("_"):
                continue
            name = prefix + child.name
            if docstring := ast.get_docstring(child):
                yield name, docstring
            if isinstance(child, ast.ClassDef):
                yield from _docstrings(child, f"{name}.")
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _docstrings(child, prefix)


def first_sentence(docstring: str) -> str:
    r"""The first sentence of a docstring's first paragraph, its white space collapsed.

    >>> first_sentence("Return the key\n    of a row.  Never fails.\n\nMore.")
    'Return the key of a row.'
    """
    paragraph = " ".join(re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0].split())
    found = _SENTENCE.match(paragraph)
    return found.group() if found else paragraph
