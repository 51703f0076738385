"""How sure a saturation point is, and which share of the context it needs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from support.predictions import answers, cell, frame, imported, scored, texts

from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.curves import curves, saturation
from icl_bench.analysis.findings.saturation import (
    context_shares,
    label_spaces,
    saturation_chances,
    saturation_text,
    with_likely,
)
from icl_bench.analysis.summary import summarise
from icl_bench.report.leaderboard import leaderboard
from icl_bench.results.facts import Facts


def curve(accuracies: dict[int, float], draws: int = 5, test: int = 200, **axes: object):
    """Answers that are right this often, the same test examples hard at every k."""
    of_test = np.random.default_rng(0).normal(0, 1, (1, 1, test))
    rng = np.random.default_rng(1)
    return frame(
        *(
            scored(answers(rng, (1, draws, test), accuracy, 0.0, of_test)[0], k=k, **axes)
            for k, accuracy in accuracies.items()
        )
    )


def chances(rows: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    return saturation_chances(rows, np.random.default_rng(seed), 500)


def test_where_a_curve_leaves_no_doubt_its_point_is_certain():
    found = chances(curve({1: 0.3, 5: 0.95, 10: 0.95}))
    assert found["chance"].tolist() == [0, 1, 0]
    assert found["saturated"].tolist() == [False, True, False]


def test_where_two_ks_are_close_either_may_be_the_point():
    found = chances(curve({1: 0.3, 5: 0.82, 10: 0.85, 50: 0.885}))
    assert found["chance"].sum() == pytest.approx(1)
    assert (found["chance"] > 0.05).sum() >= 2
    assert found["chance"][0] == 0


def told(rows: pd.DataFrame) -> list[str]:
    points = with_likely(saturation(curves(rows)), chances(rows))
    return [saturation_text(row) for row in points.itertuples()]


def test_what_is_said_of_saturation_names_the_likely_ks():
    assert told(curve({1: 0.3, 5: 0.95, 10: 0.95, 25: 0.95})) == ["saturated at k = 5 (in 99.8% of resamples)"]
    (said,) = told(curve({1: 0.3, 5: 0.82, 10: 0.85, 50: 0.885}))
    assert re.fullmatch(
        r"(saturated at|whether it is saturated by) k = .*\(90% of resamples: k = 5 to (10|50 or beyond)\)", said
    )
    assert told(curve({1: 0.3, 5: 0.82, 10: 0.85})) == ["saturation not estimated: needs 4 values of k, has 3"]


def test_a_curve_that_rises_to_its_end_is_not_saturated_and_one_of_noise_cannot_be_told():
    (said,) = told(curve({1: 0.1, 5: 0.3, 10: 0.6, 25: 0.95}))
    assert said.startswith("not saturated within the tested k, up to 25 (in ")
    rng = np.random.default_rng(3)
    noise = [
        told(frame(*(scored(answers(rng, (1, 3, 20), 0.5)[0], k=k) for k in (1, 5, 10, 25))))[0] for _ in range(10)
    ]
    assert not any(text.startswith("not saturated") for text in noise)
    assert any(text.startswith("whether it is saturated by k = 25 is undetermined (90% of resamples") for text in noise)


def test_at_the_smallest_tested_k_a_curve_may_have_been_saturated_before():
    assert told(curve(dict.fromkeys((5, 10, 25, 50), 0.95)))[0].startswith("saturated at or below k = 5 (")


def test_the_likely_ks_have_90_percent_of_the_resamples():
    rows = curve({1: 0.3, 5: 0.78, 10: 0.82, 25: 0.84, 50: 0.86}, test=60)
    table = chances(rows)
    (point,) = with_likely(saturation(curves(rows)), table).itertuples()
    within = table["k"].between(point.likely_low, point.likely_high)
    assert table.loc[within, "chance"].sum() >= 0.9
    assert table.loc[table["k"] < point.likely_low, "chance"].sum() <= 0.05
    assert table.loc[table["k"] > point.likely_high, "chance"].sum() <= 0.05
    assert point.chance == table.loc[table["k"] == point.k, "chance"].item()


def test_fewer_test_examples_make_the_point_less_certain():
    few, many = (
        chances(curve({5: 0.7, 10: 0.8, 25: 0.86, 50: 0.88}, test=test))["chance"].max() for test in (25, 1000)
    )
    assert few < many - 0.1


def test_the_saturated_k_is_the_summarys():
    rows = frame(curve({1: 0.3, 5: 0.6, 10: 0.75, 25: 0.8}), curve({1: 0.6, 5: 0.55, 10: 0.58}, model="n", variant="w"))
    found = chances(rows)
    point = found[found["saturated"]][["model", "k"]].to_numpy().tolist()
    assert point == saturation(curves(rows))[["model", "k"]].to_numpy().tolist()
    assert found.groupby("model")["chance"].sum().tolist() == pytest.approx([1, 1])


def test_ks_are_resampled_together():
    # the same answers at both ks: in no resample can the larger k be the better one
    rows = curve({5: 0.6})
    assert chances(frame(rows, rows.assign(k=9)))["chance"].tolist() == [1, 0]


def test_a_k_with_a_single_draw_stands_beside_ks_with_more():
    found = chances(frame(curve({5: 0.5, 10: 0.8}), curve({50: 0.9}, draws=1)))
    assert found["chance"].sum() == pytest.approx(1)
    assert found["left_out"].tolist() == [0, 0, 0]


def test_ks_are_compared_on_common_test_examples_and_the_others_are_counted():
    rows = frame(cell("aabb", k=1), cell("abbb", k=5).iloc[:2], cell("abbb", k=5, draw=1).iloc[:2])
    found = chances(rows)
    assert found["rows"].tolist() == [2, 2]
    assert found["left_out"].tolist() == [2, 0]
    assert found["accuracy"].tolist() == pytest.approx([1, 1 / 2])


def torn(rows: pd.DataFrame, share: float, seed: int = 0, hard: np.ndarray | None = None):
    weight = np.ones(len(rows)) if hard is None else hard[rows["test_id"].str[4:].astype(int)]
    lost = np.random.default_rng(seed).random(len(rows)) < share * weight / weight.mean()
    return rows[~lost].reset_index(drop=True)


@pytest.mark.parametrize("draws", [1, 10])
def test_random_gaps_of_5_percent_leave_all_in_and_the_chances_as_they_were(draws: int):
    """The part that is complete at all ks and draws had two thirds of one draw's, 60% of ten's."""
    rows = curve({1: 0.3, 5: 0.82, 10: 0.85, 50: 0.885}, draws=draws)
    whole, found = chances(rows), chances(torn(rows, 0.05))
    assert found["left_out"].tolist() == [0] * 4
    assert set(found["rows"]) == {200}
    assert found["accuracy"].to_numpy() == pytest.approx(whole["accuracy"].to_numpy(), abs=0.02)
    assert found["chance"].to_numpy() == pytest.approx(whole["chance"].to_numpy(), abs=0.25)


@pytest.mark.parametrize("draws", [1, 5])
def test_a_k_at_which_hard_rows_fail_is_no_better_for_it(draws: int):
    of_test = np.random.default_rng(0).normal(0, 2, 400)
    rng = np.random.default_rng(1)
    rows = [
        scored(answers(rng, (1, draws, 400), accuracy, 0.0, of_test)[0], k=k)
        for k, accuracy in {1: 0.5, 5: 0.6, 10: 0.65}.items()
    ]
    whole = chances(frame(*rows))["accuracy"].to_numpy()
    rows[2] = torn(rows[2], 0.15, hard=expit(-2 * of_test))
    found = chances(frame(*rows))["accuracy"].to_numpy()
    assert found == pytest.approx(whole, abs=0.015)  # complete cases: 5 points and more


def test_ks_without_a_common_test_example_have_no_chances():
    found = chances(frame(cell("aabb", k=1).iloc[:2], cell("aabb", k=5).iloc[2:]))
    assert found[["accuracy", "chance"]].isna().all().all()
    assert not found["saturated"].any()


def hard_rows_alone_at_the_last_k() -> pd.DataFrame:
    """A curve that rises on every row, with half of them easy, which the last k was not asked."""
    hard = {1: 0, 2: 2, 4: 4, 8: 8}
    rows = {k: "a" * (10 if k < 8 else 0) + "a" * right + "b" * (10 - right) for k, right in hard.items()}
    cells = [cell(said, "a" * len(said), k=k) for k, said in rows.items()]
    cells[-1] = cells[-1].assign(test_id=[str(number) for number in range(10, 20)])
    return frame(*cells)


def test_a_k_that_was_asked_hard_rows_alone_does_not_saturate_the_curve_before_it(tmp_path: Path):
    made = hard_rows_alone_at_the_last_k()
    (row,) = summarise(made).saturation.itertuples()
    assert (row.k, row.best_k, row.within_window) == (8, 8, False)
    assert row.chance > 0.9
    (share,) = context_shares(made, {})["k"]
    assert share == 8
    results = imported(tmp_path, made)
    (row,) = read_findings(results).saturation.itertuples()
    assert (row.k, row.best_k, row.within_window) == (8, 8, False)
    assert leaderboard(results)["saturation_k"].isna().all()


def test_the_saturation_of_ks_without_a_common_test_row_is_not_told():
    parts = [cell("aabb", k=k).assign(test_id=[f"{k} {number}" for number in range(4)]) for k in (1, 2, 4, 8)]
    (row,) = summarise(frame(*parts)).saturation.itertuples()
    assert (row.k, row.spoken, row.reason) == (1, False, "its k have no test rows in common")


def test_the_same_seed_gives_the_same_chances():
    rows = curve({1: 0.3, 5: 0.82, 10: 0.85, 50: 0.885})
    assert chances(rows, 3)["chance"].tolist() == chances(rows, 3)["chance"].tolist()


def test_free_text_has_no_chances():
    columns = list(chances(cell("aabb")).columns)
    for rows in (cell("aabb").assign(correct=None), cell("aabb").iloc[:0]):
        assert chances(rows).empty
        assert list(chances(rows).columns) == columns


# -- shares of the context ----------------------------------------------------------------------

WINDOWS = {"m": 1000}


def shaped(accuracies: dict[int, str], **axes: object) -> pd.DataFrame:
    """A curve of single cells, 20 tokens a demonstration."""
    cells = (cell(said, k=k, prompt_tokens=20 * k, **axes) for k, said in accuracies.items())
    return frame(*cells)


FULL = {1: "bbbb", 5: "abbb", 10: "aabb", 20: "aabb"}
HALF = {1: "bbbb", 5: "aabb", 10: "aabb", 20: "aabb"}


def test_a_share_is_of_the_tested_demonstrations_or_of_the_windows_tokens():
    (found,) = context_shares(shaped(FULL), WINDOWS).itertuples()
    assert (found.k, found.max_k, found.within_window) == (10, 20, True)
    assert found.share_of_tested == 0.5
    assert (found.prompt_tokens, found.window, found.share_of_window) == (200, 1000, 0.2)


def test_what_is_not_known_of_the_window_is_missing():
    (found,) = context_shares(shaped(FULL), {}).itertuples()
    assert np.isnan([found.window, found.share_of_window]).all()
    (found,) = context_shares(shaped(FULL).drop(columns="prompt_tokens"), WINDOWS).itertuples()
    assert np.isnan([found.prompt_tokens, found.share_of_window]).all()
    assert found.share_of_tested == 0.5


def test_each_part_of_the_label_space_has_a_curve_of_its_own():
    rows = frame(shaped(FULL, label_space="all"), shaped(HALF, label_space="half 1"))
    found = context_shares(rows, WINDOWS)
    assert found[["label_space", "k"]].to_numpy().tolist() == [["all", 10], ["half 1", 5]]
    assert list(context_shares(rows.iloc[:0], WINDOWS).columns) == list(found.columns)
    unsaid = rows.replace({"label_space": {"all": None}})
    pd.testing.assert_frame_equal(context_shares(unsaid, WINDOWS), found)


def test_halves_are_averaged_and_stand_beside_the_full_label_space():
    rows = frame(shaped(FULL), shaped(HALF, task="t-1", variant="w"), shaped(FULL, task="t-2", variant="x"))
    table = context_shares(rows, WINDOWS)
    (found,) = label_spaces(table, {"t-1": "t", "t-2": "t"}).itertuples()
    assert (found.task, found.full, found.half, found.subsets) == ("t", 0.5, (0.25 + 0.5) / 2, 2)
    (found,) = label_spaces(table, {"t-1": "t", "t-2": "t"}, "share_of_window").itertuples()
    assert (found.full, found.half) == pytest.approx((0.2, 0.15))


def test_a_column_can_say_which_labels_there_are():
    rows = frame(shaped(FULL, label_space="all"), shaped(HALF, label_space="half 1", variant="w"))
    (found,) = label_spaces(context_shares(rows, WINDOWS), {}).itertuples()
    assert (found.full, found.half, found.subsets) == (0.5, 0.25, 1)


def test_variants_of_one_label_space_are_not_averaged():
    """Each half stands beside the curve with all labels that was run like it."""
    rows = frame(
        *(shaped(FULL, label_space="all", variant=variant) for variant in ("greedy", "free")),
        shaped(HALF, label_space="half:1", variant="half greedy"),
        shaped(FULL, label_space="half:2", variant="half free"),
    )
    facts = {
        "greedy": Facts(scoring="greedy", labels="all"),
        "free": Facts(scoring="unconstrained", labels="all"),
        "half greedy": Facts(scoring="greedy", labels="some", label_space="half:1"),
        "half free": Facts(scoring="unconstrained", labels="others", label_space="half:2"),
    }
    found = label_spaces(context_shares(rows, WINDOWS), {}, facts=facts).set_index("variant")
    assert found[["half", "subsets"]].T.to_dict("list") == {"free": [0.5, 1], "greedy": [0.25, 1]}


def test_a_half_that_was_run_twice_counts_once_by_its_larger_test_set():
    rows = frame(
        shaped(FULL, label_space="all"),
        shaped(HALF, label_space="half:1", variant="small"),
        shaped(FULL, label_space="half:1", variant="large"),
    )
    facts = {"v": Facts(seed=0, test_rows=9), "small": Facts(seed=0, test_rows=4), "large": Facts(seed=0, test_rows=5)}
    (found,) = label_spaces(context_shares(rows, WINDOWS), {}, facts=facts).itertuples()
    assert (found.half, found.subsets) == (0.5, 1)


def test_a_half_that_was_imported_stands_beside_the_run_with_equal_facts():
    """An export has the facts of its run. The import alone is no difference."""
    rows = frame(
        *(shaped(FULL, label_space="all", variant=variant) for variant in ("greedy", "free")),
        shaped(HALF, label_space="half:1", variant="half"),
    )
    facts = {
        "greedy": Facts(scoring="greedy", labels="all"),
        "free": Facts(scoring="unconstrained", labels="all"),
        "half": Facts(scoring="greedy", labels="some", label_space="half:1", imported="a file"),
    }
    (found,) = label_spaces(context_shares(rows, WINDOWS), {}, facts=facts).itertuples()
    assert (found.variant, found.half, found.subsets) == ("greedy", 0.25, 1)


def test_tasks_without_a_half_are_left_out():
    assert label_spaces(context_shares(shaped(FULL), WINDOWS), {}).empty
    assert label_spaces(context_shares(shaped(FULL).iloc[:0], WINDOWS), {}).empty


# -- whatever the score is ----------------------------------------------------------------------


def rising(**axes: object) -> pd.DataFrame:
    """Free text whose ROUGE-1 rises and stays; ROUGE-L falls."""
    rng = np.random.default_rng(3)
    levels = {1: 0.2, 5: 0.6, 10: 0.61}
    return frame(*(texts(rng.normal(mean, 0.02, (3, 50)), k=k, **axes) for k, mean in levels.items()))


def test_free_text_saturates_by_its_own_score():
    (point,) = saturation(curves(rising())).itertuples()
    assert (point.k, point.within_window, point.metric) == (5, True, "rouge1")
    table = chances(rising())
    assert table["chance"].tolist() == [0, 1, 0]
    assert table["score"].round(1).tolist() == [0.2, 0.6, 0.6]
    assert table["accuracy"].isna().all()
    shares = context_shares(rising().assign(prompt_tokens=50), {"m": 100})
    assert (shares["k"].item(), shares["metric"].item()) == (5, "rouge1")
    assert shares["share_of_window"].item() == 0.5


def test_scores_that_rounding_has_moved_beyond_0_and_1_count_as_these():
    levels = {1: -0.001, 5: 0.9503, 10: 1.001}
    rows = frame(*(texts(np.full((2, 9), level), k=k) for k, level in levels.items()))
    rows = rows.drop(columns=["rouge2", "rougeL"]).assign(prompt_tokens=50)
    assert chances(rows)["score"].tolist() == pytest.approx([0, 0.9503, 1], abs=1e-9)
    shares = context_shares(rows, {"m": 100})
    assert shares["k"].item() == 5  # 95% of 1, not of 1.001


def test_where_there_are_no_chances_the_point_is_told_without():
    rows = curve({1: 0.3, 5: 0.95, 10: 0.95, 25: 0.95})
    points = saturation(curves(rows))
    (found,) = with_likely(points, chances(rows.iloc[:0])).itertuples()
    assert np.isnan([found.chance, found.likely_low, found.likely_high]).all()
    assert saturation_text(found) == "saturated at k = 5"


def test_a_score_of_another_package_saturates_as_any():
    rows = rising().assign(correct=None)
    rows = rows.assign(score=rows["rouge1"], metric="their score")
    assert saturation(curves(rows))["metric"].tolist() == ["their score"]
    assert chances(rows)["metric"].unique().tolist() == ["their score"]


def test_labels_have_the_same_chances_whatever_texts_are_beside_them():
    labels = curve({1: 0.3, 5: 0.82, 10: 0.85, 50: 0.885}, task="u")
    alone, beside = chances(labels), chances(frame(rising(task="a"), labels))
    assert alone["accuracy"].tolist() == alone["score"].tolist()
    assert beside[beside["task"] == "u"]["chance"].tolist() == alone["chance"].tolist()


def test_half_of_the_labels_of_free_text_is_compared_with_all():
    rows = frame(rising(label_space=None), rising(label_space="half:1").query("k < 10"))
    shares = context_shares(rows, {})
    (found,) = label_spaces(shares, {}).itertuples()
    assert (found.full, found.half) == (0.5, 1.0)
