"""What a majority of samples gains, held to counts of all subsets in all orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBackend, planned, runner, tokenized_task
from support.in_process import said
from support.predictions import cell, frame
from support.samples import THREE, Sampler

from icl_bench.analysis.all_findings import read_findings
from icl_bench.analysis.findings.self_consistency import (
    SELF_CONSISTENCY,
    agreement,
    expected,
    self_consistency,
    win_chances,
)
from icl_bench.analysis.query_cost import MEASURES, query_costs
from icl_bench.analysis.statistics.paired import compare


def voted(samples: Sequence[str | None]) -> str | None:
    """The majority; of equals the first."""
    (winner, _), *_ = Counter(samples).most_common(1)
    return winner


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=6), st.data())
def test_the_expected_score_is_the_mean_over_all_ordered_subsets(samples: list[str | None], data: st.DataObject):
    size = data.draw(st.integers(1, len(samples)))
    worth = {"a": 1.0, "b": 0.0, "c": 0.25, None: 0.0}
    every = [worth[voted(some)] for some in permutations(samples, size)]
    assert expected(samples, [worth[one] for one in samples], size) == pytest.approx(np.mean(every))
    pairs = [first == second for first, second in permutations(samples, 2)]
    assert agreement(samples) == pytest.approx(np.mean(pairs))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.data())
def test_chances_sum_to_one(counts: list[int], data: st.DataObject):
    size = data.draw(st.integers(1, sum(counts)))
    chances = np.array(win_chances(tuple(counts), size))
    assert chances.sum() == pytest.approx(1)
    if size == sum(counts):
        best = np.array(counts) == max(counts)
        assert chances == pytest.approx(best / best.sum())


def test_of_many_samples_the_commoner_answer_wins_more_often_the_more_are_voted_on():
    chances = [win_chances((30, 20, 10), size)[0] for size in (1, 3, 5, 10, 20, 40, 60)]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(0.5)
    assert chances[-1] == 1
    assert win_chances((1,) * 256, 128)[0] == pytest.approx(1 / 256)


def sampled(votes: Sequence[str], gold: str = "aabb", **changes: object) -> pd.DataFrame:
    """A cell with the samples of each row, letters each."""
    rows = cell("".join(voted(row) or "?" for row in votes), gold, **changes)
    scores = [[float(vote == right) for vote in row] for row, right in zip(votes, gold, strict=True)]
    return rows.assign(samples=[list(row) for row in votes], sample_scores=scores)


VOTES = ["abaab", "bbaab", "bbbbb", "aabab"]


def test_each_number_of_votes_is_compared_with_one_sample_on_the_same_rows():
    rows = frame(sampled(VOTES, draw=0), sampled(VOTES[::-1], gold="bbaa", draw=1))
    table = self_consistency(rows)
    assert table["votes"].tolist() == [3, 5]
    assert (table["sampled"] == 5).all()
    single = np.mean([[vote == right for vote in row] for row, right in zip(VOTES, "aabb", strict=True)])
    assert table["base_mean"].to_numpy() == pytest.approx(single)
    three = np.mean(
        [expected(row, [float(v == right) for v in row], 3) for row, right in zip(VOTES, "aabb", strict=True)]
    )
    assert table["mean"].tolist() == pytest.approx([three, np.mean([True, False, True, False])])
    assert table["difference"].to_numpy() == pytest.approx(table["mean"] - table["base_mean"])
    assert table["agreement"].to_numpy() == pytest.approx(np.mean([0.4, 0.4, 1.0, 0.4]))
    assert (table["interval_over"] != "test examples only").all()
    assert ((table["ci_low"] < table["difference"]) & (table["difference"] < table["ci_high"])).all()


def test_limits_are_those_of_a_paired_comparison():
    rows = frame(sampled(VOTES, draw=0), sampled(VOTES[::-1], gold="bbaa", draw=1))
    (whole,) = self_consistency(rows).query("votes == 5").to_dict("records")
    mean = rows["sample_scores"].map(np.mean)
    both = pd.concat([rows.assign(way="all"), rows.assign(way="one", score=mean, metric="accuracy")])
    both = both.assign(score=both["score"].fillna(both["correct"].astype(float)), metric="accuracy")
    (other,) = compare(both, {"way": "one"}, about="demonstrations").to_dict("records")
    assert (whole["ci_low"], whole["ci_high"]) == pytest.approx((other["ci_low"], other["ci_high"]))


def test_points_without_samples_or_with_one_have_no_row():
    plain = frame(cell("aabb"), cell("abab", k=1))
    assert self_consistency(plain).empty
    assert self_consistency(sampled(["a", "b", "b", "a"])).empty
    mixed = frame(plain, sampled(VOTES, variant="w"))
    assert set(self_consistency(mixed)["variant"]) == {"w"}
    assert list(self_consistency(plain).columns) == list(self_consistency(mixed).columns)


def test_a_sampled_run_is_shown_with_its_gain(tmp_path: Path):
    plan = planned(replace(tokenized_task(tmp_path / "task"), samples=THREE), "0,2", draws=2)
    runner(plan, tmp_path / "results", Sampler()).run()
    found = read_findings(tmp_path / "results")
    table = found.self_consistency
    assert table["k"].tolist() == [0, 2]
    assert table["mean"].tolist() == pytest.approx(found.curves.sort_values("k")["score"].tolist())
    assert SELF_CONSISTENCY.printed is not None
    assert "self-consistency: accuracy of the majority" in said("summary", "--results", tmp_path / "results")


def test_tokens_of_all_samples_are_paid_and_the_prompt_is_computed_once(tmp_path: Path):
    """With three samples a query's own tokens are computed three times, and the shared ones once."""
    task = tokenized_task(tmp_path / "task")
    for place, made in (("one", task), ("three", replace(task, samples=THREE))):
        engine = Sampler() if made.samples else FakeBackend()
        runner(planned(made, "2", draws=1), tmp_path / place, engine).run()
    one, three = (read_findings(tmp_path / place) for place in ("one", "three"))
    (alone,), (several,) = one.cost.to_dict("records"), three.cost.to_dict("records")
    assert several["prompt_tokens"] == 3 * alone["prompt_tokens"]
    assert several["computed_tokens"] == pytest.approx(3 * alone["computed_tokens"])
    assert several["samples_a_query"] == 3
    assert "samples_a_query" not in alone
    costs, costs_of_three = query_costs(one.cost, None), query_costs(three.cost, None)
    tokens = MEASURES.index("tokens")
    assert costs_of_three.once[0, tokens] == pytest.approx(costs.once[0, tokens])
    assert costs.once[0, tokens] > 0
    paid = 3 * alone["computed_tokens"] + several["answer_tokens"]
    assert costs_of_three.each[0, tokens] == pytest.approx(paid)
    shares = [found.context_shares["share_of_window"].tolist() for found in (one, three)]
    assert shares[0] == pytest.approx(shares[1])
