"""The sample learning ratio: what the most similar demonstrations bring, over the least similar."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from support.predictions import frame, scored
from support.stored import facts_of

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.findings.comparisons import perturbation_effect
from icl_bench.analysis.findings.learning_ratio import RESAMPLES, SMALL_DIVISOR, _ratio, learning_ratio
from icl_bench.analysis.statistics.bootstrap import means as resampled
from icl_bench.analysis.statistics.bootstrap import resample
from icl_bench.cli.output.findings import print_findings
from icl_bench.registry import FINDINGS
from icl_bench.report.naming import Naming
from icl_bench.report.sections.perturbations import perturbations
from icl_bench.results.reading import Stored

FACTS = facts_of(
    {
        "plain": {"seed": 0},
        "near": {"seed": 0, "perturbation": "nearest-removed:10"},
        "far": {"seed": 0, "perturbation": "farthest-removed:10"},
    }
)


def predictions(near: float, far: float, draws: int = 3, test: int = 500) -> pd.DataFrame:
    """Right answers of 80% of the queries, and of fewer without some demonstrations."""
    chance = np.random.default_rng(2).random((draws, test))
    parts = [
        scored(chance < share, cell=name, variant=name, perturbation=FACTS[name].perturbation)
        for name, share in (("plain", 0.8), ("near", near), ("far", far))
    ]
    rows = frame(*parts)
    return rows.assign(score=rows["correct"].astype(float), metric="accuracy")


def found(rows: pd.DataFrame) -> pd.DataFrame:
    effects = perturbation_effect(rows, facts=FACTS)
    return learning_ratio(rows, effects, np.random.default_rng(0))


def test_a_divisor_that_may_be_0_makes_the_ratio_large_and_not_small():
    """Of two in a hundred resamples, the loss without the farthest is no loss: their ratios are the largest."""
    chance = np.random.default_rng(3).random((3, 300))
    nearest, farthest = ((chance < share).astype(float) - (chance < 0.1) for share in (0.5, 0.2))
    counts = resample(np.random.default_rng(0), RESAMPLES, *nearest.shape)
    for lost in np.arange(0.0, 0.1, 0.001):
        shifted = farthest - lost
        without = resampled(shifted, counts)
        if 0.015 < np.mean(without <= 0) < 0.024:
            break
    ratios = np.where(without > 0, resampled(nearest, counts) / without, np.inf)
    found = _ratio(nearest, shifted, np.random.default_rng(0))
    assert [found["ratio_low"], found["ratio_high"]] == np.quantile(ratios, [0.025, 0.975]).tolist()


def test_the_ratio_is_of_what_is_lost_without_the_nearest_and_the_farthest():
    rows = predictions(near=0.4, far=0.7)
    (row,) = found(rows).to_dict("records")
    means = rows.groupby("variant")["score"].mean()
    assert row["score"] == pytest.approx(means["plain"])
    assert row["nearest_lost"] == pytest.approx(means["plain"] - means["near"])
    assert row["farthest_lost"] == pytest.approx(means["plain"] - means["far"])
    assert row["ratio"] == pytest.approx(row["nearest_lost"] / row["farthest_lost"])
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert row["ratio_low"] > 2
    assert (row["variant"], row["removed"], row["k"]) == ("plain", 10, 5)
    assert (row["draws"], row["test_rows"]) == (3, 500)
    assert row["interval_over"] == "draws and test examples"


def test_nothing_is_divided_by_what_may_be_nothing():
    (row,) = found(predictions(near=0.5, far=0.795, draws=2, test=60)).to_dict("records")
    assert row["reason"] == SMALL_DIVISOR
    assert np.isnan(row["ratio"])
    assert row["nearest_lost"] > 0.2
    assert row["farthest_low"] <= 0


def test_both_have_to_be_there_and_as_many_left_out():
    rows = predictions(0.4, 0.7)
    assert found(rows[rows["variant"] != "far"]).empty
    assert found(rows[rows["variant"] != "near"]).empty
    other = rows["perturbation"].replace("farthest-removed:10", "farthest-removed:20")
    assert found(rows.assign(perturbation=other)).empty


def test_test_examples_that_one_lacks_are_left_out_of_all_three():
    rows = predictions(0.4, 0.7)
    less = rows[(rows["variant"] != "far") | (rows["test_id"] >= "row 100")]
    (row,) = found(less).to_dict("records")
    assert row["test_rows"] == 400
    kept = rows[rows["test_id"] >= "row 100"].groupby("variant")["score"].mean()
    assert row["nearest_lost"] == pytest.approx(kept["plain"] - kept["near"])


def test_points_without_common_test_examples_say_so_and_hide_no_others():
    rows = predictions(0.4, 0.7)
    apart = rows.assign(k=3)
    apart.loc[apart["variant"] == "far", "test_id"] += " of another test set"
    nothing, row = found(frame(apart, rows)).to_dict("records")
    assert (nothing["k"], nothing["removed"], nothing["metric"]) == (3, 10, "accuracy")
    assert nothing["reason"] == "no test rows in common"
    assert np.isnan(nothing["score"])
    assert np.isnan(nothing["nearest_lost"])
    assert (row["k"], row["test_rows"]) == (5, 500)


def test_limits_are_the_quantiles_of_2000_resamples():
    rows = predictions(0.4, 0.7)
    effects = perturbation_effect(rows, facts=FACTS)
    (row,) = learning_ratio(rows, effects, np.random.default_rng(0)).to_dict("records")
    means = rows.pivot_table(index=["draw", "test_id"], columns="variant", values="score")
    lost = [(means["plain"] - means[name]).to_numpy().reshape(3, 500) for name in ("near", "far")]
    rng = np.random.default_rng(0)
    counts = resample(rng, 2000, 3, 500)
    again = [resampled(one, counts) for one in lost]
    resamples = {"nearest": again[0], "farthest": again[1], "ratio": again[0] / again[1]}
    for name, one in resamples.items():
        low, high = np.quantile(one, [0.025, 0.975])
        assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((low, high))


def test_one_draw_is_over_test_examples_only_and_what_has_no_score_is_left_out():
    rows = predictions(0.4, 0.7, draws=1)
    (row,) = found(rows).to_dict("records")
    assert (row["draws"], row["interval_over"]) == (1, "test examples only")
    rows.loc[:9, "score"] = np.nan
    (row,) = found(rows).to_dict("records")
    assert row["test_rows"] == 490


def test_terminal_and_report_name_that_one_draw_says_nothing_of_others():
    rows = predictions(0.4, 0.7, draws=1).assign(queries=None, label_space=None)
    findings = find(Stored(rows, {}, FACTS, []))
    console = Console(file=StringIO(), width=120)
    print_findings(findings, console)
    text = " ".join(console.file.getvalue().split())
    note = "1 draw: the 95% interval of 1 of 1 point is over test rows only; it does not show the effect of other demonstrations"
    assert note in text.split("sample learning ratio:")[1]
    drawn = perturbations(FINDINGS["perturbations"], findings, Naming.of(findings.summary))
    assert drawn is not None
    ratios = drawn.tables[1]
    assert ratios.caption == "Sample learning ratio"
    assert note in ratios.notes
    assert "test examples only" in ratios.rows[0]
