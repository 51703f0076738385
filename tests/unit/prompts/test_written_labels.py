"""Which label an unconstrained answer is: the same label in another dress, and nothing in doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_bench.prompts.written_labels import label_in, needs_signs, without_thoughts
from icl_bench.results.importing.answers import Labels

LABELS = ["card lost", "card arrival", "ABBR:exp", "NUM:date", "yes", "C++", "C"]


@pytest.mark.parametrize(
    "text",
    [
        "card lost",
        " card lost\n",
        "\ncard lost",
        "\u00a0card lost",
        "card lost.",
        "Card lost",
        "CARD LOST!",
        "**card lost**",
        '"card lost"',
        "`card lost`",
        "“card lost”",
        "card_lost",
        "- card lost",
        "intent: card lost",
        "Label: **Card lost**",
        "**Final answer:** card lost",
        "The intent = card lost",
        "card lost\n\nThis is because the card is gone.",
        '{"label": "card lost"}',
        '["card lost"]',
        "<think>It may be card arrival.</think>card lost",
        "<think>\n\n</think>\n\ncard lost",
        "It may be card arrival.</think>\ncard lost",
        "[THINK]card arrival?[/THINK]card lost",
        "card lost</s>",
        "card lost<|im_end|>",
        "<|channel|>analysis<|message|>card arrival?<|end|><|start|>assistant<|channel|>final<|message|>card lost<|return|>",
    ],
)
def test_a_label_in_another_dress_is_that_label(text: str) -> None:
    assert label_in(text, LABELS) == "card lost"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "card",
        "not card lost",
        "card lost or card arrival",
        "It is card lost",
        "card lost, card arrival",
        "<think>card lost",
        "<think>card lost</think>",
        "<|channel|>analysis<|message|>card lost",
        "unknown: no",
        "{",
        '{"a": "card lost", "b": "yes"}',
        "I think that the label is: card lost",  # more than three words before it
        "...",
    ],
)
def test_what_is_in_doubt_is_no_label(text: str) -> None:
    assert label_in(text, LABELS) is None


def test_labels_with_signs_of_their_own_are_read_as_they_are() -> None:
    assert label_in("ABBR:exp", LABELS) == "ABBR:exp"
    assert label_in("Type: NUM:date", LABELS) == "NUM:date"
    assert label_in("C++", LABELS) == "C++"
    assert label_in("C", LABELS) == "C"
    assert label_in("c++.", LABELS) == "C++"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("-1", None),
        ("Answer: -1.", None),
        ("**-1**", None),
        ("- 1", None),
        (".5", None),
        ("1.", "1"),
        ("(1)", "1"),
        ("**1**", "1"),
        ("-0.5", "-0.5"),
        ("Score: -0.5.", "-0.5"),
        ('"-0.5"', "-0.5"),
        ("- five", "five"),
    ],
)
def test_a_sign_and_a_point_decide_a_number(text: str, label: str | None) -> None:
    assert label_in(text, ["0", "1", "5", "-0.5", "five"]) == label


@pytest.mark.parametrize(
    ("text", "labels", "label"),
    [
        ("3", ("5", "-3", "2", "-7"), None),
        ("x = 3", ("5", "-3", "2", "-7"), None),
        ("7%", ("-7%", "5%"), None),
        ("1", ("-1", "0"), None),
        ("**1**", ("-1", "0"), None),
        ("1", ("-1", "+1"), "+1"),
        ("Label: 1", ("-1", "+1"), "+1"),
        ("-1", ("1", "2"), None),
        ("sentiment=-1", ("1", "-1"), "-1"),
        ("-1.0", ("1", "-1"), "-1"),
        ("- **1**", ("1", "-1"), "1"),
        ("50K", ("<=50K", ">50K"), None),
        (">50k.", ("<=50K", ">50K"), ">50K"),
        ("C#.", ("C", "C#", "C++"), "C#"),
        ("**C**", ("C", "C#", "C*"), "C"),
        ("**C#**", ("C", "C#", "C++"), "C#"),
        ("Language: c#.", ("C", "C#"), "C#"),
        ("`A-`", ("A", "A-", "B"), "A-"),
        ("Grade: A-.", ("A", "A-", "B"), "A-"),
        ("A-.", ("A", "A-", "B"), "A-"),
        ("A.", ("A", "A-", "B"), "A"),
        (".net.", (".NET", "NET"), ".NET"),
        ("NET", (".NET", "Java"), None),
        ("A", ("(A)", "(B)"), "(A)"),
        ("B.", ("(A)", "(B)"), "(B)"),
        ("**(a)**", ("(A)", "(B)"), "(A)"),
        ("The film is good", ("The film is good.", "The film is bad."), "The film is good."),
        ("-a-", ("-a", "a-"), None),
        ("Answer: <.", ("<", ">"), "<"),
        ("<>", ("<", ">"), None),
    ],
)
def test_markup_that_labels_begin_or_end_with_is_kept(text: str, labels: tuple[str, ...], label: str | None) -> None:
    assert label_in(text, labels) == label
    assert Labels(labels).label_in(text) == label


AWKWARD = [
    "C",
    "C#",
    "C++",
    "c",
    "-1",
    "1",
    "+1",
    "1.0",
    ".5",
    "5",
    "<50K",
    ">50K",
    "50K",
    "A",
    "A-",
    "A+",
    "A*",
    "a_b",
]
AWKWARD += [
    "a b",
    "a -b",
    "(A)",
    "[A]",
    "#A",
    "A.",
    "A..",
    "<",
    ">",
    "-",
    "?",
    ".",
    "~1",
    "U.S.",
    "'A'",
    "no: A",
    "18-24",
]


@given(st.sets(st.sampled_from(AWKWARD), min_size=1))
def test_each_label_is_read_as_itself_with_and_without_a_point(labels: set[str]) -> None:
    known = Labels(sorted(labels))
    for label in labels:
        for text in (label, f" {label}\n", f"{label}."):
            meant = text.strip() if text.strip() in labels else label
            assert label_in(text, sorted(labels)) == meant
            assert known.label_in(text) == meant


def test_labels_whose_reading_needs_signs() -> None:
    assert all(map(needs_signs, ["C#", "A-", "-1", ".5", "+1", "3", ".NET", "<50K"]))
    assert not any(map(needs_signs, ["card lost", "(A)", "Yes.", "C++", "ABBR:exp", "18-24", "a_b"]))


def test_a_spelling_that_two_labels_share_is_neither() -> None:
    assert label_in("card-lost", ["card lost", "card_lost"]) is None
    assert label_in("card_lost", ["card lost", "card_lost"]) == "card_lost"
    assert label_in("no", ["No", "NO"]) is None


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [
        ("Rating: 1", "1", None),
        ("1", "1", None),
        ("1.", "1", "1"),
        ("Rating: 10", "10", "10"),
        ("**order", "order", None),
        ("Order", "order", None),
        ("order\nThe text is", "order", "order"),
        ("**order**", "order", "order"),
        ("order status", "order status", "order status"),
        ("Label: no", "no", None),
        ("yes", "yes", "yes"),
    ],
)
def test_an_answer_that_was_cut_is_no_label_if_a_longer_one_begins_like_it(
    text: str, whole: str, cut: str | None
) -> None:
    labels = ["1", "2", "10", "order", "order status", "no", "none", "yes"]
    assert (label_in(text, labels), label_in(text, labels, cut=True)) == (whole, cut)


def test_thoughts_are_taken_off() -> None:
    assert without_thoughts("<think>a</think> b") == " b"
    assert without_thoughts("a <think> b") == "a <think> b"
    assert without_thoughts("<think>a") == ""


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error_and_only_as_one_of_the_labels(text: str) -> None:
    assert label_in(text, LABELS) in (None, *LABELS)


@given(
    st.sampled_from(LABELS),
    st.sampled_from(["{}", " {} ", "**{}**", "'{}'.", "\n{}\nbecause", "Answer: {}", "<think>no</think>{}"]),
    st.sampled_from([str, str.upper, str.title]),
)
def test_every_dress_is_taken_off_every_label(label: str, dress: str, case: object) -> None:
    assert callable(case)
    assert label_in(dress.format(case(label)), LABELS) == label
