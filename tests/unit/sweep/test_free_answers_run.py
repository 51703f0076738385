"""Free answers from the backend's text to tables: what is stored, scored, counted and compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sacrebleu
from support.fakes import (
    LABELS,
    FakeBackend,
    model,
    planned,
    runner,
    small_tokenizer,
    tokenized_task,
    write_rows,
    write_task,
)

from icl_bench.analysis.advice import Budget, advise_folder
from icl_bench.analysis.baseline_check import check_results
from icl_bench.analysis.curves import curves
from icl_bench.analysis.summary import summarise_folder
from icl_bench.backends.interface import Answer, Decoding, Free
from icl_bench.cli.output.summary import print_summary
from icl_bench.errors import UserError
from icl_bench.metrics.scores import all_golds, golds_of
from icl_bench.prompts.encoding import PromptSet
from icl_bench.report.leaderboard import as_markdown, leaderboard
from icl_bench.results.cells import ALWAYS
from icl_bench.results.exporting import export_results
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_results
from icl_bench.sweep.facts import facts
from icl_bench.sweep.run_spec import RunSpec
from icl_bench.sweep.tokenized_task import TokenizedTask
from icl_bench.tasks.examples import load_data
from icl_bench.tasks.task_files import load_task

ROWS: Mapping[str, tuple[Any, str]] = {
    "one": (["Paris", "the city of Paris"], " so #paris.#\n"),
    "two": ([], " #nobody knows#"),
    "three": (["Rome"], " nothing is marked"),
    "four": (["Bonn", "Berlin"], " #Berlin or Bonn#"),
    "five": ([], " #Rome#"),
}
"""Query -> right answers, and what is written."""


class Writer(FakeBackend):
    """Writes what ``ROWS`` says of each query, or something else."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.texts = {name: text for name, (_, text) in ROWS.items()} | dict(texts or {})

    def _answered(self, prompts: PromptSet, index: int, decoding: Decoding) -> Answer:
        asked = prompts.text(index).splitlines()[-2].split()[-1]
        return Answer(index, 0, 3, text=self.texts[asked], truncated=False)


def task_of(folder: Path, **changes: Any) -> TokenizedTask:
    settings = {
        "labels": None,
        "metrics": ["exact_match", "f1"],
        "max_answer_tokens": 9,
        "answer": {"extract": "#(.*?)#", "unanswerable": "nobody knows"},
        **changes,
    }
    path = write_task(folder, **{k: v for k, v in settings.items() if v is not ...})
    marked = {"one": "#Paris#", "three": "#Rome#", "four": "#Bonn#"}
    rows = [
        {"id": n, "text": n, "label": of and [marked[n], *(f"#{g}#" for g in of[1:])]} for n, (of, _) in ROWS.items()
    ]
    if settings["answer"] is ...:
        rows = [{"id": n, "text": n, "label": of or ["none"]} for n, (of, _) in ROWS.items()]
    write_rows(folder / "test.jsonl", rows)
    write_rows(folder / "train.jsonl", [{**r, "id": f"train {r['id']}"} for r in rows * 1])
    tokenizer: Any = small_tokenizer()
    return TokenizedTask(load_data(load_task(path)), model(), tokenizer)


def ran(folder: Path, results: Path, k: str = "2", writer: Writer | None = None, **changes: Any) -> pd.DataFrame:
    plan = planned(task_of(folder, **changes), k, draws=2)
    runner(plan, results, writer or Writer()).run()
    return read_results(results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("free")
    ran(place / "task", place / "results", k="1,2")
    return place


def test_what_was_written_stands_beside_what_was_extracted(folder: Path):
    frame = read_results(folder / "results").query("k == 2 and draw == 0").set_index("test_id")
    assert frame["text"].to_dict() == {name: text for name, (_, text) in ROWS.items()}
    assert frame["prediction"].to_dict() == {
        "one": "paris.",
        "two": "",
        "three": "",
        "four": "Berlin or Bonn",
        "five": "Rome",
    }
    assert frame["valid"].to_dict() == {"one": True, "two": True, "three": False, "four": True, "five": True}
    assert frame["gold"].to_dict() == {"one": "Paris", "two": "", "three": "Rome", "four": "Bonn", "five": ""}
    assert list(frame.loc["one", "golds"]) == ["Paris", "the city of Paris"]
    assert frame.loc["three", "golds"] is None
    assert frame["exact_match"].to_dict() == {"one": 1, "two": 1, "three": 0, "four": 0, "five": 0}
    assert frame.loc["four", "f1"] == pytest.approx(2 * 1 / (3 + 1))
    assert frame["correct"].isna().all()


def test_an_answer_without_anything_to_extract_is_not_the_empty_answer(tmp_path: Path):
    frame = ran(tmp_path / "task", tmp_path / "results", writer=Writer({"two": " I do not know"}))
    (row,) = frame.query("test_id == 'two' and draw == 0").to_dict("records")
    assert (row["prediction"], row["gold"], row["valid"]) == ("", "", False)
    assert (row["exact_match"], row["f1"]) == (0, 0)


def test_plain_free_text_has_neither_further_facts_nor_further_columns(tmp_path: Path):
    changes = {"answer": ..., "metrics": ["rouge"]}
    task = task_of(tmp_path / "task", **changes)
    from icl_bench.demonstrations.selector_spec import SelectorSpec

    assert not {"answer", "stops", "fields"} & facts(task, SelectorSpec(), {}).known().keys()
    assert task.stops == ("\n==\n",)
    rows = [{"text": n, "label": "words"} for n in ROWS]
    write_rows(tmp_path / "task" / "test.jsonl", rows)
    write_rows(tmp_path / "task" / "train.jsonl", rows)
    task.data = load_data(load_task(tmp_path / "task" / "cards.yaml"))
    runner(planned(task, "1", draws=1), tmp_path / "results", Writer()).run()
    frame = read_results(tmp_path / "results")
    assert {*frame.columns} - {*ALWAYS} == {"truncated", "rouge1", "rouge2", "rougeL"}


def test_what_decides_answers_is_in_the_facts(tmp_path: Path):
    from icl_bench.demonstrations.selector_spec import SelectorSpec

    task = task_of(tmp_path / "task", stop=["\n\n", "END"])
    found = facts(task, SelectorSpec(), {})
    assert found.answer == {"extract": "#(.*?)#", "take": "first", "unanswerable": "nobody knows"}
    assert found.stops == ["\n\n", "END", "\n==\n"]
    assert task.decoding == Free(("\n\n", "END", "\n==\n"), 9)
    assert task_of(tmp_path / "other", stop=["\n"]).stops == ("\n",)


def test_cells_whose_answers_were_read_or_ended_otherwise_are_run_again(tmp_path: Path, monkeypatch: Any):
    """Facts are in the names of cells: those of labels with signs, and of chats whose next turn ends answers."""
    from icl_bench.demonstrations.selector_spec import SelectorSpec

    def reading(name: str, scoring: Any = "unconstrained", **names: str) -> str | None:
        task = tokenized_task(tmp_path / name, scoring=scoring, labels={"names": names})
        return facts(task, SelectorSpec(), {}).label_reading

    assert reading("words") == "normalised"
    assert reading("signs", **{LABELS[0]: "-1", LABELS[1]: "+1"}) == "normalised, signs kept"
    assert reading("longer", **{LABELS[0]: "card", LABELS[1]: "card lost"}) == "normalised, cut ones not completed"
    assert reading("greedy", "greedy", **{LABELS[0]: "-1"}) is None
    task = task_of(tmp_path / "free")
    monkeypatch.setattr(type(task.encoder.form), "ends_at_next_turn", True)
    assert facts(task, SelectorSpec(), {}).stops == ["\n==\n"]


def test_a_demonstration_shows_the_word_for_no_answer_and_the_first_of_several(tmp_path: Path):
    task = task_of(tmp_path / "task")
    shown = {e.id: e.answer for e in task.data.train}
    assert (shown["train one"], shown["train two"]) == ("#Paris#", "nobody knows")


def test_tables_speak_of_the_first_metric_and_count_what_is_invalid(folder: Path, capsys: pytest.CaptureFixture[str]):
    from rich.console import Console

    found = summarise_folder(folder / "results")
    point = found.curves.set_index("k").loc[2]
    assert (point["metric"], point["score"], point["invalid"]) == ("exact_match", 0.4, pytest.approx(0.2))
    print_summary(found, Console(width=200))
    said = capsys.readouterr().out
    head = said[: said.index("───")]
    assert head.index("exact") < head.index("F1")
    assert "invalid" in head
    assert "ROUGE" not in said
    board = leaderboard(folder / "results")
    assert board["exact_match"].tolist() == [0.4, 0.4]
    assert "exact match" in as_markdown(board)
    advice = advise_folder(folder / "results", Budget())
    assert set(advice["metric"]) == {"exact_match"}


def test_a_baseline_is_compared_by_the_first_metric(folder: Path, tmp_path: Path):
    base = tmp_path / "base.parquet"
    export_results(folder / "results", base)
    ran(tmp_path / "task", tmp_path / "now", k="1,2", writer=Writer({"one": " #lost#"}))
    for baseline in (base, folder / "results"):
        found = check_results(baseline, tmp_path / "now")
        assert set(found.points["score"]) == {"exact_match"}
        assert found.points["difference"].tolist() == pytest.approx([-0.2, -0.2])


def test_bleu_of_all_answers_together_is_in_the_curves(tmp_path: Path):
    texts = {"one": " the city of Paris", "three": " Rome in Italy", "four": " Berlin is it now"}
    changes = {"answer": ..., "metrics": ["bleu", "chrf"]}
    texts |= dict.fromkeys(("two", "five"), " none")
    frame = ran(tmp_path / "task", tmp_path / "results", writer=Writer(texts), **changes)
    (point,) = curves(frame).to_dict("records")
    one = frame[frame["draw"] == 0]
    golds = all_golds(one)
    places = [[of[p] if p < len(of) else None for of in golds] for p in range(2)]
    wanted = sacrebleu.corpus_bleu(one["prediction"].tolist(), places).score / 100
    assert point["corpus_bleu"] == pytest.approx(wanted)
    assert point["corpus_chrf"] == pytest.approx(sacrebleu.corpus_chrf(one["prediction"].tolist(), places).score / 100)
    assert point["metric"] == "bleu"
    assert pd.isna(point["invalid"])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_an_export_is_imported_again_with_its_scores(folder: Path, tmp_path: Path, ending: str):
    out = tmp_path / f"all.{ending}"
    export_results(folder / "results", out)
    import_predictions(out, tmp_path / "results")
    before, after = read_results(folder / "results"), read_results(tmp_path / "results")
    for name in ("gold", "prediction", "exact_match", "f1"):
        assert before[name].tolist() == after[name].tolist()
    assert after["correct"].isna().all()
    assert all_golds(before) == all_golds(after)


def test_a_score_in_percent_is_not_imported(tmp_path: Path):
    axes = "qa,m,random,drawn,1,0"
    (tmp_path / "own.csv").write_text(f"task,model,select,order,k,draw,test_id,gold,prediction,f1\n{axes},a,x,y,50\n")
    with pytest.raises(UserError, match="column f1: '50' in row 1; expected a share from 0 to 1"):
        import_predictions(tmp_path / "own.csv", tmp_path / "results")


@pytest.mark.parametrize(
    ("several", "golds"),
    [
        (["a", "b"], ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        (None, ["g"]),
        (float("nan"), ["g"]),
        ("not JSON", ["g"]),
        ([1, "a"], ["g"]),
        ([], ["g"]),
        ('{"a": 1}', ["g"]),
    ],
)
def test_right_answers_are_read_from_whatever_a_column_holds(several: Any, golds: list[str]):
    assert list(golds_of(several, "g")) == golds


def test_the_earliest_stop_ends_a_text():
    asked = Free(("\n\n", "END", "E"), 5)
    assert asked.before_stop("one END two\n\n") == "one "
    assert asked.before_stop("one\n\nEND") == "one"
    assert asked.before_stop("one\n") is None


def test_more_stops_than_a_server_takes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    path = write_task(tmp_path, labels=None, metrics=["f1"], stop=["a", "b", "c", "d"])
    asked = RunSpec(
        task=str(path), model="m", k="1", tokenizer="gemma3-270m", backend="openai", base_url="http://127.0.0.1:1/v1"
    )
    with pytest.raises(UserError, match="takes at most 4 texts that end an answer; task cards has 5"):
        asked.check(load_task(path))


def test_an_answer_that_a_pattern_takes_too_long_on_is_stored_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("icl_bench.tasks.answers.SECONDS", 0.05)
    written = " " + "a" * 40 + "b "
    rule = {"extract": "#(.*?)#|^((?:a+)+)$", "unanswerable": "nobody knows"}
    plan = planned(task_of(tmp_path / "task", answer=rule), "1,2", draws=2)
    outcome = runner(plan, tmp_path / "results", Writer({"three": written})).run()
    (note,) = outcome.notes  # of all cells
    named = "answer.extract '#(.*?)#|^((?:a+)+)$' takes more than 0.05 s on the text"
    assert note.startswith(f"answers are invalid because {named} '{'a' * 40}b'")
    assert not outcome.failed
    frame = read_results(tmp_path / "results").set_index("test_id")
    slow = frame.loc["three"]
    assert list(slow["text"]) == [written] * 4
    assert (set(slow["prediction"]), set(slow["valid"])) == ({""}, {False})
    assert all(reason.startswith(named) for reason in slow["reason"])
    assert frame["reason"].drop("three").isna().all()
