"""Options that are written as text: valid ones read back what they write, others are refused on one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from icl_bench.analysis.advice import Budget
from icl_bench.demonstrations.interface import SharedSelector
from icl_bench.demonstrations.ordering import Order
from icl_bench.demonstrations.parameters import options_of
from icl_bench.demonstrations.perturbations import Perturbation
from icl_bench.demonstrations.selector_spec import SelectorSpec, retrievers
from icl_bench.errors import UserError
from icl_bench.models.attention_patterns import Pattern
from icl_bench.models.prices import Prices
from icl_bench.registry import ATTENTION_PATTERNS, ORDERS, PERTURBATIONS, SELECTORS
from icl_bench.studies.rules import KEYS, Rule
from icl_bench.sweep.k_values import KValues, parse_per_label
from icl_bench.sweep.perplexity import parse_lengths
from icl_bench.tasks.label_subset import HalfLabels
from icl_bench.training.adaptation.spec import parse_tokens

Texts = SearchStrategy[str]


def joined(*parts: str | Texts) -> Texts:
    """One text of parts, each fixed or drawn."""
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    return st.tuples(*drawn).map("".join)


def one_of(*texts: str | Texts) -> Texts:
    return st.one_of([st.just(text) if isinstance(text, str) else text for text in texts])


def in_any_order(*options: Texts) -> Texts:
    """Some of the options, each once, behind a comma."""
    if not options:
        return st.just("")
    chosen = st.lists(st.sampled_from(options), unique_by=id)
    return chosen.flatmap(lambda some: joined(*(joined(",", option) for option in some)))


def some(words: Texts) -> Texts:
    """Some words, separated by commas, with blanks beside them or without."""
    lists = st.lists(words, min_size=1, max_size=5)
    return st.builds(str.join, st.sampled_from([",", ", "]), lists)


def number(least: int, most: int) -> Texts:
    """A whole number, with leading zeros or without."""
    digits = len(str(most))
    return st.tuples(st.integers(least, most), st.booleans()).map(lambda of: f"{of[0]:0{digits if of[1] else 1}}")


def decimal(least: float, most: float, **ends: bool) -> Texts:
    """A number as Python writes it, with an exponent or without."""
    return st.floats(least, most, **ends).flatmap(lambda x: st.sampled_from([repr(x), f"{x:.17e}"]))


COUNT = number(1, 10**9 - 1)
BY = st.sampled_from(retrievers()).map("by={}".format)
SHARED = {
    name: {
        option: values
        for option in options_of(selector)
        if (values := get_args(get_type_hints(selector).get(option, ())))  # numbers have properties of their own
    }
    for name, selector in SELECTORS.items()
    if issubclass(selector, SharedSelector)
}
"""Selector -> its options -> the values of each."""
BASE = st.sampled_from(sorted(SHARED)).flatmap(
    lambda name: joined(
        name,
        in_any_order(
            *(st.sampled_from(values).map(f"{option}={{}}".format) for option, values in SHARED[name].items())
        ),
    )
)
OWN = joined(st.sampled_from(["hybrid:", "hybrid:per-label:"]), COUNT, in_any_order(BY))
SELECTOR = one_of(
    BASE, st.sampled_from(retrievers()), joined("per-label:", COUNT, in_any_order(BY)), OWN, joined(BASE, "+", OWN)
)

NUMBER_OF = dict.fromkeys(PERTURBATIONS, st.just("")) | {
    "labels:noise": joined("=", decimal(0, 1)),
    "nearest-removed": joined(":", decimal(0, 100, exclude_min=True, exclude_max=True)),
    "farthest-removed": joined(":", decimal(0, 100, exclude_min=True, exclude_max=True)),
}
PERTURBATION = st.sampled_from(list(NUMBER_OF)).flatmap(lambda name: joined(name, NUMBER_OF[name]))

SEED_OF = dict.fromkeys(ORDERS, st.just("")) | {"shuffled": joined(":", number(0, 10**18 - 1))}
ORDER = st.sampled_from(list(SEED_OF)).flatmap(lambda name: joined(name, SEED_OF[name]))

SINK, LOCAL = number(0, 10**9 - 1).map("sink={}".format), number(0, 10**9 - 1).map("local={}".format)
TOP = joined("top=", one_of(COUNT, "1.0", number(1, 10**9 - 1).map(lambda digits: f"0.{digits.zfill(9)}")))
WORDS_OF = {
    "full": st.just(""),
    "block": one_of(
        joined(":", COUNT, in_any_order(SINK, LOCAL)),
        joined(":", COUNT, in_any_order(SINK, LOCAL), ",", TOP, in_any_order(BY)),
        joined(":1", in_any_order(st.sampled_from(["sink=0", "sink=1"]), st.just("local=0")), ",reuse"),
    ),
    "grouped": joined(":", COUNT, ",", COUNT),
    "approx": joined(":", COUNT, ", ", COUNT),
    "vectors": joined(":", one_of("all", COUNT)),
}
PATTERN = st.sampled_from(list(ATTENTION_PATTERNS)).flatmap(lambda name: joined(name, WORDS_OF[name]))


class Option(NamedTuple):
    """How an option is read, texts that it accepts, and how what is read is written."""

    parse: Callable[[str], Any]
    valid: Texts
    written: Callable[[Any], str] | None = str
    """None where it is stored as the user wrote it."""


def k_values_written(k: KValues) -> str:
    return ",".join([*map(str, k.numbers), *["auto"] * k.ladder, *["max"] * k.largest])


def numbers_written(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


OPTIONS = {
    "select": Option(SelectorSpec.parse, SELECTOR),
    "perturbation": Option(Perturbation.parse, PERTURBATION),
    "order": Option(Order.parse, ORDER),
    "attention": Option(Pattern.parse, PATTERN),
    "labels": Option(
        HalfLabels.parse, one_of("all", joined("half:", number(0, 10**18 - 1))), lambda half: str(half or "all")
    ),
    "k": Option(KValues.parse, some(one_of("auto", "max", "0", COUNT)), k_values_written),
    "per-label": Option(parse_per_label, some(COUNT), numbers_written),
    "lengths": Option(parse_lengths, some(number(2, 10**9 - 1)), numbers_written),
    "tokens": Option(parse_tokens, joined(COUNT, one_of("", ".5", ".000001"), st.sampled_from(["k", "M", "b"])), None),
    "advice": Option(
        Budget.parse, one_of("any", joined(st.sampled_from(["tokens=", "seconds="]), decimal(1e-9, 1e9))), None
    ),
    "price": Option(
        Prices.parse,
        joined(
            one_of("auto", joined(*(joined(name, decimal(0, 1e9)) for name in ("input=", ",cached=", ", output=")))),
            one_of("", joined(",hour=", decimal(0, 1e9))),
        ),
        None,
    ),
    "only": Option(lambda text: Rule.parse([text]), joined(st.sampled_from(sorted(KEYS)), "=", some(COUNT)), None),
}
each_option = pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)


@st.composite
def nearly(draw: st.DrawFn, valid: Texts) -> str:
    """A valid text with one or two edits: a piece left out, put in, doubled or replaced."""
    text = draw(valid)
    for _ in range(draw(st.integers(1, 2))):
        words = re.findall(r"\w+|\W", text)
        place = draw(st.integers(0, max(len(words) - 1, 0)))
        new = draw(st.sampled_from([*"0157,:=+-. \n\0٣½", "9" * 20, "nan", "max", *words]))
        kept = draw(st.sampled_from([words[place : place + 1], []]))
        text = "".join([*words[:place], draw(st.sampled_from(["", new])), *kept, *words[place + 1 :]])
    return text


def read(option: Option, text: str) -> bool:
    """Whether the text is accepted, and then reads back what it writes; else it is refused on one line."""
    message = ""
    try:
        found = option.parse(text)
    except UserError as error:
        message = str(error)
    else:
        assert option.written is None or option.parse(option.written(found)) == found
    assert len(message.splitlines()) <= 1
    return not message


@each_option
def test_every_valid_text_is_accepted_and_reads_back_what_it_writes(option: Option):
    @given(option.valid)
    def accepted(text: str) -> None:
        assert read(option, text)

    accepted()


@each_option
def test_a_nearly_valid_text_reads_back_what_it_writes_or_is_refused_on_one_line(option: Option):
    outcomes: list[bool] = []

    @given(nearly(option.valid))
    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
    def accepted_or_refused(text: str) -> None:
        outcomes.append(read(option, text))

    accepted_or_refused()
    assert min(outcomes.count(True), outcomes.count(False)) > len(outcomes) / 20, "nearly all are one or the other"


@each_option
@given(text=st.text(max_size=30))
def test_any_text_reads_back_what_it_writes_or_is_refused_on_one_line(option: Option, text: str):
    read(option, text)
