"""The embedded tasks: sentences from the docstrings of Python's standard library and their module.

Every machine with Python has this text. The input is the first sentence of the docstring of a public
class, function or method, the label is its module. The modules' sources are parsed, not imported, so
no code runs. A Python version always gives the same rows. Other versions give slightly different
rows, with other hashes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from icl_bench.errors import UserError
from icl_bench.models.cache_folder import cache_dir, remove_leftovers
from icl_bench.models.fingerprints import key_of
from icl_bench.tasks.collector import collector_paused
from icl_bench.text_files import write_whole

# fmt: off
STDLIB_MODULES = (
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
"""The modules that may become labels, in every Python since 3.11. The list is fixed, so the labels
do not depend on what a distribution installs."""

SIX_MODULES = ("asyncio", "decimal", "email", "tarfile", "unittest", "xml")
"""Six modules with many docstrings about very different subjects: an easier task."""

EMBEDDED = {"stdlib": STDLIB_MODULES, "stdlib-six": SIX_MODULES}
"""The modules of each embedded task, by the name in a task file's ``data.embedded``."""

FEWEST_EXAMPLES = 12
"""Modules with fewer examples are left out."""

TEST_SHARE = 0.15
"""The share of test rows of each module, rounded: 2 of 12 examples, 34 of 229."""

SHORTEST, LONGEST = 20, 300
"""Bounds of a sentence's length, in characters."""

_FORM = 2
"""The version of the cache. Increase it when the extraction of sentences changes."""

_TESTS = frozenset({"test", "tests"})

_SENTENCE = re.compile(r".+?[.!?](?=\s+[A-Z(\"'`]|$)")


@dataclass(frozen=True, slots=True)
class DocstringRow:
    """One sentence and the module that it documents. ``id`` is its position in the library."""

    id: str
    text: str
    label: str


@dataclass(frozen=True)
class StdlibRows:
    """The task's rows by split."""

    train: tuple[DocstringRow, ...]
    test: tuple[DocstringRow, ...]


@cache
def build(library: Path | None = None, modules: tuple[str, ...] = STDLIB_MODULES) -> StdlibRows:
    """Read the modules' sources in the standard library (by default this Python's) and split them.

    Texts of several modules are ambiguous, and texts that name their own module can be answered by
    copying: both are removed. Duplicates within a module are kept once. The split is stratified by
    module and follows each text's hash. So it needs no seed, and a text stays in its split in other
    Python versions, as far as module sizes allow.

    Raises UserError if the sources are not installed.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    sentences = _cached_sentences(library, modules)
    modules_of: dict[str, set[str]] = defaultdict(set)
    for name, rows in sentences.items():
        for row in rows:
            modules_of[row.text].add(name)
    train: list[DocstringRow] = []
    test: list[DocstringRow] = []
    for name, rows in sentences.items():
        unique = {row.text: row for row in reversed(rows) if len(modules_of[row.text]) == 1}
        usable = [row for row in reversed(unique.values()) if not _names_module(row.text, name)]
        if len(usable) >= FEWEST_EXAMPLES:
            test_texts = _test_texts(usable)
            train += [row for row in usable if row.text not in test_texts]
            test += [row for row in usable if row.text in test_texts]
    if not train:
        raise UserError(
            f"no sources of Python's standard library in {library}: the embedded task reads them. "
            "Use a Python that is installed with its .py files, or another task"
        )
    return StdlibRows(tuple(train), tuple(test))


def _cached_sentences(library: Path, modules: tuple[str, ...]) -> dict[str, list[DocstringRow]]:
    """:func:`_sentences` of each module, cached while the sources are unchanged.

    Parsing takes two seconds. The cache compares path, size and modification time of the sources, and its own
    content with a hash of it.
    """
    files = {name: _sources(library, name) for name in modules}
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for paths in files.values() for f in paths]
    key = key_of([str(_FORM), platform.python_version(), json.dumps([modules, stats])])
    entry = cache_dir() / "stdlib" / f"{key}.json"
    try:
        sha256, content = entry.read_bytes().split(b"\n", 1)
        if sha256.decode() == hashlib.sha256(content).hexdigest():
            cached = json.loads(content)
            return {name: [DocstringRow(*row) for row in rows] for name, rows in cached.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        pass
    with collector_paused():
        sentences = {name: _sentences(library, name, sources) for name, sources in files.items()}
    rows = {name: [[row.id, row.text, row.label] for row in module_rows] for name, module_rows in sentences.items()}
    # if the cache cannot be written, sources are parsed again next time
    with suppress(OSError):
        content = json.dumps(rows).encode()
        write_whole(entry, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        remove_leftovers(entry.parent)
    return sentences


def _test_texts(rows: list[DocstringRow]) -> set[str]:
    """One module's share of test texts: those with the smallest hashes."""
    ranked = sorted((row.text for row in rows), key=lambda t: hashlib.sha256(t.encode()).digest())
    return set(ranked[: round(TEST_SHARE * len(rows))])


def _names_module(text: str, module: str) -> bool:
    """Whether a text has its module's name, or a part of a dotted name, as a word."""
    parts = "|".join(map(re.escape, module.split(".")))
    return re.search(rf"\b(?:{parts})\b", text, re.IGNORECASE) is not None


def _sources(library: Path, module: str) -> list[Path]:
    """A module's files: ``name.py``, the package ``name/`` without its tests, ``_pyname.py``."""
    place = library.joinpath(*module.split("."))
    pure = place.with_name(f"_py{place.name}.py")  # the implementation of decimal, io, datetime
    single = [path for path in (place.with_suffix(".py"), pure) if path.is_file()]
    package = [p for p in place.rglob("*.py") if not _TESTS & set(p.relative_to(place).parts)]
    return single + sorted(package)


def _sentences(library: Path, module: str, sources: list[Path]) -> list[DocstringRow]:
    """Every usable sentence of a module, in the order of its sources."""
    rows = []
    for path in sources:
        where = ".".join(path.relative_to(library).with_suffix("").parts)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as Python source: {error}") from None
        names: set[str] = set()
        for name, docstring in _docstrings(tree):
            text = first_sentence(docstring)
            if name not in names and SHORTEST <= len(text) <= LONGEST:
                names.add(name)
                rows.append(DocstringRow(f"{where}:{name}", text, module))
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
    r"""The first sentence of a docstring's first paragraph, with white space collapsed.

    >>> first_sentence("Return the key\n    of a row.  Never fails.\n\nMore.")
    'Return the key of a row.'
    """
    paragraph = " ".join(re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0].split())
    match = _SENTENCE.match(paragraph)
    return match.group() if match else paragraph
