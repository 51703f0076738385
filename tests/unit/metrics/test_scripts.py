"""Metrics of free text in every script, and their references' scores of English."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.program import as_words

from icl_bench.metrics.bleu import Bleu
from icl_bench.metrics.chrf import Chrf
from icl_bench.metrics.exact_match import ExactMatch, normalised, normalised_unicode
from icl_bench.metrics.f1 import F1
from icl_bench.metrics.interface import Metric
from icl_bench.metrics.rouge import Rouge

SENTENCES = {
    "Arabic": "القاهرة هي عاصمة مصر وأكبر مدنها",
    "Hebrew": "ירושלים היא בירת ישראל ומרכזה",
    "Chinese": "北京是中国的首都和政治中心",
    "Japanese": "東京は日本の首都であり、スーパーが多い",
    "Thai": "กรุงเทพมหานครเป็นเมืองหลวงของไทย",
    "Khmer": "ភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា",
    "Russian": "Москва является столицей России",
    "Hindi": "नई दिल्ली भारत की राजधानी है",
    "Greek": "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας",
    "Korean": "서울은 대한민국의 수도이자 가장 큰 도시",
    "Vietnamese": "Hà Nội là thủ đô của nước Việt Nam",
    "French": "Zoé était déjà à la fenêtre cet été",
    "mixed": "我们用 Python 3 和 PyTorch 训练模型",
}
OTHER = dict(zip(SENTENCES, [*[*SENTENCES.values()][1:], "北京"], strict=True))
ENGLISH = ["Hannah needs Betty's number but Amanda doesn't have it."] * 20 + ["She had a café au lait."]
EACH_METRIC = pytest.mark.parametrize("metric", [Rouge, Bleu, Chrf, ExactMatch, F1])
EACH_SCRIPT = pytest.mark.parametrize("script", SENTENCES)


def fitted(metric: Metric, answers: list[str]) -> Metric:
    metric.fit(answers)
    return metric


def scores(metric: Metric, gold: str, prediction: str) -> list[float]:
    return [float(values[0]) for values in metric.score([gold], [prediction]).values()]


@EACH_METRIC
@EACH_SCRIPT
def test_a_perfect_answer_scores_1_and_another_one_less(metric: type[Metric], script: str):
    text = SENTENCES[script]
    for one in (metric(), fitted(metric(), [*SENTENCES.values()])):
        assert scores(one, text, text) == pytest.approx([1] * len(one.measures))
        assert max(scores(one, text, OTHER[script])) < 0.4


@EACH_METRIC
@EACH_SCRIPT
def test_composed_and_decomposed_letters_are_equal(metric: type[Metric], script: str):
    composed, decomposed = (unicodedata.normalize(form, SENTENCES[script]) for form in ("NFC", "NFD"))
    one = metric()
    for gold, said in ((composed, decomposed), (decomposed, composed)):
        assert scores(one, gold, said) == pytest.approx([1] * len(one.measures))


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("北京", "“北京”。"),
        ("القاهرة", "القاهرة؟"),
        ("दिल्ली", "दिल्ली।"),
        ("Москва", "«МОСКВА»"),
        ("東京 タワー", "東京ﾀﾜｰ"),
        ("Ελλάδα", "ελλάδα·"),
        ("Zürich", "the Zürich!"),
    ],
)
def test_exact_match_ignores_the_punctuation_and_case_of_every_script(gold: str, said: str):
    assert scores(ExactMatch(), gold, said) == [1]
    assert scores(F1(), gold, said) == [1]


def test_words_in_common_count_and_in_chinese_characters():
    assert scores(F1(), "столица России", "столица Франции") == [0.5]
    assert scores(F1(), "北京大学", "北京") == [pytest.approx(2 / 3)]
    assert scores(Rouge(), "北京大学", "北京") == pytest.approx([2 / 3, 1 / 2, 2 / 3])
    assert scores(Rouge(), "हिन्दी में", "हिन्द में")[0] == 0.5


# -- English --------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_rouge_of_english_data_is_rouge_scores(gold: str, said: str):
    from rouge_score.rouge_scorer import RougeScorer

    expected = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(gold, said)
    assert scores(fitted(Rouge(), ENGLISH), gold, said) == [score.fmeasure for score in expected.values()]


@given(st.text(st.characters(max_codepoint=127)), st.text(st.characters(max_codepoint=127)))
def test_text_of_ascii_has_the_same_scores_in_data_of_other_scripts(gold: str, said: str):
    others = [*SENTENCES.values()]
    for metric in (Rouge, ExactMatch, F1):
        assert scores(fitted(metric(), others), gold, said) == scores(fitted(metric(), ENGLISH), gold, said)
    assert normalised_unicode(said) == normalised(said)


SOME = st.lists(
    st.sampled_from([*as_words("a cat's café, 3.5 “x” — Москва. 北京是。 中国（ ＡＢ １２ iPhone手机"), "\n"]),
    max_size=8,
)


@given(st.lists(st.tuples(SOME, SOME), min_size=1, max_size=3))
def test_bleu_is_sacrebleus_of_spaced_scripts_and_of_chinese(pairs):
    from sacrebleu.metrics.bleu import BLEU

    golds, said = [" ".join(gold) for gold, _ in pairs], [" ".join(text) for _, text in pairs]
    for answers, tokenizer in ((ENGLISH, "13a"), (["北京是中国的首都"], "zh")):
        metric = fitted(Bleu(), answers)
        single = BLEU(tokenize=tokenizer, effective_order=True)
        expected = [single.sentence_score(text, [gold]).score / 100 for gold, text in zip(golds, said, strict=True)]
        assert metric.score(golds, said)["bleu"].tolist() == expected
        corpus = BLEU(tokenize=tokenizer).corpus_score(said, [golds]).score / 100
        assert metric.score_many(np.zeros(len(said), int), golds, said)["corpus_bleu"].tolist() == [corpus]


# -- facts and notes ------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [Rouge, ExactMatch, F1])
@EACH_SCRIPT
def test_the_rule_is_a_fact_where_it_is_not_the_references(metric: type[Metric], script: str):
    assert fitted(metric(), [SENTENCES[script]]).facts() == {"score_words": "unicode"}
    assert fitted(metric(), ENGLISH).facts() == metric().facts() == {}


def test_bleus_words_are_the_references_in_scripts_with_spaces():
    unicode = [script for script, text in SENTENCES.items() if fitted(Bleu(), [text]).facts()]
    assert unicode == ["Chinese", "Japanese", "Thai", "Khmer", "mixed"]


def test_right_answers_without_a_word_are_told():
    assert fitted(Rouge(), [*ENGLISH, "🙂", "?!", "🙂"]).notes() == [
        "rouge: 2 right answers without a word: every answer scores 0"
    ]
    assert fitted(Rouge(), ["Привет", "—"]).notes() == ["rouge: 1 right answer without a word: every answer scores 0"]
    assert fitted(Rouge(), ["Привет", "мир"]).notes() == []
