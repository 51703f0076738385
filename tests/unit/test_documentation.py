"""README and docs: what they name is there, and what is there they name."""

from __future__ import annotations

import ast
import html
import json
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
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "icl_bench").rglob("*.py"))
FILES = [*PAGES, *BOOKS, *MODULES, *sorted(ROOT.glob("tasks/*.yaml")), *sorted(ROOT.glob("studies/*.yaml"))]
OPTIONS = (DOCS / "options.md").read_text(encoding="utf-8")
LINK = re.compile(r"""\]\(([^()\s]+)\)|(?:src|srcset|href)="([^"]+)\"""")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b(?!-)")
NAMED = re.compile(r"\bicl-bench (?P<words>-*[a-z][a-z-]*(?:\s+--[a-z-]+(?:[= ](?![-a-z]+,? )[^\s,;-]\S*)?)*)")
"""A command and its options in inline code or in a sentence."""
GROUP = typer.main.get_command(program())
OPTIONS_OF = {
    name: {"--help"}.union(*(option.opts + option.secondary_opts for option in command.params))
    for name, command in GROUP.commands.items()
}
OF_GROUP = {"--help"}.union(*(option.opts for option in GROUP.params))
OF_OTHERS = {
    *("--no-deps", "--upgrade", "--force-reinstall"),  # pip
    *("--nodes", "--ntasks", "--ntasks-per-node", "--gres", "--exclude", "--array"),  # Slurm
    *("--head", "--block", "--address", "--num-gpus", "--query-gpu", "--format"),  # Ray, nvidia-smi
}
NO_COMMANDS = {"measures", "itself", "looks", "needs", "that"}
"""Words behind the program's name in sentences."""
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


def blocks(text: str) -> Iterator[str]:
    """The lines of a page's code, fenced or indented, those that go on in the next line joined."""
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?:^    [^\n]*\n)+", text, re.MULTILINE)
    for block in (*fenced, *indented):
        yield from re.sub(r"\\\n\s*", "", block).splitlines()


def spans(text: str) -> list[str]:
    """A page's inline code, each on one line."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def texts_of(file: Path) -> Iterator[str]:
    """What readers see of a file: a page, a notebook's cells, comments of YAML, strings of Python."""
    text = text_of(file)
    if file.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"])
    elif file.suffix == ".yaml":
        yield "\n".join(line.partition("#")[2] for line in text.splitlines())
    elif file.suffix == ".py":
        constants = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        yield from (node.value for node in constants if isinstance(node.value, str))
    else:
        yield text


def commands(file: Path) -> list[str]:
    """The program's command lines in a file's blocks of code, and what its inline code and sentences name."""
    found = []
    page = file.suffix in (".md", ".ipynb")
    for text in texts_of(file):
        for line in blocks(text) if page else ():
            found += [f"$ {words}" for words in re.findall(r"\bicl-bench ([^|;&>\n]*)", line)]
        named = "\n".join(spans(text)) if page else text
        found += [match["words"] for match in NAMED.finditer(named)]
    return found


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_commands_exist_and_have_the_options_that_are_named(file: Path):
    for command in commands(file):
        whole, words = command.startswith("$ "), shlex.split(command.removeprefix("$ "), comments=True)
        name, *rest = words
        if name.startswith("-"):
            assert name in OF_GROUP, f"{name_of(file)}: icl-bench {command}"
        elif whole and "--help" not in words:
            GROUP.commands[name].make_context(name, rest)
        elif name not in NO_COMMANDS:
            assert name in GROUP.commands, f"{name_of(file)}: icl-bench {command}"
            assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= OPTIONS_OF[name], command


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_option_that_is_named_exists(file: Path):
    """Of the program, of a benchmark that the file names, or of one of the other programs."""
    text = "\n".join(texts_of(file))
    known = set[str]().union(*OPTIONS_OF.values(), OF_GROUP, OF_OTHERS)
    for benchmark in re.findall(r"benchmarks/\w+\.py", text):
        known |= set(OPTION.findall(text_of(ROOT / benchmark)))
    assert set(OPTION.findall(text)) <= known


def test_these_pages_name_no_command():
    assert {name_of(page) for page in (*PAGES, *BOOKS) if not commands(page)} == {
        "docs/constrained-decoding.md",
        "docs/extending.md",
        "docs/glossary.md",
        "docs/mutants.md",
        "docs/security.md",
        "docs/statistics.md",
    }


def test_the_package_names_its_own_commands():
    named = {command.split()[0] for module in MODULES for command in commands(module)}
    assert named >= GROUP.commands.keys()


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, known in KINDS.items() for name in known])
def test_whatever_is_registered_is_in_the_page_of_options(kind: str, name: str):
    spans = re.findall(r"`([^`\n]+)`", OPTIONS)
    ends = re.compile(rf"{re.escape(name)}(?=$|[:=,\[+])")
    assert any(ends.match(span) for span in spans), f"{kind} {name}: not in docs/options.md"


OPTION_OF = {
    "selector": "select",
    "order": "order",
    "perturbation": "perturbation",
    "attention pattern": "attention",
    "backend": "backend",
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in OPTION_OF for name in KINDS[kind]])
def test_whatever_run_can_be_given_is_in_its_help(kind: str, name: str):
    helps = {option.name: str(getattr(option, "help", "")) for option in GROUP.commands["run"].params}
    assert name in helps[OPTION_OF[kind]]


def test_every_option_of_every_command_is_in_the_page_of_options():
    said = set(re.findall(r"--[a-z][a-z-]*", OPTIONS))
    for name, command in GROUP.commands.items():
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
    books = [f"../notebooks/{path.name}" for path in BOOKS]
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
