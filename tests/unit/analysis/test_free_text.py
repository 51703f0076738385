"""Free text is compared by ROUGE-1 wherever labels are compared by accuracy, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.predictions import cell, frame, scored, texts
from support.stored import facts_of

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.curves import curves
from icl_bench.analysis.findings.attention import attention_patterns
from icl_bench.analysis.findings.comparisons import (
    compare_models,
    perturbation_effect,
    retrieval_gain,
    sorting_penalty,
    training_gain,
)
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.summary import records
from icl_bench.cli import main
from icl_bench.metrics import scores
from icl_bench.report.build import Report, make_report
from icl_bench.report.leaderboard import leaderboard
from icl_bench.results.importing import import_predictions
from icl_bench.results.reading import read_some

BLOCK = "block:1,sink=1,local=2"
ROUGE = np.random.default_rng(0).uniform(0.2, 0.6, (3, 40))
GAIN = 0.1


def patterns(rows: pd.DataFrame) -> pd.DataFrame:
    table = attention_patterns(rows, curves(rows), cost(rows, {}))
    return table[table["difference"].notna()]


def perturbed(rows: pd.DataFrame) -> pd.DataFrame:
    return perturbation_effect(rows, facts=facts_of({"v": {}, "w": {"perturbation": "inputs-only"}}))


TABLES: dict[str, tuple[dict[str, str], Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "retrieval_gain": ({"select": "bm25", "order": "relevance"}, retrieval_gain),
    "sorting_penalty": ({"order": "by-label"}, sorting_penalty),
    "training_gain": ({"select": "knn"}, training_gain),
    "attention_patterns": ({"attention": BLOCK}, patterns),
    "perturbations": ({"perturbation": "inputs-only", "variant": "w"}, perturbed),
    "models": ({"model": "n"}, lambda rows: compare_models(rows, "m")),
}
"""Table -> what is another in its other side, and what makes it."""


@pytest.mark.parametrize("name", TABLES)
def test_a_known_difference_of_rouge_is_in_every_table_of_comparisons(name: str):
    other, table = TABLES[name]
    (row,) = table(frame(texts(ROUGE), texts(ROUGE + GAIN, **other))).to_dict("records")
    assert row["metric"] == "rouge1"
    assert row["difference"] == pytest.approx(GAIN)
    assert row["advice"] in other.values()
    assert row["left_out"] == 0


@pytest.mark.parametrize("name", TABLES)
def test_accuracy_is_compared_where_answers_are_right_or_wrong_whatever_else_is_there(name: str):
    other, table = TABLES[name]
    rng = np.random.default_rng(1)
    rows = frame(scored(rng.random((3, 40)) < 0.4), scored(rng.random((3, 40)) < 0.6, **other))
    alone = table(rows)
    assert alone["metric"].tolist() == ["accuracy"]
    pd.testing.assert_frame_equal(table(rows.assign(rouge1=0.5, bertscore=0.9)), alone)


# -- which score --------------------------------------------------------------------------------


def test_a_task_is_compared_by_the_score_that_most_of_its_predictions_have():
    rows = frame(texts(ROUGE), texts(ROUGE - GAIN, model="n").assign(rouge1=None, rouge2=None))
    (row,) = compare_models(rows, "m").to_dict("records")
    assert (row["metric"], row["rows"]) == ("rougeL", 40)
    assert row["difference"] == pytest.approx(GAIN)
    table = curves(rows)
    assert table["score"].tolist() == table["rougeL"].tolist()
    expected = mean_interval(1 - ROUGE)
    assert (table["ci_low"][0], table["ci_high"][0]) == (expected.low, expected.high)


def test_a_prediction_without_its_tasks_score_is_compared_by_no_other():
    many = texts(np.vstack([ROUGE, ROUGE]), model="n")
    rows = frame(scored(ROUGE > 0.4), many)
    assert compare_models(rows, "m").empty
    table = curves(rows).set_index("model")
    assert table["metric"].tolist() == ["accuracy"] * 2
    assert table["score"].notna().to_dict() == {"m": True, "n": False}
    assert table.loc["n", "rouge1"] == pytest.approx(ROUGE.mean())


def test_a_part_keeps_the_metric_of_the_whole():
    whole = scores.scored(frame(scored(ROUGE > 0.4), texts(ROUGE, model="n")))
    part = whole[whole["model"] == "n"]
    assert scores.metrics(scores.scored(part)) == {"t": "accuracy"}
    assert scores.scored(part)["score"].isna().all()


def test_predictions_without_any_score_have_a_metric_and_no_score():
    rows = scores.scored(cell("aabb").assign(correct=None))
    assert scores.metrics(rows) == {"t": "accuracy"}
    assert rows["score"].isna().all()
    assert scores.scored(rows.iloc[:0]).empty
    assert scores.scored(cell("aabb").iloc[:0]).empty


def test_scores_are_shares_of_one_whatever_type_the_columns_have():
    rows = frame(cell("aabb"), texts(ROUGE[:1], task="u"))
    coded = rows.astype({"task": "category"})
    for given in (rows, coded):
        found = scores.scored(given)
        assert found["score"].tolist() == pytest.approx([1.0] * 4 + ROUGE[0].tolist())
        assert found["metric"].tolist() == ["accuracy"] * 4 + ["rouge1"] * 40


# -- a folder of labels and texts ---------------------------------------------------------------

SIDES: list[tuple[float, dict[str, str]]] = [
    (0.0, {}),
    (GAIN, {"select": "bm25", "order": "relevance"}),
    (-GAIN, {"order": "by-label"}),
    (-GAIN, {"attention": BLOCK}),
    (GAIN, {"select": "knn"}),
    (GAIN, {"model": "n"}),
]


Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Results folders by their tasks, which tests only read."""
    return cache(lambda *tasks: made_folder(tmp_path_factory.mktemp("free"), *tasks))


def made_folder(root: Path, *tasks: str) -> Path:
    """Imported predictions of every comparison at two ks: ``cards`` has labels, ``talks`` texts."""
    made = {
        "cards": lambda gain, k, side: scored(ROUGE + 2 * gain > 0.4, k=k, **side),
        "talks": lambda gain, k, side: texts(ROUGE + gain, k=k, **side),
    }
    for task in tasks:
        rows = frame(*(made[task](gain, k, side) for gain, side in SIDES for k in (5, 9)))
        rows = rows.assign(task=task).drop(columns=["variant", "valid"])
        rows.to_parquet(root / f"{task}.parquet")
        import_predictions(root / f"{task}.parquet", root / "results")
    return root / "results"


def test_every_table_of_a_folder_compares_a_task_by_one_metric(tmp_path: Path):
    labelled = scored(ROUGE > 0.4, select="bm25", order="relevance")
    rows = frame(labelled, texts(ROUGE), texts(ROUGE + GAIN, order="by-label"))
    rows = rows.drop(columns=["variant", "valid"])
    rows.to_parquet(tmp_path / "both.parquet")
    import_predictions(tmp_path / "both.parquet", tmp_path / "results")
    found = find(read_some(tmp_path / "results"))
    assert set(found.summary.curves["metric"]) == {"accuracy"}
    assert found.sorting_penalty.empty  # what is sorted has no accuracy


COMPARED = ("sorting_penalty", "retrieval_gain", "training_gain", "attention_patterns", "models")


def test_every_comparison_of_a_mixed_folder_has_both_tasks_with_their_metrics(folder: Folder):
    results = folder("cards", "talks")
    both, labels = find(read_some(results)), find(read_some(results, {"task": "cards"}))
    told, alone = ({name: records(getattr(found, name)) for name in COMPARED} for found in (both, labels))
    for name in COMPARED:
        by_task = {task: [r for r in told[name] if r["task"] == task] for task in ("cards", "talks")}
        assert {row["metric"] for row in by_task["cards"]} == {"accuracy"}
        assert {row["metric"] for row in by_task["talks"]} == {"rouge1"}
        assert len(by_task["cards"]) == len(by_task["talks"])
        assert by_task["cards"] == alone[name]
        found = [r["difference"] for r in by_task["talks"] if r["difference"] is not None]
        assert [abs(difference) for difference in found] == pytest.approx([GAIN] * len(found))
    points = [row for row in told["attention_patterns"] if row["task"] == "talks"]
    assert {row["accuracy"] for row in points} == {None}
    assert all(row["ci_low"] < row["score"] < row["ci_high"] for row in points)


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture
def summary(folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *tasks: told(capsys, "summary", "--results", folder(*tasks))


TITLES = (
    "sorting: {} of by-label minus that of drawn, points",
    "selection: {} minus that of random selection, points",
    "training: {} minus that of a prompt with the same examples, points",
    "attention: {} minus that of full attention, points",
    "models: {} minus that of the base model, points",
)


def test_the_printed_tables_of_texts_say_rouge_and_nowhere_accuracy(summary: Callable[..., str]):
    text = summary("talks")
    for title in TITLES:
        assert title.format("ROUGE-1") in text
    assert "accuracy" not in text
    assert "+10.0" in text


def test_the_printed_tables_of_labels_need_no_metric(summary: Callable[..., str]):
    text = summary("cards")
    for title in TITLES:
        assert title.format("accuracy") in text
    assert "metric" not in text
    assert "ROUGE" not in text


def test_the_printed_tables_of_both_name_the_metric_in_each_row(summary: Callable[..., str]):
    text = summary("cards", "talks")
    for title in TITLES:
        assert title.format("score") in text
    part = text.partition("selection:")[2].partition("training:")[0]
    rows = [line.split() for line in part.splitlines() if line.startswith(("cards", "talks"))]
    assert {row[0]: row[2] for row in rows} == {"cards": "accuracy", "talks": "ROUGE-1"}


SECTIONS = ("sorting", "retrieval", "training", "context", "models")


def page(report: Report) -> dict[str, Any]:
    """What the report shows of every section: texts, tables and charts."""
    return {
        section.name: {
            "words": (section.title, section.short, section.reading),
            "tables": [table.as_json() for table in section.tables],
            "charts": [panel.spec() for panel in section.panels],
        }
        for section in report.sections
    }


def titles(spec: Any) -> set[str]:
    """Every axis title and tooltip title of a chart."""
    if isinstance(spec, list):
        return set().union(*map(titles, spec))
    if not isinstance(spec, dict):
        return set()
    own = {spec["title"]} if isinstance(spec.get("title"), str) else set()
    return own.union(*map(titles, spec.values()))


def test_the_report_of_texts_has_every_comparison_and_nowhere_says_accuracy(folder: Folder):
    report = make_report(folder("talks"))
    found = page(report)
    assert {"accuracy", *SECTIONS} <= found.keys()
    for name, shown in found.items():
        assert "accuracy" not in json.dumps(shown).lower(), name
    for name in SECTIONS:
        (table,) = found[name]["tables"]
        at = {column["title"]: number for number, column in enumerate(table["columns"])}
        assert {row[at["metric"]] for row in table["rows"]} == {"ROUGE-1"}
        assert "ROUGE-1" in at
        assert any("ROUGE-1" in title for title in titles(found[name]["charts"]))
    said = report.headlines[0]
    text = {one.topic: one.text for one in said.sentences}
    assert text["Best"].startswith(f"{100 * (ROUGE.mean() + GAIN):.1f}% ROUGE-1 (")
    start = "knn against a prompt with the same examples, in ROUGE-1: better by 10.0 points"
    assert text["Training"].startswith(start)


def test_the_report_of_labels_needs_no_metric(folder: Folder):
    report = make_report(folder("cards"))
    for section in report.sections:
        for table in section.tables:
            assert "metric" not in {column.name for column in table.columns}
    found = page(report)
    assert found["accuracy"]["words"][:2] == ("Accuracy over the number of demonstrations", "Accuracy over k")
    for name in SECTIONS:
        assert "accuracy" in json.dumps(found[name])
        assert "ROUGE" not in json.dumps(found[name])
    said = report.headlines[0]
    assert "% accuracy (" in {one.topic: one.text for one in said.sentences}["Best"]
    assert " in accuracy" not in str(said)


def test_each_panel_of_a_mixed_report_names_its_own_metric(folder: Folder):
    report = make_report(folder("cards", "talks"))
    for section in report.sections:
        if section.name in SECTIONS:
            for panel in section.panels:
                own, others = "accuracy", "ROUGE-1"
                if "talks" in panel.title:
                    own, others = others, own
                spec = panel.spec()
                assert any(own in title for title in titles(spec)), panel.name
                assert others not in json.dumps(spec), panel.name
    assert [headline.task for headline in report.headlines] == ["cards", "cards", "talks", "talks"]


def test_the_leaderboard_puts_the_text_with_the_best_rouge_first(folder: Folder):
    table = leaderboard(folder("talks"))
    assert table["rouge1"].is_monotonic_decreasing
    assert (table["ci_low"] < table["rouge1"]).all()
