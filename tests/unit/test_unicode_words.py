"""Words of every script."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.program import as_words

from icl_bench.unicode_words import (
    BEYOND_ASCII,
    UNSPACED,
    UNSPACED_OR_MARKED,
    folded,
    has_many,
    segmented,
    spaced,
    words,
)

LETTERS = st.text("aéÅñüßЖйάΣאاंकिคำ가北ガ 1-'", max_size=12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't say snake_case, 2 times!", "don t say snake case 2 times"),
        ("Élève à l'école; Größe", "élève à l école grösse"),
        ("Москва — столица", "москва столица"),
        ("Η ΑΘΉΝΑ είναι", "η αθήνα είναι"),
        ("مَرْحَبًا، يا عالم؟", "مَرْحَبًا يا عالم"),
        ("שָׁלוֹם", "שָׁלוֹם"),
        ("हिन्दी में लिखिए।", "हिन्दी में लिखिए"),
        ("서울은 수도입니다.", "서울은 수도입니다"),
        ("Hà Nội là thủ đô", "hà nội là thủ đô"),
        ("北京是首都。", "北 京 是 首 都"),
        ("スーパーで", "ス ー パ ー で"),
        ("ภาษาที่", "ภ า ษ า ที่"),
        ("ភាសាខ្មែរ", "ភា សា ខ្មែ រ"),
        ("iPhone手机2024年", "iphone 手 机 2024 年"),
        ("ＡＩとﾃﾞｰﾀ", "ai と デ ー タ"),
        ("می\u200cخواهم co\u00adop", "میخواهم coop"),
        ("ကို\u200bပြော", "ကို ပြေ ာ"),
        ("🙂 ❤️ — … ½ ™", ""),
    ],
)
def test_words_of_a_script(text: str, expected: str):
    assert words(text) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("北京是首都。好", "北京 京是 是首 首都 好"),
        ("ไทยดี", "ไท ทย ยดี"),
        ("使用 Python3", "使用 python3"),
        ("हिन्दी में", "हिन्दी में"),
    ],
)
def test_scripts_without_spaces_become_bigrams(text: str, expected: str):
    assert words(text, 2) == expected.split()


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_ascii_are_runs_of_letters_and_digits(text: str):
    assert words(text) == words(text, 2) == re.findall("[a-z0-9]+", text.lower())
    assert spaced(text) == text


@given(LETTERS)
def test_words_do_not_depend_on_composed_or_decomposed_letters(text: str):
    assert words(unicodedata.normalize("NFD", text)) == words(unicodedata.normalize("NFC", text))


@given(st.text())
def test_no_character_of_a_word_is_lost(text: str):
    assert "".join(segmented(text)) == text
    assert "".join(spaced(text).split()) == "".join(text.split())
    assert folded(folded(text)) == folded(text)


def test_a_few_words_of_another_script_do_not_change_the_rule():
    english = ["a sentence of ten words that has no accents at all"] * 10
    assert not has_many(BEYOND_ASCII, [*english, "café"])
    assert not has_many(BEYOND_ASCII, ["“Quotes” – and … 🙂 ½"])
    assert has_many(BEYOND_ASCII, as_words("Straße und Häuser"))
    assert not has_many(UNSPACED_OR_MARKED, ["Straße und Häuser", "Москва", "서울"])
    assert has_many(UNSPACED_OR_MARKED, ["किताब"])
    assert has_many(UNSPACED_OR_MARKED, [unicodedata.normalize("NFD", "é")])
    assert has_many(UNSPACED, ["query: 北京"])
    assert not has_many(UNSPACED, ["किताब", "", "!"])
