"""README and docs: what they name is there, and what is there they name."""

from __future__ import annotations

import ast
import html
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer.main
import yaml
from support.in_process import said

import icl_bench
from icl_bench import registry
from icl_bench.choosing.options import ChooseSpec
from icl_bench.cli import COMMANDS, EXAMPLES, START, main, program
from icl_bench.errors import UserError
from icl_bench.options import Options
from icl_bench.studies.file import load_study
from icl_bench.studies.options import MachineOptions
from icl_bench.studies.rules import Rule
from icl_bench.sweep.perplexity import PerplexitySpec
from icl_bench.sweep.rationale_options import RationalesOptions
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.tasks.task_files import known_tasks
from icl_bench.training.adaptation.spec import AdaptationSpec
from icl_bench.training.spec import FinetuneSpec
from icl_bench.training.vectors.spec import VectorSpec
from icl_bench.wording import comma_list

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "icl_bench").rglob("*.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SHELL = [ROOT / "Makefile", *WORKFLOWS, *sorted(ROOT.glob(".ci/*"))]
"""Files with commands in lines of a shell."""
YAML = [*sorted(ROOT.glob("tasks/*.yaml")), *sorted(ROOT.glob("studies/*.yaml"))]
FILES = [*PAGES, *BOOKS, *MODULES, *YAML, *SHELL]
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
    *("--no-deps", "--upgrade", "--force-reinstall", "--require-hashes"),  # pip
    *("--nodes", "--ntasks", "--ntasks-per-node", "--gres", "--exclude", "--array"),  # Slurm
    *("--head", "--block", "--address", "--num-gpus", "--query-gpu", "--format"),  # Ray, nvidia-smi
    *("--generation-config", "--sampling-defaults"),  # vLLM, SGLang
}
NO_COMMANDS = {"measures", "itself", "looks", "needs", "that", "never", "cannot", "draws"}
"""Words behind the program's name in sentences."""
SPECS: dict[str, type[Options]] = {
    "run": RunSpec,
    "plan": RunSpec,
    "finetune": FinetuneSpec,
    "choose": ChooseSpec,
    "perplexity": PerplexitySpec,
    "adapt": AdaptationSpec,
    "train-vectors": VectorSpec,
    "rationales": RationalesOptions,
}
"""Commands -> what reads the values of their options."""
USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
WITH_OPTIONS = re.compile(rf"(?:icl-bench )?(?P<words>(?:{'|'.join(GROUP.commands)}) .*--.+)")
"""Inline code that is a command with options; the program's name may be left out."""
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


@cache
def texts_of(file: Path) -> tuple[str, ...]:
    """What readers see of a file: a page, a notebook's cells, comments of YAML, strings of Python."""
    return tuple(_texts(file))


def _texts(file: Path) -> Iterator[str]:
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


def lines_of(file: Path) -> list[str]:
    """The program's whole command lines in a file: in blocks of code, in cells of notebooks, in shells."""
    text = text_of(file)
    if file in SHELL:
        texts = [*_yaml_texts(yaml.safe_load(text))] if file.suffix == ".yml" else [re.sub(r"\\\n\s*", "", text)]
        lines = re.sub(r'"| +\([^)]*\)(?=")', "\n", "\n".join(texts)).splitlines()  # what a line echoes
    elif file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        lines = re.sub(r"\\\n\s*", "", "\n".join(code)).splitlines()
        lines += [line for cell in cells for line in blocks("".join(cell["source"]) + "\n")]
    else:
        lines = list(blocks(text)) if file.suffix == ".md" else []
    shell = (line for line in lines if not line.lstrip().startswith("#"))
    return [words for line in shell for words in re.findall(r"\bicl-bench ([^|;&>\n]*)", line)]


def _yaml_texts(value: Any) -> Iterator[str]:
    """All texts in a YAML document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _yaml_texts(part)


def named_in(file: Path) -> list[str]:
    """Commands and their options that inline code and sentences of a file name."""
    page = file.suffix in (".md", ".ipynb")
    texts = ("; ".join(spans(text)) if page else text for text in texts_of(file))
    return [match["words"] for text in texts for match in NAMED.finditer(text)]


def commands(file: Path) -> list[str]:
    """All commands that a file names, whole ones first."""
    return [*lines_of(file), *named_in(file)]


def parse(words: list[str]) -> dict[str, Any]:
    """The values of a command line's options, read as the program reads them, without carrying it out.

    Raises what Typer raises, or ``UserError``.
    """
    name, *rest = words
    given: dict[str, Any] = GROUP.commands[name].make_context(name, rest).params
    known = {n: list(v) if isinstance(v, tuple) else v for n, v in given.items() if v not in (None, False, ())}
    if spec := SPECS.get(name):
        options = {option: known[option] for option in spec.declared() if option in known}
        for several in () if name == "choose" else ("task", "model"):  # of several, any; choose takes them together
            if isinstance(options.get(several), str):
                options[several] = comma_list(options[several])[0]
        read = spec(**options)
        if isinstance(read, FinetuneSpec):
            read.check()
    machines = {option: known[option] for option in MachineOptions.declared() if option in known}
    assert not machines or {"on", "workers"} & machines.keys()
    if name == "study":
        _check_parts(known.get("file"), known.get("only"))
    return given


def _check_parts(file: str | None, only: list[str] | None) -> None:
    """Whether a shipped study has the parts that are asked for."""
    rule = Rule.parse(only) if only else None
    if file is None or file.endswith((".yaml", ".yml")):
        return
    jobs = load_study(file).jobs
    for key, values in (rule.values if rule else {}).items():
        if key in ("task", "model", "setting"):
            assert values <= {getattr(job, key) for job in jobs}, f"{file}: {key}={', '.join(values)}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_commands_can_be_parsed(file: Path):
    """Whole ones with all of their values; of those in sentences, the options exist."""
    for line in lines_of(file):
        words = shlex.split(line, comments=True)
        if words[0].startswith("-"):
            assert words[0] in OF_GROUP, f"{name_of(file)}: icl-bench {line}"
        elif words[0] not in NO_COMMANDS and "--help" not in words:
            try:
                parse(words)
            except (UserError, USAGE_ERROR) as error:
                pytest.fail(f"{name_of(file)}: icl-bench {line}: {error}")
    for command in named_in(file):
        name, *rest = shlex.split(command)
        if name.startswith("-"):
            assert name in OF_GROUP, f"{name_of(file)}: icl-bench {command}"
        elif name not in NO_COMMANDS:
            assert name in GROUP.commands, f"{name_of(file)}: icl-bench {command}"
            assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= OPTIONS_OF[name], command


def test_every_command_of_the_tables_of_the_papers_is_accepted_whole():
    """Those of inline code, too, which elsewhere may be cut short."""
    page = next(file for file in FILES if file.name == "replication.md")
    found = [shlex.split(span) for span in spans(text_of(page)) if span.startswith("icl-bench ")]
    assert len(found) > 30
    for _, name, *rest in found:
        if rest:
            GROUP.commands[name].make_context(name, rest)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_a_command_that_is_accepted(name: str, capsys: pytest.CaptureFixture[str]):
    parse(shlex.split(EXAMPLES[name]))
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out.partition("Example:\n")[2]
    assert shlex.split(shown.replace("\\\n", "")) == ["icl-bench", *shlex.split(EXAMPLES[name])]


def test_the_program_alone_shows_three_commands_to_start_with(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main([])
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  icl-bench ")]
    assert shown == [line for line, _ in START]
    for line in shown:
        parse(shlex.split(line)[1:])


def test_a_page_checks_a_file_of_rows_with_a_command_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Which options go together is only known when the command is carried out."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{word} {n},{label}" for label, word in (("bill", "charged"), ("login", "locked")) for n in range(10)]
    Path("tickets.csv").write_text("\n".join(["body,queue", *rows]), encoding="utf-8")
    found = [line for page in PAGES for line in lines_of(page) if line.startswith("tasks --check tickets.csv")]
    assert found
    for line in found:
        assert "near duplicates" in said(*shlex.split(line, comments=True))


WRONG = {
    "study bertsch2025 --on ray --dtype bfloat16": "No such option",
    "study bertsch2025 --only setting=nothing": "setting=nothing",
    "study bertsch2025 --only nothing=1": "unknown key",
    "study bertsch2025 --engines 2": "",
    "run --task trec": "Missing parameter: model",
    "run --task trec --model m --k many": "--k",
    "run --task trec --model m --k 1 --select nearest": "--select",
    "plan --task trec --model m --k 1 --score often": "--score",
    "finetune --task trec --model m --k 1 --method sft": "--method",
    "check --results new": "Missing parameter: baseline",
    "report --to page.html": "No such option",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_command_that_would_be_refused_is_found(command: str):
    with pytest.raises((UserError, USAGE_ERROR, AssertionError), match=WRONG[command]):
        parse(command.split())


def fenced(page: Path, *languages: str) -> list[str]:
    """The contents of a page's blocks of code in these languages ("" where none is named)."""
    found = re.findall(r"^```([a-z]*)\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    return [content for language, content in found if language in languages]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_yaml_are_yaml_and_studies_are_studies(page: Path, tmp_path: Path):
    for number, content in enumerate(fenced(page, "yaml", "yml")):
        values = yaml.safe_load(content)
        if isinstance(values, dict) and "settings" in values:
            (tmp_path / f"{number}.yaml").write_text(content, encoding="utf-8")
            for job in load_study(tmp_path / f"{number}.yaml").jobs:
                job.spec()


def test_scripts_for_clusters_are_whole():
    scripts = fenced(DOCS / "clusters.md", "", "sh", "bash")
    assert sum("srun" in script for script in scripts) == 2
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), script


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_with_options_in_inline_code_have_these_options(page: Path):
    """Also without the program's name, as in ``study --plan``."""
    for span in spans(text_of(page)):
        if found := WITH_OPTIONS.fullmatch(span):
            name, *rest = found["words"].split()
            options = {word.partition("=")[0].rstrip(",.;)") for word in rest if word.startswith("--")}
            assert options <= OPTIONS_OF[name], f"{name_of(page)}: {span}"


@pytest.mark.parametrize("file", [file for file in FILES if file not in SHELL], ids=name_of)
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


def test_the_sections_of_the_report_that_pages_name_exist():
    sections = [finding.section for finding in (registry.FINDINGS[name] for name in registry.FINDINGS)]
    titles = {section.title for section in sections if section}
    named = {
        title
        for page in DOCS.glob("*.md")
        for title in re.findall(r"section\s+\"([^\"]+)\"", " ".join(text_of(page).split()))
    }
    assert len(named) >= 3
    assert named - titles == set()


def test_every_shipped_task_is_in_the_page_of_task_files():
    page = text_of(DOCS / "task-files.md")
    assert [name for name in known_tasks() if f"`{name}`" not in page] == []


def test_the_readme_names_every_extra():
    extras = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]
    readme = text_of(ROOT / "README.md")
    for extra in extras.keys() - {"dev", "docs", "mutants"}:
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
        r"(random, cached,\s+then 10 nearest|random, cached|BM25 \(shared words\)|nearest \(embeddings\))",
        svg,
    )
    names = {
        "random": "random, cached",
        "bm25": "BM25 (shared words)",
        "dense": "nearest (embeddings)",
        "hybrid:10,by=dense": "random, cached, then 10 nearest",
    }
    measured = set()
    for task in ("Banking-77", "TREC"):
        section = text_of(DOCS / "selection.md").split(f"\n## {task}\n")[1].split("\n## ")[0]
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] in names:
                measured.add((float(cells[-1]), float(cells[3]), names[cells[0]]))
    assert len(measured) == 20
    assert measured <= {(float(x), float(y), " ".join(method.split())) for x, y, method in shown}


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    assert citation["version"] == icl_bench.__version__
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == "Apache-2.0"
