"""BM25's words in scripts with and without spaces."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import plan, tokenized_task

from icl_bench.demonstrations.bm25 import BM25, STOP_WORDS, words
from icl_bench.demonstrations.ranking import Ranking
from icl_bench.demonstrations.selector_spec import SelectorSpec
from icl_bench.sweep.notes import unrelated
from icl_bench.tasks.near_duplicates import WordSets
from icl_bench.tasks.near_duplicates import words as words_of_duplicates

CHINESE = ["我的银行卡还没有寄到", "今天的汇率是多少", "怎么修改密码", "转账失败了怎么办"]
THAI = ["บัตรของฉันยังไม่มาถึง", "อัตราแลกเปลี่ยนวันนี้เท่าไร", "ฉันจะเปลี่ยนรหัสได้อย่างไร"]
HINDI = ["मेरा कार्ड कब आएगा", "आज की विनिमय दर क्या है", "पिन कैसे बदलें"]
ARABIC = ["مَتَى تَصِلُ البِطَاقَةُ", "ما سِعرُ الصَّرفِ اليَومَ", "كَيفَ أُغَيِّرُ الرَّمزَ"]


def ranked(pool: list[str], query: str) -> Ranking:
    retriever = BM25()
    retriever.fit(pool)
    (ranking,) = retriever.rank([query])
    return ranking


@pytest.mark.parametrize(
    ("pool", "query", "expected"),
    [
        (CHINESE, "银行卡在哪里", 0),
        (CHINESE, "密码忘了", 2),
        (THAI, "บัตรอยู่ที่ไหน", 0),
        (HINDI, "नया कार्ड", 0),
        (HINDI, "विनिमय", 1),
        (ARABIC, "أَينَ البِطَاقَةُ", 0),
        ([unicodedata.normalize("NFD", text) for text in ("où est la clé", "je suis né à Sète", "rien")], "né", 1),
        (["Где моя карта", "курс валют", "сменить пин"], "новая карта", 0),
        (["내 카드 언제 와요", "오늘 환율 얼마", "비밀번호 변경"], "카드 분실", 0),
    ],
)
def test_what_shares_a_word_with_the_query_comes_first(pool: list[str], query: str, expected: int):
    ranking = ranked(pool, query)
    assert ranking.related[expected]
    assert ranking.scores.argmax() == expected


def test_a_word_is_not_cut_at_its_marks():
    assert not ranked(["किताब पढ़ो", "पानी पियो"], "कुत्ता बिल्ली").related.any()
    assert words("किताब") == ["क", "त", "ब"]  # as a regular expression of Python finds them
    assert words("किताब", unicode=True) == ["किताब"]


@given(st.text("abcdefgT he'0,-_.éßЖ\u3000²", max_size=30))
def test_words_of_english_data_are_found_as_before(text: str):
    expected = [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in STOP_WORDS]
    assert words(text) == expected
    if text.isascii():
        assert words(text, unicode=True) == expected


def test_the_pool_decides_and_a_few_words_of_another_script_do_not():
    english = [f"Where is the card number {number} that I have ordered" for number in range(20)]
    retriever = BM25()
    retriever.fit([*english, "my 卡"])
    (ranking,) = retriever.rank(["卡"])
    assert ranking.related.tolist() == [False] * 20 + [True]
    assert ranked([*english, *CHINESE], "密码忘了").related.tolist() == [False] * 22 + [True, False]


def test_unicodes_words_are_a_fact_of_cells_that_need_them(tmp_path: Path):
    english = tokenized_task(tmp_path / "english")
    assert english.selection_facts(SelectorSpec.parse("bm25")) == {}
    task = tokenized_task(tmp_path / "hindi", template={"input": "प्रश्न: {text}", "output": "उत्तर: {label}"})
    for select in ("bm25", "hybrid:1"):
        assert task.selection_facts(SelectorSpec.parse(select)) == {"bm25_words": "unicode"}
    assert task.selection_facts(SelectorSpec.parse("random")) == {}


def test_demonstrations_that_are_drawn_because_nothing_is_related_are_counted(tmp_path: Path):
    made = plan(tmp_path, "2,8", selects=["bm25", "random", "hybrid:1"], draws=1, train_rows=12)
    (of_bm25,) = [text for text in unrelated(made) if text.startswith("bm25: ")]
    ranked_rows = made.task.pool.similarity.ranked("bm25")
    counts = [sum(max(0, k - int(r.related.sum())) for r in ranked_rows) for k in (2, 8)]
    queries = len(ranked_rows)
    parts = [
        f"{n:,} of {k * queries:,} at k={k} ({n / (k * queries):.0%})" for k, n in zip((2, 8), counts, strict=True) if n
    ]
    assert counts[1] > 0
    assert of_bm25 == (
        "bm25: demonstrations drawn at random because no others of the pool are related to the query: "
        + ", ".join(parts)
    )
    assert not [text for text in unrelated(made) if text.startswith("random")]


def test_of_many_values_of_k_the_first_and_the_last_are_named(tmp_path: Path):
    made = plan(tmp_path, "5,6,7,8", selects=["bm25"], draws=1, train_rows=12)
    (text,) = unrelated(made)
    assert re.search(r": [\d,]+ of [\d,]+ at k=5 \(\d+%\) to [\d,]+ of [\d,]+ at k=8 \(\d+%\)$", text)


def test_retrieval_that_relates_all_is_not_noted(tmp_path: Path, word_encoder: object):
    assert unrelated(plan(tmp_path, "2,8", selects=["dense"], draws=1)) == []


def test_near_duplicates_of_scripts_without_spaces_are_found():
    text, near, other = (
        frozenset(words_of_duplicates(text))
        for text in ("我的银行卡还没有寄到，怎么办？", "我的银行卡还没有寄到，怎么办呢", CHINESE[1])
    )
    assert [*WordSets([text]).near(near)]
    assert not [*WordSets([text]).near(other)]
    assert words_of_duplicates("Don't  STOP") == ["don", "t", "stop"]


def test_scores_do_not_change_by_the_way_words_are_found_in_english():
    pool = [f"card {n} is lost near the {place}" for n, place in enumerate(["bank", "shop", "station", "bank"])]
    plain, unicode = BM25(unicode=False), BM25(unicode=True)
    for retriever in (plain, unicode):
        retriever.fit(pool)
    for first, second in zip(plain.rank(pool), unicode.rank(pool), strict=True):
        np.testing.assert_array_equal(first.scores, second.scores)
