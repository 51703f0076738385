"""Metrics of short free answers, beside independent implementations of the same."""

from __future__ import annotations

import collections
import re
import string
from decimal import Decimal

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from support.program import as_words

from icl_bench.metrics.bleu import Bleu
from icl_bench.metrics.chrf import Chrf
from icl_bench.metrics.exact_match import ExactMatch, normalised
from icl_bench.metrics.exact_text import ExactText
from icl_bench.metrics.f1 import F1
from icl_bench.metrics.interface import Metric
from icl_bench.metrics.numeric import Numeric, number
from icl_bench.metrics.rouge import Rouge

WORDS = st.sampled_from([*as_words("the a An cat cats, Paris. paris in; 14 December — is 'quoted' Ärzte"), "", "\t"])
TEXTS = st.lists(WORDS, max_size=6).map(" ".join) | st.text(max_size=20)


# -- SQuAD's evaluation script, version 2.0, as it is published -----------------------------------


def normalize_answer(s: str) -> str:
    def remove_articles(text: str) -> str:
        regex = re.compile(r"\b(a|an|the)\b", re.UNICODE)
        return re.sub(regex, " ", text)

    def white_space_fix(text: str) -> str:
        return " ".join(text.split())

    def remove_punc(text: str) -> str:
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def get_tokens(s: str) -> list[str]:
    return normalize_answer(s).split() if s else []


def compute_exact(a_gold: str, a_pred: str) -> int:
    return int(normalize_answer(a_gold) == normalize_answer(a_pred))


def compute_f1(a_gold: str, a_pred: str) -> float:
    gold_toks, pred_toks = get_tokens(a_gold), get_tokens(a_pred)
    common = collections.Counter(gold_toks) & collections.Counter(pred_toks)
    num_same = sum(common.values())
    if len(gold_toks) == 0 or len(pred_toks) == 0:
        return int(gold_toks == pred_toks)
    if num_same == 0:
        return 0
    precision, recall = num_same / len(pred_toks), num_same / len(gold_toks)
    return (2 * precision * recall) / (precision + recall)


ENGLISH = [*["the Norman dynasty", "Denver Broncos and their coach"] * 10, "a café of the 14th century"]
"""Right answers of a data set in English, one with a letter beyond ASCII."""


def fitted(metric: Metric) -> Metric:
    metric.fit(ENGLISH)
    assert metric.facts() == {}
    return metric


@given(TEXTS, TEXTS)
def test_exact_match_and_f1_of_english_data_are_those_of_squads_own_script(gold: str, said: str):
    assert normalised(said) == normalize_answer(said)
    assert fitted(ExactMatch()).score([gold], [said])["exact_match"].tolist() == [compute_exact(gold, said)]
    assert fitted(F1()).score([gold], [said])["f1"].tolist() == [pytest.approx(compute_f1(gold, said))]


@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=4), TEXTS), min_size=1, max_size=5))
def test_the_best_of_several_right_answers_counts_as_in_squads_script(rows):
    golds, said = [of for of, _ in rows], [text for _, text in rows]
    exact = fitted(ExactMatch()).score_golds(golds, said)["exact_match"]
    f1 = fitted(F1()).score_golds(golds, said)["f1"]
    assert exact.tolist() == [max(compute_exact(g, s) for g in of) for of, s in rows]
    assert f1.tolist() == pytest.approx([max(compute_f1(g, s) for g in of) for of, s in rows])


def test_transformers_scores_of_squad_agree():
    squad = pytest.importorskip("transformers.data.metrics.squad_metrics")
    for gold in ("the Norman dynasty", "", "14 December, 1972 UTC"):
        for said in ("Norman", "December 14 1972", "", "a the"):
            assert F1().score_one(gold, said) == pytest.approx(squad.compute_f1(gold, said))
            assert ExactMatch().score([gold], [said])["exact_match"][0] == squad.compute_exact(gold, said)


def test_exact_text_differs_by_a_letters_case_or_a_blank():
    found = ExactText().score(["a b", "a b", "a b", ""], ["a b", "A b", "a b ", ""])
    assert found["exact_text"].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("metric", [ExactMatch(), ExactText(), F1(), Numeric(), Bleu(), Chrf()])
def test_answers_that_do_not_pair_up_with_the_right_ones_are_refused(metric):
    for gold, said in ((["1", "2"], ["1"]), (["1"], ["1", "2"])):
        with pytest.raises(ValueError, match=r"argument 2 is (shorter|longer) than argument 1"):
            metric.score(gold, said)


@pytest.mark.parametrize("metric", [ExactMatch(), ExactText(), F1(), Numeric(), Bleu(), Chrf()])
def test_scores_are_fractions_even_of_answers_that_are_right_or_wrong(metric):
    (found,) = metric.score(["1", "12.5"], ["2", "12.5"]).values()
    assert (found.tolist(), found.dtype) == ([0, pytest.approx(1)], float)


def test_any_metric_takes_the_best_of_several_right_answers():
    found = Rouge().score_golds([("no", "one two"), ("three",)], ["one two", "four"])
    assert found["rouge1"].tolist() == [1, 0]
    assert Rouge().score_golds([], [])["rouge1"].tolist() == []
    # as many right answers as answers are not one each
    golds = [("no", "two", "one"), ("three",), ("x", "four")]
    assert Rouge().score_golds(golds, ["one", "four", "four"])["rouge1"].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="argument 2 is longer than argument 1"):
        Rouge().score_golds([("a", "b")], ["a", "b"])


def test_a_metric_of_many_answers_takes_the_first_of_several_right_ones():
    class Seen(Metric):
        def score_many(self, cell, gold, said):
            return {"seen": np.array([*cell, *gold, *said])}

    found = Seen().score_many_golds(np.array([0, 1]), [("a", "b"), ("c",)], ["x", "y"])
    assert found["seen"].tolist() == ["0", "1", "a", "c", "x", "y"]


def test_a_metric_that_says_nothing_of_itself_scores_nothing_and_takes_any_answer():
    metric = Metric()
    assert (metric.facts(), metric.unfit("a")) == ({}, "")
    assert metric.score(["a"], ["a"]) == metric.score_many(np.zeros(1, int), ["a"], ["a"]) == {}


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["18", "18.0", "18.", "+18", " 18 ", "$18", "18 €", "$ 18.00", "18%", "18.0%.", "1.8e1", "018"]
)
def test_eighteen_is_written_in_many_ways(text: str):
    assert number(text) == 18


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567.50", "1234567.5"),
        ("-$1,000", -1000),
        ("$-5", -5),
        ("−3", -3),
        (".5", "0.5"),
        ("1 000", 1000),
        ("1’000’000", 1000000),
        ("0", 0),
        ("-0", 0),
        ("١٨", 18),
    ],
)
def test_a_number_is_read_with_separators_currency_and_sign(text: str, value: str | int):
    assert number(text) == Decimal(value)


@pytest.mark.parametrize(
    "text",
    [
        *as_words(". - $ % eighteen 1,23 1,2345 12,34,567 1.2.3 --3 nan inf e5 1e99999 18, ½ ² 0x10 1_000"),
        *("", "18 apples", "1 2", "1,000 000"),
    ],
)
def test_what_is_no_number_is_wrong_and_cannot_be_a_right_answer(text: str):
    assert number(text) is None
    assert Numeric().score(["18", text], [text, text])["numeric"].tolist() == [0, 0]
    assert Numeric().unfit(text) == "is not a number"


def test_numbers_are_compared_exactly():
    assert Numeric().score(["0.1", "18", "18"], ["0.10", "18.01", "$18"])["numeric"].tolist() == [1, 0, 1]
    assert not Numeric().unfit("1,000")


@given(st.text(max_size=12))
def test_no_text_breaks_the_reading_of_numbers(text: str):
    found = number(text)
    assert found is None or found == found


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=2))
def test_a_number_with_separators_and_currency_is_itself(value: Decimal):
    assert number(f"{value:,}") == number(f"${value:,}") == number(f"{value}%") == value


# -- BLEU and chrF --------------------------------------------------------------------------------

SENTENCES = st.lists(
    st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", "dogs", "bark", ",", "loudly"]), min_size=1, max_size=9
).map(" ".join)
ROWS = st.lists(st.tuples(SENTENCES, st.lists(SENTENCES, min_size=1, max_size=3)), min_size=1, max_size=6)


@given(ROWS)
def test_bleu_and_chrf_are_sacrebleus(rows):
    said, golds = [text for text, _ in rows], [of for _, of in rows]
    bleu = [sacrebleu.sentence_bleu(text, of).score / 100 for text, of in rows]
    chrf = [sacrebleu.sentence_chrf(text, of).score / 100 for text, of in rows]
    assert Bleu().score_golds(golds, said)["bleu"].tolist() == pytest.approx(bleu)
    assert Chrf().score_golds(golds, said)["chrf"].tolist() == pytest.approx(chrf)
    one = np.zeros(len(rows), dtype=int)
    places = [[of[p] if p < len(of) else None for of in golds] for p in range(3)]
    places = [refs for refs in places if any(refs)]
    wanted = sacrebleu.corpus_bleu(said, places).score / 100
    assert Bleu().score_many_golds(one, golds, said)["corpus_bleu"].tolist() == pytest.approx([wanted])
    wanted = sacrebleu.corpus_chrf(said, places).score / 100
    assert Chrf().score_many_golds(one, golds, said)["corpus_chrf"].tolist() == pytest.approx([wanted])


def test_each_cell_is_a_corpus_of_its_own():
    said, gold = (
        ["the cat sat on it", "no", "dogs bark loudly here", "a"],
        ["the cat sat on it", "x", "dogs bark here", "a"],
    )
    cell = np.array([0, 1, 0, 1])
    found = Bleu().score_many(cell, gold, said)["corpus_bleu"]
    wanted = [sacrebleu.corpus_bleu(said[i::2], [gold[i::2]]).score / 100 for i in (0, 1)]
    assert found.tolist() == pytest.approx(wanted)
    found = Chrf().score_many(cell, gold, said)["corpus_chrf"]
    assert found.tolist() == pytest.approx(
        [sacrebleu.corpus_chrf(said[i::2], [gold[i::2]]).score / 100 for i in (0, 1)]
    )


def test_an_empty_answer_has_no_bleu():
    assert Bleu().score(["a cat"], [""])["bleu"].tolist() == [0]
    assert Chrf().score(["a cat"], [""])["chrf"].tolist() == [0]
