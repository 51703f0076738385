"""Sentences on findings, as terminal and report say them, word by word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from icl_bench.analysis.draws import ONE_SIDE, TESTS_ONLY
from icl_bench.analysis.words import (
    MOST_OUTLYING,
    SILENT,
    advice_over,
    cautions_of,
    comparison_notes,
    curve_notes,
    founded_on,
    outlying,
    points,
    spread_of_draws,
    too_little,
    try_more,
    undecided,
    with_reasons,
)

NOTHING: dict[str, Any] = {"p_holm": None, "difference": None, "advice": None}


def compared(*rows: dict[str, Any]) -> pd.DataFrame:
    """Comparisons that tell one from the other, but for what is said."""
    base = {
        "task": "t",
        "model": "m",
        "select": "random",
        "order": "drawn",
        "k": 10,
        "p_holm": 0.01,
        "difference": 0.5,
        "advice": "a",
    }
    return pd.DataFrame([{**base, **row} for row in rows])


def test_a_difference_is_said_with_its_limits():
    row = {"difference": 0.5, "ci_low": -0.18, "ci_high": 1.0}
    assert points(row) == "+50.0 points, 95% interval -18.0 to +100.0"


@pytest.mark.parametrize(
    ("draws", "base", "said"),
    [
        (1, {}, "; 1 draw, try --draws 3"),
        (2, {}, "; 2 draws, try --draws 5"),
        (3, {}, ""),
        (1, {"base_draws": 2}, "; 2 draws, try --draws 5"),
        (2, {"base_draws": 1}, "; 2 draws, try --draws 5"),
        (1, {"base_draws": 3}, ""),
        (0, {}, ""),
    ],
)
def test_more_draws_are_advised_where_they_are_few(draws: int, base: dict[str, int], said: str):
    assert try_more({"draws": draws, **base}) == said


def test_a_dash_is_explained_where_what_was_tested_has_no_advice():
    said = ["better –: not distinguishable (corrected p above 0.05)"]
    assert undecided(compared({}, {"advice": None})) == said
    assert undecided(compared({})) == []
    assert undecided(compared({"advice": None, "p_holm": np.nan})) == []
    assert undecided(compared({"advice": None, "difference": np.nan}, {})) == []


def test_points_of_one_draw_are_told_with_the_spread_elsewhere():
    rows = compared(
        {"withheld": "one draw", "draws_sd": 0.021, "draws_sd_of": "other k of the curve"},
        {"withheld": None, "draws_sd": 0.5, "draws_sd_of": "elsewhere"},
        {"withheld": "one draw", "draws_sd": np.nan, "draws_sd_of": None},
    )
    assert comparison_notes(rows) == [
        "one draw: 2 points without a p value, as other demonstrations may give another "
        "difference; the score of a draw has a standard deviation of 2.1 points (other k of the "
        "curve); try --draws 3"
    ]
    assert comparison_notes(rows.assign(withheld=None)) == []
    assert comparison_notes(compared({})) == []


def test_points_of_an_unknown_base_are_told():
    unknown = {"withheld": "unknown base", "advice": None, "p_holm": np.nan}
    rows = compared(unknown, unknown, {})
    assert comparison_notes(rows) == [
        "unknown base: 2 points without a p value, as the imported file has several variants of the base and does not "
        "say which of them is like the point's"
    ]


def test_points_of_equal_prompts_are_told():
    rows = compared({"withheld": "nothing differs", "advice": None, "p_holm": np.nan}, {})
    assert comparison_notes(rows) == [
        "nothing differs: 1 point without a p value, as prompts and attention are those of the base"
    ]
    assert with_reasons(rows)["advice"].tolist()[0] == "nothing differs"


def test_the_spread_of_draws_is_a_range_with_all_places_it_is_from():
    rows = pd.DataFrame({"draws_sd": [0.05, 0.02, np.nan], "draws_sd_of": ["b", "a", None]})
    assert spread_of_draws(rows) == ("the score of a draw has a standard deviation of 2.0 to 5.0 points (a and b)")
    assert spread_of_draws(rows.iloc[2:]) == ("how much draws differ is unknown, as no point has several draws")


def test_better_says_why_there_is_no_test():
    rows = compared({"withheld": "one draw", "advice": None}, {"withheld": None})
    assert with_reasons(rows)["advice"].tolist() == ["one draw", "a"]
    assert with_reasons(rows.iloc[1:])["advice"].tolist() == ["a"]
    assert with_reasons(compared({}))["advice"].tolist() == ["a"]


def test_intervals_that_are_not_over_draws_of_what_is_drawn_are_counted():
    rows = compared(
        {"interval_over": TESTS_ONLY},
        {"interval_over": TESTS_ONLY, "k": 1},
        {"interval_over": TESTS_ONLY, "k": 0},
        {"interval_over": TESTS_ONLY, "select": "bm25"},
        {"interval_over": ONE_SIDE},
        {"interval_over": "draws and test examples"},
    )
    expected = [
        f"1 draw: the 95% interval of 2 of 6 points is over test rows only; {SILENT}",
        f"1 draw: the 95% interval of 1 of 6 points is over test rows and one side's draws; {SILENT}",
    ]
    assert curve_notes(rows) == expected
    assert comparison_notes(rows) == expected
    assert curve_notes(compared({})) == []
    assert curve_notes(rows.iloc[2:4]) == []


@pytest.mark.parametrize(
    ("row", "over"),
    [
        ({"k": 10, "select": "random", "interval_over": TESTS_ONLY}, "test rows only"),
        ({"k": 1, "select": "random", "interval_over": TESTS_ONLY}, "test rows only"),
        ({"k": 0, "select": "random", "interval_over": TESTS_ONLY}, None),
        ({"k": 10, "select": "bm25", "interval_over": TESTS_ONLY}, None),
        ({"k": 10, "select": "bm25", "interval_over": ONE_SIDE}, "test rows and one side's draws"),
        ({"k": 10, "select": "random", "interval_over": "draws and test examples"}, None),
    ],
)
def test_advice_on_one_draw_says_what_it_is_over(row: dict[str, Any], over: str | None):
    said = [f"1 draw: this advice is over {over}; {SILENT}; try --draws 3"] if over else []
    assert advice_over([row]) == said
    sure = {"k": 5, "select": "random", "interval_over": "draws and test examples"}
    assert advice_over([sure, row, row]) == said


def test_outlying_draws_are_told_by_point_those_of_the_base_by_its_names():
    rows = compared(
        {"outlying_draws": "3, 7", "k": 1000},
        {
            "outlying_draws": "1",
            "order": "label-sorted",
            "base_outlying_draws": "2",
            "base_select": "bm25",
            "base_order": "reversed",
        },
        {"base_outlying_draws": "4", "base_select": "bm25", "base_order": "relevance"},
    )
    assert outlying(rows) == [
        "outlying (t, m, random, k=1,000): draw 3, 7",
        "outlying (t, m, random, label-sorted, k=10): draw 1",
        "outlying of the base (t, m, bm25, reversed, k=10): draw 2",
        "outlying of the base (t, m, bm25, k=10): draw 4",
    ]
    alone = compared({"base_outlying_draws": "4", "order": "label-sorted"})
    assert outlying(alone) == ["outlying of the base (t, m, random, label-sorted, k=10): draw 4"]
    assert outlying(alone.drop(columns="order")) == ["outlying of the base (t, m, random, k=10): draw 4"]
    assert curve_notes(rows) == comparison_notes(rows) == outlying(rows)
    assert outlying(compared({})) == []


def test_of_many_outlying_points_the_first_are_told_and_the_rest_counted():
    rows = compared(*({"outlying_draws": "1", "k": k} for k in range(1, MOST_OUTLYING + 3)))
    whole = [f"outlying (t, m, random, k={k}): draw 1" for k in range(1, MOST_OUTLYING + 1)]
    assert outlying(rows.iloc[:MOST_OUTLYING]) == whole
    assert outlying(rows) == [*whole, "and 2 more points with outlying draws (--json has all)"]


def test_the_data_behind_a_finding_is_told():
    rows = pd.DataFrame({"rows": [250, 250], "draws": [10, 10], "left_out": [0, 0], "k": [5, 1000]})
    assert founded_on(rows) == "250 test rows, 10 draws"
    more = rows.assign(rows=[1000, 2000], draws=[3, 10], base_draws=[1, 3], left_out=[1, 0])
    assert founded_on(more) == ("1,000 to 2,000 test rows, 3 to 10 draws beside 1 to 3, 1 prediction left out")
    far = rows.assign(left_out=[1, 2], outlying_draws=["3", "1, 2"], base_outlying_draws=[None, "4"])
    assert founded_on(far) == (
        "250 test rows, 10 draws, 3 predictions left out, outlying draw: 3 (k = 5) and 1, 2 "
        "(k = 1,000), outlying draw of the base: 4 (k = 1,000)"
    )
    assert founded_on(far.assign(left_out=0, base_outlying_draws=None).iloc[:1]) == (
        "250 test rows, 10 draws, outlying draw: 3 (k = 5)"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"draws": 2}, "2 draws, try --draws 5"),
        ({"draws": 1}, "1 draw, try --draws 3"),
        ({"draws": 1, "k": 0}, ""),
        ({"draws": 1, "k": 1}, "1 draw, try --draws 3"),
        ({"draws": 1, "select": "bm25"}, ""),
        ({"draws": 0}, ""),
        ({"base_draws": 1}, "1 draw, try --draws 3"),
        ({"base_draws": 1, "draws": 2}, "1 draw, try --draws 3"),
        ({"base_draws": 1, "base_select": "bm25"}, ""),
        ({"draws": 1, "base_draws": 3, "select": "bm25", "base_select": "random"}, ""),
        ({"rows": 50}, ""),
        ({"rows": 1049, "all_rows": 2100}, "1,049 of 2,100 test rows in common"),
        ({"rows": 49, "draws": 2}, "2 draws, try --draws 5 and 49 of 100 test rows in common"),
    ],
)
def test_what_rests_on_too_little_is_no_key_finding(changes: dict[str, Any], why: str):
    enough = {"select": "random", "draws": 3, "k": 10, "rows": 100, "all_rows": 100}
    assert too_little({**enough, **changes}) == why


def test_cautions_are_of_the_selections_and_of_what_a_training_stands_beside():
    one = "centroids,of=queries"
    said = [f"{one}: the texts of the test queries were used to choose its demonstrations"]
    assert cautions_of(pd.DataFrame({"select": ["random", one, one]})) == said
    assert cautions_of(pd.DataFrame({"beside": [f"{one}, drawn, k=5", "random, x"]})) == said
    assert cautions_of(pd.DataFrame({"k": [1]})) == []
