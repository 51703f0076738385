"""Cascades: what answering each query at the first k with a margin would have brought."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from support import fakes
from support.predictions import frame, scored

from icl_bench.analysis.cascade import CASCADES, Rungs, alone, cascades, chosen_threshold, crossed, halving, outcome
from icl_bench.analysis.cell_cost import CellCost
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.statistics.paired import ALPHA, holm
from icl_bench.cli import main

RNG = np.random.default_rng


def rungs(correct: list[list[float]], margin: list[list[float]], flops: list[float]) -> Rungs:
    """One draw: a row for each k, a number for each test example; five tokens computed a k."""
    right, sure = np.array(correct)[:, None], np.array(margin)[:, None]
    return Rungs(np.array([1, 10, 100])[: len(right)], right, sure, np.full(right.shape, 5.0), np.array(flops))


THREE = rungs(
    [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]],
    [[0.9, 0.2, 0.1, 0.5], [0.9, 0.6, 0.2, 0.9], [0.9, 0.9, 0.9, 0.9]],
    [1.0, 10.0, 100.0],
)


def test_a_query_is_answered_at_the_first_k_whose_margin_is_reached():
    found = outcome(THREE, 0.5)
    assert found.k[0].tolist() == [1, 10, 100, 1]
    assert found.correct[0].tolist() == [1, 1, 1, 1]
    assert found.calls[0].tolist() == [1, 2, 3, 1]
    assert found.tokens[0].tolist() == [5, 10, 15, 5]
    assert found.flops[0].tolist() == [1, 11, 111, 1]
    assert outcome(THREE, 0.0).correct.tolist() == THREE.correct[0].tolist()
    assert outcome(THREE, np.inf).correct.tolist() == THREE.correct[-1].tolist()
    assert outcome(THREE, np.inf).flops.tolist() == [[111.0] * 4]


def test_what_is_missing_at_one_k_is_missing_in_the_cascade():
    gone = np.zeros(THREE.correct.shape, dtype=bool)
    gone[:, :, 1] = True
    parts = [np.where(gone, np.nan, part) for part in THREE[1:4]]
    found = outcome(Rungs(THREE.ks, *parts, THREE.flops), 0.5)
    assert np.isnan(np.array(found)[:, 0, 1]).all()
    assert not np.isnan(np.array(found)[:, 0, [0, 2, 3]]).any()


def test_the_cheapest_threshold_that_loses_nothing_is_chosen():
    assert chosen_threshold(THREE) == 0.0  # two of four at the smallest k, and two at the largest
    better = THREE._replace(correct=np.array([[[0, 0, 0, 1]], [[0, 0, 0, 1]], [[1, 1, 1, 1]]]) * 1.0)
    assert chosen_threshold(better) > 0.9  # always go on
    sure = THREE._replace(correct=np.array([[[1, 0, 0, 1]], [[1, 1, 0, 1]], [[1, 1, 1, 1]]]) * 1.0)
    threshold = chosen_threshold(sure)
    assert 0.2 < threshold <= 0.5
    assert chosen_threshold(sure._replace(flops=np.full(3, np.nan))) == threshold


def made(rng: np.random.Generator, draws: int = 2, test: int = 60, gain: float = 1.0) -> pd.DataFrame:
    """Predictions at three k, surer where they are right."""
    cells = []
    easy = rng.normal(0, 1, test)
    for place, k in enumerate((2, 8, 32)):
        odds = easy + gain * place + rng.normal(0, 0.3, (draws, test))
        right = rng.random((draws, test)) < expit(odds)
        margin = np.abs(expit(odds) * 2 - 1) * 0.5
        cells.append(
            scored(
                right,
                k=k,
                margin=margin.ravel(),
                label_mass=0.5,
                probability=0.5,
                prompt_tokens=10 * k + 7,
                cached_tokens=10 * k,
            )
        )
    return frame(*cells)


def no_costs(rows: pd.DataFrame) -> pd.DataFrame:
    return cost(rows.assign(cell="c", answer_tokens=0), {"c": CellCost()})


def test_every_example_is_judged_by_a_threshold_that_was_chosen_without_it():
    """Changing the answers of one half changes nothing of the threshold that it is judged by."""
    rng = RNG(1)
    parts = [rng.random((3, 2, 40)) for _ in range(2)]
    whole = Rungs(np.array([1, 2, 3]), (parts[0] < 0.5) * 1.0, parts[1], np.ones((3, 2, 40)), np.array([1.0, 2.0, 4.0]))
    first, second, found = crossed(whole, RNG(7))
    order = RNG(7).permutation(40)
    half, other = np.sort(order[:20]), np.sort(order[20:])
    assert first != second, "whose threshold is used could not be told"
    assert first == chosen_threshold(whole.of_tests(half))
    assert second == chosen_threshold(whole.of_tests(other))
    own = outcome(whole.of_tests(half), first).correct
    assert (own != outcome(whole.of_tests(half), second).correct).any()
    assert (found.correct[:, half] == outcome(whole.of_tests(half), second).correct).all()
    assert (found.correct[:, other] == outcome(whole.of_tests(other), first).correct).all()


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_a_table_of_made_up_predictions_is_that_of_a_loop(seed: int):
    rng = RNG(seed)
    rows = made(rng, int(rng.integers(1, 4)), int(rng.integers(4, 30)))
    table = cascades(rows, no_costs(rows))
    for row in table[table["rule"] == "fixed"].itertuples():
        ks, tokens, right = [], [], []
        for _, query in rows.groupby(["draw", "test_id"]):
            rising = query.sort_values("k")
            for asked, (_, one) in enumerate(rising.iterrows(), 1):
                if one["margin"] / one["label_mass"] >= row.threshold or asked == 3:
                    ks.append(one["k"])
                    tokens.append(7 * asked)
                    right.append(one["correct"])
                    break
        assert (row.mean_k, row.computed_tokens) == pytest.approx((np.mean(ks), np.mean(tokens)))
        assert row.score == pytest.approx(np.mean(right))
        assert row.left_out == 0


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_queries_that_some_k_lacks_are_left_out_and_counted(seed: int):
    rng = RNG(seed)
    rows = made(rng, int(rng.integers(1, 4)), int(rng.integers(4, 30)))
    rows = rows[rng.random(len(rows)) < 0.8]
    table = cascades(rows, no_costs(rows))
    whole = [ids for ids, part in rows.groupby(["draw", "test_id"]) if len(part) == 3]
    if len({test for _, test in whole}) < 2:
        assert table.empty
    else:
        assert (table["left_out"] == len(rows) - 3 * len(whole)).all()
        assert (table["draws"] == len({draw for draw, _ in whole})).all()


def test_sure_answers_at_few_demonstrations_save_without_losing():
    rows = made(RNG(3), draws=3, test=200, gain=0.0)
    costs = no_costs(rows).assign(query_flops=lambda t: t["k"].astype(float))
    table = cascades(rows, costs)
    (best,) = table[table["rule"] == "chosen"].to_dict("records")
    assert best["query_flops"] < best["last_flops"] / 2
    assert best["difference_low"] < 0 < best["difference_high"]
    assert best["p_holm"] == best["p"]
    assert best["ks"] == "2, 8, 32"
    fixed = table[table["rule"] == "fixed"]
    assert fixed["mean_k"].is_monotonic_increasing
    assert fixed["difference"].isna().all()
    single = table[table["rule"] == "single"]
    assert single["mean_k"].tolist() == [2, 8, 32]
    assert single["query_flops"].tolist() == [2, 8, 32]
    of_k = rows.groupby("k")["correct"].mean()
    assert single["score"].tolist() == pytest.approx(of_k.tolist())


def test_one_k_alone_asks_every_query_once():
    gone = np.array([[[False, True, False, False]]])
    parts = [np.where(gone, np.nan, part) for part in THREE[1:4]]
    found = alone(Rungs(THREE.ks, *parts, THREE.flops), 1)
    nan = np.nan
    for part, expected in zip(
        found, ([0, nan, 0, 1], [10, nan, 10, 10], [1, nan, 1, 1], [5, nan, 5, 5], [10, nan, 10, 10]), strict=True
    ):
        assert part[0].tolist() == pytest.approx(expected, nan_ok=True)


def test_curves_have_cascades_of_their_own_corrected_together():
    rows, rng = made(RNG(2)), RNG(4)
    other = made(RNG(5)).assign(order="by-label")
    trained = rows.assign(select="lora")
    bare = rows[rows["k"] == 2].assign(k=0)
    costs = {"query_flops": lambda t: t["k"].astype(float)}
    whole = frame(rows, other, trained, bare).sample(frac=1, random_state=rng.integers(9))
    table = cascades(whole, no_costs(whole).assign(**costs))
    alone_ = [cascades(part, no_costs(part).assign(**costs)) for part in (other, rows)]
    corrected = ["p_holm", "difference_low", "difference_high"]
    found, apart = (part.drop(columns=corrected) for part in (table, frame(*alone_)))
    pd.testing.assert_frame_equal(found, apart)
    chosen, by_itself = (part[part["rule"] == "chosen"] for part in (table, frame(*alone_)))
    assert (chosen["difference_low"].to_numpy() < by_itself["difference_low"].to_numpy()).all()
    excluded = (chosen["difference_low"] > 0) | (chosen["difference_high"] < 0)
    assert excluded.tolist() == (chosen["p_holm"] <= ALPHA).tolist()
    assert chosen["order"].tolist() == ["by-label", "drawn"]
    assert chosen["p_holm"].tolist() == holm(chosen["p"]).tolist()
    assert table.loc[table["rule"] != "chosen", ["p", "p_holm"]].isna().all(axis=None)
    assert table["rule"].tolist() == [*["chosen"], *["fixed"] * 5, *["single"] * 3] * 2
    fixed = table[table["rule"] == "fixed"]
    assert fixed["threshold"].tolist() == [0.1, 0.3, 0.5, 0.7, 0.9] * 2


def test_beside_a_cascade_stands_the_largest_k_alone():
    rows = made(RNG(2))
    table = cascades(rows, no_costs(rows).assign(query_flops=lambda t: 2.0 * t["k"]))
    last = rows[rows["k"] == 32]["correct"].to_numpy(float).reshape(2, 60)
    assert (table["last_k"] == 32).all()
    assert table["last_score"].tolist() == pytest.approx([last.mean()] * len(table))
    assert (table["last_tokens"] == 7).all()
    assert (table["last_flops"] == 64).all()
    assert table[["draws", "test_rows"]].drop_duplicates().to_numpy().tolist() == [[2, 60]]
    single = table[table["rule"] == "single"]
    assert single[["asked", "computed_tokens"]].drop_duplicates().to_numpy().tolist() == [[1, 7]]
    assert (single["ci_low"].iloc[2], single["ci_high"].iloc[2]) == mean_interval(last)[1:]
    (best,) = table[table["rule"] == "chosen"].to_dict("records")
    assert best["difference"] == pytest.approx(best["score"] - best["last_score"])
    assert 0 < best["p"] <= 1
    names = ("correct", "margin")
    right, margin = (rows[name].to_numpy(float).reshape(3, 2, 60) for name in names)
    flops = np.array([4.0, 16.0, 64.0])
    first, second, of_it = crossed(
        Rungs(np.array([2, 8, 32]), right, margin / 0.5, np.full((3, 2, 60), 7.0), flops), halving()
    )
    assert (best["threshold"], best["other_threshold"]) == (first, second)
    assert best["mean_k"] == pytest.approx(of_it.k.mean())
    assert best["asked"] == pytest.approx(of_it.calls.mean())
    assert best["query_flops"] == pytest.approx(of_it.flops.mean())


def test_limits_of_a_difference_are_possible_differences():
    rows = made(RNG(6))
    # few demonstrations are best in one draw, worst in the other
    rows["correct"] = (rows["draw"] == 0) == (rows["k"] == 2)
    (chosen,) = cascades(rows, no_costs(rows)).query("rule == 'chosen'").to_dict("records")
    assert (chosen["difference_low"], chosen["difference_high"]) == (-1, 1)


def test_two_ks_are_enough_for_a_cascade():
    rows = made(RNG(2))
    rows = rows[rows["k"] != 8]
    table = cascades(rows, no_costs(rows))
    assert set(table["ks"]) == {"2, 32"}
    assert table.loc[table["rule"] == "single", "mean_k"].tolist() == [2, 32]


def test_the_margin_needed_is_told_in_words():
    nan, inf = np.nan, np.inf
    table = pd.DataFrame(
        [["chosen", 0.5, 0.25], ["chosen", 0.5, 0.5], ["chosen", inf, 0.5], ["fixed", 0.7, nan], ["single", nan, nan]],
        columns=["rule", "threshold", "other_threshold"],
    )
    assert CASCADES.printed.rows(table)["said"].tolist() == [
        "chosen 0.25, 0.5",
        "chosen 0.5",
        "chosen 0.5, none",
        "fixed 0.7",
    ]


def test_a_single_k_or_no_probabilities_make_no_cascade():
    rows = made(RNG(0))
    for less in (
        rows[rows["k"] == 2],
        rows.assign(margin=None),
        rows.drop(columns="margin"),
        rows[(rows["k"] == 2) ^ (rows["draw"] == 0)].query("k < 9"),
    ):
        assert cascades(less, no_costs(less)).empty


def test_what_retrieves_pays_for_the_whole_prompt_each_time():
    rows = made(RNG(0)).assign(select="bm25")
    costs = no_costs(rows).assign(query_flops=1.0, whole_flops=100.0)
    table = cascades(rows, costs)
    assert (table["last_flops"] == 100).all()


def test_summary_says_to_run_exact_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made_plan = fakes.plan(tmp_path / "task", draws=1)
    fakes.runner(made_plan, tmp_path / "results", fakes.FakeBackend()).run()
    folder = str(tmp_path / "results")
    with pytest.raises(SystemExit, match="2"):
        main(["summary", "--cascade", "--results", folder])
    assert "run --score exact with several --k" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["summary", "--json", "--results", folder])
    assert json.loads(capsys.readouterr().out)["cascades"] == []
