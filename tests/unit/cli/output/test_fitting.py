"""Tables at 80 columns: no line is longer, and no name, number or heading is broken."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len
from support.in_process import run_command
from support.needs import data_folder

from icl_bench.analysis.columns import Column
from icl_bench.analysis.finding import Finding
from icl_bench.cli.output.findings import laid_out, shown
from icl_bench.cli.output.fitting import ColumnHead, fitted, folded, pieces, print_table
from icl_bench.cli.output.terminal import Terminal
from icl_bench.registry import FINDINGS

PRINTED = [name for name, finding in FINDINGS.items() if finding.printed]

TASKS = ["banking77", "commonsenseqa_free"]
MODELS = ["llama2-80k", "Meta-Llama-3.1-8B-Instruct", "smollm2-135m-instruct"]
SELECTS = ["random", "centroids,of=queries+hybrid:20,by=bertscore", "per-label:2,by=dense"]
ORDERS = ["drawn", "by-label", "shuffled:16"]
ATTENTIONS = ["full", "block:50,sink=1,local=2", "approx:512,128"]
TEXTS: dict[str, Sequence[Any]] = {
    "task": TASKS,
    "model": MODELS,
    "select": SELECTS,
    "order": ORDERS,
    "attention": ATTENTIONS,
    "perturbation": ["labels:noise=0.3", "nearest-removed:20"],
    "chat": ["turns", "single"],
    "base_model": ["gemma3-270m"],
    "variant": ["1a2b3c4d", "5e6f7a8b"],
    "beside": ["random, not cached, approx:512,128", "bm25", "random, cached"],
    "differs_in": ["precision (bfloat16, float32) and backend (transformers, vllm)", None],
    "advice": ["llama2-80k", "full", "1 draw", None],
    "reason": [
        "one draw does not show how much draws differ; run 3 or more",
        None,
        "the 90% interval, 41.2 to 88.9%, is wider than 35 points",
    ],
    "said": ["share 0.5, 0.75", "fixed none"],
    "metric": ["accuracy"],
    "queries": ["1,234,567", "never"],
    "queries_by_seconds": ["12,345", "never"],
}
NUMBERS: dict[str, Sequence[Any]] = {
    "count": [10, 1750, 12500],
    "share": [0.0, 1.0, 0.853],
    "points": [-0.554, 0.012, 1.0],
    "number": [0.0123, 131072.0, 98.7],
    "p": [0.0001, 0.034, 1.0],
    "flag": [True, False],
}
MOST_ROWS = 40
"""Rows of a table; all combinations of names would be a thousand."""
PLACES = ("task", "model", "perturbation", "select", "order", "attention", "variant", "k")


def rows_of(finding: Finding, *, differ: Collection[str]) -> pd.DataFrame:
    """The printed columns of a finding with realistic values; only some of its names differ."""
    columns = {column.name: column for column in finding.in_terminal()}
    uppers = {column.upper for column in columns.values() if column.upper}
    names = [name for name in PLACES if name in {*columns, *differ}]
    several = [[1, 50, 1250] if name == "k" else TEXTS[name][: None if name in differ else 1] for name in names]
    table = pd.DataFrame(list(itertools.product(*several)), columns=names)
    rng = np.random.default_rng(0)
    if len(table) > MOST_ROWS:  # still with each value of each name
        table = table.sample(MOST_ROWS, random_state=0).sort_index(ignore_index=True)
        assert [table[name].nunique() for name in names] == list(map(len, several))
    for name in [*columns, *uppers]:
        if name in names:
            continue
        column = columns.get(name) or finding.column(name)
        values = TEXTS.get(name) or NUMBERS.get(column.kind) or ["some words"]
        of = [values[i] for i in rng.integers(len(values), size=len(table))]
        table[name] = [one * column.unit if isinstance(one, float) else one for one in of]
    for name in {"difference", "p_holm"} - {*table}:
        table[name] = math.nan
    return table


def printed(finding: Finding, table: pd.DataFrame, width: int = 80) -> list[str]:
    text = io.StringIO()
    settings = (("1a2b3c4d", 1), ("5e6f7a8b", 2))
    numbers = {(task, model, v): n for task in TEXTS["task"] for model in TEXTS["model"] for v, n in settings}
    heading, heads, cells = laid_out(finding, table, numbers)
    print_table(Terminal(file=text, width=width), heads, cells, heading=heading)
    return text.getvalue().splitlines()


def runs(text: str) -> Iterator[str]:
    """What may stand in one line of a text that is folded: pieces that follow each other."""
    for word in text.split():
        parts = pieces(word)
        yield from ("".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))


def allowed(finding: Finding, table: pd.DataFrame) -> set[str]:
    """Every word that may stand in the output."""
    assert finding.printed is not None
    titles = [column.brief for column in (*finding.in_terminal(), *finding.columns)]
    said = [
        finding.printed.heading,
        "setting – 1 2 order attention draw · empty columns omitted:",
        *titles,
        *(word for title in titles for word in (f"{' '.join(title.split())};",)),
    ]
    words = {word for text in said for word in text.format(score="accuracy").split()}
    for column in (*finding.in_terminal(), Column("order", ""), Column("attention", "")):
        if column.name not in table:
            continue
        for row in table.to_dict("records"):
            words.update(runs(shown(column, row)))
    reasons = {*table.get("reason", [])} - {None}
    return words | {f"{n}:" for n in range(1, len(reasons) + 1)}


@pytest.mark.parametrize(
    "differ",
    [
        ("k",),
        pytest.param(("task",), marks=pytest.mark.thorough),
        pytest.param(("task", "model"), marks=pytest.mark.thorough),
        pytest.param(("select", "order"), marks=pytest.mark.thorough),
        ("task", "model", "select", "order"),
        pytest.param(("select", "attention"), marks=pytest.mark.thorough),
        ("task", "model", "select", "order", "attention", "variant"),
    ],
    ids=",".join,
)
@pytest.mark.parametrize("name", PRINTED)
def test_no_finding_is_wider_than_the_terminal_and_no_word_of_it_is_broken(name: str, differ: tuple[str, ...]):
    finding = FINDINGS[name]
    table = rows_of(finding, differ=differ)
    lines = printed(finding, table)
    assert max(map(cell_len, lines)) <= 80
    words = {word for line in lines for word in re.sub("─+", "", line).split()}
    assert words - allowed(finding, table) == set()


# -- the steps, one by one ----------------------------------------------------------------------

NAMES = [
    ColumnHead("task", "name", bare=True),
    ColumnHead("select", "name", bare=True),
    ColumnHead("order", "name", usual=("drawn",)),
]


def text_of(heads: Sequence[ColumnHead], rows: Sequence[Sequence[str]], width: int = 80, **more: Any) -> list[str]:
    text = io.StringIO()
    print_table(Terminal(file=text, width=width), heads, rows, **more)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_what_all_rows_have_stands_in_the_title_but_for_what_is_usual():
    heads = [*NAMES, ColumnHead("k", "key")]
    for order, said in (("drawn", "trec · random"), ("by-label", "trec · random · order by-label")):
        lines = text_of(heads, [["trec", "random", order, k] for k in ("1", "10")])
        assert lines[:2] == [said, " k"]


def test_an_order_that_rows_differ_by_is_a_column():
    rows = [["trec", "random", "drawn", "1"], ["trec", "bm25", "relevance", "1"]]
    lines = text_of([*NAMES, ColumnHead("k", "key")], rows)
    assert lines[0] == "trec · k 1" or lines[1].split() == ["select", "order", "k"]
    assert [line.split()[:2] for line in lines[3:5]] == [["random", "drawn"], ["bm25", "relevance"]]


def test_a_name_is_folded_behind_a_separator_and_a_number_never():
    assert folded("meta-llama/Llama-3.1-8B", 12).split("\n") == ["meta-llama/", "Llama-3.1-8B"]
    assert folded("random, cached, block:50,sink=1", 15).split("\n") == ["random, cached,", "block:50,sink=1"]
    for number in ("1,000", "12,500,000", "1/2", "1e-3", "-55.4", "+1.2", "512,128"):
        assert pieces(number) == [number]


def test_a_name_without_a_separator_is_broken_only_where_it_has_no_room_by_itself():
    assert folded("x" * 20, 8).split("\n") == ["x" * 8, "x" * 8, "x" * 4]
    name = "x" * 100
    lines = text_of(
        [ColumnHead("task", "name"), ColumnHead("k", "key"), ColumnHead("score")],
        [[name, "1", "2.0"], ["trec", "1", "3.0"]],
    )
    assert max(map(len, lines)) <= 80
    assert "".join("".join(lines).split()).count("x") == 100


def test_columns_that_have_no_room_stand_in_tables_below_with_k_in_each():
    heads = [ColumnHead("k", "key"), *(ColumnHead(f"number {n}") for n in range(9))]
    lines = text_of(heads, [[str(k), *["123,456.7"] * 9] for k in (1, 10)], width=40)
    assert max(map(len, lines)) <= 40
    assert sum(line.split()[:1] == ["10"] for line in lines) == 3
    assert "".join(lines).count("123,456.7") == 18


def test_columns_without_a_value_are_named_where_there_is_no_room_for_them():
    heads = [ColumnHead("k", "key"), ColumnHead("a long number"), *(ColumnHead(f"nothing{n}") for n in range(9))]
    rows = [[str(k), "1.5", *["–"] * 9] for k in (1, 10)]
    assert "empty columns omitted: nothing0; " in " ".join(text_of(heads, rows))
    assert "nothing8" in " ".join(text_of(heads, rows, width=200)[:2])
    none = [[k, "–", *rest] for k, _, *rest in rows]
    assert "2 points; empty columns omitted: a long number; nothing0;" in " ".join(text_of(heads, none, heading="cost"))


def test_of_the_ways_that_fit_the_shortest_is_taken():
    heads = [
        ColumnHead("task", "name", bare=True),
        ColumnHead("model", "name", bare=True),
        ColumnHead("k", "key"),
        ColumnHead("score"),
    ]
    rows = [[task, "a-model-with-a-long-name", str(k), "1.5"] for task in ("banking77", "trec") for k in range(30)]
    fit = fitted([*heads], [[*row[:1], f"{row[1]}-{row[0]}", *row[2:]] for row in rows], 40)
    assert [part.constants for part in fit.parts] == [
        [task, f"a-model-with-a-long-name-{task}"] for task in ("banking77", "trec")
    ]
    few = fitted([*heads], [["banking77", "a-model", "1", "1.5"], ["trec", "b-model", "1", "2"]], 27)
    assert len(few.parts) == 1  # folded: two tables would be longer


# -- what the program prints of real predictions ------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder of some of the published predictions."""
    frame = pd.read_parquet(data_folder() / "published" / "predictions.parquet")
    some = frame[frame["k"].isin([1, 10, 100, 1500]) & (frame["draw"] < 3)]
    made = tmp_path_factory.mktemp("published")
    some.to_parquet(made / "some.parquet")
    assert run_command("import", made / "some.parquet", "--results", made / "results").code == 0
    return made / "results"


@pytest.mark.parametrize("words", [("--forecast", "--cost"), ("--frontier",), ("--advice", "any")])
def test_real_findings_have_the_words_of_a_wide_terminal_on_a_narrow_one(
    published: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    said = {}
    for width in (80, 1000):
        monkeypatch.setenv("COLUMNS", str(width))
        done = run_command("summary", "--results", published, *words)
        assert done.code == 0
        said[width] = done.out
    tables = said[80].splitlines() if "--advice" not in words else []
    assert max(map(cell_len, tables), default=0) <= 80
    wide = {word for text in said[1000].split() for word in (text, *runs(text))}
    added = {"no", "row", "has", "a", "value", "of:", "points;", "order", "draws", "base", "·"}
    added |= {f"{number}:" for number in range(1, 10)}  # of texts below a table
    narrow = {re.sub("─+", "", word) for word in said[80].split()} - {""}
    assert {word.rstrip(";") for word in narrow - wide - added} - wide == set()
    assert ("shuffled:16" in narrow) == ("--cost" in words)  # the others leave reorderings out


def test_numbers_of_thousands_have_commas_in_every_table(published: Path):
    for words in (("summary",), ("check", "--baseline", published)):
        done = run_command(*words, "--results", published)
        assert re.search(r"(?<![\d,.])1,500(?![\d,.])", done.out)
        assert not re.search(r"(?<![\d,.:])1500(?!\d)", done.out)
