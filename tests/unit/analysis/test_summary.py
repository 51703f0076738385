"""The summary's numbers are those that one computes by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import predictions
from support.fakes import FREE_TEXT, FakeBackend, plan, runner
from support.predictions import frame
from support.stored import facts_of

from icl_bench.analysis.context import SEED
from icl_bench.analysis.curves import curves, saturation
from icl_bench.analysis.findings.order import order_sensitivity
from icl_bench.analysis.findings.saturation import saturation_chances, with_likely
from icl_bench.analysis.statistics.intervals import mean_interval
from icl_bench.analysis.summary import perturbed_curves, settings_of, summarise, summarise_folder
from icl_bench.analysis.zero_shot import from_zero_shot
from icl_bench.errors import CellError, UserError
from icl_bench.models.text_encoders import SentenceEncoder
from icl_bench.prompts.encoding import PromptSet
from icl_bench.results.facts import Facts
from icl_bench.results.reading import read_results
from icl_bench.seeds import generator


def cell(k: int, draw: int, said: str, gold: str = "aabb", **changes: Any) -> pd.DataFrame:
    scores = dict.fromkeys(("rouge1", "rouge2", "rougeL", "bertscore"))
    return predictions.cell(said, gold, k=k, draw=draw, **{**scores, **changes})


def curve(scores: Sequence[float], shots: Sequence[int]) -> pd.DataFrame:
    """A curve's table with nothing but scores."""
    table = curves(frame(*(cell(k, 0, "aabb") for k in shots)))
    return table.assign(score=list(scores))


# -- curves -------------------------------------------------------------------------------------


def test_a_point_is_the_mean_over_draws_and_test_rows():
    table = curves(frame(cell(1, 0, "aaab"), cell(1, 1, "bbab"), cell(5, 0, "aabb")))
    assert table["k"].tolist() == [1, 5]
    assert table["draws"].tolist() == [2, 1]
    assert table["test_rows"].tolist() == [4, 4]
    assert table["accuracy"].tolist() == [4 / 8, 1.0]
    expected = mean_interval(pd.DataFrame([[1, 1, 0, 1], [0, 0, 0, 1]]).to_numpy())
    assert (table["ci_low"][0], table["ci_high"][0]) == (expected.low, expected.high)


def test_macro_f1_is_the_mean_of_the_draws_over_the_gold_labels():
    # draw 0: a has precision 2/3 and recall 1, b has 1 and 1/2; draw 1: only a is ever said
    table = curves(frame(cell(1, 0, "aaab"), cell(1, 1, "aaaa")))
    first = (2 * (2 / 3) / (2 / 3 + 1) + 2 * 0.5 / 1.5) / 2
    second = (2 * 0.5 / 1.5 + 0) / 2
    assert table["macro_f1"][0] == pytest.approx((first + second) / 2)


def test_an_answer_that_is_no_label_is_wrong_and_invalid():
    table = curves(frame(cell(1, 0, "aa??")))
    assert table["accuracy"][0] == table["invalid"][0] == 0.5


def test_free_text_has_the_means_of_its_scores_and_the_interval_of_the_first():
    scores = {"correct": None, "rouge1": [0.2, 0.4, 0.6, 0.8], "rouge2": 0.5, "rougeL": 0.25}
    table = curves(frame(cell(1, 0, "wxyz", **scores)))
    assert table["rouge1"][0] == pytest.approx(0.5)
    assert table["rouge2"][0] == 0.5
    assert table["ci_low"][0] < 0.5 < table["ci_high"][0]
    assert pd.isna(table["accuracy"][0])
    assert "bertscore" not in table


def test_every_setting_has_a_curve_of_its_own():
    settings: list[dict[str, Any]] = [
        {},
        {"task": "u"},
        {"model": "n"},
        {"select": "bm25"},
        {"order": "by-label"},
        {"attention": "block"},
        {"variant": "w"},
    ]
    table = curves(frame(*(cell(1, 0, "aabb", **setting) for setting in settings)))
    assert len(table) == len(settings)
    assert table["draws"].tolist() == [1] * len(settings)


# -- saturation ---------------------------------------------------------------------------------


def test_a_curve_is_saturated_at_the_first_k_with_95_percent_of_its_best():
    (row,) = saturation(curve([0.1, 0.758, 0.76, 0.8, 0.79], [1, 5, 10, 25, 50])).itertuples()
    assert (row.k, row.best_k, row.max_k, row.within_window) == (10, 25, 50, True)


def test_a_curve_that_only_its_last_k_saturates_is_not_saturated_within_the_window():
    (row,) = saturation(curve([0.1, 0.5, 0.8], [1, 5, 10])).itertuples()
    assert (row.k, row.best_k, row.max_k, row.within_window) == (10, 10, 10, False)


def test_a_single_k_is_not_saturated():
    (row,) = saturation(curve([0.5], [1])).itertuples()
    assert not row.within_window


def spoken(table: pd.DataFrame) -> tuple[bool, str | None]:
    (row,) = saturation(table).itertuples()
    return row.spoken, row.reason


def test_fewer_than_four_ks_say_nothing_of_saturation():
    assert spoken(curve([0.1, 0.7, 0.8], [1, 5, 10])) == (False, "needs 4 values of k, has 3")
    assert spoken(curve([0.1, 0.7, 0.8, 0.8], [1, 5, 10, 25])) == (True, None)


def test_a_curve_at_chance_or_without_a_right_answer_is_saturated_nowhere():
    shots, wrong, alternating = [1, 5, 10, 25], "b" * 60 + "a" * 60, "ab" * 60
    gold = "a" * 60 + "b" * 60
    table = curves(frame(*(cell(k, 0, wrong, gold) for k in shots)))
    assert table[["majority", "uniform"]].to_numpy().tolist() == [[0.5, 0.5]] * 4
    assert spoken(table) == (False, "no answer is correct")
    by_chance = [cell(k, 0, alternating, gold) for k in shots]
    assert spoken(curves(frame(*by_chance))) == (False, "at chance level at every k")
    some = [*by_chance[:3], cell(25, 0, gold, gold)]
    assert spoken(curves(frame(*some))) == (True, None)


def test_always_saying_the_commonest_label_is_chance():
    gold = "a" * 90 + "b" * 30
    table = curves(frame(*(cell(k, 0, "a" * 120, gold) for k in (1, 5, 10, 25))))
    assert table["majority"].tolist() == [0.75] * 4
    assert spoken(table) == (False, "at chance level at every k")


def test_a_curve_without_a_score_has_no_saturation():
    assert saturation(curve([math.nan, math.nan], [1, 5])).empty


# -- order sensitivity --------------------------------------------------------------------------


def test_order_sensitivity_is_the_share_of_answers_that_another_order_changes():
    table = order_sensitivity(
        frame(
            cell(5, 0, "aabb"),
            cell(5, 1, "aaaa"),
            cell(5, 0, "abbb", order="shuffled:1"),
            cell(5, 1, "aaaa", order="shuffled:1"),
            cell(5, 0, "bbaa", order="shuffled:2"),
            cell(5, 0, "bbaa", order="by-label"),
            cell(9, 0, "aabb"),
            cell(1, 0, "aabb"),
            cell(1, 0, "bbaa", order="shuffled:1"),
        )
    )
    assert table["k"].tolist() == [5]
    assert table["changed"].tolist() == [(1 + 0 + 4) / 12]


def test_orders_of_different_variants_are_not_compared():
    table = order_sensitivity(frame(cell(5, 0, "aabb"), cell(5, 0, "bbaa", order="shuffled:1", variant="w")))
    assert table.empty


# -- a folder -----------------------------------------------------------------------------------


def test_a_folders_summary_is_that_of_its_predictions(tmp_path: Path):
    made = plan(tmp_path / "task", orders=["drawn", "shuffled:3"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    found = summarise_folder(tmp_path / "results")
    frame = read_results(tmp_path / "results")
    means = frame.groupby(["order", "k"], observed=True)["correct"].mean()
    assert found.curves["accuracy"].tolist() == pytest.approx(means.tolist())
    changed = []
    for k in (2, 4):
        rows = frame[frame["k"] == k].set_index(["draw", "test_id"])
        drawn, shuffled = (rows[rows["order"] == o]["prediction"] for o in ("drawn", "shuffled:3"))
        changed.append((drawn.sort_index() != shuffled.sort_index()).mean())
    assert found.order_sensitivity["changed"].tolist() == changed
    assert not found.settings
    assert not found.failed


def test_variants_are_told_apart_by_the_facts_in_which_they_differ(tmp_path: Path):
    for test_size, seed in ((6, 0), (4, 0), (4, 1)):
        made = plan(tmp_path / "task", "1", draws=1, test_size=test_size, seed=seed)
        runner(made, tmp_path / "results", FakeBackend()).run()
    found = summarise_folder(tmp_path / "results")
    assert len(found.curves) == 3
    assert sorted(found.settings.values()) == ["seed=0, test_rows=4", "seed=0, test_rows=6", "seed=1, test_rows=4"]


def test_variants_that_differ_in_a_part_of_the_template_are_told_apart_by_it(tmp_path: Path):
    for separator in ("\n==\n", "\n\n"):
        template = {"input": "q: {text}", "output": "a: {label}", "separator": separator}
        made = plan(tmp_path / "task", "1", draws=1, template=template)
        runner(made, tmp_path / "results", FakeBackend()).run()
    named = summarise_folder(tmp_path / "results").settings.values()
    assert sorted(named) == [r"template separator='\n==\n'", r"template separator='\n\n'"]


def test_selectors_alone_are_no_variants(tmp_path: Path):
    made = plan(tmp_path / "task", "1", draws=1, selects=["random", "bm25"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    assert not summarise_folder(tmp_path / "results").settings


def test_an_encoder_is_a_setting_only_where_there_is_another(
    tmp_path: Path, word_encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch
):
    def swept(*selects: str) -> None:
        made = plan(tmp_path / "task", "1", draws=1, selects=selects)
        runner(made, tmp_path / "results", FakeBackend()).run()

    swept("random", "dense", "centroids")
    assert not summarise_folder(tmp_path / "results").settings
    other = replace(word_encoder, name="other")
    monkeypatch.setattr(SentenceEncoder, "find", lambda *_: other)
    swept("dense")
    named = summarise_folder(tmp_path / "results").settings
    assert sorted(named.values()) == ["sentence_encoder=none", "sentence_encoder=other", "sentence_encoder=words"]


def test_a_summary_can_be_of_one_task_or_model_alone(tmp_path: Path):
    for name in ("cards", "other"):
        made = plan(tmp_path / name, "1", draws=1, name=name)
        runner(made, tmp_path / "results", FakeBackend()).run()
    found = summarise_folder(tmp_path / "results", {"task": "other", "model": "small"})
    assert found.curves["task"].tolist() == ["other"]
    with pytest.raises(UserError, match=r"has no task 'third' \(it has: cards, other\)"):
        summarise_folder(tmp_path / "results", {"task": "third"})


def test_labels_and_free_text_may_lie_in_one_folder(tmp_path: Path):
    for name, changes in (("cards", {}), ("texts", FREE_TEXT)):
        made = plan(tmp_path / name, "1", draws=1, name=name, **changes)
        runner(made, tmp_path / "results", FakeBackend()).run()
    found = summarise_folder(tmp_path / "results")
    by_task = found.curves.set_index("task")
    assert by_task["accuracy"].notna().to_dict() == {"cards": True, "texts": False}
    assert by_task["rouge1"].notna().to_dict() == {"cards": False, "texts": True}


def fails(prompts: PromptSet) -> None:
    raise CellError("out of memory")


def test_failed_cells_are_listed_with_their_reasons(tmp_path: Path):
    runner(plan(tmp_path / "task", "1"), tmp_path / "results", FakeBackend()).run()
    runner(plan(tmp_path / "task", "1,2"), tmp_path / "results", FakeBackend(fails=fails)).run()
    found = summarise_folder(tmp_path / "results")
    assert found.curves["k"].tolist() == [1]
    assert [(f.spec.k, f.spec.draw, f.reason) for f in found.failed] == [
        (2, 0, "out of memory"),
        (2, 1, "out of memory"),
    ]
    assert found.as_json()["failed"][0]["spec"]["k"] == 2
    with pytest.raises(UserError, match="has no task"):
        summarise_folder(tmp_path / "results", {"task": "other"})


def test_a_folder_with_failed_cells_alone_has_empty_tables(tmp_path: Path):
    runner(plan(tmp_path / "task", "1"), tmp_path / "results", FakeBackend(fails=fails)).run()
    found = summarise_folder(tmp_path / "results", {"task": "cards"}).as_json()
    assert (found["curves"], found["saturation"], found["order_sensitivity"]) == ([], [], [])
    assert len(found["failed"]) == 2


def test_json_holds_plain_values_and_null_for_what_is_undefined(tmp_path: Path):
    table = summarise(frame(cell(1, 0, "aabb"), cell(5, 0, "abab")))
    found = json.loads(json.dumps(table.as_json(), allow_nan=False))
    first = found["curves"][0]
    assert "rouge1" not in first
    assert {
        "task",
        "model",
        "select",
        "order",
        "attention",
        "k",
        "draws",
        "accuracy",
        "ci_low",
        "ci_high",
        "macro_f1",
    } <= first.keys()
    (row,) = found["saturation"]
    likely = {name: row.pop(name) for name in ("chance", "likely_low", "likely_high")}
    assert likely == {"chance": pytest.approx(0.93, abs=0.03), "likely_low": 1, "likely_high": 5}
    assert found["saturation"] == [
        {
            "task": "t",
            "model": "m",
            "select": "random",
            "order": "drawn",
            "attention": "full",
            "variant": "v",
            "k": 1,
            "best_k": 1,
            "min_k": 1,
            "max_k": 5,
            "within_window": True,
            "metric": "accuracy",
            "spoken": False,
            "reason": "needs 4 values of k, has 2",
        }
    ]


def test_curves_and_their_chances_begin_without_demonstrations_by_the_facts_of_variants():
    facts = facts_of(
        {"v": {"seed": 0}, "w": {"seed": 1, "bertscore_encoder": "x"}, "u": {"seed": 0, "bertscore_encoder": "x"}}
    )
    rows = frame(
        *(cell(k, 0, "aabb") for k in (0, 1)),
        *(cell(k, 0, "abab", select="bm25", variant=v) for k in (1, 5) for v in "wu"),
    )
    found = summarise(rows, facts)
    points = list(zip(found.curves["variant"], found.curves["k"], strict=True))
    assert points == [("u", 0), ("u", 1), ("u", 5), ("w", 1), ("w", 5), ("v", 0), ("v", 1)]
    chances = saturation_chances(from_zero_shot(rows, facts), generator(SEED, "saturation"))
    expected = with_likely(saturation(found.curves), chances)
    pd.testing.assert_frame_equal(found.saturation, expected)
    assert found.settings == {}
    assert found.failed == ()


def test_curves_of_perturbed_demonstrations_are_named_by_their_perturbation():
    rows = frame(
        cell(1, 0, "aabb", perturbation=None),
        cell(1, 0, "abab", perturbation="x", variant="w"),
        cell(5, 0, "abab", perturbation="x", variant="w"),
        cell(1, 0, "bbbb", perturbation="y", variant="u"),
    )
    found = perturbed_curves(rows)
    assert list(found.columns) == ["perturbation", *curves(rows).columns]
    assert found[["perturbation", "variant", "k"]].to_numpy().tolist() == [["y", "u", 1], ["x", "w", 1], ["x", "w", 5]]
    kinds = {"perturbation": "category", "variant": "category"}
    assert perturbed_curves(rows.astype(kinds))["perturbation"].tolist() == ["y", "x", "x"]
    assert perturbed_curves(rows.iloc[:4]).empty
    nothing = perturbed_curves(rows.drop(columns="perturbation"))
    assert nothing.empty
    assert list(nothing.columns) == list(found.columns)


def test_settings_of_perturbed_demonstrations_are_told_apart_within_a_perturbation():
    named = [("a", None), ("b", None), ("c", "x"), ("d", "x"), ("e", "y"), ("f", "z")]
    facts = {name: Facts(seed=i % 2, perturbation=perturbation) for i, (name, perturbation) in enumerate(named)}
    rows = frame(*(cell(1, 0, "aabb", variant=name, perturbation=of.perturbation) for name, of in facts.items()))
    told = settings_of(facts, curves(rows.iloc[:8]), perturbed_curves(rows))
    assert told == {"a": "seed=0", "b": "seed=1", "c": "seed=0", "d": "seed=1"}


def test_a_folders_curves_begin_without_demonstrations_by_the_facts_of_its_variants(
    tmp_path: Path, word_encoder: SentenceEncoder
):
    made = plan(tmp_path / "task", "0,1", draws=1, selects=["random", "dense"])
    runner(made, tmp_path / "results", FakeBackend()).run()
    table = summarise_folder(tmp_path / "results").curves
    points = sorted(zip(table["select"], table["k"], strict=True))
    assert points == [("dense", 0), ("dense", 1), ("random", 0), ("random", 1)]
