"""Missing scores are counted, and said where they are not missing at random."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.special import expit
from scipy.stats import ttest_ind
from support.predictions import answers, frame, scored

from icl_bench.analysis.curves import curves
from icl_bench.analysis.missing import in_words, not_at_random
from icl_bench.analysis.statistics.gaps import TwoWayLayout
from icl_bench.analysis.summary import summarise
from icl_bench.cli.output.summary import print_summary


def sweep(seed: int, hard: bool, share: float = 0.1, **axes: str) -> pd.DataFrame:
    """A curve of two ks with five draws of 100 test rows; a share of its predictions is missing."""
    rng = np.random.default_rng(seed)
    of_test = rng.normal(0, 2, 100)
    cells = [scored(answers(rng, (1, 5, 100), 0.7, 0, of_test)[0], k=k, **axes) for k in (1, 5)]
    fails = np.tile(expit(-2 * of_test) if hard else np.full(100, 0.5), 10)
    rows = frame(*cells)
    return rows[rng.random(len(rows)) >= 2 * share * fails].reset_index(drop=True)


def test_hard_rows_that_fail_are_found_and_said():
    found = curves(sweep(0, hard=True))
    assert (found["missing"] + [len(part) for _, part in sweep(0, hard=True).groupby("k")] == 500).all()
    assert found["left_out"].tolist() == [0, 0]
    (row,) = not_at_random(found).to_dict("records")
    assert row["gap_difference"] < -0.2
    words = in_words(row["gap_difference"], row["gap_p"])
    assert words.startswith("missing not at random: test rows with many gaps score ")
    assert words.endswith(" below the others (p < 0.0001)")


def test_what_is_missing_stands_below_the_curves(capsys: pytest.CaptureFixture[str]):
    rows = sweep(0, hard=True).assign(prompt_hash=None)
    print_summary(summarise(rows), Console(width=200))
    said = capsys.readouterr().out
    for k, part in rows.groupby("k"):
        lacking = f"random, drawn, k={k}: {500 - len(part)} predictions missing or without a score"
        assert said.count(lacking) == 1
    assert said.count("random, drawn: missing not at random: test rows with many gaps score") == 1
    assert "left out" not in said


def test_hard_rows_that_fail_are_found_where_every_row_has_some_gap():
    found = curves(
        frame(*(sweep(i, hard=True, share=0.3).assign(k=lambda rows, i=i: rows["k"] + 100 * i) for i in range(3)))
    )
    assert len(not_at_random(found)) == 1


def test_p_is_corrected_over_the_curves_of_a_task_and_does_not_depend_on_other_tasks():
    """A folder of many predictions is computed task by task, so other tasks must not count."""
    tasks = [sweep(3, hard=True, share=0.02, task="t")]
    tasks += [sweep(seed, hard=False, task=f"task {seed}") for seed in range(4)]
    both = frame(tasks[0], sweep(9, hard=False, task="t", model="n"))
    alone, together = curves(both), curves(frame(both, *tasks[1:]))
    assert together[together["task"] == "t"]["gap_p"].tolist() == alone["gap_p"].tolist()
    single = curves(tasks[0])["gap_p"].max()
    assert alone.loc[alone["model"] == "m", "gap_p"].max() == pytest.approx(2 * single)


def test_the_p_value_is_welchs():
    rows = sweep(0, hard=True, share=0).query("k == 1 and draw == 0").reset_index(drop=True)
    rows = frame(rows, rows.iloc[40:].assign(draw=1))  # the same answers: draws do not differ
    right = rows.query("draw == 0")["correct"].to_numpy(dtype=float)
    expected = ttest_ind(right[:40], right[40:], equal_var=False)
    (found,) = curves(rows).itertuples()
    assert found.gap_p == pytest.approx(expected.pvalue)
    assert found.gap_difference == pytest.approx(right[:40].mean() - right[40:].mean())


def test_rows_are_compared_after_the_means_of_their_points_and_draws():
    rows = sweep(2, hard=True, share=0)
    number = rows["test_id"].str[4:].astype(int)
    # the later k is answered better, and lacks rows in two of its draws
    rows.loc[(rows["k"] == 5) & (number % 4 > 0), "correct"] = True
    lacking = (rows["k"] == 5) & (rows["draw"] < 2) & (number < 30)
    rows = rows[~lacking].reset_index(drop=True)
    left = []
    for _, point in rows.groupby("k"):
        scores = point.pivot_table("correct", "draw", "test_id", aggfunc="first").astype(float)
        layout = TwoWayLayout(scores.to_numpy())
        left.append(scores.sub(layout.mean + layout.effects, axis=0).stack())
    of_row = pd.concat(left).groupby("test_id").mean()
    many, few = of_row.iloc[:30], of_row.iloc[30:]
    found = curves(rows).set_index("k")
    assert found["missing"].tolist() == [0, 60]
    assert found.loc[5, "gap_difference"] == pytest.approx(many.mean() - few.mean())
    assert found.loc[5, "gap_p"] == pytest.approx(ttest_ind(many, few, equal_var=False).pvalue)
    assert np.isnan(found.loc[1, "gap_p"])


def test_five_rows_with_gaps_are_enough_and_without_any_spread_p_is_0_or_1():
    rows = scored(np.ones((2, 20)))
    number = rows["test_id"].str[4:].astype(int)
    for wrong, count, p in ((0, 5, 1), (5, 5, 0), (20, 15, 1), (0, 4, None), (0, 16, None)):
        kept = rows.assign(correct=number >= wrong)[(number >= count) | (rows["draw"] == 0)]
        (found,) = curves(kept.reset_index(drop=True)).itertuples()
        assert found.missing == count
        assert np.isnan(found.gap_p) if p is None else found.gap_p == p


def test_a_row_with_as_many_gaps_as_the_mean_row_is_none_with_many():
    rows = scored(np.tile(np.arange(20) >= 5, (3, 1)))
    number = rows["test_id"].str[4:].astype(int)
    scores = np.select([number < 5, number < 10], [1, 3], 2)  # two for the mean row
    (found,) = curves(rows[rows["draw"] < scores].reset_index(drop=True)).itertuples()
    assert found.gap_difference == pytest.approx(-1)


def test_what_is_missing_not_at_random_is_so_from_5_percent_on_and_once_a_curve():
    table = curves(sweep(0, hard=True)).assign(gap_p=0.05)
    assert not_at_random(table)["k"].tolist() == [1]
    assert not_at_random(table.assign(gap_p=0.0501)).empty


def test_a_difference_is_told_with_its_side_and_a_small_p_by_its_bound():
    said = "missing not at random: test rows with many gaps score"
    assert in_words(0.052, 0.0125) == f"{said} 5.2 points above the others (p = 0.0125)"
    assert in_words(-0.052, 0.0001) == f"{said} 5.2 points below the others (p = 0.0001)"
    assert in_words(-0.052, 0.00009) == f"{said} 5.2 points below the others (p < 0.0001)"


@pytest.mark.thorough
def test_rows_missing_at_random_raise_few_alarms():
    for share in (0.02, 0.2):
        found = [curves(sweep(seed, hard=False, share=share)) for seed in range(100)]
        assert np.mean([len(not_at_random(table)) for table in found]) <= 0.1
        assert all(table["gap_p"].notna().any() for table in found)


def test_the_test_is_corrected_over_curves():
    one = curves(sweep(3, hard=False))
    many = curves(frame(*(sweep(3, hard=False, model=f"model {i}") for i in range(4))))
    assert many["gap_p"].to_numpy() == pytest.approx(np.minimum(4 * one["gap_p"].iloc[0], 1))


def test_nothing_missing_has_nothing_to_say():
    found = curves(sweep(0, hard=True, share=0))
    assert found["missing"].tolist() == [0, 0]
    assert found[["gap_difference", "gap_p"]].isna().all(axis=None)
    assert not_at_random(found).empty
    assert found[["gap_difference", "gap_p"]].dtypes.tolist() == [float, float]


def test_rows_that_a_k_lacks_altogether_are_missing_there():
    rows = sweep(0, hard=True, share=0)
    lacking = rows[(rows["k"] == 1) | (rows["test_id"] > "row 019")]
    assert curves(lacking)["missing"].tolist() == [0, 100]


def test_a_blank_score_is_missing_like_a_row_that_is_not_there():
    rows = sweep(1, hard=True)
    whole = sweep(1, hard=True, share=0)
    there = pd.MultiIndex.from_frame(rows[["k", "draw", "test_id"]])
    kept = pd.MultiIndex.from_frame(whole[["k", "draw", "test_id"]]).isin(there)
    blank = whole.assign(correct=whole["correct"].astype(object).where(kept, None))
    pd.testing.assert_frame_equal(curves(blank).drop(columns="invalid"), curves(rows).drop(columns="invalid"))


def test_too_few_rows_with_gaps_tell_nothing():
    rows = sweep(0, hard=True, share=0).iloc[1:]
    assert curves(rows)["missing"].tolist() == [1, 0]
    assert curves(rows)["gap_p"].isna().all()


def test_a_curve_without_any_score_lacks_none():
    rows = sweep(0, hard=True, share=0).assign(correct=None)
    assert curves(rows)["missing"].tolist() == [0, 0]
