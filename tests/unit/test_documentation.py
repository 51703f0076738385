"""README and docs: what they name is there, and what is there they name."""

from __future__ import annotations

import html
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer.main
import yaml

import icl_bench
from icl_bench import registry
from icl_bench.cli import program
from icl_bench.tasks.task_files import known_tasks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
OPTIONS = (DOCS / "options.md").read_text(encoding="utf-8")
LINK = re.compile(r"""\]\(([^()\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")
KINDS = {
    "selector": registry.SELECTORS,
    "order": registry.ORDERS,
    "perturbation": registry.PERTURBATIONS,
    "attention pattern": registry.ATTENTION_PATTERNS,
    "metric": registry.METRICS,
    "backend": registry.BACKENDS,
    "training method": registry.TRAINING_METHODS,
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_local_links_lead_somewhere(page: Path):
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text_of(page), flags=re.DOTALL)
    for found in LINK.finditer(prose):
        target = unquote(next(filter(None, found.groups())))
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{name_of(page)}: {target}"


def commands(page: Path) -> Iterator[str]:
    """The command lines of the program in a page's code blocks."""
    for block in re.findall(r"```\w*\n(.*?)```", text_of(page), re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if "icl-bench " in line and re.match(r"\s*(\$ |CUDA\S+ )?icl-bench ", line):
                yield line[line.index("icl-bench ") :]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_options_that_exist(page: Path):
    group = typer.main.get_command(program())
    for line in commands(page):
        _, name, *words = shlex.split(re.split(r" & *done|; ", line)[0].rstrip(" &"), comments=True)
        if name.startswith("-") or "--help" in words:
            continue
        command = group.commands[name]
        command.make_context(name, list(words), resilient_parsing=False)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, known in KINDS.items() for name in known])
def test_whatever_is_registered_is_in_the_page_of_options(kind: str, name: str):
    spans = re.findall(r"`([^`\n]+)`", OPTIONS)
    ends = re.compile(rf"{re.escape(name)}(?=$|[:=,\[+])")
    assert any(ends.match(span) for span in spans), f"{kind} {name}: not in docs/options.md"


def test_every_option_of_every_command_is_in_the_page_of_options():
    said = set(re.findall(r"--[a-z][a-z-]*", OPTIONS))
    group = typer.main.get_command(program())
    for name, command in group.commands.items():
        assert f"`{name}`" in OPTIONS
        for parameter in command.params:
            options = [word for word in parameter.opts if word.startswith("--")]
            assert not options or said & set(options), f"icl-bench {name} {options}"


def test_every_shipped_task_is_in_the_page_of_task_files():
    page = text_of(DOCS / "task-files.md")
    assert [name for name in known_tasks() if f"`{name}`" not in page] == []


def test_the_readme_names_every_extra():
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    readme = text_of(ROOT / "README.md")
    for extra in extras.keys() - {"dev", "mutants"}:
        assert f"`{extra}`" in readme
    for named in re.findall(r"pip install '(?:\.|icl-bench)\[([a-z,]+)\]'", readme):
        assert set(named.split(",")) <= extras.keys()


def test_the_index_names_every_page_and_notebook():
    index = text_of(DOCS / "README.md")
    pages = [path.name for path in DOCS.glob("*.md") if path.name != "README.md"]
    books = [f"../notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert [name for name in (*pages, *books) if f"({name})" not in index] == []


def test_the_glossary_is_in_order_and_has_the_first_words_one_meets():
    words = re.findall(r"^\*\*(.+?)\*\* ·", text_of(DOCS / "glossary.md"), re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    assert {"cell", "draw", "pool", "prefix", "curve", "variant", "selector", "k"} <= set(words)


def test_the_readme_is_short_and_shows_a_picture_first():
    readme = text_of(ROOT / "README.md")
    assert len(readme.split()) < 900
    assert readme.index("docs/readme-light.svg") < 1_500


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_the_readmes_picture_shows_the_measured_numbers(ground: str):
    """Those of the tables of docs/selection.md, which benchmarks/readme_picture.py reads."""
    svg = html.unescape(text_of(DOCS / f"readme-{ground}.svg"))
    shown = re.findall(
        r"query \(log scale\): ([\d.]+); accuracy(?:, %)?: ([\d.]+); .*?method: "
        r"(random|BM25|embeddings|hybrid)",
        svg,
    )
    names = {"random": "random", "bm25": "BM25", "dense": "embeddings", "hybrid:10,by=dense": "hybrid"}
    measured = set()
    for task in ("Banking-77", "TREC"):
        section = text_of(DOCS / "selection.md").split(f"\n## {task}\n")[1].split("\n## ")[0]
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] in names:
                measured.add((float(cells[-1]), float(cells[3]), names[cells[0]]))
    assert len(measured) == 20
    assert measured <= {(float(x), float(y), method) for x, y, method in shown}


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    assert citation["version"] == icl_bench.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == "Apache-2.0"
