"""Rows of imports with other right answers are not compared; other names of labels, and runs, are as before."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
from rich.console import Console
from support.predictions import cell, frame, imported

from icl_bench.analysis.across_models import on_same_rows
from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.findings.comparisons import compare_models
from icl_bench.analysis.findings.replication import replication, unmatched_imports
from icl_bench.analysis.statistics.right_answers import notes_on_rows_apart, with_rows_apart
from icl_bench.cli.output.findings import print_findings
from icl_bench.report.build import _notes
from icl_bench.results.facts import Facts

TESTS = "abab" * 5
FACTS = {name: Facts(imported=f"{name}.csv") for name in ("v1", "v2")}


def of_models(second: str, said: str | None = None) -> pd.DataFrame:
    parts = [
        cell(answers, gold, model=model, variant=variant, draw=draw, k=2, cell=f"{model}-{draw}")
        for model, variant, gold, answers in (("m1", "v1", TESTS, TESTS), ("m2", "v2", second, said or second))
        for draw in range(3)
    ]
    return frame(*parts)


def test_models_are_not_compared_on_rows_with_other_right_answers():
    swapped = TESTS[::-1]
    apart = compare_models(of_models(swapped, "a" * 20), "m1", FACTS)
    assert apart["rows"].tolist() in ([], [0])
    assert not apart["significant"].any()
    half = compare_models(of_models(TESTS[:10] + swapped[10:]), "m1", FACTS)
    assert half["rows"].tolist() == [10]
    assert notes_on_rows_apart(of_models(swapped), FACTS) == [
        "t: 20 test rows of imported predictions have another right answer than the row with the same id elsewhere; "
        "not compared"
    ]


def test_a_note_doubts_equal_right_answers_if_as_many_differ_as_of_unrelated_rows():
    """Of two labels, half are equal by chance: these rows are compared as the same."""
    doubt = (
        ". So many differ that the others (10) may be other rows with the same answer: check whether test_id names the "
        "same rows"
    )
    (half,) = notes_on_rows_apart(of_models(TESTS[:10] + TESTS[::-1][10:]), FACTS)
    assert half.endswith(f"not compared{doubt}")
    (few,) = notes_on_rows_apart(of_models(TESTS[:18] + TESTS[::-1][18:]), FACTS)  # corrected labels
    assert few.endswith(
        "2 test rows of imported predictions have another right answer than the row with the same id "
        "elsewhere; not compared"
    )


def test_labels_of_other_names_are_compared_as_before():
    renamed = TESTS.replace("a", "x").replace("b", "y")
    both = of_models(renamed)
    assert compare_models(both, "m1", FACTS)["rows"].tolist() == [20]
    assert notes_on_rows_apart(both, FACTS) == []
    texts = of_models(TESTS)
    texts["gold"] = texts["test_id"] + texts["variant"]  # each row has an answer of its own
    assert compare_models(texts, "m1", FACTS)["rows"].tolist() in ([], [0])


def test_runs_keep_their_ids_whatever_their_labels_are_called():
    both = of_models(TESTS[::-1])
    assert with_rows_apart(both, {}) is both
    with_run = with_rows_apart(both, {"v1": FACTS["v1"]})
    assert set(with_run.loc[with_run["variant"] == "v2", "test_id"]) == set(both["test_id"])
    assert not set(with_run.loc[with_run["variant"] == "v1", "test_id"]) & set(both["test_id"])
    assert on_same_rows(both, {"v1": FACTS["v1"]})["test_id"].tolist() == with_run["test_id"].tolist()


def test_a_run_is_not_compared_with_imported_rows_of_other_right_answers():
    both = of_models(TESTS[::-1]).assign(model="m")
    facts = {"v1": FACTS["v1"]}
    assert replication(both, facts)["rows"].tolist() in ([], [0])
    assert unmatched_imports(both, facts)["differs"].tolist() == ["test rows"]


def test_summary_and_report_name_rows_that_are_not_compared(tmp_path: Path):
    both = of_models(TESTS[::-1]).drop(columns="cell")
    for model, part in both.groupby("model"):
        imported(tmp_path, part, name=str(model))
    text, told = io.StringIO(), "t: 20 test rows of imported predictions have another right answer"
    found = read_findings(tmp_path / "results")
    print_findings(found, Console(file=text, width=200))
    assert told in " ".join(text.getvalue().split())
    assert [note for note in _notes(found) if told in note]
