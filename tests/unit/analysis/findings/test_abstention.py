"""Abstention: thresholds are judged on rows that they were not chosen on."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fakes, in_process
from support.label_scores import ScoringBackend, cell_scores, drawn, stored

from icl_bench.analysis.all_findings import find, read_findings
from icl_bench.analysis.cascade import halves, halving
from icl_bench.analysis.findings.abstention import NOT_REACHED, abstention, fewest_rows, label_thresholds, risk_coverage
from icl_bench.analysis.statistics.shares import share_interval
from icl_bench.report.naming import Naming
from icl_bench.report.sections.index import sections
from icl_bench.results.reading import Stored, read_some


def table(of: Stored) -> pd.DataFrame:
    return find(of).context.label_probabilities


def made(seed: int, draws: int = 2, tests: int = 60, labels: int = 3, steps: int = 7) -> pd.DataFrame:
    """Answers with few different probabilities, right as often as they say; some predictions are missing."""
    rng = np.random.default_rng(seed)
    probability = (1 + rng.integers(steps, size=(draws, tests))) / steps
    rows = {
        "draw": np.repeat(np.arange(draws), tests),
        "test_id": np.tile([f"row {i:03}" for i in range(tests)], draws),
        "probability": probability.ravel(),
        "correct": rng.random(draws * tests) < probability.ravel(),
        "answer": rng.choice([f"l{i}" for i in range(labels)], draws * tests),
    }
    frame = table(drawn(0)).iloc[:0].drop(columns=[*rows, "gold"])
    found = pd.concat([frame, pd.DataFrame(rows)], ignore_index=True).assign(
        task="t", model="m", select="random", order="drawn", attention="full", variant="v", k=5, gold="l0"
    )
    return found[rng.random(len(found)) < 0.9].reset_index(drop=True)


def answered_by_loop(rows: pd.DataFrame, wanted: float) -> tuple[list[float], list[int]]:
    """Thresholds of the halves, and which rows are answered."""
    ids = sorted(rows["test_id"].unique())
    parts = [{ids[at] for at in half} for half in halves(len(ids), halving())]
    thresholds, given_rows = [], []
    for chosen_on, judged_on in (parts, parts[::-1]):
        own = rows[rows["test_id"].isin(chosen_on)]
        possible = sorted(own["probability"].unique())
        reached = [t for t in possible if own[own["probability"] >= t]["correct"].mean() >= wanted]
        threshold = reached[0] if reached else np.inf
        thresholds.append(0.0 if threshold == possible[0] else float(threshold))
        judged = rows[rows["test_id"].isin(judged_on) & (rows["probability"] >= thresholds[-1])]
        given_rows += judged.index.tolist()
    return thresholds, given_rows


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([0.6, 0.8, 0.95]))
def test_the_shares_are_those_of_a_loop_over_halves(seed: int, wanted: float):
    rows = made(seed, draws=1 + seed % 3)
    (found,) = abstention(rows, wanted).to_dict("records")
    thresholds, given_rows = answered_by_loop(rows, wanted)
    assert [found["threshold"], found["other_threshold"]] == thresholds
    assert found["share_answered"] == pytest.approx(len(given_rows) / len(rows))
    if given_rows:
        assert found["accuracy"] == pytest.approx(rows.loc[given_rows, "correct"].mean())
        assert found["ci_low"] <= found["accuracy"] <= found["ci_high"] + 1e-12
    else:
        assert np.isnan(found["accuracy"])


def test_a_threshold_is_not_judged_on_the_rows_that_it_was_chosen_on():
    """Probabilities that say nothing: chosen on the same rows, answers would be right as often as wanted."""
    seen, same = [], []
    for seed in range(60):
        rows = made(seed, draws=1, tests=80, steps=40)
        right = np.random.default_rng(seed).random(len(rows)) < 0.8
        rows = rows.assign(correct=right)
        (found,) = abstention(rows, 0.9).to_dict("records")
        seen.append((found["accuracy"], found["share_answered"]))
        own = [t for t in rows["probability"].unique() if right[rows["probability"] >= t].mean() >= 0.9]
        same += [right[rows["probability"] >= min(own)].mean()] if own else []
    accuracy, share = np.array(seen).T
    known = share > 0
    assert np.average(accuracy[known], weights=share[known]) == pytest.approx(0.8, abs=0.02)
    assert min(same) >= 0.9
    assert len(same) > 40


def test_what_is_right_in_one_half_changes_nothing_of_the_threshold_that_it_is_judged_by():
    rows = made(3, draws=1, tests=60)
    ids = sorted(rows["test_id"].unique())
    first = rows["test_id"].isin([ids[at] for at in halves(len(ids), halving())[0]])
    (before,) = abstention(rows, 0.8).to_dict("records")
    (after,) = abstention(rows.assign(correct=rows["correct"] & ~first), 0.8).to_dict("records")
    assert after["threshold"] == np.inf, "nothing is right in the half that it is chosen on"
    assert after["other_threshold"] == before["other_threshold"]


def test_limits_are_those_of_shares_over_draws_and_test_rows():
    of = drawn(2, draws=3, tests=80)
    rows = table(of)
    (found,) = abstention(rows, 0.7).to_dict("records")
    _, given_rows = answered_by_loop(rows, 0.7)
    answered = rows.index.isin(given_rows).reshape(3, 80).astype(float)
    right = answered * rows["correct"].to_numpy().reshape(3, 80)
    share = share_interval(answered, np.ones((3, 80)))
    assert [found[n] for n in ("share_answered", "share_low", "share_high")] == pytest.approx(list(share))
    accuracy = share_interval(right, answered)
    assert [found[n] for n in ("accuracy", "ci_low", "ci_high")] == pytest.approx(list(accuracy))
    assert (found["draws"], found["test_rows"], found["interval_over"]) == (3, 80, "draws and test examples")


def test_the_area_is_the_mean_share_of_wrong_answers_over_all_numbers_of_answers():
    rows = table(drawn(0, draws=1, tests=50))
    wrong = ~rows.sort_values("probability", ascending=False)["correct"].to_numpy()
    expected = np.mean(np.cumsum(wrong) / np.arange(1, 51))
    (found,) = abstention(rows).to_dict("records")
    assert found["area"] == pytest.approx(expected)
    assert found["area_low"] < expected < found["area_high"]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_a_risk_coverage_curve_is_that_of_a_loop_and_never_parts_equal_probabilities(seed: int, steps: int):
    rows = made(seed, steps=steps)
    found = risk_coverage(rows)
    shares = []
    for row in found.itertuples():
        answered = rows[rows["probability"] >= row.threshold]
        assert row.share_answered == pytest.approx(len(answered) / len(rows))
        assert (row.answered, row.predictions) == (len(answered), len(rows))
        assert row.accuracy == pytest.approx(answered["correct"].mean())
        shares.append(row.share_answered)
    assert shares == sorted(set(shares))
    assert shares[-1] == 1
    assert len(shares) == min(rows["probability"].nunique(), len(shares)) <= 20


def test_a_curve_has_a_point_at_every_twentieth_where_probabilities_differ():
    found = risk_coverage(table(drawn(0, draws=1, tests=40)))
    assert found["share_answered"].tolist() == pytest.approx([i / 20 for i in range(1, 21)])


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_thresholds_by_label_are_those_of_a_loop(seed: int):
    wanted, rows = 0.8, made(seed, draws=2, tests=60, labels=3)
    ids = sorted(rows["test_id"].unique())
    parts = [{ids[at] for at in half} for half in halves(len(ids), halving())]
    found = label_thresholds(rows, wanted).set_index("label")
    assert set(found.index) == set(rows["answer"])
    given_rows: list[int] = []
    for label, own in rows.groupby("answer"):
        assert found.loc[label, "answers"] == len(own)
        assert found.loc[label, "rows"] == own["test_id"].nunique()
        assert found.loc[label, "precision"] == pytest.approx(own["correct"].mean())
        sides = [own[own["test_id"].isin(part)] for part in parts]
        thresholds, right = [], []
        for chosen_on, judged_on in (sides, sides[::-1]):
            possible = sorted(chosen_on["probability"].unique())
            reached = [t for t in possible if chosen_on[chosen_on["probability"] >= t]["correct"].mean() >= wanted]
            thresholds.append((0.0 if reached[0] == possible[0] else reached[0]) if reached else np.inf)
            judged = judged_on[judged_on["probability"] >= thresholds[-1]]
            right += judged["correct"].tolist()
            given_rows += judged.index.tolist()
        assert found.loc[label, ["threshold", "other_threshold"]].tolist() == thresholds
        assert found.loc[label, "share_answered"] == pytest.approx(len(right) / len(own))
        if right:
            assert found.loc[label, "accuracy"] == pytest.approx(np.mean(right))
    (whole,) = abstention(rows, wanted).to_dict("records")
    assert (whole["labels"], whole["labels_with_threshold"]) == (3, 3)
    assert whole["by_label_share"] == pytest.approx(len(given_rows) / len(rows))
    if given_rows:
        assert whole["by_label_accuracy"] == pytest.approx(rows.loc[given_rows, "correct"].mean())


def test_a_label_with_too_few_rows_has_no_threshold_and_says_so():
    rows = made(0, draws=2, tests=100, labels=1).assign(answer="often")
    few = sorted(rows["test_id"].unique())[:20]
    rows.loc[rows["test_id"].isin(few), "answer"] = "seldom"
    found = label_thresholds(rows).set_index("label")
    seldom = found.loc["seldom"]
    assert (seldom["rows"], seldom["reason"]) == (20, "too few rows (needs 20 in each half)")
    assert np.isnan(seldom[["threshold", "share_answered", "accuracy"]].astype(float)).all()
    assert pd.isna(found.loc["often", "reason"]) or found.loc["often", "reason"] == NOT_REACHED
    (whole,) = abstention(rows).to_dict("records")
    assert (whole["labels"], whole["labels_with_threshold"]) == (2, 1)


def test_several_draws_of_one_row_are_one_row():
    """Ten draws of a few rows do not tell what other rows would be like."""
    rows = made(0, draws=10, tests=20, labels=1)
    assert label_thresholds(rows)["reason"].tolist() == ["too few rows (needs 20 in each half)"]


def test_a_label_that_is_never_right_is_never_answered():
    rows = made(0, tests=100, labels=1).assign(correct=False)
    (found,) = label_thresholds(rows).to_dict("records")
    assert (found["threshold"], found["share_answered"], found["reason"]) == (np.inf, 0, NOT_REACHED)
    (whole,) = abstention(rows).to_dict("records")
    assert (whole["share_answered"], whole["area"]) == (0, 1)


@pytest.mark.parametrize(("wanted", "rows"), [(0.5, 2), (0.8, 5), (0.9, 10), (0.95, 20), (0.99, 100), (1.0, 100)])
def test_a_label_needs_so_many_rows_that_one_wrong_answer_may_be_among_them(wanted: float, rows: int):
    assert fewest_rows(wanted) == rows


def test_a_single_test_row_has_no_threshold():
    rows = made(0, draws=2, tests=60)
    rows = rows[rows["test_id"] == rows["test_id"].iloc[0]].reset_index(drop=True)
    (found,) = abstention(rows).to_dict("records")
    assert np.isnan([found["share_answered"], found["threshold"], found["by_label_share"]]).all()
    assert risk_coverage(rows)["share_answered"].iloc[-1] == 1


def test_without_scores_the_tables_are_empty_and_have_their_columns():
    empty, full = table(drawn(0)).iloc[:0], table(drawn(0))
    for make in (abstention, risk_coverage, label_thresholds):
        assert make(empty).empty
        assert list(make(empty)) == list(make(full))


def run(folder: Path, engine: fakes.FakeBackend, **changes: Any) -> Path:
    made = fakes.plan(folder / "cards", "1,4", draws=2, scoring="exact", **changes)
    fakes.runner(made, folder / "results", engine).run()
    return folder / "results"


def test_summary_prints_and_the_report_shows_what_stored_scores_say(tmp_path: Path):
    results = run(tmp_path, ScoringBackend())
    said = partial(in_process.said, "summary", "--results", results)
    printed = said()
    assert "label probabilities, and the share of rows that can be answered" in " ".join(printed.split())
    assert "answered" in printed
    assert "not all scores are stored" not in printed
    whole = json.loads(said("--json", "--wanted", "60"))
    assert whole["without_scores"] == []
    plain = [row for row in whole["probability_scores"] if not row["variant"].endswith("+batch")]
    assert len(whole["probability_scores"]) == 2 * len(plain) == 4
    assert {row["wanted"] for row in whole["abstention"]} == {0.6}
    found = read_findings(results)
    assert set(found.abstention["wanted"]) == {0.95}
    of_report, _ = sections(found, Naming.of(found.summary))
    assert "Answering only where the model is sure" in {section.title for section in of_report}
    assert "Scores of label probabilities" in {table.caption for section in of_report for table in section.tables}


def test_cells_whose_scores_are_not_stored_are_named_once(tmp_path: Path):
    results = run(tmp_path, fakes.FakeBackend())
    printed = " ".join(in_process.said("summary", "--results", results).split())
    assert printed.count("4 cells scored every label, but not all scores are stored") == 1
    assert "label probabilities, and" not in printed
    lacking = json.loads(in_process.said("summary", "--results", results, "--json"))["without_scores"]
    assert set(lacking) == set(read_some(results).predictions["cell"].astype(str))
    in_process.said("report", "--results", results, "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("4 cells scored every label, but not all scores") == 1


def test_each_calibration_has_its_own_thresholds():
    of = drawn(0, draws=1, tests=80)
    (own,) = of.label_scores.values()
    both = stored({"c": (own, {}), "c+batch": (replace(own, bias=np.linspace(-2, 2, 6)), {"variant": "v+batch"})})
    found = find(both).abstention.set_index("variant")
    assert found.loc["v", "threshold"] != found.loc["v+batch", "threshold"]
    assert cell_scores(own.raw, np.zeros(80, dtype=int)).bias is None


def test_answers_to_rows_of_a_label_that_no_train_row_has_are_wrong_answers():
    of = drawn(0, draws=2, tests=40)
    unseen = {of.label_scores["cell 0"].tests[at] for at in range(0, 40, 4)}
    cells = {
        name: (
            replace(own, golds=tuple("?" if t in unseen else g for t, g in zip(own.tests, own.golds, strict=True))),
            d,
        )
        for (name, own), d in zip(of.label_scores.items(), ({"draw": 0}, {"draw": 1}), strict=True)
    }
    other = find(stored(cells))
    (found,) = other.abstention.to_dict("records")
    right = [row.correct and row.test_id not in unseen for row in of.predictions.itertuples()]
    assert found["test_rows"] == 40
    assert other.risk_coverage["predictions"].tolist()[-1] == 80
    assert other.risk_coverage["accuracy"].tolist()[-1] == pytest.approx(np.mean(right))
    (scores,) = other.probability_scores.to_dict("records")
    assert (scores["test_rows"], scores["predictions"], scores["left_out"]) == (40, 60, 20)
    assert scores["top_1"] == pytest.approx(np.mean(right))
