"""The highest of the tested points: which it is, of how many, and that its limits say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.in_process import run_command
from support.predictions import answers, frame, scored, texts

from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.curves import curves
from icl_bench.analysis.findings.best_points import best_points
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.statistics.best import best_interval
from icl_bench.report.headlines import headlines
from icl_bench.report.matrix import matrix
from icl_bench.report.naming import Naming
from icl_bench.results.facts import Facts
from icl_bench.results.importing import import_predictions


def points() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    shares = {1: 0.5, 5: 0.7, 25: 0.8}
    return frame(*(scored(answers(rng, (1, 3, 100), share)[0], k=k) for k, share in shares.items()))


def best(rows: pd.DataFrame) -> pd.DataFrame:
    return best_points(rows, cost(rows, {}))


def test_the_highest_mean_has_limits_that_allow_for_the_other_points():
    rows = points()
    (found,) = best(rows).itertuples()
    assert (found.k, found.points, found.draws, found.test_rows) == (25, 3, 3, 100)
    matrices = [part["correct"].to_numpy(float).reshape(3, 100) for _, part in rows.groupby("k")]
    assert (found.score, found.ci_low, found.ci_high) == best_interval(matrices, 2)
    own = curves(rows).set_index("k").loc[25]
    assert found.score == own["score"]
    assert found.ci_low <= own["ci_low"]


def test_tasks_and_models_have_a_best_each_and_no_predictions_none():
    rows = points()
    found = best(frame(rows, rows.assign(model="n"), rows.assign(task="u")))
    assert found[["task", "model", "points"]].to_numpy().tolist() == [["t", "m", 3], ["t", "n", 3], ["u", "m", 3]]
    nothing = best(rows.iloc[:0])
    assert nothing.empty
    assert list(nothing.columns) == list(found.columns)


def test_scores_that_rounding_has_moved_beyond_0_and_1_count_as_these():
    rows = frame(*(texts(np.full((2, 9), level), k=k) for k, level in ((1, 1.0), (5, 1.0005))))
    rows = rows.drop(columns=["rouge2", "rougeL"])
    (found,) = best(rows).itertuples()
    assert (found.k, found.metric, found.score) == (1, "rouge1", 1)  # the first of equals
    (found,) = best(rows.assign(rouge1=-0.25)).itertuples()
    assert found.score == 0


@pytest.mark.parametrize("changes", [{"order": "shuffled:1"}, {"select": "lora-paper"}, {"label_space": "half:1"}])
def test_reorderings_upper_bounds_and_halves_of_the_labels_are_never_the_best(changes: dict[str, str]):
    rows = points()
    high = rows[rows["k"] == 25].assign(correct=True, k=50, **changes)
    pd.testing.assert_frame_equal(best(frame(rows, high)), best(rows))


def test_of_equals_the_cheapest_is_the_best_and_the_others_are_counted():
    rows = points()
    top = rows[rows["k"] == 25].reset_index(drop=True)
    dear = top.assign(select="bm25", prompt_tokens=900.0, cached_tokens=10.0)
    cheap = top.assign(select="hybrid:5", prompt_tokens=900.0, cached_tokens=850.0)
    for order in ([dear, cheap], [cheap, dear]):
        (found,) = best(frame(rows, *order)).itertuples()
        assert (found.select, found.tied, found.points) == ("hybrid:5", 2, 5)
    (found,) = best(frame(rows, dear.assign(correct=False))).itertuples()
    assert (found.select, found.tied) == ("random", 0)


def test_the_headline_says_of_how_many_points_it_is_the_highest(tmp_path: Path):
    made = points().drop(columns=["variant", "valid"])
    made.to_parquet(tmp_path / "made.parquet")
    import_predictions(tmp_path / "made.parquet", tmp_path / "results")
    found = read_findings(tmp_path / "results")
    (row,) = found.best_points.itertuples()
    (said,) = headlines(found, Naming.of(found.summary))
    text = {one.topic: one.text for one in said.sentences}["Best"]
    assert f"({100 * row.ci_low:.1f} to {100 * row.ci_high:.1f}) by random at k = 25, the" in text
    assert "highest of 3 tested points (100 test rows, 3 draws); interval corrected" in text
    assert {one.topic: one.text for one in said.sentences}["Saturation"].startswith(
        "random: saturation not estimated: needs 4"
    )


def hard_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of two points, right on 80 easy test rows of 100; the second has a few more right."""
    right = np.zeros((2, 3, 100))
    right[:, :, :80] = 1
    right[1, :, 80:85] = 1
    return scored(right[0], k=5), scored(right[1], k=25)


def test_a_point_that_lacks_hard_test_rows_is_not_the_best_for_it():
    """Its mean over its own rows was the highest: 80 of 85 right, beside 85 of 100."""
    lower, higher = hard_rows()
    some = lower[lower["test_id"] < "row 085"]
    (found,) = best(frame(some, higher)).itertuples()
    assert some["correct"].mean() > higher["correct"].mean()
    assert (found.k, found.score, found.test_rows, found.other_rows) == (25, 0.85, 100, 0)


def test_imported_rows_with_other_right_answers_are_other_test_rows():
    """Equal ids of two files name other rows, as their right answers show."""
    lower, higher = hard_rows()
    rows = frame(lower.assign(gold="c", variant="w"), higher)
    facts = {name: Facts(imported=f"{name}.csv") for name in "vw"}
    (found,) = best_points(rows, cost(rows, {}), facts).itertuples()
    assert (found.points, found.other_rows) == (2, 0)  # another name of the label
    other = lower["test_id"] < "row 040"
    rows = frame(lower.assign(gold=np.where(other, "c", "a"), variant="w"), higher)
    (found,) = best_points(rows, cost(rows, {}), facts).itertuples()
    assert (found.k, found.points, found.other_rows) == (25, 2, 1)


def test_points_on_other_test_rows_than_the_highest_are_counted(tmp_path: Path):
    lower, higher = hard_rows()
    few = lower[lower["test_id"] < "row 060"].assign(k=1)
    rows = frame(few, lower, higher)
    (found,) = best(rows).itertuples()
    assert (found.k, found.score, found.points, found.other_rows) == (1, 1, 3, 2)
    (found,) = best(frame(few.assign(correct=False), lower, higher)).itertuples()
    assert (found.k, found.points, found.other_rows) == (25, 3, 1)

    rows.drop(columns=["variant", "valid"]).to_parquet(tmp_path / "made.parquet")
    import_predictions(tmp_path / "made.parquet", tmp_path / "results")
    findings = read_findings(tmp_path / "results")
    naming = Naming.of(findings.summary)
    (said,) = headlines(findings, naming)
    text = {one.topic: one.text for one in said.sentences}["Best"]
    assert "the highest of 3 tested points, 2 of them on other test rows" in text
    (entry,) = matrix(findings, naming).entries.values()
    assert entry.where.endswith("(beside 2 points on other test rows)")


def test_its_table_in_the_terminal_names_the_score(tmp_path: Path):
    points().drop(columns=["variant", "valid"]).to_parquet(tmp_path / "made.parquet")
    import_predictions(tmp_path / "made.parquet", tmp_path / "results")
    said = run_command("summary", "--results", tmp_path / "results").out
    assert "the highest accuracy, %" in said
    assert "{score}" not in said
