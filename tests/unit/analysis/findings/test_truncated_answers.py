"""Free answers that were cut at the task's limit are counted, stored and shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.predictions import cell, frame

from icl_bench.analysis.all_findings import find, read_findings
from icl_bench.analysis.findings.truncated_answers import TRUNCATED_ANSWERS, truncated_answers
from icl_bench.backends.interface import Answer, Decoding
from icl_bench.cli import main
from icl_bench.prompts.encoding import PromptSet
from icl_bench.report.build import _notes
from icl_bench.results.reading import read_results, read_some


class Cutting(FakeBackend):
    """Cuts every third answer."""

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        return replace(super()._answered(prompts, index, decoding), truncated=index % 3 == 0)


class StoppedError(Exception):
    """The process dies."""


def sweep(folder: Path, results: Path, backend: FakeBackend, **changes: Any) -> None:
    runner(plan(folder, "1,2", **{"draws": 1, **changes}), results, backend).run()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Free text with answers that were cut, free text of a version that did not say, and labels."""
    folder = tmp_path_factory.mktemp("cut")
    found = folder / "results"
    sweep(folder / "texts", found, Cutting(), name="texts", draws=2, **FREE_TEXT)
    sweep(folder / "old", found, FakeBackend(), name="old", **FREE_TEXT)
    sweep(folder / "cards", found, Cutting())
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    return capsys.readouterr().out


def test_each_free_answer_says_whether_it_was_cut(results: Path):
    frame = read_results(results)
    known = frame[frame["task"] == "texts"]
    assert known["truncated"].tolist() == [True, False, False] * 2 * 2 * 2
    assert frame.loc[frame["task"] != "texts", "truncated"].isna().all()


def test_results_without_free_text_have_no_such_column(tmp_path: Path):
    sweep(tmp_path / "cards", tmp_path / "results", Cutting())
    assert "truncated" not in read_results(tmp_path / "results")
    assert find(read_some(tmp_path / "results")).truncated_answers.empty


def test_a_resumed_cell_remembers_which_answers_were_cut(tmp_path: Path):
    packs: list[PromptSet] = []

    def stops(prompts: PromptSet) -> None:
        packs.append(prompts)
        if len(packs) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        sweep(tmp_path / "texts", tmp_path / "results", Cutting(fails=stops), **FREE_TEXT)
    sweep(tmp_path / "texts", tmp_path / "results", Cutting(), **FREE_TEXT)
    frame = read_results(tmp_path / "results")
    assert frame["truncated"].tolist() == [True, False, False] * 2 * 2


def test_cut_answers_are_counted_for_each_point(results: Path):
    table = find(read_some(results)).truncated_answers
    rows: Sequence[dict[str, Any]] = table.to_dict("records")
    assert [(row["task"], row["k"]) for row in rows] == [("texts", 1), ("texts", 2)]
    assert {(row["answers"], row["truncated"], row["share"]) for row in rows} == {(12, 4, 1 / 3)}


def test_the_summary_shows_them_in_the_terminal_and_as_json(results: Path, capsys: pytest.CaptureFixture[str]):
    shown = said(capsys, "summary", "--results", str(results))
    heading = "answers cut at max_answer_tokens"
    assert heading in shown
    assert "33.3" in shown[shown.index(heading) :]
    found = json.loads(said(capsys, "summary", "--results", str(results), "--json"))
    assert [row["truncated"] for row in found["truncated_answers"]] == [4, 4]


def test_the_summary_says_nothing_where_no_answer_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sweep(tmp_path / "texts", tmp_path / "results", FakeBackend(), **FREE_TEXT)
    shown = said(capsys, "summary", "--results", str(tmp_path / "results"))
    assert "max_answer_tokens" not in shown


def test_the_report_says_how_many_were_cut(results: Path):
    pytest.importorskip("altair")
    (note,) = [n for n in _notes(read_findings(results)) if "max_answer_tokens" in n]
    assert note.startswith("8 of 24 free answers were cut at max_answer_tokens")


def test_answers_are_counted_where_it_is_known_whatever_an_import_calls_it():
    known = [True, "true", "True", False, "false", "False", None, "perhaps"]
    rows = frame(cell("a" * 8, "a" * 8, k=3).assign(truncated=known), cell("aa", "aa").assign(truncated=[None, "?"]))
    for one in (rows, rows.astype({"model": pd.CategoricalDtype(["m", "n"]), "task": "category"})):
        (row,) = truncated_answers(one).to_dict("records")
        assert (row["k"], row["answers"], row["truncated"], row["share"]) == (3, 6, 3, 0.5)
    assert truncated_answers(rows.drop(columns="truncated")).empty


def test_the_terminal_has_points_with_a_cut_answer_only():
    assert TRUNCATED_ANSWERS.printed is not None
    table = pd.DataFrame({"truncated": [0, 1, 2]})
    assert TRUNCATED_ANSWERS.printed.rows(table)["truncated"].tolist() == [1, 2]
