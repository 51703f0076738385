"""What ``--k`` means."""

from __future__ import annotations

import pytest

from icl_bench.errors import UserError
from icl_bench.sweep.k_values import LADDER, KValues, parse_per_label, parse_train_k


def test_numbers_are_sorted_and_counted_once():
    assert KValues.parse("100, 1,10,1,").numbers == (1, 10, 100)


def test_numbers_that_were_asked_for_stay_whether_they_fit_or_not():
    assert KValues.parse("1,500").resolved(largest=20) == (1, 500)


def test_max_is_the_largest_that_fits():
    assert KValues.parse("max").resolved(largest=37) == (37,)
    assert KValues.parse("10,max").resolved(largest=37) == (10, 37)


def test_auto_is_the_papers_ladder_up_to_the_largest_that_fits_and_that_one():
    assert KValues.parse("auto").resolved(largest=60) == (1, 5, 10, 25, 50, 60)
    assert KValues.parse("auto").resolved(largest=5000) == (*LADDER, 5000)
    assert KValues.parse("auto,7").resolved(largest=10) == (1, 5, 7, 10)


def test_where_nothing_fits_max_and_auto_are_empty():
    assert KValues.parse("max").resolved(largest=0) == ()
    assert KValues.parse("auto").resolved(largest=0) == ()


def test_no_demonstrations_are_asked_for_by_number_alone():
    assert KValues.parse("10,0").resolved(largest=20) == (0, 10)
    assert KValues.parse("0,auto").resolved(largest=5) == (0, 1, 5)
    assert 0 not in KValues.parse("auto,max").resolved(largest=20)


@pytest.mark.parametrize("text", ["0", "1,0"])
def test_none_of_each_label_are_refused(text: str):
    with pytest.raises(UserError, match=r"--per-label 0: .* give whole numbers of at least 1"):
        parse_per_label(text)


@pytest.mark.parametrize("word", ["-1", "ten", "1.5", "1e3", "1_000", "٣", "00", "9" * 5000])
def test_what_is_no_number_of_demonstrations_is_refused_by_name(word: str):
    with pytest.raises(UserError, match="not a number of demonstrations") as refused:
        KValues.parse(f"1,{word}")
    assert str(refused.value).startswith(f"--k {word[:20]}")


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_an_empty_list_is_refused(text: str):
    with pytest.raises(UserError, match="--k: empty"):
        KValues.parse(text)


def test_examples_to_train_on_are_numbers_or_auto():
    assert parse_train_k("1000,100,100") == (100, 1000)
    assert parse_train_k("auto") == ()
    with pytest.raises(UserError, match="--train-k: give either auto or numbers, not both"):
        parse_train_k("100,auto")
