"""Conversations are compared with plain prompts of the same demonstrations, and with those alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.predictions import answers, frame, scored
from support.stored import facts_of

from icl_bench.analysis.findings.chat import chat_gain, put
from icl_bench.analysis.settings import name_settings
from icl_bench.results.facts import ChatFacts, Facts

AROUND = ["<u>", "</u><a>", "</a><u>", "</u><a>", "</a>"]
FACTS = facts_of(
    {
        "p": {"template": {"separator": "\n"}, "seed": 0},
        "q": {"template": {"separator": "\n"}, "seed": 1},
        "t": {
            "template": {"separator": "\n"},
            "seed": 0,
            "chat": {"style": "turns", "system": None, "arguments": {}, "template": "x", "around": AROUND},
        },
        "s": {
            "template": {"separator": "\n"},
            "seed": 0,
            "chat": {
                "style": "single",
                "system": "Be brief.",
                "arguments": {"think": False},
                "template": "x",
                "around": AROUND,
            },
        },
    }
)
PLAIN, TURNS = (answers(np.random.default_rng(seed), (3, 200), chance) for seed, chance in ((0, 0.3), (1, 0.8)))


def side(variant: str, right: np.ndarray) -> Any:
    return scored(right, variant=variant)


def test_a_chat_is_paired_with_the_plain_prompts_that_agree_in_all_else():
    rows = frame(side("p", PLAIN), side("q", TURNS), side("t", TURNS))
    (found,) = chat_gain(rows, facts=FACTS).to_dict("records")
    assert (found["variant"], found["base_variant"]) == ("t", "p")
    assert (found["chat"], found["base_chat"]) == ("turns", "plain")
    assert found["difference"] == pytest.approx(TURNS.mean() - PLAIN.mean())
    assert found["advice"] == "turns"
    assert (found["draws"], found["rows"], found["left_out"]) == (3, 200, 0)


def test_without_plain_prompts_there_is_nothing_to_compare():
    assert chat_gain(frame(side("t", TURNS), side("s", PLAIN)), facts=FACTS).empty
    assert chat_gain(frame(side("p", TURNS)), facts=FACTS).empty


def test_a_way_is_named_by_its_style_and_what_else_is_said():
    assert [put(FACTS[v]) for v in "pts"] == ["plain", "turns", "single, system: 'Be brief.', think=False"]


def test_settings_are_named_by_the_style_and_by_more_only_where_styles_are_alike():
    rows = frame(side("p", PLAIN), side("t", TURNS), side("s", TURNS))
    assert name_settings(FACTS, rows) == {"p": "chat=plain", "t": "chat=turns", "s": "chat=single"}
    other = {"style": "turns", "system": "Be brief.", "arguments": {}, "template": "x"}
    facts = FACTS | {"s": FACTS["t"].with_more(chat={**other, "around": AROUND})}
    named = name_settings(facts, rows)
    assert named["t"] == "chat=turns, system=none"
    assert named["s"] == "chat=turns, system=Be brief."


def test_one_draw_of_the_same_demonstrations_is_judged_and_one_of_others_is_not():
    rows = frame(side("p", PLAIN[:1]), side("t", TURNS[:1]))
    (found,) = chat_gain(rows, facts=FACTS).to_dict("records")
    assert found["withheld"] is None
    assert found["advice"] == "turns"
    (found,) = chat_gain(rows.assign(draw=[0] * 200 + [1] * 200), facts=FACTS).to_dict("records")
    assert found["withheld"] == "one draw"
    assert pd.isna(found["advice"])


def test_what_may_be_chance_is_no_advice():
    rows = frame(side("p", PLAIN), side("t", PLAIN[:, ::-1]))
    (found,) = chat_gain(rows, facts=FACTS).to_dict("records")
    assert found["p_holm"] > 0.9
    assert pd.isna(found["advice"])


def test_a_way_without_arguments_is_named_by_its_style_and_texts_are_plain():
    assert put(Facts(chat=ChatFacts(style="turns"))) == "turns"
    assert put(Facts(chat=ChatFacts(style="turns", system=""))) == "turns, system: ''"
    assert put(Facts(chat=ChatFacts(style="s", arguments={"a": 1, "b": None}))) == "s, a=1, b=None"
    assert put(Facts()) == "plain"


def test_a_variant_of_which_nothing_is_known_is_plain():
    rows = frame(side("unknown", PLAIN), side("t", TURNS))
    (found,) = chat_gain(rows, facts={"t": FACTS["t"]}).to_dict("records")
    assert (found["chat"], found["base_chat"]) == ("turns", "plain")
    assert found["base_variant"] == "unknown"
