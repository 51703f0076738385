"""Metrics of labels and of free text, on cases small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.predictions import macro_f1

from icl_bench.metrics.bertscore import bertscore_f1
from icl_bench.metrics.macro_f1 import MacroF1
from icl_bench.metrics.rouge import Rouge
from icl_bench.models.text_encoders import Encoder


def frame(gold: list[str], prediction: list[str | None], **columns: object) -> pd.DataFrame:
    rows = pd.DataFrame({"gold": gold, "prediction": prediction, **columns})
    return rows.assign(correct=rows["gold"] == rows["prediction"])


def test_macro_f1_is_the_mean_over_the_labels_of_the_test_examples():
    # a: precision 1/2, recall 1/1; b: precision 1/1, recall 1/2
    assert macro_f1(["a", "b", "b"], ["a", "a", "b"]) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_a_predicted_label_that_no_test_example_has_gets_no_f1_of_its_own():
    assert macro_f1(["a", "a"], ["a", "z"]) == pytest.approx(2 / 3)


def test_a_missing_prediction_is_a_wrong_one():
    assert macro_f1(["a", "a"], ["a", None]) == pytest.approx(2 / 3)


def of_cells(rows: pd.DataFrame, by: str) -> list[float]:
    """Macro-F1 of each cell, in the cells' order."""
    cells = rows.groupby(by, observed=True).ngroup().to_numpy()
    return MacroF1().score_many(cells, rows["gold"], rows["prediction"])["macro_f1"].tolist()


def test_a_label_of_another_cells_test_examples_does_not_count_in_this_one():
    rows = pd.concat([frame(["a", "a"], ["a", "b"], task="one"), frame(["b", "b"], ["b", "b"], task="two")])
    assert of_cells(rows, "task") == pytest.approx([2 / 3, 1.0])


def test_stored_frames_with_categories_and_nullable_columns_give_no_empty_cells():
    rows = frame(["a", "b"], ["a", "a"], task=["one", "one"], valid=[None, None])
    rows["task"] = pd.Categorical(rows["task"], ["one", "two"])
    rows["gold"] = pd.Categorical(rows["gold"], ["a", "b", "c"])
    rows["prediction"] = pd.Categorical(rows["prediction"], ["a", "c"])
    rows["correct"] = rows["correct"].astype(object)
    assert of_cells(rows, "task") == [pytest.approx(1 / 3)]


def test_rouge_counts_words_by_their_stems_and_pairs_in_order():
    scores = Rouge().score(["the cats sat", ""], ["the cat sits", "anything"])
    assert scores["rouge1"].tolist() == pytest.approx([2 / 3, 0])
    assert scores["rouge2"].tolist() == pytest.approx([1 / 2, 0])
    assert scores["rougeL"].tolist() == pytest.approx([2 / 3, 0])


def test_a_runs_rouge_is_that_of_each_answer():
    gold, said = ["the cats sat", "one two"], ["the cat sits", "two"]
    found = {name: values.tolist() for name, values in Rouge().score(gold, said).items()}
    assert found == {name: values.tolist() for name, values in Rouge().score(gold, said).items()}
    assert [measure.column for measure in Rouge.measures] == list(found)


def test_rouge_refuses_texts_that_do_not_pair_up():
    with pytest.raises(ValueError, match="shorter"):
        Rouge().score(["a", "b"], ["a"])


def test_bertscore_refuses_texts_that_do_not_pair_up():
    nothing = Encoder("none", "no such folder", 1)  # an empty text is not compared
    assert bertscore_f1(["a", ""], ["", "b"], nothing).tolist() == [0, 0]
    with pytest.raises(ValueError, match="longer"):
        bertscore_f1(["", "b"], ["a", "", "c"], nothing)


def test_windows_are_read_by_one_model_for_all_cells(monkeypatch):
    made = []

    class Model:
        def __init__(self, encoder: Encoder) -> None:
            made.append(encoder)

        def is_long(self, text: str) -> bool:
            return len(text) > 5

        def f1(self, reference: str, candidate: str) -> float:
            return 0.25

    class Scorer:
        def score(self, candidates: list[str], references: list[str], batch_size: int) -> tuple[torch.Tensor, ...]:
            return (torch.full((len(candidates),), 0.5),) * 3

    monkeypatch.setattr("icl_bench.models.bertscore_model.BertScoreModel", Model)
    monkeypatch.setattr("icl_bench.metrics.bertscore._scorer", lambda _: Scorer())
    windows = Encoder("windows", "no such folder", 1, windows=True)
    for _ in range(3):
        assert bertscore_f1(["a", "a long text"], ["b", "c"], windows).tolist() == [0.5, 0.25]
    assert made == [windows]


def test_macro_f1_of_many_cells_equals_macro_f1_of_each():
    rng = np.random.default_rng(0)
    rows = frame(
        rng.choice(list("abcde"), 600).tolist(), rng.choice(list("abcdefg"), 600).tolist(), k=rng.integers(0, 9, 600)
    )
    each = [macro_f1(cell["gold"], cell["prediction"]) for _, cell in rows.groupby("k")]
    assert of_cells(rows, "k") == pytest.approx(each)
