"""Tables of ``summary``: by question, and no more rows than asked for."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, plan, runner
from support.in_process import run_command, said
from support.predictions import cell, frame

from icl_bench.analysis.findings.comparisons import compare_models
from icl_bench.analysis.questions import QUESTIONS
from icl_bench.cli.output import findings, fitting
from icl_bench.cli.output.fitting import ColumnHead, print_table
from icl_bench.cli.output.summary import numbered_settings, setting_numbers
from icl_bench.cli.output.tables import top_rows
from icl_bench.cli.output.terminal import Terminal, console
from icl_bench.registry import FINDINGS


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("summary")
    made = plan(folder / "task", "0,1,2,4", draws=3, selects=["random", "bm25"], orders=["drawn", "relevance"])
    runner(made, folder / "results", FakeBackend()).run()
    return folder / "results"


def test_a_setting_has_the_number_of_its_own_task():
    variants = [("A", "aaa1"), ("A", "imp5"), ("B", "imp5"), ("B", "zzz9")]
    curves = pd.DataFrame([(task, "m", variant) for task, variant in variants], columns=["task", "model", "variant"])
    names = {"aaa1": "run here", "imp5": "imported", "zzz9": "run there"}
    none = curves.iloc[:0].assign(perturbation="")
    numbers = setting_numbers(SimpleNamespace(curves=curves, perturbed_curves=none, settings=names))  # type: ignore[arg-type]
    table = curves.assign(select="random", order="drawn", k=5, changed=0.5, ci_low=0.4, ci_high=0.6)
    shown, _ = findings._numbered(table, [findings.COLUMNS["task"], findings.COLUMNS["k"]], numbers)
    for (task,), rows in curves.groupby(["task"]):
        printed = numbered_settings(rows, names)[1]
        of = shown[shown["task"] == task]
        assert dict(zip(of["variant"], of["setting"], strict=True)) == {v: str(n) for v, n in printed.items()}


def test_where_a_curve_has_several_bases_each_row_names_its_base():
    made = [cell("aabb", variant="v16"), cell("abbb", variant="v32"), cell("aaab", model="n", variant="w")]
    table = compare_models(frame(*made), "m")
    finding, bases = FINDINGS["models"], {("t", "m", "v16"): 1, ("t", "m", "v32"): 2}
    for numbers, expected in ((bases, ["1", "2"]), ({}, ["v16", "v32"]), (dict.fromkeys(bases, 1), ["v16", "v32"])):
        _, heads, cells = findings.laid_out(finding, table, numbers)
        at = [head.title for head in heads].index("base\nsetting")
        assert [row[at] for row in cells] == expected
    _, heads, _ = findings.laid_out(finding, compare_models(frame(*made[1:]), "m"), bases)
    assert "base\nsetting" not in [head.title for head in heads]


def test_findings_stand_below_their_question_and_questions_without_an_answer_are_left_out(results: Path):
    lines = said("summary", "--results", results).splitlines()
    questions = [line for line in lines if line in QUESTIONS]
    assert questions == ["What scores best?", "What do demonstrations gain, and why?", [*QUESTIONS][2]]
    headings = [
        next(at for at, line in enumerate(lines) if line.startswith(text)) for text in ("demonst", "selection:")
    ]
    assert lines.index(questions[1]) == headings[0] - 1
    assert lines.index(questions[2]) == headings[1] - 1


def rows(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines if "random" in line or "bm25" in line]


def test_top_prints_the_best_rows_and_says_how_many_there_are(results: Path):
    whole, top = (said("summary", "--results", results, *more).splitlines() for more in ((), ("--top", 2)))
    assert len(top) < len(whole)
    assert re.search(r"^  \d+ of \d+ rows are not shown \(--top\)", "\n".join(top), re.MULTILINE)
    assert "are not shown" not in "\n".join(whole)
    frontier = said("summary", "--results", results, "--frontier")
    short = said("summary", "--results", results, "--frontier", "--top", 2)
    points = [row for row in rows(frontier.splitlines()) if len(row) > 3 and row[1].isdigit()]
    verdicts = ("frontier", "undecided", "dominated")
    best = sorted(points, key=lambda row: (verdicts.index(row[-1]) if row[-1] in verdicts else 3, -float(row[3])))[:2]
    assert len(points) > 2
    assert all(f" {row[3]} " in short for row in best)
    assert f"{len(points) - 2} of {len(points)} rows are not shown (--top)" in short


@pytest.mark.parametrize("option", [("--json",), ("--advice", "any"), ("--detect", "3")])
def test_top_is_refused_where_there_are_no_tables(results: Path, option: tuple[str, ...]):
    done = run_command("summary", "--results", results, "--top", 3, *option)
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: --top: applies to printed tables; leave it out with --json, --advice and --detect\n"


@given(st.lists(st.floats(0, 1) | st.none(), max_size=12), st.integers(1, 12), st.booleans())
def test_the_rows_that_are_kept_are_the_smallest_in_the_tables_order(p: list[float], top: int, largest: bool):
    table = pd.DataFrame({"p": pd.Series(p, dtype=float), "at": range(len(p))}, index=[0] * len(p))
    kept, note = top_rows(table, top, ["p"], largest=largest)
    assert list(kept["at"]) == sorted(kept["at"])
    assert len(kept) == min(top, len(p))
    assert bool(note) == (len(p) > top)
    left = table[~table["at"].isin(kept["at"])]["p"]
    ordered = (lambda one, other: one >= other) if largest else (lambda one, other: one <= other)
    assert all(ordered(one, other) for one in kept["p"].dropna() for other in left.dropna())


def test_an_interrupt_while_a_table_is_laid_out_leaves_no_heading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "fitted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        print_table(console(), [ColumnHead("k")], [["1"]], above="A question?", heading="a finding")
    assert capsys.readouterr().out == ""


def test_advice_is_broken_at_words_on_a_terminal_and_a_line_each_elsewhere(monkeypatch: pytest.MonkeyPatch):
    words = "the cheapest point that is as good as the best one: random, k = 10, 56.3% (40.4 to 71.1) for 12 tokens"
    for terminal, longest in ((True, 40), (False, len(words))):
        text = io.StringIO()
        shown = Terminal(file=text, force_terminal=terminal, width=40)
        monkeypatch.setattr("icl_bench.cli.output.terminal.console", lambda shown=shown: shown)
        findings._print_texts({}, [words, "another line"], json=False)
        lines = [line.rstrip() for line in text.getvalue().splitlines()]
        assert max(map(len, lines)) <= longest
        assert " ".join(lines) == f"{words} another line"
        assert lines[-1] == "another line"
