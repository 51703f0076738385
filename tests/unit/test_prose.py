"""Pages, messages and docstrings are written in plain technical English: phrases that need a second reading are found."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
"""The documentation."""
MODULES = sorted((ROOT / "icl_bench").rglob("*.py"))


class Phrase(NamedTuple):
    """A pattern of phrases, what to write instead, and an example that it finds."""

    pattern: str
    better: str
    example: str


PHRASES = (
    Phrase(r"\breckon", "compute, count", "reckoned out, not drawn"),
    Phrase(r"\bpurse\b", "budget", "it depends on the purse"),
    Phrase(r"\bcommonest\b", "most frequent", "the commonest label"),
    Phrase(r"\bsave for\b", "except", "all points save for one"),
    Phrase(r"\b(?:none )?of ours\b", "icl-bench's", "a task file of ours"),
    Phrase(r"\bnot to be had\b", "not available", "its weights are not to be had"),
    Phrase(r"\bfor want of\b", "because ... is missing", "not compared for want of a model"),
    Phrase(r"\bbeside other work\b", "on a busy machine", "one thread beside other work"),
    Phrase(r"\bnot told from\b|\bt(?:ell|ells|old) apart\b", "not distinguishable", "the two are not told apart"),
    Phrase(r"\bspeaks? of\b|\bspoken of\b", "name, describe", "the file speaks of two models"),
    Phrase(r"\bso many (?:draws|rows|demonstrations|of each)\b", "this number of", "what so many draws can show"),
    Phrase(r"\bwhoever\b|\baught\b|\bwherein\b|\bthereof\b", "who, what, in which", "whoever does not mind it"),
    Phrase(r"\bheld to (?:the|their|its) labels\b", "constrained to the labels", "answers held to the labels"),
    Phrase(r"\b(?:is|are|was|were|be|not) told\b", "show, report, estimate", "saturation not told"),
    Phrase(r"\b(?:is|are) said\b", "is reported", "left out, and are said"),
    Phrase(
        r"\bsays? nothing\b|\bnothing of\b", "does not generalise to, does not include", "says nothing of other draws"
    ),
    Phrase(r"\bgo(?:es)? on\b", "resume, continue", "the same command goes on"),
    Phrase(
        r"\b(?:stands?|stood) (?:in|beside|behind|before|there|first|last|alone|next|apart)\b",
        "be, appear, precede, follow",
        "they stand in its train file",
    ),
    Phrase(
        r"\bbehind (?:shared|cached|each|the (?:prompt|query|last|label|shared|inputs))\b",
        "after",
        "five of them behind shared ones",
    ),
    Phrase(r"\b(?:likeliest|dearest)\b", "most probable, most expensive", "the likeliest label"),
    Phrase(r"\banew\b", "again", "sampled anew for each row"),
    Phrase(r"\bbut for\b", "except", "the same but for case"),
    Phrase(r"\bsurely\b", "with statistical confidence", "it is surely worse"),
    Phrase(r"\b(?:laid|worked) out\b", "planned, computed", "every cell is laid out"),
    Phrase(r"\bless (?:that|those|random's|full)\b", "minus", "its accuracy less that of random ones"),
    Phrase(r"\bwhat is (?:drawn|shared|told|let be seen)\b", "name the thing", "what is drawn has three draws"),
    Phrase(r"\bwe have\b|\bby us\b|\bour (?:data|files)\b", "name the thing", "only what we have of the paper"),
    Phrase(r"\d%? ?– ?[-+−]?\d", "(40.4 to 71.1)", "56.3 (40.4 – 71.1)"),
)
"""Not in pages, the readme, help texts, messages, docstrings or comments."""


def found_in(text: str, phrases: tuple[Phrase, ...]) -> list[str]:
    """The phrases in a text, each with what to write instead."""
    return [
        f"{match.group()!r}: {phrase.better}"
        for phrase in phrases
        for match in re.finditer(phrase.pattern, text, re.IGNORECASE)
    ]


def prose_of(page: Path) -> str:
    """A page without its code, one paragraph a line."""
    text = re.sub(r"^```.*?^```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<=[^\n|])\n(?=[^\n|#-])", " ", text)


def strings_of(module: Path, docstrings: bool) -> Iterator[tuple[int, str]]:
    """The line and text of a module's docstrings, or of its other strings, which its users may read."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in alone) is docstrings:
            yield node.lineno, node.value


def notes_of(module: Path) -> Iterator[tuple[int, str]]:
    """The line and text of a module's docstrings and comments, without the code in backticks."""
    with module.open("rb") as file:
        comments = [(t.start[0], t.string) for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT]
    for line, text in [*strings_of(module, docstrings=True), *comments]:
        yield line, " ".join(re.sub(r"(`+)[^`]*\1", "", text).split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_phrase_that_needs_a_second_reading(page: Path):
    assert found_in(prose_of(page), PHRASES) == []


def test_the_readme_help_texts_and_messages_have_none_either():
    assert found_in(prose_of(ROOT / "README.md"), PHRASES) == []
    messages = {module.name: "\n".join(text for _, text in strings_of(module, docstrings=False)) for module in MODULES}
    found = {name: found_in(text, PHRASES) for name, text in messages.items()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


def test_docstrings_and_comments_have_none_either():
    found = {}
    for module in MODULES:
        notes = list(notes_of(module))
        if found_in("\n".join(text for _, text in notes), PHRASES):  # all at once are searched in a tenth of the time
            name = module.relative_to(ROOT)
            found |= {f"{name}:{line}": phrases for line, text in notes if (phrases := found_in(text, PHRASES))}
    assert found == {}


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.example)
def test_a_phrase_is_found_in_its_example_across_lines_and_not_in_code(phrase: Phrase, tmp_path: Path):
    page = tmp_path / "page.md"
    for text, expected in (
        (phrase.example, True),
        (phrase.example.replace(" ", "\n"), True),
        (f"`{phrase.example}`", False),
    ):
        page.write_text(f"Text.\n\n{text}\n", encoding="utf-8")
        assert bool(found_in(prose_of(page), (phrase,))) is expected, text


@pytest.mark.parametrize("phrase", PHRASES, ids=lambda phrase: phrase.example)
def test_a_phrase_is_found_in_a_docstring_and_in_a_comment(phrase: Phrase, tmp_path: Path):
    module = tmp_path / "module.py"
    broken = phrase.example.replace(" ", "\n    ")
    module.write_text(
        f'# {phrase.example}\ndef f():\n    """{broken}"""\n\ndef g():\n    """``{phrase.example}``"""\n',
        encoding="utf-8",
    )
    assert [line for line, text in notes_of(module) if found_in(text, (phrase,))] == [3, 1]
