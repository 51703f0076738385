"""Points beside imported ones: the same within the interval, another, or one draw that cannot say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import AXES

from icl_bench.analysis.findings.replication import replication
from icl_bench.results.facts import Facts

ROWS = 200
FACTS = {"here": Facts(seed=0, labels="a"), "theirs": Facts(imported="published.csv")}


def drawn(variant: str, share: float, draws: int, seed: int, **changes: object) -> pd.DataFrame:
    """Answers of which a share is right, with rows that are hard for everybody."""
    rng = np.random.default_rng(seed)
    hard = np.random.default_rng(99).normal(0, 0.1, ROWS)
    parts = [
        pd.DataFrame(
            {
                "test_id": [str(i) for i in range(ROWS)],
                "gold": "a",
                "prediction": "a",
                "correct": rng.random(ROWS) < share + hard,
                "valid": True,
            }
        ).assign(**{**AXES, "draw": draw, "variant": variant, **changes})
        for draw in range(draws)
    ]
    return pd.concat(parts, ignore_index=True)


def test_the_same_point_agrees_and_another_does_not():
    frame = pd.concat(
        [
            drawn("here", 0.7, 5, 0, k=10),
            drawn("theirs", 0.7, 5, 1, k=10),
            drawn("here", 0.5, 5, 2, k=50),
            drawn("theirs", 0.7, 5, 3, k=50),
            drawn("here", 0.5, 5, 4, k=100),
        ]
    )
    found = replication(frame, FACTS).set_index("k")
    assert found["agrees"].to_dict() == {10: True, 50: False}
    assert found.loc[50, "difference"] == pytest.approx(-0.2, abs=0.04)
    assert found["base_draws"].tolist() == [5, 5]
    assert set(found["base_made"]) == {"imported"}


def test_one_draw_cannot_say():
    frame = pd.concat([drawn("here", 0.5, 1, 0, k=10), drawn("theirs", 0.7, 5, 1, k=10)])
    found = replication(frame, FACTS)
    assert found["agrees"].tolist() == [None]
    assert found["withheld"].tolist() == ["one draw"]


def test_without_an_import_there_is_nothing_to_compare_with():
    assert replication(drawn("here", 0.5, 3, 0, k=10), FACTS).empty
    assert replication(drawn("theirs", 0.5, 3, 0, k=10), FACTS).empty


def test_draws_are_each_sides_own_though_they_have_equal_numbers():
    frame = pd.concat([drawn("here", 0.7, 5, 0, k=10), drawn("theirs", 0.7, 3, 1, k=10)])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert (row["draws"], row["base_draws"], row["left_out"]) == (5, 3, 0)
    assert (row["made"], row["base_made"]) == ("here", "imported")
    assert (row["variant"], row["base_variant"]) == ("here", "theirs")


def test_the_same_answers_on_both_sides_agree():
    same = drawn("here", 2.0, 3, 0, k=10)
    frame = pd.concat([same, same.assign(variant="theirs")])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert row["difference"] == 0
    assert row["agrees"] is True


def test_what_is_better_here_does_not_agree_either():
    frame = pd.concat([drawn("here", 0.8, 5, 0, k=10), drawn("theirs", 0.5, 5, 1, k=10)])
    (row,) = replication(frame, FACTS).to_dict("records")
    assert row["ci_low"] > 0
    assert row["agrees"] is False


def test_what_differs_in_a_fact_that_both_have_is_not_compared():
    frame = pd.concat([drawn("here", 0.7, 3, 0, k=10), drawn("theirs", 0.7, 3, 1, k=10)])
    assert len(replication(frame, FACTS)) == 1
    other = FACTS | {"theirs": FACTS["theirs"].with_more(labels="b")}
    assert replication(frame, other).empty
