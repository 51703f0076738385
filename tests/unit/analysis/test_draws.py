"""One draw says nothing of other draws, and a draw that lies apart is named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.predictions import answers, cell, frame, scored

from icl_bench.analysis.all_findings import find
from icl_bench.analysis.curves import curves
from icl_bench.analysis.draws import (
    DRAWS_AND_TESTS,
    TESTS_ONLY,
    by_name,
    deviations_elsewhere,
    interval_over,
    is_drawn,
    outlying_draws,
)
from icl_bench.analysis.findings.attention import attention_patterns, differences
from icl_bench.analysis.findings.comparisons import (
    compare_models,
    perturbation_effect,
    retrieval_gain,
    sorting_penalty,
    training_gain,
)
from icl_bench.analysis.findings.cost import cost
from icl_bench.analysis.predictions import with_copies_as_one_draw
from icl_bench.analysis.statistics.contrast import contrast, judge
from icl_bench.analysis.statistics.mean_squares import mean_squares
from icl_bench.analysis.statistics.paired import compare
from icl_bench.analysis.summary import summarise
from icl_bench.analysis.words import comparison_notes, curve_notes, with_reasons
from icl_bench.results.facts import Facts
from icl_bench.results.reading import Stored

SIDES = {
    True: answers(np.random.default_rng(0), (1, 10, 200), 0.9)[0],
    False: answers(np.random.default_rng(1), (1, 10, 200), 0.3)[0],
}


def side(better: bool, draws: int = 1, first: int = 0, **setting: object) -> pd.DataFrame:
    rows = scored(SIDES[better][:draws], **setting)
    return rows.assign(draw=rows["draw"] + first)


@pytest.mark.parametrize("kind", ["str", "category", object])
def test_every_row_has_the_answer_of_its_name_and_each_name_is_asked_once(kind: object):
    names, asked = pd.Series(["bm25", "random", None, "bm25"], index=[7, 3, 3, 1], dtype=kind), []
    found = by_name(names, lambda name: asked.append(name) or str(name).upper())
    assert list(found.iloc[[0, 1, 3]]) == ["BM25", "RANDOM", "BM25"]
    assert list(found.index) == [7, 3, 3, 1]
    assert len(asked) == 3
    assert by_name(names, lambda name: name == "bm25").dtype == bool
    assert by_name(names[:0], lambda name: name == "bm25").astype(bool).tolist() == []


# -- what is withheld ---------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [(1, 1), (1, 3), (3, 1)])
def test_one_draw_of_a_selection_that_draws_is_never_called_better(draws):
    rows = frame(side(False, draws[0]), side(True, draws[1], select="balanced"))
    (found,) = retrieval_gain(rows).to_dict("records")
    assert found["difference"] > 0.4
    assert np.isnan([found["p"], found["p_holm"]]).all()
    assert pd.isna(found["advice"])
    assert found["withheld"] == "one draw"
    assert (found["draws"], found["base_draws"]) == draws[::-1]


def test_of_a_name_that_is_no_known_choice_one_draw_is_one_of_many():
    assert [is_drawn(s) for s in ("random", "hybrid:4", "centroids", "lora", "mine")] == [True] * 5
    assert not is_drawn("bm25")
    rows = frame(side(False, 3), side(True, 1, select="mine"))
    assert retrieval_gain(rows)["withheld"].tolist() == ["one draw"]


def test_retrieval_has_one_draw_by_nature_and_is_judged():
    rows = frame(side(False, 3), side(True, 1, select="bm25", order="relevance"))
    (found,) = retrieval_gain(rows).to_dict("records")
    assert found["advice"] == "bm25"
    assert found["interval_over"] == "draws and test examples"
    assert pd.isna(found["withheld"])
    rows = frame(side(False, 1), side(True, 1, select="bm25", order="relevance"))
    assert retrieval_gain(rows)["withheld"].tolist() == ["one draw"]


def test_models_and_trainings_with_one_draw_are_not_told_apart_but_models_with_retrieval_are():
    rows = frame(side(False), side(True, model="n"))
    assert compare_models(rows, "m")[["p", "advice"]].isna().all(axis=None)
    assert not compare_models(rows, "m")["significant"].any()
    rows = frame(side(False), side(True, select="probe"))
    assert training_gain(rows)[["p", "advice"]].isna().all(axis=None)
    rows = frame(side(False, select="bm25"), side(True, model="n", select="bm25"))
    assert compare_models(rows, "m")["advice"].tolist() == ["n"]


def test_one_draw_tells_what_an_order_attention_or_perturbation_does_to_its_demonstrations():
    base = side(True)
    (found,) = sorting_penalty(frame(base, side(False, order="by-label"))).to_dict("records")
    assert found["advice"] == "drawn"
    assert found["interval_over"] == "test examples only"
    perturbed = frame(base.assign(perturbation=None), side(False).assign(perturbation="inputs-only"))
    assert perturbation_effect(perturbed)["advice"].tolist() == ["none"]
    other = frame(base, side(False, attention="block:1")).assign(cell="c", prompt_tokens=1)
    other = other.assign(cached_tokens=0, answer_tokens=1)
    found = differences(attention_patterns(other, curves(other), cost(other, {})))
    assert found["advice"].tolist() == ["full"]
    assert found[["draws", "base_draws"]].to_numpy().tolist() == [[1, 1]]
    assert found["interval_over"].tolist() == ["test examples only"]


def test_an_order_of_other_demonstrations_is_not_judged_by_one_draw():
    rows = frame(side(True), side(False, order="by-label", first=5))
    assert sorting_penalty(rows)["withheld"].tolist() == ["one draw"]


def test_a_caller_that_says_not_what_it_is_about_gets_p_of_one_draw_as_it_is():
    rows = frame(side(False), side(True, select="balanced"))
    (found,) = compare(rows, {"select": "random"}).to_dict("records")
    assert found["p"] == judge([contrast(SIDES[True][:1], SIDES[False][:1], True)])[2][0]


def test_how_far_draws_differ_is_taken_from_where_they_were_repeated():
    several = side(True, 10, k=9)
    means = several.groupby("draw")["correct"].mean()
    rows = frame(side(False), several, side(True, select="balanced"))
    (found,) = retrieval_gain(rows).to_dict("records")
    assert found["draws_sd"] == pytest.approx(means.std())
    assert found["draws_sd_of"] == "other curves of the task and model"
    assert f"a standard deviation of {100 * means.std():.1f} points" in comparison_notes(retrieval_gain(rows))[0]
    alone = retrieval_gain(frame(side(False), side(True, select="balanced")))
    assert np.isnan(alone["draws_sd"]).all()
    assert "is unknown, as no point has several draws" in comparison_notes(alone)[0]


def test_retrievals_near_copies_are_no_repeated_draws():
    random, balanced = side(False), side(True, select="balanced")
    near_copies = frame(*(side(False, select="bm25").assign(draw=draw) for draw in range(3)))
    near_copies.loc[near_copies.index[-1:], "correct"] ^= True
    asked_again = frame(*(side(False, k=0).assign(draw=draw) for draw in range(2)))
    found = retrieval_gain(frame(random, balanced, near_copies)).set_index("select")
    assert np.isnan(found["draws_sd"]).all()
    assert np.isnan(compare(frame(random, balanced, asked_again), {"select": "random"})["draws_sd"]).all()


def test_variances_are_pooled_from_the_nearest_points_that_repeated_draws():
    points = pd.DataFrame(
        [
            ("t", "m", "random", 0.04, 2),
            ("t", "m", "random", 0.01, 4),
            ("t", "m", "balanced", 0.09, 1),
            ("t", "m", "bm25", np.nan, 0),
            ("t", "n", "random", np.nan, 0),
            ("t", "o", "random", 0.16, 1),
            ("u", "m", "random", np.nan, 0),
        ],
        columns=["task", "model", "select", "draw_variance", "draw_freedom"],
    ).assign(order="drawn", attention="full", variant="v")
    found = deviations_elsewhere(points)
    own, curves_, models = ("other k of the curve", "other curves of the task and model", "other models of the task")
    assert found["draws_sd_of"].tolist() == [own, own, own, curves_, models, own, None]
    squares = [0.12 / 6, 0.12 / 6, 0.09, 0.21 / 7, 0.37 / 8, 0.16]
    assert found["draws_sd"].iloc[:-1].tolist() == pytest.approx(np.sqrt(squares).tolist())
    assert np.isnan(found["draws_sd"].iloc[-1])


def test_what_is_shown_for_better_says_that_there_is_one_draw():
    table = retrieval_gain(frame(side(False), side(True, select="balanced")))
    assert with_reasons(table)["advice"].tolist() == ["one draw"]
    assert table["advice"].isna().all()
    assert not any("not distinguishable" in note for note in comparison_notes(table))


# -- intervals of one draw ----------------------------------------------------------------------


def test_a_curves_interval_of_one_draw_is_over_test_examples_only():
    table = curves(frame(side(True, 3), side(True, k=9), side(True, k=9, select="bm25")))
    over = table.set_index(["select", "k"])["interval_over"].to_dict()
    assert over == {
        ("random", 5): "draws and test examples",
        ("random", 9): "test examples only",
        ("bm25", 9): "test examples only",
    }
    (note,) = curve_notes(table)
    assert note.startswith("1 draw: the 95% interval of 1 of 3 points is over test rows only")


def test_an_interval_of_several_draws_is_over_those_of_one_side_where_the_other_has_one():
    assert interval_over(several=True) == "draws and test examples"
    assert interval_over(several=True, unknown=True) == "test examples and one side's draws"
    assert interval_over(several=False, unknown=True) == "test examples only"


# -- outlying draws -----------------------------------------------------------------------------


def with_means(*means: float, test: int = 100) -> np.ndarray:
    """Scores of draws that are right on as many examples, on others by chance: ``(draws, test)``."""
    rng = np.random.default_rng(0)
    return np.array([rng.permutation(np.arange(test) < mean * test) for mean in means], dtype=float)


def test_one_draw_of_ten_at_37_percent_among_89_is_outlying():
    scores = with_means(*[0.89] * 4, 0.37, *[0.89] * 5)
    assert outlying_draws(np.arange(10), scores) == "4"
    rows = frame(scored(scores), side(True, 10, k=9))
    table = curves(rows)
    assert table["outlying_draws"].fillna("").tolist() == ["4", ""]
    assert curve_notes(table) == ["outlying (t, m, random, k=5): draw 4"]
    found = compare_models(frame(rows, side(True, 10, model="n")), "n")
    assert found.set_index("k").loc[5, "outlying_draws"] == "4"


def test_draws_of_equal_scores_but_for_one_example_are_not_outlying():
    assert outlying_draws(np.arange(6), with_means(*[0.9] * 5, 0.91)) is None
    assert outlying_draws(np.arange(6), np.ones((6, 50))) is None
    assert outlying_draws(np.arange(6), np.array([[1.0]] * 5 + [[0.0]])) is None


def test_of_fewer_than_five_draws_none_is_outlying():
    assert outlying_draws(np.arange(4), with_means(0.9, 0.9, 0.9, 0.1)) is None
    assert outlying_draws(np.arange(5), with_means(0.9, 0.9, 0.9, 0.9, 0.1)) == "4"


def test_a_draw_is_outlying_beyond_three_and_a_half_deviations():
    level = np.array([0, 0.1, 0.2, 0.3, 0.4, 0.5])  # with a seventh, the median of distances is 0.2
    limit = 0.3 + 3.5 * 0.2 / 0.6745
    for last, named in ((limit - 0.001, None), (limit + 0.001, "9")):
        scores = np.append(level, last)[:, None] + np.zeros((7, 1000))
        assert outlying_draws(np.arange(3, 10), scores) == named
    both = np.array([0.5] * 6 + [0.9, 0.1])[:, None] + np.zeros((8, 50))
    assert outlying_draws(np.arange(8), both) == "6, 7"


@pytest.mark.parametrize("chance", [True, False])
def test_where_most_draws_are_equal_chance_is_the_deviation_and_one_example_the_least(chance: bool):
    scores = with_means(*[0.5] * 6) if chance else np.ones((6, 50))
    residual, test = mean_squares(scores).residual, scores.shape[1]
    limit = 3.5 * max(np.sqrt(residual / test), 1 / test)
    assert bool(limit > 3.5 / test) is chance
    for apart, named in ((limit * 0.99, None), (limit * 1.01, "0")):
        moved = scores - np.eye(6)[0][:, None] * apart
        assert outlying_draws(np.arange(6), moved) == named


def test_scores_without_test_examples_have_no_outlying_draw():
    assert outlying_draws(np.arange(6), np.ones((6, 0))) is None


def test_draws_are_seldom_called_outlying_where_none_is():
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 0.3, (200, 10, 1))
    made = answers(rng, (200, 10, 200), 0.8, odds)
    assert np.mean([outlying_draws(np.arange(10), one) is not None for one in made]) < 0.15


def test_common_rows_are_told_beside_those_of_the_larger_side():
    rows = frame(cell("aabb"), cell("ab", gold="aa", order="by-label"))
    (found,) = sorting_penalty(rows).to_dict("records")
    assert (found["rows"], found["all_rows"]) == (2, 4)


def test_the_terminal_shows_draws_of_both_sides_and_names_nothing_better_by_one():
    from io import StringIO

    from rich.console import Console

    from icl_bench.cli.output.findings import print_findings

    rows = frame(side(False), side(True, select="balanced"), side(True, 10, k=9))
    rows = rows.assign(cell="c", queries=None, perturbation=None, label_space=None)
    console = Console(file=StringIO(), width=80)
    print_findings(find(Stored(rows, {}, {"v": Facts()}, [])), console)
    text = " ".join(console.file.getvalue().split())
    assert "points t · m · balanced" in text
    assert " 5 1 1 +" in text
    assert "one draw: 1 point without a p value" in text
    assert "1 draw: the 95% interval of 2 of 3 points is over test rows only" in text
    assert "has a standard deviation of" in text


def retrieved(differing: int, draws: int = 3, **more: object) -> pd.DataFrame:
    """Draws of a retrieval of which so many prompts differ between draws."""
    cells = [cell("aabb" * 10, "ab" * 20, select="bm25", order="relevance", draw=draw) for draw in range(draws)]
    hashes = [[f"{i} {draw if i < differing else 0}" for i in range(40)] for draw in range(draws)]
    rows = frame(*(one.assign(prompt_hash=names) for one, names in zip(cells, hashes, strict=True)))
    return rows.assign(queries=None, perturbation=None, label_space=None, cell="c", **more)


def test_draws_whose_prompts_are_all_the_same_count_as_one():
    for rows, draws, over in (
        (retrieved(0), 1, TESTS_ONLY),
        (retrieved(1), 3, DRAWS_AND_TESTS),
        (retrieved(0).assign(prompt_hash=None), 3, DRAWS_AND_TESTS),  # not known
        (retrieved(0).drop(columns="prompt_hash"), 3, DRAWS_AND_TESTS),
        (retrieved(0, select="random"), 3, DRAWS_AND_TESTS),  # others might have been drawn
    ):
        (row,) = find(Stored(rows, {}, {"v": Facts()}, [])).curves.to_dict("records")
        assert (row["draws"], row["interval_over"], row["test_rows"]) == (draws, over, 40)
        (row,) = summarise(rows).curves.to_dict("records")
        assert (row["draws"], row["interval_over"]) == (draws, over)


def test_copies_that_lack_test_examples_fill_each_others_gaps():
    rows = retrieved(0).drop(index=[0, 41, 82])
    kept = with_copies_as_one_draw(rows)
    assert kept["test_id"].is_unique
    assert len(kept) == 40
    assert set(kept["draw"]) == {0}
    other = retrieved(0, k=9).assign(prompt_hash=lambda t: t["prompt_hash"] + t["draw"].astype(str))
    assert len(with_copies_as_one_draw(frame(rows, other))) == 40 + 120


def test_how_many_prompts_differ_between_draws_is_said():
    rows = frame(retrieved(15), retrieved(2, k=9), retrieved(0, k=20), cell("aabb").assign(prompt_hash="x"))
    curves = find(Stored(rows.assign(queries=None, perturbation=None), {}, {"v": Facts()}, [])).curves
    counts = curves.set_index(["select", "k"])["differing_prompts"]
    assert counts.dropna().to_dict() == {("bm25", 5): 15, ("bm25", 9): 2}
    note = "prompts that differ between draws (t, m, bm25): 15 of 40 (k = 5) and 2 of 40 (k = 9)"
    assert note in curve_notes(curves)
    assert "differing_prompts" not in find(Stored(retrieved(0), {}, {"v": Facts()}, [])).curves
