"""Curves over many points at once are those of each point alone, and survive missing predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import cell, frame, macro_f1

from icl_bench.analysis.curves import curves, saturation
from icl_bench.analysis.draws import DRAWS_AND_TESTS, TESTS_ONLY
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.metrics.bleu import Bleu
from icl_bench.metrics.macro_f1 import MacroF1
from icl_bench.results.cells import SETTING


def random_cell(rng: np.random.Generator, **axes: object) -> pd.DataFrame:
    return cell("".join(rng.choice(list("abcd?"), 12)), "abcd" * 3, **axes)


def test_every_point_has_its_own_numbers_in_a_frame_of_many():
    rng = np.random.default_rng(0)
    axes = [
        {"task": t, "order": o, "k": k, "draw": d}
        for t in "tu"
        for o in ("drawn", "by-label")
        for k in (1, 5)
        for d in range(3)
    ]
    rows = frame(*(random_cell(rng, **some) for some in axes)).sample(frac=1, random_state=0)
    table = curves(rows.reset_index(drop=True)).set_index([*SETTING, "k"])
    assert len(table) == 8
    for key, point in rows.groupby([*SETTING, "k"]):
        found = table.loc[key]
        scores = point.pivot(index="draw", columns="test_id", values="correct").to_numpy(float)
        assert found[["accuracy", "ci_low", "ci_high"]].tolist() == list(mean_interval(scores))
        by_draw = [macro_f1(d["gold"].tolist(), d["prediction"].tolist()) for _, d in point.groupby("draw")]
        assert found["macro_f1"] == pytest.approx(np.mean(by_draw))
        assert found[["draws", "test_rows", "left_out"]].tolist() == [3, 12, 0]


def test_metrics_of_many_answers_get_equal_texts_as_one_object(monkeypatch: pytest.MonkeyPatch):
    given: list[object] = []

    def score_many(self: MacroF1, of: np.ndarray, *texts: list[object]) -> dict[str, np.ndarray]:
        given.extend(texts)
        return {"macro_f1": np.zeros(of.max() + 1)}

    monkeypatch.setattr(MacroF1, "score_many", score_many)
    rows = frame(*(cell("aab?", draw=draw) for draw in range(3)))
    rows.loc[5, "prediction"] = None
    for kind in ("str", "category", object):
        curves(rows.astype({"gold": kind, "prediction": kind}))
        golds, answers = given[-2:]
        assert golds == rows["gold"].tolist()
        assert pd.Series(answers).fillna("-").tolist() == rows["prediction"].fillna("-").tolist()
        assert len({id(text) for text in golds}) == 2
        assert len({id(text) for text in answers}) == 4


def test_a_point_with_holes_is_of_all_that_is_there():
    torn = frame(cell("aabb"), cell("abbb", draw=1), cell("bbaa", draw=2).iloc[:1])
    (found,) = curves(torn).itertuples()
    assert (found.draws, found.test_rows, found.left_out, found.missing) == (3, 4, 0, 3)
    scores = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, np.nan, np.nan, np.nan]])
    assert (found.accuracy, found.ci_low, found.ci_high) == mean_interval(scores)
    draws = [macro_f1(list("aabb"), list(said)) for said in ("aabb", "abbb")]
    assert found.macro_f1 == pytest.approx((4 * draws[0] + 4 * draws[1] + 0) / 9)


def test_a_draw_that_has_hardly_begun_decides_nothing():
    whole = frame(*(random_cell(np.random.default_rng(d), draw=d) for d in range(4)))
    torn = frame(whole, cell("a", "b", draw=4).assign(test_id="0"))
    same = ["accuracy", "ci_low", "ci_high", "macro_f1", "invalid"]
    found, expected = (curves(rows)[same].to_numpy()[0] for rows in (torn, whole))
    assert found == pytest.approx(expected, abs=0.03)


def test_free_text_with_holes_is_of_all_that_is_there_too():
    rows = frame(cell("wxyz"), cell("wxyz", draw=1).iloc[1:]).assign(
        correct=None, rougeL=[0.9, 0.2, 0.4, 0.6, 0.2, 0.4, 0.6]
    )
    (found,) = curves(rows).itertuples()
    assert found.rougeL == pytest.approx((0.9 + 0.2 + 0.4 + 0.6) / 4)
    assert (found.draws, found.test_rows, found.left_out, found.missing) == (2, 4, 0, 1)


def test_one_blank_score_does_not_empty_a_point():
    rows = frame(cell("aabb"), cell("abbb", draw=1))
    blank = rows.assign(correct=rows["correct"].astype(object).where(rows.index != 1, None))
    (found,) = curves(blank).itertuples()
    assert (found.draws, found.test_rows, found.missing) == (2, 4, 1)
    assert found.score == pytest.approx(0.75)
    assert found.ci_low < 0.75 < found.ci_high
    assert found.invalid == 0
    text = rows.assign(correct=None, rouge1=[0.5] * 7 + [np.nan], rougeL=0.25)
    (found,) = curves(text).itertuples()
    assert (found.metric, found.score) == ("rougeL", 0.25)  # all predictions have it
    assert found.rouge1 == pytest.approx(0.5)


def test_draws_without_a_common_test_example_are_not_taken_together():
    rows = frame(cell("aabb"), cell("abbb", draw=1).iloc[1:3], cell("ab", "aa", draw=2).assign(test_id=["8", "9"]))
    (found,) = curves(rows).itertuples()
    assert (found.draws, found.test_rows, found.left_out) == (2, 4, 2)
    (without,) = curves(rows[rows["draw"] < 2]).itertuples()
    assert (found.accuracy, found.macro_f1) == (without.accuracy, without.macro_f1)
    text = rows.assign(correct=None, bleu=[0.5] * 8)
    (found,), (without,) = (curves(part).itertuples() for part in (text, text[text["draw"] < 2]))
    assert (found.left_out, found.corpus_bleu) == (2, without.corpus_bleu)


def test_the_limits_of_one_draw_are_over_test_examples_and_of_more_over_draws_too():
    rows = frame(cell("aabb", k=1), cell("abbb", k=5), cell("aabb", k=5, draw=1))
    assert curves(rows)["interval_over"].tolist() == [TESTS_ONLY, DRAWS_AND_TESTS]


def test_a_point_without_any_score_has_left_none_out():
    rows = frame(cell("aabb", k=1), cell("abbb", k=5).assign(correct=None))
    (_, found) = curves(rows).itertuples()
    assert np.isnan([found.score, found.ci_low, found.ci_high]).all()
    assert (found.draws, found.test_rows, found.left_out, found.missing) == (1, 4, 0, 4)


def test_free_answers_are_invalid_where_nothing_could_be_read_in_them():
    rows = cell("wxy?").assign(correct=None, rougeL=0.5)
    assert curves(rows)["invalid"].isna().all()  # nothing had to be read
    (found,) = curves(rows.assign(text=["1", "2", "3", None])).itertuples()
    assert (found.metric, found.score, found.invalid) == ("rougeL", 0.5, 1 / 4)


def test_answers_that_are_not_valid_are_right_for_no_metric():
    rows = cell("aabb").assign(valid=[False, True, True, True], correct=[False, True, True, True])
    (point,) = curves(rows).to_dict("records")
    assert point["accuracy"] == pytest.approx(3 / 4)
    assert point["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    free = cell("aabb").assign(correct=None, valid=[False, True, True, True], prediction="the red cat sat")
    free = free.assign(gold="the red cat sat", bleu=[0.0, 1.0, 1.0, 1.0])
    (point,) = curves(free).to_dict("records")
    assert point["corpus_bleu"] < 1


def test_free_answers_that_a_server_refuses_are_invalid_also_where_nothing_is_extracted():
    rows = cell("wxy?").assign(correct=None, rougeL=0.5, reason=[None, None, None, "refused"])
    assert curves(rows)["invalid"].tolist() == [1 / 4]


def test_scores_that_rounding_has_moved_beyond_0_and_1_count_as_these():
    rows = cell("wxyz").assign(correct=None, bertscore=[1.0005, 1.0005, 0.5, -0.25])
    (found,) = curves(rows).itertuples()
    assert (found.metric, found.score, found.bertscore) == ("bertscore", 2.5 / 4, 2.5 / 4)


def test_the_bleu_of_a_corpus_is_the_mean_of_draws_by_their_answers():
    gold = ["the cat sat on the mat", "a dog ran far away home", "it is raining very hard now"]
    said = [gold[0], "a dog ran far away", "it rains very hard now"]
    whole = cell("abc", "abc").assign(gold=gold, prediction=said, correct=None, bleu=0.5)
    torn = whole.iloc[1:2].assign(draw=1)
    three, one = (
        Bleu().score_many(np.zeros(len(d), dtype=int), d["gold"].tolist(), d["prediction"].tolist())
        for d in (whole, torn)
    )
    expected = (3 * three["corpus_bleu"][0] + one["corpus_bleu"][0]) / 4
    assert curves(frame(whole, torn))["corpus_bleu"].tolist() == pytest.approx([expected])
    assert 0.3 < expected < 0.9
    assert curves(whole)["corpus_bleu"].tolist() == pytest.approx([three["corpus_bleu"][0]])


def test_without_skill_are_the_commonest_label_and_the_number_of_labels():
    rows = frame(
        cell("aaab", "aaab", k=1),
        cell("aabc", "aabc", k=2),
        cell("aaaa", "aaaa", k=3),
        cell("abab", "aabb", k=5),
        cell("aabb", "abab", k=5, draw=1, variant="w"),
        # the draws have not the same test examples
        cell("aaab", "aaab", k=7).iloc[:3],
        cell("aaab", "aaab", k=7, draw=1).iloc[1:],
    )
    found = curves(rows)[["k", "majority", "uniform"]].to_numpy()
    nan = np.nan
    assert found == pytest.approx(
        np.array(
            [
                [1, 3 / 4, 1 / 2],
                [2, 1 / 2, 1 / 3],
                [3, nan, nan],
                [5, 1 / 2, 1 / 2],
                [7, 3 / 4, 1 / 2],
                [5, 1 / 2, 1 / 2],
            ]
        ),
        nan_ok=True,
    )


def test_each_of_several_right_labels_counts():
    rows = cell("bbca", "aaab").assign(golds=[["a", "b"], None, ["a", "b"], ["b"]])
    rows["correct"] = [True, False, False, False]
    (found,) = curves(rows).itertuples()
    assert found.accuracy == 1 / 4
    assert found.macro_f1 == pytest.approx(macro_f1(list("baab"), list("bbca")))  # the first answer is right
    # of four rows a is right in three, b in three
    assert (found.majority, found.uniform) == (3 / 4, 6 / 4 / 2)
    same = cell("bbca", "aaab")
    assert curves(same.assign(golds=None)).equals(curves(same))


def test_a_rows_own_choices_and_free_text_have_no_accuracy_without_skill():
    own = cell("aabb").assign(own_choices=[False, False, False, True])
    text = cell("aabb").assign(correct=None, rougeL=0.5)
    for rows in (own, text, text.drop(columns="gold")):
        assert curves(rows)[["majority", "uniform"]].isna().all().all()


# -- saturation ---------------------------------------------------------------------------------


def points(scores: dict[int, float], **columns: object) -> pd.DataFrame:
    rows = {"k": list(scores), "score": list(scores.values()), "metric": "accuracy"}
    return cell("a", "a").iloc[[0] * len(scores)][SETTING].assign(**{**rows, **columns})


def test_a_curve_is_saturated_at_the_first_k_that_reaches_95_percent_of_its_best():
    falling = {25: 0.7, 5: 0.761, 1: 0.759, 10: 0.8}
    (found,) = saturation(points(falling)).itertuples()
    assert (found.k, found.best_k, found.max_k, found.within_window) == (5, 10, 25, True)
    assert (found.metric, found.spoken, found.reason) == ("accuracy", True, None)
    exactly = {0: 0.95, 5: 1.0, 10: 1.0, 25: 1.0}
    (found,) = saturation(points(exactly)).itertuples()
    assert (found.k, found.best_k, found.max_k) == (0, 5, 25)
    rising = {1: 0.1, 5: 0.2, 10: 0.4, 25: np.nan}
    (found,) = saturation(points(rising)).itertuples()
    assert (found.k, found.best_k, found.max_k, found.within_window) == (10, 10, 10, False)
    assert list(saturation(points({})).columns) == [
        *SETTING,
        "k",
        "best_k",
        "min_k",
        "max_k",
        "within_window",
        "metric",
        "spoken",
        "reason",
    ]


RISING = {1: 0.4, 5: 0.5, 10: 0.55, 25: 0.6}


@pytest.mark.parametrize(
    ("low", "high", "reason"),
    [
        (0.3, 0.7, "at chance level at every k"),  # the commonest label is held
        (0.2, 0.4, "at chance level at every k"),  # one over the number of labels
        (0.1, 0.2, "at chance level at every k"),  # below both
        (0.5, 0.5, "at chance level at every k"),
        (0.25, 0.25, "at chance level at every k"),
        (0.3, 0.45, None),  # between the two, held by none
        (0.51, 0.9, None),
        ([0.3, 0.3, 0.3, 0.51], 0.7, None),  # one k is above
    ],
)
def test_a_curve_whose_every_interval_holds_chance_has_no_saturation_worth_telling(low, high, reason):
    curve = points(RISING, majority=0.5, uniform=0.25, ci_low=low, ci_high=high)
    (found,) = saturation(curve).itertuples()
    assert (found.spoken, found.reason) == (reason is None, reason)
    (found,) = saturation(curve.assign(metric="rouge1")).itertuples()
    assert found.spoken
    (found,) = saturation(curve.drop(columns="majority")).itertuples()
    assert found.spoken


def test_few_ks_or_no_right_answer_have_no_saturation_worth_telling():
    (found,) = saturation(points({1: 0.4, 5: 0.5, 10: 0.6})).itertuples()
    assert (found.spoken, found.reason) == (False, "needs 4 values of k, has 3")
    (found,) = saturation(points({1: 0.4})).itertuples()
    assert found.reason == "needs 4 values of k, has 1"
    (found,) = saturation(points(dict.fromkeys(RISING, 0.0))).itertuples()
    assert (found.spoken, found.reason, found.k) == (False, "no answer is correct", 1)
